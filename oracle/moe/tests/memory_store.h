/* Tensors in memory as a source and a sink, for tests. */
#ifndef ASSAY_MOE_TESTS_MEMORY_STORE_H
#define ASSAY_MOE_TESTS_MEMORY_STORE_H

#include "oracle/base/tensor.h"

typedef struct memory_tensor {
    char path[ASSAY_PATH_SIZE];
    int64_t count;
    double *values;   /* or NULL */
    int32_t *indices; /* or NULL */
} memory_tensor;

/* Owns its tensors. Starts zeroed. */
typedef struct memory_store {
    memory_tensor *items;
    int count;
    const char *const *wanted; /* as a sink: globs, NULL at the end; NULL for everything */
    int64_t reads;             /* as a source: elements read */
} memory_store;

void memory_store_free(memory_store *store);
/* A new tensor of undefined contents; NULL when there is no memory. */
double *memory_store_add(memory_store *store, const char *path, int64_t count);
int32_t *memory_store_add_i32(memory_store *store, const char *path, int64_t count);
memory_tensor *memory_store_find(const memory_store *store, const char *path); /* NULL when there is none */
void memory_store_remove(memory_store *store, const char *path);

assay_source memory_store_source(memory_store *store);
assay_sink memory_store_sink(memory_store *store);

#endif
