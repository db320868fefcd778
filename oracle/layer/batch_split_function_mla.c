/* The attention half's functions as rows of the table call them: slots to arguments, shard after shard. */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/layer/batch_split_function_internal.h"
#include "oracle/ops/gmm.h"
#include "oracle/ops/rms_norm.h"

/* --- norm and rotation --- */

static int64_t tokens_of(const bs_call *c)
{
    return c->run.sizes.shards * c->run.sizes.tokens;
}

assay_status bs_call_rms_norm(assay_context *ctx, bs_call *c)
{
    double *rstd = NULL;
    const assay_status status = assay_alloc_f64(ctx, "rstd", tokens_of(c), &rstd);
    if (status != ASSAY_OK) return status;
    assay_rms_norm_forward(ctx, c->out[0].values, rstd, c->in[0].values, c->w.values[BS_PRE_NORM], tokens_of(c),
                           c->run.mla.emb_dim, c->config->stack.epsilon);
    free(rstd);
    return ASSAY_OK;
}

assay_status bs_call_rms_norm_bwd(assay_context *ctx, bs_call *c)
{
    assay_status status;
    const int64_t tokens = c->run.sizes.tokens, dim = c->run.mla.emb_dim;
    double *rstd = NULL;
    TRY(assay_alloc_f64(ctx, "rstd", tokens_of(c), &rstd));
    for (int64_t shard = 0; shard < c->run.sizes.shards; shard++) {
        const int64_t first = shard * tokens * dim;
        const double *scale = bs_weight_of(&c->run, &c->w, BS_PRE_NORM, shard);
        assay_rms_norm_forward(ctx, NULL, rstd, c->in[0].values + first, scale, tokens, dim, c->config->stack.epsilon);
        assay_rms_norm_backward(ctx, c->out[0].values + first, bs_weight_of(&c->run, &c->g, BS_PRE_NORM, shard),
                                c->in[1].values + first, c->in[0].values + first, scale, rstd, tokens, dim);
    }
cleanup:
    free(rstd);
    return status;
}

/* mask [Dr,Dr]: x mask has the two numbers of each pair swapped, and the first of them negated. */
assay_status bs_call_initialize_yarn_mask(assay_context *ctx, bs_call *c)
{
    const int64_t dims = c->run.mla.rope.dim;
    double *mask = c->out[0].values;
    (void)ctx;
    memset(mask, 0, (size_t)(dims * dims) * sizeof *mask);
    for (int64_t first = 0; first < dims; first += 2) {
        mask[first * dims + first + 1] = 1;
        mask[(first + 1) * dims + first] = -1;
    }
    return ASSAY_OK;
}

/* Whole turns stay: the module multiplies positions by frequencies. */
assay_status bs_call_initialize_yarn_freqs(assay_context *ctx, bs_call *c)
{
    assay_status status;
    const assay_rope_config *rope = &c->run.mla.rope;
    const int64_t half = rope->dim / 2, tokens = tokens_of(c);
    double *frequencies = NULL;
    TRY(assay_rope_check_positions(ctx, c->in[0].indices, tokens, rope));
    TRY(assay_alloc_f64(ctx, "frequencies", half, &frequencies));
    assay_rope_frequencies(frequencies, rope);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, half, frequencies);
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t i = 0; i < rope->dim; i++)
            c->out[0].values[t * rope->dim + i] = c->in[0].indices[t] * frequencies[i / 2];
    }
cleanup:
    free(frequencies);
    return status;
}

/* Of a pair's two equal angles one: [tokens,Dr/2]. */
static assay_status angles_of(assay_context *ctx, const bs_slot *slot, int64_t microbatch, double **angles)
{
    const double *from = bs_part(slot, microbatch);
    const assay_status status = assay_alloc_f64(ctx, "rotation angles", slot->count / 2, angles);
    for (int64_t i = 0; status == ASSAY_OK && i < slot->count / 2; i++) (*angles)[i] = from[2 * i];
    return status;
}

/* y = x cos(yarn_freqs) + (x mask) sin(yarn_freqs), which is a pairwise rotation; or its gradient. */
static assay_status rotate(assay_context *ctx, bs_call *c, const bs_slot *x, const bs_slot *freqs, bool back)
{
    assay_status status;
    const assay_rope_config *rope = &c->run.mla.rope;
    const int64_t heads = c->run.mla.heads, dim = rope->dim;
    double *angles = NULL;
    assay_rope_table table = {0};
    const assay_rope_rows rows = {.y = c->out[0].values,
                                  .y_token_stride = heads * dim,
                                  .y_head_stride = dim,
                                  .x = x->values,
                                  .x_token_stride = heads * dim,
                                  .x_head_stride = dim,
                                  .heads = heads};
    TRY(angles_of(ctx, freqs, 0, &angles));
    TRY(assay_rope_table_of_angles(ctx, &table, angles, tokens_of(c), rope));
    (back ? assay_rope_backward : assay_rope_forward)(ctx, &rows, &table, rope);
cleanup:
    assay_rope_table_free(&table);
    free(angles);
    return status;
}

assay_status bs_call_yarn(assay_context *ctx, bs_call *c)
{
    return rotate(ctx, c, &c->in[0], &c->in[1], false);
}

assay_status bs_call_yarn_bwd(assay_context *ctx, bs_call *c)
{
    return rotate(ctx, c, &c->in[1], &c->in[0], true);
}

/* --- ranges of the attention's steps, one shard after the other --- */

/* What the module calls the tensors of the graph; with _grad it is a gradient. */
static int tensor_of(const graph *g, const char *name, bool *gradient)
{
    static const char *const names[][2] = {
        {"inputs", "inputs/x"},        {"inputs_q", "inputs/x"},    {"yarn_freqs", "rotation angles"},
        {"low_rank_main", "mla_kv"},   {"key_rope", "rotated key"}, {"query", "query_proj"},
        {"key", "key_proj"},           {"value", "value_proj"},     {"attention_output", "attention_out"},
        {"attn_out", "attention_out"}, {"logsumexp", "lse"},        {"lse", "lse"},
        {"out", "out_proj"},
    };
    const char *suffix = strstr(name, "_grad");
    const size_t length = suffix == NULL ? strlen(name) : (size_t)(suffix - name);
    *gradient = suffix != NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i][0]) == length && strncmp(names[i][0], name, length) == 0) return graph_find(g, names[i][1]);
    return 0;
}

/* A shard's part of a slot. */
static double *part_of(const bs_call *c, const bs_slot *slot, int64_t shard)
{
    return slot->values + shard * (slot->count / c->run.sizes.shards);
}

static void lend_arguments(const bs_call *c, graph_run *r, int64_t shard)
{
    const assay_batch_split_function *f = c->function;
    for (int i = 0; i < BS_MOST_ARGUMENTS && f->in[i].name != NULL; i++) {
        bool gradient;
        const int tensor = tensor_of(r->graph, f->in[i].name, &gradient);
        if (f->in[i].holds == ASSAY_HOLDS_ANGLES) continue;
        (gradient ? graph_lend_gradient : graph_lend)(r, tensor, part_of(c, &c->in[i], shard));
    }
    for (int i = 0; i < ASSAY_MLA_WEIGHTS; i++)
        graph_want_gradient(r, r->graph->weights[i], bs_weight_of(&c->run, &c->g, BS_MLA + i, shard));
}

static assay_status give_results(assay_context *ctx, const bs_call *c, graph_run *r, int64_t shard)
{
    assay_status status = ASSAY_OK;
    const assay_batch_split_function *f = c->function;
    bool backward = false;
    for (int i = 0; i < BS_MOST_ARGUMENTS && f->out[i].name != NULL; i++) {
        bool gradient;
        const int tensor = tensor_of(r->graph, f->out[i].name, &gradient);
        if (gradient) graph_want_gradient(r, tensor, part_of(c, &c->out[i], shard));
        if (!gradient) r->room[tensor] = part_of(c, &c->out[i], shard);
        backward |= gradient;
    }
    for (int i = 0; i < BS_MOST_ARGUMENTS && !backward && f->out[i].name != NULL; i++) {
        bool gradient;
        TRY(graph_require(ctx, r, tensor_of(r->graph, f->out[i].name, &gradient)));
    }
    if (backward) TRY(graph_backward(ctx, r));
cleanup:
    return status;
}

assay_status bs_call_attention(assay_context *ctx, bs_call *c)
{
    assay_status status = ASSAY_OK;
    assay_mla_config config = c->run.mla;
    const bool rotates = c->in[1].values != NULL && c->function->in[1].holds == ASSAY_HOLDS_ANGLES;
    double *angles = NULL;
    graph g;
    graph_run r = {0};
    config.recipe = c->config->recipe;
    assay_mla_graph(&g, &config);
    if (!rotates) { /* it begins within the block: key and value are what it gives, its caller's to round */
        graph_fused(&g, graph_find(&g, "key_proj"));
        graph_fused(&g, graph_find(&g, "value_proj"));
    }
    if (rotates) TRY(angles_of(ctx, &c->in[1], 0, &angles));
    for (int64_t shard = 0; shard < c->run.sizes.shards; shard++) {
        bs_open_attention(&r, &g, &c->run, &c->w, shard, NULL,
                          rotates ? angles + shard * c->run.sizes.tokens * (config.rope.dim / 2) : NULL);
        lend_arguments(c, &r, shard);
        TRY(give_results(ctx, c, &r, shard));
        graph_close(&r);
    }
cleanup:
    graph_close(&r);
    free(angles);
    return status;
}

/* Their results are as attention leaves them. */
static assay_attention_config attention_of(const bs_call *c)
{
    const graph *g = &c->run.attention;
    return g->steps[g->tensors[graph_find(g, "attention_out")].step].with.attention;
}

assay_status bs_call_tpu_flash_attention(assay_context *ctx, bs_call *c)
{
    assay_status status = ASSAY_OK;
    const assay_attention_config config = attention_of(c);
    for (int64_t shard = 0; shard < c->run.sizes.shards; shard++) {
        const assay_attention_inputs in = {.query = part_of(c, &c->in[0], shard),
                                           .key = part_of(c, &c->in[1], shard),
                                           .value = part_of(c, &c->in[2], shard)};
        TRY(assay_attention_forward(ctx, part_of(c, &c->out[0], shard), part_of(c, &c->out[1], shard), &in, &config));
    }
cleanup:
    return status;
}

assay_status bs_call_tpu_flash_attention_bwd(assay_context *ctx, bs_call *c)
{
    assay_status status = ASSAY_OK;
    const assay_attention_config config = attention_of(c);
    for (int64_t shard = 0; shard < c->run.sizes.shards; shard++) {
        const assay_attention_inputs in = {.query = part_of(c, &c->in[1], shard),
                                           .key = part_of(c, &c->in[2], shard),
                                           .value = part_of(c, &c->in[3], shard)};
        const assay_attention_gradients d = {.dquery = part_of(c, &c->out[0], shard),
                                             .dkey = part_of(c, &c->out[1], shard),
                                             .dvalue = part_of(c, &c->out[2], shard)};
        TRY(assay_attention_backward(ctx, &d, part_of(c, &c->in[0], shard), NULL, part_of(c, &c->in[4], shard),
                                     part_of(c, &c->in[5], shard), &in, &config));
    }
cleanup:
    return status;
}

/* --- with norms: a list of microbatches --- */

assay_status bs_take_angles(assay_context *ctx, bs_call *c, const bs_slot *freqs)
{
    assay_status status = ASSAY_OK;
    for (int64_t i = 0; i < c->run.factor; i++) TRY(angles_of(ctx, freqs, i, &c->run.yarn_freqs[i]));
cleanup:
    return status;
}

assay_status bs_call_mla_with_norms(assay_context *ctx, bs_call *c)
{
    assay_status status;
    TRY(bs_take_angles(ctx, c, &c->in[1]));
    for (int64_t i = 0; i < c->run.factor; i++) {
        TRY(bs_mla_with_norms(ctx, &c->run, i, bs_part(&c->out[0], i), bs_part(&c->out[1], i), bs_part(&c->out[2], i),
                              bs_part(&c->in[0], i), &c->w));
    }
cleanup:
    return status;
}

/* [M,...] of all shards' residuals. */
static void take_all(const bs_call *c, const bs_mla_state *state, int place, int64_t microbatch, const char *name)
{
    const int64_t each = c->out[place].count / c->run.sizes.shards;
    const int tensor = graph_find(&c->run.attention, name);
    for (int64_t shard = 0; shard < c->run.sizes.shards; shard++) {
        memcpy(bs_part(&c->out[place], microbatch) + shard * each, state->shards[shard].value[tensor],
               (size_t)each * sizeof(double));
    }
}

assay_status bs_call_mla_with_norms_remat(assay_context *ctx, bs_call *c)
{
    assay_status status;
    TRY(bs_take_angles(ctx, c, &c->in[1]));
    for (int64_t i = 0; i < c->run.factor; i++) {
        bs_mla_state state;
        TRY(bs_mla_with_norms_remat(ctx, &c->run, i, &state, bs_part(&c->in[0], i), NULL, NULL, &c->w));
        take_all(c, &state, 0, i, "query_proj");
        take_all(c, &state, 1, i, "key_proj");
        take_all(c, &state, 2, i, "value_proj");
        bs_mla_state_free(&state, &c->run);
    }
cleanup:
    return status;
}

assay_status bs_call_mla_with_norms_bwd(assay_context *ctx, bs_call *c)
{
    assay_status status;
    bs_gradient_sums sums = {0};
    bs_mla_state state = {0};
    TRY(bs_take_angles(ctx, c, &c->in[1]));
    TRY(bs_gradient_sums_open(ctx, &c->run, &sums, &c->g, BS_PRE_NORM, BS_POST_NORM));
    for (int64_t i = 0; i < c->run.factor; i++) {
        const double *x = bs_part(&c->in[0], i);
        TRY(bs_mla_with_norms_remat(ctx, &c->run, i, &state, x, bs_part(&c->in[2], i), bs_part(&c->in[3], i), &c->w));
        TRY(bs_mla_with_norms_bwd(ctx, &c->run, bs_part(&c->out[0], i), bs_gradients_of(&sums, i),
                                  bs_part(&c->in[4], i), x, &state, &c->w));
        bs_add_gradients(ctx, &c->run, &sums, i);
        bs_mla_state_free(&state, &c->run);
    }
cleanup:
    bs_mla_state_free(&state, &c->run);
    bs_gradient_sums_close(&sums);
    return status;
}
