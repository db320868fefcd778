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
    const graph_kind *kind = step->kind;
    if (kind != &graph_kind_map && kind != &graph_kind_binary && kind != &graph_kind_reduce) {
        without_folder(g->tensors[tensor].row.name, name);
    } else {
        graph_parameters_text(step, name, ASSAY_STEP_NAME);
        name[strcspn(name, " ")] = '\0';
    }
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

const char *assay_step_change_text(assay_step_change_kind change)
{
    static const char *const texts[] = {
#define X(code, name, text) text,
        ASSAY_STEP_CHANGES(X)
#undef X
    };
    return texts[change];
}

static const char *name_of(assay_step_change_kind change)
{
    static const char *const names[] = {
#define X(code, name, text) name,
        ASSAY_STEP_CHANGES(X)
#undef X
    };
    return names[change];
}

/* --- what is there to change --- */

typedef struct at {
    const graph *g;
    const graph_step *step; /* as it is */
    graph_step *to;
    char *more; /* behind the change's name: what it is instead */
} at;

static const graph_tensor *tensor_of(const at *a, int tensor)
{
    return &a->g->tensors[tensor];
}

static const assay_tensor_row *made_row(const at *a)
{
    return &tensor_of(a, a->step->out[0])->row;
}

static bool is_number(const at *a, int i)
{
    const graph_tensor *x = tensor_of(a, a->step->in[i]);
    return a->step->in[i] != 0 && x->role != GRAPH_INDICES && !x->chosen;
}

static bool has_two_operands(const at *a)
{
    const graph_kind *kind = a->step->kind;
    return kind == &graph_kind_binary || kind == &graph_kind_add || kind == &graph_kind_where;
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
    if (!is_number(a, input) || a->step->out[1] != 0 || tensor_of(a, x)->in_parts) return false;
    if (!assay_shape_equal(&tensor_of(a, x)->row.shape, &made_row(a)->shape)) return false;
    if (has_two_operands(a) && strcmp(tensor_of(a, x)->row.axes, made_row(a)->axes) != 0) return false;
    *a->to = (graph_step){.kind = &graph_kind_scale, .in = {x}, .with.number = 1};
    memcpy(a->to->out, a->step->out, sizeof a->to->out);
    return true;
}

/* --- other functions and parameters --- */

/* The function that is taken for another one. */
static const struct {
    const graph_kind *kind;
    int function, other;
} others[] = {
    {&graph_kind_map, GRAPH_MAP_silu, GRAPH_MAP_gelu},
    {&graph_kind_map, GRAPH_MAP_gelu, GRAPH_MAP_gelu_exact},
    {&graph_kind_map, GRAPH_MAP_gelu_exact, GRAPH_MAP_gelu},
    {&graph_kind_map, GRAPH_MAP_relu, GRAPH_MAP_silu},
    {&graph_kind_map, GRAPH_MAP_softplus, GRAPH_MAP_relu},
    {&graph_kind_map, GRAPH_MAP_tanh, GRAPH_MAP_sigmoid},
    {&graph_kind_map, GRAPH_MAP_sigmoid, GRAPH_MAP_tanh},
    {&graph_kind_map, GRAPH_MAP_rsqrt, GRAPH_MAP_reciprocal},
    {&graph_kind_map, GRAPH_MAP_sqrt, GRAPH_MAP_rsqrt},
    {&graph_kind_map, GRAPH_MAP_reciprocal, GRAPH_MAP_rsqrt},
    {&graph_kind_map, GRAPH_MAP_sin, GRAPH_MAP_cos},
    {&graph_kind_map, GRAPH_MAP_cos, GRAPH_MAP_sin},
    {&graph_kind_binary, GRAPH_BINARY_add, GRAPH_BINARY_sub},
    {&graph_kind_binary, GRAPH_BINARY_sub, GRAPH_BINARY_add},
    {&graph_kind_binary, GRAPH_BINARY_mul, GRAPH_BINARY_div},
    {&graph_kind_binary, GRAPH_BINARY_div, GRAPH_BINARY_mul},
    {&graph_kind_binary, GRAPH_BINARY_maximum, GRAPH_BINARY_minimum},
    {&graph_kind_binary, GRAPH_BINARY_minimum, GRAPH_BINARY_maximum},
    {&graph_kind_reduce, GRAPH_REDUCTION_sum, GRAPH_REDUCTION_mean},
    {&graph_kind_reduce, GRAPH_REDUCTION_mean, GRAPH_REDUCTION_sum},
    {&graph_kind_reduce, GRAPH_REDUCTION_max, GRAPH_REDUCTION_mean},
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
    char text[ASSAY_STEP_NAME];
    if (a->step->kind == &graph_kind_glu) return take_gate(a);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (others[i].kind != a->step->kind || others[i].function != a->step->with.general.function) continue;
        a->to->with.general.function = others[i].other;
        graph_parameters_text(a->to, text, sizeof text);
        snprintf(a->more, ASSAY_STEP_NAME, "_%.*s", (int)strcspn(text, " "), text);
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
    if (a->step->kind == &graph_kind_columns) {
        graph_columns *columns = &a->to->with.columns;
        const int64_t own = graph_last_axis(a->g, a->step->out[0]);
        if (own == columns->width) return false;
        columns->first += columns->first + own < columns->width ? 1 : -1;
        return true;
    }
    if (a->step->kind != &graph_kind_slice) return false;
    const size_t axis = strcspn(x->axes, a->step->with.general.over);
    const int64_t whole = x->shape.dims[axis], own = made_row(a)->shape.dims[axis];
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

static bool take_attention(const at *a, assay_step_change_kind change)
{
    assay_attention_config *to = &a->to->with.attention;
    if (a->step->kind != &graph_kind_attention) return false;
    if (change == ASSAY_STEP_CHANGE_SOFT_CAP_IGNORED) return set_number(&to->soft_cap, 0);
    if (change == ASSAY_STEP_CHANGE_SEGMENTS_IGNORED) {
        a->to->in[3] = 0;
        return a->step->in[3] != 0;
    }
    if (to->window == 0) return false;
    to->window = change == ASSAY_STEP_CHANGE_WINDOW_LONGER ? to->window + 1 : 0;
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

static bool take_parameter(const at *a, assay_step_change_kind change)
{
    const graph_kind *kind = a->step->kind;
    const bool norm = kind == &graph_kind_rms_norm || kind == &graph_kind_layer_norm;
    const bool clamp = kind == &graph_kind_map && a->step->with.general.function == GRAPH_MAP_clamp;
    graph_parameters *to = &a->to->with;
    switch (change) {
    case ASSAY_STEP_CHANGE_OTHER_EPSILON:
        return norm && set_number(&to->number, to->number < 5e-6 ? 1e-5 : 1e-6);
    case ASSAY_STEP_CHANGE_FACTOR_TWICE:
        return kind == &graph_kind_scale && set_number(&to->number, to->number * to->number);
    case ASSAY_STEP_CHANGE_OTHER_THETA:
        to->rope.config.rope_max_timescale *= 50;
        return kind == &graph_kind_angles;
    case ASSAY_STEP_CHANGE_OTHER_PAIRS:
        to->rope.config.interleave = !to->rope.config.interleave;
        to->rope.config.pairwise = to->rope.config.interleave;
        return kind == &graph_kind_rope;
    case ASSAY_STEP_CHANGE_LOW_IGNORED:
        return clamp && set_number(&to->general.a, -INFINITY);
    case ASSAY_STEP_CHANGE_HIGH_IGNORED:
        return clamp && set_number(&to->general.b, INFINITY);
    case ASSAY_STEP_CHANGE_OTHER_SCALE_ROUNDING:
        return take_scale_rounding(a);
    case ASSAY_STEP_CHANGE_BIAS_IGNORED:
        a->to->in[2] = a->to->in[3] = 0;
        return kind == &graph_kind_linear && a->step->in[2] != 0;
    default:
        return take_attention(a, change);
    }
}

/* --- other inputs --- */

static bool exchange(const at *a, int i)
{
    const int x = a->step->in[i], y = a->step->in[i + 1];
    if (x == 0 || y == 0 || tensor_of(a, x)->in_parts || tensor_of(a, y)->in_parts) return false;
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
    if (x == 0 || tensor_of(a, x)->row.shape.rank == 0 || tensor_of(a, x)->in_parts) return false;
    for (int t = 1; t < a->step->out[0]; t++) {
        const graph_tensor *other = tensor_of(a, t);
        const int far = abs(t - x) + ((other->step < 0) != (tensor_of(a, x)->step < 0) ? GRAPH_TENSORS : 0);
        const bool fits = t != x && are_alike(a, x, t) && !other->constant && !tensor_of(a, x)->constant &&
                          (other->role == GRAPH_INDICES) == (tensor_of(a, x)->role == GRAPH_INDICES);
        if (!fits || other->in_parts || other->quantised || far >= least) continue;
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

/* Of [outer,count,inner] the last ones along the axis become `by`. */
static void set_tail(double *values, int64_t outer, int64_t count, int64_t inner, double by)
{
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = (count - tail_of(count)) * inner; i < count * inner; i++) values[o * count * inner + i] = by;
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
    set_tail(values, graph_size(g, step->out[0]) / columns, columns, 1, 0);
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

static void lose_tail(const graph *g, const graph_step *step, double *values, bool gradient)
{
    const assay_tensor_row *x = &g->tensors[step->in[0]].row;
    const int64_t axis = strchr(x->axes, step->wrong.axis) - x->axes, count = x->shape.dims[axis];
    int64_t outer = 1;
    for (int64_t i = 0; i < axis; i++) outer *= x->shape.dims[i];
    set_tail(values, outer, count, assay_shape_count(&x->shape) / outer / count, gradient ? 0 : step->wrong.by);
}

static bool spoil(const at *a, graph_spoiler *how, double by)
{
    const assay_shape *shape = &made_row(a)->shape;
    const int rank = shape->rank;
    if (how == lose_columns && (rank == 0 || shape->dims[rank - 1] < 2)) return false;
    if ((how == lose_row || how == repeat_row) && (rank < 2 || shape->dims[0] < 2)) return false;
    a->to->wrong.spoil = how;
    a->to->wrong.by = by;
    return !tensor_of(a, a->step->out[0])->constant;
}

/* Of a sum, which counts what is not read as 0, or of a softmax or a maximum, which count it as minus infinity. */
static bool cut_tail(const at *a)
{
    const graph_kind *kind = a->step->kind;
    const assay_tensor_row *x = &tensor_of(a, a->step->in[0])->row;
    const char *over = a->step->with.general.over;
    const bool largest = kind == &graph_kind_reduce && a->step->with.general.function == GRAPH_REDUCTION_max;
    char axis = '\0';
    if (kind == &graph_kind_linear) axis = x->axes[x->shape.rank - 1];
    for (int i = 0; i < x->shape.rank && kind == &graph_kind_product; i++)
        if (strchr(made_row(a)->axes, x->axes[i]) == NULL) axis = x->axes[i];
    if (kind == &graph_kind_reduce && over[0] != '\0') axis = over[strlen(over) - 1];
    if (kind == &graph_kind_softmax || kind == &graph_kind_logsumexp) axis = over[0];
    if (axis == '\0' || tensor_of(a, a->step->in[0])->in_parts) return false;
    if (x->shape.dims[strchr(x->axes, axis) - x->axes] < 2) return false;
    a->to->wrong.misread = lose_tail;
    a->to->wrong.axis = axis;
    a->to->wrong.by = largest || kind == &graph_kind_softmax || kind == &graph_kind_logsumexp ? -INFINITY : 0;
    return true;
}

static bool detach(const at *a, int i)
{
    const graph_tensor *x = tensor_of(a, a->step->in[i]);
    const bool differentiable = is_number(a, i) && !x->constant && !x->in_parts && x->row.shape.rank > 0;
    a->to->wrong.detached = 1u << i;
    return differentiable && a->step->kind->backward != NULL;
}

static bool change_step(const at *a, assay_step_change_kind change)
{
    switch (change) {
    case ASSAY_STEP_CHANGE_LEFT_OUT:
        return !has_two_operands(a) && a->step->kind != &graph_kind_detach && leave(a, 0);
    case ASSAY_STEP_CHANGE_FIRST_ALONE:
        return has_two_operands(a) && leave(a, first_operand(a));
    case ASSAY_STEP_CHANGE_SECOND_ALONE:
        return has_two_operands(a) && leave(a, first_operand(a) + 1);
    case ASSAY_STEP_CHANGE_OTHER_FUNCTION:
        return take_function(a);
    case ASSAY_STEP_CHANGE_EXCHANGED:
        return exchange(a, first_operand(a));
    case ASSAY_STEP_CHANGE_LAST_EXCHANGED:
        return !has_two_operands(a) && a->step->kind != &graph_kind_linear && exchange(a, 1);
    case ASSAY_STEP_CHANGE_FIRST_ELSE:
    case ASSAY_STEP_CHANGE_SECOND_ELSE:
    case ASSAY_STEP_CHANGE_THIRD_ELSE:
        return read_else(a, (int)change - ASSAY_STEP_CHANGE_FIRST_ELSE);
    case ASSAY_STEP_CHANGE_TAIL_NOT_READ:
        return cut_tail(a);
    case ASSAY_STEP_CHANGE_OTHER_AXIS:
        return take_axis(a);
    case ASSAY_STEP_CHANGE_OTHER_FIRST:
        return take_first(a);
    case ASSAY_STEP_CHANGE_NEGATED:
        return spoil(a, scale, -1);
    case ASSAY_STEP_CHANGE_DOUBLED:
        return spoil(a, scale, 2);
    case ASSAY_STEP_CHANGE_COARSER:
        return spoil(a, coarsen, 0);
    case ASSAY_STEP_CHANGE_LAST_COLUMNS_ZERO:
        return spoil(a, lose_columns, 0);
    case ASSAY_STEP_CHANGE_LAST_ROW_ZERO:
        return spoil(a, lose_row, 0);
    case ASSAY_STEP_CHANGE_LAST_ROW_STALE:
        return spoil(a, repeat_row, 0);
    case ASSAY_STEP_CHANGE_DETACHED:
    case ASSAY_STEP_CHANGE_SECOND_DETACHED:
    case ASSAY_STEP_CHANGE_THIRD_DETACHED:
        return detach(a, (int)change - ASSAY_STEP_CHANGE_DETACHED);
    case ASSAY_STEP_CHANGE_NOT_STOPPED:
        return a->step->kind == &graph_kind_detach && leave(a, 0);
    default:
        return take_parameter(a, change);
    }
}

/* A step of a recipe, or one that comes in parts, is more than its tensors say; codes that are spoilt are none of the rules'. */
bool assay_change_step(const graph *g, int number, int change, graph_step *changed, char *name)
{
    const graph_step *step = &g->steps[number];
    const bool product = step->kind == &graph_kind_linear || step->kind == &graph_kind_expand;
    char more[ASSAY_STEP_NAME] = "";
    const at a = {g, step, changed, more};
    *changed = *step;
    if (product && step->with.product.recipe.recipe != NULL) return false;
    const graph_tensor *made = &g->tensors[step->out[0]];
    const bool codes = made->codes && change != ASSAY_STEP_CHANGE_OTHER_SCALE_ROUNDING;
    if (codes || made->gradient.name != NULL || !change_step(&a, (assay_step_change_kind)change)) return false;
    if (name != NULL) snprintf(name, ASSAY_STEP_NAME, "%s%.44s", name_of((assay_step_change_kind)change), more);
    return true;
}
