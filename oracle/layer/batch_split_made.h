/* Numbers that a function of the module computes and then quantises by a recipe (oracle/ops/quantised_spread.h). They are
 * checkpoints: an emulated run is given one standard deviation of each. */
#pragma once

#include "oracle/base/tensor.h"

typedef struct bs_intermediates {
    const assay_source *in; /* perhaps with "spread/checkpoints/NAME" */
    const assay_sink *out;
    const char *prefix; /* of NAME: "layers/3/", or "" */
    bool after_forward; /* the gradient of a call that has shown what the forward function makes */
} bs_intermediates;

/* Of a layer, tensors of the whole batch in parts: shard s of microbatch m makes part m M + s, parts come in this order, and lie in
 * rows that alternate between the microbatches. Row i of n in a part is row ((s n + i) f + m) of the tensor; n is rows of the
 * batch, or 1 where the tensor has an axis of microbatches. */
enum { BS_MOST_PARTED = 24 };
typedef struct bs_parted {
    char path[ASSAY_PATH_SIZE];
    double *values; /* of the whole batch; NULL: written */
    int64_t parts;  /* that have come */
} bs_parted;

typedef struct bs_parts {
    const assay_source *in;
    const assay_sink *out;
    int64_t shards, factor, rows; /* of a shard's microbatch */
    bs_parted tensors[BS_MOST_PARTED];
    int count;
    assay_source source; /* of parts */
    assay_sink sink;
} bs_parts;

void bs_parts_open(bs_parts *p, const assay_source *in, const assay_sink *out, int64_t shards, int64_t factor,
                   int64_t rows);
void bs_parts_close(bs_parts *p);
