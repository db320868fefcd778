/* The walker, on a small graph with kinds of steps that tell what was asked of them; and what it says of a graph's costs. */

#include "oracle/arithmetic/emulated.h"
#include "oracle/graph/graph_kind.h"
#include "oracle/ops/tests/ops_test.h"
#include "tests/support/test_tensors.h"

/* --- kinds that leave rounding to the walker --- */

static int sums, sums_back, places_wanted; /* calls; places of the last backward whose gradient was wanted, as bits */

static assay_status sum_forward(assay_context *ctx, const graph_call *c)
{
    const int64_t size = graph_out_size(c->graph, c->step, 0);
    (void)ctx;
    sums++;
    for (int64_t i = 0; i < size; i++) {
        c->y[0][i] = 0;
        for (int k = 0; k < GRAPH_IN && c->x[k] != NULL; k++) c->y[0][i] += c->x[k][i];
    }
    return ASSAY_OK;
}

static assay_status sum_backward(assay_context *ctx, const graph_call *c)
{
    const int64_t size = graph_out_size(c->graph, c->step, 0);
    (void)ctx;
    sums_back++;
    places_wanted = 0;
    for (int k = 0; k < GRAPH_IN; k++) {
        if (c->dx[k] == NULL) continue;
        places_wanted |= 1 << k;
        memcpy(c->dx[k], c->dy[0], (size_t)size * sizeof(double));
    }
    return ASSAY_OK;
}

static assay_status times_forward(assay_context *ctx, const graph_call *c)
{
    (void)ctx;
    for (int64_t i = 0; i < graph_out_size(c->graph, c->step, 0); i++)
        c->y[0][i] = c->x[0][i] * c->step->with.general.b;
    return ASSAY_OK;
}

static assay_status times_backward(assay_context *ctx, const graph_call *c)
{
    (void)ctx;
    for (int64_t i = 0; i < graph_out_size(c->graph, c->step, 0); i++)
        c->dx[0][i] = c->dy[0][i] * c->step->with.general.b;
    return ASSAY_OK;
}

static const graph_kind kind_sum = {.name = "sum", .forward = sum_forward, .backward = sum_backward};
static const graph_kind kind_times = {.name = "times", .forward = times_forward, .backward = times_backward};

static int add_sum(graph *g, int a, int b, int c)
{
    const int tensor = graph_scale(g, a, 0);
    graph_step *step = &g->steps[g->step_count - 1];
    step->kind = &kind_sum;
    step->in[1] = b;
    step->in[2] = c;
    return tensor;
}

static int add_times(graph *g, int x, double factor)
{
    const int tensor = graph_scale(g, x, factor);
    g->steps[g->step_count - 1].kind = &kind_times;
    return tensor;
}

/* Rounds what may be stored to the nearest bfloat16, and nothing else. */
static assay_context to_nearest(void)
{
    static const assay_emulation nearest = {.storage = ASSAY_BFLOAT16, .multiply = ASSAY_FLOAT64, .nearest = true};
    assay_context ctx = assay_context_default(1);
    ctx.arithmetic = &assay_arithmetic_emulated;
    ctx.emulation = &nearest;
    return ctx;
}

/* --- sums of gradients --- */

static int64_t one(const void *config, char axis)
{
    (void)config, (void)axis;
    return 1;
}

/* y is the sum of three multiples of x, or of what a step makes of x. */
static double gradient_of_three(assay_context *ctx, const double factors[3], bool directly)
{
    const double x = 1, dy = 1;
    double dx = NAN;
    int times[3];
    graph g;
    OWNED_BY(graph_close) graph_run r;
    graph_begin(&g, NULL, one);
    const int input = graph_input(&g, "x", "D"), from = directly ? input : add_times(&g, input, 1);
    for (int i = 0; i < 3; i++) times[i] = add_times(&g, from, factors[i]);
    graph_end(&g, graph_named(&g, "y", add_sum(&g, times[0], times[1], times[2])), GRAPH_LEFT);
    assert_ok(ctx, graph_open(ctx, &r, &g));
    graph_lend(&r, input, &x);
    assert_ok(ctx, graph_forward(ctx, &r));
    graph_lend_gradient(&r, g.result, &dy);
    graph_want_gradient(&r, input, &dx);
    assert_ok(ctx, graph_backward(ctx, &r));
    return dx;
}

TEST_WITH_CONTEXT(test_gradients_add_up_in_the_order_of_steps)
{
    assert_true(gradient_of_three(&ctx, (double[]){0x1p-53, 1, -1}, true) == 0);
    assert_true(gradient_of_three(&ctx, (double[]){-1, 1, 0x1p-53}, true) == 0x1p-53);
    assert_true(gradient_of_three(&ctx, (double[]){1, 0x1p-53, -1}, false) == 0);
}

/* bfloat16 has 1 and 1 + 2^-7; what the caller wants is his to round, at the end. */
TEST(test_sums_that_grow_are_rounded_but_for_the_last_term_of_what_is_wanted)
{
    const double factors[] = {1, 0x1.4p-8, 0x1p-10};
    assay_context ctx = to_nearest();
    assert_true(gradient_of_three(&ctx, factors, true) == 1 + 0x1p-7 + 0x1p-10);
    assert_true(gradient_of_three(&ctx, factors, false) == 1 + 0x1p-7);
}

/* --- what is stored --- */

TEST(test_emulated_runs_round_what_is_stored)
{
    const double x = 1 + 0x1p-7;
    assay_context ctx = to_nearest();
    graph g;
    OWNED_BY(graph_close) graph_run r;
    graph_begin(&g, NULL, one);
    const int input = graph_input(&g, "x", "D");
    const int fused = graph_fused(&g, add_times(&g, input, 1 + 0x1p-7)), stored = add_times(&g, input, 1 + 0x1p-7);
    const int y = graph_named(&g, "y", add_sum(&g, fused, stored, 0));
    graph_end(&g, y, GRAPH_LEFT);
    assert_ok(&ctx, graph_open(&ctx, &r, &g));
    graph_lend(&r, input, &x);
    assert_ok(&ctx, graph_require(&ctx, &r, y));
    assert_true(*r.value[fused] == 1 + 0x1p-6 + 0x1p-14);
    assert_true(*r.value[stored] == 1 + 0x1p-6);
    assert_true(*r.value[y] == 2 + 0x1p-5 + 0x1p-14); /* its caller's to round */
}

/* --- a graph with everything: up = x w; left and right are its columns; sum = rms_norm(left u) + right; y = sum v --- */

enum { ROWS = 5, DIM = 4, HALF = 3, WEIGHTS = 4 };

static int64_t size_of(const void *config, char axis)
{
    (void)config;
    return axis == 'S' ? ROWS : axis == 'D' ? DIM : axis == 'E' ? 2 * HALF : HALF;
}

typedef struct example {
    graph g;
    int x, up, left, right, product, sum, y;
    double *values[1 + WEIGHTS], *gradients[1 + WEIGHTS], *dy; /* x, then the weights */
    graph_run run;
} example;

static int weight(graph *g, const char *name, const char *axes)
{
    const assay_tensor_form form = {name, ASSAY_KERNEL, axes, 1};
    return graph_weight(g, assay_tensor_row_of(&form, NULL, size_of));
}

static int tensor_at(const example *e, int i)
{
    return i == 0 ? e->x : e->g.weights[i - 1];
}

static int64_t count_at(const example *e, int i)
{
    return graph_size(&e->g, tensor_at(e, i));
}

/* A new run with all that is given, and all gradients wanted. */
static void begin(example *e)
{
    graph_close(&e->run);
    assay_context quiet = assay_context_default(1);
    assert_ok(&quiet, graph_open(&quiet, &e->run, &e->g));
    graph_lend(&e->run, e->x, e->values[0]);
    graph_lend_weights(&e->run, e->values + 1);
    for (int i = 0; i <= WEIGHTS; i++) assay_fill_nan(e->gradients[i], count_at(e, i));
    graph_want_gradient(&e->run, e->x, e->gradients[0]);
    graph_want_weight_gradients(&e->run, e->gradients + 1);
    graph_lend_gradient(&e->run, e->y, e->dy);
    sums = sums_back = places_wanted = 0;
}

/* Pointers into itself: it must stay where it is. */
static void open_example(example *e)
{
    graph *g = &e->g;
    uint64_t seed = 3;
    *e = (example){0};
    graph_begin(g, NULL, size_of);
    e->x = graph_input(g, "inputs/x", "SD");
    const int w = weight(g, "w", "DE"), u = weight(g, "u", "Hh"), scale = weight(g, "scale", "H"),
              v = weight(g, "v", "HD");
    e->up = graph_named(g, "up", graph_linear(g, "SE", e->x, w, 0, NULL));
    e->left = graph_slice(g, "SH", e->up, 'E', 0);
    e->right = graph_slice(g, "SH", e->up, 'E', HALF);
    e->product = graph_linear(g, "SH", e->left, u, 0, NULL);
    e->sum = graph_named(g, "sum", add_sum(g, graph_rms_norm(g, e->product, scale, 1e-3), e->right, 0));
    e->y = graph_named(g, "y", graph_linear(g, "SD", e->sum, v, 0, NULL));
    graph_end(g, e->y, GRAPH_LEFT);
    for (int i = 0; i <= WEIGHTS; i++) {
        e->values[i] = test_normals(&seed, 1, ASSAY_FLOAT64, count_at(e, i));
        e->gradients[i] = test_nans(count_at(e, i));
    }
    e->dy = test_normals(&seed, 1, ASSAY_FLOAT64, ROWS * DIM);
    begin(e);
}

static void close_example(example *e)
{
    graph_close(&e->run);
    for (int i = 0; i <= WEIGHTS; i++) {
        free(e->values[i]);
        free(e->gradients[i]);
    }
    free(e->dy);
}

static void run_example(assay_context *ctx, example *e)
{
    assert_ok(ctx, graph_forward(ctx, &e->run));
    assert_ok(ctx, graph_backward(ctx, &e->run));
}

static void assert_same_gradients(const example *e, const example *expected)
{
    for (int i = 0; i <= WEIGHTS; i++) assert_same_bits(e->gradients[i], expected->gradients[i], count_at(e, i));
}

TEST_WITH_CONTEXT(test_what_has_no_name_is_computed_again)
{
    OWNED_BY(close_example) example e, again;
    open_example(&e);
    open_example(&again);
    assert_ok(&ctx, graph_forward(&ctx, &e.run));
    for (int t = 1; t < e.g.tensor_count; t++)
        assert_int_equal(e.run.value[t] == NULL, e.g.tensors[t].role == GRAPH_WITHIN);
    assert_ok(&ctx, graph_backward(&ctx, &e.run));
    assert_int_equal(sums, 1); /* a checkpoint is not */
    again.run.release = graph_let_go;
    assert_ok(&ctx, graph_forward(&ctx, &again.run));
    assert_null(again.run.value[again.sum]);
    assert_non_null(again.run.value[again.y]);
    assert_ok(&ctx, graph_backward(&ctx, &again.run));
    assert_int_equal(sums, 3); /* now it was let go */
    assert_same_gradients(&again, &e);
}

TEST_WITH_CONTEXT(test_what_is_there_is_not_computed_and_what_is_lent_stays)
{
    double given[ROWS * HALF];
    OWNED_BY(close_example) example e;
    open_example(&e);
    assay_fill_nan(given, ROWS * HALF);
    graph_lend(&e.run, e.sum, given);
    assert_ok(&ctx, graph_require(&ctx, &e.run, e.y));
    assert_int_equal(sums, 0);
    assert_null(e.run.value[e.up]); /* nor what it is made of */
    assert_ptr_equal(e.run.value[e.sum], given);
    assert_all_nan(given, ROWS * HALF);
    assert_all_nan(e.run.value[e.y], ROWS * DIM);
    assert_ok(&ctx, graph_forward(&ctx, &e.run));
    assert_int_equal(sums, 0);
    OWNED double *y = graph_release_value(&e.run, e.y);
    graph_close(&e.run); /* frees neither */
    assert_all_nan(y, ROWS * DIM);
}

TEST_WITH_CONTEXT(test_rooms_are_written_in_place)
{
    double sum[ROWS * HALF], y[ROWS * DIM], dsum[ROWS * HALF];
    OWNED_BY(close_example) example e, own;
    open_example(&e);
    open_example(&own);
    assert_ok(&ctx, graph_forward(&ctx, &own.run));
    assay_fill_nan(sum, ROWS * HALF);
    assay_fill_nan(dsum, ROWS * HALF);
    e.run.room[e.sum] = sum;
    e.run.room[e.y] = y;
    assert_ok(&ctx, graph_forward(&ctx, &e.run));
    assert_ptr_equal(e.run.value[e.sum], sum);
    assert_same_bits(sum, own.run.value[own.sum], ROWS * HALF);
    assert_same_bits(y, own.run.value[own.y], ROWS * DIM);
    /* a gradient ends where it is wanted, and another run goes on from there */
    graph_want_gradient(&e.run, e.sum, dsum);
    assert_ok(&ctx, graph_backward(&ctx, &e.run));
    assert_all_nan(e.gradients[0], ROWS * DIM);
    assert_ok(&ctx, graph_backward(&ctx, &own.run));
    assert_same_bits(e.gradients[4], own.gradients[4], count_at(&e, 4));
    begin(&e);
    graph_lend_gradient(&e.run, e.y, NULL);
    graph_lend_gradient(&e.run, e.sum, dsum);
    assert_ok(&ctx, graph_backward(&ctx, &e.run));
    assert_all_nan(e.gradients[4], count_at(&e, 4));
    for (int i = 0; i < 4; i++) assert_same_bits(e.gradients[i], own.gradients[i], count_at(&e, i));
}

/* Each gets its own columns of one gradient; where one of them has no gradient they are 0. */
TEST_WITH_CONTEXT(test_columns_are_read_in_parts)
{
    double dup[ROWS][2 * HALF], dleft[ROWS][HALF], dright[ROWS][HALF];
    OWNED_BY(close_example) example e;
    open_example(&e);
    assert_true(e.g.tensors[e.up].read_in_slices);
    graph_want_gradient(&e.run, e.left, dleft[0]);
    graph_want_gradient(&e.run, e.right, dright[0]);
    run_example(&ctx, &e);
    for (int alone = 0; alone < 2; alone++) {
        begin(&e);
        assay_fill_nan(dup[0], ROWS * 2 * HALF);
        if (alone) graph_lend_gradient(&e.run, e.y, NULL);
        if (alone) graph_lend_gradient(&e.run, e.left, dleft[0]);
        graph_want_gradient(&e.run, e.up, dup[0]);
        run_example(&ctx, &e);
        for (int row = 0; row < ROWS; row++) {
            assert_same_bits(dup[row], dleft[row], HALF);
            for (int i = 0; i < HALF; i++) assert_true(dup[row][HALF + i] == (alone ? 0 : dright[row][i]));
        }
    }
}

TEST_WITH_CONTEXT(test_gradients_that_nobody_wants_are_skipped)
{
    example all, e;
    open_example(&all);
    open_example(&e);
    run_example(&ctx, &all);
    for (int wanted = -1; wanted <= WEIGHTS; wanted++) {
        begin(&e);
        for (int i = 0; i <= WEIGHTS; i++)
            if (i != wanted) graph_want_gradient(&e.run, tensor_at(&e, i), NULL);
        run_example(&ctx, &e);
        for (int i = 0; i <= WEIGHTS; i++) {
            if (i == wanted) assert_same_bits(e.gradients[i], all.gradients[i], count_at(&e, i));
            if (i != wanted) assert_all_nan(e.gradients[i], count_at(&e, i));
        }
    }
    close_example(&all);
    close_example(&e);
    /* a kind is told: of the places that are given, the second is wanted; of none that is not there */
    const double x[] = {1, 2};
    double dx = NAN;
    graph g;
    OWNED_BY(graph_close) graph_run r;
    graph_begin(&g, NULL, one);
    const int a = graph_input(&g, "a", "D"), b = graph_input(&g, "b", "D");
    graph_end(&g, graph_named(&g, "y", add_sum(&g, a, b, 0)), GRAPH_LEFT);
    assert_ok(&ctx, graph_open(&ctx, &r, &g));
    graph_lend(&r, a, &x[0]);
    graph_lend(&r, b, &x[1]);
    graph_lend_gradient(&r, g.result, &x[1]);
    graph_want_gradient(&r, b, &dx);
    assert_ok(&ctx, graph_backward(&ctx, &r));
    assert_int_equal(places_wanted, 2);
    assert_true(dx == 2);
}

TEST_WITH_CONTEXT(test_checkpoints_are_written_and_staged)
{
    OWNED_BY(test_tensors_free) test_tensors staged = {0}, shown = {0};
    const assay_source in = test_tensors_source(&staged);
    const assay_sink out = test_tensors_sink(&shown);
    double *sum = test_tensors_add(&staged, "staged/checkpoints/layers/3/sum", ROWS * HALF);
    OWNED_BY(close_example) example e;
    open_example(&e);
    for (int i = 0; i < ROWS * HALF; i++) sum[i] = 0;
    e.run.in = &in;
    e.run.out = &out;
    e.run.prefix = "layers/3/";
    e.run.shown[e.up] = true;
    assert_ok(&ctx, graph_forward(&ctx, &e.run));
    assert_int_equal(shown.set.count, 2);
    assert_true(assay_tensor_set_find(&shown.set, "checkpoints/layers/3/sum")->values[0] != 0); /* before */
    assert_same_bits(e.run.value[e.sum], sum, ROWS * HALF);
    const assay_tensor *y = assay_tensor_set_find(&shown.set, "checkpoints/layers/3/y");
    assert_int_equal(y->count, ROWS * DIM);
    for (int i = 0; i < ROWS * DIM; i++) assert_true(y->values[i] == 0);
}

/* With checkpoints that stay, and with all computed again. */
TEST_WITH_CONTEXT(test_every_allocation_may_fail)
{
    example e, expected;
    open_example(&e);
    open_example(&expected);
    run_example(&ctx, &expected);
    for (int again = 0; again < 2; again++) {
        int64_t n;
        for (n = 0;; n++) {
            begin(&e);
            e.run.release = again ? graph_let_go : NULL;
            assay_fail_allocation(n);
            const assay_status forward = graph_forward(&ctx, &e.run);
            if (had_memory(&ctx, forward == ASSAY_OK ? graph_backward(&ctx, &e.run) : forward)) break;
            if (forward == ASSAY_OK) continue;
            assert_null(e.run.value[e.y]);
            assert_ok(&ctx, graph_forward(&ctx, &e.run));
        }
        assert_true(n > 15);
        assert_same_gradients(&e, &expected);
    }
    close_example(&e);
    close_example(&expected);
}

/* --- costs --- */

TEST_WITH_CONTEXT(test_operations_by_hand)
{
    const double up = 2 * ROWS * DIM * 2 * HALF, product = 2 * ROWS * HALF * HALF, down = 2 * ROWS * HALF * DIM;
    test_operations operations = {.count = 0};
    OWNED_BY(close_example) example e;
    open_example(&e);
    assert_true(graph_operations(&e.g, e.x) == 0);
    assert_true(graph_operations(&e.g, e.up) == up);
    assert_true(graph_operations(&e.g, e.sum) == product); /* from `up`, a checkpoint */
    assert_true(graph_operations(&e.g, e.y) == down);
    assert_true(graph_forward_operations(&e.g) == up + product + down);
    /* what rms_norm reads has no name */
    assert_true(graph_backward_operations(&e.g) == 2 * (up + product + down) + product);
    test_count_operations(&ctx, &operations);
    assert_ok(&ctx, graph_forward(&ctx, &e.run));
    assert_true(operations.count == graph_forward_operations(&e.g));
    operations.count = 0;
    assert_ok(&ctx, graph_backward(&ctx, &e.run));
    assert_true(operations.count == graph_backward_operations(&e.g));
}

TEST(test_tables_and_sizes)
{
    const double weights = DIM * 2 * HALF + HALF * HALF + HALF + HALF * DIM, checkpoints = ROWS * (3 * HALF + DIM);
    OWNED_BY(close_example) example e;
    open_example(&e);
    assert_int_equal(graph_find(&e.g, "up"), e.up);
    assert_int_equal(graph_find(&e.g, "down"), 0);
    assert_int_equal(graph_axis(&e.g, 'E'), 2 * HALF);
    assert_int_equal(graph_axis(&e.g, 'N'), 0);
    assert_int_equal(graph_last_axis(&e.g, e.up), 2 * HALF);
    assert_true(graph_numbers(&e.g) == weights + checkpoints);
    const assay_tensor_table table = graph_weight_table(&e.g);
    assert_int_equal(table.count, WEIGHTS);
    assert_string_equal(table.rows[1].name, "u");
}
