/* The certifier itself: it must accept what is right to float64, and reject each of a table of wrong results. */
#include <quadmath.h>

#include "harness/certify/certify.h"
#include "oracle/moe/tests/one_token.h"
#include "oracle/quad/tape.h"
#include "oracle/quad/tests/quad_case.h"

TEST_LABELS(threads);

enum { COUNT = 6 };

/* y = x^3 w, elementwise: a function whose gradients are known. */
typedef struct cube {
    bool kink;    /* at x = 2, beyond which y is 8 w; there the gradient of x is 0 */
    double wrong; /* the tape's gradient of w is so much too large */
} cube;

static quad cubed(const cube *c, quad x)
{
    return c->kink && x > 2 ? 8 : x * x * x;
}

static void cube_back(quad_tape *t, const quad_record *y)
{
    const cube *c = y->with;
    const quad *x = quad_values(t, y->from[0]), *w = quad_values(t, y->from[1]);
    quad *dx = quad_into(t, y->from[0]), *dw = quad_into(t, y->from[1]);
    for (int64_t i = 0; i < COUNT; i++) {
        if (dx != NULL) dx[i] += y->gradient[i] * (c->kink && x[i] >= 2 ? 0 : 3 * x[i] * x[i] * w[i]);
        if (dw != NULL) dw[i] += y->gradient[i] * cubed(c, x[i]) * (1 + c->wrong);
    }
}

static void cube_form(quad_tape *t, const void *config)
{
    const quad_node x = quad_input(t, "inputs/x", 1, COUNT), w = quad_input(t, "weights/w", 1, COUNT);
    quad_node y;
    quad *values = quad_new(t, 1, COUNT, (quad_record){.from = {x, w}, .back = cube_back, .with = config}, &y);
    for (int64_t i = 0; values != NULL && i < COUNT; i++)
        values[i] = cubed(config, quad_values(t, x)[i]) * quad_values(t, w)[i];
    quad_put(t, "outputs/y", assay_shape_of(1, (int64_t)COUNT), y);
}

static const quad_operation cubes = {.form = cube_form}, routing_form = {.form = quad_routing},
                            permute_form = {.form = quad_permute}, gmm_form = {.form = quad_gmm};

static const double X[] = {1, -3, 2, .5, 1e-3, 40}, W[] = {2, 1, -1, 4, 7, 1e-3}, DY[] = {1, -1, 3, .5, 2, -1};

/* Cubes with what is right of them, and what the certifier finds. */
typedef struct trial {
    quad_case c;
    double y[COUNT], dx[COUNT], dw[COUNT];
    quad_certificates found;
} trial;

static trial start(void)
{
    trial t = {0};
    case_start(&t.c, 1);
    case_values(&t.c, "inputs/x", X, DIMS(COUNT));
    case_values(&t.c, "weights/w", W, DIMS(COUNT));
    case_values(&t.c, "cotangents/y", DY, DIMS(COUNT));
    for (int64_t i = 0; i < COUNT; i++) {
        t.y[i] = X[i] * X[i] * X[i] * W[i];
        t.dx[i] = 3 * X[i] * X[i] * W[i] * DY[i];
        t.dw[i] = X[i] * X[i] * X[i] * DY[i];
    }
    return t;
}

static void end(trial *t)
{
    quad_certificates_free(&t->found);
    case_end(&t->c);
}

static void add_result(quad_case *c, const char *path, const double *values)
{
    assay_shape shape = DIMS(COUNT);
    assert_ok(&c->ctx, quad_tensors_copy_f64(&c->ctx, &c->results, path, &shape, values));
}

static const quad_budget two = {.directions = 2, .samples = COUNT, .seed = 5};

static void certify(trial *t, const cube *config, const quad_budget *budget)
{
    assert_ok(&t->c.ctx, quad_certify(&t->c.ctx, &cubes, config, &t->c.in, &t->c.results, budget, &t->found));
}

TEST(test_right_results)
{
    OWNED_BY(end) trial t = start();
    add_result(&t.c, "outputs/y", t.y);
    add_result(&t.c, "gradients/inputs/x", t.dx);
    add_result(&t.c, "gradients/weights/w", t.dw);
    certify(&t, &(cube){0}, &two);
    assert_int_equal(t.found.count, 3);
    assert_string_equal(t.found.items[0].path, "outputs/y");
    assert_int_equal(t.found.items[0].checked, COUNT);
    assert_true(t.found.items[0].relative <= 1e-16 && t.found.items[0].ulps <= 2 && t.found.items[0].scale == 64);
    for (int i = 1; i < 3; i++) {
        assert_int_equal(t.found.items[i].checked, COUNT + 2);
        assert_int_equal(t.found.items[i].kinks, 0);
        assert_true(t.found.items[i].relative <= 1e-15);
    }
}

/* dw times 1 + factor, all of it or one element. */
TEST(test_wrong_gradients)
{
    static const struct {
        double factor;
        int64_t element; /* -1: all */
        double at_least;
    } table[] = {
        {-1, -1, 1},       {-2, -1, 1.9},      {1e-9, -1, .9e-9},  {0x1p-8, -1, .9 * 0x1p-8}, {1e-11, 5, .9e-11},
        {1e-6, 4, .9e-20}, {NAN, 5, INFINITY}, {NAN, 0, INFINITY}, {INFINITY, 4, INFINITY}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        OWNED_BY(end) trial t = start();
        for (int64_t j = 0; j < COUNT; j++) {
            if (table[i].element < 0 || table[i].element == j) t.dw[j] *= 1 + table[i].factor;
        }
        add_result(&t.c, "gradients/weights/w", t.dw);
        certify(&t, &(cube){0}, &(quad_budget){.seed = 5});
        assert_true(t.found.items[0].relative >= table[i].at_least);
        /* without error scales what is allowed is a share of the largest element, which is 6.4e13 times the fifth one */
        assert_int_equal(t.found.items[0].excess > 1, i != 5);
    }
}

/* A tape that gives the same wrong gradient is found out along a direction. */
TEST(test_wrong_tape)
{
    for (int wrong = 0; wrong < 2; wrong++) {
        const cube config = {.wrong = wrong ? 1e-9 : 0};
        OWNED_BY(end) trial t = start();
        for (int64_t j = 0; j < COUNT; j++) t.dw[j] *= 1 + config.wrong;
        add_result(&t.c, "gradients/weights/w", t.dw);
        certify(&t, &config, &two);
        assert_int_equal(t.found.items[0].checked, COUNT + 2);
        assert_int_equal(t.found.items[0].excess > 1, wrong);
        if (wrong) assert_int_equal(t.found.items[0].worst, -1);
    }
}

/* Element 2 stands on the kink: directions cross it and are counted; the elements are certified. */
TEST(test_kinks)
{
    OWNED_BY(end) trial t = start();
    t.dx[2] = t.dx[5] = 0;
    add_result(&t.c, "gradients/inputs/x", t.dx);
    certify(&t, &(cube){.kink = true}, &two);
    assert_int_equal(t.found.items[0].kinks, 2);
    assert_int_equal(t.found.items[0].checked, COUNT);
    assert_true(t.found.items[0].relative <= 1e-15);
}

/* Number i of gradients/weights/w/sums is the sum of all elements but i, of which every other one is negated. */
static bool sums(const void *self, const char *path, int64_t index, char of[ASSAY_PATH_SIZE], signed char *signs)
{
    (void)self;
    if (strcmp(path, "gradients/weights/w/sums") != 0) return false;
    memcpy(of, "weights/w", sizeof "weights/w");
    for (int64_t i = 0; signs != NULL && i < COUNT; i++) signs[i] = (signed char)(i == index ? 0 : i % 2 == 0 ? 1 : -1);
    return true;
}

TEST(test_sums_of_signs)
{
    for (int wrong = 0; wrong < 2; wrong++) {
        const quad_budget budget = {.samples = COUNT, .seed = 5, .direction = sums};
        double sum[COUNT] = {0};
        OWNED_BY(end) trial t = start();
        for (int i = 0; i < COUNT * COUNT; i++)
            if (i / COUNT != i % COUNT) sum[i / COUNT] += i % COUNT % 2 == 0 ? t.dw[i % COUNT] : -t.dw[i % COUNT];
        if (wrong) sum[3] *= 1 + 1e-9;
        add_result(&t.c, "gradients/weights/w/sums", sum);
        certify(&t, &(cube){0}, &budget);
        assert_int_equal(t.found.count, 1);
        assert_int_equal(t.found.items[0].checked, COUNT);
        assert_int_equal(t.found.items[0].excess > 1, wrong);
    }
}

TEST(test_values)
{
    static const struct {
        double computed, reference, ulps, relative; /* of one value beside a 2 that is right */
    } table[] = {
        {1, 1, 0, 0},
        {1 + 0x1p-52, 1, 1, 0x1p-53},
        {1, 1 + 0x1p-52, 1, 0x1p-53},
        {-1, 1, 0x1p53, 1},
        {0, 1, 0x1p52, .5},
        {0x1p-1074, 0, 1, 0},
        {NAN, NAN, 0, 0},
        {INFINITY, INFINITY, 0, 0},
        {NAN, 1, INFINITY, INFINITY},
        {1, NAN, INFINITY, INFINITY},
        {INFINITY, 1, INFINITY, INFINITY},
        {1, INFINITY, INFINITY, INFINITY},
        {INFINITY, -INFINITY, INFINITY, INFINITY},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const quad computed[] = {2, table[i].computed}, reference[] = {2, table[i].reference};
        quad_certificate found = {0};
        quad_certify_values(2, computed, reference, NULL, 0, &found);
        assert_true(found.ulps == table[i].ulps);
        assert_true(found.relative == table[i].relative);
        assert_int_equal(found.checked, 2);
    }
}

/* A value of 1 beside a 64: what is allowed is ten error scales, or four last places, and not a share of the 64. */
TEST(test_error_scales)
{
    static const double ulp = 0x1p-52;
    static const struct {
        double error, scale, scales; /* error and scale in ulps of 1 */
    } table[] = {
        {1, 0, 2.5},  {4, 0, 10},    {5, 0, 12.5},   {5, 1, 5},         {10, 1, 10},    {11, 1, 11},
        {0, 0, 0},    {0, 3, 0},     {1, .125, 2.5}, {4, INFINITY, 10}, {5, NAN, 12.5}, {1000, 101, 1000. / 101},
        {-10, 1, 10}, {-5, 0, 12.5},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const quad reference[] = {64, 1}, computed[] = {64, 1 + (quad)(table[i].error * ulp)};
        const quad scale[] = {64 * ulp, table[i].scale * ulp};
        quad_certificate found = {0};
        quad_certify_values(2, computed, reference, scale, 0, &found);
        assert_true(fabs(found.scales - table[i].scales) <= 1e-12);
        assert_true(fabs(found.excess - table[i].scales / QUAD_ALLOWED_SCALES) <= 1e-12);
        assert_int_equal(found.worst, table[i].error != 0);
        assert_true(found.ulps == fabs(table[i].error) && found.scale == 64);
    }
}

/* The choice of a routing by logits, without a bias; token 1 ties exactly, token 2 to 1e-14, token 3 not quite. */
TEST(test_choices)
{
    enum { TOKENS = 4, K = 2, E = 3 };
    static const double logits[TOKENS * E] = {3, 1, 2, 1, 1, 0, 1, 1 + 1e-14, 5, 1, 1 + 1e-9, 5};
    static const struct {
        int32_t choice[TOKENS * K];
        bool good;
        int64_t ties; /* tokens */
    } table[] = {
        {{0, 2, 0, 1, 2, 1, 2, 1}, true, 0},  /* what the second form chooses */
        {{0, 2, 0, 1, 2, 0, 2, 1}, true, 1},  /* another expert at 1e-14 */
        {{0, 2, 0, 1, 2, 1, 2, 0}, false, 0}, /* at 1e-9 */
        {{0, 1, 0, 1, 2, 1, 2, 1}, false, 0},
        {{2, 0, 0, 1, 2, 1, 2, 1}, false, 0}, /* another order, whose weights differ */
        {{0, 2, 1, 0, 2, 1, 2, 1}, true, 1},  /* and are the same */
        {{0, 0, 0, 1, 2, 1, 2, 1}, false, 0},
        {{0, 2, 0, 1, 2, 1, 2, 2}, false, 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        OWNED_BY(case_end) quad_case c;
        OWNED_BY(quad_certificates_free) quad_certificates found = {0};
        case_start(&c, 1);
        assay_routing_config config = one_token(ASSAY_ROUTER_DEFAULT, ASSAY_SCORE_NONE, E, K);
        config.sequence = TOKENS;
        double weights[TOKENS * K];
        for (int t = 0; t < TOKENS; t++) { /* softmax over the chosen values */
            double sum = 0;
            for (int k = 0; k < K; k++) sum += exp(logits[t * E + table[i].choice[t * K + k]]);
            for (int k = 0; k < K; k++) weights[t * K + k] = exp(logits[t * E + table[i].choice[t * K + k]]) / sum;
        }
        const assay_shape shape = DIMS(1, TOKENS, K);
        case_values(&c, "inputs/logits", logits, DIMS(1, TOKENS, E));
        case_indices(&c, "routing/selected_experts", table[i].choice, shape);
        assert_ok(&c.ctx, quad_tensors_copy_f64(&c.ctx, &c.results, "outputs/weights", &shape, weights));
        assert_ok(&c.ctx,
                  quad_tensors_copy_i32(&c.ctx, &c.results, "routing/selected_experts", &shape, table[i].choice));
        assert_ok(&c.ctx, quad_certify(&c.ctx, &routing_form, &config, &c.in, &c.results, &two, &found));
        assert_int_equal(found.count, 2);
        const quad_certificate *choice = &found.items[1];
        assert_string_equal(choice->path, "routing/selected_experts");
        assert_int_equal(choice->excess == 0, table[i].good);
        assert_true(table[i].good || isinf(choice->excess));
        assert_int_equal(choice->kinks, K * table[i].ties);
        assert_int_equal(choice->checked, K * (TOKENS - table[i].ties));
    }
}

static void count_line(void *self, const char *path)
{
    int64_t *count = self;
    assert_string_equal(path, "gradients/weights/w");
    ++*count;
}

/* The same certificate from any number of threads, and `advance` after each direction. */
TEST(test_threads)
{
    trial trials[3];
    static const int threads[] = {1, 2, 7};
    for (int i = 0; i < 3; i++) {
        int64_t lines = 0;
        const quad_budget budget = {.directions = 40, .seed = 9, .advance = count_line, .self = &lines};
        trial *t = &trials[i];
        *t = start();
        add_result(&t->c, "gradients/weights/w", t->dw);
        t->c.ctx.threads = threads[i];
        certify(t, &(cube){0}, &budget);
        assert_int_equal(lines, 40);
        assert_int_equal(t->found.items[0].checked, COUNT + 40);
        assert_memory_equal(t->found.items, trials[0].found.items, sizeof *t->found.items);
    }
    for (int i = 0; i < 3; i++) end(&trials[i]);
}

/* y = f(x), elementwise, by a function and its slope. */
typedef struct elementwise {
    double e;
    quad (*value)(double e, quad x);
    quad (*slope)(double e, quad x);
} elementwise;

static void elementwise_back(quad_tape *t, const quad_record *y)
{
    const elementwise *f = y->with;
    quad *dx = quad_into(t, y->from[0]);
    for (int64_t i = 0; dx != NULL && i < y->columns; i++)
        dx[i] += y->gradient[i] * f->slope(f->e, quad_values(t, y->from[0])[i]);
}

static void elementwise_form(quad_tape *t, const void *config)
{
    const elementwise *f = config;
    const quad_node x = quad_input_rows(t, "inputs/x");
    quad_node y;
    quad *values =
        quad_new(t, 1, quad_columns(t, x), (quad_record){.from = {x}, .back = elementwise_back, .with = config}, &y);
    for (int64_t i = 0; values != NULL && i < quad_columns(t, x); i++) values[i] = f->value(f->e, quad_values(t, x)[i]);
    quad_put(t, "outputs/y", quad_shape_of(t, "inputs/x"), y);
}

static const quad_operation elements = {.form = elementwise_form};

/* An output that is no number depends on nothing: the others' gradients are certified, and its own is 0. */
static quad infinite_below(double e, quad x)
{
    (void)e;
    return x < 0 ? -INFINITY : 3 * x;
}

static quad slope_below(double e, quad x)
{
    (void)e;
    return x < 0 ? 0 : 3;
}

TEST(test_outputs_that_are_no_number)
{
    const elementwise config = {0, infinite_below, slope_below};
    for (int wrong = 0; wrong < 2; wrong++) {
        OWNED_BY(case_end) quad_case c;
        OWNED_BY(quad_certificates_free) quad_certificates found = {0};
        double dx[COUNT];
        case_start(&c, 1);
        case_values(&c, "inputs/x", X, DIMS(COUNT));
        case_values(&c, "cotangents/y", DY, DIMS(COUNT));
        for (int i = 0; i < COUNT; i++) dx[i] = X[i] < 0 ? wrong : 3 * DY[i];
        add_result(&c, "gradients/inputs/x", dx);
        assert_ok(&c.ctx, quad_certify(&c.ctx, &elements, &config, &c.in, &c.results, &two, &found));
        assert_int_equal(found.items[0].excess <= 1, !wrong);
        assert_int_equal(found.items[0].checked, COUNT + 2);
    }
}

/* y = sqrt(x^2 + e^2): smooth, and curved within far less than the size of x. */
static quad round_corner(double e, quad x)
{
    return sqrtq(x * x + (quad)e * e);
}

static quad slope_of_corner(double e, quad x)
{
    return x / round_corner(e, x);
}

/* large: with so many weights (which do nothing) that one direction has all threads. */
static void check_curvature(bool large)
{
    static const struct {
        double e, off; /* and by how much the gradient is */
        int kinks;
    } table[] = {{1e-5, 0, 0}, {1e-8, 0, 0}, {1e-8, 1e-9, 0}, {1e-30, 0, 2}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const double e = table[i].e, x[] = {e, 1, -2}, dy[] = {1, -1, 2};
        const elementwise config = {e, round_corner, slope_of_corner};
        double dx[3];
        OWNED_BY(case_end) quad_case c;
        OWNED_BY(quad_certificates_free) quad_certificates found = {0};
        const assay_shape shape = DIMS(3);
        case_start(&c, 1);
        if (large) case_random(&c, "weights/none", 1, DIMS(QUAD_LARGE));
        case_values(&c, "inputs/x", x, shape);
        case_values(&c, "cotangents/y", dy, shape);
        for (int j = 0; j < 3; j++) dx[j] = dy[j] * x[j] / sqrt(x[j] * x[j] + e * e) * (1 + table[i].off);
        assert_ok(&c.ctx, quad_tensors_copy_f64(&c.ctx, &c.results, "gradients/inputs/x", &shape, dx));
        assert_ok(&c.ctx, quad_certify(&c.ctx, &elements, &config, &c.in, &c.results, &two, &found));
        assert_int_equal(found.items[0].kinks, table[i].kinks);
        assert_int_equal(found.items[0].checked, 3 + 2 - table[i].kinks);
        assert_int_equal(found.items[0].excess <= 1, table[i].off == 0);
    }
}

TEST(test_curvature)
{
    check_curvature(false);
    check_curvature(true);
}

TEST(test_refusals)
{
    static const cube plain = {0};
    OWNED_BY(end) trial t = start();
    add_result(&t.c, "outputs/z", t.y);
    assert_int_equal(quad_certify(&t.c.ctx, &cubes, &plain, &t.c.in, &t.c.results, &two, &t.found), ASSAY_BAD_INPUT);
    assert_string_equal(t.c.ctx.message, "'outputs/z' [6]: the second form has none of that name");
    quad_tensors_free(&t.c.results);

    assay_shape square = DIMS(2, 3);
    assert_ok(&t.c.ctx, quad_tensors_copy_f64(&t.c.ctx, &t.c.results, "outputs/y", &square, t.y));
    assert_int_equal(quad_certify(&t.c.ctx, &cubes, &plain, &t.c.in, &t.c.results, &two, &t.found), ASSAY_BAD_INPUT);
    assert_string_equal(t.c.ctx.message, "'outputs/y' [2,3]: the second form has [6] of that name");
    quad_tensors_free(&t.c.results);

    add_result(&t.c, "gradients/weights/v", t.dw);
    assert_int_equal(quad_certify(&t.c.ctx, &cubes, &plain, &t.c.in, &t.c.results, &two, &t.found), ASSAY_BAD_INPUT);
    assert_string_equal(t.c.ctx.message, "'gradients/weights/v' [6]: the second form has none of that name");
    quad_tensors_free(&t.c.results);

    add_result(&t.c, "gradients/weights/w", t.dw);
    case_values(&t.c, "cotangents/z", (double[]){1}, DIMS(1));
    assert_int_equal(quad_certify(&t.c.ctx, &cubes, &plain, &t.c.in, &t.c.results, &two, &t.found), ASSAY_BAD_INPUT);
    assert_string_equal(t.c.ctx.message, "the tensor 'outputs/z' is missing");
}

TEST(test_indices)
{
    for (int wrong = 0; wrong < 2; wrong++) {
        OWNED_BY(case_end) quad_case c;
        OWNED_BY(quad_certificates_free) quad_certificates found = {0};
        case_start(&c, 1);
        const assay_permute_dims sizes = {.tokens = 2, .experts_per_token = 1, .experts = 2, .emb_dim = 1};
        case_values(&c, "inputs/x", (double[]){1, 2}, DIMS(2, 1));
        case_indices(&c, "inputs/selected_experts", (int32_t[]){1, 0}, DIMS(2, 1));
        assay_shape shape = DIMS(2);
        assert_ok(&c.ctx, quad_tensors_copy_i32(&c.ctx, &c.results, "outputs/sorted_selected_experts", &shape,
                                                (int32_t[]){1, wrong}));
        assert_ok(&c.ctx, quad_certify(&c.ctx, &permute_form, &sizes, &c.in, &c.results, &two, &found));
        assert_int_equal(found.items[0].checked, 2);
        assert_true(wrong ? isinf(found.items[0].relative) : found.items[0].relative == 0);
    }
}

/* A row of NaN that belongs to no group has gradient 0, and its NaN cotangent is in nothing. */
TEST(test_rows_that_belong_to_nothing)
{
    for (int wrong = 0; wrong < 2; wrong++) {
        OWNED_BY(case_end) quad_case c;
        OWNED_BY(quad_certificates_free) quad_certificates found = {0};
        case_start(&c, 1);
        const quad_gmm_config sizes = {.gmm.dims = {.m = 2, .k = 1, .n = 1, .groups = 1}};
        case_values(&c, "inputs/lhs", (double[]){3, NAN}, DIMS(2, 1));
        case_values(&c, "weights/rhs", (double[]){5}, DIMS(1, 1, 1));
        case_indices(&c, "inputs/group_sizes", (int32_t[]){1}, DIMS(1));
        case_values(&c, "cotangents/y", (double[]){7, NAN}, DIMS(2, 1));
        assay_shape lhs = DIMS(2, 1), rhs = DIMS(1, 1, 1);
        assert_ok(&c.ctx, quad_tensors_copy_f64(&c.ctx, &c.results, "gradients/inputs/lhs", &lhs,
                                                (double[]){35, wrong ? 1e-9 : 0}));
        assert_ok(&c.ctx, quad_tensors_copy_f64(&c.ctx, &c.results, "gradients/weights/rhs", &rhs,
                                                (double[]){wrong ? NAN : 21}));
        assert_ok(&c.ctx, quad_certify(&c.ctx, &gmm_form, &sizes, &c.in, &c.results, &two, &found));
        for (int i = 0; i < 2; i++) assert_int_equal(found.items[i].relative < 1e-15, !wrong);
    }
}

TEST(test_every_allocation_may_fail)
{
    static const cube plain = {0};
    OWNED_BY(end) trial t = start();
    add_result(&t.c, "outputs/y", t.y);
    add_result(&t.c, "gradients/inputs/x", t.dx);
    for (int64_t n = 0;; n++) {
        assay_fail_allocation(n);
        const assay_status status = quad_certify(&t.c.ctx, &cubes, &plain, &t.c.in, &t.c.results, &two, &t.found);
        quad_certificates_free(&t.found);
        if (had_memory(&t.c.ctx, status)) {
            assert_true(n > 10);
            break;
        }
    }
}
