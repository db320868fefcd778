#include "compare/compare_internal.h"

#include <float.h>
#include <math.h>

enum { BLOCK = 512, LANES = ASSAY_LANES };

/* Error scales lie on the grid of float32: one that reads 0 may have been this. */
#define SCALE_FLOOR 0x1p-150

/* Sums over one row, which may reach over several blocks. */
typedef struct row_sums {
    double ratio, zeros;      /* of squares: error over its standard deviation, and that of a candidate of zeros */
    double golden, candidate; /* of squares */
} row_sums;

typedef struct scan {
    const assay_comparison *c;
    assay_tensor_result *result;
    assay_facts *facts;
    assay_dtype storage;
    double unit, tiny; /* rounding of a result: unit * |golden| + tiny */
    bool has_errors;   /* correct implementations differ somewhere in the tensor */
    int64_t row_length, row_filled;
    row_sums row;
    double ratio; /* sum of squares over the tensor */
    double max_error[LANES], worst_beyond[LANES];
    assay_statistics_pass statistics;
} scan;

/* One block: the given and what is made of it. */
typedef struct block {
    const double *golden, *candidate, *scale;
    int64_t first, count;
    double error[BLOCK], ratio[BLOCK], zeros[BLOCK]; /* ratio, zeros: squared */
    double beyond[BLOCK];                            /* error beyond the rounding, over what is allowed beyond it */
    int64_t suspicious;                              /* elements that need a second look */
    int64_t unscaled;                                /* with an error scale of 0 */
    int64_t nonzero;                                 /* golden values that a candidate of zeros would miss */
} block;

/* The loop that takes the time: no branches, no calls. An element is suspicious when it may be wrong, or worse than
 * the worst so far; NaN anywhere makes it so, for every comparison with it is false. */
static void measure(const scan *s, block *b)
{
    const assay_tensor_result *r = s->result;
    const double quantile = s->c->thresholds.element, unit = s->unit, tiny = s->tiny;
    const double bar = fmin(1.0, assay_outlier_bar(r->elements_worst, r->elements_worst_count));
    int64_t suspicious = 0, unscaled = 0, nonzero = 0;
    for (int64_t i = 0; i < b->count; i++) {
        double golden = b->golden[i], scale = b->scale[i];
        double magnitude = fabs(golden), error = fabs(b->candidate[i] - golden);
        double rounding = unit * magnitude + tiny;
        double threshold = scale > 0.0 ? quantile * scale + rounding : 0.0;
        double floored = scale + SCALE_FLOOR;
        double weight = 1.0 / (floored * floored + rounding * rounding * (1.0 / 3.0));
        b->beyond[i] = (error - rounding) / (quantile * floored);
        b->error[i] = error;
        b->ratio[i] = error * error * weight;
        b->zeros[i] = magnitude * magnitude * weight;
        suspicious += !(error <= bar * threshold) | !(error <= DBL_MAX) | !(scale >= 0.0) | !(scale <= FLT_MAX);
        unscaled += scale == 0.0;
        nonzero += !(magnitude <= quantile * floored + rounding); /* what the floor hides shows nothing */
    }
    b->suspicious = suspicious;
    b->unscaled = unscaled;
    b->nonzero = nonzero;
}

static bool is_representable(assay_dtype type, double value)
{
    return assay_dtype_round(type, value, false) == value;
}

/* Where there are errors elsewhere in the tensor, those of one element may have gone in every emulated run: the golden is
 * on the storage type's grid, and the sum's error less than half a step of that. A finer candidate still shows it. */
static double as_stored(const scan *s, double candidate)
{
    return s->has_errors ? assay_dtype_round(s->storage, candidate, false) : candidate;
}

/* |error| over its threshold, for finite values. Where a correct implementation makes no error, its result is the
 * golden value rounded, and the golden value itself where that can be stored. In float64 the golden is rounded as well. */
static double excess_of(const scan *s, double golden, double candidate, double scale)
{
    const double error = fabs(candidate - golden);
    double quantile = s->c->thresholds.element;
    double rounding = s->unit * fabs(golden) + s->tiny;
    if (scale > 0.0) return error / (quantile * scale + rounding);
    if (s->has_errors && s->storage == ASSAY_FLOAT64 && golden != 0)
        return error / fmax(2 * rounding, quantile * SCALE_FLOOR);
    if (is_representable(s->storage, golden) && is_representable(s->result->candidate_type, golden)) {
        return fabs(as_stored(s, candidate) - golden) <= quantile * SCALE_FLOOR ? 0.0 : INFINITY;
    }
    return error / (rounding + quantile * SCALE_FLOOR);
}

void assay_element_thresholds(const assay_thresholds *thresholds, assay_dtype storage, int64_t count,
                              const double *golden, double *scales)
{
    const double unit = assay_dtype_unit_roundoff(storage), tiny = 0.5 * assay_dtype_least_subnormal(storage);
    bool has_errors = false;
    for (int64_t i = 0; i < count; i++) has_errors |= scales[i] > 0;
    for (int64_t i = 0; i < count; i++) {
        const double scale = scales[i], rounding = unit * fabs(golden[i]) + tiny;
        const bool may_round = has_errors || !is_representable(storage, golden[i]);
        if (!isfinite(golden[i])) {
            scales[i] = 0;
        } else if (scale > 0) {
            scales[i] = thresholds->element * scale + rounding;
        } else {
            scales[i] = may_round ? rounding * (storage == ASSAY_FLOAT64 && has_errors ? 2 : 1) : 0;
        }
    }
}

static void note_nonfinite(assay_facts *facts, int64_t index, double golden, double candidate)
{
    if (facts->nonfinite++ > 0) return;
    facts->first_nonfinite = index;
    facts->first_golden = golden;
    facts->first_candidate = candidate;
}

/* Elements that are not finite on either side stay out of the sums; what is wrong with them is said otherwise. */
static double look_at_nonfinite(scan *s, block *b, int64_t i)
{
    double golden = b->golden[i], candidate = b->candidate[i];
    int64_t index = b->first + i;
    b->ratio[i] = b->zeros[i] = b->error[i] = b->beyond[i] = 0.0;
    if (isnan(golden)) {
        if (s->facts->golden_nan < 0) s->facts->golden_nan = index;
        return 0.0;
    }
    if (isinf(golden)) s->facts->zeros_pass = false;
    if (golden == candidate) return 0.0;
    note_nonfinite(s->facts, index, golden, candidate);
    return INFINITY;
}

static void look_closely(scan *s, block *b)
{
    assay_tensor_result *r = s->result;
    for (int64_t i = 0; i < b->count; i++) {
        double golden = b->golden[i], candidate = b->candidate[i], scale = b->scale[i], excess;
        int64_t index = b->first + i;
        if (!isfinite(golden) || !isfinite(candidate)) {
            excess = look_at_nonfinite(s, b, i);
        } else if (!(scale >= 0.0 && scale <= FLT_MAX)) {
            if (s->facts->bad_scale < 0) s->facts->bad_scale = index;
            b->ratio[i] = b->zeros[i] = b->beyond[i] = excess = 0.0;
        } else {
            excess = excess_of(s, golden, candidate, scale);
            if (excess == 0.0 || isinf(excess)) b->ratio[i] = excess;
        }
        if (!(excess <= 1.0)) {
            r->wrong_elements++;
            r->max_wrong_error = fmax(r->max_wrong_error, b->error[i]);
        }
        if (isinf(excess)) b->beyond[i] = INFINITY; /* the difference of an exact element may be less than a rounding */
        if (excess > assay_outlier_bar(r->elements_worst, r->elements_worst_count)) {
            assay_outlier found = {.index = index, .golden = golden, .candidate = candidate, .excess = excess};
            assay_outlier_keep(r->elements_worst, &r->elements_worst_count, &found);
        }
    }
}

static double sum_of(const double *values, int64_t count)
{
    double lanes[LANES] = {0};
    int64_t whole = count - count % LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
        for (int lane = 0; lane < LANES; lane++) lanes[lane] += values[i + lane];
    }
    for (int64_t i = whole; i < count; i++) lanes[i - whole] += values[i];
    return assay_add_lanes(lanes);
}

static double sum_of_squares(const double *values, int64_t count)
{
    double lanes[LANES] = {0};
    int64_t whole = count - count % LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
        for (int lane = 0; lane < LANES; lane++) lanes[lane] += values[i + lane] * values[i + lane];
    }
    for (int64_t i = whole; i < count; i++) lanes[i - whole] += values[i] * values[i];
    return assay_add_lanes(lanes);
}

static void end_row(scan *s, int64_t row)
{
    assay_tensor_result *r = s->result;
    double length = (double)s->row_length;
    double excess = sqrt(s->row.ratio / length) / s->c->thresholds.row;
    assay_outlier found = {.index = row,
                           .golden = sqrt(s->row.golden / length),
                           .candidate = sqrt(s->row.candidate / length),
                           .excess = excess};
    if (!(excess <= 1.0)) r->wrong_rows++;
    if (!(excess <= assay_outlier_bar(r->rows_worst, r->rows_worst_count))) {
        assay_outlier_keep(r->rows_worst, &r->rows_worst_count, &found);
    }
    if (!(sqrt(s->row.zeros / length) <= s->c->thresholds.row)) s->facts->zeros_pass = false;
    s->ratio += s->row.ratio;
    s->row = (row_sums){0};
    s->row_filled = 0;
}

/* Adds the block to the rows that it touches. */
static void add_rows(scan *s, const block *b)
{
    for (int64_t i = 0; i < b->count;) {
        int64_t left = s->row_length - s->row_filled;
        int64_t count = b->count - i < left ? b->count - i : left;
        s->row.ratio += sum_of(b->ratio + i, count);
        s->row.zeros += sum_of(b->zeros + i, count);
        s->row.golden += sum_of_squares(b->golden + i, count);
        s->row.candidate += sum_of_squares(b->candidate + i, count);
        s->row_filled += count;
        i += count;
        if (s->row_filled == s->row_length) end_row(s, (b->first + i) / s->row_length - 1);
    }
}

/* Whether the block leaves the tensor an exact case: no error is allowed anywhere, and storage loses nothing. */
static bool is_exact(const scan *s, const block *b)
{
    double rounded[BLOCK];
    if (b->unscaled != b->count) return false;
    assay_dtype_round_many(s->storage, b->count, b->golden, rounded);
    for (int64_t i = 0; i < b->count; i++) {
        if (!(rounded[i] == b->golden[i])) return false;
    }
    return true;
}

const assay_dtype assay_coarse_types[ASSAY_COARSE_TYPES] = {ASSAY_BFLOAT16, ASSAY_FLOAT16};

/* Of statistics and of what a router makes: whether the candidate was rounded to a type in which it may not be kept. */
static void look_at_grids(scan *s, const block *b)
{
    for (int k = 0; k < ASSAY_COARSE_TYPES; k++) {
        const assay_dtype type = assay_coarse_types[k];
        if (assay_tensor_kept(&s->result->spec) == ASSAY_KEPT_STORED && s->result->spec.kept_as == ASSAY_FLOAT64)
            return;
        if (assay_dtype_unit_roundoff(type) <= assay_dtype_unit_roundoff(s->storage)) continue;
        for (int64_t i = 0; i < b->count; i++) {
            if (!is_representable(type, b->candidate[i])) {
                s->facts->fine[k]++;
            } else if (!is_representable(type, b->golden[i])) {
                s->facts->coarse[k]++;
                const double ratio = b->error[i] / (b->scale[i] + SCALE_FLOOR);
                s->facts->coarse_squares[k] += ratio * ratio;
            }
        }
    }
}

static void scan_block(scan *s, block *b)
{
    measure(s, b);
    look_at_grids(s, b);
    if (b->suspicious > 0) look_closely(s, b);
    if (s->result->exact) s->result->exact = is_exact(s, b);
    if (b->nonzero > 0) s->facts->zeros_pass = false;
    for (int64_t i = 0; s->facts->all_zero && i < b->count; i++) s->facts->all_zero = b->golden[i] == 0.0;
    for (int64_t i = 0; i < b->count; i++) {
        double *most = &s->max_error[i % LANES], *beyond = &s->worst_beyond[i % LANES];
        *most = b->error[i] > *most ? b->error[i] : *most;
        *beyond = b->beyond[i] > *beyond ? b->beyond[i] : *beyond;
    }
    add_rows(s, b);
}

/* Each statistic against its null distribution. */
static void judge_statistics(scan *s)
{
    assay_tensor_result *r = s->result;
    assay_statistics found;
    double members = 0, quantile = 0;
    assay_statistics_finish(&s->statistics, &found);
    if (found.least_deviations[ASSAY_STATISTIC_SIZE] == 0) return; /* nothing that is finite */
    for (int i = 0; i < r->statistics_count; i++) {
        assay_statistic_result *to = &r->statistics[i];
        const double *expected = to->expected, deviation = expected[ASSAY_NULL_DEVIATION];
        if (deviation == 0) continue;
        if (expected[ASSAY_NULL_MEMBERS] != members) { /* for most tensors the same for all */
            members = expected[ASSAY_NULL_MEMBERS];
            quantile = assay_statistic_quantile(&s->c->thresholds, members);
        }
        to->value = found.values[i];
        to->slice = found.slices[i];
        to->slope = found.slopes[i];
        const double allowed = quantile * assay_statistic_widening(i, &found);
        to->deviations = allowed;
        to->least = expected[ASSAY_NULL_LOW] - allowed * deviation;
        to->most = expected[ASSAY_NULL_HIGH] + allowed * deviation;
        to->excess = assay_statistic_deviation(i, to->value, expected) / allowed;
        if (r->worst_statistic < 0 || to->excess > r->statistics[r->worst_statistic].excess) r->worst_statistic = i;
        if (i == ASSAY_STATISTIC_SLOPE && assay_statistic_deviation(i, -1, expected) > quantile) {
            s->facts->zeros_pass = false; /* zeros have a slope of 0 */
        }
    }
}

static void finish(scan *s)
{
    assay_tensor_result *r = s->result;
    for (int lane = 0; lane < LANES; lane++) {
        if (s->max_error[lane] > r->max_error) r->max_error = s->max_error[lane];
        if (s->worst_beyond[lane] > r->worst_beyond) r->worst_beyond = s->worst_beyond[lane];
    }
    r->rms_ratio = r->elements > 0 ? sqrt(s->ratio / (double)r->elements) : 0.0;
    r->worst_element = r->elements_worst_count > 0 ? r->elements_worst[0].excess : 0.0;
    r->worst_row = r->rows_worst_count > 0 ? r->rows_worst[0].excess : 0.0;
}

static bool has_errors(const assay_tensor_result *result)
{
    bool found = false;
    for (int i = 0; i < result->statistics_count; i++)
        found |= result->statistics[i].expected[ASSAY_NULL_DEVIATION] > 0;
    return found;
}

/* Correct implementations may round a result to the profile's storage type, whatever type the file has. */
static scan scan_start(const assay_comparison *c, assay_tensor_result *result, assay_facts *facts)
{
    const assay_dtype storage = assay_profile_type_of(c->profile, &result->spec);
    double least = assay_dtype_least_subnormal(storage);
    double least_of_candidate = assay_dtype_least_subnormal(result->candidate_type);
    *facts = (assay_facts){.golden_nan = -1, .bad_scale = -1, .all_zero = true, .zeros_pass = true};
    result->exact = result->elements > 0;
    return (scan){.c = c,
                  .result = result,
                  .facts = facts,
                  .storage = storage,
                  .unit = assay_dtype_unit_roundoff(storage),
                  .tiny = 0.5 * fmax(least, least_of_candidate),
                  .has_errors = has_errors(result),
                  .row_length = assay_row_length(&result->spec.shape)};
}

static assay_status read_candidate(assay_context *ctx, const assay_comparison *c, const char *path, int64_t first,
                                   int64_t count, bool *unreadable)
{
    assay_status status = assay_fixture_read(ctx, c->candidate, path, first, count, c->candidate_values);
    *unreadable = status == ASSAY_BAD_INPUT;
    return *unreadable ? ASSAY_OK : status;
}

static void scan_chunk(scan *s, int64_t first, int64_t count)
{
    block b;
    for (int64_t i = 0; i < count; i += BLOCK) {
        b.golden = s->c->golden_values + i;
        b.candidate = s->c->candidate_values + i;
        b.scale = s->c->scales + i;
        b.first = first + i;
        b.count = count - i < BLOCK ? count - i : BLOCK;
        scan_block(s, &b);
    }
}

static void add_statistics(scan *s, int64_t count)
{
    const assay_comparison *c = s->c;
    if (s->result->statistics_count == 0) return;
    for (int64_t i = 0; i < count; i++) c->inverse[i] = c->scales[i] * c->scales[i];
    assay_statistics_weigh(&s->statistics, count, c->golden_values, c->inverse, c->inverse);
    assay_statistics_add(&s->statistics, count, c->golden_values, c->candidate_values, c->inverse);
}

assay_status assay_scan_floats(assay_context *ctx, const assay_comparison *c, const char *scale,
                               assay_tensor_result *result, assay_facts *facts, bool *unreadable)
{
    assay_status status = ASSAY_OK;
    const char *path = result->spec.path;
    scan s = scan_start(c, result, facts);
    *unreadable = false;
    if (result->statistics_count > 0) {
        TRY(assay_statistics_start(ctx, &result->spec.shape, s.unit, s.tiny, &s.statistics));
    }
    for (int64_t first = 0; first < result->elements; first += ASSAY_CHUNK) {
        int64_t count = result->elements - first < ASSAY_CHUNK ? result->elements - first : ASSAY_CHUNK;
        TRY(assay_fixture_read(ctx, c->golden, path, first, count, c->golden_values));
        TRY(assay_fixture_read(ctx, c->golden, scale, first, count, c->scales));
        TRY(read_candidate(ctx, c, path, first, count, unreadable));
        if (*unreadable) break;
            /* two looks at the same numbers, neither of which depends on the other */
#pragma omp parallel sections num_threads(                                                                             \
    count == ASSAY_CHUNK && result->statistics_count > 0 && ctx->threads > 1 ? 2 : 1)
        {
#pragma omp section
            scan_chunk(&s, first, count);
#pragma omp section
            add_statistics(&s, count);
        }
    }
    finish(&s);
    if (result->statistics_count > 0) judge_statistics(&s);
cleanup:
    assay_statistics_free(&s.statistics);
    return status;
}

assay_status assay_scan_finite(assay_context *ctx, const assay_comparison *c, assay_tensor_result *result,
                               assay_facts *facts, bool *unreadable)
{
    const char *path = result->spec.path;
    *facts = (assay_facts){.golden_nan = -1, .bad_scale = -1};
    *unreadable = false;
    for (int64_t first = 0; first < result->elements; first += ASSAY_CHUNK) {
        int64_t count = result->elements - first < ASSAY_CHUNK ? result->elements - first : ASSAY_CHUNK;
        MUST(assay_fixture_read(ctx, c->golden, path, first, count, c->golden_values));
        MUST(read_candidate(ctx, c, path, first, count, unreadable));
        if (*unreadable) break;
        for (int64_t i = 0; i < count; i++) {
            double golden = c->golden_values[i], candidate = c->candidate_values[i];
            bool fits = isfinite(golden) ? isfinite(candidate) : isnan(golden) || golden == candidate;
            if (!fits) note_nonfinite(facts, first + i, golden, candidate);
        }
    }
    result->wrong_elements = facts->nonfinite;
    return ASSAY_OK;
}

static void compare_chunk(const assay_comparison *c, int64_t first, int64_t count, assay_tensor_result *result,
                          assay_facts *facts)
{
    const int32_t *golden = c->golden_integers, *candidate = c->candidate_integers;
    for (int64_t i = 0; i < count; i++) {
        facts->all_zero = facts->all_zero && golden[i] == 0;
        if (golden[i] == candidate[i]) continue;
        double error = fabs((double)candidate[i] - (double)golden[i]);
        assay_outlier found = {.index = first + i, .golden = golden[i], .candidate = candidate[i], .excess = INFINITY};
        result->wrong_elements++;
        if (error > result->max_error) result->max_error = error;
        assay_outlier_keep(result->elements_worst, &result->elements_worst_count, &found);
    }
}

assay_status assay_scan_integers(assay_context *ctx, const assay_comparison *c, assay_tensor_result *result,
                                 assay_facts *facts, bool *unreadable)
{
    assay_status status = ASSAY_OK;
    const char *path = result->spec.path;
    *facts = (assay_facts){.golden_nan = -1, .bad_scale = -1, .all_zero = true};
    *unreadable = false;
    result->exact = true;
    for (int64_t first = 0; first < result->elements; first += ASSAY_CHUNK) {
        int64_t count = result->elements - first < ASSAY_CHUNK ? result->elements - first : ASSAY_CHUNK;
        TRY(assay_fixture_read_i32(ctx, c->golden, path, first, count, c->golden_integers));
        status = assay_fixture_read_i32(ctx, c->candidate, path, first, count, c->candidate_integers);
        *unreadable = status == ASSAY_BAD_INPUT;
        if (*unreadable) return ASSAY_OK;
        TRY(status);
        compare_chunk(c, first, count, result, facts);
    }
    result->worst_element = result->wrong_elements > 0 ? INFINITY : 0.0;
cleanup:
    return status;
}
