/* Settings of a case that a backend has not read: the case with the value that a kernel without the feature has. A row for
 * each SETTING of cases/model_keys.inc, so that a failure says "equals this case with capacity_factor -1". */

#include "harness/mutants/mutants_tensors.h"

#include "cases/model_components.inc"

#define CODES(what, text, ...)                                                                                         \
    {                                                                                                                  \
        .name = what, .models = text, .bugs = "", .traits = ASSAY_HAS_CODES, .change_inputs = read_bits, __VA_ARGS__   \
    }

static bool is_code(assay_dtype type)
{
    return type == ASSAY_FLOAT8_E4M3FN || type == ASSAY_FLOAT8_E5M2 || type == ASSAY_FLOAT4_E2M1FN;
}

/* Codes become the whole numbers that their bits are. */
static bool read_bits(const assay_mutation *m)
{
    bool changed = false;
    for (int i = 0; i < m->tensors->count; i++) {
        const assay_tensor *tensor = &m->tensors->items[i];
        if (!assay_role_is_input(tensor->spec.role) || !is_code(tensor->spec.type) || tensor->values == NULL) continue;
        for (int64_t k = 0; k < tensor->count; k++) {
            uint8_t bits = 0;
            assay_dtype_encode(tensor->spec.type, 1, &tensor->values[k], &bits);
            tensor->values[k] = bits;
            changed = true;
        }
    }
    return changed;
}

const assay_mutant assay_ignored_settings[] = {
#define KEY(...)
#define SETTING(type, of, usual, neutral, parts, ...)                                                                  \
    {.name = "ignores_" #of,                                                                                           \
     .models = "this case with " #of " " neutral,                                                                      \
     .bugs = "",                                                                                                       \
     .traits = parts,                                                                                                  \
     .keys = {{.key = ASSAY_KEY_AT_##of, .how = ASSAY_KEY_READ_AS, .value = neutral}}},
#include "cases/model_keys.inc"
    {.name = "ignores_positions",
     .models = "this case with positions that count from 0",
     .bugs = "",
     .traits = ROPE | ATTENTION,
     .inputs = {.of = "positions", .edit = assay_edit_each, .each = assay_counted_position}},
    CODES("codes_as_integers", "this case with codes taken as plain integers, times their scales", .each = false),
    CODES("codes_as_integers_unscaled", "this case with codes taken as plain integers, without their scales",
          .inputs = {.of = ASSAY_BLOCK_SCALES " " ASSAY_TENSOR_SCALES,
                     .edit = assay_edit_each,
                     .each = assay_replaced,
                     .by = 1}),
};
const int assay_ignored_setting_count = sizeof assay_ignored_settings / sizeof *assay_ignored_settings;

bool assay_mutant_is_ignored_setting(const assay_mutant *mutant)
{
    for (int i = 0; i < assay_ignored_setting_count; i++)
        if (mutant == &assay_ignored_settings[i]) return true;
    return false;
}
