#include "harness/judge/case_steps.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/operations/op_support.h"
#include "oracle/base/memory.h"
#include "oracle/blocks/mlp.h"
#include "oracle/graph/graph_kind.h"

bool assay_has_steps(const assay_operation *operation)
{
    return operation->graph != NULL || operation == &assay_op_moe || (operation->components & ASSAY_USES_LAYER) != 0;
}

typedef struct builder {
    assay_steps *s;
    const assay_tensor_list *list;
    char prefix[ASSAY_LAYER_PREFIX_SIZE]; /* of the layer's tensors: "layers/3/" or "" */
    const char *block;                    /* the folder of weights of experts: "moe/" or "" */
    int first;                            /* tensor of the layer */
} builder;

/* FOLDER PREFIX name. "": the case has no such tensor. */
static void find_path(const builder *b, const char *folder, const char *name, char path[ASSAY_PATH_SIZE])
{
    snprintf(path, ASSAY_PATH_SIZE, "%s%s%s", folder, b->prefix, name);
    if (assay_tensor_list_find(b->list, path) == NULL) path[0] = '\0';
}

static int add_tensor(builder *b, int step, const char *name, const assay_shape *shape)
{
    assay_step_tensor *t = &b->s->tensors[b->s->tensor_count];
    *t = (assay_step_tensor){.step = step};
    snprintf(t->name, sizeof t->name, "%s", name);
    assay_shape_text(shape, t->shape, sizeof t->shape);
    return b->s->tensor_count++;
}

/* "columns 2", where the layer has a tensor of that name already. */
static int add_within(builder *b, int step, const char *base, const assay_shape *shape)
{
    char name[64];
    snprintf(name, sizeof name, "%s", base);
    for (int number = 1, t = b->first; t < b->s->tensor_count; t++) {
        if (strcmp(b->s->tensors[t].name, name) != 0) continue;
        snprintf(name, sizeof name, "%s %d", base, ++number);
        t = b->first - 1;
    }
    return add_tensor(b, step, name, shape);
}

static int add_checkpoint(builder *b, int step, const char *folder, const char *name, const assay_shape *shape)
{
    const int t = add_tensor(b, step, name, shape);
    find_path(b, folder, name, b->s->tensors[t].path);
    b->s->tensors[t].checkpoint = true;
    return t;
}

/* An input or weight, with the verdict on its gradient; -1: the case has no such tensor. */
static int add_given(builder *b, const char *path, const char *name)
{
    const assay_tensor_entry *entry = assay_tensor_list_find(b->list, path);
    if (entry == NULL) return -1;
    const int t = add_tensor(b, -1, name, &entry->spec.shape);
    char *shape = b->s->tensors[t].shape;
    const size_t used = strlen(shape);
    if (entry->format != NULL) snprintf(shape + used, sizeof b->s->tensors->shape - used, " %s", entry->format->name);
    assay_gradient_path(path, b->s->tensors[t].path);
    return t;
}

static assay_step *add_step(builder *b, const char *kind)
{
    assay_step *step = &b->s->steps[b->s->step_count++];
    *step = (assay_step){0};
    snprintf(step->kind, sizeof step->kind, "%s", kind);
    return step;
}

static void add_in(assay_step *step, int tensor)
{
    if (tensor >= 0 && step->in_count < ASSAY_STEP_IN) step->in[step->in_count++] = tensor;
}

/* A name of the contract for what another step made, or what is given. */
static int add_name(builder *b, const char *folder, const char *name, int tensor, const assay_shape *shape)
{
    add_in(add_step(b, ""), tensor);
    return add_checkpoint(b, b->s->step_count - 1, folder, name, shape);
}

/* All tensors of the layer that no other step has. */
static void add_others(builder *b, int number)
{
    b->s->steps[number].engine = true;
    for (int i = 0; i < b->list->count; i++) {
        const assay_tensor_spec *spec = &b->list->entries[i].spec;
        const assay_tensor_role role = spec->role;
        const bool given = role == ASSAY_ROLE_INPUT || role == ASSAY_ROLE_WEIGHT;
        const bool made = role == ASSAY_ROLE_CHECKPOINT || role == ASSAY_ROLE_ROUTING || role == ASSAY_ROLE_OUTPUT;
        const char *folder = assay_role_folders[role], *name = spec->path + strlen(folder) + 1;
        char path[ASSAY_PATH_SIZE], label[ASSAY_PATH_SIZE];
        if (!(given || made) || strncmp(name, b->prefix, strlen(b->prefix)) != 0) continue;
        if (strcmp(spec->path, "outputs/y") == 0) continue;
        name += strlen(b->prefix);
        snprintf(label, sizeof label, "%s/%s", folder, name); /* "routing/weights" are none of the layer's weights */
        if (role == ASSAY_ROLE_WEIGHT || role == ASSAY_ROLE_CHECKPOINT) snprintf(label, sizeof label, "%s", name);
        snprintf(path, sizeof path, "%s", spec->path);
        if (given) assay_gradient_path(spec->path, path);
        if (assay_steps_show(b->s, path)) continue;
        const int t = add_tensor(b, given ? -1 : number, label, &spec->shape);
        snprintf(b->s->tensors[t].path, ASSAY_PATH_SIZE, "%s", path);
        b->s->tensors[t].checkpoint = made;
        if (given) add_in(&b->s->steps[number], t);
    }
}

static int add_experts(builder *b, const assay_moe_config *moe, int x, const assay_shape *shape);

static void add_graph_step(builder *b, const graph *g, const graph_step *from, int *of)
{
    const int number = b->s->step_count;
    if (from->kind == &assay_kind_experts) {
        const assay_stack_config *stack = from->with.block;
        of[from->out[0]] = add_experts(b, &stack->moe, of[from->in[0]], &g->tensors[from->out[0]].row.shape);
        return;
    }
    assay_step *step = add_step(b, graph_step_name(from));
    graph_parameters_text(from, step->with, sizeof step->with);
    for (int i = 0; i < GRAPH_IN; i++)
        if (from->in[i] != 0) add_in(step, of[from->in[i]]);
    for (int out = 0; out < GRAPH_OUT; out++) {
        const int t = from->out[out];
        if (t == 0) continue;
        const graph_tensor *made = &g->tensors[t];
        const bool output = made->chosen || strncmp(made->row.name, "outputs/", 8) == 0; /* it has its folder */
        of[t] = made->role == GRAPH_CHECKPOINT || output
                    ? add_checkpoint(b, number, output ? "" : "checkpoints/", made->row.name, &made->row.shape)
                    : add_within(b, number, made->row.name, &made->row.shape);
        b->s->tensors[of[t]].fused = made->kept != GRAPH_STORED && t != g->result;
        if (from->kind->operations != NULL) step->operations += from->kind->operations(g, from, out);
    }
    for (int out = 0; out < GRAPH_OUT; out++) {
        const assay_tensor_row *gradient = &g->tensors[from->out[out]].gradient;
        if (gradient->name == NULL) continue;
        const int t = add_checkpoint(b, number, "checkpoints/", gradient->name, &gradient->shape);
        b->s->tensors[t].of_backward = true;
    }
}

/* x: what stands in the place of inputs/x; -1: it does itself. of: tensors by their places in the graph. */
static void add_graph(builder *b, const graph *g, int x, int *of)
{
    for (int t = 1; t < g->tensor_count; t++) {
        const assay_tensor_row *row = &g->tensors[t].row;
        char path[ASSAY_PATH_SIZE];
        const char *name = path;
        if (g->tensors[t].step >= 0) continue;
        assay_tensor_path("", "", row, path);
        if (g->tensors[t].role == GRAPH_WEIGHT) {
            assay_tensor_path("weights/", b->prefix, row, path);
            name += strlen("weights/") + strlen(b->prefix);
        }
        of[t] = x >= 0 && g->tensors[t].role == GRAPH_INPUT ? x : add_given(b, path, name);
        if (of[t] < 0 && row->shape.rank == 0 && g->tensors[t].last >= 0)
            of[t] = add_tensor(b, -1, name, &row->shape); /* a number of a program */
    }
    for (int i = 0; i < g->step_count; i++) add_graph_step(b, g, &g->steps[i], of);
}

/* A gated MLP of a block of experts; x: the rows that it is given. */
static int add_mlp(builder *b, const assay_mlp_graph_config *mlp, int x)
{
    int of[GRAPH_TENSORS];
    graph g;
    assay_mlp_graph(&g, mlp);
    for (int i = 0; i < g.weight_count; i++) g.tensors[g.weights[i]].row.folder = b->block;
    add_graph(b, &g, x, of);
    return of[g.result];
}

/* What no step of a graph is, the choice of experts with the order of rows and the sum over them, are steps of their own. */
static int add_experts(builder *b, const assay_moe_config *moe, int x, const assay_shape *shape)
{
    const assay_routing_config *r = &moe->routing;
    const int64_t tokens = r->batch * r->sequence, dim = moe->emb_dim;
    const int64_t rows = tokens * (moe->path == ASSAY_MOE_DENSE ? r->num_experts : assay_moe_slots(moe));
    const assay_shape of_rows = assay_shape_of(2, rows, dim);
    const assay_mlp_graph_config routed = {.mlp = assay_moe_expert_config(moe, rows), .place = ASSAY_MLP_ROUTED},
                                 shared = {.mlp = assay_moe_shared_config(moe, tokens), .place = ASSAY_MLP_SHARED};
    const int route = b->s->step_count;
    assay_step *step = add_step(b, "route");
    snprintf(step->with, sizeof step->with, "%" PRId64 " of %" PRId64 " a token", r->num_experts_per_tok,
             r->num_experts);
    step->operations = 2 * (double)tokens * (double)dim * (double)(r->num_experts + moe->shared_gate);
    add_in(step, x);
    const int made = add_mlp(b, &routed, add_within(b, route, "rows of experts", &of_rows));
    add_in(add_step(b, "combine"), made);
    int y = add_within(b, b->s->step_count - 1, "experts", shape);
    if (moe->shared_mlp_dim > 0) {
        const int other = add_mlp(b, &shared, x);
        step = add_step(b, "add");
        add_in(step, y);
        add_in(step, other);
        y = add_within(b, b->s->step_count - 1, "sum", shape);
    }
    add_others(b, route);
    return y;
}

/* Outputs that have another name, or none, where they are made. */
static void add_outputs(builder *b, const graph *g, const int *of)
{
    for (int i = 0; i < g->output_count; i++) {
        char path[ASSAY_PATH_SIZE];
        const int t = g->outputs[i].tensor;
        snprintf(path, sizeof path, "outputs/%s", g->outputs[i].name);
        if (strcmp(b->s->tensors[of[t]].name, path) != 0) add_name(b, "", path, of[t], &g->tensors[t].row.shape);
    }
}

/* How many layers back is one that is like it, 1 or 2 where windows come in turn; 0: neither is. */
static int64_t like(const assay_stack_config *config, int64_t layer)
{
    const bool in_turn = config->attention == ASSAY_LAYER_GQA && config->windows != ASSAY_WINDOWS_EVERYWHERE;
    const int64_t back = in_turn ? 2 : 1;
    const bool there = layer - back >= config->first_layer;
    return there && assay_layer_is_dense(config, layer - back) == assay_layer_is_dense(config, layer) ? back : 0;
}

static double operations_of(const assay_stack_config *config, int64_t first, int64_t end)
{
    assay_stack_config part = *config;
    part.first_layer = first;
    part.layers = end;
    return assay_stack_flops(&part, false);
}

static int add_layer(builder *b, const assay_stack_config *config, int64_t layer, int x, const assay_shape *shape)
{
    const bool dense = assay_layer_is_dense(config, layer);
    int of[GRAPH_TENSORS];
    graph g;
    assay_layer_prefix(config, layer, b->prefix);
    b->first = b->s->tensor_count;
    if (x < 0) x = add_given(b, "inputs/x", "inputs/x");
    x = add_name(b, "checkpoints/", "decoder_layer_input", x, shape);
    assay_step *start = &b->s->steps[b->s->step_count - 1];
    snprintf(start->with, sizeof start->with, "%s", dense ? "dense" : "experts");
    if (!config->single)
        snprintf(start->with, sizeof start->with, "layer %" PRId64 ", %s", layer, dense ? "dense" : "experts");
    if (!dense && config->batch_split_factor > 0) {
        static const char name[] = "batch-split layer";
        assay_step *step = add_step(b, name);
        const int number = b->s->step_count - 1, y = add_within(b, number, name, shape);
        add_in(step, x);
        add_others(b, number);
        step->operations = operations_of(config, layer, layer + 1);
        return y;
    }
    assay_layer_graph(&g, config, layer);
    add_graph(b, &g, x, of);
    return of[g.result];
}

static int add_like(builder *b, const assay_stack_config *config, int64_t first, int64_t last, int x,
                    const assay_shape *shape)
{
    char name[64], kind[64];
    const int64_t back = like(config, first);
    snprintf(name, sizeof name, "layer %" PRId64, first);
    if (last > first) snprintf(name, sizeof name, "layers %" PRId64 " to %" PRId64, first, last);
    snprintf(kind, sizeof kind, "layer %" PRId64, first - back);
    if (back > 1 && last > first)
        snprintf(kind, sizeof kind, "layers %" PRId64 ", %" PRId64 " in turn", first - back, first - 1);
    assay_step *step = add_step(b, kind);
    add_in(step, x);
    step->operations = operations_of(config, first, last + 1);
    return add_tensor(b, b->s->step_count - 1, name, shape);
}

static int add_layers(builder *b, const assay_stack_config *config, bool whole, const assay_shape *shape)
{
    int x = -1;
    for (int64_t layer = config->first_layer; layer < config->layers; layer++) {
        const int64_t first = layer, back = like(config, first);
        if (whole || back == 0) {
            x = add_layer(b, config, layer, x, shape);
            continue;
        }
        while (layer + 1 < config->layers && like(config, layer + 1) == back) layer++;
        x = add_like(b, config, first, layer, x, shape);
    }
    return x;
}

/* steps, tensors: of a graph. */
static assay_status alloc_steps(assay_context *ctx, const assay_tensor_list *list, int64_t graphs, int64_t most_steps,
                                int64_t most_tensors, assay_steps **steps)
{
    MUST(assay_alloc(ctx, "steps", 1, sizeof **steps, steps));
    **steps = (assay_steps){0};
    MUST(assay_alloc(ctx, "steps", graphs * (most_steps + 4) + 1, sizeof *(*steps)->steps, &(*steps)->steps));
    MUST(assay_alloc(ctx, "steps", graphs * (most_tensors + most_steps + 4) + list->count + 1,
                     sizeof *(*steps)->tensors, &(*steps)->tensors));
    return ASSAY_OK;
}

static assay_status refuse(assay_context *ctx, const assay_case *c)
{
    char names[256];
    assay_operation_names(names, sizeof names, assay_has_steps);
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: op is %s, which has no steps; expected one of %s", c->name, c->op,
                      names);
}

assay_status assay_case_steps(assay_context *ctx, const assay_case *c, bool whole, assay_steps **steps)
{
    assay_status status;
    const assay_operation *operation;
    assay_tensor_list list = {0};
    assay_stack_config config;
    graph g;
    int *of = NULL;
    *steps = NULL;
    TRY(assay_operation_prepare(ctx, c, &operation, &list));
    if (!assay_has_steps(operation)) {
        status = refuse(ctx, c);
        goto cleanup;
    }
    const bool layers = (operation->components & ASSAY_USES_LAYER) != 0;
    const assay_tensor_entry *y = assay_tensor_list_find(&list, "outputs/y");
    builder b = {.list = &list, .block = layers ? "moe/" : ""};
    if (operation->graph != NULL) {
        TRY(assay_operation_graph(ctx, operation, c, &g));
        TRY(alloc_steps(ctx, &list, 1, g.step_count, g.tensor_count, steps));
        TRY(assay_alloc_list(ctx, "steps", g.tensor_count, sizeof *of, &of));
        b.s = *steps;
        add_graph(&b, &g, -1, of);
        add_outputs(&b, &g, of);
    } else if (layers) {
        TRY(assay_stack_config_of(ctx, c, &config));
        TRY(alloc_steps(ctx, &list, config.layers - config.first_layer, GRAPH_STEPS, GRAPH_TENSORS, steps));
        b.s = *steps;
        const int result = add_layers(&b, &config, whole, &y->spec.shape);
        b.prefix[0] = '\0';
        add_name(&b, "", "outputs/y", result, &y->spec.shape);
    } else {
        TRY(assay_moe_config_of(ctx, c, &config.moe));
        TRY(alloc_steps(ctx, &list, 1, GRAPH_STEPS, GRAPH_TENSORS, steps));
        b.s = *steps;
        const int result = add_experts(&b, &config.moe, add_given(&b, "inputs/x", "inputs/x"), &y->spec.shape);
        add_name(&b, "", "outputs/y", result, &y->spec.shape);
    }
cleanup:
    free(of);
    assay_tensor_list_free(&list);
    if (status != ASSAY_OK) {
        assay_steps_free(*steps);
        *steps = NULL;
    }
    return status;
}
