/* What a graph has and costs, without running it; graph.h is the contract. */
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/graph/graph_kind.h"
#include "oracle/ops/vector_sums.h"

void graph_join(const assay_context *ctx, int64_t count, double *total, double *term)
{
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, total);
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, term);
    assay_add(ctx, count, term, total);
}

bool graph_rounds_gradient(const graph_call *c, int in)
{
    const graph_run *r = c->run;
    const int tensor = c->step->in[in];
    const bool ends = r->gradient_room[tensor] != NULL, alone = r->terms[tensor] == 0 && r->pending[tensor] == 1;
    return !(c->graph->unrounded && ends && alone);
}

double graph_sum_moved(const assay_context *ctx, double term, double *sum)
{
    const double exact = *sum + term;
    *sum = exact + assay_moved_by(ctx, exact);
    return *sum - exact;
}

double graph_gate_as_sum(const assay_context *ctx, double dgate, double *off)
{
    double sum = dgate + *off;
    *off += graph_sum_moved(ctx, 0, &sum);
    return sum;
}

void graph_round_gradient(const assay_context *ctx, const graph_call *c, int i)
{
    if (graph_rounds_gradient(c, i))
        assay_round(ctx, ASSAY_ROUND_STORAGE, graph_size(c->graph, c->step->in[i]), c->dx[i]);
}

bool graph_in_registers(const graph_call *c)
{
    return c->graph->tensors[c->step->out[0]].kept == GRAPH_REGISTERS;
}

bool graph_in_parts(const assay_context *ctx, const graph_call *c)
{
    return c->step->in_parts && assay_stores_parts(ctx);
}

double graph_as_stored(const assay_context *ctx, double number)
{
    assay_round(ctx, ASSAY_ROUND_STORAGE, 1, &number);
    return number;
}

const char *graph_step_name(const graph_step *step)
{
    const graph_kind *kind = step->kind;
    return kind->functions != NULL ? kind->functions[step->with.general.function] : kind->name;
}

unsigned graph_reads(const graph_step *step)
{
    const graph_kind *kind = step->kind;
    return kind->reads_nothing != NULL && kind->reads_nothing(step) ? 0 : kind->reads;
}

int64_t graph_owners(const graph *g)
{
    return g->owners > 1 ? g->owners : 1;
}

int graph_find(const graph *g, const char *name)
{
    for (int t = 1; t < g->tensor_count; t++)
        if (strcmp(g->tensors[t].row.name, name) == 0) return t;
    return 0;
}

int64_t graph_size(const graph *g, int tensor)
{
    return tensor == 0 ? 0 : assay_shape_count(&g->tensors[tensor].row.shape);
}

bool graph_is_requantised(const graph *g, int tensor)
{
    bool made = false;
    for (int i = 0; g->tensors[tensor].quantised && i < g->step_count; i++)
        made |= g->steps[i].in[0] == tensor && g->steps[i].kind->operations != NULL; /* a product */
    return made;
}

int64_t graph_axis(const graph *g, char axis)
{
    for (int t = 1; t < g->tensor_count; t++) {
        const assay_tensor_row *row = &g->tensors[t].row;
        const char *at = strchr(row->axes, axis);
        if (at != NULL) return row->shape.dims[at - row->axes];
    }
    return 0;
}

double graph_scratch(const graph *g)
{
    double sum = 0;
    for (int i = 0; i < g->step_count; i++)
        if (g->steps[i].kind->scratch != NULL) sum += g->steps[i].kind->scratch(g, &g->steps[i]);
    return sum;
}

int64_t graph_in_size(const graph *g, const graph_step *step, int i)
{
    return graph_size(g, step->in[i]);
}

int64_t graph_out_size(const graph *g, const graph_step *step, int i)
{
    return graph_size(g, step->out[i]);
}

int64_t graph_last_axis(const graph *g, int tensor)
{
    const assay_shape *shape = &g->tensors[tensor].row.shape;
    return shape->dims[shape->rank - 1];
}

assay_tensor_table graph_weight_table(const graph *g)
{
    assay_tensor_table table = {.count = g->weight_count};
    for (int i = 0; i < g->weight_count; i++)
        if (g->weights[i] != 0) table.rows[i] = g->tensors[g->weights[i]].row;
    return table;
}

static double operations_of(const graph *g, const graph_step *step, int out)
{
    return step->kind->operations != NULL ? step->kind->operations(g, step, out) : 0;
}

/* Of a tensor and of all that has no name before it. */
static void add_operations(const graph *g, int tensor, double *sum)
{
    const int number = g->tensors[tensor].step;
    if (number < 0) return;
    const graph_step *step = &g->steps[number];
    *sum += operations_of(g, step, step->out[0] == tensor ? 0 : 1);
    for (int i = 0; i < GRAPH_IN; i++)
        if (g->tensors[step->in[i]].role == GRAPH_WITHIN) add_operations(g, step->in[i], sum);
}

double graph_operations(const graph *g, int tensor)
{
    double sum = 0;
    add_operations(g, tensor, &sum);
    return sum;
}

double graph_forward_operations(const graph *g)
{
    double sum = 0;
    for (int i = 0; i < g->step_count; i++) {
        for (int out = 0; out < GRAPH_OUT; out++)
            if (g->steps[i].out[out] != 0) sum += operations_of(g, &g->steps[i], out);
    }
    return sum;
}

double graph_backward_operations(const graph *g)
{
    double sum = 0;
    for (int number = 0; number < g->step_count; number++) {
        const graph_step *step = &g->steps[number];
        if (step->kind->backward_operations != NULL) sum += step->kind->backward_operations(g, step);
        for (int i = 0; i < GRAPH_IN; i++) /* what it computes again */
            if ((graph_reads(step) >> i & 1) != 0 && g->tensors[step->in[i]].role == GRAPH_WITHIN)
                add_operations(g, step->in[i], &sum);
    }
    return sum;
}

double graph_numbers(const graph *g)
{
    double sum = 0;
    for (int t = 1; t < g->tensor_count; t++) {
        const graph_role role = g->tensors[t].role;
        if (role == GRAPH_WEIGHT || role == GRAPH_CHECKPOINT) sum += (double)graph_size(g, t);
    }
    for (int i = 0; i < g->gradient_count; i++)
        sum += (double)assay_tensor_row_count(&g->tensors[g->gradients[i]].gradient);
    return sum;
}
