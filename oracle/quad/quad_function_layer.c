/* A layer under the batch-split schedule: what each of its tensors is made of. */
#include <quadmath.h>

#include "oracle/quad/quad_function.h"
#include "oracle/quad/quad_internal.h"

/* y of each shard's rows: x times a weight that it has, as w has them in rows of the results' columns; of rows in groups each by its
 * own. By the recipe, where there is one. */
static quad_node times(quad_call *c, quad_node x, quad_node w, const int64_t *group)
{
    const int64_t rows = quad_rows(c->t, x) / c->s.shards;
    quad_node *y = quad_keep(c->t, c->s.shards, sizeof *y);
    for (int64_t shard = 0; y != NULL && shard < c->s.shards; shard++)
        y[shard] = quad_linear(c->t, (quad_layer){.x = quad_of_shard(c, x, shard),
                                                  .w = quad_of_shard(c, w, shard),
                                                  .groups = group == NULL ? 1 : c->s.local_experts,
                                                  .group = group == NULL ? NULL : group + shard * rows,
                                                  .recipe = c->recipe,
                                                  .counts_all = group != NULL});
    return y == NULL ? 0 : quad_concatenate(c->t, y, c->s.shards);
}

static quad_node layer(quad_call *c, quad_node x, int weight, int64_t columns)
{
    return times(c, x, quad_weight(c, weight, columns), NULL);
}

static quad_node normed(quad_call *c, quad_node x, int weight, double epsilon)
{
    return quad_normalise(c->t, x, quad_weight(c, weight, quad_columns(c->t, x)), epsilon);
}

/* --- attention --- */

quad_node quad_turned(quad_call *c, quad_node x, quad_node angles)
{
    const assay_rope_config pairs = {.dim = c->mla->rope.dim, .interleave = true, .pairwise = true};
    const int64_t count = quad_rows(c->t, angles) * quad_columns(c->t, angles);
    quad *turns = quad_keep(c->t, count, sizeof *turns);
    for (int64_t i = 0; turns != NULL && angles != 0 && i < count; i += 2) {
        turns[i] = cosq(quad_values(c->t, angles)[i]);
        turns[i + 1] = sinq(quad_values(c->t, angles)[i]);
    }
    return quad_rotate(c->t, x, &pairs, turns);
}

static quad_node query(quad_call *c, int64_t i)
{
    const assay_mla_config *m = c->mla;
    const int64_t nope = m->qk_nope_head_dim, rope = m->rope.dim, heads = m->heads;
    const quad_node low = layer(c, quad_at(c, MB_MLA_INPUTS, i), BS_MLA + ASSAY_MLA_WQ_A, m->q_lora_rank);
    const quad_node latent = normed(c, low, BS_MLA + ASSAY_MLA_Q_NORM, m->epsilon);
    const quad_node q = layer(c, latent, BS_MLA + ASSAY_MLA_WQ_B, heads * (nope + rope));
    const quad_node turned = quad_turned(c, quad_of_heads(c->t, q, heads, nope, rope), quad_at(c, MB_ANGLES, i));
    return quad_times(c->t, quad_heads_beside(c->t, quad_of_heads(c->t, q, heads, 0, nope), turned, heads),
                      quad_softmax_scale(m));
}

/* Of keys and values the latent, and what all heads share. */
static quad_node make_latent(quad_call *c, int64_t i)
{
    const assay_mla_config *m = c->mla;
    const int64_t rank = m->kv_lora_rank, rope = m->rope.dim;
    const quad_node low = layer(c, quad_at(c, MB_MLA_INPUTS, i), BS_MLA + ASSAY_MLA_WKV_A, rank + rope);
    quad_set(c, MB_LOW_RANK, i, normed(c, quad_columns_of(c->t, low, 0, rank), BS_MLA + ASSAY_MLA_KV_NORM, m->epsilon));
    quad_set(c, MB_KEY_ROPE, i, quad_turned(c, quad_columns_of(c->t, low, rank, rope), quad_at(c, MB_ANGLES, i)));
    return 0;
}

static quad_node make_key_value(quad_call *c, int64_t i)
{
    const assay_mla_config *m = c->mla;
    const int64_t nope = m->qk_nope_head_dim, heads = m->heads, width = heads * (nope + m->v_head_dim);
    const quad_node both = layer(c, quad_at(c, MB_LOW_RANK, i), BS_MLA + ASSAY_MLA_WKV_B, width);
    const quad_node shared = quad_repeat(c->t, quad_at(c, MB_KEY_ROPE, i), heads);
    quad_set(c, MB_KEY, i,
             quad_heads_beside(c->t, quad_of_heads(c->t, both, heads, 0, nope),
                               quad_view(c->t, shared, heads * m->rope.dim), heads));
    quad_set(c, MB_VALUE, i, quad_of_heads(c->t, both, heads, nope, m->v_head_dim));
    return 0;
}

/* Rows of the batch are the shards', one after the other. */
static quad_node make_attention(quad_call *c, int64_t i)
{
    const assay_mla_config *m = c->mla;
    const assay_attention_config config = {.batch = c->s.shards * c->s.rows,
                                           .sequence = m->sequence,
                                           .heads = m->heads,
                                           .qk_dim = m->qk_nope_head_dim + m->rope.dim,
                                           .v_dim = m->v_head_dim,
                                           .window = m->window,
                                           .soft_cap = m->soft_cap};
    quad_node lse;
    quad_set(c, MB_ATTN_OUT, i,
             quad_attend(c->t, &config, quad_at(c, MB_QUERY, i), quad_at(c, MB_KEY, i), quad_at(c, MB_VALUE, i), 0,
                         NULL, &lse));
    quad_set(c, MB_LSE, i, lse);
    return 0;
}

/* --- choosing --- */

quad_node quad_choose(quad_call *c, quad_node biased, quad_node scores, int32_t *selected)
{
    quad_tape *t = c->t;
    const assay_routing_config *config = c->routing;
    const int64_t experts = config->num_experts, k = config->num_experts_per_tok, rows = quad_rows(t, biased);
    bool *allowed = quad_keep(t, experts, sizeof *allowed);
    int64_t *index = quad_indices(t, rows * k);
    quad margin;
    for (int64_t row = 0; t->status == ASSAY_OK && row < rows; row++)
        t->status =
            quad_select(t->ctx, config, quad_values(t, biased) + row * experts, allowed, selected + row * k, &margin);
    if (t->status != ASSAY_OK) return 0;
    for (int64_t i = 0; i < rows * k; i++) index[i] = i / k * experts + selected[i];
    const quad_node gathered = quad_view(t, quad_gather(t, quad_view(t, scores, 1), index, rows * k), k);
    return quad_times(t, quad_over_sum(t, gathered, 0), config->routed_scaling_factor);
}

static quad_node make_choice(quad_call *c, int64_t i)
{
    const int64_t experts = c->routing->num_experts, tokens = c->s.shards * c->s.tokens;
    int32_t *selected = quad_keep(c->t, tokens * c->routing->num_experts_per_tok, sizeof *selected);
    const quad_node logits = layer(c, quad_at(c, MB_X_NORM, i), BS_GATE, experts);
    const quad_node scores = quad_map(c->t, logits, QUAD_SIGMOID);
    if (c->recipe->recipe != NULL)
        quad_put_gradient(c->t, "checkpoints/logits_gradient", assay_shape_of(3, c->s.shards, c->s.tokens, experts),
                          logits);
    const quad_node biased = quad_add_row(c->t, scores, quad_weight(c, BS_GATE_BIAS, experts));
    quad_set(c, MB_CHOICE_WEIGHTS, i, quad_choose(c, biased, scores, selected));
    c->integers[MB_CHOICES][i] = selected;
    return 0;
}

/* Of each shard's choices how many are of each expert. */
static int32_t *counts(quad_call *c, const int32_t *choices)
{
    const int64_t experts = c->routing->num_experts, own = c->s.tokens * c->routing->num_experts_per_tok;
    int32_t *sizes = quad_keep(c->t, c->s.shards * experts, sizeof *sizes);
    if (sizes == NULL || choices == NULL) return NULL;
    for (int64_t i = 0; i < c->s.shards * experts; i++) sizes[i] = 0;
    for (int64_t i = 0; i < c->s.shards * own; i++) sizes[i / own * experts + choices[i]]++;
    return sizes;
}

/* What a shard sorts: choice i of those gathered over its expert axis, as a choice of all shards. */
static int64_t gathered(const quad_call *c, int64_t shard, int64_t i)
{
    const int64_t own = c->s.copies / c->s.expert_shards;
    return (shard / c->s.expert_shards * c->s.expert_shards + i / own) * own + i % own;
}

/* A shard's own experts come first. */
static int32_t *roll(quad_call *c, const int32_t *choices)
{
    const int64_t experts = c->routing->num_experts, all = c->s.shards * c->s.copies;
    int32_t *rolled = quad_keep(c->t, all, sizeof *rolled);
    for (int64_t i = 0; rolled != NULL && choices != NULL && i < all; i++) {
        const int64_t shard = i / c->s.copies, first = shard % c->s.expert_shards * c->s.local_experts;
        rolled[i] = (int32_t)((choices[gathered(c, shard, i % c->s.copies)] + experts - first) % experts);
    }
    return rolled;
}

/* Of its own experts the counts of the shards of its expert axis, added. */
static int32_t *own_counts(quad_call *c, const int32_t *all)
{
    const int64_t own = c->s.local_experts, count = c->s.shards * own;
    int32_t *sizes = quad_keep(c->t, count, sizeof *sizes);
    for (int64_t i = 0; sizes != NULL && all != NULL && i < count; i++) {
        const int64_t shard = i / own, place = shard % c->s.expert_shards;
        sizes[i] = 0;
        for (int64_t p = 0; p < c->s.expert_shards; p++)
            sizes[i] += all[(shard - place + p) * c->routing->num_experts + place * own + i % own];
    }
    return sizes;
}

/* --- sorting by expert, and back --- */

/* The choice of all shards in each sorted row of each shard, [M*R], over `each`: 1, or K for the tokens. */
static const int64_t *sorted(quad_call *c, int64_t i, int64_t each)
{
    const int64_t experts = c->routing->num_experts, copies = c->s.copies;
    const int32_t *rolled = quad_integers_at(c, MB_ROLLED, i);
    int32_t *order = quad_keep(c->t, copies + experts, sizeof *order);
    int64_t *choices = quad_indices(c->t, c->s.shards * copies);
    if (choices == NULL || rolled == NULL) return NULL;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        quad_sort_by_expert(copies, rolled + shard * copies, experts, order, order + copies);
        for (int64_t k = 0; k < copies; k++) choices[shard * copies + k] = gathered(c, shard, order[k]) / each;
    }
    return choices;
}

/* --- experts --- */

/* The group of each row of each shard; -1 behind the groups. */
static const int64_t *groups(quad_call *c, int64_t i)
{
    const int32_t *sizes = quad_integers_at(c, MB_OWN_COUNTS, i);
    int64_t *group = quad_indices(c->t, c->s.shards * c->s.copies);
    for (int64_t shard = 0; group != NULL && sizes != NULL && shard < c->s.shards; shard++) {
        int64_t row = shard * c->s.copies, end = row;
        for (int64_t e = 0; e < c->s.local_experts; e++)
            for (end += sizes[shard * c->s.local_experts + e]; row < end; row++) group[row] = e;
        for (; row < (shard + 1) * c->s.copies; row++) group[row] = -1;
    }
    return sizes == NULL ? NULL : group;
}

/* Rows that a shard keeps of gate and up, [capacity,H], are those that were given; if there are more both are computed again. */
static quad_node kept(quad_call *c, bs_tensor tensor, int64_t i, quad_node y)
{
    const int32_t *sizes = quad_integers_at(c, MB_OWN_COUNTS, i);
    const int64_t capacity = c->s.capacity, shards = c->s.shards;
    quad_node *parts = quad_keep(c->t, 2 * shards, sizeof *parts);
    for (int64_t shard = 0; parts != NULL && sizes != NULL && shard < shards; shard++) {
        const quad_node all = quad_of_shard(c, y, shard), first = quad_rows_of(c->t, all, 0, capacity);
        const quad *given = quad_residual(c, tensor, shard, i);
        int64_t rows = 0;
        for (int64_t e = 0; e < c->s.local_experts; e++) rows += sizes[shard * c->s.local_experts + e];
        parts[2 * shard] = given == NULL || rows > capacity ? first : quad_replaced_by(c->t, first, given);
        parts[2 * shard + 1] = quad_rows_of(c->t, all, capacity, c->s.copies - capacity);
    }
    return parts == NULL ? 0 : quad_concatenate(c->t, parts, 2 * shards);
}

/* Merged, the two kernels are side by side, which a recipe quantises together. */
static quad_node make_gating(quad_call *c, int64_t i)
{
    const int64_t width = c->config->stack.moe.moe_mlp_dim, *group = groups(c, i);
    const quad_node x = quad_at(c, MB_ROWS, i);
    const quad_node w[] = {quad_weight(c, BS_ROUTED + ASSAY_MLP_WI_0, width),
                           quad_weight(c, BS_ROUTED + ASSAY_MLP_WI_1, width)};
    const bool merged = c->config->stack.merge_gating_gmm && w[1] != 0;
    const quad_node both = merged ? times(c, x, quad_beside(c->t, w[0], w[1]), group) : 0;
    for (int k = 0; k < 2 && w[k] != 0; k++) {
        const quad_node y = merged ? quad_columns_of(c->t, both, k * width, width) : times(c, x, w[k], group);
        quad_set(c, k == 0 ? MB_GATE : MB_UP, i, kept(c, k == 0 ? MB_MLPWI_0 : MB_MLPWI_1, i, y));
    }
    return 0;
}

static quad_node first_rows(quad_call *c, bs_tensor of, int64_t i)
{
    quad_node *parts = quad_keep(c->t, c->s.shards, sizeof *parts);
    for (int64_t shard = 0; parts != NULL && shard < c->s.shards; shard++)
        parts[shard] = quad_rows_of(c->t, quad_of_shard(c, quad_at(c, of, i), shard), 0, c->s.capacity);
    return parts == NULL ? 0 : quad_concatenate(c->t, parts, c->s.shards);
}

/* silu(w0) w1, weighed, times wo. */
static quad_node routed_out(quad_call *c, int64_t i)
{
    const quad_node w0 = quad_at(c, MB_GATE, i), w1 = quad_at(c, MB_UP, i);
    const quad_node h =
        quad_weigh(c->t, quad_multiply(c->t, quad_map(c->t, w0, QUAD_SILU), w1), quad_at(c, MB_ROW_WEIGHTS, i));
    if (c->recipe->recipe != NULL)
        quad_put(c->t, "checkpoints/intermediate_layer",
                 assay_shape_of(3, c->s.shards, c->s.copies, c->config->stack.moe.moe_mlp_dim), h);
    return times(c, h, quad_weight(c, BS_ROUTED + ASSAY_MLP_WO, c->mla->emb_dim), groups(c, i));
}

static quad_node shared_out(quad_call *c, int64_t i)
{
    const int64_t width = c->config->stack.moe.shared_mlp_dim;
    const assay_shape shape = assay_shape_of(4, c->s.shards, c->s.rows, c->mla->sequence, width);
    const quad_node x = quad_at(c, MB_X_NORM, i), a = layer(c, x, BS_SHARED + ASSAY_MLP_WI_0, width),
                    b = layer(c, x, BS_SHARED + ASSAY_MLP_WI_1, width);
    const quad_node h = quad_multiply(c->t, quad_map(c->t, a, QUAD_SILU), b);
    if (c->recipe->recipe != NULL) {
        quad_put(c->t, "checkpoints/shared_intermediate", shape, h);
        quad_put_gradient(c->t, "checkpoints/shared_mlpwi_0_gradient", shape, a);
        quad_put_gradient(c->t, "checkpoints/shared_mlpwi_1_gradient", shape, b);
    }
    return layer(c, h, BS_SHARED + ASSAY_MLP_WO, c->mla->emb_dim);
}

/* --- the data flow --- */

/* 0: it was set, with what is made beside it. */
static quad_node value(quad_call *c, bs_tensor tensor, int64_t i)
{
    const int64_t dim = c->mla->emb_dim, rows = c->s.shards * c->s.copies, tokens = c->s.shards * c->s.tokens;
    const double epsilon = c->config->stack.epsilon;
    switch (tensor) {
    case MB_COUNTS:
        c->integers[tensor][i] = counts(c, quad_integers_at(c, MB_CHOICES, i));
        return 0;
    case MB_ROLLED:
        c->integers[tensor][i] = roll(c, quad_integers_at(c, MB_CHOICES, i));
        return 0;
    case MB_OWN_COUNTS:
        c->integers[tensor][i] = own_counts(c, quad_integers_at(c, MB_COUNTS, i));
        return 0;
    case MB_LOW_RANK:
    case MB_KEY_ROPE:
        return make_latent(c, i);
    case MB_KEY:
    case MB_VALUE:
        return make_key_value(c, i);
    case MB_ATTN_OUT:
    case MB_LSE:
        return make_attention(c, i);
    case MB_CHOICES:
    case MB_CHOICE_WEIGHTS:
        return make_choice(c, i);
    case MB_GATE:
    case MB_UP:
        return make_gating(c, i);
    case MB_MLA_INPUTS:
        return normed(c, quad_at(c, MB_LAYER_INPUTS, i), BS_PRE_NORM, epsilon);
    case MB_QUERY:
        return query(c, i);
    case MB_OUT_PROJ:
        return layer(c, quad_at(c, MB_ATTN_OUT, i), BS_MLA + ASSAY_MLA_OUT, dim);
    case MB_MLA_OUT:
        return quad_add(c->t, quad_at(c, MB_LAYER_INPUTS, i), quad_at(c, MB_OUT_PROJ, i));
    case MB_X_NORM:
        return normed(c, quad_at(c, MB_MLA_OUT, i), BS_POST_NORM, epsilon);
    case MB_SHARED_OUT:
        return shared_out(c, i);
    case MB_ROWS:
        return quad_gather(c->t, quad_at(c, MB_X_NORM, i), sorted(c, i, c->routing->num_experts_per_tok), rows);
    case MB_ROW_WEIGHTS:
        return quad_gather(c->t, quad_view(c->t, quad_at(c, MB_CHOICE_WEIGHTS, i), 1), sorted(c, i, 1), rows);
    case MB_MLPWI_0:
        return first_rows(c, MB_GATE, i);
    case MB_MLPWI_1:
        return first_rows(c, MB_UP, i);
    case MB_ROUTED_OUT:
        return routed_out(c, i);
    case MB_EXPERTS_OUT: /* every copy of a token on every shard, added */
        return quad_scatter(c->t, quad_at(c, MB_ROUTED_OUT, i), sorted(c, i, c->routing->num_experts_per_tok), tokens);
    case MB_MOE_INPUTS:
        return quad_at(c, MB_MLA_OUT, i);
    case MB_OUTPUTS:
        return quad_add(c->t, quad_at(c, MB_MOE_INPUTS, i),
                        quad_add(c->t, quad_at(c, MB_EXPERTS_OUT, i), quad_at(c, MB_SHARED_OUT, i)));
    default:
        quad_refuse(c->t, "%s has no second form", c->view->name);
        return 0;
    }
}

void quad_make(quad_call *c, bs_tensor tensor, int64_t i)
{
    const quad_node y = value(c, tensor, i);
    if (y != 0) quad_set(c, tensor, i, y);
}
