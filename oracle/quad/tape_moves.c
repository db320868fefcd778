/* Primitives that put numbers elsewhere. */
#include <string.h>

#include "oracle/quad/quad_internal.h"
#include "oracle/quad/tape.h"

/* Columns of a node that begin at a column of another, `count` of every row. */
typedef struct columns {
    int64_t first;
} columns;

static void columns_back(quad_tape *t, const quad_record *y)
{
    const columns *c = y->with;
    const int64_t all = quad_columns(t, y->from[0]);
    quad *into = quad_into(t, y->from[0]);
    for (int64_t i = 0; into != NULL && i < y->rows * y->columns; i++)
        into[i / y->columns * all + c->first + i % y->columns] += y->gradient[i];
}

quad_node quad_columns_of(quad_tape *t, quad_node x, int64_t first, int64_t count)
{
    quad_node y;
    const int64_t rows = quad_rows(t, x), all = quad_columns(t, x);
    columns *with = quad_keep(t, 1, sizeof *with);
    if (x == 0 || with == NULL) return 0;
    with->first = first;
    quad *values = quad_new(t, rows, count, (quad_record){.from = {x}, .back = columns_back, .with = with}, &y);
    for (int64_t i = 0; values != NULL && i < rows * count; i++)
        values[i] = quad_values(t, x)[i / count * all + first + i % count];
    return y;
}

static void beside_back(quad_tape *t, const quad_record *y)
{
    int64_t first = 0;
    for (int k = 0; k < 2; k++) {
        const int64_t own = quad_columns(t, y->from[k]);
        quad *into = quad_into(t, y->from[k]);
        for (int64_t i = 0; into != NULL && i < y->rows * own; i++)
            into[i] += y->gradient[i / own * y->columns + first + i % own];
        first += own;
    }
}

quad_node quad_beside(quad_tape *t, quad_node a, quad_node b)
{
    quad_node y;
    if (a == 0 || b == 0) return a == 0 ? b : a;
    const int64_t rows = quad_rows(t, a), of_a = quad_columns(t, a), of_b = quad_columns(t, b), all = of_a + of_b;
    quad *values = quad_new(t, rows, all, (quad_record){.from = {a, b}, .back = beside_back}, &y);
    for (int64_t row = 0; values != NULL && row < rows; row++) {
        memcpy(values + row * all, quad_values(t, a) + row * of_a, (size_t)of_a * sizeof *values);
        memcpy(values + row * all + of_a, quad_values(t, b) + row * of_b, (size_t)of_b * sizeof *values);
    }
    return y;
}

static void gather_back(quad_tape *t, const quad_record *y)
{
    const int64_t *index = y->with;
    quad *into = quad_into(t, y->from[0]);
    for (int64_t i = 0; into != NULL && i < y->rows * y->columns; i++)
        if (index[i / y->columns] >= 0) into[index[i / y->columns] * y->columns + i % y->columns] += y->gradient[i];
}

quad_node quad_gather(quad_tape *t, quad_node x, const int64_t *index, int64_t rows)
{
    quad_node y;
    const int64_t width = quad_columns(t, x);
    if (x == 0) return 0;
    quad *values = quad_new(t, rows, width, (quad_record){.from = {x}, .back = gather_back, .with = index}, &y);
    for (int64_t i = 0; values != NULL && i < rows * width; i++)
        values[i] = index[i / width] < 0 ? 0 : quad_values(t, x)[index[i / width] * width + i % width];
    return y;
}

static void scatter_back(quad_tape *t, const quad_record *y)
{
    const int64_t *index = y->with, rows = quad_rows(t, y->from[0]);
    quad *into = quad_into(t, y->from[0]);
    for (int64_t i = 0; into != NULL && i < rows * y->columns; i++)
        if (index[i / y->columns] >= 0) into[i] += y->gradient[index[i / y->columns] * y->columns + i % y->columns];
}

quad_node quad_scatter(quad_tape *t, quad_node x, const int64_t *index, int64_t rows)
{
    quad_node y;
    const int64_t width = quad_columns(t, x), from = quad_rows(t, x);
    if (x == 0) return 0;
    quad *values = quad_new(t, rows, width, (quad_record){.from = {x}, .back = scatter_back, .with = index}, &y);
    for (int64_t i = 0; values != NULL && i < rows * width; i++) values[i] = 0;
    for (int64_t i = 0; values != NULL && i < from * width; i++)
        if (index[i / width] >= 0) values[index[i / width] * width + i % width] += quad_values(t, x)[i];
    return y;
}

quad_node quad_repeat(quad_tape *t, quad_node x, int64_t times)
{
    int64_t *index = quad_indices(t, quad_rows(t, x) * times);
    for (int64_t i = 0; index != NULL && i < quad_rows(t, x) * times; i++) index[i] = i / times;
    return quad_gather(t, x, index, quad_rows(t, x) * times);
}

typedef struct stack {
    int64_t count;
    quad_node parts[];
} stack;

static void stack_back(quad_tape *t, const quad_record *y)
{
    const stack *s = y->with;
    const quad *came = y->gradient;
    for (int64_t k = 0; k < s->count; k++) {
        const int64_t count = quad_rows(t, s->parts[k]) * y->columns;
        quad *into = quad_into(t, s->parts[k]);
        for (int64_t i = 0; into != NULL && i < count; i++) into[i] += came[i];
        came += count;
    }
}

quad_node quad_concatenate(quad_tape *t, const quad_node *parts, int64_t count)
{
    quad_node y;
    int64_t rows = 0;
    quad_record record = {.back = stack_back};
    stack *with = quad_keep(t, (int64_t)sizeof *with + count * (int64_t)sizeof *parts, 1);
    if (with == NULL) return 0;
    with->count = count;
    for (int64_t k = 0; k < count; k++) {
        if (parts[k] == 0) return 0;
        with->parts[k] = parts[k];
        rows += quad_rows(t, parts[k]);
        record.wanted |= t->records[parts[k]].wanted;
    }
    record.with = with;
    quad *values = quad_new(t, rows, quad_columns(t, parts[0]), record, &y);
    for (int64_t k = 0; values != NULL && k < count; k++) {
        const int64_t own = quad_rows(t, parts[k]) * quad_columns(t, parts[k]);
        memcpy(values, quad_values(t, parts[k]), (size_t)own * sizeof *values);
        values += own;
    }
    return y;
}

static void as_it_is(quad_tape *t, const quad_record *y)
{
    quad *into = quad_into(t, y->from[0]);
    for (int64_t i = 0; into != NULL && i < y->rows * y->columns; i++) into[i] += y->gradient[i];
}

quad_node quad_taken_as(quad_tape *t, quad_node x, const quad *values)
{
    quad_node y;
    if (x == 0) return 0;
    quad *to = quad_new(t, quad_rows(t, x), quad_columns(t, x), (quad_record){.from = {x}, .back = as_it_is}, &y);
    if (to != NULL) memcpy(to, values, (size_t)(quad_rows(t, y) * quad_columns(t, y)) * sizeof *to);
    return y;
}
