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
    ASSAY_PART_NORM = 1 << 0,
    ASSAY_PART_MLP = 1 << 1,
    ASSAY_PART_ROUTER = 1 << 2,
    ASSAY_PART_EXPERTS = 1 << 3,
    ASSAY_PART_ROPE = 1 << 4,
    ASSAY_PART_ATTENTION = 1 << 5, /* of queries, keys and values */
    ASSAY_PART_LATENT = 1 << 6,    /* the projections of MLA */
    ASSAY_PART_GROUPED = 1 << 7,   /* those of grouped-query attention */
    ASSAY_PART_LAYER = 1 << 8,
    ASSAY_PART_ALL = (1 << 9) - 1, /* of a layer; what follows is of an operation by itself */
    ASSAY_PART_GROUPS = 1 << 9,    /* products of groups of rows, each with a matrix of its own */
    ASSAY_PART_SORT = 1 << 10,     /* copies of tokens by expert */
    ASSAY_PART_COMBINE = 1 << 11,  /* and back */
    ASSAY_PART_SHARING = 1 << 12,  /* attention whose heads may share keys, with windows and sinks */
    ASSAY_PART_QUANTIZE = 1 << 13,
    ASSAY_PART_DEQUANTIZE = 1 << 14,
    ASSAY_PART_MERGE = 1 << 15,    /* of states of attention */
    ASSAY_PART_DECODE = 1 << 16,   /* attention of few tokens over a cache */
    ASSAY_PART_CACHE = 1 << 17,    /* a cache is written */
    ASSAY_PART_SCHEDULE = 1 << 18, /* the batch-split schedule */
};

/* index, key, values that change nothing ("|" between them; "[]" is an empty list), parts that others would change. */
#define ASSAY_MAXTEXT_KEY_TABLE(X)                                                                                     \
    X(attention, "autoselected|dot_product|flash|cudnn_flash_te|cudnn_flash_jax|paged", ASSAY_PART_ROUTER)             \
    X(global_parameter_scale, "1", ASSAY_PART_ALL)                                                                     \
    X(quantization, "|none|null|~", ASSAY_PART_ALL)                                                                    \
    X(weight_sparsity_n, "null|none|~", ASSAY_PART_ALL)                                                                \
    X(dropout_rate, "0", ASSAY_PART_MLP | ASSAY_PART_ATTENTION)                                                        \
    X(chunk_attn_window_size, "0", ASSAY_PART_ATTENTION)                                                               \
    X(moba, "false", ASSAY_PART_ATTENTION)                                                                             \
    X(temperature_tuning, "false", ASSAY_PART_ATTENTION)                                                               \
    X(compress_ratios, "[]", ASSAY_PART_ATTENTION | ASSAY_PART_LATENT)                                                 \
    X(o_groups, "0", ASSAY_PART_LATENT | ASSAY_PART_GROUPED)                                                           \
    X(o_lora_rank, "0", ASSAY_PART_LATENT | ASSAY_PART_GROUPED)                                                        \
    X(share_kv_projections, "false", ASSAY_PART_LATENT | ASSAY_PART_GROUPED)                                           \
    X(attention_output_dim, "-1|0", ASSAY_PART_LATENT | ASSAY_PART_GROUPED)                                            \
    X(qk_norm_with_scale, "true", ASSAY_PART_GROUPED)                                                                  \
    X(global_head_dim, "0", ASSAY_PART_ATTENTION)                                                                      \
    X(global_num_kv_heads, "0", ASSAY_PART_ATTENTION)                                                                  \
    X(rope_min_timescale, "1", ASSAY_PART_ROPE)                                                                        \
    X(rope_linear_scaling_factor, "1", ASSAY_PART_ROPE)                                                                \
    X(local_rope_max_timescale, "-1|0", ASSAY_PART_ROPE)                                                               \
    X(global_rope_max_timescale, "-1|0", ASSAY_PART_ROPE)                                                              \
    X(compressed_rope_max_timescale, "-1|0", ASSAY_PART_ROPE)                                                          \
    X(use_mrope, "false", ASSAY_PART_ROPE)                                                                             \
    X(moe_expert_input_dim, "-1|0", ASSAY_PART_EXPERTS)                                                                \
    X(use_double_wide_mlp, "false", ASSAY_PART_MLP)                                                                    \
    X(use_post_attn_norm, "false", ASSAY_PART_LAYER)                                                                   \
    X(use_post_ffw_norm, "false", ASSAY_PART_LAYER)                                                                    \
    X(mhc_expansion_rate, "1|0", ASSAY_PART_LAYER)                                                                     \
    X(engram_layers, "[]", ASSAY_PART_LAYER)                                                                           \
    X(nope_layer_interval, "-1|0", ASSAY_PART_LAYER)                                                                   \
    X(interleave_moe_layer_step, "1", ASSAY_PART_LAYER)                                                                \
    X(inhomogeneous_layer_cycle_interval, "1", ASSAY_PART_LAYER)                                                       \
    X(hidden_size_per_layer_input, "0", ASSAY_PART_LAYER)                                                              \
    X(num_kv_shared_layers, "0", ASSAY_PART_LAYER)

enum {
#define X(key, unchanging, parts) ASSAY_MAXTEXT_##key,
    ASSAY_MAXTEXT_KEY_TABLE(X)
#undef X
        ASSAY_MAXTEXT_KEYS
};

typedef struct assay_maxtext_key {
    const char *name, *unchanging;
    unsigned parts;
} assay_maxtext_key;

extern const assay_maxtext_key assay_maxtext_keys[ASSAY_MAXTEXT_KEYS];

int assay_maxtext_key_by_name(const char *name); /* -1 when there is none */

/* Whether the key changes nothing with this value: numbers as numbers (1 and 1.0), words in any case. */
bool assay_maxtext_value_changes_nothing(const assay_maxtext_key *key, const char *value);

/* Whether a key of MaxText cannot change a number of any operation here. */
bool assay_maxtext_key_is_neutral(const char *name);
