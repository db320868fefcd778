/* Tensors and results by path. */
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

void store(const example *e, const char *path, bool in_bf16, const void *values, int64_t count)
{
    assay_backend_result *r = result(e->request, path);
    if (r != NULL) write_result(r, in_bf16 ? ASSAY_BACKEND_BFLOAT16 : r->type, values, count);
}
