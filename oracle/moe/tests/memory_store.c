#include "oracle/moe/tests/memory_store.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void memory_store_free(memory_store *store)
{
    for (int i = 0; i < store->count; i++) {
        free(store->items[i].values);
        free(store->items[i].indices);
    }
    free(store->items);
    store->items = NULL;
    store->count = 0;
    store->reads = 0;
}

memory_tensor *memory_store_find(const memory_store *store, const char *path)
{
    for (int i = 0; i < store->count; i++) {
        if (strcmp(store->items[i].path, path) == 0) return &store->items[i];
    }
    return NULL;
}

void memory_store_remove(memory_store *store, const char *path)
{
    memory_tensor *tensor = memory_store_find(store, path);
    if (tensor == NULL) return;
    free(tensor->values);
    free(tensor->indices);
    store->count--;
    memmove(tensor, tensor + 1, (size_t)(store->items + store->count - tensor) * sizeof *tensor);
}

static memory_tensor *add(memory_store *store, const char *path)
{
    memory_tensor *items = realloc(store->items, (size_t)(store->count + 1) * sizeof *items);
    if (items == NULL) return NULL;
    store->items = items;
    memory_tensor *tensor = &items[store->count++];
    memset(tensor, 0, sizeof *tensor);
    snprintf(tensor->path, sizeof tensor->path, "%s", path);
    return tensor;
}

double *memory_store_add(memory_store *store, const char *path, int64_t count)
{
    memory_tensor *tensor = add(store, path);
    if (tensor == NULL) return NULL;
    tensor->count = count;
    tensor->values = malloc((size_t)(count + 1) * sizeof *tensor->values);
    return tensor->values;
}

int32_t *memory_store_add_i32(memory_store *store, const char *path, int64_t count)
{
    memory_tensor *tensor = add(store, path);
    if (tensor == NULL) return NULL;
    tensor->count = count;
    tensor->indices = malloc((size_t)(count + 1) * sizeof *tensor->indices);
    return tensor->indices;
}

static bool has(void *self, const char *path)
{
    return memory_store_find(self, path) != NULL;
}

static assay_status locate(assay_context *ctx, memory_store *store, const char *path, int64_t first, int64_t count,
                           const memory_tensor **tensor)
{
    *tensor = memory_store_find(store, path);
    if (*tensor == NULL) return assay_fail(ctx, ASSAY_BAD_INPUT, "there is no tensor '%s'", path);
    if (first < 0 || count < 0 || first + count > (*tensor)->count) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "'%s' has %lld elements, asked for %lld from %lld", path,
                          (long long)(*tensor)->count, (long long)count, (long long)first);
    }
    store->reads += count;
    return ASSAY_OK;
}

static assay_status read_f64(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                             double *out)
{
    const memory_tensor *tensor = NULL;
    assay_status status = locate(ctx, self, path, first, count, &tensor);
    if (status != ASSAY_OK) return status;
    if (tensor->values == NULL) return assay_fail(ctx, ASSAY_BAD_INPUT, "'%s' holds int32", path);
    memcpy(out, tensor->values + first, (size_t)count * sizeof *out);
    return ASSAY_OK;
}

static assay_status read_i32(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                             int32_t *out)
{
    const memory_tensor *tensor = NULL;
    assay_status status = locate(ctx, self, path, first, count, &tensor);
    if (status != ASSAY_OK) return status;
    if (tensor->indices == NULL) return assay_fail(ctx, ASSAY_BAD_INPUT, "'%s' holds float64", path);
    memcpy(out, tensor->indices + first, (size_t)count * sizeof *out);
    return ASSAY_OK;
}

static bool wants(void *self, const char *path)
{
    const memory_store *store = self;
    if (store->wanted == NULL) return true;
    for (const char *const *glob = store->wanted; *glob != NULL; glob++) {
        if (fnmatch(*glob, path, 0) == 0) return true;
    }
    return false;
}

static assay_status write_f64(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    memory_tensor *tensor = memory_store_find(self, path);
    if (!wants(self, path)) return assay_fail(ctx, ASSAY_INTERNAL, "'%s' is written and nobody wants it", path);
    if (tensor == NULL) tensor = add(self, path);
    double *grown =
        tensor == NULL ? NULL : realloc(tensor->values, (size_t)(tensor->count + count + 1) * sizeof *grown);
    if (grown == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for '%s'", path);
    tensor->values = grown;
    memcpy(grown + tensor->count, values, (size_t)count * sizeof *grown);
    tensor->count += count;
    return ASSAY_OK;
}

static assay_status write_i32(assay_context *ctx, void *self, const char *path, int64_t count, const int32_t *values)
{
    memory_tensor *tensor = memory_store_find(self, path);
    if (!wants(self, path)) return assay_fail(ctx, ASSAY_INTERNAL, "'%s' is written and nobody wants it", path);
    if (tensor == NULL) tensor = add(self, path);
    int32_t *grown =
        tensor == NULL ? NULL : realloc(tensor->indices, (size_t)(tensor->count + count + 1) * sizeof *grown);
    if (grown == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for '%s'", path);
    tensor->indices = grown;
    memcpy(grown + tensor->count, values, (size_t)count * sizeof *grown);
    tensor->count += count;
    return ASSAY_OK;
}

assay_source memory_store_source(memory_store *store)
{
    return (assay_source){store, has, read_f64, read_i32};
}

assay_sink memory_store_sink(memory_store *store)
{
    return (assay_sink){store, wants, write_f64, write_i32};
}
