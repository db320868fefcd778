/* assay-large-pair golden|candidate GIGABYTES FILE
 *
 * A golden of that size, and a candidate that passes against it at bf16: one very long row, very many short rows, large
 * matrices, very many tensors. What ci/stream-memory compares. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_files.h"
#include "oracle/arithmetic/arithmetic.h"

enum { TENSORS = 1003, MATRICES = 3 };
static const double BYTES_OF_ELEMENT = 12; /* of a golden: float64, and a float32 error scale */

/* self: elements of all tensors together */
static assay_tensor_spec tensor(const void *self, int index)
{
    const int64_t elements = *(const int64_t *)self, columns = 7168;
    assay_tensor_spec spec = {.type = ASSAY_BFLOAT16};
    if (index == 0) {
        snprintf(spec.path, sizeof spec.path, "outputs/long_row");
        spec.shape = assay_shape_of(1, elements * 60 / 100);
    } else if (index == 1) {
        snprintf(spec.path, sizeof spec.path, "gradients/inputs/short_rows");
        spec.shape = assay_shape_of(2, elements * 24 / 100 / 4, (int64_t)4);
        spec.type = ASSAY_FLOAT32;
    } else if (index == 2) {
        snprintf(spec.path, sizeof spec.path, "gradients/weights/matrices");
        spec.shape = assay_shape_of(3, (int64_t)MATRICES, elements / 10 / MATRICES / columns + 1, columns);
        spec.type = ASSAY_FLOAT64;
    } else {
        snprintf(spec.path, sizeof spec.path, "gradients/weights/many/%04d", index - 3);
        spec.shape = assay_shape_of(2, elements * 6 / 100 / (TENSORS - 3) / 128 + 1, (int64_t)128);
    }
    return spec;
}

int main(int argc, char **argv)
{
    assay_context ctx = assay_context_default(1);
    if (argc != 4 || !(atof(argv[2]) > 0)) {
        fprintf(stderr, "assay-large-pair golden|candidate GIGABYTES FILE\n");
        return 2;
    }
    const int64_t elements = (int64_t)(atof(argv[2]) * 1e9 / BYTES_OF_ELEMENT);
    const bench_files files = {.count = TENSORS, .tensor = tensor, .self = &elements};
    if (bench_write_file(&ctx, &files, strcmp(argv[1], "golden") == 0, argv[3]) != ASSAY_OK) {
        fprintf(stderr, "assay-large-pair: %s\n", ctx.message);
        return 1;
    }
    return 0;
}
