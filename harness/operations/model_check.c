/* Values that an operation would not honour are refused, by block and key; values that are left open get said. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/decoder_block.h"
#include "cases/routing_method.h"
#include "harness/operations/op_support.h"

typedef struct model_check {
    assay_context *ctx;
    const assay_case *c;
    unsigned parts;
} model_check;

static const char *maxtext_text(const model_check *check, int key)
{
    return check->c->config.maxtext[key].text;
}

static assay_status refuse_maxtext(const model_check *check, int key, const char *expected, const char *why)
{
    return assay_fail(check->ctx, ASSAY_BAD_INPUT, "%s is %s, expected %s: op %s %s", assay_maxtext_keys[key].name,
                      maxtext_text(check, key), expected, check->c->op, why);
}

static assay_status check_maxtext_keys(const model_check *check)
{
    for (int i = 0; i < ASSAY_MAXTEXT_KEYS; i++) {
        const assay_maxtext_key *key = &assay_maxtext_keys[i];
        const bool changes = key->parts == ASSAY_PART_ALL || (key->parts & check->parts) != 0;
        if (!changes || maxtext_text(check, i)[0] == '\0') continue;
        char expected[ASSAY_TEXT_SIZE];
        const size_t length = strcspn(key->unchanging, "|");
        snprintf(expected, sizeof expected, length == 0 ? "\"\"" : "%.*s", (int)length, key->unchanging);
        return refuse_maxtext(check, i, expected, "does not compute what it turns on");
    }
    return ASSAY_OK;
}

/* Whether the model's attention is MLA, as far as it says. */
static bool is_latent(const model_check *check)
{
    const char *type = maxtext_text(check, ASSAY_MAXTEXT_attention_type);
    if (type[0] != '\0') return strcmp(type, "mla") == 0;
    const bool said = check->c->config.given[ASSAY_KEY_AT_decoder_block];
    return !said || assay_block_has(check->c->config.decoder_block.text, ASSAY_BLOCK_LATENT);
}

static assay_status refuse_block(const model_check *check, const char *why)
{
    const char *block = check->c->config.decoder_block.text;
    return assay_fail(check->ctx, ASSAY_BAD_INPUT, "decoder_block is %s, which %s: op %s cannot be of it", block, why,
                      check->c->op);
}

/* Heads of attention are qk_nope_head_dim + qk_rope_head_dim and v_head_dim wide, as in MLA; other models say head_dim,
 * and may share keys between heads. */
static assay_status check_heads(const model_check *check)
{
    const assay_model_config *m = &check->c->config;
    const char *type = maxtext_text(check, ASSAY_MAXTEXT_attention_type);
    const char *heads = maxtext_text(check, ASSAY_MAXTEXT_base_num_kv_heads);
    const char *width = maxtext_text(check, ASSAY_MAXTEXT_head_dim);
    const int64_t key_width = m->qk_nope_head_dim + m->qk_rope_head_dim, head_dim = strtoll(width, NULL, 10);
    char expected[128];
    if (is_latent(check)) return ASSAY_OK;
    if ((check->parts & ASSAY_PART_LATENT) != 0) {
        if (type[0] == '\0') return refuse_block(check, "has no multi-head latent attention");
        return refuse_maxtext(check, ASSAY_MAXTEXT_attention_type, "mla", "is multi-head latent attention");
    }
    if ((check->parts & ASSAY_PART_ROPE) != 0 && width[0] != '\0' && head_dim != m->qk_rope_head_dim) {
        snprintf(expected, sizeof expected, "%" PRId64 " (qk_rope_head_dim)", m->qk_rope_head_dim);
        return refuse_maxtext(check, ASSAY_MAXTEXT_head_dim, expected, "takes the width from there: set both alike");
    }
    if ((check->parts & ASSAY_PART_ATTENTION) == 0) return ASSAY_OK;
    if (type[0] != '\0' && strcmp(type, "global") != 0) {
        return refuse_maxtext(check, ASSAY_MAXTEXT_attention_type, "global or mla", "attends to every earlier token");
    }
    if (heads[0] != '\0' && strtoll(heads, NULL, 10) != m->base_num_query_heads) {
        snprintf(expected, sizeof expected, "%" PRId64 " (base_num_query_heads)", m->base_num_query_heads);
        return refuse_maxtext(check, ASSAY_MAXTEXT_base_num_kv_heads, expected, "has keys and values for each head");
    }
    if (width[0] != '\0' && (head_dim != key_width || head_dim != m->v_head_dim)) {
        snprintf(expected, sizeof expected,
                 "%" PRId64 " (qk_nope_head_dim + qk_rope_head_dim) and %" PRId64 " (v_head_dim)", key_width,
                 m->v_head_dim);
        return refuse_maxtext(check, ASSAY_MAXTEXT_head_dim, expected, "takes the widths from there: set them alike");
    }
    return ASSAY_OK;
}

/* "KEY is VALUE, expected EXPECTED: decoder_block BLOCK WHY". */
static assay_status refuse(const model_check *check, int key, const char *expected, const char *why)
{
    const assay_model_config *m = &check->c->config;
    char value[ASSAY_KEY_VALUE_SIZE], block[ASSAY_TEXT_SIZE + 16];
    const bool method = m->routing_method.text[0] != '\0';
    assay_model_key_text(&assay_model_keys[key], m, value, sizeof value);
    snprintf(block, sizeof block, "%s %s", method ? "routing_method" : "decoder_block",
             method                             ? m->routing_method.text
             : m->decoder_block.text[0] != '\0' ? m->decoder_block.text
                                                : "\"\"");
    return assay_fail(check->ctx, ASSAY_BAD_INPUT, "%s is %s, expected %s: %s %s", assay_model_keys[key].name, value,
                      expected, m->fused_moe_func ? "fused_moe_func" : block, why);
}

/* What a routing method has not; the score function is its own. */
static assay_status check_method(const model_check *check)
{
    const assay_model_config *m = &check->c->config;
    const bool *given = m->given;
    const assay_routing_method *method = assay_routing_method_by_name(m->routing_method.text);
    if (method == NULL) return ASSAY_OK;
    if (m->fused_moe_func || m->use_random_routing || m->first_num_hash_layers > 0) {
        return assay_fail(check->ctx, ASSAY_BAD_INPUT, "routing_method is %s, expected \"\": %s has its own rule",
                          method->name,
                          m->fused_moe_func       ? "fused_moe_func"
                          : m->use_random_routing ? "use_random_routing"
                                                  : "hash routing");
    }
    if (given[ASSAY_KEY_AT_routed_bias] && m->routed_bias && (method->has & ASSAY_METHOD_BIAS) == 0) {
        return refuse(check, ASSAY_KEY_AT_routed_bias, "false", "has no bias");
    }
    if (given[ASSAY_KEY_AT_n_routing_groups] && m->n_routing_groups > 0 && (method->has & ASSAY_METHOD_GROUPS) == 0) {
        return refuse(check, ASSAY_KEY_AT_n_routing_groups, "-1", "has no groups");
    }
    if (given[ASSAY_KEY_AT_routed_scaling_factor] && m->routed_scaling_factor != 1.0 &&
        (method->has & ASSAY_METHOD_FACTOR) == 0) {
        return refuse(check, ASSAY_KEY_AT_routed_scaling_factor, "1", "does not scale its weights");
    }
    if (given[ASSAY_KEY_AT_routed_score_func] && m->routed_score_func.text[0] != '\0' &&
        strcmp(m->routed_score_func.text, assay_score_func_name(method->score_func)) != 0) {
        return refuse(check, ASSAY_KEY_AT_routed_score_func, "\"\"", "has a score function of its own, or none");
    }
    return ASSAY_OK;
}

static assay_status check_router(const model_check *check)
{
    const assay_model_config *m = &check->c->config;
    const bool *given = m->given;
    const assay_status status = check_method(check);
    RETURN_IF(status != ASSAY_OK, status);
    const assay_router_family family = assay_router_family_of(m);
    const bool deepseek = family == ASSAY_ROUTER_DEEPSEEK3 || family == ASSAY_ROUTER_DEEPSEEK2;
    if (!deepseek && family != ASSAY_ROUTER_FUSED && given[ASSAY_KEY_AT_routed_score_func] &&
        m->routed_score_func.text[0] != '\0') {
        return refuse(check, ASSAY_KEY_AT_routed_score_func, "\"\"", "has no score function");
    }
    if (!deepseek && given[ASSAY_KEY_AT_routed_scaling_factor] && m->routed_scaling_factor != 1.0) {
        return refuse(check, ASSAY_KEY_AT_routed_scaling_factor, "1", "does not scale its weights");
    }
    if (!deepseek && given[ASSAY_KEY_AT_n_routing_groups] && m->n_routing_groups > 0) {
        return refuse(check, ASSAY_KEY_AT_n_routing_groups, "-1", "has no groups");
    }
    if (!deepseek && given[ASSAY_KEY_AT_topk_routing_group] && m->topk_routing_group > 0) {
        return refuse(check, ASSAY_KEY_AT_topk_routing_group, "-1", "has no groups");
    }
    if (!deepseek && given[ASSAY_KEY_AT_group_score] && m->group_score.text[0] != '\0') {
        return refuse(check, ASSAY_KEY_AT_group_score, "\"\"", "has no groups");
    }
    if (deepseek && given[ASSAY_KEY_AT_topk_routing_group] && m->topk_routing_group > 0 &&
        !given[ASSAY_KEY_AT_n_routing_groups]) {
        return refuse(check, ASSAY_KEY_AT_topk_routing_group, "n_routing_groups beside it", "has no groups without it");
    }
    return ASSAY_OK;
}

static assay_status check_experts(const model_check *check)
{
    const assay_model_config *m = &check->c->config;
    const bool *given = m->given;
    if (given[ASSAY_KEY_AT_mlp_activations_limit] && m->mlp_activations_limit > 0.0 &&
        !assay_block_has(m->decoder_block.text, ASSAY_BLOCK_CLAMPS)) {
        return refuse(check, ASSAY_KEY_AT_mlp_activations_limit, "0", "does not clamp in its experts");
    }
    if (given[ASSAY_KEY_AT_mlp_activations] && strcmp(m->mlp_activations.item[1], "linear") != 0) {
        return refuse(check, ASSAY_KEY_AT_mlp_activations, "linear as the second",
                      "applies nothing but the first in its experts");
    }
    if (given[ASSAY_KEY_AT_shared_experts] && m->shared_experts > 0 &&
        assay_block_has(m->decoder_block.text, ASSAY_BLOCK_GATED_SHARED)) {
        return refuse(check, ASSAY_KEY_AT_shared_experts, "0",
                      "multiplies its shared expert by a gate, which no operation here has");
    }
    if (given[ASSAY_KEY_AT_capacity_factor] && m->capacity_factor > 0.0 && (m->sparse_matmul || m->fused_moe_func)) {
        return assay_fail(check->ctx, ASSAY_BAD_INPUT,
                          "capacity_factor is %g, expected -1: with %s no token is dropped", m->capacity_factor,
                          m->fused_moe_func ? "fused_moe_func" : "sparse_matmul");
    }
    return ASSAY_OK;
}

static assay_status check_block(const model_check *check)
{
    const assay_model_config *m = &check->c->config;
    const bool said = m->given[ASSAY_KEY_AT_decoder_block];
    if (said && (check->parts & ASSAY_PART_NORM) != 0 &&
        assay_block_has(m->decoder_block.text, ASSAY_BLOCK_OTHER_NORM)) {
        return refuse_block(check, "has no RMS norm with a plain scale");
    }
    if (said && (check->parts & ASSAY_PART_MLP) != 0 && assay_block_has(m->decoder_block.text, ASSAY_BLOCK_UNGATED)) {
        return refuse_block(check, "has no gated MLP");
    }
    return ASSAY_OK;
}

/* norm_topk_prob says what the family does; only some families do as it says. */
static assay_status check_division(const model_check *check)
{
    const assay_model_config *m = &check->c->config;
    assay_status status;
    assay_routing_config routing;
    TRY(assay_routing_config_of(check->ctx, check->c, &routing));
    const bool divides = assay_routing_divides(&routing);
    /* of random routing no key says what weights are */
    if (m->given[ASSAY_KEY_AT_norm_topk_prob] && m->norm_topk_prob != divides && !m->use_random_routing) {
        return refuse(check, ASSAY_KEY_AT_norm_topk_prob, divides ? "true" : "false",
                      divides ? "divides the weights by their sum" : "does not divide the weights by their sum");
    }
cleanup:
    return status;
}

/* Layers may be dense alone. */
static bool routes(const assay_case *c, unsigned parts)
{
    const int64_t layers = strcmp(c->op, "deepseek_layer") == 0 ? 1 : c->config.base_num_decoder_layers;
    const bool dense = (parts & ASSAY_PART_LAYER) != 0 && c->config.first_num_dense_layers >= layers;
    return (parts & ASSAY_PART_ROUTER) != 0 && !dense;
}

assay_status assay_model_check(assay_context *ctx, const assay_case *c, unsigned parts)
{
    assay_status status;
    const model_check check = {ctx, c, parts};
    TRY(check_maxtext_keys(&check));
    TRY(check_heads(&check));
    TRY(check_block(&check));
    if (!routes(c, parts)) goto cleanup;
    if ((parts & ASSAY_PART_EXPERTS) != 0) TRY(check_experts(&check));
    TRY(check_router(&check));
    TRY(check_division(&check));
cleanup:
    return status;
}

assay_status assay_model_resolve(assay_context *ctx, const assay_case *c, unsigned parts, assay_model_config *resolved)
{
    assay_status status = ASSAY_OK;
    assay_routing_config routing;
    *resolved = c->config;
    if (!routes(c, parts)) return ASSAY_OK;
    TRY(assay_routing_config_of(ctx, c, &routing));
    resolved->norm_topk_prob = assay_routing_divides(&routing);
    if (routing.n_routing_groups <= 0) goto cleanup;
    snprintf(resolved->group_score.text, sizeof resolved->group_score.text, "%s",
             routing.group_score == ASSAY_GROUP_TOP2_SUM ? "top2_sum" : "max");
cleanup:
    return status;
}
