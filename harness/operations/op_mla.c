#include "harness/operations/op_block.h"
#include "oracle/mesh/head_shards.h"

double assay_latent_epsilon_of(const assay_model_config *m)
{
    return m->latent_norm_epsilon == -1.0 ? m->normalization_layer_epsilon : m->latent_norm_epsilon;
}

assay_status assay_mla_config_of(assay_context *ctx, const assay_case *c, assay_mla_config *config)
{
    const assay_model_config *m = &c->config;
    *config = (assay_mla_config){.batch = c->batch,
                                 .sequence = c->sequence,
                                 .emb_dim = m->base_emb_dim,
                                 .heads = m->base_num_query_heads,
                                 .qk_nope_head_dim = m->qk_nope_head_dim,
                                 .v_head_dim = m->v_head_dim,
                                 .q_lora_rank = m->q_lora_rank,
                                 .kv_lora_rank = m->kv_lora_rank,
                                 .epsilon = assay_latent_epsilon_of(m),
                                 .mscale = m->mscale,
                                 .query_scale = m->query_pre_attn_scalar,
                                 .mask_padding = m->mask_padding,
                                 .soft_cap = m->attn_logits_soft_cap,
                                 .variant = m->attention_variant};
    MUST(assay_window_of(ctx, m, &config->window));
    MUST(assay_rope_config_of(ctx, c, &config->rope));
    return assay_mla_check(ctx, config);
}

static assay_status config_of(assay_context *ctx, const assay_case *c, void *to)
{
    quad_mla_config *config = to;
    assay_mla_config *mla = &config->mla;
    config->mesh = assay_mesh_of(c);
    MUST(assay_mla_config_of(ctx, c, mla));
    MUST(assay_linear_recipe_of(ctx, c, &mla->recipe));
    MUST(assay_head_shards_check(ctx, "mla", &config->mesh, mla->heads, mla->heads, mla->batch));
    return assay_check_head_mesh(ctx, c);
}

static void graph_of(const void *config, graph *g)
{
    assay_mla_graph(g, &((const quad_mla_config *)config)->mla);
}

const assay_operation assay_op_mla = {.name = "mla",
                                      .components = ASSAY_USES_ATTENTION | ASSAY_USES_LATENT | ASSAY_USES_ROPE,
                                      .summary = "multi-head latent attention with YaRN",
                                      .config_of = config_of,
                                      .graph = graph_of,
                                      .used_rows = assay_block_used_rows,
                                      .mesh = true,
                                      .quantised = true,
                                      .second_form = {.form = quad_mla}};
