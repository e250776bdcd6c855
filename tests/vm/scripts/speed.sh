# Guest instructions for each 4 KiB random write and read through ublk over RAM disks, beside md on the same disks (RAID 5 of 5, RAID 6 of 6).
#: modules=ublk_drv brd raid456 crc32c_generic crc32c_intel
#: memory=2G
#: timeout=1800
#: count=yes
# One instruction is one nanosecond here, so the I/Os a second that fio tells are 1e9 / instructions for each. A record for
# benches/record is left in target/test-logs/vm/speed.json.
rmmod brd
module brd rd_nr=6 rd_size=98304
# instructions WHOSE CASE DEVICE: seven times, of random writes and reads of 4 KiB, 16 in flight; the first round, which sets
# intent bits and grows tables on either side, does not count.
instructions() {
    local kind round
    for kind in write read; do
        for round in 0 1 2 3 4 5 6 7; do
            fio --name=count --filename="$3" --rw=rand$kind --bs=4k --iodepth=16 --ioengine=libaio --direct=1 --size=128M \
                --io_size=16M --randseed=$((round + 7)) --output-format=json --output=/tmp/count.json > /dev/null
            [ "$round" = 0 ] || python3 -c 'import json, sys; print(1e9 / json.load(open("/tmp/count.json"))["jobs"][0][sys.argv[1]]["iops"])' \
                $kind >> "/tmp/samples.$1.vm.${kind}4k.$2"
        done
    done
}
wiped() {
    local number
    for number in 0 1 2 3 4 5; do dd if=/dev/zero of=/dev/ram$number bs=1M count=96 oflag=direct conv=nocreat status=none; done
}
for shape in 5:5 6:6; do
    level=${shape%:*} count=${shape#*:}
    members=()
    for ((number = 0; number < count; number++)); do members+=("/dev/ram$number"); done
    wiped
    mdadm --create /dev/md0 --run --level="$level" --raid-devices="$count" --chunk=64 --metadata=1.2 --bitmap=internal \
        --assume-clean "${members[@]}" > /tmp/mdadm.out 2>&1 || { cat /tmp/mdadm.out; fail "mdadm"; }
    instructions md "raid${level}_$count" /dev/md0
    mdadm --stop /dev/md0 > /dev/null 2>&1
    wiped
    LANES=1 daemon_start
    daemon_wait
    warpraid group create tank --level "$level" --init zero "${members[@]}" --yes > /dev/null
    warpraid disk create tank/home --size 128M > /dev/null
    warpraid disk expose tank/home > /dev/null
    instructions ours "raid${level}_$count" "$(readlink -f /dev/warpraid/tank/home)"
    warpraid disk unexpose tank/home
    # What was counted is also right: written again with checksums, and read back.
    warpraid disk expose tank/home > /dev/null
    verified "$(readlink -f /dev/warpraid/tank/home)" --direct=1 --bs=4k --size=8M
    warpraid disk unexpose tank/home
    daemon_stop
    rm -rf /var/lib/warpraid
done
python3 - "$(uname -r)" > /run/host/record.json <<'END'
import glob, json, statistics, sys, time, tomllib
root = __import__("os").environ["ROOT"]
floors = {claim["id"]: claim for claim in tomllib.load(open(f"{root}/benches/floors.toml", "rb"))["claim"]}
cases = []
for path in sorted(glob.glob("/tmp/samples.ours.*")):
    case = path.split(".ours.")[1]
    read = lambda whose: [round(float(line), 1) for line in open(f"/tmp/samples.{whose}.{case}")]
    ours, theirs = read("ours"), read("md")
    median, peer = statistics.median(ours), statistics.median(theirs)
    floor, goal = floors[case]["floor"], floors[case].get("goal")
    cases.append({"id": case, "unit": "cpu_ns_per_op", "samples": ours, "median": median, "min": min(ours), "max": max(ours),
                  "peer": {"name": "md", "version": f"Linux {sys.argv[1]}", "median": peer}, "ratio": median / peer, "floor": floor,
                  "goal": goal, "verified": True, "lanes": 1, "queue_depth": 16, "pass": median / peer <= floor})
    print(f"MEASURED {case} QD16: {median:.0f} instructions through ublk, {peer:.0f} through md: {median / peer:.3f}x (floor {floor}x)", file=sys.stderr)
memory = next(int(line.split()[1]) * 1024 for line in open("/proc/meminfo") if line.startswith("MemTotal"))
print(json.dumps({"schema": {"name": "warpraid.bench", "major": 1, "minor": 0}, "commit": "COMMIT", "date_unix_s": int(time.time()),
                  "machine": {"cpu": "QEMU TCG, one instruction a nanosecond", "cores": 1, "mem_bytes": memory, "kernel": sys.argv[1]},
                  "command": "tests/vm/run speed", "cases": cases}, indent=1))
END
host "sed \"s/\\\"COMMIT\\\"/\\\"$(git -C "$ROOT" describe --always --dirty --abbrev=40 2> /dev/null || echo unknown)\\\"/\" share/record.json > '$ROOT/target/test-logs/vm/speed.json'" > /dev/null
