/* A ledger of known failures: cases that a backend is known to fail. They are run all the same and reported apart; one
 * that passes is a failure, so that the ledger stays true.
 *
 * A text file. Each line: a case (a name or a glob over names), then the reason in words; '#' begins a comment. */
#ifndef ASSAY_HARNESS_KNOWN_H
#define ASSAY_HARNESS_KNOWN_H

#include "oracle/base/tensor.h"

typedef struct assay_known_entry {
    char pattern[ASSAY_PATH_SIZE];
    char reason[160];
    int line;
} assay_known_entry;

typedef struct assay_known {
    assay_known_entry *entries;
    int count;
} assay_known;

/* Refused, with its line: a case without a reason, a line that is too long, a case given twice. */
assay_status assay_known_read(assay_context *ctx, const char *path, assay_known *known);
void assay_known_free(assay_known *known); /* safe on a zeroed struct */
/* The first entry that matches, or NULL. */
const assay_known_entry *assay_known_find(const assay_known *known, const char *case_name);

#endif
