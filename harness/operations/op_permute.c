/* permute and unpermute: token copies grouped by expert, and back. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/operations/op_work.h"
#include "oracle/moe/permute.h"

static assay_status config_of(assay_context *ctx, const assay_case *c, void *to)
{
    const assay_model_config *m = &c->config;
    *(assay_permute_dims *)to = (assay_permute_dims){.tokens = c->batch * c->sequence,
                                                     .experts_per_token = m->num_experts_per_tok,
                                                     .experts = m->num_experts,
                                                     .emb_dim = m->base_emb_dim};
    MUST(assay_require_positive(ctx, "base_emb_dim", m->base_emb_dim));
    MUST(assay_require_positive(ctx, "num_experts", m->num_experts));
    MUST(assay_require_positive(ctx, "num_experts_per_tok", m->num_experts_per_tok));
    if (m->num_experts_per_tok > m->num_experts) {
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_num_experts_per_tok, "at most num_experts, %" PRId64,
                                m->num_experts);
    }
    return ASSAY_OK;
}

static int64_t axis_size(const void *config, char axis)
{
    const assay_permute_dims *d = config;
    if (axis == 'T') return d->tokens;
    if (axis == 'K') return d->experts_per_token;
    if (axis == 'r') return d->tokens * d->experts_per_token;
    if (axis == 'E') return d->experts;
    return d->emb_dim;
}

/* Rows of no choice may hold anything; those of a choice must hold numbers. */
static assay_status check_rows(assay_context *ctx, const assay_work *w, const char *path, const int32_t *order)
{
    const assay_permute_dims *d = w->config;
    const double *rows = assay_f64(w, path);
    const int64_t count = d->tokens * d->experts_per_token * d->emb_dim;
    for (int64_t i = 0; rows != NULL && i < count; i++) {
        if (isfinite(rows[i]) || order[i / d->emb_dim] == ASSAY_NO_EXPERT) continue;
        return assay_refuse(ctx, "%s[%" PRId64 ",%" PRId64 "] is %g, expected a finite number: the row is of a choice",
                            path, i / d->emb_dim, i % d->emb_dim, rows[i]);
    }
    return ASSAY_OK;
}

static void describe_permute(assay_describer *d, const void *config)
{
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    const assay_fill experts = assay_fill_range(ASSAY_EXPERTS, 0.0, (double)(axis_size(config, 'E') - 1));
    assay_describe_variable(d, "inputs/x", one, "TD");
    assay_describe(d, "inputs/selected_experts", ASSAY_INT32, &experts, "TK");
    assay_describe(d, "outputs/group_sizes", ASSAY_INT32, NULL, "E");
    assay_describe(d, "outputs/sorted_selected_experts", ASSAY_INT32, NULL, "r");
    assay_describe_output(d, "sorted_inputs", &one, "rD");
    assay_described(d, 1)->unused_row_axes = 1;
}

/* A candidate's own order, to be judged by, where there is one. */
static assay_status take_order(assay_context *ctx, const assay_work *w, const int32_t *selected, int32_t *order)
{
    static const char path[] = "routing/sorted_selected_experts";
    const assay_permute_dims *d = w->config;
    const int64_t copies = d->tokens * d->experts_per_token;
    OWNED int32_t *given = NULL;
    MUST(assay_read_all_i32(ctx, w->in, path, copies, &given));
    if (given == NULL) return ASSAY_OK;
    MUST(assay_permute_check_order(ctx, path, given, selected, assay_i32(w, "outputs/group_sizes"), d));
    memcpy(order, given, (size_t)copies * sizeof *order);
    return ASSAY_OK;
}

static assay_status permute(assay_context *ctx, const assay_work *w)
{
    const assay_permute_dims *d = w->config;
    const int32_t *selected = assay_i32(w, "inputs/selected_experts");
    int32_t *order = assay_i32(w, "outputs/sorted_selected_experts");
    MUST(assay_permute_order(ctx, order, assay_i32(w, "outputs/group_sizes"), selected, d));
    MUST(take_order(ctx, w, selected, order));
    MUST(check_rows(ctx, w, "cotangents/sorted_inputs", order));
    assay_permute_forward(assay_f64(w, "outputs/sorted_inputs"), assay_f64(w, "inputs/x"), order, d);
    return assay_unpermute_forward(ctx, assay_f64(w, "gradients/inputs/x"), assay_f64(w, "cotangents/sorted_inputs"),
                                   order, NULL, d);
}

static void describe_unpermute(assay_describer *d, const void *config)
{
    const assay_fill one = assay_fill_normal(1.0, 0.0), order = assay_fill_range(ASSAY_PERMUTATION, 0.0, 0.0);
    (void)config;
    assay_describe_variable(d, "inputs/sorted", one, "rD");
    assay_described(d, 2)->unused_row_axes = 1; /* of no choice */
    assay_describe(d, "inputs/sorted_selected_experts", ASSAY_INT32, &order, "r");
    assay_describe_variable(d, "inputs/weights", assay_fill_range(ASSAY_UNIFORM, 0.0, 1.0), "TK");
    assay_describe_output(d, "y", &one, "TD");
}

static assay_status unpermute(assay_context *ctx, const assay_work *w)
{
    const assay_permute_dims *d = w->config;
    const double *sorted = assay_f64(w, "inputs/sorted"), *weights = assay_f64(w, "inputs/weights");
    const int32_t *order = assay_i32(w, "inputs/sorted_selected_experts");
    MUST(check_rows(ctx, w, "inputs/sorted", order));
    MUST(assay_unpermute_forward(ctx, assay_f64(w, "outputs/y"), sorted, order, weights, d));
    return assay_unpermute_backward(ctx, assay_f64(w, "gradients/inputs/sorted"),
                                    assay_f64(w, "gradients/inputs/weights"), assay_f64(w, "cotangents/y"), sorted,
                                    order, weights, d);
}

const assay_operation assay_op_permute = {.name = "permute",
                                          .components = ASSAY_USES_SORT,
                                          .summary = "token copies sorted by expert (stable), with group sizes",
                                          .config_of = config_of,
                                          .axis_size = axis_size,
                                          .describe = describe_permute,
                                          .compute = permute,
                                          .second_form = {.form = quad_permute},
                                          .count = {"rD", 2, 4}};

const assay_operation assay_op_unpermute = {.name = "unpermute",
                                            .components = ASSAY_USES_COMBINE,
                                            .summary = "sorted copies back to tokens, weighted sum over the experts",
                                            .config_of = config_of,
                                            .axis_size = axis_size,
                                            .describe = describe_unpermute,
                                            .compute = unpermute,
                                            .second_form = {.form = quad_unpermute},
                                            .count = {"rD", 2, 4}};
