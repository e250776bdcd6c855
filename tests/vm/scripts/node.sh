# The reference node on 16 small drives and 4 spares: layout apply, 2 ext4 and 6 XFS, a StorageBench-like run over the six targets, one drive of each group pulled under load, every file verified, rebuilt on spares.
#: drives=16x240M 4x240M
#: memory=2G
#: modules=ublk_drv xfs ext4 crc32c_generic crc32c_intel
#: timeout=2400
daemon_start --spare-wait-failed 1s
daemon_wait
# group NAME LEVEL NUMBER...: drives by serial, for their names change from boot to boot.
group() {
    local name=$1 level=$2 number
    shift 2
    printf '[[group]]\nname = "%s"\nlevel = %s\ninit = "zero"\ndrives = [' "$name" "$level"
    for number in "$@"; do printf '"VM%02d", ' "$number"; done
    printf ']\n'
}
disk() { printf '[[group.disk]]\nname = "%s"\nsize = "%s"\npurpose = "%s"\n' "$@"; }
node() {
    group meta0 1 0 1
    disk mdt0 rest ext4-metadata
    group data0 5 2 3 4 5 6 7
    disk ost0 33% xfs-storage
    disk ost1 33% xfs-storage
    disk ost2 33% xfs-storage
    group meta1 1 8 9
    disk mdt1 rest ext4-metadata
    group data1 5 10 11 12 13 14 15
    disk ost3 33% xfs-storage
    disk ost4 33% xfs-storage
    disk ost5 33% xfs-storage
}
node > /tmp/node.toml
warpraid layout plan /tmp/node.toml > /tmp/plan || { cat /tmp/plan; fail "layout plan"; }
warpraid layout apply /tmp/node.toml --yes > /tmp/applied || { cat /tmp/applied; fail "layout apply"; }
grep -q "mkfs.xfs -d su=64k,sw=5" /tmp/applied || { cat /tmp/applied; fail "no mkfs line for XFS with the stripe in it"; }
warpraid layout apply /tmp/node.toml --yes -o json > /tmp/again || { cat /tmp/again; fail "layout apply again"; }
warpraid layout plan /tmp/node.toml | tee /tmp/plan | grep -qiE "no change|nothing" || { cat /tmp/plan; fail "a second apply finds something to do"; }
for number in 16 17 18 19; do warpraid spare add "VM$number" --global > /dev/null; done
targets=()
for name in meta0/mdt0 meta1/mdt1; do
    mkfs.ext4 -q -F "/dev/warpraid/$name"
    mkdir -p "/mnt/${name#*/}"
    mount "/dev/warpraid/$name" "/mnt/${name#*/}"
done
for number in 0 1 2 3 4 5; do
    name=data$((number / 3))/ost$number
    mkfs.xfs -q -f "/dev/warpraid/$name"
    mkdir -p "/mnt/ost$number"
    mount "/dev/warpraid/$name" "/mnt/ost$number"
    targets+=("--name=ost$number" "--directory=/mnt/ost$number")
done
# As StorageBench does: every target at once, files written and read in large requests; here with checksums.
began=$(since_boot)
(
    trap - ERR
    set +e
    fio --rw=write --bs=512k --size=24M --nrfiles=2 --verify=crc32c --verify_fatal=1 --do_verify=1 --verify_state_save=0 \
        --ioengine=psync --direct=1 --loops=3 --thread --rate=6M --output=/tmp/bench.out --output-format=json "${targets[@]}" \
        > /dev/null 2> /tmp/bench.err
    echo $? > /tmp/bench.code
) &
bench=$!
for number in 0 1; do
    for one in $(seq 20); do
        head -c $((one * 2000)) /dev/urandom > "/mnt/mdt$number/$one"
    done
    (cd "/mnt/mdt$number" && sha256sum [0-9]* > sums)
    sync "/mnt/mdt$number/sums"
done
sleep 5
# One of each group, one after the other, in the middle of it.
for number in 1 4 9 13; do
    qmp "{\"execute\": \"device_del\", \"arguments\": {\"id\": \"nv$number\"}}" > /dev/null
    within 60 eval "! drive $number"
done
note "a drive of each group is pulled; $([ -e /tmp/bench.code ] && echo "the load had ended" || echo "the load goes on")"
wait $bench || true
[ "$(cat /tmp/bench.code)" = 0 ] || { cat /tmp/bench.out /tmp/bench.err; fail "the load saw an error"; }
python3 -c '
import json
jobs = json.load(open("/tmp/bench.out"))["jobs"]
for job in jobs: print("MEASURED", job["jobname"], "wrote", job["write"]["io_bytes"] >> 20, "MiB, read", job["read"]["io_bytes"] >> 20, "MiB, errors", job["error"])
assert len(jobs) == 6 and all(job["error"] == 0 and job["read"]["io_bytes"] > 0 for job in jobs)'
for name in meta0 data0 meta1 data1; do
    within 300 eval "warpraid group show $name -o json | grep -q '\"state\": \"healthy\"'"
done
note "MEASURED four groups rebuilt on four spares, $(awk -v b="$began" -v e="$(since_boot)" 'BEGIN { printf "%.0f", e - b }') s after the load began (emulated)"
for number in 0 1; do (cd "/mnt/mdt$number" && sha256sum --check --quiet --strict sums) || fail "mdt$number"; done
umount /mnt/mdt0 /mnt/mdt1 /mnt/ost[0-5]
for name in meta0/mdt0 meta1/mdt1; do checked ext4 "/dev/warpraid/$name"; done
for number in 0 1 2 3 4 5; do checked xfs "/dev/warpraid/data$((number / 3))/ost$number"; done
daemon_stop
