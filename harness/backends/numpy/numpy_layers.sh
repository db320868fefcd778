#!/usr/bin/env bash
# A stack that is judged a layer at a time, by the numpy backend: what is wrong in one layer is named by that layer, and by its sketch alone.
# usage: numpy_layers.sh PROGRAM PYTHON
set -euo pipefail
assay=$1 python=$2
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../tests/cli_test.sh"
export PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
cd "$work"
cat >stack.yml <<'YAML'
case: whole/small
description: six layers of DeepSeek-V3's form, 256 wide
op: deepseek_stack
model: deepseek3-tiny
config: {base_emb_dim: 256, base_mlp_dim: 256, base_moe_mlp_dim: 128, base_num_query_heads: 4, q_lora_rank: 64, kv_lora_rank: 32, qk_nope_head_dim: 16, qk_rope_head_dim: 8, v_head_dim: 16, num_experts: 16, num_experts_per_tok: 4, base_num_decoder_layers: 6, first_num_dense_layers: 2}
sequence: 16
seed: 8
fill: bell
sketch_above: 2000
YAML
for layer in 1 3 4; do
  expect 0 generate stack.yml --set only_layer="$layer" --set case="whole/small-layer-$layer" --recipe -o "layer$layer.h5" --quiet
done

# a right one, and one whose experts in layer 4 have a wrong gradient of wo
expect 0 run layer1.h5 layer3.h5 layer4.h5 --recipe --serve --quiet --backend "'$python' '$here/backend.py'"
prints '^3 cases: 3 passed'
expect 1 run layer1.h5 layer3.h5 layer4.h5 --recipe --serve --quiet -v --backend "'$python' '$here/planted.py' 4 1.05"
prints '^3 cases: 2 passed, 1 failed'
prints '^PASS +whole/small-layer-3 '
prints '^FAIL +whole/small-layer-4 +gradients/weights/layers/4/moe/wo/sketch/'
prints '^ +outputs/y .* PASS '
[ "$(grep -cE '^ +[a-z_]+/.* FAIL ' out)" = "$(grep -cE '^ +gradients/weights/layers/4/moe/wo/sketch/.* FAIL ' out)" ] || complain "something else fails"
echo "$checks calls"
