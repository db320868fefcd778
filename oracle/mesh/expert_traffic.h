/* What expert parallelism sends and how a shard sorts what it gets (docs/expert-parallelism.md; MaxText moe.py get_all_to_all_params,
 * _truncate_matrix, local_permute, _maybe_truncate_local_group_size). P: shards of the expert axis.
 *
 * The batch split over the expert axis: all_shards_group_sizes [P,P], element (i,j) the rows that shard i sends to
 * shard j. Not split (every shard has all tokens): reshaped_group_sizes [P], the rows of each shard's experts. With
 * buffer_rows >= 0 (ragged_buffer_factor above 0) what a shard cannot hold is dropped: the last senders' rows first. */
#pragma once

#include "oracle/base/status.h"

/* truncated [P,P]: columns cut where their running sum exceeds buffer_rows. */
void assay_truncate_traffic(int32_t *truncated, const int32_t *all_shards_group_sizes, int64_t shards,
                            int64_t buffer_rows);

typedef enum assay_traffic_direction { ASSAY_DISPATCH, ASSAY_COMBINE } assay_traffic_direction;

typedef struct assay_traffic {
    const int32_t *sizes;  /* [P,P], or [P] when the batch is not split */
    int64_t expert_shards; /* P */
    bool batch_sharded;
    int64_t buffer_rows; /* -1: nothing is cut */
    assay_traffic_direction direction;
} assay_traffic;

/* The four rows [P] of one shard, as assay_ragged_params has them. With truncation a dispatch reads from the
 * untruncated places, and a combine writes to them. `truncated` [P,P] is scratch, used with buffer_rows >= 0. */
void assay_all_to_all_params(int32_t *input_offsets, int32_t *send_sizes, int32_t *output_offsets, int32_t *recv_sizes,
                             int64_t shard, const assay_traffic *traffic, int32_t *truncated);

typedef struct assay_local_permute_args {
    const int32_t *global_group_sizes; /* [senders, num_experts] */
    int64_t senders, num_experts, local_experts;
    int64_t shard; /* of the expert axis */
    int64_t rows;  /* of the buffer */
    /* NULL: rows come from the senders in turn, each sorted by expert. Else (the batch is not split): the expert of
     * each row, ascending, and only the rows of this shard's experts count. */
    const int32_t *sorted_experts; /* [rows] */
    bool truncate;                 /* ragged_buffer_factor > 0: sizes are cut at `rows` */
} assay_local_permute_args;

/* local_sorted_indices [rows]: stable argsort by local expert, rows that are no token's last, ascending;
 * local_group_sizes [local_experts]; sorted_expert_ids [rows]: local ids (padding: the last expert's id, or
 * local_experts where sorted_experts is given), may be NULL. */
assay_status assay_local_permute(assay_context *ctx, int32_t *local_sorted_indices, int32_t *local_group_sizes,
                                 int32_t *sorted_expert_ids, const assay_local_permute_args *args);
