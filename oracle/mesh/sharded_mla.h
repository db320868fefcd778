/* Multi-head latent attention with its heads over shards (head_shards.h). Latents and their norms have no heads. */
#ifndef ASSAY_MESH_SHARDED_MLA_H
#define ASSAY_MESH_SHARDED_MLA_H

#include "oracle/mesh/head_shards.h"
#include "oracle/ops/mla.h"

/* Refused: what mla.h and head_shards.h refuse. */
assay_status assay_sharded_mla_check(assay_context *ctx, const assay_mla_config *config, const assay_mesh *mesh);
/* One shard's. */
assay_mla_config assay_mla_shard_config(const assay_mla_config *config, const assay_mesh *mesh);
/* Weights and gradients in the order of mla.h. */
assay_status assay_sharded_mla_run(assay_context *ctx, const assay_mla_config *config, const assay_head_run *m);

#endif
