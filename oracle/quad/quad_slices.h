/* Numbers in slices (Ozaki, Ogita, Oishi and Rump 2012): a line of a matrix (a row of A, a column of B) becomes
 *
 *   number = 2^exponent * sum over p of digit_p * 2^(2 - (p + 1) bits),    |digit_p| <= 2^(bits - 1) an integer,
 *
 * with one exponent for the line, cut off after `most` digits: less than 2^(2 - most bits) of 2^exponent is lost. A sum of
 * k * most products of two digits is below 2^53 and hence exact in float64, in whatever order it is made.
 *
 * Private to the second form. */
#pragma once

#include "oracle/quad/quad.h"

enum { QUAD_SLICES_MOST = 7 };

/* How numbers are cut for sums over k. */
typedef struct quad_cut {
    int bits, most;
} quad_cut;

/* The fewest slices that leave binary128 next to nothing out; bits = 0: k is too large for any. */
quad_cut quad_cut_for(int64_t k);

/* Where a matrix lies: `outer` runs of `inner` numbers, the runs `ld` apart. Its lines are the runs, or across them. */
typedef struct quad_layout {
    const quad *values;
    int64_t outer, inner, ld;
    bool lines_across;
} quad_layout;

/* All arrays are its own; those of digits are [outer,inner]. Starts zeroed. */
typedef struct quad_slices {
    int64_t room, line_room; /* numbers and lines that there is memory for */
    int64_t outer, inner, lines;
    bool lines_across;
    int used; /* slices; those behind them are 0 */
    double *digits[QUAD_SLICES_MOST];
    double *sizes;    /* |number| over 2^exponent, less than 2^-52 of it lost, or 0 */
    quad *powers;     /* 2^exponent of each line; of a line of zeros 0 */
    int32_t *largest; /* the biased exponent of the line's largest number */
} quad_slices;

/* A line with a NaN or an infinity, or whose largest number is not within 2^-8000 to 2^8000: it counts as 0 here. */
bool quad_slices_are_out(const quad_slices *slices, int64_t line);

/* In the place of what the struct holds, whose memory is used again where it is enough. */
assay_status quad_slices_make(assay_context *ctx, const quad_layout *from, const quad_cut *cut, quad_slices *slices);
void quad_slices_free(quad_slices *slices); /* safe on a zeroed struct */
