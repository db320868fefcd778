/* OpenBLAS as a backend: the grouped product, a cblas call for each group. In bfloat16 cblas_sbgemm, which takes bfloat16 operands and gives
 * float32; in float32 cblas_sgemm.
 *
 *     cc -O3 -shared -fPIC -I include $(pkg-config --cflags openblas) harness/backends/openblas/openblas.c \
 *         harness/backends/support/support.c -o libassay_openblas.so $(pkg-config --libs openblas) -lm
 *     ASSAY_OPENBLAS_TYPE=f32 assay run gmm/primes --precision f32 --backend ./libassay_openblas.so
 *
 * ASSAY_OPENBLAS_TYPE is bf16 (where nothing is said) or f32. A library that was built without BUILD_BFLOAT16=1, as Debian's is, declares
 * cblas_sbgemm and has none: bf16 is unsupported then. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include <cblas.h>

#include "../support/support.h"

#pragma weak cblas_sbgemm

/* A row-major matrix in both types; `code` is NULL in float32. */
typedef struct matrix {
    const float *number;
    const uint16_t *code;
    blasint stride; /* from row to row */
} matrix;

static matrix from(matrix whole, int64_t first)
{
    return (matrix){whole.number + first, whole.code == NULL ? NULL : whole.code + first, whole.stride};
}

/* c [m,n] = a b, either of them transposed; sums are float32. */
static void multiply(float *c, int64_t m, int64_t n, int64_t k, matrix a, bool turn_a, matrix b, bool turn_b)
{
    const CBLAS_TRANSPOSE of_a = turn_a ? CblasTrans : CblasNoTrans, of_b = turn_b ? CblasTrans : CblasNoTrans;
    const blasint rows = (blasint)m, columns = (blasint)n, depth = (blasint)k;
    if (m == 0 || k == 0) return;
    if (a.code != NULL)
        cblas_sbgemm(CblasRowMajor, of_a, of_b, rows, columns, depth, 1, a.code, a.stride, b.code, b.stride, 0, c,
                     columns);
    else
        cblas_sgemm(CblasRowMajor, of_a, of_b, rows, columns, depth, 1, a.number, a.stride, b.number, b.stride, 0, c,
                    columns);
}

static matrix given(memory *m, const assay_backend_tensor *t, bool bf16)
{
    const int64_t count = count_of(t->rank, t->dims);
    float *numbers = take(m, count);
    uint16_t *codes = bf16 ? take(m, count) : NULL;
    load(numbers, t, 0, count);
    for (int64_t i = 0; i < count && bf16; i++) codes[i] = to_bf16(numbers[i]);
    return (matrix){numbers, codes, (blasint)t->dims[t->rank - 1]};
}

static void run(const assay_backend_request *r, memory *m, bool bf16)
{
    const assay_backend_tensor *lhs = tensor(r, "inputs/lhs"), *rhs = tensor(r, "weights/rhs"),
                               *dy = tensor(r, "cotangents/y");
    const int32_t *sizes = tensor(r, "inputs/group_sizes")->data;
    const int64_t rows = lhs->dims[0], k = lhs->dims[1], groups = rhs->dims[0], n = rhs->dims[2];
    const matrix a = given(m, lhs, bf16), b = given(m, rhs, bf16), d = dy != NULL ? given(m, dy, bf16) : (matrix){0};
    float *y = take(m, rows * n), *da = take(m, rows * k), *db = take(m, groups * k * n);
    const assay_backend_type stored = bf16 ? ASSAY_BACKEND_BFLOAT16 : ASSAY_BACKEND_FLOAT32;
    for (int64_t g = 0, first = 0; g < groups; first += sizes[g++]) {
        const matrix weights = from(b, g * k * n), x = from(a, first * k);
        multiply(y + first * n, sizes[g], n, k, x, false, weights, false);
        if (dy == NULL) continue;
        multiply(da + first * k, sizes[g], k, n, from(d, first * n), false, weights, true);
        multiply(db + g * k * n, k, n, sizes[g], x, true, from(d, first * n), false);
    }
    write_result(result(r, "outputs/y"), stored, y, rows * n);
    if (dy == NULL) return;
    write_result(result(r, "gradients/inputs/lhs"), stored, da, rows * k);
    write_result(result(r, "gradients/weights/rhs"), ASSAY_BACKEND_FLOAT32, db, groups * k * n);
}

#pragma GCC visibility push(default)

int assay_backend_run(const assay_backend_request *request)
{
    memory m = {0};
    const char *type = getenv("ASSAY_OPENBLAS_TYPE");
    const bool bf16 = type == NULL || strcmp(type, "bf16") == 0;
    if (request->version != ASSAY_BACKEND_VERSION)
        return say(request, ASSAY_BACKEND_ERROR, "made for another version of the interface");
    if (!bf16 && strcmp(type, "f32") != 0)
        return say(request, ASSAY_BACKEND_ERROR, "ASSAY_OPENBLAS_TYPE: expected bf16 or f32, found %s", type);
    if (!is(request, "op", "gmm")) return say(request, ASSAY_BACKEND_UNSUPPORTED, "no %s", setting(request, "op"));
    if (has_quantised_operands(request)) return say(request, ASSAY_BACKEND_UNSUPPORTED, "quant_formats");
    if (!is(request, "gmm_layout", "ragged")) return say(request, ASSAY_BACKEND_UNSUPPORTED, "gmm_layout");
    if (bf16 && cblas_sbgemm == NULL)
        return say(request, ASSAY_BACKEND_UNSUPPORTED,
                   "this OpenBLAS was built without BUILD_BFLOAT16=1: no cblas_sbgemm");
    for (int i = 0; i < request->tensor_count; i++) {
        const assay_backend_tensor *t = &request->tensors[i];
        for (int axis = 0; axis < t->rank; axis++)
            if (t->dims[axis] > INT_MAX)
                return say(request, ASSAY_BACKEND_UNSUPPORTED, "sizes beyond those of blasint");
    }
    for (int i = 0; i < request->result_count; i++) request->results[i].written = 0;
    if (setjmp(m.out_of_memory) != 0) {
        give_back(&m, 0);
        return say(request, ASSAY_BACKEND_ERROR, "out of memory");
    }
    run(request, &m, bf16);
    give_back(&m, 0);
    return ASSAY_BACKEND_DONE;
}
