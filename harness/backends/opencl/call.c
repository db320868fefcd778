#include "call.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const assay_backend_tensor *given(call *c, const char *path)
{
    for (int i = 0; i < c->request->tensor_count; i++) {
        if (strcmp(c->request->tensors[i].path, path) != 0) continue;
        c->used[i] = true;
        return &c->request->tensors[i];
    }
    return NULL;
}

static assay_backend_type type_of(const call *c, enum program which)
{
    return which == STORED ? c->d.storage : ASSAY_BACKEND_FLOAT32;
}

int64_t stored_size(const call *c, enum program which)
{
    return type_of(c, which) == ASSAY_BACKEND_BFLOAT16 ? 2 : 4;
}

cl_mem stored(call *c, enum program which, const char *path)
{
    const assay_backend_tensor *t = given(c, path);
    if (t == NULL) return NULL;
    const assay_backend_type wanted = type_of(c, which);
    const int64_t count = count_of(t->rank, t->dims);
    if (t->type == wanted) return copy(&c->d, t->data, count * stored_size(c, which));
    if (wanted != ASSAY_BACKEND_FLOAT32)
        leave(&c->d, ASSAY_BACKEND_UNSUPPORTED, "%s is not bfloat16, as the case's other tensors are", path);
    float *floats = malloc((size_t)count * sizeof *floats + 1);
    if (floats == NULL) leave(&c->d, ASSAY_BACKEND_ERROR, "%s: no memory for %" PRId64 " numbers", path, count);
    load(floats, t, 0, count);
    cl_mem buffer = copy(&c->d, floats, count * 4);
    free(floats);
    return buffer;
}

cl_mem integers(call *c, const char *path)
{
    const assay_backend_tensor *t = given(c, path);
    return t == NULL ? NULL : copy(&c->d, t->data, count_of(t->rank, t->dims) * 4);
}

void give(call *c, const char *path, cl_mem buffer, assay_backend_type type)
{
    assay_backend_result *r = result(c->request, path);
    if (r == NULL) return;
    read_back(&c->d, r->data, buffer, count_of(r->rank, r->dims) * (type == ASSAY_BACKEND_BFLOAT16 ? 2 : 4));
    r->type = type;
    r->written = 1;
}

cl_mem stored_room(call *c, enum program which, int64_t count)
{
    return room(&c->d, count * stored_size(c, which));
}

cl_mem word_room(call *c, int64_t count)
{
    return room(&c->d, count * 4);
}
