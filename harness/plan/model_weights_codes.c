/* What tensors of a checkpoint must be like: their shapes, and codes and scales of such as are quantised. */
#include <stdio.h>

#include "harness/plan/model_weights_internal.h"

assay_shape assay_weights_shape(const weight_target *t, const weight_source *p, const assay_weight_name *row)
{
    assay_shape shape = {0};
    const int64_t outputs = halves(row) * p->outputs;
    if (has_expert_axis(t, row)) shape.dims[shape.rank++] = t->experts;
    if (row->layout == ASSAY_WEIGHT_PLAIN) shape.dims[shape.rank++] = t->inputs;
    shape.dims[shape.rank++] = outputs;
    if (row->layout == ASSAY_WEIGHT_LINEAR) shape.dims[shape.rank++] = t->inputs;
    if (row->layout == ASSAY_WEIGHT_MXFP4) {
        shape.dims[shape.rank++] = t->inputs / MX_BLOCK;
        shape.dims[shape.rank++] = MX_BLOCK / 2;
    }
    return shape;
}

assay_status assay_weights_check_shape(assay_context *ctx, const assay_model_weights *w, int index,
                                       const assay_shape *expected)
{
    char wanted[128], found[128];
    const assay_tensor_spec *spec = NULL;
    MUST(assay_checkpoint_spec(ctx, w->checkpoint, index, &spec));
    if (assay_shape_equal(&spec->shape, expected)) return ASSAY_OK;
    assay_shape_text(expected, wanted, sizeof wanted);
    assay_shape_text(&spec->shape, found, sizeof found);
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: %s has shape %s, expected %s", w->file, spec->path, found, wanted);
}

static assay_status refuse_type(assay_context *ctx, const assay_model_weights *w, const weight_target *t,
                                const assay_tensor_spec *found, assay_dtype expected)
{
    const assay_block_format *format = t->entry->format;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: %s is %s, expected %s%s: %s is %s", w->file, found->path,
                      assay_dtype_name(found->type), assay_dtype_name(expected),
                      expected == ASSAY_FLOAT4_E2M1FN    ? ", or uint8 of two codes each"
                      : expected == ASSAY_FLOAT8_E8M0FNU ? ", or uint8"
                                                         : "",
                      t->entry->spec.path, format->name);
}

/* Two codes of 4 bits may be a byte of integers. */
assay_status assay_weights_check_codes(assay_context *ctx, const assay_model_weights *w, const weight_target *t,
                                       const assay_weight_name *row, int index, assay_shape shape)
{
    const assay_tensor_spec *found = NULL;
    const assay_block_format *format = t->entry->format;
    const bool blocks = row->layout == ASSAY_WEIGHT_MXFP4;
    MUST(assay_checkpoint_spec(ctx, w->checkpoint, index, &found));
    const bool bytes = found->type == ASSAY_INT32 && t->entry->format->element == ASSAY_FLOAT4_E2M1FN;
    if (blocks && strcmp(format->name, "mxfp4") != 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: %s is mxfp4, expected %s of %s", w->file, found->path,
                          format->name, t->entry->spec.path);
    }
    if (!bytes && (blocks || found->type != format->element)) return refuse_type(ctx, w, t, found, format->element);
    if (bytes && t->inputs % (blocks ? MX_BLOCK : 2) != 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "%s: %s holds two codes a byte, expected an even number of inputs of %s", w->file,
                          found->path, t->entry->spec.path);
    }
    if (bytes && !blocks) shape.dims[shape.rank - 1] /= 2;
    return assay_weights_check_shape(ctx, w, index, &shape);
}

/* Blocks of several outputs lie in one part of one tensor. */
static assay_status check_blocks(assay_context *ctx, const assay_model_weights *w, const weight_target *t,
                                 const weight_source *p, const char *name)
{
    const int64_t rows = t->entry->format->rows;
    const int64_t shards = t->source_count == 2 ? w->c->config.w13_reorder_size : 1;
    if (rows == 1 || (halves(p->row) == 1 && t->source_count == 1) || p->outputs / shards % rows == 0) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT,
                      "%s: %s has blocks of %d outputs, expected a multiple of as many of gate and of up: %s", w->file,
                      name, (int)rows, t->entry->spec.path);
}

/* How many characters stand before the ending; -1: it has another one. */
static int before(const char *name, const char *ending)
{
    const size_t length = strlen(name), end = strlen(ending);
    return length >= end && strcmp(name + length - end, ending) == 0 ? (int)(length - end) : -1;
}

/* NAME of codes to a tensor beside it, with another ending; -1. `other` is the name that was looked for. */
static int find_beside(const assay_model_weights *w, const char *name, const char *ending, char other[NAME_SIZE])
{
    const int blocks = before(name, "_blocks");
    snprintf(other, NAME_SIZE, "%.*s%s", blocks >= 0 ? blocks : (int)strlen(name), name, ending);
    return assay_checkpoint_find(w->checkpoint, other);
}

const assay_block_format *assay_weights_stored_as(const weight_target *t, const weight_source *p, int64_t expert)
{
    if (t->entry->format != NULL) return t->entry->format;
    if (p->row->layout == ASSAY_WEIGHT_MXFP4) return assay_block_format_by_name("mxfp4");
    return p->scales[expert] >= 0 ? assay_block_format_by_name("fp8_e4m3_128x128") : NULL;
}

/* Of the scales that belong to their tensor. */
static assay_shape scale_shape(const weight_target *t, const weight_source *p, const assay_block_format *format)
{
    assay_shape shape = assay_weights_shape(t, p, p->row);
    const bool plain = p->row->layout == ASSAY_WEIGHT_PLAIN;
    int64_t *last = &shape.dims[shape.rank - 1];
    if (p->row->layout == ASSAY_WEIGHT_MXFP4) {
        shape.rank--;
        return shape;
    }
    *last = assay_block_count(*last, plain ? format->rows : format->columns);
    if (shape.rank > 1) last[-1] = assay_block_count(last[-1], plain ? format->columns : format->rows);
    return shape;
}

/* Of codes scales have the format's type; numbers that have some beside them are fp8. */
static assay_status check_scale_types(assay_context *ctx, const assay_model_weights *w, const weight_target *t,
                                      const weight_source *p, const char *name, const char *other, int scale)
{
    const assay_block_format *format = t->entry->format;
    const assay_tensor_spec *found = NULL, *numbers = NULL;
    MUST(assay_checkpoint_spec(ctx, w->checkpoint, scale, &found));
    if (format != NULL) {
        const bool right = found->type == ASSAY_INT32 ? format->scale == ASSAY_FLOAT8_E8M0FNU
                                                      : format->scale == ASSAY_FLOAT32 || found->type == format->scale;
        return right ? ASSAY_OK : refuse_type(ctx, w, t, found, format->scale);
    }
    if (p->row->layout == ASSAY_WEIGHT_MXFP4) return ASSAY_OK;
    MUST(assay_checkpoint_spec(ctx, w->checkpoint, assay_checkpoint_find(w->checkpoint, name), &numbers));
    if (numbers->type != ASSAY_FLOAT8_E4M3FN)
        MUST(assay_fail(ctx, ASSAY_BAD_INPUT, "%s has %s, and %s is %s, expected %s beside it", w->file, other, name,
                        assay_dtype_name(numbers->type), assay_dtype_name(ASSAY_FLOAT8_E4M3FN)));
    return ASSAY_OK;
}

static assay_status take_scales(assay_context *ctx, const assay_model_weights *w, const weight_target *t,
                                const weight_source *p, const char *name, int64_t expert)
{
    const assay_block_format *format = t->entry->format;
    const bool blocks = p->row->layout == ASSAY_WEIGHT_MXFP4;
    int *scale = &p->scales[expert];
    char other[NAME_SIZE];
    *scale = find_beside(w, name, blocks ? "_scales" : "_scale_inv", other);
    if (*scale < 0 && format != NULL && !blocks) *scale = find_beside(w, name, "_scale", other);
    if (*scale < 0 && format != NULL) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s has %s and no %s, which %s of %s needs", w->file, name, other,
                          format->name, t->entry->spec.path);
    }
    if (*scale < 0 && blocks) return assay_fail(ctx, ASSAY_BAD_INPUT, "%s has %s and no %s", w->file, name, other);
    if (*scale < 0) return ASSAY_OK;
    w->used[*scale] = true;
    MUST(check_scale_types(ctx, w, t, p, name, other, *scale));
    const assay_shape shape = scale_shape(t, p, assay_weights_stored_as(t, p, expert));
    return assay_weights_check_shape(ctx, w, *scale, &shape);
}

static assay_status take_tensor_scale(assay_context *ctx, const assay_model_weights *w, const weight_target *t,
                                      const weight_source *p, const char *name, int *scale)
{
    char other[NAME_SIZE];
    const assay_tensor_spec *found = NULL;
    const int64_t expected = has_expert_axis(t, p->row) ? t->experts : 1;
    *scale = find_beside(w, name, "_scale_2", other);
    if (*scale < 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s has %s and no %s, the scale of the tensor that %s of %s needs",
                          w->file, name, other, t->entry->format->name, t->entry->spec.path);
    }
    w->used[*scale] = true;
    MUST(assay_checkpoint_spec(ctx, w->checkpoint, *scale, &found));
    if (found->type != ASSAY_FLOAT32) return refuse_type(ctx, w, t, found, ASSAY_FLOAT32);
    if (assay_shape_count(&found->shape) == expected) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: %s has %lld numbers, expected %lld", w->file, other,
                      (long long)assay_shape_count(&found->shape), (long long)expected);
}

/* What activations were divided by when the checkpoint was made is no weight: a case says itself how x is quantised. */
static void pass_over_input_scale(const assay_model_weights *w, const char *name)
{
    char other[NAME_SIZE];
    const int length = before(name, "weight");
    if (length < 0) return;
    snprintf(other, sizeof other, "%.*sinput_scale", length, name);
    const int index = assay_checkpoint_find(w->checkpoint, other);
    if (index >= 0) w->used[index] = true;
}

assay_status assay_weights_read_scales(assay_context *ctx, const assay_model_weights *w, const weight_target *t,
                                       const weight_source *p, const char *name, int64_t expert)
{
    const bool codes = t->entry->format != NULL;
    if (codes) MUST(check_blocks(ctx, w, t, p, name));
    MUST(take_scales(ctx, w, t, p, name, expert));
    if (codes && t->entry->format->tensor_scale) MUST(take_tensor_scale(ctx, w, t, p, name, &p->tensor_scales[expert]));
    if (codes) pass_over_input_scale(w, name);
    return ASSAY_OK;
}

weight_target assay_weights_in_blocks(const weight_target *t)
{
    const assay_block_format *format = t->entry->format;
    weight_target in_blocks = *t;
    in_blocks.inputs = assay_block_count(t->inputs, format->columns);
    in_blocks.outputs = assay_block_count(t->outputs, format->rows);
    for (int i = 0; i < t->source_count; i++)
        in_blocks.sources[i].outputs = assay_block_count(t->sources[i].outputs, format->rows);
    return in_blocks;
}
