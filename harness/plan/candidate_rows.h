/* What a candidate may have otherwise than the golden without being wrong, put as the golden has it before the two are
 * compared: rows of results that belong to nothing, the sign of NaN, gradients in full, rows of one expert in another order, other replicas of an expert. */
#pragma once

#include "harness/plan/results.h"

/* The candidate's rows that belong to nothing (unused_row_axes of the operation's entries) become the golden's; so do its
 * codes of NaN where the golden's is NaN too: recipes do not agree on its sign. Gradients that the golden holds as
 * sketches, and the candidate in full, become sketches; a tensor of another shape or type stays, and is missing then. */
assay_status assay_candidate_put_as_golden(assay_context *ctx, const assay_plan *plan, assay_fixture_reader *golden,
                                           assay_fixture_reader *candidate);
/* Of these, the sketches. */
assay_status assay_candidate_read_sketches(assay_context *ctx, const assay_plan *plan, assay_fixture_reader *candidate);

/* Rows that belong to nothing of results in memory. */
assay_status assay_results_copy_unused(assay_context *ctx, const assay_plan *plan, const assay_tensor_set *golden,
                                       assay_tensor_set *results);

/* What became of the candidate's orders of token copies. */
typedef struct assay_row_orders {
    int other;                        /* lawful orders that are not the golden's */
    bool other_replicas;              /* a lawful choice of replicas that is not */
    char wrong_path[ASSAY_PATH_SIZE]; /* of the first unlawful one; "": there is none */
    char message[ASSAY_MESSAGE_SIZE]; /* on it */
    bool is_output;                   /* a lawful other one is an output, so that gradients go by it */
} assay_row_orders;

/* sorted_selected_experts of the candidate: its copies must be those of the golden, grouped by expert, and may come in any
 * order within an expert. Where the order is another one, it and all tensors in it become as the golden has them, but for
 * an order that is an output: that comes to `given`, with which the golden is to be evaluated again. Orders of several
 * shards are as the golden has them, or wrong.
 * physical_experts of the candidate, in any layer: any replica of the chosen expert will do, and becomes the golden's. */
assay_status assay_candidate_align_rows(assay_context *ctx, const assay_plan *plan, assay_fixture_reader *golden,
                                        assay_fixture_reader *candidate, assay_row_orders *orders,
                                        assay_tensor_set *given);
