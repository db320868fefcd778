/* A stack's golden made and checked a layer at a time. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixtures/files.h"
#include "harness/golden/golden_finite.h"
#include "harness/golden/golden_internal.h"
#include "harness/golden/journal.h"
#include "harness/golden/layer_run.h"
#include "harness/golden/moved_part.h"
#include "harness/operations/op_support.h"
#include "harness/plan/directions.h"
#include "harness/plan/golden_read.h"
#include "harness/plan/inputs.h"
#include "harness/plan/plan_make.h"
#include "harness/plan/progress.h"
#include "harness/plan/results.h"
#include "oracle/base/memory.h"

/* Of a layer's time, of which backward computes the forward again. */
enum { FORWARD_SHARE = 1, BACKWARD_SHARE = 3 };

typedef struct maker {
    const assay_plan *plan;
    const assay_source *given;
    assay_journal journal;
    int64_t layers, size; /* of x */
    double *x, *dy, *to;
    assay_progress progress;
} maker;

static const char *passed_on(bool backward)
{
    return backward ? "gradients/inputs/x" : "outputs/y";
}

static assay_status alloc(assay_context *ctx, maker *m)
{
    assay_status status;
    assay_stack_config config;
    TRY(assay_stack_config_of(ctx, m->plan->c, &config));
    const assay_stack_sizes sizes = assay_stack_sizes_of(&config);
    m->size = sizes.batch * sizes.sequence * sizes.emb_dim;
    TRY(assay_alloc_f64(ctx, "input of a layer", m->size, &m->x));
    TRY(assay_alloc_f64(ctx, "gradient of a layer's output", m->size, &m->dy));
    TRY(assay_alloc_f64(ctx, "what a layer gives", m->size, &m->to));
cleanup:
    return status;
}

static void release(maker *m)
{
    free(m->x);
    free(m->dy);
    free(m->to);
}

/* A part while it is written: as a sink it takes the layer's results in the plan. */
typedef struct part_sink {
    const maker *m;
    assay_fixture_writer *writer;
    int64_t layer;
    bool backward;
    int64_t *written; /* elements so far of each spec */
} part_sink;

static bool part_wants(void *self, const char *path)
{
    const part_sink *sink = self;
    return assay_plan_find(sink->m->plan, path) >= 0;
}

static assay_status part_write(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    assay_status status;
    const part_sink *sink = self;
    const int index = assay_plan_find(sink->m->plan, path);
    TRY(assay_golden_require_finite(ctx, sink->m->plan->c, &sink->m->plan->specs[index], sink->written[index], count,
                                    values));
    sink->written[index] += count;
    TRY(assay_fixture_append(ctx, sink->writer, path, count, values));
cleanup:
    return status;
}

static assay_status part_write_i32(assay_context *ctx, void *self, const char *path, int64_t count,
                                   const int32_t *values)
{
    const part_sink *sink = self;
    return assay_fixture_append_i32(ctx, sink->writer, path, count, values);
}

/* The part's datasets: the layer's own, and what goes on to the next layer, where that is not among them. */
static assay_status declare(assay_context *ctx, const part_sink *sink)
{
    assay_status status;
    const assay_plan *plan = sink->m->plan;
    assay_tensor_spec next = assay_tensor_list_find(&plan->list, "outputs/y")->spec;
    assay_tensor_call(&next, passed_on(sink->backward));
    TRY(assay_journal_sign(ctx, &sink->m->journal, sink->layer, sink->backward, sink->writer));
    TRY(assay_fixture_declare(ctx, sink->writer, &next));
    for (int i = 0; i < plan->spec_count; i++) {
        if (!assay_is_of_layer(&plan->specs[i], sink->layer, sink->backward)) continue;
        TRY(assay_fixture_declare(ctx, sink->writer, &plan->specs[i]));
    }
cleanup:
    return status;
}

/* The layer, from m->x and m->dy, into its part and m->to. */
static assay_status make_part(assay_context *ctx, maker *m, int64_t layer, bool backward)
{
    assay_status status;
    char path[ASSAY_JOURNAL_PATH];
    part_sink sink = {.m = m, .layer = layer, .backward = backward};
    const assay_layer_run run = {m->plan, layer, backward, m->x, m->dy, m->to};
    const assay_sink out = {.self = &sink, .wants = part_wants, .write = part_write, .write_i32 = part_write_i32};
    assay_journal_part(&m->journal, layer, backward, path);
    sink.written = calloc((size_t)m->plan->spec_count + 1, sizeof *sink.written);
    if (sink.written == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the list of results");
    TRY(assay_fixture_create(ctx, path, &sink.writer));
    TRY(declare(ctx, &sink));
    TRY(assay_layer_run_one(ctx, &run, m->given, &out));
    TRY(assay_fixture_append(ctx, sink.writer, passed_on(backward), m->size, m->to));
    const assay_tensor_spec *y = &assay_tensor_list_find(&m->plan->list, "outputs/y")->spec;
    TRY(assay_golden_require_finite(ctx, m->plan->c, y, 0, m->size, m->to));
    status = assay_fixture_finish(ctx, sink.writer);
    sink.writer = NULL;
cleanup:
    assay_fixture_abandon(sink.writer);
    free(sink.written);
    return status;
}

/* What a part passed on. */
static assay_status read_passed_on(assay_context *ctx, const maker *m, int64_t layer, bool backward, double *to)
{
    assay_status status;
    assay_fixture_reader *part = NULL;
    TRY(assay_journal_read(ctx, &m->journal, layer, backward, &part));
    TRY(assay_fixture_read(ctx, part, passed_on(backward), 0, m->size, to));
cleanup:
    assay_fixture_close(part);
    return status;
}

/* The layer's input and the gradient of its output, for a layer whose neighbours are done. */
static assay_status read_boundaries(assay_context *ctx, maker *m, int64_t layer, bool backward)
{
    assay_status status = ASSAY_OK;
    const assay_source *in = m->given;
    if (layer == 0) {
        TRY(in->read(ctx, in->self, "inputs/x", 0, m->size, m->x));
    } else {
        TRY(read_passed_on(ctx, m, layer - 1, false, m->x));
    }
    if (!backward) return ASSAY_OK;
    if (layer + 1 < m->layers) return read_passed_on(ctx, m, layer + 1, true, m->dy);
    if (in->has(in->self, "cotangents/y")) return in->read(ctx, in->self, "cotangents/y", 0, m->size, m->dy);
    memset(m->dy, 0, (size_t)m->size * sizeof *m->dy);
cleanup:
    return status;
}

static assay_status advance(assay_context *ctx, maker *m, int64_t layer, bool backward)
{
    assay_status status = ASSAY_OK;
    char detail[64];
    const int share = backward ? BACKWARD_SHARE : FORWARD_SHARE;
    snprintf(detail, sizeof detail, "layer %" PRId64 " %s", layer, backward ? "backward" : "forward");
    if (assay_journal_has(&m->journal, layer, backward)) {
        assay_progress_skip(&m->progress, share);
        return ASSAY_OK;
    }
    assay_progress_add(&m->progress, 0, detail);
    TRY(read_boundaries(ctx, m, layer, backward));
    TRY(make_part(ctx, m, layer, backward));
    assay_progress_add(&m->progress, share, detail);
cleanup:
    return status;
}

static bool wants_backward(const assay_plan *plan)
{
    bool wants = false;
    for (int i = 0; i < plan->spec_count; i++) wants |= plan->specs[i].role == ASSAY_ROLE_GRADIENT;
    return wants;
}

static assay_status make_parts(assay_context *ctx, maker *m, bool quiet)
{
    assay_status status = ASSAY_OK;
    const bool backward = wants_backward(m->plan);
    assay_progress_start(&m->progress, quiet, m->plan->c->name,
                         m->layers * (FORWARD_SHARE + (backward ? BACKWARD_SHARE : 0)));
    for (int64_t layer = 0; layer < m->layers; layer++) TRY(advance(ctx, m, layer, false));
    for (int64_t layer = m->layers - 1; backward && layer >= 0; layer--) TRY(advance(ctx, m, layer, true));
cleanup:
    assay_progress_end(&m->progress);
    return status;
}

static assay_status copy_dataset(assay_context *ctx, assay_fixture_reader *part, const assay_tensor_spec *spec,
                                 const assay_sink *out)
{
    enum { CHUNK = 1 << 20 };
    assay_status status = ASSAY_OK;
    const int64_t total = assay_shape_count(&spec->shape), most = total < CHUNK ? total : CHUNK;
    double *values = NULL;
    int32_t *integers = NULL;
    if (spec->type == ASSAY_INT32) TRY(assay_alloc_i32(ctx, spec->path, most, &integers));
    if (spec->type != ASSAY_INT32) TRY(assay_alloc_f64(ctx, spec->path, most, &values));
    for (int64_t first = 0; first < total; first += CHUNK) {
        const int64_t count = total - first < CHUNK ? total - first : CHUNK;
        if (integers != NULL) {
            TRY(assay_fixture_read_i32(ctx, part, spec->path, first, count, integers));
            TRY(out->write_i32(ctx, out->self, spec->path, count, integers));
        } else {
            TRY(assay_fixture_read(ctx, part, spec->path, first, count, values));
            TRY(out->write(ctx, out->self, spec->path, count, values));
        }
    }
cleanup:
    free(values);
    free(integers);
    return status;
}

/* Parts on their way into the golden. */
typedef struct mover {
    const maker *m;
    assay_moving moving;
    assay_golden_evaluator evaluator;
} mover;

/* A part into the golden; `last`: what it passed on is a result of the stack. */
static assay_status move_part(assay_context *ctx, const mover *v, int64_t layer, bool backward, const assay_sink *out)
{
    assay_status status;
    assay_fixture_reader *part = NULL;
    const bool last = layer == (backward ? 0 : v->m->layers - 1);
    const char *stays = last && out->wants(out->self, passed_on(backward)) ? NULL : passed_on(backward);
    TRY(assay_journal_read(ctx, &v->m->journal, layer, backward, &part));
    for (int i = 0; i < assay_fixture_count(part); i++) {
        const assay_tensor_spec *spec = assay_fixture_spec(part, i);
        if (assay_is_moved_table(spec->path) || (stays != NULL && strcmp(spec->path, stays) == 0)) continue;
        TRY(copy_dataset(ctx, part, spec, out));
    }
    TRY(assay_moving_copy(ctx, &v->moving, part, out));
    TRY(assay_moving_note(ctx, &v->moving, part, layer, backward, stays, v->evaluator.writer));
cleanup:
    assay_fixture_close(part);
    return status;
}

static assay_status write_report(assay_context *ctx, const assay_plan *plan, const assay_sink *out)
{
    assay_status status;
    assay_stack_config config;
    assay_remat_report report;
    TRY(assay_stack_config_of(ctx, plan->c, &config));
    TRY(assay_stack_remat_model(ctx, &config, &report));
    const double kept = (double)report.bytes_kept, offloaded = (double)report.bytes_offloaded;
    TRY(assay_write_result(ctx, out, "remat/bytes_kept", 1, &kept));
    TRY(assay_write_result(ctx, out, "remat/bytes_offloaded", 1, &offloaded));
    TRY(assay_write_result(ctx, out, "remat/operations_recomputed", 1, &report.operations_recomputed));
cleanup:
    return status;
}

static assay_status move_parts(assay_context *ctx, void *self, const assay_plan *plan, const assay_source *source,
                               const assay_sink *out, bool quiet)
{
    assay_status status = ASSAY_OK;
    const mover *v = self;
    const int64_t layers = v->m->layers;
    const bool backward = wants_backward(plan);
    (void)source;
    (void)quiet;
    for (int64_t layer = 0; layer < layers; layer++) TRY(move_part(ctx, v, layer, false, out));
    for (int64_t layer = layers - 1; backward && layer >= 0; layer--) TRY(move_part(ctx, v, layer, true, out));
    TRY(write_report(ctx, plan, out));
cleanup:
    return status;
}

static assay_status join_parts(assay_context *ctx, const maker *m, const char *path)
{
    assay_status status;
    char partial[ASSAY_JOURNAL_PATH];
    mover v = {.m = m};
    TRY(assay_moving_begin(ctx, &v.moving, &m->journal, m->plan, m->layers));
    assay_moving_path(&v.moving, partial);
    v.evaluator = (assay_golden_evaluator){.self = &v, .evaluate = move_parts, .partial = partial};
    TRY(assay_golden_write_with(ctx, m->plan, path, m->given, &v.evaluator, true));
cleanup:
    return status;
}

/* Filters of a small stack are made of the whole golden: that is read, and written again. */
static assay_status add_filters(assay_context *ctx, const maker *m, const char *path)
{
    assay_status status;
    assay_fixture_reader *reader = NULL;
    assay_plan filtered = {0};
    assay_tensor_set results = {0};
    if (assay_direction_members(m->plan) == 0) return ASSAY_OK;
    TRY(assay_plan_without_directions(ctx, m->plan, &filtered));
    TRY(assay_fixture_open(ctx, path, &reader));
    const assay_source stored = assay_fixture_source(reader);
    TRY(assay_plan_tensors(ctx, &results, &filtered, &stored));
    TRY(assay_golden_write_filtered(ctx, &filtered, &results, path, m->given, true));
cleanup:
    assay_fixture_close(reader);
    assay_tensor_set_free(&results);
    free(filtered.specs);
    return status;
}

/* Beside the numbers once, and what the journal has of them already: a part that is moved is there twice. */
static assay_status require_disk(assay_context *ctx, maker *m, const char *path)
{
    const int64_t there = assay_journal_bytes(&m->journal, m->layers);
    int64_t largest = 0;
    for (int64_t part = 0; part < 2 * m->layers; part++) {
        int64_t bytes = 0;
        for (int i = 0; i < m->plan->spec_count; i++) {
            const assay_tensor_spec *spec = &m->plan->specs[i];
            if (!assay_is_of_layer(spec, part / 2, part % 2 == 1)) continue;
            bytes += assay_shape_count(&spec->shape) * (int64_t)assay_dtype_size(spec->type);
        }
        if (bytes > largest) largest = bytes;
    }
    const assay_status status = assay_require_disk(ctx, path, m->plan->file_bytes + largest - there);
    if (status != ASSAY_OK && there == 0) assay_journal_remove(ctx, &m->journal, m->layers);
    return status;
}

/* Stopped when the golden was in its place, and the journal not gone. */
static assay_status is_finished(assay_context *ctx, const maker *m, const char *path, bool *finished)
{
    const assay_status status = assay_moving_is_over(ctx, &m->journal, m->layers, finished);
    if (status != ASSAY_OK || !*finished || access(path, F_OK) == 0) return status;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: what was done is in %s, which is gone: remove the journal",
                      m->journal.folder, path);
}

assay_status assay_golden_write_layers(assay_context *ctx, const assay_plan *plan, const char *path, bool quiet)
{
    assay_status status;
    assay_inputs inputs = {0};
    bool finished = false;
    maker m = {.plan = plan, .journal = {.lock = -1}};
    TRY(assay_layers_check(ctx, plan, "--resume", &m.layers));
    if (plan->certify || plan->mutants) {
        status = assay_fail(ctx, ASSAY_BAD_INPUT, "%s: --resume goes without --certify and --mutants", plan->c->name);
        goto cleanup;
    }
    TRY(assay_require_memory(ctx, plan->c->name, assay_layers_memory(plan, m.layers)));
    TRY(assay_inputs_open_plan(ctx, &inputs, plan, NULL));
    const assay_source source = assay_inputs_source(&inputs);
    m.given = &source;
    TRY(assay_journal_open(ctx, &m.journal, path, plan));
    TRY(is_finished(ctx, &m, path, &finished));
    if (!finished) {
        TRY(require_disk(ctx, &m, path));
        TRY(alloc(ctx, &m));
        TRY(make_parts(ctx, &m, quiet));
        TRY(join_parts(ctx, &m, path));
    }
    TRY(add_filters(ctx, &m, path));
    TRY(assay_journal_remove(ctx, &m.journal, m.layers));
cleanup:
    assay_journal_close(&m.journal);
    assay_inputs_close(&inputs);
    release(&m);
    return status;
}

/* Layers of a golden that are evaluated again, each from the input that the golden has of it. */
typedef struct checker {
    maker m;
    assay_fixture_reader *golden;
    const bool *chosen; /* [layers] */
} checker;

static bool is_chosen(void *self, const assay_tensor_spec *spec)
{
    const checker *k = self;
    const int64_t layer = assay_layer_of(spec->path);
    const bool result = assay_role_is_result(spec->role);
    return result && layer >= 0 && layer < k->m.layers && k->chosen[layer];
}

static assay_status hold(assay_context *ctx, const checker *k, const char *path, const double *found)
{
    assay_status status = ASSAY_OK;
    double *stored = NULL;
    if (assay_fixture_find(k->golden, path) == NULL) return ASSAY_OK;
    TRY(assay_alloc_f64(ctx, path, k->m.size, &stored));
    TRY(assay_fixture_read(ctx, k->golden, path, 0, k->m.size, stored));
    for (int64_t i = 0; i < k->m.size; i++) {
        if (memcmp(&stored[i], &found[i], sizeof *stored) == 0) continue;
        status =
            assay_fail(ctx, ASSAY_BAD_INPUT,
                       "%s[%" PRId64 "]: the file has %.17g, recomputing gives %.17g: not the numbers of this oracle",
                       path, i, stored[i], found[i]);
        goto cleanup;
    }
cleanup:
    free(stored);
    return status;
}

/* From the golden's own boundaries. */
static assay_status read_boundary(assay_context *ctx, const checker *k, int64_t layer, bool gradient, double *to)
{
    char path[ASSAY_PATH_SIZE];
    assay_boundary_path(layer, gradient, path);
    if (gradient && layer == k->m.layers) snprintf(path, sizeof path, "cotangents/y");
    if (!gradient && layer == 0) snprintf(path, sizeof path, "inputs/x");
    if (assay_fixture_find(k->golden, path) == NULL) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "the golden has no %s, from which a layer of it could be computed",
                          path);
    }
    return assay_fixture_read(ctx, k->golden, path, 0, k->m.size, to);
}

static assay_status check_layer(assay_context *ctx, checker *k, int64_t layer, const assay_sink *out)
{
    assay_status status;
    char path[ASSAY_PATH_SIZE];
    maker *m = &k->m;
    assay_layer_run run = {m->plan, layer, false, m->x, m->dy, m->to};
    TRY(read_boundary(ctx, k, layer, false, m->x));
    TRY(assay_layer_run_one(ctx, &run, m->given, out));
    assay_boundary_path(layer + 1, false, path);
    TRY(hold(ctx, k, layer + 1 < m->layers ? path : "outputs/y", m->to));
    if (!wants_backward(m->plan)) goto cleanup;
    TRY(read_boundary(ctx, k, layer + 1, true, m->dy));
    run.backward = true;
    TRY(assay_layer_run_one(ctx, &run, m->given, out));
    if (layer == 0) TRY(hold(ctx, k, "gradients/inputs/x", m->to));
cleanup:
    return status;
}

static assay_status check_layers(assay_context *ctx, void *self, const assay_plan *plan, const assay_source *source,
                                 const assay_sink *out, bool quiet)
{
    assay_status status = ASSAY_OK;
    checker *k = self;
    (void)quiet;
    (void)plan;
    k->m.given = source;
    for (int64_t layer = 0; layer < k->m.layers; layer++) {
        if (k->chosen[layer]) TRY(check_layer(ctx, k, layer, out));
    }
cleanup:
    return status;
}

assay_status assay_golden_recompute_layers(assay_context *ctx, const assay_plan *plan, assay_fixture_reader *golden,
                                           int64_t layers, const bool *chosen, bool quiet)
{
    assay_status status;
    checker k = {.m = {.plan = plan}, .golden = golden, .chosen = chosen};
    TRY(assay_layers_check(ctx, plan, "--layers", &k.m.layers));
    if (layers != k.m.layers) {
        status = assay_fail(ctx, ASSAY_INTERNAL, "%" PRId64 " layers are chosen of %" PRId64, layers, k.m.layers);
        goto cleanup;
    }
    TRY(alloc(ctx, &k.m));
    const assay_source source = assay_golden_given(golden);
    const assay_golden_evaluator evaluator = {.self = &k, .evaluate = check_layers, .gives = is_chosen};
    TRY(assay_golden_recompute_with(ctx, plan, golden, &source, &evaluator, quiet));
cleanup:
    release(&k.m);
    return status;
}
