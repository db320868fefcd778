/* The attention half's functions as rows of the table call them: slots to arguments, shard after shard. */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/layer/batch_split_function_internal.h"

/* --- rotation --- */

static int64_t tokens_of(const bs_call *c)
{
    return c->run.sizes.shards * c->run.sizes.tokens;
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
    const assay_rope_config *rope = &c->run.mla.rope;
    const int64_t half = rope->dim / 2, tokens = tokens_of(c);
    OWNED double *frequencies = NULL;
    MUST(assay_rope_check_positions(ctx, c->in[0].indices, tokens, rope));
    MUST(assay_alloc_f64(ctx, "frequencies", half, &frequencies));
    assay_rope_frequencies(frequencies, rope);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, half, frequencies);
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t i = 0; i < rope->dim; i++)
            c->out[0].values[t * rope->dim + i] = c->in[0].indices[t] * frequencies[i / 2];
    }
    return ASSAY_OK;
}

/* Of a pair's two equal angles one, [tokens,Dr/2]. */
assay_status bs_take_angles(assay_context *ctx, bs_call *c)
{
    for (int i = 0; i < c->tensors.count; i++) {
        const assay_function_tensor *t = &c->tensors.items[i];
        const bs_slot *slot = &c->in[t->place];
        if (t->holds != ASSAY_HOLDS_ANGLES) continue;
        for (int64_t m = 0; m < assay_shape_count(&t->shape) / slot->count; m++) {
            double **angles = &c->run.yarn_freqs[m];
            MUST(assay_alloc_f64(ctx, "rotation angles", slot->count / 2, angles));
            for (int64_t k = 0; k < slot->count / 2; k++) (*angles)[k] = bs_part(slot, m)[2 * k];
        }
    }
    return ASSAY_OK;
}

/* y = x cos(yarn_freqs) + (x mask) sin(yarn_freqs), which is a pairwise rotation; or its gradient. */
assay_status bs_call_yarn(assay_context *ctx, bs_call *c)
{
    const bool back = assay_function_forward(c->config.function) != NULL;
    const assay_rope_config *rope = &c->run.mla.rope;
    const int64_t heads = c->run.mla.heads, dim = rope->dim;
    OWNED_BY(assay_rope_table_free) assay_rope_table table = {0};
    const assay_rope_rows rows = {.y = c->out[0].values,
                                  .y_token_stride = heads * dim,
                                  .y_head_stride = dim,
                                  .x = c->in[back ? 1 : 0].values,
                                  .x_token_stride = heads * dim,
                                  .x_head_stride = dim,
                                  .heads = heads};
    MUST(bs_take_angles(ctx, c));
    MUST(assay_rope_table_of_angles(ctx, &table, c->run.yarn_freqs[0], tokens_of(c), rope));
    (back ? assay_rope_backward : assay_rope_forward)(ctx, &rows, &table, rope);
    return ASSAY_OK;
}

/* --- ranges of the attention half's steps, one shard after the other, of one microbatch or of a list --- */

/* What the module calls the tensors of the graph. The input is normalised, unless the function does so. */
static int tensor_of(const bs_call *c, const graph *g, const char *path)
{
    static const char *const names[][2] = {
        {"layer_inputs", "inputs/x"}, {"mla_out", LAYER_H},          {"low_rank_main", "mla_kv"},
        {"key_rope", "rotated_key"},  {"query", "query_proj"},       {"key", "key_proj"},
        {"value", "value_proj"},      {"attn_out", "attention_out"}, {"lse", "lse"},
        {"out", "out_proj"},
    };
    const char *name = strchr(path, '/') + 1;
    if (strcmp(name, "inputs") == 0 || strcmp(name, "inputs_q") == 0)
        return c->w.values[BS_PRE_NORM] != NULL ? graph_find(g, "inputs/x") : bs_normalised_input(g);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i][0], name) == 0) return graph_find(g, names[i][1]);
    return 0;
}

/* A shard's part of a slot. */
static double *part_of(const bs_call *c, const bs_slot *slot, int64_t microbatch, int64_t shard)
{
    return bs_part(slot, microbatch) + shard * (slot->count / c->run.sizes.shards);
}

/* What is given, and where what is wanted goes. */
static void lend_tensors(const bs_call *c, graph_run *r, int64_t microbatch, int64_t shard)
{
    for (int i = 0; i < c->tensors.count; i++) {
        const assay_function_tensor *t = &c->tensors.items[i];
        if (t->weight >= 0 || t->holds == ASSAY_HOLDS_ANGLES) continue;
        const int tensor = tensor_of(c, r->graph, t->of);
        double *part = part_of(c, t->result ? &c->out[t->place] : &c->in[t->place], microbatch, shard);
        if (t->result && t->gradient) graph_want_gradient(r, tensor, part);
        if (t->result && !t->gradient) r->room[tensor] = part;
        if (!t->result && t->gradient) graph_lend_gradient(r, tensor, part);
        if (!t->result && !t->gradient) graph_lend(r, tensor, part);
    }
}

static assay_status run_shard(assay_context *ctx, const bs_call *c, graph_run *r)
{
    if (assay_function_forward(c->config.function) != NULL) return graph_backward(ctx, r);
    for (int i = 0; i < c->tensors.count; i++) {
        const assay_function_tensor *t = &c->tensors.items[i];
        if (t->result) MUST(graph_require(ctx, r, tensor_of(c, r->graph, t->path)));
    }
    return ASSAY_OK;
}

static assay_status attend(assay_context *ctx, const bs_call *c, const graph *g, int64_t microbatch,
                           const bs_weights *gradients)
{
    OWNED_BY(graph_close) graph_run r = {0};
    for (int64_t shard = 0; shard < c->run.sizes.shards; shard++) {
        MUST(bs_open_attention(ctx, &r, g, &c->run, c->run.yarn_freqs[microbatch], &c->w, shard));
        lend_tensors(c, &r, microbatch, shard);
        bs_want_attention_gradients(&r, &c->run, gradients, shard);
        MUST(run_shard(ctx, c, &r));
        graph_close(&r);
    }
    bs_sum_attention_gradients(ctx, &c->run, gradients);
    return ASSAY_OK;
}

assay_status bs_call_attention(assay_context *ctx, bs_call *c)
{
    const bool list = strchr(c->tensors.items[0].axes, 'j') != NULL;
    const bool back = assay_function_forward(c->config.function) != NULL;
    graph g;
    OWNED_BY(bs_gradient_sums_close) bs_gradient_sums sums = {.sums = c->g};
    bs_attention_graph(&g, &c->run, &c->config.recipe);
    MUST(bs_take_angles(ctx, c));
    if (c->run.yarn_freqs[0] ==
        NULL) { /* it begins within the block: key and value are what it gives, its caller's to round */
        graph_fused(&g, graph_find(&g, "key_proj"));
        graph_fused(&g, graph_find(&g, "value_proj"));
    }
    if (list) MUST(bs_gradient_sums_open(ctx, &c->run, &sums, &c->g, BS_PRE_NORM, BS_POST_NORM));
    for (int64_t m = 0; m < (list ? c->run.factor : 1); m++) {
        MUST(attend(ctx, c, &g, m, bs_gradients_of(&sums, m)));
        if (list && back) assay_round(ctx, ASSAY_ROUND_STORAGE, c->out[0].count, bs_part(&c->out[0], m));
        if (list) bs_add_gradients(ctx, &c->run, &sums, m);
    }
    return ASSAY_OK;
}

/* Their results are as attention leaves them. */
static assay_attention_config attention_of(const bs_call *c)
{
    const graph *g = &c->run.attention;
    return g->steps[g->tensors[graph_find(g, "attention_out")].step].with.attention;
}

/* Of a _bwd the gradient of the result is before, and the results are behind the arguments. */
assay_status bs_call_tpu_flash_attention(assay_context *ctx, bs_call *c)
{
    const bool back = assay_function_forward(c->config.function) != NULL;
    const bs_slot *in = back ? c->in + 1 : c->in;
    const assay_attention_config config = attention_of(c);
    for (int64_t shard = 0; shard < c->run.sizes.shards; shard++) {
        const assay_attention_inputs x = {.query = part_of(c, &in[0], 0, shard),
                                          .key = part_of(c, &in[1], 0, shard),
                                          .value = part_of(c, &in[2], 0, shard)};
        double *out[3];
        for (int i = 0; i < (back ? 3 : 2); i++) out[i] = part_of(c, &c->out[i], 0, shard);
        if (back) {
            const assay_attention_gradients d = {.dquery = out[0], .dkey = out[1], .dvalue = out[2]};
            MUST(assay_attention_backward(ctx, &d, part_of(c, &c->in[0], 0, shard), NULL, part_of(c, &in[3], 0, shard),
                                          part_of(c, &in[4], 0, shard), &x, &config));
        } else {
            MUST(assay_attention_forward(ctx, out[0], out[1], &x, &config));
        }
    }
    return ASSAY_OK;
}
