/* Codes and scales of quantised kernels from a checkpoint: which tensors they are, and their numbers. */
#include <stdio.h>
#include <stdlib.h>

#include "harness/plan/model_weights_internal.h"
#include "oracle/base/memory.h"

static bool is_four_bits(const weight_target *t)
{
    return t->entry->format->element == ASSAY_FLOAT4_E2M1FN;
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
    const assay_status status = assay_checkpoint_spec(ctx, w->checkpoint, index, &found);
    RETURN_IF(status != ASSAY_OK, status);
    const bool bytes = found->type == ASSAY_INT32 && is_four_bits(t);
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
                                 const weight_part *p, const char *name)
{
    const int64_t rows = t->entry->format->rows;
    const int64_t shards = t->part_count == 2 ? w->c->config.w13_reorder_size : 1;
    if (rows == 1 || (halves(p->row) == 1 && t->part_count == 1) || p->outputs / shards % rows == 0) return ASSAY_OK;
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

static assay_status take_scales(assay_context *ctx, const assay_model_weights *w, const weight_target *t,
                                const weight_part *p, const char *name, int *scale)
{
    assay_status status = ASSAY_OK;
    const assay_block_format *format = t->entry->format;
    const assay_tensor_spec *found = NULL;
    const bool blocks = p->row->layout == ASSAY_WEIGHT_MXFP4;
    char other[NAME_SIZE];
    *scale = find_beside(w, name, blocks ? "_scales" : "_scale_inv", other);
    if (*scale < 0 && !blocks) *scale = find_beside(w, name, "_scale", other);
    if (*scale < 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s has %s and no %s, which %s of %s needs", w->file, name, other,
                          format->name, t->entry->spec.path);
    }
    w->used[*scale] = true;
    TRY(assay_checkpoint_spec(ctx, w->checkpoint, *scale, &found));
    const bool bytes = found->type == ASSAY_INT32;
    if (bytes ? format->scale != ASSAY_FLOAT8_E8M0FNU
              : format->scale != ASSAY_FLOAT32 && found->type != format->scale) {
        return refuse_type(ctx, w, t, found, format->scale);
    }
    const weight_target in_blocks = assay_weights_in_blocks(t);
    const weight_part part = {.outputs = in_blocks.parts[p - t->parts].outputs};
    const assay_weight_name linear = {p->row->theirs, p->row->ours, ASSAY_WEIGHT_LINEAR, p->row->outputs, false};
    const assay_shape shape = assay_weights_shape(&in_blocks, &part, &linear);
    TRY(assay_weights_check_shape(ctx, w, *scale, &shape));
cleanup:
    return status;
}

static assay_status take_tensor_scale(assay_context *ctx, const assay_model_weights *w, const weight_target *t,
                                      const weight_part *p, const char *name, int *scale)
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
    const assay_status status = assay_checkpoint_spec(ctx, w->checkpoint, *scale, &found);
    RETURN_IF(status != ASSAY_OK, status);
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

assay_status assay_weights_take_scales(assay_context *ctx, const assay_model_weights *w, const weight_target *t,
                                       const weight_part *p, const char *name, int64_t expert)
{
    assay_status status;
    TRY(check_blocks(ctx, w, t, p, name));
    TRY(take_scales(ctx, w, t, p, name, &p->scales[expert]));
    if (t->entry->format->tensor_scale) TRY(take_tensor_scale(ctx, w, t, p, name, &p->tensor_scales[expert]));
    pass_over_input_scale(w, name);
cleanup:
    return status;
}

weight_target assay_weights_in_blocks(const weight_target *t)
{
    const assay_block_format *format = t->entry->format;
    weight_target in_blocks = *t;
    in_blocks.inputs = assay_block_count(t->inputs, format->columns);
    in_blocks.outputs = assay_block_count(t->outputs, format->rows);
    for (int i = 0; i < t->part_count; i++)
        in_blocks.parts[i].outputs = assay_block_count(t->parts[i].outputs, format->rows);
    return in_blocks;
}

/* --- reading --- */

static assay_status read_bytes(assay_context *ctx, const assay_model_weights *w, int index, int64_t first,
                               int64_t count, double *out)
{
    const assay_status status = assay_checkpoint_read(ctx, w->checkpoint, index, first, count, out);
    for (int64_t i = 0; status == ASSAY_OK && i < count; i++) {
        if (out[i] >= 0 && out[i] <= UINT8_MAX) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: %s has %g, expected bytes", w->file,
                          assay_checkpoint_name(w->checkpoint, index), out[i]);
    }
    return status;
}

/* In place: the bytes are in the first half, the first code in the low bits. */
static void unpack(int64_t count, double *values)
{
    for (int64_t i = count - 2; i >= 0; i -= 2) {
        const int byte = (int)values[i / 2];
        const uint8_t codes[2] = {(uint8_t)(byte & 15), (uint8_t)(byte >> 4)};
        assay_dtype_decode(ASSAY_FLOAT4_E2M1FN, 2, codes, &values[i]);
    }
}

assay_status assay_weights_read_codes(assay_context *ctx, const assay_model_weights *w, const weight_target *t,
                                      const weight_part *p, int64_t expert, double **numbers)
{
    assay_status status;
    double *read = NULL;
    const assay_tensor_spec *spec = NULL;
    const bool each = strchr(p->row->theirs, '*') != NULL, scale = t->entry->part == ASSAY_PART_SCALE;
    const int64_t place = has_expert_axis(t, p->row) ? expert : 0, count = halves(p->row) * p->outputs * t->inputs;
    const int index = (scale ? p->scales : p->tensors)[each ? expert : 0];
    TRY(assay_checkpoint_spec(ctx, w->checkpoint, index, &spec));
    TRY(assay_alloc_f64(ctx, t->entry->spec.path, count, &read));
    if (spec->type != ASSAY_INT32) {
        TRY(assay_checkpoint_read(ctx, w->checkpoint, index, place * count, count, read));
    } else if (scale) {
        TRY(read_bytes(ctx, w, index, place * count, count, read));
        for (int64_t i = 0; i < count; i++) {
            const uint8_t code = (uint8_t)read[i];
            assay_dtype_decode(ASSAY_FLOAT8_E8M0FNU, 1, &code, &read[i]);
        }
    } else {
        TRY(read_bytes(ctx, w, index, place * (count / 2), count / 2, read));
        unpack(count, read);
    }
    *numbers = read;
    read = NULL;
cleanup:
    free(read);
    return status;
}

/* One for all parts. */
assay_status assay_weights_read_tensor_scale(assay_context *ctx, const assay_model_weights *w, const weight_target *t,
                                             int64_t expert, double *out)
{
    for (int i = 0; i < t->part_count; i++) {
        double found;
        const weight_part *p = &t->parts[i];
        const int index = p->tensor_scales[strchr(p->row->theirs, '*') != NULL ? expert : 0];
        const assay_status status =
            assay_checkpoint_read(ctx, w->checkpoint, index, has_expert_axis(t, p->row) ? expert : 0, 1, &found);
        RETURN_IF(status != ASSAY_OK, status);
        if (i > 0 && found != *out) {
            return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: %s is %.9g, expected the %.9g of the other part of %s",
                              w->file, assay_checkpoint_name(w->checkpoint, index), found, *out, t->entry->spec.path);
        }
        *out = found;
    }
    return ASSAY_OK;
}
