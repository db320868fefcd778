#!/usr/bin/env bash
# Stages judged by themselves: correct kernels of several kinds pass, and one wrong intermediate, which flows on, is the one that is named.
# usage: numpy_stages.sh PROGRAM PYTHON
set -euo pipefail
assay=$1 python=$2
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../tests/cli_test.sh"
export PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
cd "$work"
only="--set profiles=bf16" # no error scales of profiles that nobody asks for

for variant in 1 3; do
  expect 0 run mla/small moe/small deepseek_layer/dense mlp/silu $only --staged --serve --quiet \
    --backend "'$python' '$here/backend.py' --variant $variant"
  prints '^4 cases: 4 passed'
done

# sums that lie on float16's grid, which float16 shows without their errors, and float32 with them
expect 0 run mlp/requantised-mxfp8 --set profiles=f16 --precision f16 --staged --serve --quiet --backend "'$python' '$here/backend.py' --precision f16 --variant 12"

# sums that are cut off after each term drift towards zero, and few codes are other ones that would hide it
expect 0 run mlp/requantised-fp8 --precision "$here/../../../bench/power/sums_13_bits.yml" --serve --quiet \
  --backend "'$python' '$here/backend.py' --precision sums_13_bits --variant 2"

# names STAGE BUG CASE ARGUMENT...: the first wrong stage is checkpoints/STAGE
names() {
  local stage=$1 place=$2 bug=$3
  shift 3
  expect 1 run "$@" $only --staged --serve --quiet --backend "'$python' '$here/planted_stage.py' $place $bug"
  prints "^FAIL .* stage checkpoints/$stage: "
}
for stage in mla_kv query_proj attention_out; do
  names $stage $stage factor:8 mla/small --set batch=8 --set sequence=24
done
names kv_wa_proj kv_wa_proj factor:7 deepseek_layer/dense --set batch=4 --set sequence=24
names attention_out attention_out tile deepseek_layer/dense --set batch=4 --set sequence=24
names partial_out partial_out tile mla_decode/splits
names partial_lse partial_lse factor:6 gqa_decode/splits
names partial_out partial_out tile mla_decode/chunked
names partial_lse partial_lse factor:6 mla_decode/sparse-splits
names moe_mlpwi_0 mlpwi_0 factor:6 moe/small
names moe_intermediate intermediate tile moe/small --set sequence=32
# ... which no tensor of the whole shows
expect 0 run mla/small --set batch=8 --set sequence=24 $only --serve --quiet --backend "'$python' '$here/planted_stage.py' query_proj factor:8"

# codes of h that the kernel quantised itself: judged by what errors allow, and gone on from
codes='checkpoints=["*hidden_codes*"]'
expect 0 run '*/requantised*' --exclude gpt-oss $only --set "$codes" --serve --quiet --backend "'$python' '$here/planted_codes.py' none"
expect 0 run mlp/requantised-fp8 moe/requantised-nvfp4 --set profiles=f32 --precision f32 --staged --serve --quiet \
  --backend "'$python' '$here/backend.py' --precision f32"
# coded BUG TENSOR CASE
coded() {
  expect 1 run "$3" $only --set "$codes" --serve --quiet --backend "'$python' '$here/planted_codes.py' $1"
  prints "^FAIL .* $2"
}
coded before_activation 'checkpoints/mlp_hidden_codes_scale\[0,0,0\] is .*, the golden has .*; errors allow' mlp/requantised-fp8
coded next_row checkpoints/mlp_hidden_codes_scale mlp/requantised-mxfp8
coded next_block checkpoints/moe_hidden_codes moe/requantised-nvfp4
coded truncated 'checkpoints/moe_hidden_codes\[0,' moe/requantised-nvfp4
coded one_code checkpoints/moe_hidden_codes moe/requantised-fp8
coded as_it_is outputs/y mlp/requantised-mxfp8

# numbers that a writer of caches norms and rotates before they are bytes: with them, and the bytes alone
expect 0 run 'cache_append/*rope*' 'cache_append/key-norm*' $only --staged --serve --quiet \
  --backend "'$python' '$here/planted_cache.py' none"
# cached BUG MUTANT CASE
cached() {
  local given
  for given in "" ,alone; do
    expect 1 run "cache_append/$3" $only --serve --quiet --backend "'$python' '$here/planted_cache.py' $1$given"
    prints "$2"
  done
}
cached norm_missing 'equals mutant cache_norm_missing' norm-rope-ds-mla
cached scale_missing 'equals mutant norm_scales_missing' key-norm-rope
cached one_more 'equals mutant cache_norm_by_one_more' norm-rope-mxfp8
cached norm_of_others 'equals mutant cache_norm_of_others' norm-rope-model1
cached norm_last 'equals mutant cache_norm_last' key-norm-nvfp4
cached rope_missing 'equals mutant cache_rope_missing' rope
cached rope_twice 'equals mutant cache_rope_twice' norm-rope-split
cached by_slot 'equals mutant cache_rope_by_slot' rope-indexer
cached rope_of_rest 'equals mutant cache_rope_of_rest' norm-rope-ds-mla
cached whole_heads 'equals mutant cache_rope_of_whole_heads' key-norm-partial-rope
cached other_pairs 'equals mutant cache_rope_of_halves' norm-rope-model1
cached amax_first 'outputs/key_cache_scale\[.*: the scale of block' key-norm-nvfp4
cached one_code 'outputs/kv_cache\[.*: the code of number 3 of token' norm-rope-float32

# every report has the stages
names mla_kv mla_kv nan mla/small --keep kept --json report.json --junit report.xml --html report.html
"$python" - <<'PYTHON'
import json
report = json.load(open("report.json"))["reports"][0]
found = {t["path"]: t["finding"] for t in report["stages"]["tensors"]}
assert report["verdict"] == report["stages"]["verdict"] == "FAIL" and found["checkpoints/mla_kv"] == "nonfinite", found
PYTHON
grep -q 'testsuite name="mla/small, by stage (bf16)"' report.xml || complain "no stages in JUnit"
grep -q 'mla/small, by stage' report.html || complain "no stages in HTML"
expect 1 compare kept/mla-small.golden.h5 kept/mla-small.candidate.h5 --staged
prints "by stage, each evaluated from the candidate's own inputs to it"
prints '^reproduce: assay compare .* --staged$'
expect 0 run mla/small $only --serve --quiet --keep kept --backend "'$python' '$here/backend.py'"
expect 0 compare kept/mla-small.golden.h5 kept/mla-small.candidate.h5 --staged
prints 'by stage: no checkpoint is given'

# what is not there is said before anything runs
refuses 'mla/mesh-heads2: --staged takes no case that is spread over a mesh' run mla/small mla/mesh-heads2 --staged --serve \
  --backend "'$python' '$here/backend.py'"
refuses 'deepseek_layer/batch-split: --staged takes no case of the batch-split schedule' run deepseek_layer/batch-split \
  --staged --serve --backend "'$python' '$here/backend.py'"
echo "$checks calls"
