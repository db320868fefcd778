/* The experts of the batch-split schedule on all shards: what rows beyond the groups do, the stages of which a function is made, and what
 * is computed again. Their numbers are certified: the cases batch_split/gmm, compute-gating, compute-linear, shared-expert. */
#include <math.h>
#include <stdlib.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/emulated.h"
#include "oracle/layer/tests/moe_half_case.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

/* data, fsdp, expert, factor; rows, sequence; experts, per token; groups, kept */
static const moe_half_shape shapes[] = {
    {1, 1, 1, 1, 1, 5, 4, 2, 0, 0},
    {1, 1, 2, 1, 1, 3, 4, 1, 0, 0},
    {2, 1, 4, 1, 1, 2, 8, 3, 0, 0},
    {1, 2, 2, 1, 1, 1, 4, 4, 0, 0},
};
enum { SHAPES = sizeof shapes / sizeof *shapes, DIM = 8, WIDTH = 5 };

/* A microbatch that was routed, with rows and weights of random numbers. */
typedef struct experts_case {
    moe_half half;
    bs_moe_layer at;
    bs_routed routed;
    bs_gating gating;
    int64_t rows; /* of all shards, those beyond their experts' included */
    uint64_t seed;
} experts_case;

static void open_case(assay_context *ctx, experts_case *c, const moe_half_shape *shape)
{
    c->seed = 23;
    c->routed = (bs_routed){0};
    c->gating = (bs_gating){0};
    moe_half_open(&c->half, shape);
    c->at = (bs_moe_layer){.run = &c->half.run, .w = &c->half.w, .g = &c->half.g};
    c->rows = c->half.run.sizes.shards * c->half.run.sizes.copies;
    assert_ok(ctx, bs_shared_expert_and_route(ctx, &c->at, &c->routed, c->half.xs[0], NULL));
    free(c->routed.x);
    c->routed.x = moe_half_random(&c->seed, c->rows * DIM);
    c->gating.layer_w0 = moe_half_alloc(c->rows * WIDTH);
    c->gating.layer_w1 = moe_half_alloc(c->rows * WIDTH);
}

static void close_case(experts_case *c)
{
    bs_routed_free(&c->routed, &c->half.run);
    bs_gating_free(&c->gating);
    moe_half_close(&c->half);
}

/* The expert of row j of a shard among its own; -1: beyond them. */
static int64_t group_of(const experts_case *c, int64_t shard, int64_t j)
{
    const int64_t local = c->half.run.sizes.local_experts;
    for (int64_t e = 0; e < local; e++) {
        j -= c->routed.group_sizes[shard * local + e];
        if (j < 0) return e;
    }
    return -1;
}

/* 0 where the row lies beyond the groups, whose NaN reaches nothing. */
static void assert_rows(const experts_case *c, const double *values, int64_t width)
{
    const int64_t copies = c->half.run.sizes.copies;
    for (int64_t row = 0; row < c->rows; row++) {
        const bool own = group_of(c, row / copies, row % copies) >= 0;
        for (int64_t i = row * width; i < (row + 1) * width; i++)
            assert_true(own ? isfinite(values[i]) : values[i] == 0);
    }
}

/* What rows beyond the groups hold reaches nothing, and 0 comes out of them; each gradient alone has the same bits. */
TEST(test_gmm)
{
    assay_context ctx = assay_context_default(2);
    for (int s = 0; s < SHAPES; s++) {
        experts_case c;
        open_case(&ctx, &c, &shapes[s]);
        const int64_t k = 3, n = 4, copies = c.half.run.sizes.copies;
        const int64_t kernels = c.half.run.sizes.shards * c.half.run.sizes.local_experts * k * n;
        double *lhs = moe_half_random(&c.seed, c.rows * k), *rhs = moe_half_random(&c.seed, kernels);
        double *dy = moe_half_random(&c.seed, c.rows * n), *y = moe_half_alloc(c.rows * n);
        double *dlhs[] = {moe_half_alloc(c.rows * k), moe_half_alloc(c.rows * k)};
        double *drhs[] = {moe_half_alloc(kernels), moe_half_alloc(kernels)};
        const bs_gmm_args args = {.lhs = lhs, .rhs = rhs, .group_sizes = c.routed.group_sizes, .k = k, .n = n};
        for (int64_t row = 0; row < c.rows; row++) {
            if (group_of(&c, row / copies, row % copies) >= 0) continue;
            assay_fill_nan(lhs + row * k, k);
            assay_fill_nan(dy + row * n, n);
        }
        assert_ok(&ctx, bs_gmm(&ctx, &c.half.run, y, &args));
        assert_rows(&c, y, n);
        assert_ok(&ctx, bs_gmm_bwd(&ctx, &c.half.run, dlhs[0], drhs[0], dy, &args));
        assert_ok(&ctx, bs_gmm_bwd(&ctx, &c.half.run, dlhs[1], NULL, dy, &args));
        assert_ok(&ctx, bs_gmm_bwd(&ctx, &c.half.run, NULL, drhs[1], dy, &args));
        assert_rows(&c, dlhs[0], k);
        for (int64_t i = 0; i < kernels; i++) assert_true(isfinite(drhs[0][i]));
        assert_same_bits(dlhs[1], dlhs[0], c.rows * k);
        assert_same_bits(drhs[1], drhs[0], kernels);
        double *all[] = {lhs, rhs, dy, y, dlhs[0], dlhs[1], drhs[0], drhs[1]};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
        close_case(&c);
    }
}

/* The two steps make the stage, and the weight may stand before or behind wo. */
TEST(test_compute)
{
    for (int s = 0; s < SHAPES; s++) {
        const assay_emulation behind = {.second_form = true};
        assay_context ctx = assay_context_default(2), other = ctx;
        experts_case c;
        other.emulation = &behind;
        open_case(&ctx, &c, &shapes[s]);
        const int64_t wide = c.rows * WIDTH, count = c.rows * DIM;
        double *y = moe_half_alloc(count), *y_behind = moe_half_alloc(count), *dy = moe_half_random(&c.seed, count);
        double *dx = moe_half_alloc(count), *d_weights = moe_half_alloc(c.rows);
        bs_gating d = {moe_half_alloc(wide), moe_half_alloc(wide)};
        bs_routed_gradients g = {moe_half_alloc(count), moe_half_alloc(c.rows)};
        assert_ok(&ctx, bs_compute(&other, &c.at, y_behind, &c.gating, &c.routed));
        assert_ok(&ctx, bs_compute(&ctx, &c.at, y, &c.gating, &c.routed));
        assert_close(y_behind, y, count, 1e-12, 1e-14);
        assert_rows(&c, y, DIM);
        assert_rows(&c, c.gating.layer_w0, WIDTH);
        assert_ok(&ctx, bs_compute_linear_bwd(&ctx, &c.at, &d, d_weights, dy, &c.gating, &c.routed));
        assert_ok(&ctx, bs_compute_gating_bwd(&ctx, &c.at, dx, &d, &c.routed));
        assert_ok(&ctx, bs_compute_bwd(&ctx, &c.at, &g, dy, &c.gating, &c.routed));
        assert_same_bits(g.x, dx, count);
        assert_same_bits(g.weights, d_weights, c.rows);
        double *all[] = {y, y_behind, dy, dx, d_weights};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
        bs_routed_gradients_free(&g);
        bs_gating_free(&d);
        close_case(&c);
    }
}

/* _remat makes what forward had, but for the shared expert's output, of which it makes the way there. */
TEST(test_route_remat)
{
    assay_context ctx = assay_context_default(2);
    for (int s = 0; s < SHAPES; s++) {
        moe_half c;
        bs_routed forward = {0}, again = {0};
        moe_half_open(&c, &shapes[s]);
        const bs_moe_layer at = {.run = &c.run, .w = &c.w};
        const int64_t rows = c.run.sizes.shards * c.run.sizes.copies;
        assert_ok(&ctx, bs_shared_expert_and_route(&ctx, &at, &forward, c.xs[0], NULL));
        assert_ok(&ctx, bs_shared_expert_and_route_remat(&ctx, &at, &again, c.xs[0], NULL));
        assert_null(forward.shared);
        assert_null(again.shared_out);
        assert_same_bits(again.x_norm, forward.x_norm, c.count);
        assert_same_bits(again.rstd, forward.rstd, c.count / DIM);
        assert_same_bits(again.x, forward.x, rows * DIM);
        assert_same_bits(again.weights, forward.weights, rows);
        assert_memory_equal(again.selected_experts, forward.selected_experts, (size_t)rows * sizeof(int32_t));
        assert_true(assay_remat_report_of(c.stack.store).operations_recomputed == bs_moe_remat_flops(&c.run));
        bs_routed_free(&forward, &c.run);
        bs_routed_free(&again, &c.run);
        moe_half_close(&c);
    }
}

/* A shard's mlpwi_0 and mlpwi_1 come from the residuals and zeros while its rows are no more than were kept, else from
 * a product. */
TEST(test_compute_remat)
{
    assay_context ctx = assay_context_default(2);
    for (int64_t capacity = 0; capacity <= 12; capacity++) {
        experts_case c;
        open_case(&ctx, &c, &shapes[2]);
        assay_batch_split_sizes *z = &c.half.run.sizes;
        const int64_t held = z->shards * capacity * WIDTH;
        double expected = 0;
        bs_gating again = {moe_half_alloc(c.rows * WIDTH), moe_half_alloc(c.rows * WIDTH)};
        bs_residuals residuals = {.mlpwi_0 = {NULL, moe_half_random(&c.seed, held)},
                                  .mlpwi_1 = {NULL, moe_half_random(&c.seed, held)}};
        z->capacity = capacity;
        assert_ok(&ctx, bs_compute_gating(&ctx, &c.at, &c.gating, &c.routed));
        assert_ok(&ctx, bs_compute_remat(&ctx, &c.at, &again, &c.routed, &residuals, 1));
        for (int64_t shard = 0; shard < z->shards; shard++) {
            int64_t rows = 0;
            while (rows < z->copies && group_of(&c, shard, rows) >= 0) rows++;
            const int64_t first = shard * z->copies * WIDTH, kept = capacity * WIDTH, size = z->copies * WIDTH;
            if (rows > capacity) {
                assert_same_bits(again.layer_w0 + first, c.gating.layer_w0 + first, size);
                assert_same_bits(again.layer_w1 + first, c.gating.layer_w1 + first, size);
                expected += 4.0 * (double)rows * DIM * WIDTH;
            } else {
                assert_same_bits(again.layer_w0 + first, residuals.mlpwi_0[1] + shard * kept, kept);
                assert_same_bits(again.layer_w1 + first, residuals.mlpwi_1[1] + shard * kept, kept);
                for (int64_t i = first + kept; i < first + size; i++) {
                    assert_true(again.layer_w0[i] == 0 && again.layer_w1[i] == 0);
                }
            }
        }
        assert_true(assay_remat_report_of(c.half.stack.store).operations_recomputed == expected);
        bs_gating_free(&again);
        free(residuals.mlpwi_0[1]);
        free(residuals.mlpwi_1[1]);
        close_case(&c);
    }
}
