/* Programs as graphs: the step, or the steps, that each step of a program becomes. */
#include "oracle/program/program_graph.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "oracle/graph/graph_kind.h"
#include "oracle/graph/graph_map.h"

/* Puts the step down; gives its tensor. */
typedef int build(graph *g, const assay_program_node *node, const int *in, int function);

static assay_rope_config rope_of(const assay_program_node *node)
{
    const bool interleave = assay_program_number(node, "interleave") != 0;
    return (assay_rope_config){.dim = node->shape.dims[node->shape.rank - 1],
                               .rope_max_timescale = assay_program_number(node, "theta"),
                               .max_position_embeddings = INT64_C(1) << 30,
                               .interleave = interleave,
                               .pairwise = interleave};
}

static assay_attention_config attention_of(const assay_shape *query, const assay_shape *value,
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

static int put(graph *g, const graph_kind *kind, const assay_program_node *node, const int *in, int function)
{
    graph_general with = {.function = function};
    return graph_step_of(g, kind, node->axes, in, node->in_count, &with);
}

static int build_map(graph *g, const assay_program_node *node, const int *in, int function)
{
    graph_general with = {.function = function};
    if (function == GRAPH_MAP_clamp) {
        with.a = assay_program_number(node, "low");
        with.b = assay_program_number(node, "high");
    }
    return graph_step_of(g, &graph_kind_map, node->axes, in, 1, &with);
}

static int build_binary(graph *g, const assay_program_node *node, const int *in, int function)
{
    return put(g, &graph_kind_binary, node, in, function);
}

static int build_where(graph *g, const assay_program_node *node, const int *in, int function)
{
    return put(g, &graph_kind_where, node, in, function);
}

static int along(graph *g, const graph_kind *kind, const assay_program_node *node, const int *in, int function)
{
    graph_general with = {.function = function};
    snprintf(with.over, sizeof with.over, "%s", assay_program_axes(node, "over"));
    return graph_step_of(g, kind, node->axes, in, 1, &with);
}

static int build_reduce(graph *g, const assay_program_node *node, const int *in, int function)
{
    return along(g, &graph_kind_reduce, node, in, function);
}

static int build_softmax(graph *g, const assay_program_node *node, const int *in, int function)
{
    return along(g, &graph_kind_softmax, node, in, function);
}

static int build_logsumexp(graph *g, const assay_program_node *node, const int *in, int function)
{
    return along(g, &graph_kind_logsumexp, node, in, function);
}

static int build_cumsum(graph *g, const assay_program_node *node, const int *in, int function)
{
    return along(g, &graph_kind_running_sum, node, in, function);
}

/* x under other letters, where the pattern has others. */
static int called(graph *g, int x, const char *axes)
{
    const graph_general with = {.function = 1};
    if (strcmp(g->tensors[x].row.axes, axes) == 0) return x;
    return graph_fused(g, graph_step_of(g, &graph_kind_order, axes, &x, 1, &with));
}

static int build_product(graph *g, const assay_program_node *node, const int *in, int function)
{
    assay_program_pattern_of p;
    assay_program_pattern(assay_program_axes(node, "axes"), &p);
    const int operands[] = {called(g, in[0], p.in[0]), called(g, in[1], p.in[1])};
    return put(g, &graph_kind_product, node, operands, function);
}

static int build_rearrange(graph *g, const assay_program_node *node, const int *in, int function)
{
    assay_program_pattern_of p;
    assay_program_pattern(assay_program_axes(node, "axes"), &p);
    const int x = called(g, in[0], p.in[0]);
    return put(g, &graph_kind_order, node, &x, function);
}

static int build_reshape(graph *g, const assay_program_node *node, const int *in, int function)
{
    return put(g, &graph_kind_order, node, in, function);
}

static int build_part(graph *g, const assay_program_node *node, const int *in, int function)
{
    assay_program_pattern_of p;
    graph_general with = {.function = function};
    assay_program_pattern(assay_program_axes(node, "axes"), &p);
    const bool slice = function != 0;
    with.over[0] = slice ? p.in[0][0] : p.out[0];
    if (slice) with.first = (int64_t)assay_program_number(node, "first");
    return graph_step_of(g, slice ? &graph_kind_slice : &graph_kind_concatenate, node->axes, in, node->in_count, &with);
}

static int build_gather(graph *g, const assay_program_node *node, const int *in, int function)
{
    return put(g, &graph_kind_gather, node, in, function);
}

static int build_scatter(graph *g, const assay_program_node *node, const int *in, int function)
{
    return put(g, &graph_kind_scatter_add, node, in, function);
}

static int build_pick(graph *g, const assay_program_node *node, const int *in, int function)
{
    return put(g, &graph_kind_pick, node, in, function);
}

static int build_convolution(graph *g, const assay_program_node *node, const int *in, int function)
{
    return put(g, &graph_kind_causal_convolution, node, in, function);
}

static int build_rms_norm(graph *g, const assay_program_node *node, const int *in, int function)
{
    (void)function;
    return graph_rms_norm(g, in[0], in[1], assay_program_number(node, "epsilon"));
}

static int build_layer_norm(graph *g, const assay_program_node *node, const int *in, int function)
{
    (void)function;
    return graph_layer_norm(g, in[0], in[1], in[2], assay_program_number(node, "epsilon"));
}

static int build_rope(graph *g, const assay_program_node *node, const int *in, int function)
{
    const assay_rope_config config = rope_of(node);
    const graph_turns turns = graph_rotations(g, in[1], &config);
    (void)function;
    return graph_rope(g, in[0], 0, &turns);
}

/* A correct kernel scales the query before, or the scores. */
static int build_attention(graph *g, const assay_program_node *node, const int *in, int function)
{
    const assay_shape *query = &g->tensors[in[0]].row.shape, *value = &g->tensors[in[2]].row.shape;
    const assay_attention_config config = attention_of(query, value, node);
    const double scale = assay_program_number(node, "scale");
    const int scaled = graph_scale(g, in[0], scale != 0 ? scale : 1 / sqrt((double)config.qk_dim));
    const char lse[] = {node->axes[0], node->axes[2], node->axes[1], '\0'};
    (void)function;
    return graph_attend(g, node->axes, lse, scaled, in[1], in[2], node->in_count > 3 ? in[3] : 0, &config);
}

static const struct {
    const char *name;
    build *put;
    int function; /* for kinds of many functions */
    int besides;  /* steps that it takes besides its own */
} BUILDS[] = {
    {"product", build_product, 0, 2},
#define X(name) {#name, build_binary, GRAPH_BINARY_##name, 0},
    GRAPH_BINARIES(X)
#undef X
#define X(name) {#name, build_map, GRAPH_MAP_##name, 0},
        GRAPH_MAPS(X)
#undef X
#define X(name) {#name, build_reduce, GRAPH_REDUCTION_##name, 0},
            GRAPH_REDUCTIONS(X)
#undef X
                {"where", build_where, 0, 0},
    {"softmax", build_softmax, 0, 0},
    {"logsumexp", build_logsumexp, 0, 0},
    {"cumsum", build_cumsum, 0, 0},
    {"rms_norm", build_rms_norm, 0, 0},
    {"layer_norm", build_layer_norm, 0, 0},
    {"rope", build_rope, 0, 2},
    {"attention", build_attention, 0, 1},
    {"rearrange", build_rearrange, 0, 1},
    {"reshape", build_reshape, 1, 0},
    {"slice", build_part, 1, 0},
    {"concatenate", build_part, 0, 0},
    {"gather", build_gather, 0, 0},
    {"scatter_add", build_scatter, 0, 0},
    {"pick", build_pick, 0, 0},
    {"causal_conv", build_convolution, 0, 0},
};

static int build_of(const assay_program_step *step)
{
    int i = 0;
    while (strcmp(BUILDS[i].name, step->name) != 0) i++;
    return i;
}

static int64_t axis_size(const void *config, char axis)
{
    return ((const assay_program *)config)->sizes[(unsigned char)axis % ASSAY_PROGRAM_LETTERS];
}

static int put_given(graph *g, const assay_program *p, const assay_program_node *node)
{
    if (node->given < 0) return graph_input(g, node->text, "");
    const assay_program_tensor *t = &p->tensors[node->given];
    return t->integers ? graph_indices(g, t->path, t->axes) : graph_input(g, t->path, t->axes);
}

/* Kinds with parameters of their own are rounded by themselves. */
static bool is_general(const graph_kind *kind)
{
    static const graph_kind *const own[] = {&graph_kind_rms_norm, &graph_kind_layer_norm, &graph_kind_rope,
                                            &graph_kind_attention};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (kind == own[i]) return false;
    return true;
}

static void put_step(graph *g, const assay_program *p, int place, int *tensor)
{
    const assay_program_node *node = &p->nodes[place];
    const assay_program_line *line = &p->lines[node->line];
    const bool root = line->node == place;
    int in[GRAPH_IN] = {0};
    for (int i = 0; i < node->in_count; i++) in[i] = tensor[node->in[i]];
    const int row = build_of(node->step);
    const int out = tensor[place] = BUILDS[row].put(g, node, in, BUILDS[row].function);
    if (line->fused && !(root && line->output)) {
        if (is_general(g->steps[g->tensors[out].step].kind)) {
            graph_in_registers(g, out);
        } else {
            graph_fused(g, out);
        }
    }
    if (root && line->output) graph_called(g, line->path, out);
    if (root && !line->output) graph_named(g, line->name, out);
}

bool assay_program_fits(const assay_program *p)
{
    int steps = 0, tensors = 1;
    for (int i = 1; i < p->node_count; i++) {
        const int own = p->nodes[i].step == NULL ? 0 : 1 + BUILDS[build_of(p->nodes[i].step)].besides;
        steps += own;
        tensors += own == 0 ? 1 : 2 * own; /* at most two a step */
    }
    return steps <= GRAPH_STEPS && tensors <= GRAPH_TENSORS;
}

/* What nothing goes on from is its caller's to round, as the result of any block is. */
void assay_program_graph(const assay_program *p, graph *g, int tensor[ASSAY_PROGRAM_NODES])
{
    int result = 0;
    graph_begin(g, p, axis_size);
    tensor[0] = 0;
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
        result = tensor[p->lines[i].node];
        if (node->readers == 1) graph_fused(g, result);
    }
    const bool stored = g->tensors[result].stored;
    graph_end(g, result);
    g->tensors[result].stored = stored;
    for (int i = 0; i < p->line_count; i++) /* read at the end */
        if (p->lines[i].output) g->tensors[tensor[p->lines[i].node]].last = g->step_count;
}
