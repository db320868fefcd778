/* A backend as a shared object: what `assay run --backend ./libmine.so` loads.
 *
 * The file exports one function, assay_backend_run. It is given the tensors of one case, by the names of the fixture
 * ("inputs/x", "weights/wi_0", "cotangents/y"), and a buffer for every result that is compared ("outputs/y",
 * "gradients/weights/wo"). It computes and writes. It keeps no state between calls: it is called in two processes with
 * the same request, in one of them twice, and the results are held against each other.
 *
 * Plain C, no library to link. Data are little-endian, row-major, last axis contiguous. */
#ifndef ASSAY_BACKEND_H
#define ASSAY_BACKEND_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ASSAY_BACKEND_VERSION 1

/* Element types; bfloat16, float16 and the fp8 types are raw bits in uint16_t and uint8_t. */
typedef enum assay_backend_type {
    ASSAY_BACKEND_FLOAT64 = 0,
    ASSAY_BACKEND_FLOAT32 = 1,
    ASSAY_BACKEND_BFLOAT16 = 2,
    ASSAY_BACKEND_FLOAT16 = 3,
    ASSAY_BACKEND_FLOAT8_E4M3FN = 4,
    ASSAY_BACKEND_FLOAT8_E5M2 = 5,
    ASSAY_BACKEND_INT32 = 6,
    ASSAY_BACKEND_FLOAT4_E2M1FN = 7, /* a code a byte, in the low four bits */
    ASSAY_BACKEND_FLOAT8_E8M0FNU = 8
} assay_backend_type;

/* A tensor of the request. */
typedef struct assay_backend_tensor {
    const char *path;
    assay_backend_type type;
    int32_t rank;
    const int64_t *dims;
    const void *data; /* 64-byte aligned */
} assay_backend_tensor;

/* A result to be filled. `type` is float32 at first (int32 for indices); set it to the type in which you write, any float
 * type above: the buffer has room for float64. It is filled with NaN (every bit set) beforehand, with guards before and
 * behind: what lies behind its elements in that type must stay as it was. A result that is left as it was counts as not
 * written, and so does one whose `written` (1 at first) you set to 0; one that is not `required` may be left out so.
 * Integers, and codes of a byte, may lawfully have every bit set: of these only `written` says that there are none. */
typedef struct assay_backend_result {
    const char *path;
    assay_backend_type type;
    int32_t rank;
    const int64_t *dims;
    void *data; /* 64-byte aligned */
    int32_t required;
    int32_t written;
} assay_backend_result;

/* One key of the configuration, as text: "num_experts" "16", "routed_score_func" "sigmoid", "sparse_matmul" "true",
 * "mlp_activations" "silu,linear"; and of the case: "op", "case", "batch", "sequence", "dtype", "mesh.data", "mesh.fsdp", "mesh.expert",
 * "mesh.tensor", "mesh.mlp_tensor", "mesh.fsdp_transpose". Every key is there; "only_layer" where the case says it. */
typedef struct assay_backend_setting {
    const char *key;
    const char *value;
} assay_backend_setting;

typedef struct assay_backend_request {
    int32_t version; /* ASSAY_BACKEND_VERSION of the caller */
    int32_t setting_count, tensor_count, result_count;
    const assay_backend_setting *settings;
    const assay_backend_tensor *tensors;
    assay_backend_result *results;
    char *message; /* say here in one line why a case is not supported, or what went wrong */
    int32_t message_size;
} assay_backend_request;

/* What assay_backend_run returns. */
#define ASSAY_BACKEND_DONE 0
#define ASSAY_BACKEND_UNSUPPORTED 1 /* this backend does not have that case: reported, and no failure */
#define ASSAY_BACKEND_ERROR 2

int assay_backend_run(const assay_backend_request *request);

#ifdef __cplusplus
}
#endif

#endif
