#!/usr/bin/env bash
# Of several wrong tensors the first along the data flow is named, in every report. usage: first_wrong.sh PROGRAM PYTHON ROOT
set -euo pipefail
assay=$1 python=$2 root=$3
here=$(cd "$(dirname "$0")" && pwd)
. "$here/cli_test.sh"

# candidate GOLDEN CODE: $work/candidate.h5 is the golden's results, changed by CODE: t has them by path, f is the golden.
candidate() {
  "$python" - "$1" "$work/candidate.h5" "$2" <<'PY'
import sys
import h5py, numpy as np
t = {}
with h5py.File(sys.argv[1]) as f, h5py.File(sys.argv[2], "w") as out:
    def keep(path, item):
        if isinstance(item, h5py.Dataset) and path.split("/")[0] in ("outputs", "gradients", "checkpoints", "routing"):
            t[path] = item[()]
    f.visititems(keep)
    exec(sys.argv[3])
    for path in t: out[path] = t[path]
PY
}

# names PATH GOLDEN [OPTION...]: the verdict, the first failure in the table and the other reports.
names() {
  local path=$1 golden=$2
  shift 2
  expect 1 compare "$golden" "$work/candidate.h5" -v --json "$work/r.json" --html "$work/r.html" --junit "$work/r.xml" "$@"
  prints "^FAIL  $path: "
  [ "$(awk '$4 == "FAIL" { print $1; exit }' "$work/out")" = "$path" ] || complain "$path does not fail first in the table"
  grep -q ">$path (first wrong)<" "$work/r.html" || complain "$path is not marked in the page"
  "$python" - "$path" "$work/r.json" "$work/r.xml" <<'PY' || complain "$path is not the first"
import json, sys, xml.etree.ElementTree as xml
path = sys.argv[1]
report = json.load(open(sys.argv[2]))["reports"][0]
assert report["message"].startswith(path + ": "), report["message"]
assert [x["path"] for x in report["tensors"] if x["verdict"] == "FAIL"][0] == path
failed = [x for x in xml.parse(sys.argv[3]).iter("testcase") if x.find("failure") is not None]
assert path in failed[0].get("name"), failed[0].attrib
PY
}

## the norm of the latents left out: the latents are wrong, and what follows them; kv_wa_proj, before them, is right
expect 0 generate mla/checkpoints -o "$work/mla.h5"
candidate "$work/mla.h5" '
k = "checkpoints/"
t[k + "mla_kv"] = t[k + "kv_wa_proj"][..., :t[k + "mla_kv"].shape[-1]] * f["weights/kv_norm/scale"][()]
for name in ("key_proj", "value_proj", "attention_out", "lse", "out_proj"): t[k + name] *= 1.5
for path in t:
    if path.split("/")[0] in ("outputs", "gradients"): t[path] *= 1.5'
names checkpoints/mla_kv "$work/mla.h5" --precision f32
for step in kv_wa_proj:pass query_proj:pass mla_kv:'fail first' key_proj:fail out_proj:fail; do
  grep -q "class=\"bold ${step#*:}\"><title>checkpoints/${step%%:*}[ <]" "$work/r.html" ||
    complain "the step of ${step%%:*} is not ${step#*:}"
done

## gradients begin at the output; also in a golden of an earlier program
gradients='
for path in t:
    if path.startswith("gradients/"): t[path] *= 1.5'
candidate "$work/mla.h5" "$gradients"
names gradients/weights/out/kernel "$work/mla.h5" --precision f32
prints '^looks like this: gradients/weights/out/kernel is the golden times 1.5'
candidate "$root/fixtures/golden/mla-one-head.h5" "$gradients"
names gradients/weights/out/kernel "$root/fixtures/golden/mla-one-head.h5"

## layers are numbers: 2 before 10
expect 0 generate deepseek_stack/two-dense --set base_num_decoder_layers=12 --set first_num_dense_layers=12 \
  --set checkpoints=all --set gradients=none --set 'profiles=[bf16]' -o "$work/stack.h5" --quiet
candidate "$work/stack.h5" '
early = ("decoder_layer_input", "query_wa_proj", "mla_q", "kv_wa_proj", "mla_kv")
for path in t:
    part = path.split("/")
    layer = int(part[2]) if part[0] == "checkpoints" else 99
    if layer > 2 or layer == 2 and part[3] not in early: t[path] *= 1.5'
names checkpoints/layers/2/query_proj "$work/stack.h5" --precision bf16
prints '^looks like this: checkpoints/layers/2/query_proj is the golden times 1.5'

## a router behind wrong attention chooses other experts: attention is named; and of two routers that of the lower layer
expect 0 generate deepseek_stack/three-layers --set base_num_decoder_layers=12 --set checkpoints=all --set gradients=none \
  --set 'profiles=[bf16]' -o "$work/moe.h5" --quiet
other_experts='
for layer in (2, 10):
    chosen = t[f"routing/layers/{layer}/selected_experts"]
    chosen[0, 0] = [e for e in range(f[f"weights/layers/{layer}/moe/gate/kernel"].shape[1]) if e not in chosen[0, 0]][:chosen.shape[2]]'
candidate "$work/moe.h5" "$other_experts"
names routing/layers/2/selected_experts "$work/moe.h5" --precision bf16
prints '^FAIL  routing/layers/2/selected_experts: token \[0,0\]: expert '
candidate "$work/moe.h5" "$other_experts
t['checkpoints/layers/2/attention_out'] *= 1.5"
names checkpoints/layers/2/attention_out "$work/moe.h5" --precision bf16
prints '^looks like this: checkpoints/layers/2/attention_out is the golden times 1.5'
candidate "$work/moe.h5" "$other_experts
t['checkpoints/layers/2/moe_mlpwo'] *= 1.5"
names routing/layers/2/selected_experts "$work/moe.h5" --precision bf16
echo "$checks calls"
