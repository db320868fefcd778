#include "harness/golden/golden.h"

#include <stdio.h>
#include <stdlib.h>

#include "compare/profile_yaml.h"
#include "fixtures/files.h"
#include "harness/certify/certificate.h"
#include "harness/golden/golden_finite.h"
#include "harness/golden/golden_internal.h"
#include "harness/golden/golden_memory.h"
#include "harness/plan/backend_view.h"
#include "harness/plan/inputs.h"
#include "harness/plan/left_out.h"
#include "harness/plan/progress.h"
#include "harness/plan/results.h"
#include "harness/power/power_test.h"
#include "harness/scales/ensemble.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"

#define GENERATOR "assay " ASSAY_VERSION

enum { CHUNK = 1 << 20 }; /* elements that are moved at a time */

/* A sink that appends to a fixture what a plan's file holds. */
typedef struct file_sink {
    const assay_plan *plan;
    assay_fixture_writer *writer;
    int64_t *written; /* elements so far of each spec */
    assay_progress progress;
} file_sink;

static bool sink_wants(void *self, const char *path)
{
    const file_sink *sink = self;
    return assay_plan_find(sink->plan, path) >= 0;
}

static assay_status sink_write(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    file_sink *sink = self;
    OWNED double *zeros = NULL;
    const int index = assay_plan_find(sink->plan, path);
    if (assay_plan_scale_is_zero(sink->plan, &sink->plan->specs[index])) {
        MUST(assay_alloc_f64(ctx, path, count, &zeros));
        for (int64_t i = 0; i < count; i++) zeros[i] = 0.0;
        values = zeros;
    }
    MUST(assay_golden_require_finite(ctx, sink->plan->c, &sink->plan->specs[index], sink->written[index], count,
                                     values));
    MUST(assay_fixture_append(ctx, sink->writer, path, count, values));
    sink->written[index] += count;
    assay_progress_add(&sink->progress, count, path);
    return ASSAY_OK;
}

static assay_status sink_write_i32(assay_context *ctx, void *self, const char *path, int64_t count,
                                   const int32_t *values)
{
    const file_sink *sink = self;
    return assay_fixture_append_i32(ctx, sink->writer, path, count, values);
}

static assay_sink sink_of(file_sink *sink)
{
    return (assay_sink){.self = sink, .wants = sink_wants, .write = sink_write, .write_i32 = sink_write_i32};
}

static assay_status open_sink(assay_context *ctx, file_sink *sink, const assay_plan *plan)
{
    *sink = (file_sink){.plan = plan};
    sink->written = calloc((size_t)plan->spec_count + 1, sizeof *sink->written);
    return sink->written != NULL ? ASSAY_OK : assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the list of datasets");
}

/* The file is in place where all went well, what `status` says, and gone else. */
static assay_status close_sink(assay_context *ctx, file_sink *sink, assay_status status)
{
    assay_progress_end(&sink->progress);
    free(sink->written);
    return sink->writer == NULL ? status : assay_fixture_end(ctx, sink->writer, status);
}

/* All elements of a tensor, some at a time. Whole numbers are read at once: some follow from others, and are made anew for
 * every reader. */
static assay_status copy_tensor(assay_context *ctx, const assay_source *from, const assay_tensor_spec *spec,
                                bool negated, const assay_sink *out)
{
    const int64_t total = assay_shape_count(&spec->shape), most = total < CHUNK ? total : CHUNK;
    OWNED double *values = NULL;
    OWNED int32_t *integers = NULL;
    if (spec->type == ASSAY_INT32) {
        MUST(assay_alloc_i32(ctx, spec->path, total, &integers));
        MUST(from->read_i32(ctx, from->self, spec->path, 0, total, integers));
        MUST(out->write_i32(ctx, out->self, spec->path, total, integers));
        return ASSAY_OK;
    }
    MUST(assay_alloc_f64(ctx, spec->path, most, &values));
    for (int64_t first = 0; first < total; first += CHUNK) {
        const int64_t count = total - first < CHUNK ? total - first : CHUNK;
        MUST(from->read(ctx, from->self, spec->path, first, count, values));
        for (int64_t i = first == 0; negated && i < count; i++) values[i] = -values[i];
        MUST(out->write(ctx, out->self, spec->path, count, values));
    }
    return ASSAY_OK;
}

static assay_status write_attributes(assay_context *ctx, assay_fixture_writer *writer, const assay_plan *plan,
                                     const char *kind)
{
    OWNED char *yaml = NULL;
    MUST(assay_case_yaml(ctx, plan->c, &yaml));
    MUST(assay_fixture_set_text(ctx, writer, "kind", kind));
    MUST(assay_fixture_set_text(ctx, writer, "case", plan->c->name));
    MUST(assay_fixture_set_text(ctx, writer, "case_yaml", yaml));
    MUST(assay_fixture_set_text(ctx, writer, "op", plan->c->op));
    MUST(assay_fixture_set_text(ctx, writer, "engine", ctx->arithmetic->name));
    return assay_fixture_set_text(ctx, writer, "generator", GENERATOR);
}

static bool has_recipe(const assay_plan *plan, const assay_source *source, const assay_tensor_spec *spec,
                       assay_random_recipe *recipe)
{
    return plan->recipe && assay_role_is_input(spec->role) && source->recipe != NULL &&
           source->recipe(source->self, spec->path, recipe);
}

/* A request has all that is given, a golden the results too; but of large weights it has recipes or nothing. */
static bool is_in_file(const assay_plan *plan, const assay_source *source, const assay_tensor_spec *spec, bool golden)
{
    assay_random_recipe recipe;
    if (!golden) return assay_role_is_input(spec->role);
    return !assay_is_drawn(plan->c, spec) || has_recipe(plan, source, spec, &recipe);
}

/* Bytes of the elements that are stored. */
static int64_t stored_bytes(const assay_plan *plan, const assay_source *source, bool golden)
{
    int64_t bytes = 0;
    assay_random_recipe recipe;
    for (int i = 0; i < plan->spec_count; i++) {
        const assay_tensor_spec *spec = &plan->specs[i];
        const int64_t size = assay_shape_count(&spec->shape) * (int64_t)assay_dtype_size(spec->type);
        if (!is_in_file(plan, source, spec, golden) || has_recipe(plan, source, spec, &recipe)) continue;
        bytes = size < INT64_MAX - bytes ? bytes + size : INT64_MAX;
    }
    return bytes;
}

/* Opens the file and declares what is given, and the results where they are wanted. */
static assay_status begin(assay_context *ctx, file_sink *sink, const assay_source *source, const char *path,
                          const char *kind, bool results)
{
    const assay_plan *plan = sink->plan;
    assay_random_recipe recipe;
    MUST(assay_fixture_create(ctx, path, &sink->writer));
    MUST(write_attributes(ctx, sink->writer, plan, kind));
    for (int i = 0; i < plan->spec_count; i++) {
        const assay_tensor_spec *spec = &plan->specs[i];
        if (has_recipe(plan, source, spec, &recipe)) {
            MUST(assay_fixture_declare_recipe(ctx, sink->writer, spec, &recipe));
        } else if (is_in_file(plan, source, spec, results)) {
            MUST(assay_fixture_declare(ctx, sink->writer, spec));
        }
    }
    return ASSAY_OK;
}

/* Once every attribute is set: some containers are planned whole. */
static assay_status write_all_inputs(assay_context *ctx, file_sink *sink, const assay_source *source, bool golden)
{
    const assay_sink out = sink_of(sink);
    for (int i = 0; i < sink->plan->spec_count; i++) {
        const assay_tensor_spec *spec = &sink->plan->specs[i];
        if (!assay_role_is_input(spec->role) || !is_in_file(sink->plan, source, spec, golden)) continue;
        MUST(copy_tensor(ctx, source, spec, sink->plan->negated && assay_dtype_is_negated(spec->type), &out));
    }
    return ASSAY_OK;
}

/* Users' own profiles, so that the golden's error scales can be told from those of another one of the name. */
static assay_status set_profiles(assay_context *ctx, assay_fixture_writer *writer, const assay_plan *plan)
{
    OWNED char(*texts)[ASSAY_PROFILE_YAML_SIZE] = NULL;
    OWNED const char **list = NULL;
    if (plan->own_count == 0) return ASSAY_OK;
    MUST(assay_alloc_list(ctx, "the profiles", plan->own_count, sizeof *texts, &texts));
    MUST(assay_alloc_list(ctx, "the profiles", plan->own_count, sizeof *list, &list));
    for (int i = 0; i < plan->own_count; i++) {
        assay_profile_to_yaml(&plan->own[i], texts[i]);
        list[i] = texts[i];
    }
    return assay_fixture_set_texts(ctx, writer, "profiles", plan->own_count, list);
}

static assay_status set_left_out(assay_context *ctx, assay_fixture_writer *writer, const assay_plan *plan)
{
    const char *list[ASSAY_MOST_LEFT_OUT];
    for (int i = 0; i < plan->left_out_count; i++) list[i] = plan->profiles_left_out[i];
    if (plan->left_out_count == 0) return ASSAY_OK;
    return assay_fixture_set_texts(ctx, writer, ASSAY_PROFILES_LEFT_OUT, plan->left_out_count, list);
}

static assay_status set_mutant_names(assay_context *ctx, assay_fixture_writer *writer, const assay_plan *plan)
{
    OWNED_BY(assay_mutant_list_free) assay_mutant_list list = {0};
    OWNED const char **names = NULL;
    MUST(assay_mutants_of(ctx, plan, -1, &list));
    MUST(assay_alloc(ctx, "the names of mutants", list.count, sizeof *names, &names));
    for (int i = 0; i < list.count; i++) names[i] = list.items[i]->name;
    return assay_fixture_set_texts(ctx, writer, "mutants", list.count, names);
}

static assay_status begin_golden(assay_context *ctx, file_sink *sink, const assay_source *source, const char *path)
{
    const assay_plan *plan = sink->plan;
    MUST(assay_require_disk(ctx, path, stored_bytes(plan, source, true)));
    MUST(begin(ctx, sink, source, path, "golden", true));
    MUST(assay_fixture_set_text(ctx, sink->writer, "error_model", ASSAY_ERROR_MODEL));
    MUST(set_profiles(ctx, sink->writer, plan));
    MUST(set_left_out(ctx, sink->writer, plan));
    if (plan->mutants) MUST(set_mutant_names(ctx, sink->writer, plan));
    return ASSAY_OK;
}

/* results: NULL: they are evaluated on their way into the file. */
static assay_status write_golden(assay_context *ctx, const assay_plan *plan, const char *path,
                                 const assay_source *source, const assay_tensor_set *results, bool quiet)
{
    assay_status status;
    file_sink sink;
    int threads = ctx->threads;
    if (!plan->certify) ctx->threads = assay_plan_threads(ctx, plan); /* no work is small in binary128 */
    TRY(open_sink(ctx, &sink, plan));
    assay_progress_start(&sink.progress, quiet, plan->c->name, plan->elements);
    const assay_sink out = sink_of(&sink);
    TRY(begin_golden(ctx, &sink, source, path));
    TRY(write_all_inputs(ctx, &sink, source, true));
    TRY(results != NULL ? assay_golden_give_results(ctx, plan, results, &out)
                        : assay_evaluate_as_planned(ctx, plan, source, &out, quiet));
cleanup:
    status = close_sink(ctx, &sink, status);
    ctx->threads = threads;
    return status;
}

assay_status assay_golden_give_results(assay_context *ctx, const assay_plan *plan, const assay_tensor_set *results,
                                       const assay_sink *out)
{
    for (int i = 0; i < results->count; i++) {
        const assay_tensor *tensor = &results->items[i];
        const char *path = tensor->spec.path;
        if (assay_role_is_input(tensor->spec.role) || !assay_tensor_is_complete(tensor)) continue;
        MUST(tensor->indices != NULL ? out->write_i32(ctx, out->self, path, tensor->count, tensor->indices)
                                     : out->write(ctx, out->self, path, tensor->count, tensor->values));
    }
    if (plan->mutants) MUST(assay_power_evaluate(ctx, plan, results, out));
    return ASSAY_OK;
}

assay_status assay_golden_results(assay_context *ctx, const assay_plan *plan, const assay_source *source, bool quiet,
                                  assay_tensor_set *results)
{
    MUST(assay_plan_tensors(ctx, results, plan, source));
    for (int i = 0; i < results->count; i++) {
        assay_tensor *tensor = &results->items[i];
        if (!assay_role_is_input(tensor->spec.role)) tensor->written = 0; /* a choice that the source gives */
    }
    return assay_golden_evaluate(ctx, plan, source, quiet, results);
}

/* Mutants are judged by everything else. */
static assay_status write_from_memory(assay_context *ctx, const assay_plan *plan, const char *path,
                                      const assay_source *source, bool quiet)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set results = {0};
    assay_overlay both = {assay_input_source(&results), *source};
    const assay_source inputs = plan->recipe ? *source : assay_overlay_source(&both); /* a set has no recipes */
    MUST(assay_golden_results(ctx, plan, source, quiet, &results));
    return write_golden(ctx, plan, path, &inputs, &results, quiet);
}

static assay_status write_with_all(assay_context *ctx, const assay_plan *plan, const char *path,
                                   const assay_source *source, bool quiet)
{
    if (plan->mutants) return write_from_memory(ctx, plan, path, source, quiet);
    return write_golden(ctx, plan, path, source, NULL, quiet);
}

/* Which datasets a file has is settled before it has any: without a profile that turns out to be impossible it is written
 * anew. */
assay_status assay_golden_write_from(assay_context *ctx, const assay_plan *plan, const char *path,
                                     const assay_source *source, bool quiet)
{
    assay_lost_profile lost = {{0}, {0}};
    assay_plan all = *plan, fewer = {0};
    all.lost = &lost;
    assay_status status = write_with_all(ctx, &all, path, source, quiet);
    if (status != ASSAY_BAD_INPUT || !assay_plan_may_leave_out(plan, &lost)) return status;
    ctx->message[0] = '\0';
    TRY(assay_plan_leave_out(ctx, plan, &lost, &fewer));
    TRY(assay_golden_write_from(ctx, &fewer, path, source, quiet));
    if (!quiet) /* of a golden that is there: a case that is refused after all has one line */
        fprintf(stderr, "%s: profile %s: %s: left out: its golden has no profile %s\n", plan->c->name, lost.name,
                lost.reason, lost.name);
cleanup:
    free(fewer.specs);
    free(fewer.precisions);
    return status;
}

assay_status assay_request_write_from(assay_context *ctx, const assay_plan *plan, const char *path,
                                      const assay_source *source, bool quiet)
{
    assay_status status;
    int count = 0;
    file_sink sink;
    const char **expects = calloc((size_t)plan->spec_count + 1, sizeof *expects);
    TRY(open_sink(ctx, &sink, plan));
    assay_progress_start(&sink.progress, quiet, plan->c->name, plan->elements);
    if (expects == NULL) TRY(assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the list of results"));
    for (int i = 0; i < plan->spec_count; i++) {
        const assay_tensor_spec *asked = assay_plan_asked(plan, i);
        if (asked != NULL && assay_role_is_result(asked->role)) expects[count++] = asked->path;
    }
    TRY(assay_require_disk(ctx, path, stored_bytes(plan, source, false)));
    TRY(begin(ctx, &sink, source, path, "request", false));
    TRY(assay_fixture_set_texts(ctx, sink.writer, "expects", count, expects));
    TRY(write_all_inputs(ctx, &sink, source, false));
cleanup:
    status = close_sink(ctx, &sink, status);
    free(expects);
    return status;
}

/* What is given is drawn, or a user's. */
static assay_status write_with_inputs(assay_context *ctx, const assay_plan *plan, const char *path,
                                      const char *inputs_file, bool quiet,
                                      assay_status (*write)(assay_context *ctx, const assay_plan *plan,
                                                            const char *path, const assay_source *source, bool quiet))
{
    OWNED_BY(assay_inputs_close) assay_inputs inputs = {0};
    MUST(assay_inputs_open_plan(ctx, &inputs, plan, inputs_file));
    const assay_source source = assay_inputs_source(&inputs);
    return write(ctx, plan, path, &source, quiet);
}

assay_status assay_golden_write(assay_context *ctx, const assay_plan *plan, const char *path, const char *inputs_file,
                                bool quiet)
{
    return write_with_inputs(ctx, plan, path, inputs_file, quiet, assay_golden_write_from);
}

assay_status assay_request_write(assay_context *ctx, const assay_plan *plan, const char *path, const char *inputs_file,
                                 bool quiet)
{
    return write_with_inputs(ctx, plan, path, inputs_file, quiet, assay_request_write_from);
}
