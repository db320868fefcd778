#include "oracle/arithmetic/matmul_float32.h"

#include "oracle/arithmetic/matmul_packed.h"

/* By assay_isa. */
static const assay_matmul_kernels *const kernels_of_isa[] = {
    &assay_matmul_kernels_float32_scalar,
#ifdef __x86_64__
    &assay_matmul_kernels_float32_avx2,
    &assay_matmul_kernels_float32_avx512,
#endif
};

assay_status assay_matmul_float32(assay_context *ctx, const assay_matmul_args *args, const assay_chains *chains)
{
    if (args->m == 0 || args->n == 0) return ASSAY_OK;
    return assay_matmul_packed(ctx, args, kernels_of_isa[ctx->isa], chains, assay_matmul_threads(ctx, args));
}
