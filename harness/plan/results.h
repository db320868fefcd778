/* All tensors of a case in memory: what was given, and what came out. */
#ifndef ASSAY_HARNESS_EQUIVALENCE_RESULTS_H
#define ASSAY_HARNESS_EQUIVALENCE_RESULTS_H

#include "harness/plan/plan.h"

typedef struct assay_kept {
    const assay_tensor_spec *spec; /* of the plan */
    double *values;                /* or */
    int32_t *indices;
    int64_t count, written;
} assay_kept;

typedef struct assay_results {
    const assay_plan *plan;
    assay_kept *items; /* [plan->spec_count] */
} assay_results;

/* Room for everything in the plan; given tensors are read from `in`. */
assay_status assay_results_open(assay_context *ctx, assay_results *results, const assay_plan *plan,
                                const assay_source *in);
void assay_results_free(assay_results *results);                                /* safe on a zeroed struct */
assay_kept *assay_results_find(const assay_results *results, const char *path); /* NULL when there is none */
/* The error scales of a result at a profile; NULL: it has none. */
assay_kept *assay_results_scales(const assay_results *results, const assay_profile *profile, const char *path);
assay_sink assay_results_sink(assay_results *results);
assay_source assay_results_source(assay_results *results); /* of what was given */

/* Where the elements of a tensor of one form lie in the other's results, whose kernels may be fused where the first's
 * are not: `wi` is `wi_0` and `wi_1` side by side on the last axis. */
typedef struct assay_counterpart {
    const assay_kept *part[2]; /* [1]: the second half of a fused kernel; else NULL */
    int64_t width;             /* of a row of the tensor */
    int64_t piece;             /* what a part has of it */
    int64_t pitch, offset;     /* of a row of the part, and where in it the piece begins */
} assay_counterpart;

/* False where the results have no such tensor, or one of another shape or with other labels. */
bool assay_results_counterpart(const assay_results *results, const assay_tensor_spec *spec, assay_counterpart *found);
/* In which part element `index` lies, and where in it. */
int assay_counterpart_at(const assay_counterpart *c, int64_t index, int64_t *at);

/* Whether a component of the path is wi, wi_0 or wi_1. */
bool assay_path_names_half(const char *path);

/* What was given to one form, as a source of the other's tensors. */
typedef struct assay_given_of_other {
    const assay_results *results; /* of the one */
    const assay_plan *plan;       /* of the other */
} assay_given_of_other;
assay_source assay_given_of_other_source(assay_given_of_other *given);

#endif
