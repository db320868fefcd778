/* The shared and the routed experts of the batch-split schedule on all shards, against their formulas. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/emulated.h"
#include "oracle/layer/tests/moe_half_case.h"
#include "tests/support/assay_test.h"

/* data, fsdp, expert, factor; rows, sequence; experts, per token; groups, kept */
static const moe_half_shape shapes[] = {
    {1, 1, 1, 1, 1, 5, 4, 2, 0, 0},
    {1, 1, 2, 1, 1, 3, 4, 1, 0, 0},
    {2, 1, 4, 1, 1, 2, 8, 3, 0, 0},
    {1, 2, 2, 1, 1, 1, 4, 4, 0, 0},
};
enum { SHAPES = sizeof shapes / sizeof *shapes, DIM = 8, WIDTH = 5 };

static double silu(double x)
{
    return x / (1 + exp(-x));
}

static double inner(const double *a, const double *b, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

/* sum over i of x[i] w[i,column], w [k,n] */
static double product(const double *x, const double *w, int64_t k, int64_t n, int64_t column)
{
    double sum = 0;
    for (int64_t i = 0; i < k; i++) sum += x[i] * w[i * n + column];
    return sum;
}

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

static void expected_shared(const experts_case *c, double *y, const double *x)
{
    const bs_run *run = &c->half.run;
    for (int64_t t = 0; t < run->sizes.shards * run->sizes.tokens; t++) {
        const int64_t kernel = t / run->sizes.tokens * DIM * WIDTH;
        double h[WIDTH];
        for (int64_t f = 0; f < WIDTH; f++) {
            h[f] = silu(product(x + t * DIM, c->half.w.values[BS_SHARED + ASSAY_MLP_WI_0] + kernel, DIM, WIDTH, f)) *
                   product(x + t * DIM, c->half.w.values[BS_SHARED + ASSAY_MLP_WI_1] + kernel, DIM, WIDTH, f);
        }
        for (int64_t d = 0; d < DIM; d++)
            y[t * DIM + d] = product(h, c->half.w.values[BS_SHARED + ASSAY_MLP_WO] + kernel, WIDTH, DIM, d);
    }
}

/* Each shard has a kernel of its own here. */
static void scatter_weights(experts_case *c)
{
    for (int weight = BS_GATE; weight < BS_WEIGHTS; weight++) {
        const int64_t count = c->half.run.sizes.shards * bs_weight_count(&c->half.run, weight, true);
        for (int64_t i = 0; i < count; i++) c->half.w.values[weight][i] = layer_case_uniform(&c->seed);
    }
}

TEST(test_shared_expert)
{
    assay_context ctx = assay_context_default(2);
    for (int s = 0; s < SHAPES; s++) {
        experts_case c;
        open_case(&ctx, &c, &shapes[s]);
        scatter_weights(&c);
        const int64_t count = c.half.count;
        double *y = moe_half_alloc(count), *expected = moe_half_alloc(count);
        assert_ok(&ctx, bs_shared_expert(&ctx, &c.at, y, c.half.xs[0]));
        expected_shared(&c, expected, c.half.xs[0]);
        assert_close(y, expected, count, 1e-13, 1e-14);
        free(y);
        free(expected);
        close_case(&c);
    }
}

/* <dy, y> by central differences of every value. */
static void assert_shared_differences(const experts_case *c, double *values, const double *gradient, int64_t count,
                                      const double *dy)
{
    const double step = 0x1p-17;
    double *y = moe_half_alloc(c->half.count);
    for (int64_t i = 0; i < count; i++) {
        const double before = values[i];
        values[i] = before + step;
        expected_shared(c, y, c->half.xs[0]);
        double difference = inner(dy, y, c->half.count);
        values[i] = before - step;
        expected_shared(c, y, c->half.xs[0]);
        difference = (difference - inner(dy, y, c->half.count)) / (2 * step);
        values[i] = before;
        assert_close(&gradient[i], &difference, 1, 1e-7, 1e-7);
    }
    free(y);
}

TEST(test_shared_expert_bwd)
{
    static const int weights[] = {BS_SHARED + ASSAY_MLP_WI_0, BS_SHARED + ASSAY_MLP_WI_1, BS_SHARED + ASSAY_MLP_WO};
    assay_context ctx = assay_context_default(2);
    for (int s = 0; s < SHAPES; s++) {
        experts_case c;
        open_case(&ctx, &c, &shapes[s]);
        scatter_weights(&c);
        const bs_run *run = &c.half.run;
        double *dx = moe_half_alloc(c.half.count), *dy = moe_half_random(&c.seed, c.half.count);
        assay_gated_mlp_residuals *shared = NULL;
        assert_ok(&ctx, bs_shared_expert_remat(&ctx, &c.at, &shared, c.half.xs[0]));
        assert_true(assay_remat_report_of(c.half.stack.store).operations_recomputed ==
                    4.0 * (double)(run->sizes.shards * run->sizes.tokens) * DIM * WIDTH);
        assert_ok(&ctx, bs_shared_expert_bwd(&ctx, &c.at, dx, dy, c.half.xs[0], shared));
        assert_shared_differences(&c, c.half.xs[0], dx, c.half.count, dy);
        for (int i = 0; i < 3; i++) {
            assert_shared_differences(&c, c.half.w.values[weights[i]], c.half.g.values[weights[i]],
                                      run->sizes.shards * DIM * WIDTH, dy);
        }
        for (int64_t shard = 0; shard < run->sizes.shards; shard++) assay_gated_mlp_residuals_free(&shared[shard]);
        free(shared);
        free(dx);
        free(dy);
        close_case(&c);
    }
}

static void expected_gmm(const experts_case *c, double *y, const bs_gmm_args *args)
{
    const assay_batch_split_sizes *z = &c->half.run.sizes;
    for (int64_t row = 0; row < c->rows; row++) {
        const int64_t shard = row / z->copies, group = group_of(c, shard, row % z->copies);
        for (int64_t n = 0; n < args->n; n++) {
            const double *rhs = args->rhs + shard * z->local_experts * args->k * args->n;
            y[row * args->n + n] =
                group < 0 ? 0
                          : product(args->lhs + row * args->k, rhs + group * args->k * args->n, args->k, args->n, n);
        }
    }
}

/* What rows beyond the groups hold reaches nothing, and 0 comes out of them. */
TEST(test_gmm)
{
    assay_context ctx = assay_context_default(2);
    for (int s = 0; s < SHAPES; s++) {
        experts_case c;
        open_case(&ctx, &c, &shapes[s]);
        const int64_t k = 3, n = 4, kernels = c.half.run.sizes.shards * c.half.run.sizes.local_experts * k * n;
        double *lhs = moe_half_random(&c.seed, c.rows * k), *rhs = moe_half_random(&c.seed, kernels);
        double *dy = moe_half_random(&c.seed, c.rows * n), *y = moe_half_alloc(c.rows * n);
        double *expected = moe_half_alloc(c.rows * n), *dlhs = moe_half_alloc(c.rows * k);
        double *drhs = moe_half_alloc(kernels), *dlhs_alone = moe_half_alloc(c.rows * k);
        double *drhs_alone = moe_half_alloc(kernels);
        const bs_gmm_args args = {lhs, rhs, c.routed.group_sizes, k, n};
        expected_gmm(&c, expected, &args);
        for (int64_t row = 0; row < c.rows; row++) {
            if (group_of(&c, row / c.half.run.sizes.copies, row % c.half.run.sizes.copies) >= 0) continue;
            assay_fill_nan(lhs + row * k, k);
            assay_fill_nan(dy + row * n, n);
        }
        assert_ok(&ctx, bs_gmm(&ctx, &c.half.run, y, &args));
        assert_close(y, expected, c.rows * n, 1e-13, 1e-15);
        assert_ok(&ctx, bs_gmm_bwd(&ctx, &c.half.run, dlhs, drhs, dy, &args));
        assert_ok(&ctx, bs_gmm_bwd(&ctx, &c.half.run, dlhs_alone, NULL, dy, &args));
        assert_same_bits(dlhs_alone, dlhs, c.rows * k);
        assert_ok(&ctx, bs_gmm_bwd(&ctx, &c.half.run, NULL, drhs_alone, dy, &args));
        assert_same_bits(drhs_alone, drhs, kernels);
        double forward = 0, left = 0;
        for (int64_t row = 0; row < c.rows; row++) {
            if (group_of(&c, row / c.half.run.sizes.copies, row % c.half.run.sizes.copies) < 0) {
                for (int64_t i = 0; i < n; i++) assert_true(y[row * n + i] == 0);
                for (int64_t i = 0; i < k; i++) assert_true(dlhs[row * k + i] == 0);
            } else {
                forward += inner(dy + row * n, y + row * n, n);
                left += inner(dlhs + row * k, lhs + row * k, k);
            }
        }
        const double right = inner(drhs, rhs, kernels);
        assert_close(&left, &forward, 1, 1e-12, 1e-13);
        assert_close(&right, &forward, 1, 1e-12, 1e-13);
        free(lhs);
        free(rhs);
        free(dy);
        free(y);
        free(expected);
        free(dlhs);
        free(drhs);
        free(dlhs_alone);
        free(drhs_alone);
        close_case(&c);
    }
}

TEST(test_compute_gating)
{
    assay_context ctx = assay_context_default(2);
    for (int s = 0; s < SHAPES; s++) {
        experts_case c;
        open_case(&ctx, &c, &shapes[s]);
        scatter_weights(&c);
        const int64_t wide = c.rows * WIDTH, kernels = c.half.run.sizes.shards *
                                                       bs_weight_count(&c.half.run, BS_ROUTED + ASSAY_MLP_WI_0, true);
        double *expected = moe_half_alloc(wide), *dx = moe_half_alloc(c.rows * DIM);
        double *const *w = c.half.w.values, *const *g = c.half.g.values;
        const bs_gating d = {moe_half_random(&c.seed, wide), moe_half_random(&c.seed, wide)};
        assert_ok(&ctx, bs_compute_gating(&ctx, &c.at, &c.gating, &c.routed));
        for (int up = 0; up < 2; up++) {
            const bs_gmm_args args = {c.routed.x, w[up ? BS_ROUTED + ASSAY_MLP_WI_1 : BS_ROUTED + ASSAY_MLP_WI_0],
                                      c.routed.group_sizes, DIM, WIDTH};
            expected_gmm(&c, expected, &args);
            assert_close(up ? c.gating.layer_w1 : c.gating.layer_w0, expected, wide, 1e-13, 1e-14);
        }
        assert_ok(&ctx, bs_compute_gating_bwd(&ctx, &c.at, dx, &d, &c.routed));
        const double gate = inner(d.layer_w0, c.gating.layer_w0, wide), up = inner(d.layer_w1, c.gating.layer_w1, wide);
        const double d_gate = inner(g[BS_ROUTED + ASSAY_MLP_WI_0], w[BS_ROUTED + ASSAY_MLP_WI_0], kernels),
                     d_up = inner(g[BS_ROUTED + ASSAY_MLP_WI_1], w[BS_ROUTED + ASSAY_MLP_WI_1], kernels);
        const double through = inner(dx, c.routed.x, c.rows * DIM), both = gate + up;
        assert_close(&d_gate, &gate, 1, 1e-12, 1e-12);
        assert_close(&d_up, &up, 1, 1e-12, 1e-12);
        assert_close(&through, &both, 1, 1e-12, 1e-12);
        free(expected);
        free(dx);
        free(d.layer_w0);
        free(d.layer_w1);
        close_case(&c);
    }
}

static void expected_linear(const experts_case *c, double *y)
{
    double *hidden = moe_half_alloc(c->rows * WIDTH);
    for (int64_t i = 0; i < c->rows * WIDTH; i++)
        hidden[i] = silu(c->gating.layer_w0[i]) * c->gating.layer_w1[i] * c->routed.weights[i / WIDTH];
    const bs_gmm_args args = {hidden, c->half.w.values[BS_ROUTED + ASSAY_MLP_WO], c->routed.group_sizes, WIDTH, DIM};
    expected_gmm(c, y, &args);
    free(hidden);
}

TEST(test_compute_linear)
{
    assay_context ctx = assay_context_default(2);
    for (int s = 0; s < 2 * SHAPES; s++) {
        const assay_emulation form = {.second_form = s % 2 == 1};
        experts_case c;
        ctx.emulation = &form; /* the arithmetic stays the reference */
        open_case(&ctx, &c, &shapes[s / 2]);
        scatter_weights(&c);
        double *y = moe_half_alloc(c.rows * DIM), *expected = moe_half_alloc(c.rows * DIM);
        assert_ok(&ctx, bs_compute(&ctx, &c.at, y, &c.gating, &c.routed));
        expected_linear(&c, expected);
        assert_close(y, expected, c.rows * DIM, 1e-13, 1e-14);
        for (int64_t i = 0; i < c.rows * WIDTH; i++) c.gating.layer_w0[i] += layer_case_uniform(&c.seed);
        assert_ok(&ctx, bs_compute_linear(&ctx, &c.at, y, &c.gating, &c.routed));
        expected_linear(&c, expected);
        assert_close(y, expected, c.rows * DIM, 1e-13, 1e-14);
        free(y);
        free(expected);
        close_case(&c);
    }
}

/* <dy, y> by central differences of every value of rows that count; exactly 0 beyond them. */
static void assert_linear_differences(const experts_case *c, double *values, const double *gradient, int64_t width,
                                      const double *dy)
{
    const double step = 0x1p-17;
    const int64_t copies = c->half.run.sizes.copies;
    double *y = moe_half_alloc(c->rows * DIM);
    for (int64_t i = 0; i < c->rows * width; i++) {
        const double before = values[i];
        const int64_t row = i / width;
        if (group_of(c, row / copies, row % copies) < 0) {
            assert_true(gradient[i] == 0);
            continue;
        }
        values[i] = before + step;
        expected_linear(c, y);
        double difference = inner(dy, y, c->rows * DIM);
        values[i] = before - step;
        expected_linear(c, y);
        difference = (difference - inner(dy, y, c->rows * DIM)) / (2 * step);
        values[i] = before;
        assert_close(&gradient[i], &difference, 1, 1e-7, 1e-7);
    }
    free(y);
}

TEST(test_compute_linear_bwd)
{
    assay_context ctx = assay_context_default(2);
    for (int s = 0; s < 2 * SHAPES; s++) {
        const assay_emulation form = {.second_form = s % 2 == 1};
        experts_case c;
        ctx.emulation = &form; /* the arithmetic stays the reference */
        open_case(&ctx, &c, &shapes[s / 2]);
        scatter_weights(&c);
        const int64_t kernels = c.half.run.sizes.shards * bs_weight_count(&c.half.run, BS_ROUTED + ASSAY_MLP_WO, true);
        double *dy = moe_half_random(&c.seed, c.rows * DIM), *d_weights = moe_half_alloc(c.rows);
        double *y = moe_half_alloc(c.rows * DIM);
        bs_gating d = {moe_half_alloc(c.rows * WIDTH), moe_half_alloc(c.rows * WIDTH)};
        assert_ok(&ctx, bs_compute(&ctx, &c.at, y, &c.gating, &c.routed));
        assert_ok(&ctx, bs_compute_linear_bwd(&ctx, &c.at, &d, d_weights, dy, &c.gating, &c.routed));
        assert_linear_differences(&c, c.gating.layer_w0, d.layer_w0, WIDTH, dy);
        assert_linear_differences(&c, c.gating.layer_w1, d.layer_w1, WIDTH, dy);
        assert_linear_differences(&c, c.routed.weights, d_weights, 1, dy);
        const double forward = inner(dy, y, c.rows * DIM);
        const double back =
            inner(c.half.g.values[BS_ROUTED + ASSAY_MLP_WO], c.half.w.values[BS_ROUTED + ASSAY_MLP_WO], kernels);
        assert_close(&back, &forward, 1, 1e-12, 1e-12);
        /* the two steps make the stage */
        bs_routed_gradients g = {moe_half_alloc(c.rows * DIM), moe_half_alloc(c.rows)};
        double *dx = moe_half_alloc(c.rows * DIM);
        assert_ok(&ctx, bs_compute_gating_bwd(&ctx, &c.at, dx, &d, &c.routed));
        assert_ok(&ctx, bs_compute_bwd(&ctx, &c.at, &g, dy, &c.gating, &c.routed));
        assert_same_bits(g.x, dx, c.rows * DIM);
        assert_same_bits(g.weights, d_weights, c.rows);
        bs_routed_gradients_free(&g);
        bs_gating_free(&d);
        free(dx);
        free(dy);
        free(d_weights);
        free(y);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_expert),
        cmocka_unit_test(test_shared_expert_bwd),
        cmocka_unit_test(test_gmm),
        cmocka_unit_test(test_compute_gating),
        cmocka_unit_test(test_compute_linear),
        cmocka_unit_test(test_compute_linear_bwd),
        cmocka_unit_test(test_route_remat),
        cmocka_unit_test(test_compute_remat),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
