#!/usr/bin/env bash
# --weights for kernels that are codes: checkpoints that another program wrote give the golden of the same codes and scales, byte
# for byte; what does not fit is refused by name. usage: quantised_weights.sh PROGRAM PYTHON
set -euo pipefail
assay=$1 python=$2
here=$(cd "$(dirname "$0")" && pwd)
. "$here/cli_test.sh"
cd "$work"
export OMP_NUM_THREADS=1

# checkpoint CASE FORM [SETTING...] [-- WRONG]
checkpoint() {
  local wrong=() name=$1 form=$2
  sets=(--set profiles=none)
  shift 2
  while [ $# -gt 0 ]; do
    [ "$1" != -- ] || { wrong=("$2"); break; }
    sets+=(--set "$1")
    shift
  done
  rm -f weights.h5
  expect 0 generate "$name" "${sets[@]}" --seed 99 -o weights.h5 --quiet
  PYTHONDONTWRITEBYTECODE=1 "$python" "$here/quantised_export.py" weights.h5 "$form" model.safetensors "${wrong[@]}"
}

same() {
  checkpoint "$@"
  expect 0 generate "$1" "${sets[@]}" --inputs model.safetensors.h5 -o expected.h5 --quiet
  expect 0 generate "$1" "${sets[@]}" --weights model.safetensors -o found.h5 --quiet
  cmp -s expected.h5 found.h5 || complain "$1, $2: codes and scales are not those of the checkpoint"
}

# wrong PATTERN CASE FORM [SETTING...] [-- WRONG]
wrong() {
  local pattern=$1
  shift
  checkpoint "$@"
  refuses "$pattern" generate "$1" "${sets[@]}" --weights model.safetensors -o x.h5
}

EVEN=kv_lora_rank=20
same mla/fp8 deepseek
same mlp/fp8 deepseek
same moe/deepseek3-fp8 deepseek
same moe/gpt-oss-mxfp4 gpt_oss base_emb_dim=64 base_moe_mlp_dim=32
same moe/nvfp4 modelopt
same mlp/nvfp4 modelopt
same mlp/nvfp4-fused modelopt
same mla/nvfp4 modelopt $EVEN
same moe/nvfp4 f4
same mlp/nvfp4 mx quant_formats.weights/{wi_0,wi_1,wo}/kernel=mxfp8_e4m3

BY=quant_formats.weights
wrong 'up_proj.weight and no .*up_proj.weight_scale, which fp8_e4m3_128x128 of weights/wi_1/kernel needs' mlp/fp8 deepseek -- no_scale
wrong 'up_proj.weight_scale_inv has shape \[2,1\], expected \[1,2\]' mlp/fp8 deepseek -- transposed_scale
wrong 'up_proj.weight is bfloat16, expected float8_e4m3fn: weights/wi_1/kernel is fp8_e4m3_128x128' mlp/fp8 deepseek -- numbers
wrong 'up_proj.weight_scale is float32, expected float8_e4m3fn: weights/wi_1/kernel is nvfp4' mlp/nvfp4 modelopt -- other_scale
wrong 'no .*up_proj.weight_scale_2, the scale of the tensor that nvfp4 of weights/wi_1/kernel needs' mlp/nvfp4 modelopt -- no_tensor_scale
wrong 'up_proj.weight_scale_2 is 3, expected the .* of the other part of weights/wi/kernel_tensor_scale' mlp/nvfp4-fused modelopt -- other_tensor_scale
wrong 'wi_[01]_scale\[0\] is nan, expected a finite number' moe/gpt-oss-mxfp4 gpt_oss base_emb_dim=64 base_moe_mlp_dim=32 -- nan_scale
checkpoint mlp/nvfp4 modelopt
refuses 'gate_proj.weight is int32, expected float8_e4m3fn: weights/wi_0/kernel is mxfp8_e4m3' \
  generate mlp/nvfp4 --set $BY/wi_0/kernel=mxfp8_e4m3 --weights model.safetensors -o x.h5
refuses 'gate_proj.weight_scale is float8_e4m3fn, expected float8_e8m0fnu, or uint8: weights/wi_0/kernel_?[a-z]* is mxfp4' \
  generate mlp/nvfp4 --set $BY/wi_0/kernel=mxfp4 --weights model.safetensors -o x.h5
refuses 'gate_proj.weight holds two codes a byte, expected an even number of inputs of weights/wi_0/kernel' \
  generate mlp/nvfp4 --set base_emb_dim=47 --weights model.safetensors -o x.h5
checkpoint mlp/nvfp4-fused modelopt
refuses 'has blocks of 16 outputs, expected a multiple of as many of gate and of up: weights/wi/kernel' \
  generate mlp/nvfp4-fused --set $BY/wi/kernel=nvfp4_16x16 --weights model.safetensors -o x.h5
checkpoint moe/gpt-oss-mxfp4 gpt_oss base_emb_dim=64 base_moe_mlp_dim=32
refuses 'gate_up_proj_blocks is mxfp4, expected nvfp4 of weights/wi_0' \
  generate moe/gpt-oss-mxfp4 "${sets[@]}" --set $BY/wi_0=nvfp4 --weights model.safetensors -o x.h5
[ ! -e x.h5 ] || complain "x.h5 was written"
echo "quantised_weights: $checks calls"
