/* The kinds of steps. A kind knows numbers; names, memory and streams are the walker's. */
#pragma once

#include "oracle/graph/graph.h"

typedef struct graph_call {
    graph_run *run;
    const graph *graph;
    const graph_step *step;
    const double *x[GRAPH_IN];
    const int32_t *indices[GRAPH_IN];
    const double *deviation, *gradient_deviation[GRAPH_OUT]; /* of x[0], of dy */
    double *y[GRAPH_OUT];
    bool made[GRAPH_OUT]; /* forward: y is there already */
    double *dy[GRAPH_OUT];
    double *dx[GRAPH_IN]; /* NULL: nobody wants it; overwritten */
} graph_call;

enum { GRAPH_READS_OUT = GRAPH_IN };

/* Steps of kinds that have `rows`, of the same axes: a block of rows goes through all of them. */
void graph_pass(const assay_context *ctx, const graph_call *calls, int count);

typedef struct graph_kind {
    const char *name;
    const char *const *functions;                  /* names of graph_general.function; NULL: its steps have one name */
    unsigned reads;                                /* by backward: bit i: in[i]; bit GRAPH_READS_OUT + i: out[i] */
    bool (*reads_nothing)(const graph_step *step); /* of all that; NULL: no step does */
    unsigned makes;         /* gradients of inputs that backward makes wanted or not: bit i: in[i] */
    const char *inaccurate; /* its other form, as right and far less accurate (assay_accuracy); NULL: it has none */
    bool recurrent; /* what it multiplies is sums as well: in a type of their own they are not rounded as operands */
    assay_status (*forward)(assay_context *ctx, const graph_call *c);
    /* Rows [first, end) of y, of numbers in the same places; y may lie where they do, but in emulated runs. NULL: no such kind. */
    void (*rows)(const assay_context *ctx, const graph_call *c, int64_t first, int64_t end);
    assay_status (*backward)(assay_context *ctx, const graph_call *c);     /* NULL: its outputs are constants */
    double (*operations)(const graph *g, const graph_step *step, int out); /* NULL: none */
    double (*backward_operations)(const graph *g, const graph_step *step);
    double (*scratch)(const graph *g, const graph_step *step); /* in numbers; NULL: none to speak of */
} graph_kind;

extern const graph_kind graph_kind_layer_norm, graph_kind_glu, graph_kind_quantise_hidden, graph_kind_hidden_numbers,
    graph_kind_weigh_rows;
extern const graph_kind graph_kind_linear, graph_kind_rms_norm, graph_kind_angles, graph_kind_rotations,
    graph_kind_rope, graph_kind_expand, graph_kind_attention, graph_kind_decode_attention, graph_kind_merge_states,
    graph_kind_cache_numbers;
/* Of programs (oracle/program), with graph_general for their parameters. */
extern const graph_kind graph_kind_map, graph_kind_binary, graph_kind_where, graph_kind_float, graph_kind_reduce,
    graph_kind_softmax, graph_kind_logsumexp, graph_kind_running_sum, graph_kind_product, graph_kind_order,
    graph_kind_detach, graph_kind_slice, graph_kind_concatenate, graph_kind_gather, graph_kind_scatter_add,
    graph_kind_pick, graph_kind_top_k, graph_kind_argsort, graph_kind_bincount, graph_kind_causal_convolution,
    graph_kind_linear_scan, graph_kind_gated_delta_rule;

assay_status graph_by_rows(assay_context *ctx, const graph_call *c);

/* A step that multiplies x by a number; it has no output yet. */
graph_step graph_times(int x, double factor);
bool graph_is_factor(const graph_step *step); /* such a one */
/* Whether a correct kernel keeps what the step makes in registers. */
bool graph_in_registers(const graph_call *c);
/* Whether an emulated run makes the step's function of several that store their results (graph_step.in_parts), and what it stores. */
bool graph_in_parts(const assay_context *ctx, const graph_call *c);
double graph_as_stored(const assay_context *ctx, double number);
/* What backward of the step reads, as graph_kind.reads. */
unsigned graph_reads(const graph_step *step);

/* The last token up to `token` before which the state is handed over by graph_hooks.states; 0: there is none. */
static inline int64_t graph_boundary(const graph_step *step, int64_t token)
{
    const graph_hooks *hooks = &step->hooks;
    if (hooks->states == NULL || token < hooks->chunk) return 0;
    return hooks->once ? hooks->chunk : token - token % hooks->chunk;
}
/* The step as it is run: a changed one is put down in *changed. */
const graph_step *graph_step_at(const assay_context *ctx, const graph *g, int number, graph_step *changed);
enum { GRAPH_W = 1, GRAPH_SECOND_W = 4, GRAPH_ROW_WEIGHTS, GRAPH_GROUP_SIZES }; /* of linear */
/* A group of a weight that streams, in `room` or where it is lent; and the next one of its gradient. */
assay_status graph_read_group(assay_context *ctx, const graph_run *r, int tensor, int64_t group, double *room,
                              const double **values);
assay_status graph_write_group(assay_context *ctx, graph_run *r, int tensor, const double *values);

/* Of a row the indices of the largest numbers, the largest first, of equal ones the lower index. */
void graph_choose(const double *x, int64_t width, double *index, int64_t count, double above);
static inline const assay_tensor_row *graph_row_in(const graph_call *c, int i)
{
    return &c->graph->tensors[c->step->in[i]].row;
}

static inline const assay_tensor_row *graph_row_out(const graph_call *c)
{
    return &c->graph->tensors[c->step->out[0]].row;
}

/* In numbers, of an input or an output of the step. */
int64_t graph_in_size(const graph *g, const graph_step *step, int i);
int64_t graph_out_size(const graph *g, const graph_step *step, int i);

/* The products of a linear layer x [m,k] w [k,n]: as its recipe has their operands. */
typedef struct graph_linear_size {
    int64_t m, n, k;
    int branches;
    bool computed; /* w, by a step */
    const int32_t *group_sizes;
    graph_partition partition; /* counted: none is 0 but groups */
} graph_linear_size;
assay_status graph_linear_operands(assay_context *ctx, assay_quant_recipe_operands *o, const graph_call *c,
                                   const double *dy, const graph_linear_size *size);
/* dx and dw, where they are wanted. */
assay_status graph_linear_backward(assay_context *ctx, const graph_call *c, const double *dy,
                                   const graph_linear_size *size);

/* *sum += term; returns by how much rounding moved it. */
double graph_sum_moved(const assay_context *ctx, double term, double *sum);
/* The gradient of a gate, of which kernels of chunks have the gradients of sums, and add these up from the end of a chunk on. *off is by
 * how much that is off, of what was rounded, where dgate itself may be 0. */
double graph_gate_as_sum(const assay_context *ctx, double dgate, double *off);

/* sum += term, both of which are rounded. */
void graph_add_term(const assay_context *ctx, const graph *g, int64_t count, const double *term, double *sum);

/* total += term, both of which may be stored before. */
void graph_join(const assay_context *ctx, int64_t count, double *total, double *term);
int64_t graph_owners(const graph *g); /* at least 1 */
/* dx[i] may be stored, unless it is the caller's to round. */
void graph_round_gradient(const assay_context *ctx, const graph_call *c, int i);

/* Shows the gradient of an output, which the run may change, where that is a checkpoint. */
assay_status graph_show_gradient(assay_context *ctx, const graph_call *c, int out, double *values);
/* Whether what the step gives to the gradient of an input is rounded: graph.unrounded. */
bool graph_rounds_gradient(const graph_call *c, int in);
