/* Mutants by results rounded towards zero or to a coarser type. */
#include <math.h>

#include "harness/mutants/mutants_tensors.h"

/* Towards zero. With the unit roundoff u the grid's next number is 2u 2^e away from one of [2^e, 2^(e + 1)). */
static bool truncate(const assay_mutation *m, assay_kept *tensor)
{
    const assay_dtype type = m->profile->storage;
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

bool assay_mutant_truncate_values(const assay_mutation *m)
{
    return assay_change_floats(m, "", truncate);
}

assay_dtype assay_coarser_type(assay_dtype type)
{
    return type == ASSAY_FLOAT64   ? ASSAY_FLOAT32
           : type == ASSAY_FLOAT32 ? ASSAY_BFLOAT16
           : type == ASSAY_FLOAT16 ? ASSAY_BFLOAT16
                                   : ASSAY_FLOAT8_E4M3FN;
}

static bool coarser(const assay_mutation *m, assay_kept *tensor)
{
    const assay_dtype less = assay_coarser_type(m->profile->storage);
    assay_dtype_round_many(less, tensor->count, tensor->values, tensor->values);
    return true;
}

bool assay_mutant_coarser_values(const assay_mutation *m)
{
    return assay_change_floats(m, "", coarser);
}
