#!/usr/bin/env bash
# `assay check`: the command line, and the two forms of a backend. usage: check.sh PROGRAM EXAMPLE FOLDER PYTHON
# EXAMPLE is the example backend, which has operations without another form; FOLDER has the modules odd_NAME.so.
set -euo pipefail
assay=$1 backend=$2 modules=$3 python=$4
here=$(cd "$(dirname "$0")" && pwd)
. "$here/cli_test.sh"
export TMPDIR=$work/temporary
mkdir "$TMPDIR"
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}handle_segv=0 TSAN_OPTIONS=${TSAN_OPTIONS:+$TSAN_OPTIONS:}handle_segv=0
export UBSAN_OPTIONS=${UBSAN_OPTIONS:+$UBSAN_OPTIONS:}handle_segv=0
export PYTHONDONTWRITEBYTECODE=1
numpy=(--serve --backend "'$python' '$here/../backends/numpy/backend.py'")
# planted NAME [PATTERN]: numpy's with this bug, or with other roundings, in cases whose YAML has PATTERN
planted() { echo "'$python' '$here/../backends/numpy/planted_bugs.py' $1 ${2:+--where '$2'}"; }

## the oracle's own forms
expect 0 check moe/small mla/small --quiet
for name in fused-unfused dense-sparse capacity-dropless sharded-whole; do
  prints "^PASS  moe/small +$name +[0-9]+ tensors, "
done
prints '^PASS  mla/small +sharded-whole '
prints '^2 cases: [0-9]+ equivalences held, 0 failed$'
expect 0 check moe/small --equivalence fused-unfused --set prefuse_moe_weights=true
prints '^PASS  moe/small +fused-unfused +[0-9]+ tensors, same bits$'
[ "$(wc -l <"$work/out")" -eq 2 ] || complain "one equivalence and the sum expected"
expect 0 check moe/small rms_norm/deepseek --equivalence dense-sparse
prints '^2 cases: 1 equivalences held, 0 failed$'
refuses '--equivalence is "fused", expected one of fused-unfused, .*axes-reversed, all, or a list of repeat, .*chunk' check moe/small --equivalence fused
refuses 'none of the 1 cases has another form by dense-sparse' check mla/small --equivalence dense-sparse
refuses '--precision goes with --backend' check moe/small --precision bf16
refuses '--keep goes with --backend' check moe/small --keep "$work/kept"
refuses 'moe/smal.*moe/small' check moe/smal

## a backend: refused beforehand
refuses 'missing\.so: No such file' check moe/small --backend "$work/missing.so"
refuses 'is neither a shared object' check moe/small --backend 'cat {request}'
refuses '--precision is "bf17"' check moe/small --backend "$backend" --precision bf17
refuses '--equivalence is "threads", expected one of fused-unfused, ' check moe/small --backend "$backend" --equivalence threads
refuses 'none of the 1 cases has another form by any' check rms_norm/deepseek --backend "$backend"

## right ones: with one kernel for both forms, and with two that round at other places
cases=(moe/small moe/deepseek3-groups mlp/silu moe/deepseek3-tiny-sparse)
expect 0 check "${cases[@]}" "${numpy[@]}" --precision bf16 --quiet
prints '^PASS +moe/small +fused-unfused +bf16  worst 0\.00 of its threshold$'
prints '^PASS +mlp/silu +fused-unfused '
# forms whose sums are in another order, with the same bits: said, and counted apart
prints '^PASS +moe/small +dense-sparse +bf16  the same bits: one code path\?$'
prints '^PASS +moe/small +capacity-dropless +bf16  the same bits: one code path\?$'
prints '^PASS +moe/small +sharded-whole '
held=$(grep -c '^PASS.*worst [0-9.]* of its threshold$' "$work/out") same=$(grep -c 'one code path' "$work/out")
prints "^4 cases: $held equivalences held, 0 failed, 0 vacuous, 0 unsupported, $same the same bits$"
if grep -Eq 'fused-unfused .*one code path' "$work/out"; then complain "the same bits are expected of these"; fi
expect 0 check moe/small "${numpy[@]}" --equivalence dense-sparse --quiet
prints '^1 cases: 0 equivalences held, 0 failed, 0 vacuous, 0 unsupported, 1 the same bits$'
# every correct kernel has these bits
expect 0 check moe/exact --set dtype=bfloat16 "${numpy[@]}" --equivalence dense-sparse --quiet
prints '^1 cases: 1 equivalences held, 0 failed, 0 vacuous, 0 unsupported, 0 the same bits$'
# experts that no token chose: a router's gradient of 0 in one form, what cancels but for rounding in the other
expect 0 check moe/qwen3 "${numpy[@]}" --precision bf16 --equivalence sparse-fused_moe --quiet
prints '^1 cases: 1 equivalences held, 0 failed'

# two kernels: another one where weights are fused, or with sparse products
expect 0 check "${cases[@]}" --quiet --equivalence fused-unfused --serve --backend "$(planted other_roundings 'prefuse_moe_weights: true|fused_mlp: true')"
if grep -q '^PASS.*worst 0.00' "$work/out"; then complain "the two kernels have the same bits: nothing was tried"; fi
expect 0 check "${cases[@]}" --quiet --equivalence dense-sparse --serve --backend "$(planted other_roundings 'sparse_matmul: true')" -v
prints 'outputs/y'
prints ', 0 the same bits$'

# a stack
expect 0 check deepseek_stack/three-layers "${numpy[@]}" --quiet
prints '^PASS +deepseek_stack/three-layers +remat-kept +bf16  worst'
expect 0 check deepseek_stack/three-layers --quiet --equivalence fused-unfused --serve --backend "$(planted other_roundings 'prefuse_moe_weights: true')"
if grep -q '^PASS.*worst 0.00' "$work/out"; then complain "two variants have the same bits: nothing was tried"; fi

# of_two PATTERN WHAT: numpy's, and where the request has PATTERN the shell's WHAT
of_two() { echo "if grep -aq '$1' {request}; then $2; fi; '$python' '$here/../backends/numpy/backend.py' {request} {candidate}"; }
module() { echo "exec '$assay' shared-object '$modules/odd_$1.so' {request} {candidate}"; }
# one that has the first form alone
expect 0 check moe/small --quiet --backend "$(of_two ' capacity_factor: [0-9]' "$(module unsupported)")"
prints '^PASS +moe/small +dense-sparse '
prints '^UNSUPPORTED +moe/small +capacity-dropless +no such op here'

## wrong ones: an error in one form alone, either of them
for pattern in 'prefuse_moe_weights: true' 'prefuse_moe_weights: false'; do
  for bug in gate_up_swapped dx_without_up router_gradient_missing scaling_twice; do
    expect 1 check moe/deepseek3-groups --quiet --equivalence fused-unfused --precision bf16 --serve --backend "$(planted $bug "$pattern")"
    prints '^FAIL +moe/deepseek3-groups +fused-unfused +(outputs|gradients|routing)/.*beyond their threshold'
    prints "reproduce: assay check 'moe/deepseek3-groups' --equivalence fused-unfused --backend '.* --serve .*--precision 'bf16' --keep DIR -v$"
    prints '^1 cases: 0 equivalences held, 1 failed'
  done
done
expect 1 check moe/deepseek3-groups --quiet --equivalence dense-sparse --serve --backend "$(planted empty_expert_unwritten 'sparse_matmul: false')"
prints '^FAIL +moe/deepseek3-groups +dense-sparse .*NaN or infinite'
# another choice of experts is said to be that
expect 1 check moe/deepseek3-groups --quiet --equivalence dense-sparse --serve --backend "$(planted group_score_other 'sparse_matmul: false')"
prints '^FAIL +moe/deepseek3-groups +dense-sparse +routing/'
# the same error in both forms is none that two forms show
expect 0 check moe/deepseek3-groups --quiet --equivalence dense-sparse --serve --backend "$(planted scaling_twice)"

## those that fail at it, in the first form or in the other
expect 1 check moe/small --quiet --equivalence dense-sparse --backend "$modules/odd_aborts.so"
prints '^FAIL +moe/small +dense-sparse +the backend crashed: Aborted'
expect 1 check moe/small --quiet --equivalence dense-sparse \
  --backend "$(of_two 'sparse_matmul: false' "$(module aborts)")"
prints '^FAIL +moe/small +dense-sparse +the backend crashed|^FAIL +moe/small +dense-sparse +the backend ended with status'
expect 1 check moe/small --quiet --equivalence dense-sparse --backend "$modules/odd_does_not_repeat.so"
prints 'two runs gave different bits'
expect 1 check moe/small --quiet --equivalence dense-sparse --backend 'echo garbage >{candidate} # {request}'
expect 1 check moe/small --quiet --equivalence dense-sparse --backend 'cp {request} {candidate}'
prints 'missing'
expect 1 check moe/small --quiet --equivalence dense-sparse \
  --backend "$(of_two 'sparse_matmul: false' 'echo garbage >{candidate}; exit 0')"
expect 3 check moe/small --quiet --backend "$modules/odd_unsupported.so"
prints '^UNSUPPORTED +moe/small +all +no such op here'
expect 3 check moe/small --quiet --equivalence dense-sparse --backend "$modules/odd_zeros.so" # zeros show nothing
prints '^VACUOUS +moe/small'

## files
[ -z "$(ls -A "$TMPDIR")" ] || complain "left in TMPDIR: $(ls -A "$TMPDIR")"
expect 0 check moe/small --quiet --equivalence fused-unfused "${numpy[@]}" --keep "$work/kept"
for file in request candidate fused-unfused.{inputs,request,candidate,golden,compared}; do
  [ -s "$work/kept/moe-small.$file.h5" ] || complain "moe-small.$file.h5 is not kept"
done
expect 0 compare "$work/kept/moe-small.fused-unfused.golden.h5" "$work/kept/moe-small.fused-unfused.compared.h5" --precision bf16
echo "$checks calls"
