#!/usr/bin/env bash
# Of every operation: NaN, zeros, nothing, the request itself and the results of other inputs pass at no profile and in no
# report; the golden's own results pass.
set -euo pipefail
assay=$1
python=$2
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=harness/tests/cli_test.sh
. "$here/cli_test.sh"

cat >"$work/fill.py" <<'PY'
"""fill.py GOLDEN CANDIDATE VALUE: every result, full of VALUE."""
import sys
import h5py, numpy as np
golden, candidate, value = sys.argv[1:]
with h5py.File(golden) as given, h5py.File(candidate, "w") as written:
    def fill(name, item):
        if not isinstance(item, h5py.Dataset) or name.split("/")[0] not in ("outputs", "gradients"): return
        written[name] = np.full(item.shape, float(value)) if item.dtype.kind == "f" else np.zeros_like(item[()])
    given.visititems(fill)
PY

# never_passes WHAT CANDIDATE: at no profile of $golden, whatever the report.
never_passes() {
  local profile status
  for profile in $profiles; do
    rm -f "$work"/report.*
    status=0
    "$assay" compare "$golden" "$2" --precision "$profile" --json "$work/report.json" --junit "$work/report.xml" \
      --html "$work/report.html" >"$work/out" 2>"$work/err" || status=$?
    [ "$status" -eq 1 ] || complain "$1 of $name at $profile: status $status, expected 1"
    grep -q '^FAIL' "$work/out" || complain "$1 of $name at $profile: the text does not say FAIL"
    "$python" - "$work" <<'PY' || complain "$1 of $name at $profile: a report does not say FAIL"
import json, sys
import xml.etree.ElementTree as xml
work = sys.argv[1]
text = json.load(open(f"{work}/report.json"))
reports = text["reports"]
assert reports and all(report["verdict"] == "FAIL" for report in reports)
assert any(tensor["verdict"] == "FAIL" for tensor in reports[0]["tensors"]) or reports[0]["unknown"]
assert xml.parse(f"{work}/report.xml").getroot().findall(".//failure")
assert "FAIL" in open(f"{work}/report.html").read()
PY
    checks=$((checks + 1))
  done
}

golden=$work/golden.h5
for name in rms_norm/deepseek gmm/ragged permute/deepseek3-tiny unpermute/deepseek3-tiny routing/deepseek3-tiny yarn_rope/two-dimensions \
  attention/seven mlp/silu moe/small mla/small deepseek_layer/moe deepseek_stack/one-layer moe/mesh-expert2; do
  expect 0 generate "$name" -o "$golden" --quiet
  expect 0 generate "$name" --set seed=987654 -o "$work/other.h5" --quiet
  expect 0 request "$name" -o "$work/request.h5" --quiet
  profiles=$("$python" -c 'import h5py, sys; print(*h5py.File(sys.argv[1])["error_scale"])' "$golden")
  "$python" "$here/copy_outputs.py" "$golden" "$work/own.h5"
  for profile in $profiles; do expect 0 compare "$golden" "$work/own.h5" --precision "$profile"; done
  "$python" "$here/copy_outputs.py" "$work/other.h5" "$work/others.h5"
  "$python" "$work/fill.py" "$golden" "$work/nan.h5" nan
  "$python" "$work/fill.py" "$golden" "$work/zeros.h5" 0
  "$python" -c 'import h5py, sys; h5py.File(sys.argv[1], "w").close()' "$work/empty.h5"
  never_passes NaN "$work/nan.h5"
  never_passes zeros "$work/zeros.h5"
  never_passes nothing "$work/empty.h5"
  profiles=${profiles%% *}
  never_passes "the request" "$work/request.h5"
  never_passes "the golden of another seed" "$work/others.h5"
done
echo "$checks checks"
