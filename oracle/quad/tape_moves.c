/* Primitives that put numbers elsewhere. */
#include <string.h>

#include "oracle/quad/tape.h"

/* Adds rows of `from` to rows of `to`: row i, or where a list says; -1: no row. */
static void add_rows(int64_t count, int64_t width, quad *to, const int64_t *to_row, const quad *from,
                     const int64_t *from_row)
{
    for (int64_t i = 0; i < count; i++) {
        const int64_t a = to_row == NULL ? i : to_row[i], b = from_row == NULL ? i : from_row[i];
        for (int64_t j = 0; a >= 0 && b >= 0 && j < width; j++) to[a * width + j] += from[b * width + j];
    }
}

static quad *zeros(quad_tape *t, int64_t rows, int64_t columns, quad_record record, quad_node *y)
{
    quad *values = quad_new(t, rows, columns, record, y);
    for (int64_t i = 0; values != NULL && i < rows * columns; i++) values[i] = 0;
    return values;
}

static void gather_back(quad_tape *t, const quad_record *y)
{
    quad *into = quad_into(t, y->from[0]);
    if (into != NULL) add_rows(y->rows, y->columns, into, y->with, y->gradient, NULL);
}

quad_node quad_gather(quad_tape *t, quad_node x, const int64_t *index, int64_t rows)
{
    quad_node y;
    const int64_t width = quad_columns(t, x);
    if (x == 0) return 0;
    quad *values = zeros(t, rows, width, (quad_record){.from = {x}, .back = gather_back, .with = index}, &y);
    if (values != NULL) add_rows(rows, width, values, NULL, quad_values(t, x), index);
    return y;
}

static void scatter_back(quad_tape *t, const quad_record *y)
{
    quad *into = quad_into(t, y->from[0]);
    if (into != NULL) add_rows(quad_rows(t, y->from[0]), y->columns, into, NULL, y->gradient, y->with);
}

quad_node quad_scatter(quad_tape *t, quad_node x, const int64_t *index, int64_t rows)
{
    quad_node y;
    const int64_t width = quad_columns(t, x);
    if (x == 0) return 0;
    quad *values = zeros(t, rows, width, (quad_record){.from = {x}, .back = scatter_back, .with = index}, &y);
    if (values != NULL) add_rows(quad_rows(t, x), width, values, index, quad_values(t, x), NULL);
    return y;
}

quad_node quad_repeat(quad_tape *t, quad_node x, int64_t times)
{
    int64_t *index = quad_indices(t, quad_rows(t, x) * times);
    for (int64_t i = 0; index != NULL && i < quad_rows(t, x) * times; i++) index[i] = i / times;
    return quad_gather(t, x, index, quad_rows(t, x) * times);
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    return b == 0 ? a : common_divisor(b, a % b);
}

/* As rows of the longest pieces that columns and what is before them are made of. */
quad_node quad_columns_of(quad_tape *t, quad_node x, int64_t first, int64_t count)
{
    const int64_t rows = quad_rows(t, x), all = quad_columns(t, x);
    const int64_t piece = common_divisor(common_divisor(first, count), all);
    if (x == 0 || piece == 0) return 0;
    const int64_t own = count / piece;
    int64_t *index = quad_indices(t, rows * own);
    for (int64_t i = 0; index != NULL && i < rows * own; i++)
        index[i] = i / own * (all / piece) + first / piece + i % own;
    return index == NULL ? 0 : quad_view(t, quad_gather(t, quad_view(t, x, piece), index, rows * own), count);
}

/* y is of `runs` runs, each of as many numbers of every part in turn. */
typedef struct joined {
    int64_t runs, count;
    quad_node parts[];
} joined;

/* How many of a part. */
static int64_t run_of(const quad_tape *t, const joined *j, int64_t k)
{
    return j->runs == 0 ? 0 : quad_rows(t, j->parts[k]) * quad_columns(t, j->parts[k]) / j->runs;
}

static void join_back(quad_tape *t, const quad_record *y)
{
    const joined *j = y->with;
    const quad *came = y->gradient;
    for (int64_t i = 0; i < j->runs * j->count; i++) {
        const int64_t own = run_of(t, j, i % j->count);
        quad *into = quad_into(t, j->parts[i % j->count]);
        for (int64_t k = 0; into != NULL && k < own; k++) into[i / j->count * own + k] += came[k];
        came += own;
    }
}

static quad_node join(quad_tape *t, const quad_node *parts, int64_t count, int64_t runs, int64_t columns)
{
    quad_node y;
    int64_t all = 0;
    quad_record record = {.back = join_back};
    joined *with = quad_keep(t, (int64_t)sizeof *with + count * (int64_t)sizeof *parts, 1);
    if (with == NULL) return 0;
    with->runs = runs;
    with->count = count;
    for (int64_t k = 0; k < count; k++) {
        if (parts[k] == 0) return 0;
        with->parts[k] = parts[k];
        all += run_of(t, with, k);
        record.wanted |= t->records[parts[k]].wanted;
    }
    record.with = with;
    quad *values = quad_new(t, columns == 0 ? 0 : runs * all / columns, columns, record, &y);
    for (int64_t i = 0; values != NULL && i < runs * count; i++) {
        const int64_t own = run_of(t, with, i % count);
        memcpy(values, quad_values(t, parts[i % count]) + i / count * own, (size_t)own * sizeof *values);
        values += own;
    }
    return y;
}

quad_node quad_beside(quad_tape *t, quad_node a, quad_node b)
{
    if (a == 0 || b == 0) return a == 0 ? b : a;
    return join(t, (quad_node[]){a, b}, 2, quad_rows(t, a), quad_columns(t, a) + quad_columns(t, b));
}

quad_node quad_concatenate(quad_tape *t, const quad_node *parts, int64_t count)
{
    return join(t, parts, count, 1, quad_columns(t, parts[0]));
}

static void as_it_is(quad_tape *t, const quad_record *y)
{
    quad *into = quad_into(t, y->from[0]);
    if (into != NULL) add_rows(y->rows, y->columns, into, NULL, y->gradient, NULL);
}

quad_node quad_replaced_by(quad_tape *t, quad_node x, const quad *values)
{
    quad_node y;
    if (x == 0) return 0;
    quad *to = quad_new(t, quad_rows(t, x), quad_columns(t, x), (quad_record){.from = {x}, .back = as_it_is}, &y);
    if (to != NULL) memcpy(to, values, (size_t)(quad_rows(t, y) * quad_columns(t, y)) * sizeof *to);
    return y;
}
