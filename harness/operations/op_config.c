/* Configurations of the operations from MaxText's keys. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "cases/decoder_block.h"
#include "cases/routing_method.h"
#include "harness/operations/op_support.h"

static bool starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

assay_router_family assay_router_family_of(const assay_model_config *m)
{
    const char *name = m->model_name.text, *block = m->decoder_block.text;
    const assay_routing_method *method = assay_routing_method_by_name(m->routing_method.text);
    if (m->fused_moe_func) return ASSAY_ROUTER_FUSED;
    if (method != NULL) return method->router;
    const bool deepseek = starts_with(block, "deepseek") || (block[0] == '\0' && starts_with(name, "deepseek"));
    if (!deepseek) return assay_block_router(block);
    if (starts_with(name, "deepseek3") || starts_with(name, "deepseek4")) return ASSAY_ROUTER_DEEPSEEK3;
    if (starts_with(name, "deepseek2")) return ASSAY_ROUTER_DEEPSEEK2;
    const bool softmax = strcmp(m->routed_score_func.text, "softmax") == 0;
    return softmax && !m->routed_bias ? ASSAY_ROUTER_DEEPSEEK2 : ASSAY_ROUTER_DEEPSEEK3;
}

static assay_status score_func_of(assay_context *ctx, const char *name, assay_score_func *score)
{
    for (*score = ASSAY_SCORE_NONE; *score <= ASSAY_SCORE_SQRTSOFTPLUS; ++*score)
        if (strcmp(name, assay_score_func_name(*score)) == 0) return ASSAY_OK;
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

static assay_status balance_scope_of(assay_context *ctx, const assay_model_config *m, assay_balance_scope *scope)
{
    static const char *const names[] = {
        [ASSAY_BALANCE_SEQUENCE] = "sequence", [ASSAY_BALANCE_BATCH] = "batch", [ASSAY_BALANCE_GLOBAL] = "global"};
    const char *name = m->load_balance_loss_scope.text;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        *scope = (assay_balance_scope)i;
        if (strcmp(name, names[i]) == 0) return ASSAY_OK;
    }
    return assay_fail(ctx, ASSAY_BAD_INPUT, "load_balance_loss_scope is \"%s\", expected sequence, batch or global",
                      name);
}

assay_status assay_routing_config_of(assay_context *ctx, const assay_case *c, assay_routing_config *config)
{
    const assay_model_config *m = &c->config;
    *config = (assay_routing_config){
        .batch = c->batch,
        .sequence = c->sequence,
        .num_experts = m->num_experts,
        .num_experts_per_tok = m->num_experts_per_tok,
        .n_routing_groups = m->n_routing_groups,
        .topk_routing_group = m->topk_routing_group,
        .top_k_in_group = m->top_k_in_group,
        .routed_scaling_factor = m->routed_scaling_factor,
        .norm_topk_prob = m->norm_topk_prob,
        .use_random_routing = m->use_random_routing,
        .renormalize_exactly = m->use_batch_split_schedule,
        .weigh_biased = m->weigh_biased,
        .undivided = m->undivided,
        .masked_at_zero = m->masked_at_zero,
        .division_detached = m->division_detached,
        .load_balance_loss_weight = m->fused_moe_func ? 0.0 : m->load_balance_loss_weight,
        .balance_pre_bias = m->load_balance_loss_pre_bias,
        .z_loss_weight = m->router_z_loss_weight,
        .routed_bias_update_rate = m->fused_moe_func ? 0.0 : m->routed_bias_update_rate,
        .hash_rows = m->first_num_hash_layers > 0 ? m->vocab_size : 0,
    };
    MUST(assay_require_positive(ctx, "num_experts", m->num_experts));
    MUST(score_func_of(ctx, m->routed_score_func.text, &config->score_func));
    MUST(group_score_of(ctx, m, &config->group_score));
    MUST(balance_scope_of(ctx, m, &config->balance_scope));
    if (m->first_num_hash_layers > 0) MUST(assay_require_positive(ctx, "vocab_size", m->vocab_size));
    config->family = assay_router_family_of(m);
    const assay_routing_method *method = assay_routing_method_by_name(m->routing_method.text);
    if (method != NULL) {
        config->score_func = method->score_func;
        config->norm_topk_prob = (method->has & ASSAY_METHOD_DIVIDES) != 0;
        config->undivided |= config->score_func != ASSAY_SCORE_NONE && !config->norm_topk_prob;
        config->select_by_logits = (method->has & ASSAY_METHOD_BY_LOGITS) != 0;
    }
    if (config->family == ASSAY_ROUTER_FUSED) {
        /* every family divides by the sum but llama4 and gemma4, which do so when norm_topk_prob says so */
        bool own = strcmp(m->decoder_block.text, "llama4") == 0 || strcmp(m->decoder_block.text, "gemma4") == 0;
        config->norm_topk_prob = m->norm_topk_prob || !own;
        config->n_routing_groups = -1;
        config->hash_rows = 0;
    }
    return assay_routing_check(ctx, config);
}

bool assay_has_per_expert_scale(const assay_case *c)
{
    const assay_model_config *m = &c->config;
    return strcmp(m->decoder_block.text, "gemma4") == 0 && !m->fused_moe_func && !m->use_random_routing &&
           m->routing_method.text[0] == '\0';
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

static assay_status calibration_of(assay_context *ctx, int key, const assay_model_config *m, assay_calibration *to)
{
    char text[ASSAY_KEY_VALUE_SIZE];
    const assay_text *value = (const assay_text *)((const char *)m + assay_model_keys[key].offset);
    if (assay_calibration_of(value->text, to)) return ASSAY_OK;
    assay_model_key_text(&assay_model_keys[key], m, text, sizeof text);
    return assay_fail(ctx, ASSAY_BAD_INPUT,
                      "%s is %.80s, expected absmax, absmax,FACTOR, fixed,MAX or fixed,-MAX,MAX: quant_recipe %s has "
                      "scales without a zero point, and the root of a mean is no exact number",
                      assay_model_keys[key].name, text, m->quant_recipe.text);
}

assay_status assay_require_absmax(assay_context *ctx, const assay_model_config *m, const char *who, const char *why)
{
    for (int key = ASSAY_KEY_AT_act_quantization_calibration_method;
         key <= ASSAY_KEY_AT_bwd_quantization_calibration_method; key++) {
        const assay_text *method = (const assay_text *)((const char *)m + assay_model_keys[key].offset);
        if (strcmp(method->text, "absmax") == 0) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s is %s, expected absmax: %s %s", assay_model_keys[key].name,
                          method->text, who, why);
    }
    return ASSAY_OK;
}

/* Blocks have the recipe's own scales. */
static assay_status refuse_calibrations(assay_context *ctx, const assay_model_config *m)
{
    char who[ASSAY_TEXT_SIZE + 16];
    snprintf(who, sizeof who, "quant_recipe %s", m->quant_recipe.text);
    const assay_status status = assay_require_absmax(ctx, m, who, "has scales of blocks");
    if (status != ASSAY_OK || strcmp(m->quant_scale_rounding.text, "down") != 0) return status;
    return assay_refuse_key(ctx, m, ASSAY_KEY_AT_quant_scale_rounding, "nearest or up: quant_recipe is %s",
                            m->quant_recipe.text);
}

/* What the recipe quantises is given as numbers. */
static assay_status refuse_formats(assay_context *ctx, const assay_case *c, const assay_quant_recipe *recipe)
{
    const bool forward = recipe->x.scales != ASSAY_SCALES_NONE;
    for (int i = 0; i < c->quant_format_count; i++) {
        const char *path = c->quant_formats[i].path;
        if (!forward && assay_role_of(path) != ASSAY_ROLE_COTANGENT) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT, "quant_formats has %s, expected none: quant_recipe %s quantises it",
                          path, recipe->name);
    }
    if (!forward || c->config.quant_hidden_format.text[0] == '\0') return ASSAY_OK;
    return assay_refuse_key(ctx, &c->config, ASSAY_KEY_AT_quant_hidden_format, "\"\": quant_recipe %s quantises h",
                            recipe->name);
}

assay_status assay_quant_recipe_config_of(assay_context *ctx, const assay_case *c, assay_quant_recipe_config *config)
{
    const assay_model_config *m = &c->config;
    *config = (assay_quant_recipe_config){.recipe = assay_quant_recipe_by_name(m->quant_recipe.text),
                                          .powers = strcmp(m->quant_scale_rounding.text, "up") == 0,
                                          .type = c->dtype};
    if (config->recipe == NULL) return ASSAY_OK;
    if (c->dtype != ASSAY_FLOAT32 && c->dtype != ASSAY_BFLOAT16 && c->dtype != ASSAY_FLOAT16) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "dtype is %s, expected float32, bfloat16 or float16: quant_recipe %s",
                          assay_dtype_name(c->dtype), m->quant_recipe.text);
    }
    if (assay_case_is_exact(c)) {
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_quant_recipe,
                                "\"\": the case has the tag exact, and codes times scales are not");
    }
    MUST(calibration_of(ctx, ASSAY_KEY_AT_act_quantization_calibration_method, m, &config->x));
    MUST(calibration_of(ctx, ASSAY_KEY_AT_weight_quantization_calibration_method, m, &config->w));
    MUST(calibration_of(ctx, ASSAY_KEY_AT_bwd_quantization_calibration_method, m, &config->dy));
    if (config->recipe->dx_dy.scales == ASSAY_SCALES_BLOCKS) MUST(refuse_calibrations(ctx, m));
    return refuse_formats(ctx, c, config->recipe);
}

/* Of a linear layer of its own, that is no grouped product: qwix cuts its gradients off at the range of a calibration. */
static assay_status refuse_cutting_off(assay_context *ctx, const char *layer, const assay_quant_recipe_config *config)
{
    const assay_calibration *const calibrations[] = {&config->x, &config->w};
    for (int i = 0; config->recipe != NULL && i < 2; i++) {
        const int key = ASSAY_KEY_AT_act_quantization_calibration_method + i;
        if (calibrations[i]->fixed == 0 && calibrations[i]->factor == 1) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "%s is no absmax, expected absmax: the gradients of %s would be cut off at its range",
                          assay_model_keys[key].name, layer);
    }
    return ASSAY_OK;
}

assay_status assay_linear_recipe_of(assay_context *ctx, const assay_case *c, assay_quant_recipe_config *config)
{
    char layer[sizeof c->op + 3];
    snprintf(layer, sizeof layer, "op %s", c->op);
    const assay_status status = assay_quant_recipe_config_of(ctx, c, config);
    return status == ASSAY_OK ? refuse_cutting_off(ctx, layer, config) : status;
}

assay_status assay_mlp_config_of(assay_context *ctx, const assay_case *c, assay_gated_mlp_config *config)
{
    const assay_model_config *m = &c->config;
    assay_status status;
    *config = (assay_gated_mlp_config){.rows = c->batch * c->sequence,
                                       .emb_dim = m->base_emb_dim,
                                       .mlp_dim = m->base_mlp_dim,
                                       .limit = m->mlp_activations_limit,
                                       .alpha = m->gate_alpha,
                                       .fused = m->fused_mlp};
    TRY(assay_require_positive(ctx, "base_emb_dim", m->base_emb_dim));
    TRY(assay_require_positive(ctx, "base_mlp_dim", m->base_mlp_dim));
    TRY(activation_of(ctx, m, 0, &config->activation[0]));
    TRY(activation_of(ctx, m, 1, &config->activation[1]));
    TRY(glu_of(ctx, m, true, &config->glu));
    TRY(assay_hidden_config_of(ctx, c, config->mlp_dim, &config->hidden));
    TRY(assay_linear_recipe_of(ctx, c, &config->recipe));
    if (config->glu != ASSAY_GLU_PLAIN && config->activation[1] != ASSAY_LINEAR) {
        status =
            assay_fail(ctx, ASSAY_BAD_INPUT,
                       "mlp_activations[1] is \"%s\", expected linear: with a limit the second branch is clamped alone",
                       m->mlp_activations.item[1]);
    }
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
    *config = (assay_moe_config){.emb_dim = m->base_emb_dim,
                                 .moe_mlp_dim = m->base_moe_mlp_dim,
                                 .path = path_of(m),
                                 .fused_shared_experts = m->num_fused_shared_experts,
                                 .weight_on_input = m->apply_router_weight_on_input,
                                 .capacity_factor = m->capacity_factor,
                                 .limit = m->mlp_activations_limit,
                                 .alpha = m->gate_alpha,
                                 .local_num_experts = m->local_num_experts,
                                 .local_expert_offset = m->local_expert_offset,
                                 .fused_weights = m->prefuse_moe_weights || m->fused_moe_mlp || m->fused_moe_func};
    const char *fused_key = m->prefuse_moe_weights ? "prefuse_moe_weights" : "fused_moe_mlp";
    if ((m->prefuse_moe_weights || m->fused_moe_mlp) && !m->sparse_matmul) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s needs sparse_matmul=true, found sparse_matmul=false", fused_key);
    }
    MUST(assay_require_positive(ctx, "base_emb_dim", m->base_emb_dim));
    MUST(assay_require_positive(ctx, "base_moe_mlp_dim", m->base_moe_mlp_dim));
    MUST(activation_of(ctx, m, 0, &config->activation));
    MUST(glu_of(ctx, m, false, &config->glu));
    MUST(assay_hidden_config_of(ctx, c, config->moe_mlp_dim, &config->hidden));
    MUST(assay_quant_recipe_config_of(ctx, c, &config->recipe));
    MUST(assay_routing_config_of(ctx, c, &config->routing));
    if (m->num_fused_shared_experts > 0 && (m->num_fused_shared_experts != m->shared_experts ||
                                            assay_block_has(m->decoder_block.text, ASSAY_BLOCK_GATED_SHARED) ||
                                            strcmp(m->decoder_block.text, "gemma4") == 0)) {
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_num_fused_shared_experts,
                                "0 or shared_experts, which is %" PRId64
                                ", of a block whose shared experts are as wide as the routed ones and have no gate",
                                m->shared_experts);
    }
    if ((m->apply_router_weight_on_input || m->num_fused_shared_experts > 0) && m->mlp_bias) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s needs mlp_bias=false, found true",
                          m->num_fused_shared_experts > 0 ? "num_fused_shared_experts"
                                                          : "apply_router_weight_on_input");
    }
    if (!m->apply_routed_scaling_factor_on_output) {
        config->late_factor = config->routing.routed_scaling_factor;
        config->routing.routed_scaling_factor = 1;
    }
    if (m->num_fused_shared_experts == 0 && m->shared_experts > 0) {
        /* gemma4's shared expert has the width of a dense layer */
        bool gemma4 = strcmp(m->decoder_block.text, "gemma4") == 0;
        if (gemma4) MUST(assay_require_positive(ctx, "base_mlp_dim", m->base_mlp_dim));
        config->shared_gate = assay_block_has(m->decoder_block.text, ASSAY_BLOCK_GATED_SHARED);
        config->shared_mlp_dim = gemma4 ? m->base_mlp_dim : m->shared_experts * m->base_moe_mlp_dim;
        MUST(refuse_cutting_off(ctx, "the shared expert", &config->recipe));
    }
    if (m->num_redundant_experts > 0) config->physical_experts = m->num_experts + m->num_redundant_experts;
    return assay_moe_check(ctx, config);
}

static assay_status rope_of_width(assay_context *ctx, const assay_case *c, int64_t dim, assay_rope_config *config)
{
    const assay_model_config *m = &c->config;
    const bool yarn = strcmp(m->rope_type.text, "yarn") == 0;
    *config = (assay_rope_config){
        .dim = dim,
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
    MUST(assay_rope_check(ctx, config));
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

assay_status assay_rope_config_of(assay_context *ctx, const assay_case *c, assay_rope_config *config)
{
    return rope_of_width(ctx, c, c->config.qk_rope_head_dim, config);
}

bool assay_says_latent(const assay_model_config *m)
{
    if (m->attention_type.text[0] != '\0') return strcmp(m->attention_type.text, "mla") == 0;
    return m->decoder_block.text[0] != '\0' && assay_block_has(m->decoder_block.text, ASSAY_BLOCK_LATENT);
}

bool assay_has_grouped_heads(const assay_model_config *m)
{
    return m->head_dim > 0 && !assay_says_latent(m);
}

/* A window is for local attention; a type that is left open is what sliding_window_size says. */
assay_status assay_window_of(assay_context *ctx, const assay_model_config *m, int64_t *window)
{
    const char *type = m->attention_type.text;
    *window = strcmp(type, "global") == 0 ? 0 : m->sliding_window_size;
    if (strcmp(type, "local_sliding") == 0 && m->sliding_window_size == 0) {
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_sliding_window_size,
                                "1 or more with attention_type local_sliding");
    }
    return ASSAY_OK;
}

assay_status assay_attention_config_of(assay_context *ctx, const assay_case *c, assay_attention_config *config)
{
    const assay_model_config *m = &c->config;
    const bool grouped = assay_has_grouped_heads(m);
    *config = (assay_attention_config){.batch = c->batch,
                                       .sequence = c->sequence,
                                       .heads = m->base_num_query_heads,
                                       .qk_dim = grouped ? m->head_dim : m->qk_nope_head_dim + m->qk_rope_head_dim,
                                       .v_dim = grouped ? m->head_dim : m->v_head_dim,
                                       .mask_padding = m->mask_padding,
                                       .soft_cap = m->attn_logits_soft_cap};
    MUST(assay_require_positive(ctx, "base_num_query_heads", config->heads));
    MUST(assay_require_positive(ctx, "qk_nope_head_dim", m->qk_nope_head_dim));
    MUST(assay_require_positive(ctx, "qk_rope_head_dim", m->qk_rope_head_dim));
    MUST(assay_require_positive(ctx, "v_head_dim", config->v_dim));
    MUST(assay_window_of(ctx, m, &config->window));
    if (!assay_says_latent(m)) config->kv_heads = m->base_num_kv_heads;
    MUST(assay_attention_check(ctx, config));
    config->kv_heads = assay_attention_kv_heads(config);
    return ASSAY_OK;
}

double assay_query_scale_of(const assay_model_config *m)
{
    if (m->query_pre_attn_scalar != 0) return m->query_pre_attn_scalar;
    return assay_block_has(m->decoder_block.text, ASSAY_BLOCK_SCALES_QUERY) ? 1 / sqrt((double)m->head_dim) : 1;
}

double assay_latent_epsilon_of(const assay_model_config *m)
{
    return m->latent_norm_epsilon == -1.0 ? m->normalization_layer_epsilon : m->latent_norm_epsilon;
}

/* Of a head's numbers the first ones are turned (partial_rotary_factor of them). */
static assay_status rotary_width_of(assay_context *ctx, const assay_model_config *m, int64_t *width)
{
    const double turned = m->partial_rotary_factor * (double)m->head_dim;
    *width = 0;
    if (turned >= 2 && turned <= (double)m->head_dim) *width = (int64_t)turned;
    if (*width % 2 == 0 && *width > 0 && (double)*width == turned) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT,
                      "partial_rotary_factor is %g, expected an even number of the %" PRId64
                      " of a head (head_dim), found %g",
                      m->partial_rotary_factor, m->head_dim, turned);
}

assay_status assay_key_rope_config_of(assay_context *ctx, const assay_case *c, assay_rope_config *config)
{
    int64_t turned = 0;
    MUST(rotary_width_of(ctx, &c->config, &turned));
    return rope_of_width(ctx, c, turned, config);
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
                                 .soft_cap = m->attn_logits_soft_cap};
    MUST(assay_require_positive(ctx, "head_dim", m->head_dim));
    if (m->head_dim % 2 != 0 || m->head_dim > ASSAY_ROPE_DIM_MAX) {
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_head_dim, "an even number from 2 to %d", ASSAY_ROPE_DIM_MAX);
    }
    MUST(assay_window_of(ctx, m, &config->window));
    MUST(assay_key_rope_config_of(ctx, c, &config->rope));
    return assay_gqa_check(ctx, config);
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
                                 .soft_cap = m->attn_logits_soft_cap};
    MUST(assay_window_of(ctx, m, &config->window));
    MUST(assay_rope_config_of(ctx, c, &config->rope));
    return assay_mla_check(ctx, config);
}

static assay_status remat_policy_of(assay_context *ctx, const assay_model_config *m, assay_remat_policy *policy)
{
    const char *texts[ASSAY_REMAT_NAMES];
#define X(code, name) texts[ASSAY_REMAT_##code] = m->name.text;
    ASSAY_REMAT_TABLE(X)
#undef X
    return assay_remat_policy_make(ctx, policy, m->remat_policy.text, texts);
}

bool assay_is_stack(const assay_case *c)
{
    return strcmp(c->op, "deepseek_stack") == 0 || strcmp(c->op, "decoder_stack") == 0;
}

bool assay_layer_is_grouped(const assay_model_config *m)
{
    const char *block = m->decoder_block.text;
    return assay_block_has(block, ASSAY_BLOCK_GROUPED) && !assay_block_has(block, ASSAY_BLOCK_LATENT);
}

/* A fixture has some hundred datasets for each. */
enum { LAYERS_MAX = 1000 };

/* GPT-OSS has its window in layers 0, 2, 4 ..., whatever attention_type is; a layer alone is 0 or, of global attention, 1. */
static assay_status grouped_config_of(assay_context *ctx, const assay_case *c, assay_stack_config *config)
{
    const assay_model_config *m = &c->config;
    MUST(assay_gqa_config_of(ctx, c, &config->gqa));
    if (!assay_block_has(m->decoder_block.text, ASSAY_BLOCK_ALTERNATES)) return ASSAY_OK;
    const bool second = config->single && strcmp(m->attention_type.text, "global") == 0;
    config->gqa.window = m->sliding_window_size;
    config->windows = second != m->windows_in_odd_layers ? ASSAY_WINDOWS_ODD : ASSAY_WINDOWS_EVEN;
    return ASSAY_OK;
}

assay_status assay_check_hidden_moe(assay_context *ctx, const assay_moe_config *moe, const assay_sharding *sharding)
{
    const char *with = NULL;
    if (moe->hidden.format == NULL) return ASSAY_OK;
    if (moe->physical_experts > 0) with = "with num_redundant_experts";
    if (moe->path == ASSAY_MOE_DROPPING) with = "with capacity_factor";
    if (assay_is_sharded(moe, sharding)) with = "on a mesh";
    if (with == NULL) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "quant_hidden_format is %s, expected none %s", moe->hidden.format->name,
                      with);
}

/* Sparse experts, whose rows are those of the recipe's groups. */
assay_status assay_check_recipe_moe(assay_context *ctx, const assay_moe_config *moe, int64_t w13_shards)
{
    const assay_quant_recipe *recipe = moe->recipe.recipe;
    if (recipe == NULL) return ASSAY_OK;
    const char *beside = moe->path != ASSAY_MOE_SPARSE                ? "sparse_matmul=false or fused_moe_func"
                         : moe->routing.family == ASSAY_ROUTER_LLAMA4 ? "llama4"
                         : moe->weight_on_input                       ? "apply_router_weight_on_input"
                         : moe->fused_shared_experts > 0              ? "num_fused_shared_experts"
                         : moe->local_num_experts > 0                 ? "local_num_experts"
                         : moe->physical_experts > 0                  ? "num_redundant_experts"
                         : moe->late_factor != 0                      ? "apply_routed_scaling_factor_on_output=false"
                         : moe->shared_gate                           ? "a gate of the shared expert"
                         : w13_shards > 1                             ? "w13_reorder_size"
                                                                      : NULL;
    if (beside == NULL) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "quant_recipe is %s, expected \"\" with %s", recipe->name, beside);
}

/* Of a rank with some of the experts a layer's output is no input of a layer: it lacks the sum over ranks. */
static assay_status check_local_layers(assay_context *ctx, const assay_model_config *m,
                                       const assay_stack_config *config)
{
    const int64_t dense = config->dense_layers;
    const int64_t first = dense > config->first_layer ? dense : config->first_layer; /* that may have experts */
    if (config->moe.local_num_experts == 0 || config->layers - first <= 1) return ASSAY_OK;
    return assay_refuse_key(ctx, m, ASSAY_KEY_AT_local_num_experts,
                            "0 where a layer follows one of experts: its input is a sum over ranks");
}

assay_status assay_stack_config_of(assay_context *ctx, const assay_case *c, assay_stack_config *config)
{
    const assay_model_config *m = &c->config;
    const bool single = !assay_is_stack(c);
    *config = (assay_stack_config){.layers = single ? 1 : m->base_num_decoder_layers,
                                   .dense_layers = m->first_num_dense_layers,
                                   .single = single,
                                   .epsilon = m->normalization_layer_epsilon};
    if (config->layers < 1 || config->layers > LAYERS_MAX) {
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_base_num_decoder_layers, "1 to %d", LAYERS_MAX);
    }
    if (c->only_layer >= config->layers) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "only_layer is %" PRId64 ", expected 0 to %" PRId64, c->only_layer,
                          config->layers - 1);
    }
    if (c->only_layer >= 0 && m->use_batch_split_schedule) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "only_layer has no use with use_batch_split_schedule: layers overlap");
    }
    if (c->only_layer >= 0) {
        config->first_layer = c->only_layer;
        config->layers = c->only_layer + 1;
    }
    if (config->dense_layers > config->layers) config->dense_layers = config->layers;
    config->attention = assay_layer_is_grouped(m) ? ASSAY_LAYER_GQA : ASSAY_LAYER_MLA;
    if (config->attention == ASSAY_LAYER_GQA) {
        MUST(grouped_config_of(ctx, c, config));
    } else {
        MUST(assay_mla_config_of(ctx, c, &config->mla));
    }
    if (m->first_num_hash_layers > 0) {
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_first_num_hash_layers,
                                "0: op %s has no input_ids for hash routing", c->op);
    }
    if (config->dense_layers > 0) MUST(assay_mlp_config_of(ctx, c, &config->mlp));
    if (config->dense_layers < config->layers) MUST(assay_moe_config_of(ctx, c, &config->moe));
    if (m->w13_reorder_size > 1) {
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_w13_reorder_size, "1: op %s has fused weights of one layout",
                                c->op);
    }
    MUST(check_local_layers(ctx, m, config));
    MUST(assay_sharding_of(ctx, c, &config->sharding));
    MUST(assay_check_hidden_moe(ctx, &config->moe, &config->sharding));
    if (!m->use_batch_split_schedule) MUST(assay_check_recipe_moe(ctx, &config->moe, 1));
    if (m->use_batch_split_schedule && assay_quantises_hidden(c)) {
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_quant_hidden_format, "none with use_batch_split_schedule");
    }
    if (m->weights_on_shards && config->dense_layers == config->layers) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "weights_on_shards needs a layer of experts, found %" PRId64 " dense ones", config->layers);
    }
    if (m->use_batch_split_schedule && config->dense_layers < config->layers) {
        config->batch_split_factor = m->batch_split_factor;
        config->kept_capacity = m->capacity_factor > 0 ? m->capacity_factor : 0;
        config->merge_gating_gmm = m->merge_gating_gmm;
        if (m->capacity_factor > 1e6) {
            return assay_fail(ctx, ASSAY_BAD_INPUT, "capacity_factor is %g, expected at most 1e6 with the schedule",
                              m->capacity_factor);
        }
        const char *needs = m->mlp_bias                    ? "mlp_bias=false"
                            : !m->routed_bias              ? "routed_bias=true"
                            : m->local_num_experts > 0     ? "local_num_experts=0"
                            : m->num_redundant_experts > 0 ? "num_redundant_experts=0"
                                                           : NULL;
        if (needs != NULL) return assay_fail(ctx, ASSAY_BAD_INPUT, "use_batch_split_schedule needs %s", needs);
    }
    MUST(assay_linear_recipe_of(ctx, c, &config->mla.recipe));
    config->gqa.recipe = config->mla.recipe;
    MUST(remat_policy_of(ctx, m, &config->policy));
    return assay_stack_check(ctx, config);
}
