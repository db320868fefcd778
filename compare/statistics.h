/* Statistics of the errors of a whole tensor and of its slices, in one pass, and how far out they are against those of
 * correct implementations (docs/comparing.md). Memory grows with the axes' lengths up to
 * ASSAY_LONGEST_AXIS, not with the tensor. */
#pragma once

#include "compare/tile_slopes.h"
#include "oracle/base/tensor.h"

/* r is the error over its deviation, that of the scale and of the result's own rounding together; elements with a scale of
 * 0, NaN or infinity do not count. Those of RMS are logarithms. */
typedef enum assay_statistic {
    ASSAY_STATISTIC_SIZE,        /* RMS of r */
    ASSAY_STATISTIC_BIAS,        /* mean of r */
    ASSAY_STATISTIC_SLOPE,       /* of candidate on golden, weighted by 1 / deviation^2, minus 1 */
    ASSAY_STATISTIC_SIGN,        /* half of positive errors less negative ones, over all; below 2^-6 deviations, or
                              half of the type's least number, neither */
    ASSAY_STATISTIC_TOWARD_ZERO, /* the same of errors towards zero less those away from it */
    ASSAY_STATISTIC_ROW,         /* RMS of r over all indices of the last axis, in the row with the largest */
    ASSAY_STATISTIC_TILE, /* over 128 indices of the last axis and all of the others, in the tile with the largest */
    ASSAY_STATISTIC_AXIS, /* and one for each axis: over one of its indices, the one with the largest */
    /* Slopes of slices, by the slice with the largest |z| (tile_slopes.h): */
    ASSAY_STATISTIC_TILE_SLOPE = ASSAY_STATISTIC_AXIS + ASSAY_MAX_RANK,        /* square tiles, one for each size */
    ASSAY_STATISTIC_AXIS_SLOPE = ASSAY_STATISTIC_TILE_SLOPE + ASSAY_TILE_SIZES /* one for each axis: its indices */
} assay_statistic;

enum {
    ASSAY_LANES = 8,
    ASSAY_TILE = 128,
    ASSAY_LONGEST_AXIS = 1 << 20,
    ASSAY_STATISTICS = ASSAY_STATISTIC_AXIS_SLOPE + ASSAY_MAX_RANK
};

/* Sums that are made in lanes, element i in lane i mod ASSAY_LANES. */
static inline double assay_add_lanes(const double lanes[ASSAY_LANES])
{
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

/* How many rows null/PROFILE/<path> has, and the row of a statistic; -1: a tensor of this rank has no such axis. Rows are in
 * the order of the enumeration, but that towards zero, and after it slopes of slices, stand behind those of all axes: goldens
 * of error models before 5 have neither, before 6 no slopes of slices. */
int assay_statistics_rows(const assay_shape *shape);
int assay_statistic_row(const assay_shape *shape, int statistic);
bool assay_statistics_rows_are_known(const assay_shape *shape, int64_t rows);
/* Whether it says more than another: slices that are the whole tensor, or an axis' indices, do not; indices of an axis
 * that is too long are not summed. */
bool assay_statistic_counts(const assay_shape *shape, int statistic);
/* An RMS fails when it is large, the others on either side. */
bool assay_statistic_is_size(int statistic);
bool assay_statistic_is_slice_slope(int statistic); /* |z| of the slice with the largest */
/* How many slices it has, and how far the largest of so many Gaussian numbers lies out at the usual probability of a false
 * alarm, as a multiple of how far one does. */
int64_t assay_statistic_slices(const assay_shape *shape, int statistic);
double assay_largest_of_slices(int64_t slices);

/* Columns of null/PROFILE/<path>. A correct implementation is expected in [low, high], give or take a spread. */
enum { ASSAY_NULL_LOW, ASSAY_NULL_HIGH, ASSAY_NULL_DEVIATION, ASSAY_NULL_MEMBERS, ASSAY_NULL_COLUMNS };

/* What a tensor's errors came to. Where nothing counts, every value is 0 and every least spread too. */
typedef struct assay_statistics {
    double values[ASSAY_STATISTICS];
    int64_t slices[ASSAY_STATISTICS]; /* index of the row, tile or index along the axis with the largest RMS or |z| */
    double slopes[ASSAY_STATISTICS];  /* of slices: there */
    /* The spread that independent errors would have: no ensemble of a few members may claim a smaller one. */
    double least_deviations[ASSAY_STATISTICS];
} assay_statistics;

/* What the elements of a pass add up to, in lanes: by the last axis' index modulo 8. */
typedef struct assay_statistics_sums {
    double row_squares[ASSAY_LANES], row_count[ASSAY_LANES], row_products[ASSAY_LANES], row_weights[ASSAY_LANES];
    double errors[ASSAY_LANES];
    double signed_count[ASSAY_LANES], signs[ASSAY_LANES], outward[ASSAY_LANES]; /* of errors that have a sign */
} assay_statistics_sums;

/* One pass. The elements come in order, in pieces of any size; the result does not depend on the sizes. */
typedef struct assay_statistics_pass {
    assay_shape shape;
    assay_isa isa;
    double unit, tiny; /* rounding of a result: unit * |golden| + tiny */
    int64_t length;    /* of a row */
    int64_t column, row, index[ASSAY_MAX_RANK];
    /* Of each index of an axis: sum of r^2, elements, sums for a slope (of the last axis `tiles` has these); NULL. */
    double *squares[ASSAY_MAX_RANK], *counts[ASSAY_MAX_RANK], *products[ASSAY_MAX_RANK], *weights[ASSAY_MAX_RANK];
    assay_tile_slopes tiles;
    assay_statistics_sums sums;
    double all, count, all_products, all_weights, worst_row, worst_row_count;
    int64_t worst_row_index;
    double *memory;
} assay_statistics_pass;

assay_status assay_statistics_start(assay_context *ctx, const assay_shape *shape, double unit, double tiny,
                                    assay_statistics_pass *pass);
/* inverse[i] = 1 / deviation, or 0 for what does not count; `variance`: the error scale squared. */
void assay_statistics_weigh(const assay_statistics_pass *pass, int64_t count, const double *golden,
                            const double *variance, double *inverse);
void assay_statistics_add(assay_statistics_pass *pass, int64_t count, const double *golden, const double *candidate,
                          const double *inverse);
void assay_statistics_finish(const assay_statistics_pass *pass, assay_statistics *found);
void assay_statistics_free(assay_statistics_pass *pass); /* safe on a zeroed struct */

/* Adds z^2 of the slices of a statistic of slopes to `squares`, once they are kept (assay_tile_slopes_keep). */
void assay_statistics_add_squares(const assay_statistics_pass *pass, int statistic, double *squares);

/* How much farther out than a spread says a statistic may lie: 1 but for the sign of errors that are smaller than those of
 * correct implementations usually are, by which the spread was found. What such errors have in common is small too, yet
 * decides more of their signs the less there is beside it. */
double assay_statistic_widening(int statistic, const assay_statistics *found);

/* Distance of a value from [low, high], in spreads; for an RMS 0 below. `expected`: a row of the null; one without a
 * spread is not used (0). */
double assay_statistic_deviation(int statistic, double value, const double expected[ASSAY_NULL_COLUMNS]);
