#include "harness/scales/directions.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/operations/op_support.h"
#include "harness/plan/directions.h"
#include "harness/plan/results.h"
#include "harness/scales/ensemble_internal.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"

enum { LANES = 8 };

/* lambda, as a part of the mean of R R^T's diagonal. */
#define RIDGE 0.1

static double dot(int64_t count, const double *a, const double *b)
{
    double lanes[LANES] = {0}, sum = 0;
    const int64_t whole = count - count % LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
        for (int lane = 0; lane < LANES; lane++) lanes[lane] += a[i + lane] * b[i + lane];
    }
    for (int64_t i = whole; i < count; i++) sum += a[i] * b[i];
    for (int lane = 0; lane < LANES; lane++) sum += lanes[lane];
    return sum;
}

static assay_status alloc_runs(assay_context *ctx, assay_correct_runs *r)
{
    const int64_t square = (int64_t)r->members * r->members, nearest = ASSAY_NEAREST_RUNS * r->count;
    MUST(assay_alloc_zeros(ctx, "correct runs", (r->members + 4) * r->count + 2 * nearest + square + 1, &r->memory));
    r->golden = r->memory;
    r->scale = r->golden + r->count;
    r->deviation = r->scale + r->count;
    r->squares = r->deviation + r->count;
    r->nearest[0] = r->squares + r->count;
    r->nearest[1] = r->nearest[0] + nearest;
    r->errors = r->nearest[1] + nearest;
    r->inverse = r->errors + r->members * r->count;
    return ASSAY_OK;
}

/* The ensemble of one precision, over a golden that is there; with room for all members. */
static assay_status fill_ensemble(assay_context *ctx, const assay_plan *plan, const assay_tensor_set *golden,
                                  int members, assay_ensemble *e)
{
    const assay_source all = assay_tensor_set_source(golden);
    e->tensors = calloc((size_t)plan->spec_count + 1, sizeof *e->tensors);
    if (e->tensors == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the list of error scales");
    for (int i = 0; i < plan->list.count; i++) {
        const assay_tensor_spec *spec = &plan->list.entries[i].spec;
        const bool there = all.has(all.self, spec->path);
        if (there && (assay_role_is_input(spec->role) || assay_path_is_choice(spec->path)))
            MUST(assay_tensor_set_read(ctx, &e->given, spec, &all));
        if (!there || !assay_direction_covers(spec)) continue;
        MUST(assay_tensor_set_read(ctx, &e->golden, spec, &all));
        const assay_tensor *values = &e->golden.items[e->golden.count - 1];
        assay_scaled *t = &e->tensors[e->golden.count - 1];
        *t = (assay_scaled){.spec = spec, .count = values->count, .golden = values->values};
        MUST(assay_alloc(ctx, "errors of correct runs", t->count, (size_t)members * sizeof *t->errors, &t->errors));
    }
    return ASSAY_OK;
}

/* The errors in a slot, rounded to storage if `stored`. What is not finite has none. */
static void take_errors(const assay_correct_runs *r, const assay_ensemble *e, int64_t slot, bool stored, double *to)
{
    for (int i = 0; i < e->golden.count; i++) {
        const assay_scaled *t = &e->tensors[i];
        for (int64_t k = 0; k < t->count; k++) to[k] = t->golden[k] + t->errors[slot * t->count + k];
        if (stored) assay_dtype_round_many(r->profile->storage, t->count, to, to);
        for (int64_t k = 0; k < t->count; k++) to[k] = isfinite(to[k] - t->golden[k]) ? to[k] - t->golden[k] : 0;
        to += t->count;
    }
}

static assay_status take_golden(assay_context *ctx, const assay_correct_runs *r, const assay_ensemble *e,
                                const assay_tensor_set *golden)
{
    const double unit = assay_dtype_unit_roundoff(r->profile->storage);
    int64_t at = 0;
    for (int i = 0; i < e->golden.count; i++) {
        const assay_scaled *t = &e->tensors[i];
        const assay_tensor *scales = assay_results_scales(golden, r->profile, t->spec->path);
        if (scales == NULL) return assay_fail(ctx, ASSAY_INTERNAL, "%s has no error scales", t->spec->path);
        for (int64_t k = 0; k < t->count; k++, at++) {
            const double scale = scales->values[k], rounding = unit * t->golden[k];
            const double deviation = sqrt(scale * scale + rounding * rounding * (1.0 / 3.0));
            r->golden[at] = t->golden[k];
            r->scale[at] = scale;
            r->deviation[at] = scale > 0 && isfinite(deviation) ? deviation : 0;
        }
    }
    return ASSAY_OK;
}

static assay_status run_nearest(assay_context *ctx, const assay_correct_runs *r, assay_ensemble *e, int p)
{
    for (int form = 0; form < ASSAY_NEAREST_RUNS; form++) {
        const assay_member member = {.precision = &e->plan->precisions[p], .number = 2 * form, .nearest = true};
        MUST(assay_ensemble_run(ctx, e, &member));
        for (int stored = 0; stored < 2; stored++)
            take_errors(r, e, 0, stored == 1, r->nearest[stored] + form * r->count);
    }
    return ASSAY_OK;
}

static void over_deviations(const assay_correct_runs *r)
{
    for (int64_t i = 0; i < r->count; i++) {
        const double inverse = r->deviation[i] > 0 ? 1 / r->deviation[i] : 0;
        for (int m = 0; m < r->members; m++) {
            double *error = &r->errors[m * r->count + i];
            *error *= inverse;
            r->squares[i] += *error * *error / r->members;
        }
    }
}

/* L of L L^T = M, in the lower triangle of M. */
static void factorise(int64_t n, double *l)
{
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j <= i; j++) {
            const double rest = l[i * n + j] - dot(j, l + i * n, l + j * n);
            l[i * n + j] = i == j ? sqrt(rest) : rest / l[j * n + j];
        }
    }
}

/* A = (R R^T + lambda I)^-1: L, then its inverse from below, then their product. */
static assay_status invert(assay_context *ctx, const assay_correct_runs *r)
{
    const int64_t n = r->members;
    OWNED double *below = NULL;
    double *l = r->inverse, mean = 0;
    const assay_matmul_args product = assay_product_abt(l, r->errors, r->errors, n, n, r->count);
    MUST(assay_alloc_zeros(ctx, "an inverse", n * n, &below));
    MUST(assay_arithmetic_reference.matmul(ctx, &product));
    for (int64_t i = 0; i < n; i++) mean += l[i * n + i] / (double)n;
    for (int64_t i = 0; i < n; i++) l[i * n + i] += RIDGE * mean;
    factorise(n, l);
    for (int64_t column = 0; column < n; column++) { /* of L^-1, as a row of `below` */
        double *x = below + column * n;
        for (int64_t i = column; i < n; i++) {
            const double rest = (i == column ? 1 : 0) - dot(i - column, l + i * n + column, x + column);
            x[i] = rest / l[i * n + i];
        }
    }
    const assay_matmul_args inverse = assay_product_abt(l, below, below, n, n, n);
    return assay_arithmetic_reference.matmul(ctx, &inverse);
}

assay_status assay_correct_runs_make(assay_context *ctx, const assay_plan *plan, const assay_tensor_set *golden, int p,
                                     assay_correct_runs *runs)
{
    assay_status status;
    assay_plan settled = *plan;
    assay_source in = assay_input_source(golden);
    assay_ensemble e = {.plan = &settled, .in = &in};
    *runs = (assay_correct_runs){.profile = assay_plan_profile(plan, plan->precisions[p].name),
                                 .members = assay_direction_members(plan)};
    TRY(assay_alloc(ctx, "precisions", plan->precision_count, sizeof *plan->precisions, &settled.precisions));
    TRY(assay_settle_inputs(ctx, plan, &in, settled.precisions));
    const assay_member member = {.precision = &settled.precisions[p]};
    TRY(fill_ensemble(ctx, plan, golden, runs->members, &e));
    for (int i = 0; i < e.golden.count; i++) runs->count += e.tensors[i].count;
    TRY(alloc_runs(ctx, runs));
    TRY(take_golden(ctx, runs, &e, golden));
    TRY(run_nearest(ctx, runs, &e, p));
    TRY(assay_ensemble_run_members(ctx, &e, &member, runs->members));
    for (int m = 0; m < runs->members; m++) take_errors(runs, &e, m, true, runs->errors + m * runs->count);
    over_deviations(runs);
    TRY(invert(ctx, runs));
cleanup:
    assay_ensemble_release(&e);
    free(settled.precisions);
    if (status != ASSAY_OK) assay_correct_runs_free(runs);
    return status;
}

void assay_correct_runs_free(assay_correct_runs *runs)
{
    free(runs->memory);
    *runs = (assay_correct_runs){0};
}

/* The filter, and what passes it in each member, of the filter that this did not go into. `w`: the error over deviations. */
static void find_filter(const assay_correct_runs *r, const double *w, double *a, double *passed, double *filter)
{
    const int n = r->members;
    double *h = passed;
    for (int m = 0; m < n; m++) h[m] = dot(r->count, r->errors + m * r->count, w);
    for (int m = 0; m < n; m++) a[m] = dot(n, r->inverse + (int64_t)m * n, h);
    const double left = dot(r->count, w, w) - dot(n, h, a);
    for (int m = 0; m < n; m++) {
        const double own = r->inverse[(int64_t)m * n + m];
        passed[m] = a[m] / own / (left + a[m] * a[m] / own);
    }
    memcpy(filter, w, (size_t)r->count * sizeof *filter);
    for (int m = 0; m < n; m++) {
        const double *error = r->errors + m * r->count;
        for (int64_t i = 0; i < r->count; i++) filter[i] -= a[m] * error[i];
    }
    for (int64_t i = 0; i < r->count; i++) {
        const double value = r->deviation[i] > 0 ? filter[i] / r->deviation[i] / left : 0;
        filter[i] = isfinite(value) ? assay_dtype_round(ASSAY_BFLOAT16, value, false) : 0;
    }
}

/* How much smaller the members' errors are than error scales allow, where the filter has its weight; and the spread that
 * independent errors of the members' size would have. */
static double understated(const assay_correct_runs *r, const double *filter, double *independent)
{
    double allowed = 0, shown = 0;
    for (int64_t i = 0; i < r->count; i++) {
        const double weight = filter[i] * r->deviation[i];
        shown += weight * weight * r->squares[i];
        allowed += filter[i] * filter[i] * r->scale[i] * r->scale[i];
    }
    *independent = sqrt(shown);
    return fmax(sqrt(allowed / shown), 1);
}

static void take_in(double p, double row[ASSAY_NULL_COLUMNS])
{
    row[ASSAY_NULL_LOW] = fmin(row[ASSAY_NULL_LOW], p);
    row[ASSAY_NULL_HIGH] = fmax(row[ASSAY_NULL_HIGH], p);
}

/* As of any statistic (null_distributions.c). */
static void summarise(const assay_correct_runs *r, const double *filter, const double *passed,
                      double row[ASSAY_NULL_COLUMNS])
{
    double mean = 0, squares = 0, independent, stored = 0;
    const double factor = understated(r, filter, &independent);
    for (int m = 0; m < r->members; m++) mean += passed[m] / r->members;
    for (int m = 0; m < r->members; m++) squares += (passed[m] - mean) * (passed[m] - mean);
    for (int64_t i = 0; i < r->count; i++) {
        stored += filter[i] * (assay_dtype_round(r->profile->storage, r->golden[i], false) - r->golden[i]);
    }
    memset(row, 0, ASSAY_NULL_COLUMNS * sizeof *row);
    take_in(mean, row);
    take_in(stored, row);
    for (int run = 0; run < 2 * ASSAY_NEAREST_RUNS; run++)
        take_in(dot(r->count, filter, r->nearest[run % 2] + run / 2 * r->count), row);
    row[ASSAY_NULL_SPREAD] = fmax(sqrt(squares / (r->members - 1)), independent) * factor;
    row[ASSAY_NULL_MEMBERS] = r->members;
}

assay_status assay_correct_runs_filter(assay_context *ctx, const assay_correct_runs *runs, const double *moved,
                                       double *filter, double row[ASSAY_NULL_COLUMNS])
{
    OWNED double *w = NULL, *a = NULL;
    MUST(assay_alloc_f64(ctx, "a known error", runs->count, &w));
    MUST(assay_alloc_f64(ctx, "what passes a filter", 2 * runs->members, &a));
    for (int64_t i = 0; i < runs->count; i++) w[i] = runs->deviation[i] > 0 ? moved[i] / runs->deviation[i] : 0;
    find_filter(runs, w, a, a + runs->members, filter);
    summarise(runs, filter, a + runs->members, row);
    return ASSAY_OK;
}
