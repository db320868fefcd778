/* Codes and scales in other places. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"
#include "oracle/base/block_format.h"

bool assay_edit_swap_nibbles(const assay_mutation *m, assay_tensor *tensor)
{
    const assay_block_format *format = assay_block_format_by_name(m->c->config.quant_format.text);
    const bool packed = format != NULL && format->element == ASSAY_FLOAT4_E2M1FN && m->c->config.pack_codes;
    if (!packed && !assay_case_is_where(m->c, ASSAY_WHERE_e2m1_cache)) return false;
    for (int64_t i = 0; i < tensor->count; i++)
        tensor->indices[i] = (tensor->indices[i] & 15) << 4 | tensor->indices[i] >> 4;
    return true;
}

bool assay_edit_copy_gate(const assay_mutation *m, assay_tensor *up)
{
    const assay_tensor *gate = assay_tensor_beside(m, up, "wi_1", "wi_0");
    if (gate == NULL) gate = assay_tensor_beside(m, up, "v_scale", "k_scale");
    if (gate != NULL) memcpy(up->values, gate->values, (size_t)up->count * sizeof *up->values);
    return gate != NULL;
}

bool assay_edit_larger_of_both(const assay_mutation *m, assay_tensor *up)
{
    const assay_tensor *gate = assay_tensor_beside(m, up, "wi_1", "wi_0");
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
    const int axis = shape->rank - scale->spec.shape.rank + assay_contracted_axis(scale);
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
        if (!assay_role_is_input(codes->spec.role) || format == NULL) continue;
        if (format->element == ASSAY_FLOAT4_E2M1FN) swapped |= swap_pairs(m, codes);
    }
    return swapped;
}
