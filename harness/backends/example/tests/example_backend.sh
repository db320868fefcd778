#!/usr/bin/env bash
# Both backends over the catalogue: every case passes or is one that they do not have. The example backend over a third of it, and with
# ASSAY_NIGHTLY over the whole. usage: example_backend.sh PROGRAM EXAMPLE GMM
set -euo pipefail
assay=$1 backend=$2 gmm=$3
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../../tests/cli_test.sh"

part=1/3 passed='[5-9][0-9]'
if [ -n "${ASSAY_NIGHTLY:-}" ]; then part=1/1 passed='1[5-9][0-9]'; fi
expect 0 run '*' --shard "$part" --set profiles=bf16 --precision bf16 --backend "$backend" --quiet
prints "^[0-9]* cases: $passed passed, 0 failed, 0 vacuous, "
expect 0 run 'gmm/*' --set profiles=bf16 --precision bf16 --backend "$gmm" --quiet
prints "^[0-9]* cases: [2-9][0-9] passed, 0 failed, 0 vacuous, "
expect 3 run mlp/silu --backend "$gmm" --quiet
prints "^UNSUPPORTED *mlp/silu *only gmm"
echo "$checks calls"
