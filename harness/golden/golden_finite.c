#include "harness/golden/golden_finite.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>

/* The one infinity that a dataset may hold. 0: none. */
static double lawful_infinity(const assay_case *c, const assay_tensor_spec *spec)
{
    if (spec->role == ASSAY_ROLE_ROUTING && assay_path_ends(spec->path, "margin")) return INFINITY;
    const bool forward = spec->role == ASSAY_ROLE_OUTPUT || spec->role == ASSAY_ROLE_CHECKPOINT;
    const bool lse = assay_path_ends(spec->path, "lse") || assay_path_ends(spec->path, "partial_lse");
    if (!forward || !lse) return 0.0;
    return c->config.empty_row.text[0] == 'i' ? INFINITY : -INFINITY;
}

static bool must_be_finite(assay_tensor_role role)
{
    return !assay_role_is_input(role) && role != ASSAY_ROLE_CERTIFICATE && role != ASSAY_ROLE_DISCRIMINATION;
}

assay_status assay_golden_require_finite(assay_context *ctx, const assay_case *c, const assay_tensor_spec *spec,
                                         int64_t first, int64_t count, const double *values)
{
    const double lawful = lawful_infinity(c, spec);
    if (!must_be_finite(spec->role)) return ASSAY_OK;
    for (int64_t i = 0; i < count; i++) {
        if (fabs(values[i]) <= FLT_MAX) continue;
        const double stored = assay_dtype_round(spec->type, values[i], false);
        if (isfinite(stored) || (lawful != 0.0 && stored == lawful)) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "%s: %s[%" PRId64 "] is %g, expected a finite number: the case overflows", c->name,
                          spec->path, first + i, isnan(stored) ? NAN : stored); /* a NaN's sign says nothing */
    }
    return ASSAY_OK;
}
