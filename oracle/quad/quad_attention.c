/* Attention: bare, with grouped heads, and with latent ones. */
#include <quadmath.h>

#include "oracle/quad/quad_blocks.h"

void quad_attention(quad_tape *t, const void *self)
{
    const assay_attention_config *c = self;
    const int64_t b = c->batch, s = c->sequence, kv = c->kv_heads == 0 ? c->heads : c->kv_heads;
    quad_node lse;
    const quad_node out = quad_attend(t, c, quad_input(t, "inputs/query", b * s, c->heads * c->qk_dim),
                                      quad_input(t, "inputs/key", b * s, kv * c->qk_dim),
                                      quad_input(t, "inputs/value", b * s, kv * c->v_dim),
                                      quad_input_optional(t, "weights/sinks", 1, c->heads),
                                      quad_input_indices_optional(t, "inputs/segment_ids", b * s), &lse);
    quad_put(t, "outputs/attention_out", assay_shape_of(4, b, s, c->heads, c->v_dim), out);
    quad_put(t, "outputs/lse", assay_shape_of(3, b, c->heads, s), lse);
}

quad quad_softmax_scale(const assay_mla_config *config)
{
    if (config->query_scale != 0) return config->query_scale;
    const quad scale = 1 / sqrtq(config->qk_nope_head_dim + config->rope.dim);
    if (config->rope.max_position_embeddings <= config->rope.original_max_position_embeddings) return scale;
    const quad m = logq(config->rope.rope_factor) * config->mscale / 10 + 1;
    return scale * m * m;
}

static quad_node linear(quad_tape *t, const assay_mla_config *c, quad_node x, const char *kernel, int64_t k, int64_t n)
{
    return quad_linear(t, (quad_layer){.x = x, .w = quad_input(t, kernel, k, n), .recipe = &c->recipe});
}

quad_node quad_of_heads(quad_tape *t, quad_node x, int64_t heads, int64_t first, int64_t width)
{
    const int64_t all = quad_columns(t, x) / heads;
    return quad_view(t, quad_columns_of(t, quad_view(t, x, all), first, width), heads * width);
}

quad_node quad_heads_beside(quad_tape *t, quad_node a, quad_node b, int64_t heads)
{
    const int64_t of_a = quad_columns(t, a) / heads, of_b = quad_columns(t, b) / heads;
    return quad_view(t, quad_beside(t, quad_view(t, a, of_a), quad_view(t, b, of_b)), heads * (of_a + of_b));
}

/* Attention of heads, with what goes in and what comes out as checkpoints. */
static quad_node attend_heads(quad_tape *t, const assay_attention_config *c, const assay_mesh *mesh, quad_node query,
                              quad_node key, quad_node value, quad_node sinks)
{
    const quad_heads heads = {.batch = c->batch,
                              .sequence = c->sequence,
                              .heads = c->heads,
                              .kv_heads = c->kv_heads == 0 ? c->heads : c->kv_heads,
                              .mesh = mesh};
    const int32_t *segments = quad_input_indices_optional(t, "inputs/segment_ids", c->batch * c->sequence);
    quad_node lse;
    const quad_node out = quad_attend(t, c, query, key, value, sinks, segments, &lse);
    quad_put_heads(t, &heads, "checkpoints/query_proj", c->qk_dim, query);
    quad_put_heads(t, &heads, "checkpoints/key_proj", c->qk_dim, key);
    quad_put_heads(t, &heads, "checkpoints/value_proj", c->v_dim, value);
    quad_put_heads(t, &heads, "checkpoints/attention_out", c->v_dim, out);
    quad_put_heads(t, &heads, "checkpoints/lse", 0, lse);
    return out;
}

quad_node quad_mla_of(quad_tape *t, const quad_mla_config *config, quad_node x)
{
    const assay_mla_config *c = &config->mla;
    const int64_t b = c->batch, s = c->sequence, n = c->heads, d = c->emb_dim, tokens = b * s;
    const int64_t nope = c->qk_nope_head_dim, rope = c->rope.dim, qk = nope + rope, v = c->v_head_dim;
    const int64_t lq = c->q_lora_rank, lkv = c->kv_lora_rank;
    const assay_attention_config attention = {.batch = b,
                                              .sequence = s,
                                              .heads = n,
                                              .qk_dim = qk,
                                              .v_dim = v,
                                              .window = c->window,
                                              .mask_padding = c->mask_padding,
                                              .soft_cap = c->soft_cap};
    if (b < 1 || s < 1 || d < 1 || n < 1 || nope < 1 || v < 1 || lq < 0 || lkv < 1)
        quad_refuse(t, "MLA needs sizes of at least 1, and a q_lora_rank of at least 0");
    const quad *turns = quad_turns(t, &c->rope, tokens, quad_input_indices(t, "inputs/positions", tokens));

    quad_node latent = x;
    if (lq > 0) {
        const quad_node down = linear(t, c, x, "weights/wq_a/kernel", d, lq);
        latent = quad_normalise(t, down, quad_input(t, "weights/q_norm/scale", 1, lq), c->epsilon);
        quad_put(t, "checkpoints/query_wa_proj", assay_shape_of(3, b, s, lq), down);
        quad_put(t, "checkpoints/mla_q", assay_shape_of(3, b, s, lq), latent);
        quad_put_gradient(t, "checkpoints/query_wa_proj_gradient", assay_shape_of(3, b, s, lq), down);
    }
    const quad_node q = lq > 0 ? linear(t, c, latent, "weights/wq_b/kernel", lq, n * qk)
                               : linear(t, c, x, "weights/query/kernel", d, n * qk);
    quad_put_gradient(t, "checkpoints/q_gradient", assay_shape_of(4, b, s, n, qk), q);
    const quad_node q_pe = quad_rotate(t, quad_of_heads(t, q, n, nope, rope), &c->rope, turns);
    const quad_node query =
        quad_times(t, quad_heads_beside(t, quad_of_heads(t, q, n, 0, nope), q_pe, n), quad_softmax_scale(c));

    const quad_node down = linear(t, c, x, "weights/wkv_a/kernel", d, lkv + rope);
    const quad_node kv_scale = quad_input(t, "weights/kv_norm/scale", 1, lkv);
    const quad_node mla_kv = quad_normalise(t, quad_columns_of(t, down, 0, lkv), kv_scale, c->epsilon);
    const quad_node kv = linear(t, c, mla_kv, "weights/wkv_b/kernel", lkv, n * (nope + v));
    const quad_node k_pe = quad_rotate(t, quad_columns_of(t, down, lkv, rope), &c->rope, turns);
    const quad_node key =
        quad_heads_beside(t, quad_of_heads(t, kv, n, 0, nope), quad_view(t, quad_repeat(t, k_pe, n), n * rope), n);
    const quad_node value = quad_of_heads(t, kv, n, nope, v);
    quad_put(t, "checkpoints/kv_wa_proj", assay_shape_of(3, b, s, lkv + rope), down);
    quad_put(t, "checkpoints/mla_kv", assay_shape_of(3, b, s, lkv), mla_kv);
    quad_put_gradient(t, "checkpoints/kv_wa_proj_gradient", assay_shape_of(3, b, s, lkv + rope), down);
    quad_put_gradient(t, "checkpoints/kv_gradient", assay_shape_of(4, b, s, n, nope + v), kv);

    const quad_node out = attend_heads(t, &attention, &config->mesh, query, key, value, 0);
    const quad_node y = linear(t, c, out, "weights/out/kernel", n * v, d);
    quad_put(t, "checkpoints/out_proj", assay_shape_of(3, b, s, d), y);
    return y;
}

quad_node quad_used_tokens(quad_tape *t, quad_node x, bool masked)
{
    const int64_t tokens = quad_rows(t, x), width = quad_columns(t, x);
    const int32_t *segments = quad_input_indices_optional(t, "inputs/segment_ids", tokens);
    const quad *values = quad_values(t, x);
    int64_t *used = quad_keep(t, tokens, sizeof *used), count = 0;
    if (segments == NULL || !masked || values == NULL || used == NULL) return x;
    for (int64_t token = 0; token < tokens; token++) {
        bool finite = true;
        for (int64_t i = 0; i < width; i++) finite &= finiteq(values[token * width + i]) != 0;
        if (finite || segments[token] != 0) used[count++] = token;
    }
    return count == tokens ? x : quad_scatter(t, quad_gather(t, x, used, count), used, tokens);
}

void quad_mla(quad_tape *t, const void *config)
{
    const assay_mla_config *c = &((const quad_mla_config *)config)->mla;
    const quad_node given = quad_input(t, "inputs/x", c->batch * c->sequence, c->emb_dim);
    const quad_node x = quad_used_tokens(t, given, c->mask_padding);
    quad_put(t, "outputs/y", assay_shape_of(3, c->batch, c->sequence, c->emb_dim), quad_mla_of(t, config, x));
}

/* x times a kernel, plus the bias. The sum's gradient is what a recipe quantises. */
static quad_node project(quad_tape *t, const assay_gqa_config *c, quad_node x, const char *kernel, const char *bias,
                         int64_t n)
{
    const quad_node w = quad_input(t, kernel, quad_columns(t, x), n);
    return quad_add_row(t, quad_linear(t, (quad_layer){.x = x, .w = w, .recipe = &c->recipe}),
                        quad_input_optional(t, bias, 1, n));
}

/* Every head by itself: its norm, its rotation. */
static quad_node turn_heads(quad_tape *t, const assay_gqa_config *c, quad_node x, const char *scale, const quad *turns)
{
    const int64_t all = quad_columns(t, x), dim = c->head_dim;
    if (x == 0) return 0;
    if (c->qk_norm)
        x = quad_view(t, quad_normalise(t, quad_view(t, x, dim), quad_input(t, scale, 1, dim), c->epsilon), all);
    if (c->rope.dim == dim) return quad_rotate(t, x, &c->rope, turns);
    const int64_t heads = all / dim, rest = dim - c->rope.dim; /* partial_rotary_factor */
    return quad_heads_beside(t, quad_rotate(t, quad_of_heads(t, x, heads, 0, c->rope.dim), &c->rope, turns),
                             quad_of_heads(t, x, heads, c->rope.dim, rest), heads);
}

quad_node quad_gqa_of(quad_tape *t, const quad_gqa_config *config, quad_node x)
{
    const assay_gqa_config *c = &config->gqa;
    const int64_t b = c->batch, s = c->sequence, dim = c->head_dim, n = c->heads * dim, g = c->kv_heads * dim;
    const assay_attention_config attention = {.batch = b,
                                              .sequence = s,
                                              .heads = c->heads,
                                              .kv_heads = c->kv_heads,
                                              .qk_dim = dim,
                                              .v_dim = dim,
                                              .window = c->window,
                                              .mask_padding = c->mask_padding,
                                              .soft_cap = c->soft_cap};
    const quad_heads heads = {
        .batch = b, .sequence = s, .heads = c->heads, .kv_heads = c->kv_heads, .mesh = &config->mesh};
    const quad *turns = quad_turns(t, &c->rope, b * s, quad_input_indices(t, "inputs/positions", b * s));
    quad_node query, key, value;
    if (c->fused_qkv) {
        const quad_node all = project(t, c, x, "weights/qkv_proj/kernel", "weights/qkv_proj/bias", n + 2 * g);
        quad_put_heads(t, &heads, "checkpoints/qkv_proj", dim, all);
        quad_put_gradient(t, "checkpoints/qkv_proj_gradient", assay_shape_of(4, b, s, c->heads + 2 * c->kv_heads, dim),
                          all);
        query = quad_columns_of(t, all, 0, n);
        key = quad_columns_of(t, all, n, g);
        value = quad_columns_of(t, all, n + g, g);
    } else {
        query = project(t, c, x, "weights/query/kernel", "weights/query/bias", n);
        key = project(t, c, x, "weights/key/kernel", "weights/key/bias", g);
        value = project(t, c, x, "weights/value/kernel", "weights/value/bias", g);
        quad_put_gradient(t, "checkpoints/query_gradient", assay_shape_of(4, b, s, c->heads, dim), query);
        quad_put_gradient(t, "checkpoints/key_gradient", assay_shape_of(4, b, s, c->kv_heads, dim), key);
        quad_put_gradient(t, "checkpoints/value_gradient", assay_shape_of(4, b, s, c->kv_heads, dim), value);
    }
    query = quad_times(t, turn_heads(t, c, query, "weights/query_norm/scale", turns), c->query_scale);
    key = turn_heads(t, c, key, "weights/key_norm/scale", turns);
    const quad_node sinks = c->sinks ? quad_input(t, "weights/sinks", 1, c->heads) : 0;
    const quad_node out = attend_heads(t, &attention, &config->mesh, query, key, value, sinks);
    const quad_node y = project(t, c, out, "weights/out/kernel", "weights/out/bias", c->emb_dim);
    quad_put(t, "checkpoints/out_proj", assay_shape_of(3, b, s, c->emb_dim), y);
    return y;
}

void quad_gqa(quad_tape *t, const void *config)
{
    const assay_gqa_config *c = &((const quad_gqa_config *)config)->gqa;
    const quad_node given = quad_input(t, "inputs/x", c->batch * c->sequence, c->emb_dim);
    const quad_node x = quad_used_tokens(t, given, c->mask_padding);
    quad_put(t, "outputs/y", assay_shape_of(3, c->batch, c->sequence, c->emb_dim), quad_gqa_of(t, config, x));
}

/* --- the merge of states --- */

quad_node quad_missing(quad_tape *t, const int64_t *index, int64_t count, quad number)
{
    quad *values;
    const quad_node y = quad_constant(t, count, 1, &values);
    for (int64_t i = 0; values != NULL && i < count; i++) values[i] = index[i] < 0 ? number : 0;
    return y;
}

quad_node quad_gates(quad_tape *t, int64_t rows, int64_t heads, quad_node lse, quad_node sinks)
{
    int64_t *head = quad_keep(t, rows, sizeof *head);
    for (int64_t i = 0; head != NULL && i < rows; i++) head[i] = i % heads;
    if (head == NULL) return 0;
    return quad_map(t, quad_add(t, lse, quad_times(t, quad_gather(t, quad_view(t, sinks, 1), head, rows), -1)),
                    QUAD_SIGMOID);
}

/* Of each row [B,S,N] its parts lie in partial_out [P,B,S,N,Dv] at out[P,rows], in partial_lse [P,B,N,S] at lse[rows,P]; -1: the part has
 * no keys. row [B,N,S]: that of lse; -1: no part has keys. */
void quad_merge_states(quad_tape *t, const void *self)
{
    const assay_merge_states_config *c = self;
    const quad unit = c->base_2 ? M_LN2q : 1, nothing = -1e4000Q;
    const int64_t b = c->batch, s = c->sequence, n = c->heads, rows = b * s * n, states = c->states;
    const quad_node given = quad_view(t, quad_input(t, "inputs/partial_lse", states * b * n, s), 1);
    const quad_node outs = quad_input(t, "inputs/partial_out", states * rows, c->v_dim);
    const quad_node sinks = quad_input_optional(t, "weights/sinks", 1, n);
    int64_t *of_out = quad_indices(t, rows * states), *of_lse = quad_indices(t, rows * states),
            *row = quad_indices(t, rows);
    const quad *partial = quad_values(t, given);
    quad_node out = 0;
    for (int64_t i = 0; t->status == ASSAY_OK && i < rows * states; i++) {
        const int64_t at = i / states, state = i % states, token = at / n;
        const int64_t place = (token / s * n + at % n) * s + token % s, lse = state * rows + place;
        const bool empty = isinfq(partial[lse]);
        of_out[state * rows + at] = empty ? -1 : state * rows + at;
        of_lse[i] = empty ? -1 : lse;
        row[place] = !empty ? at : state == 0 ? -1 : row[place];
    }
    if (t->status != ASSAY_OK) return;
    const quad_node natural = quad_times(t, quad_gather(t, given, of_lse, rows * states), unit);
    const quad_node l = quad_view(t, quad_add(t, natural, quad_missing(t, of_lse, rows * states, nothing)), states);
    const quad_node weights = quad_softmax(t, l, NULL), lse = quad_log_sum_exp(t, l);
    for (int64_t state = 0; state < states; state++) {
        const quad_node part = quad_gather(t, outs, of_out + state * rows, rows);
        out = quad_add(t, out, quad_weigh(t, part, quad_columns_of(t, weights, state, 1)));
    }
    if (sinks != 0) out = quad_weigh(t, out, quad_gates(t, rows, n, lse, sinks));
    const quad_node placed = quad_times(t, quad_gather(t, lse, row, rows), 1 / unit);
    quad_put(t, "outputs/attention_out", assay_shape_of(4, b, s, n, c->v_dim), out);
    quad_put(t, "outputs/lse", assay_shape_of(3, b, n, s),
             quad_add(t, placed, quad_missing(t, row, rows, c->empty_row)));
}
