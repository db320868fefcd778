#include <stdlib.h>

#include "harness/operations/op_work.h"
#include "oracle/base/memory.h"
#include "oracle/ops/rms_norm.h"
#include "oracle/propagate/propagate_ops.h"

static void describe(assay_describer *d, const void *config)
{
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    (void)config;
    assay_describe_variable(d, "inputs/x", one, "BSD");
    assay_describe_variable(d, "weights/scale", assay_fill_normal(0.1, 1.0), "D");
    assay_describe_output(d, "y", &one, "BSD");
}

/* rstd is to be freed. */
static assay_status start(assay_context *ctx, const assay_work *w, double *y, double **rstd, assay_rms_norm_run *r)
{
    const assay_norm_config *config = w->config;
    *r = (assay_rms_norm_run){.dy = assay_f64(w, "cotangents/y"),
                              .x = assay_f64(w, "inputs/x"),
                              .scale = assay_f64(w, "weights/scale"),
                              .rows = config->batch * config->sequence,
                              .dim = config->dim};
    MUST(assay_alloc_f64(ctx, "rms_norm", r->rows, rstd));
    assay_rms_norm_forward(ctx, y, *rstd, r->x, r->scale, r->rows, r->dim, config->epsilon);
    r->rstd = *rstd;
    return ASSAY_OK;
}

static assay_status compute(assay_context *ctx, const assay_work *w)
{
    assay_rms_norm_run r;
    OWNED double *rstd = NULL;
    MUST(start(ctx, w, assay_f64(w, "outputs/y"), &rstd, &r));
    assay_rms_norm_backward(ctx, assay_f64(w, "gradients/inputs/x"), assay_f64(w, "gradients/weights/scale"), r.dy, r.x,
                            r.scale, rstd, r.rows, r.dim);
    return ASSAY_OK;
}

static assay_status scales(assay_context *ctx, const assay_work *w, const assay_precision *precision)
{
    assay_rms_norm_run r;
    OWNED double *rstd = NULL;
    const assay_rms_norm_variances v = {.y = assay_variance(w, "outputs/y"),
                                        .dx = assay_variance(w, "gradients/inputs/x"),
                                        .dscale = assay_variance(w, "gradients/weights/scale")};
    MUST(start(ctx, w, NULL, &rstd, &r));
    return assay_propagate_rms_norm(ctx, precision, &v, &r);
}

const assay_operation assay_op_rms_norm = {.name = "rms_norm",
                                           .parts = ASSAY_PART_NORM,
                                           .summary = "RMS normalisation over the last axis",
                                           .config_of = assay_norm_config_of,
                                           .axis_size = assay_norm_axis_size,
                                           .describe = describe,
                                           .forward = compute,
                                           .scales = scales,
                                           .second_form = {.form = quad_rms_norm},
                                           .count = {"BSD", 2, 6}};
