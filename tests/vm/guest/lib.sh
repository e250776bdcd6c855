# What guest scripts are made of: requests to the host, drives by serial, the daemon. Sourced before the script.
# A script is bash with `set -e`: the first command that fails ends it with its exit code.
set -eu -o pipefail

exec 3<> /dev/ttyS1

since_boot() { cut -d' ' -f1 /proc/uptime; }
note() { echo "[$(since_boot)] $*"; }
fail() {
    echo "[$(since_boot)] FAILED: $*"
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
    for name in /sys/block/nvme*; do
        if [ "$(tr -d ' ' < "$name/device/serial" 2> /dev/null)" = "$serial" ]; then
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
    "$WARPRAID" serve --lanes 2 "$@" >> /tmp/daemon.log 2>&1 &
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
