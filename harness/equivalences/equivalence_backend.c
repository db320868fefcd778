#include "harness/equivalences/equivalence_backend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "harness/backends/backend_files.h"
#include "harness/golden/golden.h"
#include "harness/plan/plan_make.h"
#include "oracle/base/memory.h"

typedef struct form_files {
    char inputs[2304], request[2304], candidate[2304], golden[2304], compared[2304];
} form_files;

/* `form`: "" of the case as it is, else the equivalence. */
static void name_files(form_files *f, const assay_backend_check_options *options, const char *name, const char *form)
{
    char whole[2 * ASSAY_PATH_SIZE];
    snprintf(whole, sizeof whole, "%s%s%s", name, form[0] == '\0' ? "" : ".", form);
    assay_backend_file(f->inputs, sizeof f->inputs, options->folder, whole, "inputs.h5");
    assay_backend_file(f->request, sizeof f->request, options->folder, whole, "request.h5");
    assay_backend_file(f->candidate, sizeof f->candidate, options->folder, whole, "candidate.h5");
    assay_backend_file(f->golden, sizeof f->golden, options->folder, whole, "golden.h5");
    assay_backend_file(f->compared, sizeof f->compared, options->folder, whole, "compared.h5");
}

static assay_status ask(assay_context *ctx, const assay_backend_check_options *options, const assay_plan *plan,
                        const char *inputs, const form_files *f, assay_backend_end *end)
{
    MUST(assay_request_write(ctx, plan, f->request, inputs, options->quiet));
    const assay_backend_call call = {.spec = options->backend,
                                     .server = options->server,
                                     .request = f->request,
                                     .candidate = f->candidate,
                                     .golden = f->golden,
                                     .folder = options->folder,
                                     .limits = options->limits};
    return assay_backend_execute(ctx, &call, end);
}

static void widen_scales(const assay_profile *profile, bool exact, const assay_tensor *tensor,
                         const assay_tensor *scales)
{
    const assay_dtype storage = assay_profile_type_of(profile, &tensor->spec);
    const double unit = assay_dtype_unit_roundoff(storage), tiny = 0.5 * assay_dtype_least_subnormal(storage);
    for (int64_t i = 0; scales != NULL && i < tensor->count; i++) {
        const double scale = scales->values[i], rounding = unit * fabs(tensor->values[i]) + tiny;
        if (scale > 0 && isfinite(rounding)) scales->values[i] = sqrt(2 * scale * scale + rounding * rounding / 3);
        if (exact) scales->values[i] = 0;
    }
}

static assay_status fails(assay_backend_end *end, const char *path, const char *what)
{
    end->outcome = ASSAY_OUTCOME_FAILED;
    snprintf(end->message, sizeof end->message, "%.120s: %.400s", path, what);
    return ASSAY_OK;
}

static assay_status take_result(assay_context *ctx, assay_fixture_reader *candidate, assay_tensor *tensor,
                                assay_backend_end *end)
{
    assay_status status;
    const char *path = tensor->spec.path;
    const assay_tensor_spec *found = assay_fixture_find(candidate, path);
    tensor->written = 0;
    if (assay_path_is_hidden(path)) return ASSAY_OK; /* codes may lawfully be others */
    if (found == NULL) return assay_role_is_required(assay_role_of(path)) ? fails(end, path, "missing") : ASSAY_OK;
    if (!assay_shape_equal(&found->shape, &tensor->spec.shape)) return fails(end, path, "has another shape");
    if ((found->type == ASSAY_INT32) != (tensor->indices != NULL)) return fails(end, path, "has another type");
    status = tensor->indices != NULL ? assay_fixture_read_i32(ctx, candidate, path, 0, tensor->count, tensor->indices)
                                     : assay_fixture_read(ctx, candidate, path, 0, tensor->count, tensor->values);
    if (status == ASSAY_BAD_INPUT) return fails(end, path, ctx->message);
    if (status == ASSAY_OK) tensor->written = tensor->count;
    return status;
}

/* The backend's results in the place of the oracle's. */
static assay_status take_candidate(assay_context *ctx, const char *file, assay_form *one, assay_backend_end *end)
{
    OWNED_BY(assay_fixture_release) assay_fixture_reader *candidate = NULL;
    const assay_status status = assay_fixture_open(ctx, file, &candidate);
    if (status == ASSAY_BAD_INPUT) return fails(end, "candidate", ctx->message);
    MUST(status);
    for (int i = 0; i < one->plan.spec_count && end->outcome == ASSAY_OUTCOME_DONE; i++) {
        assay_tensor *tensor = &one->results.items[i];
        if (assay_role_is_result(tensor->spec.role)) MUST(take_result(ctx, candidate, tensor, end));
    }
    return ASSAY_OK;
}

assay_status assay_backend_first_form(assay_context *ctx, const assay_backend_check_options *options,
                                      const assay_case *c, assay_form *one, assay_backend_end *end)
{
    OWNED_BY(assay_plan_free) assay_plan plan = {0};
    form_files f;
    name_files(&f, options, c->name, "");
    MUST(assay_plan_make(ctx, &plan, c));
    MUST(ask(ctx, options, &plan, NULL, &f, end));
    if (end->outcome != ASSAY_OUTCOME_DONE) return ASSAY_OK;
    MUST(assay_form_evaluate(ctx, c, options->profile, one));
    MUST(take_candidate(ctx, f.candidate, one, end));
    for (int i = 0; i < one->plan.spec_count; i++) {
        const assay_tensor *tensor = &one->results.items[i];
        if (assay_role_is_result(tensor->spec.role) && tensor->values != NULL && tensor->written > 0)
            widen_scales(options->profile, assay_case_is_exact(&one->c), tensor,
                         assay_results_scales(&one->results, options->profile, tensor->spec.path));
    }
    return ASSAY_OK;
}

/* What was given to the other form, for its request. */
static assay_status write_inputs(assay_context *ctx, const assay_form *other, const char *file)
{
    assay_status status;
    assay_fixture_writer *writer = NULL;
    TRY(assay_fixture_create(ctx, file, &writer));
    for (int i = 0; i < other->plan.spec_count; i++) {
        const assay_tensor *tensor = &other->results.items[i];
        if (assay_role_is_input(tensor->spec.role)) TRY(assay_fixture_append_tensor(ctx, writer, tensor));
    }
cleanup:
    return assay_fixture_end(ctx, writer, status);
}

/* The first form's results as the other form has them, and their scales: the other form's (`own`, or NULL) where the
 * first gets an element exactly. tensor->written says that there are any. */
static assay_status write_counterpart(assay_context *ctx, assay_fixture_writer *writer, const assay_profile *profile,
                                      const assay_form *one, assay_layouts layouts, const assay_tensor *own,
                                      assay_tensor *tensor)
{
    OWNED double *scales = NULL;
    assay_counterpart found;
    const assay_tensor *scale[2] = {NULL, NULL};
    assay_tensor_spec spec = tensor->spec;
    if (!assay_find_counterpart(&one->results, &tensor->spec, layouts, &found)) return ASSAY_OK;
    for (int origin = 0; origin < 2 && found.origin[origin] != NULL; origin++) {
        if (!assay_tensor_is_complete(found.origin[origin])) return ASSAY_OK;
        scale[origin] = assay_results_scales(&one->results, profile, found.origin[origin]->spec.path);
    }
    if (scale[0] != NULL) MUST(assay_alloc_f64(ctx, "error scales", tensor->count, &scales));
    for (int64_t i = 0; i < tensor->count; i++) {
        int64_t at = 0;
        const int origin = assay_counterpart_at(&found, i, &at);
        if (tensor->indices != NULL) tensor->indices[i] = found.origin[origin]->indices[at];
        if (tensor->values != NULL) tensor->values[i] = found.origin[origin]->values[at];
        if (scales != NULL) scales[i] = scale[origin]->values[at];
        if (scales != NULL && scales[i] == 0 && own != NULL) scales[i] = own->values[i];
    }
    tensor->written = tensor->count;
    MUST(assay_fixture_append_tensor(ctx, writer, tensor));
    if (scales == NULL) return ASSAY_OK;
    spec.type = ASSAY_FLOAT32;
    assay_path_at(ASSAY_ROLE_ERROR_SCALE, profile->precision.name, tensor->spec.path, spec.path);
    MUST(assay_fixture_declare(ctx, writer, &spec));
    return assay_fixture_append(ctx, writer, spec.path, tensor->count, scales);
}

static assay_status write_golden(assay_context *ctx, const assay_profile *profile, const assay_form *one,
                                 assay_form *other, const assay_tensor_set *scaled, const char *name, const char *file)
{
    assay_status status;
    assay_fixture_writer *writer = NULL;
    char *yaml = NULL;
    int tensors = 0;
    TRY(assay_case_yaml(ctx, &other->c, &yaml));
    TRY(assay_fixture_create(ctx, file, &writer));
    TRY(assay_fixture_set_text(ctx, writer, "kind", "golden"));
    TRY(assay_fixture_set_text(ctx, writer, "case_yaml", yaml));
    TRY(assay_fixture_set_text(ctx, writer, "case", name));
    TRY(assay_fixture_set_text(ctx, writer, "op", other->c.op));
    for (int i = 0; i < other->plan.spec_count; i++) {
        assay_tensor *tensor = &other->results.items[i];
        /* how far a choice is from changing is the oracle's own measure */
        const bool margin = tensor->spec.role == ASSAY_ROLE_ROUTING && assay_path_ends(tensor->spec.path, "margin");
        if (!assay_role_is_result(tensor->spec.role) || margin) continue;
        const assay_tensor *own = scaled->count == 0 ? NULL : assay_results_scales(scaled, profile, tensor->spec.path);
        TRY(write_counterpart(ctx, writer, profile, one, assay_form_layouts(other, one), own, tensor));
        tensors += tensor->written > 0;
    }
    if (tensors == 0) status = assay_fail(ctx, ASSAY_INTERNAL, "%s: the two forms have no tensor in common", name);
cleanup:
    free(yaml);
    return assay_fixture_end(ctx, writer, status);
}

static assay_status copy_tensor(assay_context *ctx, assay_fixture_writer *writer, assay_fixture_reader *from,
                                const assay_tensor_spec *spec)
{
    const int64_t count = assay_shape_count(&spec->shape);
    OWNED double *values = NULL; /* which hold integers as well */
    MUST(assay_alloc_f64(ctx, spec->path, count, &values));
    MUST(assay_fixture_read(ctx, from, spec->path, 0, count, values));
    MUST(assay_fixture_declare(ctx, writer, spec));
    return assay_fixture_append(ctx, writer, spec->path, count, values);
}

/* The candidate without those of its results that the golden has no counterpart of: the comparer knows no tensors
 * beside the golden's. What the other form does not have at all stays, to be named. */
static assay_status write_compared(assay_context *ctx, const assay_form *other, const char *candidate, const char *file)
{
    assay_status status;
    assay_fixture_reader *reader = NULL;
    assay_fixture_writer *writer = NULL;
    TRY(assay_fixture_open(ctx, candidate, &reader));
    TRY(assay_fixture_create(ctx, file, &writer));
    TRY(assay_fixture_set_text(ctx, writer, "kind", "candidate"));
    for (int i = 0; i < assay_fixture_count(reader); i++) {
        const assay_tensor_spec *spec = assay_fixture_spec(reader, i);
        const assay_tensor *tensor = assay_tensor_set_find(&other->results, spec->path);
        if (assay_role_is_input(spec->role) || (tensor != NULL && tensor->written == 0)) continue;
        TRY(copy_tensor(ctx, writer, reader, spec));
    }
cleanup:
    status = assay_fixture_end(ctx, writer, status);
    assay_fixture_close(reader); /* whose labels the writer has */
    return status;
}

static assay_status compare_files(assay_context *ctx, const assay_backend_check_options *options,
                                  const assay_plan *plan, const form_files *f, assay_report *report)
{
    OWNED_BY(assay_fixture_release) assay_fixture_reader *golden = NULL, *compared = NULL;
    MUST(assay_fixture_open(ctx, f->golden, &golden));
    MUST(assay_fixture_open(ctx, f->compared, &compared));
    MUST(assay_compare(ctx, golden, compared, options->profile, options->false_alarm, assay_plan_order(plan), report));
    snprintf(report->golden_path, sizeof report->golden_path, "%.500s", f->golden);
    snprintf(report->candidate_path, sizeof report->candidate_path, "%.500s", f->compared);
    return ASSAY_OK;
}

assay_status assay_backend_other_form(assay_context *ctx, const assay_backend_check_options *options,
                                      const assay_form *one, const assay_equivalence *equivalence,
                                      const assay_other_form *other, assay_backend_end *end, assay_report *report)
{
    assay_status status;
    assay_form form = {0}, scaled = {0};
    form_files f;
    char name[2 * ASSAY_PATH_SIZE];
    snprintf(name, sizeof name, "%s %s", one->c.name, equivalence->name);
    name_files(&f, options, one->c.name, equivalence->name);
    TRY(assay_form_of_other(ctx, other, one, &form));
    TRY(write_inputs(ctx, &form, f.inputs));
    TRY(ask(ctx, options, &form.plan, f.inputs, &f, end));
    if (end->outcome != ASSAY_OUTCOME_DONE) goto cleanup;
    /* A softmax over the chosen gives the others a gradient of 0, one over all of them what cancels but for rounding.
     */
    if (other->c.config.fused_moe_func != one->c.config.fused_moe_func && !assay_case_is_exact(&one->c))
        TRY(assay_form_evaluate_other(ctx, other, one, options->profile, &scaled));
    TRY(write_golden(ctx, options->profile, one, &form, &scaled.results, name, f.golden));
    status = write_compared(ctx, &form, f.candidate, f.compared);
    if (status == ASSAY_BAD_INPUT) { /* what a backend wrote is its result, a damaged file too */
        status = fails(end, "candidate", ctx->message);
        goto cleanup;
    }
    TRY(status);
    TRY(compare_files(ctx, options, &form.plan, &f, report));
cleanup:
    assay_form_free(&form);
    assay_form_free(&scaled);
    return status;
}

assay_status assay_backend_form_results(assay_context *ctx, const assay_backend_check_options *options,
                                        assay_form *form, const char *what, assay_backend_end *end)
{
    form_files f;
    *end = (assay_backend_end){.repeats = true};
    if (options->backend == NULL) return assay_form_run(ctx, form);
    name_files(&f, options, form->c.name, what);
    MUST(write_inputs(ctx, form, f.inputs));
    MUST(ask(ctx, options, &form->plan, f.inputs, &f, end));
    return end->outcome == ASSAY_OUTCOME_DONE ? take_candidate(ctx, f.candidate, form, end) : ASSAY_OK;
}
