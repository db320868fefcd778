#!/usr/bin/env bash
# The OpenCL backend, built as docs/your-kernel.md says: right on a few cases of each operation, its wrong forms rejected; inputs made on the
# device bit for bit. Without OpenCL: status 77. usage: opencl_backend.sh PROGRAM PYTHON
set -euo pipefail
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 # PoCL and its compiler keep memory
assay=$1 python=$2
here=$(cd "$(dirname "$0")" && pwd)
echo '#include <CL/cl.h>' | "${CC:-cc}" -E - >/dev/null 2>&1 && compgen -G '/etc/OpenCL/vendors/*.icd' >/dev/null ||
  { echo "skipped: OpenCL is not installed: ci/setup backends opencl"; exit 77; }
export POCL_CACHE_DIR=$PWD/pocl_cache # the compiler's results, beside the build
mkdir -p "$POCL_CACHE_DIR"
. "$here/../../../tests/cli_test.sh"

"$here/../build" "$work" -Wall -Wextra -Werror
backend=$work/libassay_opencl.so
cases=(rms_norm/deepseek gmm/primes gmm/contiguous-nan mlp/gpt-oss-clamp attention/window-segments attention/sinks permute/no-expert
  unpermute/one-token routing/deepseek3-groups moe/deepseek3-tiny-sparse)
expect 0 run "${cases[@]}" --set profiles=bf16 --precision bf16 --backend "$backend" --quiet
prints "^10 cases: 10 passed, "
ASSAY_OPENCL_STORAGE=float32 expect 0 run "${cases[@]:0:6}" --set profiles=f32 --precision f32 --backend "$backend" --quiet
prints "^6 cases: 6 passed, "
expect 3 run moe/mesh-expert2 moe/given-choice mla/small --backend "$backend" --quiet
prints "^UNSUPPORTED *moe/mesh-expert2 *mesh.expert"
prints "^UNSUPPORTED *mla/small *op mla"

# wrong forms, by a flag of the compiler
ASSAY_OPENCL_FLAGS=-DTAIL_DROPPED expect 1 run gmm/primes --backend "$backend" --quiet
prints "^FAIL *gmm/primes *outputs/y: "
ASSAY_OPENCL_FLAGS="-DWITHOUT_READ_BARRIER -DWITHOUT_WRITE_BARRIER" expect 1 run gmm/primes --backend "$backend" --quiet
prints "^FAIL *gmm/primes "
# coarser functions are no error in bfloat16
ASSAY_OPENCL_FLAGS=-cl-fast-relaxed-math expect 0 run mlp/large-activations --set profiles=bf16 --precision bf16 --backend "$backend" --quiet

# what a user gets wrong
ASSAY_OPENCL_FLAGS=-DLANES=none expect 1 run gmm/primes --backend "$backend" --quiet
prints "the kernels do not compile .*error: .*undeclared identifier"
ASSAY_OPENCL_DEVICE=99 expect 1 run gmm/primes --backend "$backend" --quiet
prints "ASSAY_OPENCL_DEVICE is 99, expected a number below 1"
ASSAY_OPENCL_PLATFORM=nobody expect 1 run gmm/primes --backend "$backend" --quiet
prints "no platform has nobody in its name"
ASSAY_OPENCL_STORAGE=bfloat16 expect 3 run attention/float32 --backend "$backend" --quiet
prints "^UNSUPPORTED *attention/float32 *ASSAY_OPENCL_STORAGE"

"$python" "$here/../../../tests/random_inputs.py" "$here/../../../.." "$assay" --device "$work/random_inputs" || complain "inputs made on the device"
echo "inputs/x 1 bfloat16 8 8 experts 0 1 0 0 $work/x" | "$work/random_inputs" 2>"$work/err" && complain "a distribution without a kernel"
grep -q "inputs/x: no kernel for experts of bfloat16" "$work/err" || complain "$(cat "$work/err")"
echo "$checks calls"
