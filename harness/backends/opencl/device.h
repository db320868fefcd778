/* The OpenCL side of a call: device, programs, buffers, launches. What fails says why in the request's message and leaves
 * the call, so that the code above needs no checks.
 *
 * Environment: ASSAY_OPENCL_PLATFORM, a part of a platform's name (the first that has it; all when not given);
 * ASSAY_OPENCL_DEVICE, which of its devices, from 0 (0); ASSAY_OPENCL_STORAGE, bfloat16 or float32 (what the case's
 * tensors have); ASSAY_OPENCL_FLAGS, more options for the compiler. */
#pragma once

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include "../support/support.h"

#pragma GCC visibility push(hidden)

enum { TILE = 16, LANES = 64, MOST_BUFFERS = 128 };

/* Programs: the kernels over the case's storage, over float32 (the router), and of random.cl. */
enum program { STORED, WIDE, RANDOM, PROGRAMS };

typedef struct device {
    char *message; /* of the request */
    int message_size;
    int code; /* what assay_backend_run returns, once `failed` is taken */
    jmp_buf failed;
    assay_backend_type storage;
    cl_device_id id;
    cl_context context;
    cl_command_queue queue;
    cl_program programs[PROGRAMS];
    cl_mem buffers[MOST_BUFFERS];
    int count;
} device;

/* Puts one line into the message and leaves the call with `code`. */
void leave(device *d, int code, const char *format, ...) __attribute__((format(printf, 3, 4), noreturn));

/* Finds the device and makes a queue. Call setjmp(d->failed) first, and close in any case. */
void device_open(device *d);
void device_close(device *d);
void device_build(device *d, enum program which);

/* Memory until device_close: zeroed, or a copy of `bytes` bytes. */
cl_mem room(device *d, int64_t bytes);
cl_mem copy(device *d, const void *data, int64_t bytes);
void read_back(device *d, void *data, cl_mem buffer, int64_t bytes);

/* An argument of a kernel; one of local memory has a size and no value. */
typedef struct argument {
    size_t size;
    bool local;
    union {
        cl_mem memory;
        cl_int number;
        cl_float real;
        const void *bytes;
    } value;
    bool by_pointer;
} argument;

argument mem(cl_mem buffer); /* NULL: a null pointer */
argument num(int64_t number);
argument real(double number);
argument bytes(const void *value, size_t size); /* a struct, or a number of another size */
argument local_floats(int64_t count);

/* Runs a kernel over x, y and z work-items, rounded up to whole work-groups of TILE x TILE, of LANES, or (ONE) of one. */
enum group { ONE, LINE, SQUARE };
void launch(device *d, enum program which, const char *kernel, enum group group, const int64_t items[3], int count,
            const argument *arguments);
#define LAUNCH(d, which, kernel, group, x, y, z, ...)                                                                  \
    launch(d, which, kernel, group, (const int64_t[3]){x, y, z},                                                       \
           (int)(sizeof((const argument[]){__VA_ARGS__}) / sizeof(argument)), (const argument[]){__VA_ARGS__})

#pragma GCC visibility pop
