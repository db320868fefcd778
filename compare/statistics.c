#include "compare/statistics.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "compare/quantiles.h"
#include "oracle/arithmetic/elementary.h"
#include "oracle/base/memory.h"

/* The logarithm of an RMS of 0. */
#define LEAST_RMS 0x1p-60

/* Errors below this share of a deviation have no sign: who rounds less than the profile may err to one side. Nor have errors
 * up to half of the type's least number, which are gone where results are stored in it. */
#define LEAST_SIGNED 0x1p-6

enum { PIECE = 512, HALF = ASSAY_LANES / 2 }; /* elements at a time; lanes at a time */

/* Read and written at any double. */
typedef double half_lanes __attribute__((vector_size(HALF * sizeof(double)), aligned(sizeof(double)), may_alias));

bool assay_statistic_is_slice_slope(int statistic)
{
    return statistic >= ASSAY_STATISTIC_TILE_SLOPE;
}

bool assay_statistic_is_size(int statistic)
{
    const bool of_slices = statistic >= ASSAY_STATISTIC_ROW && !assay_statistic_is_slice_slope(statistic);
    return statistic == ASSAY_STATISTIC_SIZE || of_slices;
}

/* Sums for each index of a longer axis would be no small memory. */
static bool axis_is_summed(const assay_shape *shape, int axis)
{
    return shape->dims[axis] <= ASSAY_LONGEST_AXIS;
}

static int axes_above_one(const assay_shape *shape)
{
    int count = 0;
    for (int axis = 0; axis < shape->rank; axis++) count += shape->dims[axis] > 1;
    return count;
}

/* The axis that a statistic is one of; -1: of none. */
static int axis_of(int statistic)
{
    if (statistic >= ASSAY_STATISTIC_AXIS_SLOPE) return statistic - ASSAY_STATISTIC_AXIS_SLOPE;
    if (statistic >= ASSAY_STATISTIC_TILE_SLOPE) return -1;
    return statistic >= ASSAY_STATISTIC_AXIS ? statistic - ASSAY_STATISTIC_AXIS : -1;
}

bool assay_statistic_counts(const assay_shape *shape, int statistic)
{
    const int last = shape->rank - 1, above_one = axes_above_one(shape), axis = axis_of(statistic);
    if (axis >= shape->rank) return false;
    if (statistic >= ASSAY_STATISTIC_TILE_SLOPE && axis < 0) {
        return last >= 0 && axis_is_summed(shape, last) &&
               assay_tiles_count(shape, statistic - ASSAY_STATISTIC_TILE_SLOPE) > 1;
    }
    if (statistic == ASSAY_STATISTIC_ROW) return last >= 0 && above_one - (shape->dims[last] > 1) > 1;
    if (statistic == ASSAY_STATISTIC_TILE)
        return last >= 0 && shape->dims[last] > ASSAY_TILE && axis_is_summed(shape, last);
    if (axis < 0) return true;
    return shape->dims[axis] > 1 && axis_is_summed(shape, axis);
}

assay_status assay_statistics_start(assay_context *ctx, const assay_shape *shape, double unit, double tiny,
                                    assay_statistics_pass *pass)
{
    int64_t total = 0;
    *pass = (assay_statistics_pass){.shape = *shape, .isa = ctx->isa, .unit = unit, .tiny = tiny, .worst_row_count = 1};
    pass->length = assay_row_length(shape);
    for (int axis = 0; axis < shape->rank; axis++) total += axis_is_summed(shape, axis) ? shape->dims[axis] : 0;
    assay_status status = assay_alloc_zeros(ctx, "statistics of errors", 4 * total + 1, &pass->memory);
    if (status != ASSAY_OK) return status;
    double *next = pass->memory;
    for (int axis = 0; axis < shape->rank; axis++) { /* the last axis' slopes are among the tiles' */
        double **const sums[] = {&pass->squares[axis], &pass->counts[axis], &pass->products[axis],
                                 &pass->weights[axis]};
        for (int i = 0; i < 4 && axis_is_summed(shape, axis); i++, next += shape->dims[axis]) *sums[i] = next;
    }
    if (shape->rank > 0 && axis_is_summed(shape, shape->rank - 1)) {
        status = assay_tile_slopes_start(ctx, shape, &pass->tiles);
        pass->products[shape->rank - 1] = pass->tiles.whole_products;
        pass->weights[shape->rank - 1] = pass->tiles.whole_weights;
    }
    if (status != ASSAY_OK) assay_statistics_free(pass);
    return status;
}

/* Of those before slopes of slices. */
static int earlier_rows(const assay_shape *shape)
{
    return ASSAY_STATISTIC_AXIS + shape->rank;
}

int assay_statistics_rows(const assay_shape *shape)
{
    return earlier_rows(shape) + ASSAY_TILE_SIZES + shape->rank;
}

bool assay_statistics_rows_are_known(const assay_shape *shape, int64_t rows)
{
    const int earlier = earlier_rows(shape);
    return rows == assay_statistics_rows(shape) || rows == earlier || rows == earlier - 1;
}

int assay_statistic_row(const assay_shape *shape, int statistic)
{
    const int earlier = earlier_rows(shape);
    if (axis_of(statistic) >= shape->rank) return -1;
    if (statistic >= ASSAY_STATISTIC_TILE_SLOPE) return earlier + statistic - ASSAY_STATISTIC_TILE_SLOPE;
    if (statistic == ASSAY_STATISTIC_TOWARD_ZERO) return earlier - 1;
    return statistic < ASSAY_STATISTIC_TOWARD_ZERO ? statistic : statistic - 1;
}

static void end_row(assay_statistics_pass *pass)
{
    const int last = pass->shape.rank - 1;
    const double squares = assay_add_lanes(pass->sums.row_squares), count = assay_add_lanes(pass->sums.row_count);
    const double products = assay_add_lanes(pass->sums.row_products), weights = assay_add_lanes(pass->sums.row_weights);
    for (int lane = 0; lane < ASSAY_LANES; lane++) {
        pass->sums.row_squares[lane] = pass->sums.row_count[lane] = 0;
        pass->sums.row_products[lane] = pass->sums.row_weights[lane] = 0;
    }
    for (int axis = 0; axis < last; axis++) {
        if (pass->squares[axis] == NULL) continue;
        pass->squares[axis][pass->index[axis]] += squares;
        pass->counts[axis][pass->index[axis]] += count;
        pass->products[axis][pass->index[axis]] += products;
        pass->weights[axis][pass->index[axis]] += weights;
    }
    if (pass->tiles.memory != NULL) assay_tile_slopes_end_row(&pass->tiles);
    if (squares * pass->worst_row_count > pass->worst_row * count) {
        pass->worst_row = squares;
        pass->worst_row_count = count;
        pass->worst_row_index = pass->row;
    }
    pass->all += squares;
    pass->count += count;
    pass->all_products += products;
    pass->all_weights += weights;
    pass->column = 0;
    pass->row++;
    for (int axis = last - 1; axis >= 0; axis--) {
        if (++pass->index[axis] < pass->shape.dims[axis]) break;
        pass->index[axis] = 0;
    }
}

static inline __attribute__((always_inline)) void weigh(const assay_statistics_pass *pass, int64_t count,
                                                        const double *golden, const double *variance, double *inverse)
{
    const double unit = pass->unit, tiny = pass->tiny;
    for (int64_t i = 0; i < count; i++) {
        const double rounding = unit * fabs(golden[i]) + tiny;
        const double deviation = sqrt(variance[i] + rounding * rounding * (1.0 / 3.0));
        const bool counts = (variance[i] > 0) & (deviation > 0) & (deviation <= DBL_MAX);
        inverse[i] = counts ? 1 / deviation : 0;
    }
}

/* What an element adds to the sums. */
typedef struct piece {
    double r[PIECE], size[PIECE], counts[PIECE], sign[PIECE], outward[PIECE];
} piece;

static inline __attribute__((always_inline)) void measure(double tiny, int64_t count, const double *golden,
                                                          const double *candidate, const double *inverse, piece *p)
{
    for (int64_t i = 0; i < count; i++) {
        const double error = candidate[i] - golden[i], r = error * inverse[i];
        const bool counts = (inverse[i] > 0) & (fabs(r) <= DBL_MAX), shows = fabs(error) > tiny;
        p->r[i] = counts ? r : 0;
        p->size[i] = counts ? golden[i] * inverse[i] : 0;
        p->counts[i] = counts ? 1 : 0;
        p->sign[i] = !shows ? 0 : p->r[i] > LEAST_SIGNED ? 1 : p->r[i] < -LEAST_SIGNED ? -1 : 0;
        p->outward[i] = golden[i] > 0 ? p->sign[i] : golden[i] < 0 ? -p->sign[i] : 0;
    }
}

static inline __attribute__((always_inline)) void add_element(assay_statistics_sums *sums, const piece *p, int64_t i,
                                                              int64_t lane)
{
    const double r = p->r[i], size = p->size[i];
    sums->row_squares[lane] += r * r;
    sums->row_count[lane] += p->counts[i];
    sums->errors[lane] += r;
    sums->row_products[lane] += r * size;
    sums->row_weights[lane] += size * size;
    sums->signed_count[lane] += fabs(p->sign[i]);
    sums->signs[lane] += p->sign[i];
    sums->outward[lane] += p->outward[i];
}

/* add_element of whole sets of lanes, half of them at a time: the sums stay in registers. */
static inline __attribute__((always_inline)) void add_whole(assay_statistics_sums *sums, const piece *p, int64_t first,
                                                            int64_t end, int64_t lane)
{
    double *const of[] = {sums->row_squares + lane,  sums->row_count + lane,   sums->errors + lane,
                          sums->row_products + lane, sums->row_weights + lane, sums->signed_count + lane,
                          sums->signs + lane,        sums->outward + lane};
    half_lanes sum[8];
    for (int k = 0; k < 8; k++) sum[k] = *(half_lanes *)of[k];
    for (int64_t i = first + lane; i < end; i += ASSAY_LANES) {
        const half_lanes r = *(const half_lanes *)(p->r + i), size = *(const half_lanes *)(p->size + i);
        const half_lanes sign = *(const half_lanes *)(p->sign + i);
        const half_lanes term[] = {r * r, *(const half_lanes *)(p->counts + i), r, r * size, size * size, sign * sign,
                                   sign,  *(const half_lanes *)(p->outward + i)};
        for (int k = 0; k < 8; k++) sum[k] += term[k];
    }
    for (int k = 0; k < 8; k++) *(half_lanes *)of[k] = sum[k];
}

/* At most PIECE elements of one row. An element's lane is that of its column, so that pieces make no difference. */
static inline __attribute__((always_inline)) void add_to_row(assay_statistics_pass *pass, int64_t count,
                                                             const double *golden, const double *candidate,
                                                             const double *inverse)
{
    piece p;
    const int64_t to_lane_0 = -pass->column & (ASSAY_LANES - 1), head = to_lane_0 < count ? to_lane_0 : count;
    const int64_t whole = head + (count - head) / ASSAY_LANES * ASSAY_LANES;
    assay_statistics_sums *sums = &pass->sums;
    measure(pass->tiny, count, golden, candidate, inverse, &p);
    if (pass->shape.rank > 0 && pass->squares[pass->shape.rank - 1] != NULL) {
        double *squares = pass->squares[pass->shape.rank - 1] + pass->column;
        double *counts = pass->counts[pass->shape.rank - 1] + pass->column;
        for (int64_t i = 0; i < count; i++) squares[i] += p.r[i] * p.r[i];
        for (int64_t i = 0; i < count; i++) counts[i] += p.counts[i];
        double *products = pass->tiles.products[0] + pass->column, *weights = pass->tiles.weights[0] + pass->column;
        for (int64_t i = 0; i < count; i++) products[i] += p.r[i] * p.size[i];
        for (int64_t i = 0; i < count; i++) weights[i] += p.size[i] * p.size[i];
    }
    for (int64_t i = 0; i < head; i++) add_element(sums, &p, i, (pass->column + i) & (ASSAY_LANES - 1));
    add_whole(sums, &p, head, whole, 0);
    add_whole(sums, &p, head, whole, HALF);
    for (int64_t i = whole; i < count; i++) add_element(sums, &p, i, i - whole);
    pass->column += count;
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void weigh_avx2(const assay_statistics_pass *pass, int64_t count,
                                                       const double *golden, const double *variance, double *inverse)
{
    weigh(pass, count, golden, variance, inverse);
}

__attribute__((target("avx2"))) static void add_to_row_avx2(assay_statistics_pass *pass, int64_t count,
                                                            const double *golden, const double *candidate,
                                                            const double *inverse)
{
    add_to_row(pass, count, golden, candidate, inverse);
}
#endif

void assay_statistics_weigh(const assay_statistics_pass *pass, int64_t count, const double *golden,
                            const double *variance, double *inverse)
{
#ifdef __x86_64__
    if (pass->isa != ASSAY_ISA_SCALAR) {
        weigh_avx2(pass, count, golden, variance, inverse);
        return;
    }
#endif
    weigh(pass, count, golden, variance, inverse);
}

static void add_piece(assay_statistics_pass *pass, int64_t count, const double *golden, const double *candidate,
                      const double *inverse)
{
#ifdef __x86_64__
    if (pass->isa != ASSAY_ISA_SCALAR) {
        add_to_row_avx2(pass, count, golden, candidate, inverse);
        return;
    }
#endif
    add_to_row(pass, count, golden, candidate, inverse);
}

void assay_statistics_add(assay_statistics_pass *pass, int64_t count, const double *golden, const double *candidate,
                          const double *inverse)
{
    while (count > 0) {
        const int64_t left = pass->length - pass->column, fit = left < PIECE ? left : PIECE;
        const int64_t n = count < fit ? count : fit;
        add_piece(pass, n, golden, candidate, inverse);
        if (pass->column == pass->length) end_row(pass);
        golden += n, candidate += n, inverse += n;
        count -= n;
    }
}

/* The relative spread of an RMS of `count` independent errors. */
static void set_size(assay_statistics *found, int statistic, double squares, double count, int64_t slice)
{
    found->values[statistic] = assay_log(fmax(sqrt(squares / fmax(count, 1)), LEAST_RMS));
    found->slices[statistic] = slice;
    found->least_deviations[statistic] = 1 / sqrt(2 * fmax(count, 1));
}

/* Of `slices` slices of `step` indices each the one with the largest RMS. */
static void set_largest(assay_statistics *found, int statistic, const double *squares, const double *counts,
                        int64_t length, int64_t step)
{
    double worst = 0, worst_count = 1;
    int64_t slice = 0;
    for (int64_t first = 0; first < length; first += step) {
        double sum = 0, count = 0;
        for (int64_t i = first; i < length && i < first + step; i++) {
            sum += squares[i];
            count += counts[i];
        }
        if (!(sum * worst_count > worst * count)) continue;
        worst = sum, worst_count = count;
        slice = first / step;
    }
    set_size(found, statistic, worst, worst_count, slice);
}

/* Independent errors have the z that one error has. */
static void set_slope(const assay_statistics_pass *pass, assay_statistics *found, int statistic,
                      const assay_worst_slope *worst)
{
    const double largest = assay_largest_of_slices(assay_statistic_slices(&pass->shape, statistic));
    found->values[statistic] = sqrt(worst->square);
    found->slices[statistic] = worst->slice;
    found->slopes[statistic] = worst->slope;
    found->least_deviations[statistic] = largest * sqrt(pass->all / pass->count);
}

/* Of results that many statistics are taken of. */
#define USUAL_TAIL 1e-9

double assay_largest_of_slices(int64_t slices)
{
    const double count = (double)(slices > 1 ? slices : 1);
    return assay_normal_upper_quantile(USUAL_TAIL / count) / assay_normal_upper_quantile(USUAL_TAIL);
}

int64_t assay_statistic_slices(const assay_shape *shape, int statistic)
{
    const int axis = axis_of(statistic);
    if (axis >= 0) return shape->dims[axis];
    return assay_statistic_is_slice_slope(statistic) ? assay_tiles_count(shape, statistic - ASSAY_STATISTIC_TILE_SLOPE)
                                                     : 1;
}

void assay_statistics_add_squares(const assay_statistics_pass *pass, int statistic, double *squares)
{
    const int axis = axis_of(statistic), level = statistic - ASSAY_STATISTIC_TILE_SLOPE;
    const int64_t count = assay_statistic_slices(&pass->shape, statistic);
    for (int64_t i = 0; i < count; i++) {
        squares[i] += axis >= 0 ? assay_slope_square(pass->products[axis][i], pass->weights[axis][i])
                                : pass->tiles.squares[level][i];
    }
}

static void set_slice_slopes(const assay_statistics_pass *pass, assay_statistics *found)
{
    const int last = pass->shape.rank - 1;
    for (int level = 0; level < ASSAY_TILE_SIZES && pass->tiles.memory != NULL; level++) {
        set_slope(pass, found, ASSAY_STATISTIC_TILE_SLOPE + level, &pass->tiles.worst[level]);
    }
    for (int axis = 0; axis <= last; axis++) {
        if (pass->squares[axis] == NULL) continue;
        const int64_t length = pass->shape.dims[axis];
        const assay_worst_slope worst = assay_worst_slope_of(length, pass->products[axis], pass->weights[axis]);
        set_slope(pass, found, ASSAY_STATISTIC_AXIS_SLOPE + axis, &worst);
    }
}

void assay_statistics_finish(const assay_statistics_pass *pass, assay_statistics *found)
{
    const assay_shape *shape = &pass->shape;
    const int last = shape->rank - 1;
    *found = (assay_statistics){0};
    if (!(pass->count > 0)) return;
    const double rms = sqrt(pass->all / pass->count), weights = pass->all_weights;
    const double signs = assay_add_lanes(pass->sums.signed_count);
    set_size(found, ASSAY_STATISTIC_SIZE, pass->all, pass->count, 0);
    found->values[ASSAY_STATISTIC_BIAS] = assay_add_lanes(pass->sums.errors) / pass->count;
    found->least_deviations[ASSAY_STATISTIC_BIAS] = rms / sqrt(pass->count);
    if (weights > 0) {
        found->values[ASSAY_STATISTIC_SLOPE] = pass->all_products / weights;
        found->least_deviations[ASSAY_STATISTIC_SLOPE] = rms / sqrt(weights);
    }
    found->values[ASSAY_STATISTIC_SIGN] = 0.5 * assay_add_lanes(pass->sums.signs) / pass->count;
    found->least_deviations[ASSAY_STATISTIC_SIGN] = 0.5 * sqrt(signs) / pass->count;
    found->values[ASSAY_STATISTIC_TOWARD_ZERO] = -0.5 * assay_add_lanes(pass->sums.outward) / pass->count;
    found->least_deviations[ASSAY_STATISTIC_TOWARD_ZERO] = found->least_deviations[ASSAY_STATISTIC_SIGN];
    set_size(found, ASSAY_STATISTIC_ROW, pass->worst_row, pass->worst_row_count, pass->worst_row_index);
    if (last >= 0 && axis_is_summed(shape, last)) {
        set_largest(found, ASSAY_STATISTIC_TILE, pass->squares[last], pass->counts[last], shape->dims[last],
                    ASSAY_TILE);
    }
    for (int axis = 0; axis <= last; axis++) {
        if (!axis_is_summed(shape, axis)) continue;
        set_largest(found, ASSAY_STATISTIC_AXIS + axis, pass->squares[axis], pass->counts[axis], shape->dims[axis], 1);
    }
    set_slice_slopes(pass, found);
}

void assay_statistics_free(assay_statistics_pass *pass)
{
    free(pass->memory);
    assay_tile_slopes_free(&pass->tiles);
    *pass = (assay_statistics_pass){0};
}

double assay_statistic_widening(int statistic, const assay_statistics *found)
{
    const double usual = 0x1p-3, rms = assay_exp(found->values[ASSAY_STATISTIC_SIZE]);
    const bool counts_signs = statistic == ASSAY_STATISTIC_SIGN || statistic == ASSAY_STATISTIC_TOWARD_ZERO;
    return counts_signs && rms < usual ? usual / fmax(rms, DBL_MIN) : 1;
}

double assay_statistic_deviation(int statistic, double value, const double expected[ASSAY_NULL_COLUMNS])
{
    const double low = expected[ASSAY_NULL_LOW], high = expected[ASSAY_NULL_HIGH];
    double distance = value > high ? value - high : 0;
    if (!assay_statistic_is_size(statistic) && value < low) distance = low - value;
    return expected[ASSAY_NULL_DEVIATION] > 0 ? distance / expected[ASSAY_NULL_DEVIATION] : 0;
}
