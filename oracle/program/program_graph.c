/* Programs as graphs: the step, or the steps, that each step of a program becomes. */
#include "oracle/program/program_graph.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/graph/graph_kind.h"
#include "oracle/graph/graph_map.h"
#include "oracle/program/program_internal.h"

typedef struct form form;

/* Puts the step down; gives its tensor. */
typedef int build(graph *g, const form *of, const assay_program_node *node, const int *in);

struct form {
    const graph_kind *kind; /* whose parameters are graph_general; NULL: it has its own */
    build *put;
    int function; /* for kinds of many functions; which of its outputs */
    int besides;  /* steps that it takes besides its own */
};

/* A step of the kind, with those of its parameters that the program's step has: others are 0. */
static int plain(graph *g, const form *of, const assay_program_node *node, const int *in)
{
    const bool newest_first = assay_program_number(node, "newest_first") > 0; /* of causal_conv */
    graph_general with = {.function = of->function + newest_first,
                          .passed_over = node->over,
                          .a = assay_program_number(node, "low"),
                          .b = assay_program_number(node, "high"),
                          .kink = of->kind == &graph_kind_reduce ? -1 : assay_program_number(node, "kink"),
                          .unfused = assay_program_number(node, "unfused") != 0,
                          .first =
                              assay_program_number(node, "first") != 0}; /* -1: equal ones share, or the first has it */
    snprintf(with.over, sizeof with.over, "%s", assay_program_axes(node, "over"));
    assay_dtype_from_name(assay_program_axes(node, "type"), &with.type);
    return graph_step_of(g, of->kind, node->axes, in, node->in_count, &with);
}

/* x under other letters, where the pattern has others. */
static int called(graph *g, int x, const char *axes)
{
    const graph_general with = {.function = 1};
    if (strcmp(g->tensors[x].row.axes, axes) == 0) return x;
    return graph_fused(g, graph_step_of(g, &graph_kind_order, axes, &x, 1, &with));
}

/* Operands under the letters of the pattern, as many as it has. A linear layer's parameters are none of `plain`. */
static int by_pattern(graph *g, const form *of, const assay_program_node *node, const int *in)
{
    assay_program_pattern_of p;
    int operands[ASSAY_PROGRAM_OPERANDS];
    assay_program_pattern(assay_program_axes(node, "axes"), &p);
    for (int i = 0; i < node->in_count; i++) operands[i] = i < p.count ? called(g, in[i], p.in[i]) : in[i];
    if (of->kind == NULL) return graph_linear_grouped(g, node->axes, operands[0], operands[1], operands[2]);
    return plain(g, of, node, operands);
}

/* A gate is repeated along the axes that it lacks. */
static int scan(graph *g, const form *of, const assay_program_node *node, const int *in)
{
    int operands[] = {in[0], in[1]};
    if (strcmp(g->tensors[in[0]].row.axes, node->axes) != 0)
        operands[0] = graph_fused(g, graph_step_of(g, &graph_kind_order, node->axes, in, 1, &(graph_general){0}));
    return plain(g, of, node, operands);
}

/* A factor that is a number is the step's own. */
static int mul(graph *g, const form *of, const assay_program_node *node, const int *in)
{
    for (int i = 0; i < 2; i++)
        if (g->tensors[in[i]].role == GRAPH_NUMBER) return graph_scale(g, in[1 - i], g->tensors[in[i]].number);
    return plain(g, of, node, in);
}

/* A part of an axis, or parts behind each other. */
static int cut(graph *g, const form *of, const assay_program_node *node, const int *in)
{
    assay_program_pattern_of p;
    assay_program_pattern(assay_program_axes(node, "axes"), &p);
    const bool joins = of->kind == &graph_kind_concatenate;
    const graph_general with = {.over = {joins ? p.out[0] : p.in[0][0]},
                                .first = joins ? 0 : (int64_t)assay_program_number(node, "first")};
    return graph_step_of(g, of->kind, node->axes, in, node->in_count, &with);
}

static int integers(graph *g, const form *of, const assay_program_node *node, const int *in)
{
    const int made = graph_integers(g, of->kind, node->axes, in[0]);
    graph_general *with = &g->steps[g->tensors[made].step].with.general;
    with->a = assay_program_number(node, "above");
    with->first = assay_program_number(node, "ascending") == 1;
    return made;
}

/* What is quantised has a name of its own, whatever made it: rounded as that is. */
static int quantise(graph *g, const form *of, const assay_program_node *node, const int *in)
{
    const graph_general same = {.function = 1};
    const assay_quantize_config rules = assay_program_quantize(node);
    const int x = graph_fused(g, graph_step_of(g, &graph_kind_order, node->axes, in, 1, &same));
    (void)of;
    return graph_quantise_hidden(g, "codes", "scale", x, &rules);
}

static void name_codes(graph *g, const assay_program_line *line, int numbers)
{
    const int *coded = g->steps[g->tensors[numbers].step].in;
    graph_named(g, line->coded[ASSAY_CODED_X], g->steps[g->tensors[coded[0]].step].in[0]);
    graph_named(g, line->coded[ASSAY_CODED_CODES], coded[0]);
    graph_named(g, line->coded[ASSAY_CODED_SCALE], coded[1]);
}

static int norm(graph *g, const form *of, const assay_program_node *node, const int *in)
{
    const double epsilon = assay_program_number(node, "epsilon");
    const bool unfused = assay_program_number(node, "unfused") > 0;
    const int root =
        node->in_count == 1 || unfused ? graph_over_root(g, in[0], of->function == 1, unfused, epsilon) : 0;
    if (root != 0)
        return node->in_count == 1 ? root
                                   : graph_step_of(g, &graph_kind_binary, node->axes, (int[]){root, in[1]}, 2,
                                                   &(graph_general){.function = GRAPH_BINARY_mul});
    return node->in_count == 2 ? graph_rms_norm(g, in[0], in[1], epsilon)
                               : graph_layer_norm(g, in[0], in[1], in[2], epsilon);
}

static int rope(graph *g, const form *of, const assay_program_node *node, const int *in)
{
    const assay_rope_config config = assay_program_rope(node);
    const graph_turns turns = graph_rotations(g, in[1], &config);
    const int angles = g->steps[g->tensors[turns.cosine].step].in[0];
    if (node->in_count > 2) g->steps[g->tensors[angles].step].in[1] = in[2];
    (void)of;
    return graph_rope(g, in[0], 0, &turns);
}

/* A query that was scaled so already is that; a factor of 1 is no step. */
static int scaled_query(graph *g, int query, double scale)
{
    for (int i = 0; i < g->step_count; i++) {
        const graph_step *step = &g->steps[i];
        if (graph_is_factor(step) && step->in[0] == query && step->with.general.b == scale) return step->out[0];
    }
    return scale == 1 ? query : graph_scale(g, query, scale);
}

/* The step that has attended to the same already; -1: none has. in: query, key, value, segments, sinks. */
static int attended_before(const graph *g, const int *in, const assay_attention_config *config)
{
    for (int i = 0; i < g->step_count; i++) {
        const graph_step *step = &g->steps[i];
        const bool same = step->kind == &graph_kind_attention && memcmp(step->in, in, 5 * sizeof *in) == 0;
        if (same && step->with.attention.window == config->window && step->with.attention.soft_cap == config->soft_cap)
            return i;
    }
    return -1;
}

/* A correct kernel scales the query before, or the scores. The log-sum-exp comes of the same step. */
static int attention(graph *g, const form *of, const assay_program_node *node, const int *in)
{
    if (assay_program_is_masked(g->config, node)) return assay_program_put_masked(g, node, in, of->function == 1);
    const char *query = g->tensors[in[0]].row.axes, *value = g->tensors[in[2]].row.axes;
    const assay_attention_config config =
        assay_program_attention(&g->tensors[in[0]].row.shape, &g->tensors[in[2]].row.shape, node);
    const double scale = assay_program_number(node, "scale");
    const int segments = assay_program_find_beside(g->config, node, ASSAY_BESIDE_SEGMENTS);
    const char lse[] = {query[0], query[2], query[1], '\0'}, out[] = {query[0], query[1], query[2], value[3], '\0'};
    int operands[5] = {scaled_query(g, in[0], scale != 0 ? scale : 1 / sqrt((double)config.qk_dim)), in[1], in[2]};
    for (int i = 3; i < node->in_count; i++) operands[i == segments ? 3 : 4] = in[i];
    int step = attended_before(g, operands, &config);
    if (step < 0)
        step = g->tensors[graph_attend(g, out, lse, operands[0], in[1], in[2], operands[3], operands[4], &config)].step;
    const int made = g->steps[step].out[of->function];
    g->tensors[made].kept = GRAPH_STORED;
    return made;
}

static int delta_rule(graph *g, const form *of, const assay_program_node *node, const int *in)
{
    char state[ASSAY_MAX_RANK + 1];
    const char *value = g->tensors[in[2]].row.axes;
    assay_program_state_axes(g->tensors[in[0]].row.axes, value, state);
    return graph_delta_rule(g, value, state, in, node->in_count, of->function == 1);
}

#define STEP(name, least, most, operands, integers, parameters, shape, exact, kind, put, function, besides, free,      \
             text)                                                                                                     \
    {kind, put, function, besides},

/* In the order of assay_program_steps. */
static const form FORMS[] = {
#include "oracle/program/program_steps.inc"
};

static const form *form_of(const assay_program_step *step)
{
    return &FORMS[step - assay_program_steps];
}

static int64_t axis_size(const void *config, char axis)
{
    return ((const assay_program *)config)->sizes[(unsigned char)axis % ASSAY_PROGRAM_LETTERS];
}

static int put_given(graph *g, const assay_program *p, const assay_program_node *node)
{
    if (node->input < 0) return graph_number(g, node->text, node->number);
    const assay_program_tensor *t = &p->tensors[node->input];
    return t->integers ? graph_indices(g, t->path, t->axes) : graph_input(g, t->path, t->axes);
}

static void put_step(graph *g, const assay_program *p, int place, int *tensor)
{
    const assay_program_node *node = &p->nodes[place];
    const assay_program_line *line = &p->lines[node->line];
    const bool root = line->node == place;
    int in[ASSAY_PROGRAM_OPERANDS] = {0};
    for (int i = 0; i < node->in_count; i++) in[i] = tensor[node->in[i]];
    const form *of = form_of(node->step);
    const int before = g->step_count, out = tensor[place] = of->put(g, of, node, in);
    const bool attends = g->steps[g->step_count - 1].kind == &graph_kind_attention;
    for (int i = before; i < g->step_count; i++) {
        g->steps[i].sums = line->sums;
        g->steps[i].in_parts = !line->fused && !attends; /* whose scale kernels keep as it is */
    }
    if (node->exact) g->tensors[out].kept = GRAPH_LEFT;
    g->tensors[out].constant |= node->exact;
    g->tensors[out].quantised |= node->jumped && !node->exact;
    if (line->fused && !node->exact && !(root && line->output)) graph_fused(g, out);
    if (root && line->output) graph_called(g, line->path, out);
    if (node->coded) {
        name_codes(g, line, out);
    } else if (node->chosen) {
        graph_called(g, line->path, out);
    } else if (root && node->integers) {
        graph_called(g, line->name, out);
    } else if (root && !line->output) {
        graph_named(g, line->name, out);
    }
}

/* Room for all: a step has at most two outputs. */
static assay_status begin(assay_context *ctx, assay_program *p)
{
    int64_t steps = 0;
    for (int i = 1; i < p->node_count; i++)
        if (p->nodes[i].step != NULL) steps += 1 + form_of(p->nodes[i].step)->besides;
    graph_begin(p->graph, p, axis_size);
    p->graph->reuses = p->graph->adds_up = true;
    return graph_open_room(ctx, p->graph, p->node_count + GRAPH_OUT * steps, steps, p->line_count);
}

/* What nothing goes on from is its caller's to round, as the result of any block is. */
static void put_all(const assay_program *p, graph *g, int *tensor)
{
    int result = 0;
    for (int i = 1; i < p->node_count; i++) {
        if (p->nodes[i].step == NULL) {
            tensor[i] = put_given(g, p, &p->nodes[i]);
        } else {
            put_step(g, p, i, tensor);
        }
    }
    for (int i = 0; i < p->line_count; i++) {
        const assay_program_node *node = &p->nodes[p->lines[i].node];
        if (!p->lines[i].output) continue;
        if (node->integers) graph_called(g, p->lines[i].path, tensor[p->lines[i].node]);
        if (node->integers) continue;
        result = tensor[p->lines[i].node];
        if (node->readers == 1) g->tensors[result].kept = GRAPH_LEFT;
        graph_gives(g, p->lines[i].name, result);
    }
    graph_end(g, result, g->tensors[result].kept);
}

assay_status assay_program_make_graph(assay_context *ctx, assay_program *p)
{
    OWNED int *tensor = NULL;
    assay_program_drop_graph(p);
    MUST(assay_alloc_list(ctx, "the graph of a program", 1, sizeof *p->graph, &p->graph));
    MUST(begin(ctx, p));
    MUST(assay_alloc_list(ctx, "steps of a program", p->node_count, sizeof *tensor, &tensor));
    put_all(p, p->graph, tensor);
    return ASSAY_OK;
}

void assay_program_drop_graph(assay_program *p)
{
    if (p->graph == NULL) return;
    graph_close_room(p->graph);
    free(p->graph);
    p->graph = NULL;
}

void assay_program_graph(const assay_program *p, graph *g)
{
    memcpy(g, p->graph, offsetof(graph, own_tensors)); /* whose tensors and steps stay its own */
}
