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
    assay_edit_recipe_ignored, assay_edit_hidden_as_it_is;

/* For `requantise` (mutants_requantise.c). */
assay_hidden_edit assay_requantise_before_activation, assay_requantise_truncated;

/* For `inputs`, `results`, `integers` and `hidden_scales`, what changes one tensor. The numbers of its places along an axis
 * are exchanged, become `by`, or are multiplied by it; without places all do (mutant_change.c). `replace` takes it for no
 * change where they all are `by` already. */
assay_tensor_edit assay_edit_move, assay_edit_fill, assay_edit_scale, assay_edit_replace, assay_edit_each;
/* For `places` (mutants_places.c). Parts, of which `number` says how many places or shards. */
assay_place_map assay_last_place, assay_last_of_several, assay_last_or_half, assay_last_tile_or_half, assay_last_tile,
    assay_last_shard, assay_all_but_first_shard, assay_shard_before, assay_all_but_first_columns_of_h;
/* Other places: what comes of place i is what was at the place of that name. */
assay_place_map assay_next_place, assay_place_before, assay_shifted_back, assay_next_shard, assay_reversed,
    assay_ends_exchanged, assay_halves_exchanged, assay_first_two_exchanged, assay_first_place, assay_last_stale,
    assay_alternating, assay_interleaved, assay_other_layout, assay_gate_for_up, assay_transposed,
    assay_read_transposed, assay_swizzled, assay_unswizzled, assay_unpadded_offsets, assay_clamped_ids,
    assay_first_microbatch, assay_up_of_next_shard, assay_halves_contiguous, assay_expert_axes_exchanged,
    assay_halves_concatenated, assay_head_axes_exchanged;
/* For `each`: a number becomes this. */
assay_number_map assay_plus, assay_in_bf16, assay_next_position, assay_position_in_bf16, assay_counted_position,
    assay_one_segment, assay_first_experts, assay_group_for_none, assay_group_of_first_row, assay_contracted_padding,
    assay_padding_of_scales, assay_times_replicas, assay_by_replicas, assay_finite;
/* Times the root of the width. */
assay_tensor_edit assay_edit_scale_by_root;
assay_tensor_edit assay_edit_empty_experts_to_nan;
/* Of inputs, weights and the choice of experts (mutants_inputs.c). */
assay_tensor_edit assay_edit_swap_gate_up, assay_edit_move_group_row, assay_edit_pad_last_group, assay_edit_runner_up,
    assay_edit_scale_shared_slots, assay_edit_exchange_layer_norms;
/* Of codes and scales (mutants_quantize.c). */
assay_tensor_edit assay_edit_swap_nibbles, assay_edit_invert, assay_edit_copy_gate, assay_edit_larger_of_both;
/* Of parts of attention, whose first axis is the part. */
assay_tensor_edit assay_edit_other_strides;
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
int64_t assay_tensor_width(const assay_tensor *tensor);                    /* of a row: the last axis */
int assay_tensor_axis(const assay_tensor *tensor, const char *label);      /* -1: none has it */
int64_t assay_axes_product(const assay_shape *shape, int first, int last); /* of axes [first, last) */
/* The tensor of the same size whose path has `other` where this one's has, last, `part`; NULL: there is none. */
assay_tensor *assay_tensor_beside(const assay_mutation *m, const assay_tensor *tensor, const char *part,
                                  const char *other);
void assay_swap_values(double *a, double *b, int64_t count);
void assay_swap_indices(int32_t *a, int32_t *b);
/* The axis of blocks that products sum over: of a weight the first one, of anything else the last. */
int assay_contracted_axis(const assay_tensor *tensor);
/* False: the tensor has no such axis, or each place stays what it was. */
bool assay_move_places(const assay_mutation *m, assay_tensor *tensor, const char *axis, assay_place_map *from);
/* As a row of the table says. */
bool assay_change_tensor(const assay_mutation *m, const assay_tensors_change *change, assay_tensor *tensor);
/* Into `staged` the codes that the mutant's kernel makes of h, where it quantises h itself; *applies: whether they are others.
 * Those of a layer are of an h that those of the layers before it lead to. */
assay_status assay_mutant_requantise(assay_context *ctx, const assay_mutant *mutant, const assay_plan *plan,
                                     const assay_source *in, assay_tensor_set *staged, bool *applies);
/* The recipe with the first of these bugs that it can have. */
bool assay_change_recipe(const char *bugs, assay_text *recipe);
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
