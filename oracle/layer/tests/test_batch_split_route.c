/* Choosing experts, sorting their copies and putting them back, on all shards. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* What each shard chooses for its own tokens is the second form's choice for them. */
static void assert_chosen(const moe_half *c, const bs_selection *selection, int64_t shard)
{
    assay_context ctx = assay_context_default(1);
    const int64_t experts = c->run.routing.num_experts, tokens = c->run.sizes.tokens;
    const int64_t first = shard * tokens, count = tokens * c->run.routing.num_experts_per_tok;
    const assay_routing *found = &selection->routing;
    quad_tensors in = {0}, out = {0};
    moe_half_give(&in, "inputs/x", tokens * DIM, DIM, c->xs[0] + first * DIM);
    moe_half_give(&in, "weights/gate/kernel", DIM * experts, experts, c->w.values[BS_GATE]);
    moe_half_give(&in, "weights/gate/bias", experts, experts, c->w.values[BS_GATE_BIAS]);
    assert_ok(&ctx, quad_evaluate(&ctx, quad_routing, &c->run.routing, &in, NULL, &out));
    moe_half_assert_near(&out, "outputs/weights", found->weights + shard * count, count);
    moe_half_assert_near(&out, "routing/margin", found->margin + first, tokens);
    assert_memory_equal(found->selected_experts + shard * count,
                        quad_tensors_find(&out, "routing/selected_experts")->indices, (size_t)count * sizeof(int32_t));
    assert_memory_equal(selection->group_sizes + shard * experts,
                        quad_tensors_find(&out, "routing/group_sizes")->indices, (size_t)experts * sizeof(int32_t));
    quad_tensors_free(&in);
    quad_tensors_free(&out);
}

TEST(test_selection)
{
    assay_context ctx = assay_context_default(2);
    for (int s = 0; s < SHAPES; s++) {
        moe_half c;
        bs_selection selection = {0};
        moe_half_open(&c, &shapes[s]);
        const bs_moe_layer at = {.run = &c.run, .w = &c.w};
        assert_ok(&ctx, bs_expert_selection(&ctx, &at, &selection, c.xs[0], NULL));
        for (int64_t shard = 0; shard < c.run.sizes.shards; shard++) assert_chosen(&c, &selection, shard);
        bs_selection_free(&selection);
        moe_half_close(&c);
    }
}

/* A selection of c->xs[0] with the choices given. */
typedef struct selecting {
    moe_half *c;
    const int32_t *given;
} selecting;

static void weights_of(void *self, double *weights)
{
    const selecting *s = self;
    assay_context ctx = assay_context_default(1);
    bs_selection selection = {0};
    const bs_moe_layer at = {.run = &s->c->run, .w = &s->c->w};
    const int64_t count = s->c->count / DIM * s->c->run.routing.num_experts_per_tok;
    assert_ok(&ctx, bs_expert_selection(&ctx, &at, &selection, s->c->xs[0], s->given));
    memcpy(weights, selection.routing.weights, (size_t)count * sizeof *weights);
    bs_selection_free(&selection);
}

/* Each shard has its own kernel. */
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
        const int64_t count = c.count / DIM * shapes[s].per_token;
        double *d_weights = moe_half_random(&seed, count), *dx = moe_half_alloc(c.count);
        assert_ok(&ctx, bs_expert_selection(&ctx, &at, &selection, c.xs[0], NULL));
        assert_ok(&ctx, bs_expert_selection_bwd(&ctx, &at, dx, d_weights, c.xs[0], &selection));
        selecting self = {&c, selection.routing.selected_experts};
        const moe_half_loss loss = {weights_of, &self, d_weights, count};
        moe_half_assert_gradient(&loss, c.xs[0], dx, c.count);
        moe_half_assert_gradient(&loss, c.w.values[BS_GATE], c.g.values[BS_GATE], shards * DIM * experts);
        for (int64_t i = 0; i < shards * experts; i++) assert_true(c.g.values[BS_GATE_BIAS][i] == 0);
        free(d_weights);
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
    assert_same_bits(routed->x + row * DIM, c->xs[0] + token * DIM, DIM);
    assert_same_bits(routed->weights + row, routed->selection.routing.weights + token * count + choice % count, 1);
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
            const int32_t *global = routed.selection.routing.selected_experts + (shard - place) * own;
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
        double *dw = moe_half_alloc(own), *back = moe_half_alloc(c.count), *sorted = moe_half_alloc(rows * DIM);
        bs_routed_gradients gradients = {integers(&seed, rows * DIM), integers(&seed, rows)};
        memcpy(c.xs[0], x, (size_t)c.count * sizeof *x);
        memcpy(routed.selection.routing.weights, w, (size_t)own * sizeof *w);
        free(routed.selected_experts);
        free(routed.weights);
        free(routed.group_sizes);
        free(routed.x);
        assert_ok(&ctx, bs_route(&ctx, &c.run, &routed));
        assert_ok(&ctx, bs_route_bwd(&ctx, &c.run, dx, dw, &gradients, routed.selected_experts));
        assert_true(moe_half_inner(routed.x, gradients.x, rows * DIM) == moe_half_inner(x, dx, c.count));
        assert_true(moe_half_inner(routed.weights, gradients.weights, rows) == moe_half_inner(w, dw, own));
        assert_ok(&ctx, bs_unroute(&ctx, &c.run, back, gradients.x, routed.selected_experts));
        assert_ok(&ctx, bs_unroute_bwd(&ctx, &c.run, sorted, x, routed.selected_experts));
        assert_true(moe_half_inner(back, x, c.count) == moe_half_inner(gradients.x, sorted, rows * DIM));
        assert_same_bits(back, dx, c.count);
        assert_same_bits(sorted, routed.x, rows * DIM);
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
        bs_deferred deferred = {integers(&seed, c.count), integers(&seed, rows * DIM), integers(&seed, c.count),
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
        assert_true(moe_half_inner(out, dout, c.count) ==
                    moe_half_inner(deferred.moe_inputs, d.moe_inputs, c.count) +
                        moe_half_inner(deferred.routed_out, d.routed_out, rows * DIM) +
                        moe_half_inner(deferred.shared_out, d.shared_out, c.count));
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
