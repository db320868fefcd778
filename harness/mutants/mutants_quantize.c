/* Other rules of quantising, and codes and scales in other places. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"
#include "oracle/base/block_format.h"

static bool change(assay_text *text, const char *to)
{
    const bool changed = strcmp(text->text, to) != 0;
    snprintf(text->text, sizeof text->text, "%s", to);
    return changed;
}

bool assay_edit_other_ties(assay_case *c)
{
    assay_text *ties = &c->config.quant_ties;
    return change(ties, strcmp(ties->text, "even") == 0 ? "down" : "even");
}

/* Of scales that are powers of two up or down; of others that, or not. */
bool assay_edit_other_scale_rounding(assay_case *c)
{
    const assay_block_format *format = assay_block_format_by_name(c->config.quant_format.text);
    assay_text *rounding = &c->config.quant_scale_rounding;
    const bool up = strcmp(rounding->text, "up") == 0;
    if (format == NULL || format->scale == ASSAY_FLOAT8_E4M3FN) return false;
    if (format->scale == ASSAY_FLOAT32) c->config.quant_subnormal_scale = true;
    return change(rounding, !up ? "up" : format->scale == ASSAY_FLOAT32 ? "nearest" : "down");
}

bool assay_edit_other_scale_division(assay_case *c)
{
    assay_text *scale = &c->config.quant_scale;
    return strcmp(scale->text, "invert") != 0 &&
           change(scale, strcmp(scale->text, "divide") == 0 ? "multiply" : "divide");
}

bool assay_edit_swap_nibbles(const assay_mutation *m, assay_tensor *tensor)
{
    const assay_block_format *format = assay_block_format_by_name(m->c->config.quant_format.text);
    if (format == NULL || format->element != ASSAY_FLOAT4_E2M1FN || !m->c->config.pack_codes) return false;
    for (int64_t i = 0; i < tensor->count; i++)
        tensor->indices[i] = (tensor->indices[i] & 15) << 4 | tensor->indices[i] >> 4;
    return true;
}

bool assay_edit_invert(const assay_mutation *m, assay_tensor *tensor)
{
    (void)m;
    for (int64_t i = 0; i < tensor->count; i++)
        tensor->values[i] = assay_dtype_round(tensor->spec.type, 1 / tensor->values[i], false);
    return true;
}

enum { TILE = 512 };

/* Where the number of a tile's row and column is, row by row, among those of the tile. */
static int place_in_tile(int at)
{
    const int row = at / 4;
    return row % 32 * 16 + row / 32 * 4 + at % 4;
}

static bool is_swizzled(const assay_mutation *m, const assay_tensor *tensor)
{
    return strcmp(m->c->config.quant_scale_layout.text, "swizzled_128x4") == 0 && tensor->count % TILE == 0;
}

bool assay_edit_unswizzle(const assay_mutation *m, assay_tensor *tensor)
{
    if (!is_swizzled(m, tensor)) return false;
    for (int32_t *tile = tensor->indices; tile < tensor->indices + tensor->count; tile += TILE) {
        int32_t before[TILE];
        memcpy(before, tile, sizeof before);
        for (int i = 0; i < TILE; i++) tile[i] = before[place_in_tile(i)];
    }
    return true;
}

bool assay_edit_read_unswizzled(const assay_mutation *m, assay_tensor *tensor)
{
    if (!is_swizzled(m, tensor)) return false;
    for (double *tile = tensor->values; tile < tensor->values + tensor->count; tile += TILE) {
        double before[TILE];
        memcpy(before, tile, sizeof before);
        for (int i = 0; i < TILE; i++) tile[place_in_tile(i)] = before[i];
    }
    return true;
}

/* The padding of a tensor that is swizzled is not 0, as where a buffer is not cleared. */
bool assay_edit_padding_of_scales(const assay_mutation *m, assay_tensor *tensor)
{
    if (!is_swizzled(m, tensor)) return false;
    const int64_t last = tensor->count - 1; /* of the last row and column */
    const bool changed = tensor->indices[last] == 0;
    if (changed) tensor->indices[last] = 127;
    return changed;
}
