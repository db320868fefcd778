#!/usr/bin/env bash
# The numpy backend against goldens of every operation, in each profile's arithmetic. usage: numpy_backends.sh PROGRAM PYTHON
# One process of Python serves all cases of a line, whose goldens have the error scales of the line's profile alone: a third of the time.
set -euo pipefail
assay=$1 python=$2
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../tests/cli_test.sh"
export PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
backend="'$python' '$here/backend.py'"

# passes PROFILE VARIANT CASE...
passes() {
  local profile=$1 variant=$2
  shift 2
  expect 0 run "$@" --set "profiles=$profile" --precision "$profile" --quiet --serve --backend "$backend --precision $profile --variant $variant"
  prints '^[0-9]+ cases: [0-9]+ passed, 0 failed, 0 vacuous, 0 unsupported'
}
passes f32 0 rms_norm/deepseek gmm/padded-nan-tail permute/stable unpermute/primes routing/deepseek3-groups mlp/gelu-fused
passes bf16 0 cache_append/fp8-ds-mla cache_append/fp8-ds-mla-vllm cache_append/fp8-model1 cache_append/fp4-indexer cache_append/nvfp4
passes f32 2 'cache_append/*rope*' 'cache_append/key-norm*'
passes bf16 1 'cache_append/*rope*' 'cache_append/key-norm*'
passes f32 6 merge_states/splits merge_states/empty merge_states/sinks merge_states/large-lse
passes f32 5 'mla_decode/*' 'gqa_decode/*'
passes bf16 0 'mla_decode/s*' mla_decode/four-tokens mla_decode/naive gqa_decode/hnd-stride gqa_decode/gpt-oss gqa_decode/window-splits
passes f16 4 mla_decode/lengths mla_decode/naive-tokens gqa_decode/shared-pages gqa_decode/splits-base-2 gqa_decode/gradients mla_decode/gradients-sparse
passes f32 1 moe/small moe/deepseek3-groups yarn_rope/deepseek yarn_rope/half-split attention/padding-nan mla/small
passes bf16 0 mla/no-query-compression mla/query-scale deepseek_layer/query-scale deepseek_layer/dense-fused deepseek_layer/moe-no-query-compression
passes bf16 6 deepseek_stack/three-layers deepseek_stack/balance attention/padding-nan moe/mixtral
passes bf16 6 moe/mesh-ring-expert2 moe/mesh-mlp-tensor2 mla/mesh-model2-expert2 deepseek_layer/mesh-expert4 decoder_layer/mixtral-mesh
passes f16 2 moe/small attention/seven gqa/mixtral
passes f32 1 gqa/gpt-oss gqa/segments attention/grouped attention/window-segments
passes bf16 0 gqa/qwen3 gqa/fused-qkv attention/sinks attention/window-tile-and-one
passes f32 3 gmm/contiguous-any-order gmm/masked-nan gmm/psum-nan gmm/k-grouped-accumulate
passes bf16 0 gmm/contiguous-nan gmm/masked-exact gmm/psum-primes gmm/k-grouped-nan
passes bf16 0 decoder_layer/qwen3 decoder_layer/mixtral-fused decoder_layer/deepseek2
passes f32 1 decoder_stack/mixtral-documents decoder_stack/qwen3-balance
passes bf16 0 'quantize/*' 'dequantize/*'
passes bf16 0 --tag quantized --no-mesh --exclude 'm*/recipe-fp8-full-fused' --exclude mla/recipe-fp8-full \
  --exclude batch_split/expert-selection-recipe # which have float32 tensors
passes f32 2 moe/nvfp4 moe/mixed-formats-fused mlp/fp8 mla/fp8 gmm/fp8-deepgemm gmm/fp8-k-grouped gmm/mxfp8-backward
passes f32 3 gmm/recipe-deepseek-v3 gmm/recipe-fp8-full-fixed 'm*/recipe-fp8-full-fused' mla/recipe-fp8-full \
  batch_split/expert-selection-recipe --set dtype=float32
passes f32 3 quantize/nvfp4-outlier dequantize/nvfp4 dequantize/fp8-128x128
# held to equality at the shapes of tiles, whatever the order of sums
passes bf16 5 gmm/exact-k136 gmm/exact-one-hot gmm/exact-contiguous-k136 mlp/exact-k136 moe/exact-pairs unpermute/exact-d136
passes f16 3 gmm/exact-k512 gmm/exact-powers moe/exact-k264 routing/exact-pairs attention/exact-one-hot
passes bf16 4 gqa/exact-one-hot gqa/exact-flat mla/exact-one-hot mla/exact-flat
# inputs that the profile's type does not have
passes bf16 0 --set dtype=float32 rms_norm/deepseek gmm/primes unpermute/primes routing/gpt-oss mlp/biases moe/small yarn_rope/deepseek mla/small
passes bf16 6 --set dtype=float32 mlp/silu moe/mixtral attention/padding-nan deepseek_layer/dense-fused

# float32 is not float64, and what is not there is said to be so
expect 1 run mla/small --precision f64 --quiet --backend "$backend {request} {candidate} --precision f32"
expect 3 run moe/llama4 --quiet --backend "$backend {request} {candidate}"
prints '^UNSUPPORTED .* not this family of routers'
expect 3 run moe/mesh-balance --quiet --backend "$backend {request} {candidate}"
prints '^UNSUPPORTED .* no results per shard'
echo "$checks calls"
