/* The verdict on a candidate: structure, types, missing and extra tensors, non-finite values, exact integers and exact
 * cases, and errors per element and per row against the error scale of the profile (COMPARING.md). Streams: memory does
 * not grow with the fixture. Knows tensors, never operations. */
#ifndef ASSAY_COMPARE_COMPARE_H
#define ASSAY_COMPARE_COMPARE_H

#include "compare/power.h"
#include "compare/profile.h"
#include "fixtures/fixture.h"

typedef enum assay_verdict { ASSAY_PASS, ASSAY_FAIL, ASSAY_VACUOUS, ASSAY_NOT_COMPARABLE } assay_verdict;
const char *assay_verdict_name(assay_verdict verdict); /* "PASS", ... */

#define ASSAY_WORST_COUNT 5
enum { ASSAY_EXPLAINED_MOST = 8, ASSAY_EXPLAINED_NAME = 40 };

/* One element or row that lies far out. */
typedef struct assay_outlier {
    int64_t index;            /* flattened element, or row (all axes but the last) */
    double golden, candidate; /* of an element; of a row: RMS of both */
    double excess;            /* |error| over its threshold: above 1 fails */
} assay_outlier;

/* What was found wrong with a tensor; the first that applies. */
typedef enum assay_finding {
    ASSAY_FINDING_NONE,
    ASSAY_FINDING_MISSING,
    ASSAY_FINDING_SHAPE,
    ASSAY_FINDING_TYPE,
    ASSAY_FINDING_NONFINITE, /* NaN or infinity where golden is finite, or another one than golden's */
    ASSAY_FINDING_INTEGERS,  /* integers or an exact case differ */
    ASSAY_FINDING_ELEMENTS,
    ASSAY_FINDING_ROWS,
    ASSAY_FINDING_NO_SCALE /* the golden has no error scale for this profile: not comparable */
} assay_finding;

typedef struct assay_tensor_result {
    assay_tensor_spec spec;
    assay_dtype candidate_type;
    assay_verdict verdict;
    assay_finding finding;
    char message[256]; /* one line, for a person */
    bool compared, required, exact;
    int64_t elements, rows, wrong_elements, wrong_rows;
    double max_error;                /* largest absolute error */
    double rms_ratio;                /* RMS of error / error scale over the tensor */
    double worst_element, worst_row; /* largest excess */
    assay_outlier elements_worst[ASSAY_WORST_COUNT], rows_worst[ASSAY_WORST_COUNT];
    int elements_worst_count, rows_worst_count;
} assay_tensor_result;

typedef struct assay_report {
    char case_name[ASSAY_PATH_SIZE], op[64], profile[64];
    char golden_path[512], candidate_path[512];
    double false_alarm; /* stated probability for the whole fixture */
    assay_verdict verdict;
    char message[256];            /* why, in one line; names the first wrong tensor */
    char diagnosis[512];          /* what the first wrong tensor looks like (diagnosis.h); "" where nothing explains it */
    char explanation[768];        /* of a failure: which known bugs give this candidate, as far as somebody found out */
    char explained_by[ASSAY_EXPLAINED_MOST][ASSAY_EXPLAINED_NAME]; /* their names */
    int explained_count;
    char known[160];              /* why it is known to fail (a ledger); "" when it is not */
    assay_power power;            /* as the golden states it */
    assay_tensor_result *tensors; /* in the order of the data flow: routing, checkpoints, outputs, gradients */
    int count;
    char **unknown; /* datasets of the candidate that the golden does not know */
    int unknown_count;
    struct assay_picture **pictures; /* [count], once they are drawn (pictures.h); else NULL */
} assay_report;

assay_status assay_compare(assay_context *ctx, assay_fixture_reader *golden, assay_fixture_reader *candidate,
                           const assay_profile *profile, double false_alarm, assay_report *report);
/* The same without the diagnosis, for those who compare a hundred times. */
assay_status assay_compare_undiagnosed(assay_context *ctx, assay_fixture_reader *golden,
                                       assay_fixture_reader *candidate, const assay_profile *profile,
                                       double false_alarm, assay_report *report);
void assay_report_free(assay_report *report); /* safe on a zeroed struct */

#endif
