/* Large gradients that a golden holds as digests (`digest_above` of a case): digest/<path of the gradient>, int32 [blocks,8],
 * eight words of SHA-256 for each block (fixtures/block_digest.h). A block is an expert of a tensor with an
 * axis of them, else the whole tensor. Weights that are larger are in no golden: the seed draws them. */
#ifndef ASSAY_HARNESS_PLAN_DIGESTS_H
#define ASSAY_HARNESS_PLAN_DIGESTS_H

#include "fixtures/block_digest.h"
#include "harness/plan/plan.h"

/* A gradient that is being digested. */
typedef struct assay_digested {
    char path[ASSAY_PATH_SIZE], digest_path[ASSAY_PATH_SIZE];
    assay_shape block;
    int64_t count, filled; /* elements of a block, and in the buffer */
    double *buffer;        /* of a block that comes in pieces; else NULL */
} assay_digested;

/* A sink before another: the numbers of gradients of which that one wants digests alone become digests, everything else
 * passes. One block of a tensor is in memory at a time, and none where the writer has it whole. */
typedef struct assay_digest_sink {
    assay_sink to;
    assay_digested *items;
    int count;
    /* Of the last block that was all zeros. */
    assay_shape zeros;
    int32_t zeros_words[ASSAY_DIGEST_WORDS];
} assay_digest_sink;

/* How many blocks a gradient has. */
int64_t assay_digest_blocks(const assay_tensor_spec *of);
/* Of a gradient: digest/<its path>, cut where it is too long. */
void assay_digest_path(const char *of, char path[ASSAY_PATH_SIZE]);

/* Those of the plan. */
assay_status assay_digest_sink_open(assay_context *ctx, assay_digest_sink *sink, const assay_plan *plan, assay_sink to);
assay_sink assay_digest_sink_view(assay_digest_sink *sink);
void assay_digest_sink_close(assay_digest_sink *sink); /* safe on a zeroed struct */

#endif
