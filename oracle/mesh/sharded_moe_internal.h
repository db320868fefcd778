/* What the files of the sharded MoE block share; sharded_moe.h is the contract.
 *
 * A run (sharded_run.c): every shard routes its tokens (sharded_route.c); copies of them, and the cotangents of what
 * becomes of them, go to the shards of their experts (sharded_rows.c); the experts take these rows one expert after the
 * other, forward and backward (sharded_experts.c, sharded_mlp.c); outputs and gradients go back the way the rows came.
 * Then the router's backward and the shared expert (sharded_shared.c) join in.
 *
 * M shards, P of them on the expert axis, C chunks of the sequence, each of which is all of the above by itself. In
 * arrays of one chunk the shard comes first: [M,local shape]. Tt: tokens that a shard routes of a chunk. Sums over
 * shards run over chunks and within a chunk over shards, ascending. */
#ifndef ASSAY_MESH_SHARDED_MOE_INTERNAL_H
#define ASSAY_MESH_SHARDED_MOE_INTERNAL_H

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/mesh/collectives.h"
#include "oracle/mesh/shard_rows.h"
#include "oracle/mesh/sharded_moe.h"

/* One chunk of the sequence. */
typedef struct sharded_chunk {
    double *logits;               /* [M,Tt,E] */
    int32_t *input_ids;           /* [M,Tt] with hash routing */
    int32_t *given_experts;       /* [M,Tt,K] when the choice is given */
    assay_routing *routings;      /* [M] */
    double *gates;                /* llama4: [M,Tt], sigmoid(weight) */
    int32_t *order, *group_sizes; /* [M,copies], [M,E] of sorting them */
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

/* A gated MLP with its buffers: the routed experts in turn, or the shared one. NULL: not wanted. */
typedef struct sharded_mlp {
    assay_gated_mlp_config config; /* rows: at allocation the most, then those at hand */
    assay_mlp_place place;
    int64_t tensor_shards, emb_chunks; /* of the up products, at least 1 */
    assay_tensor_table table;
    double *weights[ASSAY_MLP_WEIGHTS];
    double *gradients[ASSAY_MLP_WEIGHTS]; /* sums over shards */
    double *partials[ASSAY_MLP_WEIGHTS];  /* of one shard */
    bool summing;                         /* gradients hold a sum already */
    assay_gated_mlp_residuals residuals;
    double *tensor_partial; /* like one branch, with tensor shards */
    double *weighted_h, *dh, *weighted_dy;
    bool given[ASSAY_MLP_CHECKPOINTS];   /* the source has it */
    double *kept[ASSAY_MLP_CHECKPOINTS]; /* whole, but for y, which its owner has */
} sharded_mlp;

/* Rows of one shard that go through a gated MLP together. */
typedef struct sharded_piece {
    int64_t first, count; /* first: where they lie in the checkpoints */
    const double *x;
    double *y;
    const double *dy;
    double *dx;            /* or NULL */
    const double *weights; /* of h, or NULL: 1 */
    double *d_weights;     /* or NULL */
} sharded_piece;

typedef struct sharded_run {
    const assay_moe_config *config;
    const assay_sharding *sharding;
    const assay_source *in;
    const assay_sink *out;
    assay_shard_sizes sizes;
    assay_routing_config routing; /* of a shard's tokens of one chunk */
    assay_permute_dims permute;   /* likewise */
    bool llama4;
    bool need_y, need_dx, need_router_gradient, need_row_dx, need_dy, need_experts, need_backward;

    double *x, *y, *dy, *dx; /* [B,S,D] */
    double *kernel, *bias, *per_expert_scale, *logits, *d_logits;
    int32_t *tid2eid, *input_ids, *given_experts;
    double *d_lb_loss; /* [M] */

    sharded_chunk *chunks; /* [C] */
    /* Scratch of one chunk: [M,Tt,D], [M,copies,D], and what a ragged all-to-all delivers, [M,buffer,D]. */
    double *routed, *sorted, *received;
} sharded_run;

/* sharded_results.c */
bool sharded_wants(const sharded_run *run, const char *path);
bool sharded_wants_gradient(const sharded_run *run, const char *path); /* of a tensor that is there */
/* Of the routed experts or the shared one. */
bool sharded_wants_any_gradient(const sharded_run *run, assay_mlp_place place);
bool sharded_wants_any_checkpoint(const sharded_run *run, assay_mlp_place place);
/* These write where it is wanted. */
assay_status sharded_write(assay_context *ctx, const sharded_run *run, const char *path, int64_t count,
                           const double *values);
assay_status sharded_write_gradient(assay_context *ctx, const sharded_run *run, const char *path, int64_t count,
                                    const double *values);
assay_status sharded_write_routing(assay_context *ctx, const sharded_run *run);

/* sharded_route.c, sharded_route_backward.c */
assay_status sharded_route(assay_context *ctx, sharded_run *run);
assay_routing_inputs sharded_routing_inputs(const sharded_run *run, const sharded_chunk *chunk, int64_t shard);
assay_status sharded_route_backward(assay_context *ctx, sharded_run *run);
void sharded_route_free(sharded_run *run);

/* sharded_traffic.c: once all shards have routed; P > 1 without the ring. */
assay_status sharded_plan_traffic(assay_context *ctx, sharded_run *run, sharded_chunk *chunk);

/* sharded_rows.c. Whole tensors are [B,S,width], routed ones [M,Tt,width]: what each shard routes of chunk c. */
assay_status sharded_spread(assay_context *ctx, const sharded_run *run, int64_t c, int64_t width, double *routed,
                            const double *whole);
assay_status sharded_spread_i32(assay_context *ctx, const sharded_run *run, int64_t c, int64_t width, int32_t *routed,
                                const int32_t *whole);
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

/* sharded_mlp.c, sharded_mlp_run.c */
assay_status sharded_mlp_alloc(assay_context *ctx, sharded_mlp *mlp, const sharded_run *run, int64_t checkpoint_rows);
void sharded_mlp_free(sharded_mlp *mlp);
/* What was kept of `rows` rows. */
assay_status sharded_write_kept(assay_context *ctx, const sharded_mlp *mlp, const sharded_run *run, int64_t rows);
assay_status sharded_mlp_read(assay_context *ctx, sharded_mlp *mlp, const assay_source *in, int64_t expert);
assay_status sharded_mlp_forward(assay_context *ctx, sharded_mlp *mlp, const assay_source *in,
                                 const sharded_piece *piece);
assay_status sharded_mlp_backward(assay_context *ctx, sharded_mlp *mlp, const sharded_piece *piece);
/* The gradients of this expert's weights: 0 when no shard had a row. */
assay_status sharded_mlp_write(assay_context *ctx, sharded_mlp *mlp, const sharded_run *run);
/* total += term, both of which may be stored before. */
void sharded_add(const assay_context *ctx, int64_t count, double *total, double *term);

assay_status sharded_experts_run(assay_context *ctx, sharded_run *run);
assay_status sharded_shared_run(assay_context *ctx, sharded_run *run);

#endif
