# kill -9 of the daemon under XFS and fio verify (MK-07): the block device stays, no error, every block right; pauses measured.
#: drives=6x256M
#: modules=ublk_drv xfs crc32c_generic crc32c_intel
#: timeout=1200
#: ci=yes
daemon_start
daemon_wait
# shellcheck disable=SC2046
group_make $(drives 0 1 2 3 4 5) > /dev/null
mkfs.xfs -q -f "$DEVICE"
mount "$DEVICE" /mnt
load_start /mnt/load
probe_start /mnt/probe
sleep 5
round() {
    local began
    began=$(since_boot)
    daemon_kill
    daemon_start
    [ "${1:-}" != again ] || { sleep "$2"; daemon_kill; daemon_start; }
    daemon_wait
    probe_after "$began"
}
for number in $(seq "$VM_KILLS"); do
    round
    note "MEASURED kill $number: I/O paused for $PAUSE s (emulated)"
    load_check
    sleep 3
done
round again 0.2
note "MEASURED two kills in a row: I/O paused for $PAUSE s (emulated)"
load_check
round again 2
note "MEASURED killed while it recovered: I/O paused for $PAUSE s (emulated)"
probe_stop
load_stop
grep -o "goes on .* over" /tmp/daemon.log | sed 's/^/[daemon] /'
umount /mnt
checked xfs "$DEVICE"
! dmesg | grep -E "I/O error|ublk.*error" || fail "the kernel saw errors"
# Cleanly stopped while mounted: the same, and a device that nobody uses goes with the daemon.
mount "$DEVICE" /mnt
probe_start /mnt/probe
began=$(since_boot)
daemon_stop
[ -b "$DEVICE" ] || fail "the device went although it is mounted"
daemon_start
daemon_wait
probe_after "$began"
note "MEASURED stopped and started while mounted: I/O paused for $PAUSE s (emulated)"
probe_stop
umount /mnt
checked xfs "$DEVICE"
daemon_stop
[ ! -e "$DEVICE" ] || fail "a device nobody uses outlived its daemon"
