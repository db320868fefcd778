/* Keys of MaxText (configs/types.py) that are no keys of a case.
 *
 * Those that cannot change a number of any operation here are passed over in a model. The others are kept with the
 * model, and an operation whose numbers they would change refuses them unless they have a value that changes nothing.
 * What stands in neither table is refused wherever it is given. */
#pragma once

#include <stdbool.h>

/* What an operation computes: a key changes the operations that have one of its parts, and mutants are for those that
 * have the part which they concern (harness/mutants/mutants.c). */
enum {
    ASSAY_USES_NORM = 1 << 0,
    ASSAY_USES_MLP = 1 << 1,
    ASSAY_USES_ROUTER = 1 << 2,
    ASSAY_USES_EXPERTS = 1 << 3,
    ASSAY_USES_ROPE = 1 << 4,
    ASSAY_USES_ATTENTION = 1 << 5, /* of queries, keys and values */
    ASSAY_USES_LATENT = 1 << 6,    /* the projections of MLA */
    ASSAY_USES_GROUPED = 1 << 7,   /* those of grouped-query attention */
    ASSAY_USES_LAYER = 1 << 8,
    ASSAY_USES_ALL = (1 << 9) - 1, /* of a layer; what follows is of an operation by itself */
    ASSAY_USES_GROUPS = 1 << 9,    /* products of groups of rows, each with a matrix of its own */
    ASSAY_USES_SORT = 1 << 10,     /* copies of tokens by expert */
    ASSAY_USES_COMBINE = 1 << 11,  /* and back */
    ASSAY_USES_SHARING = 1 << 12,  /* attention whose heads may share keys, with windows and sinks */
    ASSAY_USES_QUANTIZE = 1 << 13,
    ASSAY_USES_DEQUANTIZE = 1 << 14,
    ASSAY_USES_MERGE = 1 << 15,    /* of states of attention */
    ASSAY_USES_DECODE = 1 << 16,   /* attention of few tokens over a cache */
    ASSAY_USES_CACHE = 1 << 17,    /* a cache is written */
    ASSAY_USES_SCHEDULE = 1 << 18, /* the batch-split schedule */
};

/* index, key, values that change nothing ("|" between them; "[]" is an empty list), parts that others would change. */
#define ASSAY_MAXTEXT_KEY_TABLE(X)                                                                                     \
    X(attention, "autoselected|dot_product|flash|cudnn_flash_te|cudnn_flash_jax|paged", ASSAY_USES_ROUTER)             \
    X(global_parameter_scale, "1", ASSAY_USES_ALL)                                                                     \
    X(quantization, "|none|null|~", ASSAY_USES_ALL)                                                                    \
    X(weight_sparsity_n, "null|none|~", ASSAY_USES_ALL)                                                                \
    X(dropout_rate, "0", ASSAY_USES_MLP | ASSAY_USES_ATTENTION)                                                        \
    X(chunk_attn_window_size, "0", ASSAY_USES_ATTENTION)                                                               \
    X(moba, "false", ASSAY_USES_ATTENTION)                                                                             \
    X(temperature_tuning, "false", ASSAY_USES_ATTENTION)                                                               \
    X(compress_ratios, "[]", ASSAY_USES_ATTENTION | ASSAY_USES_LATENT)                                                 \
    X(o_groups, "0", ASSAY_USES_LATENT | ASSAY_USES_GROUPED)                                                           \
    X(o_lora_rank, "0", ASSAY_USES_LATENT | ASSAY_USES_GROUPED)                                                        \
    X(share_kv_projections, "false", ASSAY_USES_LATENT | ASSAY_USES_GROUPED)                                           \
    X(attention_output_dim, "-1|0", ASSAY_USES_LATENT | ASSAY_USES_GROUPED)                                            \
    X(qk_norm_with_scale, "true", ASSAY_USES_GROUPED)                                                                  \
    X(global_head_dim, "0", ASSAY_USES_ATTENTION)                                                                      \
    X(global_num_kv_heads, "0", ASSAY_USES_ATTENTION)                                                                  \
    X(rope_min_timescale, "1", ASSAY_USES_ROPE)                                                                        \
    X(rope_linear_scaling_factor, "1", ASSAY_USES_ROPE)                                                                \
    X(local_rope_max_timescale, "-1|0", ASSAY_USES_ROPE)                                                               \
    X(global_rope_max_timescale, "-1|0", ASSAY_USES_ROPE)                                                              \
    X(compressed_rope_max_timescale, "-1|0", ASSAY_USES_ROPE)                                                          \
    X(use_mrope, "false", ASSAY_USES_ROPE)                                                                             \
    X(moe_expert_input_dim, "-1|0", ASSAY_USES_EXPERTS)                                                                \
    X(use_double_wide_mlp, "false", ASSAY_USES_MLP)                                                                    \
    X(use_post_attn_norm, "false", ASSAY_USES_LAYER)                                                                   \
    X(use_post_ffw_norm, "false", ASSAY_USES_LAYER)                                                                    \
    X(mhc_expansion_rate, "1|0", ASSAY_USES_LAYER)                                                                     \
    X(engram_layers, "[]", ASSAY_USES_LAYER)                                                                           \
    X(nope_layer_interval, "-1|0", ASSAY_USES_LAYER)                                                                   \
    X(interleave_moe_layer_step, "1", ASSAY_USES_LAYER)                                                                \
    X(inhomogeneous_layer_cycle_interval, "1", ASSAY_USES_LAYER)                                                       \
    X(hidden_size_per_layer_input, "0", ASSAY_USES_LAYER)                                                              \
    X(num_kv_shared_layers, "0", ASSAY_USES_LAYER)

enum {
#define X(key, unchanging, components) ASSAY_MAXTEXT_##key,
    ASSAY_MAXTEXT_KEY_TABLE(X)
#undef X
        ASSAY_MAXTEXT_KEYS
};

typedef struct assay_maxtext_key {
    const char *name, *unchanging;
    unsigned components;
} assay_maxtext_key;

extern const assay_maxtext_key assay_maxtext_keys[ASSAY_MAXTEXT_KEYS];

int assay_maxtext_key_by_name(const char *name); /* -1 when there is none */

/* Whether the key changes nothing with this value: numbers as numbers (1 and 1.0), words in any case. */
bool assay_maxtext_value_changes_nothing(const assay_maxtext_key *key, const char *value);

/* Whether a key of MaxText cannot change a number of any operation here. */
bool assay_maxtext_key_is_neutral(const char *name);
