/* One certificate: what comparisons make of it. */
#include <math.h>
#include <quadmath.h>
#include <string.h>

#include "harness/certify/certify_internal.h"
#include "oracle/base/memory.h"

void quad_certificates_free(quad_certificates *certificates)
{
    free(certificates->items);
    *certificates = (quad_certificates){0};
}

assay_status quad_add_certificate(assay_context *ctx, quad_certificates *certificates, const char *path,
                                  quad_certificate **added)
{
    MUST(assay_grow(ctx, "certificates", certificates->count + 1, sizeof *certificates->items, &certificates->items));
    *added = &certificates->items[certificates->count++];
    **added = (quad_certificate){.worst = -1};
    memcpy((*added)->path, path, strlen(path) + 1);
    return ASSAY_OK;
}

/* error / unit: 0 without an error, infinite where that is no number. */
static double in_units(quad error, quad unit)
{
    double quotient = error == 0 ? 0 : (double)(error / unit);
    return isnan(quotient) ? INFINITY : quotient;
}

static void raise_to(double *largest, double value)
{
    if (value > *largest) *largest = value;
}

void quad_note(quad_certificate *certificate, const quad_comparison *c)
{
    double excess = in_units(c->error, c->allowed);
    bool worse = certificate->checked == 0 || excess > certificate->excess;
    certificate->checked++;
    raise_to(&certificate->scale, (double)c->scale);
    raise_to(&certificate->relative, in_units(c->error, c->scale));
    if (!worse) return;
    certificate->worst = c->index;
    certificate->computed = (double)c->computed;
    certificate->reference = (double)c->reference;
    certificate->error = (double)c->error;
    certificate->excess = excess;
}

/* The distance between float64 numbers at x. */
static quad last_place(quad x)
{
    int exponent = -1021;
    if (x != 0) (void)frexpq(x, &exponent);
    return ldexpq(1, exponent - 53 > -1074 ? exponent - 53 : -1074);
}

quad quad_largest(int64_t count, const quad *values)
{
    quad largest = 0;
    for (int64_t i = 0; i < count; i++)
        if (finiteq(values[i]) && fabsq(values[i]) > largest) largest = fabsq(values[i]);
    return largest;
}

void quad_certify_values(int64_t count, const quad *computed, const quad *reference, const quad *error_scale,
                         quad share, quad_certificate *certificate)
{
    const quad scale = quad_largest(count, reference);
    for (int64_t i = 0; i < count; i++) {
        const bool same = computed[i] == reference[i] || (isnanq(computed[i]) && isnanq(reference[i]));
        const quad error = same ? 0 : fabsq(computed[i] - reference[i]), ulp = last_place(reference[i]);
        quad allowed = QUAD_ALLOWED_RELATIVE * scale;
        if (error_scale != NULL) {
            const quad unit = fmaxq(finiteq(error_scale[i]) ? error_scale[i] : 0, QUAD_LEAST_SCALES * ulp);
            allowed = fmaxq(QUAD_ALLOWED_SCALES * unit, share * scale);
            raise_to(&certificate->scales, in_units(error, unit));
        }
        raise_to(&certificate->ulps, in_units(error, ulp));
        quad_note(certificate, &(quad_comparison){.index = i,
                                                  .computed = computed[i],
                                                  .reference = reference[i],
                                                  .error = error,
                                                  .scale = scale,
                                                  .allowed = allowed});
    }
}
