#!/usr/bin/env bash
# --weights: checkpoints that another program wrote give the golden of the same weights, byte for byte; wrong ones do not, or
# are refused. usage: hugging_face.sh PROGRAM PYTHON
set -euo pipefail
assay=$1 python=$2
here=$(cd "$(dirname "$0")" && pwd)
. "$here/cli_test.sh"
cd "$work"
export OMP_NUM_THREADS=1
sets=(--set profiles=none)

# checkpoint CASE FORM [WRONG]: model.safetensors of other weights than the case draws, and model.safetensors.h5
checkpoint() {
  rm -f weights.h5
  expect 0 generate "$1" "${sets[@]}" --seed 99 -o weights.h5 --quiet
  "$python" "$here/hugging_face_export.py" weights.h5 "$2" model.safetensors "${prefix-model.layers.3}" ${3+"$3"}
}

# same CASE FORM [SETTING...]
same() {
  local name=$1 form=$2 setting
  sets=(--set profiles=none)
  for setting in "${@:3}"; do sets+=(--set "$setting"); done
  checkpoint "$name" "$form"
  expect 0 generate "$name" "${sets[@]}" --inputs model.safetensors.h5 -o expected.h5 --quiet
  expect 0 generate "$name" "${sets[@]}" --weights "${weights-model.safetensors}" -o found.h5 --quiet
  cmp -s expected.h5 found.h5 || complain "$name, $form: the weights are not those of the checkpoint"
}

# differs CASE FORM WRONG: it is read, and the golden is another one
differs() {
  sets=(--set profiles=none)
  checkpoint "$1" "$2" "$3"
  expect 0 generate "$1" "${sets[@]}" --inputs model.safetensors.h5 -o expected.h5 --quiet
  expect 0 generate "$1" "${sets[@]}" --weights model.safetensors -o found.h5 --quiet
  ! cmp -s expected.h5 found.h5 || complain "$1, $2: $3 was not seen"
}

## every layout
same moe/deepseek3-tiny-sparse split
same moe/float32-bias split
same moe/deepseek3-tiny-fused-weights split
same moe/prefused-shards2 split
same moe/mesh-expert2 split
same moe/mixtral mixtral
same moe/qwen3 fused
same moe/qwen3 plain
same moe/qwen3 vllm
same moe/gpt-oss gpt_oss
same moe/gpt-oss mxfp4 base_emb_dim=64 base_moe_mlp_dim=32
same moe/qwen3 fp8 base_emb_dim=160 base_moe_mlp_dim=136 num_experts=8
same routing/deepseek3-groups split
same mlp/silu split
same mlp/silu-fused split
same mla/small split
same mla/no-query-compression split
same gqa/qwen3 split
same gqa/gpt-oss split
same gqa/fused-qkv split
same deepseek_layer/dense split
same deepseek_layer/moe split
same decoder_layer/qwen3 split
same decoder_layer/gpt-oss gpt_oss
same decoder_layer/mixtral mixtral query_pre_attn_scalar=0.40824829046386307
same decoder_layer/mixtral-fused mixtral query_pre_attn_scalar=0.40824829046386307
prefix=model same deepseek_stack/three-layers split
prefix='' same mla/small split
prefix='' same moe/small split

## which layer, folders, shards
same moe/small split
for name in model.safetensors:model.layers.3 model.safetensors:model.layers.3.mlp ./model.safetensors:model.layers.3. .; do
  expect 0 generate moe/small "${sets[@]}" --weights "$name" -o found.h5 --quiet
  cmp -s expected.h5 found.h5 || complain "$name gives another golden"
done
expect 0 request moe/small "${sets[@]}" --inputs model.safetensors.h5 -o request.h5 --quiet
expect 0 request moe/small "${sets[@]}" --weights . -o found.h5 --quiet
cmp -s request.h5 found.h5 || complain "the request has other weights"
mkdir shards
"$python" - <<'PYTHON'
import json

with open("model.safetensors", "rb") as file:
    header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    data = file.read()
names, places = sorted(name for name in header if name != "__metadata__"), {}
for i in range(3):
    part, blobs, at = {}, b"", 0
    for name in names[i::3]:
        first, last = header[name]["data_offsets"]
        part[name] = {**header[name], "data_offsets": [at, at + last - first]}
        blobs, at = blobs + data[first:last], at + last - first
        places[name] = f"model-{i}.safetensors"
    text = json.dumps(part).encode()
    with open(f"shards/model-{i}.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + blobs)
places["model.layers.4.mlp.gate.weight"] = "model-9.safetensors"  # of another layer, and never opened
with open("shards/model.safetensors.index.json", "w") as file:
    json.dump({"metadata": {}, "weight_map": places}, file)
PYTHON
for name in shards:model.layers.3 shards/model.safetensors.index.json:model.layers.3; do
  expect 0 generate moe/small "${sets[@]}" --weights "$name" -o found.h5 --quiet
  cmp -s expected.h5 found.h5 || complain "$name gives another golden"
done
refuses 'shards has the layers 3 to 4: say which, as in shards:model.layers.3$' generate moe/small --weights shards -o x.h5
refuses 'shards/model-9.safetensors: .*No such file' generate moe/small --weights shards:model.layers.4 -o x.h5
rm shards/model-1.safetensors
refuses 'shards/model-1.safetensors: .*No such file' generate moe/small --weights shards:model.layers.3 -o x.h5
echo '{"weight_map": {"a": "../b"}}' >shards/model.safetensors.index.json
refuses 'weight_map has "a", expected the name of a .safetensors file beside it' generate moe/small --weights shards -o x.h5
echo '{"weight_map": {"a": "b.h5"}}' >shards/model.safetensors.index.json
refuses 'weight_map has "a", expected the name of a .safetensors file beside it' generate moe/small --weights shards -o x.h5
echo '{"weight_map": {"a": "b.safetensors", "c": "b.safetensors", "a": "d.safetensors"}}' >shards/model.safetensors.index.json
refuses 'index.json has a twice' generate moe/small --weights shards -o x.h5
echo '{"weights": 1}' >shards/model.safetensors.index.json
refuses 'expected JSON with a weight_map' generate moe/small --weights shards -o x.h5
rm shards/model.safetensors.index.json
refuses 'the folder has no model.safetensors.index.json and no model.safetensors' generate moe/small --weights shards -o x.h5

## wrong checkpoints
differs mlp/silu split swapped
differs moe/mixtral mixtral swapped
checkpoint moe/small split missing
refuses 'has no model.layers.3.mlp.experts.5.up_proj.weight, which weights/wi_1 needs' generate moe/small --weights model.safetensors -o x.h5
checkpoint moe/small split left_over
refuses 'which no weight of moe/small takes \(1 such tensors\)' generate moe/small --weights model.safetensors -o x.h5
checkpoint moe/small split scaled
refuses 'up_proj.weight_scale_inv, and .*up_proj.weight is bfloat16, expected float8_e4m3fn beside it' \
  generate moe/small --weights model.safetensors -o x.h5
checkpoint deepseek_layer/moe split
refuses 'model.layers.3.mlp.gate.weight: that layer is of experts, and deepseek_layer/moe is dense: give --set first_num_dense_layers=0$' \
  generate deepseek_layer/moe --set first_num_dense_layers=1 --weights model.safetensors -o x.h5
checkpoint deepseek_layer/dense split
refuses 'model.layers.3.mlp.gate_proj.weight: that layer is dense, and .* is of experts: give --set first_num_dense_layers=1$' \
  generate deepseek_layer/dense --set first_num_dense_layers=0 --weights model.safetensors -o x.h5
checkpoint mla/small split misshapen
refuses 'q_proj.weight has shape|q_a_proj.weight has shape|q_b_proj.weight has shape' generate mla/small --weights model.safetensors -o x.h5
checkpoint mlp/silu split transposed
refuses 'up_proj.weight has shape \[64,160\], expected \[160,64\]' generate mlp/silu --weights model.safetensors -o x.h5
sets=(--set base_emb_dim=64 --set base_moe_mlp_dim=32)
checkpoint moe/gpt-oss mxfp4 floats
refuses 'experts.gate_up_proj_blocks has .*\.5, expected bytes' generate moe/gpt-oss "${sets[@]}" --weights model.safetensors -o x.h5
sets=(--set profiles=none)
checkpoint moe/small split
refuses 'has no tensor model.layers.7.\*; its first is lm_head.weight' generate moe/small --weights model.safetensors:model.layers.7 -o x.h5
refuses 'mlp.gate.weight has shape \[6,24\], expected \[3,24\]' generate moe/small --set num_experts=3 --weights model.safetensors -o x.h5
refuses 'mlp.shared_experts.down_proj.weight, which no weight of moe/small takes \(3 such tensors\)' \
  generate moe/small --set shared_experts=0 --weights model.safetensors -o x.h5
refuses 'no checkpoint of Hugging Face has weights/wi_0_bias of such a configuration' \
  generate moe/small --set mlp_bias=true --weights model.safetensors -o x.h5
refuses 'no checkpoint of Hugging Face has weights/scale' generate rms_norm/deepseek --weights model.safetensors -o x.h5
refuses 'weights/.* is given, and --weights gives all weights' generate moe/small --weights model.safetensors --inputs model.safetensors.h5 -o x.h5
refuses 'op permute has no weights|no checkpoint' generate permute/stable --weights model.safetensors -o x.h5
refuses 'nowhere.safetensors' generate moe/small --weights nowhere.safetensors -o x.h5
refuses 'nowhere.safetensors' run moe/small --weights nowhere.safetensors --backend 'true {request} {candidate}'
refuses 'unknown option --weights' check moe/small --weights model.safetensors
checkpoint moe/small mixtral
refuses 'weights/gate/bias: expected model.layers.3.mlp.gate.e_score_correction_bias, model.layers.3.mlp.router.bias, model.layers.3.mlp.expert_bias, ' \
  generate moe/small --weights model.safetensors -o x.h5
checkpoint moe/float32-bias split
refuses 'weights/gate/bias\[[0-9]+\] is .*, which is no bfloat16 value; give --set dtypes.weights/gate/bias=float32' \
  generate moe/float32-bias --set dtypes.gate/bias=bfloat16 --weights model.safetensors -o x.h5
[ ! -e x.h5 ] || complain "x.h5 was written"
echo "hugging_face: $checks calls"
