/* What the two uses of the emulated runs share: error scales and null distributions. Private to harness/ensemble*. */
#ifndef ASSAY_HARNESS_ENSEMBLE_INTERNAL_H
#define ASSAY_HARNESS_ENSEMBLE_INTERNAL_H

#include "compare/profile.h"
#include "compare/statistics.h"
#include "harness/ensemble.h"

enum { ASSAY_MEMBERS = 8, ASSAY_MEMBERS_OF_SMALL_WORK = 16 };

/* What the members that are drawn for a tensor's null distribution came to: as they are, and rounded to storage. */
typedef struct assay_null_draws {
    assay_statistics_pass pass[2];
    assay_statistics drawn[2][ASSAY_MEMBERS_OF_SMALL_WORK];
    double low[ASSAY_STATISTICS], high[ASSAY_STATISTICS]; /* of implementations that round less than a member */
    double scale_squares, scale_count;                    /* of error scale / deviation, where that counts */
} assay_null_draws;

/* A tensor whose error scale is wanted. */
typedef struct assay_tracked {
    const assay_tensor_spec *spec;
    int64_t count;
    int64_t written;          /* elements so far in this run */
    double *golden, *squares; /* squares: sums over the members of squared errors; of the ensemble alone */
    float **scales;           /* one for each precision of the plan; NULL when no null distribution is wanted */
    int64_t *scales_written;
    assay_null_draws *null;
} assay_tracked;

/* The experts that the golden run chose, which the members are given. */
typedef struct assay_kept_choice {
    const assay_tensor_spec *spec;
    int64_t count, written;
    int32_t *experts;
} assay_kept_choice;

/* An input, weight or cotangent, which to draw or to read from a file again would cost each member time. */
typedef struct assay_kept_given {
    const assay_tensor_spec *spec;
    double *values;
} assay_kept_given;

typedef struct assay_ensemble {
    const assay_plan *plan;
    const assay_source *in;
    const assay_sink *out;
    assay_tracked *tensors;
    int tensor_count;
    assay_kept_choice *choices;
    int choice_count;
    assay_kept_given *given;
    int given_count;
    const assay_profile *null_profile; /* its null distributions are being drawn; NULL: error scales are */
    int null_precision;                /* its index among the plan's */
} assay_ensemble;

/* What of a path is kept; NULL: nothing. */
assay_tracked *assay_ensemble_tensor(const assay_ensemble *e, const char *path);
assay_kept_choice *assay_ensemble_choice(const assay_ensemble *e, const char *path);
const assay_kept_given *assay_ensemble_given(const assay_ensemble *e, const char *path);
void assay_ensemble_scale_path(const assay_precision *precision, const char *path, char scale[ASSAY_PATH_SIZE]);

/* Room for what the golden run is to leave; and what the members read, from e->in. */
assay_status assay_ensemble_collect(assay_context *ctx, assay_ensemble *e);
assay_status assay_ensemble_keep_given(assay_context *ctx, assay_ensemble *e);
void assay_ensemble_release(assay_ensemble *e);

/* One run in the emulated arithmetic; member_write of its results. */
typedef struct assay_member {
    const assay_precision *precision;
    const char *stream; /* of seeds: "ensemble" or "null" */
    int number;
    bool nearest; /* every rounding to nearest, and no other errors */
} assay_member;
assay_status assay_ensemble_run(assay_context *ctx, assay_ensemble *e, const assay_member *member);

/* Null distributions of every tensor for which the sink wants one, from members of their own. Error scales are there.
 */
assay_status assay_null_evaluate(assay_context *ctx, assay_ensemble *e);
assay_status assay_null_write(assay_context *ctx, const assay_ensemble *e, assay_tracked *t, int64_t count,
                              const double *values);
void assay_null_release(assay_tracked *t, int precisions);
bool assay_null_is_wanted(const assay_ensemble *e, const char *path);

#endif
