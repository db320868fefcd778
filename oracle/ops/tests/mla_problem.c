#include "oracle/ops/tests/mla_problem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const int32_t TWO_SEGMENTS[] = {1, 1, 2, 0, 2, 1, 2,  /* not adjacent */
                                       0, 3, 3, 3, 0, 0, 0}; /* padding before and after */

/* Epsilon is large enough to be seen when it is in the wrong place. */
const mla_sample mla_samples[] = {
    {.name = "DeepSeek's form: compressed query, YaRN beyond the original length",
     .config = {.batch = 2,
                .sequence = 5,
                .emb_dim = 7,
                .heads = 3,
                .qk_nope_head_dim = 5,
                .v_head_dim = 3,
                .q_lora_rank = 3,
                .kv_lora_rank = 5,
                .epsilon = 1e-3,
                .mscale = 0.7,
                .mask_padding = true,
                .rope = {.dim = 4,
                         .yarn = true,
                         .rope_max_timescale = 10000,
                         .rope_factor = 40,
                         .beta_fast = 32,
                         .beta_slow = 1,
                         .max_position_embeddings = 160,
                         .original_max_position_embeddings = 64,
                         .interleave = true,
                         .truncate = true}}},
    {.name = "no query compression, pairwise layout, ramp not truncated, attention scaling",
     .config = {.batch = 1,
                .sequence = 6,
                .emb_dim = 5,
                .heads = 2,
                .qk_nope_head_dim = 2,
                .v_head_dim = 5,
                .q_lora_rank = 0,
                .kv_lora_rank = 3,
                .epsilon = 1e-3,
                .mscale = 1,
                .mask_padding = true,
                .rope = {.dim = 6,
                         .yarn = true,
                         .rope_max_timescale = 500,
                         .rope_factor = 4,
                         .beta_fast = 8,
                         .beta_slow = 1,
                         .max_position_embeddings = 400,
                         .original_max_position_embeddings = 100,
                         .interleave = true,
                         .attention_scaling = true,
                         .pairwise = true}}},
    {.name = "plain rotation, half-split, no mscale",
     .config = {.batch = 1,
                .sequence = 7,
                .emb_dim = 3,
                .heads = 2,
                .qk_nope_head_dim = 3,
                .v_head_dim = 2,
                .q_lora_rank = 5,
                .kv_lora_rank = 2,
                .epsilon = 1e-3,
                .mscale = 2,
                .mask_padding = true,
                .rope = {.dim = 4,
                         .rope_max_timescale = 100,
                         .rope_factor = 40,
                         .max_position_embeddings = 160,
                         .original_max_position_embeddings = 160}}},
    {.name = "one of everything",
     .config = {.batch = 1,
                .sequence = 1,
                .emb_dim = 1,
                .heads = 1,
                .qk_nope_head_dim = 1,
                .v_head_dim = 1,
                .q_lora_rank = 1,
                .kv_lora_rank = 1,
                .epsilon = 0.5,
                .mscale = 1,
                .mask_padding = true,
                .rope = {.dim = 2,
                         .rope_max_timescale = 100,
                         .rope_factor = 1,
                         .max_position_embeddings = 160,
                         .original_max_position_embeddings = 160}}},
    {.name = "segments with padding",
     .config = {.batch = 2,
                .sequence = 7,
                .emb_dim = 3,
                .heads = 2,
                .qk_nope_head_dim = 2,
                .v_head_dim = 3,
                .q_lora_rank = 2,
                .kv_lora_rank = 3,
                .epsilon = 1e-3,
                .mscale = 1,
                .mask_padding = true,
                .rope = {.dim = 2,
                         .yarn = true,
                         .rope_max_timescale = 10000,
                         .rope_factor = 40,
                         .beta_fast = 32,
                         .beta_slow = 1,
                         .max_position_embeddings = 160,
                         .original_max_position_embeddings = 64,
                         .interleave = true,
                         .truncate = true,
                         .pairwise = true}},
     .segment_ids = TWO_SEGMENTS},
    {.name = "segment 0 is one like the others",
     .config = {.batch = 2,
                .sequence = 7,
                .emb_dim = 3,
                .heads = 1,
                .qk_nope_head_dim = 1,
                .v_head_dim = 2,
                .q_lora_rank = 0,
                .kv_lora_rank = 2,
                .epsilon = 1e-3,
                .mscale = 1,
                .mask_padding = false,
                .rope = {.dim = 2,
                         .rope_max_timescale = 100,
                         .rope_factor = 1,
                         .max_position_embeddings = 160,
                         .original_max_position_embeddings = 160,
                         .interleave = true}},
     .segment_ids = TWO_SEGMENTS},
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
