/* Tensors in memory for tests: made without a shape, taken from a run whatever they are, read under a counter. */
#pragma once

#include "oracle/base/tensor_set.h"

/* Starts zeroed. */
typedef struct test_tensors {
    assay_tensor_set set;
    const char *const *wanted; /* as a sink: globs, NULL at the end; NULL for everything */
    int64_t reads;             /* as a source: elements read */
} test_tensors;

/* For OWNED_BY. */
static inline void test_tensors_free(test_tensors *tensors)
{
    assay_tensor_set_free(&tensors->set);
}

/* The elements of a new tensor, undefined so far; NULL when there is no memory. */
double *test_tensors_add(test_tensors *tensors, const char *path, int64_t count);
int32_t *test_tensors_add_i32(test_tensors *tensors, const char *path, int64_t count);
void test_tensors_remove(test_tensors *tensors, const char *path);

assay_source test_tensors_source(test_tensors *tensors);
/* Every write makes its tensor longer. */
assay_sink test_tensors_sink(test_tensors *tensors);
