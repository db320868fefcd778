#include <stdlib.h>

#include "harness/operations/op_work.h"
#include "oracle/base/memory.h"
#include "oracle/ops/rms_norm.h"

static void describe(assay_describer *d, const void *config)
{
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    (void)config;
    assay_describe_variable(d, "inputs/x", one, "BSD");
    assay_describe_variable(d, "weights/scale", assay_fill_normal(0.1, 1.0), "D");
    assay_describe_output(d, "y", &one, "BSD");
}

static assay_status compute(assay_context *ctx, const assay_work *w)
{
    const assay_norm_config *config = w->config;
    const int64_t rows = config->batch * config->sequence, dim = config->dim;
    const double *x = assay_f64(w, "inputs/x"), *scale = assay_f64(w, "weights/scale");
    OWNED double *rstd = NULL;
    MUST(assay_alloc_f64(ctx, "rms_norm", rows, &rstd));
    assay_rms_norm_forward(ctx, assay_f64(w, "outputs/y"), rstd, x, scale, rows, dim, config->epsilon);
    assay_rms_norm_backward(ctx, assay_f64(w, "gradients/inputs/x"), assay_f64(w, "gradients/weights/scale"),
                            assay_f64(w, "cotangents/y"), x, scale, rstd, rows, dim);
    return ASSAY_OK;
}

const assay_operation assay_op_rms_norm = {.name = "rms_norm",
                                           .parts = ASSAY_PART_NORM,
                                           .summary = "RMS normalisation over the last axis",
                                           .config_of = assay_norm_config_of,
                                           .axis_size = assay_norm_axis_size,
                                           .describe = describe,
                                           .forward = compute,
                                           .second_form = {.form = quad_rms_norm},
                                           .count = {"BSD", 2, 6}};
