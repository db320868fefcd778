#include "harness/golden/golden_memory.h"

#include <stdlib.h>

#include "harness/golden/golden_finite.h"
#include "harness/plan/results.h"
#include "harness/scales/ensemble.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"

static bool is_computed(void *self, const char *path)
{
    const assay_tensor *tensor = assay_tensor_set_find(self, path);
    return tensor != NULL && !assay_role_is_given(tensor->spec.role);
}

/* What a file would have: zeros for the scales of an exact case, and every number on the grid of its dataset. */
static assay_status store(assay_context *ctx, const assay_plan *plan, assay_tensor *tensor)
{
    if (tensor->values == NULL) return ASSAY_OK;
    const bool zero = assay_plan_scale_is_zero(plan, &tensor->spec);
    for (int64_t i = 0; i < tensor->count; i++)
        tensor->values[i] = zero ? 0.0 : assay_dtype_round(tensor->spec.type, tensor->values[i], false);
    return assay_golden_require_finite(ctx, plan->c, &tensor->spec, 0, tensor->count, tensor->values);
}

assay_status assay_fixture_of_tensors(assay_context *ctx, const char *kind, const assay_tensor_set *tensors,
                                      assay_fixture_reader **reader)
{
    assay_status status;
    void *memory = NULL;
    int count = 0;
    TRY(assay_alloc(ctx, "list of tensors", tensors->count + 1, sizeof(assay_memory_tensor), &memory));
    assay_memory_tensor *list = memory;
    for (int i = 0; i < tensors->count; i++) {
        const assay_tensor *tensor = &tensors->items[i];
        if (!assay_tensor_is_complete(tensor)) continue;
        list[count++] = (assay_memory_tensor){tensor->spec, tensor->values, tensor->indices};
    }
    TRY(assay_fixture_of_memory(ctx, kind, count, list, reader));
cleanup:
    free(memory);
    return status;
}

static assay_status open_reader(assay_context *ctx, const assay_plan *plan, const assay_tensor_set *tensors,
                                assay_golden *golden)
{
    assay_status status;
    char *yaml = NULL;
    assay_fixture_reader *reader = NULL;
    TRY(assay_case_yaml(ctx, plan->c, &yaml));
    TRY(assay_fixture_of_tensors(ctx, "golden", tensors, &reader));
    golden->reader = reader;
    TRY(assay_fixture_add_text(ctx, reader, "case", plan->c->name));
    TRY(assay_fixture_add_text(ctx, reader, "op", plan->c->op));
    TRY(assay_fixture_add_text(ctx, reader, "case_yaml", yaml));
    TRY(assay_fixture_add_text(ctx, reader, "engine", ctx->arithmetic->name));
    TRY(assay_golden_read(ctx, reader, plan->c->name, golden));
cleanup:
    free(yaml);
    return status;
}

assay_status assay_golden_of_memory(assay_context *ctx, const assay_plan *plan, assay_tensor_set *tensors,
                                    assay_golden *golden)
{
    assay_status status;
    const int threads = ctx->threads;
    ctx->threads = assay_plan_threads(ctx, plan);
    *golden = (assay_golden){0};
    const assay_source in = assay_given_source(tensors);
    assay_sink out = assay_tensor_set_sink(tensors);
    out.wants = is_computed;
    TRY(assay_evaluate(ctx, plan, &in, &out));
    TRY(assay_tensor_set_require_complete(ctx, tensors));
    for (int i = 0; i < tensors->count; i++) TRY(store(ctx, plan, &tensors->items[i]));
    TRY(open_reader(ctx, plan, tensors, golden));
cleanup:
    ctx->threads = threads;
    return status;
}
