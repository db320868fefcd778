#include "oracle/ops/tests/mla_problem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const int32_t TWO_SEGMENTS[] = {1, 1, 2, 0, 2, 1, 2,  /* not adjacent */
                                       0, 3, 3, 3, 0, 0, 0}; /* padding before and after */

/* Epsilon is large enough to be seen when it is in the wrong place. In the order of mla.h: B S D heads Dn Dv Lq Lkv,
 * epsilon, mscale, rope, mask_padding; rope in the order of yarn_rope.h: Dr yarn, timescale factor fast slow, positions now
 * and originally, interleave truncate attention_scaling pairwise. */
const mla_sample mla_samples[] = {
    {"DeepSeek's form: compressed query, YaRN beyond the original length",
     {2, 5, 7, 3, 5, 3, 3, 5, 1e-3, 0.7, {4, true, 10000, 40, 32, 1, 160, 64, true, true, false, false}, true, {0}},
     NULL},
    {"no query compression, pairwise layout, ramp not truncated, attention scaling",
     {1, 6, 5, 2, 2, 5, 0, 3, 1e-3, 1, {6, true, 500, 4, 8, 1, 400, 100, true, false, true, true}, true, {0}},
     NULL},
    {"plain rotation, half-split, no mscale",
     {1, 7, 3, 2, 3, 2, 5, 2, 1e-3, 2, {4, false, 100, 40, 0, 0, 160, 160, false, false, false, false}, true, {0}},
     NULL},
    {"one of everything",
     {1, 1, 1, 1, 1, 1, 1, 1, 0.5, 1, {2, false, 100, 1, 0, 0, 160, 160, false, false, false, false}, true, {0}},
     NULL},
    {"segments with padding",
     {2, 7, 3, 2, 2, 3, 2, 3, 1e-3, 1, {2, true, 10000, 40, 32, 1, 160, 64, true, true, false, true}, true, {0}},
     TWO_SEGMENTS},
    {"segment 0 is one like the others",
     {2, 7, 3, 1, 1, 2, 0, 2, 1e-3, 1, {2, false, 100, 1, 0, 0, 160, 160, true, false, false, false}, false, {0}},
     TWO_SEGMENTS},
    {.name = NULL},
};

void mla_problem_make(mla_problem *p, const assay_mla_config *config, const int32_t *segment_ids)
{
    uint64_t seed = 7;
    *p = (mla_problem){.config = *config, .tokens = config->batch * config->sequence};
    const size_t bytes = (size_t)p->tokens * sizeof *p->positions;
    const assay_tensor_table weights = assay_mla_weight_table(config);
    p->sizes[MLA_X] = p->tokens * config->emb_dim;
    for (int i = 0; i < ASSAY_MLA_WEIGHTS; i++) p->sizes[MLA_WQ_A + i] = assay_tensor_row_count(&weights.rows[i]);
    for (int i = 0; i < MLA_VARIABLES; i++) {
        if (p->sizes[i] == 0) continue;
        p->values[i] = test_normals(&seed, 0.7, ASSAY_FLOAT64, p->sizes[i]);
        p->gradients[i] = test_nans(p->sizes[i]);
    }
    p->dy = test_normals(&seed, 1, ASSAY_FLOAT64, p->sizes[MLA_X]);
    p->positions = malloc(bytes);
    assert_non_null(p->positions);
    for (int64_t t = 0; t < p->tokens; t++) p->positions[t] = (int32_t)(5 + 11 * t) % 160;
    if (segment_ids == NULL) return;
    p->segment_ids = malloc(bytes);
    assert_non_null(p->segment_ids);
    memcpy(p->segment_ids, segment_ids, bytes);
}

void mla_problem_free(mla_problem *p)
{
    for (int i = 0; i < MLA_VARIABLES; i++) {
        free(p->values[i]);
        free(p->gradients[i]);
    }
    free(p->positions);
    free(p->segment_ids);
    free(p->dy);
    assay_mla_residuals_free(&p->r);
}

assay_mla_inputs mla_problem_inputs(const mla_problem *p)
{
    return (assay_mla_inputs){.x = p->values[MLA_X], .positions = p->positions, .segment_ids = p->segment_ids};
}

assay_mla_weights mla_problem_weights(const mla_problem *p)
{
    return assay_mla_weights_of(p->values + MLA_WQ_A);
}

assay_mla_gradients mla_problem_gradients(const mla_problem *p)
{
    return assay_mla_gradients_of(p->gradients[MLA_X], p->gradients + MLA_WQ_A);
}

assay_status mla_problem_forward(assay_context *ctx, mla_problem *p)
{
    assay_status status = ASSAY_OK;
    const assay_mla_inputs in = mla_problem_inputs(p);
    const assay_mla_weights w = mla_problem_weights(p);
    for (int tensor = 0; tensor < ASSAY_MLA_TENSORS; tensor++)
        TRY(assay_mla_compute(ctx, &p->r, (assay_mla_tensor)tensor, &in, &w, &p->config));
cleanup:
    return status;
}

assay_status mla_problem_backward(assay_context *ctx, mla_problem *p)
{
    const assay_mla_inputs in = mla_problem_inputs(p);
    const assay_mla_weights w = mla_problem_weights(p);
    const assay_mla_gradients g = mla_problem_gradients(p);
    for (int i = 0; i < MLA_VARIABLES; i++) {
        if (p->gradients[i] != NULL) assay_fill_nan(p->gradients[i], p->sizes[i]);
    }
    return assay_mla_backward(ctx, &g, p->dy, &p->r, &in, &w, &p->config);
}

void mla_problem_run(assay_context *ctx, mla_problem *p)
{
    assay_mla_residuals_free(&p->r);
    assert_ok(ctx, mla_problem_forward(ctx, p));
    assert_ok(ctx, mla_problem_backward(ctx, p));
}
