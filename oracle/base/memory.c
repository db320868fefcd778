#define _GNU_SOURCE /* fopencookie */
#include "oracle/base/memory.h"

#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { LARGEST_ELEMENT = 16 };

assay_status assay_checked_count(assay_context *ctx, const char *what, int rank, const int64_t *dims, int64_t *count)
{
    int64_t product = 1;
    bool overflow = false;
    *count = 0;
    for (int axis = 0; axis < rank; axis++) {
        if (dims[axis] < 0) {
            return assay_refuse(ctx, "%s: dimension %d is %" PRId64 ", expected 0 or more", what, axis, dims[axis]);
        }
        overflow |= __builtin_mul_overflow(product, dims[axis], &product);
    }
    if (overflow || product > INT64_MAX / LARGEST_ELEMENT) {
        return assay_refuse(ctx, "%s: its size does not fit in 64 bits", what);
    }
    *count = product;
    return ASSAY_OK;
}

/* Blocks of less than `small` bytes as malloc() gives them. */
static assay_status alloc_block(assay_context *ctx, const char *what, int64_t count, size_t element_size, size_t small,
                                void *out)
{
    enum { LINE = 64, HUGE_PAGE = 2 << 20 };
    void *block = NULL;
    size_t bytes = 0;
    memcpy(out, &block, sizeof block);
    if (count < 0 || __builtin_mul_overflow((size_t)count, element_size, &bytes) || bytes > SIZE_MAX / 2 - HUGE_PAGE) {
        return assay_refuse(ctx, "%s: %" PRId64 " elements do not fit in memory", what, count);
    }
    /* Large blocks in huge pages: touching them for the first time, 4 KiB at a time, took a tenth of a MoE block's run.
     */
    const size_t alignment = bytes >= 2 * HUGE_PAGE ? HUGE_PAGE : LINE;
    bytes = (bytes / alignment + 1) * alignment;
    block = bytes < small ? malloc(bytes) : aligned_alloc(alignment, bytes); /* which is several times as slow */
    if (block == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "%s: no memory for %zu bytes", what, bytes);
    if (alignment == HUGE_PAGE) (void)madvise(block, bytes, MADV_HUGEPAGE);
    memcpy(out, &block, sizeof block);
    return ASSAY_OK;
}

assay_status assay_alloc(assay_context *ctx, const char *what, int64_t count, size_t element_size, void *out)
{
    return alloc_block(ctx, what, count, element_size, 16 << 10, out);
}

assay_status assay_alloc_aligned(assay_context *ctx, const char *what, int64_t count, size_t element_size, void *out)
{
    return alloc_block(ctx, what, count, element_size, 0, out);
}

assay_status assay_alloc_list(assay_context *ctx, const char *what, int64_t count, size_t element_size, void *out)
{
    void *list = calloc((size_t)count, element_size);
    memcpy(out, &list, sizeof list);
    return list != NULL ? ASSAY_OK : assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for %s", what);
}

assay_status assay_grow(assay_context *ctx, const char *what, int64_t count, size_t element_size, void *list)
{
    void *more;
    memcpy(&more, list, sizeof more);
    more = realloc(more, (size_t)count * element_size);
    if (more == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for %s", what);
    memcpy(list, &more, sizeof more);
    return ASSAY_OK;
}

typedef struct growing_text {
    char **text;
    size_t *size, room;
} growing_text;

/* 0 is an error to the stream. */
static ssize_t add(void *self, const char *bytes, size_t count)
{
    growing_text *g = self;
    const size_t needed = *g->size + count + 1;
    if (needed > g->room) {
        const size_t room = needed > 2 * g->room ? needed : 2 * g->room;
        char *more = realloc(*g->text, room);
        if (more == NULL) return 0;
        *g->text = more;
        g->room = room;
    }
    memcpy(*g->text + *g->size, bytes, count);
    *g->size += count;
    (*g->text)[*g->size] = '\0';
    return (ssize_t)count;
}

static int end(void *self)
{
    free(self);
    return 0;
}

FILE *assay_text_open(char **text, size_t *size)
{
    growing_text *g = malloc(sizeof *g);
    FILE *out = NULL;
    *size = 0;
    *text = calloc(1, 1);
    if (g != NULL) *g = (growing_text){text, size, 1};
    if (g != NULL && *text != NULL) out = fopencookie(g, "w", (cookie_io_functions_t){.write = add, .close = end});
    if (out != NULL) return out;
    free(g);
    free(*text);
    *text = NULL;
    return NULL;
}

bool assay_text_close(FILE *out, char **text)
{
    const bool failed = ferror(out) != 0;
    /* where the last reallocation fails, fclose returns 0 all the same and there is no text */
    if (fclose(out) == 0 && !failed && *text != NULL) return true;
    free(*text);
    *text = NULL;
    return false;
}

void assay_keep_freed_memory(void)
{
    (void)mallopt(M_MMAP_THRESHOLD, 4 << 20); /* those from there on are in huge pages, and leave no holes */
    (void)mallopt(M_TRIM_THRESHOLD, 256 << 20);
}

void assay_free_owned(void *pointer)
{
    void *memory;
    memcpy(&memory, pointer, sizeof memory); /* a pointer to any type */
    free(memory);
}

assay_status assay_alloc_f64(assay_context *ctx, const char *what, int64_t count, double **out)
{
    return assay_alloc(ctx, what, count, sizeof **out, out);
}

assay_status assay_alloc_zeros(assay_context *ctx, const char *what, int64_t count, double **out)
{
    const assay_status status = assay_alloc_f64(ctx, what, count, out);
    if (status == ASSAY_OK) memset(*out, 0, (size_t)count * sizeof **out);
    return status;
}

assay_status assay_alloc_i32(assay_context *ctx, const char *what, int64_t count, int32_t **out)
{
    return assay_alloc(ctx, what, count, sizeof **out, out);
}

/* The number that follows `key` in a file, or the file's first number when key is NULL; -1 when there is none ("max").
 */
static int64_t number_in_file(const char *path, const char *key)
{
    char line[256];
    int64_t value = -1;
    FILE *file = fopen(path, "re");
    if (file == NULL) return -1;
    while (value < 0 && fgets(line, sizeof line, file) != NULL) {
        size_t skip = key == NULL ? 0 : strlen(key);
        if (key == NULL || strncmp(line, key, skip) == 0) {
            char *end = NULL;
            long long number = strtoll(line + skip, &end, 10);
            if (end == line + skip) break;
            value = number;
        }
    }
    fclose(file);
    return value;
}

static int64_t least(int64_t a, int64_t b)
{
    return b >= 0 && b < a ? b : a;
}

int64_t assay_memory_available(void)
{
    int64_t available = INT64_MAX;
    int64_t kilobytes = number_in_file("/proc/meminfo", "MemAvailable:");
    if (kilobytes >= 0) available = kilobytes * 1024;

    int64_t limit = number_in_file("/sys/fs/cgroup/memory.max", NULL);
    int64_t used = number_in_file("/sys/fs/cgroup/memory.current", NULL);
    if (limit >= 0 && used >= 0) available = least(available, limit > used ? limit - used : 0);

    struct rlimit address_space;
    if (getrlimit(RLIMIT_AS, &address_space) == 0 && address_space.rlim_cur != RLIM_INFINITY &&
        address_space.rlim_cur < (rlim_t)INT64_MAX) {
        int64_t taken = number_in_file("/proc/self/statm", NULL) * 4096;
        available =
            least(available, (int64_t)address_space.rlim_cur > taken ? (int64_t)address_space.rlim_cur - taken : 0);
    }
    return available;
}

/* What is so little that it is malloc's to refuse: to ask the system takes longer than to evaluate a small case. */
#define LITTLE (INT64_C(4) << 20)

assay_status assay_require_memory(assay_context *ctx, const char *what, int64_t bytes)
{
    if (bytes <= LITTLE) return ASSAY_OK;
    int64_t available = assay_memory_available();
    if (bytes > available) {
        return assay_fail(ctx, ASSAY_NO_MEMORY, "%s needs %" PRId64 " bytes of memory, %" PRId64 " are available", what,
                          bytes, available);
    }
    return ASSAY_OK;
}
