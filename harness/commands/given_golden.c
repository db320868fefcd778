#include "harness/commands/given_golden.h"

#include "harness/golden/golden_memory.h"
#include "harness/plan/golden_read.h"

static assay_status open_stored(assay_context *ctx, const assay_options *options, const char *path,
                                assay_given_golden *g)
{
    MUST(assay_golden_open(ctx, path, &g->golden));
    MUST(assay_command_profile(ctx, options, g->golden.reader, assay_dtype_name(g->golden.c->dtype), &g->profile));
    MUST(assay_golden_plan(ctx, &g->golden, NULL));
    MUST(assay_plan_require_memory(ctx, &g->golden.plan));
    return assay_golden_load(ctx, &g->tensors, &g->golden.plan, g->golden.reader);
}

static assay_status evaluate(assay_context *ctx, const assay_options *options, assay_case *c, const char *beside,
                             assay_given_golden *g)
{
    MUST(assay_command_profile(ctx, options, NULL, assay_dtype_name(c->dtype), &g->profile));
    MUST(assay_case_set(ctx, c, "profiles=none"));
    MUST(assay_case_add_profile(ctx, c, g->profile.precision.name));
    if (beside != NULL) MUST(assay_case_add_profile(ctx, c, beside));
    MUST(assay_plan_make_with(ctx, &g->plan, c, NULL, &g->profile));
    MUST(assay_inputs_open(ctx, &g->inputs, c, &g->plan.list, NULL));
    const assay_source given = assay_inputs_source(&g->inputs);
    MUST(assay_plan_tensors(ctx, &g->tensors, &g->plan, &given));
    MUST(assay_golden_of_memory(ctx, &g->plan, &g->tensors, &g->golden));
    return assay_golden_plan(ctx, &g->golden, &g->profile);
}

assay_status assay_given_golden_open(assay_context *ctx, const assay_options *options, assay_case *c,
                                     const char *stored, const char *beside, assay_given_golden *g)
{
    MUST(stored != NULL ? open_stored(ctx, options, stored, g) : evaluate(ctx, options, c, beside, g));
    g->threads = assay_plan_threads(ctx, &g->golden.plan);
    return ASSAY_OK;
}

void assay_given_golden_close(assay_given_golden *g)
{
    assay_golden_close(&g->golden);
    assay_tensor_set_free(&g->tensors);
    assay_inputs_close(&g->inputs);
    assay_plan_free(&g->plan);
}
