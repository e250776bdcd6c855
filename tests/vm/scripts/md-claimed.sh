# What mdadm can do to a group that is ours: assemble, force, update, incremental, re-add, zero-superblock; refused, or the group starts unchanged, or says that its members were modified by other software.
#: drives=5x128M
#: modules=ublk_drv raid456 ext4 crc32c_generic crc32c_intel
#: timeout=900
. "$ROOT/tests/vm/guest/md.sh"
daemon_start
daemon_wait
# shellcheck disable=SC2046
members=($(drives 0 1 2 3))
md_create 5 --raid-devices=4 "${members[@]}"
mkfs.ext4 -q -F /dev/md0
mount /dev/md0 /mnt
files_write /mnt 1
umount /mnt
md_stop
warpraid group adopt --name tank "${members[@]}" --yes > /dev/null
no_array() {
    ! grep -q "^md" /proc/mdstat || { cat /proc/mdstat /tmp/mdadm.out; fail "$1: md started the array"; }
}
attacks() {
    local what
    for what in "--assemble /dev/md0 ${members[*]}" "--assemble --force /dev/md0 ${members[*]}" \
        "--assemble --update=resync /dev/md0 ${members[*]}" "--incremental ${members[0]}" "--incremental ${members[1]}" \
        "--assemble --run /dev/md0 ${members[0]} ${members[1]} ${members[2]}"; do
        local code=0
        # shellcheck disable=SC2086
        mdadm $what > /tmp/mdadm.out 2>&1 || code=$?
        no_array "mdadm $what"
        note "mdadm ${what%% /dev*}: exit $code, $(head -1 /tmp/mdadm.out)"
        mdadm --stop --scan > /dev/null 2>&1 || true
    done
}
intact() {
    warpraid disk expose tank/whole > /dev/null
    mount /dev/warpraid/tank/whole /mnt
    files_checked /mnt
    umount /mnt
    warpraid disk unexpose tank/whole > /dev/null
}
# While the group runs its members are held.
attacks
code=0
mdadm --zero-superblock "${members[0]}" > /tmp/mdadm.out 2>&1 || code=$?
[ "$code" != 0 ] || fail "a held member lost its superblock"
intact
# While it is stopped nothing but the feature bit keeps md away.
warpraid group stop tank > /dev/null
attacks
warpraid group assemble tank > /tmp/said 2>&1 || { cat /tmp/said; fail "it does not start any more"; }
intact
warpraid group stop tank > /dev/null
# A member without its superblock: the group starts without it, or says what happened; the data is right, and the drive can be
# put in again.
mdadm --zero-superblock "${members[1]}" > /tmp/mdadm.out 2>&1 || note "zero-superblock: $(cat /tmp/mdadm.out)"
warpraid group assemble tank > /tmp/said 2>&1 || true
warpraid status > /tmp/status || true
intact
grep -q "modified by other software: superblock erased" /tmp/status || { cat /tmp/said /tmp/status; fail "nothing is said"; }
note "MEASURED six ways of mdadm refused while the group ran and while it was stopped; without one superblock the data was right"
daemon_stop
