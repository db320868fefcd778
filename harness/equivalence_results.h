/* All tensors of a case in memory: what was given, and what came out. */
#ifndef ASSAY_HARNESS_EQUIVALENCE_RESULTS_H
#define ASSAY_HARNESS_EQUIVALENCE_RESULTS_H

#include "harness/golden.h"

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
void assay_results_free(assay_results *results); /* safe on a zeroed struct */
assay_kept *assay_results_find(const assay_results *results, const char *path); /* NULL when there is none */
assay_sink assay_results_sink(assay_results *results);

/* Where an element of a tensor of one form lies in the other, whose kernels may be fused where the first's are not: `wi`
 * is `wi_0` and `wi_1` side by side on the last axis. Finds the tensor of `results` for element `index` of `spec`. NULL
 * where there is none. */
const assay_kept *assay_results_locate(const assay_results *results, const assay_tensor_spec *spec, int64_t index,
                                       int64_t *at);

/* Whether a component of the path is wi, wi_0 or wi_1. */
bool assay_path_names_half(const char *path);

/* What was given, as a source; and the same for reading it into the other form's results. */
assay_source assay_results_source(assay_results *results);
assay_source assay_results_source_of_other(assay_results *results);

#endif
