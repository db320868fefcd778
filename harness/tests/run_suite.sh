#!/usr/bin/env bash
# `assay run` over suites: servers, stored goldens, filters, shards. usage: run_suite.sh PROGRAM PYTHON FOLDER EXAMPLE NUMPY
# FOLDER has the modules odd_NAME.so of odd_backend.c; EXAMPLE is the example backend, NUMPY the folder of the one in numpy.
set -euo pipefail
assay=$1 python=$2 modules=$3 example=$4 numpy=$5
here=$(cd "$(dirname "$0")" && pwd)
. "$here/cli_test.sh"
export TMPDIR=$work/temporary
mkdir "$TMPDIR"
expect 0 generate moe/small mlp/silu -o "$work"

## servers. served STATUS WORD PATTERN WHAT [ARGUMENT...]: moe/small, and what its line says.
served() {
  local status=$1 word=$2 pattern=$3 what=$4 began=$SECONDS
  shift 4
  rm -f "$work/log"
  expect "$status" run moe/small --serve --backend "exec '$python' '$here/odd_server.py' $what '$work'" --quiet "$@"
  [ "$(grep -c "^$word *moe/small " "$work/out")" -eq 1 ] || complain "one line with $word expected: $what"
  grep "^$word " "$work/out" | grep -Eq -- "$pattern" || complain "\"$pattern\" expected: $what"
  [ -z "$(ls -A "$TMPDIR")" ] || complain "left in TMPDIR by $what: $(ls -A "$TMPDIR")"
  [ $((SECONDS - began)) -lt 40 ] || complain "it waited for $what"
}
served 0 PASS 'bf16' right
served 0 PASS 'bf16' huge_line
served 0 PASS 'bf16' prints
served 1 FAIL 'two runs gave different bits in outputs/y' differs
served 1 FAIL 'the candidate file is a link' links
served 3 UNSUPPORTED 'only dense layers$' unsupported
served 3 UNSUPPORTED 'no device here$' no_device
served 1 FAIL 'small +no luck$' failed
served 1 FAIL 'wrote no candidate file' says_done
served 1 FAIL 'ended with status 0 and gave no answer' ends_at_once
served 1 FAIL 'in a second run: the backend ended with status 0 and gave no answer' once
served 1 FAIL 'crashed: Segmentation fault: about to die' dies
served 1 FAIL 'in a second run: the backend ended with status 4' dies_later
served 1 FAIL 'ended with status 1: TypeError: sort\(\) received an invalid combination$' raises
served 1 FAIL 'took longer than 0.5 s and was stopped' hangs --timeout 0.5
served 1 FAIL 'took longer than 0.5 s and was stopped' never_reads --timeout 0.5
served 1 FAIL 'took longer than 0.5 s and was stopped' silent_garbage --timeout 0.5
served 1 FAIL 'took longer than 1 s and was stopped' unfinished_line --timeout 1
served 1 FAIL 'answer is none: "assay: all is well"; expected one line' garbage
served 1 FAIL 'answered twice: "assay: done"; expected one line' twice
served 1 FAIL 'answered before it (was asked|read the request)' early
served 1 FAIL 'closed its standard output' closes
refuses '--serve goes with a command, and --backend .*odd_zeros.so is a shared object' run moe/small --serve --backend "$modules/odd_zeros.so"
refuses 'has a placeholder: with --serve' run moe/small --serve --backend 'cat {request} {candidate}'
refuses '--backend SPEC is missing: with --serve' run moe/small --serve
refuses '--serve goes with --backend' check moe/small --serve
expect 1 run moe/small --serve --backend no-such-program --quiet
prints '^FAIL .*ended with status 127: .*no-such-program'

# whoever starts the program may ignore the ends of its children: their status is not lost
ignoring='import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])'
"$python" -c "$ignoring" "$assay" run moe/small --backend 'exit 5; {request} {candidate}' --quiet >"$work/out" || true
prints '^FAIL .*ended with status 5$'

# one process for all cases and both runs, which is told the end; one that died or hangs is started again for the next case
suite=(mlp/silu moe/small rms_norm/one-row)
expect 0 generate rms_norm/one-row -o "$work"
starts() { [ "$(grep -c start "$work/log")" -eq "$1" ] || complain "$(grep -c start "$work/log") starts, expected $1"; }
rm -f "$work/log"
expect 0 run "${suite[@]}" --serve --backend "exec '$python' '$here/odd_server.py' right '$work'" --quiet
prints '^3 cases: 3 passed'
starts 1
grep -q '^end of input$' "$work/log" || complain "the server was not told the end"
for what in hangs_at_mlp-silu dies_at_mlp-silu; do
  rm -f "$work/log"
  expect 1 run "${suite[@]}" --serve --backend "exec '$python' '$here/odd_server.py' $what '$work'" --quiet --timeout 6
  prints '^FAIL +mlp/silu'
  prints '^3 cases: 2 passed, 1 failed'
  prints "reproduce: assay run 'mlp/silu' --backend '.*' --serve --timeout 6 --keep DIR -v$"
  starts 2
done
# what one case leaves in its memory shows in another: the first runs have another order; the report says that there was one process
expect 1 run "${suite[@]}" --serve --backend "exec '$python' '$here/odd_server.py' remembers '$work'" --quiet --json "$work/report.json"
prints '^FAIL +moe/small +two runs, with others between, gave different bits in outputs/y$'
prints '^3 cases: 2 passed, 1 failed'
prints '^both runs of a case were one process'
[ "$(grep -c '"one_process":[[:space:]]*true' "$work/report.json")" -eq 3 ] || complain "the report does not say that there was one process"
# nothing that it started outlives the run
expect 1 run moe/small --serve --backend "'$python' '$here/odd_server.py' hangs '$work' & echo \$! >'$work/pid'; wait" --quiet --timeout 1
for ((i = 0; i < 100; i++)); do
  kill -0 "$(cat "$work/pid")" 2>/dev/null || break
  sleep 0.05
done
! kill -0 "$(cat "$work/pid")" 2>/dev/null || complain "the server outlives the program"

# what it prints, whole with --keep, its last lines with -v
expect 0 run "${suite[@]}" --serve --backend "'$python' '$here/odd_server.py' prints '$work'" --quiet -v --keep "$work/kept"
prints "^    the backend's last lines:$"
[ "$(grep -cE '^      (line|error) [0-9]+ of a long log' "$work/out")" -eq 60 ] || complain "20 lines a case expected"
for name in mlp-silu moe-small rms_norm-one-row; do
  [ "$(grep -c '^line [0-9]* of a long log' "$work/kept/$name.log")" -eq 20000 ] || complain "lines of $name"
  [ "$(grep -c '^error [0-9]* of a long log' "$work/kept/$name.log")" -eq 20000 ] || complain "errors of $name"
done
# a command that passes prints too
expect 0 run moe/small --quiet -v --backend ": {request}; echo seen; '$python' '$here/copy_outputs.py' '$work/moe/small.h5' {candidate}"
prints '^      seen$'

# the one in numpy, in both ways the same verdicts; a shared request of `check`
expect 0 run moe/small moe/llama4 --serve --backend "'$python' '$numpy/backend.py'" --quiet
grep -v '^both runs' "$work/out" | cut -c 1-70 >"$work/serving"
expect 0 run moe/small moe/llama4 --backend "'$python' '$numpy/backend.py' {request} {candidate}" --quiet
cut -c 1-70 "$work/out" | cmp - "$work/serving" || complain "a server's verdicts are others"
expect 0 check moe/small --equivalence dense-sparse --serve --backend "'$python' '$numpy/backend.py'" --quiet

## stored goldens
expect 0 generate gmm/primes --seed 7 --set case=gmm/other -o "$work/stored"
expect 0 generate rms_norm/deepseek gmm/primes -o "$work"
expect 0 generate rms_norm/deepseek -o "$work/stored"
run_stored() { expect "$1" run "${@:2}" --backend "$example" --quiet; }
run_stored 0 "$work/stored/gmm/other.h5"
prints '^PASS +gmm/other '
run_stored 0 "$work/stored" gmm/ragged
prints '^PASS +gmm/ragged '
prints '^PASS +rms_norm/deepseek '
prints '^PASS +gmm/other '
prints '^3 cases: 3 passed'
run_stored 0 "$work/stored" --op rms_norm
prints '^1 cases: 1 passed'
expect 1 run "$work/stored/gmm/other.h5" --backend "$modules/odd_zeros.so" --quiet
prints "reproduce: assay run '$work/stored/gmm/other.h5' --backend"
# in each container
expect 0 generate gmm/primes --seed 7 --set case=gmm/other -o "$work/other.safetensors"
expect 0 generate gmm/ragged -o "$work/ragged.safetensors"
run_stored 0 "$work/other.safetensors" "$work/ragged.safetensors"
prints '^2 cases: 2 passed'
# it is that golden that judges: one with results of another seed does not let these pass
"$python" - "$work" <<'PYTHON'
import os, sys
os.chdir(sys.argv[1])
import h5py, shutil
shutil.copy("stored/gmm/other.h5", "damaged.h5")
with h5py.File("damaged.h5", "a") as f:
    f["outputs/y"][0, 0] += 1
PYTHON
refuses 'damaged.h5: .*digest' run "$work/damaged.h5" --backend "$example"
expect 1 run "$work/damaged.h5" --quiet --trust --backend "$example"
prints 'reproduce: assay run .* --trust'
expect 0 run "$work/stored/gmm/other.h5" --quiet --backend ": {request}; '$python' '$here/copy_outputs.py' '$work/stored/gmm/other.h5' {candidate}"
expect 1 run "$work/stored/gmm/other.h5" --quiet --backend ": {request}; '$python' '$here/copy_outputs.py' '$work/gmm/primes.h5' {candidate}"
# with its own profiles alone
expect 0 generate gmm/primes --set 'profiles=[f32]' -o "$work/narrow.h5"
refuses 'narrow.h5: the golden has no error scales of .* for the profile bf16: assay calibrate' run "$work/narrow.h5" --backend "$example"
expect 0 run "$work/narrow.h5" --precision f32 --quiet --backend ": {request}; '$python' '$here/copy_outputs.py' '$work/narrow.h5' {candidate}"
printf 'name: mine\naccumulate: {bits: 13, rounding: truncate, block: 64}\n' >"$work/mine.yml"
refuses 'narrow.h5: the golden has no error scales of .* for the profile mine' run "$work/narrow.h5" --precision "$work/mine.yml" --backend "$example"
expect 0 generate gmm/primes --precision "$work/mine.yml" -o "$work/own.h5"
expect 0 run "$work/own.h5" --precision mine --backend "$example" --quiet
# its request is the case's
expect 0 request gmm/primes --seed 7 --set case=gmm/other -o "$work/request.h5"
expect 0 request "$work/stored/gmm/other.h5" -o "$work/again.h5"
cmp "$work/request.h5" "$work/again.h5" || complain "the request of a golden is another one than its case's"
expect 0 request "$work/stored" gmm/ragged -o "$work/requests"
[ "$(find "$work/requests" -name '*.h5' | wc -l)" -eq 3 ] || complain "three requests expected"
# a user's inputs are in the golden, and nowhere else
expect 0 generate gmm/primes --seed 8 --set case=gmm/theirs -o "$work/theirs.h5"
expect 0 generate gmm/primes --inputs "$work/theirs.h5" --set case=gmm/ours -o "$work/ours.h5"
run_stored 0 "$work/ours.h5"
# refused, and nothing lost
before=$(sha256sum <"$work/stored/gmm/other.h5")
refuses 'request.h5: .*expected.*golden|request.h5: .*kind' run "$work/request.h5" --backend "$example"
refuses 'nowhere.h5' run "$work/nowhere.h5" --backend "$example"
refuses 'requests: no golden lies in this folder' run "$work/requests" --backend "$example"
ln -s gmm "$work/linked"
expect 0 run "$work/linked" --backend "$example" --quiet
mkdir "$work/dangling"
ln -s nowhere.h5 "$work/dangling/link.h5"
refuses 'dangling/link.h5: .*No such file' run "$work/dangling" --backend "$example"
refuses 'is a golden: --set seed=3 and --seed' run "$work/stored/gmm/other.h5" --seed 3 --backend "$example"
refuses 'primes.h5 is of the case gmm/primes, and so is one of the catalogue' run gmm/primes "$work/gmm/primes.h5" --backend "$example"
refuses 'is the golden itself' request "$work/stored/gmm/other.h5" -o "$work/stored/gmm/other.h5"
refuses 'is the golden itself' request "$work/stored" -o "$work/stored"
refuses 'has its inputs: --inputs' request "$work/stored" --inputs "$work/theirs.h5" -o "$work/requests"
cp "$work/gmm/primes.h5" "$work/kept/gmm-primes.candidate.h5"
refuses 'would be written over by --keep' run "$work/kept/gmm-primes.candidate.h5" --keep "$work/kept" --backend "$example"
cp "$work/gmm/primes.h5" "$work/kept/gmm-primes.golden.h5"
expect 0 run "$work/kept/gmm-primes.golden.h5" --keep "$work/kept" --backend "$example" --quiet
cmp -s "$work/gmm/primes.h5" "$work/kept/gmm-primes.golden.h5" || complain "a golden was lost"
[ "$before" = "$(sha256sum <"$work/stored/gmm/other.h5")" ] || complain "a golden was changed"

## reproduce: with what it takes, and no more
printf 'case: mine/one\nop: rms_norm\nmodel: {base_emb_dim: 32}\nbatch: 1\nsequence: 4\n---\ncase: mine/two\nop: rms_norm\nmodel: {base_emb_dim: 32}\nbatch: 1\nsequence: 5\n' >"$work/cases.yml"
expect 1 run "$work/cases.yml" mlp/silu --exclude mla,mine/one --shard 1/1 --timeout 20 --false-alarm 1e-5 --quiet --backend "$modules/odd_zeros.so"
prints "reproduce: assay run '$work/cases.yml' --backend '.*odd_zeros.so' --false-alarm [0-9.e-]* --timeout 20 --keep DIR -v$"
prints "reproduce: assay run 'mlp/silu' --backend '.*odd_zeros.so' --false-alarm [0-9.e-]* --timeout 20 --keep DIR -v$"
repeated=$(sed -n "s/^ *reproduce: assay \(.*cases.yml.*\) --keep.*/\1/p" "$work/out")
eval "expect 1 $repeated --quiet"
prints '^FAIL +mine/two'

## filters
names() { awk '$1 ~ "/" {print $1}' "$work/out"; }
expect 0 list 'moe/*'
names >"$work/names"
expect 0 list --op moe --exclude 'true-size/*'
names | cmp - "$work/names" || complain "--op moe is not moe/*"
expect 0 list --op moe,gmm --tag smoke
if names | grep -vE '^(moe|gmm)/'; then complain "other operations"; fi
expect 0 list --tag smoke
all=$(names | wc -l)
expect 0 list --tag smoke --exclude mla --exclude 'moe/*,gmm'
if names | grep -E '^(mla|moe|gmm)/'; then complain "what was excluded"; fi
[ "$(names | wc -l)" -lt "$all" ] || complain "nothing was excluded"
expect 0 list 'moe/*' --no-mesh
if names | grep -F mesh-fsdp2; then complain "a mesh in spite of --no-mesh"; fi
names | grep -qx moe/small || complain "moe/small has no mesh"
expect 0 list moe/small moe/mesh-fsdp2
prints '^2 cases$'
expect 0 run --op rms_norm --tag smoke --backend "$example" --quiet
prints '^PASS +rms_norm/'
refuses 'none of the 1 cases is left by --tag' run moe/mesh-fsdp2 --no-mesh --backend "$example"
refuses '--tag is "smok", which no case has, expected a tag, did you mean smoke or moe\?' run --tag smok --backend "$example"
refuses '--op is "mow", which no case has, expected an operation, did you mean' list --op mow
refuses '--exclude is "mehs", which no case has' generate moe/small --exclude mehs -o "$work/x"
refuses '--tag has an empty word' list --tag smoke,
refuses 'found 0 arguments' run --backend "$example"
[ ! -e "$work/x" ] || complain "something was written"

## shards: each case in one of them, of about the same work
for parts in 1 2 5; do
  : >"$work/union"
  for ((part = 1; part <= parts; part++)); do
    expect 0 list 'moe/*' 'gmm/*' --no-mesh --shard "$part/$parts"
    names | tee -a "$work/union" | wc -l >"$work/size$part"
  done
  expect 0 list 'moe/*' 'gmm/*' --no-mesh
  sort "$work/union" | cmp - <(names | sort) || complain "$parts shards are not the whole"
  [ $((parts * $(cat "$work/size1"))) -gt $(($(names | wc -l) / 3)) ] || complain "a shard with next to nothing"
done
expect 0 list 'moe/*' --shard 2/3
names >"$work/once"
expect 0 list 'moe/*' --shard 2/3
names | cmp - "$work/once" || complain "a shard differs from call to call"
expect 0 run gmm/ragged rms_norm/deepseek --shard 1/2 --backend "$example" --quiet
cat "$work/out" >"$work/both"
expect 0 run gmm/ragged rms_norm/deepseek --shard 2/2 --backend "$example" --quiet
[ "$(cat "$work/both" "$work/out" | grep -cE '^PASS +(gmm/ragged|rms_norm/deepseek) ')" -eq 2 ] || complain "two shards of two cases"
refuses '--shard 1/3: there are 2 cases to share out' run mlp/silu moe/small --shard 1/3 --backend "$example"
for bad in 0/3 4/3 1/ /3 1 a/b 1/3x 1/20000; do
  refuses "--shard is \"$bad\", expected I/N" list --shard "$bad"
done
[ -z "$(ls -A "$TMPDIR")" ] || complain "left in TMPDIR: $(ls -A "$TMPDIR")"
echo "$checks calls"
