/* A function of the batch-split module from tensors to tensors: reading, calling, writing; its gradient by its _bwd; and
 * the inputs that follow from others. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/layer/batch_split_function_internal.h"
#include "oracle/mesh/collectives.h"
#include "oracle/mesh/shard_rows.h"
#include "oracle/ops/vector_sums.h"

double *bs_part(const bs_slot *slot, int64_t i)
{
    return slot->values == NULL ? NULL : slot->values + i * slot->count;
}

void bs_copy_out(const bs_slot *to, const double *from)
{
    memcpy(to->values, from, (size_t)to->count * sizeof *from);
}

void bs_copy_indices_out(const bs_slot *to, const int32_t *from)
{
    memcpy(to->indices, from, (size_t)to->count * sizeof *from);
}

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
    for (int i = 0; i < BS_MOST_ARGUMENTS; i++) {
        free(c->in[i].values);
        free(c->in[i].indices);
        free(c->out[i].values);
        free(c->out[i].indices);
    }
    bs_weights_free(&c->w);
    bs_weights_free(&c->g);
    for (int i = 0; i < 3; i++) bs_weights_free(&c->bundles[i]);
    for (int i = 0; i < ASSAY_MOST_MICROBATCHES; i++) free(c->run.yarn_freqs[i]);
    assay_schedule_free(&c->run.schedule);
    assay_remat_close(c->stack.store);
    free(c);
}

static assay_status call_open(assay_context *ctx, const assay_function_config *config, bs_call **opened)
{
    assay_status status;
    void *memory = NULL;
    TRY(assay_alloc(ctx, "call", 1, sizeof **opened, &memory));
    bs_call *c = memory;
    *opened = memset(c, 0, sizeof *c);
    c->config = config;
    c->stack = (stack_run){.config = &config->stack, .in = &no_source, .out = &no_sink};
    c->made = (bs_made){.in = &no_source, .out = &no_sink};
    bs_run_of(&c->run, &c->stack);
    TRY(assay_remat_open(ctx, &c->stack.store, &config->stack.policy, config->stack.layers));
cleanup:
    return status;
}

/* Numbers of a microbatch, and how many microbatches the tensor has; 0: it is not there. */
static int64_t slot_sizes(const bs_call *c, const bs_tensor_form *form, int64_t *microbatches)
{
    int64_t count = 1;
    *microbatches = 1;
    for (const char *axis = form->axes; *axis != '\0'; axis++) {
        const int64_t size = bs_axis_size(c->config, &c->run, *axis);
        if (*axis == 'j' || *axis == 'o') {
            *microbatches = size;
        } else {
            count *= size;
        }
    }
    return *microbatches == 0 ? 0 : count;
}

static bool is_integer(const bs_tensor_form *form)
{
    return form->holds == ASSAY_HOLDS_CHOICES || form->holds == ASSAY_HOLDS_POSITIONS ||
           form->holds == ASSAY_HOLDS_LAYER || form->holds == ASSAY_HOLDS_INTEGERS ||
           form->holds == ASSAY_HOLDS_COUNTS || form->holds == ASSAY_HOLDS_ROLLED ||
           form->holds == ASSAY_HOLDS_OWN_COUNTS;
}

static assay_status slot_alloc(assay_context *ctx, const bs_call *c, const bs_tensor_form *form, bs_slot *slot)
{
    int64_t microbatches = 0;
    slot->count = slot_sizes(c, form, &microbatches);
    if (slot->count == 0) return ASSAY_OK;
    return is_integer(form) ? assay_alloc_i32(ctx, form->name, slot->count * microbatches, &slot->indices)
                            : assay_alloc_f64(ctx, form->name, slot->count * microbatches, &slot->values);
}

/* Between [M,f,...] and [f,M,...]. */
static void turn(double *to, const double *from, int64_t rows, int64_t columns, int64_t width)
{
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t column = 0; column < columns; column++) {
            memcpy(to + (column * rows + row) * width, from + (row * columns + column) * width,
                   (size_t)width * sizeof *to);
        }
    }
}

/* --- reading --- */

static void path_in(char path[ASSAY_PATH_SIZE], const char *folder, const char *group, const char *name)
{
    snprintf(path, ASSAY_PATH_SIZE, "%s/%s%s%.100s", folder, group, group[0] != '\0' ? "/" : "", name);
}

static assay_status check_pairs(assay_context *ctx, const char *path, const double *angles, int64_t count)
{
    for (int64_t i = 0; i < count; i += 2) {
        if (angles[i] == angles[i + 1]) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "%s[%" PRId64 "] is %g and the next one %g, expected the two of a pair to be equal", path, i,
                          angles[i], angles[i + 1]);
    }
    return ASSAY_OK;
}

static assay_status read_slot(assay_context *ctx, const bs_call *c, const bs_tensor_form *form, const assay_source *in,
                              bs_slot *slot)
{
    assay_status status;
    char path[ASSAY_PATH_SIZE];
    int64_t microbatches = 0;
    double *raw = NULL;
    path_in(path, "inputs", "", form->name);
    TRY(slot_alloc(ctx, c, form, slot));
    if (slot->count == 0) goto cleanup;
    slot_sizes(c, form, &microbatches);
    const int64_t total = slot->count * microbatches;
    if (slot->indices != NULL) {
        TRY(in->read_i32(ctx, in->self, path, 0, total, slot->indices));
        goto cleanup;
    }
    TRY(in->read(ctx, in->self, path, 0, total, slot->values));
    if (form->holds == ASSAY_HOLDS_RESIDUAL) assay_round(ctx, ASSAY_ROUND_STORAGE, total, slot->values);
    if (form->holds == ASSAY_HOLDS_ANGLES) TRY(check_pairs(ctx, path, slot->values, total));
    if (microbatches == 1) goto cleanup;
    TRY(assay_alloc_f64(ctx, path, total, &raw));
    memcpy(raw, slot->values, (size_t)total * sizeof *raw);
    turn(slot->values, raw, c->run.sizes.shards, microbatches, slot->count / c->run.sizes.shards);
cleanup:
    free(raw);
    return status;
}

/* A weight as every shard of its experts has it. */
static assay_status read_weight(assay_context *ctx, bs_call *c, const bs_weight_form *form, const assay_source *in)
{
    assay_status status;
    char path[ASSAY_PATH_SIZE];
    const assay_tensor_row row = bs_weight_row(&c->run, form->weight);
    const int64_t count = assay_tensor_row_count(&row), local = bs_weight_count(&c->run, form->weight, true);
    double *whole = NULL, **values = &c->w.values[form->weight];
    path_in(path, "weights", "", form->name);
    TRY(assay_alloc_f64(ctx, path, count, &whole));
    TRY(in->read(ctx, in->self, path, 0, count, whole));
    TRY(bs_alloc_shards(ctx, &c->run, path, local, 1, values));
    for (int64_t shard = 0; shard < c->run.sizes.shards; shard++) {
        const int64_t part = local == count ? 0 : assay_mesh_index(c->run.mesh, shard, ASSAY_AXIS_EXPERT);
        memcpy(*values + shard * local, whole + part * local, (size_t)local * sizeof *whole);
    }
cleanup:
    free(whole);
    return status;
}

static assay_status gradients_alloc(assay_context *ctx, bs_call *c, const assay_batch_split_function *f)
{
    assay_status status = ASSAY_OK;
    for (const bs_weight_form *form = f->weights; form != NULL && form->name != NULL; form++) {
        const int64_t count = bs_weight_count(&c->run, form->weight, true);
        TRY(bs_alloc_shards(ctx, &c->run, form->name, count, 1, &c->g.values[form->weight]));
    }
cleanup:
    return status;
}

/* residuals: read; else they are left out. */
static assay_status read_all(assay_context *ctx, bs_call *c, const assay_batch_split_function *f,
                             const assay_source *in, bool residuals)
{
    assay_status status = ASSAY_OK;
    for (int i = 0; i < BS_MOST_ARGUMENTS && f->in[i].name != NULL; i++) {
        if (f->in[i].holds == ASSAY_HOLDS_RESIDUAL && !residuals) continue;
        TRY(read_slot(ctx, c, &f->in[i], in, &c->in[i]));
    }
    for (const bs_weight_form *form = f->weights; form != NULL && form->name != NULL; form++)
        TRY(read_weight(ctx, c, form, in));
cleanup:
    return status;
}

static assay_status results_alloc(assay_context *ctx, bs_call *c, const assay_batch_split_function *f)
{
    assay_status status = ASSAY_OK;
    for (int i = 0; i < BS_MOST_ARGUMENTS && f->out[i].name != NULL; i++)
        TRY(slot_alloc(ctx, c, &f->out[i], &c->out[i]));
    if (f->forward != NULL) TRY(gradients_alloc(ctx, c, f));
cleanup:
    return status;
}

/* The function itself; gradients of scales and biases are sums afterwards. */
static assay_status evaluate(assay_context *ctx, bs_call *c, const assay_batch_split_function *f)
{
    assay_status status;
    c->function = f;
    TRY(results_alloc(ctx, c, f));
    TRY(f->call(ctx, c));
    for (const bs_weight_form *form = f->weights; f->forward != NULL && form != NULL && form->name != NULL; form++) {
        if (f->summed || bs_weight_row(&c->run, form->weight).kind == ASSAY_KERNEL) continue;
        bs_sum_over_shards(ctx, &c->run, c->g.values[form->weight], bs_weight_count(&c->run, form->weight, true));
    }
cleanup:
    return status;
}

/* --- writing --- */

static assay_status write_slot(assay_context *ctx, const bs_call *c, const bs_tensor_form *form, const bs_slot *slot,
                               const char *path, const assay_sink *out)
{
    assay_status status = ASSAY_OK;
    int64_t microbatches = 0;
    double *turned = NULL;
    if (slot->count == 0 || !out->wants(out->self, path)) return ASSAY_OK;
    slot_sizes(c, form, &microbatches);
    const int64_t total = slot->count * microbatches;
    if (slot->indices != NULL) return out->write_i32(ctx, out->self, path, total, slot->indices);
    if (microbatches == 1) return out->write(ctx, out->self, path, total, slot->values);
    TRY(assay_alloc_f64(ctx, path, total, &turned));
    turn(turned, slot->values, microbatches, c->run.sizes.shards, slot->count / c->run.sizes.shards);
    TRY(out->write(ctx, out->self, path, total, turned));
cleanup:
    free(turned);
    return status;
}

static assay_status write_results(assay_context *ctx, const bs_call *c, const assay_batch_split_function *f,
                                  const assay_sink *out)
{
    assay_status status = ASSAY_OK;
    char path[ASSAY_PATH_SIZE], name[ASSAY_PATH_SIZE];
    for (int i = 0; i < BS_MOST_ARGUMENTS && f->out[i].name != NULL; i++) {
        path_in(path, "outputs", "", f->out[i].name);
        TRY(write_slot(ctx, c, &f->out[i], &c->out[i], path, out));
    }
    for (const bs_weight_form *form = f->weights; f->forward != NULL && form != NULL && form->name != NULL; form++) {
        const bool own = bs_weight_row(&c->run, form->weight).kind == ASSAY_KERNEL;
        const int64_t count = bs_weight_count(&c->run, form->weight, true);
        snprintf(name, sizeof name, "%.140s_grad", form->name);
        path_in(path, "outputs", "", name);
        if (!out->wants(out->self, path)) continue;
        TRY(out->write(ctx, out->self, path, own ? c->run.sizes.shards * count : count, c->g.values[form->weight]));
    }
cleanup:
    return status;
}

/* --- the gradient of a forward function --- */

/* The place of a name; -1: there is none. */
static int place_of(const bs_tensor_form *forms, const char *name)
{
    for (int i = 0; i < BS_MOST_ARGUMENTS && forms[i].name != NULL; i++) {
        if (strcmp(forms[i].name, name) == 0) return i;
    }
    return -1;
}

static bool is_gradient(const char *name, char of[ASSAY_PATH_SIZE])
{
    const size_t length = strlen(name);
    snprintf(of, ASSAY_PATH_SIZE, "%.*s", (int)(length > 5 ? length - 5 : 0), name);
    return length > 5 && strcmp(name + length - 5, "_grad") == 0;
}

/* A copy of what the forward call has: an argument, or what it left. */
static assay_status take(assay_context *ctx, const bs_call *forward, const assay_batch_split_function *f,
                         const bs_tensor_form *form, bs_slot *slot)
{
    const char *name = form->of != NULL ? form->of : form->name;
    const int argument = place_of(f->in, name), result = place_of(f->out, name);
    const bool is_argument =
        form->holds != ASSAY_HOLDS_RESIDUAL && argument >= 0 && strcmp(f->in[argument].axes, form->axes) == 0;
    const bs_slot *from = is_argument ? &forward->in[argument] : &forward->out[result];
    int64_t microbatches = 0;
    slot_sizes(forward, form, &microbatches);
    if (from->values != NULL)
        memcpy(slot->values, from->values, (size_t)(from->count * microbatches) * sizeof *slot->values);
    if (from->indices != NULL)
        memcpy(slot->indices, from->indices, (size_t)(from->count * microbatches) * sizeof *slot->indices);
    if (form->holds == ASSAY_HOLDS_RESIDUAL)
        assay_round(ctx, ASSAY_ROUND_STORAGE, from->count * microbatches, slot->values);
    return ASSAY_OK;
}

/* cotangents/Y as Y_grad; zero where the source has none. */
static assay_status read_cotangent(assay_context *ctx, const bs_call *c, const bs_tensor_form *form, const char *of,
                                   const assay_source *in, bs_slot *slot)
{
    assay_status status = ASSAY_OK;
    char path[ASSAY_PATH_SIZE];
    int64_t microbatches = 0;
    double *raw = NULL;
    slot_sizes(c, form, &microbatches);
    const int64_t total = slot->count * microbatches;
    path_in(path, "cotangents", "", of);
    memset(slot->values, 0, (size_t)total * sizeof *slot->values);
    if (!in->has(in->self, path)) return ASSAY_OK;
    TRY(assay_alloc_f64(ctx, path, total, &raw));
    TRY(in->read(ctx, in->self, path, 0, total, raw));
    if (microbatches == 1) {
        memcpy(slot->values, raw, (size_t)total * sizeof *raw);
    } else {
        turn(slot->values, raw, c->run.sizes.shards, microbatches, slot->count / c->run.sizes.shards);
    }
cleanup:
    free(raw);
    return status;
}

static assay_status fill_backward(assay_context *ctx, bs_call *c, const bs_call *forward,
                                  const assay_batch_split_function *f, const assay_batch_split_function *bwd,
                                  const assay_source *in)
{
    assay_status status = ASSAY_OK;
    for (int i = 0; i < BS_MOST_ARGUMENTS && bwd->in[i].name != NULL; i++) {
        char of[ASSAY_PATH_SIZE];
        const bs_tensor_form *form = &bwd->in[i];
        TRY(slot_alloc(ctx, c, form, &c->in[i]));
        if (c->in[i].count == 0) continue;
        if (is_gradient(form->name, of)) {
            TRY(read_cotangent(ctx, c, form, of, in, &c->in[i]));
        } else {
            TRY(take(ctx, forward, f, form, &c->in[i]));
        }
    }
    for (const bs_weight_form *form = bwd->weights; form != NULL && form->name != NULL; form++) {
        const int64_t count = bs_weight_count(&c->run, form->weight, true);
        TRY(bs_alloc_shards(ctx, &c->run, form->name, count, 1, &c->w.values[form->weight]));
        memcpy(c->w.values[form->weight], forward->w.values[form->weight],
               (size_t)(c->run.sizes.shards * count) * sizeof(double));
    }
cleanup:
    return status;
}

/* The whole weight's gradient: the sum of what its shards have, each of which may be stored. */
static assay_status write_weight_gradient(assay_context *ctx, const bs_call *c, const bs_weight_form *form,
                                          const assay_sink *out)
{
    assay_status status = ASSAY_OK;
    char path[ASSAY_PATH_SIZE];
    const assay_tensor_row row = bs_weight_row(&c->run, form->weight);
    const int64_t count = assay_tensor_row_count(&row), local = bs_weight_count(&c->run, form->weight, true);
    const int64_t shards = row.kind == ASSAY_KERNEL ? c->run.sizes.shards : 1, parts = count / local;
    double *each = c->g.values[form->weight], *whole = NULL;
    path_in(path, "gradients/weights", "", form->name);
    if (!out->wants(out->self, path)) return ASSAY_OK;
    TRY(assay_alloc_f64(ctx, path, count, &whole));
    if (shards > parts) assay_round(ctx, ASSAY_ROUND_STORAGE, shards * local, each);
    for (int64_t shard = 0; shard < shards; shard++) {
        const int64_t part = parts > 1 ? assay_mesh_index(c->run.mesh, shard, ASSAY_AXIS_EXPERT) : 0;
        if (shard < parts) {
            memcpy(whole + part * local, each + shard * local, (size_t)local * sizeof *whole);
        } else {
            assay_add(ctx, local, each + shard * local, whole + part * local);
        }
    }
    TRY(out->write(ctx, out->self, path, count, whole));
cleanup:
    free(whole);
    return status;
}

static bool wants_gradient(const assay_batch_split_function *bwd, const assay_sink *out)
{
    char path[ASSAY_PATH_SIZE], of[ASSAY_PATH_SIZE];
    bool wanted = false;
    for (int i = 0; i < BS_MOST_MADE && bwd->made[i].name != NULL; i++) {
        path_in(path, "checkpoints", "", bwd->made[i].name);
        wanted |= out->wants(out->self, path);
    }
    for (int i = 0; i < BS_MOST_ARGUMENTS && bwd->out[i].name != NULL; i++) {
        is_gradient(bwd->out[i].name, of);
        path_in(path, "gradients/inputs", "", of);
        wanted |= out->wants(out->self, path);
    }
    for (const bs_weight_form *form = bwd->weights; form != NULL && form->name != NULL; form++) {
        path_in(path, "gradients/weights", "", form->name);
        wanted |= out->wants(out->self, path);
    }
    return wanted;
}

static assay_status run_gradient(assay_context *ctx, const assay_function_config *config, const bs_call *forward,
                                 const assay_source *in, const assay_sink *out)
{
    assay_status status = ASSAY_OK;
    const assay_batch_split_function *f = config->function, *bwd = assay_function_backward(f);
    char path[ASSAY_PATH_SIZE], of[ASSAY_PATH_SIZE];
    bs_call *c = NULL;
    if (bwd == NULL || !wants_gradient(bwd, out)) return ASSAY_OK;
    TRY(call_open(ctx, config, &c));
    c->made = (bs_made){.in = in, .out = out, .after_forward = true};
    TRY(fill_backward(ctx, c, forward, f, bwd, in));
    TRY(evaluate(ctx, c, bwd));
    for (int i = 0; i < BS_MOST_ARGUMENTS && bwd->out[i].name != NULL; i++) {
        is_gradient(bwd->out[i].name, of);
        path_in(path, "gradients/inputs", "", of);
        TRY(write_slot(ctx, c, &bwd->out[i], &c->out[i], path, out));
    }
    for (const bs_weight_form *form = bwd->weights; form != NULL && form->name != NULL; form++)
        TRY(write_weight_gradient(ctx, c, form, out));
cleanup:
    if (c != NULL) call_close(c);
    return status;
}

/* --- functions on all weights --- */

/* [blocks, layers, rest] of a stacked weight. */
static assay_status move_bundle(assay_context *ctx, bs_call *c, int place, const char *folder, const assay_source *in,
                                const assay_sink *out)
{
    assay_status status = ASSAY_OK;
    assay_function_tensors tensors;
    const bs_bundle_form *form = &c->config->function->bundles[place];
    char group[ASSAY_PATH_SIZE];
    snprintf(group, sizeof group, "%s/%s/", folder, form->name);
    assay_function_tensors_of(c->config, &tensors);
    for (int i = 0; i < tensors.count; i++) {
        const assay_function_tensor *t = &tensors.items[i];
        const int64_t count = assay_shape_count(&t->shape);
        if (strncmp(t->path, group, strlen(group)) != 0) continue;
        double **values = &c->bundles[place].values[t->weight];
        if (*values == NULL) TRY(assay_alloc_f64(ctx, t->path, count, values));
        if (in != NULL) TRY(in->read(ctx, in->self, t->path, 0, count, *values));
        if (out != NULL && out->wants(out->self, t->path)) TRY(out->write(ctx, out->self, t->path, count, *values));
    }
cleanup:
    return status;
}

static assay_status run_bundles(assay_context *ctx, bs_call *c, const assay_source *in, const assay_sink *out)
{
    assay_status status = ASSAY_OK;
    const assay_batch_split_function *f = c->config->function;
    const int results = f->bundles[2].lying == BS_NO_BUNDLE ? 1 : 2;
    for (int i = 0; i < results; i++) TRY(move_bundle(ctx, c, i, "inputs", in, NULL));
    TRY(move_bundle(ctx, c, results, "outputs", NULL, NULL));
    TRY(f->call(ctx, c));
    TRY(move_bundle(ctx, c, results, "outputs", NULL, out));
cleanup:
    return status;
}

/* --- the contract --- */

assay_status assay_function_run(assay_context *ctx, const assay_function_config *config, const assay_source *in,
                                const assay_sink *out)
{
    assay_status status;
    const assay_batch_split_function *f = config->function;
    bs_call *c = NULL;
    TRY(call_open(ctx, config, &c));
    c->made = (bs_made){.in = in, .out = out};
    TRY(read_all(ctx, c, f, in, true));
    if (f->bundles[0].lying != BS_NO_BUNDLE) {
        TRY(run_bundles(ctx, c, in, out));
        goto cleanup;
    }
    TRY(evaluate(ctx, c, f));
    TRY(write_results(ctx, c, f, out));
    TRY(run_gradient(ctx, config, c, in, out));
cleanup:
    if (c != NULL) call_close(c);
    return status;
}

/* What the forward function leaves under that name, from the arguments of its _bwd. */
static assay_status derive_residual(assay_context *ctx, const assay_function_config *config,
                                    const assay_function_tensor *tensor, const assay_source *in, double *values)
{
    assay_status status;
    const assay_batch_split_function *bwd = config->function, *f = assay_function_forward(bwd);
    const int place = place_of(f->out, strchr(tensor->path, '/') + 1);
    int64_t microbatches = 0;
    bs_call *c = NULL, *given = NULL;
    TRY(call_open(ctx, config, &given));
    TRY(call_open(ctx, config, &c));
    TRY(read_all(ctx, given, bwd, in, false));
    for (int i = 0; i < BS_MOST_ARGUMENTS && f->in[i].name != NULL; i++) {
        for (int k = 0; k < BS_MOST_ARGUMENTS && bwd->in[k].name != NULL; k++) {
            const char *name = bwd->in[k].of != NULL ? bwd->in[k].of : bwd->in[k].name;
            if (strcmp(name, f->in[i].name) != 0) continue;
            c->in[i] = given->in[k];
            given->in[k] = (bs_slot){0};
        }
    }
    c->w = given->w;
    given->w = (bs_weights){0};
    TRY(evaluate(ctx, c, f));
    slot_sizes(c, &f->out[place], &microbatches);
    turn(values, c->out[place].values, microbatches, c->run.sizes.shards, c->out[place].count / c->run.sizes.shards);
cleanup:
    if (c != NULL) call_close(c);
    if (given != NULL) call_close(given);
    return status;
}

/* Each shard's own choices gathered over its expert axis, its own experts first. */
static assay_status gather_rolled(assay_context *ctx, const bs_run *run, const int32_t *choices, int32_t **rolled)
{
    const assay_shape own = assay_shape_of(1, run->sizes.copies / run->sizes.expert_shards);
    const assay_status status = bs_alloc_shards_i32(ctx, run, "selected_experts", run->sizes.copies, 1, rolled);
    if (status != ASSAY_OK) return status;
    assay_all_gather_i32(*rolled, choices, &own, 0, run->mesh, ASSAY_AXIS_EXPERT);
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        const int64_t first = assay_mesh_index(run->mesh, shard, ASSAY_AXIS_EXPERT) * run->sizes.local_experts;
        int32_t *ids = *rolled + shard * run->sizes.copies;
        assay_roll_experts(ids, ids, run->sizes.copies, first, run->routing.num_experts);
    }
    return status;
}

static assay_status derive_integers(assay_context *ctx, const assay_function_config *config,
                                    const assay_function_tensor *tensor, const int32_t *choices, int32_t *indices)
{
    assay_status status = ASSAY_OK;
    stack_run stack = {.config = &config->stack};
    bs_run run;
    int32_t *rolled = NULL;
    bs_run_of(&run, &stack);
    const int64_t copies = run.sizes.copies, own = copies / run.sizes.expert_shards,
                  count = assay_shape_count(&tensor->shape);
    const int64_t experts = count / run.sizes.shards;
    if (tensor->holds == ASSAY_HOLDS_COUNTS) {
        memset(indices, 0, (size_t)count * sizeof *indices);
        for (int64_t i = 0; i < run.sizes.shards * own; i++) indices[i / own * experts + choices[i]]++;
        return ASSAY_OK;
    }
    TRY(gather_rolled(ctx, &run, choices, &rolled));
    if (tensor->holds == ASSAY_HOLDS_ROLLED) {
        memcpy(indices, rolled, (size_t)count * sizeof *indices);
        goto cleanup;
    }
    memset(indices, 0, (size_t)count * sizeof *indices);
    for (int64_t i = 0; i < run.sizes.shards * copies; i++) {
        if (rolled[i] < experts) indices[i / copies * experts + rolled[i]]++;
    }
cleanup:
    free(rolled);
    return status;
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
    const int64_t count = assay_shape_count(&tensor->shape);
    switch (tensor->holds) {
    case ASSAY_HOLDS_RESIDUAL:
        return derive_residual(ctx, config, tensor, in, values);
    case ASSAY_HOLDS_ANGLES:
        for (int64_t i = 0; i < count; i += 2) values[i + 1] = values[i];
        return ASSAY_OK;
    case ASSAY_HOLDS_SHARED:
        share(config, tensor, values);
        return ASSAY_OK;
    default:
        return derive_integers(ctx, config, tensor, choices, indices);
    }
}
