/* Filters along known errors, and what passes them in correct implementations.
 *
 * A known error moves the results by d. Errors of correct implementations along d are far from independent: the same
 * scores move them. So the filter is not d over its variances, but C^-1 d / (d^T C^-1 d) with the covariance C of emulated
 * correct runs: what these have in common with d is taken out of it. C is (R^T R + lambda I), R [members,elements] being
 * the members' errors over their deviations; its inverse needs no matrix larger than [members,members]:
 *
 *     filter ~ w - R^T A h,    A = (R R^T + lambda I)^-1,  h = R w,  w = d / deviation
 *
 * A member cannot tell what passes a filter that it went into. What it is without the member follows from A (the formula of
 * leaving one out in ridge regression): p_m = (a_m / A_mm) / (w w - h a + a_m^2 / A_mm), a = A h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/operations/op_support.h"
#include "harness/plan/directions.h"
#include "harness/scales/ensemble_internal.h"
#include "oracle/base/memory.h"
#include "oracle/base/ranks.h"

enum { MEMBERS = ASSAY_DIRECTION_MEMBERS, LANES = 8 };

/* lambda, as a part of the mean of R R^T's diagonal. */
#define RIDGE 0.1

/* All elements that a filter has, one tensor after the other. */
typedef struct filter {
    assay_ensemble *e; /* a copy whose tensors have room for the filter's own members */
    const assay_direction *direction;
    int p;
    int64_t count;
    double *memory;
    double *golden, *deviation, *scale; /* deviation 0: it does not count */
    double *moved;                      /* d, then d / deviation */
    double *nearest[2];                 /* errors of the run to nearest, as they are and stored */
    double *values;                     /* the filter */
    double *errors;                     /* R [MEMBERS,count] */
    double *gram, *inverse;             /* [MEMBERS,MEMBERS] */
} filter;

static bool is_in(const filter *f, const assay_scaled *t)
{
    char path[ASSAY_PATH_SIZE];
    assay_filter_path(f->e->plan->precisions[f->p].name, f->direction->name, t->spec->path, path);
    return assay_plan_find(f->e->plan, path) >= 0;
}

static assay_dtype storage_of(const filter *f)
{
    return assay_plan_profile(f->e->plan, f->e->plan->precisions[f->p].name)->storage;
}

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

static assay_status alloc_filter(assay_context *ctx, filter *f)
{
    for (int i = 0; i < f->e->golden.count; i++) f->count += is_in(f, &f->e->tensors[i]) ? f->e->tensors[i].count : 0;
    const int64_t square = (int64_t)MEMBERS * MEMBERS;
    const assay_status status =
        assay_alloc_zeros(ctx, "filters of known errors", (MEMBERS + 7) * f->count + 2 * square + 1, &f->memory);
    RETURN_IF(status != ASSAY_OK, status);
    double **const parts[] = {&f->golden,     &f->deviation,  &f->scale,  &f->moved,
                              &f->nearest[0], &f->nearest[1], &f->values, &f->errors};
    double *next = f->memory;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++, next += f->count) *parts[i] = next;
    f->gram = f->errors + MEMBERS * f->count;
    f->inverse = f->gram + square;
    return ASSAY_OK;
}

/* The errors of a slot, rounded to storage if `stored`. What does not count has none. */
static void take_errors(const filter *f, int64_t slot, bool stored, double *to)
{
    const assay_dtype storage = storage_of(f);
    for (int i = 0; i < f->e->golden.count; i++) {
        const assay_scaled *t = &f->e->tensors[i];
        if (!is_in(f, t)) continue;
        for (int64_t k = 0; k < t->count; k++) to[k] = t->golden[k] + t->errors[slot * t->count + k];
        if (stored) assay_dtype_round_many(storage, t->count, to, to);
        for (int64_t k = 0; k < t->count; k++) to[k] = isfinite(to[k] - t->golden[k]) ? to[k] - t->golden[k] : 0;
        to += t->count;
    }
}

/* Golden values, deviations, and the errors of the run to nearest, which is in slot 0. */
static void take_golden(const filter *f)
{
    const assay_dtype storage = storage_of(f);
    const double unit = assay_dtype_unit_roundoff(storage);
    int64_t at = 0;
    for (int i = 0; i < f->e->golden.count; i++) {
        const assay_scaled *t = &f->e->tensors[i];
        if (!is_in(f, t)) continue;
        for (int64_t k = 0; k < t->count; k++, at++) {
            const double scale = t->scales[f->p][k], rounding = unit * t->golden[k];
            const double deviation = sqrt(scale * scale + rounding * rounding * (1.0 / 3.0));
            f->golden[at] = t->golden[k];
            f->scale[at] = scale;
            f->deviation[at] = scale > 0 && isfinite(deviation) ? deviation : 0;
        }
    }
    take_errors(f, 0, false, f->nearest[0]);
    take_errors(f, 0, true, f->nearest[1]);
}

/* The case with the known error, into slot 0. */
static bool error_wants(void *self, const char *path)
{
    const filter *f = self;
    const assay_scaled *t = assay_ensemble_tensor(f->e, path);
    return t != NULL && is_in(f, t);
}

static assay_status error_write(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    const filter *f = self;
    assay_scaled *t = assay_ensemble_tensor(f->e, path);
    if (count > t->count - t->written) return assay_fail(ctx, ASSAY_INTERNAL, "%s has too many elements", path);
    for (int64_t i = 0; i < count; i++) t->errors[t->written + i] = (float)(values[i] - t->golden[t->written + i]);
    t->written += count;
    return ASSAY_OK;
}

static assay_status run_error(assay_context *ctx, filter *f)
{
    assay_case changed;
    const assay_plan *plan = f->e->plan;
    assay_overlay numbers = {assay_tensor_set_source(&f->e->given), *f->e->in};
    const assay_source in = assay_overlay_source(&numbers);
    const assay_sink out = {.self = f, .wants = error_wants, .write = error_write};
    assay_direction_apply(f->direction, plan->c, &changed);
    for (int i = 0; i < f->e->golden.count; i++) f->e->tensors[i].written = 0;
    const assay_status status = assay_operation_run(ctx, plan->operation, &changed, &in, &out, NULL, 0);
    if (status == ASSAY_OK) take_errors(f, 0, false, f->moved);
    return status;
}

/* A = (R R^T + lambda I)^-1, by Cholesky: L, then its inverse from below, then their product. */
static void invert(const filter *f)
{
    double *l = f->gram, *inverse = f->inverse, mean = 0;
    for (int i = 0; i < MEMBERS; i++) {
        for (int j = 0; j <= i; j++) {
            l[i * MEMBERS + j] = dot(f->count, f->errors + i * f->count, f->errors + j * f->count);
        }
        mean += l[i * MEMBERS + i] / MEMBERS;
    }
    for (int i = 0; i < MEMBERS; i++) l[i * MEMBERS + i] += RIDGE * mean;
    for (int i = 0; i < MEMBERS; i++) {
        for (int j = 0; j <= i; j++) {
            const double rest = l[i * MEMBERS + j] - dot(j, l + i * MEMBERS, l + j * MEMBERS);
            l[i * MEMBERS + j] = i == j ? sqrt(rest) : rest / l[j * MEMBERS + j];
        }
    }
    for (int column = 0; column < MEMBERS; column++) { /* of L^-1, as a row of `inverse` */
        double *x = inverse + (int64_t)column * MEMBERS;
        for (int i = column; i < MEMBERS; i++) {
            const double rest = (i == column ? 1 : 0) - dot(i - column, l + i * MEMBERS + column, x + column);
            x[i] = rest / l[i * MEMBERS + i];
        }
    }
    for (int i = 0; i < MEMBERS; i++) {
        for (int j = i; j < MEMBERS; j++) {
            f->gram[i * MEMBERS + j] = f->gram[j * MEMBERS + i] =
                dot(MEMBERS - j, inverse + i * MEMBERS + j, inverse + j * MEMBERS + j);
        }
    }
}

/* What passes the filter in each member, of the filter that it did not go into; and the filter itself. */
static void find_filter(const filter *f, double passed[MEMBERS])
{
    double h[MEMBERS], a[MEMBERS];
    for (int m = 0; m < MEMBERS; m++) h[m] = dot(f->count, f->errors + m * f->count, f->moved);
    for (int m = 0; m < MEMBERS; m++) a[m] = dot(MEMBERS, f->gram + m * MEMBERS, h);
    const double left = dot(f->count, f->moved, f->moved) - dot(MEMBERS, h, a);
    for (int m = 0; m < MEMBERS; m++) {
        const double own = f->gram[m * MEMBERS + m];
        passed[m] = a[m] / own / (left + a[m] * a[m] / own);
    }
    memcpy(f->values, f->moved, (size_t)f->count * sizeof *f->values);
    for (int m = 0; m < MEMBERS; m++) {
        for (int64_t i = 0; i < f->count; i++) f->values[i] -= a[m] * f->errors[m * f->count + i];
    }
    for (int64_t i = 0; i < f->count; i++) {
        const double value = f->deviation[i] > 0 ? f->values[i] / f->deviation[i] / left : 0;
        f->values[i] = isfinite(value) ? assay_dtype_round(ASSAY_BFLOAT16, value, false) : 0;
    }
}

/* How much smaller the members' errors are than error scales allow, where the filter has its weight; and the spread that
 * independent errors of the members' size would have. */
static double understated(const filter *f, double *independent)
{
    double allowed = 0, shown = 0;
    for (int64_t i = 0; i < f->count; i++) {
        const double weight = f->values[i] * f->deviation[i];
        double squares = 0;
        for (int m = 0; m < MEMBERS; m++) squares += f->errors[m * f->count + i] * f->errors[m * f->count + i];
        shown += weight * weight * squares / MEMBERS;
        allowed += f->values[i] * f->values[i] * f->scale[i] * f->scale[i];
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
static void summarise(const filter *f, const double passed[MEMBERS], double row[ASSAY_NULL_COLUMNS])
{
    double mean = 0, squares = 0, independent, stored = 0;
    const double factor = understated(f, &independent);
    for (int m = 0; m < MEMBERS; m++) mean += passed[m] / MEMBERS;
    for (int m = 0; m < MEMBERS; m++) squares += (passed[m] - mean) * (passed[m] - mean);
    for (int64_t i = 0; i < f->count; i++) {
        stored += f->values[i] * (assay_dtype_round(storage_of(f), f->golden[i], false) - f->golden[i]);
    }
    memset(row, 0, ASSAY_NULL_COLUMNS * sizeof *row);
    take_in(mean, row);
    take_in(stored, row);
    for (int form = 0; form < 2; form++) take_in(dot(f->count, f->values, f->nearest[form]), row);
    row[ASSAY_NULL_SPREAD] = fmax(sqrt(squares / (MEMBERS - 1)), independent) * factor;
    row[ASSAY_NULL_MEMBERS] = MEMBERS;
}

/* Zeros where the filter tells nothing. */
static assay_status write_filter(assay_context *ctx, const filter *f, const double row[ASSAY_NULL_COLUMNS])
{
    assay_status status;
    char path[ASSAY_PATH_SIZE];
    const double *values = f->values;
    const char *profile = f->e->plan->precisions[f->p].name;
    assay_direction_null_path(f->direction, profile, path);
    TRY(assay_write_result(ctx, f->e->out, path, ASSAY_NULL_COLUMNS, row));
    for (int i = 0; i < f->e->golden.count; i++) {
        const assay_scaled *t = &f->e->tensors[i];
        if (!is_in(f, t)) continue;
        assay_filter_path(profile, f->direction->name, t->spec->path, path);
        TRY(assay_write_result(ctx, f->e->out, path, t->count, values));
        values += t->count;
    }
cleanup:
    return status;
}

static assay_status finish(assay_context *ctx, const filter *f)
{
    double passed[MEMBERS], row[ASSAY_NULL_COLUMNS];
    for (int64_t i = 0; i < f->count; i++) {
        const double inverse = f->deviation[i] > 0 ? 1 / f->deviation[i] : 0;
        f->moved[i] *= inverse;
        for (int m = 0; m < MEMBERS; m++) f->errors[m * f->count + i] *= inverse;
    }
    invert(f);
    find_filter(f, passed);
    summarise(f, passed, row);
    if (!assay_direction_is_resolved(row)) {
        memset(row, 0, sizeof row);
        memset(f->values, 0, (size_t)f->count * sizeof *f->values);
    }
    return write_filter(ctx, f, row);
}

/* The ensemble's tensors, with room for the errors of as many members. */
static assay_status give_room(assay_context *ctx, assay_ensemble *own)
{
    assay_status status = ASSAY_OK;
    assay_scaled *tensors = calloc((size_t)own->golden.count + 1, sizeof *tensors);
    if (tensors == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for filters of known errors");
    memcpy(tensors, own->tensors, (size_t)own->golden.count * sizeof *tensors);
    own->tensors = tensors;
    for (int i = 0; i < own->golden.count; i++) tensors[i].errors = NULL;
    for (int i = 0; i < own->golden.count; i++) {
        void *memory = NULL;
        TRY(assay_alloc(ctx, "errors of an ensemble", tensors[i].count, MEMBERS * sizeof *tensors->errors, &memory));
        tensors[i].errors = memory;
    }
cleanup:
    return status;
}

static assay_status make_filter(assay_context *ctx, const assay_ensemble *e, filter *f)
{
    assay_status status;
    assay_ensemble own = *e;
    const assay_member member = {.precision = &e->plan->precisions[f->p]};
    f->e = &own;
    TRY(alloc_filter(ctx, f));
    if (assay_ranks_is_first(ctx)) take_golden(f);
    TRY(give_room(ctx, &own));
    TRY(run_error(ctx, f));
    TRY(assay_ensemble_run_members(ctx, &own, &member, MEMBERS));
    if (!assay_ranks_is_first(ctx)) goto cleanup;
    for (int m = 0; m < MEMBERS; m++) take_errors(f, m, true, f->errors + m * f->count);
    TRY(finish(ctx, f));
cleanup:
    for (int i = 0; own.tensors != e->tensors && i < own.golden.count; i++) free(own.tensors[i].errors);
    if (own.tensors != e->tensors) free(own.tensors);
    free(f->memory);
    return status;
}

assay_status assay_directions_write(assay_context *ctx, const assay_ensemble *e, int p)
{
    assay_status status = ASSAY_OK;
    for (int k = 0; k < assay_direction_count; k++) {
        char path[ASSAY_PATH_SIZE];
        filter f = {.direction = &assay_directions[k], .p = p};
        assay_direction_null_path(f.direction, e->plan->precisions[p].name, path);
        if (assay_plan_find(e->plan, path) < 0 || !assay_wants(e->out, path)) continue;
        TRY(make_filter(ctx, e, &f));
    }
cleanup:
    return status;
}
