/* Layers one after the other, each made of the forms of its parts: h = x + attention(rms_norm(x)), y = h + mlp(rms_norm(h)), or a MoE block
 * in the place of the MLP. */
#include <stdio.h>

#include "oracle/quad/quad_blocks.h"

static quad_node normed(quad_tape *t, const assay_stack_config *c, quad_node x, const char *scale)
{
    return quad_normalise(t, x, quad_given(t, scale, 1, quad_columns(t, x)), c->epsilon);
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

/* The MoE half under the batch-split schedule: the plain block's numbers, and where they lie when each shard's batch goes in
 * microbatches, of which every shard gathers the tokens of its expert axis. */
static quad_node batch_split(quad_tape *t, const assay_stack_config *c, quad_node x)
{
    const quad_moe_config both = {.moe = c->moe, .sharding = {.mesh = c->sharding.mesh, .weight_before_wo = true}};
    const quad_router r = quad_route(t, &c->moe.routing, x);
    const quad_spread *spread = quad_spread_make(t, &both, c->batch_split_factor, r.selected);
    if (spread == NULL) return 0;
    int32_t *sizes = quad_put_indices(t, "routing/group_sizes", quad_spread_shape(spread, spread->local_experts));
    for (int64_t i = 0; sizes != NULL && i < spread->shards * spread->parts * spread->local_experts; i++)
        sizes[i] = spread->local_sizes[i];
    return quad_add(t, quad_spread_experts(t, &both, x, &r, spread), quad_shared_of(t, &c->moe, x));
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
    const quad_node given = quad_given(t, "inputs/x", shape.dims[0] * shape.dims[1], shape.dims[2]);
    quad_node x = quad_used_tokens(t, given, latent ? c->mla.mask_padding : c->gqa.mask_padding);
    for (int64_t layer = c->first_layer; layer < c->layers; layer++) {
        const bool is_dense = layer<c->dense_layers, split = c->batch_split_factor> 0 && !is_dense;
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
