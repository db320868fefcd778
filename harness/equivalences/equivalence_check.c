/* Both forms evaluated from the same numbers, and their results compared. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/equivalences/decode_forms.h"
#include "harness/equivalences/equivalence.h"
#include "harness/operations/operands.h"
#include "harness/plan/inputs.h"
#include "harness/plan/plan_make.h"
#include "harness/scales/ensemble.h"
#include "oracle/base/memory.h"

void assay_form_free(assay_form *form)
{
    assay_tensor_set_free(&form->results);
    assay_plan_free(&form->plan);
    free(form->c.inputs);
    *form = (assay_form){0};
}

assay_layouts assay_form_layouts(const assay_form *own, const assay_form *theirs)
{
    const char *reversed = own->reversed != NULL ? own->reversed : theirs->reversed;
    return (assay_layouts){.own = own->c.config.w13_reorder_size,
                           .theirs = theirs->c.config.w13_reorder_size,
                           .parts = own->c.mesh_mlp_tensor,
                           .one = &theirs->c,
                           .reversed = reversed != NULL && reversed[0] != '\0' ? reversed : NULL};
}

/* What the case says of a tensor is of no use to a form that has not got it. */
static bool is_of_form(const assay_case *c, bool kernels, const char *path)
{
    const bool decodes = (assay_operation_by_name(c->op)->components & ASSAY_USES_DECODE) != 0;
    if (!kernels && decodes && assay_decode_is_moved(path)) return false;
    if (c->config.num_redundant_experts == 0 && assay_path_ends(path, "physical_to_logical_map")) return false;
    return kernels || !assay_path_names_half(path);
}

static assay_status copy_inputs(assay_context *ctx, const assay_case *c, bool kernels, assay_form *form)
{
    assay_status status = assay_alloc(ctx, "inputs", c->input_count + 1, sizeof *c->inputs, &form->c.inputs);
    form->c.input_count = 0;
    for (int i = 0; status == ASSAY_OK && i < c->input_count; i++) {
        if (is_of_form(c, kernels, c->inputs[i].path)) form->c.inputs[form->c.input_count++] = c->inputs[i];
    }
    return status;
}

assay_status assay_form_run(assay_context *ctx, assay_form *form)
{
    const assay_source source = assay_input_source(&form->results);
    const assay_sink out = assay_results_sink(&form->results);
    assay_context own = *ctx;
    own.threads = assay_plan_threads(ctx, &form->plan);
    const assay_status status = assay_evaluate(&own, &form->plan, &source, &out);
    if (status != ASSAY_OK) memcpy(ctx->message, own.message, sizeof ctx->message);
    return status;
}

assay_status assay_form_evaluate(assay_context *ctx, const assay_case *c, const assay_profile *profile,
                                 assay_form *form)
{
    char name[ASSAY_PRECISION_NAME_SIZE];
    char *profiles[] = {name};
    assay_status status;
    assay_inputs inputs = {0};
    snprintf(name, sizeof name, "%s", profile == NULL ? "none" : profile->precision.name);
    form->c = *c;
    form->c.sketch_above = 0; /* two forms have other paths, and so other signs */
    TRY(copy_inputs(ctx, c, true, form));
    form->c.profiles = (assay_text_list){profiles, 1};
    TRY(assay_plan_make_with(ctx, &form->plan, &form->c, NULL, profile));
    TRY(assay_inputs_open(ctx, &inputs, &form->c, &form->plan.list, NULL));
    const assay_source in = assay_inputs_source(&inputs);
    TRY(assay_plan_tensors(ctx, &form->results, &form->plan, &in));
    TRY(assay_form_run(ctx, form));
cleanup:
    form->c.profiles = c->profiles; /* the plan has taken what it needs */
    assay_inputs_close(&inputs);
    return status;
}

/* With the error scales of the profile, or none where it is NULL. */
static assay_status open_other(assay_context *ctx, const assay_other_form *how, const assay_form *one,
                               const assay_profile *profile, assay_form *form)
{
    const assay_case *other = &how->c;
    static char none[] = "none", all[] = "all";
    static char *no[] = {none}, *every[] = {all};
    const assay_text_list nothing = {no, 1}, everything = {every, 1};
    char name[ASSAY_PRECISION_NAME_SIZE];
    char *profiles[] = {name};
    assay_status status;
    assay_tensor_set numbers = {0};
    const bool dense = one->c.quant_format_count > 0 && other->quant_format_count == 0;
    const bool moved = assay_decode_lies_elsewhere(&one->c, other);
    form->c = *other;
    form->reversed = how->reversed;
    form->c.sketch_above = 0;
    const bool backward = other->gradients.count > 0 && strcmp(other->gradients.items[0], "none") != 0;
    const bool checkpoints = other->checkpoints.count > 0 && strcmp(other->checkpoints.items[0], "none") != 0;
    /* How the case fills kernels is of no use to a form that has others: all numbers come from the first form. */
    TRY(copy_inputs(ctx, other, false, form));
    snprintf(name, sizeof name, "%s", profile == NULL ? none : profile->precision.name);
    form->c.profiles = (assay_text_list){profiles, 1};
    form->c.gradients = backward ? everything : nothing; /* the one's patterns may name what the other has not */
    form->c.checkpoints = checkpoints ? everything : nothing;
    TRY(assay_plan_make_with(ctx, &form->plan, &form->c, NULL, profile));
    TRY(assay_plan_tensors(ctx, &form->results, &form->plan, NULL));
    if (dense) TRY(assay_operands_as_numbers(ctx, &one->plan.list, &one->results, &numbers));
    for (int i = 0; i < form->results.count; i++) {
        assay_tensor *tensor = &form->results.items[i];
        if (!assay_role_is_input(tensor->spec.role) || (moved && assay_decode_is_moved(tensor->spec.path))) continue;
        TRY(assay_counterpart_read(ctx, dense ? &numbers : &one->results, assay_form_layouts(form, one), tensor));
    }
    if (moved) TRY(assay_decode_move(ctx, &one->c, &one->results, other, &form->results));
cleanup:
    assay_tensor_set_free(&numbers);
    form->c.profiles = nothing; /* the plan has taken what it needs */
    return status;
}

assay_status assay_form_of_other(assay_context *ctx, const assay_other_form *other, const assay_form *one,
                                 assay_form *form)
{
    return open_other(ctx, other, one, NULL, form);
}

assay_status assay_form_evaluate_other(assay_context *ctx, const assay_other_form *other, const assay_form *one,
                                       const assay_profile *profile, assay_form *form)
{
    const assay_status status = open_other(ctx, other, one, profile, form);
    return status == ASSAY_OK ? assay_form_run(ctx, form) : status;
}

static bool is_compared(const assay_tensor *tensor, const assay_other_form *form)
{
    const char *path = tensor->spec.path;
    /* how far a choice is from changing depends on the rule that made it */
    if (form->holding == ASSAY_HOLDS_SCALES && assay_path_ends(path, "margin")) return false;
    const char *axis = tensor->spec.shape.rank > 0 ? tensor->spec.labels[0] : "";
    if (form->other_shards && strcmp(axis, "shard") == 0) return false;
    return assay_tensor_is_complete(tensor) && assay_role_is_result(tensor->spec.role);
}

static const double *scales_of(const assay_tensor_set *results, const assay_tensor *origin)
{
    const assay_tensor *tensor =
        origin == NULL ? NULL : assay_results_scales(results, assay_profile_by_name("f64"), origin->spec.path);
    return tensor == NULL ? NULL : tensor->values;
}

/* The largest number of a tensor: what has no error scale is held to a share of it. */
static double largest_of(const assay_tensor *tensor)
{
    double largest = 0;
    for (int64_t i = 0; i < tensor->count; i++)
        if (isfinite(tensor->values[i])) largest = fmax(largest, fabs(tensor->values[i]));
    return largest;
}

/* How far two numbers lie apart, in error scales; 0 where they are the same, infinite where one is no number. */
static double apart(double one, double other, double scale)
{
    if (one == other || (isnan(one) && isnan(other))) return 0;
    const double unit = scale + 0x1p-53 * fmax(fabs(one), fabs(other));
    const double units = fabs(one - other) / unit;
    return isnan(units) ? INFINITY : units;
}

static bool same_bits(double one, double other)
{
    return memcmp(&one, &other, sizeof one) == 0 || (isnan(one) && isnan(other));
}

static void note(assay_equivalence_result *r, double units, const assay_tensor *tensor, int64_t index, double one,
                 double other)
{
    if (units <= r->worst) return;
    r->worst = units;
    r->index = index;
    r->one = one;
    r->other = other;
    memcpy(r->path, tensor->spec.path, sizeof r->path);
}

static void compare_integers(const assay_tensor *other, const assay_counterpart *found, assay_equivalence_result *r)
{
    for (int64_t i = 0; i < other->count; i++) {
        int64_t at = 0;
        const int origin = assay_counterpart_at(found, i, &at);
        const int32_t one = found->origin[origin]->indices[at];
        note(r, other->indices[i] == one ? 0 : INFINITY, other, i, one, other->indices[i]);
    }
}

static void compare_floats(const assay_tensor_set *one, const assay_tensor *other, const assay_counterpart *found,
                           assay_equivalence_result *r)
{
    const double *scales[2] = {scales_of(one, found->origin[0]), scales_of(one, found->origin[1])};
    /* What is 0 in one form by its structure may be a cancelled sum in the other; routing's weights have no scale. */
    const double share = other->spec.role == ASSAY_ROLE_ROUTING ? 0x1p-44 : 0x1p-50;
    const double least = share * largest_of(other);
    for (int64_t i = 0; i < other->count; i++) {
        int64_t at = 0;
        const int origin = assay_counterpart_at(found, i, &at);
        const double value = found->origin[origin]->values[at];
        const double scale = scales[origin] == NULL ? least : fmax(least, scales[origin][at]);
        if (r->holding == ASSAY_HOLDS_SCALES) {
            note(r, apart(value, other->values[i], scale), other, i, value, other->values[i]);
        } else if (!same_bits(value, other->values[i])) {
            note(r, fmax(DBL_MIN, apart(value, other->values[i], 0)), other, i, value, other->values[i]);
        }
    }
}

static assay_status compare(assay_context *ctx, const assay_form *one, const assay_form *other,
                            const assay_other_form *how, assay_equivalence_result *r)
{
    const assay_layouts layouts = assay_form_layouts(other, one);
    for (int i = 0; i < other->plan.spec_count; i++) {
        const assay_tensor *tensor = &other->results.items[i];
        assay_counterpart found;
        if (!is_compared(tensor, how) || !assay_find_counterpart(&one->results, &tensor->spec, layouts, &found))
            continue;
        bool whole = true;
        for (int k = 0; k < 2; k++) whole &= found.origin[k] == NULL || assay_tensor_is_complete(found.origin[k]);
        if (!whole) continue;
        r->tensors++;
        if (tensor->indices != NULL) {
            compare_integers(tensor, &found, r);
        } else {
            compare_floats(&one->results, tensor, &found, r);
        }
    }
    r->holds = r->worst <= (r->holding == ASSAY_HOLDS_BITS ? 0 : ASSAY_EQUIVALENCE_SCALES);
    if (r->tensors > 0) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_INTERNAL, "%s: the two forms have no tensor in common", one->c.name);
}

assay_status assay_equivalence_check(assay_context *ctx, const assay_form *one, const assay_equivalence *equivalence,
                                     assay_equivalence_result *r)
{
    assay_other_form how;
    OWNED_BY(assay_form_free) assay_form other = {0};
    *r = (assay_equivalence_result){0};
    if (!assay_other_form_of(&one->c, equivalence, &how)) return ASSAY_OK;
    r->applies = true;
    r->holding = how.holding;
    MUST(assay_form_evaluate_other(ctx, &how, one, NULL, &other));
    return compare(ctx, one, &other, &how, r);
}
