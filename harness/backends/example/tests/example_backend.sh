#!/usr/bin/env bash
# Both backends over the catalogue: every case passes or is one that they do not have. usage: example_backend.sh PROGRAM EXAMPLE GMM
set -euo pipefail
assay=$1 backend=$2 gmm=$3
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../../tests/cli_test.sh"

expect 0 run '*' --set profiles=bf16 --precision bf16 --backend "$backend" --quiet
prints "^[0-9]* cases: [1-9][0-9][0-9] passed, 0 failed, 0 vacuous, "
expect 0 run 'gmm/*' --set profiles=bf16 --precision bf16 --backend "$gmm" --quiet
prints "^[0-9]* cases: [2-9][0-9] passed, 0 failed, 0 vacuous, "
expect 3 run mlp/silu --backend "$gmm" --quiet
prints "^UNSUPPORTED *mlp/silu *only gmm"
echo "$checks calls"
