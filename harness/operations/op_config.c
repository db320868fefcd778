/* Configurations of the operations from MaxText's keys. */
#include <inttypes.h>
#include <string.h>

#include "cases/decoder_block.h"
#include "harness/operations/op_support.h"

static bool starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

assay_router_family assay_router_family_of(const assay_model_config *m)
{
    const char *name = m->model_name.text, *block = m->decoder_block.text;
    if (m->fused_moe_func) return ASSAY_ROUTER_FUSED;
    const bool deepseek = starts_with(block, "deepseek") || (block[0] == '\0' && starts_with(name, "deepseek"));
    if (!deepseek) return assay_block_router(block);
    if (starts_with(name, "deepseek3") || starts_with(name, "deepseek4")) return ASSAY_ROUTER_DEEPSEEK3;
    if (starts_with(name, "deepseek2")) return ASSAY_ROUTER_DEEPSEEK2;
    const bool softmax = strcmp(m->routed_score_func.text, "softmax") == 0;
    return softmax && !m->routed_bias ? ASSAY_ROUTER_DEEPSEEK2 : ASSAY_ROUTER_DEEPSEEK3;
}

static assay_status score_func_of(assay_context *ctx, const char *name, assay_score_func *score)
{
    static const struct {
        const char *name;
        assay_score_func score;
    } table[] = {{"", ASSAY_SCORE_NONE},
                 {"sigmoid", ASSAY_SCORE_SIGMOID},
                 {"softmax", ASSAY_SCORE_SOFTMAX},
                 {"sqrtsoftplus", ASSAY_SCORE_SQRTSOFTPLUS}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strcmp(name, table[i].name) == 0) {
            *score = table[i].score;
            return ASSAY_OK;
        }
    }
    return assay_fail(ctx, ASSAY_BAD_INPUT,
                      "routed_score_func is \"%s\", expected \"\", sigmoid, softmax or sqrtsoftplus", name);
}

/* top2_sum where there is a bias, else max (DeepSeek's own rule), unless group_score says it outright. */
static assay_status group_score_of(assay_context *ctx, const assay_model_config *m, assay_group_score *score)
{
    const char *name = m->group_score.text;
    if (name[0] == '\0') {
        *score = m->routed_bias ? ASSAY_GROUP_TOP2_SUM : ASSAY_GROUP_MAX;
    } else if (strcmp(name, "top2_sum") == 0) {
        *score = ASSAY_GROUP_TOP2_SUM;
    } else if (strcmp(name, "max") == 0) {
        *score = ASSAY_GROUP_MAX;
    } else {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "group_score is \"%s\", expected top2_sum or max", name);
    }
    return ASSAY_OK;
}

assay_status assay_routing_config_of(assay_context *ctx, const assay_case *c, assay_routing_config *config)
{
    const assay_model_config *m = &c->config;
    assay_status status;
    *config = (assay_routing_config){
        .batch = c->batch,
        .sequence = c->sequence,
        .num_experts = m->num_experts,
        .num_experts_per_tok = m->num_experts_per_tok,
        .n_routing_groups = m->n_routing_groups,
        .topk_routing_group = m->topk_routing_group,
        .routed_scaling_factor = m->routed_scaling_factor,
        .norm_topk_prob = m->norm_topk_prob,
        .renormalize_exactly = m->use_batch_split_schedule,
        .weigh_biased = m->weigh_biased,
        .load_balance_loss_weight = m->fused_moe_func ? 0.0 : m->load_balance_loss_weight,
        .routed_bias_update_rate = m->fused_moe_func ? 0.0 : m->routed_bias_update_rate,
        .hash_rows = m->first_num_hash_layers > 0 ? m->vocab_size : 0,
    };
    TRY(assay_require_positive(ctx, "num_experts", m->num_experts));
    TRY(score_func_of(ctx, m->routed_score_func.text, &config->score_func));
    TRY(group_score_of(ctx, m, &config->group_score));
    if (m->first_num_hash_layers > 0) TRY(assay_require_positive(ctx, "vocab_size", m->vocab_size));
    config->family = assay_router_family_of(m);
    if (config->family == ASSAY_ROUTER_FUSED) {
        /* every family divides by the sum but llama4 and gemma4, which do so when norm_topk_prob says so */
        bool own = strcmp(m->decoder_block.text, "llama4") == 0 || strcmp(m->decoder_block.text, "gemma4") == 0;
        config->norm_topk_prob = m->norm_topk_prob || !own;
        config->n_routing_groups = -1;
        config->hash_rows = 0;
    }
    TRY(assay_routing_check(ctx, config));
cleanup:
    return status;
}

bool assay_has_per_expert_scale(const assay_case *c)
{
    return strcmp(c->config.decoder_block.text, "gemma4") == 0 && !c->config.fused_moe_func;
}

static assay_status activation_of(assay_context *ctx, const assay_model_config *m, int index, assay_activation *f)
{
    const char *name = m->mlp_activations.item[index];
    if (!assay_activation_from_name(name, f)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "mlp_activations[%d] is \"%s\", expected silu, gelu, gelu_exact, relu, sigmoid or linear",
                          index, name);
    }
    return ASSAY_OK;
}

/* GPT-OSS has its own gate; DeepSeek-V4 clamps when there is a limit; everything else is plain. */
static assay_status glu_of(assay_context *ctx, const assay_model_config *m, bool asked, assay_glu *glu)
{
    *glu = ASSAY_GLU_PLAIN;
    if (strcmp(m->decoder_block.text, "gpt_oss") == 0) {
        *glu = ASSAY_GLU_GPT_OSS;
    } else if (m->mlp_activations_limit > 0.0 &&
               (asked || assay_block_has(m->decoder_block.text, ASSAY_BLOCK_CLAMPS))) {
        *glu = ASSAY_GLU_CLAMPED;
    }
    if (*glu == ASSAY_GLU_GPT_OSS && !(m->mlp_activations_limit > 0.0)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "mlp_activations_limit is %g, expected above 0 with decoder_block gpt_oss",
                          m->mlp_activations_limit);
    }
    if (*glu == ASSAY_GLU_GPT_OSS && strcmp(m->mlp_activations.item[0], "sigmoid") != 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "mlp_activations[0] is \"%s\", expected sigmoid with decoder_block gpt_oss",
                          m->mlp_activations.item[0]);
    }
    return ASSAY_OK;
}

assay_status assay_mlp_config_of(assay_context *ctx, const assay_case *c, assay_gated_mlp_config *config)
{
    const assay_model_config *m = &c->config;
    assay_status status;
    *config = (assay_gated_mlp_config){.rows = c->batch * c->sequence,
                                       .emb_dim = m->base_emb_dim,
                                       .mlp_dim = m->base_mlp_dim,
                                       .limit = m->mlp_activations_limit,
                                       .fused = m->fused_mlp};
    TRY(assay_require_positive(ctx, "base_emb_dim", m->base_emb_dim));
    TRY(assay_require_positive(ctx, "base_mlp_dim", m->base_mlp_dim));
    TRY(activation_of(ctx, m, 0, &config->activation[0]));
    TRY(activation_of(ctx, m, 1, &config->activation[1]));
    TRY(glu_of(ctx, m, true, &config->glu));
cleanup:
    return status;
}

static assay_moe_path path_of(const assay_model_config *m)
{
    if (m->fused_moe_func) return ASSAY_MOE_FUSED;
    if (m->sparse_matmul) return ASSAY_MOE_SPARSE;
    return m->capacity_factor > 0.0 ? ASSAY_MOE_DROPPING : ASSAY_MOE_DENSE;
}

assay_status assay_moe_config_of(assay_context *ctx, const assay_case *c, assay_moe_config *config)
{
    const assay_model_config *m = &c->config;
    assay_status status;
    *config = (assay_moe_config){.emb_dim = m->base_emb_dim,
                                 .moe_mlp_dim = m->base_moe_mlp_dim,
                                 .path = path_of(m),
                                 .capacity_factor = m->capacity_factor,
                                 .limit = m->mlp_activations_limit,
                                 .fused_weights = m->prefuse_moe_weights || m->fused_moe_mlp || m->fused_moe_func};
    const char *fused_key = m->prefuse_moe_weights ? "prefuse_moe_weights" : "fused_moe_mlp";
    if ((m->prefuse_moe_weights || m->fused_moe_mlp) && !m->sparse_matmul) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s needs sparse_matmul=true, found sparse_matmul=false", fused_key);
    }
    TRY(assay_require_positive(ctx, "base_emb_dim", m->base_emb_dim));
    TRY(assay_require_positive(ctx, "base_moe_mlp_dim", m->base_moe_mlp_dim));
    TRY(activation_of(ctx, m, 0, &config->activation));
    TRY(glu_of(ctx, m, false, &config->glu));
    TRY(assay_routing_config_of(ctx, c, &config->routing));
    if (m->shared_experts > 0) {
        /* gemma4's shared expert has the width of a dense layer */
        bool gemma4 = strcmp(m->decoder_block.text, "gemma4") == 0;
        if (gemma4) TRY(assay_require_positive(ctx, "base_mlp_dim", m->base_mlp_dim));
        config->shared_mlp_dim = gemma4 ? m->base_mlp_dim : m->shared_experts * m->base_moe_mlp_dim;
    }
    TRY(assay_moe_check(ctx, config));
cleanup:
    return status;
}

assay_status assay_rope_config_of(assay_context *ctx, const assay_case *c, assay_rope_config *config)
{
    const assay_model_config *m = &c->config;
    const bool yarn = strcmp(m->rope_type.text, "yarn") == 0;
    *config = (assay_rope_config){
        .dim = m->qk_rope_head_dim,
        .yarn = yarn,
        .rope_max_timescale = m->rope_max_timescale,
        .rope_factor = m->rope_factor,
        .beta_fast = m->beta_fast,
        .beta_slow = m->beta_slow,
        .max_position_embeddings = m->max_position_embeddings,
        .original_max_position_embeddings = m->original_max_position_embeddings,
        .interleave = m->rope_interleave,
        .truncate = m->rope_truncate,
        .attention_scaling = yarn && m->rope_attention_scaling,
        .pairwise = m->rope_pairwise,
    };
    if (!yarn && strcmp(m->rope_type.text, "default") != 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "rope_type is \"%s\", expected default or yarn", m->rope_type.text);
    }
    assay_status status = assay_rope_check(ctx, config);
    RETURN_IF(status != ASSAY_OK, status);
    /* neither start nor step is negative; explicit positions are checked where they are read */
    const int64_t first = c->position_start, last = first + c->position_step * (c->sequence - 1);
    if (assay_case_input_of(c, "inputs/positions") == NULL && last >= config->max_position_embeddings) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "positions go from %" PRId64 " to %" PRId64 ", expected 0 to %" PRId64
                          " (max_position_embeddings)",
                          first, last, config->max_position_embeddings - 1);
    }
    return ASSAY_OK;
}

assay_status assay_attention_config_of(assay_context *ctx, const assay_case *c, assay_attention_config *config)
{
    const assay_model_config *m = &c->config;
    assay_status status;
    *config = (assay_attention_config){.batch = c->batch,
                                       .sequence = c->sequence,
                                       .heads = m->base_num_query_heads,
                                       .qk_dim = m->qk_nope_head_dim + m->qk_rope_head_dim,
                                       .v_dim = m->v_head_dim,
                                       .mask_padding = m->mask_padding};
    TRY(assay_require_positive(ctx, "base_num_query_heads", config->heads));
    TRY(assay_require_positive(ctx, "qk_nope_head_dim", m->qk_nope_head_dim));
    TRY(assay_require_positive(ctx, "qk_rope_head_dim", m->qk_rope_head_dim));
    TRY(assay_require_positive(ctx, "v_head_dim", config->v_dim));
cleanup:
    return status;
}

assay_status assay_mla_config_of(assay_context *ctx, const assay_case *c, assay_mla_config *config)
{
    const assay_model_config *m = &c->config;
    assay_status status;
    *config = (assay_mla_config){.batch = c->batch,
                                 .sequence = c->sequence,
                                 .emb_dim = m->base_emb_dim,
                                 .heads = m->base_num_query_heads,
                                 .qk_nope_head_dim = m->qk_nope_head_dim,
                                 .v_head_dim = m->v_head_dim,
                                 .q_lora_rank = m->q_lora_rank,
                                 .kv_lora_rank = m->kv_lora_rank,
                                 .epsilon = m->normalization_layer_epsilon,
                                 .mscale = m->mscale,
                                 .mask_padding = m->mask_padding};
    TRY(assay_rope_config_of(ctx, c, &config->rope));
    TRY(assay_mla_check(ctx, config));
cleanup:
    return status;
}

static assay_status remat_policy_of(assay_context *ctx, const assay_model_config *m, assay_remat_policy *policy)
{
    const char *texts[ASSAY_REMAT_NAMES];
#define X(code, name) texts[ASSAY_REMAT_##code] = m->name.text;
    ASSAY_REMAT_TABLE(X)
#undef X
    return assay_remat_policy_make(ctx, policy, m->remat_policy.text, texts);
}

/* A fixture has some hundred datasets for each. */
enum { LAYERS_MAX = 1000 };

assay_status assay_stack_config_of(assay_context *ctx, const assay_case *c, assay_stack_config *config)
{
    const assay_model_config *m = &c->config;
    const bool single = strcmp(c->op, "deepseek_layer") == 0;
    assay_status status;
    *config = (assay_stack_config){.layers = single ? 1 : m->base_num_decoder_layers,
                                   .dense_layers = m->first_num_dense_layers,
                                   .single = single,
                                   .epsilon = m->normalization_layer_epsilon};
    if (config->layers < 1 || config->layers > LAYERS_MAX) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "base_num_decoder_layers is %" PRId64 ", expected 1 to %d",
                          config->layers, LAYERS_MAX);
    }
    if (config->dense_layers > config->layers) config->dense_layers = config->layers;
    TRY(assay_mla_config_of(ctx, c, &config->mla));
    if (m->first_num_hash_layers > 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "first_num_hash_layers is %" PRId64 ", expected 0: op %s has no input_ids for hash routing",
                          m->first_num_hash_layers, c->op);
    }
    if (config->dense_layers > 0) TRY(assay_mlp_config_of(ctx, c, &config->mlp));
    if (config->dense_layers < config->layers) TRY(assay_moe_config_of(ctx, c, &config->moe));
    TRY(assay_sharding_of(ctx, c, &config->sharding));
    if (m->weights_on_shards && config->dense_layers == config->layers) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "weights_on_shards needs a layer of experts, found %" PRId64 " dense ones", config->layers);
    }
    if (m->use_batch_split_schedule && config->dense_layers < config->layers) {
        config->batch_split_factor = m->batch_split_factor;
        if (!m->routed_bias || m->mlp_bias) {
            return assay_fail(ctx, ASSAY_BAD_INPUT, "use_batch_split_schedule needs %s",
                              m->mlp_bias ? "mlp_bias=false" : "routed_bias=true");
        }
    }
    TRY(remat_policy_of(ctx, m, &config->policy));
    TRY(assay_stack_check(ctx, config));
cleanup:
    return status;
}
