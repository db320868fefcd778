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
    X(S, decoder_layer_input, "device", ASSAY_PART_LAYER) /* may not be remat */                                       \
    X(S, query_proj, "remat", ASSAY_PART_LAYER)                                                                        \
    X(S, key_proj, "remat", ASSAY_PART_LAYER)                                                                          \
    X(S, value_proj, "remat", ASSAY_PART_LAYER)                                                                        \
    X(S, qkv_proj, "remat", ASSAY_PART_LAYER)                                                                          \
    X(S, query_wa_proj, "remat", ASSAY_PART_LAYER)                                                                     \
    X(S, kv_wa_proj, "remat", ASSAY_PART_LAYER)                                                                        \
    X(S, mla_q, "remat", ASSAY_PART_LAYER)                                                                             \
    X(S, mla_kv, "remat", ASSAY_PART_LAYER)                                                                            \
    X(S, attention_out, "remat", ASSAY_PART_LAYER)                                                                     \
    X(S, context, "remat", ASSAY_PART_LAYER) /* attention_out, as kernels call it */                                   \
    X(S, out_proj, "remat", ASSAY_PART_LAYER)                                                                          \
    X(S, mlpwi, "remat", ASSAY_PART_LAYER)                                                                             \
    X(S, mlpwi_0, "remat", ASSAY_PART_LAYER)                                                                           \
    X(S, mlpwi_1, "remat", ASSAY_PART_LAYER)                                                                           \
    X(S, mlpwo, "remat", ASSAY_PART_LAYER)                                                                             \
    X(S, moe_mlpwi, "", ASSAY_PART_LAYER)                                                                              \
    X(S, moe_mlpwi_0, "", ASSAY_PART_LAYER)                                                                            \
    X(S, moe_mlpwi_1, "", ASSAY_PART_LAYER)                                                                            \
    X(S, moe_mlpwo, "", ASSAY_PART_LAYER)

/*    type (I int64, D double, B bool, S text, A pair of texts), key, default, the parts (ASSAY_PART_...) that read it */
#define ASSAY_MODEL_KEY_TABLE(X)                                                                                       \
    X(S, model_name, "", 0)                                                                                            \
    X(S, decoder_block, "",                                                                                            \
      ASSAY_PART_ROUTER | ASSAY_PART_MLP | ASSAY_PART_EXPERTS | ASSAY_PART_GROUPED | ASSAY_PART_MERGE |                \
          ASSAY_PART_LAYER)                                                                                            \
    X(I, base_emb_dim, 0,                                                                                              \
      ASSAY_PART_NORM | ASSAY_PART_MLP | ASSAY_PART_ROUTER | ASSAY_PART_EXPERTS | ASSAY_PART_LATENT |                  \
          ASSAY_PART_GROUPED | ASSAY_PART_GROUPS | ASSAY_PART_SORT | ASSAY_PART_COMBINE | ASSAY_PART_LAYER |           \
          ASSAY_PART_QUANTIZE | ASSAY_PART_DEQUANTIZE)                                                                 \
    X(I, base_mlp_dim, 0, ASSAY_PART_MLP | ASSAY_PART_EXPERTS)                                                         \
    X(I, base_moe_mlp_dim, 0, ASSAY_PART_EXPERTS | ASSAY_PART_GROUPS)                                                  \
    X(I, base_num_query_heads, 0,                                                                                      \
      ASSAY_PART_ATTENTION | ASSAY_PART_MERGE | ASSAY_PART_DECODE | ASSAY_PART_ROPE | ASSAY_PART_LAYER)                \
    X(I, base_num_decoder_layers, 0, ASSAY_PART_LAYER)                                                                 \
    X(I, first_num_dense_layers, 0, ASSAY_PART_LAYER)                                                                  \
    X(I, num_experts, 0,                                                                                               \
      ASSAY_PART_ROUTER | ASSAY_PART_EXPERTS | ASSAY_PART_GROUPS | ASSAY_PART_SORT | ASSAY_PART_COMBINE)               \
    X(I, num_experts_per_tok, 0,                                                                                       \
      ASSAY_PART_ROUTER | ASSAY_PART_EXPERTS | ASSAY_PART_GROUPS | ASSAY_PART_SORT | ASSAY_PART_COMBINE)               \
    X(I, shared_experts, 0, ASSAY_PART_EXPERTS)                                                                        \
    X(S, routing_method, "", ASSAY_PART_ROUTER)                                                                        \
    X(S, routed_score_func, "", ASSAY_PART_ROUTER)                                                                     \
    X(B, routed_bias, false, ASSAY_PART_ROUTER)                                                                        \
    X(D, routed_scaling_factor, 1.0, ASSAY_PART_ROUTER)                                                                \
    X(I, n_routing_groups, -1, ASSAY_PART_ROUTER)                                                                      \
    X(I, topk_routing_group, -1, ASSAY_PART_ROUTER)                                                                    \
    X(S, group_score, "", ASSAY_PART_ROUTER)                                                                           \
    X(B, apply_routed_scaling_factor_on_output, true, ASSAY_PART_EXPERTS)                                              \
    X(B, apply_router_weight_on_input, false, ASSAY_PART_EXPERTS)                                                      \
    X(I, num_fused_shared_experts, 0, ASSAY_PART_EXPERTS)                                                              \
    X(B, norm_topk_prob, false, ASSAY_PART_ROUTER)                                                                     \
    X(I, local_num_experts, 0, ASSAY_PART_EXPERTS)                                                                     \
    X(I, local_expert_offset, 0, ASSAY_PART_EXPERTS)                                                                   \
    X(B, use_random_routing, false, ASSAY_PART_ROUTER)                                                                 \
    X(D, load_balance_loss_weight, 0.0, ASSAY_PART_ROUTER)                                                             \
    X(S, load_balance_loss_scope, "sequence", ASSAY_PART_ROUTER)                                                       \
    X(B, load_balance_loss_pre_bias, false, ASSAY_PART_ROUTER)                                                         \
    X(D, router_z_loss_weight, 0.0, ASSAY_PART_ROUTER)                                                                 \
    X(D, routed_bias_update_rate, 0.0, ASSAY_PART_ROUTER)                                                              \
    X(I, q_lora_rank, 0, ASSAY_PART_LATENT)                                                                            \
    X(I, kv_lora_rank, 512, ASSAY_PART_LATENT | ASSAY_PART_DECODE | ASSAY_PART_CACHE)                                  \
    X(I, qk_nope_head_dim, 128, ASSAY_PART_ATTENTION | ASSAY_PART_DECODE)                                              \
    X(I, qk_rope_head_dim, 64, ASSAY_PART_ROPE | ASSAY_PART_DECODE | ASSAY_PART_CACHE | ASSAY_PART_ATTENTION)          \
    X(I, v_head_dim, 128, ASSAY_PART_ATTENTION | ASSAY_PART_MERGE)                                                     \
    X(D, mscale, 1.0, ASSAY_PART_LATENT | ASSAY_PART_DECODE)                                                           \
    X(S, attention_type, "", ASSAY_PART_ATTENTION)                                                                     \
    X(I, base_num_kv_heads, 0,                                                                                         \
      ASSAY_PART_GROUPED | ASSAY_PART_SHARING | ASSAY_PART_DECODE | ASSAY_PART_CACHE) /* as many as query heads */     \
    X(I, head_dim, 0,                                                                                                  \
      ASSAY_PART_GROUPED | ASSAY_PART_SHARING | ASSAY_PART_MERGE | ASSAY_PART_DECODE |                                 \
          ASSAY_PART_CACHE) /* the sizes of MLA */                                                                     \
    X(B, attention_bias, false, ASSAY_PART_GROUPED)                                                                    \
    X(B, attention_sink, false, ASSAY_PART_SHARING | ASSAY_PART_MERGE | ASSAY_PART_DECODE)                             \
    X(I, sliding_window_size, 0, ASSAY_PART_ATTENTION | ASSAY_PART_DECODE)                                             \
    X(D, attn_logits_soft_cap, 0.0, ASSAY_PART_ATTENTION | ASSAY_PART_DECODE)                                          \
    X(I, num_states, 2, ASSAY_PART_MERGE)                                                                              \
    X(S, lse_base, "e", ASSAY_PART_MERGE | ASSAY_PART_DECODE)                                                          \
    X(S, empty_row, "-inf", ASSAY_PART_MERGE | ASSAY_PART_DECODE)                                                      \
    X(S, lse_layout, "BNS", ASSAY_PART_DECODE)                                                                         \
    X(B, return_lse, true, ASSAY_PART_SHARING | ASSAY_PART_DECODE)                                                     \
    X(I, cache_length, 0, ASSAY_PART_DECODE)                                                                           \
    X(I, pagedattn_num_pages, 0, ASSAY_PART_DECODE | ASSAY_PART_CACHE) /* no pages */                                  \
    X(I, pagedattn_tokens_per_page, 32, ASSAY_PART_DECODE | ASSAY_PART_CACHE)                                          \
    X(I, pagedattn_max_pages_per_group, -1, ASSAY_PART_DECODE)           /* as many as cache_length needs */           \
    X(I, pagedattn_page_stride, 0, ASSAY_PART_DECODE | ASSAY_PART_CACHE) /* as many rows as keys */                    \
    X(I, block_table_padding, -1, ASSAY_PART_DECODE)                                                                   \
    X(S, kv_layout, "NHD", ASSAY_PART_DECODE | ASSAY_PART_CACHE)                                                       \
    X(S, kv_cache_dtype, "auto", ASSAY_PART_DECODE | ASSAY_PART_CACHE)                                                 \
    X(B, kv_cache_split, false, ASSAY_PART_DECODE | ASSAY_PART_CACHE) /* latents and their rope are two tensors */     \
    X(S, cache_norm, "none", ASSAY_PART_CACHE)                                                                         \
    X(B, cache_rope, false, ASSAY_PART_CACHE)                                                                          \
    X(S, attn_impl, "absorb", ASSAY_PART_DECODE)                                                                       \
    X(I, num_kv_splits, 0, ASSAY_PART_DECODE)                                                                          \
    X(B, use_indexer, false, ASSAY_PART_DECODE)                                                                        \
    X(I, indexer_topk, 2048, ASSAY_PART_DECODE)                                                                        \
    X(B, use_chunked_prefill, false, ASSAY_PART_DECODE)                                                                \
    X(I, prefill_chunk_size, 256, ASSAY_PART_DECODE)                                                                   \
    X(B, use_qk_norm, false, ASSAY_PART_GROUPED)                                                                       \
    X(B, fused_qkv, false, ASSAY_PART_GROUPED)                                                                         \
    X(D, query_pre_attn_scalar, 0.0,                                                                                   \
      ASSAY_PART_LATENT | ASSAY_PART_GROUPED | ASSAY_PART_DECODE) /* as the block has it */                            \
    X(S, rope_type, "default", ASSAY_PART_ROPE)                                                                        \
    X(D, rope_max_timescale, 10000.0, ASSAY_PART_ROPE)                                                                 \
    X(D, partial_rotary_factor, 1.0, ASSAY_PART_GROUPED | ASSAY_PART_CACHE)                                            \
    X(D, rope_factor, 40.0, ASSAY_PART_ROPE | ASSAY_PART_DECODE)                                                       \
    X(D, beta_fast, 32.0, ASSAY_PART_ROPE)                                                                             \
    X(D, beta_slow, 1.0, ASSAY_PART_ROPE)                                                                              \
    X(I, max_position_embeddings, 163840, ASSAY_PART_ROPE | ASSAY_PART_DECODE)                                         \
    X(I, original_max_position_embeddings, 4096, ASSAY_PART_ROPE | ASSAY_PART_DECODE)                                  \
    X(B, rope_interleave, false, ASSAY_PART_ROPE) /* true with another rope_type than default, until it is given */    \
    X(B, rope_truncate, true, ASSAY_PART_ROPE)                                                                         \
    X(B, rope_attention_scaling, false, ASSAY_PART_ROPE)                                                               \
    X(B, rope_pairwise, false, ASSAY_PART_ROPE)                                                                        \
    X(B, mask_padding, true, ASSAY_PART_ATTENTION)                                                                     \
    X(D, normalization_layer_epsilon, 1e-5,                                                                            \
      ASSAY_PART_NORM | ASSAY_PART_LATENT | ASSAY_PART_GROUPED | ASSAY_PART_CACHE | ASSAY_PART_LAYER)                  \
    X(D, latent_norm_epsilon, -1.0,                                                                                    \
      ASSAY_PART_CACHE | ASSAY_PART_LATENT |                                                                           \
          ASSAY_PART_GROUPED) /* of q_norm and kv_norm of MLA; -1: as the one above */                                 \
    X(A, mlp_activations, "silu", ASSAY_PART_MLP | ASSAY_PART_EXPERTS)                                                 \
    X(D, mlp_activations_limit, 0.0, ASSAY_PART_MLP | ASSAY_PART_EXPERTS)                                              \
    X(B, mlp_bias, false, ASSAY_PART_MLP | ASSAY_PART_EXPERTS)                                                         \
    X(B, fused_mlp, false, ASSAY_PART_MLP)                                                                             \
    X(B, prefuse_moe_weights, false, ASSAY_PART_EXPERTS)                                                               \
    X(B, fused_moe_mlp, false, ASSAY_PART_EXPERTS)                                                                     \
    X(I, w13_reorder_size, 1, ASSAY_PART_EXPERTS) /* tensor shards whose gate and up are side by side in wi */         \
    X(B, sparse_matmul, true, ASSAY_PART_EXPERTS)                                                                      \
    X(D, capacity_factor, -1.0, ASSAY_PART_EXPERTS)                                                                    \
    X(I, num_redundant_experts, 0, ASSAY_PART_EXPERTS)                                                                 \
    X(S, gmm_layout, "ragged", ASSAY_PART_GROUPS)                                                                      \
    X(I, mk_alignment_for_contiguous_layout, 128, ASSAY_PART_GROUPS)                                                   \
    X(B, fused_moe_func, false, ASSAY_PART_ROUTER | ASSAY_PART_EXPERTS)                                                \
    X(B, use_ring_of_experts, false, ASSAY_PART_EXPERTS)                                                               \
    X(D, ragged_buffer_factor, -1.0, ASSAY_PART_EXPERTS)                                                               \
    X(I, num_moe_emb_chunks, 0, ASSAY_PART_EXPERTS)                                                                    \
    X(I, num_moe_token_chunks, 1, ASSAY_PART_EXPERTS)                                                                  \
    X(B, weights_on_shards, false, ASSAY_PART_EXPERTS)                                                                 \
    X(B, shard_exp_on_fsdp, false, ASSAY_PART_EXPERTS)                                                                 \
    X(I, first_num_hash_layers, 0, ASSAY_PART_ROUTER)                                                                  \
    X(I, vocab_size, 0, ASSAY_PART_ROUTER)                                                                             \
    X(I, batch_split_factor, 1, ASSAY_PART_SCHEDULE)                                                                   \
    X(B, use_batch_split_schedule, false, ASSAY_PART_ROUTER | ASSAY_PART_SCHEDULE)                                     \
    X(S, function, "", ASSAY_PART_SCHEDULE)                                                                            \
    X(I, top_k_in_group, 2, ASSAY_PART_ROUTER)                                                                         \
    X(B, merge_gating_gmm, false, ASSAY_PART_SCHEDULE)                                                                 \
    X(S, quant_format, "", ASSAY_PART_QUANTIZE | ASSAY_PART_DEQUANTIZE)                                                \
    X(S, quant_scale, "divide",                                                                                        \
      ASSAY_PART_DECODE | ASSAY_PART_QUANTIZE | ASSAY_PART_CACHE | ASSAY_PART_MLP | ASSAY_PART_EXPERTS)                \
    X(S, quant_scale_rounding, "nearest",                                                                              \
      ASSAY_PART_DECODE | ASSAY_PART_QUANTIZE | ASSAY_PART_CACHE | ASSAY_PART_MLP | ASSAY_PART_EXPERTS |               \
          ASSAY_PART_GROUPS | ASSAY_PART_LATENT | ASSAY_PART_GROUPED)                                                  \
    X(B, quant_subnormal_scale, true,                                                                                  \
      ASSAY_PART_DECODE | ASSAY_PART_QUANTIZE | ASSAY_PART_CACHE | ASSAY_PART_MLP | ASSAY_PART_EXPERTS)                \
    X(D, quant_smallest_amax, 0.0,                                                                                     \
      ASSAY_PART_DECODE | ASSAY_PART_QUANTIZE | ASSAY_PART_CACHE | ASSAY_PART_MLP | ASSAY_PART_EXPERTS)                \
    X(B, quant_saturate, true,                                                                                         \
      ASSAY_PART_DECODE | ASSAY_PART_QUANTIZE | ASSAY_PART_CACHE | ASSAY_PART_MLP | ASSAY_PART_EXPERTS)                \
    X(S, quant_elements, "multiply",                                                                                   \
      ASSAY_PART_DECODE | ASSAY_PART_QUANTIZE | ASSAY_PART_CACHE | ASSAY_PART_MLP | ASSAY_PART_EXPERTS)                \
    X(S, quant_ties, "even",                                                                                           \
      ASSAY_PART_DECODE | ASSAY_PART_QUANTIZE | ASSAY_PART_CACHE | ASSAY_PART_MLP | ASSAY_PART_EXPERTS)                \
    X(S, quant_scale_layout, "row_major", ASSAY_PART_QUANTIZE | ASSAY_PART_DEQUANTIZE)                                 \
    X(B, quant_negative_zero, true,                                                                                    \
      ASSAY_PART_DECODE | ASSAY_PART_QUANTIZE | ASSAY_PART_CACHE | ASSAY_PART_MLP | ASSAY_PART_EXPERTS)                \
    X(S, quant_hidden_format, "", ASSAY_PART_MLP | ASSAY_PART_EXPERTS)                                                 \
    X(D, quant_hidden_tensor_scale, 0.0, ASSAY_PART_MLP | ASSAY_PART_EXPERTS)                                          \
    X(B, pack_codes, true, ASSAY_PART_QUANTIZE | ASSAY_PART_DEQUANTIZE)                                                \
    X(S, quant_recipe, "",                                                                                             \
      ASSAY_PART_MLP | ASSAY_PART_EXPERTS | ASSAY_PART_GROUPS | ASSAY_PART_LATENT | ASSAY_PART_GROUPED)                \
    X(S, act_quantization_calibration_method, "absmax",                                                                \
      ASSAY_PART_MLP | ASSAY_PART_EXPERTS | ASSAY_PART_GROUPS | ASSAY_PART_LATENT | ASSAY_PART_GROUPED)                \
    X(S, weight_quantization_calibration_method, "absmax",                                                             \
      ASSAY_PART_MLP | ASSAY_PART_EXPERTS | ASSAY_PART_GROUPS | ASSAY_PART_LATENT | ASSAY_PART_GROUPED)                \
    X(S, bwd_quantization_calibration_method, "absmax",                                                                \
      ASSAY_PART_MLP | ASSAY_PART_EXPERTS | ASSAY_PART_GROUPS | ASSAY_PART_LATENT | ASSAY_PART_GROUPED)                \
    X(I, layer_axis, 0, ASSAY_PART_SCHEDULE)                                                                           \
    X(S, remat_policy, "full", ASSAY_PART_LAYER)                                                                       \
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
#define X(type, key, value, parts) ASSAY_KEY_AT_##key,
    ASSAY_MODEL_KEY_TABLE(X)
#undef X
        ASSAY_MODEL_KEYS
};

typedef struct assay_model_config {
#define X(type, key, value, parts) ASSAY_KEY_TYPE_##type key;
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
    size_t offset;  /* of the value within assay_model_config */
    int64_t least;  /* of a whole number: -1 and 0 where the default is that, else 1 */
    unsigned parts; /* ASSAY_PART_...: an operation with one of these reads it */
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
