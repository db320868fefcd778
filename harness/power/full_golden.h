/* Where mutants are made of more than their golden holds. Of a case that holds sketches they are made of whole gradients, as
 * a backend has them, and judged by the sketches of what they give. To be judged by stages they have all checkpoints. */
#pragma once

#include "harness/mutants/mutant_run.h"

/* The case without sketches, or with all checkpoints, evaluated from what `golden` was given. Starts zeroed; freed in any
 * case. */
typedef struct assay_full_golden {
    assay_case c; /* a view of the plan's */
    assay_plan plan;
    assay_tensor_set golden;
    char *profile, *all;
} assay_full_golden;

assay_status assay_full_golden_make(assay_context *ctx, const assay_trial *t, assay_full_golden *full);
/* Without error scales. */
assay_status assay_full_golden_make_with_checkpoints(assay_context *ctx, const assay_trial *t, assay_full_golden *full);
/* `to` becomes a copy of the trial's golden with the results of `from`, large gradients as their sketches. */
assay_status assay_full_golden_results(assay_context *ctx, const assay_trial *t, const assay_tensor_set *from,
                                       assay_tensor_set *to);
void assay_full_golden_free(assay_full_golden *full);
