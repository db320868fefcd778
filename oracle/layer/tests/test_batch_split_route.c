/* Choosing experts and putting their copies back: ties of groups, and what is written where it was read. The rest is certified: the cases
 * batch_split/expert-selection, route, unroute, unroute-ubatch-fn and their gradients, on 1, 2 and 8 shards. */
#include <math.h>
#include <stdlib.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/layer/tests/moe_half_case.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

/* data, fsdp, expert, factor; rows, sequence; experts, per token; groups, kept */
static const moe_half_shape shapes[] = {
    {1, 1, 1, 1, 1, 7, 4, 2, 0, 0}, {1, 1, 2, 1, 2, 3, 6, 3, 3, 2}, {2, 1, 4, 1, 1, 5, 8, 2, 4, 1},
    {1, 2, 2, 1, 1, 1, 4, 4, 0, 0}, {2, 2, 1, 1, 3, 1, 5, 1, 5, 3},
};
enum { SHAPES = sizeof shapes / sizeof *shapes, DIM = 8 };

TEST(test_group_mask)
{
    /* sums of the two largest of each pair: 5 4 4 6; the first of the equal ones; 2 tokens */
    static const double logits[] = {1, 4, 2, 2, 4, 0, 3, 3, -1, -2, -9, 9, 0, 0, -3, -4};
    static const struct {
        int64_t groups, kept;
        assay_group_score score;
        const char *mask;
    } table[] = {{4, 2, ASSAY_GROUP_TOP2_SUM, "1100001100111100"},  {4, 2, ASSAY_GROUP_MAX, "1100110000111100"},
                 {4, 3, ASSAY_GROUP_TOP2_SUM, "1111001111111100"},  {4, 4, ASSAY_GROUP_TOP2_SUM, "1111111111111111"},
                 {-1, 4, ASSAY_GROUP_TOP2_SUM, "1111111111111111"}, {2, 1, ASSAY_GROUP_TOP2_SUM, "0000111111110000"},
                 {8, 2, ASSAY_GROUP_TOP2_SUM, "0100100000011000"}};
    assay_context ctx = assay_context_default(1);
    for (size_t row = 0; row < sizeof table / sizeof *table; row++) {
        const assay_routing_config config = {.num_experts = 8,
                                             .n_routing_groups = table[row].groups,
                                             .topk_routing_group = table[row].kept,
                                             .group_score = table[row].score};
        double mask[16];
        assay_fill_nan(mask, 16);
        assert_ok(&ctx, bs_expert_group_mask(&ctx, mask, logits, 2, &config));
        for (int i = 0; i < 16; i++) assert_true(mask[i] == table[row].mask[i] - '0');
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

/* Small whole numbers, whose sums and products are exact in any order. */
static double *integers(uint64_t *seed, int64_t count)
{
    double *values = moe_half_alloc(count);
    for (int64_t i = 0; i < count; i++) values[i] = rint(50 * layer_case_uniform(seed));
    return values;
}

/* The sum may be written where its first term lies; each of the three gets dout, the routed rows a copy for every choice. */
TEST(test_unroute_ubatch)
{
    assay_context ctx = assay_context_default(2);
    for (int s = 0; s < SHAPES; s++) {
        moe_half c;
        bs_routed routed;
        uint64_t seed = 17;
        open_routed(&ctx, &c, &shapes[s], &routed);
        const int64_t rows = c.run.sizes.shards * c.run.sizes.copies;
        bs_deferred deferred = {integers(&seed, c.count), integers(&seed, rows * DIM), integers(&seed, c.count),
                                routed.selected_experts};
        bs_deferred d = {0};
        double *out = moe_half_alloc(c.count), *dout = integers(&seed, c.count);
        assert_ok(&ctx, bs_unroute_ubatch(&ctx, &c.run, out, &deferred));
        assert_ok(&ctx, bs_unroute_ubatch(&ctx, &c.run, deferred.moe_inputs, &deferred));
        assert_same_bits(deferred.moe_inputs, out, c.count);
        assert_ok(&ctx, bs_unroute_ubatch_remat_and_bwd(&ctx, &c.run, &d, routed.selected_experts, dout));
        assert_null(d.selected_experts);
        assert_same_bits(d.moe_inputs, dout, c.count);
        assert_same_bits(d.shared_out, dout, c.count);
        free(out);
        free(dout);
        deferred.selected_experts = NULL;
        bs_deferred_free(&deferred);
        bs_deferred_free(&d);
        close_routed(&c, &routed);
    }
}
