/* Work shared out among processes of this machine: where the library below a case is no place for two threads, and the
 * case too small for them. A process takes the next piece when it is free, with one thread. */
#pragma once

#include <stdio.h>

#include "oracle/base/status.h"

typedef struct assay_workers {
    void *self;
    int processes, count; /* of pieces */
    /* In a process of its own, whose standard error goes nowhere: what is to be known of the piece goes to `result`. */
    assay_status (*work)(assay_context *ctx, void *self, int piece, FILE *result);
    /* In this process, as pieces come, in any order. `message`: of a status that is not ok; that of a process which died is
     * an internal error. */
    assay_status (*take)(assay_context *ctx, void *self, int piece, assay_status status, const char *message,
                         const char *result, size_t size);
} assay_workers;

/* After a piece or a take that failed no more are begun; those that were are taken. Ends with the first take that failed. */
assay_status assay_workers_run(assay_context *ctx, const assay_workers *workers);
