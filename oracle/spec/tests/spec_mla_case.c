#include "oracle/spec/tests/spec_mla_case.h"

#include "oracle/arithmetic/arithmetic.h"

void mla_case_start(spec_case *c, uint64_t seed)
{
    case_start(c, seed);
    c->ctx = assay_context_default(1);
}

assay_rope_config deepseek3_rope(int64_t dim)
{
    return (assay_rope_config){.dim = dim,
                               .yarn = true,
                               .rope_max_timescale = 10000,
                               .rope_factor = 40,
                               .beta_fast = 32,
                               .beta_slow = 1,
                               .max_position_embeddings = 163840,
                               .original_max_position_embeddings = 4096,
                               .interleave = true,
                               .truncate = true};
}

enum { LONGEST = 17 };

static const int32_t segments[][LONGEST] = {
    [ALL_PADDING] = {0},
    [PADDED_TAIL] = {1, 1, 1, 2, 2, 2, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0},
    [SCATTERED] = {0, 5, 5, 0, 1, 1, 5, 7, 7, 1, 0, 5, 7, 2, 2, 2, 0},
};

const int32_t *case_segments(spec_case *c, segment_kind kind, int64_t batch, int64_t sequence)
{
    int32_t ids[4 * LONGEST];
    if (kind == NO_SEGMENTS) return NULL;
    assert_true(batch <= 4 && sequence <= LONGEST);
    for (int64_t i = 0; i < batch * sequence; i++) ids[i] = segments[kind][i % sequence];
    return case_indices(c, "inputs/segment_ids", ids, DIMS(batch, sequence));
}
