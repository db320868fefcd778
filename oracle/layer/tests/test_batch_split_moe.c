/* The MoE half of the batch-split schedule as a whole, against the plain block. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/emulated.h"
#include "oracle/base/memory.h"
#include "oracle/layer/tests/moe_half_case.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

/* data, fsdp, expert, factor; rows, sequence; experts, per token; groups, kept */
static const moe_half_shape shapes[] = {
    {1, 1, 1, 1, 2, 3, 4, 2, 0, 0}, {1, 1, 1, 2, 1, 5, 4, 1, 0, 0}, {1, 1, 1, 3, 2, 1, 8, 3, 4, 2},
    {1, 1, 2, 1, 1, 7, 4, 2, 2, 1}, {1, 1, 4, 2, 1, 3, 8, 2, 0, 0}, {2, 1, 2, 2, 1, 3, 6, 3, 3, 2},
    {1, 2, 2, 2, 2, 1, 4, 4, 0, 0}, {2, 2, 1, 2, 1, 2, 5, 2, 0, 0}, {1, 2, 4, 2, 1, 5, 8, 3, 4, 3},
    {2, 1, 4, 1, 1, 1, 4, 1, 0, 0},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static double largest(const double *values, int64_t count)
{
    double most = 0;
    for (int64_t i = 0; i < count; i++) most = fmax(most, fabs(values[i]));
    return most;
}

/* Within 64 units in the last place of the largest element: sums of at most a few hundred terms in another order. */
static void assert_equivalent(const double *actual, const double *expected, int64_t count)
{
    assert_close(actual, expected, count, 0, 0x1p-49 * largest(expected, count));
}

/* The whole batch [B,S,D] of what lies in microbatches. */
static double *merged(const moe_half *c, double *const *microbatches)
{
    double *whole = moe_half_alloc(c->run.factor * c->count);
    bs_merge(whole, (const double *const *)microbatches, &c->run, c->run.mla.sequence * c->run.mla.emb_dim);
    return whole;
}

/* What a weight's gradient is in the plain block: the sum over the shards that hold it. */
static double *reduced(const moe_half *c, int weight, int64_t *count)
{
    const int64_t each = bs_weight_count(&c->run, weight, true), shards = c->run.sizes.shards;
    const int64_t parts = moe_half_is_routed(weight) ? c->run.sizes.expert_shards : 1;
    const bool summed = weight == BS_POST_NORM || weight == BS_GATE_BIAS;
    double *sum = moe_half_alloc(parts * each);
    const double *g = c->g.values[weight];
    for (int64_t i = 0; i < parts * each; i++) {
        const int64_t part = i / each;
        sum[i] = g[part * each + i % each];
        for (int64_t shard = part + parts; shard < shards && !summed; shard += parts)
            sum[i] += g[shard * each + i % each];
    }
    for (int64_t shard = 1; summed && shard < shards; shard++) assert_same_bits(g + shard * each, g, each);
    *count = parts * each;
    return sum;
}

static void assert_gradients(const moe_half *c, const test_tensors *plain, bool same_bits)
{
    for (int weight = 0; weight < BS_WEIGHTS; weight++) {
        char path[2 * ASSAY_PATH_SIZE];
        int64_t count = 0;
        if (moe_half_weight_name(weight) == NULL) continue;
        snprintf(path, sizeof path, "gradients/weights/layers/1/%s", moe_half_weight_name(weight));
        double *sum = reduced(c, weight, &count);
        const assay_tensor *expected = layer_case_get(plain, path);
        assert_int_equal(count, expected->count);
        if (same_bits) {
            assert_same_bits(sum, expected->values, count);
        } else {
            assert_equivalent(sum, expected->values, count);
        }
        free(sum);
    }
}

/* outputs, gradients, choices, weights and margins are the plain block's. */
static void assert_plain(assay_context *ctx, moe_half *c)
{
    static const char *const same[] = {"routing/layers/1/selected_experts", "routing/layers/1/weights",
                                       "routing/layers/1/margin"};
    test_tensors plain = {0};
    moe_half_plain(ctx, c, &plain);
    const assay_tensor *y = layer_case_get(&plain, "outputs/y"), *dx = layer_case_get(&plain, "gradients/inputs/x");
    double *out = merged(c, c->xs), *d_in = merged(c, c->dxs);
    assert_equivalent(out, y->values, y->count);
    assert_equivalent(d_in, dx->values, dx->count);
    assert_gradients(c, &plain, false);
    for (int i = 0; i < 3; i++) {
        const assay_tensor *found = layer_case_get(&c->out, same[i]), *expected = layer_case_get(&plain, same[i]);
        const size_t size = i == 0 ? sizeof *found->indices : sizeof *found->values;
        assert_int_equal(found->count, expected->count);
        assert_memory_equal(i == 0 ? (void *)found->indices : (void *)found->values,
                            i == 0 ? (void *)expected->indices : (void *)expected->values, (size_t)found->count * size);
    }
    free(out);
    free(d_in);
    assay_tensor_set_free(&plain.set);
}

TEST(test_against_plain)
{
    assay_context ctx = assay_context_default(2);
    for (int i = 0; i < SHAPES; i++) {
        moe_half c;
        moe_half_open(&c, &shapes[i]);
        assert_ok(&ctx, moe_half_run(&ctx, &c));
        assert_plain(&ctx, &c);
        moe_half_close(&c);
    }
}

/* One shard, one microbatch, one expert a token: then the weight's place is all that differs from the plain block, and
 * with a factor of 1 the weight is 1. */
TEST(test_same_bits_as_plain)
{
    assay_context ctx = assay_context_default(1);
    const moe_half_shape shape = {1, 1, 1, 1, 2, 5, 4, 1, 0, 0};
    moe_half c;
    test_tensors plain = {0};
    moe_half_open(&c, &shape);
    c.layer.config.moe.routing.routed_scaling_factor = c.run.routing.routed_scaling_factor = 1;
    assert_ok(&ctx, moe_half_run(&ctx, &c));
    moe_half_plain(&ctx, &c, &plain);
    assert_gradients(&c, &plain, true);
    assert_same_bits(c.xs[0], layer_case_get(&plain, "outputs/y")->values, c.count);
    assert_same_bits(c.dxs[0], layer_case_get(&plain, "gradients/inputs/x")->values, c.count);
    assay_tensor_set_free(&plain.set);
    moe_half_close(&c);
}

/* Expert 0 and those after it get (almost) everything. */
static void heat(moe_half *c)
{
    double *bias = layer_case_get(&c->layer.in, "weights/layers/1/moe/gate/bias")->values;
    for (int64_t e = 0; e < c->run.routing.num_experts; e++) bias[e] = e < c->run.routing.num_experts_per_tok ? 5 : 0;
    moe_half_load(c);
}

/* Same outputs and gradients, bit by bit. */
static void assert_same(const moe_half *actual, const moe_half *expected)
{
    for (int64_t i = 0; i < actual->run.factor; i++) {
        assert_same_bits(actual->xs[i], expected->xs[i], actual->count);
        assert_same_bits(actual->dxs[i], expected->dxs[i], actual->count);
    }
    for (int weight = 0; weight < BS_WEIGHTS; weight++) {
        if (moe_half_weight_name(weight) == NULL || actual->g.values[weight] == NULL) continue;
        assert_same_bits(actual->g.values[weight], expected->g.values[weight],
                         actual->run.sizes.shards * bs_weight_count(&actual->run, weight, true));
    }
}

static void assert_bfloat16(const double *values, int64_t count)
{
    double *rounded = moe_half_alloc(count);
    assay_dtype_round_many(ASSAY_BFLOAT16, count, values, rounded);
    assert_same_bits(rounded, values, count);
    free(rounded);
}

/* Where bfloat16 is emulated, what is stored is of that type. */
static void assert_stored(const moe_half *c)
{
    static const char *const paths[] = {"checkpoints/layers/1/moe_mlpwi_0", "checkpoints/layers/1/moe_mlpwi_1"};
    for (int i = 0; i < 2; i++) {
        const assay_tensor *kept = layer_case_get(&c->out, paths[i]);
        assert_bfloat16(kept->values, kept->count);
    }
    for (int64_t i = 0; i < c->run.factor; i++) {
        assert_bfloat16(c->xs[i], c->count);
        assert_bfloat16(c->dxs[i], c->count);
    }
}

static const assay_emulation bfloat16 = {.precision = {.storage = 0x1p-9,
                                                       .multiply = 0x1p-9,
                                                       .accumulate = 0x1p-24,
                                                       .router = 0x1p-24,
                                                       .elementary = 0x1p-20},
                                         .storage = ASSAY_BFLOAT16,
                                         .multiply = ASSAY_BFLOAT16,
                                         .seed = 3};

/* What is added may have been stored, and so may a sum that is not the last, which is rounded as a partial sum is. */
TEST(test_sums_of_gradients)
{
    const int weight = BS_ROUTED + ASSAY_MLP_WO;
    assay_context ctx = assay_context_default(2);
    moe_half c;
    bs_gradient_sums sums;
    uint64_t seed = 41;
    ctx.arithmetic = &assay_arithmetic_emulated;
    ctx.emulation = &bfloat16;
    moe_half_open(&c, &shapes[2]);
    const int64_t count = c.run.sizes.shards * bs_weight_count(&c.run, BS_ROUTED + ASSAY_MLP_WO, true);
    double *sum = c.g.values[BS_ROUTED + ASSAY_MLP_WO], *before = moe_half_alloc(count);
    assert_ok(&ctx, bs_gradient_sums_open(&ctx, &c.run, &sums, &c.g, weight, weight + 1));
    for (int64_t i = 0; i < c.run.factor; i++) {
        double *each = bs_gradients_of(&sums, i)->values[BS_ROUTED + ASSAY_MLP_WO];
        memcpy(before, sum, (size_t)count * sizeof *sum);
        for (int64_t j = 0; j < count; j++) each[j] = layer_case_uniform(&seed);
        bs_add_gradients(&ctx, &c.run, &sums, i);
        assert_bfloat16(i < c.run.factor - 1 ? sum : each, count);
        for (int64_t j = 0; i == c.run.factor - 1 && j < count; j++) {
            const double exact = before[j] + each[j];
            assert_true(fabs(sum[j] - exact) <= 8 * bfloat16.precision.accumulate * fabs(exact));
        }
    }
    bs_gradient_sums_close(&sums);
    free(before);
    moe_half_close(&c);
}

/* A shard with more rows than are kept computes them again, and counts it; the bits are those of a run that keeps all.
 */
TEST(test_capacity)
{
    const moe_half_shape shape = {2, 1, 4, 2, 1, 3, 8, 2, 0, 0};
    for (int emulated = 0; emulated < 2; emulated++) {
        for (int hot = 0; hot < 2; hot++) {
            assay_context ctx = assay_context_default(2);
            if (emulated) {
                ctx.arithmetic = &assay_arithmetic_emulated;
                ctx.emulation = &bfloat16;
            }
            moe_half c, whole;
            moe_half_open(&c, &shape);
            moe_half_open(&whole, &shape);
            if (hot) heat(&c);
            if (hot) heat(&whole);
            whole.run.sizes.capacity = whole.run.sizes.copies;
            assert_ok(&ctx, moe_half_run(&ctx, &c));
            assert_ok(&ctx, moe_half_run(&ctx, &whole));
            assert_same(&c, &whole);
            const double kept = assay_remat_report_of(whole.stack.store).operations_recomputed;
            const double cut = assay_remat_report_of(c.stack.store).operations_recomputed;
            const assay_batch_split_sizes *z = &c.run.sizes;
            /* gate and shared expert of every token of both microbatches */
            assert_true(kept == 2.0 * (double)(z->shards * z->tokens) * (2 * 8 * 8 + 4 * 8 * 5));
            assert_true(kept == 2.0 * bs_moe_remat_flops(&c.run));
            /* all copies of the expert axis, on one shard of four, for two shards of data and both microbatches */
            const int32_t *sizes = layer_case_get(&c.out, "routing/layers/1/group_sizes")->indices;
            double more = 0;
            for (int64_t i = 0; i < 2 * z->shards; i++) {
                const int64_t rows = sizes[i * 2] + sizes[i * 2 + 1];
                if (rows > z->capacity) more += 4.0 * 8 * 5 * (double)rows;
            }
            if (hot) assert_true(more == 4.0 * 4 * 8 * 5 * (double)z->copies);
            assert_true(cut - kept == more);
            if (emulated) {
                assert_stored(&c);
            } else {
                assert_plain(&ctx, &c);
            }
            moe_half_close(&c);
            moe_half_close(&whole);
        }
    }
}

/* The source's choice replaces the router's: the plain block's with the same. */
TEST(test_given)
{
    assay_context ctx = assay_context_default(2);
    for (int s = 0; s < SHAPES; s++) {
        const moe_half_shape *shape = &shapes[s];
        moe_half c;
        moe_half_open(&c, shape);
        const int64_t tokens = c.run.sizes.shards * shape->factor * c.run.sizes.tokens;
        int32_t *ids =
            test_tensors_add_i32(&c.layer.in, "routing/layers/1/selected_experts", tokens * shape->per_token);
        for (int64_t t = 0; t < tokens; t++) {
            for (int64_t k = 0; k < shape->per_token; k++)
                ids[t * shape->per_token + k] = (int32_t)((t * t + 3 * t + k) % shape->experts);
        }
        assert_ok(&ctx, moe_half_run(&ctx, &c));
        assert_memory_equal(layer_case_get(&c.out, "routing/layers/1/selected_experts")->indices, ids,
                            (size_t)(tokens * shape->per_token) * sizeof *ids);
        assert_plain(&ctx, &c);
        ids[(tokens - 1) * shape->per_token] = (int32_t)shape->experts;
        moe_half_load(&c);
        assert_int_equal(moe_half_run(&ctx, &c), ASSAY_BAD_INPUT);
        assert_non_null(strstr(ctx.message, "selected_experts"));
        moe_half_close(&c);
    }
}

/* A gradient that nobody wants is left out, and the others stay as they are. */
TEST(test_unwanted)
{
    assay_context ctx = assay_context_default(1);
    for (int left_out = BS_POST_NORM; left_out <= BS_WEIGHTS; left_out++) {
        moe_half all, c;
        moe_half_open(&all, &shapes[5]);
        moe_half_open(&c, &shapes[5]);
        for (int weight = BS_POST_NORM; weight < BS_WEIGHTS; weight++) {
            if (left_out != BS_WEIGHTS && weight != left_out) continue;
            free(c.g.values[weight]);
            c.g.values[weight] = NULL;
        }
        assert_ok(&ctx, moe_half_run(&ctx, &all));
        assert_ok(&ctx, moe_half_run(&ctx, &c));
        assert_same(&c, &all);
        moe_half_close(&all);
        moe_half_close(&c);
    }
}

/* Without a backward nothing is kept; without a sink that wants anything, nothing is written. */
TEST(test_forward_only)
{
    static const char *const nothing[] = {NULL};
    assay_context ctx = assay_context_default(1);
    moe_half c, both;
    bs_deferred last = {0};
    moe_half_open(&c, &shapes[5]);
    moe_half_open(&both, &shapes[5]);
    c.out.wanted = nothing;
    assert_ok(&ctx, moe_half_run(&ctx, &both));
    assert_ok(&ctx, bs_moe(&ctx, &c.run, MOE_HALF_LAYER, c.xs, &last, NULL, &c.w));
    assert_int_equal(c.out.set.count, 0);
    assert_same_bits(c.xs[0], both.xs[0], c.count);
    assert_same_bits(last.moe_inputs, c.xs[1], c.count);
    double *y = moe_half_alloc(c.count);
    assert_ok(&ctx, bs_unroute_ubatch(&ctx, &c.run, y, &last));
    assert_same_bits(y, both.xs[1], c.count);
    free(y);
    bs_deferred_free(&last);
    moe_half_close(&c);
    moe_half_close(&both);
}

/* Every allocation fails once: no leak, no crash, and the status says so. */
TEST(test_allocation_failures)
{
    const moe_half_shape shape = {1, 1, 2, 2, 1, 1, 2, 1, 0, 0};
    assay_context ctx = assay_context_default(1);
    bool failed = true;
    for (int64_t n = 0; failed; n++) {
        moe_half c;
        moe_half_open(&c, &shape);
        heat(&c);
        c.run.sizes.capacity = 1;
        int32_t *ids = test_tensors_add_i32(&c.layer.in, "routing/layers/1/selected_experts", 4);
        for (int t = 0; t < 4; t++) ids[t] = 0;
        assay_fail_allocation(n);
        const assay_status status = moe_half_run(&ctx, &c);
        failed = !had_memory(&ctx, status);
        assert_true(failed || n > 100);
        moe_half_close(&c);
    }
}
