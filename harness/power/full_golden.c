#include "harness/power/full_golden.h"

#include <string.h>

#include "harness/plan/plan_make.h"
#include "harness/plan/results.h"
#include "harness/scales/ensemble.h"
#include "harness/sketch/sketch.h"

static assay_status evaluate(assay_context *ctx, const assay_trial *t, assay_full_golden *full)
{
    const assay_source in = assay_input_source(t->golden);
    MUST(assay_plan_make_with(ctx, &full->plan, &full->c, NULL, t->profile));
    assay_plan_drop(&full->plan, ASSAY_ROLE_NULL);
    MUST(assay_plan_tensors(ctx, &full->golden, &full->plan, &in));
    const assay_sink out = assay_results_sink(&full->golden);
    return assay_evaluate(ctx, &full->plan, &in, &out);
}

assay_status assay_full_golden_make(assay_context *ctx, const assay_trial *t, assay_full_golden *full)
{
    full->c = *t->plan->c;
    full->c.sketch_above = 0;
    full->profile = (char *)t->profile->precision.name;
    full->c.profiles = (assay_text_list){.items = &full->profile, .count = 1};
    return evaluate(ctx, t, full);
}

assay_status assay_full_golden_make_with_checkpoints(assay_context *ctx, const assay_trial *t, assay_full_golden *full)
{
    full->c = *t->plan->c;
    full->all = (char *)"all";
    full->c.checkpoints = (assay_text_list){.items = &full->all, .count = 1};
    full->c.profiles = (assay_text_list){0};
    return evaluate(ctx, t, full);
}

static assay_status take_sketch(assay_context *ctx, const assay_trial *t, const assay_tensor *from,
                                assay_tensor_set *to)
{
    OWNED_BY(assay_sketch_free) assay_sketch sketch = {0};
    const int64_t above = t->plan->c->sketch_above;
    MUST(assay_sketch_start(ctx, &from->spec, above, t->plan->c->seed, &sketch));
    assay_sketch_add(&sketch, from->count, from->values, from->values);
    for (int component = 0; component < ASSAY_SKETCH_COMPONENTS; component++) {
        const assay_tensor_spec spec = assay_sketch_spec(&from->spec, above, (assay_sketch_component)component);
        assay_tensor *tensor = assay_tensor_set_find(to, spec.path);
        if (tensor == NULL) continue;
        memcpy(tensor->values, sketch.components[component], (size_t)tensor->count * sizeof *tensor->values);
        tensor->written = assay_tensor_is_complete(from) ? tensor->count : 0;
    }
    return ASSAY_OK;
}

assay_status assay_full_golden_results(assay_context *ctx, const assay_trial *t, const assay_tensor_set *from,
                                       assay_tensor_set *to)
{
    MUST(assay_tensor_set_copy(ctx, t->golden, to));
    for (int i = 0; i < from->count; i++) {
        const assay_tensor *tensor = &from->items[i];
        assay_tensor *same = assay_tensor_set_find(to, tensor->spec.path);
        if (same == NULL) {
            if (assay_sketch_is_for(&tensor->spec, t->plan->c->sketch_above)) MUST(take_sketch(ctx, t, tensor, to));
            continue;
        }
        const size_t count = (size_t)same->count;
        if (same->values != NULL && tensor->values != NULL)
            memcpy(same->values, tensor->values, count * sizeof(double));
        if (same->indices != NULL && tensor->indices != NULL)
            memcpy(same->indices, tensor->indices, count * sizeof *same->indices);
        same->written = tensor->written;
    }
    return ASSAY_OK;
}

void assay_full_golden_free(assay_full_golden *full)
{
    assay_tensor_set_free(&full->golden);
    assay_plan_free(&full->plan);
}
