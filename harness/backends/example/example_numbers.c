/* Tensors and results by path, products. */
#include "example.h"

#include <stdio.h>

float *whole(example *e, const char *path)
{
    const assay_backend_tensor *t = tensor(e->request, path);
    if (t == NULL) return NULL;
    const int64_t count = count_of(t->rank, t->dims);
    float *values = take(&e->memory, count);
    load(values, t, 0, count);
    return values;
}

float *gradient(const example *e, const char *path, int64_t first)
{
    char of[192];
    snprintf(of, sizeof of, "gradients/%s", path);
    assay_backend_result *r = result(e->request, of);
    return r == NULL ? NULL : (float *)r->data + first;
}

void store(const example *e, const char *path, const float *values, int64_t count)
{
    write_result(result(e->request, path), ASSAY_BACKEND_BFLOAT16, values, count);
}

void product(float *out, int64_t m, int64_t n, int64_t k, matrix a, matrix b)
{
    for (int64_t i = 0; out != NULL && i < m; i++) {
        float *row = out + i * n;
        for (int64_t j = 0; j < n; j++) row[j] = 0;
        for (int64_t p = 0; p < k && b.column == 1; p++) /* along the rows of b */
            for (int64_t j = 0; j < n; j++) row[j] += a.data[i * a.row + p * a.column] * b.data[p * b.row + j];
        for (int64_t j = 0; j < n && b.column != 1; j++) /* down its columns, which are contiguous */
            for (int64_t p = 0; p < k; p++)
                row[j] += a.data[i * a.row + p * a.column] * b.data[p * b.row + j * b.column];
    }
}
