/* The hidden operand of a gated MLP that a kernel quantises itself: h, between the activation and the product with wo, becomes
 * codes with a scale for each block of a row (oracle/ops/quantize.h), and the product is one of code * scale (* the given
 * scale of the tensor), exactly these numbers. Backward goes straight through: dh is the gradient of what was quantised as if
 * nothing had been, and the gradient of wo is that of the numbers that wo was multiplied with.
 *
 * Sources: DeepGEMM and SGLang, silu_and_mul with per-token-group quantisation; FlashInfer, the NVFP4 and MXFP8 MoE (the
 * output of the first product is quantised in its epilogue, with a calibrated scale of the tensor); triton_kernels, swiglu and
 * downcast_to_mxfp. */
#ifndef ASSAY_OPS_REQUANTISE_H
#define ASSAY_OPS_REQUANTISE_H

#include "oracle/ops/gated_mlp.h"

/* Blocks of a row; 0: nothing is quantised. */
int64_t assay_hidden_blocks(const assay_gated_mlp_config *config);

/* r->codes and r->scale, as numbers of their types, of r->h [rows,H]. `spread` [rows,H]: one standard deviation of h, or NULL
 * (quantised_spread.h). */
assay_status assay_requantise(assay_context *ctx, assay_gated_mlp_residuals *r, const double *spread,
                              const assay_gated_mlp_config *config);

/* r->h becomes the numbers of r->codes and r->scale. */
void assay_hidden_numbers(const assay_context *ctx, assay_gated_mlp_residuals *r, const assay_gated_mlp_config *config);

#endif
