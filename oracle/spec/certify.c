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

void spec_note(spec_certificate *certificate, int64_t index, spec_quad computed, spec_quad reference, spec_quad error,
               spec_quad scale)
{
    double relative = error == 0 ? 0 : (double)(error / scale);
    if (isnan(relative)) relative = INFINITY;
    bool worse = certificate->checked == 0 || relative > certificate->relative;
    certificate->checked++;
    if (!worse) return;
    certificate->worst = index;
    certificate->computed = (double)computed;
    certificate->reference = (double)reference;
    certificate->error = (double)error;
    certificate->scale = (double)scale;
    certificate->relative = relative;
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
                         spec_certificate *certificate)
{
    spec_quad scale = spec_largest(count, reference);
    for (int64_t i = 0; i < count; i++) {
        bool same = computed[i] == reference[i] || (isnanq(computed[i]) && isnanq(reference[i]));
        spec_quad error = same ? 0 : fabsq(computed[i] - reference[i]);
        double ulps = same ? 0 : (double)(error / last_place(reference[i]));
        if (!(ulps <= certificate->ulps)) certificate->ulps = isnan(ulps) ? INFINITY : ulps;
        spec_note(certificate, i, computed[i], reference[i], error, scale);
    }
}

static void certify_indices(int64_t count, const int32_t *computed, const int32_t *reference,
                            spec_certificate *certificate)
{
    for (int64_t i = 0; i < count; i++) {
        spec_quad error = fabsq((spec_quad)computed[i] - reference[i]);
        spec_note(certificate, i, computed[i], reference[i], error, 0);
    }
}

bool spec_has_prefix(const char *path, const char *prefix)
{
    return strncmp(path, prefix, strlen(prefix)) == 0;
}

static assay_status certify_tensor(assay_context *ctx, const spec_tensor *computed, const spec_tensors *references,
                                   spec_certificates *certificates)
{
    const spec_tensor *reference = spec_tensors_find(references, computed->path);
    if (reference == NULL || (reference->values == NULL) != (computed->values == NULL) ||
        !assay_shape_equal(&reference->shape, &computed->shape)) {
        char shape[128], expected[128] = "none";
        assay_shape_text(&computed->shape, shape, sizeof shape);
        if (reference != NULL) assay_shape_text(&reference->shape, expected, sizeof expected);
        return assay_fail(ctx, ASSAY_BAD_INPUT, "'%s' %s: the second form has %s of that name", computed->path, shape,
                          expected);
    }
    spec_certificate *certificate = NULL;
    assay_status status = spec_add_certificate(ctx, certificates, computed->path, &certificate);
    if (status != ASSAY_OK) return status;
    int64_t count = assay_shape_count(&computed->shape);
    if (computed->values != NULL) {
        spec_certify_values(count, computed->values, reference->values, certificate);
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
    for (int i = 0; i < computed->count; i++) checkpoints |= spec_has_prefix(computed->items[i].path, "checkpoints/");
    TRY(operation->evaluate(ctx, config, in, &references));
    if (checkpoints && operation->checkpoints != NULL) TRY(operation->checkpoints(ctx, config, in, &references));
    for (int i = 0; i < computed->count; i++) {
        if (spec_has_prefix(computed->items[i].path, "gradients/")) continue;
        TRY(certify_tensor(ctx, &computed->items[i], &references, certificates));
    }
cleanup:
    spec_tensors_free(&references);
    return status;
}
