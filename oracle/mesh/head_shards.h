/* An attention layer with its heads over shards (MaxText configs/inference/vllm.yml: heads over ('model', 'expert'), where the
 * axis `expert` is tensor parallelism to attention; `model` is mlp_tensor here), forward and backward.
 *
 * The batch is split over data and fsdp. Of the P N shards beside each other every one has the same tokens and 1 / (P N) of the
 * heads, in the order of ('model', 'expert'): part mlp_tensor P + expert of them, and of the heads of keys where those are fewer.
 * It projects, turns and attends with these alone; what its rows of out/kernel give is a part of y, and the parts are added in
 * ascending order (psum). What has no heads is the same on all.
 *
 * Checkpoints: of what has heads [M, ...] each shard's own, at its batch and heads, in the order of mesh.h; the rest, and the sum
 * out_proj, are of the whole batch as on one device. Gradients are those of whole tensors: dx is summed over heads, those of
 * weights over all shards that have the weight, ascending. */
#ifndef ASSAY_MESH_HEAD_SHARDS_H
#define ASSAY_MESH_HEAD_SHARDS_H

#include "oracle/base/tensor_table.h"
#include "oracle/mesh/mesh.h"

/* Shards that heads are split over, and rows of the batch; which part of either a shard has. */
int64_t assay_head_shards(const assay_mesh *mesh);
int64_t assay_head_batch_shards(const assay_mesh *mesh);
int64_t assay_head_part(const assay_mesh *mesh, int64_t shard);
int64_t assay_head_batch_part(const assay_mesh *mesh, int64_t shard);
/* Whether a tensor has an axis of heads: N, g (of keys and values), or a (N, then g twice). */
bool assay_row_has_heads(const assay_tensor_row *row);

/* `name` is what refuses: heads of queries and of keys that expert times mlp_tensor does not divide, a batch that data times fsdp
 * does not. */
assay_status assay_head_shards_check(assay_context *ctx, const char *name, const assay_mesh *mesh, int64_t heads,
                                     int64_t kv_heads, int64_t batch);

typedef struct assay_head_inputs {
    const double *x;            /* [B,S,D] */
    const int32_t *positions;   /* [B,S] */
    const int32_t *segment_ids; /* [B,S] or NULL */
} assay_head_inputs;

/* The layer at the sizes of one shard. `self` keeps what it computes until it is dropped. */
typedef struct assay_head_layer {
    void *self;
    int64_t heads, kv_heads;       /* of the whole layer */
    int64_t tokens, emb_dim;       /* of a shard */
    assay_tensor_table whole, own; /* of weights: of the layer, of a shard */
    int tensors, out_proj;         /* out_proj is one of them; the row of lse comes after the last */
    int once;                      /* the weight that the first part alone adds (a bias of out); -1: none */
    assay_tensor_row (*row)(const void *self, int i); /* of a shard */
    assay_status (*compute)(assay_context *ctx, void *self, int i, const assay_head_inputs *in, const double *const *w);
    const double *(*value)(const void *self, int i);
    assay_status (*backward)(assay_context *ctx, void *self, double *dx, double *const *gradients, const double *dy,
                             const assay_head_inputs *in, const double *const *w);
    void (*drop)(void *self);
} assay_head_layer;

/* Whole tensors. y [B,S,D] is written, and dx and gradients, where they are not NULL; dy NULL: no backward. */
typedef struct assay_head_run {
    const assay_mesh *mesh;
    assay_head_inputs in;
    const double *const *w;
    double *y, *dx;
    double *const *gradients;
    const double *dy;
    const assay_sink *out; /* checkpoints */
} assay_head_run;
assay_status assay_head_shards_run(assay_context *ctx, const assay_head_layer *layer, const assay_head_run *m);

#endif
