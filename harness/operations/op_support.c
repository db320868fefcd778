#include "harness/operations/op_support.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"

/* The letters of docs/operations.md stand for themselves, others for sums and products of them and for what has no letter. */
static const char *label_of(char letter)
{
    static const char *const labels[] = {
        ['B'] = "B",      ['S'] = "S",         ['T'] = "T",          ['D'] = "D",        ['E'] = "E",
        ['K'] = "K",      ['H'] = "H",         ['F'] = "F",          ['N'] = "N",        ['M'] = "M",
        ['G'] = "G",      ['C'] = "C",         ['V'] = "V",          ['P'] = "P",        ['k'] = "Kd",
        ['h'] = "2H",     ['f'] = "2F",        ['r'] = "T*K",        ['q'] = "Dn+Dr",    ['v'] = "Dv",
        ['R'] = "Dr",     ['L'] = "Lq",        ['l'] = "Lkv",        ['w'] = "Lkv+Dr",   ['u'] = "Dn+Dv",
        ['m'] = "shard",  ['c'] = "chunk",     ['b'] = "buffer",     ['e'] = "E/P",      ['j'] = "microbatch",
        ['x'] = "event",  ['n'] = "field",     ['z'] = "Dh",         ['g'] = "Nkv",      ['Q'] = "N+2Nkv",
        ['1'] = "1",      ['t'] = "K+n",       ['O'] = "E+n",        ['s'] = "T*(K+n)",  ['p'] = "physical",
        ['a'] = "b",      ['d'] = "f*b",       ['o'] = "microbatch", ['y'] = "capacity", ['A'] = "layer",
        ['I'] = "T/rows", ['J'] = "D/columns", ['2'] = "D/2",        ['8'] = "bytes",    ['3'] = "H/columns",
        ['i'] = "Dn",     ['W'] = "pages",     ['U'] = "page",       ['Y'] = "L",        ['Z'] = "pages of one",
        ['X'] = "split",  ['4'] = "topk",
    };
    return labels[(unsigned char)letter];
}

static assay_status append(assay_context *ctx, assay_tensor_list *list, const char *path, assay_dtype type,
                           const assay_fill *fill, const assay_dims *dims)
{
    enum { GROWTH = 16 };
    if (list->count % GROWTH == 0)
        MUST(assay_grow(ctx, "the list of tensors", list->count + GROWTH, sizeof *list->entries, &list->entries));
    assay_tensor_entry *entry = &list->entries[list->count];
    *entry = (assay_tensor_entry){0};
    int64_t count = 0;
    int rank = (int)strlen(dims->labels);
    MUST(assay_checked_count(ctx, path, rank, dims->dims, &count));
    assay_tensor_call(&entry->spec, path);
    entry->spec.type = type;
    entry->spec.shape.rank = rank;
    for (int axis = 0; axis < rank; axis++) {
        entry->spec.shape.dims[axis] = dims->dims[axis];
        entry->spec.labels[axis] = label_of(dims->labels[axis]);
    }
    if (fill != NULL) entry->fill = *fill;
    list->count++;
    return ASSAY_OK;
}

void assay_describe_sized(assay_describer *d, const char *path, assay_dtype type, const assay_fill *fill,
                          assay_dims dims)
{
    if (d->status == ASSAY_OK) d->status = append(d->ctx, d->list, path, type, fill, &dims);
}

static assay_dims dims_of_axes(const assay_describer *d, const char *axes)
{
    assay_dims dims = {.labels = axes};
    for (int i = 0; axes[i] != '\0'; i++) dims.dims[i] = d->axis_size(d->config, axes[i]);
    return dims;
}

void assay_describe(assay_describer *d, const char *path, assay_dtype type, const assay_fill *fill, const char *axes)
{
    assay_describe_sized(d, path, type, fill, dims_of_axes(d, axes));
}

assay_tensor_entry *assay_described(assay_describer *d, int back)
{
    return d->status == ASSAY_OK ? &d->list->entries[d->list->count - back] : &d->nowhere;
}

/* "FOLDER/" + layer + block + name. */
static void path_of(assay_describer *d, const char *folder, const char *block, const char *name,
                    char path[ASSAY_PATH_SIZE])
{
    int length = snprintf(path, ASSAY_PATH_SIZE, "%s/%s%s%s", folder, d->layer, block, name);
    if ((length > 0 && length < ASSAY_PATH_SIZE) || d->status != ASSAY_OK) return;
    d->status = assay_refuse(d->ctx, "%s/%s%s%s: a path of more than %d characters", folder, d->layer, block, name,
                             ASSAY_PATH_SIZE - 1);
}

void assay_describe_sized_output(assay_describer *d, const char *name, const assay_fill *fill, assay_dims dims)
{
    char path[ASSAY_PATH_SIZE];
    path_of(d, "outputs", "", name, path);
    assay_describe_sized(d, path, ASSAY_FLOAT64, NULL, dims);
    path_of(d, "cotangents", "", name, path);
    if (fill != NULL) assay_describe_sized(d, path, d->c->dtype, fill, dims);
}

void assay_describe_output(assay_describer *d, const char *name, const assay_fill *fill, const char *axes)
{
    assay_describe_sized_output(d, name, fill, dims_of_axes(d, axes));
}

void assay_describe_sized_variable(assay_describer *d, const char *path, assay_fill fill, assay_dims dims)
{
    char gradient[ASSAY_PATH_SIZE];
    assay_gradient_path(path, gradient);
    assay_describe_sized(d, path, d->c->dtype, &fill, dims);
    assay_describe_sized(d, gradient, ASSAY_FLOAT64, NULL, dims);
}

void assay_describe_variable(assay_describer *d, const char *path, assay_fill fill, const char *axes)
{
    assay_describe_sized_variable(d, path, fill, dims_of_axes(d, axes));
}

static void describe_weight(assay_describer *d, const char *block, const char *name, assay_fill fill, assay_dims dims)
{
    char path[ASSAY_PATH_SIZE];
    path_of(d, "weights", block, name, path);
    assay_describe_sized_variable(d, path, fill, dims);
}

void assay_describe_weight(assay_describer *d, const char *name, assay_fill fill, const char *axes)
{
    describe_weight(d, d->block, name, fill, dims_of_axes(d, axes));
}

void assay_describe_integers(assay_describer *d, const char *name, assay_fill fill, const char *axes)
{
    char path[ASSAY_PATH_SIZE];
    path_of(d, "weights", d->block, name, path);
    assay_describe(d, path, ASSAY_INT32, &fill, axes);
}

void assay_describe_sized_result(assay_describer *d, const char *folder, const char *name, assay_dtype type,
                                 assay_dims dims)
{
    char path[ASSAY_PATH_SIZE];
    path_of(d, folder, "", name, path);
    assay_describe_sized(d, path, type, NULL, dims);
}

void assay_describe_result(assay_describer *d, const char *folder, const char *name, assay_dtype type, const char *axes)
{
    assay_describe_sized_result(d, folder, name, type, dims_of_axes(d, axes));
}

assay_dims assay_dims_of(const char *axes, const assay_shape *shape)
{
    assay_dims dims = {.labels = axes};
    memcpy(dims.dims, shape->dims, sizeof shape->dims);
    return dims;
}

void assay_describe_checkpoint(assay_describer *d, const assay_tensor_row *row)
{
    if (row->name != NULL)
        assay_describe_sized_result(d, "checkpoints", row->name, ASSAY_FLOAT64, assay_dims_of(row->axes, &row->shape));
}

static assay_fill fill_of(const assay_tensor_row *row)
{
    if (row->kind == ASSAY_KERNEL) return assay_fill_fan_in(row->fan_in);
    if (row->kind == ASSAY_SINK) return assay_fill_normal(1.0, 0.0);
    return assay_fill_normal(0.1, row->kind == ASSAY_NORM_SCALE ? 1.0 : 0.0);
}

void assay_describe_weights(assay_describer *d, const assay_tensor_table *table)
{
    for (int i = 0; i < table->count; i++) {
        const assay_tensor_row *row = &table->rows[i];
        if (row->name == NULL || (row->kind == ASSAY_BIAS && !d->c->config.mlp_bias)) continue;
        describe_weight(d, row->folder != NULL ? row->folder : d->block, row->name, fill_of(row),
                        assay_dims_of(row->axes, &row->shape));
        if (row->kind == ASSAY_KERNEL)
            assay_described(d, 2)->operand = (assay_operand_axes){row->below, row->inputs, true};
    }
}

assay_describer assay_describer_of(assay_context *ctx, const assay_operation *operation, const assay_case *c,
                                   const void *config, assay_tensor_list *list)
{
    return (assay_describer){.ctx = ctx,
                             .c = c,
                             .config = config,
                             .axis_size = operation->axis_size,
                             .list = list,
                             .layer = "",
                             .block = ""};
}

/* An int32 [B,S] tensor. A list of values is for every row or for the whole batch: any other count is a slip. */
static void describe_tokens(assay_describer *d, const char *path, const assay_fill *fill, int64_t most)
{
    const assay_case *c = d->c;
    const assay_case_input *rule = assay_case_input_of(c, path);
    const int64_t values = rule != NULL && rule->fill.distribution == ASSAY_VALUES ? rule->fill.value_count : 0;
    if (values != 0 && values != c->sequence && values != c->batch * c->sequence && d->status == ASSAY_OK) {
        d->status = assay_refuse(d->ctx,
                                 "inputs.%s has %" PRId64 " values, expected %" PRId64 " (sequence) or %" PRId64
                                 " (batch * sequence)",
                                 rule->path, values, c->sequence, c->batch * c->sequence);
    }
    assay_describe_sized(d, path, ASSAY_INT32, fill, (assay_dims){"BS", {c->batch, c->sequence}});
    assay_described(d, 1)->most = (int32_t)most;
}

void assay_describe_positions(assay_describer *d)
{
    const assay_fill positions = {
        .distribution = ASSAY_RAMP, .mean = (double)d->c->position_start, .scale = (double)d->c->position_step};
    describe_tokens(d, "inputs/positions", &positions, d->c->config.max_position_embeddings - 1);
}

void assay_describe_segments(assay_describer *d)
{
    const char *path = "inputs/segment_ids";
    const assay_case_input *rule = assay_case_input_of(d->c, path);
    if (rule != NULL) describe_tokens(d, path, &rule->fill, INT32_MAX);
}

bool assay_has_padding(const assay_case *c)
{
    return c->config.mask_padding && assay_case_input_of(c, "inputs/segment_ids") != NULL;
}

assay_fill assay_fill_normal(double scale, double mean)
{
    return (assay_fill){.distribution = ASSAY_NORMAL, .scale = scale, .mean = mean};
}

assay_fill assay_fill_fan_in(int64_t fan_in)
{
    return assay_fill_normal(1.0 / sqrt((double)fan_in), 0.0);
}

assay_fill assay_fill_range(assay_distribution distribution, double low, double high)
{
    return (assay_fill){.distribution = distribution, .scale = 1.0, .low = low, .high = high};
}

const assay_tensor_entry *assay_tensor_list_find(const assay_tensor_list *list, const char *path)
{
    for (int i = 0; i < list->count; i++)
        if (strcmp(list->entries[i].spec.path, path) == 0) return &list->entries[i];
    return NULL;
}

int64_t assay_unused_row_width(const assay_tensor_entry *entry)
{
    int64_t width = 1;
    for (int axis = entry->unused_row_axes; axis < entry->spec.shape.rank; axis++)
        width *= entry->spec.shape.dims[axis];
    return width;
}

void assay_tensor_list_free(assay_tensor_list *list)
{
    free(list->entries);
    free(list->sketched);
    *list = (assay_tensor_list){0};
}

void assay_require_all_values(assay_describer *d, const char *path, int64_t count)
{
    const assay_case_input *rule = assay_case_input_of(d->c, path);
    if (rule == NULL || rule->fill.value_count == 0 || rule->fill.value_count == count || d->status != ASSAY_OK) return;
    d->status = assay_refuse(d->ctx, "inputs.%s has %" PRId64 " values, expected %" PRId64, rule->path,
                             rule->fill.value_count, count);
}

assay_status assay_refuse_key(assay_context *ctx, const assay_model_config *m, int key, const char *expected, ...)
{
    char value[ASSAY_KEY_VALUE_SIZE], text[ASSAY_MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, expected);
    vsnprintf(text, sizeof text, expected, arguments);
    va_end(arguments);
    assay_model_key_text(&assay_model_keys[key], m, value, sizeof value);
    return assay_refuse(ctx, "%s is %s, expected %s", assay_model_keys[key].name, value, text);
}

assay_status assay_require_positive(assay_context *ctx, const char *key, int64_t value)
{
    if (value < 1) return assay_refuse(ctx, "%s is %" PRId64 ", expected 1 or more", key, value);
    return ASSAY_OK;
}

assay_status assay_norm_config_of(assay_context *ctx, const assay_case *c, void *config)
{
    const assay_model_config *m = &c->config;
    *(assay_norm_config *)config = (assay_norm_config){
        .epsilon = m->normalization_layer_epsilon, .batch = c->batch, .sequence = c->sequence, .dim = m->base_emb_dim};
    if (!(m->normalization_layer_epsilon >= 0.0)) {
        return assay_refuse(ctx, "normalization_layer_epsilon is %g, expected 0 or more",
                            m->normalization_layer_epsilon);
    }
    return assay_require_positive(ctx, "base_emb_dim", m->base_emb_dim);
}

int64_t assay_norm_axis_size(const void *config, char axis)
{
    const assay_norm_config *norm = config;
    return axis == 'B' ? norm->batch : axis == 'S' ? norm->sequence : norm->dim;
}

assay_mesh assay_mesh_of(const assay_case *c)
{
    return (assay_mesh){{c->mesh_data, c->mesh_fsdp * c->mesh_fsdp_transpose, c->mesh_expert, c->mesh_mlp_tensor}};
}

assay_status assay_check_head_mesh(assay_context *ctx, const assay_case *c)
{
    if (c->mesh_tensor == 1) return ASSAY_OK;
    return assay_refuse(
        ctx, "mesh.tensor is %" PRId64 ", expected 1: op %s has its heads on mesh.expert and mesh.mlp_tensor",
        c->mesh_tensor, c->op);
}
