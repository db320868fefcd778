/* Operations that are graphs (oracle/graph): what a row has besides its graph. */
#pragma once

#include "harness/operations/op_support.h"

/* All tensors of any operation, before types, formats and sketches of the case. */
assay_status assay_operation_describe(assay_context *ctx, const assay_operation *operation, const assay_case *c,
                                      const void *config, assay_tensor_list *list);
void assay_block_describe(assay_describer *d, const assay_operation *operation);
assay_status assay_block_run(assay_context *ctx, const assay_operation *operation, const assay_case *c,
                             const void *config, const assay_source *in, const assay_sink *out);
/* Where x of padding may hold NaN nothing that a token of padding gives is judged: marks it, and says which tokens are judged. */
void assay_mark_unused_tokens(assay_describer *d);
assay_status assay_block_used_rows(assay_context *ctx, const assay_case *c, const assay_tensor_entry *of,
                                   const assay_source *in, bool **used);
/* checkpoints/LAYER name of a graph's, and of the gradients that it quantises; by_heads: of what has heads each shard has its own. */
void assay_describe_graph_checkpoints(assay_describer *d, const graph *g, bool by_heads);
double assay_block_flops(const assay_operation *operation, const void *config, bool backward);
int64_t assay_block_memory(const assay_operation *operation, const assay_case *c, const void *config);
