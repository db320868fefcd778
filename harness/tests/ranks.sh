#!/usr/bin/env bash
# mpirun -n N assay: each process does cases of its own, and what comes out is that of one process, for 1 to 4 of them.
# ranks.sh ASSAY BACKEND
set -euo pipefail
assay=$(realpath "$1")
backend=$(realpath "$2")
numpy="/usr/bin/python3 '$(realpath "$(dirname "$0")/../backends/numpy/backend.py")'"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir tmp
export TMPDIR=$work/tmp
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

fail() {
  echo "ranks.sh: $1" >&2
  exit 1
}

# until_ COMMAND...: waits until it succeeds, 20 s at most.
until_() {
  for _ in $(seq 200); do
    ! "$@" || return 0
    sleep 0.1
  done
  fail "not within 20 s: $*"
}

ranks() { timeout 120 mpirun --quiet --oversubscribe -n "$@"; }

if ldd "$assay" | grep -q libmpi; then fail "the program needs MPI"; fi

# What a command prints and ends with, as one process and with N ranks; seconds in its lines are left out.
same() {
  local n=$1 expected=0
  found=0
  shift
  "$assay" "$@" >one.out 2>one.err || expected=$?
  ranks "$n" "$assay" "$@" >more.out 2>more.err || found=$?
  sed -E -i 's/ +[0-9.]+ s$//' one.out more.out
  cmp one.out more.out || fail "$n ranks print something else: assay $*"
  cmp one.err more.err || fail "$n ranks say something else: assay $*"
  [ "$expected" = "$found" ] || fail "$n ranks end with $found, expected $expected: assay $*"
}

# The same of what is refused: status 2, one line, and not one of each rank.
refused() {
  same "$@"
  [ "$found" = 2 ] || fail "not refused: assay ${*:2}"
  [ "$(wc -l <more.err)" = 1 ] || fail "$(wc -l <more.err) lines of one refusal: $(cat more.err)"
}
found=0

# generate: files of the same bytes, one line for each, in the order of one process
cases=('moe/mix*' 'moe/deepseek3-tiny-s*' 'mla/deepseek3-tiny' 'rms_norm/*' 'mlp/*')
"$assay" generate "${cases[@]}" -o golden --quiet >one.out
[ "$(wc -l <one.out)" -gt 20 ] || fail "too few cases: $(cat one.out)"
for n in 1 2 3 4; do
  ranks "$n" "$assay" generate "${cases[@]}" -o "golden$n" --quiet >more.out 2>more.err || fail "$n ranks: $(cat more.err)"
  sed -i "s,^golden$n/,golden/," more.out
  cmp one.out more.out || fail "generate with $n ranks prints something else"
  diff -r golden "golden$n" || fail "generate with $n ranks writes something else"
  [ ! -s more.err ] || fail "generate with $n ranks says: $(cat more.err)"
done
rm -rf golden[1-4]

# run: each rank has cases, no case has two; one that fails on the last rank is in its place of the one report
cat >backend.sh <<'EOF'
pid=$PPID rank= # of the rank above
while [ "$pid" -gt 1 ] && [ -z "$rank" ]; do
  rank=$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^OMPI_COMM_WORLD_RANK=//p')
  pid=$(sed -n 's/^PPid:[^0-9]*//p' "/proc/$pid/status")
done
echo "${1##*/} $rank" >>who
[ -z "$(env | grep '^OMPI_')" ] || exit 3
case $1 in *one-row*) exit 1 ;; esac
exit 77
EOF
three=(rms_norm/one-row rms_norm/deepseek rms_norm/true-width)
status=0
ranks 3 "$assay" run "${three[@]}" --backend 'sh backend.sh {request} {candidate}' --keep kept-files >more.out 2>more.err || status=$?
[ "$status" = 1 ] || fail "a case that fails on rank 2 gives status $status: $(cat more.out more.err)"
sort -u who | awk '{ if (seen[$1]++) exit 1; of[$2]++ } END { exit !(of[0] == 1 && of[1] == 1 && of[2] == 1) }' ||
  fail "three ranks share three cases in this way: $(cat who)"
grep -q 'one-row.*2$' who || fail "the smallest case is not that of the last rank: $(cat who)"
[ "$(grep -c '^[A-Z]* *rms_norm/' more.out)" = 3 ] || fail "not a line for each case: $(cat more.out)"
sed -n 2p more.out | grep -q '^FAIL *rms_norm/one-row ' || fail "the case that failed is not in its place: $(cat more.out)"
tail -n 1 more.out | grep -q '^3 cases: 0 passed, 1 failed, 0 vacuous, 2 unsupported$' || fail "$(tail -n 1 more.out)"
[ "$(find kept-files -name '*.request.h5' | wc -l)" = 3 ] || fail "--keep keeps $(find kept-files)"

# the other commands
mapfile -t files < <(find golden/rms_norm golden/moe -name '*.h5' | sort | head -6)
same 2 verify "${files[@]}" --budget 2
same 3 power "${files[0]}" "${files[1]}" --json one.json
same 4 run 'gmm/k*' 'rms_norm/*' --backend "$backend"
same 2 check 'moe/mix*'
same 3 check 'rms_norm/one-row' 'mlp/silu*' --serve --backend "$numpy" --keep kept-files
same 2 list 'rms_norm/*'
ASSAY_EXAMPLE_BUG=vector_tail_dropped same 3 run 'gmm/k1*' 'rms_norm/*' --backend "$backend" -v
same 4 run rms_norm/one-row --backend "$backend" # more ranks than cases

# reports have every case, in order
several=('gmm/k1*' 'rms_norm/*')
"$assay" run "${several[@]}" --backend "$backend" --json one.json --junit one.xml >one.out
ranks 3 "$assay" run "${several[@]}" --backend "$backend" --json more.json --junit more.xml >more.out
python3 - <<'EOF' || fail "other reports, or reports that are not whole"
import json, re, xml.etree.ElementTree as xml
lines = [line.split()[1] for line in open("more.out") if "rms_norm/" in line[:30] or "gmm/" in line[:30]]
assert len(lines) > 10, lines
assert [report["case"] for report in json.load(open("more.json"))["reports"]] == lines
assert [suite.get("name").split(" ")[0] for suite in xml.parse("more.xml").iter("testsuite")] == lines
for kind in "json", "xml":
    one, more = (re.sub(r'("seconds":\s*|time=")[0-9.e-]+', "", open(f"{name}.{kind}").read()) for name in ("one", "more"))
    assert one == more, kind
EOF

# refusals: one line, also where the file of one rank's case is what is wrong
refused 3 run --backend "$backend" --nonsense
refused 3 run 'nothing/*' --backend "$backend"
refused 3 run 'rms_norm/*' --backend "$backend" --json /proc/nowhere.json
refused 2 check 'nothing/*'
refused 3 generate 'rms_norm/*'
refused 2 generate rms_norm/one-row rms_norm/deepseek -o /proc/nowhere
refused 2 show rms_norm/one-row --ranks 2
refused 2 verify "${files[0]}" not-there.h5 "${files[2]}" --budget 0
cp "${files[1]}" damaged.h5
printf '\x55' | dd of=damaged.h5 bs=1 seek=$(($(stat -c %s damaged.h5) / 2)) conv=notrunc status=none
same 3 verify "${files[0]}" damaged.h5 "${files[2]}" --budget 0
[ "$(grep -c '^PASS' more.out) $(grep -c '^FAIL  damaged.h5' more.out)" = "2 1" ] || fail "$(cat more.out)"

# the same command without the module
mkdir alone
cp "$assay" alone/assay
ranks 2 alone/assay generate 'rms_norm/*' -o refused >more.out 2>more.err && fail "no module, and no refusal"
grep -q '^assay generate: mpirun has started several processes, but this assay has no MPI' more.err || fail "$(cat more.err)"
[ ! -e refused ] || fail "it has written $(find refused)"

# a rank that dies: it is said once, and there is no file that is not whole
timeout 120 mpirun --oversubscribe -n 3 "$assay" generate 'moe/*' -o killed --quiet >more.out 2>more.err &
run=$!
for _ in $(seq 100); do
  sleep 0.1
  victim=
  for pid in $(pgrep -f "generate moe/\* -o killed --quiet" || true); do
    if tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qx 'OMPI_COMM_WORLD_RANK=2'; then victim=$pid; fi
  done
  if [ -n "$victim" ] && [ -s more.out ]; then break; fi
done
kill -9 "$victim"
wait "$run" && fail "a rank was killed, and all is well"
[ "$(grep -c 'rank 2 .*exited on signal 9' more.err)" = 1 ] || fail "a rank died, and this is said: $(cat more.err)"
[ -z "$(find killed -type f ! -name '*.h5')" ] || fail "$(find killed -type f)"
find killed -name '*.h5' | while read -r file; do h5ls "$file" >/dev/null || fail "$file is not whole"; done

# a run that is stopped: its backend ends with it. Its folder mostly goes at once, and else with the next start: mpirun sends
# SIGKILL 2 ms after SIGTERM.
timeout 120 mpirun --quiet --oversubscribe -n 2 "$assay" run rms_norm/one-row --quiet --keep kept \
  --backend "echo \$\$ >'$work/backend'; exec sleep 300 # {request} {candidate}" >more.out 2>more.err &
run=$!
until_ test -s backend
[ -n "$(find kept -name 'assay-run-*')" ] || fail "the run has no folder: $(ls kept)"
kill -TERM "$run"
wait "$run" && fail "a run was stopped, and all is well"
is_gone() { ! kill -0 "$(cat backend)" 2>/dev/null; }
until_ is_gone
next() { "$assay" run rms_norm/one-row --quiet --keep kept --backend "$backend" >more.out 2>more.err; } # refused while the stopped one lives
until_ next
[ -z "$(find kept -name 'assay-run-*')" ] || fail "left: $(find kept)"
# mpirun's own files (ompi.*) may outlive it when it is stopped: they are not ours
[ -z "$(find tmp -type f ! -path 'tmp/ompi.*')" ] || fail "$(find tmp -type f) is left"
echo "ranks: 1 to 4 ranks do what one process does"
