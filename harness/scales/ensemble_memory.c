/* What an ensemble holds in memory beside its runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/operations/op_support.h"
#include "harness/scales/ensemble_internal.h"
#include "oracle/base/memory.h"

assay_tracked *assay_ensemble_tensor(const assay_ensemble *e, const char *path)
{
    for (int i = 0; i < e->tensor_count; i++) {
        if (strcmp(e->tensors[i].spec->path, path) == 0) return &e->tensors[i];
    }
    return NULL;
}

assay_kept_choice *assay_ensemble_choice(const assay_ensemble *e, const char *path)
{
    for (int i = 0; i < e->choice_count; i++) {
        if (strcmp(e->choices[i].spec->path, path) == 0) return &e->choices[i];
    }
    return NULL;
}

const assay_kept_given *assay_ensemble_given(const assay_ensemble *e, const char *path)
{
    for (int i = 0; i < e->given_count; i++) {
        if (strcmp(e->given[i].spec->path, path) == 0) return &e->given[i];
    }
    return NULL;
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

assay_status assay_ensemble_alloc_scale(assay_context *ctx, assay_tracked *t, int precision)
{
    void *memory = NULL;
    assay_status status = assay_alloc(ctx, "error scale", t->count, sizeof **t->scales, &memory);
    t->scales[precision] = memory;
    return status;
}

/* What a null distribution needs: the error scales that are propagated come with the golden run. */
static assay_status alloc_null(assay_context *ctx, const assay_plan *plan, assay_tracked *t)
{
    assay_status status = ASSAY_OK;
    t->null = calloc(1, sizeof *t->null);
    t->scales_written = calloc((size_t)plan->precision_count, sizeof *t->scales_written);
    t->scales = calloc((size_t)plan->precision_count, sizeof *t->scales);
    if (t->null == NULL || t->scales_written == NULL || t->scales == NULL) {
        return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for null distributions");
    }
    for (int p = 0; p < plan->precision_count; p++) {
        if (assay_ensemble_is_propagated(plan, &plan->precisions[p])) TRY(assay_ensemble_alloc_scale(ctx, t, p));
    }
cleanup:
    return status;
}

static assay_status alloc_errors(assay_context *ctx, const assay_plan *plan, assay_tracked *t)
{
    void *memory = NULL;
    const size_t members = (size_t)assay_ensemble_members(plan);
    assay_status status = assay_alloc(ctx, "errors of an ensemble", t->count, members * sizeof *t->errors, &memory);
    t->errors = memory;
    return status;
}

assay_status assay_ensemble_collect(assay_context *ctx, assay_ensemble *e, bool null)
{
    assay_status status = ASSAY_OK;
    const assay_tensor_list *list = &e->plan->list;
    e->tensors = calloc((size_t)list->count + 1, sizeof *e->tensors);
    e->choices = calloc((size_t)list->count + 1, sizeof *e->choices);
    if (e->tensors == NULL || e->choices == NULL) {
        return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the list of error scales");
    }
    for (int i = 0; i < list->count; i++) {
        const assay_tensor_spec *spec = &list->entries[i].spec;
        const int64_t count = assay_shape_count(&spec->shape);
        if (assay_path_is_choice(spec->path)) {
            assay_kept_choice *c = &e->choices[e->choice_count++];
            *c = (assay_kept_choice){.spec = spec, .count = count};
            TRY(assay_alloc_i32(ctx, spec->path, count, &c->experts));
        } else if (assay_has_error_scale(spec) && scale_is_wanted(e, spec->path)) {
            assay_tracked *t = &e->tensors[e->tensor_count++];
            *t = (assay_tracked){.spec = spec, .count = count};
            TRY(assay_alloc_f64(ctx, spec->path, count, &t->golden));
            if (null && assay_null_is_wanted(e, spec->path)) TRY(alloc_null(ctx, e->plan, t));
            TRY(alloc_errors(ctx, e->plan, t));
        }
    }
cleanup:
    return status;
}

assay_status assay_ensemble_keep_given(assay_context *ctx, assay_ensemble *e)
{
    assay_status status = ASSAY_OK;
    double bytes = 0;
    const assay_tensor_list *list = &e->plan->list;
    e->given = calloc((size_t)list->count + 1, sizeof *e->given);
    if (e->given == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the list of inputs");
    for (int i = 0; i < list->count; i++) {
        const assay_tensor_spec *spec = &list->entries[i].spec;
        const int64_t count = assay_shape_count(&spec->shape);
        if (!assay_role_is_given(spec->role) || spec->type == ASSAY_INT32 || !e->in->has(e->in->self, spec->path))
            continue;
        const double more = (double)count * sizeof(double);
        if (bytes + more > ASSAY_ENSEMBLE_BYTES) continue;
        bytes += more;
        assay_kept_given *kept = &e->given[e->given_count++];
        kept->spec = spec;
        TRY(assay_alloc_f64(ctx, spec->path, count, &kept->values));
        TRY(e->in->read(ctx, e->in->self, spec->path, 0, count, kept->values));
    }
cleanup:
    return status;
}

static void release_tensor(assay_tracked *t, int precisions)
{
    for (int p = 0; t->scales != NULL && p < precisions; p++) free(t->scales[p]);
    free(t->scales);
    free(t->scales_written);
    free(t->null);
    free(t->errors);
    free(t->golden);
}

void assay_ensemble_release(assay_ensemble *e)
{
    for (int i = 0; i < e->tensor_count; i++) {
        release_tensor(&e->tensors[i], e->plan->precision_count);
    }
    for (int i = 0; i < e->choice_count; i++) free(e->choices[i].experts);
    for (int i = 0; i < e->given_count; i++) free(e->given[i].values);
    free(e->tensors);
    free(e->choices);
    free(e->given);
}
