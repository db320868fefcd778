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
        if (bytes[i] >= 0 && bytes[i] <= 255 && bytes[i] == rint(bytes[i])) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: %s has %g, expected bytes", w->file,
                          assay_checkpoint_name(w->checkpoint, index), bytes[i]);
    }
    return status;
}

/* Two numbers a byte, the first in the low half: sign, two bits of the exponent, one of the mantissa. A scale is a power of
 * two, 127 more than its exponent. */
static void decode_mxfp4(int64_t count, const double *bytes, const double *scales, double *out)
{
    static const double MAGNITUDES[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    for (int64_t i = 0; i < count; i++) {
        const int byte = (int)bytes[i / 2], code = i % 2 == 0 ? byte & 15 : byte >> 4;
        const double magnitude = ldexp(MAGNITUDES[code & 7], (int)scales[i / MX_BLOCK] - 127);
        out[i] = (code & 8) != 0 ? -magnitude : magnitude;
    }
}

/* Their tensor of an expert, with its scales: [rows] [columns] as it lies. */
static assay_status read_theirs(assay_context *ctx, const assay_model_weights *w, const weight_target *t,
                                const weight_part *p, int64_t expert, double **numbers)
{
    assay_status status;
    const bool each = strchr(p->row->theirs, '*') != NULL, blocks = p->row->layout == ASSAY_WEIGHT_MXFP4;
    const int64_t place = has_expert_axis(t, p->row) ? expert : 0;
    const int tensor = p->tensors[each ? expert : 0], scale = p->scales[each ? expert : 0];
    const int64_t outputs = halves(p->row) * p->outputs, count = outputs * t->inputs;
    const bool plain = p->row->layout == ASSAY_WEIGHT_PLAIN;
    const int64_t rows = plain ? t->inputs : outputs, columns = count / rows;
    const int64_t down = blocks ? rows : blocks_of(rows), across = blocks ? columns / MX_BLOCK : blocks_of(columns);
    double *bytes = NULL, *scales = NULL, *read = NULL;
    TRY(assay_alloc_f64(ctx, t->entry->spec.path, count, &read));
    if (scale >= 0) {
        TRY(assay_alloc_f64(ctx, "scales", down * across, &scales));
        TRY((blocks ? read_bytes(ctx, w, scale, place * down * across, down * across, scales)
                    : assay_checkpoint_read(ctx, w->checkpoint, scale, place * down * across, down * across, scales)));
    }
    if (blocks) {
        TRY(assay_alloc_f64(ctx, "blocks", count / 2, &bytes));
        TRY(read_bytes(ctx, w, tensor, place * (count / 2), count / 2, bytes));
        decode_mxfp4(count, bytes, scales, read);
    } else {
        TRY(assay_checkpoint_read(ctx, w->checkpoint, tensor, place * count, count, read));
    }
    for (int64_t i = 0; !blocks && scale >= 0 && i < count; i++) {
        const double by = scales[i / columns / SCALE_BLOCK * across + i % columns / SCALE_BLOCK];
        read[i] = assay_dtype_round(t->entry->spec.type, (double)((float)read[i] * (float)by), false);
    }
    *numbers = read;
    read = NULL;
cleanup:
    free(read);
    free(bytes);
    free(scales);
    return status;
}

/* The place of an output of theirs among theirs. */
static int64_t their_output(const weight_part *p, int64_t output)
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
    for (int i = 0; i < which; i++) before += t->parts[i].outputs;
    if (t->part_count != 2 || shards <= 1) return before + output;
    const int64_t width = t->parts[0].outputs / shards;
    return output / width * 2 * width + which * width + output % width;
}

static void scatter(const weight_target *t, int which, int64_t shards, const double *theirs, double *ours)
{
    const weight_part *p = &t->parts[which];
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
    assay_status status = ASSAY_OK;
    double *theirs = NULL;
    const bool prefused = assay_path_ends(t->parts[0].ours, "moe/wi_0");
    if (w->held == t && w->held_expert == expert) return ASSAY_OK;
    w->held = NULL;
    free(w->slab);
    TRY(assay_alloc_f64(ctx, t->entry->spec.path, t->inputs * t->outputs, &w->slab));
    if (t->entry->part == ASSAY_PART_TENSOR_SCALE) TRY(assay_weights_read_tensor_scale(ctx, w, t, expert, w->slab));
    for (int i = 0; i < t->part_count && t->entry->part != ASSAY_PART_TENSOR_SCALE; i++) {
        TRY((t->entry->format != NULL ? assay_weights_read_codes : read_theirs)(ctx, w, t, &t->parts[i], expert,
                                                                                &theirs));
        scatter(t, i, prefused ? w->c->config.w13_reorder_size : 1, theirs, w->slab);
        free(theirs);
        theirs = NULL;
    }
    w->held = t;
    w->held_expert = expert;
cleanup:
    free(theirs);
    return status;
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
    assay_status status = ASSAY_OK;
    const weight_target *t = target_of(w, path);
    const int64_t size = t->inputs * t->outputs;
    for (int64_t done = 0; done < count;) {
        const int64_t expert = (first + done) / size, from = (first + done) % size;
        const int64_t more = count - done < size - from ? count - done : size - from;
        TRY(hold(ctx, w, t, expert));
        memcpy(out + done, w->slab + from, (size_t)more * sizeof *out);
        done += more;
    }
cleanup:
    return status;
}
