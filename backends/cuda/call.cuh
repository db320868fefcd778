/* What the backends of this folder share: memory of the device, tensors and settings of a request. With -DON_HOST the device is the processor. */
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <assay/backend.h>

typedef __nv_bfloat16 number;

/* ---- memory and launches: the device's, or with ON_HOST the processor's ---- */

#ifdef ON_HOST
enum { HERE = 1 };
static cudaError_t take(void **p, size_t size)
{
    return (*p = malloc(size)) != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}
static cudaError_t drop(void *p)
{
    return free(p), cudaSuccess;
}
static cudaError_t copy(void *to, const void *from, size_t size, cudaMemcpyKind)
{
    return memcpy(to, from, size), cudaSuccess;
}
static cudaError_t clear(void *p, size_t size)
{
    return memset(p, 0, size), cudaSuccess;
}
static cudaError_t finished(void)
{
    return cudaSuccess;
}
#else
enum { HERE = 0 };
static cudaError_t take(void **p, size_t size)
{
    return cudaMalloc(p, size);
}
static cudaError_t drop(void *p)
{
    return cudaFree(p);
}
static cudaError_t copy(void *to, const void *from, size_t size, cudaMemcpyKind kind)
{
    return cudaMemcpy(to, from, size, kind);
}
static cudaError_t clear(void *p, size_t size)
{
    return cudaMemset(p, 0, size);
}
static cudaError_t finished(void)
{
    const cudaError_t launch = cudaGetLastError();
    return launch != cudaSuccess ? launch : cudaDeviceSynchronize();
}
#endif

/* Why there is no device here; NULL where there is one. */
static const char *no_device(void)
{
    int count = 0;
    const cudaError_t error = HERE ? cudaSuccess : cudaGetDeviceCount(&count);
    if (error != cudaSuccess) return cudaGetErrorString(error);
    return HERE || count > 0 ? NULL : "no device";
}

/* ---- the request ---- */

static const assay_backend_tensor *tensor(const assay_backend_request *r, const char *path)
{
    for (int32_t i = 0; i < r->tensor_count; i++)
        if (strcmp(r->tensors[i].path, path) == 0) return &r->tensors[i];
    return NULL;
}

static const char *setting(const assay_backend_request *r, const char *key)
{
    for (int32_t i = 0; i < r->setting_count; i++)
        if (strcmp(r->settings[i].key, key) == 0) return r->settings[i].value;
    return "";
}

static int leave(const assay_backend_request *r, int code, const char *why)
{
    snprintf(r->message, (size_t)r->message_size, "%s", why);
    return code;
}

/* Device memory of one call. */
typedef struct arena {
    void *buffers[16];
    int count;
    cudaError_t error; /* the first one */
} arena;

static void note(arena *a, cudaError_t error)
{
    if (a->error == cudaSuccess) a->error = error;
}

static void *room(arena *a, size_t size)
{
    void *p = NULL;
    note(a, take(&p, size + 1));
    if (p != NULL) a->buffers[a->count++] = p;
    return p;
}

static size_t elements(int32_t rank, const int64_t *dims)
{
    size_t count = 1;
    for (int32_t i = 0; i < rank; i++) count *= (size_t)dims[i];
    return count;
}

/* Of a tensor of bfloat16 or int32. */
static const number *upload(arena *a, const assay_backend_tensor *t)
{
    if (t == NULL) return NULL;
    const size_t size = elements(t->rank, t->dims) * (t->type == ASSAY_BACKEND_INT32 ? 4 : 2);
    void *p = room(a, size);
    if (p != NULL) note(a, copy(p, t->data, size, cudaMemcpyHostToDevice));
    return (const number *)p;
}
