#!/usr/bin/env bash
# docs/random-inputs.md, and <assay/random.h> by every compiler that is here. usage: random_inputs.sh PROGRAM PYTHON
set -euo pipefail
assay=$1 python=$2
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
makers=()
# compile NAME COMMAND...
compile() {
  local name=$1
  shift
  "$@" -I "$root/include" "$here/random_header.c" -lm -o "$work/$name"
  makers+=("$work/$name")
}
warnings=(-Wall -Wextra -Wconversion -Wshadow -Werror -ffp-contract=off)
compile c "${CC:-cc}" -std=c17 -pedantic -O3 -march=native "${warnings[@]}"
compile c++ "${CXX:-c++}" -x c++ -std=c++11 -O2 "${warnings[@]}"
compile fused "${CC:-cc}" -std=c17 -O3 -march=native -ffp-contract=fast
if command -v nvcc >/dev/null; then compile cuda nvcc -x cu -fmad=false; else echo "no nvcc: CUDA C is not compiled"; fi
if command -v clang >/dev/null; then
  clang -target spir64 -x cl -cl-std=CL1.2 -D__OPENCL_VERSION__=120 -Xclang -finclude-default-header -Wall -Wextra -Werror -Wno-unused-function \
    -fsyntax-only "$root/include/assay/random.h"
fi
"$python" "$here/random_inputs.py" "$root" "$assay" --host "${makers[@]}"
