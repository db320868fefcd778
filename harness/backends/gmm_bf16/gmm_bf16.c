/* A backend to copy: the grouped matrix product in bfloat16, forward and backward, in plain loops.
 *
 *     cc -O3 -shared -fPIC -I include harness/backends/gmm_bf16/gmm_bf16.c -o libgmm_bf16.so
 *     assay run gmm/ragged gmm/primes --backend ./libgmm_bf16.so --precision bf16
 *
 * Put your kernel in the place of multiply(). Operands are bfloat16, sums float32, results are stored as bfloat16. */
#include <stdio.h>
#include <string.h>

#include "assay/backend.h"

static const assay_backend_tensor *tensor(const assay_backend_request *r, const char *path)
{
    for (int32_t i = 0; i < r->tensor_count; i++) {
        if (strcmp(r->tensors[i].path, path) == 0) return &r->tensors[i];
    }
    return NULL;
}

/* The buffer of a result, which is to be written as bfloat16; NULL where nobody asks for it. */
static uint16_t *result(const assay_backend_request *r, const char *path)
{
    for (int32_t i = 0; i < r->result_count; i++) {
        if (strcmp(r->results[i].path, path) != 0) continue;
        r->results[i].type = ASSAY_BACKEND_BFLOAT16;
        return r->results[i].data;
    }
    return NULL;
}

static int unsupported(const assay_backend_request *r, const char *why)
{
    snprintf(r->message, (size_t)r->message_size, "%s", why);
    return ASSAY_BACKEND_UNSUPPORTED;
}

static const char *setting(const assay_backend_request *r, const char *key)
{
    for (int i = 0; i < r->setting_count; i++) {
        if (strcmp(r->settings[i].key, key) == 0) return r->settings[i].value;
    }
    return "";
}

static float load(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* To nearest, ties to even; NaN stays NaN. */
static uint16_t store(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* c [m,n] = sum over k of a(i,k) b(k,j); a and b by the strides of their rows and columns. */
static void multiply(uint16_t *c, int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t a_row, int64_t a_column,
                     const uint16_t *b, int64_t b_row, int64_t b_column)
{
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            float sum = 0;
            for (int64_t p = 0; p < k; p++)
                sum += load(a[i * a_row + p * a_column]) * load(b[p * b_row + j * b_column]);
            c[i * n + j] = store(sum);
        }
    }
}

int assay_backend_run(const assay_backend_request *r)
{
    const assay_backend_tensor *lhs = tensor(r, "inputs/lhs"), *rhs = tensor(r, "weights/rhs");
    const assay_backend_tensor *sizes = tensor(r, "inputs/group_sizes"), *dy = tensor(r, "cotangents/y");
    if (lhs == NULL || rhs == NULL || sizes == NULL) return unsupported(r, "only gmm");
    if (lhs->type != ASSAY_BACKEND_BFLOAT16 || rhs->type != ASSAY_BACKEND_BFLOAT16)
        return unsupported(r, "only bfloat16");
    if (setting(r, "quant_recipe")[0] != '\0') return unsupported(r, "no quantisation");
    const int64_t rows = lhs->dims[0], k = lhs->dims[1], groups = rhs->dims[0], n = rhs->dims[2];
    const uint16_t *a = lhs->data, *b = rhs->data, *d = dy != NULL ? dy->data : NULL;
    uint16_t *y = result(r, "outputs/y");
    uint16_t *da = result(r, "gradients/inputs/lhs"), *db = result(r, "gradients/weights/rhs");
    int64_t first = 0;
    for (int64_t g = 0; g < groups; g++) {
        const int64_t m = ((const int32_t *)sizes->data)[g];
        const uint16_t *weights = b + g * k * n;
        if (y != NULL) multiply(y + first * n, m, n, k, a + first * k, k, 1, weights, n, 1);
        if (da != NULL) multiply(da + first * k, m, k, n, d + first * n, n, 1, weights, 1, n);
        if (db != NULL) multiply(db + g * k * n, k, n, m, a + first * k, 1, k, d + first * n, n, 1);
        first += m;
    }
    /* rows of no group are 0 */
    if (y != NULL) memset(y + first * n, 0, (size_t)((rows - first) * n) * sizeof *y);
    if (da != NULL) memset(da + first * k, 0, (size_t)((rows - first) * k) * sizeof *da);
    return ASSAY_BACKEND_DONE;
}
