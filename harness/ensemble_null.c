/* Null distributions: what the statistics of a tensor come to in correct implementations. The members are others than
 * those of the error scales: against its own scales a member would look smaller than it is. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "harness/ensemble_internal.h"
#include "harness/operations/op_support.h"
#include "oracle/arithmetic/elementary.h"
#include "oracle/base/memory.h"

enum { PIECE = 512, AS_THEY_ARE = 0, STORED = 1 };

static void null_path(const assay_precision *precision, const char *path, char null[ASSAY_PATH_SIZE])
{
    snprintf(null, ASSAY_PATH_SIZE, "null/%s/%.100s", precision->name, path);
}

bool assay_null_is_wanted(const assay_ensemble *e, const char *path)
{
    bool wanted = false;
    char null[ASSAY_PATH_SIZE];
    for (int p = 0; !wanted && p < e->plan->precision_count; p++) {
        null_path(&e->plan->precisions[p], path, null);
        wanted = assay_wants(e->out, null);
    }
    return wanted;
}

/* Rounding to float64 makes no other form of a result. */
static int forms_of(const assay_ensemble *e)
{
    return e->null_profile->storage == ASSAY_FLOAT64 ? 1 : 2;
}

/* Results of a member, or any others: both forms into their passes. */
static void add_results(const assay_ensemble *e, const assay_tracked *t, int64_t first, int64_t count,
                        const double *values)
{
    double scale[PIECE], inverse[PIECE], stored[PIECE];
    const float *scales = t->scales[e->null_precision];
    for (int64_t i = 0; i < count; i += PIECE) {
        const int64_t n = count - i < PIECE ? count - i : PIECE;
        const double *golden = t->golden + first + i;
        for (int64_t k = 0; k < n; k++) scale[k] = scales[first + i + k];
        assay_statistics_weigh(&t->null->pass[AS_THEY_ARE], n, golden, scale, inverse);
        assay_statistics_add(&t->null->pass[AS_THEY_ARE], n, golden, values + i, inverse);
        if (forms_of(e) == 1) continue;
        assay_dtype_round_many(e->null_profile->storage, n, values + i, stored);
        assay_statistics_add(&t->null->pass[STORED], n, golden, stored, inverse);
    }
}

assay_status assay_null_write(assay_context *ctx, const assay_ensemble *e, assay_tracked *t, int64_t count,
                              const double *values)
{
    (void)ctx;
    add_results(e, t, t->written, count, values);
    t->written += count;
    return ASSAY_OK;
}

void assay_null_release(assay_tracked *t, int precisions)
{
    for (int p = 0; t->scales != NULL && p < precisions; p++) free(t->scales[p]);
    free(t->scales);
    free(t->scales_written);
    for (int form = 0; t->null != NULL && form < 2; form++) assay_statistics_free(&t->null->pass[form]);
    free(t->null);
}

static assay_status start(assay_context *ctx, const assay_ensemble *e, assay_tracked *t)
{
    assay_status status = ASSAY_OK;
    const assay_dtype storage = e->null_profile->storage;
    const double unit = assay_dtype_unit_roundoff(storage), tiny = 0.5 * assay_dtype_least_subnormal(storage);
    if (t->null == NULL) t->null = calloc(1, sizeof *t->null);
    if (t->null == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for null distributions");
    for (int form = 0; form < 2; form++) {
        assay_statistics_free(&t->null->pass[form]);
        TRY(assay_statistics_start(ctx, &t->spec->shape, unit, tiny, &t->null->pass[form]));
    }
cleanup:
    return status;
}

static void finish_pass(assay_null_draws *null, int form, assay_statistics *found)
{
    assay_statistics_finish(&null->pass[form], found);
    assay_statistics_restart(&null->pass[form]);
}

/* Implementations that err less than the members, and in a way of their own, are correct too: [low, high] takes them in. */
static void take_in(const assay_ensemble *e, assay_null_draws *null)
{
    for (int form = 0; form < forms_of(e); form++) {
        assay_statistics found;
        finish_pass(null, form, &found);
        for (int s = 0; s < ASSAY_STATISTICS; s++) {
            null->low[s] = fmin(null->low[s], found.values[s]);
            null->high[s] = fmax(null->high[s], found.values[s]);
        }
    }
}

static void add_scales(const assay_ensemble *e, assay_tracked *t)
{
    double scale[PIECE], inverse[PIECE];
    assay_null_draws *null = t->null;
    null->scale_squares = null->scale_count = 0;
    for (int64_t first = 0; first < t->count; first += PIECE) {
        const int64_t n = t->count - first < PIECE ? t->count - first : PIECE;
        for (int64_t k = 0; k < n; k++) scale[k] = t->scales[e->null_precision][first + k];
        assay_statistics_weigh(&null->pass[AS_THEY_ARE], n, t->golden + first, scale, inverse);
        for (int64_t k = 0; k < n; k++) {
            const double share = inverse[k] > 0 ? scale[k] * inverse[k] : 0;
            null->scale_squares += share * share;
            null->scale_count += inverse[k] > 0;
        }
    }
}

/* No error: the golden values, and those rounded. And an error of one deviation, which the error scale allows. */
static void start_range(const assay_ensemble *e, assay_tracked *t)
{
    for (int s = 0; s < ASSAY_STATISTICS; s++) t->null->low[s] = t->null->high[s] = 0;
    add_scales(e, t);
    add_results(e, t, 0, t->count, t->golden);
    take_in(e, t->null);
}

static assay_status draw(assay_context *ctx, assay_ensemble *e, const assay_precision *precision, int number,
                         bool nearest)
{
    const assay_member member = {.precision = precision, .stream = "null", .number = number, .nearest = nearest};
    assay_status status = assay_ensemble_run(ctx, e, &member);
    for (int i = 0; status == ASSAY_OK && i < e->tensor_count; i++) {
        assay_null_draws *null = e->tensors[i].null;
        if (null == NULL) continue;
        if (nearest) {
            take_in(e, null);
        } else {
            for (int form = 0; form < forms_of(e); form++) finish_pass(null, form, &null->drawn[form][number]);
        }
    }
    return status;
}

/* Mean, standard deviation with members - 1, and the least one. */
static void moments(const assay_statistics *drawn, int members, int statistic, double *mean, double *spread)
{
    double sum = 0, squares = 0, least = 0;
    for (int m = 0; m < members; m++) {
        sum += drawn[m].values[statistic];
        least += drawn[m].least_spreads[statistic];
    }
    *mean = sum / members;
    for (int m = 0; m < members; m++) {
        const double off = drawn[m].values[statistic] - *mean;
        squares += off * off;
    }
    *spread = fmax(sqrt(squares / (members - 1)), least / members);
}

/* How much smaller the members' errors are than the error scales allow, the rounding of results aside. Where a scale
 * allows what no member shows (a difference that cancels exactly in this code), correct implementations may. */
static double understated(const assay_tracked *t, int members)
{
    const assay_null_draws *null = t->null;
    double squares = 0;
    for (int m = 0; m < members; m++) {
        const double rms = assay_exp(null->drawn[AS_THEY_ARE][m].values[ASSAY_STATISTIC_SIZE]);
        squares += rms * rms;
    }
    return fmax(sqrt(null->scale_squares / fmax(null->scale_count, 1) * members / squares), 1);
}

/* One row of the null distribution. */
static void summarise(const assay_ensemble *e, const assay_tracked *t, int members, int statistic, double row[ASSAY_NULL_COLUMNS])
{
    const assay_null_draws *null = t->null;
    double low = null->low[statistic], high = null->high[statistic], spread = 0;
    for (int form = 0; form < forms_of(e); form++) {
        double mean, own;
        moments(null->drawn[form], members, statistic, &mean, &own);
        low = fmin(low, mean);
        high = fmax(high, mean);
        spread = fmax(spread, own);
    }
    if (!assay_statistic_is_size(statistic)) spread *= understated(t, members);
    const bool used = assay_statistic_counts(&t->spec->shape, statistic) && spread > 0 && isfinite(spread);
    row[ASSAY_NULL_LOW] = used ? low : 0;
    row[ASSAY_NULL_HIGH] = used ? high : 0;
    row[ASSAY_NULL_SPREAD] = used ? spread : 0;
    row[ASSAY_NULL_MEMBERS] = used ? members : 0;
}

static assay_status write_null(assay_context *ctx, const assay_ensemble *e, const assay_tracked *t, int members)
{
    char path[ASSAY_PATH_SIZE];
    double rows[ASSAY_STATISTICS * ASSAY_NULL_COLUMNS];
    const int count = assay_statistics_count(&t->spec->shape);
    for (int s = 0; s < count; s++) summarise(e, t, members, s, rows + s * ASSAY_NULL_COLUMNS);
    null_path(&e->null_profile->precision, t->spec->path, path);
    return assay_write_result(ctx, e->out, path, count * ASSAY_NULL_COLUMNS, rows);
}

static assay_status evaluate_precision(assay_context *ctx, assay_ensemble *e, int p)
{
    assay_status status = ASSAY_OK;
    const assay_precision *precision = &e->plan->precisions[p];
    const int members = assay_null_members(e->plan);
    for (int i = 0; i < e->tensor_count; i++) {
        assay_tracked *t = &e->tensors[i];
        if (t->scales == NULL) continue;
        if (t->scales_written[p] != t->count) {
            return assay_fail(ctx, ASSAY_INTERNAL, "%s has no error scales for its null distribution", t->spec->path);
        }
        TRY(start(ctx, e, t));
        start_range(e, t);
    }
    TRY(draw(ctx, e, precision, members, true));
    for (int number = 0; number < members; number++) TRY(draw(ctx, e, precision, number, false));
    for (int i = 0; i < e->tensor_count; i++) {
        if (e->tensors[i].null != NULL) TRY(write_null(ctx, e, &e->tensors[i], members));
    }
cleanup:
    return status;
}

assay_status assay_null_evaluate(assay_context *ctx, assay_ensemble *e)
{
    assay_status status = ASSAY_OK;
    for (int p = 0; p < e->plan->precision_count; p++) {
        e->null_precision = p;
        e->null_profile = assay_plan_profile(e->plan, e->plan->precisions[p].name);
        TRY(evaluate_precision(ctx, e, p));
    }
cleanup:
    return status;
}
