# What the scripts about md share.
members_of() {
    case $1 in
        0) echo 3 ;;
        1) echo 2 ;;
        5 | 10) echo 4 ;;
        6) echo 5 ;;
    esac
}
# md_create LEVEL OPTION... DRIVE...: /dev/md0, chunk 64 KiB, with a bitmap where the level has one; in sync after it.
md_create() {
    local level=$1 options=(--chunk=64 --bitmap=internal)
    shift
    case $level in
        0) options=(--chunk=64) ;;
        1) options=(--bitmap=internal) ;;
    esac
    mdadm --create /dev/md0 --run --metadata=1.2 --level="$level" "${options[@]}" "$@" > /tmp/mdadm.out 2>&1 \
        || { cat /tmp/mdadm.out; fail "mdadm --create"; }
    md_idle
}
# Until md neither resyncs nor rebuilds nor checks.
md_idle() { within 300 eval '! grep -qE "resync|recovery|check|reshape" /proc/mdstat'; }
md_stop() { within 30 mdadm --stop /dev/md0; }
# md_assemble DRIVE...: whole and in sync at once, without a resync.
md_assemble() {
    dmesg -C
    mdadm --assemble /dev/md0 "$@" > /tmp/mdadm.out 2>&1 || { cat /tmp/mdadm.out; dmesg | tail -5; fail "mdadm --assemble"; }
    within 30 test -b /dev/md0
    ! grep -qE "resync|recovery" /proc/mdstat || fail "md resyncs: $(cat /proc/mdstat)"
    ! dmesg | grep -qE "resync of RAID|recovery of RAID|not clean" || fail "md resyncs: $(dmesg)"
    mdadm --detail /dev/md0 | grep -qE "State : (clean|active) *$" || fail "not clean: $(mdadm --detail /dev/md0)"
}
# md_checked LEVEL: the kernel reads everything and finds nothing that does not fit.
md_checked() {
    [ "$1" != 0 ] || return 0
    echo check > /sys/block/md0/md/sync_action
    within 300 grep -qx idle /sys/block/md0/md/sync_action
    local found
    found=$(cat /sys/block/md0/md/mismatch_cnt)
    [ "$found" = 0 ] || fail "RAID $1: mismatch_cnt $found"
}
# files_write FOLDER NUMBER, files_checked FOLDER: contents that say themselves whether they are right.
files_write() {
    mkdir -p "$1/$2"
    for size in 1 700 4096 300000 3000000; do
        head -c "$size" /dev/urandom > "$1/$2/$size"
    done
    (cd "$1" && find "$2" -type f -exec sha256sum {} + > "sums.$2")
    sync
}
files_checked() { (cd "$1" && cat sums.* | sha256sum --check --quiet --strict) || fail "files differ in $1"; }
uuid_of() { warpraid drive show "$1" -o json | python3 -c 'import json, sys; print(json.load(sys.stdin)["data"]["device_uuid"])'; }
