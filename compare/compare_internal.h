/* What the files of compare/ share with each other and with nobody else. */
#pragma once

#include "compare/compare.h"
#include "compare/thresholds.h"

/* ---- one tensor of a golden against the candidate's, in one pass (scan.c) ---- */

/* Elements that are read at a time: what the passes over them need stays in a core's cache. */
enum { ASSAY_CHUNK = 1 << 16 };

/* What is the same for all tensors of a fixture. */
typedef struct assay_comparison {
    assay_fixture_reader *golden, *candidate;
    const assay_profile *profile;
    assay_thresholds thresholds;
    double *golden_values, *candidate_values, *scales, *inverse; /* a chunk of each */
    int32_t *golden_integers, *candidate_integers;
} assay_comparison;

/* What a pass over a tensor found besides what the result says. */
enum { ASSAY_COARSE_TYPES = 2 };

typedef struct assay_facts {
    int64_t nonfinite; /* elements of the candidate that are NaN, or infinite where the golden is not */
    int64_t first_nonfinite;
    double first_golden, first_candidate; /* there */
    int64_t golden_nan, bad_scale;        /* first element whose golden or error scale is unusable; -1: none */
    bool all_zero;                        /* the golden is */
    bool zeros_pass;                      /* so would a candidate of zeros */
    /* Of what is kept in float32 beside coarser results: elements that are numbers of such a type where the golden is none, and
     * elements that are none. */
    int64_t coarse[ASSAY_COARSE_TYPES], fine[ASSAY_COARSE_TYPES];
    double coarse_squares[ASSAY_COARSE_TYPES]; /* of the former: sums of (error / error scale)^2 */
} assay_facts;

extern const assay_dtype assay_coarse_types[ASSAY_COARSE_TYPES];

/* Each fills the numbers of `result`, whose spec, candidate_type, elements and rows are set. `scale`: path of the error
 * scale. A candidate that cannot be read ends as `*unreadable`, with the reason in ctx->message. */
assay_status assay_scan_floats(assay_context *ctx, const assay_comparison *c, const char *scale,
                               assay_tensor_result *result, assay_facts *facts, bool *unreadable);
assay_status assay_scan_integers(assay_context *ctx, const assay_comparison *c, assay_tensor_result *result,
                                 assay_facts *facts, bool *unreadable);
/* Error scales become thresholds, in place: the largest errors that assay_scan_floats accepts of a candidate in this type. */
void assay_element_thresholds(const assay_thresholds *thresholds, assay_dtype storage, int64_t count,
                              const double *golden, double *scales);
/* Non-finite values alone: there is no error scale. */
assay_status assay_scan_finite(assay_context *ctx, const assay_comparison *c, assay_tensor_result *result,
                               assay_facts *facts, bool *unreadable);

/* ---- the few elements or rows that lie farthest out; places and statistics in words (places.c) ---- */

/* Keeps the ASSAY_WORST_COUNT with the largest excess, in descending order; of equal ones those that came first. */
void assay_outlier_keep(assay_outlier worst[ASSAY_WORST_COUNT], int *count, const assay_outlier *found);

/* Excess that the next one must surpass to be kept; 0 while there is room. */
double assay_outlier_bar(const assay_outlier worst[ASSAY_WORST_COUNT], int count);

enum { ASSAY_SLICE_TEXT = 400 };

const char *assay_statistic_name(int statistic); /* "size", "bias", ..., "axis" */

/* "expert 3", "row [0,5]", "columns 128-255"; "" for what is no slice. */
void assay_slice_text(const assay_tensor_result *result, int statistic, char text[ASSAY_SLICE_TEXT]);

/* What it is and what it might have been at most: "RMS of error / deviation 2.31, of a correct one up to 1.42". */
void assay_statistic_text(const assay_tensor_result *result, int statistic, char text[ASSAY_SLICE_TEXT]);

/* ---- from what a pass over a tensor found to its verdict, its finding and the line that says so (verdict.c) ---- */

/* Missing, misshapen or of a wrong type. True: there is nothing more to compare. `found` is NULL when the candidate has
 * no such tensor; `kind` is the candidate's, or NULL. */
bool assay_judge_structure(const assay_profile *profile, const assay_tensor_spec *found, const char *kind,
                           assay_tensor_result *result);

/* What the pass over its values says. `scales` names the profiles whose error scales the golden has, and is NULL when
 * it has the one that was asked for; `left_out` is why it cannot have that, or NULL. */
void assay_judge_values(const assay_profile *profile, const assay_facts *facts, const char *scales,
                        const char *left_out, assay_tensor_result *result);

/* The candidate's values could not be read; `why` is the reader's message. */
void assay_judge_unreadable(const char *why, assay_tensor_result *result);
/* By rules: NULL, or the one that is broken. */
void assay_judge_rules(const char *broken, assay_tensor_result *result);

/* ---- the verdict on a fixture from those on its tensors (verdict.c) ---- */

/* Whether anything was shown: required tensors that agree and whose zeros would not have. */
typedef struct assay_certificate_inputs {
    bool floats_required; /* the golden has required tensors of a float type */
    bool floats, integers;
} assay_certificate_inputs;

/* The power of the report must be there. FAIL over NOT COMPARABLE over VACUOUS over PASS; sets verdict and message of the report. */
void assay_conclude(assay_report *report, const assay_certificate_inputs *shown);

/* ---- what a wrong tensor looks like (diagnosis.c) ---- */

/* Hypotheses tried one by one, each with what it leaves unexplained. Only one that explains the tensor to within its error
 * scales is said; a wrong guess is worse than none. */

/* Larger tensors are not diagnosed, so that memory stays bounded. */
#define ASSAY_DIAGNOSIS_MOST (INT64_C(1) << 22)

/* Fills report->diagnosis for the first wrong tensor of the data flow whose values were compared; "" where nothing
 * fits. */
assay_status assay_diagnose(assay_context *ctx, assay_fixture_reader *golden, assay_fixture_reader *candidate,
                            const assay_profile *profile, assay_report *report);

/* One tensor: golden, candidate and standard deviations (rounding included) [count]; labels of the axes or NULL. */
typedef struct assay_wrong_tensor {
    const double *golden, *candidate, *sigma;
    int64_t count;
    assay_shape shape;
    const char *labels[ASSAY_MAX_RANK];
} assay_wrong_tensor;

/* What it looks like, or "". */
assay_status assay_diagnose_tensor(assay_context *ctx, const assay_wrong_tensor *t, char *text, size_t size);
