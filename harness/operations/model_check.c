/* Values that an operation would not honour are refused, by block and key; values that are left open get said. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cases/decoder_block.h"
#include "cases/routing_method.h"
#include "harness/operations/op_support.h"

typedef struct model_check {
    assay_context *ctx;
    const assay_case *c;
    unsigned components;
} model_check;

static const char *maxtext_text(const model_check *check, int key)
{
    return check->c->config.maxtext[key].text;
}

static const char *const TURNS_ON = "does not compute what it turns on";

/* GPT-OSS scans its layers in pairs, one with a window and one without. */
static bool is_cycle(const model_check *check, int key)
{
    return key == ASSAY_MAXTEXT_inhomogeneous_layer_cycle_interval && strcmp(maxtext_text(check, key), "2") == 0 &&
           assay_block_has(check->c->config.decoder_block.text, ASSAY_BLOCK_ALTERNATES);
}

static assay_status check_maxtext_keys(const model_check *check)
{
    for (int i = 0; i < ASSAY_MAXTEXT_KEYS; i++) {
        const assay_maxtext_key *key = &assay_maxtext_keys[i];
        const bool changes = key->components == ASSAY_USES_ALL || (key->components & check->components) != 0;
        if (!changes || maxtext_text(check, i)[0] == '\0' || is_cycle(check, i)) continue;
        char expected[ASSAY_TEXT_SIZE];
        const size_t length = strcspn(key->unchanging, "|");
        snprintf(expected, sizeof expected, length == 0 ? "\"\"" : "%.*s", (int)length, key->unchanging);
        return assay_refuse(check->ctx, "%s is %s, expected %s: op %s %s", key->name, maxtext_text(check, i), expected,
                            check->c->op, TURNS_ON);
    }
    return ASSAY_OK;
}

static assay_status refuse_block(const model_check *check, const char *why)
{
    const char *block = check->c->config.decoder_block.text;
    return assay_refuse(check->ctx, "decoder_block is %s, which %s: op %s cannot be of it", block, why, check->c->op);
}

/* "KEY is VALUE, expected EXPECTED: op OP WHY". */
static assay_status refuse_key(const model_check *check, int key, const char *expected, const char *why)
{
    const assay_case *c = check->c;
    return assay_refuse_key(check->ctx, &c->config, key, "%s: op %s %s", expected, c->op, why);
}

/* What grouped-query attention has, and MLA does not. */
static assay_status check_latent(const model_check *check)
{
    const assay_model_config *m = &check->c->config;
    const char *type = m->attention_type.text;
    const bool said = m->is_set[ASSAY_KEY_AT_decoder_block];
    if (type[0] != '\0' && strcmp(type, "mla") != 0) {
        return refuse_key(check, ASSAY_KEY_AT_attention_type, "mla", "is multi-head latent attention");
    }
    if (type[0] == '\0' && said && !assay_block_has(m->decoder_block.text, ASSAY_BLOCK_LATENT)) {
        return refuse_block(check, "has no multi-head latent attention");
    }
    if (m->attention_bias) return refuse_key(check, ASSAY_KEY_AT_attention_bias, "false", TURNS_ON);
    if (m->attention_sink) return refuse_key(check, ASSAY_KEY_AT_attention_sink, "false", TURNS_ON);
    if (m->use_qk_norm) return refuse_key(check, ASSAY_KEY_AT_use_qk_norm, "false", TURNS_ON);
    return ASSAY_OK;
}

static assay_status check_grouped(const model_check *check)
{
    const assay_model_config *m = &check->c->config;
    if (assay_says_latent(m) && m->attention_type.text[0] != '\0') {
        return refuse_key(check, ASSAY_KEY_AT_attention_type, "global or local_sliding", "is grouped-query attention");
    }
    if (!assay_block_has(m->decoder_block.text, ASSAY_BLOCK_GROUPED)) {
        return refuse_block(check, "has another attention");
    }
    return ASSAY_OK;
}

/* A size of MLA's heads that was given, and is not what is computed. */
static bool contradicts(const assay_model_config *m, int key, int64_t value, int64_t unsaid, int64_t computed)
{
    return m->is_set[key] && value != unsaid && computed != m->head_dim;
}

/* Where MaxText's layers go by the model's name, and what they have is none of grouped-query attention here (attentions.py asks for
 * these four; for deepseek3 and deepseek4 moe.py does, which decides the router's family; the others are of vision and sound). */
static assay_status check_name(const model_check *check)
{
    static const struct {
        const char *begins, *why;
    } names[] = {{"llama3.1", "has no scaled frequencies, which MaxText has by this name"},
                 {"olmo3", "has norms of each head, where MaxText has one over all of them by this name"},
                 {"gemma3", "has one rotation in all layers, where MaxText has two by this name"},
                 {"gemma4", "turns other parts of a head than MaxText does by this name"}};
    const char *name = check->c->config.model_name.text;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(name, names[i].begins, strlen(names[i].begins)) == 0)
            return refuse_key(check, ASSAY_KEY_AT_model_name, "another", names[i].why);
    return ASSAY_OK;
}

/* Heads of attention are qk_nope_head_dim + qk_rope_head_dim and v_head_dim wide, as in MLA, or head_dim, where a model
 * says that. */
static assay_status check_heads(const model_check *check)
{
    const assay_model_config *m = &check->c->config, *unsaid = &assay_model_defaults;
    const char *type = m->attention_type.text;
    const int64_t key_width = m->qk_nope_head_dim + m->qk_rope_head_dim;
    char expected[128];
    if (m->use_indexer && (check->components & ASSAY_USES_ATTENTION) != 0 &&
        (check->components & ASSAY_USES_DECODE) == 0)
        return refuse_key(check, ASSAY_KEY_AT_use_indexer, "false", TURNS_ON);
    if ((check->components & ASSAY_USES_CACHE) != 0) return ASSAY_OK; /* keys or latents, as the case says */
    if (m->partial_rotary_factor != 1 && (check->components & ASSAY_USES_ROPE) != 0 &&
        (check->components & ASSAY_USES_GROUPED) == 0) {
        return refuse_key(check, ASSAY_KEY_AT_partial_rotary_factor, "1", "turns qk_rope_head_dim numbers of a head");
    }
    if ((check->components & ASSAY_USES_LATENT) != 0) return check_latent(check);
    if ((check->components & ASSAY_USES_GROUPED) == 0 && (check->components & ASSAY_USES_ROPE) != 0 &&
        assay_has_grouped_heads(m) && m->head_dim != m->qk_rope_head_dim) {
        snprintf(expected, sizeof expected, "%" PRId64 " (qk_rope_head_dim)", m->qk_rope_head_dim);
        return refuse_key(check, ASSAY_KEY_AT_head_dim, expected, "takes the width from there: set both alike");
    }
    if ((check->components & ASSAY_USES_ATTENTION) == 0) return ASSAY_OK;
    if (type[0] != '\0' && strcmp(type, "mla") != 0 && strcmp(type, "global") != 0 &&
        strcmp(type, "local_sliding") != 0) {
        return refuse_key(check, ASSAY_KEY_AT_attention_type, "global, local_sliding or mla", "has no other");
    }
    if ((check->components & ASSAY_USES_GROUPED) != 0) {
        MUST(check_name(check));
        return check_grouped(check);
    }
    if (assay_has_grouped_heads(m) &&
        (contradicts(m, ASSAY_KEY_AT_qk_nope_head_dim, m->qk_nope_head_dim, unsaid->qk_nope_head_dim, key_width) ||
         contradicts(m, ASSAY_KEY_AT_qk_rope_head_dim, m->qk_rope_head_dim, unsaid->qk_rope_head_dim, key_width) ||
         contradicts(m, ASSAY_KEY_AT_v_head_dim, m->v_head_dim, unsaid->v_head_dim, m->v_head_dim))) {
        snprintf(expected, sizeof expected,
                 "%" PRId64 " (qk_nope_head_dim + qk_rope_head_dim) and %" PRId64 " (v_head_dim)", key_width,
                 m->v_head_dim);
        return refuse_key(check, ASSAY_KEY_AT_head_dim, expected, "takes the widths from one of them");
    }
    return ASSAY_OK;
}

/* "KEY is VALUE, expected EXPECTED: decoder_block BLOCK WHY". */
static assay_status refuse(const model_check *check, int key, const char *expected, const char *why)
{
    const assay_model_config *m = &check->c->config;
    const int rule = m->routing_method.text[0] != '\0' ? ASSAY_KEY_AT_routing_method : ASSAY_KEY_AT_decoder_block;
    char block[ASSAY_KEY_VALUE_SIZE];
    assay_model_key_text(&assay_model_keys[rule], m, block, sizeof block);
    if (m->fused_moe_func) return assay_refuse_key(check->ctx, m, key, "%s: fused_moe_func %s", expected, why);
    return assay_refuse_key(check->ctx, m, key, "%s: %s %s %s", expected, assay_model_keys[rule].name, block, why);
}

/* What layers with grouped-query attention honour (MaxText models/mixtral.py, qwen3.py, gpt_oss.py). */
static assay_status check_grouped_layer(const model_check *check)
{
    const assay_model_config *m = &check->c->config;
    const char *block = m->decoder_block.text, *type = m->attention_type.text;
    const bool alternates = assay_block_has(block, ASSAY_BLOCK_ALTERNATES);
    const bool mixed = assay_block_has(block, ASSAY_BLOCK_MIXED);
    if (m->first_num_dense_layers > 0 && !mixed) {
        return refuse(check, ASSAY_KEY_AT_first_num_dense_layers, "0", "has experts in every layer");
    }
    if (m->shared_experts > 0 && !mixed) return refuse(check, ASSAY_KEY_AT_shared_experts, "0", "has no shared expert");
    if (m->use_batch_split_schedule) {
        return refuse(check, ASSAY_KEY_AT_use_batch_split_schedule, "false", "has no such schedule");
    }
    if (m->use_qk_norm && !assay_block_has(block, ASSAY_BLOCK_NORMS_HEADS)) {
        return refuse(check, ASSAY_KEY_AT_use_qk_norm, "false", "does not normalise queries and keys");
    }
    if (m->attention_bias && !alternates) {
        return refuse(check, ASSAY_KEY_AT_attention_bias, "false", "has no biases in its attention");
    }
    if (strcmp(type, "local_sliding") == 0 && alternates && assay_is_stack(check->c)) {
        return refuse(check, ASSAY_KEY_AT_attention_type, "\"\"", "has a window in every other layer");
    }
    if (m->sliding_window_size == 0 && alternates) {
        return refuse(check, ASSAY_KEY_AT_sliding_window_size, "1 or more", "has a window in every other layer");
    }
    return ASSAY_OK;
}

/* What a routing method has not; the score function is its own. */
static assay_status check_method(const model_check *check)
{
    const assay_model_config *m = &check->c->config;
    const bool *is_set = m->is_set;
    const assay_routing_method *method = assay_routing_method_by_name(m->routing_method.text);
    if (method == NULL) return ASSAY_OK;
    if (m->fused_moe_func || m->use_random_routing || m->first_num_hash_layers > 0) {
        return assay_refuse_key(check->ctx, m, ASSAY_KEY_AT_routing_method, "\"\": %s has its own rule",
                                m->fused_moe_func       ? "fused_moe_func"
                                : m->use_random_routing ? "use_random_routing"
                                                        : "hash routing");
    }
    if (is_set[ASSAY_KEY_AT_routed_bias] && m->routed_bias && (method->has & ASSAY_METHOD_BIAS) == 0) {
        return refuse(check, ASSAY_KEY_AT_routed_bias, "false", "has no bias");
    }
    if (is_set[ASSAY_KEY_AT_n_routing_groups] && m->n_routing_groups > 0 && (method->has & ASSAY_METHOD_GROUPS) == 0) {
        return refuse(check, ASSAY_KEY_AT_n_routing_groups, "-1", "has no groups");
    }
    if (is_set[ASSAY_KEY_AT_routed_scaling_factor] && m->routed_scaling_factor != 1.0 &&
        (method->has & ASSAY_METHOD_FACTOR) == 0) {
        return refuse(check, ASSAY_KEY_AT_routed_scaling_factor, "1", "does not scale its weights");
    }
    if (is_set[ASSAY_KEY_AT_routed_score_func] && m->routed_score_func.text[0] != '\0' &&
        assay_model_choice(m, ASSAY_KEY_AT_routed_score_func) != (int)method->score_func) {
        return refuse(check, ASSAY_KEY_AT_routed_score_func, "\"\"", "has a score function of its own, or none");
    }
    return ASSAY_OK;
}

/* Of operations whose layer is the model's. */
static assay_status check_layer(const model_check *check)
{
    const assay_model_config *m = &check->c->config;
    if (!assay_block_has(m->decoder_block.text, ASSAY_BLOCK_LAYER)) {
        return refuse_block(check, "has a layer of another form");
    }
    return assay_layer_is_grouped(m) ? check_grouped_layer(check) : ASSAY_OK;
}

static assay_status check_router(const model_check *check)
{
    const assay_model_config *m = &check->c->config;
    const bool *is_set = m->is_set;
    MUST(check_method(check));
    const assay_router_family family = assay_router_family_of(m);
    const bool deepseek = family == ASSAY_ROUTER_DEEPSEEK3 || family == ASSAY_ROUTER_DEEPSEEK2;
    if (!deepseek && family != ASSAY_ROUTER_FUSED && is_set[ASSAY_KEY_AT_routed_score_func] &&
        m->routed_score_func.text[0] != '\0') {
        return refuse(check, ASSAY_KEY_AT_routed_score_func, "\"\"", "has no score function");
    }
    if (!deepseek && is_set[ASSAY_KEY_AT_routed_scaling_factor] && m->routed_scaling_factor != 1.0) {
        return refuse(check, ASSAY_KEY_AT_routed_scaling_factor, "1", "does not scale its weights");
    }
    if (!deepseek && is_set[ASSAY_KEY_AT_n_routing_groups] && m->n_routing_groups > 0) {
        return refuse(check, ASSAY_KEY_AT_n_routing_groups, "-1", "has no groups");
    }
    if (!deepseek && is_set[ASSAY_KEY_AT_topk_routing_group] && m->topk_routing_group > 0) {
        return refuse(check, ASSAY_KEY_AT_topk_routing_group, "-1", "has no groups");
    }
    if (!deepseek && is_set[ASSAY_KEY_AT_group_score] && m->group_score.text[0] != '\0') {
        return refuse(check, ASSAY_KEY_AT_group_score, "\"\"", "has no groups");
    }
    if (deepseek && is_set[ASSAY_KEY_AT_topk_routing_group] && m->topk_routing_group > 0 &&
        !is_set[ASSAY_KEY_AT_n_routing_groups]) {
        return refuse(check, ASSAY_KEY_AT_topk_routing_group, "n_routing_groups beside it", "has no groups without it");
    }
    return ASSAY_OK;
}

static assay_status check_experts(const model_check *check)
{
    const assay_model_config *m = &check->c->config;
    const bool *is_set = m->is_set;
    if (is_set[ASSAY_KEY_AT_mlp_activations_limit] && m->mlp_activations_limit > 0.0 &&
        !assay_block_has(m->decoder_block.text, ASSAY_BLOCK_CLAMPS)) {
        return refuse(check, ASSAY_KEY_AT_mlp_activations_limit, "0", "does not clamp in its experts");
    }
    if (is_set[ASSAY_KEY_AT_mlp_activations] && strcmp(m->mlp_activations.item[1], "linear") != 0) {
        return refuse(check, ASSAY_KEY_AT_mlp_activations, "linear as the second",
                      "applies nothing but the first in its experts");
    }
    if (is_set[ASSAY_KEY_AT_shared_experts] && m->shared_experts > 1 &&
        assay_block_has(m->decoder_block.text, ASSAY_BLOCK_GATED_SHARED) &&
        !assay_block_has(m->decoder_block.text, ASSAY_BLOCK_MOE)) {
        return refuse(check, ASSAY_KEY_AT_shared_experts, "1", "has one shared expert, with a gate");
    }
    /* Under the schedule it is that of the rows which backward finds kept. */
    const bool schedule = m->use_batch_split_schedule || m->function.text[0] != '\0';
    if (is_set[ASSAY_KEY_AT_capacity_factor] && m->capacity_factor > 0.0 && !schedule &&
        (m->sparse_matmul || m->fused_moe_func)) {
        return assay_refuse(check->ctx, "capacity_factor is %g, expected -1: with %s no token is dropped",
                            m->capacity_factor, m->fused_moe_func ? "fused_moe_func" : "sparse_matmul");
    }
    return ASSAY_OK;
}

/* Where nothing but the router and experts of a block is known. */
enum { OF_A_MOE = ASSAY_USES_ROUTER | ASSAY_USES_EXPERTS | ASSAY_USES_GROUPS | ASSAY_USES_SORT | ASSAY_USES_COMBINE };

static assay_status check_block(const model_check *check)
{
    const assay_model_config *m = &check->c->config;
    const bool said = m->is_set[ASSAY_KEY_AT_decoder_block];
    if (said && (check->components & ASSAY_USES_NORM) != 0 &&
        assay_block_has(m->decoder_block.text, ASSAY_BLOCK_OTHER_NORM)) {
        return refuse_block(check, "has no RMS norm with a plain scale");
    }
    if (said && (check->components & ASSAY_USES_MLP) != 0 &&
        assay_block_has(m->decoder_block.text, ASSAY_BLOCK_UNGATED)) {
        return refuse_block(check, "has no gated MLP");
    }
    if (said && (check->components & ~(unsigned)OF_A_MOE) != 0 &&
        assay_block_has(m->decoder_block.text, ASSAY_BLOCK_MOE))
        return refuse_block(check, "is known by its router and experts alone");
    if (said && check->components != ASSAY_USES_ROUTER && assay_block_has(m->decoder_block.text, ASSAY_BLOCK_ROUTER))
        return refuse_block(check, "is known by its router alone");
    return ASSAY_OK;
}

/* How the rows of a grouped product lie is seen from outside where it stands alone; replicas where experts are. */
static assay_status check_layout(const model_check *check)
{
    const assay_model_config *m = &check->c->config;
    const bool replicas = m->num_redundant_experts > 0 && (check->components & ASSAY_USES_EXPERTS) == 0;
    if (replicas && m->is_set[ASSAY_KEY_AT_num_redundant_experts]) {
        return assay_refuse_key(check->ctx, m, ASSAY_KEY_AT_num_redundant_experts,
                                "0: it is for op moe and layers, and this is %s", check->c->op);
    }
    const bool said = m->is_set[ASSAY_KEY_AT_gmm_layout] && strcmp(m->gmm_layout.text, "ragged") != 0;
    if (!said || (check->components & ASSAY_USES_GROUPS) != 0) return ASSAY_OK;
    return assay_refuse_key(check->ctx, m, ASSAY_KEY_AT_gmm_layout, "ragged: it is for op gmm, and this is %s",
                            check->c->op);
}

/* norm_topk_prob says what the family does; only some families do as it says. */
static assay_status check_division(const model_check *check)
{
    const assay_model_config *m = &check->c->config;
    assay_routing_config routing;
    MUST(assay_routing_config_of(check->ctx, check->c, &routing));
    const bool divides = assay_routing_divides(&routing);
    /* of random routing no key says what weights are */
    if (m->is_set[ASSAY_KEY_AT_norm_topk_prob] && m->norm_topk_prob != divides && !m->use_random_routing) {
        return refuse(check, ASSAY_KEY_AT_norm_topk_prob, divides ? "true" : "false",
                      divides ? "divides the weights by their sum" : "does not divide the weights by their sum");
    }
    return ASSAY_OK;
}

enum { EITHER_ATTENTION = ASSAY_USES_LATENT | ASSAY_USES_GROUPED };

static bool has_the_models_layer(unsigned components)
{
    return (components & EITHER_ATTENTION) == EITHER_ATTENTION;
}

/* A layer has one of the two attentions. */
static unsigned components_of(const assay_case *c, unsigned components)
{
    if (!has_the_models_layer(components)) return components;
    return components ^ (unsigned)(assay_layer_is_grouped(&c->config) ? ASSAY_USES_LATENT : ASSAY_USES_GROUPED);
}

/* Layers may be dense alone. */
static bool routes(const assay_case *c, unsigned components)
{
    const int64_t layers = assay_is_stack(c) ? c->config.base_num_decoder_layers : 1;
    const bool dense = (components & ASSAY_USES_LAYER) != 0 && c->config.first_num_dense_layers >= layers;
    return (components & ASSAY_USES_ROUTER) != 0 && !dense;
}

/* Gated MLPs whose kernels quantise h, by themselves or in a layer. */
static bool takes_hidden_format(const model_check *check)
{
    const char *op = check->c->op;
    return strcmp(op, "mlp") == 0 || strcmp(op, "moe") == 0 || (check->components & ASSAY_USES_LAYER) != 0;
}

/* What has products of layers that a recipe quantises. */
enum {
    TAKES_RECIPE = ASSAY_USES_GROUPS | ASSAY_USES_MLP | ASSAY_USES_LATENT | ASSAY_USES_GROUPED | ASSAY_USES_EXPERTS
};

static assay_status check_takes_recipe(const model_check *check)
{
    const assay_case *c = check->c;
    if (c->config.quant_recipe.text[0] == '\0' || (check->components & TAKES_RECIPE) != 0) return ASSAY_OK;
    return assay_refuse_key(check->ctx, &c->config, ASSAY_KEY_AT_quant_recipe,
                            "\"\": op %s has no recipe; gmm, mlp, mla, gqa, moe, batch_split and layers have", c->op);
}

/* The rules are those of h, which its operation checks. */
static assay_status check_rules_of_hidden(const model_check *check)
{
    const assay_case *c = check->c;
    if (c->config.quant_format.text[0] == '\0') return ASSAY_OK;
    return assay_refuse_key(check->ctx, &c->config, ASSAY_KEY_AT_quant_format, "none: op %s has quant_hidden_format",
                            c->op);
}

/* Rules of quantising are those of quantize; operands are quantised by their format's own, but for the rounding of scales. */
static assay_status check_quantising(const model_check *check)
{
    MUST(check_takes_recipe(check));
    if (assay_quantises_hidden(check->c) && takes_hidden_format(check)) return check_rules_of_hidden(check);
    static const int KEYS[] = {ASSAY_KEY_AT_quant_format,          ASSAY_KEY_AT_quant_scale,
                               ASSAY_KEY_AT_quant_subnormal_scale, ASSAY_KEY_AT_quant_smallest_amax,
                               ASSAY_KEY_AT_quant_saturate,        ASSAY_KEY_AT_quant_ties,
                               ASSAY_KEY_AT_quant_negative_zero,   ASSAY_KEY_AT_quant_scale_layout,
                               ASSAY_KEY_AT_quant_hidden_format,   ASSAY_KEY_AT_quant_hidden_tensor_scale,
                               ASSAY_KEY_AT_quant_elements,        ASSAY_KEY_AT_quant_scale_rounding};
    enum { COUNT = sizeof KEYS / sizeof *KEYS };
    const assay_case *c = check->c;
    static const char BLOCKS[] = "deepseek_v3"; /* whose scales have a rounding */
    const bool operands =
        c->quant_format_count > 0 || strncmp(c->config.quant_recipe.text, BLOCKS, sizeof BLOCKS - 1) == 0;
    for (int i = 0; i < (operands ? COUNT - 1 : COUNT); i++) {
        char text[ASSAY_KEY_VALUE_SIZE], usual[ASSAY_KEY_VALUE_SIZE];
        assay_model_key_text(&assay_model_keys[KEYS[i]], &c->config, text, sizeof text);
        assay_model_key_text(&assay_model_keys[KEYS[i]], &assay_model_defaults, usual, sizeof usual);
        if (strcmp(text, usual) == 0) continue;
        return assay_refuse(check->ctx,
                            "%s is %.60s, expected %s: op %s has formats of operands alone, "
                            "quant_formats",
                            assay_model_keys[KEYS[i]].name, text, usual, c->op);
    }
    return ASSAY_OK;
}

assay_status assay_model_check(assay_context *ctx, const assay_case *c, unsigned components)
{
    const model_check check = {ctx, c, components_of(c, components)};
    const bool bytes = (components & ASSAY_USES_DECODE) != 0 && strcmp(c->config.kv_cache_dtype.text, "auto") != 0;
    if (!bytes && (components & (ASSAY_USES_QUANTIZE | ASSAY_USES_DEQUANTIZE | ASSAY_USES_CACHE)) == 0)
        MUST(check_quantising(&check));
    if (has_the_models_layer(components)) MUST(check_layer(&check));
    MUST(check_maxtext_keys(&check));
    MUST(check_heads(&check));
    MUST(check_block(&check));
    MUST(check_layout(&check));
    if (!routes(c, components)) return ASSAY_OK;
    if ((components & ASSAY_USES_EXPERTS) != 0) MUST(check_experts(&check));
    MUST(check_router(&check));
    return check_division(&check);
}

assay_status assay_model_resolve(assay_context *ctx, const assay_case *c, unsigned components,
                                 assay_model_config *resolved)
{
    assay_routing_config routing;
    *resolved = c->config;
    resolved->latent_norm_epsilon = assay_latent_epsilon_of(&c->config);
    if ((components_of(c, components) & ASSAY_USES_GROUPED) != 0) {
        resolved->query_pre_attn_scalar = assay_query_scale_of(&c->config);
        if (c->config.base_num_kv_heads == 0) resolved->base_num_kv_heads = c->config.base_num_query_heads;
    }
    if (!routes(c, components)) return ASSAY_OK;
    MUST(assay_routing_config_of(ctx, c, &routing));
    resolved->norm_topk_prob = assay_routing_divides(&routing);
    if (routing.n_routing_groups <= 0) return ASSAY_OK;
    snprintf(resolved->group_score.text, sizeof resolved->group_score.text, "%s",
             routing.group_score == ASSAY_GROUP_TOP2_SUM ? "top2_sum" : "max");
    return ASSAY_OK;
}
