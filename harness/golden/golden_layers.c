/* A stack's golden made and checked a layer at a time. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixtures/files.h"
#include "harness/golden/golden_internal.h"
#include "harness/golden/journal.h"
#include "harness/golden/layer_run.h"
#include "harness/golden/moved_part.h"
#include "harness/operations/op_support.h"
#include "harness/plan/directions.h"
#include "harness/plan/golden_read.h"
#include "harness/plan/inputs.h"
#include "harness/plan/progress.h"
#include "oracle/base/memory.h"

/* Of a layer's time, of which backward computes the forward again. */
enum { FORWARD_SHARE = 1, BACKWARD_SHARE = 3 };

typedef struct maker {
    const assay_plan *plan;
    const assay_source *given;
    assay_journal journal;
    int64_t layers, size;   /* of x */
    assay_tensor_set edges; /* of the layer at hand: its inputs/x, its cotangents/y */
    assay_progress progress;
} maker;

static const char *passed_on(bool backward)
{
    return backward ? "gradients/inputs/x" : "outputs/y";
}

static assay_status alloc(assay_context *ctx, maker *m)
{
    static const char *const paths[] = {"inputs/x", "cotangents/y"};
    assay_tensor_spec spec = assay_tensor_list_find(&m->plan->list, "outputs/y")->spec;
    m->size = assay_shape_count(&spec.shape);
    for (int i = 0; i < 2; i++) {
        assay_tensor *edge = NULL;
        assay_tensor_call(&spec, paths[i]);
        MUST(assay_tensor_set_add(ctx, &m->edges, &spec, &edge));
        edge->written = edge->count;
    }
    return ASSAY_OK;
}

static double *edge(const maker *m, const char *path)
{
    return assay_tensor_set_find(&m->edges, path)->values;
}

typedef struct layer_part {
    const maker *m;
    int64_t layer;
    bool backward;
} layer_part;

static bool is_of_part(const void *self, const assay_tensor_spec *spec)
{
    const layer_part *p = self;
    return assay_is_of_layer(spec, p->layer, p->backward);
}

/* A part is a golden of its own: of the layer's results alone, and of what it passes on, where that is not NULL. */
static assay_status plan_part(assay_context *ctx, const layer_part *p, const char *passed, assay_plan *plan)
{
    assay_tensor_spec next = assay_tensor_list_find(&p->m->plan->list, "outputs/y")->spec;
    MUST(assay_plan_part(ctx, p->m->plan, is_of_part, p, plan));
    if (passed == NULL) return ASSAY_OK;
    assay_tensor_call(&next, passed);
    return assay_plan_add_spec(ctx, plan, &next);
}

static assay_status run_part(assay_context *ctx, const layer_part *p, const assay_source *given, const assay_sink *out)
{
    assay_overlay edges = {assay_tensor_set_source(&p->m->edges), *given};
    const assay_source in = assay_overlay_source(&edges);
    return assay_layer_run(ctx, p->m->plan, p->layer, p->backward, &in, out);
}

/* The layer, from its edges. */
static assay_status make_part(assay_context *ctx, const maker *m, int64_t layer, bool backward)
{
    assay_status status;
    char path[ASSAY_JOURNAL_PATH];
    assay_plan plan = {0};
    assay_file_sink sink = {0};
    const layer_part p = {m, layer, backward};
    assay_journal_part(&m->journal, layer, backward, path);
    TRY(plan_part(ctx, &p, passed_on(backward), &plan));
    TRY(assay_file_sink_open(ctx, &sink, &plan));
    TRY(assay_fixture_create(ctx, path, &sink.writer));
    TRY(assay_journal_sign(ctx, &m->journal, layer, backward, sink.writer));
    for (int i = 0; i < plan.spec_count; i++) TRY(assay_fixture_declare(ctx, sink.writer, &plan.specs[i]));
    const assay_sink out = assay_file_sink_of(&sink);
    TRY(run_part(ctx, &p, m->given, &out));
cleanup:
    status = assay_file_sink_close(ctx, &sink, status);
    free(plan.specs);
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
static assay_status read_edges(assay_context *ctx, const maker *m, int64_t layer, bool backward)
{
    const assay_source *in = m->given;
    double *x = edge(m, "inputs/x"), *dy = edge(m, "cotangents/y");
    if (layer == 0) {
        MUST(in->read(ctx, in->self, "inputs/x", 0, m->size, x));
    } else {
        MUST(read_passed_on(ctx, m, layer - 1, false, x));
    }
    if (!backward) return ASSAY_OK;
    if (layer + 1 < m->layers) return read_passed_on(ctx, m, layer + 1, true, dy);
    if (in->has(in->self, "cotangents/y")) return in->read(ctx, in->self, "cotangents/y", 0, m->size, dy);
    memset(dy, 0, (size_t)m->size * sizeof *dy);
    return ASSAY_OK;
}

static assay_status advance(assay_context *ctx, maker *m, int64_t layer, bool backward)
{
    char detail[64];
    const int share = backward ? BACKWARD_SHARE : FORWARD_SHARE;
    snprintf(detail, sizeof detail, "layer %" PRId64 " %s", layer, backward ? "backward" : "forward");
    if (assay_journal_has(&m->journal, layer, backward)) {
        assay_progress_skip(&m->progress, share);
        return ASSAY_OK;
    }
    assay_progress_add(&m->progress, 0, detail);
    MUST(read_edges(ctx, m, layer, backward));
    MUST(make_part(ctx, m, layer, backward));
    assay_progress_add(&m->progress, share, detail);
    return ASSAY_OK;
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
    const char *stays = last && assay_wants(out, passed_on(backward)) ? NULL : passed_on(backward);
    TRY(assay_journal_read(ctx, &v->m->journal, layer, backward, &part));
    const assay_source stored = assay_fixture_source(part);
    for (int i = 0; i < assay_fixture_count(part); i++) {
        const assay_tensor_spec *spec = assay_fixture_spec(part, i);
        if (assay_is_moved_table(spec->path) || (stays != NULL && strcmp(spec->path, stays) == 0)) continue;
        TRY(assay_golden_copy(ctx, &stored, spec, out));
    }
    TRY(assay_moving_copy(ctx, &v->moving, part, out));
    TRY(assay_moving_note(ctx, &v->moving, part, layer, backward, stays, v->evaluator.writer));
cleanup:
    assay_fixture_close(part);
    return status;
}

static assay_status write_report(assay_context *ctx, const assay_plan *plan, const assay_sink *out)
{
    assay_stack_config config;
    assay_remat_report report;
    MUST(assay_stack_config_of(ctx, plan->c, &config));
    MUST(assay_stack_remat_model(ctx, &config, &report));
    const double kept = (double)report.bytes_kept, offloaded = (double)report.bytes_offloaded;
    MUST(assay_write_result(ctx, out, "remat/bytes_kept", 1, &kept));
    MUST(assay_write_result(ctx, out, "remat/bytes_offloaded", 1, &offloaded));
    return assay_write_result(ctx, out, "remat/operations_recomputed", 1, &report.operations_recomputed);
}

static assay_status move_parts(assay_context *ctx, void *self, const assay_plan *plan, const assay_source *source,
                               const assay_sink *out, bool quiet)
{
    const mover *v = self;
    const int64_t layers = v->m->layers;
    const bool backward = wants_backward(plan);
    (void)source;
    (void)quiet;
    for (int64_t layer = 0; layer < layers; layer++) MUST(move_part(ctx, v, layer, false, out));
    for (int64_t layer = layers - 1; backward && layer >= 0; layer--) MUST(move_part(ctx, v, layer, true, out));
    return write_report(ctx, plan, out);
}

static assay_status join_parts(assay_context *ctx, const maker *m, const char *path)
{
    char partial[ASSAY_JOURNAL_PATH];
    mover v = {.m = m};
    MUST(assay_moving_begin(ctx, &v.moving, &m->journal, m->plan, m->layers));
    assay_moving_path(&v.moving, partial);
    v.evaluator = (assay_golden_evaluator){.self = &v, .evaluate = move_parts, .partial = partial};
    return assay_golden_write_with(ctx, m->plan, path, m->given, &v.evaluator, true);
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
    TRY(assay_journal_remove(ctx, &m.journal, m.layers));
cleanup:
    assay_journal_close(&m.journal);
    assay_inputs_close(&inputs);
    assay_tensor_set_free(&m.edges);
    return status;
}

/* --- layers of a golden that are evaluated again, each from the input that the golden has of it --- */

/* From the golden's own boundaries. */
static assay_status read_boundary(assay_context *ctx, const maker *m, assay_fixture_reader *golden, int64_t layer,
                                  bool gradient)
{
    const char *of_stack = gradient ? "cotangents/y" : "inputs/x";
    char path[ASSAY_PATH_SIZE];
    assay_boundary_path(layer, gradient, path);
    if (layer == (gradient ? m->layers : 0)) snprintf(path, sizeof path, "%s", of_stack);
    if (assay_fixture_find(golden, path) == NULL) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "the golden has no %s, from which a layer of it could be computed",
                          path);
    }
    return assay_fixture_read(ctx, golden, path, 0, m->size, edge(m, of_stack));
}

/* What the layer passes on, by the golden's name; NULL: the golden has none of it beside the layer's own results. */
static const char *stored_as(const layer_part *p, char path[ASSAY_PATH_SIZE])
{
    assay_boundary_path(p->layer + 1, false, path);
    if (p->backward) return p->layer == 0 && assay_plan_find(p->m->plan, passed_on(true)) >= 0 ? passed_on(true) : NULL;
    if (p->layer + 1 == p->m->layers) return passed_on(false);
    return assay_plan_find(p->m->plan, path) >= 0 ? path : NULL;
}

/* Forward the output of a layer is held against the input of the next. */
static assay_status check_results(assay_context *ctx, void *self, const assay_plan *plan, const assay_source *given,
                                  const assay_sink *out, bool quiet)
{
    const layer_part *p = self;
    char path[ASSAY_PATH_SIZE];
    const char *stored = stored_as(p, path);
    OWNED_BY(assay_tensor_set_free) assay_tensor_set passed = {0};
    assay_tensor_spec spec = assay_tensor_list_find(&plan->list, "outputs/y")->spec;
    (void)quiet;
    MUST(assay_tensor_set_add(ctx, &passed, &spec, NULL));
    assay_tee both = {assay_tensor_set_sink(&passed), *out};
    const assay_sink to = assay_tee_sink(&both);
    MUST(run_part(ctx, p, given, p->backward ? out : &to));
    if (stored == path) MUST(out->write(ctx, out->self, path, p->m->size, passed.items[0].values));
    return ASSAY_OK;
}

static assay_status check_part(assay_context *ctx, const maker *m, assay_fixture_reader *golden, int64_t layer,
                               bool backward, bool quiet)
{
    assay_status status;
    char path[ASSAY_PATH_SIZE];
    assay_plan plan = {0};
    layer_part p = {m, layer, backward};
    const assay_golden_evaluator evaluator = {.self = &p, .evaluate = check_results};
    TRY(plan_part(ctx, &p, stored_as(&p, path), &plan));
    TRY(read_boundary(ctx, m, golden, backward ? layer + 1 : layer, backward));
    TRY(assay_golden_recompute_with(ctx, &plan, golden, m->given, &evaluator, quiet));
cleanup:
    free(plan.specs);
    return status;
}

assay_status assay_golden_recompute_layers(assay_context *ctx, const assay_plan *plan, assay_fixture_reader *golden,
                                           int64_t layers, const bool *chosen, bool quiet)
{
    assay_status status;
    const assay_source source = assay_golden_given(golden);
    maker m = {.plan = plan, .given = &source};
    TRY(assay_layers_check(ctx, plan, "--layers", &m.layers));
    if (layers != m.layers)
        TRY(assay_fail(ctx, ASSAY_INTERNAL, "%" PRId64 " layers are chosen of %" PRId64, layers, m.layers));
    TRY(assay_golden_check_layout(ctx, plan, golden));
    TRY(alloc(ctx, &m));
    for (int64_t layer = 0; layer < layers; layer++) {
        if (!chosen[layer]) continue;
        TRY(check_part(ctx, &m, golden, layer, false, quiet));
        if (wants_backward(plan)) TRY(check_part(ctx, &m, golden, layer, true, quiet));
    }
cleanup:
    assay_tensor_set_free(&m.edges);
    return status;
}
