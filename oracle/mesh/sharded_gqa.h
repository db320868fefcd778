/* Grouped-query attention with its heads over shards (head_shards.h): every shard has the same share of the heads of queries and of
 * those of keys and values, with the sinks of its queries; of qkv_proj the columns of its queries, its keys, its values, side by
 * side. Norms of query and key are the same on all. The bias of out comes once, with the first part. */
#ifndef ASSAY_MESH_SHARDED_GQA_H
#define ASSAY_MESH_SHARDED_GQA_H

#include "oracle/mesh/head_shards.h"
#include "oracle/ops/gqa.h"

/* Refused: what gqa.h and head_shards.h refuse. */
assay_status assay_sharded_gqa_check(assay_context *ctx, const assay_gqa_config *config, const assay_mesh *mesh);
/* One shard's. */
assay_gqa_config assay_gqa_shard_config(const assay_gqa_config *config, const assay_mesh *mesh);
/* Weights and gradients in the order of gqa.h. */
assay_status assay_sharded_gqa_run(assay_context *ctx, const assay_gqa_config *config, const assay_head_run *m);

#endif
