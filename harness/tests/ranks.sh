#!/usr/bin/env bash
# mpirun -n N assay against one process: the same output, files and exit status, for 1 to 4 ranks. ranks.sh ASSAY BACKEND
set -euo pipefail
assay=$(realpath "$1")
backend=$(realpath "$2")
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
  local n=$1 expected=0 found=0
  shift
  "$assay" "$@" >one.out 2>one.err || expected=$?
  ranks "$n" "$assay" "$@" >more.out 2>more.err || found=$?
  sed -E -i 's/ +[0-9.]+ s$//' one.out more.out
  cmp one.out more.out || fail "$n ranks print something else: assay $*"
  cmp one.err more.err || fail "$n ranks say something else: assay $*"
  [ "$expected" = "$found" ] || fail "$n ranks end with $found, expected $expected: assay $*"
}

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

# one case by all ranks: experts (sparse, dense, dropping), members of an ensemble, what is drawn; and what follows of it
shared=(moe/deepseek3-tiny-sparse moe/mixtral-dense moe/mixtral-capacity mla/deepseek3-tiny deepseek_layer/moe)
"$assay" generate "${shared[@]}" -o together --quiet >/dev/null
for n in 2 3 4; do
  ASSAY_TOGETHER=all ranks "$n" "$assay" generate "${shared[@]}" -o "together$n" --quiet >/dev/null || fail "$n ranks do not get through a case"
  diff -r together "together$n" || fail "$n ranks together write something else"
done
ASSAY_TOGETHER=all same 3 verify together/moe/*.h5 together/mla/*.h5 --budget 1
ASSAY_TOGETHER=all same 2 run moe/mixtral-dense 'rms_norm/small*' --backend "$backend"
ASSAY_TOGETHER=all same 2 generate moe/deepseek3-tiny-sparse -o /proc/nowhere/x.h5

mapfile -t files < <(find golden/rms_norm golden/moe -name '*.h5' | sort | head -6)
same 2 verify "${files[@]}" --budget 2
same 3 power "${files[0]}" "${files[1]}" --json one.json
same 4 run 'moe/mix*' 'rms_norm/*' --backend "$backend"
same 2 check 'moe/mix*'
ASSAY_EXAMPLE_BUG=scaling_twice same 3 run 'moe/deepseek3-tiny-s*' 'rms_norm/*' --backend "$backend" -v

# reports have every case, in order
"$assay" run 'moe/deepseek3-tiny-s*' --backend "$backend" --json one.json >one.out
ranks 3 "$assay" run 'moe/deepseek3-tiny-s*' --backend "$backend" --json more.json >more.out
sed -E -i 's/"seconds":[^,]*//' one.json more.json
cmp one.json more.json || fail "another report"

# failures: the first in the order of cases, after the output of those before it; a wrong golden; bad usage
cp "${files[1]}" damaged.h5
printf '\x55' | dd of=damaged.h5 bs=1 seek=$(($(stat -c %s damaged.h5) / 2)) conv=notrunc status=none
same 3 verify "${files[0]}" damaged.h5 "${files[2]}" --budget 0
same 2 verify "${files[0]}" not-there.h5 "${files[2]}" --budget 0
same 2 check 'nothing/*'
same 3 generate 'rms_norm/*'
same 2 list 'rms_norm/*'

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
