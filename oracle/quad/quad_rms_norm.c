#include <quadmath.h>

#include "oracle/quad/quad_internal.h"

void quad_rms_norm_rows(int64_t rows, int64_t dim, double epsilon, const quad *x, int64_t ld,
                        const quad *scale, quad *y)
{
    for (int64_t row = 0; row < rows; row++) {
        const quad *v = x + row * ld;
        quad squares = 0;
        for (int64_t d = 0; d < dim; d++) squares += v[d] * v[d];
        quad root = sqrtq(squares / dim + epsilon);
        for (int64_t d = 0; d < dim; d++) y[row * dim + d] = v[d] / root * scale[d];
    }
}

assay_status quad_rms_norm(assay_context *ctx, double epsilon, const quad_tensors *in, quad_tensors *out)
{
    assay_status status = ASSAY_OK;
    const quad_tensor *x = NULL;
    const quad *scale = NULL;
    quad *y = NULL;
    int64_t rows = 0, dim = 0;
    TRY(quad_read_rows(ctx, in, "inputs/x", &x, &rows, &dim));
    TRY(quad_read(ctx, in, "weights/scale", dim, &scale));
    TRY(quad_tensors_add(ctx, out, "outputs/y", &x->shape, &y));
    quad_rms_norm_rows(rows, dim, epsilon, x->values, dim, scale, y);
cleanup:
    return status;
}
