#include "harness/golden/golden.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "compare/profile_yaml.h"
#include "harness/certify/certificate.h"
#include "harness/power/power_test.h"
#include "harness/scales/ensemble.h"
#include "harness/golden/golden_finite.h"
#include "harness/plan/progress.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"

#define GENERATOR "assay " ASSAY_VERSION

enum { CHUNK = 1 << 20 }; /* elements that are moved at a time */

/* Below this many operations a team of threads costs more than it saves; the bits are the same either way. */
#define SMALL_WORK 3e8

int assay_plan_threads(const assay_context *ctx, const assay_plan *plan)
{
    return plan->operation->flops(plan->c, true) * (1 + plan->precision_count) < SMALL_WORK ? 1 : ctx->threads;
}

/* A sink that appends to a fixture. */
typedef struct file_sink {
    const assay_plan *plan;
    assay_fixture_writer *writer;
    int64_t *written; /* elements so far of each spec */
    assay_progress progress;
} file_sink;

static int spec_index(const assay_plan *plan, const char *path)
{
    for (int i = 0; i < plan->spec_count; i++) {
        if (strcmp(plan->specs[i].path, path) == 0) return i;
    }
    return -1;
}

static bool holds(const assay_plan *plan, const char *path)
{
    return spec_index(plan, path) >= 0;
}

bool assay_case_is_exact(const assay_case *c)
{
    bool exact = false;
    for (int i = 0; i < c->tags.count; i++) exact |= strcmp(c->tags.items[i], "exact") == 0;
    return exact;
}

static bool scale_is_zero(const assay_plan *plan, const char *path)
{
    return assay_path_in(path, "error_scale") && assay_case_is_exact(plan->c);
}

static bool sink_wants(void *self, const char *path)
{
    const file_sink *sink = self;
    return holds(sink->plan, path);
}

static assay_status sink_write(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    assay_status status = ASSAY_OK;
    file_sink *sink = self;
    double *zeros = NULL;
    const int index = spec_index(sink->plan, path);
    if (scale_is_zero(sink->plan, path)) {
        TRY(assay_alloc_f64(ctx, path, count, &zeros));
        for (int64_t i = 0; i < count; i++) zeros[i] = 0.0;
        values = zeros;
    }
    TRY(assay_golden_require_finite(ctx, sink->plan->c, &sink->plan->specs[index], sink->written[index], count,
                                    values));
    TRY(assay_fixture_append(ctx, sink->writer, path, count, values));
    sink->written[index] += count;
    assay_progress_add(&sink->progress, count, path);
cleanup:
    free(zeros);
    return status;
}

static assay_status sink_write_i32(assay_context *ctx, void *self, const char *path, int64_t count,
                                   const int32_t *values)
{
    file_sink *sink = self;
    return assay_fixture_append_i32(ctx, sink->writer, path, count, values);
}

/* Inputs, weights and cotangents into the file, in pieces. */
static assay_status write_given(assay_context *ctx, file_sink *sink, const assay_source *source,
                                const assay_tensor_spec *spec)
{
    assay_status status;
    double *values = NULL;
    int32_t *integers = NULL;
    int64_t total = assay_shape_count(&spec->shape);
    if (spec->type == ASSAY_INT32) {
        TRY(assay_alloc_i32(ctx, spec->path, total, &integers));
        TRY(source->read_i32(ctx, source->self, spec->path, 0, total, integers));
        TRY(assay_fixture_append_i32(ctx, sink->writer, spec->path, total, integers));
        goto cleanup;
    }
    TRY(assay_alloc_f64(ctx, spec->path, total < CHUNK ? total : CHUNK, &values));
    for (int64_t first = 0; first < total; first += CHUNK) {
        int64_t count = total - first < CHUNK ? total - first : CHUNK;
        TRY(source->read(ctx, source->self, spec->path, first, count, values));
        TRY(sink_write(ctx, sink, spec->path, count, values));
    }
cleanup:
    free(values);
    free(integers);
    return status;
}

static assay_status write_attributes(assay_context *ctx, assay_fixture_writer *writer, const assay_plan *plan,
                                     const char *kind)
{
    assay_status status;
    char *yaml = NULL;
    TRY(assay_case_yaml(ctx, plan->c, &yaml));
    TRY(assay_fixture_set_text(ctx, writer, "kind", kind));
    TRY(assay_fixture_set_text(ctx, writer, "case", plan->c->name));
    TRY(assay_fixture_set_text(ctx, writer, "case_yaml", yaml));
    TRY(assay_fixture_set_text(ctx, writer, "op", plan->c->op));
    TRY(assay_fixture_set_text(ctx, writer, "engine", ctx->arithmetic->name));
    TRY(assay_fixture_set_text(ctx, writer, "generator", GENERATOR));
cleanup:
    free(yaml);
    return status;
}

/* Opens the file, declares the datasets that `chosen` takes and writes those that are given. */
static assay_status begin(assay_context *ctx, file_sink *sink, const assay_source *source, const char *path,
                          const char *kind, bool results)
{
    assay_status status;
    const assay_plan *plan = sink->plan;
    sink->written = calloc((size_t)plan->spec_count + 1, sizeof *sink->written);
    if (sink->written == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the list of datasets");
    TRY(assay_fixture_create(ctx, path, &sink->writer));
    TRY(write_attributes(ctx, sink->writer, plan, kind));
    for (int i = 0; i < plan->spec_count; i++) {
        if (results || assay_path_is_given(plan->specs[i].path)) {
            TRY(assay_fixture_declare(ctx, sink->writer, &plan->specs[i]));
        }
    }
    for (int i = 0; i < plan->spec_count; i++) {
        if (assay_path_is_given(plan->specs[i].path)) TRY(write_given(ctx, sink, source, &plan->specs[i]));
    }
cleanup:
    return status;
}

static assay_status finish(assay_context *ctx, file_sink *sink, assay_status status)
{
    assay_fixture_writer *writer = sink->writer;
    assay_progress_end(&sink->progress);
    free(sink->written);
    if (status == ASSAY_OK) return assay_fixture_finish(ctx, writer);
    assay_fixture_abandon(writer);
    return status;
}

/* Users' own profiles, so that the golden's error scales can be told from those of another one of the name. */
static assay_status set_profiles(assay_context *ctx, assay_fixture_writer *writer, const assay_plan *plan)
{
    assay_status status = ASSAY_OK;
    char(*texts)[ASSAY_PROFILE_YAML_SIZE] = NULL;
    const char **list = NULL;
    if (plan->own_count == 0) return ASSAY_OK;
    texts = calloc((size_t)plan->own_count, sizeof *texts);
    list = calloc((size_t)plan->own_count, sizeof *list);
    if (texts == NULL || list == NULL) {
        status = assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the profiles");
        goto cleanup;
    }
    for (int i = 0; i < plan->own_count; i++) {
        assay_profile_to_yaml(&plan->own[i], texts[i]);
        list[i] = texts[i];
    }
    TRY(assay_fixture_set_texts(ctx, writer, "profiles", plan->own_count, list));
cleanup:
    free(texts);
    free(list);
    return status;
}

static assay_status set_mutant_names(assay_context *ctx, assay_fixture_writer *writer)
{
    const char **names = calloc((size_t)assay_mutant_count, sizeof *names);
    if (names == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the names of mutants");
    for (int i = 0; i < assay_mutant_count; i++) names[i] = assay_mutants[i].name;
    const assay_status status = assay_fixture_set_texts(ctx, writer, "mutants", assay_mutant_count, names);
    free(names);
    return status;
}

assay_status assay_golden_write_from(assay_context *ctx, const assay_plan *plan, const char *path,
                                     const assay_source *source, bool quiet)
{
    assay_status status;
    file_sink sink = {.plan = plan};
    int threads = ctx->threads;
    if (!plan->certify) ctx->threads = assay_plan_threads(ctx, plan); /* no work is small in binary128 */
    assay_progress_start(&sink.progress, quiet, plan->c->name, plan->elements);
    TRY(assay_require_disk(ctx, path, plan->file_bytes));
    assay_sink out = {.self = &sink, .wants = sink_wants, .write = sink_write, .write_i32 = sink_write_i32};
    TRY(begin(ctx, &sink, source, path, "golden", true));
    TRY(set_profiles(ctx, sink.writer, plan));
    if (plan->null_left_out[0] != '\0') {
        TRY(assay_fixture_set_text(ctx, sink.writer, "null_left_out", plan->null_left_out));
    }
    if (plan->mutants) TRY(set_mutant_names(ctx, sink.writer));
    TRY(plan->mutants ? assay_evaluate_discriminated(ctx, plan, source, &out, quiet)
                      : assay_evaluate_as_planned(ctx, plan, source, &out, quiet));
cleanup:
    status = finish(ctx, &sink, status);
    ctx->threads = threads;
    return status;
}

assay_status assay_golden_write(assay_context *ctx, const assay_plan *plan, const char *path, const char *inputs_file,
                                bool quiet)
{
    assay_status status;
    assay_inputs inputs = {0};
    TRY(assay_require_disk(ctx, path, plan->file_bytes));
    TRY(assay_inputs_open(ctx, &inputs, plan->c, &plan->list, inputs_file));
    const assay_source source = assay_inputs_source(&inputs);
    TRY(assay_golden_write_from(ctx, plan, path, &source, quiet));
cleanup:
    assay_inputs_close(&inputs);
    return status;
}

static bool is_expected(const char *path)
{
    return assay_is_certified(path); /* what says something about these is the oracle's own */
}

assay_status assay_request_write(assay_context *ctx, const assay_plan *plan, const char *path, const char *inputs_file,
                                 bool quiet)
{
    assay_status status;
    int count = 0;
    assay_inputs inputs = {0};
    file_sink sink = {.plan = plan};
    const char **expects = calloc((size_t)plan->spec_count + 1, sizeof *expects);
    assay_progress_start(&sink.progress, quiet, plan->c->name, plan->elements);
    if (expects == NULL) {
        status = assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the list of results");
        goto cleanup;
    }
    for (int i = 0; i < plan->spec_count; i++) {
        if (is_expected(plan->specs[i].path)) expects[count++] = plan->specs[i].path;
    }
    TRY(assay_inputs_open(ctx, &inputs, plan->c, &plan->list, inputs_file));
    assay_source source = assay_inputs_source(&inputs);
    TRY(begin(ctx, &sink, &source, path, "request", false));
    TRY(assay_fixture_set_texts(ctx, sink.writer, "expects", count, expects));
cleanup:
    status = finish(ctx, &sink, status);
    assay_inputs_close(&inputs);
    free(expects);
    return status;
}

/* A sink that holds results against those of a file. */
typedef struct checking_sink {
    const assay_plan *plan;
    assay_fixture_reader *golden;
    int64_t *written; /* elements so far of each spec */
    assay_progress progress;
} checking_sink;

static bool checking_wants(void *self, const char *path)
{
    const checking_sink *sink = self;
    return holds(sink->plan, path);
}

static assay_status differs(assay_context *ctx, const char *path, int64_t index, double stored, double found)
{
    return assay_fail(ctx, ASSAY_BAD_INPUT,
                      "%s[%" PRId64 "]: the file has %.17g, recomputing gives %.17g: not the numbers of this oracle",
                      path, index, stored, found);
}

static assay_status checking_write(assay_context *ctx, void *self, const char *path, int64_t count,
                                   const double *values)
{
    assay_status status = ASSAY_OK;
    checking_sink *sink = self;
    int index = spec_index(sink->plan, path);
    assay_dtype type = sink->plan->specs[index].type;
    double *stored = NULL, *rounded = NULL;
    if (assay_path_in(path, "discrimination")) {
        sink->written[index] += count;
        return assay_discrimination_check(ctx, sink->golden, path, values);
    }
    TRY(assay_alloc_f64(ctx, path, count < CHUNK ? count : CHUNK, &stored));
    TRY(assay_alloc_f64(ctx, path, count < CHUNK ? count : CHUNK, &rounded));
    for (int64_t first = 0; first < count; first += CHUNK) {
        int64_t n = count - first < CHUNK ? count - first : CHUNK;
        TRY(assay_fixture_read(ctx, sink->golden, path, sink->written[index], n, stored));
        assay_dtype_round_many(type, n, values + first, rounded);
        for (int64_t i = 0; i < n && scale_is_zero(sink->plan, path); i++) rounded[i] = 0.0;
        for (int64_t i = 0; i < n; i++) {
            if (memcmp(&stored[i], &rounded[i], sizeof *stored) != 0) {
                status = differs(ctx, path, sink->written[index] + i, stored[i], rounded[i]);
                goto cleanup;
            }
        }
        sink->written[index] += n;
    }
    assay_progress_add(&sink->progress, count, path);
cleanup:
    free(stored);
    free(rounded);
    return status;
}

static assay_status checking_write_i32(assay_context *ctx, void *self, const char *path, int64_t count,
                                       const int32_t *values)
{
    assay_status status = ASSAY_OK;
    checking_sink *sink = self;
    int index = spec_index(sink->plan, path);
    int32_t *stored = NULL;
    TRY(assay_alloc_i32(ctx, path, count, &stored));
    TRY(assay_fixture_read_i32(ctx, sink->golden, path, sink->written[index], count, stored));
    for (int64_t i = 0; i < count; i++) {
        if (stored[i] != values[i]) {
            status = differs(ctx, path, sink->written[index] + i, stored[i], values[i]);
            goto cleanup;
        }
    }
    sink->written[index] += count;
cleanup:
    free(stored);
    return status;
}

/* Only what was given: the recorded routing must be found again, not replayed. */
static bool given_has(void *self, const char *path)
{
    assay_fixture_reader *golden = self;
    return assay_path_is_given(path) && assay_fixture_find(golden, path) != NULL;
}

assay_source assay_golden_given(assay_fixture_reader *golden)
{
    assay_source source = assay_fixture_source(golden);
    source.has = given_has;
    source.self = golden;
    return source;
}

bool assay_golden_has(const assay_fixture_reader *golden, const char *folder)
{
    bool found = false;
    for (int i = 0; !found && i < assay_fixture_count(golden); i++) {
        found = assay_path_in(assay_fixture_spec(golden, i)->path, folder);
    }
    return found;
}

assay_status assay_golden_check_layout(assay_context *ctx, const assay_plan *plan, const assay_fixture_reader *golden)
{
    for (int i = 0; i < plan->spec_count; i++) {
        const assay_tensor_spec *found = assay_fixture_find(golden, plan->specs[i].path);
        if (found == NULL) return assay_fail(ctx, ASSAY_BAD_INPUT, "%s is missing", plan->specs[i].path);
        if (assay_path_in(found->path, "discrimination")) {
            const assay_status status = assay_discrimination_check_layout(ctx, golden, found);
            RETURN_IF(status != ASSAY_OK, status);
            continue;
        }
        if (!assay_shape_equal(&found->shape, &plan->specs[i].shape) || found->type != plan->specs[i].type) {
            return assay_fail(ctx, ASSAY_BAD_INPUT, "%s has another shape or type than its case gives",
                              plan->specs[i].path);
        }
    }
    return ASSAY_OK;
}

assay_status assay_golden_recompute(assay_context *ctx, const assay_plan *plan, assay_fixture_reader *golden,
                                    bool quiet)
{
    assay_status status;
    checking_sink sink = {.plan = plan, .golden = golden};
    int threads = ctx->threads;
    ctx->threads = assay_plan_threads(ctx, plan);
    assay_source source = assay_golden_given(golden);
    assay_progress_start(&sink.progress, quiet, plan->c->name, plan->elements);
    sink.written = calloc((size_t)plan->spec_count + 1, sizeof *sink.written);
    if (sink.written == NULL) {
        status = assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the list of results");
        goto cleanup;
    }
    TRY(assay_golden_check_layout(ctx, plan, golden));
    assay_sink out = {.self = &sink, .wants = checking_wants, .write = checking_write, .write_i32 = checking_write_i32};
    TRY(plan->mutants ? assay_evaluate_discriminated(ctx, plan, &source, &out, quiet)
                      : assay_evaluate(ctx, plan, &source, &out));
    for (int i = 0; i < plan->spec_count; i++) {
        bool complete =
            assay_path_is_given(plan->specs[i].path) || sink.written[i] == assay_shape_count(&plan->specs[i].shape);
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

assay_status assay_make_parents(assay_context *ctx, const char *path)
{
    char folder[4096];
    if (strlen(path) >= sizeof folder) return assay_fail(ctx, ASSAY_BAD_INPUT, "%.64s...: path too long", path);
    snprintf(folder, sizeof folder, "%s", path);
    for (char *slash = strchr(folder + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
            return assay_fail(ctx, ASSAY_IO, "%s: cannot be created: %s", folder, strerror(errno));
        }
        *slash = '/';
    }
    return ASSAY_OK;
}

assay_status assay_require_disk(assay_context *ctx, const char *path, int64_t bytes)
{
    char folder[4096];
    struct statvfs disk;
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash == NULL) {
        snprintf(folder, sizeof folder, ".");
    } else {
        slash[slash == folder ? 1 : 0] = '\0';
    }
    if (statvfs(folder, &disk) != 0) {
        return assay_fail(ctx, ASSAY_IO, "%s: %s", folder, strerror(errno));
    }
    int64_t left = (int64_t)((uint64_t)disk.f_bavail * disk.f_frsize);
    if (bytes > left) {
        return assay_fail(ctx, ASSAY_IO, "%s needs %" PRId64 " bytes on disk, %" PRId64 " are left", path, bytes, left);
    }
    return ASSAY_OK;
}
