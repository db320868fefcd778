/* A golden and a candidate that passes against it at bf16, of any size, for what is measured of comparing: numbers that repeat,
 * error scales, and null distributions wide enough for anything. */
#pragma once

#include "fixtures/fixture.h"

enum { BENCH_SLICE = 1 << 18 };

typedef struct bench_files {
    int count; /* of tensors */
    /* Tensor `index`, with its type in the candidate. */
    assay_tensor_spec (*tensor)(const void *self, int index);
    const void *self;
} bench_files;

assay_status bench_write_file(assay_context *ctx, const bench_files *files, bool golden, const char *path);
