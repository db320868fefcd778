/* What a shared object is shown of a case, and what it gives: settings, tensors, buffers that hold NaN between guards. Whoever
 * hosts it says where that lies: the process of its own that `assay run` starts, or memory that two processes share. */
#pragma once

#include "harness/plan/backend_view.h"
#include "oracle/base/tensor_set.h"

typedef int (*assay_backend_function)(const assay_backend_request *request);

/* take: `bytes` of memory, 64-byte aligned, to be used until whoever gave it takes it back. */
typedef struct assay_host_memory {
    void *self;
    assay_status (*take)(assay_context *ctx, void *self, const char *what, int64_t bytes, void **out);
} assay_host_memory;

/* Blocks of their own, so that a sanitizer sees what is read beside one. Starts zeroed. */
typedef struct assay_host_blocks {
    void **items;
    int count;
} assay_host_blocks;
assay_host_memory assay_host_blocks_memory(assay_host_blocks *blocks);
void assay_host_blocks_free(assay_host_blocks *blocks);

enum { ASSAY_HOST_MESSAGE = 512 };

/* All of it lies in the host's memory but for the texts of the plan, which the settings and paths are copied from. */
typedef struct assay_host {
    assay_backend_setting *settings;
    assay_backend_tensor *tensors;
    uint64_t *sums; /* of what these hold */
    assay_backend_result *results;
    assay_tensor_spec *specs; /* of the results */
    unsigned char **blocks;   /* guard, data, guard */
    int64_t guard;            /* bytes before the data, others from call to call */
    int64_t *filled;          /* bytes of the data that hold NaN before the next call; those behind are guard */
    int setting_count, tensor_count, result_count;
    char *message; /* [ASSAY_HOST_MESSAGE] */
} assay_host;

/* Everything of the plan that is given, from `in`, in its stored type; and room for every result. Error scales and null
 * distributions are no backend's. */
assay_status assay_host_make(assay_context *ctx, const assay_plan *plan, const assay_source *in,
                             const assay_host_memory *memory, assay_host *host);

/* One call of the function; the exit status of a backend's process, and where that is not DONE the reason in
 * host->message. What is given must be as it was, and results have other addresses than in the call before. */
int assay_host_call(assay_host *host, assay_backend_function backend);

/* Other numbers at the same addresses (assay_dtype_is_negated). Twice: as they were. */
void assay_host_negate(assay_host *host);
/* Whether results change in 50 ms after a call; then host->message says so. */
bool assay_host_writes_on(assay_host *host);

/* A result's bytes and the type that the backend says they have; false where it wrote none, and says so or left it as it was. Refuses a type that there is
 * not. */
assay_status assay_host_result(assay_context *ctx, const assay_host *host, int index, assay_tensor_spec *spec,
                               const void **bytes, bool *written);

/* All that were written, as numbers. */
assay_status assay_host_results(assay_context *ctx, const assay_host *host, assay_tensor_set *results);

/* assay_backend_run of a shared object; NULL and a message in `why` where there is none. */
assay_backend_function assay_host_load(const char *library, char *why, size_t size);
