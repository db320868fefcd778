/* Training recipes: how a kernel quantises what it is given before each of the three products of a linear layer, forward
 * y = x w, and backward dx = dy w^T and dw = x^T dy. Recipes are data; one row each.
 *
 * x [M,K] and dy [M,N] have rows of groups one after the other, w is [G,K,N]. What a recipe does not quantise stays as it is.
 * Codes and scales follow from what is given alone, so results are exact functions of it: gradients are those of the products
 * on the quantised operands (straight-through), and are themselves not quantised.
 *
 * DeepSeek-V3: dy in e4m3 with 1 x 128 blocks for dx; x and dy in e4m3 with 128 x 1 blocks, along the rows that are summed over
 * and anew in each group, for dw. x is what forward takes, dequantised to float32 where it is codes. Scales are amax / 448, amax at least
 * 1e-4, or the power of two above (quantize.h, DIVIDE). Forward operands are quantised by the case (harness/operations/operands.h).
 * Sources: arXiv 2412.19437, 3.3.2 and 3.3.3; DeepGEMM, utils/math.py; TransformerEngine, Float8BlockScaling.
 *
 * fp8_full: x in e4m3 with a scale for each row, w with one for each column of all groups together. For dx, dy times w's scales in
 * e5m2 with a scale for each row, times w's codes; for dw, dy times x's scales in e5m2 with a scale for each column over all rows,
 * times x's codes. A calibration gives amax: the largest magnitude times a factor, or a fixed number, whose scale is one of the
 * tensor. s = amax / largest of the element type, 1 where it is below the root of the type's least normal number; elements
 * are x / s, cut off at the largest. x, dy and every step are rounded to `type`, that of the tensors, as it stands in the
 * source. Rows behind the last group count for scales: the source calibrates what it is given.
 * Sources: MaxText, kernels/megablox/ops.py (_fwd_quantize_activation_and_weight, _bwd_prepare_inputs, _bwd_quantize_gradient),
 * layers/quantizations.py (get_fp8_full_qwix_rule_w_sparsity), configs/base.yml (the calibrations, absmax unless said); qwix,
 * core/qarray.py (calibrate, compute_scale_zero_point, quantize_with_scale_zero_point), core/dot_general_qt.py. */
#pragma once

#include "oracle/base/dtype.h"
#include "oracle/ops/gmm.h"

typedef enum assay_quant_recipe_scales {
    ASSAY_SCALES_NONE,
    ASSAY_SCALES_BLOCKS,
    ASSAY_SCALES_ROWS,
    ASSAY_SCALES_COLUMNS
} assay_quant_recipe_scales;

typedef struct assay_quant_recipe_operand {
    assay_quant_recipe_scales scales; /* NONE: it stays as it is */
    const char *format;               /* BLOCKS: of oracle/base/block_format.h */
    assay_dtype element;              /* ROWS, COLUMNS: a scale for each */
} assay_quant_recipe_operand;

/* Whose scale a code has that shard `own` of `shards` receives: *sender and the place among the sender's codes, whose rows
 * have `columns`. */
typedef void assay_gathered_scale(int64_t own, int64_t shards, int64_t columns, int64_t *sender, int64_t *place);

typedef struct assay_quant_recipe {
    const char *name;
    bool folds;                                    /* scales of the other operand go onto dy before it is quantised */
    bool each_group;                               /* scales of w by column are of one group each, not of all */
    bool joins_slices;                             /* scales are of all slices of a product, not of each its own */
    assay_quant_recipe_operand x, w;               /* forward; backward goes on from their codes */
    assay_quant_recipe_operand dx_dy, dw_x, dw_dy; /* of dx = dy w^T and dw = x^T dy */
    assay_gathered_scale *gathered;                /* of codes that are gathered over shards; NULL: each has its own */
} assay_quant_recipe;

const assay_quant_recipe *assay_quant_recipe_by_name(const char *name); /* NULL: there is none */

/* amax: the largest magnitude times `factor`, or `fixed` where that is above 0. */
typedef struct assay_calibration {
    double factor, fixed;
} assay_calibration;

typedef struct assay_quant_recipe_config {
    const assay_quant_recipe *recipe; /* NULL: none */
    bool powers;                      /* scales of blocks are powers of two */
    assay_dtype type;
    assay_calibration x, w, dy;
} assay_quant_recipe_config;

/* "absmax", "absmax,0.9", "fixed,2.5" or "fixed,-2.5,2.5"; false: it is none of these. */
bool assay_calibration_of(const char *text, assay_calibration *calibration);

/* A matrix [rows,columns] by row or column as `how` says: elements as numbers, and the scale of each. how NULL, or of NONE: x
 * itself with scales of 1. */
assay_status assay_quant_recipe_codes(assay_context *ctx, double *codes, double *scale, const double *x, int64_t rows,
                                      int64_t columns, const assay_quant_recipe_operand *how,
                                      const assay_calibration *calibration, const assay_quant_recipe_config *config);

/* x [M,K], w [G,K,N] and dy [M,N] (NULL: forward alone). What a kernel computed itself has a spread (quantised_deviation.h):
 * one standard deviation of each number; NULL: it is given, and so exact. */
typedef struct assay_quant_recipe_inputs {
    const double *x, *w, *dy;
    const double *x_deviation, *dy_deviation;
    const int32_t *group_sizes;
} assay_quant_recipe_inputs;

enum { ASSAY_RECIPE_STORAGE = 16 };

/* What each product takes. Where nothing is quantised it is what is given. */
typedef struct assay_quant_recipe_operands {
    const double *x, *w;
    const double *dx_dy, *dx_w;
    const double *dw_x, *dw_dy;
    double *storage[ASSAY_RECIPE_STORAGE];
} assay_quant_recipe_operands;

/* Starts zeroed; rows [0,m) of x and dy are finite and count for scales. Without dy what backward takes of it is NULL. */
assay_status assay_quant_recipe_quantise(assay_context *ctx, assay_quant_recipe_operands *operands,
                                         const assay_quant_recipe_inputs *given, const assay_gmm_dims *dims,
                                         const assay_quant_recipe_config *config);
void assay_quant_recipe_operands_free(assay_quant_recipe_operands *operands); /* safe on a zeroed struct */
