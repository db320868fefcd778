#include "harness/certify/certificate.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/plan/progress.h"
#include "harness/scales/ensemble.h"
#include "harness/sketch/sketch.h"
#include "oracle/base/memory.h"

/* What the second form takes on one core: for an operation of a product (in large ones, which are made of slices, far
 * less), for a number that goes through functions and comes out, and for a weight that is moved about, or drawn and sliced.
 * Measured: the former on the catalogue, those of slices on 1 to 256 rows times [4096,1536] of bfloat16 (1.5e-8 and 1.3e-10)
 * and of all 113 bits (4e-8 and 3.7e-10). */
#define SECONDS_PER_FLOP 2e-8
#define SECONDS_PER_SLICED_FLOP 3e-10
#define SECONDS_PER_NUMBER 1e-6
#define SECONDS_PER_WEIGHT 1e-8
#define SECONDS_PER_SLICED_WEIGHT 2e-8
/* The way back, of the way forward; what the tape holds of a number that comes out, on both. */
#define SWEEP 2.5
#define HELD_OF_RESULT 6.0
/* Unasked, no more than this on one core. */
#define MOST_SECONDS 600.0

enum { SAMPLES = 8, DIRECTIONS = 1 };

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

void assay_certificate_fields(const quad_certificate *certificate, double fields[ASSAY_CERTIFICATE_FIELDS])
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

/* What of a plan the second form sees, in numbers. */
typedef struct amounts {
    double held, streamed;   /* given and compared; weights that are read a piece at a time */
    double made;             /* results that there could be, asked for or not: the tape has them all */
    double weights, numbers; /* all weights; all else that comes in or goes out */
    double expert;           /* of what is streamed one piece of each together */
    double gradients;        /* tensors that have one */
} amounts;

static amounts amounts_of(const assay_plan *plan)
{
    amounts a = {0};
    for (int i = 0; i < plan->spec_count; i++) {
        const assay_tensor_spec *spec = &plan->specs[i];
        const double count = (double)assay_shape_count(&spec->shape);
        const bool given = assay_role_is_input(spec->role), streams = given && assay_certificate_streams(plan, spec);
        const bool gradient = spec->role == ASSAY_ROLE_GRADIENT;
        a.weights += spec->role == ASSAY_ROLE_WEIGHT ? count : 0;
        a.numbers +=
            spec->role != ASSAY_ROLE_WEIGHT && !gradient && (given || assay_role_is_result(spec->role)) ? count : 0;
        a.streamed += streams ? count : 0;
        a.expert += streams ? count / (double)spec->shape.dims[0] : 0;
        a.held += !streams && (given || assay_role_is_result(spec->role)) ? count : 0;
        a.gradients += gradient;
    }
    for (int i = 0; i < plan->list.count; i++) {
        const assay_tensor_spec *spec = &plan->list.entries[i].spec;
        if (assay_role_is_result(spec->role) && spec->role != ASSAY_ROLE_GRADIENT)
            a.made += (double)assay_shape_count(&spec->shape);
    }
    return a;
}

static bool is_large(const amounts *a)
{
    return a->held + a->streamed >= QUAD_LARGE;
}

/* One evaluation of the second form on one core. */
static double seconds_of(const assay_plan *plan, const amounts *a)
{
    const double flops = assay_operation_flops(plan->operation, plan->c, false);
    const bool large = is_large(a);
    return flops * (large ? SECONDS_PER_SLICED_FLOP : SECONDS_PER_FLOP) +
           a->weights * (large ? SECONDS_PER_SLICED_WEIGHT : SECONDS_PER_WEIGHT) + a->numbers * SECONDS_PER_NUMBER;
}

/* Bytes: everything once, the tape, for each thread (or for all of them) another, and the weights and the slices of an expert. */
static double memory_of(const amounts *a, int threads)
{
    const double size = (double)sizeof(quad), tape = size * HELD_OF_RESULT * a->made;
    return size * 2 * a->held + (is_large(a) ? 2 : 1 + threads) * tape + 4 * size * a->expert;
}

assay_certificate_scope assay_certificate_scope_of(const assay_context *ctx, const assay_plan *plan, int64_t budget)
{
    const amounts a = amounts_of(plan);
    const bool probes = budget == ASSAY_BUDGET_UNSAID || budget > 0;
    assay_certificate_scope scope = {.outputs = true,
                                     .gradients = probes && a.gradients > 0,
                                     .budget = {.samples = budget == ASSAY_BUDGET_UNSAID ? SAMPLES : budget,
                                                .directions = DIRECTIONS,
                                                .seed = plan->c->seed}};
    const double bytes = memory_of(&a, ctx->threads), once = seconds_of(plan, &a);
    scope.directions = !scope.gradients ? 0 : is_large(&a) ? DIRECTIONS : (int64_t)a.gradients * DIRECTIONS;
    const double all = scope.gradients ? once * (1 + SWEEP + 2 * (double)scope.directions) : once;
    scope.seconds = all;
    if (bytes > (double)assay_memory_available()) {
        scope = (assay_certificate_scope){0};
        snprintf(scope.left_out, sizeof scope.left_out, "needs %.2g GB of memory", bytes * 1e-9);
        return scope;
    }
    if (budget != ASSAY_BUDGET_UNSAID || all <= MOST_SECONDS) return scope;
    scope.outputs = once <= MOST_SECONDS / (is_large(&a) ? 1 : 5); /* small ones run on one core */
    scope.gradients = false;
    scope.directions = 0;
    snprintf(scope.left_out, sizeof scope.left_out, "needs about %.0f min; ask with --budget N",
             ceil((once + (all - once) / ctx->threads) / 60));
    return scope;
}

/* What the scope takes in of the results. */
static assay_status list_results(assay_context *ctx, const assay_certificate_inputs *inputs, bool gradients,
                                 quad_tensors *some)
{
    const assay_status status =
        assay_alloc(ctx, "list of tensors", inputs->results.count, sizeof *some->items, &some->items);
    for (int i = 0; status == ASSAY_OK && i < inputs->results.count; i++) {
        if (gradients || assay_role_of(inputs->results.items[i].path) != ASSAY_ROLE_GRADIENT)
            some->items[some->count++] = inputs->results.items[i];
    }
    return status;
}

static void advance(void *self, const char *path)
{
    assay_progress_add(self, 1, path);
}

typedef struct sketches {
    assay_sketch *items;
    int count;
} sketches;

static void sketches_free(sketches *s)
{
    for (int i = 0; i < s->count; i++) assay_sketch_free(&s->items[i]);
    free(s->items);
}

static assay_status sketches_make(assay_context *ctx, const assay_plan *plan, sketches *s)
{
    MUST(assay_alloc_list(ctx, "the list of sketches", plan->list.sketched_count + 1, sizeof *s->items, &s->items));
    for (int i = 0; i < plan->list.sketched_count; i++) {
        s->count++;
        MUST(assay_sketch_start(ctx, &plan->list.sketched[i], plan->c->sketch_above, plan->c->seed, &s->items[i]));
    }
    return ASSAY_OK;
}

/* A sum of a sketch is the derivative along its signs. */
static bool direction_of_sketch(const void *self, const char *path, int64_t index, char of[ASSAY_PATH_SIZE],
                                signed char *signs)
{
    char whole[ASSAY_PATH_SIZE];
    const sketches *all = self;
    assay_sketch_component component;
    assay_sketch_tensor_path(path, whole, &component);
    for (int i = 0; i < all->count; i++) {
        if (strcmp(all->items[i].spec.path, whole) != 0) continue;
        snprintf(of, ASSAY_PATH_SIZE, "%s", whole + strlen("gradients/"));
        if (signs != NULL) assay_sketch_signs(&all->items[i], component, index, signs);
        return true;
    }
    return false;
}

assay_status assay_certify(assay_context *ctx, const assay_certificate_inputs *inputs,
                           const assay_certificate_scope *scope, bool quiet, quad_certificates *certificates)
{
    assay_status status;
    const assay_plan *plan = inputs->plan;
    assay_progress progress;
    assay_operation_config config;
    quad_budget budget = scope->budget;
    sketches all = {0};
    quad_tensors some = {0};
    char what[ASSAY_PATH_SIZE + 16];
    snprintf(what, sizeof what, "%s in binary128", plan->c->name);
    assay_progress_start(&progress, quiet, what, scope->directions);
    if (!scope->gradients) budget.directions = 0;
    budget.advance = advance;
    budget.self = &progress;
    budget.direction = direction_of_sketch;
    budget.signed_sums = &all;
    TRY(assay_operation_configure(ctx, plan->operation, plan->c, &config));
    TRY(sketches_make(ctx, plan, &all));
    TRY(list_results(ctx, inputs, scope->gradients, &some));
    if (scope->outputs)
        TRY(quad_certify(ctx, &plan->operation->second_form, &config, &inputs->in, &some, &budget, certificates));
cleanup:
    assay_progress_end(&progress);
    sketches_free(&all);
    free(some.items);
    return status;
}

assay_status assay_certificates_check(assay_context *ctx, const quad_certificates *certificates)
{
    for (int i = 0; i < certificates->count; i++) {
        const quad_certificate *c = &certificates->items[i];
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

/* other_model: its error scales are of another error model, so what an error is in them says nothing. */
static bool is_as_stored(const quad_certificate *c, const double stored[ASSAY_CERTIFICATE_FIELDS], bool other_model)
{
    const bool gradient = assay_role_of(c->path) == ASSAY_ROLE_GRADIENT;
    const double checked = stored[ASSAY_CERTIFICATE_CHECKED] + stored[ASSAY_CERTIFICATE_KINKS];
    if (gradient && checked != (double)(c->checked + c->kinks))
        return stored[ASSAY_CERTIFICATE_RELATIVE] <= QUAD_ALLOWED_RELATIVE;
    return stored[ASSAY_CERTIFICATE_CHECKED] == (double)c->checked &&
           agrees(stored[ASSAY_CERTIFICATE_RELATIVE], c->relative, QUAD_ALLOWED_RELATIVE) &&
           agrees(stored[ASSAY_CERTIFICATE_ULPS], c->ulps, 1) &&
           (other_model || agrees(stored[ASSAY_CERTIFICATE_SCALES], c->scales, QUAD_ALLOWED_SCALES));
}

assay_status assay_certificates_compare(assay_context *ctx, assay_fixture_reader *golden,
                                        const quad_certificates *certificates)
{
    const char *model = assay_fixture_text(golden, "error_model");
    const bool other_model = model == NULL || strcmp(model, ASSAY_ERROR_MODEL) != 0;
    for (int i = 0; i < certificates->count; i++) {
        assay_tensor_spec spec;
        double stored[ASSAY_CERTIFICATE_FIELDS];
        MUST(assay_certificate_spec(ctx, certificates->items[i].path, &spec));
        const assay_tensor_spec *found = assay_fixture_find(golden, spec.path);
        if (found == NULL) continue;
        if (!assay_shape_equal(&found->shape, &spec.shape) || found->type != spec.type)
            return assay_fail(ctx, ASSAY_BAD_INPUT, "%s has another shape or type than a certificate", spec.path);
        MUST(assay_fixture_read(ctx, golden, spec.path, 0, ASSAY_CERTIFICATE_FIELDS, stored));
        if (!is_as_stored(&certificates->items[i], stored, other_model))
            return assay_fail(ctx, ASSAY_BAD_INPUT, "%s is not what certification finds", spec.path);
    }
    return ASSAY_OK;
}

assay_status assay_evaluate_certified(assay_context *ctx, const assay_plan *plan, const assay_source *source,
                                      const assay_sink *out, bool quiet)
{
    OWNED_BY(assay_certificate_inputs_free) assay_certificate_inputs inputs = {0};
    OWNED_BY(quad_certificates_free) quad_certificates certificates = {0};
    const assay_certificate_scope scope = assay_certificate_scope_of(ctx, plan, plan->budget);
    MUST(assay_certificate_inputs_collect(ctx, &inputs, plan, source, out));
    MUST(assay_certify(ctx, &inputs, &scope, quiet, &certificates));
    MUST(assay_certificates_check(ctx, &certificates));
    for (int i = 0; i < certificates.count; i++) {
        assay_tensor_spec spec;
        double fields[ASSAY_CERTIFICATE_FIELDS];
        assay_certificate_fields(&certificates.items[i], fields);
        MUST(assay_certificate_spec(ctx, certificates.items[i].path, &spec));
        MUST(out->write(ctx, out->self, spec.path, ASSAY_CERTIFICATE_FIELDS, fields));
    }
    return ASSAY_OK;
}

assay_status assay_evaluate_as_planned(assay_context *ctx, const assay_plan *plan, const assay_source *source,
                                       const assay_sink *out, bool quiet)
{
    return plan->certify ? assay_evaluate_certified(ctx, plan, source, out, quiet)
                         : assay_evaluate(ctx, plan, source, out);
}

assay_status assay_plan_certify(assay_context *ctx, assay_plan *plan, int64_t budget)
{
    const int results = plan->spec_count;
    const assay_certificate_scope scope = assay_certificate_scope_of(ctx, plan, budget);
    if (scope.left_out[0] != '\0')
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: its certificate %s", plan->c->name, scope.left_out);
    MUST(assay_grow(ctx, "the list of datasets", 2 * results + 1, sizeof *plan->specs, &plan->specs));
    for (int i = 0; i < results; i++) {
        assay_tensor_spec spec;
        const assay_tensor_role role = plan->specs[i].role;
        if (!assay_role_is_result(role) || (role == ASSAY_ROLE_GRADIENT && !scope.gradients)) continue;
        MUST(assay_certificate_spec(ctx, plan->specs[i].path, &spec));
        MUST(assay_plan_add_spec(ctx, plan, &spec));
    }
    plan->certify = true;
    plan->budget = budget;
    return ASSAY_OK;
}
