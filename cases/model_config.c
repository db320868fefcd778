#include "cases/model_config.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cases/decoder_block.h"
#include "cases/routing_method.h"
#include "cases/yaml_text.h"
#include "oracle/base/block_format.h"

#define DEFAULT_I(value) value
#define DEFAULT_D(value) value
#define DEFAULT_B(value) value
#define DEFAULT_S(value)                                                                                               \
    {                                                                                                                  \
        value                                                                                                          \
    }
#define DEFAULT_A(value)                                                                                               \
    {                                                                                                                  \
        {                                                                                                              \
            value, "linear"                                                                                            \
        }                                                                                                              \
    }
const assay_model_config assay_model_defaults = {
#define X(type, key, value, parts) .key = DEFAULT_##type(value),
    ASSAY_MODEL_KEY_TABLE(X)
#undef X
};

/* A key that is on by default has no off. */
#define LEAST_I(value) ((value) < 0 ? -1 : (value) > 0)
#define LEAST_D(value) 0
#define LEAST_B(value) 0
#define LEAST_S(value) 0
#define LEAST_A(value) 0

const assay_model_key assay_model_keys[ASSAY_MODEL_KEYS] = {
#define X(type, key, value, parts)                                                                                     \
    {#key, ASSAY_KEY_##type, offsetof(assay_model_config, key), LEAST_##type(value), parts},
    ASSAY_MODEL_KEY_TABLE(X)
#undef X
};

const assay_model_key *assay_model_key_by_name(const char *name)
{
    for (int i = 0; i < ASSAY_MODEL_KEYS; i++) {
        if (strcmp(name, assay_model_keys[i].name) == 0) return &assay_model_keys[i];
    }
    return NULL;
}

void assay_model_forget_given(assay_model_config *config)
{
    const bool interleave = config->given[ASSAY_KEY_AT_rope_interleave];
    memset(config->given, 0, sizeof config->given);
    config->given[ASSAY_KEY_AT_rope_interleave] = interleave;
}

const char *const *assay_model_key_choices(const assay_model_key *key)
{
    static const char *const SCORE_FUNCS[] = {"", "sigmoid", "softmax", "sqrtsoftplus", NULL};
    static const char *const GROUP_SCORES[] = {"", "top2_sum", "max", NULL};
    static const char *const GMM_LAYOUTS[] = {"ragged", "contiguous", "masked", "psum", "k_grouped", NULL};
    static const char *const QUANT_RECIPES[] = {"", "deepseek_v3", "fp8_full", NULL};
    static const char *const QUANT_SCALES[] = {"divide", "multiply", "invert", NULL};
    static const char *const QUANT_ROUNDINGS[] = {"nearest", "up", "down", NULL};
    static const char *const QUANT_ELEMENTS[] = {"multiply", "divide", NULL};
    static const char *const QUANT_TIES[] = {"even", "down", NULL};
    static const char *const QUANT_LAYOUTS[] = {"row_major", "swizzled_128x4", NULL};
    static const char *const LSE_BASES[] = {"e", "2", NULL};
    static const char *const EMPTY_ROWS[] = {"-inf", "inf", NULL};
    static const char *const LSE_LAYOUTS[] = {"BNS", "BSN", NULL};
    static const char *const KV_LAYOUTS[] = {"NHD", "HND", NULL};
    static const char *const CACHE_NORMS[] = {"none", "latent", "row", NULL};
    static const char *const ATTN_IMPLS[] = {"absorb", "naive", NULL};
    static const char *const SCOPES[] = {"sequence", "batch", "global", NULL};
    static const char *const POLICIES[] = {"remat", "device", "offload", NULL};
    static const char *const POLICIES_OR_NONE[] = {"", "remat", "device", "offload", NULL};
    static const char *const checkpoints[] = {
#define X(type, name, value, parts) #name,
        ASSAY_CHECKPOINT_KEY_TABLE(X)
#undef X
    };
    if (strcmp(key->name, "decoder_block") == 0) return assay_decoder_block_names;
    if (strcmp(key->name, "routing_method") == 0) return assay_routing_method_names;
    if (strcmp(key->name, "quant_format") == 0 || strcmp(key->name, "quant_hidden_format") == 0)
        return assay_block_format_names;
    if (strcmp(key->name, "quant_recipe") == 0) return QUANT_RECIPES;
    if (strcmp(key->name, "quant_scale") == 0) return QUANT_SCALES;
    if (strcmp(key->name, "quant_scale_rounding") == 0) return QUANT_ROUNDINGS;
    if (strcmp(key->name, "quant_elements") == 0) return QUANT_ELEMENTS;
    if (strcmp(key->name, "quant_ties") == 0) return QUANT_TIES;
    if (strcmp(key->name, "quant_scale_layout") == 0) return QUANT_LAYOUTS;
    if (strcmp(key->name, "routed_score_func") == 0) return SCORE_FUNCS;
    if (strcmp(key->name, "group_score") == 0) return GROUP_SCORES;
    if (strcmp(key->name, "gmm_layout") == 0) return GMM_LAYOUTS;
    if (strcmp(key->name, "load_balance_loss_scope") == 0) return SCOPES;
    if (strcmp(key->name, "lse_base") == 0) return LSE_BASES;
    if (strcmp(key->name, "empty_row") == 0) return EMPTY_ROWS;
    if (strcmp(key->name, "lse_layout") == 0) return LSE_LAYOUTS;
    if (strcmp(key->name, "kv_layout") == 0) return KV_LAYOUTS;
    if (strcmp(key->name, "cache_norm") == 0) return CACHE_NORMS;
    if (strcmp(key->name, "attn_impl") == 0) return ATTN_IMPLS;
    if (strcmp(key->name, "decoder_layer_input") == 0) return POLICIES + 1; /* where recomputation starts from */
    for (size_t i = 0; i < sizeof checkpoints / sizeof *checkpoints; i++) {
        if (strcmp(key->name, checkpoints[i]) != 0) continue;
        return strncmp(key->name, "moe_", 4) == 0 ? POLICIES_OR_NONE : POLICIES;
    }
    return NULL;
}

void assay_model_key_text(const assay_model_key *key, const assay_model_config *config, char *text, size_t size)
{
    const void *value = (const char *)config + key->offset;
    char first[ASSAY_KEY_VALUE_SIZE], second[ASSAY_KEY_VALUE_SIZE];
    switch (key->type) {
    case ASSAY_KEY_I:
        snprintf(text, size, "%" PRId64, *(const int64_t *)value);
        break;
    case ASSAY_KEY_D:
        assay_yaml_number_text(*(const double *)value, text, size);
        break;
    case ASSAY_KEY_B:
        snprintf(text, size, "%s", *(const bool *)value ? "true" : "false");
        break;
    case ASSAY_KEY_S:
        assay_yaml_quoted_text(((const assay_text *)value)->text, text, size);
        break;
    case ASSAY_KEY_A:
        assay_yaml_quoted_text(((const assay_text_pair *)value)->item[0], first, sizeof first);
        assay_yaml_quoted_text(((const assay_text_pair *)value)->item[1], second, sizeof second);
        snprintf(text, size, "[%s, %s]", first, second);
        break;
    }
}
