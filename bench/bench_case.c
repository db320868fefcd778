#include "bench/bench_case.h"

#include <string.h>

#include "harness/plan/inputs.h"

assay_status bench_case_plan(assay_context *ctx, const char *name, const char *profiles, bench_case *b)
{
    char *file = ASSAY_BENCH_CASES;
    MUST(assay_cases_find(ctx, 1, &file, &b->cases, &b->count));
    for (b->c = b->cases; strcmp(b->c->name + strlen("bench/"), name) != 0;) b->c++;
    MUST(assay_case_set(ctx, b->c, profiles));
    return assay_plan_make(ctx, &b->plan, b->c);
}

assay_status bench_case_open(assay_context *ctx, const char *name, bench_case *b)
{
    assay_status status;
    assay_inputs inputs = {0};
    TRY(bench_case_plan(ctx, name, "profiles=none", b));
    TRY(assay_inputs_open_plan(ctx, &inputs, &b->plan, NULL));
    const assay_source source = assay_inputs_source(&inputs);
    TRY(assay_plan_tensors(ctx, &b->tensors, &b->plan, &source));
cleanup:
    assay_inputs_close(&inputs);
    return status;
}

void bench_case_close(bench_case *b)
{
    assay_tensor_set_free(&b->tensors);
    assay_plan_free(&b->plan);
    assay_cases_free(b->cases, b->count);
    *b = (bench_case){0};
}

assay_status bench_case_run(assay_context *ctx, void *self)
{
    bench_case *b = self;
    for (int i = 0; i < b->tensors.count; i++) {
        if (!assay_role_is_input(b->tensors.items[i].spec.role)) b->tensors.items[i].written = 0;
    }
    const assay_source source = assay_input_source(&b->tensors);
    const assay_sink sink = assay_results_sink(&b->tensors);
    return assay_operation_run(ctx, b->plan.operation, b->c, &source, &sink);
}

assay_status bench_case_run_bare(assay_context *ctx, void *self)
{
    bench_case *b = self;
    const assay_source source = assay_input_source(&b->tensors);
    assay_sink sink = assay_results_sink(&b->tensors);
    sink.write = assay_nowhere.write;
    sink.write_i32 = assay_nowhere.write_i32;
    return assay_operation_run(ctx, b->plan.operation, b->c, &source, &sink);
}

double bench_case_gigaflop(const bench_case *b)
{
    return 1e-9 * assay_operation_flops(b->plan.operation, b->c, true);
}
