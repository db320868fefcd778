/* An attention layer with its heads over shards (MaxText configs/inference/vllm.yml: heads over ('model', 'expert'), where the
 * axis `expert` is tensor parallelism to attention; `model` is mlp_tensor here), forward and backward.
 *
 * The batch is split over data and fsdp. Of the P N shards beside each other every one has the same tokens and 1 / (P N) of the
 * heads, in the order of ('model', 'expert'): part mlp_tensor P + expert of them, and of the heads of keys where those are fewer.
 * It projects, turns and attends with these alone; what its rows of out/kernel give is a part of y, and the parts are added in
 * ascending order (psum). What has no heads is the same on all.
 *
 * Checkpoints: of what has heads [M, ...] each shard's own, at its batch and heads, in the order of mesh.h; the rest, and the sum
 * out_proj, are of the whole batch as on one device. Gradients are those of whole tensors: that of what has no heads is the sum over
 * the shards that read it, ascending, where they read it; those of weights are sums over the batch's shards. */
#pragma once

#include "oracle/graph/graph.h"
#include "oracle/mesh/mesh.h"

/* Shards that heads are split over. */
int64_t assay_head_shards(const assay_mesh *mesh);
/* Whether a tensor has an axis of heads: N, g (of keys and values), or a (N, then g twice). */
bool assay_row_has_heads(const assay_tensor_row *row);
/* A checkpoint [B,..] with heads as the shards have it: [M,..], each at its batch and heads. */
assay_tensor_row assay_head_row(const assay_mesh *mesh, assay_tensor_row row);

/* Of the whole layer: sums over heads are those of the parts, sums over tokens those of the batch's shards. */
void assay_head_shards_by_shard(graph *whole, const assay_mesh *mesh);

/* Checkpoints of the whole layer, as the shards have them: a source and a sink of its run, before others. */
typedef struct assay_head_layout {
    assay_wrapped wrapped;
    const assay_mesh *mesh;
    const graph *whole;
} assay_head_layout;
assay_source assay_head_layout_source(assay_head_layout *layout);
assay_sink assay_head_layout_sink(assay_head_layout *layout);

/* `name` is what refuses: heads of queries and of keys that expert times mlp_tensor does not divide, a batch that data times fsdp
 * does not. */
assay_status assay_head_shards_check(assay_context *ctx, const char *name, const assay_mesh *mesh, int64_t heads,
                                     int64_t kv_heads, int64_t batch);
