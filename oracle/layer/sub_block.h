/* A block inside a layer: its source and sink are views of the stack's, under the block's own paths.
 *
 * "weights/X" is the stack's "weights/<weights>X", "gradients/weights/X" likewise; "routing/X", "outputs/X", "cotangents/X",
 * "checkpoints/X", "staged/checkpoints/X", "spread/checkpoints/X", "inputs/X" and "gradients/inputs/X" get <prefix>. Some
 * tensors are the layer's own, between its parts: given arrays are read and never looked for outside; taken ones are
 * collected, and written outside too where that is wanted. */
#pragma once

#include "oracle/base/tensor.h"

enum { SUB_BLOCK_ARRAYS = 10 };

typedef struct sub_block_array {
    const char *path;     /* as the block names it */
    const double *values; /* given */
    double **taken;       /* taken: allocated when the first value comes */
    int64_t count, filled;
    bool outside; /* taken: whether it is a result of the stack as well */
} sub_block_array;

typedef struct sub_block {
    const assay_source *in;
    const assay_sink *out;
    const char *prefix;  /* "layers/0/" or "" */
    const char *weights; /* "layers/0/moe/" */
    bool backward;       /* gradients go outside; else outputs, routing and checkpoints do */
    sub_block_array arrays[SUB_BLOCK_ARRAYS];
    int count;
} sub_block;

void sub_block_give(sub_block *s, const char *path, const double *values, int64_t count);
void sub_block_take(sub_block *s, const char *path, double **taken, int64_t count, bool outside);

/* Views: they point into the sub-block. */
assay_source sub_block_source(sub_block *s);
assay_sink sub_block_sink(sub_block *s);
