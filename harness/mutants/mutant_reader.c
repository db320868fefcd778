/* A mutant's results as the candidate that a backend would give. */
#include <stdlib.h>

#include "harness/mutants/mutant_run.h"
#include "oracle/base/memory.h"

bool assay_is_of_candidate(const assay_tensor *tensor)
{
    return assay_tensor_is_complete(tensor) && assay_role_is_required(tensor->spec.role);
}

bool assay_is_of_stages(const assay_tensor *tensor)
{
    const assay_tensor_role role = tensor->spec.role;
    return assay_tensor_is_complete(tensor) && (role == ASSAY_ROLE_CHECKPOINT || role == ASSAY_ROLE_ROUTING);
}

assay_dtype assay_candidate_type(const assay_profile *profile, const assay_tensor_spec *spec)
{
    if (assay_path_is_hidden(spec->path)) return ASSAY_FLOAT32;
    return assay_is_kept_as_codes(spec) ? spec->kept_as : assay_profile_type_of(profile, spec);
}

static assay_status open_reader(assay_context *ctx, const assay_tensor_set *results, const char *kind,
                                const assay_profile *storage, bool staged, assay_fixture_reader **reader)
{
    OWNED assay_memory_tensor *tensors = NULL;
    int count = 0;
    MUST(assay_alloc(ctx, "list of tensors", results->count, sizeof(assay_memory_tensor), &tensors));
    for (int i = 0; i < results->count; i++) {
        const assay_tensor *tensor = &results->items[i];
        const bool given = assay_is_of_candidate(tensor) || (staged && assay_is_of_stages(tensor));
        if (storage != NULL ? !given : !assay_tensor_is_complete(tensor)) continue;
        tensors[count] =
            (assay_memory_tensor){.spec = tensor->spec, .numbers = tensor->values, .integers = tensor->indices};
        if (storage != NULL && tensor->values != NULL)
            tensors[count].spec.type = assay_candidate_type(storage, &tensor->spec);
        count++;
    }
    return assay_fixture_of_memory(ctx, kind, count, tensors, reader);
}

assay_status assay_trial_reader(assay_context *ctx, const assay_tensor_set *results, const char *kind,
                                const assay_profile *storage, assay_fixture_reader **reader)
{
    return open_reader(ctx, results, kind, storage, false, reader);
}

assay_status assay_trial_staged_reader(assay_context *ctx, const assay_tensor_set *results,
                                       const assay_profile *storage, assay_fixture_reader **reader)
{
    return open_reader(ctx, results, "candidate", storage, true, reader);
}

void assay_candidate_round(const assay_tensor_set *candidate, const assay_profile *profile)
{
    for (int i = 0; i < candidate->count; i++) {
        const assay_tensor *tensor = &candidate->items[i];
        const assay_tensor_role role = tensor->spec.role;
        if (tensor->values == NULL || assay_role_is_input(role) || role == ASSAY_ROLE_ERROR_SCALE) continue;
        const assay_dtype type = assay_candidate_type(profile, &tensor->spec);
        assay_dtype_round_many(type, tensor->count, tensor->values, tensor->values);
    }
}
