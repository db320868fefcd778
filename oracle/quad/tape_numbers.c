/* Primitives on numbers one by one, and on rows. */
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

static void weigh_back(quad_tape *t, const quad_record *y)
{
    const quad *x = quad_values(t, y->from[0]), *w = quad_values(t, y->from[1]);
    quad *dx = quad_into(t, y->from[0]), *dw = quad_into(t, y->from[1]);
    for (int64_t i = 0; i < y->rows * y->columns; i++) {
        if (y->gradient[i] == 0) continue;
        if (dx != NULL) dx[i] += y->gradient[i] * w[i / y->columns];
        if (dw != NULL) dw[i / y->columns] += y->gradient[i] * x[i];
    }
}

quad_node quad_weigh(quad_tape *t, quad_node x, quad_node w)
{
    quad *values;
    if (x == 0 || w == 0) return 0;
    const quad_node y = like(t, x, (quad_record){.from = {x, w}, .back = weigh_back}, &values);
    for (int64_t i = 0; values != NULL && i < count_of(t, y); i++)
        values[i] = quad_values(t, x)[i] * quad_values(t, w)[i / quad_columns(t, y)];
    return y;
}

static void times_back(quad_tape *t, const quad_record *y)
{
    add_back(t, y->from[0], y->rows * y->columns, y->gradient, NULL, *(const quad *)y->with);
}

quad_node quad_times(quad_tape *t, quad_node x, quad factor)
{
    quad *values, *with = quad_keep(t, 1, sizeof *with);
    if (x == 0 || with == NULL) return 0;
    *with = factor;
    const quad_node y = like(t, x, (quad_record){.from = {x}, .back = times_back, .with = with}, &values);
    for (int64_t i = 0; values != NULL && i < count_of(t, y); i++) values[i] = factor * quad_values(t, x)[i];
    return y;
}

static void sum_times_back(quad_tape *t, const quad_record *y)
{
    add_back(t, y->from[0], count_of(t, y->from[0]), y->with, NULL, y->gradient[0]);
}

quad_node quad_sum_times(quad_tape *t, quad_node x, const quad *factors)
{
    quad_node y;
    if (x == 0 || factors == NULL) return 0;
    quad *sum = quad_new(t, 1, 1, (quad_record){.from = {x}, .back = sum_times_back, .with = factors}, &y);
    if (sum != NULL) *sum = 0;
    for (int64_t i = 0; sum != NULL && i < count_of(t, x); i++) *sum += factors[i] * quad_values(t, x)[i];
    return y;
}

/* --- functions of one number --- */

static quad value_of(quad_unary f, quad x)
{
    switch (f) {
    case QUAD_SIGMOID:
        return quad_sigmoid(x);
    case QUAD_SQRTSOFTPLUS: /* the root of ln(1 + e^x) */
        return sqrtq(x > 0 ? x + log1pq(expq(-x)) : log1pq(expq(x)));
    case QUAD_SQUARE:
        return x * x;
    case QUAD_SILU:
        break;
    }
    return x * quad_sigmoid(x);
}

static quad slope_of(quad_unary f, quad x, quad y)
{
    switch (f) {
    case QUAD_SIGMOID:
        return y * quad_sigmoid(-x);
    case QUAD_SQRTSOFTPLUS:
        return quad_sigmoid(x) / (2 * y);
    case QUAD_SQUARE:
        return 2 * x;
    case QUAD_SILU:
        break;
    }
    return quad_activation_slope(ASSAY_SILU, x);
}

typedef struct map {
    quad_unary f;
} map;

static void map_back(quad_tape *t, const quad_record *y)
{
    const map *m = y->with;
    const quad *x = quad_values(t, y->from[0]);
    quad *into = quad_into(t, y->from[0]);
    for (int64_t i = 0; into != NULL && i < y->rows * y->columns; i++)
        if (y->gradient[i] != 0) into[i] += y->gradient[i] * slope_of(m->f, x[i], y->values[i]);
}

quad_node quad_map(quad_tape *t, quad_node x, quad_unary f)
{
    quad *values;
    map *with = quad_keep(t, 1, sizeof *with);
    if (x == 0 || with == NULL) return 0;
    with->f = f;
    const quad_node y = like(t, x, (quad_record){.from = {x}, .back = map_back, .with = with}, &values);
    for (int64_t i = 0; values != NULL && i < count_of(t, y); i++) values[i] = value_of(f, quad_values(t, x)[i]);
    return y;
}

/* --- gated linear units --- */

static void glu_back(quad_tape *t, const quad_record *y)
{
    const assay_gated_mlp_config *c = y->with;
    const quad *a = quad_values(t, y->from[0]), *b = quad_values(t, y->from[1]);
    quad *da = quad_into(t, y->from[0]), *db = quad_into(t, y->from[1]);
#pragma omp parallel for num_threads(t->ctx->threads) schedule(static) if (y->rows * y->columns >= WORTH_THREADS)
    for (int64_t i = 0; i < y->rows * y->columns; i++) {
        quad slopes[2];
        quad_glu_slopes(c->activation, c->glu, c->limit, a[i], b[i], slopes);
        if (da != NULL) da[i] += y->gradient[i] * slopes[0];
        if (db != NULL) db[i] += y->gradient[i] * slopes[1];
    }
}

quad_node quad_glu(quad_tape *t, quad_node a, quad_node b, const assay_gated_mlp_config *config)
{
    quad *values;
    assay_gated_mlp_config *with = quad_keep(t, 1, sizeof *with);
    if (a == 0 || b == 0 || with == NULL) return 0;
    *with = *config;
    const quad_node y = like(t, a, (quad_record){.from = {a, b}, .back = glu_back, .with = with}, &values);
    const quad *of_a = quad_values(t, a), *of_b = quad_values(t, b);
    const int64_t count = count_of(t, y);
    if (values == NULL) return 0;
#pragma omp parallel for num_threads(t->ctx->threads) schedule(static) if (count >= WORTH_THREADS)
    for (int64_t i = 0; i < count; i++)
        values[i] = quad_glu_of(with->activation, with->glu, with->limit, of_a[i], of_b[i]);
    return y;
}

/* --- rows --- */

typedef struct norm {
    double epsilon;
} norm;

/* The root of a row's mean square plus epsilon. */
static quad root_of(int64_t columns, double epsilon, const quad *x)
{
    quad squares = 0;
    for (int64_t i = 0; i < columns; i++) squares += x[i] * x[i];
    return sqrtq(squares / columns + epsilon);
}

static void normalise_back(quad_tape *t, const quad_record *y)
{
    const norm *n = y->with;
    const quad *scale = quad_values(t, y->from[1]);
    quad *dx = quad_into(t, y->from[0]), *dscale = quad_into(t, y->from[1]);
    for (int64_t row = 0; row < y->rows; row++) {
        const quad *x = quad_values(t, y->from[0]) + row * y->columns, *dy = y->gradient + row * y->columns;
        const quad root = root_of(y->columns, n->epsilon, x);
        quad along = 0; /* <scale dy, x> / (columns root^2) */
        for (int64_t i = 0; i < y->columns; i++) along += scale[i] * dy[i] * x[i] / (root * root) / y->columns;
        for (int64_t i = 0; i < y->columns; i++) {
            if (dx != NULL) dx[row * y->columns + i] += (scale[i] * dy[i] - along * x[i]) / root;
            if (dscale != NULL) dscale[i] += dy[i] * x[i] / root;
        }
    }
}

quad_node quad_normalise(quad_tape *t, quad_node x, quad_node scale, double epsilon)
{
    quad *values;
    norm *with = quad_keep(t, 1, sizeof *with);
    if (x == 0 || scale == 0 || with == NULL) return 0;
    with->epsilon = epsilon;
    const quad_node y = like(t, x, (quad_record){.from = {x, scale}, .back = normalise_back, .with = with}, &values);
    const int64_t columns = quad_columns(t, x);
    for (int64_t row = 0; values != NULL && row < quad_rows(t, y); row++) {
        const quad *of = quad_values(t, x) + row * columns, root = root_of(columns, epsilon, of);
        for (int64_t i = 0; i < columns; i++) values[row * columns + i] = of[i] / root * quad_values(t, scale)[i];
    }
    return y;
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
        quad *p = values + row * columns, largest = 0, sum = 0;
        bool any = false;
        for (int64_t i = 0; i < columns; i++) {
            if (mask != NULL && mask[row * columns + i] < 0) continue;
            largest = !any || of[i] > largest ? of[i] : largest;
            any = true;
        }
        for (int64_t i = 0; i < columns; i++) {
            p[i] = mask != NULL && mask[row * columns + i] < 0 ? 0 : expq(of[i] - largest);
            sum += p[i];
        }
        for (int64_t i = 0; any && i < columns; i++) p[i] /= sum;
    }
    return y;
}

static void log_sum_back(quad_tape *t, const quad_record *y)
{
    const int64_t columns = quad_columns(t, y->from[0]);
    const quad *x = quad_values(t, y->from[0]);
    quad *dx = quad_into(t, y->from[0]);
    for (int64_t i = 0; dx != NULL && i < y->rows * columns; i++)
        dx[i] += y->gradient[i / columns] * expq(x[i] - y->values[i / columns]);
}

quad_node quad_log_sum_exp(quad_tape *t, quad_node x)
{
    quad_node y;
    const int64_t columns = quad_columns(t, x);
    if (x == 0) return 0;
    quad *values = quad_new(t, quad_rows(t, x), 1, (quad_record){.from = {x}, .back = log_sum_back}, &y);
    for (int64_t row = 0; values != NULL && row < quad_rows(t, y); row++) {
        const quad *of = quad_values(t, x) + row * columns;
        quad largest = of[0], sum = 0;
        for (int64_t i = 0; i < columns; i++) largest = of[i] > largest ? of[i] : largest;
        for (int64_t i = 0; i < columns; i++) sum += expq(of[i] - largest);
        values[row] = largest + logq(sum);
    }
    return y;
}

static quad sum_of(int64_t count, const quad *x)
{
    quad sum = 0;
    for (int64_t i = 0; i < count; i++) sum += x[i];
    return sum;
}

typedef struct over_sum {
    quad extra;
} over_sum;

static void over_sum_back(quad_tape *t, const quad_record *y)
{
    const over_sum *o = y->with;
    quad *dx = quad_into(t, y->from[0]);
    for (int64_t row = 0; dx != NULL && row < y->rows; row++) {
        const quad *x = quad_values(t, y->from[0]) + row * y->columns, *dy = y->gradient + row * y->columns;
        const quad sum = sum_of(y->columns, x) + o->extra;
        quad along = 0;
        for (int64_t i = 0; i < y->columns; i++) along += dy[i] * x[i] / sum;
        for (int64_t i = 0; sum != 0 && i < y->columns; i++) dx[row * y->columns + i] += (dy[i] - along) / sum;
    }
}

quad_node quad_over_sum(quad_tape *t, quad_node x, quad extra)
{
    quad *values;
    over_sum *with = quad_keep(t, 1, sizeof *with);
    if (x == 0 || with == NULL) return 0;
    with->extra = extra;
    const quad_node y = like(t, x, (quad_record){.from = {x}, .back = over_sum_back, .with = with}, &values);
    for (int64_t i = 0; values != NULL && i < count_of(t, y); i++) {
        const quad *of = quad_values(t, x), *row = of + i / quad_columns(t, x) * quad_columns(t, x);
        values[i] = of[i] == 0 ? 0 : of[i] / (sum_of(quad_columns(t, x), row) + extra);
    }
    return y;
}
