#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "harness/operations/op_support.h"
#include "oracle/base/memory.h"
#include "oracle/ops/gmm.h"
#include "oracle/propagate/propagate_ops.h"
#include "oracle/propagate/scales.h"

static assay_gmm_dims dims_of(const assay_case *c)
{
    const assay_model_config *m = &c->config;
    return (assay_gmm_dims){.m = c->batch * c->sequence * (m->num_experts_per_tok > 0 ? m->num_experts_per_tok : 1),
                            .k = m->base_emb_dim,
                            .n = m->base_moe_mlp_dim,
                            .groups = m->num_experts};
}

static assay_status check(assay_context *ctx, const assay_case *c)
{
    assay_status status;
    TRY(assay_require_positive(ctx, "base_emb_dim", c->config.base_emb_dim));
    TRY(assay_require_positive(ctx, "base_moe_mlp_dim", c->config.base_moe_mlp_dim));
    TRY(assay_require_positive(ctx, "num_experts", c->config.num_experts));
cleanup:
    return status;
}

static assay_status second_form(assay_context *ctx, const void *c, const spec_tensors *in, spec_tensors *out)
{
    const assay_gmm_dims d = dims_of(c);
    return spec_gmm(ctx, &d, in, out);
}

static assay_status describe(assay_context *ctx, const assay_case *c, assay_tensor_list *list)
{
    assay_status status;
    assay_gmm_dims d = dims_of(c);
    assay_fill one = assay_fill_normal(1.0, 0.0);
    assay_fill sizes = assay_fill_range(ASSAY_GROUP_SIZES, 0.0, (double)d.m);
    TRY(assay_describe_variable(ctx, list, c, "inputs/lhs", one, (assay_dims){"Mk", {d.m, d.k}}));
    list->entries[list->count - 2].unused_row_axes = 1;
    TRY(assay_describe(ctx, list, "inputs/group_sizes", ASSAY_INT32, &sizes, (assay_dims){"G", {d.groups}}));
    TRY(assay_describe_variable(ctx, list, c, "weights/rhs", assay_fill_fan_in(d.k),
                                (assay_dims){"GkN", {d.groups, d.k, d.n}}));
    TRY(assay_describe_output(ctx, list, c, "y", &one, (assay_dims){"MN", {d.m, d.n}}));
    list->entries[list->count - 1].unused_row_axes = 1;
cleanup:
    return status;
}

/* Rows of no group may hold anything; those of a group must hold numbers. */
static assay_status check_rows(assay_context *ctx, const char *path, const double *x, int64_t width,
                               const int32_t *group_sizes, const assay_gmm_dims *d)
{
    int64_t used = 0;
    for (int64_t g = 0; g < d->groups; g++) used += group_sizes[g];
    for (int64_t i = 0; used <= d->m && i < used * width; i++) { /* more than there are: refused by the operation */
        if (isfinite(x[i])) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "%s[%" PRId64 ",%" PRId64 "] is %g, expected a finite number: the row belongs to a group",
                          path, i / width, i % width, x[i]);
    }
    return ASSAY_OK;
}

static assay_status run(assay_context *ctx, const assay_case *c, const assay_source *in, const assay_sink *out,
                        const assay_precision *precisions, int precision_count)
{
    assay_status status;
    assay_gmm_dims d = dims_of(c);
    int64_t lhs_size = d.m * d.k, rhs_size = d.groups * d.k * d.n, y_size = d.m * d.n;
    double *lhs = NULL, *rhs = NULL, *dy = NULL, *y = NULL, *dlhs = NULL, *drhs = NULL;
    int32_t *group_sizes = NULL;
    TRY(assay_read_whole(ctx, in, "inputs/lhs", lhs_size, &lhs));
    TRY(assay_read_whole_i32(ctx, in, "inputs/group_sizes", d.groups, &group_sizes));
    TRY(assay_read_whole(ctx, in, "weights/rhs", rhs_size, &rhs));
    TRY(assay_read_whole(ctx, in, "cotangents/y", y_size, &dy));
    TRY(check_rows(ctx, "inputs/lhs", lhs, d.k, group_sizes, &d));
    TRY(check_rows(ctx, "cotangents/y", dy, d.n, group_sizes, &d));
    TRY(assay_alloc_f64(ctx, "gmm", y_size, &y));
    TRY(assay_alloc_f64(ctx, "gmm", lhs_size, &dlhs));
    TRY(assay_alloc_f64(ctx, "gmm", rhs_size, &drhs));
    TRY(assay_gmm_forward(ctx, y, lhs, rhs, group_sizes, &d));
    TRY(assay_gmm_backward(ctx, dlhs, drhs, dy, lhs, rhs, group_sizes, &d));
    TRY(assay_write_result(ctx, out, "outputs/y", y_size, y));
    TRY(assay_write_result(ctx, out, "gradients/inputs/lhs", lhs_size, dlhs));
    TRY(assay_write_result(ctx, out, "gradients/weights/rhs", rhs_size, drhs));
    for (int i = 0; i < precision_count; i++) {
        TRY(assay_propagate_gmm(ctx, &precisions[i], &(assay_gmm_variances){y, dlhs, drhs},
                                &(assay_gmm_run){dy, lhs, rhs, group_sizes, d}));
        TRY(assay_write_scale(ctx, out, &precisions[i], "outputs/y", y_size, y));
        TRY(assay_write_scale(ctx, out, &precisions[i], "gradients/inputs/lhs", lhs_size, dlhs));
        TRY(assay_write_scale(ctx, out, &precisions[i], "gradients/weights/rhs", rhs_size, drhs));
    }
cleanup:
    free(lhs);
    free(rhs);
    free(dy);
    free(y);
    free(dlhs);
    free(drhs);
    free(group_sizes);
    return status;
}

static double flops(const assay_case *c, bool backward)
{
    assay_gmm_dims d = dims_of(c);
    return (backward ? 6.0 : 2.0) * (double)d.m * (double)d.k * (double)d.n;
}

static int64_t memory(const assay_case *c)
{
    assay_gmm_dims d = dims_of(c);
    /* results and operands; the error scale of one group's product holds its operands again */
    return 8 * (3 * d.m * d.k + 3 * d.groups * d.k * d.n + 3 * d.m * d.n + d.k * d.n);
}

const assay_operation assay_op_gmm = {.name = "gmm",
                                      .parts = ASSAY_PART_GROUPS,
                                      .summary = "grouped matrix product: the rows of each group times its own matrix",
                                      .check = check,
                                      .describe = describe,
                                      .run = run,
                                      .one_product = true,
                                      .second_form = {.evaluate = second_form},
                                      .flops = flops,
                                      .memory = memory};
