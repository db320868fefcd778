/* What rows of the table of mutants may name, and what the functions that change tensors share. Private to
 * harness/mutants, harness/power and harness/explain. */
#ifndef ASSAY_HARNESS_MUTANTS_TENSORS_H
#define ASSAY_HARNESS_MUTANTS_TENSORS_H

#include "harness/mutants/mutants.h"

/* Paths of the scales of operands: of blocks, and of whole tensors. */
#define ASSAY_BLOCK_SCALES "lhs_scale rhs_scale x_scale wi_scale wi_0_scale wi_1_scale wo_scale kernel_scale"
#define ASSAY_TENSOR_SCALES                                                                                            \
    "lhs_tensor_scale rhs_tensor_scale x_tensor_scale wi_tensor_scale wi_0_tensor_scale wi_1_tensor_scale "            \
    "wo_tensor_scale kernel_tensor_scale"

/* For `configure` (mutants_config.c). */
assay_case_edit assay_edit_other_group_score, assay_edit_other_group_count, assay_edit_half_buffer,
    assay_edit_other_epsilon, assay_edit_no_window, assay_edit_other_query_scale, assay_edit_other_densities,
    assay_edit_other_scale_rounding, assay_edit_recipe_ignored, assay_edit_hidden_as_it_is;

/* For `requantise` (mutants_requantise.c). */
assay_hidden_edit assay_requantise_before_activation, assay_requantise_truncated;

/* For `inputs`, `results`, `integers` and `hidden_scales`, what changes one tensor. The numbers of its places along an axis
 * are exchanged, become `by`, or are multiplied by it; without places all do (mutant_change.c). `replace` takes it for no
 * change where they all are `by` already. */
assay_tensor_edit assay_edit_move, assay_edit_fill, assay_edit_scale, assay_edit_replace, assay_edit_each;
/* For `places` (mutants_places.c). Parts, of which `number` says how many places or shards. */
assay_place_map assay_last_place, assay_last_of_several, assay_last_places, assay_last_or_half, assay_last_tile_or_half,
    assay_last_tile, assay_last_shard, assay_all_but_first_shard, assay_shard_before, assay_all_but_first_columns_of_h;
/* Other places: what comes of place i is what was at the place of that name. */
assay_place_map assay_next_place, assay_place_before, assay_held_back, assay_next_shard, assay_reversed,
    assay_ends_exchanged, assay_halves_exchanged, assay_first_two_exchanged, assay_first_place, assay_last_stale,
    assay_alternating, assay_interleaved, assay_other_layout, assay_gate_for_up, assay_transposed,
    assay_read_transposed, assay_swizzled, assay_unswizzled, assay_unpadded_offsets, assay_clamped_ids,
    assay_first_microbatch, assay_up_of_next_shard, assay_halves_contiguous, assay_expert_axes_exchanged,
    assay_halves_concatenated, assay_head_axes_exchanged, assay_heads_modulo, assay_heads_back;
/* For `each`: a number becomes this. */
assay_number_map assay_plus, assay_in_bf16, assay_next_position, assay_position_in_bf16, assay_counted_position,
    assay_one_segment, assay_first_experts, assay_group_for_none, assay_group_of_first_row, assay_contracted_padding,
    assay_padding_of_scales, assay_times_replicas, assay_by_replicas, assay_without_latent_norm, assay_without_qk_norm;
/* Times the root of the width. */
assay_tensor_edit assay_edit_scale_by_root;
/* Of integers alone. */
assay_tensor_edit assay_edit_roll_integers;
assay_tensor_edit assay_edit_empty_experts_to_nan;
/* Of inputs, weights and the choice of experts (mutants_inputs.c, mutants_left_out.c). */
assay_tensor_edit assay_edit_swap_gate_up, assay_edit_move_group_row, assay_edit_pad_last_group, assay_edit_runner_up,
    assay_edit_scale_shared_slots, assay_edit_scale_from_hidden, assay_edit_exchange_layer_norms;
/* Of codes and scales (mutants_quantize.c). */
assay_tensor_edit assay_edit_swap_nibbles, assay_edit_invert, assay_edit_take_from_gate, assay_edit_larger_of_both;
/* Of a choice that is given. */
assay_tensor_edit assay_edit_none_to_last, assay_edit_sort_slots;
/* Of rows of the batch on a mesh (mutants_shard_rows.c). */
assay_tensor_edit assay_edit_sum_shard_rows;

/* For `change_inputs`: the order of tokens, cotangents, several tensors at once. */
assay_mutation_edit assay_edit_exchange_tokens, assay_edit_outgrow_residual, assay_edit_keep_first_shard,
    assay_edit_keep_first_replica, assay_edit_drop_last_microbatch, assay_edit_heads_modulo, assay_edit_swap_pairs;
/* For `change_results`. */
assay_mutation_edit assay_edit_omit_all, assay_edit_omit_last, assay_edit_count_from_front, assay_edit_shrink_back,
    assay_edit_omit_checkpoints, assay_edit_blind_rows_to_nan, assay_edit_keep_first_copies, assay_edit_heads_back,
    assay_edit_sinks_in_lse, assay_edit_unsort_weights;

/* For `degrade` (mutants_types.c). */
assay_arithmetic_edit assay_degrade_sums, assay_degrade_router, assay_degrade_functions, assay_degrade_operands,
    assay_degrade_intermediates;

/* What they share. */
/* Whether the path lies in the folder, which may be one in another: "gradients/weights". */
bool assay_path_in(const char *path, const char *folder);
/* Whether the test is true of the text and one of the words, which have spaces between them. */
bool assay_any_word(const char *words, const char *text, bool (*test)(const char *text, const char *word));
int64_t assay_tensor_width(const assay_tensor *tensor);                    /* of a row: the last axis */
int assay_tensor_axis(const assay_tensor *tensor, const char *label);      /* -1: none has it */
int64_t assay_axes_product(const assay_shape *shape, int first, int last); /* of axes [first, last) */
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
bool assay_fill_values(assay_tensor *tensor, int64_t first, double value);
/* Of cases (mutants_cases.c). */
bool assay_case_is_where(const assay_case *c, assay_where where);
double assay_case_number_of(const assay_case *c, assay_case_number number);
bool assay_case_gathers_codes(const assay_case *c);
int64_t assay_last_microbatch(const assay_case *c);
int64_t assay_microbatch_of(const assay_case *c, int64_t row); /* of the batch */
int64_t assay_case_replicas(const assay_case *c);
int64_t assay_case_shards(const assay_case *c);   /* that tokens are split over */
int64_t assay_rows_of_shard(const assay_case *c); /* of the batch; 0: one shard, or all have the same rows */

#endif
