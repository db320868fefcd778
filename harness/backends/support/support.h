/* What every shell around a kernel needs: settings, tensors and results by name, memory of a call, conversions between
 * bfloat16, float16 and float32. It includes <assay/backend.h> and nothing else of ours: build support.c with your shell.
 *
 *     cc -O3 -shared -fPIC -I include mine.c harness/backends/support/support.c -o libmine.so -lm */
#pragma once

#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>

#include <assay/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The names below stay inside the shared object. */
#pragma GCC visibility push(hidden)

/* Puts one line into the request's message; returns `code`, which is what assay_backend_run is to return. */
int say(const assay_backend_request *request, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* ---- settings: "" and 0 for a key that is not there ---- */

const char *setting(const assay_backend_request *request, const char *key);
double number(const assay_backend_request *request, const char *key);
bool is(const assay_backend_request *request, const char *key, const char *value);
bool has_quantised_operands(
    const assay_backend_request *request); /* quant_formats.PATH, quant_recipe, quant_hidden_format */

/* ---- tensors and results by path, or NULL ---- */

const assay_backend_tensor *tensor(const assay_backend_request *request, const char *path);
assay_backend_result *result(const assay_backend_request *request, const char *path);
int64_t count_of(int32_t rank, const int64_t *dims);

/* `count` numbers of any float type from number `first` on, as float32; nothing where t is NULL. */
void load(float *out, const assay_backend_tensor *t, int64_t first, int64_t count);
/* A whole result, written in `type`: bfloat16, float16, float32, float64 (from float32), or int32 (from int32_t). One of
 * another size than `count` stays unwritten (under a mesh there are results per shard); nothing where r is NULL. */
void write_result(assay_backend_result *r, assay_backend_type type, const void *values, int64_t count);

/* ---- memory of a call ---- */

typedef struct memory {
    void **blocks;
    int count, room;
    jmp_buf out_of_memory; /* where `take` goes without memory: call setjmp first */
} memory;

/* Zeroed room for floats or int32_t, 64-byte aligned, until it is given back. */
void *take(memory *m, int64_t count);
/* Frees what was taken since m->count was `count`; at 0 everything. */
void give_back(memory *m, int count);

/* ---- number types: to nearest, ties to even; NaN stays NaN ---- */

uint16_t to_bf16(float x);
float from_bf16(uint16_t code);
uint16_t to_f16(float x);
float from_f16(uint16_t code);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
