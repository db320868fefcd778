/* Both forms evaluated from the same numbers, and their results compared. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/ensemble.h"
#include "harness/equivalence.h"
#include "harness/equivalence_results.h"
#include "oracle/base/memory.h"

/* With the error scales of float64, which say how far two correct forms may lie apart, unless they must be the same. */
static assay_status evaluate_case(assay_context *ctx, const assay_case *c, assay_holding holding, assay_plan *plan,
                                  assay_results *results)
{
    static char f64[] = "f64", none[] = "none";
    assay_status status;
    char *profiles[] = {holding == ASSAY_HOLDS_BITS ? none : f64};
    assay_case with_f64 = *c;
    assay_inputs inputs = {0};
    with_f64.profiles = (assay_text_list){profiles, 1};
    TRY(assay_plan_make(ctx, plan, &with_f64));
    TRY(assay_inputs_open(ctx, &inputs, &with_f64, &plan->list, NULL));
    const assay_source in = assay_inputs_source(&inputs);
    TRY(assay_results_open(ctx, results, plan, &in));
    const assay_source given = assay_results_source(results);
    const assay_sink out = assay_results_sink(results);
    TRY(assay_evaluate(ctx, plan, &given, &out));
cleanup:
    assay_inputs_close(&inputs);
    plan->c = c;
    return status;
}

/* How the case fills kernels is of no use to a form that has others: all numbers come from the first form. */
static assay_status drop_kernels(assay_context *ctx, assay_case *c)
{
    const assay_case_input *all = c->inputs;
    const int count = c->input_count;
    void *kept = NULL;
    assay_status status = assay_alloc(ctx, "inputs", count + 1, sizeof *c->inputs, &kept);
    c->inputs = kept;
    c->input_count = 0;
    for (int i = 0; status == ASSAY_OK && i < count; i++) {
        if (!assay_path_names_half(all[i].path)) c->inputs[c->input_count++] = all[i];
    }
    return status;
}

static assay_status evaluate_other(const assay_other_form *form, assay_context *ctx, assay_results *one,
                                   assay_plan *plan, assay_results *other)
{
    static char none[] = "none", all[] = "all";
    assay_status status;
    char *no_profiles[] = {none}, *gradients[] = {all};
    assay_case c = form->c; /* drop_kernels gives it a list of inputs of its own */
    const bool backward = c.gradients.count > 0 && strcmp(c.gradients.items[0], "none") != 0;
    c.profiles = (assay_text_list){no_profiles, 1};
    if (backward) c.gradients = (assay_text_list){gradients, 1}; /* the one's patterns may name what the other has not */
    TRY(drop_kernels(ctx, &c));
    TRY(assay_plan_make(ctx, plan, &c));
    const assay_source given = assay_results_source_of_other(one);
    TRY(assay_results_open(ctx, other, plan, &given));
    const assay_source in = assay_results_source(other);
    const assay_sink out = assay_results_sink(other);
    assay_context own = form->ctx;
    status = form->run != NULL ? form->run(&own, &c, &in, &out) : plan->operation->run(&own, &c, &in, &out, NULL, 0);
    if (status != ASSAY_OK) memcpy(ctx->message, own.message, sizeof ctx->message);
cleanup:
    plan->c = &form->c;
    free(c.inputs);
    return status;
}

static bool ends_in(const char *path, const char *name)
{
    const size_t length = strlen(path), tail = strlen(name);
    return length > tail && strcmp(path + length - tail, name) == 0;
}

static bool is_compared(const assay_kept *kept, assay_holding holding)
{
    const char *path = kept->spec->path;
    /* how far a choice is from changing depends on the rule that made it */
    if (holding == ASSAY_HOLDS_GAUGE && ends_in(path, "/margin")) return false;
    return kept->written == kept->count && (assay_path_in(path, "outputs") || assay_path_in(path, "gradients") ||
                                            assay_path_in(path, "routing") || assay_path_in(path, "checkpoints"));
}

static double scale_at(const assay_results *results, const char *path, int64_t index)
{
    char scale[2 * ASSAY_PATH_SIZE];
    snprintf(scale, sizeof scale, "error_scale/f64/%s", path);
    const assay_kept *kept = assay_results_find(results, scale);
    return kept == NULL ? 0 : kept->values[index];
}

/* The largest number of a tensor: what has no error scale is held to a share of it. */
static double largest_of(const assay_kept *kept)
{
    double largest = 0;
    for (int64_t i = 0; i < kept->count; i++)
        if (isfinite(kept->values[i])) largest = fmax(largest, fabs(kept->values[i]));
    return largest;
}

/* How far two numbers lie apart, in gauges; 0 where they are the same, infinite where one is no number. */
static double apart(double one, double other, double scale)
{
    if (one == other || (isnan(one) && isnan(other))) return 0;
    const double gauge = scale + 0x1p-53 * fmax(fabs(one), fabs(other));
    const double units = fabs(one - other) / gauge;
    return isnan(units) ? INFINITY : units;
}

static void note(assay_equivalence_result *r, double units, const assay_kept *kept, int64_t index, double one,
                 double other)
{
    if (units <= r->worst) return;
    r->worst = units;
    r->index = index;
    r->one = one;
    r->other = other;
    memcpy(r->path, kept->spec->path, sizeof r->path);
}

/* One tensor of the other form; false where the one has no such tensor. */
static bool compare_tensor(const assay_results *one, const assay_kept *other, assay_holding holding,
                           assay_equivalence_result *r)
{
    /* What is 0 in one form by its structure may be a cancelled sum in the other; routing's weights have no scale. */
    const double share = assay_path_in(other->spec->path, "routing") ? 0x1p-44 : 0x1p-50;
    const double least = other->values != NULL ? share * largest_of(other) : 0;
    for (int64_t i = 0; i < other->count; i++) {
        int64_t at = 0;
        const assay_kept *kept = assay_results_locate(one, other->spec, i, &at);
        if (kept == NULL || (kept->values == NULL) != (other->values == NULL)) return false;
        if (other->values == NULL) {
            const bool same = other->indices[i] == kept->indices[at];
            note(r, same ? 0 : INFINITY, other, i, kept->indices[at], other->indices[i]);
        } else if (holding == ASSAY_HOLDS_BITS) {
            const bool same = memcmp(&other->values[i], &kept->values[at], sizeof(double)) == 0 ||
                              (isnan(other->values[i]) && isnan(kept->values[at]));
            note(r, same ? 0 : INFINITY, other, i, kept->values[at], other->values[i]);
        } else {
            const double scale = fmax(least, scale_at(one, kept->spec->path, at));
            note(r, apart(kept->values[at], other->values[i], scale), other, i, kept->values[at], other->values[i]);
        }
    }
    return true;
}

static assay_status compare(assay_context *ctx, const assay_results *one, const assay_results *other,
                            const assay_case *c, const assay_equivalence *equivalence, assay_equivalence_result *r)
{
    for (int i = 0; i < other->plan->spec_count; i++) {
        const assay_kept *kept = &other->items[i];
        if (is_compared(kept, equivalence->holding)) r->tensors += compare_tensor(one, kept, equivalence->holding, r);
    }
    r->holds = r->worst <= (equivalence->holding == ASSAY_HOLDS_BITS ? 0 : ASSAY_EQUIVALENCE_GAUGES);
    if (r->tensors > 0) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_INTERNAL, "%s: %s has no tensor in common", c->name, equivalence->name);
}

assay_status assay_equivalence_check(assay_context *ctx, const assay_case *c, const assay_equivalence *equivalence,
                                     assay_equivalence_result *result)
{
    assay_status status = ASSAY_OK;
    assay_other_form form = {.c = *c, .ctx = *ctx};
    assay_plan plan = {0}, other_plan = {0};
    assay_results one = {0}, other = {0};
    *result = (assay_equivalence_result){0};
    if (!equivalence->other(c, &form)) return ASSAY_OK;
    result->applies = true;
    TRY(evaluate_case(ctx, c, equivalence->holding, &plan, &one));
    TRY(evaluate_other(&form, ctx, &one, &other_plan, &other));
    TRY(compare(ctx, &one, &other, c, equivalence, result));
cleanup:
    assay_results_free(&one);
    assay_results_free(&other);
    assay_plan_free(&plan);
    assay_plan_free(&other_plan);
    return status;
}
