#!/usr/bin/env bash
# The command line: what is refused and how, what is left behind, what is printed. usage: cli.sh PROGRAM PYTHON
set -euo pipefail
assay=$1 python=$2
here=$(cd "$(dirname "$0")" && pwd)
. "$here/cli_test.sh"
out=$work/results
mkdir "$out"

## usage
refuses 'a command is missing'
refuses 'unknown command "genrate"' genrate
refuses 'unknown command "a b"' $'a\nb'
refuses 'unknown option --bogus; see assay generate --help' generate moe/small --bogus
refuses 'unknown option --bogus' generate --quiet --bogus moe/small
refuses 'unknown option -z' generate moe/small -qz
refuses 'unknown option --backend' generate moe/small -o "$out/a.h5" --backend x.so
refuses 'option -o needs a value' generate moe/small -o
refuses 'option --set needs a value' generate moe/small -o "$out" --set
refuses '-o PATH is missing' generate moe/small
refuses '-o PATH is missing' generate moe/small -o ''
refuses '-o PATH is missing' request moe/small
refuses 'usage: assay generate .* found 0 arguments' generate -o "$out"
refuses 'usage: assay compare .* found 1 arguments' compare "$out/a.h5"
refuses 'all: expected a case of the catalogue' list all
for threads in 0 -1 1.5 two '' 99999999999999999999 2x; do
  refuses '--threads is ".*", expected a whole number from 1 to' generate moe/small -o "$out/a.h5" --threads "$threads"
done
refuses '--engine is "mkl", expected reference or blas' generate moe/small -o "$out/a.h5" --engine mkl
refuses 'option --ranks is gone with 0.2: a process of mpirun takes whole cases' show moe/small --ranks 4
refuses '--color is "green", expected auto, always or never' list --color green
refuses '--false-alarm is "2"' compare a b --false-alarm 2
refuses '--false-alarm is "nan"' compare a b --false-alarm nan
refuses '--tag is "nothing", which no case has' list --tag nothing
refuses '--mutants goes alone' list --mutants --json
ASSAY_ISA=sse9 refuses 'ASSAY_ISA is "sse9", expected scalar, avx2 or avx512' generate moe/small -o "$out/a.h5"

## cases
refuses 'moe/smal.*moe/small' show moe/smal
refuses 'nothing/' show 'nothing/*'
refuses "there is none of this name, did you mean 'moe/\*'\?" list moe
printf 'case: moe/small\nop: rms_norm\nconfig: {base_emb_dim: 4}\n' >"$work/same.yml"
refuses 'moe/small' generate moe/small "$work/same.yml" -o "$out"
cat >"$work/bad.yml" <<'YAML'
case: mine/bad
op: moe
model: deepseek3-tiny
config: {num_expert: 4}
YAML
refuses 'bad\.yml:4:1?[0-9]: .*num_expert' generate "$work/bad.yml" -o "$out"
printf 'case: mine/bad\nop: [moe\n' >"$work/bad.yml"
refuses 'bad\.yml:[0-9]+:[0-9]+: ' generate "$work/bad.yml" -o "$out"
: >"$work/bad.yml"
refuses 'bad\.yml' generate "$work/bad.yml" -o "$out"
refuses 'missing\.yml' generate "$work/missing.yml" -o "$out"

## configurations, for each command that takes a case
for command in generate request run show; do
  end=(-o "$out")
  [ "$command" != run ] || end=(--backend 'touch {request} {candidate}')
  [ "$command" != show ] || end=()
  bad() {
    local pattern=$1
    shift
    refuses "$pattern" "$command" "$@" "${end[@]}"
  }
  bad '--set num_expert=4: .*num_experts' moe/small --set num_expert=4
  bad '--set num_experts: ' moe/small --set num_experts
  bad '--set num_experts=four: ' moe/small --set num_experts=four
  bad '--set seed=x' moe/small --seed x
  bad 'num_experts_per_tok.*7.*num_experts|num_experts_per_tok=7' moe/small --set num_experts_per_tok=7
  bad 'n_routing_groups' moe/small --set n_routing_groups=4
  bad 'base_emb_dim is 0, expected 1 or more' moe/small --set base_emb_dim=0
  bad 'num_experts is 0, expected 1 or more' moe/small --set num_experts=0
  bad '--set batch=0' moe/small --set batch=0
  bad '--set sequence=-1' moe/small --set sequence=-1
  [ "$command" = show ] || bad 'needs [0-9]+ bytes of memory, [0-9]+ are available' moe/small --set sequence=100000000
  bad 'needs at least .* bytes of memory, [0-9]+ are available' moe/small --set base_emb_dim=2000000000 --set base_moe_mlp_dim=2000000000
  bad '64 bits|int32|bytes' moe/small --set batch=2147483647 --set sequence=2147483647
  bad 'prefuse_moe_weights needs sparse_matmul=true, found sparse_matmul=false' moe/small \
    --set prefuse_moe_weights=true --set sparse_matmul=false
  bad 'multiple of 16' moe/fused-softmax --set sequence=7
  bad 'expert 2, tensor 1, mlp_tensor 1, fsdp_transpose 1, expected 1, 1, 1, 1, 1, 1' mlp/silu --set mesh.expert=2
  bad 'moe_mlp_dim is 12, expected a multiple of mesh.mlp_tensor, which is 5' moe/mesh-expert2 --set mesh.mlp_tensor=5
  bad 'num_experts is 8, expected a multiple of mesh.expert times mesh.fsdp .*which is 16' moe/mesh-weights-exp-fsdp4 --set mesh.expert=4 --set batch=16
  bad 'weights_on_shards needs a layer of experts, found 1 dense ones' deepseek_layer/dense-fused --set weights_on_shards=true
  bad 'profiles has "bf17", expected f64, f32, bf16, bf16_router, bf16_sums, f16, tf32, tpu_default or fp8_e4m3_block128' moe/small --set profiles=bf17
  bad 'inputs\.y is no tensor' moe/small --set 'inputs.y={scale: 0}'
  bad 'positions go from 163830 to 163845, expected 0 to 163839' yarn_rope/deepseek --set positions.start=163830
  bad 'positions go from 3 to 262143' mla/small --set positions.step=43690 --set sequence=7 --set positions.start=3
  bad 'rope_type is "llama3.1", expected default or yarn' yarn_rope/deepseek --set rope_type=llama3.1
  bad 'qk_rope_head_dim is 7, expected an even number' yarn_rope/deepseek --set qk_rope_head_dim=7
  bad 'qk_rope_head_dim is 5, expected an even number' mla/small --set qk_rope_head_dim=5
  bad 'rope_pairwise needs rope_interleave=true' yarn_rope/half-split --set rope_pairwise=true
  bad 'rope_pairwise needs rope_interleave=true' yarn_rope/pairwise --set rope_type=default
  bad 'beta_fast is 0.5 and beta_slow 1' deepseek_layer/dense --set beta_fast=0.5
  bad 'inputs\.segment_ids has 3 values, expected 16 .* or 32 ' attention/deepseek \
    --set 'inputs.segment_ids={values: [1, 1, 2]}'
  bad 'inputs\.positions has 8 values, expected 7 .* or 14 ' mla/small \
    --set 'inputs.positions={values: [0, 1, 2, 3, 4, 5, 6, 7]}'
  bad 'inputs\.segment_ids is no tensor of op yarn_rope' yarn_rope/deepseek --set 'inputs.segment_ids={values: [1]}'
  bad 'decoder_layer_input.* found remat' deepseek_layer/moe --set decoder_layer_input=remat
  bad 'query_proj.* found keep' deepseek_layer/moe --set query_proj=keep
  bad 'remat_policy is "most", expected one of full, minimal,' deepseek_stack/two-dense --set remat_policy=most
  bad 'first_num_hash_layers is 1, expected 0' deepseek_layer/moe --set first_num_hash_layers=1
  bad 'decoder_block is llama4, which has a layer of another form' decoder_layer/mixtral --set decoder_block=llama4
  bad 'sliding_window_size is 0, expected 1 or more' decoder_stack/gpt-oss --set sliding_window_size=0
  bad 'base_num_decoder_layers is 100000000, expected 1 to 1000' deepseek_stack/two-dense \
    --set base_num_decoder_layers=100000000
done
# show shows what is larger than any machine
expect 0 show moe/small --set sequence=100000000
prints '^memory +[0-9.]+ TB at most; this machine has [0-9.]+ .?B available$'
# numbers, which show does not look at
for command in generate request; do
  refuses 'yarn_rope/deepseek: inputs/positions\[3\] is 163840, expected 0 to 163839' "$command" yarn_rope/deepseek -o "$out" \
    --set 'inputs.positions={values: [0, 1, 2, 163840, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]}'
  refuses 'inputs/positions\[0\] is -1, expected 0 to 163839' "$command" mla/small -o "$out" \
    --set 'inputs.positions={distribution: ramp, mean: -1, scale: 1}'
  refuses 'inputs/positions: element 0 would be 0.5, expected a whole number' "$command" mla/small -o "$out" \
    --set 'inputs.positions={distribution: constant, mean: 0.5}'
  refuses 'inputs/segment_ids\[4\] is -2, expected 0 to' "$command" deepseek_layer/moe-segments -o "$out" \
    --set 'inputs.segment_ids={values: [1, 1, 1, 1, -2, 1]}'
done
refuses 'inputs/query\[1,6,\.\.\.\] is nan, expected a finite number: the token is no padding' generate \
  attention/padding-nan -o "$out" --set 'inputs.query={tail_nan_rows: 4}'
refuses 'inputs\.query: tail_nan_rows is for' generate attention/padding-nan -o "$out" --set mask_padding=false
refuses '--precision is "bf17", expected' run moe/small --backend 'touch {request} {candidate}' --precision bf17
leaves_nothing "$out"

## a file that is there already stays as it was when a case is refused
echo mine >"$out/kept.h5"
refuses 'base_emb_dim is 0' generate moe/small -o "$out/kept.h5" --set base_emb_dim=0
[ "$(cat "$out/kept.h5")" = mine ] || complain "a refused case has changed the file"
rm "$out/kept.h5"

## places that cannot be written
echo text >"$work/file"
refuses 'file/' generate moe/small -o "$work/file/golden.h5"
refuses 'file is neither a folder nor a \.h5 or \.safetensors file' generate moe/small -o "$work/file"
refuses '/proc/' generate moe/small -o /proc/assay/golden.h5
refuses '/proc/' generate moe/small -o /proc/golden.h5
refuses '/proc/' request moe/small -o /proc/golden.h5
refuses 'is one file, but [0-9]+ cases' generate 'rms_norm/*' -o "$out/golden.h5"
mkdir "$out/folder.h5"
refuses 'folder\.h5' generate moe/small -o "$out/folder.h5"
rmdir "$out/folder.h5"
leaves_nothing "$out"

## a disk that fills up
limited() {
  (
    ulimit -f "$1"
    shift
    "$assay" "$@" >"$work/out" 2>"$work/err"
  )
}
for blocks in 1 20 100; do
  status=0
  limited "$blocks" generate moe/small -o "$out/full.h5" || status=$?
  [ "$status" -eq 2 ] || complain "status $status with a limit of $blocks blocks"
  [ "$(wc -l <"$work/err")" -eq 1 ] || complain "not one line with a limit of $blocks blocks"
  leaves_nothing "$out"
done
expect_full() {
  local status=0
  "$assay" "$@" >/dev/full 2>"$work/err" || status=$?
  [ "$status" -eq 2 ] && [ "$(wc -l <"$work/err")" -eq 1 ] || complain "standard output full: status $status: $*"
}
expect_full list
expect_full list --json
expect_full show moe/small

# but who reads no further is no error
for arguments in list 'list --json' 'show moe/small' --help; do
  # shellcheck disable=SC2086 # words
  (trap '' PIPE && sleep 0.1 && "$assay" $arguments 2>"$work/err" || echo "status $?" >>"$work/err") | true
  [ ! -s "$work/err" ] || complain "nobody reads $arguments: $(cat "$work/err")"
done

refuses 'router_z_loss_weight is above 0, expected 0: with inputs.routing_weights there is no router' generate moe/mesh-given-ring --set router_z_loss_weight=0.01 -o "$work/x.h5"
refuses 'a fill is said whole: inputs\.x=\{distribution: normal, scale: 100\}$' show moe/small --set inputs.x.scale=100
expect 0 show moe/small --set 'inputs.x={distribution: normal, scale: 100}'

## what is shown of a case, and all of it
expect 0 show gqa_decode/small
prints '^  head_dim: 8$'
! grep -Eq 'num_experts|remat_policy' "$work/out" || complain "keys that have their defaults are shown"
expect 0 show gqa_decode/small --all
prints '^  num_experts: 0$'

## goldens
golden=$out/golden.h5
expect 0 generate moe/small -o "$golden"
prints "^$golden\$"
expect 0 show "$golden"
prints '^case: moe/small$'
prints "^golden    $golden, by assay "
prints '^gradients/weights/gate/kernel '
expect 0 generate 'unpermute/one-*' moe/small -o "$out/many"
[ -f "$out/many/unpermute/one-token.h5" ] || complain "a folder for each part of the name expected"
cmp "$golden" "$out/many/moe/small.h5" || complain "the same case, other bytes"
expect 0 verify "$golden" "$out/many/unpermute/one-token.h5"
prints '2 of 2 fixtures verified'
expect 0 generate moe/small -o "$out/blas.h5" --engine blas
expect 0 verify "$out/blas.h5"
expect 0 request moe/small -o "$out/request.h5"
expect 0 verify "$out/request.h5"
ASSAY_ISA=scalar expect 0 generate moe/small -o "$out/scalar.h5" --threads 1
cmp "$golden" "$out/scalar.h5" || complain "another instruction set, other bytes"

cat >"$work/last.yaml" <<'YAML'
case: overflows
op: mlp
config: {base_emb_dim: 8, base_mlp_dim: 4, mlp_activations: [linear, linear]}
sequence: 3
dtype: float64
inputs: {x: {scale: 1e300}, weights/wi_0/kernel: {scale: 1e20}}
YAML
refuses 'overflows: .*\[[0-9]+\] is -?(inf|nan), expected a finite number: the case overflows' \
  generate "$work/last.yaml" -o "$out/wrong.h5"
refuses 'tiny-sparse: profile f16: results overflow: the error scale of routing/weights is inf' \
  generate moe/deepseek3-tiny-sparse --set routed_scaling_factor=1e303 -o "$out/wrong.h5" # nor for the other profiles
[ ! -e "$out/wrong.h5" ] || complain "written though it overflows"

## many cases: processes do them, with the output and the files of one
expect 0 generate 'unpermute/*' 'yarn_rope/*' rms_norm/one-row -o "$out/one" --threads 1
sed "s#$out/one/##" "$work/out" >"$out/one.txt"
expect 0 generate 'unpermute/*' 'yarn_rope/*' rms_norm/one-row -o "$out/three" --threads 3
sed "s#$out/three/##" "$work/out" | cmp - "$out/one.txt" || complain "other lines, or in another order"
diff -r "$out/one" "$out/three" || complain "other files"
"$assay" show rms_norm/one-row | sed '/^$/,$d; s#^case: .*#case: behind#' >"$work/behind.yaml"
expect 2 generate rms_norm/one-row unpermute/one-token "$work/last.yaml" "$work/behind.yaml" -o "$out/stopped" --threads 3
[ "$(cat "$work/out")" = "$out/stopped/rms_norm/one-row.h5"$'\n'"$out/stopped/unpermute/one-token.h5" ] ||
  complain "what stands before the case that fails is expected, and no more"
grep -q '^assay generate: overflows: .*the case overflows$' "$work/err" || complain "the line of the case that fails is expected"
[ "$(wc -l <"$work/err")" -eq 1 ] || complain "one line is expected"
[ ! -e "$out/stopped/overflows.h5" ] || complain "written though it overflows"

## inputs from a file
expect 0 generate moe/small -o "$out/overlaid.h5" --seed 99 --inputs "$golden"
refuses 'shape' generate moe/small -o "$out/wrong.h5" --set sequence=5 --inputs "$golden"
refuses 'missing\.h5' generate moe/small -o "$out/wrong.h5" --inputs "$out/missing.h5"
expect 0 generate yarn_rope/deepseek -o "$work/far.h5" --set max_position_embeddings=300000 --set positions.start=200000
refuses 'far\.h5: inputs/positions\[0\] is 200000, expected 0 to 163839' generate yarn_rope/deepseek -o "$out/wrong.h5" \
  --inputs "$work/far.h5"
[ ! -e "$out/wrong.h5" ] || complain "written in spite of the inputs"

## files that are no fixtures
size=$(stat -c %s "$golden")
head -c $((size / 2)) "$golden" >"$work/cut.h5"
echo 'case: a' >"$work/text.h5"
: >"$work/empty.h5"
for file in "$work/cut.h5" "$work/text.h5" "$work/empty.h5" "$work/missing.h5" "$work" /dev/null; do
  refuses "$file" verify "$file"
  refuses "$file" compare "$file" "$golden"
  refuses "$file" compare "$golden" "$file"
  refuses "$file" generate moe/small -o "$out/wrong.h5" --inputs "$file"
done
refuses 'kind is golden, expected candidate' compare "$golden" "$golden"
"$python" "$here/copy_outputs.py" "$golden" "$work/candidate.h5"
"$python" -c 'import h5py, sys; f = h5py.File(sys.argv[1], "a"); f["error_scale/bf16/outputs/y"] = f["outputs/y"][()] * 0' "$work/candidate.h5"
expect 1 compare "$golden" "$work/candidate.h5"
prints '^FAIL  error_scale/bf16/outputs/y: unknown path, no result has it'
"$python" "$here/copy_outputs.py" "$golden" "$work/candidate.h5"
cp "$golden" "$work/calibrated.h5"
expect 0 calibrate "$work/calibrated.h5" --precision tpu_default
expect 0 verify "$work/calibrated.h5" --budget 0
expect 0 compare "$work/calibrated.h5" "$work/candidate.h5" --precision tpu_default
cp "$work/calibrated.h5" "$work/kept.h5"
refuses 'has the profile tpu_default already' calibrate "$work/calibrated.h5" --precision tpu_default
refuses 'calibrate needs --precision' calibrate "$work/calibrated.h5"
refuses 'kind is request, expected golden' calibrate "$out/request.h5" --precision tf32
cmp "$work/calibrated.h5" "$work/kept.h5" || exit 1

## a profile of one's own
mine=$work/mine.yml
printf 'name: mine\nlike: bf16\naccumulate: {bits: 13, rounding: truncate, block: 64}\n' >"$mine"
expect 1 compare "$golden" "$work/candidate.h5" --precision "$mine"
prints 'the golden has error scales for bf16, .*not for the profile mine: assay calibrate adds them'
refuses '--precision is "mine", expected f64, .*, or a profile of your own in a .yml file' compare "$golden" "$work/candidate.h5" --precision mine
refuses '--precision is "mine", expected' calibrate "$work/calibrated.h5" --precision mine
expect 0 calibrate "$work/calibrated.h5" --precision "$mine"
for name in "$mine" mine; do
  expect 0 compare "$work/calibrated.h5" "$work/candidate.h5" --precision "$name"
  prints 'profile mine,'
  prints "reproduce: assay compare .* --precision $name$"
done
expect 0 compare "$work/calibrated.h5" "$work/candidate.h5" --precision tpu_default # still there
expect 0 verify "$work/calibrated.h5" --budget 0
expect 0 power "$work/calibrated.h5" --precision mine
cp "$work/calibrated.h5" "$work/kept.h5"
refuses 'has the profile mine already' calibrate "$work/calibrated.h5" --precision "$mine"
sed 's/bits: 13/bits: 10/' "$mine" >"$work/other.yml"
refuses 'error scales are of another profile mine: it has "accumulate: \{bits: 13, .*found "accumulate: \{bits: 10' \
  compare "$work/calibrated.h5" "$work/candidate.h5" --precision "$work/other.yml"
cmp "$work/calibrated.h5" "$work/kept.h5" || exit 1
sed 's/mine/second/; s/bits: 13/bits: 10/' "$mine" >"$work/second.yml"
expect 0 calibrate "$work/calibrated.h5" --precision "$work/second.yml"
expect 0 compare "$work/calibrated.h5" "$work/candidate.h5" --precision second
expect 0 compare "$work/calibrated.h5" "$work/candidate.h5" --precision mine
expect 0 generate gmm/ragged -o "$out/mine.h5" --precision "$mine"
"$python" "$here/copy_outputs.py" "$out/mine.h5" "$work/gmm.h5"
expect 0 compare "$out/mine.h5" "$work/gmm.h5" --precision mine
expect 0 compare "$out/mine.h5" "$work/gmm.h5"
"$python" -c 'import h5py, sys; f = h5py.File(sys.argv[1]); p = f.attrs["profiles"]
assert len(p) == 1 and "name: mine\n" in p[0] and "bits: 13, rounding: truncate, block: 64" in p[0], p
assert "error_scale/mine/outputs/y" in f' "$out/mine.h5"
refuses 'profiles has "mine", expected' generate gmm/ragged -o "$out/wrong.h5" --set profiles=mine
sed 's/block/length/' "$mine" >"$work/wrong.yml"
refuses 'wrong.yml:3:[0-9]+: unknown key length, expected type, bits, rounding or block of accumulate' \
  calibrate "$work/calibrated.h5" --precision "$work/wrong.yml"
refuses 'nowhere.yml: No such file' compare "$golden" "$work/candidate.h5" --precision "$work/nowhere.yml"
refuses 'kind is request, expected golden' compare "$out/request.h5" "$golden"
refuses 'kind is not given, expected golden' compare "$work/candidate.h5" "$golden"
expect 1 verify "$work/candidate.h5" # not a file of this program
prints '^FAIL'

## comparing
expect 0 compare "$golden" "$work/candidate.h5" --json "$work/report.json" --junit "$work/report.xml" --html "$work/report.html"
"$python" -m json.tool "$work/report.json" >/dev/null
"$python" -c 'import sys, xml.dom.minidom as m; m.parse(sys.argv[1])' "$work/report.xml"
grep -q 'data:image/png;base64' "$work/report.html"
# reports are files like any other: the umask's permissions, names as long as names may be
long=$work/$(printf 'n%.0s' {1..250}).json
(umask 0027 && expect 0 compare "$golden" "$work/candidate.h5" --json "$long" --junit "$work/mode.xml" --html "$work/mode.html")
for file in "$long" "$work/mode.xml" "$work/mode.html"; do
  [ "$(stat -c %a "$file")" = 640 ] || complain "permissions $(stat -c %a "$file") of ${file##*/}"
done
refuses '/dev/null is no ordinary file' compare "$golden" "$work/candidate.h5" --json /dev/null
expect 1 compare "$golden" "$out/request.h5" # nothing that was asked for
"$python" "$here/copy_outputs.py" "$golden" "$work/wrong.h5" outputs/y
expect 1 compare "$golden" "$work/wrong.h5"
prints 'outputs/y'
refuses 'cannot be written' compare "$golden" "$work/candidate.h5" --json "$work/file/report.json"
refuses '--precision is "bf17"' compare "$golden" "$work/candidate.h5" --precision bf17

## damage: each flipped bit is seen, be it in numbers, names or structure
"$python" - "$golden" "$work" <<'PY'
import random, sys
data = open(sys.argv[1], "rb").read()
random.seed(7)
for i in range(24):
    damaged = bytearray(data)
    damaged[len(data) * i // 24 + random.randrange(len(data) // 24)] ^= 1 << random.randrange(8)
    open(f"{sys.argv[2]}/damaged-{i}.h5", "wb").write(damaged)
PY
# Between HDF5's structures lies space that nobody reads: what goes unnoticed must have changed nothing.
same_content() {
  "$python" - "$1" "$2" <<'PY'
import sys
import h5py, numpy as np
def content(path):
    found = {}
    def keep(name, item):
        if isinstance(item, h5py.Dataset): found[name] = (item.dtype.str, item.shape, item[()].tobytes())
        found[name, "attributes"] = {key: np.asarray(value).tolist() for key, value in item.attrs.items()}
    with h5py.File(path, "r") as file:
        keep("", file)
        file.visititems(keep)
    return found
sys.exit(content(sys.argv[1]) != content(sys.argv[2]))
PY
}
noticed=0
for file in "$work"/damaged-*.h5; do
  status=0
  "$assay" verify "$file" >"$work/out" 2>"$work/err" || status=$?
  case $status in
  0) same_content "$golden" "$file" || complain "verify of $file, whose content differs" ;;
  1) [ "$(grep -c '^FAIL' "$work/out")" -eq 1 ] && [ ! -s "$work/err" ] || complain "verify of $file" ;;
  2) [ "$(wc -l <"$work/err")" -eq 1 ] || complain "verify of $file" ;;
  *) complain "verify of $file: status $status" ;;
  esac
  [ "$status" -eq 0 ] || noticed=$((noticed + 1))
done
[ "$noticed" -ge 12 ] || complain "only $noticed of 24 damaged files were noticed"

## tampered with by HDF5's own means, which keep checksums right
tamper() {
  cp "$golden" "$work/tampered.h5"
  "$python" -c "$1" "$work/tampered.h5"
  expect 1 verify "$work/tampered.h5"
  prints "^FAIL .*$2"
  cp "$work/tampered.h5" "$work/kept.h5"
  refuses "tampered.h5: .*($2)" compare "$work/tampered.h5" "$work/candidate.h5"
  refuses "tampered.h5: .*($2)" power "$work/tampered.h5"
  refuses "tampered.h5: .*($2)" calibrate "$work/tampered.h5" --precision tf32
  cmp "$work/tampered.h5" "$work/kept.h5" || complain "calibrate replaced what it refused"
}
tamper 'import h5py, sys
with h5py.File(sys.argv[1], "a") as f: f["outputs/y"][0, 0, 0] += 1' 'outputs/y'
tamper 'import h5py, sys
with h5py.File(sys.argv[1], "a") as f: f["error_scale/bf16/outputs/y"][...] *= 100' 'error_scale/bf16/outputs/y'
tamper 'import h5py, sys
with h5py.File(sys.argv[1], "a") as f: f.attrs["case_yaml"] = f.attrs["case_yaml"].replace("seed: 61", "seed: 62")' \
  'digest'
tamper 'import h5py, sys
with h5py.File(sys.argv[1], "a") as f: f["outputs/z"] = f["outputs/y"][()]' 'outputs/z|digest'
tamper 'import h5py, sys
with h5py.File(sys.argv[1], "a") as f: del f["gradients/inputs/x"]' 'gradients/inputs/x|digest'

# results of its own that the golden was made to agree with
tamper 'import h5py, sys
with h5py.File(sys.argv[1], "a") as f, h5py.File(sys.argv[1].replace("tampered", "wrong")) as w: f["outputs/y"][...] = w["outputs/y"][()]' \
  'outputs/y was changed: its digest is [0-9a-f]{64}; expected [0-9a-f]{64}'
refuses 'outputs/y was changed' compare "$work/tampered.h5" "$work/wrong.h5"
# who says so takes it; but nobody writes digests of his own over what he did not check
expect 0 compare --trust "$work/tampered.h5" "$work/wrong.h5" --json "$work/trusted.json"
grep -q 'compare .* --trust' "$work/trusted.json" || complain "a report on a trusted golden does not say how it was made"
expect 1 compare --trust "$work/tampered.h5" "$work/candidate.h5"
for command in 'calibrate --precision tf32' 'generate -o x.h5' 'request -o x.h5' 'convert x.h5' verify; do
  refuses 'unknown option --trust' ${command%% *} --trust "$work/tampered.h5" ${command#* }
done

## list and show
expect 0 list
prints '^moe/small '
expect 0 list --tag smoke
expect 0 list --mutants
prints '^gate_up_swapped  *inputs  *34  *gate and up exchanged$'
prints '^ * mlp\* moe\* deepseek_layer deepseek_stack decoder_layer decoder_stack batch_split\*$'
expect 0 list --json
"$python" -c '
import json, sys
cases = json.load(open(sys.argv[1]))
assert len(cases) > 100 and all(c["case"] and c["op"] and c["tags"] and c["shape"] != "?" for c in cases), len(cases)
' "$work/out"
expect 0 show deepseek_stack/two-dense --set remat_policy=minimal
prints '^remat  .* kept, 0 B offloaded, .* operations computed again'
expect 0 show deepseek_stack/two-dense --set gradients=none
## show --graph: the steps
expect 0 show gqa/gpt-oss --graph --svg "$work/steps.svg"
diff - "$work/out" <<'END' || complain "other steps"
gqa/gpt-oss: op gqa, 11 steps, 188416 flops forward
fused       rotation angles [2,11,4] = angles(inputs/positions [2,11]), theta 150000, yarn, factor 32
fused       cosines [2,11,4], sines [2,11,4] = rotations(rotation angles)
stored      product [2,11,8,8]       = linear(inputs/x [2,11,24], query/kernel [24,8,8], query/bias [8,8]), 67584 flops
stored      turned [2,11,8,8]        = rope(product, cosines, sines), columns 0 to 7
checkpoint  query_proj [2,11,8,8]    = mul(turned), by 0.353553
stored      product 2 [2,11,2,8]     = linear(inputs/x [2,11,24], key/kernel [24,2,8], key/bias [2,8]), 16896 flops
checkpoint  key_proj [2,11,2,8]      = rope(product 2, cosines, sines), columns 0 to 7
checkpoint  value_proj [2,11,2,8]    = linear(inputs/x [2,11,24], value/kernel [24,2,8], value/bias [2,8]), 16896 flops
checkpoint  attention_out [2,11,8,8], lse [2,8,11] = attention(query_proj, key_proj, value_proj, sinks [8]), 8 heads on 2, window 4, 19456 flops
checkpoint  out_proj [2,11,24]       = linear(attention_out, out/kernel [8,8,24], out/bias [24]), 67584 flops
output      outputs/y [2,11,24]      = out_proj
END
"$python" - "$work/steps.svg" <<'PY'
import sys, xml.dom.minidom
root = xml.dom.minidom.parse(sys.argv[1]).documentElement
titles = {t.firstChild.data for t in root.getElementsByTagName("title")}
wanted = {"checkpoints/" + n for n in "query_proj key_proj value_proj attention_out lse out_proj".split()} | {"outputs/y"}
assert root.tagName == "svg" and wanted <= titles, titles
PY
expect 0 show mlp/requantised-fp8 decoder_stack/gpt-oss deepseek_layer/moe --graph
prints '^checkpoint  mlp_hidden_codes \[1,12,136\], mlp_hidden_codes_scale .* = quantise_hidden\(mlp_intermediate\), fp8_e4m3_1x128$'
prints '^checkpoint  decoder_layer_input \[1,5,20\]     = layer_sum, layer 1, experts$'
prints '^stored      layers 2 to 3 \[1,5,20\]           = layers 0, 1 in turn\(layer_sum\), 61792 flops$'
prints '^stored      rows of experts \[12,24\]          = route\(norm 2, 2 given\), 2 of 4 a token, 5 checkpoints and outputs, 1152 flops$'
prints '^checkpoint  moe_mlpwi_1 \[12,12\]              = linear\(rows of experts, moe/wi_1 \[4,24,12\]\), 6912 flops$'
prints '^stored      experts \[1,6,24\]                 = combine\(moe_mlpwo\)$'
prints '^stored      sum \[1,6,24\]                     = add\(experts, mlpwo\)$'
expect 0 show moe/small --graph
prints '^stored      rows of experts \[16,24\]  = route\(3 given\), 2 of 6 a token, 5 checkpoints and outputs, 2304 flops$'
expect 0 show mla/small --set quant_recipe=deepseek_v3 --graph
prints 'product .* = linear\(mla_q, wq_b/kernel \[12,3,12\]\), recipe deepseek_v3, backward q_gradient, 12096 flops$'
expect 0 show mlp/nvfp4 --graph
prints 'mlpwi_0 .* = linear\(inputs/x \[1,12,48\] nvfp4, wi_0/kernel \[48,40\] nvfp4\), 46080 flops$'
refuses 'permute/stable: op is permute, which has no steps; expected one of .*mla, gqa, .*decoder_stack' show permute/stable --graph
refuses 'op is gmm, which has no steps' show gmm/ragged --svg "$work/none.svg"
refuses '--svg is a picture of one case, found 2' show mla/small mlp/silu --svg "$work/none.svg"
refuses 'cannot be written' show mla/small --graph --svg "$work/file/none.svg"
[ ! -e "$work/none.svg" ] || complain "a picture of what has none"
! grep -q '^remat ' "$work/out" || complain "remat without backward"
for name in moe/small moe/gpt-oss-dense routing/balance-even gmm/padded-nan-tail yarn_rope/default attention/padding-nan \
  mla/pairwise deepseek_stack/tiny-4-layers-mixed; do
  expect 0 generate "$name" --seed 12 -o "$work/direct.h5"
  for all in "" --all; do
    expect 0 show "$name" --seed 12 $all
    sed '/^$/,$d' "$work/out" >"$work/shown.yml"
    expect 0 generate "$work/shown.yml" -o "$work/shown.h5"
    ! h5diff "$work/direct.h5" "$work/shown.h5" | grep -Ev '^attribute: <(case_yaml|digest) of </>>|^[0-9]+ differences found' ||
      complain "$name: what show prints is another case"
  done
  cmp "$work/direct.h5" "$work/shown.h5" || complain "$name: what show --all prints is another case"
done
for command in list show generate request compare run verify power; do
  expect 0 "$command" --help
  prints "^usage: assay $command"
done
refuses 'unknown command "certify"; use assay power' certify "$golden"
expect 0 --help
expect 0 --version
prints '^assay [0-9.]+ \((commit [0-9a-f]+(-dirty)?, )?(scalar|avx2|avx512)\)$'
## mutants
expect 0 power "$golden" --precision f32 --json "$out/mutants.json"
prints '^  zero_outputs +results +yes +detected'
prints '^PASS  .*every required mutant with an effect is detected at profile f32$'
prints '^power: [0-9]+ of [0-9]+ mutants that have an effect here are detected, [0-9]+ with checkpoints \(--staged\); [0-9]+ without effect, [0-9]+ do not apply$'
"$python" -c 'import json, sys; sys.exit(len(json.load(open(sys.argv[1]))["fixtures"][0]["mutants"]) < 60)' "$out/mutants.json"
expect 0 generate moe/small --mutants --set routed_scaling_factor=1.001 -o "$out/mutants.h5"
expect 0 verify "$out/mutants.h5" --budget 0
prints '^PASS .*recomputed bit for bit'
expect 0 verify "$here/../../fixtures/golden/older/routing-deepseek3-groups.h5" --budget 0
prints '^PASS .*recomputed bit for bit but for error scales \(of error model 1, here they are of [0-9]+\)'
expect 3 power "$out/mutants.h5" "$golden" -v
prints '^VACUOUS  .*mutants.h5: mutant scaling_missing would pass at profile bf16'
prints '^PASS '
expect 0 request moe/small -o "$out/asked.h5"
refuses 'asked.h5: kind is request, expected golden' power "$out/asked.h5"
refuses 'none.h5: ' power "$out/none.h5"
refuses 'unknown option --junit' power "$golden" --junit x
expect 0 generate moe/small --set 'profiles=[f32]' -o "$out/f32.h5"
refuses 'f32.h5: its own results, rounded to profile bf16, are NOT COMPARABLE' power "$out/f32.h5" --precision bf16
refuses 'moe/small: mutants are judged at a profile' generate moe/small --mutants --set profiles=none -o "$out/wrong.h5"
[ ! -e "$out/wrong.h5" ] || complain "written without a profile"
expect 0 power "$golden" --precision f32 --write "$out/wrong/deep" --json "$out/mutants.json"
written=0
while read -r name outcome; do
  file=$out/wrong/deep/$name.h5
  case $outcome in
  detected) expect 1 compare "$golden" "$file" --precision f32 --quiet ;;
  passes) expect 0 compare "$golden" "$file" --precision f32 --quiet ;;
  *) [ ! -e "$file" ] || complain "$name has no effect and was written" ;;
  esac
  [ ! -e "$file" ] || written=$((written + 1))
done < <("$python" -c 'import json, sys
for m in json.load(open(sys.argv[1]))["fixtures"][0]["mutants"]: print(m["name"], m["outcome"].split()[0])' "$out/mutants.json")
[ "$written" -gt 20 ] && [ "$written" -eq "$(find "$out/wrong" -type f | wc -l)" ] || complain "$written files of mutants"
refuses '--write takes the mutants of one golden, found 2' power "$golden" "$golden" --write "$out/two"
[ ! -e "$out/two" ] || complain "--write of two goldens"
refuses 'mutants.json' power "$golden" --write "$out/mutants.json"
refuses 'unknown option --write' compare "$golden" "$golden" --write "$out/two"
# the diagnosis names the mutant, in each of the four forms
expect 1 compare "$golden" "$out/wrong/deep/gate_up_swapped.h5" --precision f32 --json "$work/report.json" \
  --junit "$work/report.xml" --html "$work/report.html"
prints '^known bugs: equals mutant gate_up_swapped \(.*\): gate and up exchanged$'
"$python" -c 'import json, sys
report = json.load(open(sys.argv[1]))["reports"][0]
sys.exit(report["explained_by"] != ["gate_up_swapped"] or "equals mutant gate_up_swapped" not in report["explanation"])' "$work/report.json" ||
  complain "the mutant is not in the JSON"
[ "$(grep -c 'known bugs: equals mutant gate_up_swapped' "$work/report.xml")" -eq 1 ] || complain "the mutant is not in the JUnit XML"
grep -q 'known bugs: equals mutant gate_up_swapped' "$work/report.html" || complain "the mutant is not in the page"
rm -r "$out/wrong"
## certification
for budget in -1 1.5 two '' 99999999999999999999; do
  refuses '--budget is ".*", expected a whole number from 0 up, or all' verify "$golden" --budget "$budget"
done
refuses 'unknown option --certify' verify "$golden" --certify
refuses '--budget is the certificate' generate moe/small -o "$out/wrong.h5" --budget 2
refuses 'attention/one-token: its certificate needs about [0-9]+ min; ask with --budget N' \
  generate attention/one-token -o "$out/wrong.h5" --certify --set sequence=200000
[ ! -e "$out/wrong.h5" ] || complain "written without its certificate"
expect 0 verify "$golden" --budget 1
prints '^PASS .*recomputed bit for bit, certified: outputs to .* ulps \(.* error scales\), gradients to .* \([0-9]+ checked\)$'
expect 0 verify "$golden" --budget 0 -v
prints '^PASS .*certified: outputs to .* error scales\)$'
prints '^ +outputs/y +[0-9]'
! grep -q 'gradients/' "$work/out" || complain "gradients certified with a budget of 0"
expect 0 generate moe/small -o "$out/certified.h5" --certify --budget 1
expect 0 verify "$out/certified.h5" --budget 1
expect 0 verify "$out/certified.h5" --budget 2
expect 0 compare "$out/certified.h5" "$work/candidate.h5"
cp "$work/out" "$work/with"
expect 0 compare "$golden" "$work/candidate.h5"
diff <(sed 's/certified/golden/g' "$work/with") "$work/out" || complain "a certificate changes the comparison"
"$python" - "$out/certified.h5" <<'PY'
import h5py, sys
with h5py.File(sys.argv[1]) as f:
    y = f["certificate/outputs/y"]
    assert y.shape == (9,) and y[0] == f["outputs/y"].size and y.dims[0].label == "field", y[()]
    assert y[3] == f["outputs/y"][()].flat[int(y[2])]
PY

find "$out" -name '*partial*' | grep . && complain "partial files are left"
echo "$checks calls"
