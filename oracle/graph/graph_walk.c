/* Runs a graph and runs it back; graph.h is the contract. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/emulated.h"
#include "oracle/base/memory.h"
#include "oracle/graph/graph_kind.h"
#include "oracle/ops/quantised_deviation.h"
#include "oracle/ops/vector_sums.h"

/* Large room is kept for the next tensor of its size, where the graph reuses it: the kernel clears every new page. */
static void drop_room(graph_run *r, double *numbers, int64_t size)
{
    enum { LARGE = 4096 };
    int at = 0;
    while (at < GRAPH_SPARES && r->spare[at].numbers != NULL) at++;
    if (numbers == NULL || !r->graph->reuses || size < LARGE) {
        free(numbers);
        return;
    }
    if (at == GRAPH_SPARES) at = r->oldest_spare++ % GRAPH_SPARES;
    free(r->spare[at].numbers);
    r->spare[at] = (graph_room){numbers, size};
}

static assay_status find_room(assay_context *ctx, graph_run *r, const char *what, int64_t size, double **numbers)
{
    for (int i = 0; i < GRAPH_SPARES; i++) {
        if (r->spare[i].numbers == NULL || r->spare[i].size != size) continue;
        *numbers = r->spare[i].numbers;
        r->spare[i].numbers = NULL;
        return ASSAY_OK;
    }
    return assay_alloc_f64(ctx, what, size, numbers);
}

static void drop_value(graph_run *r, int tensor)
{
    if (!r->lent[tensor]) drop_room(r, r->value[tensor], graph_size(r->graph, tensor));
    r->value[tensor] = NULL;
    r->lent[tensor] = false;
}

static void drop_gradient(graph_run *r, int tensor)
{
    free(r->row_sums[tensor]);
    free(r->cancelled[tensor]);
    r->row_sums[tensor] = r->cancelled[tensor] = NULL;
    if (!r->lent_gradient[tensor]) drop_room(r, r->gradient[tensor], graph_size(r->graph, tensor));
    r->gradient[tensor] = NULL;
    r->lent_gradient[tensor] = false;
}

void graph_close(graph_run *r)
{
    for (int t = 0; t < r->tensor_count; t++) {
        if (!r->lent[t]) free(r->value[t]);
        if (!r->lent_gradient[t]) free(r->gradient[t]);
        free(r->row_sums[t]);
        free(r->cancelled[t]);
        free(r->deviation[t]);
        free(r->chosen[t]);
        free(r->gradient_deviation[t]);
    }
    for (int i = 0; i < GRAPH_SPARES; i++) free(r->spare[i].numbers);
    free(r->memory);
    *r = (graph_run){0};
}

/* Nobody writes to what a tensor that is given, or that is there already, points to. */
void graph_lend(graph_run *r, int tensor, const double *values)
{
    r->value[tensor] = tensor == 0 ? NULL : (double *)values;
    r->lent[tensor] = r->value[tensor] != NULL;
}

static void *cut(char **at, int64_t count, size_t size)
{
    void *list = *at;
    *at += (size_t)count * size;
    return list;
}

/* The lists of all tensors are one piece of memory: a graph may be opened for every expert. */
static assay_status alloc_lists(assay_context *ctx, graph_run *r, int64_t tensors, int64_t steps)
{
    enum { EACH = 10 * sizeof(double *) + 2 * sizeof(int) + 6 };
    MUST(assay_alloc_list(ctx, "tensors of a graph", tensors * EACH + steps, 1, &r->memory));
    char *at = r->memory;
    double ***const numbers[] = {&r->value,     &r->gradient,           &r->room,     &r->gradient_room,
                                 &r->deviation, &r->gradient_deviation, &r->row_sums, &r->cancelled};
    bool **const flags[] = {&r->shown, &r->lent, &r->lent_gradient, &r->streams, &r->gradient_streams, &r->leads};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) *numbers[i] = cut(&at, tensors, sizeof(double *));
    r->indices = cut(&at, tensors, sizeof *r->indices);
    r->chosen = cut(&at, tensors, sizeof *r->chosen);
    r->terms = cut(&at, tensors, sizeof *r->terms);
    r->pending = cut(&at, tensors, sizeof *r->pending);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) *flags[i] = cut(&at, tensors, sizeof(bool));
    r->live = cut(&at, steps, sizeof *r->live);
    return ASSAY_OK;
}

assay_status graph_open(assay_context *ctx, graph_run *r, const graph *g)
{
    *r = (graph_run){.graph = g, .prefix = ""};
    MUST(alloc_lists(ctx, r, g->tensor_count, g->step_count));
    r->tensor_count = g->tensor_count;
    for (int t = 1; t < g->tensor_count; t++)
        if (g->tensors[t].role == GRAPH_NUMBER) graph_lend(r, t, &g->tensors[t].number);
    return ASSAY_OK;
}

void graph_lend_weights(graph_run *r, double *const *weights)
{
    for (int i = 0; i < r->graph->weight_count; i++) graph_lend(r, r->graph->weights[i], weights[i]);
}

void graph_lend_gradient(graph_run *r, int tensor, const double *values)
{
    r->gradient[tensor] = (double *)values;
    r->lent_gradient[tensor] = values != NULL;
}

void graph_want_gradient(graph_run *r, int tensor, double *values)
{
    r->gradient_room[tensor] = tensor == 0 ? NULL : values;
}

void graph_want_weight_gradients(graph_run *r, double *const *gradients)
{
    for (int i = 0; i < r->graph->weight_count; i++) graph_want_gradient(r, r->graph->weights[i], gradients[i]);
}

double *graph_release_value(graph_run *r, int tensor)
{
    double *values = r->value[tensor];
    r->value[tensor] = NULL;
    r->lent[tensor] = false;
    return values;
}

void graph_drop_within(graph_run *r)
{
    for (int t = 1; t < r->graph->tensor_count; t++) {
        if (r->graph->tensors[t].role == GRAPH_WITHIN && !r->lent[t]) drop_value(r, t);
    }
}

assay_status graph_let_go(assay_context *ctx, void *self, int tensor, double **values)
{
    (void)ctx, (void)self, (void)tensor;
    free(*values);
    *values = NULL;
    return ASSAY_OK;
}

/* --- names --- */

static void path_of(const graph_run *r, const assay_tensor_row *row, char path[ASSAY_PATH_SIZE])
{
    assay_tensor_path("checkpoints/", r->prefix, row, path);
}

/* A checkpoint is a result, after which the run goes on from what the source has in its place. */
static assay_status pass_on(assay_context *ctx, const graph_run *r, const assay_tensor_row *row, bool write, bool stage,
                            double *values)
{
    char path[ASSAY_PATH_SIZE];
    const int64_t count = assay_tensor_row_count(row);
    path_of(r, row, path);
    if (write && r->out != NULL && assay_wants(r->out, path))
        MUST(r->out->write(ctx, r->out->self, path, count, values));
    if (stage && r->in != NULL) MUST(assay_go_on_from(ctx, r->in, path, r->number * count, count, values));
    return ASSAY_OK;
}

assay_status graph_show_gradient(assay_context *ctx, const graph_call *c, int out, double *values)
{
    const assay_tensor_row *row = &c->graph->tensors[c->step->out[out]].gradient;
    return row->name == NULL ? ASSAY_OK : pass_on(ctx, c->run, row, true, true, values);
}

bool graph_wants_gradients(const graph_run *r)
{
    bool wants = false;
    for (int i = 0; i < r->graph->gradient_count && r->out != NULL; i++) {
        char path[ASSAY_PATH_SIZE];
        path_of(r, &r->graph->tensors[r->graph->gradients[i]].gradient, path);
        wants |= assay_wants(r->out, path);
    }
    return wants;
}

static assay_status read_deviation(assay_context *ctx, const graph_run *r, const assay_tensor_row *row, double **out)
{
    char checkpoint[ASSAY_PATH_SIZE], path[ASSAY_PATH_SIZE];
    const int64_t count = assay_tensor_row_count(row);
    path_of(r, row, checkpoint);
    assay_deviation_path(checkpoint, path);
    if (!r->in->has(r->in->self, path)) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, path, count, out));
    return r->in->read(ctx, r->in->self, path, r->number * count, count, *out);
}

assay_status graph_read_deviations(assay_context *ctx, graph_run *r)
{
    const graph *g = r->graph;
    for (int t = 1; t < g->tensor_count; t++)
        if (g->tensors[t].quantised) MUST(read_deviation(ctx, r, &g->tensors[t].row, &r->deviation[t]));
    for (int i = 0; i < g->gradient_count; i++) {
        const int t = g->gradients[i];
        MUST(read_deviation(ctx, r, &g->tensors[t].gradient, &r->gradient_deviation[t]));
    }
    return ASSAY_OK;
}

/* --- forward --- */

static graph_call call_of(graph_run *r, const graph_step *step)
{
    graph_call c = {.run = r, .graph = r->graph, .step = step};
    c.deviation = r->deviation[step->in[0]];
    for (int i = 0; i < GRAPH_IN; i++) {
        c.x[i] = r->value[step->in[i]];
        c.indices[i] = r->indices[step->in[i]];
    }
    for (int i = 0; i < GRAPH_OUT; i++) {
        c.y[i] = r->value[step->out[i]];
        c.made[i] = c.y[i] != NULL;
        c.dy[i] = r->gradient[step->out[i]];
        c.gradient_deviation[i] = r->gradient_deviation[step->out[i]];
    }
    return c;
}

static assay_status call(assay_context *ctx, const graph_call *c,
                         assay_status (*direction)(assay_context *ctx, const graph_call *c))
{
    const assay_emulation *given = ctx->emulation;
    const graph_step *step = c->step;
    const bool sums = step->sums != ASSAY_FLOAT64, stored = step->sums == ASSAY_DTYPE_COUNT;
    const bool norm = step->kind == &graph_kind_rms_norm || step->kind == &graph_kind_layer_norm;
    graph_call columns = *c;
    assay_status status = ASSAY_OK;
    assay_emulation own;
    columns.dx[0] = NULL;
    if (given != NULL && ctx->arithmetic == &assay_arithmetic_emulated && (step->staged || sums)) {
        own = *given;
        own.staged |= step->staged;
        if (sums && !(stored && norm)) own.sums = stored ? own.storage : step->sums;
        if (sums && step->kind->recurrent &&
            assay_dtype_unit_roundoff(own.sums) < assay_dtype_unit_roundoff(given->multiply))
            own.multiply = ASSAY_FLOAT64;
        ctx->emulation = &own;
        if (stored && norm && direction == step->kind->backward) { /* of a norm sums over rows alone are stored */
            status = direction(ctx, c);
            own.sums = own.storage;
            c = &columns;
        }
    }
    if (status == ASSAY_OK) status = direction(ctx, c);
    ctx->emulation = given;
    return status;
}

static assay_status make_room(assay_context *ctx, graph_run *r, int tensor)
{
    if (tensor == 0 || r->value[tensor] != NULL) return ASSAY_OK;
    if (r->room[tensor] != NULL) {
        graph_lend(r, tensor, r->room[tensor]);
        return ASSAY_OK;
    }
    return find_room(ctx, r, r->graph->tensors[tensor].row.name, graph_size(r->graph, tensor), &r->value[tensor]);
}

assay_status graph_read_inputs(assay_context *ctx, graph_run *r)
{
    for (int t = 1; t < r->graph->tensor_count; t++) {
        const assay_tensor_row *row = &r->graph->tensors[t].row;
        const int64_t count = graph_size(r->graph, t);
        char path[ASSAY_PATH_SIZE];
        if (r->graph->tensors[t].role != GRAPH_CHECKPOINT) continue;
        path_of(r, row, path);
        if (!r->in->has(r->in->self, path)) continue;
        MUST(make_room(ctx, r, t));
        MUST(r->in->read(ctx, r->in->self, path, r->number * count, count, r->value[t]));
        MUST(pass_on(ctx, r, row, false, true, r->value[t]));
    }
    return ASSAY_OK;
}

/* What it was chosen by stands beside it. */
static assay_status write_choice(assay_context *ctx, const graph_run *r, const graph_step *step)
{
    const int choice = step->out[0], scores = step->in[0];
    const char *path = r->graph->tensors[choice].row.name;
    char beside[ASSAY_PATH_SIZE];
    if (r->out == NULL) return ASSAY_OK;
    if (assay_wants(r->out, path))
        MUST(r->out->write_i32(ctx, r->out->self, path, graph_size(r->graph, choice), r->chosen[choice]));
    if (!r->graph->tensors[choice].chosen) return ASSAY_OK;
    snprintf(beside, sizeof beside, "%.*sbiased_scores", (int)(strrchr(path, '/') + 1 - path), path);
    if (!assay_wants(r->out, beside)) return ASSAY_OK;
    return r->out->write(ctx, r->out->self, beside, graph_size(r->graph, scores), r->value[scores]);
}

/* Whole numbers that are made; of a choice, what the source has in its place. */
static assay_status make_integers(assay_context *ctx, graph_run *r, const graph_step *step, const graph_call *c,
                                  bool write)
{
    const int choice = step->out[0];
    const int64_t count = graph_size(r->graph, choice);
    const bool chosen = r->graph->tensors[choice].chosen;
    const char *path = r->graph->tensors[choice].row.name;
    if (r->chosen[choice] == NULL) MUST(assay_alloc_i32(ctx, path, count, &r->chosen[choice]));
    if (chosen && r->in != NULL && r->in->has(r->in->self, path)) {
        MUST(r->in->read_i32(ctx, r->in->self, path, 0, count, r->chosen[choice]));
    } else {
        MUST(step->kind->forward(ctx, c));
        if (step->hooks.result != NULL) step->hooks.result(c, 0, false);
        for (int64_t i = 0; i < count; i++) {
            if (!(fabs(c->y[0][i]) <= INT32_MAX))
                return assay_refuse(ctx, "%s has %.17g, expected 32 bits", path, c->y[0][i]);
            r->chosen[choice][i] = (int32_t)c->y[0][i];
        }
    }
    r->indices[choice] = r->chosen[choice];
    const bool shows = (chosen || assay_role_of(path) == ASSAY_ROLE_OUTPUT) && write && !r->shown[choice];
    r->shown[choice] |= write;
    return shows ? write_choice(ctx, r, step) : ASSAY_OK;
}

static assay_status require(assay_context *ctx, graph_run *r, int tensor, bool write);

static assay_status show_made(assay_context *ctx, graph_run *r, const graph_call *c, bool write)
{
    for (int i = GRAPH_OUT - 1; i >= 0; i--) {
        const int out = c->step->out[i];
        const graph_tensor *t = &r->graph->tensors[out];
        const bool shown = write && !r->shown[out], stage = t->last >= 0; /* else nothing goes on from it */
        if (t->role != GRAPH_CHECKPOINT || c->made[i]) continue;
        r->shown[out] |= write;
        if (t->codes) MUST(pass_on(ctx, r, &t->row, false, true, c->y[i]));
        MUST(pass_on(ctx, r, &t->row, shown, stage && !t->codes, c->y[i]));
    }
    return ASSAY_OK;
}

/* After a failure what it would have made is not there. */
static assay_status compute(assay_context *ctx, graph_run *r, int number, bool write)
{
    assay_status status = ASSAY_OK;
    graph_step changed;
    const graph_step *step = graph_step_at(ctx, r->graph, number, &changed);
    graph_call c = {0};
    OWNED double *read = NULL;
    for (int i = 0; i < GRAPH_IN; i++) TRY(require(ctx, r, step->in[i], write));
    c = call_of(r, step);
    if (step->hooks.before != NULL) TRY(step->hooks.before(ctx, &c, false, &read));
    for (int i = 0; i < GRAPH_OUT; i++) {
        TRY(make_room(ctx, r, step->out[i]));
        c.y[i] = r->value[step->out[i]];
    }
    if (r->graph->tensors[step->out[0]].integers) {
        TRY(make_integers(ctx, r, step, &c, write));
        return ASSAY_OK;
    }
    TRY(call(ctx, &c, step->kind->forward));
    for (int i = 0; i < GRAPH_OUT; i++) {
        const graph_tensor *t = &r->graph->tensors[step->out[i]];
        if (step->out[i] == 0 || c.made[i]) continue;
        if (step->hooks.result != NULL) step->hooks.result(&c, i, false);
        if (t->kept == GRAPH_STORED) assay_round(ctx, ASSAY_ROUND_STORAGE, graph_size(r->graph, step->out[i]), c.y[i]);
    }
    TRY(show_made(ctx, r, &c, write));
cleanup:
    for (int i = 0; i < GRAPH_OUT && status != ASSAY_OK; i++)
        if (!c.made[i]) drop_value(r, step->out[i]);
    return status;
}

static assay_status require(assay_context *ctx, graph_run *r, int tensor, bool write)
{
    const int step = r->graph->tensors[tensor].step;
    return tensor == 0 || step < 0 || r->value[tensor] != NULL ? ASSAY_OK : compute(ctx, r, step, write);
}

assay_status graph_require(assay_context *ctx, graph_run *r, int tensor)
{
    return require(ctx, r, tensor, false);
}

assay_status graph_show(assay_context *ctx, graph_run *r, int tensor)
{
    return require(ctx, r, tensor, true);
}

/* No later step of forward reads it, nor does the caller. */
static bool is_last(const graph_run *r, int t, int number)
{
    const graph_tensor *tensor = &r->graph->tensors[t];
    const int last = tensor->last < 0 ? tensor->step : tensor->last;
    return t != 0 && last == number && !r->lent[t] && r->value[t] != NULL && t != r->graph->result;
}

static bool has_name(const graph_run *r, int t)
{
    return r->graph->tensors[t].role == GRAPH_CHECKPOINT || r->graph->tensors[t].role == GRAPH_ASIDE;
}

/* Whether it is dropped once it is done with. */
static bool goes(const graph_run *r, int t)
{
    return r->graph->tensors[t].role == GRAPH_WITHIN || (has_name(r, t) && r->release == graph_let_go);
}

static assay_status release(assay_context *ctx, graph_run *r, int t, int number)
{
    if (!is_last(r, t, number)) return ASSAY_OK;
    if (!goes(r, t)) return has_name(r, t) && r->release != NULL ? r->release(ctx, r->self, t, &r->value[t]) : ASSAY_OK;
    drop_value(r, t);
    return ASSAY_OK;
}

/* What no later step of forward reads: of what this one reads, and makes. What it makes aside stands behind its outputs. */
static assay_status release_after(assay_context *ctx, graph_run *r, int number)
{
    const graph *g = r->graph;
    const graph_step *step = &g->steps[number];
    for (int i = 0; i < GRAPH_IN; i++) MUST(release(ctx, r, step->in[i], number));
    for (int i = 0; i < GRAPH_OUT; i++) MUST(release(ctx, r, step->out[i], number));
    for (int t = step->out[0] + 1; t < g->tensor_count && g->tensors[t].role == GRAPH_ASIDE; t++)
        MUST(release(ctx, r, t, number));
    return ASSAY_OK;
}

static bool is_made(const graph_run *r, int number)
{
    bool made = true;
    for (int i = 0; i < GRAPH_OUT; i++) {
        const int out = r->graph->steps[number].out[i];
        made &= out == 0 || r->value[out] != NULL;
    }
    return made;
}

/* --- steps of numbers one by one, in one pass --- */

enum { GRAPH_PASS = 16 };

/* A checkpoint that somebody gets, or that the run goes on from. */
static bool is_passed_on(const graph_run *r, int tensor)
{
    char path[ASSAY_PATH_SIZE], staged[ASSAY_PATH_SIZE];
    if (r->graph->tensors[tensor].role != GRAPH_CHECKPOINT) return false;
    path_of(r, &r->graph->tensors[tensor].row, path);
    assay_staged_path(path, staged);
    return (r->out != NULL && assay_wants(r->out, path)) || (r->in != NULL && r->in->has(r->in->self, staged));
}

static bool lie_alike(const graph *g, int a, int b)
{
    return strcmp(g->tensors[a].row.axes, g->tensors[b].row.axes) == 0 && graph_size(g, a) == graph_size(g, b);
}

/* How many steps from `first` on are one pass. What is passed on ends it. */
static int pass_from(const assay_context *ctx, const graph_run *r, int first)
{
    const graph *g = r->graph;
    int count = 0;
    for (; count < GRAPH_PASS && first + count < g->step_count; count++) {
        const graph_step *step = &g->steps[first + count];
        const bool plain = step->kind->rows != NULL && step->hooks.before == NULL && step->hooks.result == NULL;
        if (!plain || ctx->emulation != NULL || ctx->change != NULL || is_made(r, first + count)) break;
        if (g->tensors[step->out[0]].integers || !lie_alike(g, step->out[0], g->steps[first].out[0])) break;
        if (count > 0 && is_passed_on(r, g->steps[first + count - 1].out[0])) break;
    }
    return count;
}

/* Where an operand lay that goes with this step lies what it makes. */
static void take_over(graph_run *r, int number)
{
    const int out = r->graph->steps[number].out[0];
    for (int i = 0; i < GRAPH_IN && r->value[out] == NULL && r->room[out] == NULL; i++) {
        const int in = r->graph->steps[number].in[i];
        if (!is_last(r, in, number) || !goes(r, in) || !lie_alike(r->graph, in, out)) continue;
        r->value[out] = r->value[in];
        r->value[in] = NULL;
    }
}

static assay_status run_pass(assay_context *ctx, graph_run *r, int first, int count)
{
    graph_call calls[GRAPH_PASS] = {0};
    for (int i = 0; i < count; i++) {
        const graph_step *step = &r->graph->steps[first + i];
        for (int k = 0; k < GRAPH_IN; k++) MUST(require(ctx, r, step->in[k], true));
        calls[i] = call_of(r, step);
        take_over(r, first + i);
        MUST(make_room(ctx, r, step->out[0]));
        calls[i].y[0] = r->value[step->out[0]];
    }
    graph_pass(ctx, calls, count);
    for (int i = 0; i < count; i++) MUST(show_made(ctx, r, &calls[i], true));
    for (int i = 0; i < count; i++) MUST(release_after(ctx, r, first + i));
    return ASSAY_OK;
}

assay_status graph_forward(assay_context *ctx, graph_run *r)
{
    for (int i = 0, count; i<r->graph->step_count; i += count> 0 ? count : 1) {
        count = pass_from(ctx, r, i);
        if (count > 0) MUST(run_pass(ctx, r, i, count));
        if (count == 0 && !is_made(r, i)) MUST(compute(ctx, r, i, true));
        if (count == 0) MUST(release_after(ctx, r, i));
    }
    return ASSAY_OK;
}

/* --- backward --- */

/* Where a gradient ends: it is wanted there. */
static bool ends_at(const graph_run *r, int tensor)
{
    return r->gradient_room[tensor] != NULL || r->gradient_streams[tensor];
}

/* From which gradients something comes that is wanted, or that is a checkpoint. */
static void mark_leads(const assay_context *ctx, graph_run *r)
{
    for (int t = 0; t < r->tensor_count; t++) r->leads[t] = ends_at(r, t);
    for (int i = 0; i < r->graph->step_count; i++) {
        graph_step changed;
        const graph_step *step = graph_step_at(ctx, r->graph, i, &changed);
        bool any = false;
        for (int k = 0; k < GRAPH_OUT; k++) any |= r->graph->tensors[step->out[k]].gradient.name != NULL;
        for (int k = 0; k < GRAPH_IN; k++) any |= r->leads[step->in[k]];
        any &= step->kind->backward != NULL;
        for (int k = 0; k < GRAPH_OUT; k++)
            r->leads[step->out[k]] |= any && step->out[k] != 0 && !r->graph->tensors[step->out[k]].constant;
    }
}

/* Which steps run back: something that they make has a gradient, or will have one, and it leads somewhere. Counts who gives
 * each tensor a term. */
static void mark_live(const assay_context *ctx, graph_run *r)
{
    const graph *g = r->graph;
    mark_leads(ctx, r);
    for (int t = 0; t < r->tensor_count; t++) {
        r->terms[t] = r->gradient[t] != NULL;
        r->pending[t] = 0;
    }
    for (int i = g->step_count - 1; i >= 0; i--) {
        graph_step changed;
        const graph_step *step = graph_step_at(ctx, g, i, &changed);
        r->live[i] = false;
        for (int k = 0; k < GRAPH_OUT; k++) {
            const int out = step->out[k];
            r->live[i] |= r->leads[out] && !ends_at(r, out) && (r->gradient[out] != NULL || r->pending[out] > 0);
        }
        r->live[i] &= step->kind->backward != NULL;
        for (int k = 0; k < GRAPH_IN && r->live[i]; k++)
            if (step->in[k] != 0) r->pending[step->in[k]]++;
    }
}

/* Where a term of the gradient of an input goes: columns of one that has them all, a first term to where the sum will be. */
static assay_status term_of(assay_context *ctx, graph_run *r, const graph_step *step, int i, double **dx)
{
    const int tensor = step->in[i];
    const int64_t size = graph_size(r->graph, tensor);
    const bool read_in_slices = r->graph->tensors[tensor].read_in_slices;
    bool again = false;
    *dx = read_in_slices ? r->gradient[tensor] : NULL;
    if (r->gradient_streams[tensor]) return ASSAY_OK;
    if ((!r->leads[tensor] && !(step->kind->makes >> i & 1)) || *dx != NULL) return ASSAY_OK;
    for (int k = 0; k < i; k++) again |= step->in[k] == tensor;
    if (r->terms[tensor] == 0 && !again) *dx = r->gradient_room[tensor];
    if (*dx == NULL) MUST(find_room(ctx, r, "gradient", size, dx));
    if (read_in_slices) memset(*dx, 0, (size_t)size * sizeof **dx);
    if (read_in_slices) r->gradient[tensor] = *dx;
    if (read_in_slices) r->lent_gradient[tensor] = *dx == r->gradient_room[tensor];
    return ASSAY_OK;
}

void graph_add_term(const assay_context *ctx, const graph *g, int64_t count, const double *term, double *sum)
{
    if (g->adds_up) {
        assay_add(ctx, count, term, sum);
        return;
    }
#pragma omp parallel for num_threads(ctx->threads) if (count > 4096)
    for (int64_t i = 0; i < count; i++) sum[i] += term[i];
}

/* Takes the term over. A sum that grows may be stored, but for the last one of what the caller wants, who rounds it where the
 * tensor does not say that it is stored. */
static void join(const assay_context *ctx, graph_run *r, int tensor, double *term)
{
    const int64_t size = graph_size(r->graph, tensor);
    const graph_tensor *t = &r->graph->tensors[tensor];
    const bool rounded = r->pending[tensor] > 0 || !ends_at(r, tensor) || (t->step < 0 && t->kept == GRAPH_STORED);
    if (r->terms[tensor]++ == 0) {
        r->gradient[tensor] = term;
        r->lent_gradient[tensor] = term == r->gradient_room[tensor];
        return;
    }
    if (term == r->gradient[tensor]) return; /* its columns */
    graph_add_term(ctx, r->graph, size, term, r->gradient[tensor]);
    if (rounded) assay_round(ctx, ASSAY_ROUND_STORAGE, size, r->gradient[tensor]);
    drop_room(r, term, size);
}

/* Of two outputs one may be what a mutant reads no more, though others do. */
static assay_status add_zeros(assay_context *ctx, graph_run *r, const graph_step *step)
{
    for (int i = 0; i < GRAPH_OUT && ctx->change != NULL; i++) {
        const int out = step->out[i];
        const graph_tensor *t = &r->graph->tensors[out];
        if (out == 0 || r->gradient[out] != NULL || t->last < 0 || t->constant) continue;
        MUST(assay_alloc_zeros(ctx, "gradient", graph_size(r->graph, out), &r->gradient[out]));
    }
    return ASSAY_OK;
}

static assay_status back(assay_context *ctx, graph_run *r, int number)
{
    assay_status status = ASSAY_OK;
    graph_step changed;
    const graph_step *step = graph_step_at(ctx, r->graph, number, &changed);
    const unsigned reads = graph_reads(step);
    graph_call c = {0};
    OWNED double *read = NULL;
    for (int i = 0; i < GRAPH_IN; i++)
        if (reads >> i & 1) TRY(graph_require(ctx, r, step->in[i]));
    for (int i = 0; i < GRAPH_OUT; i++)
        if (reads >> (GRAPH_READS_OUT + i) & 1) TRY(graph_require(ctx, r, step->out[i]));
    TRY(add_zeros(ctx, r, step));
    c = call_of(r, step);
    if (step->hooks.before != NULL) TRY(step->hooks.before(ctx, &c, true, &read));
    for (int i = 0; i < GRAPH_OUT; i++)
        if (c.dy[i] != NULL && step->hooks.result != NULL) step->hooks.result(&c, i, true);
    for (int i = 0; i < GRAPH_IN; i++) TRY(term_of(ctx, r, step, i, &c.dx[i]));
    TRY(call(ctx, &c, step->kind->backward));
    if (step->hooks.behind != NULL) step->hooks.behind(&c);
    for (int i = 0; i < GRAPH_IN; i++) {
        const int tensor = step->in[i];
        if (tensor != 0) r->pending[tensor]--;
        if (c.dx[i] == NULL || !r->leads[tensor]) continue;
        join(ctx, r, tensor, c.dx[i]);
        c.dx[i] = NULL;
    }
    for (int i = 0; i < GRAPH_OUT; i++) { /* nothing reads it any more */
        drop_gradient(r, step->out[i]);
        drop_value(r, step->out[i]);
    }
cleanup:
    for (int i = 0; i < GRAPH_IN; i++) /* after a failure, or unwanted */
        if (c.dx[i] != r->gradient_room[step->in[i]] && c.dx[i] != r->gradient[step->in[i]])
            drop_room(r, c.dx[i], graph_size(r->graph, step->in[i]));
    return status;
}

/* All that reads its outputs has been. Of the steps that are ready the first goes first: a branch is done, and what it held is
 * gone, before the next begins; and a sum adds up in the order of steps. */
static int first_ready(const graph_run *r)
{
    for (int i = 0; i < r->graph->step_count; i++) {
        bool ready = r->live[i];
        for (int k = 0; k < GRAPH_OUT; k++) ready &= r->pending[r->graph->steps[i].out[k]] == 0;
        if (ready) return i;
    }
    return -1;
}

/* --- weights of groups, one at a time --- */

static void weight_path(const graph_run *r, int tensor, char path[ASSAY_PATH_SIZE])
{
    const graph_tensor *t = &r->graph->tensors[tensor];
    assay_tensor_path(t->role == GRAPH_WEIGHT ? "weights/" : "", r->prefix, &t->row, path);
}

static int64_t group_size(const graph_run *r, int tensor)
{
    return graph_size(r->graph, tensor) / r->graph->tensors[tensor].row.shape.dims[0];
}

assay_status graph_read_group(assay_context *ctx, const graph_run *r, int tensor, int64_t group, double *room,
                              const double **values)
{
    char path[ASSAY_PATH_SIZE];
    const assay_source *in = r->weights;
    const int64_t count = group_size(r, tensor);
    weight_path(r, tensor, path);
    *values = in->lend == NULL ? NULL : in->lend(in->self, path, group * count, count);
    if (*values != NULL) return ASSAY_OK;
    *values = room;
    return in->read(ctx, in->self, path, group * count, count, room);
}

assay_status graph_write_group(assay_context *ctx, graph_run *r, int tensor, const double *values)
{
    char path[ASSAY_PATH_SIZE], gradient[ASSAY_PATH_SIZE];
    weight_path(r, tensor, path);
    assay_gradient_path(path, gradient);
    r->terms[tensor]++;
    return assay_write_result(ctx, r->gradients, gradient, group_size(r, tensor), values);
}

static assay_status stream_zeros(assay_context *ctx, graph_run *r, int tensor)
{
    OWNED double *zeros = NULL;
    MUST(assay_alloc_zeros(ctx, "gradient", group_size(r, tensor), &zeros));
    for (int64_t i = 0; i < r->graph->tensors[tensor].row.shape.dims[0]; i++)
        MUST(graph_write_group(ctx, r, tensor, zeros));
    return ASSAY_OK;
}

assay_status graph_backward(assay_context *ctx, graph_run *r)
{
    mark_live(ctx, r);
    for (int i; (i = first_ready(r)) >= 0; r->live[i] = false) MUST(back(ctx, r, i));
    for (int t = 1; t < r->graph->tensor_count; t++) { /* what nothing flows back to, or not with a mutant, has none */
        const bool none = ends_at(r, t) && r->terms[t] == 0 && (!r->graph->tensors[t].flows || ctx->change != NULL);
        if (none && r->gradient_streams[t]) MUST(stream_zeros(ctx, r, t));
        if (none && !r->gradient_streams[t])
            memset(r->gradient_room[t], 0, (size_t)graph_size(r->graph, t) * sizeof(double));
    }
    return ASSAY_OK;
}
