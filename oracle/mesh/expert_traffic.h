/* What a shard of the expert axis receives and how it sorts that, as lists of whole numbers (docs/expert-parallelism.md; MaxText moe.py
 * get_all_to_all_params, _truncate_matrix, local_permute, _maybe_truncate_local_group_size).
 *
 * Every sender has its rows sorted by expert, and group_sizes [senders,num_experts] says how many of each; a shard has
 * local_experts of these, shard after shard. With the batch split over the axis a shard gets from every sender in turn the rows
 * of its own experts, as far as its buffer has room: with ragged_buffer_factor above 0 what it cannot hold is dropped, the last
 * senders' rows first. Else there is one sender, which has all rows: the shard's own are taken, and others stay where they are. */
#pragma once

#include "oracle/base/status.h"

typedef struct assay_local_permute_args {
    const int32_t *group_sizes;
    int64_t senders, num_experts, local_experts;
    int64_t shard;      /* of the expert axis */
    int64_t rows;       /* of the buffer */
    bool batch_sharded; /* false: senders is 1 */
    bool truncate;      /* false: more than `rows` is refused */
} assay_local_permute_args;

/* local_sorted_indices [rows]: stable argsort by local expert of the rows as they come, those that are no token's last, ascending;
 * local_group_sizes [local_experts]. received [rows,2]: of each row as it comes its sender and its place among the sender's
 * rows; -1: it is none of an expert of this shard. */
assay_status assay_local_permute(assay_context *ctx, int32_t *local_sorted_indices, int32_t *local_group_sizes,
                                 int32_t (*received)[2], const assay_local_permute_args *args);
