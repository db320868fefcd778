/* MLA as steps: dropping and recomputing, what is skipped, refused and counted, and what rounding and padding touch. */
#include "oracle/ops/mla.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/emulated.h"
#include "oracle/ops/tests/mla_problem.h"

static void assert_same_gradients(const mla_problem *p, const mla_problem *expected)
{
    for (int i = 0; i < MLA_VARIABLES; i++) assert_same_bits(p->gradients[i], expected->gradients[i], p->sizes[i]);
}

static void assert_same_residuals(const mla_problem *p, const mla_problem *expected)
{
    for (int tensor = 0; tensor < ASSAY_MLA_TENSORS; tensor++)
        assert_same_bits(p->r.values[tensor], expected->r.values[tensor],
                         assay_mla_tensor_count(&p->config, (assay_mla_tensor)tensor));
    assert_same_bits(p->r.lse, expected->r.lse, p->tokens * p->config.heads);
}

static void drop(mla_problem *p, unsigned subset)
{
    for (int tensor = 0; tensor < ASSAY_MLA_TENSORS; tensor++) {
        if (!(subset >> tensor & 1)) continue;
        free(p->r.values[tensor]);
        p->r.values[tensor] = NULL;
        if (tensor != ASSAY_MLA_ATTENTION_OUT) continue;
        free(p->r.lse);
        p->r.lse = NULL;
    }
}

static assay_emulation bfloat16_emulation(void)
{
    return (assay_emulation){
        .precision = {"bf16", RMS(0x1p-8), RMS(0x1p-24), RMS(0x1p-24), RMS(0x1p-24), 0x1p-22, .least = 0},
        .storage = ASSAY_BFLOAT16,
        .multiply = ASSAY_BFLOAT16,
        .seed = 3};
}

/* Every subset of the intermediates. */
static void check_recomputing(assay_context *ctx, const mla_sample *sample)
{
    mla_problem kept, p;
    mla_problem_make(&kept, &sample->config, sample->segment_ids);
    mla_problem_make(&p, &sample->config, sample->segment_ids);
    mla_problem_run(ctx, &kept);
    mla_problem_run(ctx, &p);
    assert_same_gradients(&p, &kept);
    for (unsigned subset = 1; subset < 1u << ASSAY_MLA_TENSORS; subset++) {
        drop(&p, subset);
        assert_ok(ctx, mla_problem_forward(ctx, &p));
        assert_same_residuals(&p, &kept);
        drop(&p, 1u << ASSAY_MLA_OUT_PROJ); /* backward does without */
        assert_ok(ctx, mla_problem_backward(ctx, &p));
        assert_same_gradients(&p, &kept);
    }
    mla_problem_free(&kept);
    mla_problem_free(&p);
}

TEST(test_any_subset_can_be_computed_again)
{
    const assay_emulation emulation = bfloat16_emulation();
    for (const mla_sample *sample = mla_samples; sample->name != NULL; sample++) {
        assay_context ctx = assay_context_default(1), emulated = ctx;
        emulated.arithmetic = &assay_arithmetic_emulated;
        emulated.emulation = &emulation;
        check_recomputing(&ctx, sample);
        check_recomputing(&emulated, sample);
    }
}

TEST(test_what_is_there_is_not_computed)
{
    assay_context ctx = assay_context_default(1);
    mla_problem p;
    mla_problem_make(&p, &mla_samples[0].config, NULL);
    const int64_t count = assay_mla_tensor_count(&p.config, ASSAY_MLA_KEY_PROJ);
    double *given = test_nans(count);
    p.r.values[ASSAY_MLA_KEY_PROJ] = given;
    assert_ok(&ctx, mla_problem_forward(&ctx, &p));
    assert_ptr_equal(p.r.values[ASSAY_MLA_KEY_PROJ], given);
    assert_all_nan(given, count);
    assert_true(isnan(p.r.values[ASSAY_MLA_OUT_PROJ][0]));
    mla_problem_free(&p);
}

TEST(test_missing_gradients_are_skipped)
{
    for (const mla_sample *sample = mla_samples; sample->name != NULL; sample++) {
        assay_context ctx = assay_context_default(1);
        mla_problem all, p;
        mla_problem_make(&all, &sample->config, sample->segment_ids);
        mla_problem_run(&ctx, &all);
        for (int wanted = -1; wanted < MLA_VARIABLES; wanted++) {
            mla_problem_make(&p, &sample->config, sample->segment_ids);
            for (int i = 0; i < MLA_VARIABLES; i++) {
                if (i == wanted) continue;
                free(p.gradients[i]);
                p.gradients[i] = NULL;
            }
            mla_problem_run(&ctx, &p);
            if (wanted >= 0) assert_same_bits(p.gradients[wanted], all.gradients[wanted], p.sizes[wanted]);
            mla_problem_free(&p);
        }
        mla_problem_free(&all);
    }
}

TEST(test_operations_are_those_of_the_products)
{
    for (const mla_sample *sample = mla_samples; sample->name != NULL; sample++) {
        assay_context ctx = assay_context_default(1);
        const assay_mla_config *c = &sample->config;
        const assay_attention_config attention = {.batch = c->batch,
                                                  .sequence = c->sequence,
                                                  .heads = c->heads,
                                                  .qk_dim = c->qk_nope_head_dim + c->rope.dim,
                                                  .v_dim = c->v_head_dim,
                                                  .mask_padding = c->mask_padding};
        mla_problem p;
        mla_problem_make(&p, c, sample->segment_ids);
        const assay_mla_inputs in = mla_problem_inputs(&p);
        const assay_mla_weights w = mla_problem_weights(&p);
        test_operations operations = {.count = 0}, inside = {.count = 0};
        test_count_operations(&ctx, &operations);
        for (int tensor = 0; tensor < ASSAY_MLA_TENSORS; tensor++) {
            operations.count = 0;
            assert_ok(&ctx, assay_mla_compute(&ctx, &p.r, (assay_mla_tensor)tensor, &in, &w, c));
            if (tensor == ASSAY_MLA_ATTENTION_OUT) operations.count = assay_attention_flops(&attention, false);
            assert_true(operations.count == assay_mla_tensor_flops(c, (assay_mla_tensor)tensor));
        }
        /* Attention is its own to count: a triangle is no product. */
        const assay_attention_inputs inputs = {.query = p.r.values[ASSAY_MLA_QUERY_PROJ],
                                               .key = p.r.values[ASSAY_MLA_KEY_PROJ],
                                               .value = p.r.values[ASSAY_MLA_VALUE_PROJ],
                                               .segment_ids = p.segment_ids};
        const int64_t keys = assay_mla_tensor_count(c, ASSAY_MLA_KEY_PROJ);
        const int64_t values = assay_mla_tensor_count(c, ASSAY_MLA_VALUE_PROJ);
        double *query = test_nans(keys), *key = test_nans(keys), *value = test_nans(values);
        const assay_attention_gradients g = {.dquery = query, .dkey = key, .dvalue = value};
        test_count_operations(&ctx, &inside);
        assert_ok(&ctx, assay_attention_backward(&ctx, &g, p.r.values[ASSAY_MLA_ATTENTION_OUT], NULL,
                                                 p.r.values[ASSAY_MLA_ATTENTION_OUT], p.r.lse, &inputs, &attention));
        operations.count = 0;
        test_count_operations(&ctx, &operations);
        assert_ok(&ctx, mla_problem_backward(&ctx, &p));
        assert_true(operations.count - inside.count + assay_attention_flops(&attention, true) ==
                    assay_mla_backward_flops(c));
        free(query);
        free(key);
        free(value);
        mla_problem_free(&p);
    }
}

TEST(test_allocations_fail)
{
    for (int sample = 0; sample < 2; sample++) { /* with query compression, and without */
        assay_context ctx = assay_context_default(1);
        mla_problem p, expected;
        mla_problem_make(&expected, &mla_samples[sample].config, NULL);
        mla_problem_make(&p, &mla_samples[sample].config, NULL);
        mla_problem_run(&ctx, &expected);
        const assay_mla_inputs in = mla_problem_inputs(&p);
        const assay_mla_weights w = mla_problem_weights(&p);
        double *y = test_nans(p.sizes[MLA_X]);
        int64_t n;
        for (n = 0;; n++) {
            drop(&p, (1u << ASSAY_MLA_TENSORS) - 1);
            assay_fail_allocation(n);
            assay_status status = mla_problem_forward(&ctx, &p);
            if (status == ASSAY_OK) status = mla_problem_backward(&ctx, &p);
            if (status == ASSAY_OK) status = assay_mla_absorbed_forward(&ctx, y, &in, &w, &p.config);
            if (had_memory(&ctx, status)) break;
            /* what failed is not there, and can be had again */
            assert_ok(&ctx, mla_problem_forward(&ctx, &p));
            assert_same_residuals(&p, &expected);
        }
        assert_true(n > 40);
        assert_same_gradients(&p, &expected);
        free(y);
        mla_problem_free(&p);
        mla_problem_free(&expected);
    }
}

TEST(test_refusals)
{
    const int64_t huge = INT64_MAX;
    assay_mla_config good = mla_samples[0].config, bad[23];
    static const char *const messages[] = {
        "batch is 0",
        "sequence is -1",
        "base_emb_dim is 0",
        "base_num_query_heads is 0",
        "qk_nope_head_dim is 0",
        "v_head_dim is 0",
        "q_lora_rank is -1, expected 0 or more",
        "kv_lora_rank is 0, expected 1 or more",
        "latent_norm_epsilon is -1e-06",
        "latent_norm_epsilon is nan",
        "mscale is inf",
        "qk_rope_head_dim is 3",
        "rope_pairwise needs",
        "rope_factor is 0",
        "rope_factor is 0", /* without YaRN, but in the softmax scale */
        "inputs/x: its size",
        "query/kernel: its size",
        "heads: its size",
        "heads: its size",
        "latents: its size",
        "latents: its size",
        "wq_a/kernel, wkv_a/kernel: its size",
        "wq_b/kernel, wkv_b/kernel: its size",
    };
    const size_t count = sizeof messages / sizeof *messages;
    for (size_t i = 0; i < count; i++) bad[i] = good;
    bad[0].batch = 0;
    bad[1].sequence = -1;
    bad[2].emb_dim = 0;
    bad[3].heads = 0;
    bad[4].qk_nope_head_dim = 0;
    bad[5].v_head_dim = 0;
    bad[6].q_lora_rank = -1;
    bad[7].kv_lora_rank = 0;
    bad[8].epsilon = -1e-6;
    bad[9].epsilon = NAN;
    bad[10].mscale = INFINITY;
    bad[11].rope.dim = 3;
    bad[12].rope.pairwise = true, bad[12].rope.interleave = false;
    bad[13].rope.rope_factor = 0;
    bad[14].rope.rope_factor = 0, bad[14].rope.yarn = false;
    bad[15].emb_dim = huge;
    bad[16].emb_dim = huge / 400;
    bad[17].qk_nope_head_dim = huge;
    bad[18].v_head_dim = huge;
    bad[19].q_lora_rank = huge;
    bad[20].kv_lora_rank = huge;
    bad[21].emb_dim = (int64_t)1 << 40, bad[21].heads = 1, bad[21].qk_nope_head_dim = 1, bad[21].v_head_dim = 1;
    bad[21].kv_lora_rank = (int64_t)1 << 40;
    bad[22].kv_lora_rank = (int64_t)1 << 50, bad[22].heads = 1024;
    for (size_t i = 0; i < count; i++) {
        assay_context ctx = assay_context_default(1);
        const assay_status status = assay_mla_check(&ctx, &bad[i]);
        if (status != ASSAY_BAD_INPUT || strncmp(ctx.message, messages[i], strlen(messages[i])) != 0) {
            fail_msg("%zu: status %d, \"%s\", expected \"%s\"", i, (int)status, ctx.message, messages[i]);
        }
    }
    good.q_lora_rank = 0;
    good.epsilon = 0;
    good.rope.yarn = false;
    good.rope.rope_factor = 0; /* in no scale now */
    good.rope.max_position_embeddings = good.rope.original_max_position_embeddings;
    assay_context ctx = assay_context_default(1);
    assert_ok(&ctx, assay_mla_check(&ctx, &good));
}

TEST(test_softmax_scale)
{
    assay_mla_config c = {
        .qk_nope_head_dim = 128,
        .mscale = 1,
        .rope = {
            .dim = 64, .rope_factor = 40, .max_position_embeddings = 163840, .original_max_position_embeddings = 4096}};
    const double m = 0.1 * log(40) + 1, plain = 1 / sqrt(192);
    double expected = m * m / sqrt(192), scale = assay_mla_softmax_scale(&c);
    assert_close(&scale, &expected, 1, 1e-15, 0);
    c.mscale = 0.5;
    scale = assay_mla_softmax_scale(&c);
    expected = (0.05 * log(40) + 1) * (0.05 * log(40) + 1) / sqrt(192);
    assert_close(&scale, &expected, 1, 1e-15, 0);
    c.rope.max_position_embeddings = 4096;
    scale = assay_mla_softmax_scale(&c);
    assert_close(&scale, &plain, 1, 1e-15, 0);
}

/* What padding holds changes nothing for the others; its own y and dx are 0. */
TEST(test_padding_reaches_nobody)
{
    const mla_sample *sample = &mla_samples[4];
    const int64_t dim = sample->config.emb_dim;
    const double zeros[16] = {0};
    assay_context ctx = assay_context_default(1);
    mla_problem p, other;
    mla_problem_make(&p, &sample->config, sample->segment_ids);
    mla_problem_make(&other, &sample->config, sample->segment_ids);
    mla_problem_run(&ctx, &p);
    int64_t padding = 0;
    for (int64_t t = 0; t < p.tokens; t++) {
        if (sample->segment_ids[t] != 0) continue;
        assert_close(p.r.values[ASSAY_MLA_OUT_PROJ] + t * dim, zeros, dim, 0, 0);
        assert_close(p.gradients[MLA_X] + t * dim, zeros, dim, 0, 0);
        assay_fill_nan(other.values[MLA_X] + t * dim, dim);
        padding++;
    }
    assert_int_equal(padding, 5);
    mla_problem_run(&ctx, &other);
    for (int64_t t = 0; t < p.tokens; t++) {
        if (sample->segment_ids[t] == 0) continue;
        assert_same_bits(other.r.values[ASSAY_MLA_OUT_PROJ] + t * dim, p.r.values[ASSAY_MLA_OUT_PROJ] + t * dim, dim);
        assert_same_bits(other.gradients[MLA_X] + t * dim, p.gradients[MLA_X] + t * dim, dim);
    }
    mla_problem_free(&p);
    mla_problem_free(&other);
}

/* What is kept between steps is as it would be stored; y is the caller's to round. */
TEST(test_intermediates_lie_on_the_grid)
{
    const assay_emulation emulation = bfloat16_emulation();
    assay_context ctx = assay_context_default(1);
    mla_problem p;
    mla_problem_make(&p, &mla_samples[0].config, NULL);
    ctx.arithmetic = &assay_arithmetic_emulated;
    ctx.emulation = &emulation;
    mla_problem_run(&ctx, &p);
    for (int tensor = 0; tensor < ASSAY_MLA_TENSORS; tensor++) {
        const int64_t count = assay_mla_tensor_count(&p.config, (assay_mla_tensor)tensor);
        int64_t off = 0;
        for (int64_t i = 0; i < count; i++) {
            const double value = p.r.values[tensor][i];
            off += assay_dtype_round(ASSAY_BFLOAT16, value, false) != value;
        }
        assert_true(tensor == ASSAY_MLA_OUT_PROJ ? off > 0 : off == 0);
    }
    mla_problem_free(&p);
}
