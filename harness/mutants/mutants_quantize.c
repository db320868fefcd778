/* Other rules of quantising, and codes and scales in other places. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"
#include "oracle/base/block_format.h"
#include "oracle/ops/quant_recipe.h"

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
    const char *own = c->config.quant_format.text, *of_hidden = c->config.quant_hidden_format.text;
    const assay_block_format *format = assay_block_format_by_name(own[0] != '\0' ? own : of_hidden);
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

/* The recipe with that bug, where there is one. */
static bool change_recipe(assay_case *c, const char *bug)
{
    char name[ASSAY_TEXT_SIZE];
    assay_text *recipe = &c->config.quant_recipe;
    const int length = snprintf(name, sizeof name, "%.40s %.20s", recipe->text, bug);
    const bool changed = length < (int)sizeof name && assay_quant_recipe_by_name(name) != NULL;
    if (changed) memcpy(recipe->text, name, sizeof name);
    return changed;
}

static bool gathers_codes(const assay_case *c)
{
    return strncmp(c->config.function.text, "quantized_psum_scatter", 22) == 0;
}

bool assay_edit_recipe_dw_along_rows(assay_case *c)
{
    return change_recipe(c, "dw_along_rows");
}

bool assay_edit_recipe_forward_x(assay_case *c)
{
    return change_recipe(c, "forward_x");
}

bool assay_edit_recipe_dx_along_columns(assay_case *c)
{
    return change_recipe(c, "dx_along_columns");
}

bool assay_edit_recipe_other_axis(assay_case *c)
{
    return change_recipe(c, "other_axis");
}

bool assay_edit_recipe_other_type(assay_case *c)
{
    return change_recipe(c, "e4m3") || change_recipe(c, "e5m2");
}

/* Nothing is folded where no product follows. */
bool assay_edit_recipe_scales_lost(assay_case *c)
{
    return !gathers_codes(c) && change_recipe(c, "scales_lost");
}

bool assay_edit_recipe_scales_of_next_shard(assay_case *c)
{
    return gathers_codes(c) && c->mesh_expert > 1 && change_recipe(c, "next_shard");
}

bool assay_edit_recipe_scales_of_receiver(assay_case *c)
{
    return gathers_codes(c) && c->mesh_expert > 1 && change_recipe(c, "receiver");
}

bool assay_edit_recipe_scales_of_each_expert(assay_case *c)
{
    return (strcmp(c->op, "moe") == 0 || assay_is_layer(c)) && change_recipe(c, "each_expert");
}

/* Where it cannot be left out it is one that quantises nothing. */
bool assay_edit_recipe_ignored(assay_case *c)
{
    if (gathers_codes(c)) return change_recipe(c, "ignored");
    const bool there = c->config.quant_recipe.text[0] != '\0';
    c->config.quant_recipe.text[0] = '\0';
    if (c->config.quant_hidden_format.text[0] == '\0')
        c->config.quant_scale_rounding = assay_model_defaults.quant_scale_rounding;
    return there;
}

bool assay_edit_recipe_other_rounding(assay_case *c)
{
    assay_text *rounding = &c->config.quant_scale_rounding;
    return strcmp(c->config.quant_recipe.text, "deepseek_v3") == 0 &&
           change(rounding, strcmp(rounding->text, "up") == 0 ? "nearest" : "up");
}

/* A calibration that is fixed becomes that of the values, and the reverse. */
bool assay_edit_recipe_other_calibration(assay_case *c)
{
    assay_text *method = &c->config.bwd_quantization_calibration_method;
    return strcmp(c->config.quant_recipe.text, "fp8_full") == 0 &&
           change(method, strcmp(method->text, "absmax") == 0 ? "fixed,1" : "absmax");
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

/* The axis of blocks that products sum over: of a weight the first one, of anything else the last. */
static int contracted(const assay_tensor *scale)
{
    const int rank = scale->spec.shape.rank;
    return scale->spec.role == ASSAY_ROLE_WEIGHT ? assay_tensor_axis(scale, "blocks") : rank - 1;
}

bool assay_edit_roll_blocks(const assay_mutation *m, assay_tensor *scale)
{
    (void)m;
    return assay_roll_axis(scale, contracted(scale));
}

bool assay_edit_roll_beside(const assay_mutation *m, assay_tensor *scale)
{
    (void)m;
    const int rank = scale->spec.shape.rank;
    return rank > 1 && assay_roll_axis(scale, contracted(scale) == rank - 1 ? rank - 2 : rank - 1);
}

bool assay_edit_roll_matrices(const assay_mutation *m, assay_tensor *scale)
{
    (void)m;
    return scale->spec.role == ASSAY_ROLE_WEIGHT && contracted(scale) > 0 && assay_roll_axis(scale, 0);
}

bool assay_edit_zero_last_block(const assay_mutation *m, assay_tensor *scale)
{
    (void)m;
    const assay_shape *shape = &scale->spec.shape;
    const int axis = contracted(scale);
    if (axis < 0) return false;
    const int64_t inner = assay_axes_product(shape, axis + 1, shape->rank), blocks = shape->dims[axis];
    for (int64_t i = 0; i < scale->count; i++) {
        if (i / inner % blocks == blocks - 1) scale->values[i] = 0;
    }
    return true;
}

bool assay_edit_first_block(const assay_mutation *m, assay_tensor *scale)
{
    (void)m;
    const assay_shape *shape = &scale->spec.shape;
    const int axis = contracted(scale);
    if (axis < 0 || shape->dims[axis] == 1) return false;
    const int64_t inner = assay_axes_product(shape, axis + 1, shape->rank), blocks = shape->dims[axis];
    for (int64_t i = 0; i < scale->count; i++) scale->values[i] = scale->values[i - i / inner % blocks * inner];
    return true;
}

/* Of [E,J,N] scales of a byte. Where tensor cores have them each expert's N rows are padded with zeros to a multiple of 128. */
bool assay_edit_unpadded_offsets(const assay_mutation *m, assay_tensor *scale)
{
    enum { ROWS = 128 };
    const assay_shape *shape = &scale->spec.shape;
    const int axis = contracted(scale);
    if (scale->spec.role != ASSAY_ROLE_WEIGHT || axis != 1 || scale->spec.type == ASSAY_FLOAT32) return false;
    const int64_t rows = assay_axes_product(shape, axis + 1, shape->rank), blocks = shape->dims[axis];
    const int64_t padded = (rows + ROWS - 1) / ROWS * ROWS;
    double *copy = malloc((size_t)scale->count * sizeof *copy);
    if (copy == NULL || padded == rows || shape->dims[0] == 1) {
        free(copy);
        return false;
    }
    (void)m;
    memcpy(copy, scale->values, (size_t)scale->count * sizeof *copy);
    for (int64_t i = 0; i < scale->count; i++) {
        const int64_t expert = i / rows / blocks, block = i / rows % blocks, place = expert * rows + i % rows;
        const int64_t from = place / padded, row = place % padded;
        scale->values[i] = row < rows ? copy[(from * blocks + block) * rows + row] : 0;
    }
    free(copy);
    return true;
}

/* The two halves of each row read as if they alternated. */
bool assay_edit_read_alternating(const assay_mutation *m, assay_tensor *scale)
{
    const int64_t width = assay_tensor_width(scale), half = width / 2;
    double *copy = malloc((size_t)scale->count * sizeof *copy);
    (void)m;
    if (copy == NULL || width % 2 != 0 || half == 1) {
        free(copy);
        return false;
    }
    memcpy(copy, scale->values, (size_t)scale->count * sizeof *copy);
    for (int64_t i = 0; i < scale->count; i++) {
        const int64_t at = i % width;
        scale->values[i] = copy[i - at + (at < half ? 2 * at : 2 * (at - half) + 1)];
    }
    free(copy);
    return true;
}

/* [J,N] numbers in memory as [N,J] ones would lie there. */
bool assay_edit_read_transposed(const assay_mutation *m, assay_tensor *scale)
{
    const assay_shape *shape = &scale->spec.shape;
    const int64_t columns = assay_tensor_width(scale), rows = shape->rank > 1 ? shape->dims[shape->rank - 2] : 1;
    double *copy = malloc((size_t)scale->count * sizeof *copy);
    (void)m;
    if (copy == NULL || rows == 1 || columns == 1) {
        free(copy);
        return false;
    }
    memcpy(copy, scale->values, (size_t)scale->count * sizeof *copy);
    for (int64_t i = 0; i < scale->count; i++) {
        const int64_t at = i % (rows * columns);
        scale->values[i] = copy[i - at + at % columns * rows + at / columns];
    }
    free(copy);
    return true;
}

bool assay_edit_all_to_first(const assay_mutation *m, assay_tensor *tensor)
{
    (void)m;
    for (int64_t i = 1; i < tensor->count; i++) tensor->values[i] = tensor->values[0];
    return tensor->count > 1;
}

/* The tensor of gate beside that of up; NULL: there is none. */
static assay_tensor *gate_of(const assay_mutation *m, const assay_tensor *up)
{
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "%s", up->spec.path);
    char *place = strstr(path, "wi_1");
    if (place == NULL) return NULL;
    place[3] = '0';
    assay_tensor *gate = assay_tensor_set_find(m->tensors, path);
    return gate != NULL && gate->count == up->count ? gate : NULL;
}

bool assay_edit_take_from_gate(const assay_mutation *m, assay_tensor *up)
{
    const assay_tensor *gate = gate_of(m, up);
    if (gate != NULL) memcpy(up->values, gate->values, (size_t)up->count * sizeof *up->values);
    return gate != NULL;
}

bool assay_edit_larger_of_both(const assay_mutation *m, assay_tensor *up)
{
    const assay_tensor *gate = gate_of(m, up);
    for (int64_t i = 0; gate != NULL && i < up->count; i++)
        up->values[i] = gate->values[i] = fmax(up->values[i], gate->values[i]);
    return gate != NULL;
}

/* Two codes along the contraction are a byte. As many axes lie behind it as in their scale. */
static bool swap_pairs(const assay_mutation *m, assay_tensor *codes)
{
    char path[ASSAY_PATH_SIZE];
    const assay_shape *shape = &codes->spec.shape;
    snprintf(path, sizeof path, "%.140s_scale", codes->spec.path);
    const assay_tensor *scale = assay_tensor_set_find(m->tensors, path);
    const int axis = shape->rank - scale->spec.shape.rank + contracted(scale);
    const int64_t inner = assay_axes_product(shape, axis + 1, shape->rank), length = shape->dims[axis];
    for (int64_t i = 0; i < codes->count; i++) {
        const int64_t place = i / inner % length;
        if (place % 2 == 0 && place + 1 < length) assay_swap_values(&codes->values[i], &codes->values[i + inner], 1);
    }
    return length > 1;
}

bool assay_edit_swap_pairs(const assay_mutation *m)
{
    bool swapped = false;
    for (int i = 0; i < m->tensors->count; i++) {
        assay_tensor *codes = &m->tensors->items[i];
        const assay_block_format *format = assay_case_quant_format_of(m->c, codes->spec.path);
        if (!assay_role_is_given(codes->spec.role) || format == NULL) continue;
        if (format->element == ASSAY_FLOAT4_E2M1FN) swapped |= swap_pairs(m, codes);
    }
    return swapped;
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
