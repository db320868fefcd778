/* Golden fixtures and requests: a case evaluated into a file, and evaluated again against one. */
#ifndef ASSAY_HARNESS_GOLDEN_H
#define ASSAY_HARNESS_GOLDEN_H

#include "compare/profile.h"
#include "harness/plan/inputs.h"

enum { ASSAY_REASON_SIZE = 128 };

/* What a golden of a case will hold and need, all of it checked before anything is written. */
typedef struct assay_plan {
    const assay_case *c;
    const assay_operation *operation;
    assay_tensor_list list;   /* everything that the operation could give */
    assay_tensor_spec *specs; /* what the file holds, error scales included */
    int spec_count;
    int64_t elements;           /* of all specs */
    int64_t file_bytes, memory; /* on disk; at the peak */
    assay_precision *precisions;
    int precision_count;
    assay_profile *own; /* profiles of the case that are not built in */
    int own_count;
    char null_left_out[ASSAY_REASON_SIZE]; /* why it has no null distributions; "": it has, or is exact */
    bool certify;   /* the golden is to hold its certificate (harness/certify/certificate.h) */
    int64_t budget; /* of that: coordinates of each gradient */
    bool mutants;   /* the golden is to hold its discrimination certificate (harness/power/power_test.h) */
} assay_plan;

/* Prepares the case and chooses datasets by its gradients, checkpoints and profiles. */
assay_status assay_plan_describe(assay_context *ctx, assay_plan *plan, const assay_case *c);
/* The same, and refuses sizes beyond this machine's memory. */
assay_status assay_plan_make(assay_context *ctx, assay_plan *plan, const assay_case *c);
/* The same where profiles of the case may be a user's own: the golden's, or this one (NULL: none). A golden that has
 * null distributions keeps them, however large. */
assay_status assay_plan_make_with(assay_context *ctx, assay_plan *plan, const assay_case *c,
                                  const assay_fixture_reader *golden, const assay_profile *own);
/* The profile of a precision of the plan. */
const assay_profile *assay_plan_profile(const assay_plan *plan, const char *name);
/* The profile's precision for a case: where its inputs lie on a finer grid, they are rounded. */
assay_precision assay_case_precision(const assay_case *c, const assay_profile *profile);
/* Adds a profile to the case's, where it is not among them. */
assay_status assay_case_add_profile(assay_context *ctx, assay_case *c, const char *name);
/* The golden is to hold no null distributions: those of old goldens do not. */
void assay_plan_drop_null(assay_plan *plan);
/* The golden is to hold its certificate. Refuses what nobody would wait for, unless a budget is given
 * (harness/certify/certificate.h has its values). */
assay_status assay_plan_certify(assay_context *ctx, assay_plan *plan, int64_t budget);
/* The golden is to hold which mutants it detects, at each of its profiles. */
assay_status assay_plan_mutants(assay_context *ctx, assay_plan *plan);
void assay_plan_free(assay_plan *plan); /* safe on a zeroed struct */

/* Whether goldens hold error scales of such a tensor: floats among outputs, gradients and checkpoints. */
bool assay_has_error_scale(const assay_tensor_spec *spec);

/* A case with the tag `exact` says that every operation of it is exact in its profiles: its error scales are 0, and a
 * candidate is held to equality. */
bool assay_case_is_exact(const assay_case *c);

/* How many of the context's threads the plan's case is worth. */
int assay_plan_threads(const assay_context *ctx, const assay_plan *plan);

/* Writes the golden of the plan's case to `path`; `inputs_file` may be NULL. */
assay_status assay_golden_write(assay_context *ctx, const assay_plan *plan, const char *path, const char *inputs_file,
                                bool quiet);

/* The same from any source; where that has routing/.../selected_experts, given this choice. */
assay_status assay_golden_write_from(assay_context *ctx, const assay_plan *plan, const char *path,
                                     const assay_source *source, bool quiet);

/* Writes what a backend may see: inputs, weights, cotangents, and the names of what it is to give. */
assay_status assay_request_write(assay_context *ctx, const assay_plan *plan, const char *path, const char *inputs_file,
                                 bool quiet);

/* Evaluates the case of an open golden again, from its own inputs, and holds every result against the stored one, bit
 * for bit. Refuses with the first that differs. */
assay_status assay_golden_recompute(assay_context *ctx, const assay_plan *plan, assay_fixture_reader *golden,
                                    bool quiet);

/* Whether an open golden has anything in a folder: "null", "certificate", "discrimination". */
bool assay_golden_has(const assay_fixture_reader *golden, const char *folder);

/* Refuses a golden that lacks a dataset of the plan, or has it in another shape or type. */
assay_status assay_golden_check_layout(assay_context *ctx, const assay_plan *plan, const assay_fixture_reader *golden);

/* The inputs, weights and cotangents of an open golden. */
assay_source assay_golden_given(assay_fixture_reader *golden);

/* Creates the folders above `path` that do not exist. */
assay_status assay_make_parents(assay_context *ctx, const char *path);

/* Refuses when the disk of `path` has less than `bytes` left. */
assay_status assay_require_disk(assay_context *ctx, const char *path, int64_t bytes);

#endif
