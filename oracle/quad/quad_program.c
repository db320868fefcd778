/* Programs in binary128: the lines as they were compiled, each step by its name, over numbers that are found by the letters of their axes. What
 * the graph does by loops over rows is here one list of indices after the other. */
#include <math.h>
#include <quadmath.h>
#include <stdio.h>
#include <string.h>

#include "oracle/quad/tape.h"

/* A tensor of the program: its numbers as they lie, and what its axes are called. */
typedef struct named {
    quad_node node;
    char axes[ASSAY_MAX_RANK + 1];
    assay_shape shape;
} named;

typedef struct machine {
    quad_tape *t;
    const assay_program *p;
    const assay_program_node *node; /* that is computed */
    int form;                       /* of a function of several steps: which of them */
    named *made;                    /* of numbers */
    const int32_t **indices;
} machine;

typedef quad_node function_of(machine *m);

static int64_t size_of(const machine *m, char axis)
{
    return m->p->sizes[(unsigned char)axis % ASSAY_PROGRAM_LETTERS];
}

static named called(const machine *m, quad_node node, const char *axes)
{
    named x = {.node = node, .shape = {.rank = (int)strlen(axes)}};
    for (int i = 0; i < ASSAY_MAX_RANK && axes[i] != '\0'; i++) {
        x.axes[i] = axes[i];
        x.shape.dims[i] = size_of(m, axes[i]);
    }
    return x;
}

static int64_t count_of(const named *x)
{
    return assay_shape_count(&x->shape);
}

static const named *operand(const machine *m, int i)
{
    return &m->made[m->node->in[i]];
}

static const int32_t *index_operand(const machine *m, int i)
{
    return m->indices[m->node->in[i]];
}

static quad_node as_rows(machine *m, const named *x, int64_t columns)
{
    return quad_view(m->t, x->node, columns);
}

/* Where the number at `place` of a tensor with the axes `to` is in one with the axes of x, which may lack some. */
static int64_t place_in(const machine *m, const char *to, int64_t place, const char *axes)
{
    int64_t index[ASSAY_PROGRAM_LETTERS] = {0}, at = 0;
    for (size_t i = strlen(to); i-- > 0;) {
        index[(unsigned char)to[i]] = place % size_of(m, to[i]);
        place /= size_of(m, to[i]);
    }
    for (; *axes != '\0'; axes++) at = at * size_of(m, *axes) + index[(unsigned char)*axes];
    return at;
}

static int64_t product_of(const machine *m, const char *axes)
{
    int64_t count = 1;
    for (; *axes != '\0'; axes++) count *= size_of(m, *axes);
    return count;
}

/* x under the axes `to`, in rows of `columns`. */
static quad_node arranged(machine *m, const named *x, const char *to, int64_t columns)
{
    const int64_t count = product_of(m, to);
    int64_t *index = strcmp(x->axes, to) == 0 ? NULL : quad_indices(m->t, count);
    if (strcmp(x->axes, to) == 0) return as_rows(m, x, columns);
    for (int64_t i = 0; index != NULL && i < count; i++) index[i] = place_in(m, to, i, x->axes);
    return quad_view(m->t, quad_gather(m->t, as_rows(m, x, 1), index, count), columns);
}

/* Operand i, repeated along the axes of the result. */
static quad_node broadcast(machine *m, int i)
{
    return arranged(m, operand(m, i), m->node->axes, 1);
}

/* Letters of `axes` that are in `others`, or that are not. */
static void letters(const char *axes, const char *others, bool in, char *to)
{
    for (; *axes != '\0'; axes++)
        if ((strchr(others, *axes) != NULL) == in) *to++ = *axes;
    *to = '\0';
}

/* --- numbers one by one --- */

static quad_node masked(machine *m, const bool *mask, quad_node chosen, quad_node other)
{
    const quad_node parts[] = {chosen, other};
    const int64_t count = quad_rows(m->t, chosen);
    int64_t *index = quad_indices(m->t, count);
    for (int64_t i = 0; index != NULL && i < count; i++) index[i] = mask[i] ? i : count + i;
    return quad_gather(m->t, quad_concatenate(m->t, parts, 2), index, count);
}

/* The form: 1 is the larger, -1 the smaller. */
static quad_node extreme(machine *m)
{
    const quad_node a = broadcast(m, 0), b = broadcast(m, 1);
    const int64_t count = quad_rows(m->t, a);
    bool *mask = quad_keep(m->t, count, sizeof *mask), *both = quad_keep(m->t, count, sizeof *both);
    if (mask == NULL || both == NULL || a == 0 || b == 0) return 0;
    const quad *x = quad_values(m->t, a), *y = quad_values(m->t, b);
    for (int64_t i = 0; i < count; i++) {
        mask[i] = m->form > 0 ? x[i] > y[i] : x[i] < y[i];
        both[i] = x[i] == y[i];
    }
    const quad kink = assay_program_number(m->node, "kink");
    const quad_node shared = quad_add(m->t, quad_times(m->t, a, kink), quad_times(m->t, b, 1 - kink));
    return masked(m, both, shared, masked(m, mask, a, b));
}

/* The last operand, added or subtracted, and the first one, if that is another. */
static quad_node add(machine *m)
{
    const int last = m->node->in_count - 1;
    const quad_node b = broadcast(m, last), term = m->form == 1 ? b : quad_times(m->t, b, -1);
    return last == 0 ? term : quad_add(m->t, broadcast(m, 0), term);
}

static quad_node mul(machine *m)
{
    return quad_multiply(m->t, broadcast(m, 0), broadcast(m, m->node->in_count - 1));
}

static quad_node quotient(machine *m)
{
    return quad_multiply(m->t, broadcast(m, 0), quad_map(m->t, broadcast(m, 1), QUAD_RECIPROCAL));
}

static quad_node from_indices(machine *m)
{
    quad *number;
    const int64_t count = product_of(m, m->node->axes);
    const quad_node made = quad_constant(m->t, count, 1, &number);
    for (int64_t i = 0; made != 0 && i < count; i++) number[i] = index_operand(m, 0)[i];
    return made;
}

enum { EQUAL, LESS, QUOTIENT, REMAINDER };

static quad found(int what, quad x, quad y)
{
    if (what == LESS || what == EQUAL) return what == LESS ? x < y : x == y;
    const quad rest = fmodq(fmodq(x, y) + y, y);
    return what == REMAINDER ? rest : (x - rest) / y;
}

/* Of whole numbers, a constant. */
static quad_node compared(machine *m)
{
    const quad_node a = broadcast(m, 0), b = broadcast(m, 1);
    const int64_t count = product_of(m, m->node->axes);
    quad *number;
    const quad_node made = quad_constant(m->t, count, 1, &number);
    if (a == 0 || b == 0 || made == 0) return 0;
    const quad *x = quad_values(m->t, a), *y = quad_values(m->t, b);
    for (int64_t i = 0; i < count; i++) number[i] = found(m->form, x[i], y[i]);
    return made;
}

static quad_node where(machine *m)
{
    const int64_t count = product_of(m, m->node->axes);
    const assay_program_node *given = &m->p->nodes[m->node->in[0]];
    bool *mask = quad_keep(m->t, count, sizeof *mask);
    const quad_node made = given->integers ? 0 : broadcast(m, 0);
    for (int64_t i = 0; mask != NULL && i < count; i++)
        mask[i] = given->integers ? index_operand(m, 0)[place_in(m, m->node->axes, i, given->axes)] != 0
                                  : made != 0 && quad_values(m->t, made)[i] != 0;
    return mask == NULL ? 0 : masked(m, mask, broadcast(m, 1), broadcast(m, 2));
}

/* y, but kink x where x is `one` or `other`: up to a constant, that is what has this slope there. */
static quad_node on_kinks(machine *m, quad_node x, quad_node y, quad one, quad other)
{
    const int64_t count = quad_rows(m->t, x);
    const quad kink = assay_program_number(m->node, "kink");
    bool *mask = quad_keep(m->t, count, sizeof *mask);
    quad *rest;
    const quad_node constant = quad_constant(m->t, count, 1, &rest);
    if (mask == NULL || x == 0 || y == 0 || constant == 0) return 0;
    for (int64_t i = 0; i < count; i++) {
        const quad at = quad_values(m->t, x)[i];
        mask[i] = at == one || at == other;
        rest[i] = mask[i] ? quad_values(m->t, y)[i] - kink * at : 0;
    }
    return masked(m, mask, quad_add(m->t, quad_times(m->t, x, kink), constant), y);
}

static quad_node clamp(machine *m)
{
    const quad low = assay_program_number(m->node, "low"), high = assay_program_number(m->node, "high");
    const quad_node x = broadcast(m, 0);
    quad_node y = x;
    if (isfinite((double)high)) y = quad_map_with(m->t, y, QUAD_CUT_ABOVE, high);
    if (isfinite((double)low))
        y = quad_times(m->t, quad_map_with(m->t, quad_times(m->t, y, -1), QUAD_CUT_ABOVE, -low), -1);
    return on_kinks(m, x, y, low, high);
}

static quad_node mapped(machine *m)
{
    return quad_map(m->t, broadcast(m, 0), (quad_unary)m->form);
}

static quad_node bent_at_zero(machine *m)
{
    return on_kinks(m, broadcast(m, 0), mapped(m), 0, 0);
}

/* The nearest number of the type; what is larger than all of them is infinite, or NaN where the type has no infinity. */
static quad nearest_of(assay_dtype type, quad x)
{
    int exponent = 0;
    if (x == 0 || !finiteq(x)) return x;
    frexpq(x, &exponent);
    const quad spacing = fmaxq(ldexpq(assay_dtype_unit_roundoff(type), exponent), assay_dtype_least_subnormal(type));
    const quad y = rintq(x / spacing) * spacing, most = assay_dtype_max(type);
    if (fabsq(y) <= most) return y;
    if (type == ASSAY_FLOAT4_E2M1FN) return copysignq(most, x);
    return type == ASSAY_FLOAT8_E4M3FN ? (quad)NAN : copysignq((quad)INFINITY, x);
}

/* Gradients pass. */
static quad_node cast(machine *m)
{
    const quad_node x = broadcast(m, 0);
    const int64_t count = quad_rows(m->t, x);
    assay_dtype type;
    quad *numbers = quad_keep(m->t, count, sizeof *numbers);
    if (x == 0 || numbers == NULL || !assay_dtype_from_name(assay_program_axes(m->node, "type"), &type)) return 0;
    for (int64_t i = 0; i < count; i++) numbers[i] = nearest_of(type, quad_values(m->t, x)[i]);
    m->t->straight_through = true;
    return quad_replaced_by(m->t, x, numbers);
}

static quad_node detach(machine *m)
{
    quad *numbers;
    const quad_node x = broadcast(m, 0), y = quad_constant(m->t, quad_rows(m->t, x), 1, &numbers);
    if (y != 0) memcpy(numbers, quad_values(m->t, x), (size_t)quad_rows(m->t, x) * sizeof *numbers);
    m->t->straight_through = true;
    return y;
}

/* What is quantised, codes and scales are results by themselves. */
static quad_node quantise(machine *m)
{
    const assay_quantize_config rules = assay_program_quantize(m->node);
    const assay_program_line *line = &m->p->lines[m->node->line];
    assay_shape shape = m->node->shape;
    quad_node made[ASSAY_CODED_COUNT] = {[ASSAY_CODED_X] = as_rows(m, operand(m, 0), rules.columns)};
    const quad_node numbers =
        quad_requantise(m->t, made[ASSAY_CODED_X], &rules, &made[ASSAY_CODED_CODES], &made[ASSAY_CODED_SCALE]);
    for (int i = 0; i < ASSAY_CODED_COUNT; i++) {
        char path[ASSAY_PATH_SIZE];
        snprintf(path, sizeof path, "checkpoints/%s", line->coded[i]);
        if (i == ASSAY_CODED_SCALE && rules.format->rows > 1)
            shape = assay_shape_of(2, quad_rows(m->t, made[i]), quad_columns(m->t, made[i]));
        if (i == ASSAY_CODED_SCALE) shape.dims[shape.rank - 1] = quad_columns(m->t, made[i]);
        quad_put(m->t, path, shape, made[i]);
    }
    return numbers;
}

/* --- along axes --- */

/* Operand 0 with the axes `over` behind all others: in rows of these. */
static quad_node in_rows(machine *m, char axes[2 * ASSAY_MAX_RANK])
{
    const named *x = operand(m, 0);
    const char *over = assay_program_axes(m->node, "over");
    letters(x->axes, over, false, axes);
    letters(x->axes, over, true, axes + strlen(axes));
    return arranged(m, x, axes, product_of(m, over));
}

enum { BY_MEAN, BY_SUM };

static quad_node sum(machine *m)
{
    char axes[2 * ASSAY_MAX_RANK];
    const quad_node rows = in_rows(m, axes);
    return quad_row_sums(m->t, rows, m->form == BY_SUM ? 1 : 1 / (quad)quad_columns(m->t, rows));
}

/* The mean of those that are largest, or the first of them. */
static quad_node largest(machine *m)
{
    char axes[2 * ASSAY_MAX_RANK];
    const quad_node x = in_rows(m, axes);
    const int64_t rows = quad_rows(m->t, x), columns = quad_columns(m->t, x);
    const bool first = assay_program_number(m->node, "first") != 0;
    quad *share;
    const quad_node shares = quad_constant(m->t, rows, columns, &share);
    for (int64_t row = 0; share != NULL && row < rows; row++) {
        const quad *of = quad_values(m->t, x) + row * columns;
        quad most = of[0];
        int64_t times = 0;
        for (int64_t i = 0; i < columns; i++) most = of[i] > most ? of[i] : most;
        for (int64_t i = 0; i < columns; i++) times += of[i] == most;
        if (first) times = 1;
        for (int64_t i = 0, left = times; i < columns; i++)
            share[row * columns + i] = of[i] == most && (!first || left-- > 0) ? 1 / (quad)times : 0;
    }
    return quad_row_sums(m->t, quad_multiply(m->t, x, shares), 1);
}

/* What lies under these axes, as the result does. */
static quad_node back_to_result(machine *m, quad_node x, const char *axes)
{
    const named made = called(m, x, axes);
    return arranged(m, &made, m->node->axes, 1);
}

static quad_node softmax(machine *m)
{
    char axes[2 * ASSAY_MAX_RANK];
    return back_to_result(m, quad_softmax(m->t, in_rows(m, axes), NULL), axes);
}

static quad_node logsumexp(machine *m)
{
    char axes[2 * ASSAY_MAX_RANK];
    return quad_log_sum_exp(m->t, in_rows(m, axes));
}

/* A product with ones on and above the diagonal. */
static quad_node cumsum(machine *m)
{
    char axes[2 * ASSAY_MAX_RANK];
    const quad_node x = in_rows(m, axes);
    const int64_t columns = quad_columns(m->t, x);
    quad *one;
    const quad_node ones = quad_constant(m->t, columns, columns, &one);
    for (int64_t i = 0; one != NULL && i < columns * columns; i++) one[i] = i / columns <= i % columns;
    return back_to_result(m, quad_linear(m->t, (quad_layer){.x = x, .w = ones}), axes);
}

/* With a scale, if there is one, and centred, if there is a bias. */
static quad_node norm(machine *m)
{
    const named *x = operand(m, 0);
    const int64_t columns = x->shape.dims[x->shape.rank - 1];
    const int operands = m->node->in_count;
    const double epsilon = assay_program_number(m->node, "epsilon");
    const quad_node given = as_rows(m, x, columns), rows = operands > 2 ? quad_centred(m->t, given) : given;
    if (operands == 1) return quad_over_root(m->t, rows, m->form == BY_SUM ? 1 : 1 / (quad)columns, epsilon);
    const quad_node y = quad_normalise(m->t, rows, as_rows(m, operand(m, 1), columns), epsilon);
    return operands > 2 ? quad_add_row(m->t, y, as_rows(m, operand(m, 2), columns)) : y;
}

/* --- products --- */

/* The pattern of a step: axes of operand i, -1: of the result. */
static void pattern_of(const machine *m, int i, char *axes)
{
    const char *text = assay_program_axes(m->node, "axes"), *arrow = strstr(text, "->");
    if (i < 0) {
        strcpy(axes, arrow + 2);
        return;
    }
    for (; i > 0; i--) text = strchr(text, ',') + 1;
    const size_t length = strcspn(text, ",-");
    memcpy(axes, text, length);
    axes[length] = '\0';
}

static quad_node product(machine *m)
{
    char a[ASSAY_MAX_RANK + 1], b[ASSAY_MAX_RANK + 1], y[ASSAY_MAX_RANK + 1], both[ASSAY_MAX_RANK + 1],
        batch[ASSAY_MAX_RANK + 1], summed[ASSAY_MAX_RANK + 1], rows[ASSAY_MAX_RANK + 1], columns[ASSAY_MAX_RANK + 1],
        order[3 * ASSAY_MAX_RANK + 1];
    pattern_of(m, 0, a);
    pattern_of(m, 1, b);
    pattern_of(m, -1, y);
    letters(a, b, true, both);
    letters(both, y, true, batch);
    letters(both, y, false, summed);
    letters(y, b, false, rows);
    letters(y, a, false, columns);
    const named left = called(m, operand(m, 0)->node, a), right = called(m, operand(m, 1)->node, b);
    const int64_t k = product_of(m, summed), groups = product_of(m, batch), own = product_of(m, rows);
    int64_t *group = quad_indices(m->t, groups * own);
    for (int64_t i = 0; group != NULL && i < groups * own; i++) group[i] = i / own;
    snprintf(order, sizeof order, "%s%s%s", batch, rows, summed);
    const quad_node x = arranged(m, &left, order, k);
    snprintf(order, sizeof order, "%s%s%s", batch, summed, columns);
    const quad_node w = arranged(m, &right, order, product_of(m, columns));
    snprintf(order, sizeof order, "%s%s%s", batch, rows, columns);
    return back_to_result(m, quad_linear(m->t, (quad_layer){.x = x, .w = w, .groups = groups, .group = group}), order);
}

/* Rows of no group give 0. */
static quad_node grouped_product(machine *m)
{
    const named *x = operand(m, 0), *w = operand(m, 1);
    const int64_t rows = x->shape.dims[0], groups = w->shape.dims[0], k = count_of(x) / rows,
                  n = count_of(w) / groups / k;
    int64_t *group = quad_indices(m->t, rows), row = 0;
    for (int64_t i = 0; group != NULL && i < rows; i++) group[i] = -1;
    for (int64_t i = 0; group != NULL && i < groups; i++)
        for (int32_t left = index_operand(m, 2)[i]; left > 0 && row < rows; left--) group[row++] = i;
    return quad_linear(m->t, (quad_layer){as_rows(m, x, k), as_rows(m, w, n), .groups = groups, .group = group});
}

static quad_node causal_conv(machine *m)
{
    const named *x = operand(m, 0), *w = operand(m, 1);
    const int64_t steps = x->shape.dims[x->shape.rank - 2], channels = w->shape.dims[0], taps = w->shape.dims[1],
                  count = count_of(x);
    const bool continues = m->node->in_count > 2, reversed = assay_program_number(m->node, "newest_first") != 0;
    const quad_node parts[] = {as_rows(m, x, 1), continues ? as_rows(m, operand(m, 2), 1) : 0},
                    all = continues ? quad_concatenate(m->t, parts, 2) : parts[0];
    quad_node y = 0;
    for (int64_t k = 0; k < taps; k++) {
        int64_t *read = quad_indices(m->t, count), *by = quad_indices(m->t, count);
        for (int64_t i = 0; read != NULL && by != NULL && i < count; i++) {
            const int64_t back = taps - 1 - k, step = i / channels % steps, series = i / channels / steps,
                          in_state = series * (taps - 1) + step + k;
            read[i] = step >= back ? i - back * channels : continues ? count + in_state * channels + i % channels : -1;
            by[i] = i % channels * taps + (reversed ? back : k);
        }
        y = quad_add(
            m->t, y,
            quad_multiply(m->t, quad_gather(m->t, all, read, count), quad_gather(m->t, as_rows(m, w, 1), by, count)));
    }
    return y;
}

/* --- recurrences --- */

/* x with the axis in front: in a row for each of its indices. */
static quad_node in_order(machine *m, const named *x, char axis, char axes[ASSAY_MAX_RANK + 2])
{
    const char over[] = {axis, '\0'};
    axes[0] = axis;
    letters(x->axes, over, false, axes + 1);
    return arranged(m, x, axes, count_of(x) / size_of(m, axis));
}

static quad_node linear_scan(machine *m)
{
    char axes[ASSAY_MAX_RANK + 2];
    const char axis = assay_program_axes(m->node, "over")[0];
    const named gate = called(m, broadcast(m, 0), m->node->axes);
    const quad_node a = in_order(m, &gate, axis, axes), b = in_order(m, operand(m, 1), axis, axes);
    const int64_t steps = size_of(m, axis);
    quad_node *state = quad_keep(m->t, steps, sizeof *state);
    for (int64_t i = 0; state != NULL && i < steps; i++) {
        const quad_node kept = i == 0 ? 0 : quad_multiply(m->t, quad_rows_of(m->t, a, i, 1), state[i - 1]);
        state[i] = quad_add(m->t, kept, quad_rows_of(m->t, b, i, 1));
    }
    return state == NULL ? 0 : back_to_result(m, quad_concatenate(m->t, state, steps), axes);
}

/* A product for each of `lines`: their rows of x, as many each, by their w. */
static quad_node of_lines(machine *m, quad_node x, quad_node w, int64_t lines)
{
    const int64_t rows = quad_rows(m->t, x);
    int64_t *group = quad_indices(m->t, rows);
    if (x == 0 || w == 0 || group == NULL) return 0;
    for (int64_t i = 0; i < rows; i++) group[i] = i / (rows / lines);
    return quad_linear(m->t, (quad_layer){.x = x, .w = w, .groups = lines, .group = group});
}

/* All series and heads at once: their states [lines*K,V] below each other. The form: 1 is the state behind all tokens, 0 is y. */
static quad_node delta_rule(machine *m)
{
    enum { QUERY, KEY, VALUE, GATE, BETA, STATE };
    const named *query = operand(m, QUERY), *value = operand(m, VALUE);
    const int rank = query->shape.rank;
    const int64_t steps = query->shape.dims[rank - 3], k = query->shape.dims[rank - 1],
                  lines = count_of(query) / steps / k, v = count_of(value) / steps / lines;
    const bool of_rows = operand(m, GATE)->shape.rank == rank;
    char axes[ASSAY_MAX_RANK + 2];
    quad_node of[STATE], state = 0, *y = quad_keep(m->t, steps, sizeof *y);
    if (m->node->in_count > STATE) state = as_rows(m, operand(m, STATE), v);
    for (int i = BETA; i >= 0; i--) of[i] = in_order(m, operand(m, i), query->axes[rank - 3], axes);
    in_order(m, value, query->axes[rank - 3], axes);
    for (int64_t t = 0; y != NULL && t < steps; t++) {
        quad_node at[STATE];
        for (int i = 0; i < STATE; i++) at[i] = quad_rows_of(m->t, of[i], t, 1);
        const quad_node keys = quad_view(m->t, at[KEY], k), one = quad_view(m->t, at[BETA], 1);
        const quad_node gates = quad_map(m->t, quad_view(m->t, at[GATE], 1), QUAD_EXP),
                        decay = of_rows ? gates : quad_repeat(m->t, gates, k);
        quad_node rest = quad_view(m->t, at[VALUE], v);
        if (state != 0) state = quad_weigh(m->t, state, decay);
        if (state != 0) rest = quad_add(m->t, rest, quad_times(m->t, of_lines(m, keys, state, lines), -1));
        const quad_node written = of_lines(m, quad_view(m->t, at[KEY], 1), quad_weigh(m->t, rest, one), lines);
        state = quad_add(m->t, state, written);
        y[t] = quad_view(m->t, of_lines(m, quad_view(m->t, at[QUERY], k), state, lines), lines * v);
    }
    if (m->form == 1) return state;
    return y == NULL ? 0 : back_to_result(m, quad_concatenate(m->t, y, steps), axes);
}

/* --- attention --- */

static quad_node rope(machine *m)
{
    const named *x = operand(m, 0);
    const int64_t tokens = assay_shape_count(&m->p->nodes[m->node->in[1]].shape);
    assay_rope_config config = assay_program_rope(m->node);
    double *own = m->node->in_count > 2 ? quad_keep(m->t, config.dim / 2, sizeof *own) : NULL;
    for (int64_t i = 0; own != NULL && i < config.dim / 2; i++)
        own[i] = (double)quad_values(m->t, operand(m, 2)->node)[i];
    config.frequencies = own;
    const quad *turns = quad_turns(m->t, &config, tokens, index_operand(m, 1));
    return turns == NULL ? 0 : quad_rotate(m->t, as_rows(m, x, count_of(x) / tokens), &config, turns);
}

/* Whether query s of series b sees key t. */
static bool sees(const machine *m, int64_t b, int64_t s, int64_t t)
{
    const char *mask = assay_program_axes(m->node, "mask");
    const int64_t queries = operand(m, 0)->shape.dims[1], keys = operand(m, 1)->shape.dims[1];
    const double window = assay_program_number(m->node, "window"), chunk = assay_program_number(m->node, "chunk");
    const double i = (double)(strcmp(mask, "causal_first") == 0 ? s : s + keys - queries), j = (double)t;
    const bool full = strcmp(mask, "full") == 0;
    const int of = assay_program_find_beside(m->p, m->node, ASSAY_BESIDE_SEGMENTS),
              own = assay_program_find_beside(m->p, m->node, ASSAY_BESIDE_KEY_SEGMENTS);
    bool seen = full || j <= i;
    if (window > 0) seen &= i - j < window && (!full || j - i < window);
    if (chunk > 0) seen &= floor(i / chunk) == floor(j / chunk);
    seen |= j < assay_program_number(m->node, "prefix");
    if (of == 0) return seen;
    const int32_t document = index_operand(m, own > 0 ? own : of)[b * keys + t];
    return seen && document > 0 && document == index_operand(m, of)[b * queries + s];
}

/* Constants: what is added to scores that are not seen, and of each query whether it sees any, and what its log-sum-exp is if not. */
static void put_masks(machine *m, const char *scores, quad_node *hidden, quad_node *any, quad_node *blind)
{
    const int64_t keys = size_of(m, scores[3]), all = product_of(m, scores), queries = size_of(m, scores[2]),
                  each = size_of(m, scores[1]) * queries;
    const int mask = assay_program_find_beside(m->p, m->node, ASSAY_BESIDE_MASK);
    const quad *own = mask > 0 ? quad_values(m->t, arranged(m, operand(m, mask), scores, 1)) : NULL;
    quad *far, *some, *none;
    *hidden = quad_constant(m->t, all / keys, keys, &far);
    *any = quad_constant(m->t, all / keys, 1, &some);
    *blind = quad_constant(m->t, all / keys, 1, &none);
    for (int64_t i = 0; *hidden != 0 && *any != 0 && *blind != 0 && i < all; i++) {
        const int64_t row = i / keys;
        const bool seen = sees(m, row / each, row % queries, i % keys) && (own == NULL || own[i] != 0);
        far[i] = seen ? 0 : -1e30;
        some[row] = seen || (i % keys > 0 && some[row] != 0);
        none[row] = some[row] != 0 ? 0 : -INFINITY;
    }
}

/* Keys or values under [B,N,T,..]: of the head of each query. */
static named of_heads(machine *m, const named *x)
{
    const named *query = operand(m, 0);
    const int64_t heads = query->shape.dims[2], kv = x->shape.dims[2], keys = x->shape.dims[1],
                  rows = x->shape.dims[0] * heads * keys;
    const char axes[] = {x->axes[0], query->axes[2], x->axes[1], x->axes[3], '\0'};
    int64_t *row = quad_indices(m->t, rows);
    for (int64_t i = 0; row != NULL && i < rows; i++)
        row[i] = (i / keys / heads * keys + i % keys) * kv + i / keys % heads * kv / heads;
    return called(m, row == NULL ? 0 : quad_gather(m->t, as_rows(m, x, x->shape.dims[3]), row, rows), axes);
}

static quad_node scores_of(machine *m, const char *scores)
{
    const named *query = operand(m, 0), keys = of_heads(m, operand(m, 1));
    const double scale = assay_program_number(m->node, "scale"), cap = assay_program_number(m->node, "soft_cap");
    const int bias = assay_program_find_beside(m->p, m->node, ASSAY_BESIDE_BIAS);
    const int64_t width = query->shape.dims[3], count = keys.shape.dims[2];
    const char rows[] = {scores[0], scores[1], scores[2], query->axes[3], '\0'},
               columns[] = {scores[0], scores[1], query->axes[3], scores[3], '\0'};
    quad_node s = of_lines(m, arranged(m, query, rows, width), arranged(m, &keys, columns, count),
                           query->shape.dims[0] * query->shape.dims[2]);
    s = quad_times(m->t, s, scale != 0 ? scale : 1 / sqrtq(width));
    if (cap != 0) s = quad_times(m->t, quad_map(m->t, quad_times(m->t, s, 1 / (quad)cap), QUAD_TANH), cap);
    return bias > 0 ? quad_add(m->t, s, arranged(m, operand(m, bias), scores, count)) : s;
}

/* By any mask. */
static quad_node attend_masked(machine *m)
{
    const char *q = operand(m, 0)->axes, scores[] = {q[0], q[2], q[1], operand(m, 1)->axes[1], '\0'},
               rows[] = {q[0], q[2], q[1], '\0'}, out[] = {q[0], q[2], q[1], operand(m, 2)->axes[3], '\0'};
    const named value = of_heads(m, operand(m, 2));
    const int sinks = assay_program_find_beside(m->p, m->node, ASSAY_BESIDE_SINKS);
    quad_node hidden, any, blind;
    put_masks(m, scores, &hidden, &any, &blind);
    const quad_node s = quad_add(m->t, scores_of(m, scores), hidden),
                    lse = quad_add(m->t, quad_weigh(m->t, quad_log_sum_exp(m->t, s), any), blind),
                    v = as_rows(m, &value, value.shape.dims[3]),
                    y = of_lines(m, quad_softmax(m->t, s, NULL), v, size_of(m, q[0]) * size_of(m, q[2]));
    if (m->form == 1) return lse;
    quad_node gate = any;
    if (sinks > 0) {
        const quad_node sink = quad_times(m->t, arranged(m, operand(m, sinks), rows, 1), -1);
        gate = quad_map(m->t, quad_add(m->t, lse, sink), QUAD_SIGMOID);
    }
    return back_to_result(m, quad_weigh(m->t, y, gate), out);
}

/* The form: 1 is the log-sum-exp. */
static quad_node attend(machine *m)
{
    if (assay_program_is_masked(m->p, m->node)) return attend_masked(m);
    const named *query = operand(m, 0), *key = operand(m, 1), *value = operand(m, 2);
    const assay_attention_config config = assay_program_attention(&query->shape, &value->shape, m->node);
    const double scale = assay_program_number(m->node, "scale");
    const int segments = assay_program_find_beside(m->p, m->node, ASSAY_BESIDE_SEGMENTS),
              sinks = assay_program_find_beside(m->p, m->node, ASSAY_BESIDE_SINKS);
    quad_node lse = 0;
    const quad_node out =
        quad_attend(m->t, &config,
                    quad_times(m->t, as_rows(m, query, config.heads * config.qk_dim),
                               scale != 0 ? scale : 1 / sqrt((double)config.qk_dim)),
                    as_rows(m, key, config.kv_heads * config.qk_dim), as_rows(m, value, config.kv_heads * config.v_dim),
                    sinks > 0 ? as_rows(m, operand(m, sinks), config.heads) : 0,
                    segments > 0 ? index_operand(m, segments) : NULL, &lse);
    return m->form == 1 ? lse : out;
}

/* --- moves --- */

static quad_node rearrange(machine *m)
{
    char axes[ASSAY_MAX_RANK + 1];
    pattern_of(m, 0, axes);
    const named x = called(m, operand(m, 0)->node, axes);
    return arranged(m, &x, m->node->axes, 1);
}

static quad_node reshape(machine *m)
{
    return as_rows(m, operand(m, 0), 1);
}

static quad_node slice(machine *m)
{
    const named *x = operand(m, 0);
    char of[ASSAY_MAX_RANK + 1];
    pattern_of(m, 0, of);
    const int axis = (int)(strchr(x->axes, of[0]) - x->axes);
    const int64_t first = (int64_t)assay_program_number(m->node, "first"), whole = x->shape.dims[axis],
                  own = product_of(m, m->node->axes) * whole / count_of(x), inner = product_of(m, x->axes + axis + 1);
    return quad_columns_of(m->t, as_rows(m, x, whole * inner), first * inner, own * inner);
}

/* Operands side by side: in rows of the axis and all behind it. */
static quad_node concatenate(machine *m)
{
    char axis[ASSAY_MAX_RANK + 1];
    quad_node y = 0;
    pattern_of(m, 0, axis);
    const int place = axis[0] == '\0' ? 0 : (int)(strchr(operand(m, 0)->axes, axis[0]) - operand(m, 0)->axes);
    for (int i = 0; i < m->node->in_count; i++) {
        const named *x = operand(m, i);
        int64_t columns = 1;
        for (int k = place; k < x->shape.rank; k++) columns *= x->shape.dims[k];
        y = quad_beside(m->t, y, as_rows(m, x, columns));
    }
    return y;
}

/* The second operand as rows, each below `most`. */
static const int64_t *rows_of(machine *m, int64_t most, int64_t *count)
{
    const assay_program_node *given = &m->p->nodes[m->node->in[1]];
    *count = assay_shape_count(&given->shape);
    int64_t *rows = quad_indices(m->t, *count);
    for (int64_t i = 0; rows != NULL && i < *count; i++) {
        rows[i] = index_operand(m, 1)[i];
        if (rows[i] >= 0 && rows[i] < most) continue;
        if ((double)rows[i] != m->node->over) quad_refuse(m->t, "index %lld is no row", (long long)rows[i]);
        rows[i] = -1;
    }
    return m->t->status == ASSAY_OK ? rows : NULL;
}

static quad_node gather(machine *m)
{
    const named *table = operand(m, 0);
    int64_t count;
    const int64_t *rows = rows_of(m, table->shape.dims[0], &count);
    if (rows == NULL) return 0;
    return quad_gather(m->t, as_rows(m, table, count_of(table) / table->shape.dims[0]), rows, count);
}

static quad_node scatter_add(machine *m)
{
    const int64_t all = m->node->shape.dims[0];
    int64_t count;
    const int64_t *rows = rows_of(m, all, &count);
    if (rows == NULL) return 0;
    return quad_scatter(m->t, as_rows(m, operand(m, 0), count_of(operand(m, 0)) / count), rows, all);
}

static quad_node pick(machine *m)
{
    const named *x = operand(m, 0);
    const int64_t width = x->shape.dims[x->shape.rank - 1];
    int64_t count, *index;
    const int64_t *rows = rows_of(m, width, &count);
    if (rows == NULL || (index = quad_indices(m->t, count)) == NULL) return 0;
    for (int64_t i = 0; i < count; i++) index[i] = rows[i] < 0 ? -1 : i * count_of(x) / width / count * width + rows[i];
    return quad_gather(m->t, as_rows(m, x, 1), index, count);
}

/* --- choices --- */

/* Which of a row comes at `place`: as many are larger, or equal and before it. */
static int64_t at_rank(const quad *x, int64_t count, int64_t place)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t before = 0;
        for (int64_t j = 0; j < count; j++) before += x[j] > x[i] || (x[j] == x[i] && j < i);
        if (before == place) return i;
    }
    return 0;
}

/* What is given is what others go on from; its own choice, and how near it was, are held against that. */
static void top_k(machine *m, int i, const assay_program_line *line)
{
    const named *x = operand(m, 0);
    const int64_t width = x->shape.dims[x->shape.rank - 1], each = m->node->shape.dims[x->shape.rank - 1];
    const int64_t count = assay_shape_count(&m->node->shape), rows = count / each;
    const quad *scores = quad_values(m->t, x->node), above = assay_program_number(m->node, "above");
    const bool ascends = assay_program_number(m->node, "ascending") == 1;
    char path[ASSAY_PATH_SIZE];
    quad *margin;
    const quad_node of_margin = quad_constant(m->t, rows, 1, &margin);
    snprintf(path, sizeof path, "own/%s", line->path + strlen("routing/"));
    int32_t *own = quad_put_indices(m->t, path, m->node->shape);
    if (own == NULL || margin == NULL || scores == NULL) return;
    for (int64_t row = 0; row < rows; row++) {
        const quad *of = scores + row * width;
        margin[row] = INFINITY;
        for (int64_t k = 0; k < each; k++) {
            const int64_t best = at_rank(of, width, k);
            own[row * each + k] = of[best] > above ? (int32_t)best : -1;
            margin[row] = fminq(margin[row], fabsq(of[best] - above));
            int32_t *of_row = own + row * each;
            for (int64_t at = k; ascends && at > 0 && of_row[at] >= 0 && of_row[at - 1] > of_row[at]; at--) {
                const int32_t larger = of_row[at - 1];
                of_row[at - 1] = of_row[at];
                of_row[at] = larger;
            }
            if (k + 1 < width) margin[row] = fminq(margin[row], of[best] - of[at_rank(of, width, k + 1)]);
        }
    }
    m->indices[i] = quad_input_indices_optional(m->t, line->path, count);
    if (m->indices[i] == NULL) m->indices[i] = own;
    snprintf(path, sizeof path, "own/%s/margin", line->name);
    quad_put(m->t, path, assay_shape_of(1, rows), of_margin);
}

/* By rank: how many are before each. */
static void argsort(const int32_t *x, int64_t from, int32_t *y, int64_t to)
{
    for (int64_t i = 0; i < to; i++) {
        int64_t before = 0;
        for (int64_t j = 0; j < from; j++) before += x[j] < x[i] || (x[j] == x[i] && j < i);
        y[before] = (int32_t)i;
    }
}

static void bincount(const int32_t *x, int64_t from, int32_t *y, int64_t to)
{
    for (int64_t bin = 0; bin < to; bin++) {
        y[bin] = 0;
        for (int64_t i = 0; i < from; i++) y[bin] += x[i] == bin;
    }
}

static void integers(machine *m, int i)
{
    const char *name = m->node->step->name;
    const bool sorts = strcmp(name, "argsort") == 0, counts = strcmp(name, "bincount") == 0;
    const quad *x = strcmp(name, "index") == 0 ? quad_values(m->t, operand(m, 0)->node) : NULL;
    const int64_t from = assay_shape_count(&m->p->nodes[m->node->in[0]].shape), to = product_of(m, m->node->axes);
    int32_t *made = quad_keep(m->t, to, sizeof *made);
    if (made != NULL && (sorts || counts)) (sorts ? argsort : bincount)(index_operand(m, 0), from, made, to);
    for (int64_t k = 0; made != NULL && !sorts && !counts && k < to; k++)
        made[k] = (int32_t)(x != NULL ? (int64_t)x[k] : k);
    m->indices[i] = made;
}

/* --- the program --- */

/* clang-format off */
static const struct {
    const char *name;
    function_of *of;
    int form;
} FUNCTIONS[] = {
#define OF(step, of, form) {#step, of, form}
#define MAP(NAME, step, value, slope) OF(step, mapped, QUAD_##NAME),
#include "oracle/quad/maps.inc"
    OF(add, add, 1), OF(abs, bent_at_zero, QUAD_ABS), OF(relu, bent_at_zero, ASSAY_RELU), OF(sub, add, -1),
    OF(mul, mul, 0), OF(div, quotient, 0), OF(where, where, 0), OF(float, from_indices, 0), OF(square, mul, 0),
    OF(neg, add, -1), OF(clamp, clamp, 0), OF(cast, cast, 0), OF(quantise, quantise, 0), OF(sum, sum, BY_SUM),
    OF(mean, sum, BY_MEAN), OF(max, largest, 0), OF(softmax, softmax, 0), OF(logsumexp, logsumexp, 0),
    OF(cumsum, cumsum, 0), OF(layer_norm, norm, BY_MEAN), OF(product, product, 0),
    OF(grouped_product, grouped_product, 0), OF(causal_conv, causal_conv, 0), OF(linear_scan, linear_scan, 0),
    OF(rope, rope, 0), OF(rearrange, rearrange, 0), OF(reshape, reshape, 0), OF(detach, detach, 0),
    OF(slice, slice, 0), OF(concatenate, concatenate, 0), OF(gather, gather, 0), OF(scatter_add, scatter_add, 0),
    OF(pick, pick, 0), OF(rms_norm, norm, BY_MEAN), OF(l2_norm, norm, BY_SUM), OF(maximum, extreme, 1),
    OF(minimum, extreme, -1), OF(less, compared, LESS), OF(equal, compared, EQUAL),
    OF(floor_div, compared, QUOTIENT), OF(mod, compared, REMAINDER), OF(gated_delta_rule, delta_rule, 0),
    OF(gated_delta_state, delta_rule, 1), OF(attention, attend, 0), OF(attention_lse, attend, 1),
    OF(rsqrt, mapped, QUAD_INVERSE_ROOT), OF(sigmoid, mapped, QUAD_SIGMOID), OF(silu, mapped, QUAD_SILU),
    OF(gelu, mapped, ASSAY_GELU), OF(gelu_exact, mapped, ASSAY_GELU_EXACT)
};
/* clang-format on */

static quad_node compute(machine *m)
{
    const char *name = m->node->step->name;
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++) {
        m->form = FUNCTIONS[i].form;
        if (strcmp(name, FUNCTIONS[i].name) == 0) return FUNCTIONS[i].of(m);
    }
    quad_refuse(m->t, "%s has no second form", name);
    return 0;
}

static void read_given(machine *m, int i)
{
    const assay_program_node *node = &m->p->nodes[i];
    const int64_t count = assay_shape_count(&node->shape);
    quad *number;
    if (node->input < 0) {
        m->made[i] = called(m, quad_constant(m->t, 1, 1, &number), "");
        if (m->made[i].node != 0) *number = node->number;
        return;
    }
    const char *path = m->p->tensors[node->input].path;
    if (node->integers) {
        m->indices[i] = quad_input_indices(m->t, path, count);
    } else {
        m->made[i] = called(m, quad_input(m->t, path, count, 1), node->axes);
    }
}

static void put(machine *m, const assay_program_line *line)
{
    const named *x = &m->made[line->node];
    quad_put(m->t, line->path, x->shape, x->node);
}

void quad_program(quad_tape *t, const void *config)
{
    machine *m = quad_keep(t, 1, sizeof *m);
    if (m == NULL) return;
    *m = (machine){.t = t, .p = *(const assay_program *const *)config};
    m->made = quad_keep(t, m->p->node_count, sizeof *m->made);
    m->indices = quad_keep(t, m->p->node_count, sizeof *m->indices);
    if (m->made == NULL || m->indices == NULL) return;
    for (int i = 1; i < m->p->node_count && t->status == ASSAY_OK; i++) {
        m->node = &m->p->nodes[i];
        if (m->node->step == NULL) {
            read_given(m, i);
        } else if (m->node->chosen) {
            top_k(m, i, &m->p->lines[m->node->line]);
        } else if (m->node->integers) {
            integers(m, i);
        } else {
            m->made[i] = called(m, compute(m), m->node->axes);
        }
    }
    for (int i = 0; i < m->p->line_count && t->status == ASSAY_OK; i++) {
        const assay_program_node *node = &m->p->nodes[m->p->lines[i].node];
        int32_t *whole =
            node->integers && m->p->lines[i].output ? quad_put_indices(t, m->p->lines[i].path, node->shape) : NULL;
        for (int64_t k = 0; whole != NULL && k < assay_shape_count(&node->shape); k++)
            whole[k] = m->indices[m->p->lines[i].node][k];
        if (!node->integers && (m->p->lines[i].output || !node->coded)) put(m, &m->p->lines[i]);
    }
}
