/* Checked sizes and allocation. Every shape product and every byte count goes through here. */
#pragma once

#include <stddef.h>
#include <stdio.h>

#include "oracle/base/status.h"

static inline int64_t assay_smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t assay_larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Of `length` each; the last one may be shorter. */
static inline int64_t assay_parts(int64_t count, int64_t length)
{
    return (count + length - 1) / length;
}

/* The product of `rank` dimensions. Refuses a negative dimension and a product of elements whose bytes at 16 each do
 * not fit in int64_t; `what` names the tensor in the message. */
assay_status assay_checked_count(assay_context *ctx, const char *what, int rank, const int64_t *dims, int64_t *count);

/* `count` elements of `element_size` bytes, contents undefined, to be released with free(). From 16 KiB on they are
 * aligned to 64 bytes, below as malloc() does it, which takes a fraction of the time.
 * count 0 gives a pointer that can be freed. `out` is the address of a pointer of any type, which is NULL on failure. */
assay_status assay_alloc(assay_context *ctx, const char *what, int64_t count, size_t element_size, void *out);
assay_status assay_alloc_aligned(assay_context *ctx, const char *what, int64_t count, size_t element_size,
                                 void *out); /* however small */
/* Small lists: every byte is 0; and with room for `count` elements, *list as it was where there is no memory for it. */
assay_status assay_alloc_list(assay_context *ctx, const char *what, int64_t count, size_t element_size, void *out);
assay_status assay_grow(assay_context *ctx, const char *what, int64_t count, size_t element_size, void *list);
assay_status assay_alloc_f64(assay_context *ctx, const char *what, int64_t count, double **out);
assay_status assay_alloc_zeros(assay_context *ctx, const char *what, int64_t count, double **out);
assay_status assay_alloc_i32(assay_context *ctx, const char *what, int64_t count, int32_t **out);

/* A stream into memory; NULL: no memory. *text, of *size bytes and a zero byte, is freed by the caller, also where it is not
 * whole. open_memstream's does not tell when memory ran out: what did not fit is missing, and ferror says nothing. */
FILE *assay_text_open(char **text, size_t *size);
/* Closes it. False where memory ran out; then *text is freed and NULL. */
bool assay_text_close(FILE *out, char **text);

/* For programs, at their start: what is freed is kept for the next block (blocks of less than 4 MiB, 256 MiB in all).
 * An ensemble's members need the same memory one after the other, and a fifth of their time went into getting it anew.
 */
void assay_keep_freed_memory(void);

/* Bytes that this process can still take without swapping: the least of MemAvailable, what a control group leaves,
 * and what RLIMIT_AS leaves. */
int64_t assay_memory_available(void);

/* Refuses with ASSAY_NO_MEMORY, naming both numbers, when `bytes` exceeds what is available; a few megabytes never do. */
assay_status assay_require_memory(assay_context *ctx, const char *what, int64_t bytes);
