/* The shared and the routed experts of the batch-split schedule on all shards, against the second form. */
#include <stdlib.h>
#include <string.h>

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
    assay_context ctx; /* for differences: one thread */
} experts_case;

static void open_case(assay_context *ctx, experts_case *c, const moe_half_shape *shape)
{
    c->seed = 23;
    c->ctx = *ctx;
    c->ctx.threads = 1;
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

/* Each shard has a kernel of its own here. */
static void scatter_weights(experts_case *c)
{
    for (int weight = BS_GATE; weight < BS_WEIGHTS; weight++) {
        const int64_t count = c->half.run.sizes.shards * bs_weight_count(&c->half.run, weight, true);
        for (int64_t i = 0; i < count; i++) c->half.w.values[weight][i] = layer_case_uniform(&c->seed);
    }
}

/* x [count,DIM] and the kernels of a gated MLP, to the second form. */
static void second_form(quad_tensors *out, const double *x, int64_t count, const double *wi_0, const double *wi_1,
                        const double *wo)
{
    assay_context ctx = assay_context_default(1);
    const assay_gated_mlp_config config = {
        .rows = count, .emb_dim = DIM, .mlp_dim = WIDTH, .activation = {ASSAY_SILU, ASSAY_LINEAR}};
    quad_tensors in = {0};
    moe_half_give(&in, "inputs/x", count * DIM, DIM, x);
    moe_half_give(&in, "weights/wi_0/kernel", DIM * WIDTH, WIDTH, wi_0);
    moe_half_give(&in, "weights/wi_1/kernel", DIM * WIDTH, WIDTH, wi_1);
    moe_half_give(&in, "weights/wo/kernel", WIDTH * DIM, DIM, wo);
    assert_ok(&ctx, quad_evaluate(&ctx, quad_gated_mlp, &config, &in, NULL, out));
    quad_tensors_free(&in);
}

static void shared_forward(void *self, double *y)
{
    const experts_case *c = self;
    assay_context ctx = assay_context_default(1);
    assert_ok(&ctx, bs_shared_expert(&ctx, &c->at, y, c->half.xs[0]));
}

TEST(test_shared_expert)
{
    static const int weights[] = {BS_SHARED + ASSAY_MLP_WI_0, BS_SHARED + ASSAY_MLP_WI_1, BS_SHARED + ASSAY_MLP_WO};
    assay_context ctx = assay_context_default(2);
    for (int s = 0; s < SHAPES; s++) {
        experts_case c;
        open_case(&ctx, &c, &shapes[s]);
        scatter_weights(&c);
        const int64_t shards = c.half.run.sizes.shards, own = c.half.count / shards, size = DIM * WIDTH;
        double *const *w = c.half.w.values, *x = c.half.xs[0];
        double *y = moe_half_alloc(c.half.count), *dx = moe_half_alloc(c.half.count);
        double *dy = moe_half_random(&c.seed, c.half.count);
        const moe_half_loss loss = {shared_forward, &c, dy, c.half.count};
        assay_gated_mlp_residuals *shared = NULL;
        assert_ok(&ctx, bs_shared_expert(&ctx, &c.at, y, x));
        for (int64_t shard = 0; shard < shards; shard++) {
            quad_tensors out = {0};
            second_form(&out, x + shard * own, own / DIM, w[BS_SHARED + ASSAY_MLP_WI_0] + shard * size,
                        w[BS_SHARED + ASSAY_MLP_WI_1] + shard * size, w[BS_SHARED + ASSAY_MLP_WO] + shard * size);
            moe_half_assert_near(&out, "outputs/y", y + shard * own, own);
            quad_tensors_free(&out);
        }
        assert_ok(&ctx, bs_shared_expert_remat(&ctx, &c.at, &shared, x));
        assert_true(assay_remat_report_of(c.half.stack.store).operations_recomputed ==
                    4.0 * (double)c.half.count * WIDTH);
        assert_ok(&ctx, bs_shared_expert_bwd(&ctx, &c.at, dx, dy, x, shared));
        moe_half_assert_gradient(&loss, x, dx, c.half.count);
        for (int i = 0; i < 3; i++)
            moe_half_assert_gradient(&loss, w[weights[i]], c.half.g.values[weights[i]], shards * size);
        for (int64_t shard = 0; shard < shards; shard++) assay_gated_mlp_residuals_free(&shared[shard]);
        free(shared);
        free(y);
        free(dx);
        free(dy);
        close_case(&c);
    }
}

static void assert_gmm(const experts_case *c, const double *y, const bs_gmm_args *args)
{
    assay_context ctx = assay_context_default(1);
    const assay_batch_split_sizes *z = &c->half.run.sizes;
    const assay_gmm_dims dims = {z->copies, args->k, args->n, z->local_experts};
    const assay_shape groups = assay_shape_of(1, dims.groups);
    const int64_t lhs = dims.m * dims.k, rhs = dims.groups * dims.k * dims.n;
    for (int64_t shard = 0; shard < z->shards; shard++) {
        quad_tensors in = {0}, out = {0};
        moe_half_give(&in, "inputs/lhs", lhs, dims.k, args->lhs + shard * lhs);
        moe_half_give(&in, "weights/rhs", rhs, dims.n, args->rhs + shard * rhs);
        assert_ok(&ctx, quad_tensors_copy_i32(&ctx, &in, "inputs/group_sizes", &groups,
                                              args->group_sizes + shard * dims.groups));
        assert_ok(&ctx, quad_evaluate(&ctx, quad_gmm, &(quad_gmm_config){.gmm.dims = dims}, &in, NULL, &out));
        moe_half_assert_near(&out, "outputs/y", y + shard * dims.m * dims.n, dims.m * dims.n);
        quad_tensors_free(&in);
        quad_tensors_free(&out);
    }
}

/* Of each of two arrays: 0 where the other row lies beyond the groups, whose NaN reaches nothing. */
static double inner_of_rows(const experts_case *c, const double *gradient, const double *values, int64_t width)
{
    const int64_t copies = c->half.run.sizes.copies;
    double sum = 0;
    for (int64_t row = 0; row < c->rows; row++) {
        const bool own = group_of(c, row / copies, row % copies) >= 0;
        if (own) sum += moe_half_inner(gradient + row * width, values + row * width, width);
        for (int64_t i = row * width; !own && i < (row + 1) * width; i++) assert_true(gradient[i] == 0);
    }
    return sum;
}

/* What rows beyond the groups hold reaches nothing, and 0 comes out of them. */
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
        assert_gmm(&c, y, &args);
        assert_ok(&ctx, bs_gmm_bwd(&ctx, &c.half.run, dlhs[0], drhs[0], dy, &args));
        assert_ok(&ctx, bs_gmm_bwd(&ctx, &c.half.run, dlhs[1], NULL, dy, &args));
        assert_ok(&ctx, bs_gmm_bwd(&ctx, &c.half.run, NULL, drhs[1], dy, &args));
        assert_same_bits(dlhs[1], dlhs[0], c.rows * k);
        assert_same_bits(drhs[1], drhs[0], kernels);
        const double forward = inner_of_rows(&c, y, dy, n), left = inner_of_rows(&c, dlhs[0], lhs, k);
        const double right = moe_half_inner(drhs[0], rhs, kernels);
        assert_close(&left, &forward, 1, 1e-12, 1e-13);
        assert_close(&right, &forward, 1, 1e-12, 1e-13);
        double *all[] = {lhs, rhs, dy, y, dlhs[0], dlhs[1], drhs[0], drhs[1]};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
        close_case(&c);
    }
}

/* moe_mlpwi_0, moe_mlpwi_1 and y of each expert's rows are the second form's, y times the weights; all 0 beyond them. */
static void assert_computed(const experts_case *c, const double *y)
{
    const assay_batch_split_sizes *z = &c->half.run.sizes;
    double *const *w = c->half.w.values;
    for (int64_t row = 0; row < c->rows; row++) {
        const int64_t shard = row / z->copies, group = group_of(c, shard, row % z->copies);
        const int64_t kernel = (shard * z->local_experts + group) * DIM * WIDTH, h = row * WIDTH;
        quad_tensors out = {0};
        if (group >= 0) {
            second_form(&out, c->routed.x + row * DIM, 1, w[BS_ROUTED + ASSAY_MLP_WI_0] + kernel,
                        w[BS_ROUTED + ASSAY_MLP_WI_1] + kernel, w[BS_ROUTED + ASSAY_MLP_WO] + kernel);
            for (int i = 0; i < DIM; i++) quad_tensors_find(&out, "outputs/y")->values[i] *= c->routed.weights[row];
            moe_half_assert_near(&out, "checkpoints/mlpwi_0", c->gating.layer_w0 + h, WIDTH);
            moe_half_assert_near(&out, "checkpoints/mlpwi_1", c->gating.layer_w1 + h, WIDTH);
            moe_half_assert_near(&out, "outputs/y", y + row * DIM, DIM);
        }
        for (int i = 0; group < 0 && i < WIDTH; i++)
            assert_true(c->gating.layer_w0[h + i] == 0 && c->gating.layer_w1[h + i] == 0);
        for (int i = 0; group < 0 && i < DIM; i++) assert_true(y[row * DIM + i] == 0);
        quad_tensors_free(&out);
    }
}

static void compute_forward(void *self, double *y)
{
    experts_case *c = self;
    assay_context ctx = c->ctx;
    assert_ok(&ctx, bs_compute(&ctx, &c->at, y, &c->gating, &c->routed));
}

static void linear_forward(void *self, double *y)
{
    experts_case *c = self;
    assay_context ctx = c->ctx;
    assert_ok(&ctx, bs_compute_linear(&ctx, &c->at, y, &c->gating, &c->routed));
}

/* Both forms of the weight's place; the arithmetic stays the reference. */
TEST(test_compute)
{
    static const int weights[] = {BS_ROUTED + ASSAY_MLP_WI_0, BS_ROUTED + ASSAY_MLP_WI_1, BS_ROUTED + ASSAY_MLP_WO};
    for (int s = 0; s < 2 * SHAPES; s++) {
        const assay_emulation form = {.second_form = s % 2 == 1};
        assay_context ctx = assay_context_default(2);
        experts_case c;
        ctx.emulation = &form;
        open_case(&ctx, &c, &shapes[s / 2]);
        scatter_weights(&c);
        const int64_t wide = c.rows * WIDTH, count = c.rows * DIM;
        double *y = moe_half_alloc(count), *dy = moe_half_random(&c.seed, count);
        double *dx = moe_half_alloc(count), *d_weights = moe_half_alloc(c.rows);
        bs_gating d = {moe_half_alloc(wide), moe_half_alloc(wide)};
        bs_routed_gradients g = {moe_half_alloc(count), moe_half_alloc(c.rows)};
        const moe_half_loss linear = {linear_forward, &c, dy, count}, both = {compute_forward, &c, dy, count};
        assert_ok(&ctx, bs_compute(&ctx, &c.at, y, &c.gating, &c.routed));
        assert_computed(&c, y);
        assert_ok(&ctx, bs_compute_linear_bwd(&ctx, &c.at, &d, d_weights, dy, &c.gating, &c.routed));
        moe_half_assert_gradient(&linear, c.gating.layer_w0, d.layer_w0, wide);
        moe_half_assert_gradient(&linear, c.gating.layer_w1, d.layer_w1, wide);
        moe_half_assert_gradient(&linear, c.routed.weights, d_weights, c.rows);
        assert_ok(&ctx, bs_compute_gating_bwd(&ctx, &c.at, dx, &d, &c.routed));
        moe_half_assert_gradient(&both, c.routed.x, dx, count);
        for (int i = 0; i < 3; i++) {
            moe_half_assert_gradient(&both, c.half.w.values[weights[i]], c.half.g.values[weights[i]],
                                     c.half.run.sizes.shards * bs_weight_count(&c.half.run, weights[i], true));
        }
        /* the two steps make the stage */
        assert_ok(&ctx, bs_compute_bwd(&ctx, &c.at, &g, dy, &c.gating, &c.routed));
        assert_same_bits(g.x, dx, count);
        assert_same_bits(g.weights, d_weights, c.rows);
        double *all[] = {y, dy, dx, d_weights};
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
