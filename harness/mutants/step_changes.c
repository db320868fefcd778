/* What there is to change of steps; step_changes.h is the contract. */
#include "harness/mutants/step_changes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/elementary.h"
#include "oracle/base/memory.h"
#include "oracle/graph/graph_kind.h"
#include "oracle/graph/graph_map.h"

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

typedef struct step_place {
    int which; /* of several changes of one kind */
    const graph *g;
    const graph_step *step; /* as it is */
    graph_step *to;
    char *more; /* behind the change's name: what it is instead */
} step_place;

static const graph_tensor *tensor_of(const step_place *a, int tensor)
{
    return &a->g->tensors[tensor];
}

static const assay_tensor_row *output_row(const step_place *a)
{
    return &tensor_of(a, a->step->out[0])->row;
}

static bool is_number(const step_place *a, int i)
{
    const graph_tensor *x = tensor_of(a, a->step->in[i]);
    return a->step->in[i] != 0 && x->role != GRAPH_INDICES && !x->integers;
}

static bool has_two_operands(const step_place *a)
{
    const graph_kind *kind = a->step->kind;
    return (kind == &graph_kind_binary && !graph_is_factor(a->step)) || kind == &graph_kind_where;
}

/* Which tensor the change is about, behind its name. */
static void say(const step_place *a, int tensor)
{
    char name[ASSAY_STEP_NAME];
    assay_step_name(a->g, tensor, name);
    snprintf(a->more, ASSAY_STEP_NAME, "_%.40s", name);
}

/* Laid out alike, and by the same letters where these say what becomes of an axis. */
static bool are_alike(const step_place *a, int x, int y)
{
    const assay_tensor_row *one = &tensor_of(a, x)->row, *other = &tensor_of(a, y)->row;
    return strcmp(one->axes, other->axes) == 0 && assay_shape_equal(&one->shape, &other->shape) &&
           one->inputs == other->inputs && one->below == other->below;
}

/* The step gives its input as it is. */
static bool leave(const step_place *a, int input)
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
static bool exchange_gate(const step_place *a)
{
    assay_activation *gate = &a->to->with.mlp.activation[0];
    const bool silu = *gate == ASSAY_SILU;
    if (a->step->with.mlp.glu != ASSAY_GLU_PLAIN || (!silu && *gate != ASSAY_GELU)) return false;
    *gate = silu ? ASSAY_GELU : ASSAY_SILU;
    snprintf(a->more, ASSAY_STEP_NAME, "_%s", assay_activation_name(*gate));
    return true;
}

static bool exchange_function(const step_place *a)
{
    if (a->step->kind == &graph_kind_glu) return exchange_gate(a);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const int own = a->step->with.general.function, *two = others[i].functions;
        if (others[i].kind != a->step->kind || (own != two[0] && own != two[1])) continue;
        a->to->with.general.function = two[own == two[0]];
        snprintf(a->more, ASSAY_STEP_NAME, "_%s", graph_step_name(a->to));
        return true;
    }
    return false;
}

static bool change_axis(const step_place *a)
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
static bool change_first(const step_place *a)
{
    const assay_tensor_row *x = &tensor_of(a, a->step->in[0])->row;
    if (a->step->kind != &graph_kind_slice) return false;
    const size_t axis = strcspn(x->axes, a->step->with.general.over);
    const int64_t whole = x->shape.dims[axis],
                  own = assay_tensor_row_count(output_row(a)) * whole / assay_tensor_row_count(x);
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

static bool change_window(const step_place *a, int64_t window)
{
    a->to->with.attention.window = window;
    return a->step->with.attention.window != 0;
}

/* Segments, or the biases of a product. */
static bool leave_behind(const step_place *a, int input)
{
    a->to->in[input] = a->to->in[3] = 0;
    return a->step->in[input] != 0;
}

static bool turn_pairs(const step_place *a)
{
    a->to->with.rope.config.interleave = !a->to->with.rope.config.interleave;
    a->to->with.rope.config.pairwise = a->to->with.rope.config.interleave;
    return true;
}

/* Of scales that are powers of two up or down; of float32 ones that, or not. */
static bool change_scale_rounding(const step_place *a)
{
    assay_quantize_config *to = &a->to->with.quantise;
    if (a->step->kind != &graph_kind_quantise_hidden || to->format->scale == ASSAY_FLOAT8_E4M3FN) return false;
    const assay_scale_rounding other = to->format->scale == ASSAY_FLOAT32 ? ASSAY_SCALE_NEAREST : ASSAY_SCALE_DOWN;
    to->rounding = to->rounding == ASSAY_SCALE_UP ? other : ASSAY_SCALE_UP;
    to->subnormal_scale |= to->format->scale == ASSAY_FLOAT32;
    return true;
}

/* --- numbers along axes --- */

static const int step_chunks[] = {8, 16, 32, 64, 128};
enum { TAIL = 8, STEP_CHUNKS = sizeof step_chunks / sizeof *step_chunks };

static int64_t step_tail_of(int64_t count)
{
    return count <= TAIL ? count / 2 : TAIL;
}

/* Of [outer,count,inner] those behind the first `kept` along the axis become `by`. */
static void step_set_behind(double *values, int64_t outer, int64_t count, int64_t inner, int64_t kept, double by)
{
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = kept * inner; i < count * inner; i++) values[o * count * inner + i] = by;
}

/* A row's shape as [outer,count,inner] about an axis. */
static int64_t step_about(const assay_tensor_row *row, char letter, int64_t *count, int64_t *inner)
{
    const int64_t axis = strchr(row->axes, letter) - row->axes;
    int64_t outer = 1;
    for (int64_t i = 0; i < axis; i++) outer *= row->shape.dims[i];
    *count = row->shape.dims[axis];
    *inner = assay_shape_count(&row->shape) / outer / *count;
    return outer;
}

/* Index 0 along the axis for all of it, whose gradients it gets then. */
static void step_copy_first(const graph_step *step, const assay_tensor_row *row, double *values, bool gradient)
{
    int64_t count, inner;
    const int64_t outer = step_about(row, step->hooks.with.axis, &count, &inner);
    for (int64_t o = 0; o < outer; o++) {
        double *first = values + o * count * inner;
        for (int64_t i = inner; i < count * inner; i++) {
            if (gradient) first[i % inner] += first[i];
            first[i] = gradient ? 0 : first[i % inner];
        }
    }
}

/* What is [count,inner,size] is read as if it lay as [inner,count,size]: two axes the other way round, or the halves of an axis as
 * pairs. Back, the gradient lies as ever. */
static void step_relay(int64_t count, int64_t inner, int64_t size, int64_t all, double *values, bool back)
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

static void step_reverse_states(int64_t rows, int64_t columns, int64_t all, double *states, bool gradient)
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

/* --- what it reads --- */

static const assay_tensor_row *misread_row(const graph *g, const graph_step *step)
{
    const bool made = step->hooks.result != NULL; /* what the step makes is changed, not what it reads */
    return &g->tensors[made ? step->out[0] : step->in[step->hooks.with.input]].row;
}

/* by: what reads one index for all writes gradients of all, each in its own place. */
static void read_first(const graph *g, const graph_step *step, double *values, bool gradient)
{
    if (!gradient || step->hooks.with.by == 0) step_copy_first(step, misread_row(g, step), values, gradient);
}

/* What is behind the first `count` along the axis. */
static void lose_behind(const graph *g, const graph_step *step, double *values, bool gradient)
{
    int64_t count, inner;
    const int64_t outer = step_about(misread_row(g, step), step->hooks.with.axis, &count, &inner);
    step_set_behind(values, outer, count, inner, step->hooks.with.count, gradient ? 0 : step->hooks.with.by);
}

static void transpose(const graph *g, const graph_step *step, double *values, bool gradient)
{
    const assay_shape *shape = &misread_row(g, step)->shape;
    const int behind = (int)step->hooks.with.by, last = shape->rank - 1 - behind; /* axes behind the two */
    const int64_t size = behind == 0 ? 1 : shape->dims[shape->rank - 1];
    step_relay(shape->dims[last - 1], shape->dims[last], size, assay_shape_count(shape), values, gradient);
}

/* What is compared with it is less where it was equal, or so many places on. */
static void step_more(const graph *g, const graph_step *step, double *values, bool gradient)
{
    for (int64_t i = 0; i < assay_shape_count(&misread_row(g, step)->shape) && !gradient; i++)
        values[i] += step->hooks.with.by;
}

static void step_fill(const graph *g, const graph_step *step, double *values, bool gradient)
{
    for (int64_t i = 0; i < assay_shape_count(&misread_row(g, step)->shape); i++)
        values[i] = gradient ? 0 : step->hooks.with.by;
}

static void step_raise(const graph *g, const graph_step *step, double *values, bool gradient)
{
    for (int64_t i = 0; i < assay_shape_count(&misread_row(g, step)->shape) && !gradient; i++)
        values[i] = fmax(values[i], step->hooks.with.by);
}

/* By which are divided are as many as there are blocks. */
static void step_blocks(const graph *g, const graph_step *step, double *values, bool gradient)
{
    if (!gradient) values[0] = fmax(1, floor((double)graph_in_size(g, step, 0) / values[0]));
}

static void step_reverse(const graph *g, const graph_step *step, double *values, bool gradient)
{
    const assay_shape *shape = &misread_row(g, step)->shape;
    step_reverse_states(shape->dims[shape->rank - 1], 1, assay_shape_count(shape), values, gradient);
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
static void add_behind(const graph *g, const graph_step *step, double *values, bool gradient)
{
    int64_t count, inner;
    const int64_t outer = step_about(misread_row(g, step), step->hooks.with.axis, &count, &inner),
                  tile = step->hooks.with.count;
    const bool twice = step->hooks.with.by != 0;
    const int64_t rest = behind_of(count, tile);
    for (int64_t line = 0; line < outer; line++)
        for (int64_t k = 0; k < rest * inner; k++) {
            const int64_t o = gradient ? outer - 1 - line : line, p = count + k / inner - tile;
            const int64_t to = (o * count + (p < 0 ? k / inner % count : p)) * inner + k % inner;
            const int64_t from = twice ? to : behind_end(outer, count, inner, o, k / inner, k % inner);
            if (from >= 0) values[gradient ? from : to] += values[gradient ? to : from];
        }
}

/* Reads a copy that is changed, or another tensor, which the case may lack. */
static assay_status read_before(assay_context *ctx, graph_call *c, bool backward, double **room)
{
    const graph_hooks *hooks = &c->step->hooks;
    const int input = hooks->with.input, other = hooks->with.other - 1;
    const int64_t size = graph_in_size(c->graph, c->step, input);
    if (!backward && other >= 0 && c->x[other] == NULL && c->indices[other] == NULL)
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s is not there", c->graph->tensors[c->step->in[other]].row.name);
    const int32_t *whole = c->indices[input];
    if (hooks->with.values == NULL || (hooks->with.back_alone && !backward)) return ASSAY_OK;
    if (c->x[input] == NULL && whole == NULL) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, "what a mutant reads", 2 * size, room));
    int32_t *indices = (int32_t *)(*room + size);
    for (int64_t i = 0; i < size; i++) (*room)[i] = whole != NULL ? whole[i] : c->x[input][i];
    hooks->with.values(c->graph, c->step, *room, false);
    for (int64_t i = 0; i < size && whole != NULL; i++) indices[i] = (int32_t)(*room)[i];
    if (whole != NULL) c->indices[input] = indices;
    if (whole == NULL) c->x[input] = *room;
    return ASSAY_OK;
}

/* What flows back to what is read so, and to what is detached. */
static void flow_back(const graph_call *c)
{
    const graph_hooks *hooks = &c->step->hooks;
    double *dx = c->dx[hooks->with.input];
    if (hooks->with.values != NULL && dx != NULL && !hooks->with.back_alone)
        hooks->with.values(c->graph, c->step, dx, true);
    for (int i = 0; i < GRAPH_IN; i++)
        if (c->dx[i] != NULL && (hooks->with.detached >> i & 1) != 0)
            memset(c->dx[i], 0, (size_t)graph_in_size(c->graph, c->step, i) * sizeof(double));
}

static void read_changed(graph_step *step, graph_values *how)
{
    step->hooks.before = read_before;
    step->hooks.behind = flow_back;
    step->hooks.with.values = how;
}

static bool step_misread(const step_place *a, int input, graph_values *how)
{
    read_changed(a->to, how);
    a->to->hooks.with.input = input;
    return is_number(a, input) && !tensor_of(a, a->step->in[input])->read_in_slices;
}

/* What is given as whole numbers, of which one below 0 is none: an adapter, an expert, a label. */
static bool step_read_none(const step_place *a)
{
    int i = 0;
    while (i < GRAPH_IN && (a->step->in[i] == 0 || tensor_of(a, a->step->in[i])->role != GRAPH_INDICES)) i++;
    if (i == GRAPH_IN || a->step->kind == &graph_kind_angles) return false;
    step_misread(a, i, step_raise);
    say(a, a->step->in[i]);
    return true;
}

/* By input what it is where it changes nothing; ' ': it is not left out. */
static bool step_do_without(const step_place *a, const char *neutral)
{
    if (a->which >= (int)strlen(neutral) || neutral[a->which] == ' ' || a->step->in[a->which] == 0) return false;
    say(a, a->step->in[a->which]);
    a->to->hooks.with.by = neutral[a->which] - '0';
    return step_misread(a, a->which, step_fill);
}

/* A norm that is scaled by a sum with 1 takes the other operand alone (by -1), another one takes 1 more (by 1). */
static bool step_weigh_else(const step_place *a, double by)
{
    const int maker = tensor_of(a, a->step->in[1])->step;
    const graph_step *made = maker < 0 ? a->step : &a->g->steps[maker];
    const graph_tensor *one = tensor_of(a, made->in[0]), *other = tensor_of(a, made->in[1]);
    const bool sum = made->kind == &graph_kind_binary && made->with.general.function == GRAPH_BINARY_add &&
                     (one->role == GRAPH_NUMBER ? one->number : other->number) == 1;
    a->to->hooks.with.by = by;
    return sum == (by < 0) && step_misread(a, 1, step_more);
}

/* Over which a step sums, or takes a softmax or a maximum; 0: over none. */
static char summed_axis(const step_place *a)
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

/* Of a sum, which counts what is not read as 0, or of a softmax or a maximum, which count it as minus infinity. */
static bool step_cut_tail(const step_place *a, bool half)
{
    const graph_kind *kind = a->step->kind;
    const assay_tensor_row *x = &tensor_of(a, a->step->in[0])->row;
    const bool largest = kind == &graph_kind_reduce && a->step->with.general.function == GRAPH_REDUCTION_max;
    const char axis = summed_axis(a);
    if (axis == '\0' || tensor_of(a, a->step->in[0])->read_in_slices) return false;
    const int64_t count = x->shape.dims[strchr(x->axes, axis) - x->axes];
    int64_t kept = half ? 1 : count - step_tail_of(count);
    while (half && 2 * kept < count) kept *= 2;
    read_changed(a->to, lose_behind);
    a->to->hooks.with.count = kept;
    a->to->hooks.with.axis = axis;
    a->to->hooks.with.by = largest || kind == &graph_kind_softmax || kind == &graph_kind_logsumexp ? -INFINITY : 0;
    return count > 1;
}

/* An axis of an input, of a step that has several, whose gradient goes to index 0 or stays where it is: an axis that counts something,
 * which the last one of a result seldom does. */
static bool step_read_one_index(const step_place *a, bool back_alone)
{
    const int input = a->which / 2 / ASSAY_MAX_RANK, axis = a->which / 2 % ASSAY_MAX_RANK, x = a->step->in[input];
    const bool stays = a->which % 2 == 1;
    const assay_tensor_row *row = &tensor_of(a, x)->row;
    char name[ASSAY_STEP_NAME];
    if (x == 0 || a->step->in[1] == 0 || !step_misread(a, input, read_first) || axis >= row->shape.rank) return false;
    const char *made = output_row(a)->axes, *found = strchr(made, row->axes[axis]);
    if (found == NULL || (found[1] == '\0' && found != made)) return false;
    if (row->shape.dims[axis] < 2 || (back_alone && (stays || (graph_reads(a->step) >> input & 1) == 0))) return false;
    a->to->hooks.with.by = stays;
    a->to->hooks.with.axis = row->axes[axis];
    a->to->hooks.with.back_alone = back_alone;
    assay_step_name(a->g, x, name);
    snprintf(a->more, ASSAY_STEP_NAME, "_%.24s_%c%s", name, row->axes[axis], stays ? "_gradients_apart" : "");
    return true;
}

static bool step_leave_out_sum(const step_place *a)
{
    const graph_general *with = &a->step->with.general;
    const bool sums = a->step->kind == &graph_kind_reduce && with->function != GRAPH_REDUCTION_max;
    if (!sums || a->which >= (int)strlen(with->over) || !step_misread(a, 0, lose_behind)) return false;
    a->to->hooks.with.count = 1;
    a->to->hooks.with.axis = with->over[a->which];
    snprintf(a->more, ASSAY_STEP_NAME, "_%c", with->over[a->which]);
    const assay_tensor_row *row = &tensor_of(a, a->step->in[0])->row;
    return row->shape.dims[strchr(row->axes, a->to->hooks.with.axis) - row->axes] > 1;
}

/* The last two axes of what is given and of operands of products, or the two before the last. */
static bool step_read_transposed(const step_place *a)
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
    a->to->hooks.with.by = behind;
    return step_misread(a, input, transpose);
}

/* Of a sum, or of either operand of a product, whose last tile is not whole. */
static bool step_read_behind(const step_place *a, bool twice)
{
    const graph_kind *kind = a->step->kind;
    const int input = a->which / (STEP_CHUNKS - 1), tile = step_chunks[1 + a->which % (STEP_CHUNKS - 1)];
    const bool sums = kind == &graph_kind_reduce && a->step->with.general.function != GRAPH_REDUCTION_max;
    const bool product = kind == &graph_kind_linear || kind == &graph_kind_product;
    const char axis = summed_axis(a);
    char name[ASSAY_STEP_NAME];
    if (input > (product ? 1 : 0) || (!sums && !product) || axis == '\0' || (input == 1 && twice)) return false;
    const assay_tensor_row *x = &tensor_of(a, a->step->in[input])->row;
    if (strchr(x->axes, axis) == NULL || !step_misread(a, input, add_behind)) return false;
    int64_t count, inner;
    const int64_t outer = step_about(x, axis, &count, &inner);
    a->to->hooks.with.axis = axis;
    a->to->hooks.with.count = tile;
    a->to->hooks.with.by = twice;
    assay_step_name(a->g, a->step->in[input], name);
    snprintf(a->more, ASSAY_STEP_NAME, "_%d_of_%.24s", tile, name);
    const bool again = sums && !twice && tile > step_chunks[1] && behind_of(count, tile) == behind_of(count, tile / 2);
    return count % tile != 0 && !again && (count > tile || (sums && !twice)) && (outer > 1 || twice);
}

static bool are_indices(const step_place *a, int tensor)
{
    return tensor_of(a, tensor)->integers || tensor_of(a, tensor)->role == GRAPH_INDICES;
}

static bool step_exchange(const step_place *a, int i)
{
    const int x = a->step->in[i], y = a->step->in[i + 1];
    if (x != 0 && y != 0 && are_indices(a, x) != are_indices(a, y)) return false;
    if (x == 0 || y == 0 || tensor_of(a, x)->read_in_slices || tensor_of(a, y)->read_in_slices) return false;
    const bool joined = a->step->kind == &graph_kind_concatenate &&
                        assay_shape_equal(&tensor_of(a, x)->row.shape, &tensor_of(a, y)->row.shape);
    if (!has_two_operands(a) && !joined && !are_alike(a, x, y)) return false;
    a->to->in[i] = y;
    a->to->in[i + 1] = x;
    return true;
}

/* One that looks the same and is there already: of what is given another one that is, the nearest. */
static bool step_read_else(const step_place *a, int i)
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
    if (found == 0) return false;
    a->to->in[i] = found;
    read_changed(a->to, NULL);
    a->to->hooks.with.other = i + 1;
    say(a, found);
    return true;
}

/* *room has the indices, behind one row of them. */
static assay_status choose_before(assay_context *ctx, graph_call *c, bool backward, double **room)
{
    const int input = c->step->hooks.with.input;
    const int64_t size = graph_in_size(c->graph, c->step, input), each = graph_last_axis(c->graph, c->step->in[input]),
                  width = graph_last_axis(c->graph, c->step->in[GRAPH_IN - 1]);
    MUST(assay_alloc_f64(ctx, "what a mutant chooses", each + size, room));
    int32_t *indices = (int32_t *)(*room + each);
    (void)backward;
    for (int64_t i = 0; i < size; i++) {
        if (i % each == 0) graph_choose(c->x[GRAPH_IN - 1] + i / each * width, width, *room, each, -INFINITY);
        indices[i] = (int32_t)(*room)[i % each];
    }
    c->indices[input] = indices;
    return ASSAY_OK;
}

/* A step that reads a choice makes its own, by what its numbers were before the step that made them: of a mask or a bias. */
static bool step_choose_again(const step_place *a)
{
    const int ids = a->step->in[1];
    if (a->which >= GRAPH_IN || ids == 0 || !tensor_of(a, ids)->chosen) return false;
    const graph_step *choice = &a->g->steps[tensor_of(a, ids)->step];
    const graph_tensor *scores = tensor_of(a, choice->in[0]);
    if (choice->kind != &graph_kind_top_k || scores->step < 0) return false;
    const int before = a->g->steps[scores->step].in[a->which];
    const graph_tensor *x = tensor_of(a, before);
    if (before == 0 || !are_alike(a, before, choice->in[0]) || x->role == GRAPH_INDICES || x->chosen || x->constant)
        return false;
    a->to->in[GRAPH_IN - 1] = before;
    a->to->hooks = (graph_hooks){
        .before = choose_before, .behind = flow_back, .with = {.input = 1, .detached = 1u << (GRAPH_IN - 1)}};
    say(a, before);
    return true;
}

static bool step_detach(const step_place *a, int i)
{
    const graph_tensor *x = tensor_of(a, a->step->in[i]);
    const bool differentiable = is_number(a, i) && !x->constant && !x->read_in_slices && x->row.shape.rank > 0;
    read_changed(a->to, NULL);
    a->to->hooks.with.detached = 1u << i;
    return differentiable && a->step->kind->backward != NULL;
}

/* --- results --- */

static void step_scale(const graph *g, const graph_step *step, double *values, bool gradient)
{
    (void)gradient;
    for (int64_t i = 0; i < graph_size(g, step->out[0]); i++) values[i] *= step->hooks.with.by;
}

static void step_coarsen(const graph *g, const graph_step *step, double *values, bool gradient)
{
    if (!gradient) assay_dtype_round_many(step->hooks.with.type, graph_size(g, step->out[0]), values, values);
}

/* The last row is that of the row before, to which its gradient goes then. */
static void step_repeat_row(const graph *g, const graph_step *step, double *values, bool gradient)
{
    const int64_t size = graph_size(g, step->out[0]), row = size / g->tensors[step->out[0]].row.shape.dims[0];
    for (int64_t i = size - row; i < size; i++) {
        if (gradient) values[i - row] += values[i];
        values[i] = gradient ? 0 : values[i - row];
    }
}

static void step_leave_order(const graph *g, const graph_step *step, double *values, bool gradient)
{
    (void)gradient;
    for (int64_t i = 0; i < graph_out_size(g, step, 0); i++) values[i] = (double)i;
}

/* The last bin that has any. */
static void step_lose_one(const graph *g, const graph_step *step, double *values, bool gradient)
{
    int64_t bin = graph_out_size(g, step, 0) - 1;
    (void)gradient;
    while (bin > 0 && values[bin] == 0) bin--;
    if (values[bin] > 0) values[bin]--;
}

/* Pairs of the last axis as its halves. */
static void interleave(const graph *g, const graph_step *step, double *values, bool gradient)
{
    step_relay(graph_last_axis(g, step->out[0]) / 2, 2, 1, graph_size(g, step->out[0]), values, !gradient);
}

static void give_first(const graph *g, const graph_step *step, double *values, bool gradient)
{
    if (gradient) step_copy_first(step, &g->tensors[step->out[0]].row, values, false);
}

static void change_result(const graph_call *c, int i, bool gradient)
{
    if (i == 0) c->step->hooks.with.values(c->graph, c->step, gradient ? c->dy[0] : c->y[0], gradient);
}

static bool step_spoil(const step_place *a, graph_values *how, double by)
{
    a->to->hooks.result = change_result;
    a->to->hooks.with.values = how;
    a->to->hooks.with.by = by;
    return !tensor_of(a, a->step->out[0])->constant;
}

/* The last of an axis, or several. */
static bool step_lose(const step_place *a, int axis, int64_t several)
{
    if (axis < 0 || output_row(a)->shape.dims[axis] < 2) return false;
    const int64_t count = output_row(a)->shape.dims[axis];
    a->to->hooks.with.axis = output_row(a)->axes[axis];
    a->to->hooks.with.count = count - (several == 1 ? 1 : step_tail_of(count));
    return step_spoil(a, lose_behind, 0);
}

static bool compares(const graph_step *step, bool less_alone)
{
    const int f = step->with.general.function;
    return step->kind == &graph_kind_binary && (f == GRAPH_BINARY_less || (f == GRAPH_BINARY_equal && !less_alone));
}

/* Whatever is compared. */
static bool step_decide(const step_place *a, double by)
{
    step_spoil(a, step_fill, by);
    return compares(a->step, false);
}

static bool step_compare_beside(const step_place *a, double by)
{
    a->to->hooks.with.by = by;
    return by != 0 && compares(a->step, true) && step_misread(a, 1, step_more);
}

/* Rows and columns of other lengths, from the other end. */
static bool step_align(const step_place *a)
{
    const assay_shape *shape = &output_row(a)->shape;
    const int rank = shape->rank;
    if (rank < 2 || a->which > 1) return false;
    const int64_t off = shape->dims[rank - 1] - shape->dims[rank - 2];
    snprintf(a->more, ASSAY_STEP_NAME, "%s", a->which == 0 ? "" : "_back");
    return step_compare_beside(a, (double)(a->which == 0 ? off : -off));
}

/* Heads that share keys, and chunks. */
static bool step_count_in_turns(const step_place *a)
{
    a->to->with.general.function = GRAPH_BINARY_mod;
    return a->step->kind == &graph_kind_binary && a->step->with.general.function == GRAPH_BINARY_floor_div &&
           output_row(a)->shape.rank == 1 && step_misread(a, 1, step_blocks);
}

/* Of outputs, as where a kernel reads one cotangent for all. */
static bool step_give_one_index(const step_place *a)
{
    const assay_tensor_row *row = output_row(a);
    if (strncmp(row->name, "outputs/", 8) != 0) return false;
    const bool last = a->which == row->shape.rank - 1 && a->which > 0;
    if (a->which >= row->shape.rank || last || row->shape.dims[a->which] < 2) return false;
    a->to->hooks.with.axis = row->axes[a->which];
    snprintf(a->more, ASSAY_STEP_NAME, "_%c", row->axes[a->which]);
    return step_spoil(a, give_first, 0);
}

/* Of gate and up beside each other, and of halves that are turned: all who cut it do so. */
static bool step_read_interleaved(const step_place *a)
{
    const int64_t columns = output_row(a)->shape.rank == 0 ? 0 : graph_last_axis(a->g, a->step->out[0]);
    int halves = 0;
    for (int i = 0; i < a->g->step_count; i++) {
        const graph_step *reader = &a->g->steps[i];
        const bool cuts = reader->kind == &graph_kind_slice &&
                          a->g->tensors[reader->out[0]].row.shape.rank == output_row(a)->shape.rank;
        halves += cuts && reader->in[0] == a->step->out[0] && columns == 2 * graph_last_axis(a->g, reader->out[0]);
    }
    return halves == 2 && columns > 2 && step_spoil(a, interleave, 0);
}

/* [B,S,...]: each token of a row has what the one before it should have, the first one its own; or the gradient of that. */
static void hold_back(const graph_call *c, int i, bool gradient)
{
    const assay_shape *shape = &c->graph->tensors[c->step->out[i]].row.shape;
    double *values = gradient ? c->dy[i] : c->y[i];
    const int64_t size = graph_size(c->graph, c->step->out[i]) / shape->dims[0], token = size / shape->dims[1];
    for (double *row = values; row < values + shape->dims[0] * size; row += size) {
        for (int64_t k = size - 1; k >= token && !gradient; k--) row[k] = row[k - token];
        for (int64_t k = 0; k < size && gradient; k++)
            row[k] = (k < token ? row[k] : 0) + (k + token < size ? row[k + token] : 0);
    }
}

bool assay_step_held_back(const graph *g, int number, int change, graph_step *changed, char *name)
{
    (void)g, (void)number, (void)change, (void)name;
    changed->hooks.result = hold_back;
    return true;
}

bool assay_step_branch_detached(const graph *g, int number, int change, graph_step *changed, char *name)
{
    const bool several = changed->with.product.branches > 1 || changed->in[GRAPH_SECOND_W] != 0;
    (void)g, (void)number, (void)change, (void)name;
    changed->with.product.detached = several && changed->hooks.with.input == 1 ? 2 : 1;
    return true;
}

bool assay_step_other_alpha(const graph *g, int number, int change, graph_step *changed, char *name)
{
    (void)g, (void)number, (void)change, (void)name;
    changed->with.mlp.alpha = changed->hooks.with.by;
    return true;
}

/* A softmax that is not divided by its sum: its largest number is 1. by: nothing flows back through that either. */
static void undivided(const graph_call *c, bool back)
{
    int64_t count, inner;
    const int64_t lines =
        step_about(&c->graph->tensors[c->step->in[0]].row, c->step->with.general.over[0], &count, &inner) * inner;
    for (int64_t line = 0; line < lines; line++) {
        const int64_t first = line / inner * count * inner + line % inner;
        double *y = c->y[0] + first, *dy = c->dy[0] + first, largest = 0, sum = 0;
        for (int64_t k = 0; k < count * inner; k += inner) {
            largest = fmax(largest, y[k]);
            sum += back ? y[k] * dy[k] : 0;
        }
        for (int64_t k = 0; k < count * inner && !back; k += inner) y[k] /= largest;
        for (int64_t k = 0; k < count * inner && back; k += inner)
            c->dx[0][first + k] = y[k] * (y[k] == 1 && c->step->hooks.with.by == 0 ? dy[k] - sum : dy[k]);
    }
}

static void redo_result(const graph_call *c, int i, bool gradient)
{
    if (i == 0 && !gradient) c->step->hooks.with.redo(c, false);
}

static void redo_gradient(const graph_call *c)
{
    if (c->dx[0] != NULL) c->step->hooks.with.redo(c, true);
}

static bool step_leave_undivided(const step_place *a)
{
    if (a->step->kind != &graph_kind_softmax || a->which > 1) return false;
    a->to->hooks =
        (graph_hooks){.result = redo_result, .behind = redo_gradient, .with = {.redo = undivided, .by = a->which}};
    snprintf(a->more, ASSAY_STEP_NAME, "%s", a->which == 0 ? "" : "_maximum_detached");
    return true;
}

/* Sigmoid and silu by a tanh that float32 has: 1 + tanh(x / 2) is a multiple of 2^-24 where x is below 0. */
static void by_tanh(const graph_call *c, bool back)
{
    const bool silu = c->step->with.general.function == GRAPH_MAP_silu;
    for (int64_t i = 0; i < graph_in_size(c->graph, c->step, 0); i++) {
        const double x = c->x[0][i], s = 0.5 + 0.5 * assay_dtype_round(ASSAY_FLOAT32, assay_tanh(x / 2), false);
        if (back) c->dx[0][i] = (silu ? s * (1 + x * (1 - s)) : s * (1 - s)) * c->dy[0][i];
        if (!back) c->y[0][i] = silu ? x * s : s;
    }
}

static bool step_sigmoid_by_tanh(const step_place *a)
{
    a->to->hooks = (graph_hooks){.result = redo_result, .behind = redo_gradient, .with.redo = by_tanh};
    return true;
}

/* --- states --- */

static void step_lose_states(int64_t rows, int64_t columns, int64_t all, double *states, bool gradient)
{
    (void)rows, (void)columns, (void)gradient;
    memset(states, 0, (size_t)all * sizeof *states);
}

static void step_transpose_states(int64_t rows, int64_t columns, int64_t all, double *states, bool gradient)
{
    step_relay(rows, columns, 1, all, states, gradient);
}

static void step_round_states(int64_t rows, int64_t columns, int64_t all, double *states, bool gradient)
{
    (void)rows, (void)columns;
    if (!gradient) assay_dtype_round_many(ASSAY_BFLOAT16, all, states, states);
}

int assay_step_change_token(int change)
{
    const int kind = change % ASSAY_STEP_CHANGE_COUNT, which = change / ASSAY_STEP_CHANGE_COUNT;
    if (kind < ASSAY_STEP_CHANGE_STATE_LOST || kind > ASSAY_STEP_CHANGE_STATE_COARSER || which < STEP_CHUNKS) return 0;
    return which - STEP_CHUNKS + 1;
}

/* Of a convolution the last inputs, whose order is that of the taps. */
static bool step_hand_over(const step_place *a, graph_states *how)
{
    const bool scan = a->step->kind == &graph_kind_linear_scan, delta = a->step->kind == &graph_kind_gated_delta_rule,
               convolution = a->step->kind == &graph_kind_causal_convolution;
    const bool once = a->which >= STEP_CHUNKS; /* behind so many tokens */
    const int chunk = once ? a->which - STEP_CHUNKS + 1 : step_chunks[a->which];
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
    if ((how == step_round_states && (convolution || once)) || (how == step_reverse_states && !convolution))
        return false;
    if (how == step_transpose_states && columns < 2) return false;
    const bool moves = how == step_transpose_states || how == step_reverse_states;
    a->to->hooks.states = how;
    a->to->hooks.chunk = chunk;
    a->to->hooks.once = once;
    snprintf(a->more, ASSAY_STEP_NAME, "%s_%d", once ? "_once" : "", chunk);
    return x->shape.dims[strchr(x->axes, axis) - x->axes] > chunk && rows >= (moves ? 2 : 1) &&
           (!convolution || rows <= chunk);
}

/* --- a kind of its own --- */

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
            if (dy == NULL) out[row * each + k] = y;
            if (dy != NULL) out[row * width + index[k]] += dy[row * each + k] * y;
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
static bool step_softmax_of_all(const step_place *a)
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

#define ONE(makes) (a->which == 0 && (makes))

static bool change_step(const step_place *a, assay_step_change_kind change)
{
    const graph_kind *kind = a->step->kind;
    const bool norm = kind == &graph_kind_rms_norm || kind == &graph_kind_layer_norm,
               attends = kind == &graph_kind_attention;
    const graph_map f = kind == &graph_kind_map ? (graph_map)a->step->with.general.function : GRAPH_MAP_COUNT;
    graph_parameters *with = &a->to->with;
    double *theta = &with->rope.config.rope_max_timescale;
    const int first = kind == &graph_kind_where; /* operand */
    const assay_shape *made = &output_row(a)->shape;
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
    const step_place a = {change / ASSAY_STEP_CHANGE_COUNT, g, step, changed, more};
    *changed = *step;
    if (product && step->with.product.recipe.recipe != NULL) return false;
    const graph_tensor *made = &g->tensors[step->out[0]];
    const bool codes = made->codes && kind != ASSAY_STEP_CHANGE_OTHER_SCALE_ROUNDING;
    if (codes || made->gradient.name != NULL || !change_step(&a, kind)) return false;
    if (name != NULL) snprintf(name, ASSAY_STEP_NAME, "%.28s%.34s", words[kind].name, more);
    return true;
}
