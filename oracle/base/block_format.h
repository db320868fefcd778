/* Quantised tensors: which codes, and which blocks of them share a scale. Formats are data; one row each.
 *
 * Sources: OCP Microscaling Formats (MX) 1.0, 5.2 (MXFP8, MXFP4: blocks of 32, e8m0); NVIDIA TransformerEngine,
 * custom_recipes/reference_nvfp4.py (NVFP4: blocks of 16 or 16 x 16, e4m3, a float32 scale of the tensor); DeepSeek-V3,
 * arXiv 2412.19437, 3.3.2, and DeepGEMM, utils/math.py (fp8: 1 x 128, 128 x 128, 128 x 1, float32); triton_kernels,
 * numerics_details/mxfp.py (e4m3 scales without one of the tensor). */
#pragma once

#include "oracle/base/dtype.h"

/* As long as any axis is. */
#define ASSAY_WHOLE (INT64_C(1) << 40)

/*    name, element, scale, rows and columns of a block, whether the tensor has a float32 scale too */
#define ASSAY_BLOCK_FORMATS(X)                                                                                         \
    X("mxfp4", ASSAY_FLOAT4_E2M1FN, ASSAY_FLOAT8_E8M0FNU, 1, 32, false)                                                \
    X("mxfp8_e4m3", ASSAY_FLOAT8_E4M3FN, ASSAY_FLOAT8_E8M0FNU, 1, 32, false)                                           \
    X("mxfp8_e5m2", ASSAY_FLOAT8_E5M2, ASSAY_FLOAT8_E8M0FNU, 1, 32, false)                                             \
    X("nvfp4", ASSAY_FLOAT4_E2M1FN, ASSAY_FLOAT8_E4M3FN, 1, 16, true)                                                  \
    X("nvfp4_16x16", ASSAY_FLOAT4_E2M1FN, ASSAY_FLOAT8_E4M3FN, 16, 16, true)                                           \
    X("fp4_e4m3_1x16", ASSAY_FLOAT4_E2M1FN, ASSAY_FLOAT8_E4M3FN, 1, 16, false)                                         \
    X("fp4_1x32", ASSAY_FLOAT4_E2M1FN, ASSAY_FLOAT32, 1, 32, false)                                                    \
    X("fp4_1x128", ASSAY_FLOAT4_E2M1FN, ASSAY_FLOAT32, 1, 128, false)                                                  \
    X("fp8_e4m3_1x128", ASSAY_FLOAT8_E4M3FN, ASSAY_FLOAT32, 1, 128, false)                                             \
    X("fp8_e4m3_128x1", ASSAY_FLOAT8_E4M3FN, ASSAY_FLOAT32, 128, 1, false)                                             \
    X("fp8_e4m3_128x128", ASSAY_FLOAT8_E4M3FN, ASSAY_FLOAT32, 128, 128, false)                                         \
    X("fp8_e5m2_1x128", ASSAY_FLOAT8_E5M2, ASSAY_FLOAT32, 1, 128, false)                                               \
    X("fp8_e5m2_128x128", ASSAY_FLOAT8_E5M2, ASSAY_FLOAT32, 128, 128, false)                                           \
    X("fp8_e4m3_row", ASSAY_FLOAT8_E4M3FN, ASSAY_FLOAT32, 1, ASSAY_WHOLE, false)                                       \
    X("fp8_e4m3_tensor", ASSAY_FLOAT8_E4M3FN, ASSAY_FLOAT32, ASSAY_WHOLE, ASSAY_WHOLE, false)                          \
    X("fp8_e5m2_row", ASSAY_FLOAT8_E5M2, ASSAY_FLOAT32, 1, ASSAY_WHOLE, false)                                         \
    X("fp8_e5m2_tensor", ASSAY_FLOAT8_E5M2, ASSAY_FLOAT32, ASSAY_WHOLE, ASSAY_WHOLE, false)

typedef struct assay_block_format {
    const char *name;
    assay_dtype element, scale;
    int64_t rows, columns; /* of a block; the last ones of a tensor may be cut short */
    bool tensor_scale;
} assay_block_format;

extern const char *const assay_block_format_names[];                /* "" first; ends with NULL */
const assay_block_format *assay_block_format_by_name(const char *); /* NULL when there is none */

/* Blocks along an axis of `size`. */
int64_t assay_block_count(int64_t size, int64_t block);
