/* Rules by absolute and relative tolerance, as tests of other projects have them, beside the golden's own thresholds: the
 * smallest that accept correct kernels, and what a given one lets through. */
#pragma once

#include "oracle/base/tensor_set.h"

/* Accepts where |candidate - golden| <= atol + largest * max |golden| + rtol * |golden| in a share `matched` of the elements,
 * and 1 - 2 sum(xy) / sum(xx + yy) <= diff. NaN and infinities that the golden has not are never accepted. */
typedef struct assay_tolerance {
    double atol, rtol, largest, matched, diff; /* matched: 1 for all; diff: infinite where it is not asked */
} assay_tolerance;

/* "atol=5e-3,rtol=0", and the other members; atol, rtol and largest are 0 where they are left out, but all three no limit. */
assay_status assay_tolerance_parse(assay_context *ctx, const char *text, assay_tolerance *tolerance);

bool assay_tolerance_accepts(const assay_tolerance *tolerance, int64_t count, const double *golden,
                             const double *candidate);
/* Integers must be equal. */
bool assay_tolerance_accepts_tensor(const assay_tolerance *tolerance, const assay_tensor *golden,
                                    const assay_tensor *candidate);

/* Of all pairs that allow every element its threshold the one that allows least on average; both numbers are rounded up
 * to two digits. */
assay_tolerance assay_tolerance_fit(int64_t count, const double *golden, const double *thresholds);

/* What was done to a golden tensor, and whether the rule accepts that. */
typedef struct assay_audit_statement {
    const char *name, *text; /* "zeros"; "zeros pass" */
    double number;           /* of "scaled": the largest that passes, to three digits; else 0 */
    bool applies, passes;
} assay_audit_statement;

enum { ASSAY_AUDIT_STATEMENTS = 8 };

/* Every statement is found by execution. `scratch` [count]. */
void assay_tolerance_audit(const assay_tolerance *tolerance, const assay_tensor *golden, double *scratch,
                           assay_audit_statement statements[ASSAY_AUDIT_STATEMENTS]);
