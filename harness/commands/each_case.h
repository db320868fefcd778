/* The cases of a command, one after the other, or shared out among processes (docs/large.md): the same output in the same
 * order, and the same end. */
#pragma once

#include <stdio.h>

#include "harness/commands/choose.h"

typedef struct assay_each {
    void *self;
    int count;
    assay_ranks *ranks; /* that have the cases: of options; NULL: this process has them all */
    bool apart;         /* cases may be done in processes of their own, without ranks too: there is a cost */
    bool quiet;         /* of the progress that is shown then */
    /* About how many operations a case has; NULL: one has as many as another. */
    double (*cost)(void *self, int i);
    /* Does a case, and prints what is to be seen of it. What is to be known of it afterwards goes to `result`. */
    assay_status (*work)(assay_context *ctx, void *self, int i, FILE *result);
    /* In the order of cases, of the first rank or the only process; NULL: there is nothing to know. */
    assay_status (*take)(assay_context *ctx, void *self, int i, const char *result, size_t size);
} assay_each;

/* Ends with the first case that fails. Without ranks, where a case may be done apart and there are threads, each of them
 * is a process that does small cases, and large ones are done here by all threads. Each of several ranks has cases of its own,
 * about the same work; what they print comes out of the first. */
assay_status assay_each_case(assay_context *ctx, const assay_each *each);
