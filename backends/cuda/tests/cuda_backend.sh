#!/usr/bin/env bash
# The CUDA backends, built as docs/your-kernel.md says. Their tiles walked on the processor are right, and inputs are drawn bit for bit; on the device too,
# where there is one, and where there is none it says so. Without nvcc: status 77. usage: cuda_backend.sh PROGRAM PYTHON
set -euo pipefail
assay=$1 python=$2
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../../..
command -v nvcc >/dev/null || { echo "skipped: no nvcc"; exit 77; }
. "$root/harness/tests/cli_test.sh"
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}protect_shadow_gap=0:detect_leaks=0 # the driver's mappings, and what it keeps

# build SOURCE NAME OPTION...
build() {
  local source=$1 name=$2
  shift 2
  nvcc -O3 -arch=sm_90 -fmad=false -Werror all-warnings -Xcompiler -Wall,-Wextra,-Wno-unused-function -I "$root/include" "$here/../$source" \
    -o "$work/$name" "$@"
}
for source in gmm decode; do
  build $source.cu lib${source}_cuda.so -shared -Xcompiler -fPIC
  build $source.cu lib${source}_host.so -shared -Xcompiler -fPIC -DON_HOST
done
build gmm.cu draw
build gmm.cu draw_on_host -DON_HOST
build gmm.cu gmm.ptx -ptx
grep -q 'wmma\.mma\.sync.*bf16' "$work/gmm.ptx" || complain "no product on tensor cores"

# cases of primes, exact sums, NaN that no tile may read, more groups than rows; of other operations and types none
cases=(gmm/primes gmm/ragged gmm/exact-padded gmm/padded-nan-tail gmm/rows-7-8-9 gmm/k384-n640)
expect 0 run "${cases[@]}" --set profiles=bf16 --precision bf16 --backend "$work/libgmm_host.so" --quiet
prints "^6 cases: 6 passed, "
expect 3 run mlp/silu gmm/float32-grid gmm/recipe-fp8-full --backend "$work/libgmm_host.so" --quiet
prints "^UNSUPPORTED *gmm/recipe-fp8-full *no quantisation"
expect 0 run 'mla_decode/*' 'gqa_decode/*' --exclude true-size,naive --set profiles=bf16 --precision bf16 --backend "$work/libdecode_host.so" --quiet
prints "cases: [4-9][0-9] passed, 0 failed"
expect 3 run mla_decode/naive merge_states/two --backend "$work/libdecode_host.so" --quiet
prints "^UNSUPPORTED *mla_decode/naive *only mla_decode, absorbed"
"$python" "$root/harness/tests/random_inputs.py" "$root" "$assay" --device "$work/draw_on_host" || complain "inputs drawn on the processor"

if echo "inputs/x 1 float32 8 8 bell 0 1 0 0 $work/x" | "$work/draw" 2>"$work/no_device"; then
  expect 0 run 'gmm/*' --no-mesh --set profiles=bf16 --precision bf16 --backend "$work/libgmm_cuda.so" --quiet
  expect 0 run 'mla_decode/*' 'gqa_decode/*' --exclude naive --set profiles=bf16 --precision bf16 --backend "$work/libdecode_cuda.so" --quiet
  "$python" "$root/harness/tests/random_inputs.py" "$root" "$assay" --device "$work/draw" || complain "inputs drawn on the device"
else
  expect 3 run mla_decode/small --backend "$work/libdecode_cuda.so" --quiet
  expect 3 run gmm/primes --backend "$work/libgmm_cuda.so" --quiet
  prints "^UNSUPPORTED *gmm/primes *[A-Za-z]"
  echo "no device: the kernels were compiled and not run ($(cat "$work/no_device"))"
fi
echo "$checks calls"
