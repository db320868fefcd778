/* The block of experts as a step of a layer: its tensors are the layer's, but for those that stand between the two. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/layer/layer_internal.h"

/* The layer's source and sink under the block's own paths: "weights/X" is "weights/<prefix>moe/X", "routing/X" is "routing/<prefix>X" and so
 * on. x, y, what comes back through them and checkpoints that are kept for backward are the run's. */
typedef struct view {
    const graph_call *call; /* NULL: none of these are there */
    const assay_source *in;
    const assay_sink *out;
    const char *prefix;
    bool backward;                 /* gradients are written; else all others are */
    int64_t filled[GRAPH_TENSORS]; /* of the run's */
} view;

static void layer_path(const view *v, const char *path, char to[ASSAY_PATH_SIZE])
{
    const bool more =
        assay_begins(path, "gradients/") || assay_begins(path, "staged/") || assay_begins(path, "spread/");
    const char *folder = more ? strchr(path, '/') + 1 : path, *name = strchr(folder, '/') + 1;
    snprintf(to, ASSAY_PATH_SIZE, "%.*s%s%s%s", (int)(name - path), path, v->prefix,
             assay_begins(folder, "weights/") ? "moe/" : "", name);
}

/* A checkpoint that is kept, or will be. */
static double *kept_of(const view *v, const char *path, int *tensor)
{
    static const char folder[] = "checkpoints/";
    *tensor = assay_begins(path, folder) ? graph_find(v->call->graph, path + sizeof folder - 1) : 0;
    return v->call->run->value[*tensor];
}

/* These come from the run alone. */
static bool is_inside(const char *path)
{
    return strcmp(path, "inputs/x") == 0 || strcmp(path, "cotangents/y") == 0 || assay_begins(path, "checkpoints/");
}

static const double *given(const view *v, const char *path)
{
    int tensor;
    if (v->call == NULL) return NULL;
    if (strcmp(path, "inputs/x") == 0) return v->call->x[0];
    if (strcmp(path, "cotangents/y") == 0) return v->call->dy[0];
    return v->backward ? kept_of(v, path, &tensor) : NULL;
}

static double *taken(const view *v, const char *path, int *tensor)
{
    if (v->call == NULL) return NULL;
    *tensor = v->call->step->in[0];
    if (strcmp(path, "gradients/inputs/x") == 0) return v->call->dx[0];
    *tensor = v->call->step->out[0];
    if (strcmp(path, "outputs/y") == 0) return v->call->y[0];
    return v->backward ? NULL : kept_of(v, path, tensor);
}

static bool has(void *self, const char *path)
{
    const view *v = self;
    char outside[ASSAY_PATH_SIZE];
    layer_path(v, path, outside);
    return is_inside(path) ? given(v, path) != NULL : v->in->has(v->in->self, outside);
}

static assay_status read_f64(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                             double *out)
{
    const view *v = self;
    char outside[ASSAY_PATH_SIZE];
    layer_path(v, path, outside);
    if (!is_inside(path)) return v->in->read(ctx, v->in->self, outside, first, count, out);
    memcpy(out, given(v, path) + first, (size_t)count * sizeof *out);
    return ASSAY_OK;
}

static assay_status read_i32(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                             int32_t *out)
{
    const view *v = self;
    char outside[ASSAY_PATH_SIZE];
    layer_path(v, path, outside);
    return v->in->read_i32(ctx, v->in->self, outside, first, count, out);
}

static const double *lend(void *self, const char *path, int64_t first, int64_t count)
{
    const view *v = self;
    char outside[ASSAY_PATH_SIZE];
    layer_path(v, path, outside);
    if (is_inside(path)) return given(v, path) == NULL ? NULL : given(v, path) + first;
    return v->in->lend == NULL ? NULL : v->in->lend(v->in->self, outside, first, count);
}

/* Gradients that a recipe quantises are checkpoints. */
static bool is_wanted(const view *v, const char *path, char outside[ASSAY_PATH_SIZE])
{
    const bool gradient = assay_begins(path, "gradients/") || strstr(path, "_gradient") != NULL;
    const bool own = strcmp(path, "outputs/y") == 0 || strcmp(path, "gradients/inputs/x") == 0;
    layer_path(v, path, outside);
    return gradient == v->backward && !own && assay_wants(v->out, outside);
}

static bool wants(void *self, const char *path)
{
    int tensor;
    char outside[ASSAY_PATH_SIZE];
    return taken(self, path, &tensor) != NULL || is_wanted(self, path, outside);
}

static assay_status write_f64(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    view *v = self;
    int tensor;
    char outside[ASSAY_PATH_SIZE];
    double *to = taken(v, path, &tensor);
    if (to != NULL) {
        int64_t *filled = &v->filled[tensor];
        if (*filled + count > graph_size(v->call->graph, tensor))
            return assay_fail(ctx, ASSAY_INTERNAL, "%s%s: the layer has no room for so many", v->prefix, path);
        memcpy(to + *filled, values, (size_t)count * sizeof *values);
        *filled += count;
    }
    return is_wanted(v, path, outside) ? v->out->write(ctx, v->out->self, outside, count, values) : ASSAY_OK;
}

static assay_status write_i32(assay_context *ctx, void *self, const char *path, int64_t count, const int32_t *values)
{
    const view *v = self;
    char outside[ASSAY_PATH_SIZE];
    return is_wanted(v, path, outside) ? v->out->write_i32(ctx, v->out->self, outside, count, values) : ASSAY_OK;
}

/* Gradients of weights. */
static assay_status write_zeros(assay_context *ctx, void *self, const char *path, int64_t count)
{
    const view *v = self;
    char outside[ASSAY_PATH_SIZE];
    return is_wanted(v, path, outside) ? v->out->write_zeros(ctx, v->out->self, outside, count) : ASSAY_OK;
}

static assay_source source_of(view *v)
{
    return (assay_source){.self = v, .has = has, .read = read_f64, .read_i32 = read_i32, .lend = lend};
}

static assay_sink sink_of(view *v)
{
    return (assay_sink){.self = v,
                        .wants = wants,
                        .write = write_f64,
                        .write_i32 = write_i32,
                        .write_zeros = v->out->write_zeros != NULL ? write_zeros : NULL};
}

bool layer_moe_wants_gradient(const stack_run *run, const char *prefix)
{
    view v = {.in = run->in, .out = run->out, .prefix = prefix, .backward = true};
    const assay_source in = source_of(&v);
    const assay_sink out = sink_of(&v);
    return assay_moe_wants_gradient(&run->config->moe, &in, &out);
}

/* Back where something flows back. */
static assay_status run_block(assay_context *ctx, const graph_call *c)
{
    const assay_stack_config *config = c->step->with.block;
    view v = {.call = c, .in = c->run->in, .out = c->run->out, .prefix = c->run->prefix, .backward = c->dy[0] != NULL};
    const assay_source in = source_of(&v);
    const assay_sink out = sink_of(&v);
    return assay_moe_run(ctx, &config->moe, &config->sharding, &in, &out);
}

static assay_status backward(assay_context *ctx, const graph_call *c)
{
    MUST(run_block(ctx, c));
    graph_round_gradient(ctx, c, 0);
    for (int t = 1; t < c->graph->tensor_count; t++)
        if (c->graph->tensors[t].role == GRAPH_ASIDE) free(graph_release_value(c->run, t));
    return ASSAY_OK;
}

static double operations(const graph *g, const graph_step *step, int out)
{
    const assay_stack_config *config = step->with.block;
    (void)g, (void)out;
    return assay_moe_flops(&config->moe, false);
}

static double backward_operations(const graph *g, const graph_step *step)
{
    const assay_stack_config *config = step->with.block;
    (void)g;
    return assay_moe_flops(&config->moe, true);
}

const graph_kind assay_kind_experts = {.name = "experts",
                                       .reads = 1,
                                       .forward = run_block,
                                       .backward = backward,
                                       .operations = operations,
                                       .backward_operations = backward_operations};

double layer_moe_recomputed(const assay_stack_config *config, const bool kept[ASSAY_REMAT_SLOTS])
{
    const assay_moe_config *moe = &config->moe;
    const assay_routing_config *routing = &moe->routing;
    const double tokens = (double)routing->batch * (double)routing->sequence, dim = (double)moe->emb_dim;
    /* of one branch; a fused product is two */
    const double shared = 2 * tokens * dim * (double)moe->shared_mlp_dim;
    const double rows = tokens * (double)(moe->path == ASSAY_MOE_DENSE ? routing->num_experts : assay_moe_slots(moe));
    const double routed = 2 * rows * dim * (double)moe->moe_mlp_dim;
    const double gate = 2 * tokens * dim * (double)routing->num_experts; /* whose logits have no name */
    const int up = moe->fused_weights ? 2 * !kept[ASSAY_REMAT_MOE_MLPWI]
                                      : !kept[ASSAY_REMAT_MOE_MLPWI_0] + !kept[ASSAY_REMAT_MOE_MLPWI_1];
    /* the gradient of the routing weights needs moe_mlpwo */
    return gate + shared * (!kept[ASSAY_REMAT_MLPWI_0] + !kept[ASSAY_REMAT_MLPWI_1]) +
           routed * (up + !kept[ASSAY_REMAT_MOE_MLPWO]);
}
