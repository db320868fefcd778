/* What the files of the sharded MoE block share; sharded_moe.h is the contract.
 *
 * It is the block of oracle/moe with a placement of its own (moe_block.h): every shard routes its tokens (sharded_route.c);
 * copies of them, and the cotangents of what becomes of them, go to the shards of their experts (sharded_run.c,
 * sharded_rows.c), where an expert finds them as one piece for each chunk and shard; outputs and gradients go back the way
 * the rows came.
 *
 * M shards, P of them on the expert axis, C chunks of the sequence, each of which is all of the above by itself. In
 * arrays of one chunk the shard comes first: [M,local shape]. The shards of the axis mlp_tensor, which differ in their columns
 * of H alone, are one here: how their parts add up is the gated MLP's business. Tt: tokens that a shard routes of a chunk. Sums over
 * shards run over chunks and within a chunk over shards, ascending. */
#pragma once

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/mesh/collectives.h"
#include "oracle/mesh/shard_rows.h"
#include "oracle/mesh/sharded_moe.h"
#include "oracle/moe/moe_block.h"

/* One chunk of the sequence. */
typedef struct sharded_chunk {
    double *logits;          /* [M,Tt,E] */
    int32_t *input_ids;      /* [M,Tt] with hash routing */
    int32_t *given_experts;  /* [M,Tt,K] when the choice is given */
    double *given_weights;   /* likewise; then there are no logits */
    assay_routing *routings; /* [M] */
    /* What copies are sorted by, where that is not their expert: his number here, or a replica's [M,copies]; and the choices
     * of each expert [M,E]. */
    int32_t *placed, *choice_sizes;
    double *gates;                /* llama4: [M,Tt], sigmoid(weight) */
    int32_t *order, *group_sizes; /* [M,copies], [M,groups] of sorting them */
    int32_t *local_group_sizes;   /* [M,E/P] */
    /* RouteMetadata: P > 1 without the ring, the last where the batch is split. */
    int32_t *local_sorted_indices;   /* [M,buffer] */
    int32_t *reshaped_group_sizes;   /* [M,P] */
    int32_t *all_shards_group_sizes; /* [M,P,P] */
    assay_ragged_params dispatch, combine;
    /* Rows in the order of a shard's experts, [M,buffer,D]. Beyond them y and dx are 0, and x and dy nobody's. */
    double *rows_x, *rows_y, *rows_dy, *rows_dx;
    double *row_weights, *row_d_weights; /* weight_before_wo: [M,buffer] */
    double *d_weights;                   /* [M,Tt,K] */
} sharded_chunk;

typedef struct sharded_run {
    moe_block *block;
    const assay_sharding *sharding;
    assay_mesh mesh; /* of the shards that tokens lie on: without mlp_tensor */
    assay_shard_sizes sizes;
    assay_routing_config routing;   /* of a shard's tokens of one chunk */
    assay_permute_dims permute;     /* likewise; its experts are the groups that copies are sorted by */
    const assay_replicas *replicas; /* of experts; NULL: there are none */

    sharded_chunk *chunks; /* [C] */
    /* Scratch of one chunk: [M,Tt,D], [M,copies,D], and what a ragged all-to-all delivers, [M,buffer,D]. */
    double *routed, *sorted, *received;
} sharded_run;

/* sharded_run.c: with whole kernels; the configuration was checked. */
assay_status sharded_run_whole(assay_context *ctx, const assay_moe_config *config, const assay_sharding *sharding,
                               const assay_source *in, const assay_sink *out);

/* sharded_results.c */
assay_status sharded_write_routing(assay_context *ctx, const sharded_run *run);

/* sharded_route.c, sharded_route_backward.c */
assay_status sharded_route(assay_context *ctx, sharded_run *run);
/* [copies] of a shard. */
const int32_t *sharded_groups(const sharded_run *run, const sharded_chunk *chunk, int64_t shard);
assay_routing_inputs sharded_routing_inputs(const sharded_run *run, const sharded_chunk *chunk, int64_t shard);
assay_status sharded_route_backward(assay_context *ctx, moe_block *block, double *d_bias, double *d_scale);
assay_status sharded_given_backward(assay_context *ctx, moe_block *block, double *d_weights);
void sharded_route_free(sharded_run *run);

/* sharded_traffic.c: once all shards have routed; P > 1 without the ring. */
assay_status sharded_plan_traffic(assay_context *ctx, sharded_run *run, sharded_chunk *chunk);

/* sharded_rows.c. Whole tensors are [B,S,width], routed ones [M,Tt,width]: what each shard routes of chunk c; `bytes` of a
 * token. */
void sharded_spread(const sharded_run *run, int64_t c, size_t bytes, void *routed, const void *whole);
/* Its transpose; what is summed over shards may be stored before, so `routed` is rounded. */
assay_status sharded_collect(assay_context *ctx, const sharded_run *run, int64_t c, int64_t width,
                             assay_rounding rounding, double *whole, double *routed);
/* sorted [M,copies,width] to rows [M,buffer,width] and back. */
assay_status sharded_dispatch(assay_context *ctx, const sharded_run *run, const sharded_chunk *chunk, int64_t width,
                              double *rows, const double *sorted);
assay_status sharded_dispatch_transpose(assay_context *ctx, const sharded_run *run, const sharded_chunk *chunk,
                                        int64_t width, double *sorted, const double *rows);
assay_status sharded_combine(assay_context *ctx, const sharded_run *run, const sharded_chunk *chunk, int64_t width,
                             double *sorted, const double *rows);
assay_status sharded_combine_transpose(assay_context *ctx, const sharded_run *run, const sharded_chunk *chunk,
                                       int64_t width, double *rows, const double *sorted);

/* sharded_experts.c; the placement's own, but for sharded_alloc_rows, which sends nothing. */
/* The group of a shard's first expert among those that it sorts: 0 where its own come first. */
int64_t sharded_first_group(const sharded_run *run, int64_t shard);
int64_t sharded_row_count(const moe_block *block, int64_t expert, int64_t piece);
void sharded_gather_rows(assay_context *ctx, moe_block *block, int64_t expert, int64_t piece);
assay_status sharded_alloc_rows(assay_context *ctx, sharded_run *run);
void sharded_free_rows(moe_block *block);
