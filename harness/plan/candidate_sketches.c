#include <stdlib.h>
#include <string.h>

#include "harness/plan/candidate_rows.h"
#include "harness/sketch/sketch.h"
#include "oracle/base/memory.h"

enum { PIECE = 1 << 16 };

/* Streams the tensor through its sketch. */
static assay_status read_sketch(assay_context *ctx, assay_fixture_reader *candidate, assay_sketch *sketch)
{
    OWNED double *piece = NULL;
    MUST(assay_alloc_f64(ctx, sketch->spec.path, PIECE, &piece));
    while (sketch->position < sketch->count) {
        const int64_t left = sketch->count - sketch->position, count = left < PIECE ? left : PIECE;
        MUST(assay_fixture_read(ctx, candidate, sketch->spec.path, sketch->position, count, piece));
        assay_sketch_add(sketch, count, piece, piece);
    }
    return ASSAY_OK;
}

/* The sketch's tensors, in float64 whatever the candidate's own type: what it stored is summed without another rounding. */
static assay_status put_parts(assay_context *ctx, const assay_plan *plan, const assay_sketch *sketch,
                              assay_fixture_reader *candidate)
{
    for (int component = 0; component < ASSAY_SKETCH_COMPONENTS; component++) {
        double *numbers = NULL;
        const assay_tensor_spec spec =
            assay_sketch_spec(&sketch->spec, plan->c->sketch_above, (assay_sketch_component)component);
        if (sketch->components[component] == NULL) continue;
        if (assay_fixture_find(candidate, spec.path) != NULL) assay_fixture_forget(candidate, spec.path);
        MUST(assay_alloc_f64(ctx, spec.path, sketch->sizes[component], &numbers));
        memcpy(numbers, sketch->components[component], (size_t)sketch->sizes[component] * sizeof *numbers);
        MUST(assay_fixture_put(ctx, candidate, &spec, numbers));
    }
    return ASSAY_OK;
}

static assay_status take_sketch(assay_context *ctx, const assay_plan *plan, const assay_tensor_spec *spec,
                                assay_fixture_reader *candidate)
{
    OWNED_BY(assay_sketch_free) assay_sketch sketch = {0};
    MUST(assay_sketch_start(ctx, spec, plan->c->sketch_above, plan->c->seed, &sketch));
    const assay_status status = read_sketch(ctx, candidate, &sketch);
    if (status == ASSAY_BAD_INPUT) { /* unreadable: left as it is, for the comparer's words */
        ctx->message[0] = '\0';
        return ASSAY_OK;
    }
    MUST(status);
    MUST(put_parts(ctx, plan, &sketch, candidate));
    assay_fixture_forget(candidate, spec->path);
    return status;
}

assay_status assay_candidate_read_sketches(assay_context *ctx, const assay_plan *plan, assay_fixture_reader *candidate)
{
    for (int i = 0; i < plan->list.sketched_count; i++) {
        const assay_tensor_spec *spec = &plan->list.sketched[i], *found = assay_fixture_find(candidate, spec->path);
        const bool fits = found != NULL && found->type != ASSAY_INT32 && assay_shape_equal(&found->shape, &spec->shape);
        if (fits) MUST(take_sketch(ctx, plan, spec, candidate));
    }
    return ASSAY_OK;
}
