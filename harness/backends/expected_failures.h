/* Expected failures: cases that a backend is known to fail. They are run all the same and reported apart; one that passes
 * is a failure, and a name that no case has is refused, so that the list stays true.
 *
 * A text file. Each line: a case (a name or a glob over names), then the reason in words; '#' begins a comment. */
#pragma once

#include "cases/case.h"

typedef struct assay_expected_failure {
    char pattern[ASSAY_PATH_SIZE];
    char reason[160];
    int line;
    int64_t seen; /* how often it was met, by who counts */
} assay_expected_failure;

typedef struct assay_expected_failures {
    assay_expected_failure *entries;
    int count;
} assay_expected_failures;

/* Refused, with its line: a case without a reason, a line that is too long, a case given twice. */
assay_status assay_expected_failures_read(assay_context *ctx, const char *path, assay_expected_failures *failures);
void assay_expected_failures_free(assay_expected_failures *failures); /* safe on a zeroed struct */
/* The first entry that matches, or NULL. */
const assay_expected_failure *assay_expected_failures_find(const assay_expected_failures *failures,
                                                           const char *case_name);

/* Cases that a list may name. */
typedef struct assay_named_cases {
    const assay_case *cases;
    int count;
} assay_named_cases;
/* Refuses the first entry that names none of them; those of assay fuzz (fuzz/...) name no case. */
assay_status assay_expected_failures_check(assay_context *ctx, const char *path,
                                           const assay_expected_failures *failures, const assay_named_cases *lists,
                                           int count);
