#include "oracle/base/dtype_loops.inc"

const assay_dtype_kernels assay_dtype_avx512 = {round_loop, encode_loop, decode_loop, decode_past_loop};
