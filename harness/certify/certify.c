#include "harness/certify/certify.h"

#include <quadmath.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/certify/certify_internal.h"
#include "oracle/base/memory.h"

/* The element that is no number, or else the largest. */
static int64_t foremost(int64_t count, const quad *values)
{
    int64_t index = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!finiteq(values[i])) return i;
        if (fabsq(values[i]) > fabsq(values[index])) index = i;
    }
    return index;
}

static void certify_indices(int64_t count, const int32_t *computed, const int32_t *reference,
                            quad_certificate *certificate)
{
    for (int64_t i = 0; i < count; i++) {
        const quad error = fabsq((quad)computed[i] - reference[i]);
        quad_note(certificate,
                  &(quad_comparison){.index = i, .computed = computed[i], .reference = reference[i], .error = error});
    }
}

static assay_status find_error_scale(assay_context *ctx, const quad_tensors *results, const quad_tensor *tensor,
                                     const quad **scale)
{
    static const char folder[] = "error_scale/f64/";
    char path[sizeof folder + ASSAY_PATH_SIZE];
    memcpy(path, folder, sizeof folder);
    memcpy(path + sizeof folder - 1, tensor->path, strlen(tensor->path) + 1);
    return quad_read_optional(ctx, results, path, assay_shape_count(&tensor->shape), scale);
}

static assay_status refuse(assay_context *ctx, const quad_tensor *computed, const quad_tensor *reference)
{
    char shape[128], expected[128] = "none";
    assay_shape_text(&computed->shape, shape, sizeof shape);
    if (reference != NULL) assay_shape_text(&reference->shape, expected, sizeof expected);
    return assay_fail(ctx, ASSAY_BAD_INPUT, "'%s' %s: the second form has %s of that name", computed->path, shape,
                      expected);
}

static assay_status certify_tensor(assay_context *ctx, const quad_tensors *results, const quad_tensor *computed,
                                   const quad_tensors *references, quad_certificates *certificates)
{
    const quad_tensor *reference = quad_tensors_find(references, computed->path);
    const quad *error_scale = NULL;
    if (reference == NULL || (reference->values == NULL) != (computed->values == NULL) ||
        !assay_shape_equal(&reference->shape, &computed->shape))
        return refuse(ctx, computed, reference);
    quad_certificate *certificate = NULL;
    assay_status status = find_error_scale(ctx, results, computed, &error_scale);
    if (status == ASSAY_OK) status = quad_add_certificate(ctx, certificates, computed->path, &certificate);
    if (status != ASSAY_OK) return status;
    int64_t count = assay_shape_count(&computed->shape);
    if (computed->values != NULL) {
        const quad share = assay_begins(computed->path, "gradients/") ? QUAD_ALLOWED_RELATIVE : 0;
        quad_certify_values(count, computed->values, reference->values, error_scale, share, certificate);
    } else {
        certify_indices(count, computed->indices, reference->indices, certificate);
    }
    return ASSAY_OK;
}

/* Elements of a sum of signs over the gradient of `of`. */
static assay_status certify_sums(assay_context *ctx, const quad_tensors *results, const quad_tensor *computed,
                                 const char *of, const quad_tensors *references, const quad_budget *budget,
                                 quad_certificates *certificates)
{
    char path[ASSAY_PATH_SIZE + 16], ignored[ASSAY_PATH_SIZE];
    const quad *scale = NULL;
    quad_certificate *certificate = NULL;
    OWNED void *signs = NULL;
    uint64_t random = budget->seed;
    snprintf(path, sizeof path, "gradients/%s", of);
    const quad_tensor *gradient = quad_tensors_find(references, path);
    if (gradient == NULL) return refuse(ctx, computed, NULL);
    const int64_t count = assay_shape_count(&computed->shape), all = assay_shape_count(&gradient->shape);
    const int64_t samples = budget->samples < count ? budget->samples : count;
    const quad largest = quad_largest(count, computed->values);
    MUST(find_error_scale(ctx, results, computed, &scale));
    MUST(quad_add_certificate(ctx, certificates, computed->path, &certificate));
    MUST(assay_alloc(ctx, "signs", all, sizeof(signed char), &signs));
    for (int64_t i = 0; i < samples; i++) {
        const int64_t index = samples == count ? i
                              : i == 0         ? foremost(count, computed->values)
                                               : (int64_t)(quad_next_random(&random) % (uint64_t)count);
        quad sum = 0;
        budget->direction(budget->signed_sums, computed->path, index, ignored, signs);
        for (int64_t k = 0; k < all; k++) sum += ((const signed char *)signs)[k] * gradient->values[k];
        const quad error = fabsq(computed->values[index] - sum);
        const quad scales = scale != NULL && finiteq(scale[index]) ? QUAD_ALLOWED_SCALES * scale[index] : 0;
        quad_note(certificate, &(quad_comparison){.index = index,
                                                  .computed = computed->values[index],
                                                  .reference = sum,
                                                  .error = error,
                                                  .scale = largest,
                                                  .allowed = fmaxq(QUAD_ALLOWED_RELATIVE * largest, scales)});
    }
    return ASSAY_OK;
}

assay_status quad_certify(assay_context *ctx, const quad_operation *operation, const void *config,
                          const quad_tensors *in, const quad_tensors *computed, const quad_budget *budget,
                          quad_certificates *certificates)
{
    OWNED_BY(quad_tensors_free) quad_tensors references = {0};
    bool straight_through = false;
    MUST(quad_differentiate(ctx, operation->form, config, in, computed, &references, &straight_through));
    for (int i = 0; i < computed->count; i++) {
        const quad_tensor *tensor = &computed->items[i];
        char of[ASSAY_PATH_SIZE];
        if (assay_begins(tensor->path, "error_scale/")) continue;
        if (quad_is_choice(tensor->path)) {
            MUST(quad_certify_choice(ctx, tensor, computed, &references, certificates));
        } else if (budget->direction != NULL && budget->direction(budget->signed_sums, tensor->path, 0, of, NULL)) {
            MUST(certify_sums(ctx, computed, tensor, of, &references, budget, certificates));
        } else {
            MUST(certify_tensor(ctx, computed, tensor, &references, certificates));
        }
    }
    if (budget->directions > 0 && !straight_through)
        MUST(quad_check_derivatives(ctx, operation, config, in, &references, budget, certificates));
    return ASSAY_OK;
}
