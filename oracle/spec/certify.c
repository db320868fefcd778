#include "oracle/spec/certify.h"

#include <math.h>
#include <quadmath.h>
#include <string.h>

#include "oracle/spec/certify_internal.h"
#include "oracle/spec/spec_internal.h"

void spec_certificates_free(spec_certificates *certificates)
{
    free(certificates->items);
    *certificates = (spec_certificates){0};
}

assay_status spec_add_certificate(assay_context *ctx, spec_certificates *certificates, const char *path,
                                  spec_certificate **added)
{
    size_t count = (size_t)certificates->count + 1;
    spec_certificate *items = realloc(certificates->items, count * sizeof *items);
    if (items == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the certificate of '%s'", path);
    certificates->items = items;
    *added = &items[certificates->count++];
    **added = (spec_certificate){.worst = -1};
    memcpy((*added)->path, path, strlen(path) + 1);
    return ASSAY_OK;
}

/* error / unit: 0 without an error, infinite where that is no number. */
static double in_units(spec_quad error, spec_quad unit)
{
    double quotient = error == 0 ? 0 : (double)(error / unit);
    return isnan(quotient) ? INFINITY : quotient;
}

static void raise_to(double *largest, double value)
{
    if (value > *largest) *largest = value;
}

void spec_note(spec_certificate *certificate, const spec_comparison *c)
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
static spec_quad last_place(spec_quad x)
{
    int exponent = -1021;
    if (x != 0) (void)frexpq(x, &exponent);
    return ldexpq(1, exponent - 53 > -1074 ? exponent - 53 : -1074);
}

spec_quad spec_largest(int64_t count, const spec_quad *values)
{
    spec_quad largest = 0;
    for (int64_t i = 0; i < count; i++) {
        if (finiteq(values[i]) && fabsq(values[i]) > largest) largest = fabsq(values[i]);
    }
    return largest;
}

void spec_certify_values(int64_t count, const spec_quad *computed, const spec_quad *reference,
                         const spec_quad *error_scale, spec_certificate *certificate)
{
    const spec_quad scale = spec_largest(count, reference);
    for (int64_t i = 0; i < count; i++) {
        const bool same = computed[i] == reference[i] || (isnanq(computed[i]) && isnanq(reference[i]));
        const spec_quad error = same ? 0 : fabsq(computed[i] - reference[i]), ulp = last_place(reference[i]);
        spec_quad allowed = SPEC_ALLOWED_RELATIVE * scale;
        if (error_scale != NULL) {
            const spec_quad unit = fmaxq(finiteq(error_scale[i]) ? error_scale[i] : 0, SPEC_LEAST_SCALES * ulp);
            allowed = SPEC_ALLOWED_SCALES * unit;
            raise_to(&certificate->scales, in_units(error, unit));
        }
        raise_to(&certificate->ulps, in_units(error, ulp));
        spec_note(certificate, &(spec_comparison){.index = i,
                                                  .computed = computed[i],
                                                  .reference = reference[i],
                                                  .error = error,
                                                  .scale = scale,
                                                  .allowed = allowed});
    }
}

static void certify_indices(int64_t count, const int32_t *computed, const int32_t *reference,
                            spec_certificate *certificate)
{
    for (int64_t i = 0; i < count; i++) {
        const spec_quad error = fabsq((spec_quad)computed[i] - reference[i]);
        spec_note(certificate,
                  &(spec_comparison){.index = i, .computed = computed[i], .reference = reference[i], .error = error});
    }
}

bool spec_has_prefix(const char *path, const char *prefix)
{
    return strncmp(path, prefix, strlen(prefix)) == 0;
}

assay_status spec_find_error_scale(assay_context *ctx, const spec_tensors *results, const spec_tensor *tensor,
                                   const spec_quad **scale)
{
    static const char folder[] = "error_scale/f64/";
    char path[sizeof folder + ASSAY_PATH_SIZE];
    memcpy(path, folder, sizeof folder);
    memcpy(path + sizeof folder - 1, tensor->path, strlen(tensor->path) + 1);
    return spec_read_optional(ctx, results, path, assay_shape_count(&tensor->shape), scale);
}

static assay_status certify_tensor(assay_context *ctx, const spec_tensors *results, const spec_tensor *computed,
                                   const spec_tensors *references, spec_certificates *certificates)
{
    const spec_tensor *reference = spec_tensors_find(references, computed->path);
    const spec_quad *error_scale = NULL;
    if (reference == NULL || (reference->values == NULL) != (computed->values == NULL) ||
        !assay_shape_equal(&reference->shape, &computed->shape)) {
        char shape[128], expected[128] = "none";
        assay_shape_text(&computed->shape, shape, sizeof shape);
        if (reference != NULL) assay_shape_text(&reference->shape, expected, sizeof expected);
        return assay_fail(ctx, ASSAY_BAD_INPUT, "'%s' %s: the second form has %s of that name", computed->path, shape,
                          expected);
    }
    spec_certificate *certificate = NULL;
    assay_status status = spec_find_error_scale(ctx, results, computed, &error_scale);
    if (status == ASSAY_OK) status = spec_add_certificate(ctx, certificates, computed->path, &certificate);
    if (status != ASSAY_OK) return status;
    int64_t count = assay_shape_count(&computed->shape);
    if (computed->values != NULL) {
        spec_certify_values(count, computed->values, reference->values, error_scale, certificate);
    } else {
        certify_indices(count, computed->indices, reference->indices, certificate);
    }
    return ASSAY_OK;
}

assay_status spec_certify_outputs(assay_context *ctx, const spec_operation *operation, const void *config,
                                  const spec_tensors *in, const spec_tensors *computed, spec_certificates *certificates)
{
    assay_status status = ASSAY_OK;
    spec_tensors references = {0};
    bool checkpoints = false;
    const bool gradients = operation->gives_gradients != NULL && operation->gives_gradients(config);
    for (int i = 0; i < computed->count; i++) checkpoints |= spec_has_prefix(computed->items[i].path, "checkpoints/");
    TRY(operation->evaluate(ctx, config, in, &references));
    if (checkpoints && operation->checkpoints != NULL) TRY(operation->checkpoints(ctx, config, in, &references));
    for (int i = 0; i < computed->count; i++) {
        const spec_tensor *tensor = &computed->items[i];
        if ((!gradients && spec_has_prefix(tensor->path, "gradients/")) ||
            spec_has_prefix(tensor->path, "error_scale/"))
            continue;
        TRY(certify_tensor(ctx, computed, tensor, &references, certificates));
    }
cleanup:
    spec_tensors_free(&references);
    return status;
}
