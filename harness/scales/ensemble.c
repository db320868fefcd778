#include "harness/scales/ensemble.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/compare.h"
#include "compare/thresholds.h"
#include "harness/plan/left_out.h"
#include "harness/scales/ensemble_internal.h"
#include "harness/scales/hidden_deviation.h"
#include "oracle/base/memory.h"

static const char NO_ROOM[] = "float32, in which error scales are, has no room for that of ";

static bool wants_null(const assay_ensemble *e)
{
    bool wanted = false;
    const assay_tensor_list *list = &e->plan->list;
    for (int i = 0; !wanted && i < list->count; i++)
        wanted = assay_has_error_scale(&list->entries[i].spec) && assay_null_is_wanted(e, list->entries[i].spec.path);
    return wanted && !assay_plan_is_exact(e->plan);
}

/* Sums over the members of squared errors. */
static void add_squares(const assay_context *ctx, const assay_scaled *t, int members, double *squares)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t first = 0; first < t->count; first += 4096) {
        const int64_t end = first + 4096 < t->count ? first + 4096 : t->count;
        for (int64_t i = first; i < end; i++) squares[i] = 0;
        for (int m = 0; m < members; m++) {
            const float *errors = t->errors + m * t->count;
            for (int64_t i = first; i < end; i++) squares[i] += (double)errors[i] * errors[i];
        }
    }
}

/* What the largest of so many errors exceeds in one of a hundred tensors, were errors Gaussian, over scales that are
 * estimated: half of a variance is the mean of the other members' squares, so it is Student's distribution with about
 * 4 (members - 1) degrees of freedom. The quantile is that of Gaver and Kafadar (1984). */
static double largest_of_gaussian(int members, int64_t count)
{
    const double degrees = 4.0 * (members - 1);
    const double z = assay_thresholds_of(0.03, members * count, 1, 1).element; /* a third is the elements' */
    return sqrt(degrees * expm1(z * z * (degrees - 1.5) / ((degrees - 1) * (degrees - 1))));
}

/* By how much the tails of errors are heavier than Gaussian ones, which thresholds of elements are quantiles of: where a
 * hidden number seldom goes another way (the largest score of a softmax in fp8) few members err, and by much. The
 * member's own square is no part of the scale that it is held against: it would hide how far out it is. */
static double tail_factor(const assay_context *ctx, const assay_ensemble *e, const assay_scaled *t, int p, int members,
                          const double *scales)
{
    const assay_profile *profile = assay_plan_profile(e->plan, e->plan->precisions[p].name);
    const double unit = assay_dtype_unit_roundoff(assay_profile_type_of(profile, t->spec));
    double largest = 0;
#pragma omp parallel for num_threads(ctx->threads) reduction(max : largest)
    for (int64_t first = 0; first < members * t->count; first += 4096) {
        const int64_t end = first + 4096 < members * t->count ? first + 4096 : members * t->count;
        double most = 0;
        for (int64_t at = first, i = first % t->count; at < end; at++, i = i + 1 < t->count ? i + 1 : 0) {
            const double square = (double)t->errors[at] * t->errors[at];
            const double others = scales[i] * scales[i] - 0.5 * square / members;
            const double error =
                fabs(t->errors[at]) - unit * fabs(t->golden[i]); /* beyond the rounding of the result */
            if (!(error > 0 && error * error >= 0.999 * most * most * others)) continue; /* most are far below */
            if (others > 0 && isfinite(error)) most = fmax(most, error / sqrt(others));
        }
        largest = fmax(largest, most);
    }
    return (float)fmax(largest / largest_of_gaussian(members, t->count), 1); /* libm's last bits differ by processor */
}

/* The model is fitted to the members' squares, and the error scales that follow are written, and kept for null
 * distributions. */
static assay_status write_scales(assay_context *ctx, const assay_ensemble *e, assay_scaled *t, int p, int members,
                                 assay_error_model *model)
{
    char path[ASSAY_PATH_SIZE];
    OWNED double *values = NULL;
    MUST(assay_alloc_f64(ctx, "error scale", t->count, &values));
    add_squares(ctx, t, members, values);
    if (members > 0) MUST(assay_error_model_fit(ctx, &t->spec->shape, members, values, model));
    assay_error_model_scale(ctx, model, values);
    if (members > 1 && t->count > 0) model->tails = tail_factor(ctx, e, t, p, members, values);
    for (int64_t i = 0; i < t->count; i++) {
        const double least = values[i] > 0 ? t->least * fabs(t->golden[i]) : 0, kept = t->kept == NULL ? 0 : t->kept[i];
        values[i] = isfinite(t->golden[i]) ? fmax(fmax(model->tails * values[i], kept), least) : 0;
    }
    assay_path_at(ASSAY_ROLE_ERROR_SCALE, e->plan->precisions[p].name, t->spec->path, path);
    MUST(assay_write_result(ctx, e->out, path, t->count, values));
    if (t->null == NULL) return ASSAY_OK;
    for (int64_t i = 0; i < t->count; i++) t->scale[i] = (float)values[i];
    return ASSAY_OK;
}

/* What the members say of a tensor. */
static assay_status evaluate_tensor(assay_context *ctx, const assay_ensemble *e, assay_scaled *t, int p, int members)
{
    OWNED_BY(assay_error_model_free) assay_error_model model = {.tails = 1};
    OWNED_BY(assay_leave_one_out_free) assay_leave_one_out held = {0};
    MUST(write_scales(ctx, e, t, p, members, &model));
    if (t->null == NULL) return ASSAY_OK;
    MUST(assay_leave_one_out_start(ctx, &model, t->count, t->errors, &held));
    return assay_null_draw(ctx, e, t, p, members, &held);
}

/* What members make of h that is quantised. */
static assay_status draw_deviation(assay_context *ctx, assay_ensemble *e, const assay_precision *precision)
{
    assay_overlay numbers = {assay_tensor_set_source(&e->inputs), *e->in};
    const assay_source in = assay_overlay_source(&numbers);
    assay_tensor_set_free(&e->deviation);
    return assay_hidden_deviation(ctx, e->plan, precision, &in, NULL, &e->deviation);
}

/* Other codes of h that was moved hide what the errors of a correct kernel have in common, as where sums are cut off. So null
 * distributions take in as many members whose h stays where it is. */
static assay_status draw_unmoved(assay_context *ctx, assay_ensemble *e, const assay_member *member, int p, int members)
{
    if (e->deviation.count == 0) return ASSAY_OK;
    assay_tensor_set_free(&e->deviation);
    MUST(assay_ensemble_run_members(ctx, e, member, members));
    for (int i = 0; i < e->golden.count; i++)
        if (e->tensors[i].null != NULL) MUST(assay_null_draw_beside(ctx, e, &e->tensors[i], p, members));
    return ASSAY_OK;
}

/* Kernels of the less accurate form whose sums are in a finer type err less, and less again where they store nothing, but not as little
 * as one wishes. */
static assay_status draw_least(assay_context *ctx, assay_ensemble *e, const assay_precision *precision, int p)
{
    enum { RUNS = 8 }; /* as many as the smallest ensemble has */
    assay_precision once = *precision;
    const assay_member member = {.precision = &once, .keeps = true};
    once.form = ASSAY_FORM_ROUNDED_ONCE;
    if (precision->form != ASSAY_FORM_INACCURATE) return ASSAY_OK;
    MUST(assay_ensemble_run_members(ctx, e, &member, RUNS));
    for (int i = 0; i < e->golden.count; i++)
        if (e->tensors[i].null != NULL) MUST(assay_null_draw_least(ctx, e, &e->tensors[i], p, RUNS));
    return ASSAY_OK;
}

/* Correct kernels overflow where an emulated run does, in a result or on the way to it: no error scale says what they may
 * err by. Nor does one where errors are beyond float32, in which error scales are. Golden values beyond the type's range are no matter of this (docs/comparing.md, "A profile that a case cannot have"). */
static assay_status require_finite(assay_context *ctx, const assay_ensemble *e, const assay_scaled *t, int p,
                                   int members)
{
    const assay_profile *profile = assay_plan_profile(e->plan, e->plan->precisions[p].name);
    const double most = assay_dtype_max(assay_profile_type_of(profile, t->spec));
    for (int64_t i = 0; i < members * t->count && !e->overflows; i++) {
        if (isfinite(t->errors[i])) continue;
        const double golden = t->golden[i % t->count];
        if (!(fabs(golden) <= most)) continue;
        char place[ASSAY_INDEX_TEXT];
        assay_element_text(&t->spec->shape, i % t->count, place);
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s%s%s, where the golden is %.3g",
                          isnan(t->errors[i]) ? "emulated correct runs overflow at " : NO_ROOM, t->spec->path, place,
                          golden);
    }
    return ASSAY_OK;
}

/* What is stored between steps may be exact there, as a probability of 1 is, where a kernel that has all steps in one errs: so each
 * element has the larger scale of both. */
static assay_status draw_kept(assay_context *ctx, assay_ensemble *e, const assay_precision *precision)
{
    const bool narrow = precision->storage > ASSAY_FLOAT32_RMS;
    const int members = narrow ? assay_ensemble_members(e->plan, precision) : 0; /* 0: no error */
    const assay_member member = {.precision = precision, .keeps = true};
    if (!assay_ensemble_keeps(e->plan)) return ASSAY_OK;
    MUST(assay_ensemble_run_members(ctx, e, &member, members));
    for (int k = 0; k < e->golden.count; k++) {
        const assay_scaled *t = &e->tensors[k];
        OWNED double *values = NULL;
        MUST(assay_alloc_f64(ctx, "error scale", t->count, &values));
        add_squares(ctx, t, members, values);
        if (members > 0) MUST(assay_ensemble_smooth(ctx, &t->spec->shape, members, values));
        for (int64_t i = 0; i < t->count; i++) t->kept[i] = (float)values[i];
    }
    return ASSAY_OK;
}

static assay_status evaluate_precision(assay_context *ctx, assay_ensemble *e, int p, bool null)
{
    assay_member member = {.precision = &e->plan->precisions[p]};
    const int members = assay_ensemble_members(e->plan, member.precision);
    MUST(draw_deviation(ctx, e, member.precision));
    MUST(draw_kept(ctx, e, member.precision));
    MUST(assay_ensemble_run_members(ctx, e, &member, members));
    for (int i = 0; i < e->golden.count; i++) {
        /* Of one stage there are few roundings, and a few draws of them may all come out the same; where a result is far
         * larger than its neighbours the model does not make up for that. */
        MUST(require_finite(ctx, e, &e->tensors[i], p, members));
        e->tensors[i].least = e->plan->staged ? member.precision->elementary : 0;
        MUST(evaluate_tensor(ctx, e, &e->tensors[i], p, members));
    }
    if (!null) return ASSAY_OK;
    MUST(draw_unmoved(ctx, e, &member, p, members));
    MUST(draw_least(ctx, e, member.precision, p));
    member = (assay_member){.precision = member.precision, .nearest = true};
    MUST(assay_ensemble_run(ctx, e, &member));
    for (int i = 0; i < e->golden.count; i++) {
        assay_scaled *t = &e->tensors[i];
        if (t->null != NULL) MUST(assay_null_finish(ctx, e, t, p));
    }
    return ASSAY_OK;
}

/* The golden run was right: what an emulated one does not take, inputs of 70000 in float16, is the profile's. */
static assay_status refuse_profile(assay_context *ctx, const assay_ensemble *e, int p)
{
    char reason[ASSAY_MESSAGE_SIZE];
    snprintf(reason, sizeof reason, "%s", ctx->message);
    return assay_plan_lose(ctx, e->plan, e->plan->precisions[p].name, reason);
}

static assay_status evaluate(assay_context *ctx, assay_ensemble *e, bool null)
{
    assay_status status = ASSAY_OK;
    MUST(assay_ensemble_collect(ctx, e, null));
    MUST(assay_ensemble_run_golden(ctx, e));
    if (e->golden.count == 0) return status;
    MUST(assay_ensemble_read_inputs(ctx, e));
    for (int p = 0; p < e->plan->precision_count; p++) {
        status = evaluate_precision(ctx, e, p, null);
        if (status == ASSAY_BAD_INPUT && !e->lost) status = refuse_profile(ctx, e, p);
        MUST(status);
    }
    return status;
}

/* On the way to the caller's sink: error scales that float32 has. */
typedef struct checked {
    assay_wrapped wrapped;
    assay_ensemble *e;
} checked;

/* Whether a golden itself overflows: then nothing else is to be said. -inf is the lse of no key. */
static bool overflows(assay_tensor_role role, int64_t count, const double *values)
{
    bool found = false;
    if (role != ASSAY_ROLE_OUTPUT && role != ASSAY_ROLE_GRADIENT && role != ASSAY_ROLE_CHECKPOINT) return false;
    for (int64_t i = 0; i < count; i++) found |= !(values[i] <= DBL_MAX);
    return found;
}

static assay_status checked_write(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    const checked *c = self;
    const assay_tensor_role role = assay_role_of(path);
    const bool scale = role == ASSAY_ROLE_ERROR_SCALE && !assay_plan_is_exact(c->e->plan);
    c->e->overflows |= overflows(role, count, values);
    for (int64_t i = 0; scale && !c->e->overflows && i < count; i++) {
        if (isfinite((float)values[i])) continue;
        char profile[ASSAY_PRECISION_NAME_SIZE], reason[ASSAY_PATH_SIZE + 96];
        const char *name = strchr(path, '/') + 1;
        snprintf(profile, sizeof profile, "%.*s", (int)strcspn(name, "/"), name);
        if (isfinite(values[i]) || assay_plan_profile(c->e->plan, profile)->storage == ASSAY_FLOAT64) {
            snprintf(reason, sizeof reason, "%s%s (%.3g)", NO_ROOM, assay_path_of(path), fabs(values[i]));
        } else {
            snprintf(reason, sizeof reason, "results overflow: the error scale of %s is %.3g", assay_path_of(path),
                     fabs(values[i]));
        }
        c->e->lost = true;
        return assay_plan_lose(ctx, c->e->plan, profile, reason);
    }
    return c->wrapped.out->write(ctx, c->wrapped.out->self, path, count, values);
}

static assay_status checked_write_zeros(assay_context *ctx, void *self, const char *path, int64_t count)
{
    const assay_sink *out = ((const checked *)self)->wrapped.out;
    return out->write_zeros(ctx, out->self, path, count);
}

assay_status assay_evaluate(assay_context *ctx, const assay_plan *plan, const assay_source *in, const assay_sink *out)
{
    assay_status status;
    assay_plan settled = *plan;
    checked passed = {.wrapped = {.out = out}};
    const assay_sink own = {.self = &passed,
                            .wants = assay_wrapped_wants,
                            .write = checked_write,
                            .write_i32 = assay_wrapped_write_i32,
                            .write_zeros = out->write_zeros != NULL ? checked_write_zeros : NULL};
    assay_ensemble e = {.plan = &settled, .in = in, .out = &own};
    passed.e = &e;
    const bool null = wants_null(&e);
    TRY(assay_alloc(ctx, "precisions", plan->precision_count, sizeof *plan->precisions, &settled.precisions));
    TRY(assay_settle_inputs(ctx, plan, in, settled.precisions));
    TRY(evaluate(ctx, &e, null));
cleanup:
    assay_ensemble_release(&e);
    free(settled.precisions);
    return status;
}
