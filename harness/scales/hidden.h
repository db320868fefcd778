/* The tensors of what a kernel computes and quantises itself (oracle/ops/requantise.h): of each gated MLP of a case h, its codes
 * and their scales (quant_hidden_format), and of each line of a program that does (quantise). */
#pragma once

#include "harness/operations/operation.h"

typedef struct assay_hidden {
    const assay_tensor_spec *h, *codes, *scale; /* of the case's list */
} assay_hidden;

enum { ASSAY_MOST_HIDDEN = 256 };

/* Fills `hidden` and returns how many there are. */
int assay_hidden_list(const assay_tensor_list *list, assay_hidden hidden[ASSAY_MOST_HIDDEN]);

/* How it is quantised, of a row: by the case's keys, or as the program's step says. */
assay_status assay_hidden_rules(assay_context *ctx, const assay_case *c, const assay_hidden *hidden,
                                assay_quantize_config *config);

/* Likewise of everything that a kernel computes and then quantises: h, with its codes and scales where the case has them, and
 * by a recipe what the operation calls `made`, whose codes and scale are NULL. */
int assay_intermediate_list(const assay_tensor_list *list, assay_hidden made[ASSAY_MOST_HIDDEN]);
