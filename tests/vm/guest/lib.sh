# What guest scripts are made of: requests to the host, drives by serial, the daemon. Sourced before the script.
# A script is bash with `set -e`: the first command that fails ends it with its exit code.
set -eu -o pipefail

exec 3<> /dev/ttyS1

since_boot() { cut -d' ' -f1 /proc/uptime; }
note() { echo "[$(since_boot)] $*"; }
fail() {
    [ ! -e /tmp/daemon.log ] || tail -n 12 /tmp/daemon.log | sed 's/^/[daemon] /'
    echo "[$(since_boot)] FAILED: $*" >&2
    exit 1
}
trap 'echo "[$(since_boot)] line $LINENO of the script: $BASH_COMMAND"' ERR

# ask REQUEST...: one line to the host, its answer on stdout.
ask() {
    local answer
    echo "$*" >&3
    IFS= read -r -t 300 -u 3 answer || fail "the host does not answer: $*"
    echo "$answer"
}
qmp() {
    local answer
    answer=$(ask QMP "$*")
    case $answer in *'"return"'*) echo "$answer" ;; *) fail "QMP $*: $answer" ;; esac
}
host() {
    local answer
    answer=$(ask SH "$*")
    [ "${answer%% *}" = 0 ] || fail "on the host: $*: $answer"
    echo "${answer#* }"
}
# Never returns: the machine loses its power here, and the script starts again with PHASE one higher.
power_cut() {
    echo CUT >&3
    sleep 1000
}

# The device of the drive with this number: by serial, for the order of probing is not the order of slots.
drive() {
    local name serial
    serial=$(printf VM%02d "$1")
    for name in /sys/block/nvme* /sys/block/vd*; do
        if [ "$(cat "$name/device/serial" "$name/serial" 2> /dev/null | tr -d ' ')" = "$serial" ]; then
            echo "/dev/${name##*/}"
            return
        fi
    done
    return 1
}
drives() {
    local number
    for number in "$@"; do drive "$number" || fail "there is no drive $number"; done
}

# The root of the first process, where the modules are that the script names.
FIRST_ROOT=/proc/1/root
# module NAME PARAMETER...: loads one again.
module() {
    local name=$1
    shift
    insmod "$FIRST_ROOT/modules/$name.ko" "$@"
}

# within SECONDS COMMAND...: until the command succeeds.
within() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@" > /dev/null 2>&1; do
        [ $SECONDS -lt $deadline ] || fail "not within the time given: $*"
        sleep 0.2
    done
}

warpraid() { "$WARPRAID" "$@"; }
daemon_start() {
    mkdir -p /run/warpraid
    "$WARPRAID" serve --lanes "${LANES:-2}" "$@" >> /tmp/daemon.log 2>&1 &
    DAEMON=$!
}
daemon_wait() { within 120 "$WARPRAID" status; }
daemon_kill() {
    kill -9 "$DAEMON"
    wait "$DAEMON" 2> /dev/null || true
}
daemon_stop() {
    kill "$DAEMON"
    wait "$DAEMON" || fail "the daemon ended with $?"
}

# group_make DRIVE...: RAID 6 `tank` on these drives, with disk tank/home of $SIZE, served as a block device.
group_make() {
    warpraid group create tank --level 6 "$@" --yes > /dev/null
    warpraid disk create tank/home --size "${SIZE:-400M}" > /dev/null
    warpraid disk expose tank/home
    DEVICE=$(readlink -f /dev/warpraid/tank/home)
    [ -b "$DEVICE" ] || fail "/dev/warpraid/tank/home leads to no block device"
}

# verified FILE FIO-OPTION...: fio writes in random order and reads everything back.
verified() {
    local file=$1
    shift
    fio --name=verify --filename="$file" --rw=randwrite --verify=crc32c --verify_fatal=1 --do_verify=1 \
        --verify_state_save=0 --ioengine=libaio --iodepth=8 --output=/tmp/fio.out "$@" > /dev/null \
        || { cat /tmp/fio.out /tmp/daemon.log; fail "fio $*"; }
}

# fsck without a repair: xfs_repair -n, e2fsck -n, btrfs check.
checked() {
    case $1 in
        xfs) xfs_repair -n "$2" > /tmp/fsck.out 2>&1 ;;
        ext4) e2fsck -fn "$2" > /tmp/fsck.out 2>&1 ;;
        btrfs) btrfs check "$2" > /tmp/fsck.out 2>&1 ;;
    esac || { cat /tmp/fsck.out; fail "$1 is not clean"; }
}

# Load in the background: fio writes and verifies again and again, until load_stop. A failure is found by load_check.
load_start() {
    rm -f /tmp/load.*
    (
        trap - ERR
        set +e
        rounds=0
        until [ -e /tmp/load.stop ]; do
            fio --name=load --filename="$1" --rw=randwrite --bsrange=4k-128k --blockalign=4k --direct=1 --size=8M \
                --verify=crc32c --verify_fatal=1 --do_verify=1 --verify_state_save=0 --ioengine=libaio --iodepth=8 \
                --output=/tmp/load.out > /dev/null 2> /tmp/load.err < /dev/null || { touch /tmp/load.failed; exit 1; }
            rounds=$((rounds + 1))
            echo $rounds > /tmp/load.rounds
        done
    ) &
    LOAD=$!
}
load_check() {
    [ ! -e /tmp/load.failed ] || { cat /tmp/load.out /tmp/load.err; tail -20 /tmp/daemon.log; fail "the load saw an error"; }
}
load_stop() {
    touch /tmp/load.stop
    wait "$LOAD" || true
    load_check
    note "fio wrote and verified $(cat /tmp/load.rounds) times"
}

# A probe in the background: one durable 4 KiB write after the other, each with when it began and ended.
probe_start() {
    rm -f /tmp/probe.*
    touch /tmp/probe.log
    (
        trap - ERR
        set +e
        until [ -e /tmp/probe.stop ]; do
            began=$(since_boot)
            dd if=/dev/zero of="$1" bs=4k count=1 oflag=direct,dsync conv=notrunc status=none 2> /tmp/probe.err \
                || { touch /tmp/probe.failed; exit 1; }
            echo "$began $(since_boot)" >> /tmp/probe.log
        done
    ) &
    PROBE=$!
}
probe_ended_after() { [ -e /tmp/probe.failed ] || awk -v t="$1" '$1 > t { found = 1 } END { exit !found }' /tmp/probe.log; }
# probe_after TIME: waits for a probe that began later; PAUSE is the longest of those that ended after TIME.
probe_after() {
    within 180 probe_ended_after "$(since_boot)"
    [ ! -e /tmp/probe.failed ] || { cat /tmp/probe.err; tail -20 /tmp/daemon.log; fail "a write failed"; }
    PAUSE=$(awk -v t="$1" '$2 > t && $2 - $1 > most { most = $2 - $1 } END { printf "%.1f", most }' /tmp/probe.log)
}
probe_stop() {
    touch /tmp/probe.stop
    wait "$PROBE" || true
    [ ! -e /tmp/probe.failed ] || fail "a write failed"
}
