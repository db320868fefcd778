/* Choosing experts, sorting their copies and putting them back, on all shards. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/layer/tests/moe_half_case.h"
#include "tests/support/assay_test.h"

/* data, fsdp, expert, factor; rows, sequence; experts, per token; groups, kept */
static const moe_half_shape shapes[] = {
    {1, 1, 1, 1, 1, 7, 4, 2, 0, 0}, {1, 1, 2, 1, 2, 3, 6, 3, 3, 2}, {2, 1, 4, 1, 1, 5, 8, 2, 4, 1},
    {1, 2, 2, 1, 1, 1, 4, 4, 0, 0}, {2, 2, 1, 1, 3, 1, 5, 1, 5, 3},
};
enum { SHAPES = sizeof shapes / sizeof *shapes, NO_GROUPS = -1 };

static void assert_mask(const double *logits, const double *expected, int64_t tokens,
                        const assay_routing_config *config)
{
    assay_context ctx = assay_context_default(1);
    double *mask = moe_half_alloc(tokens * config->num_experts);
    assert_ok(&ctx, bs_expert_group_mask(&ctx, mask, logits, tokens, config));
    assert_same_bits(mask, expected, tokens * config->num_experts);
    free(mask);
}

TEST(test_group_mask)
{
    /* sums of the two largest of each pair: 5 4 4 6; the first of the equal ones; 2 tokens */
    const double logits[] = {1, 4, 2, 2, 4, 0, 3, 3, -1, -2, -9, 9, 0, 0, -3, -4};
    const double two[] = {1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 1, 0, 0};
    const double three[] = {1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0};
    const double largest[] = {1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0};
    const double all[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const double halves[] = {0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0};
    const double single[] = {0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0};
    assay_routing_config config = {.num_experts = 8, .n_routing_groups = 4, .topk_routing_group = 2};
    assert_mask(logits, two, 2, &config);
    config.group_score = ASSAY_GROUP_MAX;
    assert_mask(logits, largest, 2, &config);
    config.group_score = ASSAY_GROUP_TOP2_SUM;
    config.topk_routing_group = 3;
    assert_mask(logits, three, 2, &config);
    config.topk_routing_group = 4;
    assert_mask(logits, all, 2, &config);
    config.n_routing_groups = NO_GROUPS;
    assert_mask(logits, all, 2, &config);
    config.n_routing_groups = 2;
    config.topk_routing_group = 1;
    assert_mask(logits, halves, 2, &config);
    config.n_routing_groups = 8;
    config.topk_routing_group = 2;
    assert_mask(logits, single, 2, &config);
}

/* The best `count` of what the mask leaves, best first, the lower index first among equals. */
static void choose(int32_t *chosen, const double *values, const double *mask, int64_t experts, int64_t count)
{
    for (int64_t k = 0; k < count; k++) {
        chosen[k] = -1;
        for (int32_t e = 0; e < experts; e++) {
            bool taken = mask[e] == 0;
            for (int64_t i = 0; i < k; i++) taken |= chosen[i] == e;
            if (!taken && (chosen[k] < 0 || values[e] > values[chosen[k]])) chosen[k] = e;
        }
    }
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* Logits, choices, weights and group sizes from their formulas; the choice by way of the mask. */
TEST(test_selection)
{
    assay_context ctx = assay_context_default(2);
    for (int s = 0; s < SHAPES; s++) {
        moe_half c;
        bs_selection selection = {0};
        moe_half_open(&c, &shapes[s]);
        const bs_moe_layer at = {.run = &c.run, .w = &c.w};
        const int64_t experts = shapes[s].experts, count = shapes[s].per_token, dim = 8;
        const int64_t tokens = c.run.sizes.tokens, all = c.run.sizes.shards * tokens;
        const double *bias = c.w.values[BS_GATE_BIAS], *kernel = c.w.values[BS_GATE];
        assert_ok(&ctx, bs_expert_selection(&ctx, &at, &selection, c.xs[0], NULL));
        double *biased = moe_half_alloc(experts), *mask = moe_half_alloc(experts);
        int32_t *sizes = calloc((size_t)(c.run.sizes.shards * experts), sizeof *sizes);
        for (int64_t t = 0; t < all; t++) {
            int32_t chosen[8];
            double expected[8], sum = 0;
            for (int64_t e = 0; e < experts; e++) {
                double logit = 0;
                for (int64_t d = 0; d < dim; d++) logit += c.xs[0][t * dim + d] * kernel[d * experts + e];
                assert_close(&selection.logits[t * experts + e], &logit, 1, 0, 1e-14);
                biased[e] = sigmoid(logit) + bias[e];
            }
            assert_ok(&ctx, bs_expert_group_mask(&ctx, mask, biased, 1, &c.run.routing));
            choose(chosen, biased, mask, experts, count);
            assert_memory_equal(chosen, selection.selected_experts + t * count, (size_t)count * sizeof *chosen);
            for (int64_t k = 0; k < count; k++) sum += biased[chosen[k]] - bias[chosen[k]];
            for (int64_t k = 0; k < count; k++) {
                expected[k] = 2.5 * (biased[chosen[k]] - bias[chosen[k]]) / sum;
                sizes[t / tokens * experts + chosen[k]]++;
            }
            assert_close(selection.weights + t * count, expected, count, 1e-13, 0);
        }
        assert_memory_equal(selection.group_sizes, sizes, (size_t)(c.run.sizes.shards * experts) * sizeof *sizes);
        free(biased);
        free(mask);
        free(sizes);
        bs_selection_free(&selection);
        moe_half_close(&c);
    }
}

/* sum of d_weights * weights of a selection of x with the choices given */
static double objective(assay_context *ctx, const bs_moe_layer *at, const double *x, const int32_t *given,
                        const double *d_weights)
{
    double sum = 0;
    bs_selection selection = {0};
    const int64_t count = at->run->sizes.shards * at->run->sizes.tokens * at->run->routing.num_experts_per_tok;
    assert_ok(ctx, bs_expert_selection(ctx, at, &selection, x, given));
    for (int64_t i = 0; i < count; i++) sum += d_weights[i] * selection.weights[i];
    bs_selection_free(&selection);
    return sum;
}

/* Central differences of the objective by each value; each shard has its own kernel. */
static void assert_differences(assay_context *ctx, const bs_moe_layer *at, double *values, const double *gradient,
                               int64_t count, const double *x, const int32_t *given, const double *d_weights)
{
    const double step = 0x1p-17;
    for (int64_t i = 0; i < count; i++) {
        const double before = values[i];
        values[i] = before + step;
        double difference = objective(ctx, at, x, given, d_weights);
        values[i] = before - step;
        difference = (difference - objective(ctx, at, x, given, d_weights)) / (2 * step);
        values[i] = before;
        assert_close(&gradient[i], &difference, 1, 1e-7, 1e-8);
    }
}

TEST(test_selection_bwd)
{
    assay_context ctx = assay_context_default(2);
    for (int s = 0; s < SHAPES; s++) {
        moe_half c;
        uint64_t seed = 5;
        bs_selection selection = {0};
        moe_half_open(&c, &shapes[s]);
        const bs_moe_layer at = {.run = &c.run, .w = &c.w, .g = &c.g};
        const int64_t shards = c.run.sizes.shards, experts = shapes[s].experts;
        double *d_weights = moe_half_random(&seed, shards * c.run.sizes.copies / c.run.sizes.expert_shards);
        double *dx = moe_half_alloc(c.count), *d_logits = moe_half_alloc(shards * c.run.sizes.tokens * experts);
        assert_ok(&ctx, bs_expert_selection(&ctx, &at, &selection, c.xs[0], NULL));
        assert_ok(&ctx, bs_expert_selection_bwd(&ctx, &at, dx, d_weights, c.xs[0], &selection));
        const int32_t *given = selection.selected_experts;
        assert_differences(&ctx, &at, c.xs[0], dx, c.count, c.xs[0], given, d_weights);
        assert_differences(&ctx, &at, c.w.values[BS_GATE], c.g.values[BS_GATE], shards * 8 * experts, c.xs[0], given,
                           d_weights);
        for (int64_t i = 0; i < shards * experts; i++) assert_true(c.g.values[BS_GATE_BIAS][i] == 0);
        /* through the formula alone: dx = d_logits kernel^T */
        assert_ok(&ctx, bs_expert_indices_and_weights_bwd(&ctx, &c.run, d_logits, NULL, d_weights, &selection, &c.w));
        for (int64_t i = 0; i < c.count; i++) {
            double sum = 0;
            for (int64_t e = 0; e < experts; e++)
                sum = fma(d_logits[i / 8 * experts + e], c.w.values[BS_GATE][i % 8 * experts + e], sum);
            assert_same_bits(&dx[i], &sum, 1);
        }
        free(d_weights);
        free(d_logits);
        free(dx);
        bs_selection_free(&selection);
        moe_half_close(&c);
    }
}

/* A routed microbatch of which x_norm is c->xs[0]. */
static void open_routed(assay_context *ctx, moe_half *c, const moe_half_shape *shape, bs_routed *routed)
{
    moe_half_open(c, shape);
    const bs_moe_layer at = {.run = &c->run, .w = &c->w};
    *routed = (bs_routed){.x_norm = c->xs[0]};
    assert_ok(ctx, bs_expert_selection(ctx, &at, &routed->selection, c->xs[0], NULL));
    assert_ok(ctx, bs_route(ctx, &c->run, routed));
}

static void close_routed(moe_half *c, bs_routed *routed)
{
    routed->x_norm = NULL;
    bs_routed_free(routed, &c->run);
    moe_half_close(c);
}

/* Copy j of a shard's sorted rows comes from choice `choice` of its expert axis, whose shards begin at `first`. */
static void assert_copy(const moe_half *c, const bs_routed *routed, int64_t shard, int64_t j, int64_t choice)
{
    const int64_t count = c->run.routing.num_experts_per_tok, tokens = c->run.sizes.tokens;
    const int64_t first = shard - shard % c->run.sizes.expert_shards;
    const int64_t token = first * tokens + choice / count, row = shard * c->run.sizes.copies + j;
    assert_same_bits(routed->x + row * 8, c->xs[0] + token * 8, 8);
    assert_same_bits(routed->weights + row, routed->selection.weights + token * count + choice % count, 1);
}

/* Rolled ids, then for each of them in ascending order the copies in the order of choices. */
TEST(test_route)
{
    assay_context ctx = assay_context_default(2);
    for (int s = 0; s < SHAPES; s++) {
        moe_half c;
        bs_routed routed;
        open_routed(&ctx, &c, &shapes[s], &routed);
        const assay_batch_split_sizes *z = &c.run.sizes;
        const int64_t own = z->copies / z->expert_shards, experts = shapes[s].experts;
        for (int64_t shard = 0; shard < z->shards; shard++) {
            const int64_t place = shard % z->expert_shards;
            const int32_t *ids = routed.selected_experts + shard * z->copies;
            const int32_t *global = routed.selection.selected_experts + (shard - place) * own;
            int64_t j = 0;
            for (int64_t id = 0; id < experts; id++) {
                const int64_t before = j;
                for (int64_t i = 0; i < z->copies; i++) {
                    if ((global[i] + experts - place * z->local_experts) % experts != id) continue;
                    assert_int_equal(ids[i], id);
                    assert_copy(&c, &routed, shard, j++, i);
                }
                if (id < z->local_experts) {
                    assert_int_equal(routed.group_sizes[shard * z->local_experts + id], j - before);
                }
            }
            assert_int_equal(j, z->copies);
        }
        close_routed(&c, &routed);
    }
}

/* Small whole numbers, whose sums and products are exact in any order. */
static double *integers(uint64_t *seed, int64_t count)
{
    double *values = moe_half_alloc(count);
    for (int64_t i = 0; i < count; i++) values[i] = rint(50 * layer_case_uniform(seed));
    return values;
}

static double inner(const double *a, const double *b, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

/* <route x, y> = <x, route_bwd y>, of rows and of weights, and the other way round for unroute: exactly. */
TEST(test_transposes)
{
    assay_context ctx = assay_context_default(2);
    for (int s = 0; s < SHAPES; s++) {
        moe_half c;
        bs_routed routed;
        uint64_t seed = 11;
        open_routed(&ctx, &c, &shapes[s], &routed);
        const int64_t rows = c.run.sizes.shards * c.run.sizes.copies, own = rows / c.run.sizes.expert_shards;
        double *x = integers(&seed, c.count), *w = integers(&seed, own), *dx = moe_half_alloc(c.count);
        double *dw = moe_half_alloc(own), *back = moe_half_alloc(c.count), *sorted = moe_half_alloc(rows * 8);
        bs_routed_gradients gradients = {integers(&seed, rows * 8), integers(&seed, rows)};
        memcpy(c.xs[0], x, (size_t)c.count * sizeof *x);
        memcpy(routed.selection.weights, w, (size_t)own * sizeof *w);
        free(routed.selected_experts);
        free(routed.weights);
        free(routed.group_sizes);
        free(routed.x);
        assert_ok(&ctx, bs_route(&ctx, &c.run, &routed));
        assert_ok(&ctx, bs_route_bwd(&ctx, &c.run, dx, dw, &gradients, routed.selected_experts));
        assert_true(inner(routed.x, gradients.x, rows * 8) == inner(x, dx, c.count));
        assert_true(inner(routed.weights, gradients.weights, rows) == inner(w, dw, own));
        assert_ok(&ctx, bs_unroute(&ctx, &c.run, back, gradients.x, routed.selected_experts));
        assert_ok(&ctx, bs_unroute_bwd(&ctx, &c.run, sorted, x, routed.selected_experts));
        assert_true(inner(back, x, c.count) == inner(gradients.x, sorted, rows * 8));
        assert_same_bits(back, dx, c.count);
        assert_same_bits(sorted, routed.x, rows * 8);
        free(x);
        free(w);
        free(dx);
        free(dw);
        free(back);
        free(sorted);
        bs_routed_gradients_free(&gradients);
        close_routed(&c, &routed);
    }
}

/* Rows of ones where a shard's own experts are, and 0 beyond: every token gets K back, whichever shards its experts are
 * on. */
TEST(test_unroute)
{
    assay_context ctx = assay_context_default(2);
    for (int s = 0; s < SHAPES; s++) {
        moe_half c;
        bs_routed routed;
        open_routed(&ctx, &c, &shapes[s], &routed);
        const assay_batch_split_sizes *z = &c.run.sizes;
        double *sorted = calloc((size_t)(z->shards * z->copies * 8), sizeof *sorted), *out = moe_half_alloc(c.count);
        for (int64_t shard = 0; shard < z->shards; shard++) {
            int64_t rows = 0;
            for (int64_t e = 0; e < z->local_experts; e++) rows += routed.group_sizes[shard * z->local_experts + e];
            for (int64_t i = 0; i < rows * 8; i++) sorted[shard * z->copies * 8 + i] = 1;
        }
        assert_ok(&ctx, bs_unroute(&ctx, &c.run, out, sorted, routed.selected_experts));
        for (int64_t i = 0; i < c.count; i++) assert_true(out[i] == (double)shapes[s].per_token);
        free(sorted);
        free(out);
        close_routed(&c, &routed);
    }
}

/* out = inputs + (unroute(routed) + shared); each of the three gets dout, the routed rows a copy for every choice. */
TEST(test_unroute_ubatch)
{
    assay_context ctx = assay_context_default(2);
    for (int s = 0; s < SHAPES; s++) {
        moe_half c;
        bs_routed routed;
        uint64_t seed = 17;
        open_routed(&ctx, &c, &shapes[s], &routed);
        const int64_t rows = c.run.sizes.shards * c.run.sizes.copies;
        bs_deferred deferred = {integers(&seed, c.count), integers(&seed, rows * 8), integers(&seed, c.count),
                                routed.selected_experts};
        bs_deferred d = {0};
        double *out = moe_half_alloc(c.count), *back = moe_half_alloc(c.count), *dout = integers(&seed, c.count);
        assert_ok(&ctx, bs_unroute_ubatch(&ctx, &c.run, out, &deferred));
        assert_ok(&ctx, bs_unroute(&ctx, &c.run, back, deferred.routed_out, routed.selected_experts));
        for (int64_t i = 0; i < c.count; i++)
            assert_true(out[i] == deferred.moe_inputs[i] + back[i] + deferred.shared_out[i]);
        assert_ok(&ctx, bs_unroute_ubatch_remat_and_bwd(&ctx, &c.run, &d, routed.selected_experts, dout));
        assert_null(d.selected_experts);
        assert_same_bits(d.moe_inputs, dout, c.count);
        assert_same_bits(d.shared_out, dout, c.count);
        assert_true(inner(out, dout, c.count) == inner(deferred.moe_inputs, d.moe_inputs, c.count) +
                                                     inner(deferred.routed_out, d.routed_out, rows * 8) +
                                                     inner(deferred.shared_out, d.shared_out, c.count));
        assert_ok(&ctx, bs_unroute_ubatch(&ctx, &c.run, deferred.moe_inputs, &deferred));
        assert_same_bits(deferred.moe_inputs, out, c.count);
        free(out);
        free(back);
        free(dout);
        deferred.selected_experts = NULL;
        bs_deferred_free(&deferred);
        bs_deferred_free(&d);
        close_routed(&c, &routed);
    }
}
