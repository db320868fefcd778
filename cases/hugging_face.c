/* A Hugging Face config.json in place of a model: which of its keys are MaxText's, which change nothing, which are
 * refused. Read like YAML, of which JSON is a part. Source: the configurations and models of transformers, and of
 * DeepSeek's own repositories. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cases/case_internal.h"
#include "cases/hugging_face.h"

enum {
    DEEPSEEK2 = 1 << 0,
    DEEPSEEK3 = 1 << 1,
    GLM4 = 1 << 2,
    MIXTRAL = 1 << 3,
    QWEN3 = 1 << 4,
    GPT_OSS = 1 << 5,
    LATENT = DEEPSEEK2 | DEEPSEEK3,
    GROUPED = MIXTRAL | QWEN3 | GPT_OSS | GLM4,
    DEEPSEEKS_ROUTER = DEEPSEEK2 | DEEPSEEK3 | GLM4,
    EVERY = LATENT | GROUPED,
    ROPE = 1 << 6, /* within rope_scaling or rope_parameters */
};

/* model_type, and what goes without saying, in MaxText's keys. */
static const struct {
    const char *model_type;
    unsigned family;
    const char *keys;
} FAMILIES[] = {
    {"deepseek_v2", DEEPSEEK2,
     "{model_name: deepseek2, decoder_block: deepseek, routed_score_func: softmax, routed_bias: false,"
     " mlp_activations: [silu, linear], rope_interleave: true, mscale: 0.0}"},
    {"deepseek_v3", DEEPSEEK3,
     "{model_name: deepseek3, decoder_block: deepseek, routed_score_func: sigmoid, routed_bias: true,"
     " mlp_activations: [silu, linear], rope_interleave: true, mscale: 0.0}"},
    {"kimi_k2", DEEPSEEK3,
     "{model_name: kimi-k2, decoder_block: kimi_k2, routed_score_func: sigmoid, routed_bias: true,"
     " mlp_activations: [silu, linear], rope_interleave: true, mscale: 0.0}"},
    {"glm4_moe", GLM4,
     "{model_name: glm4-moe, decoder_block: glm4_moe, routed_score_func: sigmoid, routed_bias: true,"
     " mlp_activations: [silu, linear], rope_interleave: false}"},
    {"mixtral", MIXTRAL,
     "{model_name: mixtral, decoder_block: mixtral, mlp_activations: [silu, linear], rope_interleave: false}"},
    {"qwen3_moe", QWEN3,
     "{model_name: qwen3-moe, decoder_block: qwen3_moe, mlp_activations: [silu, linear], use_qk_norm: true,"
     " norm_topk_prob: false, rope_interleave: false}"},
    {"gpt_oss", GPT_OSS,
     "{model_name: gpt-oss, decoder_block: gpt_oss, mlp_activations: [sigmoid, linear], routed_bias: true,"
     " mlp_bias: true, attention_sink: true, rope_interleave: false}"},
};
enum { FAMILY_COUNT = sizeof FAMILIES / sizeof *FAMILIES };

const assay_hugging_face_key assay_hugging_face_keys[] = {
    /* sizes */
    {"hidden_size", EVERY, true, {"base_emb_dim"}, NULL, NULL},
    {"intermediate_size", DEEPSEEKS_ROUTER, true, {"base_mlp_dim"}, NULL, NULL},
    {"intermediate_size", MIXTRAL | GPT_OSS, true, {"base_mlp_dim", "base_moe_mlp_dim"}, NULL, NULL},
    {"intermediate_size", QWEN3, false, {NULL}, NULL, "of layers without experts, which `mlp_only_layers` would name"},
    {"moe_intermediate_size", DEEPSEEKS_ROUTER, true, {"base_moe_mlp_dim"}, NULL, NULL},
    {"moe_intermediate_size", QWEN3, true, {"base_moe_mlp_dim", "base_mlp_dim"}, NULL, NULL},
    {"num_hidden_layers", EVERY, true, {"base_num_decoder_layers"}, NULL, NULL},
    {"vocab_size", EVERY, false, {"vocab_size"}, NULL, NULL},
    {"rms_norm_eps", EVERY, true, {"normalization_layer_epsilon"}, NULL, NULL},
    {"first_k_dense_replace", DEEPSEEKS_ROUTER, true, {"first_num_dense_layers"}, NULL, NULL},
    {"moe_layer_freq", DEEPSEEKS_ROUTER, false, {NULL}, "1", NULL},
    {"decoder_sparse_step", QWEN3, false, {NULL}, "1", NULL},
    {"mlp_only_layers", QWEN3, false, {NULL}, "[]|null", NULL},
    {"hidden_act", EVERY, false, {NULL}, "silu|swish", NULL},
    {"mlp_bias", DEEPSEEKS_ROUTER, false, {NULL}, "false", NULL},
    {"swiglu_limit", GPT_OSS, false, {"mlp_activations_limit"}, NULL, NULL},
    {"swiglu_alpha", GPT_OSS, false, {NULL}, "1.702", NULL},

    /* experts */
    {"n_routed_experts", DEEPSEEKS_ROUTER, true, {"num_experts"}, NULL, NULL},
    {"num_local_experts", MIXTRAL | GPT_OSS, true, {"num_experts"}, NULL, NULL},
    {"num_experts", QWEN3, false, {"num_experts"}, NULL, NULL}, /* one of the two: require_experts */
    {"num_local_experts", QWEN3, false, {"num_experts"}, NULL, NULL},
    {"num_experts_per_tok", EVERY, true, {"num_experts_per_tok"}, NULL, NULL},
    {"experts_per_token", GPT_OSS, false, {NULL}, NULL, "the same as `num_experts_per_tok`"},
    {"n_shared_experts", DEEPSEEKS_ROUTER, true, {"shared_experts"}, NULL, NULL},
    {"scoring_func", DEEPSEEK2, false, {NULL}, "softmax", NULL},
    {"scoring_func", DEEPSEEK3 | GLM4, false, {NULL}, "sigmoid", NULL},
    {"topk_method", DEEPSEEK2, true, {NULL}, "greedy|group_limited_greedy", NULL},
    {"topk_method", DEEPSEEK3 | GLM4, false, {NULL}, "noaux_tc", NULL},
    {"n_group", DEEPSEEKS_ROUTER, true, {"n_routing_groups"}, NULL, NULL},
    {"topk_group", DEEPSEEKS_ROUTER, true, {"topk_routing_group"}, NULL, NULL},
    {"norm_topk_prob", DEEPSEEKS_ROUTER | QWEN3, false, {"norm_topk_prob"}, NULL, NULL},
    {"routed_scaling_factor", DEEPSEEKS_ROUTER, true, {"routed_scaling_factor"}, NULL, NULL},

    /* attention */
    {"num_attention_heads", EVERY, true, {"base_num_query_heads"}, NULL, NULL},
    {"num_key_value_heads", GROUPED, true, {"base_num_kv_heads"}, NULL, NULL},
    {"num_key_value_heads", LATENT, false, {NULL}, NULL, "latent attention has a key for each head"},
    {"head_dim", GROUPED, false, {"head_dim"}, NULL, NULL},
    {"head_dim", LATENT, false, {NULL}, NULL, "the same as `qk_rope_head_dim`"},
    {"qk_head_dim", LATENT, false, {NULL}, NULL, "the sum of the two widths"},
    {"q_lora_rank", LATENT, true, {"q_lora_rank"}, NULL, "null: none"},
    {"kv_lora_rank", LATENT, true, {"kv_lora_rank"}, NULL, NULL},
    {"qk_nope_head_dim", LATENT, true, {"qk_nope_head_dim"}, NULL, NULL},
    {"qk_rope_head_dim", LATENT, true, {"qk_rope_head_dim"}, NULL, NULL},
    {"v_head_dim", LATENT, true, {"v_head_dim"}, NULL, NULL},
    {"attention_bias", LATENT | MIXTRAL | QWEN3, false, {NULL}, "false", NULL},
    {"attention_bias", GPT_OSS | GLM4, true, {"attention_bias"}, NULL, NULL},
    {"attention_dropout", EVERY, false, {NULL}, "0", NULL},
    {"use_qk_norm", GLM4, true, {"use_qk_norm"}, NULL, NULL},
    {"sliding_window", GPT_OSS, true, {"sliding_window_size"}, NULL, NULL},
    {"sliding_window", MIXTRAL, false, {"sliding_window_size"}, NULL, "null: none"},
    {"sliding_window", QWEN3, false, {NULL}, NULL, "`use_sliding_window` turns it on"},
    {"use_sliding_window", QWEN3, false, {NULL}, "false", NULL},
    {"max_window_layers", QWEN3, false, {NULL}, NULL, "likewise"},
    {"layer_types", EVERY, false, {NULL}, NULL, "windows in every other layer of GPT-OSS, from the first; else none"},

    /* rotary embedding */
    {"max_position_embeddings", EVERY, true, {"max_position_embeddings"}, NULL, NULL},
    {"rope_theta", EVERY | ROPE, false, {"rope_max_timescale"}, NULL, NULL},
    {"rope_interleave", DEEPSEEK2, false, {NULL}, "true", NULL}, /* which has no such key: pairs are side by side */
    {"rope_interleave", DEEPSEEK3, false, {"rope_interleave"}, NULL, NULL},
    {"partial_rotary_factor", GROUPED | ROPE, false, {"partial_rotary_factor"}, NULL, NULL},
    {"rope_scaling", EVERY, false, {NULL}, NULL, "its own keys are below; null: plain"},
    {"rope_parameters", EVERY, false, {NULL}, NULL, "the same, with `rope_theta`"},
    {"rope_type", ROPE, false, {"rope_type"}, "default|yarn", NULL},
    {"type", ROPE, false, {"rope_type"}, "default|yarn", NULL},
    {"factor", ROPE, false, {"rope_factor"}, NULL, NULL},
    {"beta_fast", ROPE, false, {"beta_fast"}, NULL, NULL},
    {"beta_slow", ROPE, false, {"beta_slow"}, NULL, NULL},
    {"original_max_position_embeddings", ROPE, false, {"original_max_position_embeddings"}, NULL, NULL},
    {"truncate", ROPE, false, {"rope_truncate"}, NULL, NULL},
    {"mscale", ROPE, false, {NULL}, NULL, "must equal `mscale_all_dim`; without both `rope_attention_scaling` is true"},
    {"mscale_all_dim", ROPE, false, {"mscale"}, NULL, NULL},
    {"attention_factor", ROPE, false, {NULL}, "null", NULL},
    {"finetuned", ROPE, false, {NULL}, NULL, "changes nothing"},

    /* losses and noise of training */
    {"router_jitter_noise", MIXTRAL, false, {NULL}, "0", NULL},
};
enum { KEY_COUNT = sizeof assay_hugging_face_keys / sizeof *assay_hugging_face_keys };
const int assay_hugging_face_key_count = KEY_COUNT;

typedef struct hf_reader {
    const assay_yaml *y;
    unsigned family;
    const char *model_type;
    assay_model_config *config;
} hf_reader;

static const char *text_of(const yaml_node_t *node)
{
    return node != NULL && node->type == YAML_SCALAR_NODE ? (const char *)node->data.scalar.value : "";
}

static bool is_null(const yaml_node_t *node)
{
    return node == NULL || (node->type == YAML_SCALAR_NODE && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
                            strcmp(text_of(node), "null") == 0);
}

static const assay_hugging_face_key *key_by_name(const char *name, unsigned family)
{
    for (int i = 0; i < KEY_COUNT; i++) {
        if ((assay_hugging_face_keys[i].families & family) != 0 && strcmp(assay_hugging_face_keys[i].name, name) == 0)
            return &assay_hugging_face_keys[i];
    }
    return NULL;
}

static assay_status refuse_unknown(const hf_reader *r, const char *name, unsigned family, const yaml_node_t *at)
{
    char hint[ASSAY_MESSAGE_SIZE / 2];
    assay_nearest nearest = {.word = name, .most = 1};
    for (int i = 0; i < KEY_COUNT; i++) {
        if ((assay_hugging_face_keys[i].families & family) != 0)
            assay_nearest_offer(&nearest, assay_hugging_face_keys[i].name);
    }
    assay_nearest_text(&nearest, hint, sizeof hint);
    return assay_yaml_refuse(r->y, at, "unknown key %.100s in a configuration of %s: it may change numbers%s", name,
                             r->model_type, hint);
}

static bool is_one_of(const char *values, const yaml_node_t *node)
{
    const assay_maxtext_key listed = {.unchanging = values};
    const bool empty =
        node->type == YAML_SEQUENCE_NODE && node->data.sequence.items.top == node->data.sequence.items.start;
    return assay_maxtext_value_changes_nothing(&listed, empty ? "[]" : text_of(node));
}

static assay_status read_pair(const hf_reader *r, const char *name, unsigned family, const yaml_node_t *key_node,
                              const yaml_node_t *value)
{
    assay_status status = ASSAY_OK;
    const assay_hugging_face_key *key = key_by_name(name, family);
    if (key == NULL)
        return assay_key_is_neutral("hugging_face", name) ? ASSAY_OK : refuse_unknown(r, name, family, key_node);
    if (key->only != NULL && !is_one_of(key->only, value)) {
        char wanted[ASSAY_MESSAGE_SIZE / 2];
        snprintf(wanted, sizeof wanted, "%s (no operation here has another)", key->only);
        return assay_yaml_refuse_value(r->y, value, name, wanted);
    }
    for (int i = 0; i < 2 && key->to[i] != NULL && !is_null(value) && status == ASSAY_OK; i++) {
        assay_model_read_by_name(r->y, r->config, key->to[i], value, &status);
    }
    return status;
}

static assay_status read_pairs(const hf_reader *r, const yaml_node_t *mapping, const char *what, unsigned family)
{
    assay_status status = ASSAY_OK;
    for (assay_yaml_walk w = assay_yaml_pairs(r->y, mapping, what); assay_yaml_next(&w, &status);)
        status = read_pair(r, w.key, family, w.key_node, w.value);
    return status;
}

/* Cosine and sine are multiplied by m(mscale) / m(mscale_all_dim), with m(s) = 0.1 s ln(factor) + 1, or by m(1) where one
 * of them is missing; scores of latent attention by the square of m(mscale_all_dim). */
static assay_status settle_mscale(const hf_reader *r, const yaml_node_t *rope)
{
    const yaml_node_t *mscale = assay_yaml_value(r->y, rope, "mscale"),
                      *all = assay_yaml_value(r->y, rope, "mscale_all_dim");
    double one = 0, other = 0;
    assay_status status = ASSAY_OK;
    if (!is_null(mscale)) status = assay_yaml_real(r->y, mscale, "mscale", &one);
    if (status == ASSAY_OK && !is_null(all)) status = assay_yaml_real(r->y, all, "mscale_all_dim", &other);
    if (status != ASSAY_OK) return status;
    if (one != other) {
        return assay_yaml_refuse(
            r->y, rope, "mscale is %g and mscale_all_dim %g, expected them alike: no operation here has others", one,
            other);
    }
    r->config->rope_attention_scaling = one == 0;
    r->config->given[ASSAY_KEY_AT_rope_attention_scaling] = true;
    return ASSAY_OK;
}

/* The factor of scores goes by mscale_all_dim alone. MaxText has it where max_position_embeddings is above the original. */
static void settle_scores(const hf_reader *r)
{
    assay_model_config *config = r->config;
    if (config->rope_factor <= 1) config->mscale = 0;
    if (config->mscale != 0 && config->max_position_embeddings <= config->original_max_position_embeddings)
        config->max_position_embeddings = config->original_max_position_embeddings + 1;
}

static assay_status read_rope(const hf_reader *r, const yaml_node_t *rope, const char *what)
{
    static const char *const NEEDED[] = {"factor", "original_max_position_embeddings"};
    if (is_null(rope)) return ASSAY_OK;
    MUST(read_pairs(r, rope, what, ROPE));
    if (strcmp(r->config->rope_type.text, "yarn") != 0) {
        if (is_null(assay_yaml_value(r->y, rope, "mscale_all_dim"))) return ASSAY_OK;
        return assay_yaml_refuse(r->y, rope, "%s has mscale_all_dim, expected none where the type is not yarn", what);
    }
    for (size_t i = 0; i < sizeof NEEDED / sizeof *NEEDED; i++) {
        if (!is_null(assay_yaml_value(r->y, rope, NEEDED[i]))) continue;
        return assay_yaml_refuse(r->y, rope, "%s has no %s", what, NEEDED[i]);
    }
    return settle_mscale(r, rope);
}

/* The first of two layers sees a window in GPT-OSS, and none in the others. */
static assay_status check_layer_types(const hf_reader *r, const yaml_node_t *types)
{
    static const char *const NAMES[] = {"sliding_attention", "full_attention"};
    if (is_null(types)) return ASSAY_OK;
    if (types->type != YAML_SEQUENCE_NODE) return assay_yaml_refuse_value(r->y, types, "layer_types", "a list");
    const int64_t count = types->data.sequence.items.top - types->data.sequence.items.start;
    for (int64_t i = 0; i < count; i++) {
        const yaml_node_t *item = yaml_document_get_node(r->y->document, types->data.sequence.items.start[i]);
        const char *wanted = NAMES[(r->family & GPT_OSS) != 0 ? i % 2 : 1];
        if (strcmp(text_of(item), wanted) != 0) return assay_yaml_refuse_value(r->y, item, "layer_types", wanted);
    }
    return ASSAY_OK;
}

/* One group is none, and DeepSeek-V2 has them by its method. */
static void settle_groups(const hf_reader *r, const yaml_node_t *root)
{
    assay_model_config *config = r->config;
    const bool greedy = strcmp(text_of(assay_yaml_value(r->y, root, "topk_method")), "greedy") == 0;
    if (config->n_routing_groups > 1 && !greedy) return;
    config->n_routing_groups = config->topk_routing_group = -1;
    config->given[ASSAY_KEY_AT_n_routing_groups] = config->given[ASSAY_KEY_AT_topk_routing_group] = false;
}

/* Mixtral multiplies queries by the root of their width, which MaxText has in their kernel. */
static void settle_heads(const hf_reader *r)
{
    assay_model_config *config = r->config;
    if (!config->given[ASSAY_KEY_AT_head_dim] && config->base_num_query_heads > 0) {
        config->head_dim = config->base_emb_dim / config->base_num_query_heads;
        config->given[ASSAY_KEY_AT_head_dim] = true;
    }
    if (r->family != MIXTRAL || config->head_dim == 0) return;
    config->query_pre_attn_scalar = 1 / sqrt((double)config->head_dim);
    config->given[ASSAY_KEY_AT_query_pre_attn_scalar] = true;
}

/* Without division Qwen3 weighs by the softmax over all experts, MaxText's block by one over the chosen. */
static void settle_division(const hf_reader *r)
{
    assay_model_config *config = r->config;
    if (config->norm_topk_prob) return;
    snprintf(config->routing_method.text, sizeof config->routing_method.text, "Default");
    config->given[ASSAY_KEY_AT_routing_method] = true;
}

static assay_status require_key(const hf_reader *r, const yaml_node_t *root, const char *name, bool may_be_null)
{
    const yaml_node_t *value = assay_yaml_value(r->y, root, name);
    if (value == NULL) {
        return assay_yaml_refuse(r->y, root, "the key %s is missing, which a configuration of %s has", name,
                                 r->model_type);
    }
    if (may_be_null || !is_null(value)) return ASSAY_OK;
    return assay_yaml_refuse(r->y, value, "%s is null, expected a value", name);
}

/* Of Qwen3-MoE transformers wrote num_experts, and num_local_experts since version 5. */
static assay_status require_experts(const hf_reader *r, const yaml_node_t *root)
{
    const yaml_node_t *later = assay_yaml_value(r->y, root, "num_local_experts");
    if (later == NULL) return require_key(r, root, "num_experts", false);
    if (assay_yaml_value(r->y, root, "num_experts") == NULL) return require_key(r, root, "num_local_experts", false);
    return assay_yaml_refuse(r->y, later, "num_local_experts: num_experts stands there too, expected one of the two");
}

static assay_status require_keys(const hf_reader *r, const yaml_node_t *root)
{
    const yaml_node_t *parameters = assay_yaml_value(r->y, root, "rope_parameters");
    for (int i = 0; i < KEY_COUNT; i++) {
        const assay_hugging_face_key *key = &assay_hugging_face_keys[i];
        if (!key->required || (key->families & r->family) == 0) continue;
        MUST(require_key(r, root, key->name, key->settled != NULL));
    }
    if (is_null(assay_yaml_value(r->y, parameters, "rope_theta"))) MUST(require_key(r, root, "rope_theta", false));
    if (r->family == QWEN3) MUST(require_experts(r, root));
    /* transformers fills in yarn by 32 */
    if (r->family == GPT_OSS && is_null(parameters)) MUST(require_key(r, root, "rope_scaling", false));
    return ASSAY_OK;
}

static bool is_same_rope(const assay_model_config *a, const assay_model_config *b)
{
    return strcmp(a->rope_type.text, b->rope_type.text) == 0 && a->rope_factor == b->rope_factor &&
           a->original_max_position_embeddings == b->original_max_position_embeddings && a->beta_fast == b->beta_fast &&
           a->beta_slow == b->beta_slow && a->mscale == b->mscale && a->rope_truncate == b->rope_truncate &&
           a->rope_attention_scaling == b->rope_attention_scaling &&
           a->partial_rotary_factor == b->partial_rotary_factor;
}

/* An older key and a later one: which of the two transformers takes depends on its version. */
static assay_status read_ropes(const hf_reader *r, const yaml_node_t *root)
{
    const yaml_node_t *scaling = assay_yaml_value(r->y, root, "rope_scaling"),
                      *parameters = assay_yaml_value(r->y, root, "rope_parameters");
    MUST(read_rope(r, scaling, "rope_scaling"));
    const assay_model_config before = *r->config;
    MUST(read_rope(r, parameters, "rope_parameters"));
    if (is_null(scaling) || is_null(parameters) || is_same_rope(&before, r->config)) return ASSAY_OK;
    return assay_yaml_refuse(r->y, parameters,
                             "rope_parameters says another rotation than rope_scaling, expected one of the two");
}

static assay_status read_config(const hf_reader *r, const yaml_node_t *root)
{
    MUST(require_keys(r, root));
    MUST(read_pairs(r, root, "a configuration", r->family));
    MUST(read_ropes(r, root));
    MUST(check_layer_types(r, assay_yaml_value(r->y, root, "layer_types")));
    if ((r->family & DEEPSEEKS_ROUTER) != 0) settle_groups(r, root);
    if ((r->family & GROUPED) != 0) settle_heads(r);
    if ((r->family & LATENT) != 0) settle_scores(r);
    if (r->family == QWEN3) settle_division(r);
    return ASSAY_OK;
}

static assay_status read_said(const assay_yaml *y, const yaml_node_t *root, void *arg)
{
    return assay_model_read_mapping(y, root, arg);
}

assay_status assay_hugging_face_read(const assay_yaml *y, const yaml_node_t *root, assay_model_config *config)
{
    const yaml_node_t *model_type = assay_yaml_value(y, root, "model_type");
    const char *known[FAMILY_COUNT + 1] = {NULL};
    for (int i = 0; i < FAMILY_COUNT; i++) {
        known[i] = FAMILIES[i].model_type;
        if (strcmp(text_of(model_type), FAMILIES[i].model_type) != 0) continue;
        const hf_reader reader = {y, FAMILIES[i].family, FAMILIES[i].model_type, config};
        const char *keys = FAMILIES[i].keys;
        const assay_status status =
            assay_yaml_documents(y->ctx, FAMILIES[i].model_type, true, keys, strlen(keys), read_said, config);
        return status == ASSAY_OK ? read_config(&reader, root) : status;
    }
    return assay_yaml_refuse_choice(y, model_type, "model_type", known);
}

void assay_hugging_face_families(unsigned families, char *text, int size)
{
    int used = 0;
    text[0] = '\0';
    if ((families & EVERY) == EVERY || families == ROPE) {
        snprintf(text, (size_t)size, "%s", families == ROPE ? "`rope_scaling`" : "all");
        return;
    }
    for (int i = 0; i < FAMILY_COUNT && used < size; i++) {
        if ((FAMILIES[i].family & families) == 0) continue;
        used += snprintf(text + used, (size_t)(size - used), "%s%s", used > 0 ? ", " : "", FAMILIES[i].model_type);
    }
}
