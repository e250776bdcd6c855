# At the door: module missing, not root, drives in use (AD-01 with a mounted partition), and mkfs with discards beyond 2 GiB (MK-01): exit codes and messages.
#: drives=3x2G 2x64M
#: modules=ublk_drv xfs ext4 crc32c_generic crc32c_intel
#: timeout=900
#: ci=yes
# refused EXIT WORD COMMAND...: it ends with this exit code and says the word.
refused() {
    local exit=$1 word=$2 code=0
    shift 2
    "$@" > /tmp/refused 2>&1 || code=$?
    [ "$code" = "$exit" ] && grep -q -- "$word" /tmp/refused || fail "$*: exit $code, $(cat /tmp/refused)"
    note "exit $code: $(head -1 /tmp/refused)"
}
daemon_start
daemon_wait

# AD-01: a partition of the drive is mounted; nothing on the drive changes, and what holds it is said.
used=$(drive 3)
sgdisk --new=1:0:0 --change-name=1:data "$used" > /dev/null
within 60 test -b "${used}p1"
mkfs.ext4 -q -F -L precious "${used}p1"
# Read-only, so that nothing but us could change the drive.
mount -o ro "${used}p1" /mnt
sum=$(sha256sum < "$used")
refused 3 "mounted on /mnt" warpraid group create other --level 1 "$used" "$(drive 4)" --yes
refused 3 "mounted on /mnt" warpraid drive wipe "$used" --yes --expect-uuid x
refused 3 "mounted on /mnt" warpraid spare add "$used" --global
umount /mnt
refused 3 "GPT" warpraid group create other --level 1 "$used" "$(drive 4)" --yes
[ "$(sha256sum < "$used")" = "$sum" ] || fail "the drive was changed"
warpraid group list | grep -q other && fail "half a group was made"
# Held by a process: busy, and by whom.
python3 -c 'import os, sys, time; os.open(sys.argv[1], os.O_RDWR | os.O_EXCL); print("held", flush=True); time.sleep(600)' "$(drive 4)" > /tmp/held &
holder=$!
within 60 grep -q held /tmp/held
refused 7 "process $holder" warpraid group create other --level 1 "$(drive 4)" "$(drive 0)" --yes
kill $holder
wait $holder 2> /dev/null || true

# Without the module: what is missing, and the way on. NBD goes without it.
warpraid group create tank --level 5 "$(drive 0)" "$(drive 1)" "$(drive 2)" --init zero --yes > /dev/null
warpraid disk create tank/home --size 3900M > /dev/null
rmmod ublk_drv
refused 1 "modprobe ublk_drv" warpraid disk expose tank/home
refused 1 "ublk_drv is not loaded" warpraid disk expose tank/home -o json
module ublk_drv

# Not root: the client is told which socket it may use; a daemon of a user serves no block devices.
refused 6 "read.sock" setpriv --reuid=65534 --clear-groups "$WARPRAID" --socket /run/warpraid/admin.sock group stop tank
mkdir -m 700 /tmp/user
truncate -s 64M /tmp/user/d0 /tmp/user/d1
chown -R 65534 /tmp/user
as_user() { setpriv --reuid=65534 --clear-groups env HOME=/tmp/user WARPRAID_SOCKET=/tmp/user/run/admin.sock "$WARPRAID" "$@"; }
setpriv --reuid=65534 --clear-groups env HOME=/tmp/user "$WARPRAID" serve --lanes 1 --memory 32M --state-dir /tmp/user/state \
    --socket /tmp/user/run/admin.sock > /tmp/user.log 2>&1 &
user=$!
within 120 as_user status
as_user group create mine --level 1 /tmp/user/d0 /tmp/user/d1 --yes > /dev/null
as_user disk create mine/home --size 32M > /dev/null
refused 6 "needs root" as_user disk expose mine/home
kill $user
wait $user || fail "a user's daemon ended with $?"

# MK-01: discards and write-zeroes of more than 2 GiB, and the real mkfs, which sends them.
warpraid disk expose tank/home > /dev/null
DEVICE=$(readlink -f /dev/warpraid/tank/home)
for at in 0 2047 2048 3899; do
    dd if=/dev/urandom of="$DEVICE" bs=1M seek=$at count=1 oflag=direct conv=nocreat,notrunc status=none
done
zeroes() {
    for at in 0 2047 2048 3899; do
        dd if="$DEVICE" bs=1M skip=$at count=1 iflag=direct status=none | cmp -n 1048576 - /dev/zero || fail "$1: not zero at $at MiB"
    done
}
blkdiscard -f "$DEVICE"
zeroes discard
for at in 0 2047 2048 3899; do
    dd if=/dev/urandom of="$DEVICE" bs=1M seek=$at count=1 oflag=direct conv=nocreat,notrunc status=none
done
blkdiscard -f -z "$DEVICE"
zeroes write-zeroes
for kind in ext4 xfs; do
    case $kind in
        ext4) mkfs.ext4 -q -F "$DEVICE" ;;
        xfs) mkfs.xfs -q -f "$DEVICE" ;;
    esac
    mount "$DEVICE" /mnt
    verified /mnt/file --direct=1 --bs=64k --size=8M
    fstrim /mnt
    umount /mnt
    checked $kind "$DEVICE"
    note "mkfs.$kind with its discards, on a disk of $(($(cat "/sys/block/$(basename "$DEVICE")/size") / 2048)) MiB: clean"
done
! dmesg | grep -E "ublk.*error|I/O error" || fail "the kernel saw errors"
daemon_stop
