/* What N ranks would do, send and hold of a case that they do together (docs/large.md), on paper. */
#pragma once

#include "harness/plan/plan.h"

/* What ranks share of runs, then what they share besides. */
enum { ASSAY_LOOP_MEMBERS = ASSAY_SHARES, ASSAY_LOOPS };

typedef struct assay_shared_work {
    double least;                        /* of the ranks */
    double operations, drawn;            /* of one process: of all loops, and of what every rank does */
    double stored;                       /* bytes of what is given that the first rank draws for the file */
    double written;                      /* bytes of the file */
    double memory;                       /* of one process */
    assay_ranks_loop loops[ASSAY_LOOPS]; /* the pieces of a loop are of one size here */
} assay_shared_work;

extern const char *const assay_loop_names[ASSAY_LOOPS];

/* Operations are without those of error scales that are propagated; bytes drawn are those of float64. least: of the ranks
 * (oracle/base/ranks.h). */
assay_shared_work assay_shared_work_of(const assay_plan *plan, double least);

typedef enum assay_rank_quantity {
    ASSAY_RANK_OPERATIONS,
    ASSAY_RANK_DRAWN,
    ASSAY_RANK_SENT,
    ASSAY_RANK_RECEIVED,
    ASSAY_RANK_WRITTEN,
    ASSAY_RANK_MEMORY,
    ASSAY_RANK_QUANTITIES
} assay_rank_quantity;

extern const char *const assay_rank_quantity_names[ASSAY_RANK_QUANTITIES];

/* Of the rank that has most of it, where pieces are dealt out evenly, and of all. one: of one process. */
typedef struct assay_rank_cost {
    double most, sum, one;
} assay_rank_cost;

void assay_rank_costs(const assay_shared_work *work, int64_t ranks, assay_rank_cost costs[ASSAY_RANK_QUANTITIES]);
