/* Null distributions: what the statistics of a tensor come to in correct implementations. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "harness/operations/op_support.h"
#include "harness/scales/ensemble_internal.h"
#include "oracle/arithmetic/elementary.h"
#include "oracle/base/memory.h"

enum { PIECE = 512, AS_THEY_ARE = 0, STORED = 1 };

/* How far out the largest slope of one run may lie, by the spread that it has among such runs. */
#define DEVIATIONS_OF_ONE 4

bool assay_null_is_wanted(const assay_ensemble *e, const char *path)
{
    bool wanted = false;
    char null[ASSAY_PATH_SIZE];
    for (int p = 0; !wanted && p < e->plan->precision_count; p++) {
        assay_path_at(ASSAY_ROLE_NULL, e->plan->precisions[p].name, path, null);
        wanted = assay_wants(e->out, null);
    }
    return wanted;
}

/* What a tensor's results are rounded to. Rounding to float64 makes no other form of a result. */
typedef struct forms {
    assay_dtype storage;
    int count;
} forms;

static forms forms_of(const assay_ensemble *e, const assay_scaled *t, int p)
{
    const assay_profile *profile = assay_plan_profile(e->plan, e->plan->precisions[p].name);
    const assay_dtype storage = assay_profile_type_of(profile, t->spec);
    return (forms){.storage = storage, .count = storage == ASSAY_FLOAT64 ? 1 : 2};
}

/* Of one run's results, one for each form. */
typedef struct passes {
    assay_statistics_pass form[2];
} passes;

static assay_status start(assay_context *ctx, const assay_scaled *t, const forms *f, passes *pass)
{
    const double unit = assay_dtype_unit_roundoff(f->storage), tiny = 0.5 * assay_dtype_least_subnormal(f->storage);
    for (int form = 0; form < f->count; form++)
        MUST(assay_statistics_start(ctx, &t->spec->shape, unit, tiny, &pass->form[form]));
    return ASSAY_OK;
}

static void end(passes *pass)
{
    for (int form = 0; form < 2; form++) assay_statistics_free(&pass->form[form]);
}

/* Both forms of a piece of results, golden values and errors (NULL: none), against error scales whose squares are in
 * `weights`; they are lost. */
static void add_piece(const assay_scaled *t, const forms *f, int64_t first, int64_t n, const float *errors,
                      double *weights, passes *pass)
{
    double values[PIECE], stored[PIECE];
    const double *golden = t->golden + first;
    for (int64_t k = 0; k < n; k++) values[k] = golden[k] + (errors != NULL ? errors[first + k] : 0);
    assay_statistics_weigh(&pass->form[AS_THEY_ARE], n, golden, weights, weights);
    assay_statistics_add(&pass->form[AS_THEY_ARE], n, golden, values, weights);
    if (f->count == 1) return;
    assay_dtype_round_many(f->storage, n, values, stored);
    assay_statistics_add(&pass->form[STORED], n, golden, stored, weights);
}

static int64_t piece_at(const assay_scaled *t, int64_t first)
{
    return t->count - first < PIECE ? t->count - first : PIECE;
}

static void add_results(const assay_scaled *t, const forms *f, const float *errors, passes *pass)
{
    double variance[PIECE];
    for (int64_t first = 0; first < t->count; first += PIECE) {
        const int64_t n = piece_at(t, first);
        const float *scale = t->scale + first;
        for (int64_t k = 0; k < n; k++) variance[k] = (double)scale[k] * scale[k];
        add_piece(t, f, first, n, errors, variance, pass);
    }
}

/* Members first_member, first_member + step ... piece by piece, each against the others (`held`: NULL: against the
 * scales as they are). What has an error scale of 0 counts for none. */
static void add_members(const assay_scaled *t, const forms *f, int first_member, int step, int members,
                        const assay_leave_one_out *held, passes *pass)
{
    double squares[PIECE], variance[PIECE];
    for (int64_t first = 0; first < t->count; first += PIECE) {
        const int64_t n = piece_at(t, first);
        const float *scale = t->scale + first;
        if (held != NULL) assay_leave_one_out_squares(held, first, n, squares);
        for (int m = first_member; m < members; m += step) {
            if (held != NULL) assay_leave_one_out_variances(held, m, first, n, squares, variance);
            for (int64_t k = 0; k < n; k++) {
                const double whole = (double)scale[k] * scale[k];
                const double least = t->least * t->golden[first + k], square = least * least;
                if (held == NULL || !(whole > 0))
                    variance[k] = whole;
                else if (variance[k] < square)
                    variance[k] = square;
            }
            add_piece(t, f, first, n, t->errors + m * t->count, variance, &pass[m]);
        }
    }
}

/* Implementations that err less than the members, and in a way of their own, are correct too: [low, high] takes them
 * in. */
static void take_in(const forms *f, const passes *pass, assay_null_draws *null)
{
    for (int form = 0; form < f->count; form++) {
        assay_statistics found;
        assay_statistics_finish(&pass->form[form], &found);
        for (int s = 0; s < ASSAY_STATISTICS; s++) {
            if (assay_statistic_is_slice_slope(s)) {
                null->deviation[s] = fmax(null->deviation[s], found.values[s] / DEVIATIONS_OF_ONE);
                continue;
            }
            null->low[s] = fmin(null->low[s], found.values[s]);
            null->high[s] = fmax(null->high[s], found.values[s]);
        }
    }
}

static void add_scales(const assay_scaled *t, const assay_statistics_pass *pass)
{
    double variance[PIECE], inverse[PIECE];
    assay_null_draws *null = t->null;
    null->scale_squares = null->scale_count = 0;
    for (int64_t first = 0; first < t->count; first += PIECE) {
        const int64_t n = piece_at(t, first);
        for (int64_t k = 0; k < n; k++) variance[k] = (double)t->scale[first + k] * t->scale[first + k];
        assay_statistics_weigh(pass, n, t->golden + first, variance, inverse);
        for (int64_t k = 0; k < n; k++) {
            null->scale_squares += inverse[k] > 0 ? variance[k] * inverse[k] * inverse[k] : 0;
            null->scale_count += inverse[k] > 0;
        }
    }
}

/* No error: the golden values, and those rounded. And an error of one deviation, which the error scale allows. */
static assay_status start_range(assay_context *ctx, const assay_scaled *t, const forms *f)
{
    OWNED_BY(end) passes pass = {0};
    for (int s = 0; s < ASSAY_STATISTICS; s++) {
        t->null->low[s] = t->null->high[s] = t->null->deviation[s] = 0;
        t->null->members[s] = ASSAY_MOST_MEMBERS;
    }
    MUST(start(ctx, t, f, &pass));
    add_scales(t, &pass.form[AS_THEY_ARE]);
    add_results(t, f, NULL, &pass);
    take_in(f, &pass, t->null);
    return ASSAY_OK;
}

/* Of the members, in each form: their statistics, and of each statistic of slopes the spread of its largest slice, and how
 * many members know as much of a single number. */
typedef struct draws {
    assay_statistics of[2][ASSAY_MOST_MEMBERS];
    double slope_deviations[2][ASSAY_STATISTICS], slope_members[2][ASSAY_STATISTICS];
} draws;

/* How well a variance is known that is the same for many slices: by how little its estimate differs from member to member
 * (Satterthwaite: 2 over the relative variance of the mean), which is itself known from few, so a quarter of that. Between
 * what one slice would have and what ASSAY_MOST_MEMBERS would. */
static double members_of(int members, const double *squares)
{
    enum { DOUBT = 4 };
    double mean = 0, variance = 0;
    for (int m = 0; m < members; m++) mean += squares[m] / members;
    for (int m = 0; m < members; m++) variance += (squares[m] - mean) * (squares[m] - mean) / (members - 1);
    const double freedom = 2 * members * mean * mean / (DOUBT * variance);
    return fmin(fmax(members, freedom + 1), ASSAY_MOST_MEMBERS); /* members where nothing is finite */
}

/* The largest mean square of z over the members that a slice has, for as many slices. */
static assay_status find_slope_deviation(assay_context *ctx, const assay_scaled *t, int form, int members,
                                         int statistic, const passes *pass, draws *drawn)
{
    double *squares = NULL, largest = 0, before = 0, of_member[ASSAY_MOST_MEMBERS];
    const int64_t slices = assay_statistic_slices(&t->spec->shape, statistic);
    MUST(assay_alloc_zeros(ctx, "slopes of slices", slices, &squares));
    for (int m = 0; m < members; m++) {
        double sum = 0;
        assay_statistics_add_squares(&pass[m].form[form], statistic, squares);
        for (int64_t i = 0; i < slices; i++) sum += squares[i];
        of_member[m] = sum - before;
        before = sum;
    }
    for (int64_t i = 0; i < slices; i++) largest = fmax(largest, squares[i]);
    drawn->slope_deviations[form][statistic] = assay_largest_of_slices(slices) * sqrt(largest / members);
    drawn->slope_members[form][statistic] = members_of(members, of_member);
    free(squares);
    return ASSAY_OK;
}

/* Statistics of the members whose errors are there. */
static assay_status draw(assay_context *ctx, const assay_scaled *t, const forms *f, int members,
                         const assay_leave_one_out *held, draws *drawn)
{
    assay_status status;
    passes pass[ASSAY_MOST_MEMBERS] = {0};
    for (int m = 0; m < members; m++) TRY(start(ctx, t, f, &pass[m]));
    for (int m = 0; m < members; m++)
        for (int form = 0; form < f->count; form++)
            TRY(assay_tile_slopes_keep(ctx, &pass[m].form[form].shape, &pass[m].form[form].tiles));
    const int workers = ctx->threads < members ? ctx->threads : members;
#pragma omp parallel for num_threads(workers)
    for (int worker = 0; worker < workers; worker++) add_members(t, f, worker, workers, members, held, pass);
    for (int form = 0; form < f->count; form++) {
        for (int m = 0; m < members; m++) assay_statistics_finish(&pass[m].form[form], &drawn->of[form][m]);
        for (int s = ASSAY_STATISTIC_TILE_SLOPE; s < ASSAY_STATISTICS; s++) {
            if (!assay_statistic_counts(&t->spec->shape, s)) continue;
            TRY(find_slope_deviation(ctx, t, form, members, s, pass, drawn));
        }
    }
cleanup:
    for (int m = 0; m < members; m++) end(&pass[m]);
    return status;
}

/* Mean, standard deviation with members - 1, and the least one. The largest of many slopes is no Gaussian number: it is held
 * from 0 on. */
static void moments(const draws *drawn, int form, int members, int statistic, double *mean, double *deviation)
{
    const assay_statistics *of = drawn->of[form];
    double sum = 0, squares = 0, least = 0;
    for (int m = 0; m < members; m++) {
        sum += of[m].values[statistic];
        least += of[m].least_deviations[statistic];
    }
    *mean = sum / members;
    for (int m = 0; m < members; m++) {
        const double off = of[m].values[statistic] - *mean;
        squares += off * off;
    }
    *deviation = sqrt(squares / (members - 1));
    if (assay_statistic_is_slice_slope(statistic)) {
        *mean = 0;
        *deviation = drawn->slope_deviations[form][statistic];
    }
    *deviation = fmax(*deviation, least / members);
}

/* How much smaller the members' errors are than the error scales allow, the rounding of results aside. Where a scale
 * allows what no member shows (a difference that cancels exactly in this code), correct implementations may. */
static double understated(const assay_scaled *t, const draws *drawn, int members)
{
    const assay_null_draws *null = t->null;
    double squares = 0;
    for (int m = 0; m < members; m++) {
        const double rms = assay_exp(drawn->of[AS_THEY_ARE][m].values[ASSAY_STATISTIC_SIZE]);
        squares += rms * rms;
    }
    return fmax(sqrt(null->scale_squares / fmax(null->scale_count, 1) * members / squares), 1);
}

/* The range takes in each form's mean; the spread is the largest. Of what errors have in common, correct implementations may
 * have `times` as much; sizes are held against what error scales allow already. */
static void take_members(const assay_scaled *t, const forms *f, int members, int statistic, double times,
                         const draws *drawn)
{
    assay_null_draws *null = t->null;
    for (int form = 0; form < f->count; form++) {
        double mean, own;
        moments(drawn, form, members, statistic, &mean, &own);
        if (!assay_statistic_is_size(statistic)) own *= times;
        null->low[statistic] = fmin(null->low[statistic], mean);
        null->high[statistic] = fmax(null->high[statistic], mean);
        null->deviation[statistic] = fmax(null->deviation[statistic], own);
        const bool by_slices = assay_statistic_is_slice_slope(statistic);
        null->members[statistic] =
            fmin(null->members[statistic], by_slices ? drawn->slope_members[form][statistic] : members);
    }
}

assay_status assay_null_draw(assay_context *ctx, const assay_ensemble *e, const assay_scaled *t, int p, int members,
                             const assay_leave_one_out *held)
{
    draws drawn = {0};
    const forms f = forms_of(e, t, p);
    MUST(start_range(ctx, t, &f));
    MUST(draw(ctx, t, &f, members, held, &drawn));
    const double times = understated(t, &drawn, members);
    for (int s = 0; s < ASSAY_STATISTICS; s++) take_members(t, &f, members, s, times, &drawn);
    return ASSAY_OK;
}

assay_status assay_null_draw_beside(assay_context *ctx, const assay_ensemble *e, const assay_scaled *t, int p,
                                    int members)
{
    draws drawn = {0};
    const forms f = forms_of(e, t, p);
    const assay_status status = draw(ctx, t, &f, members, NULL, &drawn);
    for (int s = 0; status == ASSAY_OK && s < ASSAY_STATISTICS; s++)
        if (!assay_statistic_is_size(s)) take_members(t, &f, members, s, 1, &drawn);
    return status;
}

assay_status assay_null_draw_least(assay_context *ctx, const assay_ensemble *e, const assay_scaled *t, int p,
                                   int members)
{
    draws drawn = {0};
    assay_null_draws *null = t->null;
    const forms f = forms_of(e, t, p);
    MUST(draw(ctx, t, &f, members, NULL, &drawn));
    for (int form = 0; form < f.count; form++) {
        double mean, deviation;
        moments(&drawn, form, members, ASSAY_STATISTIC_SIZE, &mean, &deviation);
        mean -= f.storage == ASSAY_FLOAT64 ? M_LN2 : 0.5 * M_LN2; /* errors to nearest are 1/2 or sqrt(1/2) of these */
        null->least_size = form == 0 ? mean : fmin(null->least_size, mean);
        null->deviation[ASSAY_STATISTIC_SIZE] = fmax(null->deviation[ASSAY_STATISTIC_SIZE], deviation);
    }
    return ASSAY_OK;
}

/* Whether errors towards zero, and slopes of slices, say anything: not where a constant that is rounded to float32 gives
 * as much. */
static bool is_usable(const assay_scaled *t, const forms *f, int statistic)
{
    const bool coarse = assay_dtype_unit_roundoff(f->storage) > assay_dtype_unit_roundoff(ASSAY_FLOAT32);
    const bool by_direction = statistic == ASSAY_STATISTIC_TOWARD_ZERO || assay_statistic_is_slice_slope(statistic);
    return assay_statistic_counts(&t->spec->shape, statistic) && (coarse || !by_direction);
}

/* A statistic that lies beyond the grid of files is left out: a slope where golden values are 1e-60. */
static bool is_in_range(double x)
{
    return fabs(x) <= FLT_MAX;
}

/* One row of the null distribution. */
static void summarise(const assay_scaled *t, const forms *f, int statistic, double row[ASSAY_NULL_COLUMNS])
{
    const assay_null_draws *null = t->null;
    const double low = null->low[statistic], high = null->high[statistic], deviation = null->deviation[statistic];
    const bool used =
        is_usable(t, f, statistic) && deviation > 0 && is_in_range(deviation) && is_in_range(low) && is_in_range(high);
    row[ASSAY_NULL_LOW] = used ? low : 0;
    row[ASSAY_NULL_HIGH] = used ? high : 0;
    row[ASSAY_NULL_DEVIATION] = used ? deviation : 0;
    row[ASSAY_NULL_MEMBERS] = used ? null->members[statistic] : 0;
}

assay_status assay_null_finish(assay_context *ctx, const assay_ensemble *e, const assay_scaled *t, int p)
{
    OWNED_BY(end) passes pass = {0};
    char path[ASSAY_PATH_SIZE];
    double rows[ASSAY_STATISTICS * ASSAY_NULL_COLUMNS];
    const forms f = forms_of(e, t, p);
    const int count = assay_statistics_rows(&t->spec->shape);
    MUST(start(ctx, t, &f, &pass));
    add_results(t, &f, t->errors, &pass);
    take_in(&f, &pass, t->null);
    for (int s = 0; e->plan->less != NULL && s < ASSAY_STATISTICS; s++) { /* A less B is as right as B less A */
        if (assay_statistic_is_size(s)) continue;
        t->null->low[s] = fmin(t->null->low[s], -t->null->high[s]);
        t->null->high[s] = fmax(t->null->high[s], -t->null->low[s]);
    }
    if (e->plan->precisions[p].form == ASSAY_FORM_INACCURATE)
        t->null->low[ASSAY_STATISTIC_SIZE] = fmin(t->null->least_size, t->null->high[ASSAY_STATISTIC_SIZE]);
    for (int s = 0; s < ASSAY_STATISTICS; s++) {
        const int row = assay_statistic_row(&t->spec->shape, s);
        if (row >= 0) summarise(t, &f, s, rows + row * ASSAY_NULL_COLUMNS);
    }
    assay_path_at(ASSAY_ROLE_NULL, e->plan->precisions[p].name, t->spec->path, path);
    return assay_write_result(ctx, e->out, path, count * ASSAY_NULL_COLUMNS, rows);
}
