/* The configuration of a case: MaxText's model keys, and ours. One table serves the YAML reader, --set, the writer of
 * case_yaml, `assay show` and the documentation. */
#pragma once

#include <stddef.h>

#include "cases/maxtext_keys.h"
#include "oracle/base/status.h"

#define ASSAY_TEXT_SIZE 64

/* What happens to a named intermediate between forward and backward (docs/operations.md, "Rematerialisation"): remat, device or offload. "" (only for
 * the moe_ names): as the plain name says. */
#define ASSAY_CHECKPOINT_KEY_TABLE(X)                                                                                  \
    X(S, decoder_layer_input, "device") /* may not be remat */                                                         \
    X(S, query_proj, "remat")                                                                                          \
    X(S, key_proj, "remat")                                                                                            \
    X(S, value_proj, "remat")                                                                                          \
    X(S, qkv_proj, "remat")                                                                                            \
    X(S, query_wa_proj, "remat")                                                                                       \
    X(S, kv_wa_proj, "remat")                                                                                          \
    X(S, mla_q, "remat")                                                                                               \
    X(S, mla_kv, "remat")                                                                                              \
    X(S, attention_out, "remat")                                                                                       \
    X(S, context, "remat") /* attention_out, as kernels call it */                                                     \
    X(S, out_proj, "remat")                                                                                            \
    X(S, mlpwi, "remat")                                                                                               \
    X(S, mlpwi_0, "remat")                                                                                             \
    X(S, mlpwi_1, "remat")                                                                                             \
    X(S, mlpwo, "remat")                                                                                               \
    X(S, moe_mlpwi, "")                                                                                                \
    X(S, moe_mlpwi_0, "")                                                                                              \
    X(S, moe_mlpwi_1, "")                                                                                              \
    X(S, moe_mlpwo, "")

/*    type (I int64, D double, B bool, S text, A pair of texts), key, default */
#define ASSAY_MODEL_KEY_TABLE(X)                                                                                       \
    X(S, model_name, "")                                                                                               \
    X(S, decoder_block, "")                                                                                            \
    X(I, base_emb_dim, 0)                                                                                              \
    X(I, base_mlp_dim, 0)                                                                                              \
    X(I, base_moe_mlp_dim, 0)                                                                                          \
    X(I, base_num_query_heads, 0)                                                                                      \
    X(I, base_num_decoder_layers, 0)                                                                                   \
    X(I, first_num_dense_layers, 0)                                                                                    \
    X(I, num_experts, 0)                                                                                               \
    X(I, num_experts_per_tok, 0)                                                                                       \
    X(I, shared_experts, 0)                                                                                            \
    X(S, routing_method, "")                                                                                           \
    X(S, routed_score_func, "")                                                                                        \
    X(B, routed_bias, false)                                                                                           \
    X(D, routed_scaling_factor, 1.0)                                                                                   \
    X(I, n_routing_groups, -1)                                                                                         \
    X(I, topk_routing_group, -1)                                                                                       \
    X(S, group_score, "")                                                                                              \
    X(B, apply_routed_scaling_factor_on_output, true)                                                                  \
    X(B, apply_router_weight_on_input, false)                                                                          \
    X(I, num_fused_shared_experts, 0)                                                                                  \
    X(B, norm_topk_prob, false)                                                                                        \
    X(I, local_num_experts, 0)                                                                                         \
    X(I, local_expert_offset, 0)                                                                                       \
    X(B, use_random_routing, false)                                                                                    \
    X(D, load_balance_loss_weight, 0.0)                                                                                \
    X(S, load_balance_loss_scope, "sequence")                                                                          \
    X(B, load_balance_loss_pre_bias, false)                                                                            \
    X(D, router_z_loss_weight, 0.0)                                                                                    \
    X(D, routed_bias_update_rate, 0.0)                                                                                 \
    X(I, q_lora_rank, 0)                                                                                               \
    X(I, kv_lora_rank, 512)                                                                                            \
    X(I, qk_nope_head_dim, 128)                                                                                        \
    X(I, qk_rope_head_dim, 64)                                                                                         \
    X(I, v_head_dim, 128)                                                                                              \
    X(D, mscale, 1.0)                                                                                                  \
    X(S, attention_type, "")                                                                                           \
    X(I, base_num_kv_heads, 0) /* as many as query heads */                                                            \
    X(I, head_dim, 0)          /* the sizes of MLA */                                                                  \
    X(B, attention_bias, false)                                                                                        \
    X(B, attention_sink, false)                                                                                        \
    X(I, sliding_window_size, 0)                                                                                       \
    X(D, attn_logits_soft_cap, 0.0)                                                                                    \
    X(I, num_states, 2)                                                                                                \
    X(S, lse_base, "e")                                                                                                \
    X(S, empty_row, "-inf")                                                                                            \
    X(S, lse_layout, "BNS")                                                                                            \
    X(B, return_lse, true)                                                                                             \
    X(I, cache_length, 0)                                                                                              \
    X(I, pagedattn_num_pages, 0) /* no pages */                                                                        \
    X(I, pagedattn_tokens_per_page, 32)                                                                                \
    X(I, pagedattn_max_pages_per_group, -1) /* as many as cache_length needs */                                        \
    X(I, pagedattn_page_stride, 0)          /* as many rows as keys */                                                 \
    X(I, block_table_padding, -1)                                                                                      \
    X(S, kv_layout, "NHD")                                                                                             \
    X(S, kv_cache_dtype, "auto")                                                                                       \
    X(B, kv_cache_split, false) /* latents and their rope are two tensors */                                           \
    X(S, cache_norm, "none")                                                                                           \
    X(B, cache_rope, false)                                                                                            \
    X(S, attn_impl, "absorb")                                                                                          \
    X(I, num_kv_splits, 0)                                                                                             \
    X(B, use_indexer, false)                                                                                           \
    X(I, indexer_topk, 2048)                                                                                           \
    X(B, use_chunked_prefill, false)                                                                                   \
    X(I, prefill_chunk_size, 256)                                                                                      \
    X(B, use_qk_norm, false)                                                                                           \
    X(B, fused_qkv, false)                                                                                             \
    X(D, query_pre_attn_scalar, 0.0) /* as the block has it */                                                         \
    X(S, rope_type, "default")                                                                                         \
    X(D, rope_max_timescale, 10000.0)                                                                                  \
    X(D, partial_rotary_factor, 1.0)                                                                                   \
    X(D, rope_factor, 40.0)                                                                                            \
    X(D, beta_fast, 32.0)                                                                                              \
    X(D, beta_slow, 1.0)                                                                                               \
    X(I, max_position_embeddings, 163840)                                                                              \
    X(I, original_max_position_embeddings, 4096)                                                                       \
    X(B, rope_interleave, false) /* true with another rope_type than default, until it is given */                     \
    X(B, rope_truncate, true)                                                                                          \
    X(B, rope_attention_scaling, false)                                                                                \
    X(B, rope_pairwise, false)                                                                                         \
    X(B, mask_padding, true)                                                                                           \
    X(D, normalization_layer_epsilon, 1e-5)                                                                            \
    X(D, latent_norm_epsilon, -1.0) /* of q_norm and kv_norm of MLA; -1: as the one above */                           \
    X(A, mlp_activations, "silu")                                                                                      \
    X(D, mlp_activations_limit, 0.0)                                                                                   \
    X(B, mlp_bias, false)                                                                                              \
    X(B, fused_mlp, false)                                                                                             \
    X(B, prefuse_moe_weights, false)                                                                                   \
    X(B, fused_moe_mlp, false)                                                                                         \
    X(I, w13_reorder_size, 1) /* tensor shards whose gate and up are side by side in wi */                             \
    X(B, sparse_matmul, true)                                                                                          \
    X(D, capacity_factor, -1.0)                                                                                        \
    X(I, num_redundant_experts, 0)                                                                                     \
    X(S, gmm_layout, "ragged")                                                                                         \
    X(I, mk_alignment_for_contiguous_layout, 128)                                                                      \
    X(B, fused_moe_func, false)                                                                                        \
    X(B, use_ring_of_experts, false)                                                                                   \
    X(D, ragged_buffer_factor, -1.0)                                                                                   \
    X(I, num_moe_emb_chunks, 0)                                                                                        \
    X(I, num_moe_token_chunks, 1)                                                                                      \
    X(B, weights_on_shards, false)                                                                                     \
    X(B, shard_exp_on_fsdp, false)                                                                                     \
    X(I, first_num_hash_layers, 0)                                                                                     \
    X(I, vocab_size, 0)                                                                                                \
    X(I, batch_split_factor, 1)                                                                                        \
    X(B, use_batch_split_schedule, false)                                                                              \
    X(S, function, "")                                                                                                 \
    X(I, top_k_in_group, 2)                                                                                            \
    X(B, merge_gating_gmm, false)                                                                                      \
    X(S, quant_format, "")                                                                                             \
    X(S, quant_scale, "divide")                                                                                        \
    X(S, quant_scale_rounding, "nearest")                                                                              \
    X(B, quant_subnormal_scale, true)                                                                                  \
    X(D, quant_smallest_amax, 0.0)                                                                                     \
    X(B, quant_saturate, true)                                                                                         \
    X(S, quant_elements, "multiply")                                                                                   \
    X(S, quant_ties, "even")                                                                                           \
    X(S, quant_scale_layout, "row_major")                                                                              \
    X(B, quant_negative_zero, true)                                                                                    \
    X(S, quant_hidden_format, "")                                                                                      \
    X(D, quant_hidden_tensor_scale, 0.0)                                                                               \
    X(B, pack_codes, true)                                                                                             \
    X(S, quant_recipe, "")                                                                                             \
    X(S, act_quantization_calibration_method, "absmax")                                                                \
    X(S, weight_quantization_calibration_method, "absmax")                                                             \
    X(S, bwd_quantization_calibration_method, "absmax")                                                                \
    X(I, layer_axis, 0)                                                                                                \
    X(S, remat_policy, "full")                                                                                         \
    ASSAY_CHECKPOINT_KEY_TABLE(X)

typedef struct assay_text_pair {
    char item[2][ASSAY_TEXT_SIZE]; /* mlp_activations: of gate and of up; the second is "linear" when not given */
} assay_text_pair;

#define ASSAY_KEY_TYPE_I int64_t
#define ASSAY_KEY_TYPE_D double
#define ASSAY_KEY_TYPE_B bool
#define ASSAY_KEY_TYPE_A assay_text_pair

typedef struct assay_text {
    char text[ASSAY_TEXT_SIZE];
} assay_text;
#define ASSAY_KEY_TYPE_S assay_text

/* The place of each key in the table. */
enum {
#define X(type, key, value) ASSAY_KEY_AT_##key,
    ASSAY_MODEL_KEY_TABLE(X)
#undef X
        ASSAY_MODEL_KEYS
};

typedef struct assay_model_config {
#define X(type, key, value) ASSAY_KEY_TYPE_##type key;
    ASSAY_MODEL_KEY_TABLE(X)
#undef X
    bool given[ASSAY_MODEL_KEYS];           /* by a model or over it; what is not given is left open */
    assay_text maxtext[ASSAY_MAXTEXT_KEYS]; /* of keys that are none of a case, where they might change something */
    bool weigh_biased, undivided, masked_at_zero, division_detached,
        windows_in_odd_layers; /* no keys: what no model does, and mutants */
    double gate_alpha;         /* none either: of GPT-OSS's gate; 0 is 1.702 */
} assay_model_config;

extern const assay_model_config assay_model_defaults;

typedef enum assay_key_type { ASSAY_KEY_I, ASSAY_KEY_D, ASSAY_KEY_B, ASSAY_KEY_S, ASSAY_KEY_A } assay_key_type;

typedef struct assay_model_key {
    const char *name;
    assay_key_type type;
    size_t offset; /* of the value within assay_model_config */
    int64_t least; /* of a whole number: -1 and 0 where the default is that, else 1 */
} assay_model_key;

extern const assay_model_key assay_model_keys[ASSAY_MODEL_KEYS];
const assay_model_key *assay_model_key_by_name(const char *name); /* NULL when there is none */

/* No key counts as given any more; rope_interleave stays as it was settled. */
void assay_model_forget_given(assay_model_config *config);

/* The texts that a key takes, ended by NULL; NULL when it takes any. */
const char *const *assay_model_key_choices(const assay_model_key *key);

/* Room for any value below. */
#define ASSAY_KEY_VALUE_SIZE (9 * ASSAY_TEXT_SIZE)

/* The value of a key as YAML: "64", "1.0e-06", "true", "\"\"", "[silu, linear]". */
void assay_model_key_text(const assay_model_key *key, const assay_model_config *config, char *text, size_t size);
