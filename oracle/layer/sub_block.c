#include "oracle/layer/sub_block.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "oracle/base/memory.h"

void sub_block_give(sub_block *s, const char *path, const double *values, int64_t count)
{
    assert(s->count < SUB_BLOCK_ARRAYS);
    s->arrays[s->count++] = (sub_block_array){.path = path, .values = values, .count = count};
}

void sub_block_take(sub_block *s, const char *path, double **taken, int64_t count, bool outside)
{
    assert(s->count < SUB_BLOCK_ARRAYS);
    *taken = NULL;
    s->arrays[s->count++] = (sub_block_array){.path = path, .taken = taken, .count = count, .outside = outside};
}

static sub_block_array *find(sub_block *s, const char *path, bool given)
{
    for (int i = 0; i < s->count; i++) {
        if (strcmp(s->arrays[i].path, path) == 0 && (s->arrays[i].values != NULL) == given) return &s->arrays[i];
    }
    return NULL;
}

static bool begins(const char *path, const char *start)
{
    return strncmp(path, start, strlen(start)) == 0;
}

/* The path outside; false where it is too long. */
static bool outside_path(const sub_block *s, const char *path, char *to)
{
    static const char *const folders[] = {
        "weights/", "gradients/weights/", /* of the block's own folder; the others are of the layer */
        "routing/", "outputs/",           "cotangents/",         "checkpoints/",
        "inputs/",  "gradients/inputs/",  "staged/checkpoints/", "spread/checkpoints/"};
    int length = -1;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        if (!begins(path, folders[i])) continue;
        length = snprintf(to, ASSAY_PATH_SIZE, "%s%s%s", folders[i], i < 2 ? s->weights : s->prefix,
                          path + strlen(folders[i]));
    }
    return length > 0 && length < ASSAY_PATH_SIZE;
}

/* inputs/x and checkpoints/ come from the layer alone. */
static bool is_inside(const char *path)
{
    return strcmp(path, "inputs/x") == 0 || begins(path, "checkpoints/") || strcmp(path, "cotangents/y") == 0;
}

static bool source_has(void *self, const char *path)
{
    sub_block *s = self;
    char outside[ASSAY_PATH_SIZE];
    if (is_inside(path)) return find(s, path, true) != NULL;
    return outside_path(s, path, outside) && s->in->has(s->in->self, outside);
}

static assay_status no_such_tensor(assay_context *ctx, const sub_block *s, const char *path)
{
    return assay_fail(ctx, ASSAY_INTERNAL, "%s%s: no part of the layer gives it", s->weights, path);
}

static assay_status source_read(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                double *out)
{
    sub_block *s = self;
    char outside[ASSAY_PATH_SIZE];
    if (!is_inside(path)) {
        return outside_path(s, path, outside) ? s->in->read(ctx, s->in->self, outside, first, count, out)
                                              : no_such_tensor(ctx, s, path);
    }
    const sub_block_array *array = find(s, path, true);
    if (array == NULL || first + count > array->count) return no_such_tensor(ctx, s, path);
    memcpy(out, array->values + first, (size_t)count * sizeof *out);
    return ASSAY_OK;
}

static assay_status source_read_i32(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                    int32_t *out)
{
    sub_block *s = self;
    char outside[ASSAY_PATH_SIZE];
    if (is_inside(path) || !outside_path(s, path, outside)) return no_such_tensor(ctx, s, path);
    return s->in->read_i32(ctx, s->in->self, outside, first, count, out);
}

static const double *source_lend(void *self, const char *path, int64_t first, int64_t count)
{
    const sub_block *s = self;
    char outside[ASSAY_PATH_SIZE];
    const bool lends = s->in->lend != NULL && !is_inside(path) && outside_path(s, path, outside);
    return lends ? s->in->lend(s->in->self, outside, first, count) : NULL;
}

/* What backward makes; a recipe's are checkpoints. */
static bool is_gradient(const char *path)
{
    static const char end[] = "_gradient";
    const size_t length = strlen(path), size = sizeof end - 1;
    return begins(path, "gradients/") || (length > size && strcmp(path + length - size, end) == 0);
}

static bool wanted_outside(sub_block *s, const char *path)
{
    const bool gradient = is_gradient(path);
    const sub_block_array *array = find(s, path, false);
    char outside[ASSAY_PATH_SIZE];
    if (gradient != s->backward || (array != NULL && !array->outside)) return false;
    return outside_path(s, path, outside) && assay_wants(s->out, outside);
}

static bool sink_wants(void *self, const char *path)
{
    sub_block *s = self;
    return find(s, path, false) != NULL || wanted_outside(s, path);
}

static assay_status sink_write(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    sub_block *s = self;
    sub_block_array *array = find(s, path, false);
    char outside[ASSAY_PATH_SIZE];
    if (array != NULL && *array->taken == NULL) {
        assay_status status = assay_alloc_f64(ctx, path, array->count, array->taken);
        if (status != ASSAY_OK) return status;
    }
    if (array != NULL) {
        if (array->filled + count > array->count) return no_such_tensor(ctx, s, path);
        memcpy(*array->taken + array->filled, values, (size_t)count * sizeof *values);
        array->filled += count;
    }
    if (!wanted_outside(s, path) || !outside_path(s, path, outside)) return ASSAY_OK;
    return s->out->write(ctx, s->out->self, outside, count, values);
}

static assay_status sink_write_i32(assay_context *ctx, void *self, const char *path, int64_t count,
                                   const int32_t *values)
{
    sub_block *s = self;
    char outside[ASSAY_PATH_SIZE];
    if (!wanted_outside(s, path) || !outside_path(s, path, outside)) return ASSAY_OK;
    return s->out->write_i32(ctx, s->out->self, outside, count, values);
}

/* Gradients of weights alone, which nobody inside takes. */
static assay_status sink_write_zeros(assay_context *ctx, void *self, const char *path, int64_t count)
{
    sub_block *s = self;
    char outside[ASSAY_PATH_SIZE];
    if (!wanted_outside(s, path) || !outside_path(s, path, outside)) return ASSAY_OK;
    return s->out->write_zeros(ctx, s->out->self, outside, count);
}

assay_source sub_block_source(sub_block *s)
{
    return (assay_source){
        .self = s, .has = source_has, .read = source_read, .read_i32 = source_read_i32, .lend = source_lend};
}

assay_sink sub_block_sink(sub_block *s)
{
    return (assay_sink){.self = s,
                        .wants = sink_wants,
                        .write = sink_write,
                        .write_i32 = sink_write_i32,
                        .write_zeros = s->out->write_zeros != NULL ? sink_write_zeros : NULL};
}
