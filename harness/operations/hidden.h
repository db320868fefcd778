/* The tensors of h that a kernel quantises itself (quant_hidden_format; oracle/ops/requantise.h): of each gated MLP of a case
 * h, its codes and their scales. */
#pragma once

#include "harness/operations/operation.h"

typedef struct assay_hidden {
    const assay_tensor_spec *h, *codes, *scale; /* of the case's list */
} assay_hidden;

enum { ASSAY_MOST_HIDDEN = 256 };

/* Fills `hidden` and returns how many there are. */
int assay_hidden_list(const assay_tensor_list *list, assay_hidden hidden[ASSAY_MOST_HIDDEN]);

/* Likewise of everything that a kernel computes and then quantises: h, with its codes and scales where the case has them, and
 * by a recipe what the operation calls `made`, whose codes and scale are NULL. */
int assay_made_list(const assay_tensor_list *list, assay_hidden made[ASSAY_MOST_HIDDEN]);
