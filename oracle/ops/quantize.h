/* A tensor to codes of few bits with a scale for each block, and back.
 *
 * x [rows,columns] of float32 numbers -> codes [rows,columns], scale [ceil(rows / block rows), ceil(columns / block
 * columns)], tensor_scale [1] where the format has one (oracle/base/block_format.h). All as integers: the bits of the element
 * and of the scale's type, of a float32 its 32 bits. With `pack` two codes of e2m1 are a byte, the first in the low four bits,
 * and codes are [rows,columns/2].
 *
 * Every step is one float32 operation, rounded to nearest even, as the recipes compute. With a = max |x| of the block, at
 * least smallest_amax, and q the element type's largest number (of scales rounded down its largest power of two):
 *   DIVIDE    s = a / q              MULTIPLY  s = a * (1 / q)
 *   INVERT    e = q / a, s = 1 / e; e is at most x's type's largest number; 1 where a = 0
 * s is then rounded to the scale's type: e8m0 UP or DOWN to a power of two; e4m3 to nearest and no larger than 448; float32 as it
 * is, or UP to a power of two (INVERT: e is rounded down). Elements are x * (1 / s), with `divide` x / s, of INVERT x * e,
 * rounded to nearest.
 * 1 / s is at most float32's largest number, and 0 where s is 0; an s of 0 is 2^-127 in e8m0.
 *
 * With a scale of the tensor (INVERT alone), A = max |x| of it: g = min(448 * 6 / A, largest), tensor_scale = 1 / g,
 * s = min(a * (g * (1 / 6)), 448) to e4m3, elements x * min(1 / (s * tensor_scale), largest). A scale of the tensor that is
 * given (a calibrated one) has g = 1 / tensor_scale.
 *
 * With `swizzle` the scales' rows are padded to a multiple of 128, their columns to one of 4, with the code 0. Tiles of 128 x 4 follow
 * one another along the columns first; in a tile the scale of row i and column j is number 16 (i mod 32) + 4 (i / 32) + j. Source:
 * NVIDIA's cuDNN frontend, "MXFP8 scale factor 128x4 layout".
 *
 * dequantize: y = code * scale (* tensor_scale), exact in float64.
 *
 * Refused: x that is infinite or NaN, unless `any_number` says that they are no numbers of the block either: its scale is then
 * infinite or NaN (NaN in e8m0), and elements are what x divided by it is. Sources: block_format.h. */
#pragma once

#include "oracle/base/block_format.h"
#include "oracle/base/tensor.h"

typedef enum assay_scale_rule { ASSAY_SCALE_DIVIDE, ASSAY_SCALE_MULTIPLY, ASSAY_SCALE_INVERT } assay_scale_rule;
typedef enum assay_scale_rounding { ASSAY_SCALE_NEAREST, ASSAY_SCALE_UP, ASSAY_SCALE_DOWN } assay_scale_rounding;

typedef struct assay_quantize_config {
    int64_t rows, columns;
    const assay_block_format *format;
    assay_scale_rule rule;
    assay_scale_rounding rounding;
    bool subnormal_scale;    /* 2^-127 is a scale; else the least is 2^-126, and a code of 0 makes every element 0 */
    bool saturate;           /* elements beyond the largest become it; e2m1's do anyway */
    bool ties_down;          /* ties of elements go towards 0; else to even */
    bool negative_zero;      /* what rounds to 0 keeps its sign */
    bool pack;               /* two codes of e2m1 a byte */
    bool swizzle;            /* scales in tiles of 128 x 4; formats with one row a block */
    bool divide;             /* elements are x / s */
    bool any_number;         /* x may be infinite or NaN; formats without a scale of the tensor, not INVERT */
    double smallest_amax;    /* a float32 number */
    double largest_of_input; /* of x's type */
    double tensor_scale;     /* a float32 number that is given, of a format without one the scale of every block; 0: it
                                follows from x */
} assay_quantize_config;

/* How the format's own source quantises: the MX specification 6.3 (e8m0: scales rounded down), TransformerEngine
 * (a scale of the tensor: INVERT), DeepGEMM (float32: DIVIDE, an amax of 1e-4 at least). Unpacked; x of float32. */
assay_quantize_config assay_quantize_default(const assay_block_format *format, int64_t rows, int64_t columns);

/* Words for the rules, which NULL ends. */
extern const char *const assay_scale_rules[];     /* divide, multiply, invert */
extern const char *const assay_scale_roundings[]; /* nearest, up, down */
/* Rules that the format's scales do not have are refused, not passed over; they are called `prefix`scale_rounding and so on. */
assay_status assay_quantize_check(assay_context *ctx, const char *prefix, const assay_quantize_config *config);

/* Codes of a row as they are stored. */
int64_t assay_quantize_row(const assay_quantize_config *config);
int64_t assay_quantize_scales(const assay_quantize_config *config); /* with padding, where there is some */
/* Of the scales of a tensor [..,columns] that has these rows: an axis of blocks in the place of the last one, or where blocks have several
 * rows [blocks of rows,blocks of columns]. */
assay_shape assay_quantize_scales_of(const assay_quantize_config *config, const assay_shape *tensor);
/* [rows,columns] of the scales, and where the scale of a block is among them. */
void assay_quantize_scale_shape(const assay_quantize_config *config, int64_t shape[2]);
int64_t assay_quantize_scale_place(const assay_quantize_config *config, int64_t band, int64_t block);

assay_status assay_quantize(assay_context *ctx, int32_t *codes, int32_t *scale, int32_t *tensor_scale, const double *x,
                            const assay_quantize_config *config);

/* The scale, as a number, of a block whose largest magnitude is `amax`; and what x becomes, as numbers of the element type,
 * by a scale that somebody stored. */
double assay_quantize_scale(double amax, const assay_quantize_config *config);
void assay_quantize_by(double *numbers, const double *x, int64_t count, double scale,
                       const assay_quantize_config *config);

/* codes and scales as numbers; tensor_scale NULL: none. */
void assay_dequantize(const assay_context *ctx, double *y, const double *codes, const double *scale,
                      const double *tensor_scale, const assay_quantize_config *config);

/* Numbers of a type from their bits, each in an int32. */
void assay_quantised_decode(const assay_context *ctx, assay_dtype type, int64_t count, const int32_t *bits,
                            double *numbers);

/* codes [rows,columns/2], each two codes of e2m1, to their numbers [rows,columns]. */
void assay_unpack_e2m1(double *numbers, const int32_t *codes, int64_t count);
