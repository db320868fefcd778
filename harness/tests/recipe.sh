#!/usr/bin/env bash
# Goldens without their inputs: every command takes them. usage: recipe.sh PROGRAM PYTHON NUMPY_FOLDER
set -euo pipefail
assay=$1 python=$2 numpy=$3
here=$(cd "$(dirname "$0")" && pwd)
. "$here/cli_test.sh"
export TMPDIR=$work/temporary
mkdir "$TMPDIR"
cd "$work"
case=(moe/small --set fill=bell --set 'gradients=[inputs/x]' --quiet)

## the same content, without elements
for kind in h5 safetensors; do
  expect 0 generate "${case[@]}" -o "full.$kind"
  expect 0 generate "${case[@]}" --recipe -o "golden.$kind"
  [ "$(stat -c %s "golden.$kind")" -lt "$(stat -c %s "full.$kind")" ] || complain "golden.$kind is no smaller"
  [ -e candidate.h5 ] || "$python" "$here/copy_outputs.py" full.h5 candidate.h5
  expect 0 verify "golden.$kind"
  prints "PASS  golden.$kind: .* digests .[0-9]+ of what was drawn again., recomputed bit for bit"
  expect 0 request "${case[@]}" -o "full-request.$kind"
  expect 0 request "${case[@]}" --recipe -o "recipe-request.$kind"
  expect 0 request "golden.$kind" --materialise -o "request.$kind"
  cmp "request.$kind" "full-request.$kind" || complain "materialised, a request has other bytes: $kind"
  expect 0 request "golden.$kind" -o "request.$kind"
  cmp "request.$kind" "recipe-request.$kind" || complain "the request of a golden of recipes has other bytes: $kind"
  expect 0 verify "request.$kind" --quiet
  expect 0 compare "golden.$kind" candidate.h5 --precision bf16
  expect 0 power "golden.$kind" --precision bf16 --quiet
  expect 0 run "golden.$kind" --serve --backend "'$python' '$numpy/backend.py'" --quiet
  expect 0 convert "golden.$kind" "back-$kind.safetensors" --quiet
  expect 0 convert "golden.$kind" whole.safetensors --materialise --quiet
  [ $kind = h5 ] || cmp whole.safetensors full.safetensors || complain "materialised from $kind, other bytes"
done
cmp back-h5.safetensors golden.safetensors || complain "converted, other bytes"
for text in 'f.attrs["digest"] == full.attrs["digest"]' '"weights" not in f and "inputs/x" not in f' 'len(f.attrs["recipes"]) >= 5'; do
  "$python" -c "import h5py, sys; f, full = map(h5py.File, sys.argv[1:]); assert $text" golden.h5 full.h5 || complain "not so: $text"
done

## calibrated, it stays without them; --inputs takes from it
cp golden.h5 calibrated.h5
expect 0 calibrate calibrated.h5 --precision tf32 --quiet
"$python" -c 'import h5py; assert "weights" not in h5py.File("calibrated.h5")' || complain "calibrate wrote the elements"
expect 0 verify calibrated.h5 --quiet
expect 0 generate "${case[@]}" --inputs golden.safetensors -o given.safetensors
cmp given.safetensors full.safetensors || complain "--inputs of a golden of recipes gives another golden"

## a backend that draws them itself
expect 0 run golden.h5 --recipe --quiet --backend "$python '$numpy/backend.py' {request} {candidate} --precision bf16"
expect 1 run golden.h5 --recipe --quiet --backend "$python -c 'import h5py, sys; h5py.File(sys.argv[1])[\"weights/wi_0\"]' {request} {candidate}"

## what --inputs gives is stored
"$python" - <<'PYTHON'
import h5py
with h5py.File("full-request.h5") as full, h5py.File("some.h5", "w", libver=("v110", "v110")) as some:
    some["weights/wi_0"] = full["weights/wi_0"][()]
PYTHON
expect 0 generate "${case[@]}" --recipe --inputs some.h5 -o partly.h5
"$python" -c 'import h5py; f = h5py.File("partly.h5"); assert list(f["weights"]) == ["wi_0"], list(f["weights"])' || complain "stored: other than what was given"

## tampered, with the root's digest made anew
"$python" - golden.h5 "$here/../../docs/code/"{digests,random_inputs}.py <<'PYTHON'
import hashlib, re, shutil, sys
import h5py, numpy as np

names = {"sys": sys}
exec(open(sys.argv[2]).read().split("\nwith h5py.File")[0], names)


def changed(name, change):
    shutil.copy(sys.argv[1], name)
    with h5py.File(name, "r+") as f:
        lines = [change(line) if line.startswith("weights/wi_0 ") else line for line in f.attrs["recipes"]]
        f.attrs["recipes"] = [line for line in lines if line]
        datasets = {}
        f.visititems(lambda path, item: datasets.update({path: item} if isinstance(item, h5py.Dataset) else {}))
        f.attrs["digest"] = names["root_digest"](f, datasets)


changed("same.h5", lambda line: line)
changed("seed.h5", lambda line: re.sub(r"seed \d+", "seed 12345", line))
changed("digest.h5", lambda line: line[:-8] + "00000000")
changed("scale.h5", lambda line: re.sub(r"scale \S+", "scale 0.5", line))
changed("missing.h5", lambda line: "")
# another draw with its own digest: only the results tell
fills = {}
exec(open(sys.argv[3]).read(), fills)


def redrawn(line):
    _path, dtype, x = fills["from_recipe"](line)
    bits = (x.astype(np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    return line[:-64] + hashlib.sha256(f"{dtype} {line.split()[2]}\n".encode() + bits).hexdigest()


changed("redrawn.h5", redrawn)
changed("other.h5", lambda line: redrawn(re.sub(r"seed \d+", "seed 12345", line)))
PYTHON
expect 0 verify same.h5 redrawn.h5 --quiet
expect 1 verify other.h5 --quiet
prints 'FAIL  other.h5: .*the file has .*, recomputing gives'
for name in seed digest scale; do
  expect 1 verify $name.h5 --quiet
  prints "FAIL  $name.h5: .*weights/wi_0 was changed: its digest is"
done
# who judges by a golden draws what is not as its case says; the rest only verify draws
for name in seed scale; do refuses 'weights/wi_0 was changed' compare $name.h5 candidate.h5; done
expect 0 compare digest.h5 candidate.h5 --precision bf16
expect 0 compare redrawn.h5 candidate.h5 --precision bf16
expect 1 verify missing.h5 --quiet
prints 'FAIL  missing.h5: weights/wi_0 is missing'

## refused
refuses '--recipe leaves nothing out' generate "${case[@]}" --recipe --inputs full.h5 -o none.h5
refuses 'golden.h5 is a golden, which has its inputs: --recipe has no use' request golden.h5 --recipe -o none.h5
refuses 'moe/small is no golden.*--materialise has no use' request "${case[@]}" --materialise -o none.h5
refuses 'unknown option --materialise' generate "${case[@]}" --materialise -o none.h5
[ ! -e none.h5 ] || complain "a refused command wrote"
leaves_nothing "$TMPDIR"
echo "$checks calls"
