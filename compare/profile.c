#include "compare/profile.h"

#include <math.h>
#include <string.h>

/* The RMS of the relative error of one rounding to nearest is at most the unit roundoff over the square root of 3: the
 * error is uniform over half a unit in the last place to either side, and that is largest just above a power of two. */
#define RMS(unit_roundoff) ((unit_roundoff)*0.57735026918962576451)

/* Unit roundoffs, for the constants of the table. */
#define UNIT_FLOAT64 0x1p-53
#define UNIT_FLOAT32 0x1p-24
#define UNIT_TFLOAT32 0x1p-11
#define UNIT_BFLOAT16 0x1p-8
#define UNIT_FLOAT16 0x1p-11

/* A profile's row: what results are stored in, operands multiplied in, bits of sums, whether they are cut off, the router's
 * type, that of elementary functions and statistics, and whatever else it has. What follows from these is as in
 * assay_profile_precision. */
#define PROFILE(called, stored, operands, bits, cuts_off, routed, computed, ...)                                       \
    {                                                                                                                  \
        .precision = {.name = called,                                                                                  \
                      .storage = RMS(UNIT_##stored),                                                                   \
                      .multiply = UNIT_##operands > UNIT_##stored ? RMS(UNIT_##operands) : 0,                          \
                      .accumulate = RMS(1.0 / (double)(INT64_C(1) << ((bits) + !(cuts_off)))),                         \
                      .router = RMS(UNIT_##routed),                                                                    \
                      .elementary = 2 * UNIT_##computed * ULPS,                                                        \
                      .accumulator.truncate = cuts_off},                                                               \
        .storage = ASSAY_##stored, .multiply = ASSAY_##operands, .accumulate_bits = bits, .router = ASSAY_##routed,    \
        .elementary = ASSAY_##computed, .statistics = ASSAY_##computed, .elementary_ulps = ULPS, __VA_ARGS__           \
    }
#define ULPS 2

#define ROWS(form)                                                                                                     \
    PROFILE("f64" form, FLOAT64, FLOAT64, 52, false, FLOAT64, FLOAT64, .summary = "float64 throughout"),               \
        PROFILE("f32" form, FLOAT32, FLOAT32, 23, false, FLOAT32, FLOAT32, .summary = "float32 throughout"),           \
        PROFILE("bf16" form, BFLOAT16, BFLOAT16, 23, false, FLOAT32, FLOAT32,                                          \
                .summary = "bfloat16 stored and multiplied, float32 accumulated; router in float32"),                  \
        PROFILE("bf16_router" form, BFLOAT16, BFLOAT16, 23, false, BFLOAT16, FLOAT32,                                  \
                .summary = "bf16 with logits, scores and routing weights in bfloat16 too",                             \
                .coarser = "a router in bfloat16"),                                                                    \
        PROFILE("bf16_sums" form, BFLOAT16, BFLOAT16, 7, false, FLOAT32, FLOAT32,                                      \
                .summary = "bf16 with sums accumulated in bfloat16 too",                                               \
                .coarser = "sums in bfloat16 (accumulate: {type: bfloat16})"),                                         \
        PROFILE("f16" form, FLOAT16, FLOAT16, 23, false, FLOAT32, FLOAT32,                                             \
                .summary = "float16 stored and multiplied, float32 accumulated; router in float32"),                   \
        PROFILE("tf32" form, FLOAT32, TFLOAT32, 23, false, FLOAT32, FLOAT32,                                           \
                .summary = "float32 stored, operands of products rounded to TensorFloat-32, float32 accumulated",      \
                .coarser = "operands of products in TensorFloat-32"),                                                  \
        PROFILE("tpu_default" form, FLOAT32, BFLOAT16, 23, false, FLOAT32, FLOAT32,                                    \
                .summary =                                                                                             \
                    "float32 stored, operands of products rounded to bfloat16, float32 accumulated (jax's default "    \
                    "on TPU)",                                                                                         \
                .coarser = "operands of products in bfloat16"),                                                        \
        PROFILE("fp8_e4m3_block128" form, BFLOAT16, BFLOAT16, 13, true, FLOAT32, FLOAT32,                              \
                .precision.accumulator.block = 128, .precision.scaled = {ASSAY_FLOAT8_E4M3FN, 128},                    \
                .summary =                                                                                             \
                    "bfloat16 stored, linear layers in block-scaled fp8 with truncated sums of 128 products, added "   \
                    "in float32; else as bf16")
static const assay_profile profiles[] = {ROWS("")};
/* The same, of what takes the less accurate form of steps that have one. */
static const assay_profile inaccurate[] = {ROWS(ASSAY_INACCURATE)};

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
    p.multiply = multiply > storage ? RMS(multiply) : 0; /* what is stored coarser is not rounded once more */
    p.accumulate = rms_of(given->accumulate_bits, p.accumulator.truncate);
    p.router = RMS(assay_dtype_unit_roundoff(given->router));
    p.elementary = 2 * assay_dtype_unit_roundoff(given->elementary) * given->elementary_ulps;
    return p;
}

bool assay_is_kept_as_codes(const assay_tensor_spec *spec)
{
    return spec->kept_as == ASSAY_FLOAT8_E4M3FN || spec->kept_as == ASSAY_FLOAT8_E5M2;
}

assay_dtype assay_profile_type_of(const assay_profile *profile, const assay_tensor_spec *spec)
{
    if (spec->kept_as != ASSAY_FLOAT64 && !assay_is_kept_as_codes(spec)) return spec->kept_as;
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
        if (strcmp(inaccurate[i].precision.name, name) == 0) return &inaccurate[i];
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

const assay_profile *assay_profile_inaccurate(const char *name)
{
    for (int i = 0; i < PROFILES; i++)
        if (strcmp(profiles[i].precision.name, name) == 0) return &inaccurate[i];
    return NULL;
}

bool assay_profile_is_called(const char *text, size_t length, const char *name)
{
    const size_t own = strlen(name);
    if (length < own || strncmp(text, name, own) != 0) return false;
    return length == own ||
           (length == own + strlen(ASSAY_INACCURATE) && strncmp(text + own, ASSAY_INACCURATE, length - own) == 0);
}
