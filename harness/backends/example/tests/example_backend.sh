#!/usr/bin/env bash
# The example backend: every case of its operations passes or is one that it does not have, and so is every other; with each of its
# planted errors it fails. usage: example_backend.sh PROGRAM EXAMPLE
set -euo pipefail
assay=$1 backend=$2
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../../tests/cli_test.sh"

expect 0 run 'rms_norm/*' 'gmm/*' --set profiles=bf16 --precision bf16 --backend "$backend" --quiet
prints "^[0-9]* cases: [4-9][0-9] passed, 0 failed, 0 vacuous, "
expect 3 run permute/stable moe/small gmm/mxfp4-weights gmm/float32-grid --backend "$backend" --quiet
prints "^UNSUPPORTED *moe/small *the example does not support moe"
table=$(awk '$1 == "padding_in_last_group" || $1 == "vector_tail_dropped" || $1 == "empty_group_shifts"' "$here/../../numpy/planted_bugs.txt")
while read -r bug case where name; do
  ASSAY_EXAMPLE_BUG=$bug expect 1 run "$case" --backend "$backend" --quiet
  prints "^FAIL *$case *$where:"
  prints "^    known bugs: equals mutant (.* or )?$name \\("
done <<<"$table"
ASSAY_EXAMPLE_BUG=scaling_twice expect 1 run gmm/ragged --backend "$backend" --quiet
prints 'ASSAY_EXAMPLE_BUG may be padding_in_last_group .*planted_bugs.py'
echo "$checks calls"
