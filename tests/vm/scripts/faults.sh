# Drives that are slow, have a bad sector, hang, fail everything, die, one after the other under XFS and fio verify: no error, and nobody waits longer than the drive time-out.
#: drives=6x256M
#: backend=fault
#: modules=ublk_drv xfs crc32c_generic crc32c_intel
#: timeout=1500
TIMEOUT=10
state_of() {
    warpraid group show tank -o json \
        | python3 -c 'import json, sys; print(json.load(sys.stdin)["data"]["members"][int(sys.argv[1])]["state"])' "$1"
}
is_state() { [ "$(state_of "$1")" = "$2" ]; }
errors_of() {
    warpraid group show tank -o json \
        | python3 -c 'import json, sys; print(json.load(sys.stdin)["data"]["members"][int(sys.argv[1])]["errors"]["commands"])' "$1"
}
pause() { host "python3 -c 'import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.send(sys.argv[2].encode()); print(s.recv(1))' pause$1 $2" > /dev/null; }
has_problem() { warpraid status -o json > /tmp/status; grep -q "\"$1\"" /tmp/status; }
# The longest write of the probe since TIME; nobody waits longer than the drive time-out (and what the emulation adds).
waited() {
    probe_after "$1"
    note "MEASURED $2: the longest write took $PAUSE s with a drive time-out of $TIMEOUT s (emulated)"
    awk -v p="$PAUSE" -v t=$TIMEOUT 'BEGIN { exit p > t + 10 }' || fail "a write waited for $PAUSE s"
    load_check
}
back() {
    within 60 warpraid group readd tank "$(drive "$1")" --dry-run
    warpraid group readd tank "$(drive "$1")" > /dev/null
    within 180 is_state "$1" in_sync
    warpraid group wait tank --for healthy > /dev/null
}
daemon_start --drive-timeout ${TIMEOUT}s
daemon_wait
# shellcheck disable=SC2046
group_make $(drives 0 1 2 3 4 5) > /dev/null
warpraid group wait tank --for healthy > /dev/null 2>&1
mkfs.xfs -q -f "$DEVICE"
mount "$DEVICE" /mnt
load_start /mnt/load
probe_start /mnt/probe
within 120 test -s /mnt/load

# Slow: it stays a member, and clients see no error.
began=$(since_boot)
host "echo 2M > rate1" > /dev/null
sleep 30
host "rm rate1" > /dev/null
waited "$began" "a slow drive (2 Mbit/s for 30 s)"
is_state 1 in_sync || fail "a slow drive was dropped"

# One bad sector in the data: it cannot be read (not when it is tried again either) until it is written. Every block is read
# right, the sector is written again, the drive stays. The kernel tries each read six times.
began=$(since_boot)
before=$(errors_of 2)
bad='{"event": "none", "iotype": "read", "errno": 5, "sector": 204800, "once": true}'
bad="$bad, $bad, $bad, $bad, $bad, $bad"
qmp "{\"execute\": \"blockdev-add\", \"arguments\": {\"driver\": \"blkdebug\", \"node-name\": \"b2\", \"image\": \"p2\", \"inject-error\": [$bad, $bad]}}" > /dev/null
qmp '{"execute": "blockdev-reopen", "arguments": {"options": [{"driver": "raw", "node-name": "d2", "file": "b2", "discard": "unmap"}]}}' > /dev/null
dd if="$DEVICE" of=/dev/null bs=1M iflag=direct status=none || fail "reading over a bad sector"
[ "$(errors_of 2)" -gt "$before" ] || fail "the bad sector was not read"
waited "$began" "a bad sector"
is_state 2 in_sync || fail "a drive with one bad sector was dropped"
dmesg | grep "medium error" | sed 's/^/[kernel] /'

# It hangs: dropped at the time-out; back with what changed.
began=$(since_boot)
pause 3 p
within 120 is_state 3 failed
pause 3 r
waited "$began" "a drive that hangs"
warpraid group show tank | grep -q "did not answer" || fail "it is not said why: $(warpraid group show tank)"
back 3

# It fails everything.
began=$(since_boot)
host "touch error4" > /dev/null
within 120 is_state 4 failed
host "rm error4" > /dev/null
waited "$began" "a drive that fails everything"
back 4

# It dies: what serves it is killed.
began=$(since_boot)
host 'kill -9 $(cat pid5)' > /dev/null
within 120 is_state 5 failed
waited "$began" "a drive that dies"
probe_stop
load_stop
umount /mnt
checked xfs "$DEVICE"
! dmesg | grep -E "ublk.*error|I/O error, dev ublk" || fail "the disk saw errors"
daemon_stop
