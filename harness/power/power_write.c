/* The discrimination certificate of a golden that is being written. */
#include <stdlib.h>
#include <string.h>

#include "compare/profile.h"
#include "harness/certify/certificate.h"
#include "harness/power/power_test.h"
#include "oracle/base/memory.h"

#define FALSE_ALARM 1e-6 /* what `assay compare` takes when nothing is said */

/* To the file, and into memory. */
typedef struct tee {
    assay_sink file, memory;
} tee;

static bool tee_wants(void *self, const char *path)
{
    const tee *t = self;
    return t->file.wants(t->file.self, path);
}

static assay_status tee_write(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    assay_status status;
    const tee *t = self;
    TRY(t->file.write(ctx, t->file.self, path, count, values));
    if (t->memory.wants(t->memory.self, path)) TRY(t->memory.write(ctx, t->memory.self, path, count, values));
cleanup:
    return status;
}

static assay_status tee_write_i32(assay_context *ctx, void *self, const char *path, int64_t count,
                                  const int32_t *values)
{
    assay_status status;
    const tee *t = self;
    TRY(t->file.write_i32(ctx, t->file.self, path, count, values));
    if (t->memory.wants(t->memory.self, path)) TRY(t->memory.write_i32(ctx, t->memory.self, path, count, values));
cleanup:
    return status;
}

/* As a reader of the file will find them. */
static void store(const assay_results *results)
{
    const bool exact = assay_case_is_exact(results->plan->c);
    for (int i = 0; i < results->plan->spec_count; i++) {
        const assay_kept *kept = &results->items[i];
        if (kept->values == NULL || kept->written != kept->count) continue;
        assay_dtype_round_many(kept->spec->type, kept->count, kept->values, kept->values);
        if (!exact || kept->spec->role != ASSAY_ROLE_ERROR_SCALE) continue;
        memset(kept->values, 0, (size_t)kept->count * sizeof *kept->values);
    }
}

static assay_status write_fields(assay_context *ctx, const assay_discrimination *found, const assay_sink *out)
{
    assay_status status;
    assay_tensor_spec spec;
    double *fields = NULL;
    TRY(assay_discrimination_spec(ctx, found->profile->precision.name, &spec));
    TRY(assay_alloc_f64(ctx, spec.path, assay_shape_count(&spec.shape), &fields));
    assay_discrimination_fields(found, fields);
    TRY(out->write(ctx, out->self, spec.path, assay_shape_count(&spec.shape), fields));
cleanup:
    free(fields);
    return status;
}

assay_status assay_plan_mutants(assay_context *ctx, assay_plan *plan)
{
    assay_status status = ASSAY_OK;
    if (plan->precision_count == 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: mutants are judged at a profile, and the case has none",
                          plan->c->name);
    }
    const size_t room = (size_t)plan->spec_count + (size_t)plan->precision_count + 1;
    assay_tensor_spec *more = realloc(plan->specs, room * sizeof *more);
    if (more == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the list of datasets");
    plan->specs = more;
    for (int p = 0; p < plan->precision_count; p++) {
        assay_tensor_spec spec;
        TRY(assay_discrimination_spec(ctx, plan->precisions[p].name, &spec));
        TRY(assay_plan_add_spec(ctx, plan, &spec));
    }
    plan->mutants = true;
cleanup:
    return status;
}

assay_status assay_evaluate_discriminated(assay_context *ctx, const assay_plan *plan, const assay_source *source,
                                          const assay_sink *out, bool quiet)
{
    assay_status status;
    assay_results results = {0};
    TRY(assay_results_open(ctx, &results, plan, source));
    tee both = {.file = *out, .memory = assay_results_sink(&results)};
    const assay_sink sink = {.self = &both, .wants = tee_wants, .write = tee_write, .write_i32 = tee_write_i32};
    TRY(assay_evaluate_as_planned(ctx, plan, source, &sink, quiet));
    store(&results);
    for (int p = 0; p < plan->precision_count; p++) {
        assay_discrimination found = {0};
        const assay_profile *profile = assay_plan_profile(plan, plan->precisions[p].name);
        TRY(assay_discriminate(ctx, &results, profile, FALSE_ALARM, NULL, &found));
        status = write_fields(ctx, &found, out);
        assay_discrimination_free(&found);
        TRY(status);
    }
cleanup:
    assay_results_free(&results);
    return status;
}
