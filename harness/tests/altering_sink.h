/* A sink that alters what passes through it: for operations that are wrong on purpose. */
#pragma once

#include "oracle/base/tensor.h"

typedef struct altering_sink {
    const assay_sink *out;
    /* The values of a piece, or the indices (the other is NULL). */
    void (*alter)(const char *path, int64_t count, double *values, int32_t *indices);
} altering_sink;

assay_sink altering_sink_of(altering_sink *sink);
