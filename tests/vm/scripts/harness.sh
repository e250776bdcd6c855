# The harness itself: drives by serial, requests to the host, a drive that leaves and comes back, a power cut.
#: drives=2x64M 1x64M:4096
#: timeout=120
#: ci=yes
if [ "$PHASE" = 1 ]; then
    [ "$(cat "/sys/block/$(basename "$(drive 2)")/queue/logical_block_size")" = 4096 ] || fail "drive 2 has no blocks of 4096"
    [ "$(host 'echo from the host')" = "from the host" ] || fail "the host's shell"
    one=$(drive 1)
    qmp '{"execute": "device_del", "arguments": {"id": "nv1"}}' > /dev/null
    within 60 eval '! drive 1'
    qmp '{"execute": "device_add", "arguments": {"driver": "nvme", "id": "nv1", "serial": "VM01", "bus": "rp1", "drive": "d1"}}' > /dev/null
    within 60 drive 1
    note "drive 1 was $one and is $(drive 1)"
    printf durable | dd of="$(drive 0)" bs=512 count=1 conv=nocreat,sync,fsync status=none
    power_cut
fi
[ "$PHASE" = 2 ] || fail "phase $PHASE"
[ "$(head -c 7 "$(drive 0)")" = durable ] || fail "what was made durable is gone"
note "Linux $(uname -r), up and through in $(since_boot) s of the machine's time"
