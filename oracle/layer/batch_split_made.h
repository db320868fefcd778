/* Numbers that a function of the module computes and then quantises by a recipe (oracle/ops/quantised_spread.h). They are
 * checkpoints: an emulated run is given one standard deviation of each. */
#pragma once

#include "oracle/base/tensor.h"

typedef struct bs_made {
    const assay_source *in; /* perhaps with "spread/checkpoints/NAME" */
    const assay_sink *out;
    bool after_forward; /* the gradient of a call that has shown what the forward function makes */
} bs_made;

/* Shows the next `count` numbers of "checkpoints/NAME", which begin at `first` of it. again: in a _bwd, of what its forward
 * function makes too. *spread: theirs, allocated, or NULL. made NULL: nobody looks. */
assay_status bs_made_show(assay_context *ctx, const bs_made *made, const char *name, bool again, int64_t first,
                          int64_t count, const double *values, double **spread);
