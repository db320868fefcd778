/* What error scales and null distributions of the emulated runs share. Private to harness/scales. */
#pragma once

#include "compare/profile.h"
#include "compare/statistics.h"
#include "harness/scales/ensemble.h"
#include "oracle/base/tensor_set.h"

/* What a tensor's null distribution is so far, by its statistics: the range, and the members' spread. */
typedef struct assay_null_draws {
    double low[ASSAY_STATISTICS], high[ASSAY_STATISTICS], deviation[ASSAY_STATISTICS], members[ASSAY_STATISTICS];
    double least_size; /* of the less accurate of two forms: what a kernel errs by that rounds its sums once */
    double scale_squares, scale_count; /* of error scale / deviation, where that counts */
} assay_null_draws;

/* A tensor whose error scale is wanted. */
typedef struct assay_scaled {
    const assay_tensor_spec *spec;
    int64_t count;
    int64_t written; /* elements so far in this run */
    const double *golden;
    float *errors;          /* [members, count]; NAN: the result is not finite; infinity: float32 has no room */
    float *kept;            /* [count], error scales of members that store nothing; NULL: there are none */
    float *scale;           /* [count], of the precision at hand; NULL where there is no null distribution */
    double least;           /* the least error scale but 0, relative to the golden value */
    assay_null_draws *null; /* NULL when no null distribution is wanted */
} assay_scaled;

typedef struct assay_ensemble {
    const assay_plan *plan;
    const assay_source *in;
    const assay_sink *out;
    assay_tensor_set golden; /* values of the golden run, and the tensors themselves in the same order */
    assay_scaled *tensors;
    /* What members are given: the experts that the golden run chose; and inputs, weights and cotangents, which to draw
     * or to read from a file again would cost each member time. Those beyond ASSAY_ENSEMBLE_BYTES are: members ask for
     * the weights of one expert after the other. */
    assay_tensor_set inputs;
    assay_tensor_set deviation; /* of h that is quantised, at the precision at hand (hidden_deviation.h) */
    bool overflows;             /* the golden run is not finite */
    bool lost;                  /* an error scale was refused, and its profile named */
    bool subtracts;             /* the run before from the one that is running: of plan->less */
    int slot;                   /* of errors: where those of the member that is running go */
} assay_ensemble;

assay_scaled *assay_ensemble_tensor(const assay_ensemble *e, const char *path); /* NULL: its scale is not wanted */

/* The type to which a member rounds an input, weight or cotangent; float64: it does not. Logits that are given are a
 * router's, which rounds them itself; what has a type of its own is used in it. */
assay_dtype assay_type_of_input(const assay_precision *precision, const assay_case *c, const char *path);

/* precisions [plan->precision_count]: the plan's, whose inputs are exact where they may be rounded only beyond the range of
 * a type, and none lies there. Fails where an exact case with error scales has an input whose rounding changes a result: the plan
 * loses that profile. */
assay_status assay_settle_inputs(assay_context *ctx, const assay_plan *plan, const assay_source *in,
                                 assay_precision *precisions);

/* Room for what the golden run and the members are to leave; and what the members read, from e->in. */
assay_status assay_ensemble_collect(assay_context *ctx, assay_ensemble *e, bool null);
assay_status assay_ensemble_read_inputs(assay_context *ctx, assay_ensemble *e);
void assay_ensemble_release(assay_ensemble *e);

/* The golden run: its results to e->out and into memory. */
assay_status assay_ensemble_run_golden(assay_context *ctx, assay_ensemble *e);

/* One run in the emulated arithmetic, whose errors go to slot `number` of each tensor's, or to slot 0. */
typedef struct assay_member {
    const assay_precision *precision;
    int number;
    bool keeps;   /* nothing is stored between steps */
    bool nearest; /* every rounding to nearest, and no other errors */
    bool exact;   /* after what is given was rounded: no errors at all */
} assay_member;
assay_status assay_ensemble_run(assay_context *ctx, assay_ensemble *e, const assay_member *member);
/* Members 0 to count - 1 of that kind. */
assay_status assay_ensemble_run_members(assay_context *ctx, assay_ensemble *e, const assay_member *kind, int count);

/* A tensor as `blocks` matrices, of which each has the model of_row times of_column. The columns are whole rows of the
 * last axis. */
typedef struct assay_error_view {
    int64_t blocks, rows, columns;
    double *of_row;     /* [blocks,rows] */
    double *of_column;  /* [blocks,columns], about 1 on average */
    double *per_column; /* 1 / of_column, 0 where that is 0 */
} assay_error_view;

/* Sums over the members of a tensor's squared errors, as factors for rows and columns (assay_ensemble_smooth). */
typedef struct assay_error_model {
    assay_error_view views[ASSAY_MAX_RANK + 1];
    int count, best, members;
    double mean;
    double tails; /* scales are so many times what squares say: errors may have heavier tails than Gaussian ones */
    double *memory;
} assay_error_model;

assay_status assay_error_model_fit(assay_context *ctx, const assay_shape *shape, int members, const double *squares,
                                   assay_error_model *model);
/* Squares that the model was fitted to become error scales, in place. */
void assay_error_model_scale(const assay_context *ctx, const assay_error_model *model, double *squares);
void assay_error_model_free(assay_error_model *model); /* safe on a zeroed struct */

/* A mean of a few squares, drawn towards `towards`; 0 stays. Means, drawn towards the mean of those above 0. */
double assay_steadied(double mean, double towards, int64_t squares);
void assay_steady(double *means, int64_t count, int64_t squares);
double assay_per(double x); /* 1 / x, but finite, and 0 for 0 */

/* Squared error scales without one of the members, for each in turn: what it is held against, for against scales of its
 * own a member looks smaller than it is. */
typedef struct assay_leave_one_out {
    const assay_error_view *view;
    double tails;
    int members;
    const float *errors; /* [members,count] */
    int64_t count;
    double *of_row, *of_column; /* [members,blocks,rows], [members,blocks,columns]: the model of the others */
    double *memory;
} assay_leave_one_out;

/* `model` and `errors` must outlive it. */
assay_status assay_leave_one_out_start(assay_context *ctx, const assay_error_model *model, int64_t count,
                                       const float *errors, assay_leave_one_out *held);
/* Of elements first to first + count - 1: the sums over all members of squared errors, and from these what the others
 * of a member say. */
void assay_leave_one_out_squares(const assay_leave_one_out *held, int64_t first, int64_t count, double *squares);
void assay_leave_one_out_variances(const assay_leave_one_out *held, int member, int64_t first, int64_t count,
                                   const double *squares, double *variance);
void assay_leave_one_out_free(assay_leave_one_out *held); /* safe on a zeroed struct */

/* Statistics of a tensor's members at plan precision p, whose error scales are there. */
assay_status assay_null_draw(assay_context *ctx, const assay_ensemble *e, const assay_scaled *t, int p, int members,
                             const assay_leave_one_out *held);
/* After it: the same of members that err less than those, whose sizes therefore say nothing. */
assay_status assay_null_draw_beside(assay_context *ctx, const assay_ensemble *e, const assay_scaled *t, int p,
                                    int members);
/* Of the less accurate of two forms, after it: how little a kernel of it errs, by members that round their sums once. */
assay_status assay_null_draw_least(assay_context *ctx, const assay_ensemble *e, const assay_scaled *t, int p,
                                   int members);
/* After these: the range takes in a run to nearest, whose errors are in slot 0, and the null distribution is written. */
assay_status assay_null_finish(assay_context *ctx, const assay_ensemble *e, const assay_scaled *t, int p);
bool assay_null_is_wanted(const assay_ensemble *e, const char *path);
