/* What there is to change of steps; step_changes.h is the contract. */
#include "harness/mutants/step_changes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/graph/graph_kind.h"
#include "oracle/graph/graph_map.h"

/* --- names --- */

static bool is_named(const graph_tensor *t)
{
    return t->step < 0 || t->role == GRAPH_CHECKPOINT || strncmp(t->row.name, "outputs/", 8) == 0;
}

static void without_folder(const char *name, char to[ASSAY_STEP_NAME])
{
    static const char *const folders[] = {"inputs/", "weights/", "outputs/"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (strncmp(name, folders[i], strlen(folders[i])) == 0) name += strlen(folders[i]);
    snprintf(to, ASSAY_STEP_NAME, "%s", name);
    for (char *at = to; *at != '\0'; at++)
        if (*at == ' ' || *at == '/') *at = *at == ' ' ? '_' : '.';
}

/* "silu" of a kind that has many functions; else what the tensor is called. */
static void own_name(const graph *g, int tensor, char name[ASSAY_STEP_NAME])
{
    const graph_step *step = &g->steps[g->tensors[tensor].step];
    without_folder(step->kind->functions != NULL ? graph_step_name(step) : g->tensors[tensor].row.name, name);
}

/* What the first step that reads it makes; 0: none does. */
static int made_of(const graph *g, int tensor)
{
    for (int i = 0; i < g->step_count; i++)
        for (int k = 0; k < GRAPH_IN; k++)
            if (g->steps[i].in[k] == tensor) return g->steps[i].out[0];
    return 0;
}

static void plain_name(const graph *g, int tensor, char name[ASSAY_STEP_NAME])
{
    char own[ASSAY_STEP_NAME], whole[ASSAY_STEP_NAME] = "";
    if (is_named(&g->tensors[tensor])) {
        without_folder(g->tensors[tensor].row.name, name);
        return;
    }
    own_name(g, tensor, own);
    int into = made_of(g, tensor);
    while (into != 0 && !is_named(&g->tensors[into])) into = made_of(g, into);
    if (into != 0) without_folder(g->tensors[into].row.name, whole);
    snprintf(name, ASSAY_STEP_NAME, "%.40s%s%.20s", whole, into != 0 ? "." : "", own);
}

void assay_step_name(const graph *g, int tensor, char name[ASSAY_STEP_NAME])
{
    int number = 1;
    plain_name(g, tensor, name);
    for (int t = 1; t < tensor; t++) {
        char other[ASSAY_STEP_NAME];
        plain_name(g, t, other);
        number += strcmp(name, other) == 0;
    }
    const size_t length = strlen(name);
    if (number > 1) snprintf(name + length, ASSAY_STEP_NAME - length, "%d", number);
}

static const struct {
    const char *name, *text;
} words[] = {
#define ROW(code, name, text, makes) {name, text},
#include "harness/mutants/rows/steps.inc"
};

const char *assay_step_change_text(int change)
{
    return words[change % ASSAY_STEP_CHANGE_COUNT].text;
}

/* --- what is there to change --- */

typedef struct at {
    int which; /* of several changes of one kind */
    const graph *g;
    const graph_step *step; /* as it is */
    graph_step *to;
    char *more; /* behind the change's name: what it is instead */
} at;

static const graph_tensor *tensor_of(const at *a, int tensor)
{
    return &a->g->tensors[tensor];
}

static const assay_tensor_row *output_row(const at *a)
{
    return &tensor_of(a, a->step->out[0])->row;
}

static bool is_number(const at *a, int i)
{
    const graph_tensor *x = tensor_of(a, a->step->in[i]);
    return a->step->in[i] != 0 && x->role != GRAPH_INDICES && !x->integers;
}

static bool has_two_operands(const at *a)
{
    const graph_kind *kind = a->step->kind;
    return (kind == &graph_kind_binary && !graph_is_factor(a->step)) || kind == &graph_kind_where;
}

static int first_operand(const at *a)
{
    return a->step->kind == &graph_kind_where ? 1 : 0;
}

/* Laid out alike, and by the same letters where these say what becomes of an axis. */
static bool are_alike(const at *a, int x, int y)
{
    const assay_tensor_row *one = &tensor_of(a, x)->row, *other = &tensor_of(a, y)->row;
    return strcmp(one->axes, other->axes) == 0 && assay_shape_equal(&one->shape, &other->shape) &&
           one->inputs == other->inputs && one->below == other->below;
}

/* The step gives its input as it is. */
static bool leave(const at *a, int input)
{
    const int x = a->step->in[input];
    if (!is_number(a, input) || a->step->out[1] != 0 || tensor_of(a, x)->read_in_slices) return false;
    if (!assay_shape_equal(&tensor_of(a, x)->row.shape, &output_row(a)->shape)) return false;
    if (has_two_operands(a) && strcmp(tensor_of(a, x)->row.axes, output_row(a)->axes) != 0) return false;
    *a->to = (graph_step){.kind = &graph_kind_order, .in = {x}, .with.general.function = 1}; /* as it lies */
    memcpy(a->to->out, a->step->out, sizeof a->to->out);
    return true;
}

/* --- other functions and parameters --- */

/* Functions that are taken for each other; the first row that has a function says for which. */
static const struct {
    const graph_kind *kind;
    int functions[2];
} others[] = {
    {&graph_kind_map, {GRAPH_MAP_gelu, GRAPH_MAP_gelu_exact}},
    {&graph_kind_map, {GRAPH_MAP_tanh, GRAPH_MAP_sigmoid}},
    {&graph_kind_map, {GRAPH_MAP_rsqrt, GRAPH_MAP_reciprocal}},
    {&graph_kind_map, {GRAPH_MAP_sin, GRAPH_MAP_cos}},
    {&graph_kind_map, {GRAPH_MAP_silu, GRAPH_MAP_gelu}},
    {&graph_kind_map, {GRAPH_MAP_relu, GRAPH_MAP_silu}},
    {&graph_kind_map, {GRAPH_MAP_softplus, GRAPH_MAP_relu}},
    {&graph_kind_map, {GRAPH_MAP_sqrt, GRAPH_MAP_rsqrt}},
    {&graph_kind_binary, {GRAPH_BINARY_add, GRAPH_BINARY_sub}},
    {&graph_kind_binary, {GRAPH_BINARY_mul, GRAPH_BINARY_div}},
    {&graph_kind_binary, {GRAPH_BINARY_maximum, GRAPH_BINARY_minimum}},
    {&graph_kind_reduce, {GRAPH_REDUCTION_sum, GRAPH_REDUCTION_mean}},
    {&graph_kind_reduce, {GRAPH_REDUCTION_max, GRAPH_REDUCTION_mean}},
};

/* Of a gate that is silu or gelu. */
static bool take_gate(const at *a)
{
    assay_activation *gate = &a->to->with.mlp.activation[0];
    const bool silu = *gate == ASSAY_SILU;
    if (a->step->with.mlp.glu != ASSAY_GLU_PLAIN || (!silu && *gate != ASSAY_GELU)) return false;
    *gate = silu ? ASSAY_GELU : ASSAY_SILU;
    snprintf(a->more, ASSAY_STEP_NAME, "_%s", assay_activation_name(*gate));
    return true;
}

static bool take_function(const at *a)
{
    if (a->step->kind == &graph_kind_glu) return take_gate(a);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const int own = a->step->with.general.function, *two = others[i].functions;
        if (others[i].kind != a->step->kind || (own != two[0] && own != two[1])) continue;
        a->to->with.general.function = two[own == two[0]];
        snprintf(a->more, ASSAY_STEP_NAME, "_%s", graph_step_name(a->to));
        return true;
    }
    return false;
}

static bool take_axis(const at *a)
{
    const graph_kind *kind = a->step->kind;
    const assay_tensor_row *x = &tensor_of(a, a->step->in[0])->row;
    if (kind != &graph_kind_softmax && kind != &graph_kind_running_sum) return false;
    for (int i = 0; i < x->shape.rank; i++) {
        if (x->axes[i] == a->step->with.general.over[0] || x->shape.dims[i] == 1) continue;
        snprintf(a->to->with.general.over, sizeof a->to->with.general.over, "%c", x->axes[i]);
        snprintf(a->more, ASSAY_STEP_NAME, "_%c", x->axes[i]);
        return true;
    }
    return false;
}

/* One index on, or back where the part is the last one. */
static bool take_first(const at *a)
{
    const assay_tensor_row *x = &tensor_of(a, a->step->in[0])->row;
    if (a->step->kind != &graph_kind_slice) return false;
    const size_t axis = strcspn(x->axes, a->step->with.general.over);
    const int64_t whole = x->shape.dims[axis], own = output_row(a)->shape.dims[axis];
    if (whole == own) return false;
    a->to->with.general.first += a->step->with.general.first + own < whole ? 1 : -1;
    return true;
}

static bool set_number(double *number, double to)
{
    const bool changes = *number != to;
    *number = to;
    return changes;
}

static bool take_window(const at *a, int64_t window)
{
    a->to->with.attention.window = window;
    return a->step->with.attention.window != 0;
}

/* Segments, or the biases of a product. */
static bool leave_behind(const at *a, int input)
{
    a->to->in[input] = a->to->in[3] = 0;
    return a->step->in[input] != 0;
}

static bool turn_pairs(const at *a)
{
    a->to->with.rope.config.interleave = !a->to->with.rope.config.interleave;
    a->to->with.rope.config.pairwise = a->to->with.rope.config.interleave;
    return true;
}

/* Of scales that are powers of two up or down; of float32 ones that, or not. */
static bool take_scale_rounding(const at *a)
{
    assay_quantize_config *to = &a->to->with.quantise;
    if (a->step->kind != &graph_kind_quantise_hidden || to->format->scale == ASSAY_FLOAT8_E4M3FN) return false;
    const assay_scale_rounding other = to->format->scale == ASSAY_FLOAT32 ? ASSAY_SCALE_NEAREST : ASSAY_SCALE_DOWN;
    to->rounding = to->rounding == ASSAY_SCALE_UP ? other : ASSAY_SCALE_UP;
    to->subnormal_scale |= to->format->scale == ASSAY_FLOAT32;
    return true;
}

/* --- other inputs --- */

static bool are_indices(const at *a, int tensor)
{
    return tensor_of(a, tensor)->integers || tensor_of(a, tensor)->role == GRAPH_INDICES;
}

static bool exchange(const at *a, int i)
{
    const int x = a->step->in[i], y = a->step->in[i + 1];
    if (x != 0 && y != 0 && are_indices(a, x) != are_indices(a, y)) return false;
    if (x == 0 || y == 0 || tensor_of(a, x)->read_in_slices || tensor_of(a, y)->read_in_slices) return false;
    if (!has_two_operands(a) && !are_alike(a, x, y)) return false;
    a->to->in[i] = y;
    a->to->in[i + 1] = x;
    return true;
}

/* One that looks the same and is there already: of what is given another one that is, the nearest. */
static bool read_else(const at *a, int i)
{
    const int x = a->step->in[i];
    int found = 0, least = INT32_MAX;
    if (x == 0 || tensor_of(a, x)->row.shape.rank == 0 || tensor_of(a, x)->read_in_slices) return false;
    for (int t = 1; t < a->step->out[0]; t++) {
        const graph_tensor *other = tensor_of(a, t);
        const int far = abs(t - x) + ((other->step < 0) != (tensor_of(a, x)->step < 0) ? GRAPH_TENSORS : 0);
        const bool fits = t != x && are_alike(a, x, t) && !other->constant && !tensor_of(a, x)->constant &&
                          are_indices(a, t) == are_indices(a, x);
        if (!fits || other->read_in_slices || other->quantised || far >= least) continue;
        found = t;
        least = far;
    }
    char name[ASSAY_STEP_NAME];
    if (found == 0) return false;
    a->to->in[i] = found;
    a->to->wrong.other = i + 1;
    assay_step_name(a->g, found, name);
    snprintf(a->more, ASSAY_STEP_NAME, "_%.40s", name);
    return true;
}

/* --- what it makes, and what flows back --- */

enum { TAIL = 8 };

static int64_t tail_of(int64_t count)
{
    return count <= TAIL ? count / 2 : TAIL;
}

/* Of [outer,count,inner] those behind the first `kept` along the axis become `by`. */
static void set_behind(double *values, int64_t outer, int64_t count, int64_t inner, int64_t kept, double by)
{
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = kept * inner; i < count * inner; i++) values[o * count * inner + i] = by;
}

static int64_t row_size(const graph *g, const graph_step *step)
{
    return graph_size(g, step->out[0]) / g->tensors[step->out[0]].row.shape.dims[0];
}

static void scale(const graph *g, const graph_step *step, double *values, bool gradient)
{
    (void)gradient;
    for (int64_t i = 0; i < graph_size(g, step->out[0]); i++) values[i] *= step->wrong.by;
}

static void coarsen(const graph *g, const graph_step *step, double *values, bool gradient)
{
    if (!gradient) assay_dtype_round_many(step->wrong.type, graph_size(g, step->out[0]), values, values);
}

static void lose_columns(const graph *g, const graph_step *step, double *values, bool gradient)
{
    const int64_t columns = graph_last_axis(g, step->out[0]);
    (void)gradient;
    set_behind(values, graph_size(g, step->out[0]) / columns, columns, 1, columns - tail_of(columns), 0);
}

static void lose_row(const graph *g, const graph_step *step, double *values, bool gradient)
{
    const int64_t size = graph_size(g, step->out[0]);
    (void)gradient;
    for (int64_t i = size - row_size(g, step); i < size; i++) values[i] = 0;
}

/* The last row is that of the row before, to which its gradient goes then. */
static void repeat_row(const graph *g, const graph_step *step, double *values, bool gradient)
{
    const int64_t size = graph_size(g, step->out[0]), row = row_size(g, step);
    for (int64_t i = size - row; i < size; i++) {
        if (gradient) values[i - row] += values[i];
        values[i] = gradient ? 0 : values[i - row];
    }
}

static bool spoil(const at *a, graph_spoiler *how, double by)
{
    const assay_shape *shape = &output_row(a)->shape;
    const int rank = shape->rank;
    if (how == lose_columns && (rank == 0 || shape->dims[rank - 1] < 2)) return false;
    if ((how == lose_row || how == repeat_row) && (rank < 2 || shape->dims[0] < 2)) return false;
    a->to->wrong.spoil = how;
    a->to->wrong.by = by;
    return !tensor_of(a, a->step->out[0])->constant;
}

/* Over which a step sums, or takes a softmax or a maximum; 0: over none. */
static char summed_axis(const at *a)
{
    const graph_kind *kind = a->step->kind;
    const assay_tensor_row *x = &tensor_of(a, a->step->in[0])->row;
    const char *over = a->step->with.general.over;
    char axis = '\0';
    if (kind == &graph_kind_linear) axis = x->axes[x->shape.rank - 1];
    for (int i = 0; i < x->shape.rank && kind == &graph_kind_product; i++)
        if (strchr(output_row(a)->axes, x->axes[i]) == NULL) axis = x->axes[i];
    if (kind == &graph_kind_reduce && over[0] != '\0') axis = over[strlen(over) - 1];
    if (kind == &graph_kind_softmax || kind == &graph_kind_logsumexp) axis = over[0];
    return axis;
}

static void leave_order(const graph *g, const graph_step *step, double *values, bool gradient)
{
    (void)gradient;
    for (int64_t i = 0; i < graph_out_size(g, step, 0); i++) values[i] = (double)i;
}

/* The last bin that has any. */
static void lose_one(const graph *g, const graph_step *step, double *values, bool gradient)
{
    int64_t bin = graph_out_size(g, step, 0) - 1;
    (void)gradient;
    while (bin > 0 && values[bin] == 0) bin--;
    if (values[bin] > 0) values[bin]--;
}

/* Of a sum, which counts what is not read as 0, or of a softmax or a maximum, which count it as minus infinity. */
static bool cut_tail(const at *a, graph_spoiler *how)
{
    const graph_kind *kind = a->step->kind;
    const assay_tensor_row *x = &tensor_of(a, a->step->in[0])->row;
    const bool largest = kind == &graph_kind_reduce && a->step->with.general.function == GRAPH_REDUCTION_max;
    const char axis = summed_axis(a);
    if (axis == '\0' || tensor_of(a, a->step->in[0])->read_in_slices) return false;
    if (x->shape.dims[strchr(x->axes, axis) - x->axes] < 2) return false;
    a->to->wrong.misread = how;
    a->to->wrong.axis = axis;
    a->to->wrong.by = largest || kind == &graph_kind_softmax || kind == &graph_kind_logsumexp ? -INFINITY : 0;
    return true;
}

static const assay_tensor_row *misread_row(const graph *g, const graph_step *step)
{
    return &g->tensors[step->in[step->wrong.input]].row;
}

/* A row's shape as [outer,count,inner] about the axis that is changed. */
static int64_t about_axis(const graph_step *step, const assay_tensor_row *row, int64_t *count, int64_t *inner)
{
    const int64_t axis = strchr(row->axes, step->wrong.axis) - row->axes;
    int64_t outer = 1;
    for (int64_t i = 0; i < axis; i++) outer *= row->shape.dims[i];
    *count = row->shape.dims[axis];
    *inner = assay_shape_count(&row->shape) / outer / *count;
    return outer;
}

/* Index 0 along the axis for all of it, whose gradients it gets then. */
static void spread_first(const graph_step *step, const assay_tensor_row *row, double *values, bool gradient)
{
    int64_t count, inner;
    const int64_t outer = about_axis(step, row, &count, &inner);
    for (int64_t o = 0; o < outer; o++) {
        double *first = values + o * count * inner;
        for (int64_t i = inner; i < count * inner; i++) {
            if (gradient) first[i % inner] += first[i];
            first[i] = gradient ? 0 : first[i % inner];
        }
    }
}

/* by: what reads one index for all writes gradients of all, each in its own place. */
static void read_first(const graph *g, const graph_step *step, double *values, bool gradient)
{
    if (!gradient || step->wrong.by == 0) spread_first(step, misread_row(g, step), values, gradient);
}

static void give_first(const graph *g, const graph_step *step, double *values, bool gradient)
{
    if (gradient) spread_first(step, &g->tensors[step->out[0]].row, values, false);
}

static void keep_first(const graph *g, const graph_step *step, double *values, bool gradient)
{
    int64_t count, inner;
    const int64_t outer = about_axis(step, misread_row(g, step), &count, &inner);
    (void)gradient;
    set_behind(values, outer, count, inner, 1, 0);
}

/* What is [count,inner,size] is read as if it lay as [inner,count,size]: two axes the other way round, or the halves of an axis as
 * pairs. Back, the gradient lies as ever. */
static void lie_otherwise(int64_t count, int64_t inner, int64_t size, int64_t all, double *values, bool back)
{
    const int64_t matrix = count * inner * size;
    OWNED double *room = malloc((size_t)matrix * sizeof *room);
    for (double *from = values; room != NULL && from < values + all; from += matrix) {
        for (int64_t i = 0; i < count * inner; i++) {
            const int64_t other = i % inner * count + i / inner;
            memcpy(room + (back ? other : i) * size, from + (back ? i : other) * size, (size_t)size * sizeof *room);
        }
        memcpy(from, room, (size_t)matrix * sizeof *room);
    }
}

static void transpose(const graph *g, const graph_step *step, double *values, bool gradient)
{
    const assay_shape *shape = &misread_row(g, step)->shape;
    const int behind = (int)step->wrong.by, last = shape->rank - 1 - behind; /* axes behind the two */
    const int64_t size = behind == 0 ? 1 : shape->dims[shape->rank - 1];
    lie_otherwise(shape->dims[last - 1], shape->dims[last], size, assay_shape_count(shape), values, gradient);
}

/* What is compared with it is less where it was equal. */
static void one_more(const graph *g, const graph_step *step, double *values, bool gradient)
{
    for (int64_t i = 0; i < assay_shape_count(&misread_row(g, step)->shape) && !gradient; i++) values[i]++;
}

/* Pairs of the last axis as its halves. */
static void interleave(const graph *g, const graph_step *step, double *values, bool gradient)
{
    lie_otherwise(graph_last_axis(g, step->out[0]) / 2, 2, 1, graph_size(g, step->out[0]), values, !gradient);
}

static void hand_over_reversed(int64_t rows, int64_t columns, int64_t all, double *states, bool gradient)
{
    (void)gradient;
    for (double *state = states; state < states + all; state += rows * columns)
        for (int64_t i = 0; i < rows / 2 * columns; i++) {
            double *other = state + (rows - 1 - i / columns) * columns + i % columns;
            const double first = state[i];
            state[i] = *other;
            *other = first;
        }
}

static void reverse(const graph *g, const graph_step *step, double *values, bool gradient)
{
    const assay_shape *shape = &misread_row(g, step)->shape;
    hand_over_reversed(shape->dims[shape->rank - 1], 1, assay_shape_count(shape), values, gradient);
}

static void lose_half(const graph *g, const graph_step *step, double *values, bool gradient)
{
    int64_t count, inner, kept = 1;
    const int64_t outer = about_axis(step, misread_row(g, step), &count, &inner);
    while (2 * kept < count) kept *= 2;
    set_behind(values, outer, count, inner, kept, gradient ? 0 : step->wrong.by);
}

static void lose_tail(const graph *g, const graph_step *step, double *values, bool gradient)
{
    int64_t count, inner;
    const int64_t outer = about_axis(step, misread_row(g, step), &count, &inner);
    set_behind(values, outer, count, inner, count - tail_of(count), gradient ? 0 : step->wrong.by);
}

static bool misread(const at *a, int input, graph_spoiler *how)
{
    a->to->wrong.misread = how;
    a->to->wrong.input = input;
    return is_number(a, input) && !tensor_of(a, a->step->in[input])->read_in_slices;
}

/* An axis of an input, of a step that has several, whose gradient goes to index 0 or stays where it is: an axis that counts something,
 * which the last one of a result seldom does. */
static bool read_one_index(const at *a, bool back_alone)
{
    const int input = a->which / 2 / ASSAY_MAX_RANK, axis = a->which / 2 % ASSAY_MAX_RANK, x = a->step->in[input];
    const bool stays = a->which % 2 == 1;
    const assay_tensor_row *row = &tensor_of(a, x)->row;
    char name[ASSAY_STEP_NAME];
    if (x == 0 || a->step->in[1] == 0 || !misread(a, input, read_first) || axis >= row->shape.rank) return false;
    const char *made = output_row(a)->axes, *found = strchr(made, row->axes[axis]);
    if (found == NULL || (found[1] == '\0' && found != made)) return false;
    if (row->shape.dims[axis] < 2 || (back_alone && (stays || (graph_reads(a->step) >> input & 1) == 0))) return false;
    a->to->wrong.by = stays;
    a->to->wrong.axis = row->axes[axis];
    a->to->wrong.back_alone = back_alone;
    assay_step_name(a->g, x, name);
    snprintf(a->more, ASSAY_STEP_NAME, "_%.24s_%c%s", name, row->axes[axis], stays ? "_gradients_apart" : "");
    return true;
}

/* Of outputs, as where a kernel reads one cotangent for all. */
static bool give_one_index(const at *a)
{
    const assay_tensor_row *row = output_row(a);
    if (strncmp(row->name, "outputs/", 8) != 0) return false;
    const bool last = a->which == row->shape.rank - 1 && a->which > 0;
    if (a->which >= row->shape.rank || last || row->shape.dims[a->which] < 2) return false;
    a->to->wrong.axis = row->axes[a->which];
    snprintf(a->more, ASSAY_STEP_NAME, "_%c", row->axes[a->which]);
    return spoil(a, give_first, 0);
}

static bool leave_out_sum(const at *a)
{
    const graph_general *with = &a->step->with.general;
    const bool sums = a->step->kind == &graph_kind_reduce && with->function != GRAPH_REDUCTION_max;
    if (!sums || a->which >= (int)strlen(with->over) || !misread(a, 0, keep_first)) return false;
    a->to->wrong.axis = with->over[a->which];
    snprintf(a->more, ASSAY_STEP_NAME, "_%c", with->over[a->which]);
    const assay_tensor_row *row = &tensor_of(a, a->step->in[0])->row;
    return row->shape.dims[strchr(row->axes, a->to->wrong.axis) - row->axes] > 1;
}

/* The last two axes of what is given and of operands of products, or the two before the last. */
static bool read_transposed(const at *a)
{
    const graph_kind *kind = a->step->kind;
    const int input = a->which / 2, behind = a->which % 2;
    if (input >= GRAPH_IN || a->step->in[input] == 0) return false;
    const graph_tensor *x = tensor_of(a, a->step->in[input]);
    const int last = x->row.shape.rank - 1 - behind;
    char name[ASSAY_STEP_NAME];
    if (x->step >= 0 && kind != &graph_kind_product && kind != &graph_kind_linear && kind != &graph_kind_attention)
        return false;
    if (last < 1 || x->row.shape.dims[last] < 2 || x->row.shape.dims[last - 1] < 2) return false;
    assay_step_name(a->g, a->step->in[input], name);
    snprintf(a->more, ASSAY_STEP_NAME, "_%.30s_%.2s", name, x->row.axes + last - 1);
    a->to->wrong.by = behind;
    return misread(a, input, transpose);
}

/* Of gate and up beside each other, and of halves that are turned: all who cut it do so. */
static bool read_interleaved(const at *a)
{
    const int64_t columns = output_row(a)->shape.rank == 0 ? 0 : graph_last_axis(a->g, a->step->out[0]);
    int halves = 0;
    for (int i = 0; i < a->g->step_count; i++) {
        const graph_step *reader = &a->g->steps[i];
        const bool cuts = reader->kind == &graph_kind_slice;
        halves += cuts && reader->in[0] == a->step->out[0] && columns == 2 * graph_last_axis(a->g, reader->out[0]);
    }
    return halves == 2 && columns > 2 && spoil(a, interleave, 0);
}

static int64_t behind_of(int64_t count, int64_t tile)
{
    return (tile - count % tile) % tile;
}

/* Where number `behind` past the end of line `o` of [outer,count,inner] is, whose inner index is `i`; -1: nothing is there. */
static int64_t behind_end(int64_t outer, int64_t count, int64_t inner, int64_t o, int64_t behind, int64_t i)
{
    const int64_t line = o + 1 + behind / count;
    return line < outer ? (line * count + behind % count) * inner + i : -1;
}

/* In the last tile, which begins at `first`, place p < count + rest has what is behind the end, or what the tile before has
 * there: it is added to the place in the tile before, by which a product multiplies it, and of a sum to any. Lines read those
 * behind them: forward the first go first, and back the last. */
static void add_behind(const graph_step *step, const assay_tensor_row *row, double *values, bool gradient, bool twice)
{
    int64_t count, inner;
    const int64_t outer = about_axis(step, row, &count, &inner), tile = (int64_t)step->wrong.by;
    const int64_t rest = behind_of(count, tile);
    for (int64_t line = 0; line < outer; line++)
        for (int64_t k = 0; k < rest * inner; k++) {
            const int64_t o = gradient ? outer - 1 - line : line, p = count + k / inner - tile;
            const int64_t to = (o * count + (p < 0 ? k / inner % count : p)) * inner + k % inner;
            const int64_t from = twice ? to : behind_end(outer, count, inner, o, k / inner, k % inner);
            if (from >= 0) values[gradient ? from : to] += values[gradient ? to : from];
        }
}

static void read_on(const graph *g, const graph_step *step, double *values, bool gradient)
{
    add_behind(step, misread_row(g, step), values, gradient, false);
}

static void read_twice(const graph *g, const graph_step *step, double *values, bool gradient)
{
    add_behind(step, misread_row(g, step), values, gradient, true);
}

static const int chunks[] = {8, 16, 32, 64, 128};
enum { CHUNKS = sizeof chunks / sizeof *chunks };

/* Of a sum, or of either operand of a product, whose last tile is not whole. */
static bool read_behind(const at *a, graph_spoiler *how)
{
    const graph_kind *kind = a->step->kind;
    const int input = a->which / (CHUNKS - 1), tile = chunks[1 + a->which % (CHUNKS - 1)]; /* of 16 and more */
    const bool sums = kind == &graph_kind_reduce && a->step->with.general.function != GRAPH_REDUCTION_max;
    const bool product = kind == &graph_kind_linear || kind == &graph_kind_product;
    const char axis = summed_axis(a);
    char name[ASSAY_STEP_NAME];
    if (input > (product ? 1 : 0) || (!sums && !product) || axis == '\0' || (input == 1 && how == read_twice))
        return false;
    const assay_tensor_row *x = &tensor_of(a, a->step->in[input])->row;
    if (strchr(x->axes, axis) == NULL || !misread(a, input, how)) return false;
    int64_t count, inner;
    a->to->wrong.axis = axis;
    const int64_t outer = about_axis(a->to, x, &count, &inner);
    a->to->wrong.by = tile;
    assay_step_name(a->g, a->step->in[input], name);
    snprintf(a->more, ASSAY_STEP_NAME, "_%d_of_%.24s", tile, name);
    const bool again =
        sums && how == read_on && tile > chunks[1] && behind_of(count, tile) == behind_of(count, tile / 2);
    return count % tile != 0 && !again && (count > tile || (sums && how == read_on)) &&
           (outer > 1 || how == read_twice);
}

/* --- states --- */

static void hand_over_nothing(int64_t rows, int64_t columns, int64_t all, double *states, bool gradient)
{
    (void)rows, (void)columns, (void)gradient;
    memset(states, 0, (size_t)all * sizeof *states);
}

static void hand_over_transposed(int64_t rows, int64_t columns, int64_t all, double *states, bool gradient)
{
    lie_otherwise(rows, columns, 1, all, states, gradient);
}

static void hand_over_rounded(int64_t rows, int64_t columns, int64_t all, double *states, bool gradient)
{
    (void)rows, (void)columns;
    if (!gradient) assay_dtype_round_many(ASSAY_BFLOAT16, all, states, states);
}

int assay_step_change_token(int change)
{
    const int kind = change % ASSAY_STEP_CHANGE_COUNT, which = change / ASSAY_STEP_CHANGE_COUNT;
    if (kind < ASSAY_STEP_CHANGE_STATE_LOST || kind > ASSAY_STEP_CHANGE_STATE_COARSER || which < CHUNKS) return 0;
    return which - CHUNKS + 1;
}

/* Of a convolution the last inputs, whose order is that of the taps. */
static bool hand_over(const at *a, graph_hand_over *how)
{
    const bool scan = a->step->kind == &graph_kind_linear_scan, delta = a->step->kind == &graph_kind_gated_delta_rule,
               convolution = a->step->kind == &graph_kind_causal_convolution;
    const bool once = a->which >= CHUNKS; /* behind so many tokens */
    const int chunk = once ? a->which - CHUNKS + 1 : chunks[a->which];
    if (!scan && !delta && !convolution) return false;
    const assay_tensor_row *x = &tensor_of(a, a->step->in[0])->row;
    const char axis = scan ? a->step->with.general.over[0] : x->axes[x->shape.rank - (delta ? 3 : 2)];
    int64_t rows = 1, columns = 1;
    for (int i = 0; i < x->shape.rank; i++) {
        if (x->axes[i] == axis) continue;
        rows = columns;
        columns = x->shape.dims[i];
    }
    if (delta) rows = graph_last_axis(a->g, a->step->in[2]);
    if (convolution) rows = graph_last_axis(a->g, a->step->in[1]) - 1;
    if ((how == hand_over_rounded && (convolution || once)) || (how == hand_over_reversed && !convolution))
        return false;
    if (how == hand_over_transposed && columns < 2) return false;
    const bool moves = how == hand_over_transposed || how == hand_over_reversed;
    a->to->wrong.hand_over = how;
    a->to->wrong.chunk = chunk;
    a->to->wrong.once = once;
    snprintf(a->more, ASSAY_STEP_NAME, "%s_%d", once ? "_once" : "", chunk);
    return x->shape.dims[strchr(x->axes, axis) - x->axes] > chunk && rows >= (moves ? 2 : 1) &&
           (!convolution || rows <= chunk);
}

/* --- choices --- */

/* A step that reads a choice makes its own, by what its numbers were before the step that made them: of a mask or a bias. */
static bool choose_again(const at *a)
{
    const int ids = a->step->in[1];
    if (a->which >= GRAPH_IN || ids == 0 || !tensor_of(a, ids)->chosen) return false;
    const graph_step *choice = &a->g->steps[tensor_of(a, ids)->step];
    const graph_tensor *scores = tensor_of(a, choice->in[0]);
    if (choice->kind != &graph_kind_top_k || scores->step < 0) return false;
    const int before = a->g->steps[scores->step].in[a->which];
    const graph_tensor *x = tensor_of(a, before);
    char name[ASSAY_STEP_NAME];
    if (before == 0 || !are_alike(a, before, choice->in[0]) || x->role == GRAPH_INDICES || x->chosen || x->constant)
        return false;
    a->to->in[GRAPH_IN - 1] = before;
    a->to->wrong = (graph_wrong){.chooses = true, .input = 1, .detached = 1u << (GRAPH_IN - 1)};
    assay_step_name(a->g, before, name);
    snprintf(a->more, ASSAY_STEP_NAME, "_%.40s", name);
    return true;
}

/* Numbers that are picked of a softmax over all. */
static assay_status pick_softmax(const graph_call *c, const double *dy, double *out)
{
    const int64_t width = graph_last_axis(c->graph, c->step->in[0]), each = graph_last_axis(c->graph, c->step->out[0]);
    for (int64_t row = 0; row < graph_in_size(c->graph, c->step, 0) / width; row++) {
        const double *x = c->x[0] + row * width;
        const int32_t *index = c->indices[1] + row * each;
        double largest = -INFINITY, sum = 0, flow = 0;
        for (int64_t i = 0; i < width; i++) largest = fmax(largest, x[i]);
        for (int64_t i = 0; i < width; i++) sum += exp(x[i] - largest);
        for (int64_t k = 0; k < each && dy != NULL; k++) flow += dy[row * each + k] * exp(x[index[k]] - largest) / sum;
        for (int64_t i = 0; i < width && dy != NULL; i++) out[row * width + i] = -flow * exp(x[i] - largest) / sum;
        for (int64_t k = 0; k < each; k++) {
            const double y = exp(x[index[k]] - largest) / sum;
            if (dy == NULL)
                out[row * each + k] = y;
            else
                out[row * width + index[k]] += dy[row * each + k] * y;
        }
    }
    return ASSAY_OK;
}

static assay_status softmax_of_all(assay_context *ctx, const graph_call *c)
{
    (void)ctx;
    return pick_softmax(c, NULL, c->y[0]);
}

static assay_status softmax_of_all_back(assay_context *ctx, const graph_call *c)
{
    (void)ctx;
    return c->dx[0] == NULL ? ASSAY_OK : pick_softmax(c, c->dy[0], c->dx[0]);
}

static const graph_kind kind_softmax_of_all = {
    .name = "softmax of all", .reads = 3, .forward = softmax_of_all, .backward = softmax_of_all_back};

/* Of what is picked along the last axis, by indices that a step chose. */
static bool take_all(const at *a)
{
    const graph_tensor *x = tensor_of(a, a->step->in[0]);
    if (a->step->kind != &graph_kind_softmax || x->step < 0) return false;
    const graph_step *picks = &a->g->steps[x->step];
    const char *axes = x->row.axes;
    if (picks->kind != &graph_kind_pick || !tensor_of(a, picks->in[1])->chosen ||
        a->step->with.general.over[0] != axes[strlen(axes) - 1])
        return false;
    *a->to = (graph_step){.kind = &kind_softmax_of_all, .in = {picks->in[0], picks->in[1]}};
    memcpy(a->to->out, a->step->out, sizeof a->to->out);
    return true;
}

static bool leave_undivided(const at *a)
{
    if (a->step->kind != &graph_kind_softmax || a->which > 1) return false;
    a->to->with.general.undivided = 1 + a->which;
    snprintf(a->more, ASSAY_STEP_NAME, "%s", a->which == 0 ? "" : "_maximum_detached");
    return true;
}

static bool detach(const at *a, int i)
{
    const graph_tensor *x = tensor_of(a, a->step->in[i]);
    const bool differentiable = is_number(a, i) && !x->constant && !x->read_in_slices && x->row.shape.rank > 0;
    a->to->wrong.detached = 1u << i;
    return differentiable && a->step->kind->backward != NULL;
}

#define ONE(makes) (a->which == 0 && (makes))

static bool change_step(const at *a, assay_step_change_kind change)
{
    const graph_kind *kind = a->step->kind;
    const bool norm = kind == &graph_kind_rms_norm || kind == &graph_kind_layer_norm,
               attends = kind == &graph_kind_attention;
    const graph_map f = kind == &graph_kind_map ? (graph_map)a->step->with.general.function : GRAPH_MAP_COUNT;
    graph_parameters *with = &a->to->with;
    double *theta = &with->rope.config.rope_max_timescale;
    switch (change) {
#define ROW(code, name, text, makes)                                                                                   \
    case ASSAY_STEP_CHANGE_##code:                                                                                     \
        return makes;
#include "harness/mutants/rows/steps.inc"
    default:
        return false;
    }
}

/* A step of a recipe, or one that comes in parts, is more than its tensors say; codes that are spoilt are none of the rules'. */
bool assay_change_step(const graph *g, int number, int change, graph_step *changed, char *name)
{
    const graph_step *step = &g->steps[number];
    const bool product = step->kind == &graph_kind_linear || step->kind == &graph_kind_expand;
    char more[ASSAY_STEP_NAME] = "";
    const assay_step_change_kind kind = (assay_step_change_kind)(change % ASSAY_STEP_CHANGE_COUNT);
    const at a = {change / ASSAY_STEP_CHANGE_COUNT, g, step, changed, more};
    *changed = *step;
    if (product && step->with.product.recipe.recipe != NULL) return false;
    const graph_tensor *made = &g->tensors[step->out[0]];
    const bool codes = made->codes && kind != ASSAY_STEP_CHANGE_OTHER_SCALE_ROUNDING;
    if (codes || made->gradient.name != NULL || !change_step(&a, kind)) return false;
    if (name != NULL) snprintf(name, ASSAY_STEP_NAME, "%.28s%.34s", words[kind].name, more);
    return true;
}
