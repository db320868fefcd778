#include "harness/plan/results.h"

#include <string.h>

#include "oracle/base/memory.h"

assay_status assay_plan_tensors(assay_context *ctx, assay_tensor_set *tensors, const assay_plan *plan,
                                const assay_source *in)
{
    assay_status status;
    *tensors = (assay_tensor_set){0};
    TRY(assay_require_memory(ctx, plan->c->name, plan->elements < INT64_MAX / 8 ? 8 * plan->elements : INT64_MAX));
    for (int i = 0; i < plan->spec_count; i++) {
        const assay_tensor_spec *spec = &plan->specs[i];
        TRY(in != NULL && in->has(in->self, spec->path) ? assay_tensor_set_read(ctx, tensors, spec, in)
                                                        : assay_tensor_set_add(ctx, tensors, spec, NULL));
    }
cleanup:
    if (status != ASSAY_OK) assay_tensor_set_free(tensors);
    return status;
}

assay_tensor *assay_results_scales(const assay_tensor_set *tensors, const assay_profile *profile, const char *path)
{
    char scale[ASSAY_PATH_SIZE];
    assay_path_at(ASSAY_ROLE_ERROR_SCALE, profile->precision.name, path, scale);
    return assay_tensor_set_find(tensors, scale);
}

void assay_results_store(const assay_plan *plan, const assay_tensor_set *results)
{
    for (int i = 0; i < results->count; i++) {
        const assay_tensor *tensor = &results->items[i];
        if (tensor->values == NULL || !assay_tensor_is_complete(tensor)) continue;
        assay_dtype_round_many(tensor->spec.type, tensor->count, tensor->values, tensor->values);
        if (assay_plan_scale_is_zero(plan, &tensor->spec))
            memset(tensor->values, 0, (size_t)tensor->count * sizeof *tensor->values);
    }
}

static bool gives(void *self, const char *path)
{
    const assay_tensor *tensor = assay_tensor_set_find(self, path);
    return tensor != NULL && assay_role_is_input(tensor->spec.role);
}

assay_source assay_input_source(const assay_tensor_set *tensors)
{
    assay_source source = assay_tensor_set_source(tensors);
    source.has = gives;
    return source;
}

static bool gives_choice_too(void *self, const char *path)
{
    return gives(self, path) || (assay_path_is_choice(path) && assay_tensor_set_find(self, path) != NULL);
}

assay_source assay_input_and_choice_source(const assay_tensor_set *tensors)
{
    assay_source source = assay_tensor_set_source(tensors);
    source.has = gives_choice_too;
    return source;
}

static bool wants(void *self, const char *path)
{
    const assay_tensor *tensor = assay_tensor_set_find(self, path);
    /* two forms are no sample */
    const assay_tensor_role role = tensor == NULL ? ASSAY_ROLE_NONE : tensor->spec.role;
    return tensor != NULL && !assay_role_is_input(role) && role != ASSAY_ROLE_NULL;
}

assay_sink assay_results_sink(assay_tensor_set *tensors)
{
    assay_sink sink = assay_tensor_set_sink(tensors);
    sink.wants = wants;
    return sink;
}

static bool wants_all(void *self, const char *path)
{
    (void)self, (void)path;
    return true;
}

static assay_status drop(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    (void)ctx, (void)self, (void)path, (void)count, (void)values;
    return ASSAY_OK;
}

static assay_status drop_i32(assay_context *ctx, void *self, const char *path, int64_t count, const int32_t *values)
{
    (void)ctx, (void)self, (void)path, (void)count, (void)values;
    return ASSAY_OK;
}

const assay_sink assay_nowhere = {.wants = wants_all, .write = drop, .write_i32 = drop_i32};
