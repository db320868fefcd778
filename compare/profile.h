/* Profiles: the arithmetic that a backend claims (COMPARING.md). */
#ifndef ASSAY_COMPARE_PROFILE_H
#define ASSAY_COMPARE_PROFILE_H

#include "oracle/arithmetic/precision.h"
#include "oracle/base/dtype.h"

typedef struct assay_profile {
    assay_precision precision; /* precision.name is the profile's name */
    assay_dtype storage;       /* type in which results may be stored */
    bool any_of_tied;          /* of experts whose scores are equal any may be chosen; else the lower index */
    const char *summary;
} assay_profile;

const assay_profile *assay_profiles(int *count);              /* f64, f32, bf16, bf16_router, f16 */
const assay_profile *assay_profile_by_name(const char *name); /* also "bfloat16", "float32"...; NULL when none */
/* The profile that a case of this grid is compared at when none is named. */
const assay_profile *assay_profile_for_dtype(assay_dtype type);

#endif
