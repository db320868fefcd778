/* Numbers that a kernel computes and then quantises itself: h of a gated MLP, between the activation and the product with wo,
 * or what a step of a program does. They become codes with a scale for each block of a row (oracle/ops/quantize.h), and the product is one of code * scale (* the given
 * scale of the tensor), exactly these numbers. Backward goes straight through: dh is the gradient of what was quantised as if
 * nothing had been, and the gradient of wo is that of the numbers that wo was multiplied with.
 *
 * Sources: DeepGEMM and SGLang, silu_and_mul with per-token-group quantisation; FlashInfer, the NVFP4 and MXFP8 MoE (the
 * output of the first product is quantised in its epilogue, with a calibrated scale of the tensor); triton_kernels, swiglu and
 * downcast_to_mxfp. */
#pragma once

#include "oracle/ops/quantize.h"

/* codes [rows,columns] and scale [rows,blocks], as numbers of their types, of h [rows,columns]. `spread`, as h: one standard
 * deviation of h, or NULL (quantised_deviation.h). */
assay_status assay_requantise(assay_context *ctx, double *codes, double *scale, const double *h,
                              const double *deviation, const assay_quantize_config *config);
