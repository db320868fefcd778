#include <stdlib.h>

#include "harness/operations/op_support.h"
#include "oracle/base/memory.h"
#include "oracle/ops/rms_norm.h"
#include "oracle/propagate/propagate_ops.h"
#include "oracle/propagate/scales.h"

static void second_form(quad_tape *t, const void *c)
{
    quad_rms_norm(t, &((const assay_case *)c)->config.normalization_layer_epsilon);
}

static assay_status describe(assay_context *ctx, const assay_case *c, assay_tensor_list *list)
{
    assay_status status;
    int64_t dim = c->config.base_emb_dim;
    assay_dims x = {"BSD", {c->batch, c->sequence, dim}};
    assay_fill one = assay_fill_normal(1.0, 0.0);
    TRY(assay_describe_variable(ctx, list, c, "inputs/x", one, x));
    TRY(assay_describe_variable(ctx, list, c, "weights/scale", assay_fill_normal(0.1, 1.0), (assay_dims){"D", {dim}}));
    TRY(assay_describe_output(ctx, list, c, "y", &one, x));
cleanup:
    return status;
}

static assay_status run(assay_context *ctx, const assay_case *c, const assay_source *in, const assay_sink *out,
                        const assay_precision *precisions, int precision_count)
{
    assay_status status;
    int64_t rows = c->batch * c->sequence, dim = c->config.base_emb_dim, size = rows * dim;
    double *x = NULL, *scale = NULL, *dy = NULL, *y = NULL, *rstd = NULL, *dx = NULL, *dscale = NULL;
    TRY(assay_read_whole(ctx, in, "inputs/x", size, &x));
    TRY(assay_read_whole(ctx, in, "weights/scale", dim, &scale));
    TRY(assay_read_whole(ctx, in, "cotangents/y", size, &dy));
    TRY(assay_alloc_f64(ctx, "rms_norm", size, &y));
    TRY(assay_alloc_f64(ctx, "rms_norm", rows, &rstd));
    TRY(assay_alloc_f64(ctx, "rms_norm", size, &dx));
    TRY(assay_alloc_f64(ctx, "rms_norm", dim, &dscale));
    assay_rms_norm_forward(ctx, y, rstd, x, scale, rows, dim, c->config.normalization_layer_epsilon);
    assay_rms_norm_backward(ctx, dx, dscale, dy, x, scale, rstd, rows, dim);
    TRY(assay_write_result(ctx, out, "outputs/y", size, y));
    TRY(assay_write_result(ctx, out, "gradients/inputs/x", size, dx));
    TRY(assay_write_result(ctx, out, "gradients/weights/scale", dim, dscale));
    for (int i = 0; i < precision_count; i++) {
        /* the results are written: their buffers now take the variances */
        TRY(assay_propagate_rms_norm(ctx, &precisions[i], &(assay_rms_norm_variances){y, dx, dscale},
                                     &(assay_rms_norm_run){dy, x, scale, rstd, rows, dim}));
        TRY(assay_write_scale(ctx, out, &precisions[i], "outputs/y", size, y));
        TRY(assay_write_scale(ctx, out, &precisions[i], "gradients/inputs/x", size, dx));
        TRY(assay_write_scale(ctx, out, &precisions[i], "gradients/weights/scale", dim, dscale));
    }
cleanup:
    free(x);
    free(scale);
    free(dy);
    free(y);
    free(rstd);
    free(dx);
    free(dscale);
    return status;
}

static double flops(const assay_case *c, bool backward)
{
    double size = (double)c->batch * (double)c->sequence * (double)c->config.base_emb_dim;
    return (backward ? 6.0 : 2.0) * size;
}

static int64_t memory(const assay_case *c)
{
    return 8 *
           (4 * c->batch * c->sequence * c->config.base_emb_dim + c->batch * c->sequence + 2 * c->config.base_emb_dim);
}

const assay_operation assay_op_rms_norm = {.name = "rms_norm",
                                           .parts = ASSAY_PART_NORM,
                                           .summary = "RMS normalisation over the last axis",
                                           .check = assay_check_norm,
                                           .describe = describe,
                                           .run = run,
                                           .second_form = {.form = second_form},
                                           .flops = flops,
                                           .memory = memory};
