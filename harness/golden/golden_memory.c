#include "harness/golden/golden_memory.h"

#include "harness/certify/certificate.h"
#include "harness/golden/golden_finite.h"
#include "harness/plan/results.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"

static bool is_computed(void *self, const char *path)
{
    const assay_tensor *tensor = assay_tensor_set_find(self, path);
    return tensor != NULL && !assay_role_is_input(tensor->spec.role);
}

assay_status assay_golden_evaluate(assay_context *ctx, const assay_plan *plan, const assay_source *source, bool quiet,
                                   assay_tensor_set *tensors)
{
    const int threads = ctx->threads;
    assay_sink out = assay_tensor_set_sink(tensors);
    out.wants = is_computed;
    if (!plan->certify) ctx->threads = assay_plan_threads(ctx, plan); /* no work is small in binary128 */
    const assay_status status = assay_evaluate_as_planned(ctx, plan, source, &out, quiet);
    assay_results_store(plan, tensors);
    ctx->threads = threads;
    return status;
}

assay_status assay_fixture_of_tensors(assay_context *ctx, const char *kind, const assay_tensor_set *tensors,
                                      assay_fixture_reader **reader)
{
    OWNED assay_memory_tensor *list = NULL;
    int count = 0;
    MUST(assay_alloc(ctx, "list of tensors", tensors->count + 1, sizeof(assay_memory_tensor), &list));
    for (int i = 0; i < tensors->count; i++) {
        const assay_tensor *tensor = &tensors->items[i];
        if (!assay_tensor_is_complete(tensor)) continue;
        list[count++] = (assay_memory_tensor){tensor->spec, tensor->values, tensor->indices};
    }
    return assay_fixture_of_memory(ctx, kind, count, list, reader);
}

static assay_status add_texts(assay_context *ctx, const assay_case *c, assay_fixture_reader *reader)
{
    OWNED char *yaml = NULL;
    MUST(assay_case_yaml(ctx, c, &yaml));
    MUST(assay_fixture_add_text(ctx, reader, "case", c->name));
    MUST(assay_fixture_add_text(ctx, reader, "op", c->op));
    MUST(assay_fixture_add_text(ctx, reader, "case_yaml", yaml));
    MUST(assay_fixture_add_text(ctx, reader, "engine", ctx->arithmetic->name));
    return assay_fixture_add_text(ctx, reader, "generator", "assay " ASSAY_VERSION);
}

assay_status assay_golden_in_memory(assay_context *ctx, const assay_plan *plan, const assay_source *source, bool quiet,
                                    assay_tensor_set *tensors, assay_fixture_reader **reader)
{
    MUST(assay_golden_evaluate(ctx, plan, source, quiet, tensors));
    MUST(assay_tensor_set_require_complete(ctx, tensors));
    for (int i = 0; i < tensors->count; i++) {
        const assay_tensor *tensor = &tensors->items[i];
        if (tensor->values != NULL)
            MUST(assay_golden_require_finite(ctx, plan->c, &tensor->spec, 0, tensor->count, tensor->values));
    }
    MUST(assay_fixture_of_tensors(ctx, "golden", tensors, reader));
    return add_texts(ctx, plan->c, *reader);
}

assay_status assay_golden_of_memory(assay_context *ctx, const assay_plan *plan, assay_tensor_set *tensors,
                                    assay_golden *golden)
{
    const assay_source in = assay_input_source(tensors);
    *golden = (assay_golden){0};
    MUST(assay_golden_in_memory(ctx, plan, &in, true, tensors, &golden->reader));
    return assay_golden_read(ctx, golden->reader, plan->c->name, golden);
}
