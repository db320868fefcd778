/* What an ensemble holds in memory beside its runs. */
#include <stdlib.h>

#include "harness/scales/ensemble_internal.h"
#include "oracle/base/memory.h"

assay_scaled *assay_ensemble_tensor(const assay_ensemble *e, const char *path)
{
    const assay_tensor *golden = assay_tensor_set_find(&e->golden, path);
    return golden == NULL ? NULL : &e->tensors[golden - e->golden.items];
}

static bool scale_is_wanted(const assay_ensemble *e, const char *path)
{
    bool wanted = false;
    char scale[ASSAY_PATH_SIZE];
    for (int p = 0; !wanted && p < e->plan->precision_count; p++) {
        assay_path_at(ASSAY_ROLE_ERROR_SCALE, e->plan->precisions[p].name, path, scale);
        wanted = assay_wants(e->out, scale);
    }
    return wanted;
}

static assay_status alloc_null(assay_context *ctx, assay_scaled *t)
{
    MUST(assay_alloc_list(ctx, "null distributions", 1, sizeof *t->null, &t->null));
    return assay_alloc(ctx, "error scale", t->count, sizeof *t->scale, &t->scale);
}

static assay_status alloc_errors(assay_context *ctx, const assay_plan *plan, assay_scaled *t)
{
    const int members = assay_ensemble_most_members(plan), slots = members > 0 ? members : 1; /* of a run to nearest */
    if (assay_ensemble_keeps(plan)) MUST(assay_alloc(ctx, "error scale", t->count, sizeof *t->kept, &t->kept));
    return assay_alloc(ctx, "errors of an ensemble", t->count, (size_t)slots * sizeof *t->errors, &t->errors);
}

assay_status assay_ensemble_collect(assay_context *ctx, assay_ensemble *e, bool null)
{
    const assay_tensor_list *list = &e->plan->list;
    MUST(assay_alloc_list(ctx, "the list of error scales", list->count + 1, sizeof *e->tensors, &e->tensors));
    for (int i = 0; i < list->count; i++) {
        const assay_tensor_spec *spec = &list->entries[i].spec;
        assay_tensor *golden = NULL;
        if (assay_path_is_choice(spec->path)) MUST(assay_tensor_set_add(ctx, &e->inputs, spec, NULL));
        if (!assay_has_error_scale(spec) || !scale_is_wanted(e, spec->path)) continue;
        MUST(assay_tensor_set_add(ctx, &e->golden, spec, &golden));
        assay_scaled *t = &e->tensors[e->golden.count - 1];
        *t = (assay_scaled){.spec = spec, .count = golden->count, .golden = golden->values};
        if (null && assay_null_is_wanted(e, spec->path)) MUST(alloc_null(ctx, t));
        MUST(alloc_errors(ctx, e->plan, t));
    }
    return ASSAY_OK;
}

assay_status assay_ensemble_read_inputs(assay_context *ctx, assay_ensemble *e)
{
    double bytes = 0;
    for (int i = 0; i < e->plan->list.count; i++) {
        const assay_tensor_spec *spec = &e->plan->list.entries[i].spec;
        const double more = (double)assay_shape_count(&spec->shape) * sizeof(double);
        const bool floats = assay_role_is_input(spec->role) && spec->type != ASSAY_INT32;
        if (!floats || !e->in->has(e->in->self, spec->path) || bytes + more > ASSAY_ENSEMBLE_BYTES) continue;
        bytes += more;
        MUST(assay_tensor_set_read(ctx, &e->inputs, spec, e->in));
    }
    return ASSAY_OK;
}

static void release_tensor(assay_scaled *t)
{
    free(t->scale);
    free(t->kept);
    free(t->null);
    free(t->errors);
}

void assay_ensemble_release(assay_ensemble *e)
{
    for (int i = 0; i < e->golden.count; i++) release_tensor(&e->tensors[i]);
    free(e->tensors);
    assay_tensor_set_free(&e->golden);
    assay_tensor_set_free(&e->inputs);
    assay_tensor_set_free(&e->deviation);
}
