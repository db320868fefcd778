/* Grouped-query attention against itself: other threads, heads that share keys or have copies of them, windows and
 * sinks without an effect, fused projections. harness/tests/test_certified.c has it against the second form. */
#include "oracle/ops/gqa.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/ops/tests/ops_test.h"

enum { VARIABLES = 1 + ASSAY_GQA_WEIGHTS }; /* x, then the weights */

typedef struct problem {
    assay_gqa_config config;
    int64_t tokens, sizes[VARIABLES];
    double *values[VARIABLES], *gradients[VARIABLES], *dy;
    int32_t *positions, *segment_ids;
    assay_gqa_residuals r;
} problem;

static void make(problem *p, const assay_gqa_config *config)
{
    uint64_t seed = 11;
    const assay_tensor_table weights = assay_gqa_weight_table(config);
    *p = (problem){.config = *config, .tokens = config->batch * config->sequence};
    p->sizes[0] = p->tokens * config->emb_dim;
    for (int i = 0; i < ASSAY_GQA_WEIGHTS; i++) p->sizes[1 + i] = assay_tensor_row_count(&weights.rows[i]);
    for (int i = 0; i < VARIABLES; i++) {
        if (p->sizes[i] == 0) continue;
        p->values[i] = test_normals(&seed, 0.6, ASSAY_FLOAT64, p->sizes[i]);
        p->gradients[i] = test_nans(p->sizes[i]);
    }
    p->dy = test_normals(&seed, 1, ASSAY_FLOAT64, p->sizes[0]);
    p->positions = malloc((size_t)p->tokens * sizeof *p->positions);
    p->segment_ids = malloc((size_t)p->tokens * sizeof *p->segment_ids);
    assert_non_null(p->positions);
    assert_non_null(p->segment_ids);
    for (int64_t t = 0; t < p->tokens; t++) {
        p->positions[t] = (int32_t)(3 + 7 * t) % 160;
        p->segment_ids[t] = t % 11 == 3 ? 0 : 1 + (int32_t)(t / 50);
    }
}

static void drop(problem *p)
{
    for (int i = 0; i < VARIABLES; i++) {
        free(p->values[i]);
        free(p->gradients[i]);
    }
    free(p->dy);
    free(p->positions);
    free(p->segment_ids);
    assay_gqa_residuals_free(&p->r);
}

static assay_status run(assay_context *ctx, problem *p)
{
    assay_status status = ASSAY_OK;
    const assay_gqa_inputs in = {p->values[0], p->positions, p->segment_ids};
    const assay_gqa_weights w = assay_gqa_weights_of(p->values + 1);
    const assay_gqa_gradients g = assay_gqa_gradients_of(p->gradients[0], p->gradients + 1);
    for (int i = 0; i < VARIABLES; i++) {
        if (p->gradients[i] != NULL) assay_fill_nan(p->gradients[i], p->sizes[i]);
    }
    assay_gqa_residuals_free(&p->r);
    for (int tensor = 0; tensor < ASSAY_GQA_TENSORS; tensor++)
        TRY(assay_gqa_compute(ctx, &p->r, (assay_gqa_tensor)tensor, &in, &w, &p->config));
    TRY(assay_gqa_backward(ctx, &g, p->dy, &p->r, &in, &w, &p->config));
cleanup:
    return status;
}

/* Several blocks of a product and of attention, sizes that no block divides, and everything on. */
static const assay_gqa_config EVERYTHING = {.batch = 1,
                                            .sequence = 137,
                                            .emb_dim = 29,
                                            .heads = 6,
                                            .kv_heads = 2,
                                            .head_dim = 10,
                                            .window = 21,
                                            .query_scale = 0.3,
                                            .bias = true,
                                            .qk_norm = true,
                                            .sinks = true,
                                            .epsilon = 1e-3,
                                            .rope = {10, true, 10000, 32, 32, 1, 160, 64, false, false, true, false},
                                            .mask_padding = true};

static void assert_same_results(const problem *a, const problem *b)
{
    for (int tensor = 0; tensor < ASSAY_GQA_TENSORS; tensor++) {
        const assay_gqa_tensor t = (assay_gqa_tensor)tensor;
        assert_same_bits(a->r.values[t], b->r.values[t], assay_gqa_tensor_count(&a->config, t));
    }
    assert_same_bits(a->r.lse, b->r.lse, a->tokens * a->config.heads);
    for (int i = 0; i < VARIABLES; i++) {
        const int64_t count = a->sizes[i] < b->sizes[i] ? a->sizes[i] : b->sizes[i];
        if (count > 0) assert_same_bits(a->gradients[i], b->gradients[i], count);
    }
}

static void check_same_bits(assay_context *ctx, void *data)
{
    problem *first = data, p;
    if (first->r.lse == NULL) assert_ok(ctx, run(ctx, first));
    make(&p, &first->config);
    assert_ok(ctx, run(ctx, &p));
    assert_same_results(&p, first);
    drop(&p);
}

TEST(test_same_bits_with_any_threads_and_isa)
{
    for (int fused = 0; fused < 2; fused++) {
        problem first;
        assay_gqa_config config = EVERYTHING;
        config.fused_qkv = fused;
        make(&first, &config);
        test_each_context(check_same_bits, &first);
        drop(&first);
    }
}

/* A window that no token goes beyond, and sinks far below every score. */
TEST(test_windows_and_sinks_without_an_effect)
{
    assay_context ctx = assay_context_default(2);
    assay_gqa_config config = EVERYTHING, plain = EVERYTHING;
    config.window = config.sequence;
    plain.window = 0;
    plain.sinks = false;
    problem p, other;
    make(&p, &config);
    make(&other, &plain);
    for (int i = 0; i < VARIABLES; i++) {
        if (other.values[i] != NULL) memcpy(other.values[i], p.values[i], (size_t)p.sizes[i] * sizeof(double));
    }
    memcpy(other.dy, p.dy, (size_t)p.sizes[0] * sizeof(double));
    for (int64_t head = 0; head < config.heads; head++) p.values[1 + ASSAY_GQA_SINKS][head] = -1000;
    assert_ok(&ctx, run(&ctx, &p));
    assert_ok(&ctx, run(&ctx, &other));
    assert_same_results(&p, &other);
    for (int64_t head = 0; head < config.heads; head++) assert_true(p.gradients[1 + ASSAY_GQA_SINKS][head] == 0);
    drop(&p);
    drop(&other);
}

/* Rows [D] of heads [from, from + count) of a weight that has `of` heads of Dh, to the same of another. */
static void copy_heads(double *to, int64_t to_of, int64_t to_head, const double *from, int64_t from_of,
                       int64_t from_head, int64_t count, int64_t rows, int64_t dim)
{
    for (int64_t row = 0; row < rows; row++)
        memcpy(to + (row * to_of + to_head) * dim, from + (row * from_of + from_head) * dim,
               (size_t)(count * dim) * sizeof(double));
}

/* Each head of queries has a copy of its keys and values: the same forward, and shared ones get the sum of what copies
 * get. */
TEST(test_shared_keys_are_copies)
{
    assay_context ctx = assay_context_default(2);
    assay_gqa_config config = EVERYTHING, own = EVERYTHING;
    own.kv_heads = own.heads;
    const int64_t n = config.heads, kv = config.kv_heads, dim = config.head_dim;
    static const int SHARED[] = {ASSAY_GQA_KEY, ASSAY_GQA_VALUE, ASSAY_GQA_KEY_BIAS, ASSAY_GQA_VALUE_BIAS};
    problem p, other;
    make(&p, &config);
    make(&other, &own);
    for (int i = 0; i < VARIABLES; i++) {
        if (p.sizes[i] == other.sizes[i] && p.sizes[i] > 0)
            memcpy(other.values[i], p.values[i], (size_t)p.sizes[i] * sizeof(double));
    }
    memcpy(other.dy, p.dy, (size_t)p.sizes[0] * sizeof(double));
    for (int i = 0; i < 4; i++) {
        const int at = 1 + SHARED[i];
        const int64_t rows = i < 2 ? config.emb_dim : 1;
        for (int64_t head = 0; head < n; head++)
            copy_heads(other.values[at], n, head, p.values[at], kv, head / (n / kv), 1, rows, dim);
    }
    assert_ok(&ctx, run(&ctx, &p));
    assert_ok(&ctx, run(&ctx, &other));
    assert_same_bits(p.r.lse, other.r.lse, p.tokens * n);
    assert_same_bits(p.r.values[ASSAY_GQA_OUT_PROJ], other.r.values[ASSAY_GQA_OUT_PROJ], p.sizes[0]);
    assert_close(other.gradients[0], p.gradients[0], p.sizes[0], 1e-11, 1e-12);
    for (int i = 0; i < 4; i++) {
        const int at = 1 + SHARED[i];
        const int64_t rows = i < 2 ? config.emb_dim : 1;
        double *sum = calloc((size_t)p.sizes[at], sizeof *sum);
        assert_non_null(sum);
        for (int64_t k = 0; k < rows * n * dim; k++) {
            const int64_t row = k / (n * dim), head = k / dim % n;
            sum[(row * kv + head / (n / kv)) * dim + k % dim] += other.gradients[at][k];
        }
        assert_close(sum, p.gradients[at], p.sizes[at], 1e-11, 1e-11);
        free(sum);
    }
    drop(&p);
    drop(&other);
}

/* One kernel for all three is the three side by side. */
TEST(test_fused_projections)
{
    assay_context ctx = assay_context_default(2);
    assay_gqa_config config = EVERYTHING, fused = EVERYTHING;
    fused.fused_qkv = true;
    const int64_t n = config.heads, kv = config.kv_heads, all = n + 2 * kv, dim = config.head_dim;
    static const int PARTS[][2] = {{ASSAY_GQA_QUERY, ASSAY_GQA_QUERY_BIAS},
                                   {ASSAY_GQA_KEY, ASSAY_GQA_KEY_BIAS},
                                   {ASSAY_GQA_VALUE, ASSAY_GQA_VALUE_BIAS}};
    const int64_t heads[] = {n, kv, kv}, first[] = {0, n, n + kv};
    problem p, other;
    make(&p, &config);
    make(&other, &fused);
    for (int i = 0; i < VARIABLES; i++) {
        if (p.sizes[i] == other.sizes[i] && p.sizes[i] > 0)
            memcpy(other.values[i], p.values[i], (size_t)p.sizes[i] * sizeof(double));
    }
    memcpy(other.dy, p.dy, (size_t)p.sizes[0] * sizeof(double));
    for (int i = 0; i < 6; i++) {
        const int bias = i % 2, to = 1 + (bias ? ASSAY_GQA_QKV_BIAS : ASSAY_GQA_QKV);
        copy_heads(other.values[to], all, first[i / 2], p.values[1 + PARTS[i / 2][bias]], heads[i / 2], 0, heads[i / 2],
                   bias ? 1 : config.emb_dim, dim);
    }
    assert_ok(&ctx, run(&ctx, &p));
    assert_ok(&ctx, run(&ctx, &other));
    assert_same_bits(p.r.values[ASSAY_GQA_OUT_PROJ], other.r.values[ASSAY_GQA_OUT_PROJ], p.sizes[0]);
    assert_close(other.gradients[0], p.gradients[0], p.sizes[0], 1e-11, 1e-12);
    for (int i = 0; i < 6; i++) {
        const int bias = i % 2, from = 1 + (bias ? ASSAY_GQA_QKV_BIAS : ASSAY_GQA_QKV), at = 1 + PARTS[i / 2][bias];
        double *part = test_nans(p.sizes[at]);
        copy_heads(part, heads[i / 2], 0, other.gradients[from], all, first[i / 2], heads[i / 2],
                   bias ? 1 : config.emb_dim, dim);
        assert_same_bits(part, p.gradients[at], p.sizes[at]);
        free(part);
    }
    drop(&p);
    drop(&other);
}

TEST(test_every_allocation_may_fail)
{
    for (int fused = 0; fused < 2; fused++) {
        assay_gqa_config config = EVERYTHING;
        config.sequence = 9;
        config.fused_qkv = fused;
        problem p;
        int64_t failures = 0;
        make(&p, &config);
        for (;; failures++) {
            assay_context ctx = assay_context_default(2);
            assay_fail_allocation(failures);
            const assay_status status = run(&ctx, &p);
            if (had_memory(&ctx, status)) break;
        }
        assert_true(failures > 20);
        drop(&p);
    }
}

static void count(assay_context *ctx, const assay_gqa_config *config)
{
    double forward = 0;
    test_operations operations = {.count = 0};
    problem p;
    make(&p, config);
    free(p.segment_ids);
    p.segment_ids = NULL;
    test_count_operations(ctx, &operations);
    assert_ok(ctx, run(ctx, &p));
    for (int tensor = 0; tensor < ASSAY_GQA_TENSORS; tensor++)
        forward += assay_gqa_tensor_flops(config, (assay_gqa_tensor)tensor);
    const double said = forward + assay_gqa_backward_flops(config);
    /* attention's products are counted without what a block masks, and without its small triangles */
    assert_true(operations.count > 0.7 * said && operations.count < 1.4 * said);
    drop(&p);
}

TEST(test_flops)
{
    for (int fused = 0; fused < 2; fused++) {
        assay_context ctx = assay_context_default(1);
        assay_gqa_config config = EVERYTHING;
        config.fused_qkv = fused;
        config.emb_dim = 64;
        count(&ctx, &config);
    }
}

TEST(test_refusals)
{
    static const struct {
        const char *words;
        size_t offset;
        int64_t value;
    } rows[] = {
        {"base_emb_dim is 0, expected 1 or more", offsetof(assay_gqa_config, emb_dim), 0},
        {"base_num_kv_heads is 0, expected 1 or more", offsetof(assay_gqa_config, kv_heads), 0},
        {"base_num_kv_heads is 4, expected a divisor of base_num_query_heads (6)", offsetof(assay_gqa_config, kv_heads),
         4},
        {"base_num_kv_heads is 12, expected a divisor", offsetof(assay_gqa_config, kv_heads), 12},
        {"sliding_window_size is -1, expected 1 or more", offsetof(assay_gqa_config, window), -1},
        {"head_dim is 0, expected 1 or more", offsetof(assay_gqa_config, head_dim), 0},
        {"inputs/x: ", offsetof(assay_gqa_config, emb_dim), INT64_MAX / 2},
    };
    assay_context ctx = assay_context_default(1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assay_gqa_config config = EVERYTHING;
        *(int64_t *)(void *)((char *)&config + rows[i].offset) = rows[i].value;
        assert_int_not_equal(assay_gqa_check(&ctx, &config), ASSAY_OK);
        if (strstr(ctx.message, rows[i].words) == NULL) fail_msg("%s: %s", rows[i].words, ctx.message);
    }
    assay_gqa_config config = EVERYTHING;
    config.query_scale = NAN;
    assert_int_equal(assay_gqa_check(&ctx, &config), ASSAY_BAD_INPUT);
    config = EVERYTHING;
    config.epsilon = -1;
    assert_int_equal(assay_gqa_check(&ctx, &config), ASSAY_BAD_INPUT);
    assert_ok(&ctx, assay_gqa_check(&ctx, &EVERYTHING));
}
