/* What rows of the table of mutants may name, and what the functions that change tensors share. Private to
 * harness/mutants, harness/power and harness/explain. */
#pragma once

#include "harness/mutants/mutants.h"

/* Paths of the scales of operands: of blocks, and of whole tensors. */
#define ASSAY_BLOCK_SCALES "lhs_scale rhs_scale x_scale wi_scale wi_0_scale wi_1_scale wo_scale kernel_scale"
#define ASSAY_TENSOR_SCALES                                                                                            \
    "lhs_tensor_scale rhs_tensor_scale x_tensor_scale wi_tensor_scale wi_0_tensor_scale wi_1_tensor_scale "            \
    "wo_tensor_scale kernel_tensor_scale"

/* Cases that a row is for: what is true of the case `c` and its configuration `m`; numbers of them (mutants_cases.c). */
#define ASSAY_WHERE_TABLE(X)                                                                                           \
    X(always, true)                                                                                                    \
    X(yarn, is(&m->rope_type, "yarn"))                                                                                 \
    X(no_layer, !assay_is_layer(c))                                                                                    \
    X(block_or_layer, strcmp(c->op, "moe") == 0 || assay_is_layer(c))                                                  \
    X(windows, assay_is_layer(c) && assay_block_has(m->decoder_block.text, ASSAY_BLOCK_ALTERNATES))                    \
    X(given_scales, cache_of(c)->scales == ASSAY_CACHE_OF_TENSOR || cache_of(c)->scales == ASSAY_CACHE_OF_HEAD)        \
    X(e2m1_cache, cache_of(c)->block.element == ASSAY_FLOAT4_E2M1FN)                                                   \
    X(plain_rope, m->head_dim == 0 && cache_of(c)->plain_rope && cache_of(c)->block.element != ASSAY_BFLOAT16)         \
    X(halved_pages, m->pagedattn_tokens_per_page % 2 == 0)                                                             \
    X(page_stride, m->pagedattn_page_stride > m->pagedattn_tokens_per_page)                                            \
    X(heads_in_pages, m->base_num_kv_heads > 1 && m->pagedattn_tokens_per_page > 1)                                    \
    X(cache_norm_of_latents, !is(&m->cache_norm, "none") && m->head_dim == 0)                                          \
    X(cache_norm_before_rope, is(&m->cache_norm, "row") && m->cache_rope)                                              \
    /* what is rotated becomes codes, and was no result of a norm */                                                   \
    X(cache_rope_alone, m->cache_rope &&is(&m->cache_norm, "none") && !cache_of(c)->plain_rope)                        \
    X(cache_rope, m->cache_rope)                                                                                       \
    X(cache_rope_beside_rest, (m->head_dim > 0 ? (double)m->head_dim * (1 - m->partial_rotary_factor) - 2              \
                                               : (double)(m->kv_lora_rank - m->qk_rope_head_dim)) >= 0 &&              \
                                  m->cache_rope)                                                                       \
    X(latent_cache, strcmp(c->op, "mla_decode") == 0)                                                                  \
    X(next_keys, c->sequence > 1 && !m->use_indexer)                                                                   \
    X(blind_rows, assay_has_padding(c) || strstr(c->op, "_decode") != NULL || strcmp(c->op, "merge_states") == 0)      \
    /* that queries share, in each shard of heads; with a recipe attention is of all shards */                         \
    X(several_key_heads,                                                                                               \
      m->base_num_query_heads > m->base_num_kv_heads &&                                                                \
          m->base_num_kv_heads >                                                                                       \
              (strcmp(c->op, "gqa") == 0 && is(&m->quant_recipe, "") ? c->mesh_expert * c->mesh_mlp_tensor : 1))       \
    X(window, has_window(c))                                                                                           \
    X(gpt_oss_gate, is(&m->decoder_block, "gpt_oss"))                                                                  \
    X(shared_gate, m->shared_experts > 0 && assay_block_has(m->decoder_block.text, ASSAY_BLOCK_GATED_SHARED))          \
    X(several_choices, m->num_experts_per_tok > 1)                                                                     \
    X(groups, m->n_routing_groups > 0)                                                                                 \
    X(divides, divides(m))                                                                                             \
    X(divides_or_chosen, divides(m) || is_default(m))                                                                  \
    X(divides_anyhow, divides_anyhow(c))                                                                               \
    X(biased_choice, is_deepseek3(m) && m->routed_bias)                                                                \
    X(divided_bias, divides(m) && m->routed_bias)                                                                      \
    X(biased_balance, m->load_balance_loss_weight > 0 && m->routed_bias)                                               \
    X(gives_choice, assay_gives_choice(c))                                                                             \
    X(pairwise, m->rope_pairwise)                                                                                      \
    X(exact_codes, is(&m->cache_norm, "none") && !m->cache_rope)                                                       \
    X(drops_tokens, !m->sparse_matmul && m->capacity_factor > 0)                                                       \
    X(contiguous_layout, is(&m->gmm_layout, "contiguous"))                                                             \
    X(psum_layout, is(&m->gmm_layout, "psum"))                                                                         \
    X(replicas, m->num_redundant_experts > 0)                                                                          \
    X(products_of_recipe, !assay_case_gathers_codes(c))                                                                \
    X(gathers_codes, assay_case_gathers_codes(c) && c->mesh_expert > 1)                                                \
    X(parts_of_products, has_parts_of_products(c))                                                                     \
    X(deepseek_v3_recipe, is(&m->quant_recipe, "deepseek_v3"))                                                         \
    X(fp8_full_recipe, is(&m->quant_recipe, "fp8_full"))                                                               \
    X(expert_shards, has_expert_shards(c))                                                                             \
    X(ring, has_expert_shards(c) && m->use_ring_of_experts && assay_rows_of_shard(c) > 0)                              \
    X(hidden_shards, c->mesh_mlp_tensor > 1 && m->sparse_matmul && !m->weights_on_shards)                              \
    X(head_shards,                                                                                                     \
      (strcmp(c->op, "mla") == 0 || strcmp(c->op, "gqa") == 0) && c->mesh_expert * c->mesh_mlp_tensor > 1)             \
    X(weights_on_shards, m->weights_on_shards)                                                                         \
    X(microbatches, microbatches(c) > 0)                                                                               \
    X(function_shards, m->function.text[0] != '\0' && assay_case_shards(c) > 1)                                        \
    X(function_sums, sums_over_experts(&m->function) && has_expert_shards(c))

#define ASSAY_CASE_NUMBER_TABLE(X)                                                                                     \
    X(no_number, 1.0)                                                                                                  \
    X(expert_shards, (double)c->mesh_expert)                                                                           \
    X(tensor_shards, (double)c->mesh_tensor)                                                                           \
    X(hidden_shards, (double)c->mesh_mlp_tensor)                                                                       \
    X(head_shards, (double)(c->mesh_expert * c->mesh_mlp_tensor))                                                      \
    X(fsdp_shards, (double)c->mesh_fsdp)                                                                               \
    X(token_shards, (double)assay_case_shards(c))                                                                      \
    /* 1 where they have no rows of their own */                                                                       \
    X(shards_of_rows, assay_rows_of_shard(c) > 0 ? (double)assay_case_shards(c) : 1.0)                                 \
    X(replicas, (double)assay_case_replicas(c))                                                                        \
    X(per_replica, 1.0 / (double)assay_case_replicas(c))                                                               \
    X(scaling_factor, c->config.routed_scaling_factor)                                                                 \
    /* 1 / sqrt(D / N) over 1 / sqrt(Dq) */                                                                            \
    X(head_over_hidden,                                                                                                \
      sqrt((double)(m->qk_nope_head_dim + m->qk_rope_head_dim) / (double)(m->base_emb_dim / m->base_num_query_heads))) \
    /* as a kernel has it: 1 over the scale of h, which it quantises */                                                \
    X(per_hidden_scale,                                                                                                \
      c->config.quant_hidden_tensor_scale > 0 ? 1.0 / (float)c->config.quant_hidden_tensor_scale : 1.0)

/* Numbers in the inputs of attention over a cache (mutants_decode.c): lengths, entries of tables, of lists, and lengths of these. */
#define ASSAY_CACHED_TABLE(X)                                                                                          \
    X(whole_pages, n - tail)                                                                                           \
    X(last_page_whole, tail > 0 ? n - tail + page : n)                                                                 \
    X(page_too_many, tail == 0 && n < most ? n + page : n)                                                             \
    X(newest_missing, n > 0 ? n - 1 : 0)                                                                               \
    X(one_more, n > 0 && n < most ? n + 1 : n)                                                                         \
    X(wrapped, is_length ? (page > 0 ? most : n) : n == -1 ? pages - 1 : n)                                            \
    X(page_in_memory, (double)(i % m->pagedattn_num_pages))                                                            \
    X(page_after, i % assay_tensor_width(p->tensor) % 2 == 1 ? p->tensor->indices[i - 1] + 1.0 : n)                    \
    X(below_as_first, n < 0 ? 0 : n)                                                                                   \
    X(below_as_last, n < 0 ? rows - 1 : n)                                                                             \
    X(beyond_as_last, n >= rows ? rows - 1 : n)                                                                        \
    X(index_of_page, n >= 0 && n < rows ? fmod(n * each, rows) : n)                                                    \
    X(index_of_sequence, n >= 0 && n < rows ? fmod(n + share, rows) : n)                                               \
    X(next_slot, n < 0 ? n : fmod(n + 1, rows))                                                                        \
    X(skipped_to_last, n < 0 ? rows - 1 : n)                                                                           \
    X(slot_of_half_page, n < 0 ? n : fmod(floor(n / page * 2), pages) * page + fmod(n, page / 2))                      \
    X(twice, 2 * n)                                                                                                    \
    X(slot, fmax(slots->indices[i], 0))                                                                                \
    X(rope_in_e4m3, is_unmade ? n : assay_dtype_round(ASSAY_FLOAT8_E4M3FN, n, true)) /* what is made, behind that */   \
    X(all_entries, (double)m->indexer_topk)                                                                            \
    X(whole_tile, fmin(8 * ceil(n / 8), (double)m->indexer_topk))
#define ASSAY_CACHED_CODE(name, what) ASSAY_CACHED_##name,
enum { ASSAY_CACHED_TABLE(ASSAY_CACHED_CODE) };
/* Bytes of caches, and where they may be others (mutants_cache.c). */
#define ASSAY_BYTES_TABLE(X)                                                                                           \
    X(rows_with_scales, f->scales == ASSAY_CACHE_BEHIND && c->tokens > 1)                                              \
    X(rope_first, c->rope > 0)                                                                                         \
    X(scales_rolled, f->block.columns > 0 && c->columns > f->block.columns)                                            \
    X(scales_as_e8m0, float_scales)                                                                                    \
    X(scales_inverted, float_scales)                                                                                   \
    X(scales_halved, f->block.element == ASSAY_FLOAT8_E4M3FN)                                                          \
    X(zero_scale, f->block.scale == ASSAY_FLOAT8_E8M0FNU)                                                              \
    X(scales_of_next, scales && c->tokens > 1)                                                                         \
    X(scales_swizzled, f->scales == ASSAY_CACHE_APART && f->block.columns > 0)
#define ASSAY_BYTES_CODE(name, what) ASSAY_BYTES_##name,
enum { ASSAY_BYTES_TABLE(ASSAY_BYTES_CODE) };
/* What is read of a cache, and where it may be. */
#define ASSAY_READ_TABLE(X)                                                                                            \
    X(from_start, several)                                                                                             \
    X(all_keys, several)                                                                                               \
    X(window_of_pages, paged && c->window > 0 && c->page > 1)                                                          \
    X(half_pages, paged && c->page % 2 == 0 && c->stride == c->page)                                                   \
    X(first_chunk, c->chunk > 0)                                                                                       \
    X(context_causal, c->chunk > 0 && several)                                                                         \
    X(half_of_parts, c->splits > 0)                                                                                    \
    X(masked_capped, dense && c->soft_cap > 0 && (several || c->window > 0))                                           \
    X(tail, paged && c->page > 1)                                                                                      \
    X(lanes, paged && c->page > 1)
#define ASSAY_READ_CODE(name, what) ASSAY_READ_##name,
enum { ASSAY_READ_TABLE(ASSAY_READ_CODE) };
enum {
#define X(name, test) ASSAY_WHERE_##name,
    ASSAY_WHERE_TABLE(X)
#undef X
};
enum {
#define X(name, value) ASSAY_CASE_##name,
    ASSAY_CASE_NUMBER_TABLE(X)
#undef X
};

/* For `configure` (mutants_config.c). */
assay_case_edit assay_edit_other_group_score, assay_edit_other_group_count, assay_edit_half_buffer,
    assay_edit_other_epsilon, assay_edit_other_query_scale, assay_edit_other_densities, assay_edit_other_scale_rounding,
    assay_edit_recipe_ignored, assay_edit_hidden_as_it_is, assay_edit_blind_rows, assay_edit_scale_of_latent,
    assay_edit_scores_apart, assay_edit_page_of_stride;

/* For `router` (mutants_config.c): members of its rule. */
assay_rule_edit assay_router_divides_biased, assay_router_weighs_biased, assay_router_undivided,
    assay_router_masks_by_zero, assay_router_divisor_constant, assay_router_constant;

/* For `requantise` (mutants_requantise.c). */
assay_hidden_edit assay_requantise_before_activation, assay_requantise_truncated;

/* For `inputs`, `results`, `integers` and `hidden_scales`, what changes one tensor. The numbers of its places along an axis
 * are exchanged, become `by`, or are multiplied by it; without places all do (mutant_change.c). `replace` takes it for no
 * change where they all are `by` already. */
assay_tensor_edit assay_edit_move, assay_edit_fill, assay_edit_scale, assay_edit_each;
/* For `places`, and for `each` (mutants_places.c): those of a table, which are an expression, and others. */
#define PLACE(name, place) assay_place_map assay_##name;
#define NUMBER(name, becomes) assay_number_map assay_##name;
#include "harness/mutants/rows/places.inc"
#undef PLACE
#undef NUMBER
assay_place_map assay_all_but_first_columns_of_h, assay_unpadded_offsets, assay_up_of_next_shard,
    assay_expert_axes_exchanged, assay_halves_concatenated, assay_head_axes_exchanged;
assay_number_map assay_group_of_first_row, assay_contracted_padding;
assay_tensor_edit assay_edit_empty_experts_to_nan;
/* Of inputs, weights and the choice of experts (mutants_inputs.c). */
assay_tensor_edit assay_edit_swap_gate_up, assay_edit_move_group_row, assay_edit_pad_last_group, assay_edit_runner_up,
    assay_edit_scale_shared_slots, assay_edit_exchange_layer_norms;
/* Of codes and scales (mutants_quantize.c). */
assay_tensor_edit assay_edit_swap_nibbles, assay_edit_copy_gate, assay_edit_larger_of_both;
/* Of attention over a cache (mutants_decode.c). What numbers of lengths, tables and lists become, which `by` names. */
assay_number_map assay_cached;
assay_mutation_edit assay_edit_none_to_first_page, assay_edit_empty_parts_to_nan;
assay_tensor_edit assay_edit_cache_rows, assay_edit_sink_of_parts;
assay_place_map assay_padded_last_part;
assay_reading_change assay_change_reading;
/* Of caches of bytes (mutants_cache.c), as `by` says; slots. */
assay_tensor_edit assay_edit_given_bytes, assay_edit_clear_pages;
assay_mutation_edit assay_edit_written_bytes, assay_edit_last_of_slots;
/* Of a choice that is given. */
assay_tensor_edit assay_edit_none_to_last, assay_edit_sort_slots;
/* Of rows of the batch on a mesh (mutants_shard_rows.c). */
assay_tensor_edit assay_edit_sum_shard_rows;

/* For `change_inputs`: cotangents, several tensors at once. */
assay_mutation_edit assay_edit_keep_first_shard, assay_edit_keep_first_replica, assay_edit_drop_last_microbatch,
    assay_edit_swap_pairs;
/* For `change_results`. */
assay_mutation_edit assay_edit_omit_all, assay_edit_omit_last, assay_edit_count_from_front,
    assay_edit_keep_first_copies, assay_edit_sinks_in_lse, assay_edit_unsort_weights;

/* For `degrade` (mutants_types.c). */
assay_arithmetic_edit assay_degrade_sums, assay_degrade_router, assay_degrade_functions, assay_degrade_operands,
    assay_degrade_intermediates;

/* What they share. */
/* Whether the path lies in the folder, which may be one in another: "gradients/weights". */
bool assay_path_in(const char *path, const char *folder);
int64_t assay_tensor_width(const assay_tensor *tensor);               /* of a row: the last axis */
int assay_tensor_axis(const assay_tensor *tensor, const char *label); /* -1: none has it */
/* The tensor of the same size whose path has `other` where this one's has, last, `part`; NULL: there is none. */
assay_tensor *assay_tensor_beside(const assay_mutation *m, const assay_tensor *tensor, const char *part,
                                  const char *other);
assay_tensor *assay_tensor_beside_of(const assay_mutation *m, const assay_tensor *tensor, const char *part,
                                     const char *other); /* of any size */
void assay_swap_values(double *a, double *b, int64_t count);
/* The axis of blocks that products sum over: of a weight the first one, of anything else the last. */
int assay_contracted_axis(const assay_tensor *tensor);
/* False: the tensor has no such axis, or each place stays what it was. */
bool assay_move_places(const assay_mutation *m, assay_tensor *tensor, const char *axis, assay_place_map *from);
/* As a row of the table says. */
bool assay_change_tensor(const assay_mutation *m, const assay_tensors_change *change, assay_tensor *tensor);
/* A copy of a checkpoint, for who goes on from it. */
assay_status assay_mutant_stage(assay_context *ctx, const assay_tensor *made, assay_tensor_set *staged);
/* Whether a stage's checkpoints are changed. */
assay_status assay_mutant_change_stage(assay_context *ctx, const assay_mutant *mutant, const assay_mutation *m,
                                       bool *applies);
/* Into `staged` the codes that the mutant's kernel makes of h, where it quantises h itself; *applies: whether they are others.
 * Those of a layer are of an h that those of the layers before it lead to. */
assay_status assay_mutant_requantise(assay_context *ctx, const assay_mutant *mutant, const assay_plan *plan,
                                     const assay_source *in, assay_tensor_set *staged, bool *applies);
/* The recipe with the first of these bugs that it can have. */
/* The recipe with the first of these bugs that it can have (mutant_recipes.c). */
bool assay_change_recipe(const char *bugs, assay_model_config *config);
bool assay_is_swizzled(const assay_mutation *m, const assay_tensor *tensor);
bool assay_scale_values(assay_tensor *tensor, double factor); /* false: by 1 */
/* Of cases (mutants_cases.c). */
bool assay_case_is_where(const assay_case *c, int where);
double assay_case_number_of(const assay_case *c, int number);
bool assay_case_gathers_codes(const assay_case *c);
int64_t assay_last_microbatch(const assay_case *c);
int64_t assay_microbatch_of(const assay_case *c, int64_t row); /* of the batch */
int64_t assay_case_replicas(const assay_case *c);
int64_t assay_case_shards(const assay_case *c);   /* that tokens are split over */
int64_t assay_rows_of_shard(const assay_case *c); /* of the batch; 0: one shard, or all have the same rows */
