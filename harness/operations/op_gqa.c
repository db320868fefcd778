#include <math.h>

#include "cases/decoder_block.h"
#include "harness/operations/op_block.h"
#include "oracle/mesh/head_shards.h"

double assay_query_scale_of(const assay_model_config *m)
{
    if (m->query_pre_attn_scalar != 0) return m->query_pre_attn_scalar;
    return assay_block_has(m->decoder_block.text, ASSAY_BLOCK_SCALES_QUERY) ? 1 / sqrt((double)m->head_dim) : 1;
}

assay_status assay_gqa_config_of(assay_context *ctx, const assay_case *c, assay_gqa_config *config)
{
    const assay_model_config *m = &c->config;
    *config = (assay_gqa_config){.batch = c->batch,
                                 .sequence = c->sequence,
                                 .emb_dim = m->base_emb_dim,
                                 .heads = m->base_num_query_heads,
                                 .kv_heads = m->base_num_kv_heads > 0 ? m->base_num_kv_heads : m->base_num_query_heads,
                                 .head_dim = m->head_dim,
                                 .query_scale = assay_query_scale_of(m),
                                 .fused_qkv = m->fused_qkv,
                                 .bias = m->attention_bias,
                                 .qk_norm = m->use_qk_norm,
                                 .sinks = m->attention_sink,
                                 .epsilon = assay_latent_epsilon_of(m),
                                 .mask_padding = m->mask_padding,
                                 .soft_cap = m->attn_logits_soft_cap,
                                 .variant = m->attention_variant};
    MUST(assay_require_positive(ctx, "head_dim", m->head_dim));
    if (m->head_dim % 2 != 0 || m->head_dim > ASSAY_ROPE_DIM_MAX) {
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_head_dim, "an even number from 2 to %d", ASSAY_ROPE_DIM_MAX);
    }
    MUST(assay_window_of(ctx, m, &config->window));
    MUST(assay_key_rope_config_of(ctx, c, &config->rope));
    return assay_gqa_check(ctx, config);
}

static assay_status config_of(assay_context *ctx, const assay_case *c, void *to)
{
    quad_gqa_config *config = to;
    assay_gqa_config *gqa = &config->gqa;
    config->mesh = assay_mesh_of(c);
    MUST(assay_gqa_config_of(ctx, c, gqa));
    MUST(assay_linear_recipe_of(ctx, c, &gqa->recipe));
    MUST(assay_head_shards_check(ctx, "gqa", &config->mesh, gqa->heads, gqa->kv_heads, gqa->batch));
    return assay_check_head_mesh(ctx, c);
}

static void graph_of(const void *config, graph *g)
{
    assay_gqa_graph(g, &((const quad_gqa_config *)config)->gqa);
}

const assay_operation assay_op_gqa = {.name = "gqa",
                                      .components = ASSAY_USES_ATTENTION | ASSAY_USES_SHARING | ASSAY_USES_GROUPED |
                                                    ASSAY_USES_ROPE,
                                      .summary = "grouped-query attention with its projections, windows and sinks",
                                      .config_of = config_of,
                                      .graph = graph_of,
                                      .used_rows = assay_block_used_rows,
                                      .mesh = true,
                                      .quantised = true,
                                      .second_form = {.form = quad_gqa}};
