/* Every primitive of the tape: its way back against central differences by every element of every operand, also where an operand is read twice or
 * in part; and what failing allocations leave. */
#include <quadmath.h>

#include "oracle/quad/quad_blocks.h"
#include "oracle/quad/tests/quad_case.h"

enum { ROWS = 4, COLUMNS = 6, WEIGHTS = 96 };

static quad_node x_of(quad_tape *t)
{
    return quad_input(t, "inputs/x", ROWS, COLUMNS);
}

static quad_node w_of(quad_tape *t, int64_t first, int64_t count, int64_t columns)
{
    return quad_span(t, quad_input(t, "weights/w", 1, WEIGHTS), first, count, columns);
}

static void put(quad_tape *t, quad_node y)
{
    quad_put(t, "outputs/y", assay_shape_of(2, quad_rows(t, y), quad_columns(t, y)), y);
}

/* --- moves --- */

static void columns(quad_tape *t, const void *config)
{
    (void)config;
    const quad_node x = x_of(t), both = quad_beside(t, quad_columns_of(t, x, 1, 3), quad_columns_of(t, x, 2, 2));
    put(t, quad_view(t, quad_beside(t, both, quad_columns_of(t, x, 0, 1)), 4));
}

static void rows(quad_tape *t, const void *config)
{
    static const int64_t some[] = {2, -1, 0, 2, 3};
    const quad_node x = x_of(t), list[] = {quad_rows_of(t, x, 1, 2), x, quad_gather(t, x, some, 5)};
    (void)config;
    put(t, quad_concatenate(t, list, 3));
}

static void scattered(quad_tape *t, const void *config)
{
    static const int64_t to[] = {1, 0, -1, 2, 2, 1, 0, 0};
    (void)config;
    put(t, quad_scatter(t, quad_repeat(t, x_of(t), 2), to, 3));
}

/* --- numbers --- */

static void sums(quad_tape *t, const void *config)
{
    const quad_node x = x_of(t), w = w_of(t, 0, ROWS, COLUMNS);
    (void)config;
    put(t, quad_add(t, quad_times(t, quad_add(t, x, w), -3),
                    quad_add_row(t, quad_multiply(t, x, x), w_of(t, 24, 1, COLUMNS))));
}

static void weighed(quad_tape *t, const void *config)
{
    (void)config;
    put(t, quad_weigh(t, x_of(t), w_of(t, 1, ROWS, 1)));
}

static void summed(quad_tape *t, const void *config)
{
    (void)config;
    put(t, quad_row_sums(t, quad_multiply(t, x_of(t), x_of(t)), -7));
}

static void mapped(quad_tape *t, const void *config)
{
    put(t, quad_map_with(t, x_of(t), *(const quad_unary *)config, 0.7));
}

static void gated(quad_tape *t, const void *config)
{
    put(t, quad_glu(t, x_of(t), w_of(t, 0, ROWS, COLUMNS), config));
}

/* --- rows --- */

static void normalised(quad_tape *t, const void *config)
{
    (void)config;
    put(t, quad_normalise(t, quad_columns_of(t, x_of(t), 1, 5), w_of(t, 3, 1, 5), 0.25));
}

static const int32_t MASK[ROWS * COLUMNS] = {0, -1, 2, 0, 0, 1, -1, -1, -1, -1, -1, -1,
                                             0, 0,  0, 0, 0, 0, -1, 0,  0,  -1, 0,  0};

static void softmax(quad_tape *t, const void *config)
{
    const quad_node x = x_of(t);
    (void)config;
    put(t, quad_add(t, quad_softmax(t, x, NULL), quad_times(t, quad_softmax(t, x, MASK), 2)));
}

static void log_sum(quad_tape *t, const void *config)
{
    (void)config;
    put(t, quad_log_sum_exp(t, x_of(t)));
}

static void over_sum(quad_tape *t, const void *config)
{
    (void)config;
    put(t, quad_over_sum(t, quad_map(t, x_of(t), QUAD_SIGMOID), 0.5));
}

/* --- linear --- */

static void linear(quad_tape *t, const void *config)
{
    (void)config;
    put(t, quad_linear(t, (quad_layer){.x = x_of(t), .w = w_of(t, 2, COLUMNS, 5)}));
}

static void grouped(quad_tape *t, const void *config)
{
    static const int64_t group[] = {1, -1, 0, 1};
    (void)config;
    put(t, quad_linear(t, (quad_layer){.x = x_of(t), .w = w_of(t, 0, 3 * COLUMNS, 5), .groups = 3, .group = group}));
}

/* --- attention --- */

static void turned(quad_tape *t, const void *config)
{
    static const int32_t positions[ROWS] = {0, 3, 1000, 7};
    put(t, quad_rotate(t, x_of(t), config, quad_turns(t, config, ROWS, positions)));
}

typedef struct attending {
    assay_attention_config config;
    bool sinks, segments;
} attending;

/* Of two sequences of 4 tokens with 4 heads of 2 numbers, and values of 1. */
static void attended(quad_tape *t, const void *self)
{
    static const int32_t segments[] = {1, 1, 2, 1, 0, 2, 2, 0};
    const attending *a = self;
    const int64_t kv = a->config.kv_heads;
    quad_node lse;
    const quad_node query = quad_span(t, quad_input(t, "weights/w", 1, WEIGHTS), 0, 8, 8);
    const quad_node key = quad_span(t, quad_input(t, "weights/w", 1, WEIGHTS), 64, 8, 2 * kv);
    const quad_node value = quad_span(t, x_of(t), 0, 8, kv);
    const quad_node out = quad_attend(t, &a->config, query, key, value, a->sinks ? quad_span(t, x_of(t), 20, 1, 4) : 0,
                                      a->segments ? segments : NULL, &lse);
    quad_put(t, "outputs/y", assay_shape_of(2, (int64_t)8, (int64_t)4), out);
    if (!a->segments) quad_put(t, "outputs/lse", assay_shape_of(2, (int64_t)8, (int64_t)4), lse);
}

/* --- the check --- */

/* sum over outputs of cotangents: numbers from their places. */
static quad cotangent(int64_t i)
{
    return (quad)(i * 37 % 11) - 4 + (quad)i / 16;
}

static quad loss(quad_case *c, quad_form *form, const void *config)
{
    quad sum = 0;
    assert_ok(&c->ctx, case_evaluate(c, form, config));
    for (int k = 0; k < c->out.count; k++)
        for (int64_t i = 0; i < assay_shape_count(&c->out.items[k].shape); i++)
            sum += cotangent(i) * c->out.items[k].values[i];
    return sum;
}

static void add_inputs(quad_case *c, double scale)
{
    case_start(c, 11);
    case_random(c, "inputs/x", scale, DIMS(ROWS, COLUMNS));
    case_random(c, "weights/w", scale, DIMS(1, WEIGHTS));
}

/* cotangents/ of what the form gives. */
static void add_cotangents(quad_case *c, quad_form *form, const void *config)
{
    loss(c, form, config);
    for (int k = 0; k < c->out.count; k++) {
        char path[ASSAY_PATH_SIZE];
        quad *values;
        snprintf(path, sizeof path, "cotangents/%s", c->out.items[k].path + strlen("outputs/"));
        assert_ok(&c->ctx, quad_tensors_add(&c->ctx, &c->in, path, &c->out.items[k].shape, &values));
        for (int64_t i = 0; i < assay_shape_count(&c->out.items[k].shape); i++) values[i] = cotangent(i);
    }
}

static void check(const char *what, quad_form *form, const void *config)
{
    static const char *const paths[] = {"inputs/x", "weights/w"};
    quad_case c;
    int other = 0;
    add_inputs(&c, 1.5);
    add_cotangents(&c, form, config);
    OWNED_BY(quad_tensors_free) quad_tensors found = {0};
    assert_ok(&c.ctx, quad_differentiate(&c.ctx, form, config, &c.in, NULL, &found, NULL));
    for (int k = 0; k < 2; k++) {
        char path[ASSAY_PATH_SIZE];
        quad *values = quad_tensors_find(&c.in, paths[k])->values;
        snprintf(path, sizeof path, "gradients/%s", paths[k]);
        const quad_tensor *gradient = quad_tensors_find(&found, path);
        for (int64_t i = 0; gradient != NULL && i < assay_shape_count(&gradient->shape); i++) {
            const quad at = values[i], step = 0x1p-36Q;
            values[i] = at + step;
            const quad above = loss(&c, form, config);
            values[i] = at - step;
            const quad slope = (above - loss(&c, form, config)) / (2 * step);
            values[i] = at;
            other += gradient->values[i] != 0;
            if (fabsq(slope - gradient->values[i]) <= 1e-18Q * fmaxq(1, fabsq(slope))) continue;
            fail_msg("%s: %s[%d] is %.17g, expected %.17g", what, path, (int)i, (double)gradient->values[i],
                     (double)slope);
        }
    }
    if (other < 2) fail_msg("%s: no gradient came back", what);
    case_end(&c);
}

TEST(test_moves)
{
    check("columns", columns, NULL);
    check("rows", rows, NULL);
    check("scattered", scattered, NULL);
}

TEST(test_numbers)
{
    static const quad_unary functions[] = {QUAD_SIGMOID, QUAD_SQRTSOFTPLUS, QUAD_SILU,
                                           QUAD_CUT,     QUAD_CUT_ABOVE,    QUAD_INVERSE};
    check("sums", sums, NULL);
    check("weighed", weighed, NULL);
    check("summed", summed, NULL);
    for (int i = 0; i < 6; i++) check("a function of one number", mapped, &functions[i]);
}

/* A limit that some numbers are beyond on either side. */
TEST(test_gates)
{
    static const assay_activation all[] = {ASSAY_SILU, ASSAY_GELU,    ASSAY_GELU_EXACT,
                                           ASSAY_RELU, ASSAY_SIGMOID, ASSAY_LINEAR};
    static const assay_glu kinds[] = {ASSAY_GLU_PLAIN, ASSAY_GLU_GPT_OSS, ASSAY_GLU_CLAMPED};
    for (int i = 0; i < 3 * 6; i++) {
        const assay_gated_mlp_config config = {
            .activation = {all[i % 6], all[(i + 1) % 6]}, .glu = kinds[i / 6], .limit = 0.7};
        check("a gate", gated, &config);
    }
}

TEST(test_rows)
{
    check("a norm", normalised, NULL);
    check("softmax", softmax, NULL);
    check("log sum exp", log_sum, NULL);
    check("over the sum", over_sum, NULL);
}

TEST(test_linear)
{
    check("linear", linear, NULL);
    check("groups", grouped, NULL);
}

TEST(test_rotations)
{
    for (int i = 0; i < 3; i++) {
        const assay_rope_config config = {
            COLUMNS / (i == 1 ? 3 : 1), false, 10000, 0, 0, 0, 4096, 64, i > 0, false, false, i == 2, NULL};
        check("a rotation", turned, &config);
    }
}

TEST(test_attention)
{
    for (int i = 0; i < 32; i++) {
        const attending a = {.config = {.batch = 2,
                                        .sequence = 4,
                                        .heads = 4,
                                        .kv_heads = i & 1 ? 2 : 1,
                                        .qk_dim = 2,
                                        .v_dim = 1,
                                        .window = i & 2 ? 2 : 0,
                                        .soft_cap = i & 16 ? 1.5 : 0,
                                        .mask_padding = true},
                             .sinks = i & 4,
                             .segments = i & 8};
        check("attention", attended, &a);
    }
}

/* What is taken as other numbers has their values, and its own gradient. */
static void taken(quad_tape *t, const void *config)
{
    put(t, quad_multiply(t, quad_replaced_by(t, x_of(t), config), x_of(t)));
}

TEST(test_straight_through)
{
    OWNED_BY(case_end) quad_case c;
    quad others[ROWS * COLUMNS];
    for (int i = 0; i < ROWS * COLUMNS; i++) others[i] = i;
    add_inputs(&c, 1);
    add_cotangents(&c, taken, others);
    assert_ok(&c.ctx, case_differentiate(&c, taken, others));
    const quad *x = quad_tensors_find(&c.in, "inputs/x")->values;
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        const double y = (double)(x[i] * i), dx = (double)(cotangent(i) * (x[i] + i));
        assert_true(result_at(&c, "outputs/y", i) == y && result_at(&c, "gradients/inputs/x", i) == dx);
    }
}

/* A gradient that nobody names is not given, and one of what is computed is what came back to it. */
static void shown(quad_tape *t, const void *config)
{
    (void)config;
    const quad_node y = quad_times(t, x_of(t), 5);
    quad_put_gradient(t, "checkpoints/y_gradient", assay_shape_of(2, (int64_t)ROWS, (int64_t)COLUMNS), y);
    put(t, quad_times(t, y, 3));
}

TEST(test_what_is_wanted)
{
    OWNED_BY(case_end) quad_case c;
    quad_tensor items[] = {{.path = "checkpoints/y_gradient"}};
    const quad_tensors wanted = {items, 1};
    add_inputs(&c, 1);
    add_cotangents(&c, sums, NULL);
    quad_tensors_free(&c.out);
    assert_ok(&c.ctx, quad_differentiate(&c.ctx, shown, NULL, &c.in, &wanted, &c.out, NULL));
    assert_int_equal(c.out.count, 1);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        assert_true(result_at(&c, "checkpoints/y_gradient", i) == (double)(3 * cotangent(i)));
}

TEST(test_refusals)
{
    static const struct {
        const char *path, *message;
        int64_t rows;
    } table[] = {{"inputs/y", "the tensor 'inputs/y' is missing", ROWS},
                 {"inputs/x", "'inputs/x' has the shape [4,6], expected 30 elements", ROWS + 1}};
    for (int i = 0; i < 2; i++) {
        OWNED_BY(case_end) quad_case c;
        assay_context ctx = assay_context_default(1);
        add_inputs(&c, 1);
        quad_tape t = {.ctx = &ctx, .in = &c.in, .out = &c.out};
        const quad_node x = quad_input(&t, table[i].path, table[i].rows, COLUMNS);
        assert_int_equal(x, 0);
        /* and whatever is made of it */
        assert_int_equal(quad_add(&t, quad_times(&t, x, 2), quad_map(&t, x, QUAD_SILU)), 0);
        assert_int_equal(t.status, ASSAY_BAD_INPUT);
        assert_string_equal(ctx.message, table[i].message);
    }
}
