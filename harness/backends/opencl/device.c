#include "device.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The kernels' text, in this object: compile with -I of this folder and of include. */
#define TEXT(name, file)                                                                                               \
    __asm__(".section .rodata\n.hidden " #name "\n.global " #name "\n" #name ": .incbin \"" file                       \
            "\"\n.byte 0\n.previous\n");                                                                               \
    extern const char name[];
TEXT(opencl_numbers, "kernels/numbers.cl")
TEXT(opencl_product, "kernels/product.cl")
TEXT(opencl_dispatch, "kernels/dispatch.cl")
TEXT(opencl_glu, "kernels/glu.cl")
TEXT(opencl_rms_norm, "kernels/rms_norm.cl")
TEXT(opencl_router, "kernels/router.cl")
TEXT(opencl_attention, "kernels/attention.cl")
TEXT(opencl_random_header, "assay/random.h")
TEXT(opencl_random, "kernels/random.cl")

void leave(device *d, int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(d->message, (size_t)d->message_size, format, arguments);
    va_end(arguments);
    d->code = code;
    longjmp(d->failed, 1);
}

static void check(device *d, cl_int error, const char *what)
{
    if (error != CL_SUCCESS) leave(d, ASSAY_BACKEND_ERROR, "OpenCL: %s: error %d", what, error);
}

static const char *environment(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : otherwise;
}

void device_open(device *d)
{
    cl_platform_id platforms[16], platform = NULL;
    cl_device_id devices[64];
    cl_uint platform_count = 0, device_count = 0;
    cl_int error;
    const char *wanted = environment("ASSAY_OPENCL_PLATFORM", ""), *number = environment("ASSAY_OPENCL_DEVICE", "0");
    char *end;
    const unsigned long place = strtoul(number, &end, 10);
    if (clGetPlatformIDs(16, platforms, &platform_count) != CL_SUCCESS || platform_count == 0)
        leave(d, ASSAY_BACKEND_ERROR, "OpenCL: no platform is installed");
    for (cl_uint i = 0; i < platform_count && i < 16 && platform == NULL; i++) {
        char name[256] = "";
        clGetPlatformInfo(platforms[i], CL_PLATFORM_NAME, sizeof name - 1, name, NULL);
        if (strstr(name, wanted) != NULL) platform = platforms[i];
    }
    if (platform == NULL)
        leave(d, ASSAY_BACKEND_ERROR, "ASSAY_OPENCL_PLATFORM: no platform has %s in its name", wanted);
    clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 64, devices, &device_count);
    if (*end != '\0' || place >= device_count || place >= 64)
        leave(d, ASSAY_BACKEND_ERROR, "ASSAY_OPENCL_DEVICE is %s, expected a number below %u", number, device_count);
    d->id = devices[place];
    d->context = clCreateContext(NULL, 1, &d->id, NULL, NULL, &error);
    check(d, error, "clCreateContext");
    d->queue = clCreateCommandQueue(d->context, d->id, 0, &error);
    check(d, error, "clCreateCommandQueue");
}

void device_close(device *d)
{
    if (d->queue != NULL)
        clFinish(d->queue); /* kernels that nobody waits for still run: the object may be unloaded next */
    for (int i = 0; i < d->count; i++) clReleaseMemObject(d->buffers[i]);
    for (int i = 0; i < PROGRAMS; i++)
        if (d->programs[i] != NULL) clReleaseProgram(d->programs[i]);
    if (d->queue != NULL) clReleaseCommandQueue(d->queue);
    if (d->context != NULL) clReleaseContext(d->context);
}

void device_build(device *d, enum program which)
{
    static const char *const NAMES[] = {[ASSAY_BACKEND_FLOAT32] = "FLOAT32", [ASSAY_BACKEND_BFLOAT16] = "BFLOAT16"};
    const char *layers[] = {opencl_numbers,  opencl_product, opencl_dispatch, opencl_glu,
                            opencl_rms_norm, opencl_router,  opencl_attention};
    const char *random[] = {opencl_random_header, opencl_random};
    char options[1024], *log;
    cl_int error;
    size_t size = 0;
    const char *storage = which == STORED ? NAMES[d->storage] : "FLOAT32";
    const char *flags = which == RANDOM ? "" : environment("ASSAY_OPENCL_FLAGS", ""); /* no fast math for exact bits */
    snprintf(options, sizeof options, "-cl-std=CL1.2 -DTILE=%d -DLANES=%d -DSTORE_%s %s", TILE, LANES, storage, flags);
    d->programs[which] =
        which == RANDOM ? clCreateProgramWithSource(d->context, 2, random, NULL, &error)
                        : clCreateProgramWithSource(d->context, sizeof layers / sizeof *layers, layers, NULL, &error);
    check(d, error, "clCreateProgramWithSource");
    error = clBuildProgram(d->programs[which], 1, &d->id, options, NULL, NULL);
    if (error == CL_SUCCESS) return;
    clGetProgramBuildInfo(d->programs[which], d->id, CL_PROGRAM_BUILD_LOG, 0, NULL, &size);
    log = calloc(1, size + 1);
    if (log != NULL) clGetProgramBuildInfo(d->programs[which], d->id, CL_PROGRAM_BUILD_LOG, size, log, NULL);
    fprintf(stderr, "%s\n", log != NULL ? log : "");
    const char *found = log != NULL ? strstr(log, "error:") : NULL;
    char line[256];
    snprintf(line, sizeof line, "%.*s", found != NULL ? (int)strcspn(found, "\n") : 0, found != NULL ? found : "");
    free(log);
    leave(d, ASSAY_BACKEND_ERROR, "OpenCL: the kernels do not compile (error %d): %s", error, line);
}

cl_mem room(device *d, int64_t size)
{
    const cl_uint zero = 0;
    const size_t whole = (size_t)(size + 3) / 4 * 4 + 4; /* never empty */
    cl_int error;
    if (d->count == MOST_BUFFERS) leave(d, ASSAY_BACKEND_ERROR, "more than %d buffers", MOST_BUFFERS);
    cl_mem buffer = clCreateBuffer(d->context, CL_MEM_READ_WRITE, whole, NULL, &error);
    check(d, error, "clCreateBuffer");
    d->buffers[d->count++] = buffer;
    check(d, clEnqueueFillBuffer(d->queue, buffer, &zero, sizeof zero, 0, whole, 0, NULL, NULL), "clEnqueueFillBuffer");
    return buffer;
}

cl_mem copy(device *d, const void *data, int64_t size)
{
    cl_mem buffer = room(d, size);
    if (size > 0)
        check(d, clEnqueueWriteBuffer(d->queue, buffer, CL_TRUE, 0, (size_t)size, data, 0, NULL, NULL),
              "clEnqueueWriteBuffer");
    return buffer;
}

void read_back(device *d, void *data, cl_mem buffer, int64_t size)
{
    if (size > 0)
        check(d, clEnqueueReadBuffer(d->queue, buffer, CL_TRUE, 0, (size_t)size, data, 0, NULL, NULL),
              "clEnqueueReadBuffer");
}

argument mem(cl_mem buffer)
{
    return (argument){.size = sizeof buffer, .value.memory = buffer};
}

argument num(int64_t number)
{
    return (argument){.size = sizeof(cl_int), .value.number = (cl_int)number};
}

argument real(double number)
{
    return (argument){.size = sizeof(cl_float), .value.real = (cl_float)number};
}

argument bytes(const void *value, size_t size)
{
    return (argument){.size = size, .by_pointer = true, .value.bytes = value};
}

argument local_floats(int64_t count)
{
    return (argument){.size = (size_t)count * sizeof(cl_float), .local = true};
}

void launch(device *d, enum program which, const char *name, enum group group, const int64_t items[3], int count,
            const argument *arguments)
{
    static const size_t SIZES[][3] = {[ONE] = {1, 1, 1}, [LINE] = {LANES, 1, 1}, [SQUARE] = {TILE, TILE, 1}};
    const size_t *local = SIZES[group];
    size_t global[3];
    cl_int error;
    if (d->programs[which] == NULL) device_build(d, which);
    cl_kernel kernel = clCreateKernel(d->programs[which], name, &error);
    check(d, error, name);
    for (int i = 0; i < 3; i++) global[i] = ((size_t)items[i] + local[i] - 1) / local[i] * local[i];
    for (int i = 0; i < count && error == CL_SUCCESS; i++) {
        const argument *a = &arguments[i];
        error = clSetKernelArg(kernel, (cl_uint)i, a->size,
                               a->local        ? NULL
                               : a->by_pointer ? a->value.bytes
                                               : &a->value);
    }
    if (error == CL_SUCCESS && global[0] * global[1] * global[2] > 0)
        error = clEnqueueNDRangeKernel(d->queue, kernel, 3, NULL, global, local, 0, NULL, NULL);
    clReleaseKernel(kernel);
    check(d, error, name);
}
