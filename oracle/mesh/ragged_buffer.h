/* Rows of the buffer that a ragged all-to-all receives into (docs/expert-parallelism.md; MaxText moe.py get_ragged_buffer_size). */
#pragma once

#include <stdint.h>

/* `rows`: token copies on this shard. A factor above 0 gives int(rows * factor), which may drop tokens; otherwise the
 * worst case, int(rows * min(expert_shards, num_experts / num_experts_per_tok)). */
int64_t assay_ragged_buffer_rows(int64_t rows, int64_t expert_shards, int64_t num_experts, int64_t num_experts_per_tok,
                                 double ragged_buffer_factor);
