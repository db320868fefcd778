/* The mutants: what a backend would give if it had a certain bug. One const table (mutants.c); docs/mutants.md lists
 * it.
 *
 * A mutant is made outside the operations, from a golden: the case is evaluated again with a changed configuration,
 * changed inputs or in a worse arithmetic, or the golden's own results are tampered with. */
#ifndef ASSAY_HARNESS_MUTANTS_H
#define ASSAY_HARNESS_MUTANTS_H

#include "compare/profile.h"
#include "harness/plan/results.h"
#include "oracle/arithmetic/emulated.h"

/* What the functions that change tensors may look at. */
typedef struct assay_mutation {
    const assay_case *c;
    const assay_profile *profile;
    assay_results *tensors; /* theirs to change; of a result, `written = 0` means: not given */
    int64_t shard;          /* of the mesh, for mutants that differ from shard to shard */
    int64_t part;           /* of the tokens, for mutants that exchange them: the even ones, or the odd */
    bool own_scales;        /* error scales among the tensors are those of the mutated case, to be changed alike */
} assay_mutation;

/* Each part returns false where it changes nothing: the mutant does not apply to the case. */
typedef struct assay_mutant {
    const char *name;
    const char *models;     /* in a few words */
    const char *bugs;       /* numbers of docs/bugs.md: "8, 9"; "" */
    const char *operations; /* names between spaces; "all" */
    const char *required;   /* of those, the ones whose fixtures must detect it where it has an effect */
    bool always;            /* it must be detected whether it has an effect or not */
    bool each;              /* detected: every tensor that it changes says so by itself; else: the candidate fails */
    bool golden_choice;     /* evaluate with the golden's choice of experts */
    bool other_seed;        /* evaluate with what the next seed draws */
    bool each_shard; /* evaluate once for each shard of the mesh: its rows of the outputs, the gradients of its rows */
    bool exchanges_tokens; /* evaluate for the even tokens and for the odd: their rows, the gradients of their rows */
    bool (*takes)(const char *path); /* only these results come from the evaluation; NULL: all */
    bool (*configure)(assay_case *c);
    bool (*change_inputs)(const assay_mutation *m);
    bool (*worsen)(const assay_mutation *m, assay_emulation *emulation);
    const char *lost_weight; /* what flows back through a kernel of this name is lost; NULL */
    bool (*change_results)(const assay_mutation *m); /* the golden's, or those that the rest gave */
} assay_mutant;

extern const assay_mutant assay_mutants[];
extern const int assay_mutant_count;
const assay_mutant *assay_mutant_by_name(const char *name); /* NULL when there is none */

/* "configuration", "inputs", "arithmetic" or "results": the first of its parts. */
const char *assay_mutant_way(const assay_mutant *mutant);
bool assay_mutant_is_evaluated(const assay_mutant *mutant); /* its case is; else results are changed and no more */
bool assay_mutant_is_for(const assay_mutant *mutant, const char *op);
bool assay_mutant_is_required(const assay_mutant *mutant, const char *op);

/* mutants_config.c */
#define ASSAY_MUTANT_CONFIGS(X)                                                                                        \
    X(factor_missing)                                                                                                  \
    X(factor_twice)                                                                                                    \
    X(divided_or_not) X(not_divided) X(biased_weights) X(biased_weights_divided) X(other_score) X(other_group_score) X(no_groups)                \
        X(other_group_count) X(no_shared_expert) X(no_mscale) X(other_pairing) X(other_interleave) X(other_truncation) \
            X(other_attention_scaling) X(other_rope_type) X(other_rope_factor) X(other_timescale) X(other_betas)       \
                X(other_epsilon) X(other_activation) X(no_clamp) X(half_capacity) X(padding_unmasked)                  \
                    X(twice_balance_loss) X(one_expert_fewer) X(half_buffer) X(no_buffer_limit)
/* mutants_inputs.c, mutants_inputs_attention.c */
#define ASSAY_MUTANT_INPUTS(X)                                                                                         \
    X(swap_gate_up)                                                                                                    \
    X(interleave_fused)                                                                                                \
    X(zero_router_bias) X(roll_router) X(roll_experts) X(zero_last_expert) X(unit_kv_norm) X(unit_q_norm)              \
        X(unit_norms) X(shift_positions) X(zero_positions) X(round_positions) X(one_segment) X(zero_last_rows)         \
            X(previous_token) X(scale_shared_expert) X(zero_biases) X(double_down_bias) X(unit_expert_scales)          \
                X(shift_keys) X(scale_query) X(move_group_row) X(roll_groups) X(runner_up) X(reverse_choices)          \
                    X(unit_weights) X(roll_heads) X(zero_rope_key) X(first_id) X(zero_router) X(scale_from_hidden) \
                        X(no_kv_norm) X(outgrow_residual) X(exchange_tokens)
/* mutants_dispatch.c */
#define ASSAY_MUTANT_DISPATCH(X) X(reverse_copies) X(count_from_front) X(pad_last_group)
/* mutants_mesh.c, mutants_shard_rows.c */
#define ASSAY_MUTANT_MESH(X)                                                                                           \
    X(global_ids)                                                                                                      \
    X(roll_expert_shards)                                                                                              \
    X(first_expert_shard) X(no_last_expert_shard) X(double_expert_shard) X(no_last_ring_step) X(no_last_tensor_shard)  \
        X(tensor_sum_twice) X(roll_fsdp_shards) X(first_microbatch_choice) X(router_of_first_shard)                    \
            X(gradients_of_first_replica) X(no_last_microbatch) X(roll_shard_rows) X(roll_shard_gradients)             \
                X(sum_shard_rows) X(first_shard_losses) X(sum_gradients_twice) X(average_gradients)                    \
                    X(undivided_experts)
/* mutants_results.c, mutants_parts.c, mutants_types.c */
#define ASSAY_MUTANT_RESULTS(X)                                                                                        \
    X(zero_all)                                                                                                        \
    X(nan_all)                                                                                                         \
    X(nan_last)                                                                                                        \
    X(omit_all) X(omit_last) X(zero_outputs) X(zero_gradients) X(zero_weight_gradients) X(zero_input_gradients)        \
        X(zero_router_gradient) X(negate_outputs) X(negate_gradients) X(double_values) X(halve_values)                 \
            X(scale_by_root) X(scale_7_bits) X(scale_8_bits) X(reverse_rows) X(shift_rows) X(transpose_square)         \
                X(swap_columns) X(swap_halves) X(zero_last_row) X(stale_last_row) X(zero_last_tile) X(scale_last_tile) \
                    X(zero_last_expert_rows) X(double_last_expert) X(zero_last_head) X(zero_last_batch)                \
                        X(truncate_values) X(coarser_values) X(base_2_lse) X(integers_off_by_one) X(roll_integers)     \
                            X(zero_balance_loss) X(negate_bias_updates) X(swap_expert_rows) X(zero_last_columns)       \
                                X(nan_empty_experts) X(no_checkpoints) X(nan_blind_rows)               \
                                    X(shrink_back)

#define X(name) bool assay_mutant_##name(assay_case *c);
ASSAY_MUTANT_CONFIGS(X)
#undef X
#define X(name) bool assay_mutant_##name(const assay_mutation *m);
ASSAY_MUTANT_INPUTS(X)
ASSAY_MUTANT_DISPATCH(X)
ASSAY_MUTANT_MESH(X)
ASSAY_MUTANT_RESULTS(X)
#undef X

/* The next coarser type that is in use. */
assay_dtype assay_coarser_type(assay_dtype type);
/* Cotangents of other shards than m->shard become zero. */
void assay_mutation_keep_shard(const assay_mutation *m);
/* Of mutants that exchange tokens: what the tokens of a part have of results whose tokens are exchanged. */
void assay_take_exchanged(const assay_mutation *m, const assay_results *from, assay_results *to);
/* For `takes`. */
bool assay_mutant_is_weight_gradient(const char *path);
bool assay_mutant_is_router_gradient(const char *path);

#endif
