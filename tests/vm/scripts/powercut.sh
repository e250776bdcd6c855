# Power cut with volatile drive caches (virtio drives: QEMU's NVMe drops FUA), RAID 1 and 6 at once, three cuts: every file that was synced is there and right.
#: drives=4x256M 2x400M
#: backend=cache
#: modules=ublk_drv xfs raid1 crc32c_generic crc32c_intel
#: timeout=1500
#: ci=yes
content() { head -c $((20000 + 4096 * ($1 % 7))) < <(yes "file $1 of $2, as it was synced"); }
serve() {
    local name=$1
    warpraid disk expose "$name/disk" > /dev/null
    mkdir -p "/mnt/$name"
}
daemon_start
daemon_wait
if [ "$PHASE" = 1 ]; then
    # shellcheck disable=SC2046
    warpraid group create six --level 6 $(drives 0 1 2 3) --yes > /dev/null
    # shellcheck disable=SC2046
    warpraid group create one --level 1 $(drives 4 5) --yes > /dev/null
    for name in six one; do
        warpraid disk create $name/disk --size 380M > /dev/null
        serve $name
        mkfs.xfs -q -f "/dev/warpraid/$name/disk"
        mount "/dev/warpraid/$name/disk" "/mnt/$name"
    done
    first=1
else
    last=$(host 'tail -n 1 acked')
    note "after cut $((PHASE - 1)): files up to $last were synced"
    for name in six one; do
        serve $name
        # Mounting replays the log; what is then on the disk must be consistent.
        mount "/dev/warpraid/$name/disk" "/mnt/$name"
        for number in $(seq "$last"); do
            content "$number" $name | cmp - "/mnt/$name/$number" || fail "file $number of $name is not as it was synced"
        done
        umount "/mnt/$name"
        checked xfs "/dev/warpraid/$name/disk"
        mount "/dev/warpraid/$name/disk" "/mnt/$name"
    done
    first=$((last + 1))
    note "MEASURED cut $((PHASE - 1)): $((2 * last)) synced files right, both file systems clean"
fi
if [ "$PHASE" -le 3 ]; then
    for number in $(seq "$first" $((first + 7))); do
        for name in six one; do
            content "$number" $name > "/mnt/$name/$number"
            sync "/mnt/$name/$number" "/mnt/$name"
        done
        host "echo $number >> acked" > /dev/null
    done
    # Writes in flight and in caches when the power goes.
    for name in six one; do
        dd if=/dev/urandom of="/mnt/$name/torn" bs=64k count=200 oflag=direct conv=notrunc status=none &
        dd if=/dev/urandom of="/mnt/$name/torn2" bs=4k count=2000 conv=notrunc status=none &
    done
    sleep 1.$((PHASE * 3))
    power_cut
fi
for name in six one; do umount /mnt/$name; done
daemon_stop
