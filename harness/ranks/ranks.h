/* The processes that mpirun has started together (docs/large.md, "Several processes"). Each does cases of its own; what is
 * to be known of a case goes to the first rank, which lets the others begin, and ends the run. */
#pragma once

#include "harness/ranks/transport.h"
#include "oracle/base/status.h"

typedef struct assay_ranks {
    assay_transport transport;
    bool ended;  /* of another rank: it has heard so of the first */
    bool over[]; /* [size], of the first: who has no more to say */
} assay_ranks;

/* How this process was started, whatever its command: whether by mpirun with others; its number among them, from 0; cores
 * for it: all of the machine, or its share of those that it may run on. */
bool assay_launch_is_shared(void);
int assay_launch_rank(void);
int assay_launch_cores(void);

/* Those that were started together; NULL where this one is alone. Opens the module with MPI, which lies beside the program
 * or among its libraries; without it several processes are refused. What this process starts finds nothing of mpirun in its
 * environment, and its temporary files in a folder that goes with the run. */
assay_status assay_ranks_open(assay_context *ctx, assay_ranks **ranks);
/* On every rank, at the end, with what became of the command there. NULL is nothing. */
void assay_ranks_close(assay_ranks *ranks, assay_status status, const char *message);

/* Whether this process is the first, or, where ranks are NULL, the only one. */
static inline bool assay_ranks_is_first(const assay_ranks *ranks)
{
    return ranks == NULL || ranks->transport.rank == 0;
}

/* Of the first: the others begin with their cases. Of another: waits for that; false: the run ends before. */
bool assay_ranks_begin(assay_ranks *ranks);

/* What a rank has to say of a case, or at its end; data follow. */
typedef struct assay_rank_report {
    int number; /* of the case; -1: it has no more */
    assay_status status;
    char message[ASSAY_MESSAGE_SIZE];
} assay_rank_report;

/* Of another rank, which goes on where that is true: the first needs no more else. */
bool assay_ranks_report(assay_ranks *ranks, const assay_rank_report *report, const char *data, size_t size);
/* Of the first: the next report of a rank, with `size` bytes of data behind it; the caller frees it. Where there is none yet:
 * waits, or it is NULL. Fails where the rank has failed, or has no more and is waited for. */
assay_status assay_ranks_hear(assay_context *ctx, assay_ranks *ranks, int from, bool wait, assay_rank_report **report,
                              size_t *size);
