/* A block inside a layer: its source and sink are views of the stack's, under the block's own paths.
 *
 * "weights/X" is the stack's "weights/<weights>X", "gradients/weights/X" likewise; "routing/X", "outputs/X", "cotangents/X" and
 * "checkpoints/X" get <prefix>. Some tensors are the layer's own, between its parts: given arrays are read and never
 * looked for outside; taken ones are collected, and written outside too where that is wanted. */
#ifndef ASSAY_LAYER_SCOPE_H
#define ASSAY_LAYER_SCOPE_H

#include "oracle/base/tensor.h"

enum { SCOPE_ARRAYS = 10 };

typedef struct scope_array {
    const char *path;     /* as the block names it */
    const double *values; /* given */
    double **taken;       /* taken: allocated when the first value comes */
    int64_t count, filled;
    bool outside; /* taken: whether it is a result of the stack as well */
} scope_array;

typedef struct scope {
    const assay_source *in;
    const assay_sink *out;
    const char *prefix;  /* "layers/0/" or "" */
    const char *weights; /* "layers/0/moe/" */
    bool backward;       /* gradients go outside; else outputs, routing and checkpoints do */
    scope_array arrays[SCOPE_ARRAYS];
    int count;
} scope;

void scope_give(scope *s, const char *path, const double *values, int64_t count);
void scope_take(scope *s, const char *path, double **taken, int64_t count, bool outside);

/* Views: they point into the scope. */
assay_source scope_source(scope *s);
assay_sink scope_sink(scope *s);

#endif
