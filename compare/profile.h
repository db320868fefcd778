/* Profiles: the arithmetic that a backend claims (docs/comparing.md). */
#pragma once

#include "oracle/arithmetic/precision.h"
#include "oracle/base/dtype.h"
#include "oracle/base/tensor.h"

#include <stddef.h>

typedef struct assay_profile {
    assay_precision precision; /* precision.name is the profile's name; the rest follows from what stands below */
    assay_dtype storage;       /* type in which results may be stored */
    assay_dtype multiply;      /* type of a product's operands, where they are not block-scaled */
    int accumulate_bits;       /* after the point */
    assay_dtype router, elementary;
    assay_dtype statistics; /* of a log-sum-exp */
    double elementary_ulps;
    bool any_of_tied; /* of experts whose scores are equal any may be chosen; else the lower index */
    const char *summary;
    const char *coarser; /* what it has coarser than the first profile of its storage type: "sums in bfloat16"; NULL */
} assay_profile;

/* The precision of a profile, which is `given` but for the numbers that follow from types, bits and ulps. */
assay_precision assay_profile_precision(const assay_profile *given);

/* The type in which a result may be stored; of what is kept as codes, that in which it is before it becomes such. */
assay_dtype assay_profile_type_of(const assay_profile *profile, const assay_tensor_spec *spec);
/* An output that its case gives an fp8 type (harness/plan/written_codes.h). */
bool assay_is_kept_as_codes(const assay_tensor_spec *spec);

const assay_profile *assay_profiles(int *count);              /* as in assay_profile_names */
const char *assay_profile_names(void);                        /* "f64, f32, ... or ...", for messages */
const assay_profile *assay_profile_by_name(const char *name); /* also "bfloat16", "float32"...; NULL when none */
/* What takes the less accurate form of steps that have one, in the arithmetic of the built-in profile of this name: "f32.inaccurate" of
 * f32. NULL: there is no such profile. */
#define ASSAY_INACCURATE ".inaccurate"
const assay_profile *assay_profile_inaccurate(const char *name);
/* Whether a text of so many characters is the profile's name, or that of its less accurate form. */
bool assay_profile_is_called(const char *text, size_t length, const char *name);
/* The profile that a case of this grid is compared at when none is named. */
const assay_profile *assay_profile_for_dtype(assay_dtype type);
