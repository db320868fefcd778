/* Whether rows of a result depend on the company that they are computed in: the same rows again, among more or fewer others,
 * in another order, beside padding, in chunks (docs/further-checks.md, "Rows in other company"). Needs no golden: a backend is held
 * against itself. Rows are tokens where these are independent, else sequences. Gradients of weights are sums over rows, and are
 * compared by `repeat` alone. */
#pragma once

#include "harness/equivalences/equivalence_backend.h"

typedef enum assay_company_grade {
    ASSAY_COMPANY_SAME,     /* the same bits */
    ASSAY_COMPANY_ROUNDING, /* within what two correct results may differ by */
    ASSAY_COMPANY_BEYOND
} assay_company_grade;

typedef struct assay_company {
    const char *name, *text; /* text: what differs, with a place for how many others there are */
    enum {
        ASSAY_COMPANY_AGAIN,
        ASSAY_COMPANY_OTHERS,
        ASSAY_COMPANY_ORDER,
        ASSAY_COMPANY_PAD,
        ASSAY_COMPANY_CHUNKS
    } how;
} assay_company;

extern const assay_company assay_companies[]; /* ends with a NULL name */

/* The first tensor of the data flow that differs. */
typedef struct assay_company_result {
    char why[ASSAY_MESSAGE_SIZE]; /* the case is passed over; empty: not */
    assay_company_grade grade;
    char path[ASSAY_PATH_SIZE];
    int64_t rows, wrong, first; /* compared, those that differ, and the first of these */
    double last_places;         /* the largest difference, in last places of the type in which the profile stores it */
    int64_t others;             /* of a row where it differs: the fewest; */
    int64_t fewer;              /* the most with which it does not, -1: there is none */
} assay_company_result;

/* `one`: of assay_backend_first_form. Without a backend the oracle is asked. */
assay_status assay_company_check(assay_context *ctx, const assay_backend_check_options *options, const assay_form *one,
                                 const assay_company *company, assay_backend_end *end, assay_company_result *result);
