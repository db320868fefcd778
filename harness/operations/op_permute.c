/* permute and unpermute: token copies grouped by expert, and back. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/operations/op_support.h"
#include "oracle/base/memory.h"
#include "oracle/moe/permute.h"
#include "oracle/propagate/propagate_ops.h"
#include "oracle/propagate/scales.h"

static assay_permute_dims dims_of(const assay_case *c)
{
    return (assay_permute_dims){.tokens = c->batch * c->sequence,
                                .experts_per_token = c->config.num_experts_per_tok,
                                .experts = c->config.num_experts,
                                .emb_dim = c->config.base_emb_dim};
}

static assay_status check(assay_context *ctx, const assay_case *c)
{
    assay_status status;
    TRY(assay_require_positive(ctx, "base_emb_dim", c->config.base_emb_dim));
    TRY(assay_require_positive(ctx, "num_experts", c->config.num_experts));
    TRY(assay_require_positive(ctx, "num_experts_per_tok", c->config.num_experts_per_tok));
    if (c->config.num_experts_per_tok > c->config.num_experts) {
        status = assay_fail(ctx, ASSAY_BAD_INPUT, "num_experts_per_tok is %lld, expected at most num_experts, %lld",
                            (long long)c->config.num_experts_per_tok, (long long)c->config.num_experts);
    }
cleanup:
    return status;
}

static void second_permute(quad_tape *t, const void *c)
{
    const assay_permute_dims d = dims_of(c);
    quad_permute(t, &d);
}

static void second_unpermute(quad_tape *t, const void *c)
{
    const assay_permute_dims d = dims_of(c);
    quad_unpermute(t, &d);
}

static double moved_flops(const assay_case *c, bool backward)
{
    assay_permute_dims d = dims_of(c);
    return (backward ? 4.0 : 2.0) * (double)(d.tokens * d.experts_per_token) * (double)d.emb_dim;
}

static int64_t memory(const assay_case *c)
{
    assay_permute_dims d = dims_of(c);
    return 8 * (4 * d.tokens * d.experts_per_token * (d.emb_dim + 1) + 4 * d.tokens * d.emb_dim + 2 * d.experts);
}

/* Rows of no choice may hold anything; those of a choice must hold numbers. */
static assay_status check_rows(assay_context *ctx, const char *path, const double *rows, const int32_t *order,
                               const assay_permute_dims *d)
{
    const int64_t count = d->tokens * d->experts_per_token * d->emb_dim;
    for (int64_t i = 0; rows != NULL && i < count; i++) {
        if (isfinite(rows[i]) || order[i / d->emb_dim] == ASSAY_NO_EXPERT) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "%s[%" PRId64 ",%" PRId64 "] is %g, expected a finite number: the row is of a choice", path,
                          i / d->emb_dim, i % d->emb_dim, rows[i]);
    }
    return ASSAY_OK;
}

static assay_status describe_permute(assay_context *ctx, const assay_case *c, assay_tensor_list *list)
{
    assay_status status;
    assay_permute_dims d = dims_of(c);
    int64_t copies = d.tokens * d.experts_per_token;
    assay_fill one = assay_fill_normal(1.0, 0.0);
    assay_fill experts = assay_fill_range(ASSAY_EXPERTS, 0.0, (double)(d.experts - 1));
    TRY(assay_describe_variable(ctx, list, c, "inputs/x", one, (assay_dims){"TD", {d.tokens, d.emb_dim}}));
    TRY(assay_describe(ctx, list, "inputs/selected_experts", ASSAY_INT32, &experts,
                       (assay_dims){"TK", {d.tokens, d.experts_per_token}}));
    TRY(assay_describe(ctx, list, "outputs/group_sizes", ASSAY_INT32, NULL, (assay_dims){"E", {d.experts}}));
    TRY(assay_describe(ctx, list, "outputs/sorted_selected_experts", ASSAY_INT32, NULL, (assay_dims){"r", {copies}}));
    TRY(assay_describe_output(ctx, list, c, "sorted_inputs", &one, (assay_dims){"rD", {copies, d.emb_dim}}));
    list->entries[list->count - 1].unused_row_axes = 1;
cleanup:
    return status;
}

static assay_status run_permute(assay_context *ctx, const assay_case *c, const assay_source *in, const assay_sink *out,
                                const assay_precision *precisions, int precision_count)
{
    assay_status status;
    assay_permute_dims d = dims_of(c);
    int64_t copies = d.tokens * d.experts_per_token, size = d.tokens * d.emb_dim, sorted_size = copies * d.emb_dim;
    double *x = NULL, *dy = NULL, *sorted = NULL, *dx = NULL;
    int32_t *selected = NULL, *order = NULL, *group_sizes = NULL, *given = NULL;
    TRY(assay_read_whole(ctx, in, "inputs/x", size, &x));
    TRY(assay_read_whole_i32(ctx, in, "inputs/selected_experts", copies, &selected));
    TRY(assay_read_whole(ctx, in, "cotangents/sorted_inputs", sorted_size, &dy));
    TRY(assay_alloc_f64(ctx, "permute", sorted_size, &sorted));
    TRY(assay_alloc_f64(ctx, "permute", size, &dx));
    TRY(assay_alloc_i32(ctx, "permute", copies, &order));
    TRY(assay_alloc_i32(ctx, "permute", d.experts, &group_sizes));
    TRY(assay_permute_order(ctx, order, group_sizes, selected, &d));
    TRY(assay_read_whole_i32(ctx, in, "routing/sorted_selected_experts", copies, &given));
    if (given != NULL) { /* a candidate's own order, to be judged by */
        TRY(assay_permute_check_order(ctx, "routing/sorted_selected_experts", given, selected, group_sizes, &d));
        memcpy(order, given, (size_t)copies * sizeof *order);
    }
    TRY(check_rows(ctx, "cotangents/sorted_inputs", dy, order, &d));
    assay_permute_forward(sorted, x, order, &d);
    TRY(assay_permute_backward(ctx, dx, dy, order, &d));
    TRY(assay_write_result(ctx, out, "outputs/sorted_inputs", sorted_size, sorted));
    TRY(assay_write_result_i32(ctx, out, "outputs/sorted_selected_experts", copies, order));
    TRY(assay_write_result_i32(ctx, out, "outputs/group_sizes", d.experts, group_sizes));
    TRY(assay_write_result(ctx, out, "gradients/inputs/x", size, dx));
    for (int i = 0; i < precision_count; i++) {
        for (int64_t j = 0; j < sorted_size; j++) sorted[j] = 0.0; /* copies are exact */
        TRY(assay_propagate_unpermute(ctx, &precisions[i], &(assay_unpermute_variances){.y = dx},
                                      &(assay_unpermute_run){.sorted = dy, .order = order, .dims = d}));
        TRY(assay_write_scale(ctx, out, &precisions[i], "outputs/sorted_inputs", sorted_size, sorted));
        TRY(assay_write_scale(ctx, out, &precisions[i], "gradients/inputs/x", size, dx));
    }
cleanup:
    free(x);
    free(dy);
    free(sorted);
    free(dx);
    free(selected);
    free(order);
    free(group_sizes);
    free(given);
    return status;
}

static assay_status describe_unpermute(assay_context *ctx, const assay_case *c, assay_tensor_list *list)
{
    assay_status status;
    assay_permute_dims d = dims_of(c);
    int64_t copies = d.tokens * d.experts_per_token;
    assay_fill one = assay_fill_normal(1.0, 0.0);
    assay_fill order = assay_fill_range(ASSAY_PERMUTATION, 0.0, 0.0);
    TRY(assay_describe_variable(ctx, list, c, "inputs/sorted", one, (assay_dims){"rD", {copies, d.emb_dim}}));
    list->entries[list->count - 2].unused_row_axes = 1; /* of no choice */
    TRY(assay_describe(ctx, list, "inputs/sorted_selected_experts", ASSAY_INT32, &order, (assay_dims){"r", {copies}}));
    TRY(assay_describe_variable(ctx, list, c, "inputs/weights", assay_fill_range(ASSAY_UNIFORM, 0.0, 1.0),
                                (assay_dims){"TK", {d.tokens, d.experts_per_token}}));
    TRY(assay_describe_output(ctx, list, c, "y", &one, (assay_dims){"TD", {d.tokens, d.emb_dim}}));
cleanup:
    return status;
}

static assay_status run_unpermute(assay_context *ctx, const assay_case *c, const assay_source *in,
                                  const assay_sink *out, const assay_precision *precisions, int precision_count)
{
    assay_status status;
    assay_permute_dims d = dims_of(c);
    int64_t copies = d.tokens * d.experts_per_token, size = d.tokens * d.emb_dim, sorted_size = copies * d.emb_dim;
    double *sorted = NULL, *weights = NULL, *dy = NULL, *y = NULL, *d_sorted = NULL, *d_weights = NULL;
    int32_t *order = NULL;
    TRY(assay_read_whole(ctx, in, "inputs/sorted", sorted_size, &sorted));
    TRY(assay_read_whole_i32(ctx, in, "inputs/sorted_selected_experts", copies, &order));
    TRY(assay_read_whole(ctx, in, "inputs/weights", copies, &weights));
    TRY(assay_read_whole(ctx, in, "cotangents/y", size, &dy));
    TRY(assay_alloc_f64(ctx, "unpermute", size, &y));
    TRY(assay_alloc_f64(ctx, "unpermute", sorted_size, &d_sorted));
    TRY(assay_alloc_f64(ctx, "unpermute", copies, &d_weights));
    TRY(check_rows(ctx, "inputs/sorted", sorted, order, &d));
    TRY(assay_unpermute_forward(ctx, y, sorted, order, weights, &d));
    TRY(assay_unpermute_backward(ctx, d_sorted, d_weights, dy, sorted, order, weights, &d));
    TRY(assay_write_result(ctx, out, "outputs/y", size, y));
    TRY(assay_write_result(ctx, out, "gradients/inputs/sorted", sorted_size, d_sorted));
    TRY(assay_write_result(ctx, out, "gradients/inputs/weights", copies, d_weights));
    for (int i = 0; i < precision_count; i++) {
        TRY(assay_propagate_unpermute(ctx, &precisions[i], &(assay_unpermute_variances){y, d_sorted, d_weights},
                                      &(assay_unpermute_run){dy, sorted, weights, order, d}));
        TRY(assay_write_scale(ctx, out, &precisions[i], "outputs/y", size, y));
        TRY(assay_write_scale(ctx, out, &precisions[i], "gradients/inputs/sorted", sorted_size, d_sorted));
        TRY(assay_write_scale(ctx, out, &precisions[i], "gradients/inputs/weights", copies, d_weights));
    }
cleanup:
    free(sorted);
    free(weights);
    free(dy);
    free(y);
    free(d_sorted);
    free(d_weights);
    free(order);
    return status;
}

const assay_operation assay_op_permute = {.name = "permute",
                                          .parts = ASSAY_PART_SORT,
                                          .summary = "token copies sorted by expert (stable), with group sizes",
                                          .check = check,
                                          .describe = describe_permute,
                                          .run = run_permute,
                                          .second_form = {.form = second_permute},
                                          .flops = moved_flops,
                                          .memory = memory};

const assay_operation assay_op_unpermute = {.name = "unpermute",
                                            .parts = ASSAY_PART_COMBINE,
                                            .summary = "sorted copies back to tokens, weighted sum over the experts",
                                            .check = check,
                                            .describe = describe_unpermute,
                                            .run = run_unpermute,
                                            .second_form = {.form = second_unpermute},
                                            .flops = moved_flops,
                                            .memory = memory};
