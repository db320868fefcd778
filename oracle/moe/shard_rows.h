/* Rows of all shards at once: copies of tokens sorted by expert and back (docs/expert-parallelism.md). M shards; dims are those of one
 * shard, R = T*K its copies. With dims of K = 1 a copy is a row of its own. */
#pragma once

#include "oracle/moe/permute.h"

/* The ring's numbering, by which a shard's own experts come first: (id - first) mod experts. */
void assay_roll_experts(int32_t *rolled, const int32_t *selected_experts, int64_t count, int64_t first,
                        int64_t experts);

/* sorted [M,R,D] from rows [M,T,D] by order [M,R]. */
void assay_sort_rows(double *sorted, const double *rows, const int32_t *order, int64_t shards,
                     const assay_permute_dims *dims);
/* Its transpose: each row is the sum over K ascending of its copies. */
assay_status assay_unsort_rows(assay_context *ctx, double *rows, const double *sorted, const int32_t *order,
                               int64_t shards, const assay_permute_dims *dims);
