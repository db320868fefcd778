/* The table of steps that programs are made of: operands, parameters, shapes, and the step of a graph that each becomes. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/ops/yarn_rope.h"
#include "oracle/program/program_internal.h"

typedef const assay_program_check check;

static const assay_program_node *operand(check *c, int i)
{
    return &c->p->nodes[c->node->in[i]];
}

/* --- shapes --- */

static assay_status set_axes(check *c, const char *axes)
{
    assay_program_node *node = c->node;
    const size_t rank = strlen(axes);
    int64_t count;
    if (rank > ASSAY_MAX_RANK)
        return assay_refuse(c->ctx, "%s gives the axes %s, expected at most %d", node->step->name, axes,
                            ASSAY_MAX_RANK);
    for (size_t i = 0; i < rank; i++) {
        const int64_t size = c->p->sizes[(unsigned char)axes[i] % ASSAY_PROGRAM_LETTERS];
        if (size == 0) return assay_refuse(c->ctx, "the axis %c has no size in sizes", axes[i]);
        if (strchr(axes + i + 1, axes[i]) != NULL)
            return assay_refuse(c->ctx, "%s gives the axis %c twice: %s", node->step->name, axes[i], axes);
        node->shape.dims[i] = size;
    }
    node->shape.rank = (int)rank;
    memcpy(node->axes, axes, rank + 1);
    return assay_checked_count(c->ctx, node->step->name, node->shape.rank, node->shape.dims, &count);
}

static assay_status as_first(check *c)
{
    return set_axes(c, operand(c, 0)->axes);
}

/* The axes of the first operand, and behind them what others have besides. If one has all of these and more the result is laid out as that. */
static assay_status as_all(check *c)
{
    char axes[ASSAY_MAX_RANK * ASSAY_PROGRAM_OPERANDS + 1] = "";
    for (int i = 0; i < c->node->in_count; i++) {
        const char *own = operand(c, i)->axes;
        size_t count = strlen(axes);
        bool has_all = strlen(own) > count;
        for (const char *letter = axes; *letter != '\0'; letter++) has_all &= strchr(own, *letter) != NULL;
        if (has_all) memset(axes, 0, sizeof axes);
        if (has_all) count = 0;
        for (; *own != '\0'; own++)
            if (strchr(axes, *own) == NULL) axes[count++] = *own;
    }
    return set_axes(c, axes);
}

bool assay_program_is_exact(const assay_program *p, const assay_program_node *node)
{
    bool exact = node->step->exact != ASSAY_PROGRAM_NOT_EXACT;
    for (int i = 0; i < node->in_count && node->step->exact == ASSAY_PROGRAM_KEEPS_EXACT; i++) {
        const assay_program_node *x = &p->nodes[node->in[i]];
        const bool number = x->step == NULL && x->input < 0;
        exact &= number ? x->number == rint(x->number) : x->exact || x->integers;
    }
    return exact;
}

/* Where rounding could change what is said. */
static assay_status compared(check *c)
{
    for (int i = 0; i < 2; i++) {
        const assay_program_node *x = operand(c, i);
        if (!x->exact && !(x->step == NULL && x->input < 0))
            return assay_refuse(
                c->ctx,
                "operand %d of %s is expected to follow from whole numbers without a rounding, as float(x) of indices",
                i + 1, c->node->step->name);
    }
    return as_all(c);
}

static assay_status divided(check *c)
{
    const assay_program_node *by = operand(c, 1);
    if (by->step == NULL && by->input < 0 && by->number >= 1 && by->number == rint(by->number)) return compared(c);
    return assay_refuse(c->ctx, "operand 2 of %s is expected to be a whole number, 1 or more", c->node->step->name);
}

static assay_status masked(check *c)
{
    if (operand(c, 0)->integers || operand(c, 0)->exact) return as_all(c);
    return assay_refuse(c->ctx, "operand 1 of where is expected to be whole numbers: where(mask, a, b)");
}

/* A kernel's errors move what jumps: how far is known of what has a name. */
static assay_status jumping(check *c)
{
    const assay_program_node *x = operand(c, 0);
    const bool named = c->p->lines[x->line].node == c->node->in[0];
    c->p->nodes[c->node->in[0]].jumped = named;
    if (x->step == NULL || x->exact || named) return as_first(c);
    return assay_refuse(c->ctx, "%s is of a step's name or what is given, expected its operand on a line of its own",
                        c->node->step->name);
}

static assay_status require_axis_of(check *c, char axis, const char *axes)
{
    if (strchr(axes, axis) != NULL) return ASSAY_OK;
    return assay_refuse(c->ctx, "over has the axis %c, expected axes of %s", axis,
                        axes[0] == '\0' ? "a tensor with axes" : axes);
}

static assay_status reduced(check *c)
{
    const char *x = operand(c, 0)->axes, *over = assay_program_axes(c->node, "over");
    char left[ASSAY_MAX_RANK + 1];
    int count = 0;
    for (const char *axis = over; *axis != '\0'; axis++) MUST(require_axis_of(c, *axis, x));
    for (; *x != '\0'; x++)
        if (strchr(over, *x) == NULL) left[count++] = *x;
    left[count] = '\0';
    return set_axes(c, left);
}

static assay_status require_one_axis(check *c)
{
    const char *over = assay_program_axes(c->node, "over");
    if (strlen(over) == 1) return require_axis_of(c, over[0], operand(c, 0)->axes);
    return assay_refuse(c->ctx, "over is \"%s\", expected one axis", over);
}

static assay_status along_one(check *c)
{
    MUST(require_one_axis(c));
    return as_first(c);
}

static assay_status without_one(check *c)
{
    MUST(require_one_axis(c));
    return reduced(c);
}

bool assay_program_is_axis(char letter)
{
    return (letter >= 'A' && letter <= 'Z') || (letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9');
}

static bool read_letters(const char **at, char to[ASSAY_MAX_RANK + 1])
{
    size_t count = 0;
    for (; assay_program_is_axis(**at); ++*at) {
        if (count == ASSAY_MAX_RANK) return false;
        to[count++] = **at;
    }
    to[count] = '\0';
    return true;
}

bool assay_program_pattern(const char *text, assay_program_pattern_of *p)
{
    const char *at = text;
    *p = (assay_program_pattern_of){.count = 0};
    do {
        if (p->count == ASSAY_PROGRAM_OPERANDS || !read_letters(&at, p->in[p->count++])) return false;
    } while (*at == ',' && *at++ != '\0');
    if (strncmp(at, "->", 2) != 0) return false;
    at += 2;
    return read_letters(&at, p->out) && *at == '\0';
}

/* The pattern of the first operands, which have as many axes, of the same sizes. */
static assay_status pattern_of(check *c, int operands, assay_program_pattern_of *p)
{
    const char *text = assay_program_axes(c->node, "axes");
    if (!assay_program_pattern(text, p))
        return assay_refuse(c->ctx, "the axes are \"%s\", expected letters such as \"TD,DF->TF\"", text);
    if (p->count != operands)
        return assay_refuse(c->ctx, "\"%s\" is of %d operands, expected %d", text, p->count, operands);
    for (int i = 0; i < p->count; i++) {
        const assay_program_node *x = operand(c, i);
        if ((int)strlen(p->in[i]) != x->shape.rank)
            return assay_refuse(c->ctx, "\"%s\" has %s for an operand with the axes %s", text, p->in[i], x->axes);
        for (int k = 0; k < x->shape.rank; k++) {
            const char letter = p->in[i][k];
            const int64_t size = c->p->sizes[(unsigned char)letter];
            if (size == 0) return assay_refuse(c->ctx, "the axis %c has no size in sizes", letter);
            if (size != x->shape.dims[k])
                return assay_refuse(c->ctx, "\"%s\" has %c, which is %" PRId64 ", for the axis %c, which is %" PRId64,
                                    text, letter, size, x->axes[k], x->shape.dims[k]);
            if (strchr(p->in[i] + k + 1, letter) != NULL)
                return assay_refuse(c->ctx, "\"%s\" has %c twice in one operand", text, letter);
        }
    }
    return ASSAY_OK;
}

static assay_status contracted(check *c)
{
    assay_program_pattern_of p;
    MUST(pattern_of(c, 2, &p));
    for (int i = 0; i < 2; i++)
        for (const char *axis = p.in[i]; *axis != '\0'; axis++)
            if (strchr(p.in[1 - i], *axis) == NULL && strchr(p.out, *axis) == NULL)
                return assay_refuse(c->ctx, "the axis %c is in one operand alone: sum over it before", *axis);
    for (const char *axis = p.out; *axis != '\0'; axis++)
        if (strchr(p.in[0], *axis) == NULL && strchr(p.in[1], *axis) == NULL)
            return assay_refuse(c->ctx, "the axis %c of the result is in no operand", *axis);
    return set_axes(c, p.out);
}

/* "TK,EKN->TN": rows, groups, axes that are summed over and those of the result, each of one axis or more but for the first two. */
static assay_status grouped(check *c)
{
    assay_program_pattern_of p;
    MUST(pattern_of(c, 2, &p));
    const char *x = p.in[0], *w = p.in[1], *sizes = operand(c, 2)->axes;
    const size_t summed = strlen(x) - (x[0] != '\0');
    const bool fits = summed > 0 && strlen(w) > 1 + summed && strchr(x, w[0]) == NULL &&
                      strncmp(w + 1, x + 1, summed) == 0 && p.out[0] == x[0] && strcmp(p.out + 1, w + 1 + summed) == 0;
    if (!fits)
        return assay_refuse(
            c->ctx,
            "the axes are \"%s\", expected x with its rows first, w with its groups first, then the other "
            "axes of x, then those of the result: \"TD,EDF->TF\"",
            assay_program_axes(c->node, "axes"));
    if (strlen(sizes) != 1 || operand(c, 2)->shape.dims[0] != operand(c, 1)->shape.dims[0])
        return assay_refuse(c->ctx, "the sizes of groups have the axes %s, expected the first one of %s", sizes,
                            operand(c, 1)->axes);
    return set_axes(c, p.out);
}

int64_t assay_program_terms(const assay_program *p, const assay_program_node *product)
{
    assay_program_pattern_of of;
    int64_t terms = 1;
    if (!assay_program_pattern(assay_program_axes(product, "axes"), &of)) return 1;
    for (const char *axis = of.in[0]; *axis != '\0'; axis++)
        if (strchr(of.out, *axis) == NULL) terms *= p->sizes[(unsigned char)*axis];
    return terms;
}

/* Another order; axes that x lacks repeat it. */
static assay_status rearranged(check *c)
{
    assay_program_pattern_of p;
    MUST(pattern_of(c, 1, &p));
    for (const char *axis = p.in[0]; *axis != '\0'; axis++)
        if (strchr(p.out, *axis) == NULL)
            return assay_refuse(c->ctx, "the axis %c is not in the result: sum over it instead", *axis);
    return set_axes(c, p.out);
}

static assay_status as_many(check *c)
{
    const int64_t from = assay_shape_count(&operand(c, 0)->shape), to = assay_shape_count(&c->node->shape);
    if (from == to) return ASSAY_OK;
    return assay_refuse(c->ctx, "%s has %" PRId64 " numbers, and %s has %" PRId64, operand(c, 0)->axes, from,
                        c->node->axes, to);
}

static assay_status reshaped(check *c)
{
    MUST(set_axes(c, assay_program_axes(c->node, "axes")));
    return as_many(c);
}

/* "D->R": one axis, whose place is *at, becomes another of x's, or "D->" goes; all else stays. */
static assay_status exchanged(check *c, int *at)
{
    assay_program_pattern_of p;
    char axes[ASSAY_MAX_RANK + 1];
    const char *text = assay_program_axes(c->node, "axes"), *x = memcpy(axes, operand(c, 0)->axes, sizeof axes);
    if (!assay_program_pattern(text, &p) || p.count != 1 || strlen(p.in[0]) != 1 || strlen(p.out) > 1)
        return assay_refuse(c->ctx, "the axes are \"%s\", expected one axis for another: \"D->R\"", text);
    x = strchr(axes, p.in[0][0]);
    if (x == NULL) return assay_refuse(c->ctx, "the axis %c is not among %s", p.in[0][0], axes);
    *at = (int)(x - axes);
    axes[*at] = p.out[0];
    if (p.out[0] == '\0') memmove(axes + *at, x + 1, strlen(x + 1) + 1);
    return set_axes(c, axes);
}

static assay_status sliced(check *c)
{
    int at = 0;
    MUST(exchanged(c, &at));
    const assay_program_node *x = operand(c, 0);
    const double first = assay_program_number(c->node, "first");
    const bool goes = c->node->shape.rank < x->shape.rank;
    const int64_t size = goes ? 1 : c->node->shape.dims[at], all = x->shape.dims[at];
    if (first == floor(first) && first >= 0 && first + (double)size <= (double)all) return ASSAY_OK;
    return assay_refuse(c->ctx,
                        "first is %g, expected a whole number from 0 to %" PRId64 ": %c has %" PRId64 " of the %" PRId64
                        " of %c",
                        first, all - size, goes ? '1' : c->node->axes[at], size, all, x->axes[at]);
}

/* As many of the last axis. */
static assay_status chosen(check *c)
{
    int at = 0;
    MUST(exchanged(c, &at));
    const assay_program_node *x = operand(c, 0);
    const int64_t all = x->shape.dims[at], own = c->node->shape.dims[at];
    if (at + 1 != x->shape.rank || c->node->shape.rank < x->shape.rank)
        return assay_refuse(c->ctx, "%c is not the last axis of %s", x->axes[at], x->axes);
    c->node->integers = c->node->chosen = true;
    if (own <= all) return ASSAY_OK;
    return assay_refuse(c->ctx, "%c has %" PRId64 ", expected at most the %" PRId64 " of %c", c->node->axes[at], own,
                        all, x->axes[at]);
}

static assay_status whole(check *c)
{
    c->node->integers = true;
    if (operand(c, 0)->exact) return as_first(c);
    return assay_refuse(c->ctx, "index is of numbers that follow from whole numbers without a rounding");
}

/* Whole numbers along one axis, made of whole numbers. */
static assay_status integers_along(check *c)
{
    const assay_shape *x = &operand(c, 0)->shape;
    const char *axes = assay_program_axes(c->node, "axes");
    if (strlen(axes) != 1) return assay_refuse(c->ctx, "the axes are \"%s\", expected one axis", axes);
    if (assay_shape_count(x) > INT32_MAX)
        return assay_refuse(c->ctx, "%s counts to %" PRId64 ", expected at most 2^31 - 1", c->node->step->name,
                            assay_shape_count(x));
    c->node->integers = true;
    return set_axes(c, axes);
}

static assay_status sorted(check *c)
{
    MUST(integers_along(c));
    return as_many(c);
}

/* "R,P->D": each operand has its own axis there, all else is the same; "->D": none has one, and the new one stands first. */
static assay_status joined(check *c)
{
    assay_program_pattern_of p;
    char axes[ASSAY_MAX_RANK + 2] = "";
    int64_t sum = 0;
    const char *text = assay_program_axes(c->node, "axes");
    const bool pattern = assay_program_pattern(text, &p) && strlen(p.out) == 1,
               stacks = pattern && p.count == 1 && p.in[0][0] == '\0';
    if (!pattern || (p.count != c->node->in_count && !stacks))
        return assay_refuse(
            c->ctx, "the axes are \"%s\", expected an axis of each operand and that of the result: \"R,P->D\"", text);
    for (int i = 0; i < c->node->in_count; i++) {
        char own[ASSAY_MAX_RANK + 2], *at = own;
        strcpy(own + stacks, operand(c, i)->axes);
        if (!stacks) at = strlen(p.in[i]) == 1 ? strchr(own, p.in[i][0]) : NULL;
        if (at == NULL) return assay_refuse(c->ctx, "the axis \"%s\" is not among %s", p.in[i], own);
        sum += stacks ? 1 : operand(c, i)->shape.dims[at - own];
        *at = p.out[0];
        if (i > 0 && strcmp(own, axes) != 0)
            return assay_refuse(c->ctx, "%s has other axes than %s but for those that are joined", operand(c, i)->axes,
                                operand(c, 0)->axes);
        memcpy(axes, own, sizeof axes);
    }
    MUST(set_axes(c, axes));
    if (sum != c->p->sizes[(unsigned char)p.out[0]])
        return assay_refuse(c->ctx, "%c is %" PRId64 ", and its parts are %" PRId64, p.out[0],
                            c->p->sizes[(unsigned char)p.out[0]], sum);
    return ASSAY_OK;
}

static assay_status gathered(check *c)
{
    char axes[2 * ASSAY_MAX_RANK + 1];
    const assay_program_node *table = operand(c, 0);
    if (table->shape.rank == 0) return assay_refuse(c->ctx, "gather takes rows of a tensor with axes");
    snprintf(axes, sizeof axes, "%s%s", operand(c, 1)->axes, table->axes + 1);
    return set_axes(c, axes);
}

/* Rows of x are those of its indices, which its axes begin with. */
static assay_status require_rows(check *c)
{
    const char *x = operand(c, 0)->axes, *index = operand(c, 1)->axes;
    if (strncmp(x, index, strlen(index)) == 0) return ASSAY_OK;
    return assay_refuse(c->ctx, "%s does not begin with the axes of the second operand, %s", x, index);
}

static assay_status scattered(check *c)
{
    char axes[4 * ASSAY_MAX_RANK];
    MUST(require_rows(c));
    snprintf(axes, sizeof axes, "%.1s%s", assay_program_axes(c->node, "axes"),
             operand(c, 0)->axes + strlen(operand(c, 1)->axes));
    return set_axes(c, axes);
}

/* x [A..,E] and index [A..] or [A..,K..]. */
static assay_status picked(check *c)
{
    const assay_program_node *x = operand(c, 0), *index = operand(c, 1);
    const int rank = x->shape.rank - 1;
    if (rank >= 0 && index->shape.rank >= rank && strncmp(x->axes, index->axes, (size_t)rank) == 0)
        return set_axes(c, index->axes);
    return assay_refuse(c->ctx, "%s does not begin with all axes but the last one of %s", index->axes, x->axes);
}

/* Every operand behind x has x's last axis alone. */
static assay_status normalised(check *c)
{
    const assay_program_node *x = operand(c, 0);
    const double epsilon = assay_program_number(c->node, "epsilon");
    if (x->shape.rank == 0) return assay_refuse(c->ctx, "%s takes rows", c->node->step->name);
    for (int i = 1; i < c->node->in_count; i++)
        if (strcmp(operand(c, i)->axes, x->axes + x->shape.rank - 1) != 0)
            return assay_refuse(c->ctx, "operand %d has the axes %s, expected the last one of %s", i + 1,
                                operand(c, i)->axes, x->axes);
    if (!(epsilon >= 0)) return assay_refuse(c->ctx, "epsilon is %g, expected 0 or more", epsilon);
    return as_first(c);
}

static assay_status convolved(check *c)
{
    const assay_program_node *x = operand(c, 0), *w = operand(c, 1);
    const assay_program_node *state = c->node->in_count > 2 ? operand(c, 2) : NULL;
    const int time = x->shape.rank - 2;
    if (time < 0 || w->shape.rank != 2 || w->axes[0] != x->axes[time + 1])
        return assay_refuse(c->ctx,
                            "the axes are %s and %s, expected x [..,T,C] and w [C,K] with the taps of a channel",
                            x->axes, w->axes);
    if (state == NULL ||
        (state->shape.rank == x->shape.rank && strncmp(state->axes, x->axes, (size_t)time) == 0 &&
         state->axes[time + 1] == x->axes[time + 1] && state->shape.dims[time] == w->shape.dims[1] - 1))
        return as_first(c);
    return assay_refuse(c->ctx, "the state has the axes %s, expected those of %s but for %" PRId64 " tokens, K - 1",
                        state->axes, x->axes, w->shape.dims[1] - 1);
}

static assay_status rotated(check *c)
{
    const assay_program_node *x = operand(c, 0), *positions = operand(c, 1);
    MUST(require_rows(c));
    if (x->shape.rank <= positions->shape.rank || x->shape.rank > positions->shape.rank + 2)
        return assay_refuse(c->ctx, "%s is expected to have one axis or two behind %s", x->axes, positions->axes);
    const int64_t width = x->shape.dims[x->shape.rank - 1];
    const double theta = assay_program_number(c->node, "theta");
    if (width % 2 != 0 || width > ASSAY_ROPE_DIM_MAX)
        return assay_refuse(c->ctx, "%c is %" PRId64 ", expected an even number from 2 to %d",
                            x->axes[x->shape.rank - 1], width, ASSAY_ROPE_DIM_MAX);
    if (!(theta > 1)) return assay_refuse(c->ctx, "theta is %g, expected above 1", theta);
    const assay_program_node *frequencies = c->node->in_count > 2 ? operand(c, 2) : NULL;
    if (frequencies == NULL || (frequencies->input >= 0 && assay_shape_count(&frequencies->shape) == width / 2))
        return as_first(c);
    return assay_refuse(c->ctx, "frequencies are expected to be an input [%" PRId64 "]", width / 2);
}

assay_rope_config assay_program_rope(const assay_program_node *node)
{
    const bool interleave = assay_program_number(node, "interleave") != 0;
    return (assay_rope_config){.dim = node->shape.dims[node->shape.rank - 1],
                               .rope_max_timescale = assay_program_number(node, "theta"),
                               .interleave = interleave,
                               .pairwise = interleave};
}

assay_attention_config assay_program_attention(const assay_shape *query, const assay_shape *value,
                                               const assay_program_node *node)
{
    return (assay_attention_config){.batch = query->dims[0],
                                    .sequence = query->dims[1],
                                    .heads = query->dims[2],
                                    .qk_dim = query->dims[3],
                                    .v_dim = value->dims[3],
                                    .mask_padding = true,
                                    .kv_heads = value->dims[2],
                                    .window = (int64_t)assay_program_number(node, "window"),
                                    .soft_cap = assay_program_number(node, "soft_cap")};
}

static assay_program_beside beside_of(const assay_program *p, const assay_program_node *node, int i)
{
    const assay_program_node *x = &p->nodes[node->in[i]];
    const char *query = p->nodes[node->in[0]].axes, heads[] = {query[2], '\0'};
    if (x->integers) return x->axes[1] == query[1] ? ASSAY_BESIDE_SEGMENTS : ASSAY_BESIDE_KEY_SEGMENTS;
    if (x->exact) return ASSAY_BESIDE_MASK;
    return strcmp(x->axes, heads) == 0 ? ASSAY_BESIDE_SINKS : ASSAY_BESIDE_BIAS;
}

int assay_program_find_beside(const assay_program *p, const assay_program_node *node, assay_program_beside what)
{
    for (int i = 3; i < node->in_count; i++)
        if (beside_of(p, node, i) == what) return i;
    return 0;
}

bool assay_program_is_masked(const assay_program *p, const assay_program_node *node)
{
    return p->nodes[node->in[0]].axes[1] != p->nodes[node->in[1]].axes[1];
}

/* One of each kind; segments are those of queries and, where keys have an axis of their own, of these. */
static bool fits_beside(check *c, int i)
{
    const char *query = operand(c, 0)->axes, *key = operand(c, 1)->axes, *own = operand(c, i)->axes;
    const assay_program_beside what = beside_of(c->p, c->node, i);
    const char all[] = {query[0], query[2], query[1], key[1], '\0'},
               segments[] = {query[0], what == ASSAY_BESIDE_SEGMENTS ? query[1] : key[1], '\0'};
    const bool apart = assay_program_is_masked(c->p, c->node);
    if (assay_program_find_beside(c->p, c->node, what) != i) return false;
    if (what <= ASSAY_BESIDE_KEY_SEGMENTS)
        return strcmp(own, segments) == 0 && assay_program_find_beside(c->p, c->node, ASSAY_BESIDE_SEGMENTS) > 0 &&
               apart == (assay_program_find_beside(c->p, c->node, ASSAY_BESIDE_KEY_SEGMENTS) > 0);
    return what == ASSAY_BESIDE_SINKS || (apart && own[0] != '\0' && strspn(own, all) == strlen(own));
}

static bool fits_attention(check *c)
{
    const assay_program_node *query = operand(c, 0), *key = operand(c, 1), *value = operand(c, 2);
    bool fits = query->shape.rank == 4 && key->shape.rank == 4 && value->shape.rank == 4 &&
                strncmp(key->axes, value->axes, 3) == 0 && key->axes[3] == query->axes[3] &&
                key->axes[0] == query->axes[0];
    for (int i = 3; i < c->node->in_count && fits; i++) fits = fits_beside(c, i);
    return fits;
}

static assay_status check_mask(check *c)
{
    static const char *const numbers[] = {"window", "chunk", "prefix", "soft_cap"};
    const char *mask = assay_program_axes(c->node, "mask");
    const bool causal = mask[0] == '\0' || strcmp(mask, "causal") == 0, full = strcmp(mask, "full") == 0;
    for (int i = 0; i < 4; i++) {
        const double number = assay_program_number(c->node, numbers[i]);
        if (!(number >= 0) || (i < 3 && (number != floor(number) || number > INT32_MAX)))
            return assay_refuse(c->ctx, "%s is %g, expected a %snumber, 0 or more", numbers[i], number,
                                i < 3 ? "whole " : "");
    }
    if (!causal && !full && strcmp(mask, "causal_first") != 0)
        return assay_refuse(c->ctx, "mask is %s, expected causal, causal_first or full", mask);
    if (full && assay_program_number(c->node, "prefix") > 0)
        return assay_refuse(c->ctx, "prefix widens a causal mask, and mask is full");
    if (assay_program_is_masked(c->p, c->node) ||
        (causal && assay_program_number(c->node, "chunk") + assay_program_number(c->node, "prefix") == 0))
        return ASSAY_OK;
    return assay_refuse(c->ctx, "keys have the axis %c of the queries, expected one of their own for such a mask",
                        operand(c, 1)->axes[1]);
}

static assay_status check_attention(check *c)
{
    static const char form[] =
        "query [B,S,N,H], key [B,S,K,H], value [B,S,K,V], in any order segments [B,S] and sinks [N]; or with keys and "
        "values [B,T,..] segments [B,S] and [B,T], sinks [N], a mask and a bias [B,N,S,T] or fewer of these axes";
    const assay_program_node *query = operand(c, 0), *value = operand(c, 2);
    char axes[ASSAY_PROGRAM_OPERANDS * (ASSAY_MAX_RANK + 3)] = "";
    for (int i = 0; i < c->node->in_count; i++)
        snprintf(axes + strlen(axes), sizeof axes - strlen(axes), "%s%s", i > 0 ? ", " : "", operand(c, i)->axes);
    if (!fits_attention(c)) return assay_refuse(c->ctx, "the axes are %s, expected %s", axes, form);
    MUST(check_mask(c));
    if (query->shape.dims[2] % value->shape.dims[2] == 0) return ASSAY_OK;
    return assay_refuse(c->ctx, "%c is %" PRId64 ", expected a divisor of %c, which is %" PRId64, value->axes[2],
                        value->shape.dims[2], query->axes[2], query->shape.dims[2]);
}

static assay_status attended(check *c)
{
    char axes[ASSAY_MAX_RANK + 1];
    MUST(check_attention(c));
    snprintf(axes, sizeof axes, "%.3s%c", operand(c, 0)->axes, operand(c, 2)->axes[3]);
    return set_axes(c, axes);
}

static assay_status log_sums(check *c)
{
    MUST(check_attention(c));
    const char *query = operand(c, 0)->axes;
    return set_axes(c, (char[]){query[0], query[2], query[1], '\0'});
}

static assay_status scanned(check *c)
{
    const char *a = operand(c, 0)->axes, *b = operand(c, 1)->axes;
    MUST(require_one_axis(c));
    if (strspn(a, b) == strlen(a)) return set_axes(c, b);
    return assay_refuse(c->ctx, "the axes are %s and %s, expected the same, or fewer of a", a, b);
}

void assay_program_state_axes(const char *query, const char *value, char state[ASSAY_MAX_RANK + 1])
{
    const size_t rank = strlen(query);
    snprintf(state, ASSAY_MAX_RANK + 1, "%.*s%s%c", (int)rank - 3, query, query + rank - 2, value[rank - 1]);
}

static assay_status recurrent(check *c)
{
    const assay_program_node *query = operand(c, 0), *value = operand(c, 2);
    const int rank = query->shape.rank;
    char token[ASSAY_MAX_RANK + 1] = "", state[ASSAY_MAX_RANK + 1] = "";
    bool fits = rank >= 3 && value->shape.rank == rank && strcmp(query->axes, operand(c, 1)->axes) == 0 &&
                strncmp(query->axes, value->axes, (size_t)rank - 1) == 0;
    if (fits) snprintf(token, sizeof token, "%.*s", rank - 1, query->axes);
    if (fits) assay_program_state_axes(query->axes, value->axes, state);
    fits &= strcmp(operand(c, 3)->axes, token) == 0 || strcmp(operand(c, 3)->axes, query->axes) == 0;
    fits &= strcmp(operand(c, 4)->axes, token) == 0;
    fits &= c->node->in_count < 6 || strcmp(operand(c, 5)->axes, state) == 0;
    if (fits) return set_axes(c, strcmp(c->node->step->name, "gated_delta_rule") == 0 ? value->axes : state);
    return assay_refuse(
        c->ctx,
        "the axes are %s, %s, %s, %s and %s, expected query [..,T,N,K], key [..,T,N,K], value [..,T,N,V], "
        "gate [..,T,N] or [..,T,N,K], beta [..,T,N], and state [..,N,K,V], if any",
        query->axes, operand(c, 1)->axes, value->axes, operand(c, 3)->axes, operand(c, 4)->axes);
}

static assay_status quantised(check *c)
{
    MUST(as_first(c));
    if (c->node->shape.rank == 0) return assay_refuse(c->ctx, "quantise takes rows");
    c->node->coded = true;
    return assay_program_check_quantise(c->ctx, c->node);
}

/* One of the slopes that there are. */
static assay_status kinked(check *c)
{
    const double kink = assay_program_number(c->node, "kink"), least = strcmp(c->node->step->name, "abs") == 0 ? -1 : 0;
    if (kink >= least && kink <= 1) return as_all(c);
    return assay_refuse(c->ctx, "kink is %g, expected a number from %g to 1", kink, least);
}

static assay_status clamped(check *c)
{
    const double low = assay_program_number(c->node, "low"), high = assay_program_number(c->node, "high");
    if (low <= high) return kinked(c);
    return assay_refuse(c->ctx, "low is %g, expected at most high, which is %g", low, high);
}

static assay_status rounded(check *c)
{
    assay_dtype type;
    const char *name = assay_program_axes(c->node, "type");
    if (!assay_dtype_from_name(name, &type) || type == ASSAY_INT32 || type == ASSAY_FLOAT64 ||
        type == ASSAY_FLOAT8_E8M0FNU)
        return assay_refuse(c->ctx,
                            "type is %s, expected bfloat16, float16 or another of fewer bits than "
                            "float64",
                            name);
    return as_first(c);
}

#define NEEDED NAN
#define BESIDE_VALUE (31u << (ASSAY_PROGRAM_EITHER + 3))
#define OWN ASSAY_PROGRAM_OWN
#define NOT ASSAY_PROGRAM_NOT_EXACT
#define KEPT ASSAY_PROGRAM_KEEPS_EXACT
#define MADE ASSAY_PROGRAM_MAKES_EXACT
#define LIST(...) __VA_ARGS__
#define STEP(name, least, most, operands, integers, parameters, shape, exact, kind, put, function, besides, free,      \
             text)                                                                                                     \
    {#name, least, most, operands, {LIST parameters}, text, shape, integers, exact},

const assay_program_step assay_program_steps[] = {
#include "oracle/program/program_steps.inc"
};
const int assay_program_step_count = sizeof assay_program_steps / sizeof *assay_program_steps;

const assay_program_step *assay_program_step_by_name(const char *name, size_t length)
{
    for (int i = 0; i < assay_program_step_count; i++) {
        const char *step = assay_program_steps[i].name;
        if (strlen(step) == length && memcmp(step, name, length) == 0) return &assay_program_steps[i];
    }
    return NULL;
}
