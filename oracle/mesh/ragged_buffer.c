#include "oracle/mesh/ragged_buffer.h"

#include <math.h>

int64_t assay_ragged_buffer_rows(int64_t rows, int64_t expert_shards, int64_t num_experts, int64_t num_experts_per_tok,
                                 double ragged_buffer_factor)
{
    double spread = (double)num_experts / (double)num_experts_per_tok;
    double factor = ragged_buffer_factor > 0.0 ? ragged_buffer_factor : fmin((double)expert_shards, spread);
    return (int64_t)((double)rows * factor);
}
