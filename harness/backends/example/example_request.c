/* Tensors and results by a prefix and a name. */
#include "example.h"

#include <stdio.h>

enum { PATH_SIZE = 192 };

const assay_backend_tensor *tensor_in(const example *e, const char *prefix, const char *name)
{
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s%s", prefix, name);
    return tensor(e->request, path);
}

float *whole(example *e, const char *prefix, const char *name)
{
    const assay_backend_tensor *t = tensor_in(e, prefix, name);
    if (t == NULL) return NULL;
    const int64_t count = count_of(t->rank, t->dims);
    float *values = take(&e->memory, count);
    load(values, t, 0, count);
    return values;
}

float *gradient(const example *e, const char *prefix, const char *name, int64_t first)
{
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "gradients/%s%s", prefix, name);
    assay_backend_result *r = result(e->request, path);
    return r == NULL ? NULL : (float *)r->data + first;
}

void store(const example *e, const char *folder, const char *prefix, const char *name, bool in_bf16, const void *values,
           int64_t count)
{
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s%s%s", folder, prefix, name);
    assay_backend_result *r = result(e->request, path);
    if (r == NULL) return;
    write_result(r, in_bf16 ? ASSAY_BACKEND_BFLOAT16 : r->type, values, count);
}
