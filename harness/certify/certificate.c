#include "harness/certify/certificate.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/plan/progress.h"
#include "harness/scales/ensemble.h"
#include "oracle/base/memory.h"

/* What the second form takes on one core: for an operation of a product, for a number that goes through functions and
 * comes out, and for a weight that is moved about. Measured on the catalogue. */
#define SECONDS_PER_FLOP 2e-8
#define SECONDS_PER_NUMBER 1e-6
#define SECONDS_PER_WEIGHT 1e-8
/* Unasked, no more than this on one core. */
#define MOST_SECONDS 600.0

enum { COORDINATES = 8, DIRECTIONS = 2 };

assay_status assay_certificate_spec(assay_context *ctx, const char *path, assay_tensor_spec *spec)
{
    *spec = (assay_tensor_spec){.role = ASSAY_ROLE_CERTIFICATE,
                                .type = ASSAY_FLOAT64,
                                .shape = assay_shape_of(1, (int64_t)ASSAY_CERTIFICATE_FIELDS),
                                .labels = {"field"}};
    const int length = snprintf(spec->path, sizeof spec->path, "%s/%s", assay_role_folders[spec->role], path);
    if (length >= (int)sizeof spec->path) return assay_fail(ctx, ASSAY_INTERNAL, "%s: path too long", path);
    return ASSAY_OK;
}

void assay_certificate_fields(const spec_certificate *certificate, double fields[ASSAY_CERTIFICATE_FIELDS])
{
    fields[ASSAY_CERTIFICATE_CHECKED] = (double)certificate->checked;
    fields[ASSAY_CERTIFICATE_KINKS] = (double)certificate->kinks;
    fields[ASSAY_CERTIFICATE_WORST] = (double)certificate->worst;
    fields[ASSAY_CERTIFICATE_COMPUTED] = certificate->computed;
    fields[ASSAY_CERTIFICATE_REFERENCE] = certificate->reference;
    fields[ASSAY_CERTIFICATE_ERROR] = certificate->error;
    fields[ASSAY_CERTIFICATE_RELATIVE] = certificate->relative;
    fields[ASSAY_CERTIFICATE_ULPS] = certificate->ulps;
    fields[ASSAY_CERTIFICATE_SCALES] = certificate->scales;
}

/* One evaluation of the second form on one core. */
static double seconds_of(const assay_plan *plan)
{
    double seconds = plan->operation->flops(plan->c, false) * SECONDS_PER_FLOP;
    for (int i = 0; i < plan->spec_count; i++) {
        const assay_tensor_role role = plan->specs[i].role;
        const double count = (double)assay_shape_count(&plan->specs[i].shape);
        if (role == ASSAY_ROLE_WEIGHT) {
            seconds += count * SECONDS_PER_WEIGHT;
        } else if (role != ASSAY_ROLE_GRADIENT && (assay_role_is_given(role) || assay_role_is_result(role))) {
            seconds += count * SECONDS_PER_NUMBER;
        }
    }
    return seconds;
}

/* Bytes: everything once, the second form's results, and for each thread those and a moved tensor. */
static double memory_of(const assay_plan *plan, int threads)
{
    double all = 0, results = 0, largest = 0;
    for (int i = 0; i < plan->spec_count; i++) {
        const assay_tensor_role role = plan->specs[i].role;
        const double count = (double)assay_shape_count(&plan->specs[i].shape);
        const bool given = assay_role_is_given(role), certified = assay_role_is_result(role);
        if (given || certified) all += count;
        if (given) largest = fmax(largest, count);
        if (certified && role != ASSAY_ROLE_GRADIENT) results += count;
    }
    return (double)sizeof(spec_quad) * (all + 2 * results + threads * (largest + results));
}

assay_certificate_scope assay_certificate_scope_of(const assay_context *ctx, const assay_plan *plan, int64_t budget)
{
    const int64_t coordinates = budget == ASSAY_BUDGET_UNSAID ? COORDINATES : budget;
    assay_certificate_scope scope = {
        .outputs = true,
        .budget = {.coordinates = coordinates, .directions = coordinates > 0 ? DIRECTIONS : 0, .seed = plan->c->seed}};
    int choices = 0;
    for (int i = 0; i < plan->spec_count; i++) {
        const assay_tensor_spec *spec = &plan->specs[i];
        choices += assay_path_is_choice(spec->path);
        if (spec->role != ASSAY_ROLE_GRADIENT || !assay_is_certified(spec)) continue;
        scope.probes += spec_probe_count(&scope.budget, assay_shape_count(&spec->shape));
    }
    const double bytes = memory_of(plan, ctx->threads), once = seconds_of(plan);
    const double outputs = once * (1 + choices), all = outputs + once * (1 + 2 * (double)scope.probes);
    scope.gradients = scope.probes > 0;
    if (bytes > (double)assay_memory_available()) {
        scope = (assay_certificate_scope){0};
        snprintf(scope.left_out, sizeof scope.left_out, "needs %.2g GB of memory", bytes * 1e-9);
        return scope;
    }
    if (budget != ASSAY_BUDGET_UNSAID || all <= MOST_SECONDS) return scope;
    scope.outputs = outputs <= MOST_SECONDS / 5; /* they run on one core */
    scope.gradients = false;
    scope.probes = 0;
    snprintf(scope.left_out, sizeof scope.left_out, "needs about %.0f min; ask with --budget N",
             ceil((outputs + (all - outputs) / ctx->threads) / 60));
    return scope;
}

/* Everything but the choices and the gradients. */
static assay_status certify_values(assay_context *ctx, const assay_certificate_inputs *inputs,
                                   spec_certificates *certificates)
{
    assay_status status = ASSAY_OK;
    void *items = NULL;
    TRY(assay_alloc(ctx, "list of tensors", inputs->results.count, sizeof *inputs->results.items, &items));
    spec_tensors values = {.items = items};
    for (int i = 0; i < inputs->results.count; i++) {
        if (assay_path_is_choice(inputs->results.items[i].path)) continue;
        values.items[values.count++] = inputs->results.items[i];
    }
    TRY(spec_certify_outputs(ctx, &inputs->plan->operation->second_form, inputs->plan->c, &inputs->in, &values,
                             certificates));
cleanup:
    free(items);
    return status;
}

static void advance(void *self, const char *path)
{
    assay_progress_add(self, 1, path);
}

assay_status assay_certify(assay_context *ctx, const assay_certificate_inputs *inputs,
                           const assay_certificate_scope *scope, bool quiet, spec_certificates *certificates)
{
    assay_status status;
    const assay_plan *plan = inputs->plan;
    const spec_operation *form = &plan->operation->second_form;
    assay_progress progress;
    spec_budget budget = scope->budget;
    char what[ASSAY_PATH_SIZE + 16];
    snprintf(what, sizeof what, "%s in binary128", plan->c->name);
    assay_progress_start(&progress, quiet, what, scope->probes);
    budget.advance = advance;
    budget.self = &progress;
    if (scope->outputs) {
        TRY(spec_certify_choices(ctx, form, plan->c, &inputs->in, &inputs->results, certificates));
        TRY(certify_values(ctx, inputs, certificates));
    }
    if (scope->gradients) {
        TRY(spec_certify_gradients(ctx, form, plan->c, &inputs->in, &inputs->results, &budget, certificates));
    }
cleanup:
    assay_progress_end(&progress);
    return status;
}

assay_status assay_certificates_check(assay_context *ctx, const spec_certificates *certificates)
{
    for (int i = 0; i < certificates->count; i++) {
        const spec_certificate *c = &certificates->items[i];
        char place[64] = " along a random direction", excess[64] = "";
        if (c->excess <= 1) continue;
        if (c->worst >= 0) snprintf(place, sizeof place, "[%" PRId64 "]", c->worst);
        if (isfinite(c->excess)) snprintf(excess, sizeof excess, ": %.3g times the error that is allowed", c->excess);
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s%s is %.17g, the second form in binary128 has %.17g%s", c->path,
                          place, c->computed, c->reference, excess);
    }
    return ASSAY_OK;
}

/* The same but for what another libquadmath may change of an error. */
static bool agrees(double a, double b, double allowed)
{
    return a == b || fabs(a - b) <= 0.01 * fmax(a, b) + 1e-6 * allowed;
}

static bool is_as_stored(const spec_certificate *c, const double stored[ASSAY_CERTIFICATE_FIELDS])
{
    const bool gradient = assay_role_of(c->path) == ASSAY_ROLE_GRADIENT;
    const double probes = stored[ASSAY_CERTIFICATE_CHECKED] + stored[ASSAY_CERTIFICATE_KINKS];
    if (gradient && probes != (double)(c->checked + c->kinks)) {
        return stored[ASSAY_CERTIFICATE_RELATIVE] <= SPEC_ALLOWED_RELATIVE;
    }
    return stored[ASSAY_CERTIFICATE_CHECKED] == (double)c->checked &&
           agrees(stored[ASSAY_CERTIFICATE_RELATIVE], c->relative, SPEC_ALLOWED_RELATIVE) &&
           agrees(stored[ASSAY_CERTIFICATE_ULPS], c->ulps, 1) &&
           agrees(stored[ASSAY_CERTIFICATE_SCALES], c->scales, SPEC_ALLOWED_SCALES);
}

assay_status assay_certificates_compare(assay_context *ctx, assay_fixture_reader *golden,
                                        const spec_certificates *certificates)
{
    assay_status status = ASSAY_OK;
    for (int i = 0; i < certificates->count; i++) {
        assay_tensor_spec spec;
        double stored[ASSAY_CERTIFICATE_FIELDS];
        TRY(assay_certificate_spec(ctx, certificates->items[i].path, &spec));
        const assay_tensor_spec *found = assay_fixture_find(golden, spec.path);
        if (found == NULL) continue;
        if (!assay_shape_equal(&found->shape, &spec.shape) || found->type != spec.type) {
            status = assay_fail(ctx, ASSAY_BAD_INPUT, "%s has another shape or type than a certificate", spec.path);
            goto cleanup;
        }
        TRY(assay_fixture_read(ctx, golden, spec.path, 0, ASSAY_CERTIFICATE_FIELDS, stored));
        if (!is_as_stored(&certificates->items[i], stored)) {
            status = assay_fail(ctx, ASSAY_BAD_INPUT, "%s is not what certification finds", spec.path);
            goto cleanup;
        }
    }
cleanup:
    return status;
}

assay_status assay_evaluate_certified(assay_context *ctx, const assay_plan *plan, const assay_source *source,
                                      const assay_sink *out, bool quiet)
{
    assay_status status;
    assay_certificate_inputs inputs = {0};
    spec_certificates certificates = {0};
    const assay_certificate_scope scope = assay_certificate_scope_of(ctx, plan, plan->budget);
    TRY(assay_certificate_inputs_collect(ctx, &inputs, plan, source, out));
    TRY(assay_certify(ctx, &inputs, &scope, quiet, &certificates));
    TRY(assay_certificates_check(ctx, &certificates));
    for (int i = 0; i < certificates.count; i++) {
        assay_tensor_spec spec;
        double fields[ASSAY_CERTIFICATE_FIELDS];
        assay_certificate_fields(&certificates.items[i], fields);
        TRY(assay_certificate_spec(ctx, certificates.items[i].path, &spec));
        TRY(out->write(ctx, out->self, spec.path, ASSAY_CERTIFICATE_FIELDS, fields));
    }
cleanup:
    spec_certificates_free(&certificates);
    assay_certificate_inputs_free(&inputs);
    return status;
}

assay_status assay_evaluate_as_planned(assay_context *ctx, const assay_plan *plan, const assay_source *source,
                                       const assay_sink *out, bool quiet)
{
    return plan->certify ? assay_evaluate_certified(ctx, plan, source, out, quiet)
                         : assay_evaluate(ctx, plan, source, out);
}

assay_status assay_plan_certify(assay_context *ctx, assay_plan *plan, int64_t budget)
{
    assay_status status = ASSAY_OK;
    const int results = plan->spec_count;
    const assay_certificate_scope scope = assay_certificate_scope_of(ctx, plan, budget);
    if (scope.left_out[0] != '\0') {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: its certificate %s", plan->c->name, scope.left_out);
    }
    assay_tensor_spec *more = realloc(plan->specs, ((size_t)results * 2 + 1) * sizeof *more);
    if (more == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the list of datasets");
    plan->specs = more;
    for (int i = 0; i < results; i++) {
        assay_tensor_spec spec;
        const assay_tensor_role role = plan->specs[i].role;
        if (!assay_is_certified(&plan->specs[i]) || (role == ASSAY_ROLE_GRADIENT && !scope.gradients)) continue;
        TRY(assay_certificate_spec(ctx, plan->specs[i].path, &spec));
        TRY(assay_plan_add_spec(ctx, plan, &spec));
    }
    plan->certify = true;
    plan->budget = budget;
cleanup:
    return status;
}
