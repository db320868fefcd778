/* Known failures of a fuzzed backend: lines of the list that `assay run --known` takes (harness/backends/expected_failures.h),
 * of which fuzz takes those that begin with "fuzz/":
 *
 *     fuzz/OP[{KEY=GLOB}...]:TENSOR:HOW[<N]   why
 *
 * of cases alone in which those keys of the configuration have such values.
 * TENSOR and HOW are the reason's `where` and `what`, with N for '#' and _ for blanks; OP:TENSOR:HOW may be a glob. `<N` bounds
 * how many times its threshold the tensor may be off. */
#pragma once

#include "cases/case.h"
#include "compare/compare.h"
#include "harness/backends/expected_failures.h"

enum { ASSAY_REASON_WHAT = 160 };

/* What is wrong, so that two failures can be told apart. */
typedef struct assay_reason {
    char where[ASSAY_PATH_SIZE];    /* the first wrong tensor, of any layer; "" of a backend that gave no results */
    char what[ASSAY_REASON_WHAT];   /* "values", "not finite" ...; or how it ended, numbers left out */
    char bug[ASSAY_EXPLAINED_NAME]; /* the known bug that it equals; "": none is known, or nobody has looked */
    double excess;                  /* of values: how many times its threshold the tensor is off, at most; else 0 */
} assay_reason;

enum { ASSAY_REASON_LINE = 512 };
/* fuzz/OP:TENSOR:HOW, as a line of the list has it; returns `line`. */
const char *assay_reason_line(const char *op, const assay_reason *reason, char line[ASSAY_REASON_LINE]);

/* Reads the list and leaves out what is not of fuzz. Refused: what the list refuses, a line of another form, a key that there
 * is not, a bound that is no number above 1. */
assay_status assay_known_read(assay_context *ctx, const char *path, assay_expected_failures *known);

/* The first entry that is of this failure of the case, or NULL. */
assay_status assay_known_find(assay_context *ctx, const assay_expected_failures *known, const assay_case *c,
                              const assay_reason *reason, assay_expected_failure **found);
