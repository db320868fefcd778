#!/usr/bin/env bash
# Every command with each container of fixtures. usage: containers.sh PROGRAM PYTHON EXAMPLE
set -euo pipefail
assay=$1 python=$2 example=$3
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
. "$here/cli_test.sh"
export TMPDIR=$work/temporary
mkdir "$TMPDIR"
case=(gmm/ragged --set 'gradients=[inputs/lhs]')

## goldens, requests and candidates
expect 0 generate "${case[@]}" -o "$work/results.h5"
"$python" "$here/copy_outputs.py" "$work/results.h5" "$work/candidate.h5"
expect 0 convert "$work/candidate.h5" "$work/candidate.safetensors"
for kind in h5 safetensors; do
  golden=$work/golden.$kind
  expect 0 generate "${case[@]}" -o "$golden"
  expect 0 verify "$golden" --budget 0
  expect 0 request "${case[@]}" -o "$work/request.$kind"
  expect 0 verify "$work/request.$kind"
  for other in h5 safetensors; do
    expect 0 convert "$golden" "$work/$kind.$other"
    expect 0 convert "$work/request.$kind" "$work/request-$kind.$other"
    expect 0 compare "$work/$kind.$other" "$work/candidate.$other" --precision bf16
  done
  expect 0 power "$golden" --precision bf16
  expect 0 calibrate "$golden" --precision tf32
  expect 0 compare "$golden" "$work/candidate.$kind" --precision tf32
  expect 0 generate "${case[@]}" --inputs "$work/request.$kind" -o "$work/given.safetensors"
  cmp "$work/given.safetensors" "$work/h5.safetensors" || complain "the same inputs give another golden: $kind"
done
# one content, one file
cmp "$work/h5.safetensors" "$work/safetensors.safetensors" || complain "converted from h5: other bytes"
cmp "$work/request-h5.safetensors" "$work/request.safetensors" || complain "request converted from h5: other bytes"

## whole numbers of any size in the metadata of others stay what they are
"$python" - "$work/theirs.safetensors" <<'PYTHON'
import struct, sys

header = b'{"__metadata__":{"step":"4294967297","id":"9007199254740993","zip":"007"},"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}  '
with open(sys.argv[1], "wb") as file:
    file.write(struct.pack("<Q", len(header)) + header + struct.pack("<f", 1))
PYTHON
expect 0 convert "$work/theirs.safetensors" "$work/theirs.h5"
expect 0 convert "$work/theirs.h5" "$work/back.safetensors"
expect 0 convert "$work/back.safetensors" "$work/back.h5"
cmp "$work/theirs.h5" "$work/back.h5" || complain "metadata changed between containers"
"$python" -c "import h5py, sys; f = h5py.File(sys.argv[1]); assert (f.attrs['step'], f.attrs['id'], f.attrs['zip']) == (2**32 + 1, 2**53 + 1, '007')" \
  "$work/back.h5" || complain "metadata changed"

## folders
expect 0 generate moe/small mlp/silu -o "$work/goldens" --container safetensors
[ "$(cd "$work/goldens" && echo */*)" = "mlp/silu.safetensors moe/small.safetensors" ] || complain "other files: $(ls -R "$work/goldens")"
refuses '-o .*one.h5 is one file, but 2 cases' generate moe/small mlp/silu -o "$work/one.h5"
refuses '--container is "pt", expected h5 or safetensors' request moe/small -o "$work/folder" --container pt
refuses '--container is "", expected' request moe/small -o "$work/folder" --container ''
refuses '--container is "tar.h5", expected' request moe/small -o "$work/folder" --container tar.h5

## run
code="'$python' '$root/docs/code"
norm=(rms_norm/deepseek --set gradients=none --precision f32 --quiet)
expect 0 run "${norm[@]}" --backend "$code/candidate_h5py.py' {request} {candidate}"
expect 0 run "${norm[@]}" --container safetensors --backend "$code/candidate_safetensors.py' {request} {candidate}"
expect 1 run "${norm[@]}" --container safetensors --backend "$code/candidate_h5py.py' {request} {candidate}"
expect 1 run "${norm[@]}" --container safetensors --backend ": {request}; echo x >{candidate}"
prints 'is no safetensors file: it has 2 bytes'
expect 0 request gmm/mxfp4-weights -o "$work/codes.safetensors" --quiet
expect 0 request gmm/mxfp4-weights -o "$work/codes.h5" --quiet
"$python" - "$root/docs/code/candidate_safetensors.py" "$work" <<'PYTHON' || complain "what candidate_safetensors.py loads of float4 are not its codes"
import sys

import h5py

exec(open(sys.argv[1]).read().split("request, candidate =")[0])
_, arrays = load(f"{sys.argv[2]}/codes.safetensors")
with h5py.File(f"{sys.argv[2]}/codes.h5") as given:
    sys.exit(not (arrays["weights/rhs"] == given["weights/rhs"][()]).all())
PYTHON
expect 0 run "${case[@]}" --container safetensors --backend "$example" --keep "$work/kept"
for what in golden request candidate; do
  [ -s "$work/kept/gmm-ragged.$what.safetensors" ] || complain "not kept: $what.safetensors"
done
expect 0 compare "$work/h5.h5" "$work/kept/gmm-ragged.candidate.safetensors" --precision bf16

## what is refused
refuses 'usage: assay convert .options. FROM TO; found 1 arguments' convert "$work/h5.h5"
refuses 'golden.txt: expected a name that ends in .h5 or .safetensors' convert "$work/h5.h5" "$work/golden.txt"
refuses 'there: expected a name that ends' convert "$work/there" "$work/new.h5"
refuses 'there.safetensors: cannot be read: No such file' convert "$work/there.safetensors" "$work/new.h5"
no_npz='npz: npz is no container of assay; use .h5 or .safetensors, or give the arrays of numpy.load to the Python package'
echo PK >"$work/theirs.npz"
mkdir "$work/npz" && cp "$work/theirs.npz" "$work/npz"
for command in "convert $work/theirs.npz $work/new.h5" "convert $work/h5.h5 $work/new.npz" "generate moe/small -o $work/new.npz" \
  "request moe/small -o $work/new.npz" "generate moe/small -o $work/folder --container npz" "verify $work/theirs.npz" \
  "generate moe/small --inputs $work/theirs.npz -o $work/new.h5" "compare $work/h5.h5 $work/theirs.npz" \
  "compare $work/theirs.npz $work/candidate.h5" "run $work/theirs.npz --backend $example" "run $work/npz --backend $example"; do
  refuses "$no_npz" $command
done
cp "$work/h5.safetensors" "$work/changed.safetensors"
printf '\x01' | dd of="$work/changed.safetensors" bs=1 seek=$(($(stat -c %s "$work/changed.safetensors") - 9)) conv=notrunc 2>/dev/null
refuses 'changed.safetensors: .* was changed: its digest is' convert "$work/changed.safetensors" "$work/new.h5"
refuses 'changed.safetensors: .* was changed: its digest is' compare "$work/changed.safetensors" "$work/candidate.h5" --precision bf16
expect 1 verify "$work/changed.safetensors"
prints 'FAIL .* was changed'
mv "$work/h5.safetensors" "$work/renamed.h5"
refuses 'renamed.h5 is no HDF5 file' convert "$work/renamed.h5" "$work/new.safetensors"
[ -z "$(ls -d "$work"/new.* "$work/folder" 2>/dev/null)" ] || complain "something was written"
leaves_nothing "$TMPDIR"
echo "$checks calls"
