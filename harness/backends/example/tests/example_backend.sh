#!/usr/bin/env bash
# The example backend over a third of the catalogue, and with ASSAY_NIGHTLY over the whole: every case passes or is one that it does not
# have. usage: example_backend.sh PROGRAM EXAMPLE
set -euo pipefail
assay=$1 backend=$2
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../../tests/cli_test.sh"

part=1/3 passed='[5-9][0-9]'
if [ -n "${ASSAY_NIGHTLY:-}" ]; then part=1/1 passed='1[5-9][0-9]'; fi
expect 0 run '*' --shard "$part" --set profiles=bf16 --precision bf16 --backend "$backend" --quiet
prints "^[0-9]* cases: $passed passed, 0 failed, 0 vacuous, "
echo "$checks calls"
