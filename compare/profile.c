#include "compare/profile.h"

#include <math.h>
#include <string.h>

/* The RMS of the relative error of one rounding to nearest is at most the unit roundoff over the square root of 3: the
 * error is uniform over half a unit in the last place to either side, and that is largest just above a power of two. */
#define RMS(unit_roundoff) ((unit_roundoff)*0.57735026918962576451)

static const assay_profile profiles[] = {
    {.precision = {.name = "f64",
                   .storage = RMS(0x1p-53),
                   .multiply = 0.0,
                   .accumulate = RMS(0x1p-53),
                   .router = RMS(0x1p-53),
                   .elementary = 0x1p-51,
                   .least = 0x1p-1074},
     .storage = ASSAY_FLOAT64,
     .multiply = ASSAY_FLOAT64,
     .accumulate_bits = 52,
     .router = ASSAY_FLOAT64,
     .elementary = ASSAY_FLOAT64,
     .statistics = ASSAY_FLOAT64,
     .elementary_ulps = 2,
     .summary = "float64 throughout"},
    {.precision = {.name = "f32",
                   .storage = RMS(0x1p-24),
                   .multiply = 0.0,
                   .accumulate = RMS(0x1p-24),
                   .router = RMS(0x1p-24),
                   .elementary = 0x1p-22,
                   .least = 0x1p-149},
     .storage = ASSAY_FLOAT32,
     .multiply = ASSAY_FLOAT32,
     .accumulate_bits = 23,
     .router = ASSAY_FLOAT32,
     .elementary = ASSAY_FLOAT32,
     .statistics = ASSAY_FLOAT32,
     .elementary_ulps = 2,
     .summary = "float32 throughout"},
    {.precision = {.name = "bf16",
                   .storage = RMS(0x1p-8),
                   .multiply = 0.0,
                   .accumulate = RMS(0x1p-24),
                   .router = RMS(0x1p-24),
                   .elementary = 0x1p-22,
                   .least = 0x1p-133},
     .storage = ASSAY_BFLOAT16,
     .multiply = ASSAY_BFLOAT16,
     .accumulate_bits = 23,
     .router = ASSAY_FLOAT32,
     .elementary = ASSAY_FLOAT32,
     .statistics = ASSAY_FLOAT32,
     .elementary_ulps = 2,
     .summary = "bfloat16 stored and multiplied, float32 accumulated; router in float32"},
    {.precision = {.name = "bf16_router",
                   .storage = RMS(0x1p-8),
                   .multiply = 0.0,
                   .accumulate = RMS(0x1p-24),
                   .router = RMS(0x1p-8),
                   .elementary = 0x1p-22,
                   .least = 0x1p-133},
     .storage = ASSAY_BFLOAT16,
     .multiply = ASSAY_BFLOAT16,
     .accumulate_bits = 23,
     .router = ASSAY_BFLOAT16,
     .elementary = ASSAY_FLOAT32,
     .statistics = ASSAY_FLOAT32,
     .elementary_ulps = 2,
     .summary = "bf16 with logits, scores and routing weights in bfloat16 too",
     .coarser = "a router in bfloat16"},
    {.precision = {.name = "bf16_sums",
                   .storage = RMS(0x1p-8),
                   .multiply = 0.0,
                   .accumulate = RMS(0x1p-8),
                   .router = RMS(0x1p-24),
                   .elementary = 0x1p-22,
                   .least = 0x1p-133},
     .storage = ASSAY_BFLOAT16,
     .multiply = ASSAY_BFLOAT16,
     .accumulate_bits = 7,
     .router = ASSAY_FLOAT32,
     .elementary = ASSAY_FLOAT32,
     .statistics = ASSAY_FLOAT32,
     .elementary_ulps = 2,
     .summary = "bf16 with sums accumulated in bfloat16 too",
     .coarser = "sums in bfloat16 (accumulate: {type: bfloat16})"},
    {.precision = {.name = "f16",
                   .storage = RMS(0x1p-11),
                   .multiply = 0.0,
                   .accumulate = RMS(0x1p-24),
                   .router = RMS(0x1p-24),
                   .elementary = 0x1p-22,
                   .least = 0x1p-24},
     .storage = ASSAY_FLOAT16,
     .multiply = ASSAY_FLOAT16,
     .accumulate_bits = 23,
     .router = ASSAY_FLOAT32,
     .elementary = ASSAY_FLOAT32,
     .statistics = ASSAY_FLOAT32,
     .elementary_ulps = 2,
     .summary = "float16 stored and multiplied, float32 accumulated; router in float32"},
    {.precision = {.name = "tf32",
                   .storage = RMS(0x1p-24),
                   .multiply = RMS(0x1p-11),
                   .accumulate = RMS(0x1p-24),
                   .router = RMS(0x1p-24),
                   .elementary = 0x1p-22,
                   .least = 0x1p-149},
     .storage = ASSAY_FLOAT32,
     .multiply = ASSAY_TFLOAT32,
     .accumulate_bits = 23,
     .router = ASSAY_FLOAT32,
     .elementary = ASSAY_FLOAT32,
     .statistics = ASSAY_FLOAT32,
     .elementary_ulps = 2,
     .summary = "float32 stored, operands of products rounded to TensorFloat-32, float32 accumulated",
     .coarser = "operands of products in TensorFloat-32"},
    {.precision = {.name = "tpu_default",
                   .storage = RMS(0x1p-24),
                   .multiply = RMS(0x1p-8),
                   .accumulate = RMS(0x1p-24),
                   .router = RMS(0x1p-24),
                   .elementary = 0x1p-22,
                   .least = 0x1p-149},
     .storage = ASSAY_FLOAT32,
     .multiply = ASSAY_BFLOAT16,
     .accumulate_bits = 23,
     .router = ASSAY_FLOAT32,
     .elementary = ASSAY_FLOAT32,
     .statistics = ASSAY_FLOAT32,
     .elementary_ulps = 2,
     .summary = "float32 stored, operands of products rounded to bfloat16, float32 accumulated (jax's default on TPU)",
     .coarser = "operands of products in bfloat16"},
    {.precision = {.name = "fp8_e4m3_block128",
                   .storage = RMS(0x1p-8),
                   .multiply = 0.0,
                   .accumulate = RMS(0x1p-13),
                   .router = RMS(0x1p-24),
                   .elementary = 0x1p-22,
                   .accumulator = {.truncate = true, .block = 128},
                   .scaled = {ASSAY_FLOAT8_E4M3FN, 128},
                   .least = 0x1p-133},
     .storage = ASSAY_BFLOAT16,
     .multiply = ASSAY_BFLOAT16,
     .accumulate_bits = 13,
     .router = ASSAY_FLOAT32,
     .elementary = ASSAY_FLOAT32,
     .statistics = ASSAY_FLOAT32,
     .elementary_ulps = 2,
     .summary =
         "bfloat16 stored, linear layers in block-scaled fp8 with truncated sums of 128 products, added in float32; "
         "else as bf16"},
};

enum { PROFILES = sizeof profiles / sizeof *profiles };

/* Of one error: to nearest half a unit in the last place at most, cut off a whole one. */
static double rms_of(int bits, bool truncate)
{
    return RMS(ldexp(1, -bits - (truncate ? 0 : 1)));
}

assay_precision assay_profile_precision(const assay_profile *given)
{
    assay_precision p = given->precision;
    const double storage = assay_dtype_unit_roundoff(given->storage);
    const double multiply = assay_dtype_unit_roundoff(given->multiply);
    p.storage = RMS(storage);
    p.least = assay_dtype_least_subnormal(given->storage);
    p.multiply = multiply > storage ? RMS(multiply) : 0; /* what is stored coarser is not rounded once more */
    p.accumulate = rms_of(given->accumulate_bits, p.accumulator.truncate);
    p.router = RMS(assay_dtype_unit_roundoff(given->router));
    p.elementary = 2 * assay_dtype_unit_roundoff(given->elementary) * given->elementary_ulps;
    return p;
}

assay_dtype assay_profile_type_of(const assay_profile *profile, const assay_tensor_spec *spec)
{
    switch (assay_tensor_kept(spec)) {
    case ASSAY_KEPT_BY_ROUTER:
        return profile->router;
    case ASSAY_KEPT_AS_STATISTIC:
        return profile->statistics;
    case ASSAY_KEPT_STORED:
        break;
    }
    return profile->storage;
}

const assay_profile *assay_profiles(int *count)
{
    *count = PROFILES;
    return profiles;
}

const char *assay_profile_names(void)
{
    return "f64, f32, bf16, bf16_router, bf16_sums, f16, tf32, tpu_default or fp8_e4m3_block128";
}

const assay_profile *assay_profile_by_name(const char *name)
{
    assay_dtype type;
    for (int i = 0; i < PROFILES; i++) {
        if (strcmp(profiles[i].precision.name, name) == 0) return &profiles[i];
    }
    for (int i = 0; assay_dtype_from_name(name, &type) && i < PROFILES; i++) {
        if (profiles[i].storage == type) return &profiles[i];
    }
    return NULL;
}

const assay_profile *assay_profile_for_dtype(assay_dtype type)
{
    if (type == ASSAY_TFLOAT32) return assay_profile_by_name("tf32");
    for (int i = 0; i < PROFILES; i++) {
        if (profiles[i].storage == type) return &profiles[i];
    }
    return NULL;
}
