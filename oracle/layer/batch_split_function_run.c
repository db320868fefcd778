/* A function of the batch-split module from tensors to tensors: reading, calling, writing; its gradient by its _bwd; and
 * the inputs that follow from others. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/layer/batch_split_function_internal.h"
#include "oracle/ops/gmm.h"
#include "oracle/ops/vector_sums.h"

/* --- the context of a call --- */

static bool has_none(void *self, const char *path)
{
    (void)self, (void)path;
    return false;
}

static const assay_source no_source = {.has = has_none};
static const assay_sink no_sink = {.wants = has_none};

static void call_close(bs_call *c)
{
    if (c == NULL) return;
    bs_weights_free(&c->w);
    bs_weights_free(&c->g);
    for (int i = 0; i < 3; i++) bs_weights_free(&c->bundles[i]);
    for (int i = 0; i < ASSAY_MOST_MICROBATCHES; i++) {
        bs_microbatch_free(&c->b[i], &c->run);
        bs_microbatch_free(&c->d[i], &c->run);
    }
    assay_schedule_free(&c->run.schedule);
    assay_remat_close(c->stack.store);
    free(c);
}

/* Of the function, in the place of the configuration's. */
static assay_status call_open(assay_context *ctx, const assay_function_config *config,
                              const assay_batch_split_function *f, bs_call **opened)
{
    bs_call *c = NULL;
    MUST(assay_alloc(ctx, "call", 1, sizeof **opened, &c));
    *opened = memset(c, 0, sizeof *c);
    c->config = *config;
    c->config.function = f;
    assay_function_tensors_of(&c->config, &c->tensors);
    c->stack = (stack_run){.config = &c->config.stack, .in = &no_source, .out = &no_sink};
    c->made = (bs_intermediates){.in = &no_source, .out = &no_sink, .prefix = ""};
    bs_run_of(&c->run, &c->stack);
    c->parts = 1;
    for (int i = 0; i < c->tensors.count; i++)
        if (strchr(c->tensors.items[i].axes, 'j') != NULL) c->parts = c->run.factor;
    return assay_remat_open(ctx, &c->stack.store, &config->stack.policy, config->stack.layers);
}

/* --- tensors --- */

static bool is_weight(const assay_function_tensor *t)
{
    return t->weight >= 0 && t->bundle < 0;
}

/* The microbatches that it has an axis for; without one it is the last one's of a list. */
static int64_t parts_of(const assay_function_tensor *t)
{
    return t->weight < 0 && strpbrk(t->axes, "jo") != NULL ? t->shape.dims[1] : 1;
}

static bs_microbatch *microbatch_of(bs_call *c, const assay_function_tensor *t, int64_t m)
{
    return &(t->gradient ? c->d : c->b)[strpbrk(t->axes, "jo") != NULL ? m : c->parts - 1];
}

static int32_t **indices_of(bs_call *c, const assay_function_tensor *t)
{
    return &microbatch_of(c, t, 0)->indices[t->tensor];
}

/* Where the numbers of microbatch m are. */
static double **values_of(bs_call *c, const assay_function_tensor *t, int64_t m)
{
    if (t->bundle >= 0) return &c->bundles[t->bundle].values[t->weight];
    if (t->weight >= 0) return t->result ? &c->g.values[t->weight] : &c->w.values[t->weight];
    return &microbatch_of(c, t, m)->values[t->tensor];
}

static assay_status tensor_alloc(assay_context *ctx, bs_call *c, const assay_function_tensor *t)
{
    const int64_t count = assay_shape_count(&t->shape) / parts_of(t);
    if (is_weight(t)) {
        const int64_t each = bs_weight_count(&c->run, t->weight, true);
        return bs_alloc_shards(ctx, &c->run, t->path, each, 1, sizeof(double), values_of(c, t, 0));
    }
    if (t->integers) return assay_alloc_i32(ctx, t->path, count, indices_of(c, t));
    for (int64_t m = 0; m < parts_of(t); m++) MUST(assay_alloc_f64(ctx, t->path, count, values_of(c, t, m)));
    return ASSAY_OK;
}

/* Numbers that lie together: [M,f,...] outside, of each microbatch [M,...]. */
static double *piece_of(bs_call *c, const assay_function_tensor *t, int64_t number, int64_t *width)
{
    const int64_t parts = parts_of(t), shards = parts > 1 ? c->run.sizes.shards : 1;
    *width = assay_shape_count(&t->shape) / (shards * parts);
    return number == shards * parts ? NULL : *values_of(c, t, number % parts) + number / parts * *width;
}

/* A weight as every shard of its experts has it. */
static void scatter_weight(bs_call *c, const assay_function_tensor *t, const double *whole)
{
    const int64_t local = bs_weight_count(&c->run, t->weight, true), parts = assay_shape_count(&t->shape) / local;
    for (int64_t shard = 0; shard < c->run.sizes.shards; shard++) {
        const int64_t part = parts == 1 ? 0 : assay_mesh_index(c->run.mesh, shard, ASSAY_AXIS_EXPERT);
        memcpy(c->w.values[t->weight] + shard * local, whole + part * local, (size_t)local * sizeof *whole);
    }
}

/* Of a pair's two equal angles one. */
static assay_status halve(assay_context *ctx, const char *path, const double *angles, int64_t count, double *half)
{
    for (int64_t i = 0; i < count; i += 2) {
        half[i / 2] = angles[i];
        if (angles[i] == angles[i + 1]) continue;
        return assay_refuse(ctx, "%s[%" PRId64 "] is %g and the next one %g, expected the two of a pair to be equal",
                            path, i, angles[i], angles[i + 1]);
    }
    return ASSAY_OK;
}

/* Sizes of groups [M,e] are those of rows that a shard has. */
static assay_status check_groups(assay_context *ctx, const bs_call *c, const assay_function_tensor *t,
                                 const int32_t *sizes)
{
    int64_t rows = 0;
    const assay_gmm_dims dims = {.m = bs_axis_size(&c->run, 'r'), .groups = t->shape.dims[1]};
    for (int64_t shard = 0; shard < t->shape.dims[0]; shard++)
        MUST(assay_gmm_check_groups(ctx, sizes + shard * dims.groups, &dims, &rows));
    return ASSAY_OK;
}

static assay_status read_tensor(assay_context *ctx, bs_call *c, const assay_function_tensor *t, const char *path,
                                const assay_source *in)
{
    const int64_t count = assay_shape_count(&t->shape);
    OWNED double *whole = NULL;
    int64_t width;
    double *to;
    MUST(tensor_alloc(ctx, c, t));
    if (t->integers) {
        int32_t *indices = *indices_of(c, t);
        MUST(in->read_i32(ctx, in->self, path, 0, count, indices));
        return t->holds == ASSAY_HOLDS_OWN_COUNTS ? check_groups(ctx, c, t, indices) : ASSAY_OK;
    }
    if (is_weight(t)) {
        MUST(assay_alloc_f64(ctx, path, count, &whole));
        MUST(in->read(ctx, in->self, path, 0, count, whole));
        scatter_weight(c, t, whole);
        return ASSAY_OK;
    }
    for (int64_t i = 0; (to = piece_of(c, t, i, &width)) != NULL; i++) {
        MUST(in->read(ctx, in->self, path, i * width, width, to));
        if (t->holds == ASSAY_HOLDS_RESIDUAL) assay_round(ctx, ASSAY_ROUND_STORAGE, width, to);
    }
    for (int64_t m = 0; t->holds == ASSAY_HOLDS_ANGLES && m < parts_of(t); m++) {
        double *angles = *values_of(c, t, m);
        MUST(halve(ctx, path, angles, count / parts_of(t), angles));
    }
    return ASSAY_OK;
}

/* residuals: read; else they are left out. */
static assay_status read_all(assay_context *ctx, bs_call *c, const assay_source *in, bool residuals)
{
    for (int i = 0; i < c->tensors.count; i++) {
        const assay_function_tensor *t = &c->tensors.items[i];
        if (t->result || (t->holds == ASSAY_HOLDS_RESIDUAL && !residuals)) continue;
        MUST(read_tensor(ctx, c, t, t->path, in));
    }
    return ASSAY_OK;
}

/* What the layer has is made by who computes it. */
static assay_status evaluate(assay_context *ctx, bs_call *c)
{
    for (int i = 0; i < c->tensors.count; i++) {
        const assay_function_tensor *t = &c->tensors.items[i];
        if (t->result && (t->weight >= 0 || t->tensor >= MB_OTHER_IN)) MUST(tensor_alloc(ctx, c, t));
    }
    return bs_call_function(ctx, c);
}

static assay_status write_tensor(assay_context *ctx, bs_call *c, const assay_function_tensor *t, const char *path,
                                 const assay_sink *out)
{
    int64_t width;
    const double *from;
    if (!assay_wants(out, path)) return ASSAY_OK;
    if (t->integers) return out->write_i32(ctx, out->self, path, assay_shape_count(&t->shape), *indices_of(c, t));
    for (int64_t i = 0; (from = piece_of(c, t, i, &width)) != NULL; i++)
        MUST(out->write(ctx, out->self, path, width, from));
    return ASSAY_OK;
}

/* --- the gradient of a forward function --- */

/* cotangents/Y as Y_grad; zero where the source has none. */
static assay_status read_cotangent(assay_context *ctx, bs_call *c, const assay_function_tensor *t,
                                   const assay_source *in)
{
    char path[ASSAY_PATH_SIZE];
    int64_t width;
    double *to;
    snprintf(path, sizeof path, "cotangents/%.140s", strchr(t->of, '/') + 1);
    if (in->has(in->self, path)) return read_tensor(ctx, c, t, path, in);
    MUST(tensor_alloc(ctx, c, t));
    for (int64_t i = 0; (to = piece_of(c, t, i, &width)) != NULL; i++) memset(to, 0, (size_t)width * sizeof *to);
    return ASSAY_OK;
}

/* Another function on what the last one was given, or left. */
static void go_on(bs_call *c, const assay_batch_split_function *f)
{
    bool given[MB_TENSORS] = {false};
    c->config.function = f;
    assay_function_tensors_of(&c->config, &c->tensors);
    for (int i = 0; i < c->tensors.count; i++) {
        const assay_function_tensor *t = &c->tensors.items[i];
        given[t->tensor] |= !t->result && !t->gradient;
    }
    for (int64_t m = 0; m < c->parts; m++) {
        for (int tensor = 0; tensor < MB_TENSORS; tensor++)
            if (!given[tensor]) bs_drop(&c->b[m], (bs_tensor)tensor);
        assay_routing_free(&c->b[m].routing);
    }
}

/* The whole weight's gradient: the sum of what its shards have, each of which may be stored. */
static assay_status write_weight_gradient(assay_context *ctx, bs_call *c, const assay_function_tensor *t,
                                          const char *path, const assay_sink *out)
{
    const assay_tensor_row row = bs_weight_row(&c->run, t->weight);
    const int64_t count = assay_tensor_row_count(&row), local = bs_weight_count(&c->run, t->weight, true);
    const int64_t shards = row.kind == ASSAY_KERNEL ? c->run.sizes.shards : 1, parts = count / local;
    OWNED double *whole = NULL;
    double *each = c->g.values[t->weight];
    if (!assay_wants(out, path)) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, path, count, &whole));
    if (shards > parts) assay_round(ctx, ASSAY_ROUND_STORAGE, shards * local, each);
    for (int64_t shard = 0; shard < shards; shard++) {
        const int64_t part = parts > 1 ? assay_mesh_index(c->run.mesh, shard, ASSAY_AXIS_EXPERT) : 0;
        if (shard < parts) {
            memcpy(whole + part * local, each + shard * local, (size_t)local * sizeof *whole);
        } else {
            assay_add(ctx, local, each + shard * local, whole + part * local);
        }
    }
    return out->write(ctx, out->self, path, count, whole);
}

static void gradient_path(const assay_function_tensor *t, char path[ASSAY_PATH_SIZE])
{
    snprintf(path, ASSAY_PATH_SIZE, "gradients/%.140s", t->of);
}

static bool wants_gradient(const bs_call *c, const assay_sink *out)
{
    const assay_batch_split_function *bwd = c->config.function;
    bool wanted = false;
    char path[ASSAY_PATH_SIZE];
    for (int i = 0; i < BS_MOST_INTERMEDIATES && bwd->made[i].name != NULL; i++) {
        snprintf(path, sizeof path, "checkpoints/%.140s", bwd->made[i].name);
        wanted |= assay_wants(out, path);
    }
    for (int i = 0; i < c->tensors.count; i++) {
        gradient_path(&c->tensors.items[i], path);
        wanted |= c->tensors.items[i].result && assay_wants(out, path);
    }
    return wanted;
}

static assay_status run_gradient(assay_context *ctx, bs_call *c, const assay_source *in, const assay_sink *out)
{
    const assay_batch_split_function *bwd = assay_function_backward(c->config.function);
    if (bwd == NULL) return ASSAY_OK;
    go_on(c, bwd);
    if (!wants_gradient(c, out)) return ASSAY_OK;
    c->made.after_forward = true;
    for (int i = 0; i < c->tensors.count; i++) {
        const assay_function_tensor *t = &c->tensors.items[i];
        double *kept;
        int64_t width;
        if (!t->result && t->gradient) MUST(read_cotangent(ctx, c, t, in));
        for (int64_t k = 0; t->holds == ASSAY_HOLDS_RESIDUAL && (kept = piece_of(c, t, k, &width)) != NULL; k++)
            assay_round(ctx, ASSAY_ROUND_STORAGE, width, kept);
    }
    MUST(evaluate(ctx, c));
    for (int i = 0; i < c->tensors.count; i++) {
        const assay_function_tensor *t = &c->tensors.items[i];
        char path[ASSAY_PATH_SIZE];
        gradient_path(t, path);
        if (!t->result) continue;
        MUST(is_weight(t) ? write_weight_gradient(ctx, c, t, path, out) : write_tensor(ctx, c, t, path, out));
    }
    return ASSAY_OK;
}

/* --- the contract --- */

assay_status assay_function_run(assay_context *ctx, const assay_function_config *config, const assay_source *in,
                                const assay_sink *out)
{
    assay_status status;
    bs_call *c = NULL;
    TRY(call_open(ctx, config, config->function, &c));
    c->made = (bs_intermediates){.in = in, .out = out, .prefix = ""};
    TRY(read_all(ctx, c, in, true));
    TRY(evaluate(ctx, c));
    for (int i = 0; i < c->tensors.count; i++) {
        const assay_function_tensor *t = &c->tensors.items[i];
        if (t->result) TRY(write_tensor(ctx, c, t, t->path, out));
    }
    TRY(run_gradient(ctx, c, in, out));
cleanup:
    call_close(c);
    return status;
}

/* What the forward function leaves under that name, from the arguments of its _bwd. */
static assay_status derive_residual(assay_context *ctx, bs_call *c, const assay_function_tensor *tensor,
                                    const assay_source *in, double *values)
{
    int64_t width;
    const double *from;
    MUST(read_all(ctx, c, in, false));
    go_on(c, assay_function_forward(c->config.function));
    MUST(evaluate(ctx, c));
    for (int64_t i = 0; (from = piece_of(c, tensor, i, &width)) != NULL; i++)
        memcpy(values + i * width, from, (size_t)width * sizeof *values);
    return ASSAY_OK;
}

/* What follows from the choices of each shard's own tokens. */
static assay_status derive_integers(assay_context *ctx, bs_call *c, const assay_function_tensor *tensor,
                                    const int32_t *choices, int32_t *indices)
{
    bs_lend_indices(c->b, MB_CHOICES, choices);
    MUST(bs_count_choices(ctx, &c->run, c->b));
    MUST(bs_gather_choices(ctx, &c->run, c->b));
    memcpy(indices, c->b->indices[tensor->tensor], (size_t)assay_shape_count(&tensor->shape) * sizeof *indices);
    return ASSAY_OK;
}

/* The shards along `same` take what the first of them has. */
static void share(const assay_function_config *config, const assay_function_tensor *tensor, double *values)
{
    const assay_mesh *mesh = &config->stack.sharding.mesh;
    const int64_t shards = assay_mesh_shards(mesh), count = assay_shape_count(&tensor->shape) / shards;
    for (int64_t shard = 0; shard < shards; shard++) {
        int64_t first = shard;
        for (int axis = 0; axis < ASSAY_MESH_AXES; axis++) {
            if ((tensor->same & 1u << axis) != 0) first = assay_mesh_peer(mesh, first, (assay_mesh_axis)axis, 0);
        }
        if (first != shard) memcpy(values + shard * count, values + first * count, (size_t)count * sizeof *values);
    }
}

assay_status assay_function_derive(assay_context *ctx, const assay_function_config *config,
                                   const assay_function_tensor *tensor, const assay_source *in, const int32_t *choices,
                                   double *values, int32_t *indices)
{
    assay_status status = ASSAY_OK;
    const int64_t count = assay_shape_count(&tensor->shape);
    bs_call *c = NULL;
    if (tensor->holds == ASSAY_HOLDS_SHARED) {
        share(config, tensor, values);
    } else if (tensor->holds == ASSAY_HOLDS_ANGLES) {
        for (int64_t i = 0; i < count; i += 2) values[i + 1] = values[i];
    } else {
        TRY(call_open(ctx, config, config->function, &c));
        TRY(indices != NULL ? derive_integers(ctx, c, tensor, choices, indices)
                            : derive_residual(ctx, c, tensor, in, values));
    }
cleanup:
    call_close(c);
    return status;
}
