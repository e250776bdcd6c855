# `warpraid upgrade` under XFS and fio verify: I/O pauses and nobody sees an error; what cannot take over is refused; a program that cannot start is taken back.
#: drives=6x256M
#: modules=ublk_drv xfs crc32c_generic crc32c_intel
#: timeout=900
# A program of its own: the daemon is upgraded to it, as after a package was installed.
install -m 755 "$WARPRAID" /tmp/next
daemon_start
daemon_wait
# shellcheck disable=SC2046
group_make $(drives 0 1 2 3 4 5) > /dev/null
mkfs.xfs -q -f "$DEVICE"
mount "$DEVICE" /mnt
load_start /mnt/load
probe_start /mnt/probe
sleep 3
pid_of() { warpraid status -o json | python3 -c 'import json, sys; print(json.load(sys.stdin)["data"]["daemon"]["pid"])'; }
before=$(pid_of)
# What cannot take over is refused, and nothing happens.
refused() {
    local code=0
    warpraid upgrade --program "$2" > /tmp/refused 2>&1 || code=$?
    [ "$code" = "$1" ] && grep -q "$3" /tmp/refused || fail "upgrade to $2: $code $(cat /tmp/refused)"
    note "refused: $(head -1 /tmp/refused)"
}
printf '#!/bin/sh\necho warpraid 0.0.1\n' > /tmp/older
printf 'no program\n' > /tmp/none
printf '#!/bin/sh\necho "error: unexpected argument" >&2; exit 2\n' > /tmp/other
install -m 777 /tmp/next /tmp/open
chmod 755 /tmp/older /tmp/other
refused 3 /tmp/older older
refused 2 /tmp/none "no program"
refused 2 /tmp/other "unexpected argument"
refused 2 /tmp/open "can change it"
refused 2 /tmp/nowhere "No such file"
[ "$(pid_of)" = "$before" ] || fail "another daemon"
warpraid upgrade --program /tmp/next --dry-run | grep -q "I/O waits" || fail "a dry run does not say what waits"
load_check
for number in 1 2 3; do
    began=$(since_boot)
    warpraid upgrade --program /tmp/next > /tmp/said 2> /tmp/steps || { cat /tmp/said /tmp/steps /tmp/daemon.log; fail "upgrade $number"; }
    probe_after "$began"
    [ "$(pid_of)" = "$before" ] || fail "the process changed"
    [ "$(readlink /proc/"$before"/exe)" = /tmp/next ] || fail "the new program does not run"
    note "MEASURED upgrade $number: $(grep -o 'waited at most.*' /tmp/said), the longest write took $PAUSE s (emulated)"
    load_check
    sleep 2
done
warpraid upgrade --program /tmp/next -o json 2> /dev/null | python3 -c '
import json, sys
answer = json.load(sys.stdin)
assert answer["ok"] and answer["schema"]["name"] == "warpraid.upgrade", answer
assert [disk["disk"] for disk in answer["data"]["disks"]] == ["tank/home"], answer'
# Says the right words and cannot be started: the program before it goes on.
printf '#!/bin/sh\ncase "$*" in *--check*) echo warpraid 9.9.9; chmod 644 /tmp/liar ;; esac\n' > /tmp/liar
chmod 755 /tmp/liar
code=0
warpraid upgrade --program /tmp/liar > /tmp/said 2>&1 || code=$?
[ "$code" = 1 ] && grep -q "goes on" /tmp/said || fail "a program that cannot be started: $code $(cat /tmp/said)"
note "taken back: $(tail -2 /tmp/said | head -1)"
load_check
sleep 2
probe_stop
load_stop
umount /mnt
checked xfs "$DEVICE"
! dmesg | grep -E "I/O error|ublk.*error" || fail "the kernel saw errors"
! grep "without being quiesced" /tmp/daemon.log || fail "the kernel can quiesce and did not"
warpraid events --code daemon.upgraded | grep -c "0.1.0" | grep -qx 4 || fail "not four upgrades are told"
warpraid events --code daemon.not_upgraded | grep -q liar || fail "the one that failed is not told"
daemon_stop
