#!/usr/bin/env bash
# `assay fuzz`: the command line, what it writes, and that what it writes repeats. usage: fuzz.sh PROGRAM EXAMPLE FOLDER PYTHON
# FOLDER has the modules odd_NAME.so.
set -euo pipefail
assay=$1 backend=$2 modules=$3 python=$4
here=$(cd "$(dirname "$0")" && pwd)
. "$here/cli_test.sh"
export TMPDIR=$work/temporary OMP_NUM_THREADS=1
mkdir "$TMPDIR"
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}handle_segv=0 TSAN_OPTIONS=${TSAN_OPTIONS:+$TSAN_OPTIONS:}handle_segv=0
export UBSAN_OPTIONS=${UBSAN_OPTIONS:+$UBSAN_OPTIONS:}handle_segv=0

numpy=(--serve --backend "$python $here/../backends/numpy/backend.py")
export PYTHONDONTWRITEBYTECODE=1

## refused beforehand
refuses '--backend SPEC is missing' fuzz
refuses 'missing\.so: No such file' fuzz --backend "$work/missing.so"
refuses 'is neither a shared object' fuzz --backend 'cat {request}'
refuses 'exports no assay_backend_run' fuzz --backend "$modules/odd_no_symbol.so"
refuses 'rms_norm' fuzz --backend "$backend" --op rmsnorm
refuses '--time is "0", expected a time above 0' fuzz --backend "$backend" --time 0
refuses '--time is "1d", expected' fuzz --backend "$backend" --time 1d
refuses '--cases is "-1", expected a whole number from 1 up' fuzz --backend "$backend" --cases -1
refuses '--failures is "few"' fuzz --backend "$backend" --failures few
refuses '--seed is "x"' fuzz --backend "$backend" --seed x
refuses '--precision is "bf17"' fuzz --backend "$backend" --precision bf17
refuses '--container is "zip"' fuzz --backend "$backend" --container zip
refuses '--set profiles=f32: --precision says' fuzz --backend "$backend" --set profiles=f32
refuses '--set op=mlp: --op chooses' fuzz --backend "$backend" --set op=mlp
refuses 'no_such' fuzz --backend "$backend" --set no_such=1
refuses 'usage: assay fuzz .*; found 1 arguments' fuzz moe/small --backend "$backend"
refuses 'unknown option --keep' fuzz --backend "$backend" --keep "$work/kept"
echo text >"$work/file"
refuses "-o $work/file: expected a folder" fuzz --backend "$backend" --cases 1 -o "$work/file"
refuses '-o .*/no/such: No such file' fuzz --backend "$backend" --cases 1 -o "$work/no/such"
echo 'mlp/silu  a case of run' >"$work/known"
echo 'fuzz/mlp:outputs/y  why' >>"$work/known"
refuses "known:2: 'fuzz/mlp:outputs/y', expected fuzz/OP:TENSOR:HOW" fuzz --backend "$backend" --known "$work/known"
echo 'fuzz/mlp:outputs/y:values<0.5  why' >"$work/known"
refuses 'known:1: .* and <N with N above 1' fuzz --backend "$backend" --known "$work/known"
echo 'fuzz/mlp{base_emb=3}:outputs/y:values  why' >"$work/known"
refuses 'known:1: .* with a key of the case' fuzz --backend "$backend" --known "$work/known"
echo 'fuzz/typo:outputs/y:values  why' >"$work/known"
refuses "known:1: 'fuzz/typo:outputs/y:values', expected an operation behind fuzz/" fuzz --backend "$backend" --known "$work/known"
echo 'fuzz/mlp:outputs/y:values' >"$work/known"
refuses 'known:1: no reason, expected a case' fuzz --backend "$backend" --known "$work/known"
refuses 'no/such: No such file' fuzz --backend "$backend" --known "$work/no/such"
refuses '--draw-only: expected --cases N and -o DIR, and no --backend' fuzz --draw-only --cases 3
refuses '--draw-only: expected --cases N and -o DIR, and no --backend' fuzz --draw-only --cases 3 -o "$work/drawn" --backend "$backend"
leaves_nothing "$TMPDIR"

## cases alone
for folder in drawn again; do expect 0 fuzz --draw-only --cases 6 --seed 6 --op permute -o "$work/$folder"; done
diff -r "$work/drawn" "$work/again"
[ "$(ls "$work/drawn" | grep -c '^fuzz-permute-[0-9]*\.yml$')" = 6 ]
expect 0 run "$work/drawn"/*.yml "${numpy[@]}"

## nothing that it has, nothing wrong
expect 3 fuzz --backend "$modules/odd_unsupported.so" --cases 20
prints '^20 cases in .*: 0 passed, 0 failed for 0 reasons, 20 unsupported, 0 refused$'
expect 0 fuzz "${numpy[@]}" --cases 30 --op permute
prints '^30 cases in .*, seed 1: [0-9]+ passed, 0 failed'
prints '^covered: [1-9][0-9]* of [0-9]+ values'
# compared bit for bit, under every format and rule
expect 0 fuzz "${numpy[@]}" --cases 60 --op quantize
prints '^60 cases in .*, seed 1: [56][0-9] passed, 0 failed' # a drawn type may not hold the powers of two that a case has
expect 1 fuzz --serve --backend "$python $here/../backends/numpy/planted_nibbles.py" --cases 60 --op quantize --failures 1
prints '^FAIL  fuzz/quantize-[0-9]+  outputs/codes: '
prints '^    known bugs: equals mutant codes_swapped_in_byte'

## the same seed, the same cases
export ASSAY_EXAMPLE_BUG=vector_tail_dropped
wrong=(--backend "$backend" --cases 20 --op gmm --seed 4)
expect 1 fuzz "${wrong[@]}" --failures 1 -o "$work/one"
sed 's/ in [0-9]* s ([0-9]* a second)//' "$work/out" >"$work/first"
expect 1 fuzz "${wrong[@]}" --failures 1 -o "$work/one"
sed 's/ in [0-9]* s ([0-9]* a second)//' "$work/out" | cmp - "$work/first" || complain "another run printed something else"
prints '^FAIL  fuzz/gmm-[0-9]+  outputs/y: '
prints '^    known bugs: equals mutant contraction_cut_to_8'
prints "^    repeat: assay run '$work/one/fuzz-gmm-[0-9]*.yml' --backend '$backend' -v"
prints 'times  fuzz/gmm-[0-9]+ +outputs/y: values, known bug contraction_cut_to_8$'
prints '^    its line in a list of known failures: fuzz/gmm:outputs/y:values<[0-9]+$'

## what is known does not fail it, but within its bound
printf '%s\n' '# of this backend' 'mlp/silu  a case of run' 'fuzz/gmm:*:values  its depth is cut' >"$work/known"
expect 0 fuzz "${wrong[@]}" --known "$work/known"
prints '^ *[1-9][0-9]* times  known: fuzz/gmm:\*:values: its depth is cut$'
prints ' 0 failed for 0 reasons, .*, [1-9][0-9]* known failures$'
for beside in 'fuzz/gmm{num_experts=1000*}:*:values' 'fuzz/gmm:*:values<1.001'; do
  echo "$beside  its depth is cut" >"$work/known"
  expect 1 fuzz "${wrong[@]}" --failures 1 --known "$work/known"
done

## what it wrote: the command repeats it, the golden is of the case, and without the bug all is well
case=$(echo "$work"/one/*.yml)
[ "$(find "$work/one" -type f | wc -l)" -eq 3 ] || complain "three files expected in $work/one"
status=0
(PATH=$(dirname "$assay"):$PATH && sh "$work"/one/*.reproduce.txt >"$work/out") || status=$?
[ "$status" -eq 1 ] || complain "the command that is to repeat it ended with status $status"
prints '^FAIL +fuzz/gmm-[0-9]+ '
prints 'contraction_cut_to_8'
expect 0 verify "$work"/one/*.golden.h5 --budget 0
unset ASSAY_EXAMPLE_BUG
expect 0 run "$case" --backend "$backend"
leaves_nothing "$TMPDIR"

## an lse of -inf is no number beyond the profile's range: what is wrong behind it is found
expect 1 fuzz --serve --backend "$python $here/../backends/numpy/planted_bugs.py masked_rows_nan" --cases 20 --op attention --seed 1 --failures 1
prints '^FAIL  fuzz/attention-[0-9]+  .* NaN or infinite where the golden is not'

## a crash, a command
expect 1 fuzz --backend "$modules/odd_segfaults.so" --cases 3 --op rms_norm --failures 1 --timeout 7
prints '^FAIL  fuzz/rms_norm-0  the backend crashed: Segmentation fault'
prints "^    repeat: assay run 'CASE.yml' --backend '.*' --timeout 7 -v$"
command="$python $here/../backends/numpy/backend.py {request} {candidate}"
expect 0 fuzz --backend "$command" --cases 4 --op rms_norm
prints '^4 cases in .*: 4 passed, 0 failed for 0 reasons'
# what is set stays, and the files have the container that is said
expect 0 fuzz "${numpy[@]}" --cases 6 --op rms_norm --set gradients=none
prints '^6 cases in .*: 6 passed, 0 failed for 0 reasons'
expect 3 fuzz --backend 'case {request}{candidate} in *.safetensors*.safetensors) exit 77 ;; esac' --cases 2 --op rms_norm --container safetensors
prints '2 unsupported'
expect 1 fuzz --serve --backend "$python $here/odd_server.py garbage $work" --cases 1 --op rms_norm --container safetensors --set gradients=none
prints "^    repeat: assay run 'CASE.yml' --backend '.*' --serve --container safetensors --set 'gradients=none' -v$"
leaves_nothing "$TMPDIR"

## interrupted: what was found so far
"$assay" fuzz --backend "$backend" --op rms_norm --time 1h >"$work/out" 2>"$work/err" &
sleep 2
kill -INT $!
status=0
wait $! || status=$?
[ "$status" -eq 0 ] || complain "status $status after an interrupt, expected 0"
prints '^[0-9]+ cases in .* 0 failed for 0 reasons'
echo "$checks checks"
