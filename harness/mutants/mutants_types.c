/* Mutants by coarser types: of results, and of what the emulated arithmetic rounds. */
#include <math.h>

#include "harness/mutants/mutants_tensors.h"

/* Towards zero. With the unit roundoff u the grid's next number is 2u 2^e away from one of [2^e, 2^(e + 1)). */
bool assay_edit_truncate(const assay_mutation *m, assay_tensor *tensor)
{
    const assay_dtype type = assay_profile_type_of(m->profile, &tensor->spec);
    if (type == ASSAY_FLOAT64) return false;
    const double unit = assay_dtype_unit_roundoff(type), least = assay_dtype_least_subnormal(type);
    for (int64_t i = 0; i < tensor->count; i++) {
        const double value = tensor->values[i], nearest = assay_dtype_round(type, value, false);
        if (!isfinite(value) || fabs(nearest) <= fabs(value)) {
            tensor->values[i] = nearest;
            continue;
        }
        /* rounded away from zero: take off a little more than half of a step, and round again */
        const double less = fmax(0.0, fabs(nearest) - fmax(1.01 * unit * fabs(nearest), 0.75 * least));
        tensor->values[i] = copysign(assay_dtype_round(type, less, false), value);
    }
    return true;
}

assay_dtype assay_coarser_type(assay_dtype type)
{
    return type == ASSAY_FLOAT64   ? ASSAY_FLOAT32
           : type == ASSAY_FLOAT32 ? ASSAY_BFLOAT16
           : type == ASSAY_FLOAT16 ? ASSAY_BFLOAT16
                                   : ASSAY_FLOAT8_E4M3FN;
}

bool assay_edit_coarser(const assay_mutation *m, assay_tensor *tensor)
{
    const assay_dtype less = assay_coarser_type(assay_profile_type_of(m->profile, &tensor->spec));
    assay_dtype_round_many(less, tensor->count, tensor->values, tensor->values);
    return true;
}

/* --- worse arithmetic --- */

#define BF16 (0x1p-8 / 1.7320508075688772)

bool assay_degrade_sums(const assay_mutation *m, assay_emulation *e)
{
    (void)m;
    e->precision.accumulate = BF16;
    return true;
}

/* Where there is no router, or it is in bfloat16 anyway, other errors would be drawn and no larger ones. */
bool assay_degrade_router(const assay_mutation *m, assay_emulation *e)
{
    bool routes = false;
    for (int i = 0; i < m->tensors->count; i++) {
        const assay_tensor_spec *spec = &m->tensors->items[i].spec;
        routes |= assay_role_is_input(spec->role) &&
                  (assay_path_ends(spec->path, "gate/kernel") || assay_path_ends(spec->path, "logits"));
    }
    e->precision.router = BF16;
    return routes && assay_dtype_unit_roundoff(m->profile->router) < 0x1p-8;
}

bool assay_degrade_functions(const assay_mutation *m, assay_emulation *e)
{
    (void)m;
    e->precision.elementary = BF16;
    return true;
}

bool assay_degrade_operands(const assay_mutation *m, assay_emulation *e)
{
    if (m->profile->precision.scaled.block > 0) return false;
    e->multiply = ASSAY_FLOAT8_E4M3FN;
    e->precision.multiply = 0x1p-4 / 1.7320508075688772;
    return true;
}

bool assay_degrade_intermediates(const assay_mutation *m, assay_emulation *e)
{
    if (assay_dtype_unit_roundoff(m->profile->storage) >= 0x1p-8) return false;
    e->storage = e->multiply = ASSAY_BFLOAT16;
    e->precision.storage = e->precision.multiply = BF16;
    return true;
}
