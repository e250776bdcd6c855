# Two NVMe drives of a RAID 6 pulled one after the other under XFS and fio verify; put back, only what changed is copied.
#: drives=6x256M
#: modules=ublk_drv xfs crc32c_generic crc32c_intel
#: timeout=1200
#: ci=yes
state_of() {
    warpraid group show tank -o json \
        | python3 -c 'import json, sys; print(json.load(sys.stdin)["data"]["members"][int(sys.argv[1])]["state"])' "$1"
}
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
for number in 4 5; do
    plug "$number"
    within 60 warpraid group readd tank "$(drive "$number")" --dry-run
    warpraid group readd tank "$(drive "$number")" -o json > /tmp/readd
    bytes=$(python3 -c 'import json; print(next(int(w) for w in json.load(open("/tmp/readd"))["data"]["steps"][1].split() if w.isdigit()))')
    within 120 is_state "$number" in_sync
    note "MEASURED drive $number back: $bytes bytes of its 268435456 are copied"
    [ "$bytes" -gt 0 ] && [ "$bytes" -lt 134217728 ] || fail "not a partial resync: $bytes"
done
warpraid group wait tank --for healthy > /dev/null
load_check
load_stop
umount /mnt
checked xfs "$DEVICE"
# The order of what was told: gone 4, gone 5, back 4, back 5, each rebuilt before the next is asked for.
told=$(warpraid events | grep -E "member.dropped|member.joined|rebuild.finished" | grep -oE "(dropped|joined|finished).*" \
    | sed -nE 's/^(dropped|joined|finished) .*slot ([45]).*/\1 \2/p' | tr '\n' ',')
[ "$told" = "dropped 4,dropped 5,joined 4,finished 4,joined 5,finished 5," ] || fail "told in this order: $told"
daemon_stop
