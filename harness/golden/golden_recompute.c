/* A golden evaluated again, and held against its file. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/golden/golden_internal.h"
#include "harness/plan/golden_read.h"
#include "harness/plan/progress.h"
#include "harness/power/power_test.h"
#include "harness/scales/ensemble.h"
#include "oracle/base/memory.h"

enum { CHUNK = 1 << 20 }; /* elements that are moved at a time */

/* A sink that holds results against those of a file. */
typedef struct checking_sink {
    const assay_plan *plan;
    assay_fixture_reader *golden;
    int64_t *written; /* elements so far of each spec */
    bool other_model; /* the golden is of an assay of another error model */
    assay_progress progress;
} checking_sink;

static bool checking_wants(void *self, const char *path)
{
    const checking_sink *sink = self;
    return assay_plan_find(sink->plan, path) >= 0;
}

static assay_status differs(assay_context *ctx, const char *path, int64_t index, double stored, double found)
{
    return assay_fail(ctx, ASSAY_BAD_INPUT,
                      "%s[%" PRId64 "]: the file has %.17g, recomputing gives %.17g: not the numbers of this oracle",
                      path, index, stored, found);
}

/* By how much numbers of an assay of another error model may differ: 256 times float64's precision, of the largest. */
static double tolerance(const checking_sink *sink, int64_t count, const double *values)
{
    double largest = 0.0;
    for (int64_t i = 0; sink->other_model && i < count; i++)
        if (isfinite(values[i])) largest = fmax(largest, fabs(values[i]));
    return 0x1p-44 * largest;
}

static assay_status checking_write(assay_context *ctx, void *self, const char *path, int64_t count,
                                   const double *values)
{
    checking_sink *sink = self;
    int index = assay_plan_find(sink->plan, path);
    assay_dtype type = sink->plan->specs[index].type;
    OWNED double *stored = NULL, *rounded = NULL;
    if (sink->plan->specs[index].role == ASSAY_ROLE_DISCRIMINATION) {
        sink->written[index] += count;
        return assay_power_check(ctx, sink->plan, sink->golden, path, values);
    }
    MUST(assay_alloc_f64(ctx, path, count < CHUNK ? count : CHUNK, &stored));
    MUST(assay_alloc_f64(ctx, path, count < CHUNK ? count : CHUNK, &rounded));
    for (int64_t first = 0; first < count; first += CHUNK) {
        int64_t n = count - first < CHUNK ? count - first : CHUNK;
        MUST(assay_fixture_read(ctx, sink->golden, path, sink->written[index], n, stored));
        assay_dtype_round_many(type, n, values + first, rounded);
        for (int64_t i = 0; i < n && assay_plan_scale_is_zero(sink->plan, &sink->plan->specs[index]); i++)
            rounded[i] = 0.0;
        const double allowed = tolerance(sink, n, rounded);
        for (int64_t i = 0; i < n; i++) {
            if (memcmp(&stored[i], &rounded[i], sizeof *stored) != 0 && !(fabs(stored[i] - rounded[i]) <= allowed)) {
                MUST(differs(ctx, path, sink->written[index] + i, stored[i], rounded[i]));
                return ASSAY_OK;
            }
        }
        sink->written[index] += n;
    }
    assay_progress_add(&sink->progress, count, path);
    return ASSAY_OK;
}

static assay_status checking_write_i32(assay_context *ctx, void *self, const char *path, int64_t count,
                                       const int32_t *values)
{
    OWNED double *numbers = NULL;
    MUST(assay_alloc_f64(ctx, path, count, &numbers));
    for (int64_t i = 0; i < count; i++) numbers[i] = values[i];
    return checking_write(ctx, self, path, count, numbers);
}

/* Mutants are judged by everything else. */
static assay_status evaluate(assay_context *ctx, const assay_plan *plan, const assay_source *source,
                             const assay_sink *out, bool quiet)
{
    assay_plan certified = *plan;
    OWNED_BY(assay_tensor_set_free) assay_tensor_set results = {0};
    if (!plan->mutants) return assay_evaluate(ctx, plan, source, out);
    certified.certify = false;
    MUST(assay_golden_results(ctx, &certified, source, quiet, &results));
    return assay_golden_give_results(ctx, plan, &results, out);
}

assay_status assay_golden_recompute(assay_context *ctx, const assay_plan *plan, assay_fixture_reader *golden,
                                    bool quiet)
{
    assay_status status;
    const assay_source source = assay_golden_inputs(golden);
    const char *model = assay_fixture_text(golden, "error_model");
    checking_sink sink = {
        .plan = plan, .golden = golden, .other_model = model == NULL || strcmp(model, ASSAY_ERROR_MODEL) != 0};
    int threads = ctx->threads;
    ctx->threads = assay_plan_threads(ctx, plan);
    assay_progress_start(&sink.progress, quiet, plan->c->name, plan->elements);
    TRY(assay_alloc_list(ctx, "the list of results", plan->spec_count + 1, sizeof *sink.written, &sink.written));
    TRY(assay_golden_check_layout(ctx, plan, golden));
    assay_sink out = {.self = &sink, .wants = checking_wants, .write = checking_write, .write_i32 = checking_write_i32};
    TRY(evaluate(ctx, plan, &source, &out, quiet));
    for (int i = 0; i < plan->spec_count; i++) {
        const bool complete =
            assay_role_is_input(plan->specs[i].role) || sink.written[i] == assay_shape_count(&plan->specs[i].shape);
        if (!complete) {
            status = assay_fail(ctx, ASSAY_INTERNAL, "%s was not recomputed in full", plan->specs[i].path);
            goto cleanup;
        }
    }
cleanup:
    assay_progress_end(&sink.progress);
    free(sink.written);
    ctx->threads = threads;
    return status;
}
