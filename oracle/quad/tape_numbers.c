/* Primitives on numbers one by one, and on rows. */
#include <math.h>
#include <quadmath.h>

#include "oracle/quad/quad_internal.h"
#include "oracle/quad/tape.h"

enum { WORTH_THREADS = 1024 }; /* numbers that a function is taken of */

static quad_node like(quad_tape *t, quad_node x, quad_record record, quad **values)
{
    quad_node y;
    *values = quad_new(t, quad_rows(t, x), quad_columns(t, x), record, &y);
    return y;
}

static int64_t count_of(const quad_tape *t, quad_node x)
{
    return quad_rows(t, x) * quad_columns(t, x);
}

/* Adds came * factors to an operand's gradient; factors NULL: one for all. Where nothing came back nothing goes on, whatever the factor: a row
 * that belongs to nothing may hold NaN. */
static void add_back(quad_tape *t, quad_node x, int64_t count, const quad *came, const quad *factors, quad factor)
{
    quad *into = quad_into(t, x);
    for (int64_t i = 0; into != NULL && i < count; i++)
        if (came[i] != 0) into[i] += came[i] * (factors == NULL ? factor : factors[i]);
}

/* --- sums and products --- */

static void add_both(quad_tape *t, const quad_record *y)
{
    for (int k = 0; k < 2; k++) add_back(t, y->from[k], y->rows * y->columns, y->gradient, NULL, 1);
}

quad_node quad_add(quad_tape *t, quad_node a, quad_node b)
{
    quad *values;
    if (a == 0 || b == 0) return a == 0 ? b : a;
    const quad_node y = like(t, a, (quad_record){.from = {a, b}, .back = add_both}, &values);
    for (int64_t i = 0; values != NULL && i < count_of(t, y); i++)
        values[i] = quad_values(t, a)[i] + quad_values(t, b)[i];
    return y;
}

quad_node quad_add_row(quad_tape *t, quad_node x, quad_node row)
{
    return row == 0 ? x : quad_add(t, x, quad_repeat(t, row, quad_rows(t, x)));
}

static void multiply_back(quad_tape *t, const quad_record *y)
{
    const int64_t count = y->rows * y->columns;
    add_back(t, y->from[0], count, y->gradient, quad_values(t, y->from[1]), 0);
    add_back(t, y->from[1], count, y->gradient, quad_values(t, y->from[0]), 0);
}

quad_node quad_multiply(quad_tape *t, quad_node a, quad_node b)
{
    quad *values;
    if (a == 0 || b == 0) return 0;
    const quad_node y = like(t, a, (quad_record){.from = {a, b}, .back = multiply_back}, &values);
    for (int64_t i = 0; values != NULL && i < count_of(t, y); i++)
        values[i] = quad_values(t, a)[i] * quad_values(t, b)[i];
    return y;
}

quad_node quad_weigh(quad_tape *t, quad_node x, quad_node w)
{
    const int64_t columns = quad_columns(t, x);
    return quad_multiply(t, x, quad_view(t, quad_repeat(t, w, columns), columns));
}

static void times_back(quad_tape *t, const quad_record *y)
{
    add_back(t, y->from[0], y->rows * y->columns, y->gradient, NULL, y->number);
}

quad_node quad_times(quad_tape *t, quad_node x, quad factor)
{
    quad *values;
    if (x == 0) return 0;
    const quad_node y = like(t, x, (quad_record){.from = {x}, .back = times_back, .number = factor}, &values);
    for (int64_t i = 0; values != NULL && i < count_of(t, y); i++) values[i] = factor * quad_values(t, x)[i];
    return y;
}

/* --- functions of one number --- */

static quad value_of(quad_unary f, quad x, quad number)
{
    switch (f) {
#define OWN(name, value, slope)                                                                                        \
    case QUAD_##name:                                                                                                  \
        return value;
#define MAP(name, step, value, slope) OWN(name, value, slope)
#include "oracle/quad/maps.inc"
    default:
        return quad_activation((assay_activation)f, x);
    }
}

static quad slope_of(quad_unary f, quad x, quad y, quad number)
{
    switch (f) {
#define OWN(name, value, slope)                                                                                        \
    case QUAD_##name:                                                                                                  \
        return slope;
#define MAP(name, step, value, slope) OWN(name, value, slope)
#include "oracle/quad/maps.inc"
    default:
        return quad_activation_slope((assay_activation)f, x);
    }
}

static void map_back(quad_tape *t, const quad_record *y)
{
    const quad *x = quad_values(t, y->from[0]);
    quad *into = quad_into(t, y->from[0]);
    const int64_t count = into == NULL ? 0 : y->rows * y->columns;
#pragma omp parallel for num_threads(t->ctx->threads) schedule(static) if (count >= WORTH_THREADS)
    for (int64_t i = 0; i < count; i++)
        if (y->gradient[i] != 0)
            into[i] += y->gradient[i] * slope_of((quad_unary)y->function, x[i], y->values[i], y->number);
}

quad_node quad_map_with(quad_tape *t, quad_node x, quad_unary f, quad number)
{
    quad *values;
    if (x == 0) return 0;
    const quad_record record = {.from = {x}, .back = map_back, .function = (int)f, .number = number};
    const quad_node y = like(t, x, record, &values);
    const quad *of = quad_values(t, x);
    const int64_t count = values == NULL ? 0 : count_of(t, y);
#pragma omp parallel for num_threads(t->ctx->threads) schedule(static) if (count >= WORTH_THREADS)
    for (int64_t i = 0; i < count; i++) values[i] = value_of(f, of[i], number);
    return y;
}

quad_node quad_map(quad_tape *t, quad_node x, quad_unary f)
{
    return quad_map_with(t, x, f, 0);
}

/* --- gated linear units --- */

/* Clamped: a from above, b from both sides, and b by itself. gpt_oss: a sigmoid(1.702 a) (b + 1) of what is cut. */
quad_node quad_glu(quad_tape *t, quad_node a, quad_node b, const assay_gated_mlp_config *config)
{
    if (config->glu == ASSAY_GLU_PLAIN)
        return quad_multiply(t, quad_map(t, a, (quad_unary)config->activation[0]),
                             quad_map(t, b, (quad_unary)config->activation[1]));
    const quad_node cut_a = quad_map_with(t, a, QUAD_CUT_ABOVE, config->limit),
                    cut_b = quad_map_with(t, b, QUAD_CUT, config->limit);
    if (config->glu == ASSAY_GLU_CLAMPED)
        return quad_multiply(t, quad_map(t, cut_a, (quad_unary)config->activation[0]), cut_b);
    const quad_node gate = quad_multiply(t, cut_a, quad_map(t, quad_times(t, cut_a, 1702 / (quad)1000), QUAD_SIGMOID));
    return quad_add(t, quad_multiply(t, gate, cut_b), gate);
}

/* --- rows --- */

quad_node quad_row_sums(quad_tape *t, quad_node x, quad factor)
{
    quad *column;
    const quad_node w = quad_constant(t, quad_columns(t, x), 1, &column);
    for (int64_t i = 0; column != NULL && i < quad_columns(t, x); i++) column[i] = factor;
    return quad_linear(t, (quad_layer){.x = x, .w = w});
}

quad_node quad_over_root(quad_tape *t, quad_node x, quad share, double epsilon)
{
    const quad_node squares = quad_row_sums(t, quad_multiply(t, x, x), share);
    return quad_weigh(t, x, quad_map_with(t, squares, QUAD_INVERSE_ROOT, epsilon));
}

quad_node quad_normalise(quad_tape *t, quad_node x, quad_node scale, double epsilon)
{
    if (x == 0 || scale == 0) return 0;
    const quad_node normal = quad_over_root(t, x, 1 / (quad)quad_columns(t, x), epsilon);
    return quad_multiply(t, normal, quad_repeat(t, scale, quad_rows(t, x)));
}

quad_node quad_over_sum(quad_tape *t, quad_node x, quad extra)
{
    return quad_weigh(t, x, quad_map_with(t, quad_row_sums(t, x, 1), QUAD_INVERSE, extra));
}

static bool is_there(const int32_t *mask, int64_t i)
{
    return mask == NULL || mask[i] >= 0;
}

/* Of the exponentials of x less its largest number. */
static quad sum_of_exponentials(int64_t columns, const quad *x, const int32_t *mask, quad *largest)
{
    quad sum = 0;
    *largest = -INFINITY;
    for (int64_t i = 0; i < columns; i++) *largest = is_there(mask, i) && x[i] > *largest ? x[i] : *largest;
    for (int64_t i = 0; i < columns; i++) sum += is_there(mask, i) ? expq(x[i] - *largest) : 0;
    return sum;
}

static void softmax_back(quad_tape *t, const quad_record *y)
{
    quad *dx = quad_into(t, y->from[0]);
    for (int64_t row = 0; dx != NULL && row < y->rows; row++) {
        const quad *p = y->values + row * y->columns, *dp = y->gradient + row * y->columns;
        quad mean = 0;
        for (int64_t i = 0; i < y->columns; i++) mean += p[i] * dp[i];
        for (int64_t i = 0; i < y->columns; i++) dx[row * y->columns + i] += p[i] * (dp[i] - mean);
    }
}

quad_node quad_softmax(quad_tape *t, quad_node x, const int32_t *mask)
{
    quad *values;
    if (x == 0) return 0;
    const quad_node y = like(t, x, (quad_record){.from = {x}, .back = softmax_back}, &values);
    const int64_t columns = quad_columns(t, x);
    for (int64_t row = 0; values != NULL && row < quad_rows(t, y); row++) {
        const quad *of = quad_values(t, x) + row * columns;
        const int32_t *there = mask == NULL ? NULL : mask + row * columns;
        quad largest;
        const quad sum = sum_of_exponentials(columns, of, there, &largest);
        for (int64_t i = 0; i < columns; i++)
            values[row * columns + i] = is_there(there, i) ? expq(of[i] - largest) / sum : 0;
    }
    return y;
}

static void log_sum_back(quad_tape *t, const quad_record *y)
{
    const int64_t columns = quad_columns(t, y->from[0]);
    quad *dx = quad_into(t, y->from[0]);
    for (int64_t row = 0; dx != NULL && row < y->rows; row++) {
        const quad *x = quad_values(t, y->from[0]) + row * columns;
        quad largest;
        const quad sum = sum_of_exponentials(columns, x, NULL, &largest);
        for (int64_t i = 0; i < columns; i++) dx[row * columns + i] += y->gradient[row] * (expq(x[i] - largest) / sum);
    }
}

quad_node quad_log_sum_exp(quad_tape *t, quad_node x)
{
    quad_node y;
    const int64_t columns = quad_columns(t, x);
    if (x == 0) return 0;
    quad *values = quad_new(t, quad_rows(t, x), 1, (quad_record){.from = {x}, .back = log_sum_back}, &y);
    for (int64_t row = 0; values != NULL && row < quad_rows(t, y); row++) {
        quad largest;
        const quad sum = sum_of_exponentials(columns, quad_values(t, x) + row * columns, NULL, &largest);
        values[row] = largest + logq(sum);
    }
    return y;
}
