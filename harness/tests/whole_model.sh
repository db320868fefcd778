#!/usr/bin/env bash
# A stack made a layer at a time, from the command line: killed and begun again, checked by layers, judged by layers.
# usage: whole_model.sh PROGRAM PYTHON
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
profiles: none
YAML

## killed in the middle, and begun again
expect 0 generate whole.yml -o whole.h5 --quiet
for delay in 0.01 0.03 0.05 0.08 0.12 0.2; do
  (timeout -s KILL "$delay" "$assay" generate whole.yml -o parts.h5 --resume --quiet) >/dev/null 2>&1 || true
  [ -e parts.h5 ] && break
  [ -z "$(find . -name '*.partial-*')" ] || complain "a partial file is left"
done
[ -e parts.h5 ] || expect 0 generate whole.yml -o parts.h5 --resume --quiet
[ ! -e parts.h5.journal ] || complain "the journal is left"
digest() { h5dump -a digest "$1" | grep '(0)'; }
[ "$(digest parts.h5)" = "$(digest whole.h5)" ] || complain "another golden by layers"
expect 0 generate whole.yml -o recipes.h5 --resume --recipe --quiet
expect 0 verify parts.h5 recipes.h5 --budget 0 --quiet

## weights that are drawn, of any operation
expect 0 generate moe/mesh-expert2 gmm/primes --set sketch_above=100 --set drawn_above=100 --set profiles=[bf16] -o drawn --quiet
expect 0 verify drawn/moe/mesh-expert2.h5 drawn/gmm/primes.h5 --budget 1 --quiet
expect 0 run moe/mesh-expert2 deepseek_stack/three-layers --set sketch_above=100 --set drawn_above=100 --serve --backend "$backend" --quiet
prints '^2 cases: 2 passed'

## journals
mkdir other.h5.journal && touch other.h5.journal/notes
refuses 'other.h5.journal is no journal' generate whole.yml -o other.h5 --resume
mkdir mine.h5.journal && echo 'case: another' >mine.h5.journal/case.yml
refuses 'mine.h5.journal is the work on another case' generate whole.yml -o mine.h5 --resume
refuses 'op moe is no stack' generate moe/small --set profiles=none -o x.h5 --resume
refuses 'it goes without --inputs' generate whole.yml -o x.h5 --resume --inputs whole.h5
refuses '--resume goes without --certify' generate whole.yml -o x.h5 --resume --certify

## by layers
expect 0 verify parts.h5 --layers 0,3-4 --quiet
prints '^PASS  parts.h5: [0-9]+ digests, 3 layers recomputed bit for bit$'

## the digest of the numbers alone: the same whatever the case is called, another of other numbers
numbers_of() { "$assay" verify "$1" --budget 0 --quiet | sed -n 's/^ *numbers //p'; }
numbers=$("$python" -c '
import hashlib, h5py
own = {}
with h5py.File("parts.h5") as golden:
    golden.visititems(lambda path, item: own.update({path: item.attrs["digest"]} if isinstance(item, h5py.Dataset) else {}))
lines = "".join(f"{path} {own[path]}\n" for path in sorted(own) if path.split("/")[0] not in ("error_scale", "null"))
print(hashlib.sha256(lines.encode()).hexdigest())')
[ "$(numbers_of parts.h5)" = "$numbers" ] || complain "parts.h5: the numbers are $(numbers_of parts.h5), expected $numbers"
sed 's/five small layers/others/' whole.yml >named.yml
sed 's/seed: 4/seed: 5/' whole.yml >seeded.yml
expect 0 generate named.yml -o named.h5 --quiet
expect 0 generate seeded.yml -o seeded.h5 --quiet
[ "$(digest named.h5)" != "$(digest parts.h5)" ] || complain "another description, and the root has the same digest"
[ "$(numbers_of named.h5)" = "$numbers" ] || complain "another description changed the numbers"
[ "$(numbers_of seeded.h5)" != "$numbers" ] || complain "another seed did not change the numbers"

refuses '--layers is "5", expected numbers from 0 to 4' verify parts.h5 --layers 5
refuses '--layers is "1,", expected' verify parts.h5 --layers 1,
refuses '--layers is "3-1", expected' verify parts.h5 --layers 3-1
expect 0 generate parts.h5 --layer 3 -o layer3.h5 --quiet
expect 0 verify layer3.h5 --budget 1 --quiet
expect 0 run layer3.h5 --serve --backend "$backend" --quiet
prints '^PASS +whole/tiny-layer-3 +bf16'
expect 0 request parts.h5 -o request.h5 --quiet
refuses '--layer is 5, expected 0 to 4' generate parts.h5 --layer 5 -o x.h5
refuses '--layer is of one golden, as it is: it goes without --set' generate parts.h5 --layer 1 -o x.h5 --set seed=3
refuses 'whole/tiny-layer-3 is no stack of layers' generate layer3.h5 --layer 0 -o x.h5
refuses '-o parts.h5 is the golden itself' generate parts.h5 --layer 1 -o parts.h5
refuses 'cannot be read' generate nothing.h5 --layer 1 -o x.h5
[ ! -e x.h5 ] || complain "something was written"
echo "$checks calls"
