#!/usr/bin/env bash
# Layers of a stack, each by itself; weights that a golden leaves to the seed; the digest of numbers alone.
# usage: layers.sh PROGRAM PYTHON
set -euo pipefail
assay=$1 python=$2
backend="'$python' '$(cd "$(dirname "$0")" && pwd)/../backends/numpy/backend.py'"
. "$(dirname "$0")/cli_test.sh"
cd "$work"
cat >whole.yml <<'YAML'
case: whole/tiny
description: five small layers
op: deepseek_stack
model: deepseek3-tiny
config: {base_emb_dim: 24, base_mlp_dim: 20, base_moe_mlp_dim: 12, base_num_query_heads: 2, q_lora_rank: 12, kv_lora_rank: 8, qk_nope_head_dim: 8, qk_rope_head_dim: 4, v_head_dim: 6, num_experts: 8, num_experts_per_tok: 2, base_num_decoder_layers: 5, first_num_dense_layers: 2}
sequence: 4
seed: 4
fill: bell
gradients: ['*', 'checkpoints/*']
checkpoints: ['layers/*/decoder_layer_input']
sketch_above: 200
drawn_above: 200
dtype: float64
profiles: none
YAML

## a layer alone, from its input and the gradient of its output in the golden of the stack, has the stack's results
expect 0 generate whole.yml -o whole.h5 --quiet
expect 0 generate whole.yml --recipe -o recipes.h5 --quiet
expect 0 verify whole.h5 recipes.h5 --budget 0 --quiet
for layer in 0 1 3 4; do
  "$python" -c '
import h5py, sys
layer = int(sys.argv[1])
with h5py.File("whole.h5") as whole, h5py.File("edges.h5", "w") as edges:
    edges["inputs/x"] = whole["inputs/x" if layer == 0 else f"checkpoints/layers/{layer}/decoder_layer_input"][()]
    edges["cotangents/y"] = whole["cotangents/y" if layer == 4 else f"gradients/checkpoints/layers/{layer + 1}/decoder_layer_input"][()]' "$layer"
  expect 0 generate whole.yml --set only_layer="$layer" --inputs edges.h5 -o "layer$layer.h5" --quiet
  "$python" -c '
import h5py, sys
layer, compared = int(sys.argv[1]), 0
with h5py.File("whole.h5") as whole, h5py.File(f"layer{layer}.h5") as alone:
    def compare(path, item):
        global compared
        if f"/layers/{layer}/" not in path or not isinstance(item, h5py.Dataset):
            return
        compared += 1
        assert item.attrs["digest"] == whole[path].attrs["digest"], path
    alone.visititems(compare)
assert compared > 10, compared' "$layer" || complain "layer $layer alone has other results"
done
expect 0 generate whole.yml --set only_layer=3 --set profiles=[bf16] --set dtype=bfloat16 --recipe -o judged.h5 --quiet
expect 0 verify judged.h5 --budget 1 --quiet
expect 0 run judged.h5 --recipe --serve --backend "$backend" --quiet
prints '^PASS +whole/tiny +bf16'

## as many jobs as there are, each with some of the layers
for layer in 0 1 2 3 4; do echo ---; sed "s,^case: .*,&/$layer," whole.yml; echo "only_layer: $layer"; done >layers.yml
for shard in 1 2; do expect 0 generate layers.yml --shard "$shard/2" -o layers --quiet; done
[ "$(find layers -name '*.h5' | wc -l)" = 5 ] || complain "not every layer has its golden"

## weights that are drawn, of any operation
expect 0 generate moe/mesh-expert2 gmm/primes --set sketch_above=100 --set drawn_above=100 --set profiles=[bf16] -o drawn --quiet
expect 0 verify drawn/moe/mesh-expert2.h5 drawn/gmm/primes.h5 --budget 1 --quiet
expect 0 run moe/mesh-expert2 deepseek_stack/three-layers --set sketch_above=100 --set drawn_above=100 --serve --backend "$backend" --quiet
prints '^2 cases: 2 passed'

## the digest of the numbers alone: the same whatever the case is called, another of other numbers
digest() { h5dump -a digest "$1" | grep '(0)'; }
numbers_of() { "$assay" verify "$1" --budget 0 --quiet | sed -n 's/^ *numbers //p'; }
numbers=$("$python" -c '
import hashlib, h5py
own = {}
with h5py.File("whole.h5") as golden:
    golden.visititems(lambda path, item: own.update({path: item.attrs["digest"]} if isinstance(item, h5py.Dataset) else {}))
lines = "".join(f"{path} {own[path]}\n" for path in sorted(own) if path.split("/")[0] not in ("error_scale", "null"))
print(hashlib.sha256(lines.encode()).hexdigest())')
[ "$(numbers_of whole.h5)" = "$numbers" ] || complain "whole.h5: the numbers are $(numbers_of whole.h5), expected $numbers"
sed 's/five small layers/others/' whole.yml >named.yml
sed 's/seed: 4/seed: 5/' whole.yml >seeded.yml
expect 0 generate named.yml -o named.h5 --quiet
expect 0 generate seeded.yml -o seeded.h5 --quiet
[ "$(digest named.h5)" != "$(digest whole.h5)" ] || complain "another description, and the root has the same digest"
[ "$(numbers_of named.h5)" = "$numbers" ] || complain "another description changed the numbers"
[ "$(numbers_of seeded.h5)" != "$numbers" ] || complain "another seed did not change the numbers"

## what is gone
refuses 'option --resume is gone with 0.2: assay generate --set only_layer=N' generate whole.yml -o x.h5 --resume
refuses 'option --layer is gone with 0.2: ' generate whole.h5 --layer=3 -o x.h5
refuses 'option --layers is gone with 0.2: ' verify whole.h5 --layers 0,3-4
[ ! -e x.h5 ] || complain "something was written"
echo "$checks calls"
