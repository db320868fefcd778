/* Ranks that are threads of one process: a transport of queues in place of MPI, which can fail. */
#pragma once

#include "harness/ranks/ranks.h"

enum { THREAD_RANKS_MOST = 8 };

/* What becomes of a message; all ranks are cut off from each other then, as where one has died. */
typedef enum thread_fault { THREAD_FAULT_NONE, THREAD_FAULT_NOT_SENT, THREAD_FAULT_CUT_SHORT } thread_fault;

typedef struct thread_ranks {
    int size;
    thread_fault fault;
    int64_t message;                                      /* whose fault it is, as they are sent */
    assay_status (*body)(assay_context *ctx, void *self); /* of every rank: a command, in its sessions */
    void *self;
    const struct assay_arithmetic *arithmetic; /* of the contexts; NULL: the reference */
    /* what came of it */
    assay_status status[THREAD_RANKS_MOST];
    char text[THREAD_RANKS_MOST][ASSAY_MESSAGE_SIZE];
    assay_ranks_count counted[THREAD_RANKS_MOST];
    int64_t messages; /* that were sent */
} thread_ranks;

/* Runs the body on `size` ranks, until all have ended. */
void thread_ranks_run(thread_ranks *ranks);
