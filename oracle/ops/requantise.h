/* The hidden operand of a gated MLP that a kernel quantises itself: h, between the activation and the product with wo, becomes
 * codes with a scale for each block of a row (oracle/ops/quantize.h), and the product is one of code * scale (* the given
 * scale of the tensor), exactly these numbers. Backward goes straight through: dh is the gradient of what was quantised as if
 * nothing had been, and the gradient of wo is that of the numbers that wo was multiplied with.
 *
 * Sources: DeepGEMM and SGLang, silu_and_mul with per-token-group quantisation; FlashInfer, the NVFP4 and MXFP8 MoE (the
 * output of the first product is quantised in its epilogue, with a calibrated scale of the tensor); triton_kernels, swiglu and
 * downcast_to_mxfp. */
#pragma once

#include "oracle/ops/gated_mlp.h"

/* codes [rows,H] and scale [rows,blocks], as numbers of their types, of h [rows,H]. `spread` [rows,H]: one standard deviation of
 * h, or NULL (quantised_spread.h). */
assay_status assay_requantise(assay_context *ctx, double *codes, double *scale, const double *h, const double *spread,
                              const assay_gated_mlp_config *config);

/* numbers [rows,H] of codes and scale. */
void assay_hidden_numbers(const assay_context *ctx, double *numbers, const double *codes, const double *scale,
                          const assay_gated_mlp_config *config);
