/* A case tried on a backend, in memory: what `assay run` does with files. */
#pragma once

#include "harness/backends/backend.h"
#include "harness/fuzz/forks.h"
#include "harness/fuzz/known.h"
#include "harness/golden/golden_memory.h"
#include "harness/plan/inputs.h"

/* Who is tried, and how. */
typedef struct assay_tried {
    const char *spec;
    const assay_profile *profile; /* NULL: that of each case's grid */
    double false_alarm, timeout;
    int64_t memory;                       /* bytes that each of its processes may take; 0: no limit */
    const char *folder;                   /* of a command's files */
    const char *container;                /* their ending */
    assay_backend_server *server;         /* that is asked in place of a command; NULL: none */
    assay_forks forks;                    /* of a shared object */
    const assay_expected_failures *known; /* NULL: none */
} assay_tried;

typedef enum assay_attempt_end {
    ASSAY_ATTEMPT_PASS,
    ASSAY_ATTEMPT_FAIL,
    ASSAY_ATTEMPT_UNSUPPORTED,
    ASSAY_ATTEMPT_REFUSED /* there is no such case: its keys do not go together, or its numbers overflow */
} assay_attempt_end;

typedef struct assay_attempt {
    assay_attempt_end end;
    char message[600]; /* why, in one line */
    assay_reason reason;
    assay_expected_failure *known; /* of a failure: the entry of the list that it is of, or NULL */
    assay_report report;           /* where there are results to judge */
    double seconds;                /* of the backend */
    /* private */
    const assay_profile *profile;
    assay_plan plan;
    assay_inputs inputs;
    assay_tensor_set tensors, results; /* given and golden; of the backend */
    assay_golden golden, against;
    assay_fixture_reader *candidate;
} assay_attempt;

/* The case has one profile after it: that by which it is judged. It must outlive the attempt, which is to be freed also
 * where this fails: that is never the backend's doing. `most_elements`: larger cases are refused; 0: none is. */
assay_status assay_attempt_make(assay_context *ctx, assay_tried *tried, assay_case *c, int64_t most_elements,
                                assay_attempt *attempt);
/* Of a failure: fills in the report's explanation and reason.bug. */
assay_status assay_attempt_explain(assay_context *ctx, assay_attempt *attempt);
/* Whether a failure equals that known bug. */
assay_status assay_attempt_equals(assay_context *ctx, assay_attempt *attempt, const char *bug, bool *equals);
void assay_attempt_free(assay_attempt *attempt); /* safe on a zeroed struct */

/* But for the bug. */
bool assay_reason_is_alike(const assay_reason *a, const assay_reason *b);
