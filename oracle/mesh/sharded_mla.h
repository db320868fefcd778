/* Multi-head latent attention with its heads over shards (MaxText configs/inference/vllm.yml: heads over ('model', 'expert'), where
 * the axis `expert` is tensor parallelism to attention; `model` is mlp_tensor here), forward and backward.
 *
 * The batch is split over data and fsdp. Of the P * N shards beside each other every one has the same tokens and H = heads / (P N)
 * heads, in the order of ('model', 'expert'): those from head (mlp_tensor P + expert) H. It projects, turns and attends with these
 * alone; what its rows of out/kernel give is a part of y, and the parts are added in ascending order (psum). Latents and their
 * norms are the same on all.
 *
 * Checkpoints: query_proj, key_proj, value_proj, attention_out [M,B/(data fsdp),S,H,...] and lse [M,B/(data fsdp),H,S] of each shard,
 * in the order of mesh.h; the latents, which have no heads, and out_proj, the sum, are of the whole batch as on one device.
 * Gradients are those of whole tensors: dx is summed over heads, those of weights over all shards that have the weight,
 * ascending. */
#ifndef ASSAY_MESH_SHARDED_MLA_H
#define ASSAY_MESH_SHARDED_MLA_H

#include "oracle/mesh/mesh.h"
#include "oracle/ops/mla.h"

bool assay_mla_is_sharded(const assay_mesh *mesh);
/* Refused: heads that expert times mlp_tensor does not divide, a batch that data times fsdp does not. */
assay_status assay_sharded_mla_check(assay_context *ctx, const assay_mla_config *config, const assay_mesh *mesh);
/* One shard's. */
assay_mla_config assay_mla_shard_config(const assay_mla_config *config, const assay_mesh *mesh);
/* Which of the parts of the heads a shard has, and which of the batch. */
int64_t assay_mla_head_part(const assay_mesh *mesh, int64_t shard);
int64_t assay_mla_batch_part(const assay_mesh *mesh, int64_t shard);

/* Whether a tensor of mla.h has an axis of heads, of which a shard has some. */
bool assay_mla_has_heads(const assay_tensor_row *row);

/* All of it: y [B,S,D] and, with `gradients`, those of dy, which are overwritten; checkpoints go to the sink. */
typedef struct assay_sharded_mla {
    const assay_mla_config *config;
    const assay_mesh *mesh;
    const assay_mla_inputs *in;
    const assay_mla_weights *w;
    double *y;
    const double *dy;
    const assay_mla_gradients *gradients; /* NULL: none */
    const assay_sink *out;
} assay_sharded_mla;
assay_status assay_sharded_mla_run(assay_context *ctx, const assay_sharded_mla *m);

#endif
