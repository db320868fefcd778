/* What rows of the table of mutants may name, and what the functions that change tensors share. Private to
 * harness/mutants, harness/power and harness/explain. */
#ifndef ASSAY_HARNESS_MUTANTS_TENSORS_H
#define ASSAY_HARNESS_MUTANTS_TENSORS_H

#include "harness/mutants/mutants.h"

/* For `where`. Of shards: docs/expert-parallelism.md. */
bool assay_has_yarn(const assay_case *c);
bool assay_has_one_layer(const assay_case *c); /* or none: no layer reads what another one gave */
bool assay_is_no_layer(const assay_case *c);
bool assay_has_windows(const assay_case *c); /* in some layers, in others not */
bool assay_has_expert_shards(const assay_case *c);
bool assay_has_ring(const assay_case *c);
bool assay_has_head_shards(const assay_case *c);
bool assay_has_hidden_shards(const assay_case *c);
bool assay_has_weights_on_shards(const assay_case *c);
bool assay_has_microbatches(const assay_case *c);
bool assay_has_contiguous_layout(const assay_case *c);
bool assay_has_psum_layout(const assay_case *c);
bool assay_drops_tokens(const assay_case *c); /* beyond a capacity */
bool assay_has_qk_norms(const assay_case *c); /* of projections that are not fused */
bool assay_has_replicas(const assay_case *c);
bool assay_has_biased_balance(const assay_case *c); /* a bias that selects beside a balance loss */
bool assay_has_gpt_oss_gate(const assay_case *c);
bool assay_has_function_shards(const assay_case *c);
bool assay_has_function_sums(const assay_case *c); /* over the shards of experts */

/* For `configure` (mutants_config.c). */
assay_case_edit assay_edit_not_divided, assay_edit_biased_weights, assay_edit_biased_weights_divided,
    assay_edit_other_score, assay_edit_other_group_score, assay_edit_no_groups, assay_edit_other_group_count,
    assay_edit_one_expert_fewer, assay_edit_half_buffer, assay_edit_other_activation, assay_edit_other_interleave,
    assay_edit_other_epsilon, assay_edit_double_epsilon, assay_edit_other_rope_type, assay_edit_longer_window,
    assay_edit_no_window, assay_edit_other_query_scale, assay_edit_no_shared_gate, assay_edit_other_densities,
    assay_edit_other_windows, assay_edit_other_method, assay_edit_masked_at_zero, assay_edit_detached_division;
/* Of the rules of quantising (mutants_quantize.c). */
assay_case_edit assay_edit_recipe_ignored, assay_edit_recipe_dw_along_rows, assay_edit_recipe_dx_along_columns,
    assay_edit_recipe_forward_x, assay_edit_recipe_other_type, assay_edit_recipe_other_axis,
    assay_edit_recipe_scales_lost, assay_edit_recipe_other_rounding, assay_edit_recipe_other_calibration,
    assay_edit_recipe_scales_of_next_shard, assay_edit_recipe_scales_of_receiver,
    assay_edit_recipe_scales_of_each_expert;
assay_case_edit assay_edit_other_ties, assay_edit_other_scale_rounding, assay_edit_other_scale_division;

/* Of h that the kernel quantises itself (mutants_requantise.c). */
assay_case_edit assay_edit_hidden_as_it_is;
assay_hidden_edit assay_requantise_before_activation, assay_requantise_roll, assay_requantise_transposed,
    assay_requantise_first_block, assay_requantise_scale, assay_requantise_no_tensor_scale, assay_requantise_truncated;

/* For `inputs`, `results` and `integers`, what changes one tensor. Numbers become m->by; where they all are that already
 * the first takes it for no change. */
assay_tensor_edit assay_edit_replace, assay_edit_fill;
/* Rounded to bfloat16, where that changes any. */
assay_tensor_edit assay_edit_to_bf16;
/* Times m->by, plus it, times the root of the width. */
assay_tensor_edit assay_edit_scale, assay_edit_add, assay_edit_scale_by_root;
/* In another order: `roll` along the first axis, or with a negative m->by along the last (mutants_results.c). */
assay_tensor_edit assay_edit_roll, assay_edit_reverse_rows, assay_edit_shift_rows, assay_edit_transpose,
    assay_edit_swap_columns, assay_edit_swap_halves;
/* Of integers alone. */
assay_tensor_edit assay_edit_increment, assay_edit_roll_integers;
/* A part becomes m->by (fill), or is multiplied by it (scale), or what the name says (mutants_parts.c). */
assay_tensor_edit assay_edit_fill_last, assay_edit_fill_last_row, assay_edit_stale_last_row,
    assay_edit_zero_last_columns, assay_edit_scale_last_tile, assay_edit_scale_last_expert, assay_edit_scale_last_head,
    assay_edit_scale_last_batch, assay_edit_swap_first_experts, assay_edit_empty_experts_to_nan;
/* Of inputs, weights and the choice of experts (mutants_inputs.c). */
assay_tensor_edit assay_edit_swap_gate_up, assay_edit_interleave, assay_edit_other_layout,
    assay_edit_zero_last_of_first_axis, assay_edit_zero_tail_of_rows, assay_edit_times_scaling_factor,
    assay_edit_move_group_row, assay_edit_pad_last_group, assay_edit_runner_up, assay_edit_scale_shared_slots;
/* Of the layouts of grouped products (mutants_layouts.c). */
assay_tensor_edit assay_edit_contract_padding, assay_edit_negatives_to, assay_edit_group_of_first_row;
/* Of codes and scales (mutants_quantize.c). */
assay_tensor_edit assay_edit_swap_nibbles, assay_edit_invert, assay_edit_roll_blocks, assay_edit_roll_beside,
    assay_edit_read_transposed, assay_edit_roll_matrices, assay_edit_zero_last_block, assay_edit_all_to_first,
    assay_edit_take_from_gate, assay_edit_larger_of_both, assay_edit_unswizzle, assay_edit_read_unswizzled,
    assay_edit_padding_of_scales, assay_edit_first_block, assay_edit_unpadded_offsets, assay_edit_read_alternating;
assay_mutation_edit assay_edit_swap_pairs;
/* Of replicas of experts (mutants_layouts.c). */
assay_tensor_edit assay_edit_times_replica_count, assay_edit_by_replica_count;
/* Of a choice that is given (mutants_choice.c). */
assay_tensor_edit assay_edit_none_to_last, assay_edit_sort_slots, assay_edit_first_experts;
/* Of positions, attention and norms (mutants_inputs_attention.c, mutants_left_out.c). */
assay_tensor_edit assay_edit_next_positions, assay_edit_round_positions, assay_edit_one_segment, assay_edit_lag_rows,
    assay_edit_lag_tokens, assay_edit_scale_from_hidden, assay_edit_roll_heads, assay_edit_zero_rope_columns,
    assay_edit_leave_norm_out, assay_edit_leave_qk_norm_out, assay_edit_exchange_layer_norms;
/* Of weights on a mesh (mutants_mesh.c); of rows of the batch there, and of gradients (mutants_shard_rows.c). */
assay_tensor_edit assay_edit_clamp_ids, assay_edit_roll_expert_shards, assay_edit_zero_last_shard,
    assay_edit_zero_all_but_first_shard, assay_edit_zero_shard_before, assay_edit_double_last_shard,
    assay_edit_zero_last_tensor_shard, assay_edit_times_tensor_shards, assay_edit_roll_fsdp_shards,
    assay_edit_times_hidden_shards, assay_edit_keep_first_rows_of_h, assay_edit_keep_first_rows_of_f,
    assay_edit_keep_first_columns_of_h, assay_edit_roll_up_columns, assay_edit_split_halves_contiguously,
    assay_edit_exchange_expert_axes, assay_edit_concatenate_halves;
assay_tensor_edit assay_edit_roll_shard_rows, assay_edit_sum_shard_rows, assay_edit_first_shard_to_all,
    assay_edit_times_replicas, assay_edit_by_replicas, assay_edit_times_expert_shards, assay_edit_times_shards,
    assay_edit_first_microbatch, assay_edit_roll_shard_axis; /* the last one in mutants_functions.c */

/* Of heads there (mutants_heads.c). */
assay_tensor_edit assay_edit_keep_first_heads, assay_edit_times_head_shards, assay_edit_exchange_head_axes;

/* For `change_inputs`: the order of tokens, cotangents, several tensors at once. */
assay_mutation_edit assay_edit_exchange_tokens, assay_edit_outgrow_residual, assay_edit_keep_first_shard,
    assay_edit_keep_first_replica, assay_edit_keep_first_columns_of_y, assay_edit_drop_last_microbatch,
    assay_edit_detach_losses, assay_edit_losses_times_shards, assay_edit_heads_modulo;
/* For `change_results`. */
assay_mutation_edit assay_edit_omit_all, assay_edit_omit_last, assay_edit_count_from_front, assay_edit_shrink_back,
    assay_edit_omit_checkpoints, assay_edit_blind_rows_to_nan, assay_edit_keep_first_copies, assay_edit_heads_back,
    assay_edit_sinks_in_lse, assay_edit_unsort_weights;

/* For `degrade` (mutants_types.c). */
assay_arithmetic_edit assay_degrade_sums, assay_degrade_router, assay_degrade_functions, assay_degrade_operands,
    assay_degrade_intermediates;

/* What they share. */
/* Whether the test is true of the text and one of the words, which have spaces between them. */
/* Whether the path lies in the folder, which may be one in another: "gradients/weights". */
bool assay_path_in(const char *path, const char *folder);
bool assay_any_word(const char *words, const char *text, bool (*test)(const char *text, const char *word));
int64_t assay_tensor_width(const assay_tensor *tensor);                    /* of a row: the last axis */
int assay_tensor_axis(const assay_tensor *tensor, const char *label);      /* -1: none has it */
int64_t assay_axes_product(const assay_shape *shape, int first, int last); /* of axes [first, last) */
void assay_swap_values(double *a, double *b, int64_t count);
void assay_swap_indices(int32_t *a, int32_t *b);
/* Index 0 along the axis becomes what index 1 was. */
bool assay_roll_axis(assay_tensor *tensor, int axis);
bool assay_scale_values(assay_tensor *tensor, double factor);   /* false: by 1 */
bool assay_zero_columns(assay_tensor *tensor, int64_t columns); /* the last ones */
bool assay_fill_values(assay_tensor *tensor, int64_t first, double value);
int64_t assay_case_shards(const assay_case *c);   /* that tokens are split over */
int64_t assay_rows_of_shard(const assay_case *c); /* of the batch; 0: one shard, or all have the same rows */

#endif
