/* What mutants of h that a kernel quantises itself are made of. Private to harness/mutants. */
#ifndef ASSAY_HARNESS_MUTANTS_REQUANTISE_H
#define ASSAY_HARNESS_MUTANTS_REQUANTISE_H

#include "harness/mutants/mutants_tensors.h"
#include "harness/operations/hidden.h"

/* h of a gated MLP, its codes and scales, and where they are apart gate and up. */
assay_status assay_requantise_read(assay_context *ctx, const assay_plan *plan, const assay_source *in,
                                   const assay_hidden *hidden, assay_tensor_set *made);
/* "mlpwi_0" or "mlpwi_1" beside an h of that set; NULL: there is none. */
const assay_tensor *assay_requantise_branch(const assay_tensor_set *made, const assay_tensor *h, const char *name);

#endif
