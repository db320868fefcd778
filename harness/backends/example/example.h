/* An example backend: RMS norm and the grouped product on one device, forward and backward, as a kernel for bfloat16 tensors would do
 * them. Copy it.
 *
 *     cc -O3 -shared -fPIC -I include harness/backends/example/example*.c harness/backends/support/support.c \
 *         -o libassay_example.so -lm
 *     assay run --op gmm,rms_norm --backend ./libassay_example.so
 *
 * Tensors that a kernel would leave in memory are rounded to bfloat16 (float arrays that hold such numbers stand for
 * them); sums, statistics of norms and the gradients of weights are float32.
 *
 * The environment variable ASSAY_EXAMPLE_BUG=NAME puts one of BUG_TABLE's errors in, to see it caught. */
#pragma once

#include <stddef.h>

#include "../support/support.h"

/*    code, name, what is wrong */
#define BUG_TABLE(X)                                                                                                   \
    X(PADDING_IN_LAST_GROUP, "padding_in_last_group", "rows behind the last group taken for rows of it")               \
    X(VECTOR_TAIL_DROPPED, "vector_tail_dropped", "the grouped product lacks what is beyond its last vector of 8")     \
    X(EMPTY_GROUP_SHIFTS, "empty_group_shifts", "weights counted over groups that have rows alone")

enum bug {
    NO_BUG,
#define X(code, name, what) code,
    BUG_TABLE(X)
#undef X
        BUG_COUNT
};

/* The names below stay inside the shared object. */
#pragma GCC visibility push(hidden)

/* One call of the backend. */
typedef struct example {
    const assay_backend_request *request;
    enum bug bug;
    memory memory; /* of the call */
} example;

/* ---- example_numbers.c: tensors and results by path, products ---- */

/* Its floats, or NULL where the case has none. */
float *whole(example *e, const char *path);
/* Room for the gradient of `path` from number `first` on, float32; NULL where nobody asks. */
float *gradient(const example *e, const char *path, int64_t first);
/* All of a result, in bfloat16. */
void store(const example *e, const char *path, const float *values, int64_t count);

/* Element (i,p) is data[i * row + p * column]. */
typedef struct matrix {
    const float *data;
    int64_t row, column;
} matrix;
/* out [m,n] = a [m,k] * b [k,n], summed in float32; nothing where out is NULL. */
void product(float *out, int64_t m, int64_t n, int64_t k, matrix a, matrix b);

/* ---- example_operations.c ---- */

void rms_norm_run(example *e);
void gmm_run(example *e);

#pragma GCC visibility pop
