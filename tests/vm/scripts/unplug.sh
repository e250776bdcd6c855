# NVMe drives of a RAID 6 pulled and put back under XFS and fio verify: partial resync by itself; a new serial in the slot is rebuilt by policy.
#: drives=6x256M
#: modules=ublk_drv xfs crc32c_generic crc32c_intel
#: timeout=1200
state_of() {
    warpraid group show tank -o json \
        | python3 -c 'import json, sys; print(json.load(sys.stdin)["data"]["members"][int(sys.argv[1])]["state"])' "$1"
}
plain() { sed "s/\x1b\[[0-9;]*m//g" "$1"; }
is_state() { [ "$(state_of "$1")" = "$2" ]; }
unplug() {
    qmp "{\"execute\": \"device_del\", \"arguments\": {\"id\": \"nv$1\"}}" > /dev/null
    within 60 eval "! drive $1"
    within 180 is_state "$1" failed
    load_check
    note "drive $1 is gone, and so is its member; the load goes on"
}
plug() {
    qmp "{\"execute\": \"device_add\", \"arguments\": {\"driver\": \"nvme\", \"id\": \"nv$1\", \"serial\": \"$(printf VM%02d "$1")\", \"bus\": \"rp$1\", \"drive\": \"d$1\"}}" > /dev/null
    within 60 drive "$1"
}
daemon_start
daemon_wait
# shellcheck disable=SC2046
group_make $(drives 0 1 2 3 4 5) > /dev/null
warpraid group wait tank --for healthy > /dev/null
mkfs.xfs -q -f "$DEVICE"
mount "$DEVICE" /mnt
# Intent bits are cleared some seconds after the last write.
sync
sleep 12
load_start /mnt/load
within 120 test -s /mnt/load
unplug 4
sleep 3
unplug 5
sleep 3
load_check
warpraid status > /tmp/status || true
grep -q "can lose 0 more drives" /tmp/status || { cat /tmp/status; fail "status does not say the risk"; }
# Plugged in again they come back by themselves, and only what was written meanwhile is copied.
for number in 4 5; do
    plug "$number"
    within 120 is_state "$number" in_sync
    bytes=$(plain /tmp/daemon.log | grep "member is back" | grep -oE "copy_bytes=[0-9]+" | tail -1 | cut -d= -f2)
    note "MEASURED drive $number back: $bytes bytes of its 268435456 are copied"
    [ "$bytes" -gt 0 ] && [ "$bytes" -lt 134217728 ] || fail "not a partial resync: $bytes"
done
warpraid group wait tank --for healthy > /dev/null
load_check
# The order of what was told: gone 4, gone 5, back 4, back 5, each rebuilt before the next is plugged in. That a drive was
# removed stands beside its drop: a command may be faster than the kernel's word.
told() {
    warpraid events --limit 1000 | grep -E "$1" | sed -nE 's/.*(removed|dropped|joined|finished) .*slot ([45]).*/\1 \2/p' | tr '\n' ','
}
order=$(told "member.dropped|member.joined|rebuild.finished")
[ "$order" = "dropped 4,dropped 5,joined 4,finished 4,joined 5,finished 5," ] || fail "told in this order: $order"
[ "$(told drive.removed)" = "removed 4,removed 5," ] || fail "removals told: $(told drive.removed)"

# Where the operator said that it waits, it waits.
warpraid group set tank --returning ask > /dev/null
unplug 4
plug 4
within 60 eval 'plain /tmp/daemon.log | grep "waits for group readd"'
is_state 4 failed || fail "it came back although it was to wait"
warpraid group readd tank "$(drive 4)" > /dev/null
within 120 is_state 4 in_sync
warpraid group set tank --returning resync > /dev/null

# A blank drive with another serial where a lost one was: it waits, and where the operator said so it takes the slot.
fresh() {
    host "truncate -s 256M fresh$1" > /dev/null
    qmp "{\"execute\": \"blockdev-add\", \"arguments\": {\"driver\": \"raw\", \"node-name\": \"f$1\", \"file\": {\"driver\": \"file\", \"filename\": \"$VM_FOLDER/fresh$1\"}}}" > /dev/null
    qmp "{\"execute\": \"device_add\", \"arguments\": {\"driver\": \"nvme\", \"id\": \"nv$1\", \"serial\": \"VM$2\", \"bus\": \"rp$1\", \"drive\": \"f$1\"}}" > /dev/null
    within 60 drive "$2"
}
unplug 3
fresh 3 63
sleep 3
is_state 3 failed || fail "a new drive joined although nobody asked for it"
warpraid group replace tank --slot 3 "$(drive 63)" --yes > /dev/null
within 180 is_state 3 in_sync
warpraid group set tank --new-drive take > /dev/null
unplug 2
began=$(since_boot)
fresh 2 62
within 180 is_state 2 in_sync
note "MEASURED a new drive in the slot was rebuilt by itself within $(awk -v b="$began" -v e="$(since_boot)" 'BEGIN { printf "%.0f", e - b }') s (emulated)"
serial=$(warpraid group show tank -o json | python3 -c 'import json, sys; print(json.load(sys.stdin)["data"]["members"][2]["serial"])')
[ "$serial" = VM62 ] || fail "slot 2 has the drive $serial"
warpraid drive show VM62 > /dev/null || fail "a drive is not found by its serial"
# One that is not blank never joins by itself.
unplug 1
host "truncate -s 256M fresh1 && printf 'EFI PART' | dd of=fresh1 bs=512 seek=1 conv=notrunc status=none && mkfs.ext4 -q -F fresh1" > /dev/null
fresh 1 61
sleep 3
is_state 1 failed || fail "a drive with a file system was taken"
qmp '{"execute": "device_del", "arguments": {"id": "nv1"}}' > /dev/null
within 60 eval '! drive 61'
plug 1
within 180 is_state 1 in_sync
load_check
load_stop
umount /mnt
checked xfs "$DEVICE"
daemon_stop
