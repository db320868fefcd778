/* Mutants by a changed configuration. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"
#include "harness/operations/op_decode.h"
#include "harness/operations/op_support.h"
#include "oracle/base/block_format.h"
#include "oracle/moe/routing_rule.h"
#include "oracle/ops/cache_format.h"

static bool is(const assay_text *text, const char *value)
{
    return strcmp(text->text, value) == 0;
}

static bool set_text(assay_text *text, const char *value)
{
    snprintf(text->text, sizeof text->text, "%s", value);
    return true;
}

bool assay_edit_other_query_scale(assay_case *c)
{
    assay_model_config *m = &c->config;
    m->query_pre_attn_scalar = assay_query_scale_of(m) == 1 ? 1 / sqrt((double)m->head_dim) : 1;
    return m->head_dim > 1;
}

bool assay_edit_blind_rows(assay_case *c)
{
    c->config.attention_variant.blind = NAN;
    return true;
}

bool assay_edit_scale_of_latent(assay_case *c)
{
    assay_model_config *m = &c->config;
    m->query_pre_attn_scalar = 1 / sqrt((double)(m->kv_lora_rank + m->qk_rope_head_dim));
    return true;
}

/* Every row of a page in memory is one of a token. */
bool assay_edit_page_of_stride(assay_case *c)
{
    c->config.pagedattn_tokens_per_page = c->config.pagedattn_page_stride;
    return true;
}

/* Scores 2^20 times as far apart: their log-sum-exp is so many times the largest of what they were. */
bool assay_edit_scores_apart(assay_case *c)
{
    assay_context ctx = assay_context_default(1);
    assay_operation_config config;
    if (assay_operation_configure(&ctx, assay_operation_by_name(c->op), c, &config) != ASSAY_OK) return false;
    c->config.query_pre_attn_scalar = decode_of(&config)->scale * 0x1p20;
    c->config.attn_logits_soft_cap *= 0x1p20;
    return true;
}

bool assay_edit_other_group_score(assay_case *c)
{
    assay_model_config *m = &c->config;
    const bool sums = is(&m->group_score, "top2_sum") || (m->group_score.text[0] == '\0' && m->routed_bias);
    return m->n_routing_groups > 0 && set_text(&m->group_score, sums ? "max" : "top2_sum");
}

/* Over a mesh one loss of all shards is one of one device, where each sequence may have densities of its own. */
bool assay_edit_other_densities(assay_case *c)
{
    assay_text *scope = &c->config.load_balance_loss_scope;
    const bool sequence = is(scope, "sequence"), global = is(scope, "global");
    if (global) c->mesh_data = c->mesh_fsdp = c->mesh_expert = c->mesh_tensor = c->config.num_moe_token_chunks = 1;
    if (global) c->config.use_ring_of_experts = false;
    return c->config.load_balance_loss_weight > 0 && set_text(scope, sequence ? "batch" : "sequence");
}

bool assay_edit_other_group_count(assay_case *c)
{
    assay_model_config *m = &c->config;
    m->topk_routing_group += m->topk_routing_group < m->n_routing_groups ? 1 : -1;
    return m->n_routing_groups > 1 && m->topk_routing_group > 0;
}

bool assay_edit_other_epsilon(assay_case *c)
{
    double *epsilon = &c->config.normalization_layer_epsilon, *latent = &c->config.latent_norm_epsilon;
    *epsilon = *epsilon < 5e-6 ? 1e-5 : 1e-6;
    if (*latent != -1.0) *latent = *latent < 5e-6 ? 1e-5 : 1e-6;
    return true;
}

/* Rows that a shard may receive: half of them, or what the balanced case needs where all are kept. */
bool assay_edit_half_buffer(assay_case *c)
{
    double *factor = &c->config.ragged_buffer_factor;
    *factor = *factor > 0 ? *factor / 2 : 1.0;
    return c->mesh_expert > 1 && !c->config.use_ring_of_experts && c->config.sparse_matmul;
}

/* Of scales that are powers of two up or down; of others that, or not. */
bool assay_edit_other_scale_rounding(assay_case *c)
{
    const char *own = c->config.quant_format.text, *of_hidden = c->config.quant_hidden_format.text;
    const assay_cache_format *cache = assay_cache_format_by_name(c->config.kv_cache_dtype.text);
    const assay_block_format *format = assay_block_format_by_name(own[0] != '\0' ? own : of_hidden);
    if (format == NULL && cache != NULL && cache->block.element != ASSAY_BFLOAT16) format = &cache->block;
    assay_text *rounding = &c->config.quant_scale_rounding;
    const bool up = is(rounding, "up");
    if (format == NULL || format->scale == ASSAY_FLOAT8_E4M3FN) return false;
    if (format->scale == ASSAY_FLOAT32) c->config.quant_subnormal_scale = true;
    return set_text(rounding, !up ? "up" : format->scale == ASSAY_FLOAT32 ? "nearest" : "down");
}

/* Where it cannot be left out it is one that quantises nothing. */
bool assay_edit_recipe_ignored(assay_case *c)
{
    if (assay_case_gathers_codes(c)) return assay_change_recipe("ignored", &c->config);
    const bool there = c->config.quant_recipe.text[0] != '\0';
    c->config.quant_recipe.text[0] = '\0';
    if (c->config.quant_hidden_format.text[0] == '\0')
        c->config.quant_scale_rounding = assay_model_defaults.quant_scale_rounding;
    return there;
}

bool assay_edit_hidden_as_it_is(assay_case *c)
{
    assay_model_config *m = &c->config;
    const bool quantised = m->quant_hidden_format.text[0] != '\0';
    m->quant_hidden_format.text[0] = '\0';
    m->quant_hidden_tensor_scale = 0;
    /* rules that nothing has any more; that of scales may be of operands too */
    m->quant_scale = assay_model_defaults.quant_scale;
    m->quant_subnormal_scale = assay_model_defaults.quant_subnormal_scale;
    m->quant_smallest_amax = assay_model_defaults.quant_smallest_amax;
    m->quant_saturate = assay_model_defaults.quant_saturate;
    m->quant_ties = assay_model_defaults.quant_ties;
    m->quant_negative_zero = assay_model_defaults.quant_negative_zero;
    if (c->quant_format_count == 0 && m->quant_recipe.text[0] == '\0')
        m->quant_scale_rounding = assay_model_defaults.quant_scale_rounding;
    return quantised;
}

/* --- the router's rule --- */

void assay_router_divides_biased(assay_routing_rule *rule)
{
    rule->weighs_scores = false;
}

/* Of a softmax over the chosen it leaves one over all. */
void assay_router_undivided(assay_routing_rule *rule)
{
    const bool over_chosen = rule->softmax_chosen && rule->score_func == ASSAY_SCORE_NONE;
    if (rule->softmax_chosen && !over_chosen) return;
    rule->softmax_chosen = rule->divide = false;
    rule->epsilon = 0;
    if (!over_chosen) return;
    rule->score_func = ASSAY_SCORE_SOFTMAX;
    rule->selects = ASSAY_SELECTS_ARGUMENT;
    rule->bias_inside = rule->weighs_scores = true;
}

void assay_router_weighs_biased(assay_routing_rule *rule)
{
    assay_router_divides_biased(rule);
    assay_router_undivided(rule);
}

void assay_router_masks_by_zero(assay_routing_rule *rule)
{
    rule->masked = 0;
}

static void through_nothing(double *d, const double *p, double missing, int64_t count)
{
    (void)d, (void)p, (void)missing, (void)count;
}

void assay_router_divisor_constant(assay_routing_rule *rule)
{
    rule->through_sum = through_nothing;
}

static void lose(double *d_logits, int64_t count)
{
    memset(d_logits, 0, (size_t)count * sizeof *d_logits);
}

void assay_router_constant(assay_routing_rule *rule)
{
    rule->behind = lose;
}
