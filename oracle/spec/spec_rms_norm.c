#include <quadmath.h>

#include "oracle/spec/spec_internal.h"

void spec_rms_norm_rows(int64_t rows, int64_t dim, double epsilon, const spec_quad *x, int64_t ld,
                        const spec_quad *scale, spec_quad *y)
{
    for (int64_t row = 0; row < rows; row++) {
        const spec_quad *v = x + row * ld;
        spec_quad squares = 0;
        for (int64_t d = 0; d < dim; d++) squares += v[d] * v[d];
        spec_quad root = sqrtq(squares / dim + epsilon);
        for (int64_t d = 0; d < dim; d++) y[row * dim + d] = v[d] / root * scale[d];
    }
}

assay_status spec_rms_norm(assay_context *ctx, double epsilon, const spec_tensors *in, spec_tensors *out)
{
    assay_status status = ASSAY_OK;
    const spec_tensor *x = NULL;
    const spec_quad *scale = NULL;
    spec_quad *y = NULL;
    int64_t rows = 0, dim = 0;
    TRY(spec_read_rows(ctx, in, "inputs/x", &x, &rows, &dim));
    TRY(spec_read(ctx, in, "weights/scale", dim, &scale));
    TRY(spec_tensors_add(ctx, out, "outputs/y", &x->shape, &y));
    spec_rms_norm_rows(rows, dim, epsilon, x->values, dim, scale, y);
cleanup:
    return status;
}
