# What `filesystems` and `filesystems-4k` do.
BLOCK=$(cat "/sys/block/$(basename "$(drive 0)")/queue/logical_block_size")
# Without the module the message says what is missing and the way on; the disk is not exposed.
daemon_start
daemon_wait
# shellcheck disable=SC2046
group_make $(drives 0 1 2 3 4 5)
note "serving $DEVICE"
queue=/sys/block/$(basename "$DEVICE")/queue
[ "$(cat "$queue/logical_block_size")" = "$BLOCK" ] || fail "the disk has blocks of $(cat "$queue/logical_block_size")"
[ "$(cat "$queue/fua")" = 1 ] || fail "no FUA"
[ "$(cat "$queue/write_cache")" = "write back" ] || fail "no flushes are sent"
[ "$(cat "$queue/optimal_io_size")" = 262144 ] || fail "a stripe is told as $(cat "$queue/optimal_io_size")"
[ "$(cat "$queue/discard_max_bytes")" -lt 2147483648 ] || fail "discards of 2 GiB"
warpraid disk show tank/home | grep -q "served at .*/dev/warpraid/tank/home" || fail "disk show does not show the device"

# The whole disk, unmounted: direct, every size from a block to 1 MiB.
verified "$DEVICE" --direct=1 --bsrange="$BLOCK-1M" --blockalign="$BLOCK" --size=24M
note "verified without a file system"
for kind in xfs ext4 btrfs; do
    began=$(since_boot)
    case $kind in
        xfs) mkfs.xfs -q -f "$DEVICE" ;;
        ext4) mkfs.ext4 -q -F "$DEVICE" ;;
        btrfs) mkfs.btrfs -q -f "$DEVICE" > /dev/null ;;
    esac
    mount "$DEVICE" /mnt
    verified /mnt/direct --direct=1 --bsrange=4k-1M --blockalign=4k --size=12M
    verified /mnt/buffered --direct=0 --bsrange=512-1M --blockalign=512 --size=12M --end_fsync=1
    rm /mnt/direct
    fstrim /mnt
    sum=$(sha256sum < /mnt/buffered)
    if [ "$kind" = xfs ]; then
        # MK-06: in use is in use, and the message says by whom.
        code=0
        warpraid disk unexpose tank/home 2> /tmp/refused || code=$?
        [ "$code" = 7 ] && grep -q "/mnt" /tmp/refused || fail "unexpose while mounted: $code $(cat /tmp/refused)"
    fi
    umount /mnt
    checked $kind "$DEVICE"
    mount "$DEVICE" /mnt
    [ "$(sha256sum < /mnt/buffered)" = "$sum" ] || fail "$kind: other contents after a remount"
    umount /mnt
    note "MEASURED $kind: from mkfs to a clean check in $(awk -v b="$began" -v e="$(since_boot)" 'BEGIN { printf "%.0f", e - b }') s (emulated)"
done
if [ "$BLOCK" = 512 ]; then
    # MK-04: the group's blocks never change.
    warpraid drive fail "$(drive 5)" --yes > /dev/null
    code=0
    warpraid group replace tank --slot 5 "$(drive 6)" --yes > /dev/null 2> /tmp/refused || code=$?
    [ "$code" = 3 ] && grep -q 4096 /tmp/refused || fail "a drive of 4096 in a group of 512: $code $(cat /tmp/refused)"
    note "refused: $(head -1 /tmp/refused)"
fi
warpraid disk unexpose tank/home
[ ! -e "$DEVICE" ] && [ ! -e /dev/warpraid/tank/home ] || fail "the device is still there"
warpraid disk expose tank/home > /dev/null
daemon_stop
[ ! -e "$DEVICE" ] || fail "a device nobody uses outlived the daemon"
# What was exposed is exposed again.
daemon_start
daemon_wait
within 60 test -b /dev/warpraid/tank/home
checked btrfs /dev/warpraid/tank/home
daemon_stop
