/* The numbers of weights from a checkpoint, in our layout. */
#include <math.h>
#include <stdlib.h>

#include "harness/plan/model_weights_internal.h"
#include "oracle/base/memory.h"

static assay_status read_bytes(assay_context *ctx, const assay_model_weights *w, int index, int64_t first,
                               int64_t count, double *bytes)
{
    const assay_status status = assay_checkpoint_read(ctx, w->checkpoint, index, first, count, bytes);
    for (int64_t i = 0; status == ASSAY_OK && i < count; i++) {
        if (bytes[i] >= 0 && bytes[i] <= UINT8_MAX && bytes[i] == rint(bytes[i])) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: %s has %g, expected bytes", w->file,
                          assay_checkpoint_name(w->checkpoint, index), bytes[i]);
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

/* Numbers of expert `place` in a tensor that has `count` of each: codes of 4 bits may be bytes of two, powers of two bytes. */
static assay_status read_numbers(assay_context *ctx, const assay_model_weights *w, int index, assay_dtype type,
                                 int64_t place, int64_t count, double *out)
{
    const assay_tensor_spec *spec = NULL;
    MUST(assay_checkpoint_spec(ctx, w->checkpoint, index, &spec));
    if (spec->type != type && type == ASSAY_FLOAT4_E2M1FN) {
        MUST(read_bytes(ctx, w, index, place * (count / 2), count / 2, out));
        unpack(count, out);
    } else if (spec->type != type && type == ASSAY_FLOAT8_E8M0FNU) {
        MUST(read_bytes(ctx, w, index, place * count, count, out));
        for (int64_t i = 0; i < count; i++) {
            const uint8_t code = (uint8_t)out[i];
            assay_dtype_decode(type, 1, &code, &out[i]);
        }
    } else {
        MUST(assay_checkpoint_read(ctx, w->checkpoint, index, place * count, count, out));
    }
    return ASSAY_OK;
}

/* Numbers [rows][columns] that are stored as codes; the product of mxfp4 is exact. */
static assay_status scale_numbers(assay_context *ctx, const assay_model_weights *w, const weight_target *t,
                                  const assay_block_format *format, int scale, int64_t place, int64_t rows,
                                  int64_t columns, double *numbers)
{
    const int64_t down = assay_block_count(rows, format->rows), across = assay_block_count(columns, format->columns);
    const bool exact = format->scale == ASSAY_FLOAT8_E8M0FNU;
    OWNED double *scales = NULL;
    MUST(assay_alloc_f64(ctx, "scales", down * across, &scales));
    MUST(read_numbers(ctx, w, scale, format->scale, place, down * across, scales));
    for (int64_t i = 0; i < rows * columns; i++) {
        const double by = scales[i / columns / format->rows * across + i % columns / format->columns];
        numbers[i] = exact ? numbers[i] * by
                           : assay_dtype_round(t->entry->spec.type, (double)((float)numbers[i] * (float)by), false);
    }
    return ASSAY_OK;
}

/* Their tensor of an expert: [rows] [columns] as it lies. Of a target that is codes or scales these, else numbers. */
static assay_status read_theirs(assay_context *ctx, const assay_model_weights *w, const weight_target *t,
                                const weight_source *p, int64_t expert, double **numbers)
{
    const int64_t each = strchr(p->row->theirs, '*') != NULL ? expert : 0;
    const int64_t place = has_expert_axis(t, p->row) ? expert : 0, outputs = halves(p->row) * p->outputs;
    const int64_t rows = p->row->layout == ASSAY_WEIGHT_PLAIN ? t->inputs : outputs, count = outputs * t->inputs;
    const assay_block_format *format = assay_weights_stored_as(t, p, each);
    const bool of_scales = t->entry->part == ASSAY_OPERAND_SCALE;
    const assay_dtype type = format == NULL ? ASSAY_FLOAT64 : of_scales ? format->scale : format->element;
    OWNED double *read = NULL;
    MUST(assay_alloc_f64(ctx, t->entry->spec.path, count, &read));
    MUST(read_numbers(ctx, w, (of_scales ? p->scales : p->tensors)[each], type, place, count, read));
    if (format != NULL && t->entry->format == NULL)
        MUST(scale_numbers(ctx, w, t, format, p->scales[each], place, rows, count / rows, read));
    *numbers = read;
    read = NULL;
    return ASSAY_OK;
}

/* One for all parts. */
static assay_status read_tensor_scale(assay_context *ctx, const assay_model_weights *w, const weight_target *t,
                                      int64_t expert, double *out)
{
    for (int i = 0; i < t->source_count; i++) {
        double found;
        const weight_source *p = &t->sources[i];
        const int index = p->tensor_scales[strchr(p->row->theirs, '*') != NULL ? expert : 0];
        MUST(assay_checkpoint_read(ctx, w->checkpoint, index, has_expert_axis(t, p->row) ? expert : 0, 1, &found));
        if (i > 0 && found != *out) {
            return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: %s is %.9g, expected the %.9g of the other part of %s",
                              w->file, assay_checkpoint_name(w->checkpoint, index), found, *out, t->entry->spec.path);
        }
        *out = found;
    }
    return ASSAY_OK;
}

/* The place of an output of theirs among theirs. */
static int64_t their_output(const weight_source *p, int64_t output)
{
    switch (p->row->outputs) {
    case ASSAY_OUTPUTS_SECOND:
        return p->outputs + output;
    case ASSAY_OUTPUTS_EVEN:
        return 2 * output;
    case ASSAY_OUTPUTS_ODD:
        return 2 * output + 1;
    default:
        return output;
    }
}

/* The place of an output of part `which` among ours: gate and up of each of `shards` side by side. */
static int64_t our_output(const weight_target *t, int which, int64_t output, int64_t shards)
{
    int64_t before = 0;
    for (int i = 0; i < which; i++) before += t->sources[i].outputs;
    if (t->source_count != 2 || shards <= 1) return before + output;
    const int64_t width = t->sources[0].outputs / shards;
    return output / width * 2 * width + which * width + output % width;
}

static void scatter(const weight_target *t, int which, int64_t shards, const double *theirs, double *ours)
{
    const weight_source *p = &t->sources[which];
    const int64_t all = halves(p->row) * p->outputs;
    const bool plain = p->row->layout == ASSAY_WEIGHT_PLAIN;
    for (int64_t output = 0; output < p->outputs; output++) {
        const int64_t from = their_output(p, output), to = our_output(t, which, output, shards);
        for (int64_t input = 0; input < t->inputs; input++) {
            ours[input * t->outputs + to] = theirs[plain ? input * all + from : from * t->inputs + input];
        }
    }
}

static assay_status hold(assay_context *ctx, assay_model_weights *w, const weight_target *t, int64_t expert)
{
    OWNED double *theirs = NULL;
    const bool prefused = assay_path_ends(t->sources[0].ours, "moe/wi_0");
    if (w->held == t && w->held_expert == expert) return ASSAY_OK;
    w->held = NULL;
    free(w->slab);
    MUST(assay_alloc_f64(ctx, t->entry->spec.path, t->inputs * t->outputs, &w->slab));
    if (t->entry->part == ASSAY_OPERAND_TENSOR_SCALE) MUST(read_tensor_scale(ctx, w, t, expert, w->slab));
    for (int i = 0; i < t->source_count && t->entry->part != ASSAY_OPERAND_TENSOR_SCALE; i++) {
        MUST(read_theirs(ctx, w, t, &t->sources[i], expert, &theirs));
        scatter(t, i, prefused ? w->c->config.w13_reorder_size : 1, theirs, w->slab);
        free(theirs);
        theirs = NULL;
    }
    w->held = t;
    w->held_expert = expert;
    return ASSAY_OK;
}

static const weight_target *target_of(const assay_model_weights *w, const char *path)
{
    for (int i = 0; i < w->target_count; i++) {
        if (strcmp(w->targets[i].entry->spec.path, path) == 0) return &w->targets[i];
    }
    return NULL;
}

bool assay_model_weights_has(const assay_model_weights *weights, const char *path)
{
    return target_of(weights, path) != NULL;
}

assay_status assay_model_weights_read(assay_context *ctx, assay_model_weights *w, const char *path, int64_t first,
                                      int64_t count, double *out)
{
    const weight_target *t = target_of(w, path);
    const int64_t size = t->inputs * t->outputs;
    for (int64_t done = 0; done < count;) {
        const int64_t expert = (first + done) / size, from = (first + done) % size;
        const int64_t more = count - done < size - from ? count - done : size - from;
        MUST(hold(ctx, w, t, expert));
        memcpy(out + done, w->slab + from, (size_t)more * sizeof *out);
        done += more;
    }
    return ASSAY_OK;
}
