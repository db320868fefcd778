#!/usr/bin/env bash
# The numpy backends, float32, against goldens of every operation that they have. usage: numpy_backends.sh PROGRAM PYTHON
set -euo pipefail
assay=$1 python=$2
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../tests/cli_test.sh"
export PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1

# passes SCRIPT CASE...
passes() {
  local spec="'$python' '$here/$1' {request} {candidate}"
  shift
  expect 0 run "$@" --set dtype=float32 --set profiles=f32 --quiet --backend "$spec"
  prints "^$# cases: $# passed, "
}
passes moe_numpy.py moe/small moe/deepseek3-groups
passes mla_numpy.py yarn_rope/deepseek yarn_rope/half-split attention/padding-nan mla/small mla/no-query-compression \
  deepseek_layer/dense-fused deepseek_layer/moe-no-query-compression deepseek_stack/three-layers

# float32 is not float64, and what is not there is said to be so
expect 1 run mla/small --set dtype=float32 --set profiles=f64 --precision f64 --quiet \
  --backend "'$python' '$here/mla_numpy.py' {request} {candidate}"
expect 3 run moe/small --quiet --backend "'$python' '$here/mla_numpy.py' {request} {candidate}"
prints '^UNSUPPORTED .* no moe'
expect 3 run deepseek_stack/balance --quiet --backend "'$python' '$here/mla_numpy.py' {request} {candidate}"
prints '^UNSUPPORTED .* no outputs/layers/1/lb_loss'
echo "$checks calls"
