/* What a backend is given and gives: settings, tensors and results by name; and the memory of a call. */
#include "example.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_SIZE = 192 };

int say(const assay_backend_request *request, int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(request->message, (size_t)request->message_size, format, arguments);
    va_end(arguments);
    return code;
}

const char *setting(const assay_backend_request *request, const char *key)
{
    for (int i = 0; i < request->setting_count; i++)
        if (strcmp(request->settings[i].key, key) == 0) return request->settings[i].value;
    return "";
}

double number(const assay_backend_request *request, const char *key)
{
    return strtod(setting(request, key), NULL);
}

bool is(const assay_backend_request *request, const char *key, const char *value)
{
    return strcmp(setting(request, key), value) == 0;
}

const assay_backend_tensor *tensor(const assay_backend_request *request, const char *path)
{
    for (int i = 0; i < request->tensor_count; i++)
        if (strcmp(request->tensors[i].path, path) == 0) return &request->tensors[i];
    return NULL;
}

const assay_backend_tensor *tensor_in(const example *e, const char *prefix, const char *name)
{
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s%s", prefix, name);
    return tensor(e->request, path);
}

assay_backend_result *result(const assay_backend_request *request, const char *path)
{
    for (int i = 0; i < request->result_count; i++)
        if (strcmp(request->results[i].path, path) == 0) return &request->results[i];
    return NULL;
}

int64_t count_of(int32_t rank, const int64_t *dims)
{
    int64_t count = 1;
    for (int32_t i = 0; i < rank; i++) count *= dims[i];
    return count;
}

void *take(example *e, int64_t count)
{
    if (e->count == e->room) {
        void **blocks = realloc(e->blocks, (size_t)(2 * e->room + 64) * sizeof *blocks);
        if (blocks == NULL) longjmp(e->out_of_memory, 1);
        e->blocks = blocks;
        e->room = 2 * e->room + 64;
    }
    void *block = calloc((size_t)count + 1, sizeof(float));
    if (block == NULL) longjmp(e->out_of_memory, 1);
    return e->blocks[e->count++] = block;
}

void release(example *e, int count)
{
    while (e->count > count) free(e->blocks[--e->count]);
}

void load(float *out, const assay_backend_tensor *t, int64_t first, int64_t count)
{
    if (t == NULL) return;
    const uint16_t *codes = (const uint16_t *)t->data + first;
    for (int64_t i = 0; i < count; i++) out[i] = from_bf16(codes[i]);
}

float *whole(example *e, const char *prefix, const char *name)
{
    const assay_backend_tensor *t = tensor_in(e, prefix, name);
    if (t == NULL) return NULL;
    const int64_t count = count_of(t->rank, t->dims);
    float *values = take(e, count);
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
    r->written = count_of(r->rank, r->dims) == count;
    if (!r->written) return;
    if (!in_bf16) memcpy(r->data, values, (size_t)count * sizeof(float));
    if (in_bf16) r->type = ASSAY_BACKEND_BFLOAT16;
    for (int64_t i = 0; i < count && in_bf16; i++) ((uint16_t *)r->data)[i] = to_bf16(((const float *)values)[i]);
}
