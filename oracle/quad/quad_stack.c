/* Layers one after the other, each made of the forms of its parts: h = x + attention(rms_norm(x)), y = h + mlp(rms_norm(h)), or a MoE block
 * in the place of the MLP. */
#include <stdio.h>

#include "oracle/quad/quad_blocks.h"

static quad_node normed(quad_tape *t, const assay_stack_config *c, quad_node x, const char *scale)
{
    return quad_normalise(t, x, quad_input(t, scale, 1, quad_columns(t, x)), c->epsilon);
}

/* GPT-OSS: sliding windows in the first layer of each two. */
static quad_node attention(quad_tape *t, const assay_stack_config *c, int64_t layer, quad_node x)
{
    const quad_mla_config mla = {.mla = c->mla};
    quad_gqa_config gqa = {.gqa = c->gqa};
    const bool without =
        (c->windows == ASSAY_WINDOWS_EVEN && layer % 2 != 0) || (c->windows == ASSAY_WINDOWS_ODD && layer % 2 == 0);
    if (without) gqa.gqa.window = 0;
    t->block = "self_attention/";
    const quad_node y = c->attention == ASSAY_LAYER_MLA ? quad_mla_of(t, &mla, x) : quad_gqa_of(t, &gqa, x);
    t->block = NULL;
    return y;
}

static quad_node dense(quad_tape *t, const assay_stack_config *c, assay_shape shape, quad_node x)
{
    quad_mlp m = {.config = c->mlp};
    const quad_mlp_layout layout = {.rows = assay_shape_of(2, shape.dims[0], shape.dims[1])};
    t->block = "mlp/";
    quad_mlp_weights(t, &m, ASSAY_MLP_DENSE, 1);
    quad_mlp_run(t, &m, x);
    quad_put_mlp(t, &m, ASSAY_MLP_DENSE, &layout);
    t->block = NULL;
    return m.y;
}

/* --- under the batch-split schedule --- */

/* The tokens of each shard's microbatches, which a recipe quantises apart. */
static const quad_pieces *microbatches(quad_tape *t, const assay_stack_config *c)
{
    const assay_batch_split_sizes s = assay_batch_split_sizes_of(c);
    const int64_t all = c->mla.batch * c->mla.sequence, length = c->mla.sequence;
    quad_pieces *pieces = quad_keep(t, 1, sizeof *pieces);
    int64_t *rows = quad_indices(t, all), *places = quad_indices(t, all);
    if (c->moe.recipe.recipe == NULL || pieces == NULL || rows == NULL || places == NULL) return NULL;
    *pieces = (quad_pieces){.count = s.shards * c->batch_split_factor, .each = s.tokens, .rows = rows, .place = places};
    for (int64_t i = 0; i < all; i++) {
        const int64_t piece = i / s.tokens, row = i % s.tokens / length;
        const int64_t shard = piece / c->batch_split_factor, part = piece % c->batch_split_factor;
        rows[i] = ((shard * s.rows + row) * c->batch_split_factor + part) * length + i % length;
        places[rows[i]] = i;
    }
    return pieces;
}

/* What a recipe quantises of the schedule's experts: rows of each shard's microbatch, [M,f,R]. */
typedef struct routed_rows {
    const quad_sharding *sharding;
    int64_t count, *choice, *token, *group; /* of all of them; group: of the shard's own experts, -1: another's */
} routed_rows;

static void list_rows(quad_tape *t, const quad_sharding *s, routed_rows *r)
{
    *r = (routed_rows){.sharding = s, .count = s->shards * s->parts * s->copies};
    r->choice = quad_indices(t, r->count);
    r->token = quad_indices(t, r->count);
    r->group = quad_indices(t, r->count);
    for (int64_t at = 0; t->status == ASSAY_OK && at < s->shards * s->parts; at++) {
        int64_t expert = 0, end = s->local_sizes[at * s->local_experts];
        for (int64_t row = 0; row < s->copies; row++) {
            const int64_t i = at * s->copies + row;
            while (expert < s->local_experts && row >= end)
                end += ++expert < s->local_experts ? s->local_sizes[at * s->local_experts + expert] : 0;
            r->choice[i] = quad_sharding_choice(s, at / s->parts, at % s->parts, row);
            r->token[i] = r->choice[i] < 0 ? -1 : r->choice[i] / s->per_token;
            r->group[i] = expert < s->local_experts ? expert : -1;
        }
    }
}

/* x [M*f*R,k] times kernels [E*k,n], of each piece those of its shard's experts. */
static quad_node experts(quad_tape *t, const assay_stack_config *c, const routed_rows *r, quad_node x,
                         quad_node kernels)
{
    const quad_sharding *s = r->sharding;
    const int64_t pieces = s->shards * s->parts, width = quad_rows(t, kernels) / s->expert_shards;
    quad_node *parts = quad_keep(t, pieces, sizeof *parts);
    for (int64_t at = 0; parts != NULL && at < pieces; at++) {
        const int64_t place = at / s->parts % s->expert_shards;
        parts[at] = quad_linear(t, (quad_layer){.x = quad_rows_of(t, x, at * s->copies, s->copies),
                                                .w = quad_rows_of(t, kernels, place * width, width),
                                                .groups = s->local_experts,
                                                .group = r->group + at * s->copies,
                                                .recipe = &c->moe.recipe,
                                                .counts_all = true});
    }
    return parts == NULL ? 0 : quad_concatenate(t, parts, pieces);
}

/* The routed experts by a recipe: h is weighed before it is quantised. */
static quad_node quantised_experts(quad_tape *t, const assay_stack_config *c, const quad_sharding *sharding,
                                   quad_node x, const quad_router *router)
{
    const quad_moe_config both = {.moe = c->moe};
    const int64_t width = c->moe.moe_mlp_dim;
    const assay_shape shape = assay_shape_of(4, sharding->shards, sharding->parts, sharding->copies, width);
    quad_mlp m;
    routed_rows r;
    quad_node up[2];
    quad_experts_of(t, &both, &m);
    list_rows(t, sharding, &r);
    if (t->status != ASSAY_OK) return 0;
    const quad_node rows = quad_gather(t, x, r.token, r.count);
    const quad_node w[] = {m.w[ASSAY_MLP_WI_0], m.w[ASSAY_MLP_WI_1]};
    if (c->merge_gating_gmm) {
        const quad_node sum = experts(t, c, &r, rows, quad_beside(t, w[0], w[1]));
        for (int i = 0; i < 2; i++) up[i] = quad_columns_of(t, sum, i * width, width);
    } else {
        for (int i = 0; i < 2; i++) up[i] = experts(t, c, &r, rows, w[i]);
    }
    const quad_node weights = quad_gather(t, quad_view(t, router->weights, 1), r.choice, r.count);
    const quad_node h = quad_weigh(t, quad_multiply(t, quad_map(t, up[0], QUAD_SILU), up[1]), weights);
    quad_put(t, "checkpoints/moe_mlpwi_0", shape, up[0]);
    quad_put(t, "checkpoints/moe_mlpwi_1", shape, up[1]);
    quad_put(t, "checkpoints/intermediate_layer", shape, h);
    quad_put_gradient(t, "checkpoints/layer_w0_gradient", shape, up[0]);
    quad_put_gradient(t, "checkpoints/layer_w1_gradient", shape, up[1]);
    const quad_node y = experts(t, c, &r, h, m.w[ASSAY_MLP_WO]);
    return quad_scatter(t, y, r.token, quad_tokens(&c->moe.routing));
}

static quad_node quantised_shared(quad_tape *t, const assay_stack_config *c, quad_node x)
{
    const assay_shape shape = assay_shape_of(3, c->mla.batch, c->mla.sequence, c->moe.shared_mlp_dim);
    quad_mlp m = {.config = {.emb_dim = c->moe.emb_dim,
                             .mlp_dim = c->moe.shared_mlp_dim,
                             .activation = {c->moe.activation, ASSAY_LINEAR},
                             .recipe = c->moe.recipe}};
    quad_mlp_weights(t, &m, ASSAY_MLP_SHARED, 1);
    quad_mlp_run(t, &m, x);
    quad_put(t, "checkpoints/shared_intermediate", shape, m.h);
    quad_put_gradient(t, "checkpoints/shared_mlpwi_0_gradient", shape, m.a);
    quad_put_gradient(t, "checkpoints/shared_mlpwi_1_gradient", shape, m.b);
    return m.y;
}

/* The gate is a layer like the others by a recipe that quantises forward. */
static quad_router route_by_recipe(quad_tape *t, const assay_stack_config *c, quad_node x)
{
    const assay_routing_config *routing = &c->moe.routing;
    const int64_t tokens = quad_tokens(routing), experts = routing->num_experts;
    const assay_quant_recipe *recipe = c->moe.recipe.recipe;
    if (recipe == NULL || recipe->x.scales == ASSAY_SCALES_NONE ||
        quad_input_optional(t, "inputs/routing_weights", tokens, routing->num_experts_per_tok) != 0)
        return quad_route(t, routing, x);
    const quad_node kernel = quad_input(t, "weights/gate/kernel", c->moe.emb_dim, experts);
    const quad_node logits = quad_linear(t, (quad_layer){.x = x, .w = kernel, .recipe = &c->moe.recipe});
    quad_put_gradient(t, "checkpoints/logits_gradient", assay_shape_of(3, routing->batch, routing->sequence, experts),
                      logits);
    return quad_route_by(t, routing, logits);
}

/* The MoE half under the batch-split schedule: the plain block's numbers, and where they lie when each shard's batch goes in
 * microbatches, of which every shard gathers the tokens of its expert axis. */
static quad_node batch_split(quad_tape *t, const assay_stack_config *c, quad_node x)
{
    const quad_moe_config both = {.moe = c->moe, .sharding = {.mesh = c->sharding.mesh, .weight_before_wo = true}};
    const bool quantises = c->moe.recipe.recipe != NULL;
    const quad_router r = route_by_recipe(t, c, x);
    const quad_sharding *sharding = quad_sharding_make(t, &both, c->batch_split_factor, r.selected);
    if (sharding == NULL) return 0;
    int32_t *sizes = quad_put_indices(t, "routing/group_sizes", quad_sharding_shape(sharding, sharding->local_experts));
    for (int64_t i = 0; sizes != NULL && i < sharding->shards * sharding->parts * sharding->local_experts; i++)
        sizes[i] = sharding->local_sizes[i];
    if (quantises) {
        const quad_node shared = quantised_shared(t, c, x);
        t->pieces = NULL; /* rows of experts are their shards' */
        return quad_add(t, quantised_experts(t, c, sharding, x, &r), shared);
    }
    return quad_add(t, quad_sharding_experts(t, &both, x, &r, r.selected, sharding), quad_shared_of(t, &c->moe, x));
}

static quad_node moe(quad_tape *t, const assay_stack_config *c, quad_node x)
{
    const quad_moe_config both = {.moe = c->moe, .sharding = c->sharding};
    t->block = "moe/";
    const quad_node y = c->batch_split_factor > 0 ? batch_split(t, c, x) : quad_moe_of(t, &both, x);
    t->block = NULL;
    return y;
}

void quad_stack(quad_tape *t, const void *config)
{
    const assay_stack_config *c = config;
    const bool latent = c->attention == ASSAY_LAYER_MLA;
    const assay_shape shape = latent ? assay_shape_of(3, c->mla.batch, c->mla.sequence, c->mla.emb_dim)
                                     : assay_shape_of(3, c->gqa.batch, c->gqa.sequence, c->gqa.emb_dim);
    const quad_node given = quad_input(t, "inputs/x", shape.dims[0] * shape.dims[1], shape.dims[2]);
    quad_node x = quad_used_tokens(t, given, latent ? c->mla.mask_padding : c->gqa.mask_padding);
    const quad_pieces *pieces = c->batch_split_factor > 0 ? microbatches(t, c) : NULL;
    for (int64_t layer = c->first_layer; layer < c->layers; layer++) {
        const bool is_dense = layer<c->dense_layers, split = c->batch_split_factor> 0 && !is_dense;
        t->pieces = split ? pieces : NULL;
        if (!c->single) snprintf(t->prefix, sizeof t->prefix, "layers/%lld/", (long long)layer);
        quad_put(t, "checkpoints/decoder_layer_input", shape, x);
        quad_put_gradient(t, "gradients/checkpoints/decoder_layer_input", shape, x);
        const quad_node h =
            quad_add(t, x, attention(t, c, layer, normed(t, c, x, "weights/pre_self_attention_layer_norm/scale")));
        if (split) quad_put(t, "checkpoints/mla_out", shape, h);
        const quad_node of_mlp = normed(t, c, h, "weights/post_self_attention_layer_norm/scale");
        x = quad_add(t, h, is_dense ? dense(t, c, shape, of_mlp) : moe(t, c, of_mlp));
    }
    t->prefix[0] = '\0';
    quad_put(t, "outputs/y", shape, x);
}
