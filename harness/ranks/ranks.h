/* Several processes that share the work of one command: oracle/base/ranks.h, by messages (docs/large.md).
 *
 * A session is one evaluation that all ranks do together, or one list of cases of which each is done by one of them. In it
 * every rank runs the same code. The first rank hands out pieces as ranks become free, takes what they give in order, and
 * ends the session; where it fails the others are told, wherever they wait. A thread of it answers them meanwhile. */
#pragma once

#include "harness/ranks/transport.h"
#include "oracle/base/ranks.h"

typedef struct assay_rank_group assay_rank_group;

/* The transport is the group's from here on; where it fails, the caller is to abort. */
assay_status assay_rank_group_open(assay_context *ctx, const assay_transport *transport, assay_rank_group **group);
/* After all sessions, on every rank, whatever became of the command there. NULL is nothing. */
void assay_rank_group_close(assay_rank_group *group, assay_status status, const char *message);

/* What ctx->ranks is to be: NULL where there is no group. */
assay_ranks *assay_rank_group_ranks(assay_rank_group *group);

/* On every rank: the session is over, with what became of its part. NULL is nothing. */
void assay_ranks_end_session(assay_ranks *ranks, assay_status status, const char *message);

/* The ranks of a broadcast are a binomial tree: rank r has it from r less its lowest bit (rank 0: the first power of two that is
 * no rank), and passes it on to its children; -1: there are no more. */
int64_t assay_ranks_lowest_bit(int64_t rank, int64_t size);
int64_t assay_ranks_child(int64_t rank, int64_t size, int index);
