# Arrays of the real md adopted, used, rebuilt, released and checked by md; the same after md rebuilt one; groups of ours released to md (levels 5 and 6, all with --all).
#: drives=7x128M
#: modules=ublk_drv raid0 raid1 raid10 raid456 ext4 crc32c_generic crc32c_intel
#: timeout=2400
. "$ROOT/tests/vm/guest/md.sh"
daemon_start
daemon_wait
blank() {
    local one
    for one in "$@"; do blkdiscard -f -z "$one"; done
}
serve() {
    warpraid disk expose "$1" > /dev/null
    DEVICE=$(readlink -f "/dev/warpraid/$1")
    mount "$DEVICE" /mnt
}
unserve() {
    umount /mnt
    warpraid disk unexpose "$1" > /dev/null
}
adopted() {
    local level=$1 count=$2
    local -a members
    # shellcheck disable=SC2046
    members=($(drives $(seq 0 $((count - 1)))))
    local spare
    spare=$(drive 6)
    blank "${members[@]}" "$spare"
    md_create "$level" --raid-devices="$count" "${members[@]}"
    mkfs.ext4 -q -F /dev/md0
    mount /dev/md0 /mnt
    files_write /mnt 1
    umount /mnt
    md_stop

    warpraid group adopt --name "old$level" "${members[@]}" --dry-run > /dev/null
    warpraid group adopt --name "old$level" "${members[@]}" --yes > /dev/null
    serve "old$level/whole"
    files_checked /mnt
    files_write /mnt 2
    if [ "$level" != 0 ]; then
        # A drive of ours fails and is rebuilt on another.
        warpraid drive fail "${members[1]}" --yes > /dev/null
        files_write /mnt 3
        warpraid group replace "old$level" --slot 1 "$spare" --yes > /dev/null
        warpraid group wait "old$level" --for rebuilt > /dev/null 2>&1
        warpraid drive wipe "${members[1]}" --yes --expect-uuid "$(uuid_of "${members[1]}")" > /dev/null
        local pulled=${members[1]}
        members[1]=$spare
        files_write /mnt 4
    fi
    files_checked /mnt
    unserve "old$level/whole"
    warpraid group release "old$level" --yes > /tmp/released
    md_assemble "${members[@]}"
    md_checked "$level"
    checked ext4 /dev/md0
    mount /dev/md0 /mnt
    files_checked /mnt
    files_write /mnt 5
    if [ "$level" != 0 ]; then
        # md rebuilds one, and we take the array over again.
        mdadm /dev/md0 --fail "${members[0]}" --remove "${members[0]}" > /tmp/mdadm.out 2>&1 || { cat /tmp/mdadm.out; fail "mdadm --fail"; }
        files_write /mnt 6
        mdadm /dev/md0 --add "$pulled" > /tmp/mdadm.out 2>&1 || { cat /tmp/mdadm.out; fail "mdadm --add"; }
        md_idle
        members[0]=$pulled
    fi
    umount /mnt
    md_stop
    warpraid group adopt --name "again$level" "${members[@]}" --yes > /dev/null
    serve "again$level/whole"
    files_checked /mnt
    files_write /mnt 7
    unserve "again$level/whole"
    warpraid group release "again$level" --yes > /dev/null
    md_assemble "${members[@]}"
    md_checked "$level"
    mount /dev/md0 /mnt
    files_checked /mnt
    umount /mnt
    md_stop
    note "MEASURED RAID $level: adopted, rebuilt by us, released, rebuilt by md, adopted, released: mismatch_cnt 0, every file right"
}
# A group of ours becomes md's: the same partitions, the same files.
reversed() {
    local level=$1 count=$2
    local -a members
    # shellcheck disable=SC2046
    members=($(drives $(seq 0 $((count - 1)))))
    blank "${members[@]}"
    warpraid group create "own$level" --level "$level" "${members[@]}" --init zero --yes > /dev/null
    warpraid disk create "own$level/one" --size 30M > /dev/null
    warpraid disk create "own$level/two" --size 40M > /dev/null
    warpraid disk expose "own$level/two" > /dev/null
    mkfs.ext4 -q -F "/dev/warpraid/own$level/two"
    local size
    size=$(blockdev --getsize64 "/dev/warpraid/own$level/two")
    warpraid disk unexpose "own$level/two" > /dev/null
    serve "own$level/two"
    files_write /mnt 1
    unserve "own$level/two"
    warpraid group release "own$level" --yes > /dev/null
    md_assemble "${members[@]}"
    within 30 test -b /dev/md0p2
    [ "$(blockdev --getsize64 /dev/md0p2)" = "$size" ] || fail "RAID $level: partition 2 has another size: $(blockdev --getsize64 /dev/md0p2), not $size"
    sgdisk --print /dev/md0 | grep -qE " two$" || fail "RAID $level: another partition table: $(sgdisk --print /dev/md0)"
    mount /dev/md0p2 /mnt
    files_checked /mnt
    umount /mnt
    md_checked "$level"
    md_stop
    note "MEASURED RAID $level of ours, released: md assembles it with its partitions, mismatch_cnt 0, every file right"
}
# The same writes through md and through us leave the same bytes on every drive, parity too.
same_bytes() {
    local level=$1 count=$2 one whose
    local -a members
    # shellcheck disable=SC2046
    members=($(drives $(seq 0 $((count - 1)))))
    for whose in md ours; do
        blank "${members[@]}"
        md_create "$level" --assume-clean --raid-devices="$count" "${members[@]}"
        local target=/dev/md0
        if [ $whose = ours ]; then
            md_stop
            warpraid group adopt --name "same$level" "${members[@]}" --yes > /dev/null
            warpraid disk expose "same$level/whole" > /dev/null
            target=$(readlink -f "/dev/warpraid/same$level/whole")
        fi
        # Whole stripes, parts of stripes, single blocks, in an order and with contents that are the same each time.
        fio --name=same --filename="$target" --rw=randwrite --bsrange=4k-512k --blockalign=4k --size=48M --io_size=24M --direct=1 \
            --ioengine=psync --randseed=11 --buffer_pattern='"warpraid"%o' --randrepeat=1 > /dev/null
        if [ $whose = ours ]; then
            warpraid disk unexpose "same$level/whole" > /dev/null
            warpraid group release "same$level" --yes > /dev/null
        else
            md_stop
        fi
        for one in "${members[@]}"; do
            local start length
            start=$(mdadm --examine "$one" | sed -nE 's/ *Data Offset : ([0-9]+) sectors.*/\1/p')
            length=$(mdadm --examine "$one" | sed -nE 's/ *Used Dev Size : ([0-9]+) sectors.*/\1/p')
            [ -n "$length" ] || length=$(mdadm --examine "$one" | sed -nE 's/ *Avail Dev Size : ([0-9]+) sectors.*/\1/p')
            dd if="$one" bs=64k iflag=direct,skip_bytes,count_bytes skip=$((start * 512)) count=$((length * 512)) status=none | sha256sum
        done > /tmp/bytes.$whose
    done
    cmp /tmp/bytes.md /tmp/bytes.ours || fail "RAID $level: the drives differ: $(paste /tmp/bytes.md /tmp/bytes.ours)"
    note "MEASURED RAID $level: the same writes leave the same bytes on all $count drives, through md and through us"
}
for level in $VM_LEVELS; do
    count=$(members_of "$level")
    adopted "$level" "$count"
    reversed "$level" "$count"
    same_bytes "$level" "$count"
done
daemon_stop
