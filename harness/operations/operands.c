#include "harness/operations/operands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/ops/quantize.h"

static const char *const ENDS[] = {"", "_scale", "_tensor_scale"};

/* A tensor as matrices of blocks. */
typedef struct operand {
    const assay_tensor_entry *entry;
    int64_t matrices, rows, columns;
    assay_block_format format; /* its rows and columns as those of the matrix */
} operand;

static operand operand_of(const assay_tensor_entry *entry)
{
    const assay_operand_axes *axes = &entry->operand;
    const assay_shape *shape = &entry->spec.shape;
    const int end = axes->batch + axes->rows;
    operand o = {.entry = entry,
                 .matrices = assay_axes_product(shape, 0, axes->batch),
                 .rows = assay_axes_product(shape, axes->batch, end),
                 .columns = assay_axes_product(shape, end, shape->rank),
                 .format = *entry->format};
    if (axes->sums_rows) {
        o.format.rows = entry->format->columns;
        o.format.columns = entry->format->rows;
    }
    return o;
}

static int64_t scales_of_matrix(const operand *o)
{
    return assay_block_count(o->rows, o->format.rows) * assay_block_count(o->columns, o->format.columns);
}

/* So many axes of the tensor from `first` on, or one of blocks in their place. */
static void add_axes(assay_tensor_spec *scale, const assay_tensor_spec *of, int first, int end, int64_t block)
{
    for (int axis = first; axis < end && block == 1; axis++) {
        scale->labels[scale->shape.rank] = of->labels[axis];
        scale->shape.dims[scale->shape.rank++] = of->shape.dims[axis];
    }
    if (block == 1) return;
    scale->labels[scale->shape.rank] = "blocks";
    scale->shape.dims[scale->shape.rank++] = assay_block_count(assay_axes_product(&of->shape, first, end), block);
}

static assay_tensor_entry scale_entry(const operand *o, assay_operand_tensor part, assay_dtype type)
{
    const assay_tensor_spec *of = &o->entry->spec;
    assay_tensor_entry entry = {.part = part, .format = o->entry->format};
    entry.spec = (assay_tensor_spec){.role = of->role, .type = type};
    snprintf(entry.spec.path, sizeof entry.spec.path, "%.140s%s", of->path, ENDS[part]);
    return entry;
}

static int add_scales(const assay_tensor_entry *entry, assay_tensor_entry *to)
{
    const operand o = operand_of(entry);
    const int rows = entry->operand.batch, columns = rows + entry->operand.rows;
    assay_tensor_entry scale = scale_entry(&o, ASSAY_OPERAND_SCALE, o.format.scale);
    for (int axis = 0; axis < rows; axis++) add_axes(&scale.spec, &entry->spec, axis, axis + 1, 1);
    add_axes(&scale.spec, &entry->spec, rows, columns, o.format.rows);
    add_axes(&scale.spec, &entry->spec, columns, entry->spec.shape.rank, o.format.columns);
    to[0] = scale;
    if (!o.format.tensor_scale) return 1;
    scale = scale_entry(&o, ASSAY_OPERAND_TENSOR_SCALE, ASSAY_FLOAT32);
    for (int axis = 0; axis < rows; axis++) add_axes(&scale.spec, &entry->spec, axis, axis + 1, 1);
    if (rows == 0) {
        scale.spec.labels[0] = "1";
        scale.spec.shape = assay_shape_of(1, INT64_C(1));
    }
    to[1] = scale;
    return 2;
}

static assay_quantize_config config_of(const assay_case *c, const operand *o)
{
    const char *rounding = c->config.quant_scale_rounding.text;
    assay_quantize_config config = assay_quantize_default(&o->format, o->rows, o->columns);
    if (strcmp(rounding, "up") == 0) config.rounding = ASSAY_SCALE_UP;
    if (strcmp(rounding, "down") == 0) config.rounding = ASSAY_SCALE_DOWN;
    config.largest_of_input = assay_dtype_max(c->dtype);
    return config;
}

static assay_status check_rounding(assay_context *ctx, const assay_case *c, const assay_case_quant_format *of)
{
    const assay_block_format *format = of->format;
    const char *rounding = c->config.quant_scale_rounding.text;
    const bool up = strcmp(rounding, "up") == 0, nearest = strcmp(rounding, "nearest") == 0;
    if (nearest || format->scale == ASSAY_FLOAT8_E8M0FNU || (up && format->scale == ASSAY_FLOAT32)) return ASSAY_OK;
    return assay_refuse(ctx, "quant_scale_rounding is %s, expected %s: %s is %s", rounding,
                        format->scale == ASSAY_FLOAT32 ? "nearest or up" : "nearest", of->path, format->name);
}

static assay_status check_entry(assay_context *ctx, const assay_case *c, const assay_operation *operation,
                                const assay_tensor_list *list, const assay_case_quant_format *given)
{
    if (!operation->quantised) {
        return assay_refuse(ctx, "quant_formats has %s, expected none: op %s takes its operands as they are",
                            given->path, c->op);
    }
    for (int i = 0; i < list->count; i++) {
        const assay_tensor_entry *entry = &list->entries[i];
        if (!assay_role_is_input(entry->spec.role) || strcmp(given->path, entry->spec.path) != 0) continue;
        if (entry->operand.rows > 0) return check_rounding(ctx, c, given);
        return assay_refuse(ctx, "quant_formats has %s, which is no operand of a product by itself", entry->spec.path);
    }
    return assay_refuse(ctx,
                        "quant_formats has %s, which is no tensor of op %s with this configuration; see "
                        "assay show %s",
                        given->path, c->op, c->name);
}

/* Nothing is said of how it is filled that codes cannot be. */
static assay_status check_fill(assay_context *ctx, const assay_case *c, const assay_tensor_entry *entry)
{
    const assay_case_input *given = assay_case_input_of(c, entry->spec.path);
    if (given == NULL || (!given->unused_nan && given->tail_nan_rows == 0)) return ASSAY_OK;
    return assay_refuse(ctx, "inputs.%s: rows of NaN are not quantised", given->path);
}

assay_status assay_quantise_list(assay_context *ctx, const assay_case *c, const assay_operation *operation,
                                 assay_tensor_list *list)
{
    assay_status status = ASSAY_OK;
    int count = 0;
    if (c->quant_format_count == 0) return ASSAY_OK;
    for (int i = 0; i < c->quant_format_count; i++) MUST(check_entry(ctx, c, operation, list, &c->quant_formats[i]));
    assay_tensor_entry *entries = NULL;
    MUST(assay_alloc_list(ctx, "the list of tensors", list->count + 2 * c->quant_format_count, sizeof *entries,
                          &entries));
    for (int i = 0; i < list->count; i++) {
        assay_tensor_entry *entry = &entries[count++];
        *entry = list->entries[i];
        const assay_block_format *format = assay_case_quant_format_of(c, entry->spec.path);
        if (!assay_role_is_input(entry->spec.role) || entry->operand.rows == 0 || format == NULL) continue;
        if (status == ASSAY_OK) status = check_fill(ctx, c, entry);
        entry->format = format;
        entry->spec.type = format->element;
        count += add_scales(entry, entry + 1);
    }
    free(list->entries);
    list->entries = entries;
    list->count = count;
    return status;
}

const assay_tensor_entry *assay_operand_of(const assay_tensor_list *list, const assay_tensor_entry *entry)
{
    const assay_tensor_entry *of = entry;
    while (of > list->entries && of->part != ASSAY_OPERAND_CODES) of--;
    return of;
}

/* What quantising a matrix gives. */
typedef struct quantised {
    double *numbers;
    int32_t *codes, *scale;
} quantised;

static void quantised_free(quantised *q)
{
    free(q->numbers);
    free(q->codes);
    free(q->scale);
}

assay_status assay_operand_quantise(assay_context *ctx, const assay_case *c, const assay_tensor_list *list,
                                    const assay_tensor_entry *entry, const assay_source *dense, int64_t first,
                                    int64_t count, double *out)
{
    OWNED_BY(quantised_free) quantised q = {0};
    int32_t tensor_scale = 0;
    const operand o = operand_of(assay_operand_of(list, entry));
    const assay_quantize_config config = config_of(c, &o);
    const int64_t size = o.rows * o.columns, scales = scales_of_matrix(&o);
    const int64_t each = (const int64_t[]){size, scales, 1}[entry->part];
    MUST(assay_alloc_f64(ctx, entry->spec.path, size, &q.numbers));
    MUST(assay_alloc_i32(ctx, entry->spec.path, size, &q.codes));
    MUST(assay_alloc_i32(ctx, entry->spec.path, scales, &q.scale));
    const int32_t *bits = (const int32_t *const[]){q.codes, q.scale, &tensor_scale}[entry->part];
    for (int64_t done = 0; done < count;) {
        const int64_t matrix = (first + done) / each, at = (first + done) % each;
        const int64_t part = each - at < count - done ? each - at : count - done;
        MUST(dense->read(ctx, dense->self, o.entry->spec.path, matrix * size, size, q.numbers));
        MUST(assay_quantize(ctx, q.codes, q.scale, &tensor_scale, q.numbers, &config));
        assay_quantised_decode(ctx, entry->spec.type, part, bits + at, out + done);
        done += part;
    }
    return ASSAY_OK;
}

static bool is_quantised(const assay_dequantised *d, const assay_tensor_entry *entry)
{
    char path[ASSAY_PATH_SIZE];
    if (entry == NULL || entry->format == NULL || entry->part != ASSAY_OPERAND_CODES) return false;
    snprintf(path, sizeof path, "%.140s%s", entry->spec.path, ENDS[ASSAY_OPERAND_SCALE]);
    return d->wrapped.in->has(d->wrapped.in->self, path);
}

static bool dequantised_has(void *self, const char *path)
{
    const assay_dequantised *d = self;
    const assay_tensor_entry *entry = assay_tensor_list_find(d->list, path);
    return (entry == NULL || entry->part == ASSAY_OPERAND_CODES) && d->wrapped.in->has(d->wrapped.in->self, path);
}

/* Codes [first, first + count) of a matrix, which become numbers. */
static void scale_up(const operand *o, int64_t first, int64_t count, const double *scale, double tensor_scale,
                     double *out)
{
    const int64_t blocks = assay_block_count(o->columns, o->format.columns);
    for (int64_t i = 0; i < count; i++) {
        const int64_t row = (first + i) / o->columns, column = (first + i) % o->columns;
        out[i] *= scale[row / o->format.rows * blocks + column / o->format.columns];
        if (o->format.tensor_scale) out[i] *= tensor_scale;
    }
}

static assay_status dequantised_read(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                     double *out)
{
    const assay_dequantised *d = self;
    const assay_source *in = d->wrapped.in;
    const assay_tensor_entry *entry = assay_tensor_list_find(d->list, path);
    char scale_path[ASSAY_PATH_SIZE], tensor_path[ASSAY_PATH_SIZE];
    OWNED double *scale = NULL;
    double tensor_scale = 1;
    MUST(in->read(ctx, in->self, path, first, count, out));
    if (!is_quantised(d, entry)) return ASSAY_OK;
    const operand o = operand_of(entry);
    const int64_t size = o.rows * o.columns, scales = scales_of_matrix(&o);
    snprintf(scale_path, sizeof scale_path, "%.140s%s", path, ENDS[ASSAY_OPERAND_SCALE]);
    snprintf(tensor_path, sizeof tensor_path, "%.140s%s", path, ENDS[ASSAY_OPERAND_TENSOR_SCALE]);
    MUST(assay_alloc_f64(ctx, scale_path, scales, &scale));
    for (int64_t done = 0; done < count;) {
        const int64_t matrix = (first + done) / size, at = (first + done) % size;
        const int64_t part = size - at < count - done ? size - at : count - done;
        MUST(in->read(ctx, in->self, scale_path, matrix * scales, scales, scale));
        if (o.format.tensor_scale) MUST(in->read(ctx, in->self, tensor_path, matrix, 1, &tensor_scale));
        scale_up(&o, at, part, scale, tensor_scale, out + done);
        done += part;
    }
    return ASSAY_OK;
}

assay_source assay_dequantised_source(assay_dequantised *dequantised)
{
    return (assay_source){
        .self = dequantised, .has = dequantised_has, .read = dequantised_read, .read_i32 = assay_wrapped_read_i32};
}

static assay_status copy_tensor(assay_context *ctx, const assay_tensor *from, assay_tensor_set *to)
{
    assay_tensor *copy = NULL;
    MUST(assay_tensor_set_add(ctx, to, &from->spec, &copy));
    if (from->values != NULL) memcpy(copy->values, from->values, (size_t)from->count * sizeof *from->values);
    if (from->indices != NULL) memcpy(copy->indices, from->indices, (size_t)from->count * sizeof *from->indices);
    copy->written = from->written;
    return ASSAY_OK;
}

assay_status assay_operands_as_numbers(assay_context *ctx, const assay_tensor_list *list, const assay_tensor_set *set,
                                       assay_tensor_set *dense)
{
    assay_status status = ASSAY_OK;
    const assay_source given = assay_tensor_set_source(set);
    assay_dequantised numbers = {{&given, NULL}, list};
    const assay_source source = assay_dequantised_source(&numbers);
    *dense = (assay_tensor_set){0};
    for (int i = 0; i < set->count; i++) {
        const assay_tensor *tensor = &set->items[i];
        const assay_tensor_entry *entry = assay_tensor_list_find(list, tensor->spec.path);
        assay_tensor_spec spec = tensor->spec;
        if (entry != NULL && entry->part != ASSAY_OPERAND_CODES) continue;
        if (entry == NULL || entry->format == NULL) {
            TRY(copy_tensor(ctx, tensor, dense));
            continue;
        }
        spec.type = ASSAY_FLOAT64;
        TRY(assay_tensor_set_read(ctx, dense, &spec, &source));
    }
cleanup:
    if (status != ASSAY_OK) assay_tensor_set_free(dense);
    return status;
}
