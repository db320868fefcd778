/* What a mutant's results are expected to be, and how far from it a backend with this bug may lie. */
#include <math.h>

#include "harness/explain/explain_internal.h"
#include "harness/mutants/mutants_tensors.h"

/* The error scales of a result; NULL: it has none. */
static double *scales_of(const assay_trial *t, const assay_tensor_set *results, const char *path)
{
    const assay_tensor *found = assay_results_scales(results, t->profile, path);
    return found == NULL ? NULL : found->values;
}

/* What is done to the results is done to their scales: they are moved, multiplied and set to zero alike. */
static assay_status tamper(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant,
                           assay_tensor_set *results)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set moved = {0};
    bool changes;
    const assay_mutation m = {.c = t->plan->c, .profile = t->profile, .tensors = &moved};
    MUST(assay_tensor_set_copy(ctx, t->golden, &moved));
    for (int i = 0; i < moved.count; i++) {
        const double *scales = scales_of(t, t->golden, moved.items[i].spec.path);
        for (int64_t k = 0; scales != NULL && k < moved.items[i].count; k++) moved.items[i].values[k] = scales[k];
    }
    MUST(assay_mutant_change_results(ctx, mutant, &m, &changes));
    for (int i = 0; i < moved.count; i++) {
        double *scales = scales_of(t, results, moved.items[i].spec.path);
        for (int64_t k = 0; scales != NULL && k < moved.items[i].count; k++) {
            const double scale = fabs(moved.items[i].values[k]);
            if (isfinite(scale)) scales[k] = assay_dtype_round(ASSAY_FLOAT32, scale, false);
        }
    }
    return ASSAY_OK;
}

double assay_rms(const double *values, int64_t count)
{
    double sum = 0.0, finite = 0.0;
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(values[i])) continue;
        sum += values[i] * values[i];
        finite += 1.0;
    }
    return finite > 0.0 ? sqrt(sum / finite) : 0.0;
}

/* Of results that were evaluated anew: a row that is larger than the golden's has errors that are as much larger, and
 * a number that was exact has those that are usual in the tensor. */
static void grow(const assay_trial *t, const assay_tensor *golden, const assay_tensor *mutated, double *scales)
{
    const int64_t width = assay_tensor_width(golden);
    const double size = assay_rms(golden->values, golden->count), error = assay_rms(scales, golden->count);
    const double unit = assay_dtype_unit_roundoff(assay_profile_type_of(t->profile, &golden->spec));
    const double relative = size > 0.0 ? error / size : assay_plan_is_exact(t->plan) ? 0.0 : unit;
    for (int64_t row = 0; row + width <= golden->count; row += width) {
        const double before = assay_rms(golden->values + row, width), after = assay_rms(mutated->values + row, width);
        const double factor = before > 0.0 && after > before ? after / before : 1.0;
        if (!isfinite(factor)) continue;
        for (int64_t i = row; i < row + width; i++) {
            const bool was_exact = scales[i] == 0.0 && golden->values[i] != mutated->values[i];
            const double scale = was_exact ? relative * after : factor * scales[i];
            scales[i] = assay_dtype_round(ASSAY_FLOAT32, scale, false);
        }
    }
}

void assay_raise_to_usual(const assay_tensor *of, double relative, double *scales)
{
    const int64_t width = assay_tensor_width(of);
    for (int64_t row = 0; row + width <= of->count; row += width) {
        const double usual = relative * assay_rms(of->values + row, width);
        for (int64_t i = row; isfinite(usual) && i < row + width; i++)
            scales[i] = assay_dtype_round(ASSAY_FLOAT32, fmax(scales[i], usual), false);
    }
}

/* Truncation depends on the last bit that is left; what it does on average does not: half a step of the grid less, give or
 * take as much, and nothing where the golden lies on the grid. */
static void expect_truncated(const assay_trial *t, const assay_tensor *golden, const assay_tensor *mutated,
                             double *scales)
{
    const assay_dtype type = assay_profile_type_of(t->profile, &golden->spec);
    const double unit = assay_dtype_unit_roundoff(type), least = assay_dtype_least_subnormal(type);
    for (int64_t i = 0; i < golden->count; i++) {
        const double value = golden->values[i];
        int exponent = 0;
        frexp(value, &exponent);
        const double half = fmin(fmax(ldexp(unit, exponent - 1), least / 2), fabs(value));
        const bool exact = assay_dtype_round(type, value, false) == value;
        mutated->values[i] = exact ? value : value - copysign(half, value);
        scales[i] = assay_dtype_round(ASSAY_FLOAT32, fmax(scales[i], unit / 16 * fabs(value)), false);
    }
}

/* So does rounding: the golden's value, with the error of the coarser type. That the candidate lies on its grid is
 * asked elsewhere. */
static void expect_coarser(const assay_trial *t, const assay_tensor *golden, const assay_tensor *mutated,
                           double *scales)
{
    const assay_dtype type = assay_coarser_type(assay_profile_type_of(t->profile, &golden->spec));
    const double unit = assay_dtype_unit_roundoff(type), least = assay_dtype_least_subnormal(type);
    for (int64_t i = 0; i < golden->count; i++) {
        const double rounding = fmax(unit * fabs(golden->values[i]), least / 2) / sqrt(3.0);
        if (!isfinite(mutated->values[i])) continue; /* beyond its range */
        mutated->values[i] = golden->values[i];
        /* hypotl: hypot is one of glibc 2.35, and the wheel would ask for that */
        scales[i] = assay_dtype_round(ASSAY_FLOAT32, (double)hypotl(scales[i], rounding), false);
    }
}

void assay_drop_null(assay_tensor_set *results)
{
    for (int i = 0; i < results->count; i++)
        if (results->items[i].spec.role == ASSAY_ROLE_NULL) results->items[i].written = 0;
}

assay_status assay_mutant_expect(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant,
                                 assay_tensor_set *results)
{
    const bool truncated = mutant->results.edit == assay_edit_truncate;
    const bool coarser = mutant->results.edit == assay_edit_coarser;
    if (!assay_mutant_is_evaluated(mutant) && !truncated && !coarser) return tamper(ctx, t, mutant, results);
    if (truncated || coarser) assay_drop_null(results);
    for (int i = 0; i < results->count; i++) {
        const assay_tensor *golden = &t->golden->items[i], *mutated = &results->items[i];
        double *scales = scales_of(t, results, mutated->spec.path);
        if (scales == NULL || !assay_tensor_is_complete(mutated)) continue;
        const double relative = assay_rms(scales, golden->count) / assay_rms(golden->values, golden->count);
        (truncated ? expect_truncated : coarser ? expect_coarser : grow)(t, golden, mutated, scales);
        /* a step may add up other terms than the golden's */
        if (assay_mutant_changes_steps(mutant)) assay_raise_to_usual(mutated, relative, scales);
    }
    return ASSAY_OK;
}
