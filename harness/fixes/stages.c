#include "harness/fixes/stages.h"

#include <math.h>
#include <string.h>

/* What a stage begins with: a checkpoint, or the gradient of one. Codes are taken by themselves. */
static bool begins_stage(const assay_tensor_spec *spec)
{
    static const char gradient[] = "gradients/checkpoints/";
    if (assay_path_is_hidden(spec->path)) return false;
    return spec->role == ASSAY_ROLE_CHECKPOINT || strncmp(spec->path, gradient, strlen(gradient)) == 0;
}

/* What is not as it should be is left to the comparison. */
static bool is_usable(const assay_profile *profile, const assay_tensor_spec *expected, const assay_tensor_spec *found)
{
    return found != NULL && found->type != ASSAY_INT32 && assay_shape_equal(&found->shape, &expected->shape) &&
           assay_dtype_unit_roundoff(found->type) <=
               assay_dtype_unit_roundoff(assay_profile_type_of(profile, expected));
}

static bool are_finite(const assay_tensor *tensor)
{
    bool finite = true;
    for (int64_t i = 0; finite && i < tensor->count; i++) finite = isfinite(tensor->values[i]);
    return finite;
}

static assay_status take(assay_context *ctx, const assay_tensor_spec *expected, assay_fixture_reader *candidate,
                         assay_tensor_set *staged)
{
    assay_tensor_spec spec = *expected;
    assay_tensor *tensor = NULL;
    assay_staged_path(expected->path, spec.path);
    spec.role = ASSAY_ROLE_INPUT;
    MUST(assay_tensor_set_add(ctx, staged, &spec, &tensor));
    const assay_status status = assay_fixture_read(ctx, candidate, expected->path, 0, tensor->count, tensor->values);
    if (status == ASSAY_OK && are_finite(tensor)) tensor->written = tensor->count;
    if (status != ASSAY_BAD_INPUT) return status;
    ctx->message[0] = '\0';
    return ASSAY_OK;
}

/* Tensors that stay without elements are not in the set's source. */
assay_status assay_stages_adopt(assay_context *ctx, const assay_plan *plan, const assay_profile *profile,
                                assay_fixture_reader *candidate, assay_tensor_set *adopted, int *taken)
{
    *taken = 0;
    for (int i = 0; i < plan->spec_count; i++) {
        const assay_tensor_spec *spec = &plan->specs[i];
        const bool found = is_usable(profile, spec, assay_fixture_find(candidate, spec->path));
        /* given weights of a router are a result of its stage, which begins at the inputs where no checkpoint comes before it */
        *taken += found && spec->role == ASSAY_ROLE_ROUTING && assay_has_error_scale(spec);
        if (!found || !begins_stage(spec)) continue;
        MUST(take(ctx, spec, candidate, adopted));
        *taken += assay_tensor_is_complete(&adopted->items[adopted->count - 1]);
    }
    return ASSAY_OK;
}
