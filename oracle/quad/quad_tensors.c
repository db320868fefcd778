#include <math.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/quad/quad_internal.h"

void quad_tensors_free(quad_tensors *tensors)
{
    for (int i = 0; i < tensors->count; i++) {
        free(tensors->items[i].values);
        free(tensors->items[i].indices);
    }
    free(tensors->items);
    *tensors = (quad_tensors){0};
}

const quad_tensor *quad_tensors_find(const quad_tensors *tensors, const char *path)
{
    for (int i = 0; i < tensors->count; i++) {
        if (strcmp(tensors->items[i].path, path) == 0) return &tensors->items[i];
    }
    return NULL;
}

assay_status quad_tensors_list(assay_context *ctx, quad_tensors *tensors, const char *path, const quad_tensor *tensor)
{
    if (strlen(path) >= ASSAY_PATH_SIZE) return assay_refuse(ctx, "the path '%s' is too long", path);
    if (quad_tensors_find(tensors, path) != NULL) return assay_refuse(ctx, "the tensor '%s' is there twice", path);
    MUST(assay_grow(ctx, path, tensors->count + 1, sizeof *tensors->items, &tensors->items));
    tensors->items[tensors->count] = *tensor;
    memcpy(tensors->items[tensors->count++].path, path, strlen(path) + 1);
    return ASSAY_OK;
}

/* out: where its numbers or indices are; NULL after a failure. */
static assay_status add(assay_context *ctx, quad_tensors *tensors, const char *path, const assay_shape *shape,
                        bool indices, void *out)
{
    int64_t count = 0;
    void *data = NULL;
    memcpy(out, &data, sizeof data);
    MUST(assay_checked_count(ctx, path, shape->rank, shape->dims, &count));
    MUST(assay_alloc(ctx, path, count, indices ? sizeof(int32_t) : sizeof(quad), &data));
    const quad_tensor tensor = {.shape = *shape, .values = indices ? NULL : data, .indices = indices ? data : NULL};
    const assay_status status = quad_tensors_list(ctx, tensors, path, &tensor);
    if (status != ASSAY_OK) free(data);
    if (status == ASSAY_OK) memcpy(out, &data, sizeof data);
    return status;
}

assay_status quad_tensors_add(assay_context *ctx, quad_tensors *tensors, const char *path, const assay_shape *shape,
                              quad **values)
{
    return add(ctx, tensors, path, shape, false, values);
}

assay_status quad_tensors_add_indices(assay_context *ctx, quad_tensors *tensors, const char *path,
                                      const assay_shape *shape, int32_t **indices)
{
    return add(ctx, tensors, path, shape, true, indices);
}

assay_status quad_tensors_copy_f64(assay_context *ctx, quad_tensors *tensors, const char *path,
                                   const assay_shape *shape, const double *values)
{
    quad *copy = NULL;
    const assay_status status = quad_tensors_add(ctx, tensors, path, shape, &copy);
    for (int64_t i = 0; status == ASSAY_OK && i < assay_shape_count(shape); i++) copy[i] = values[i];
    return status;
}

assay_status quad_tensors_copy_i32(assay_context *ctx, quad_tensors *tensors, const char *path,
                                   const assay_shape *shape, const int32_t *indices)
{
    int32_t *copy = NULL;
    const assay_status status = quad_tensors_add_indices(ctx, tensors, path, shape, &copy);
    for (int64_t i = 0; status == ASSAY_OK && i < assay_shape_count(shape); i++) copy[i] = indices[i];
    return status;
}

assay_status quad_tensors_stream(assay_context *ctx, quad_tensors *tensors, const char *path, const assay_shape *shape,
                                 const assay_source *source)
{
    return quad_tensors_list(ctx, tensors, path, &(quad_tensor){.shape = *shape, .source = source});
}

static assay_status check_tensor(assay_context *ctx, const quad_tensor *tensor, const char *path, int64_t count,
                                 bool indices)
{
    if (tensor == NULL) return assay_refuse(ctx, "the tensor '%s' is missing", path);
    if (tensor->source != NULL) return assay_fail(ctx, ASSAY_INTERNAL, "'%s' is not in memory as a whole", path);
    if ((tensor->indices != NULL) != indices) {
        return assay_refuse(ctx, "'%s' holds %s, expected %s", path, tensor->indices != NULL ? "indices" : "numbers",
                            indices ? "indices" : "numbers");
    }
    if (assay_shape_count(&tensor->shape) != count) {
        char text[128];
        assay_shape_text(&tensor->shape, text, sizeof text);
        return assay_refuse(ctx, "'%s' has the shape %s, expected %lld elements", path, text, (long long)count);
    }
    return ASSAY_OK;
}

assay_status quad_read(assay_context *ctx, const quad_tensors *in, const char *path, int64_t count, const quad **values)
{
    const quad_tensor *tensor = quad_tensors_find(in, path);
    assay_status status = check_tensor(ctx, tensor, path, count, false);
    *values = status == ASSAY_OK ? tensor->values : NULL;
    return status;
}

assay_status quad_read_optional(assay_context *ctx, const quad_tensors *in, const char *path, int64_t count,
                                const quad **values)
{
    *values = NULL;
    return quad_tensors_find(in, path) == NULL ? ASSAY_OK : quad_read(ctx, in, path, count, values);
}

/* (quad)x in a few instructions, where the compiler calls a function. */
static quad widened(double x)
{
    enum { FRACTION = 52, WIDE_FRACTION = 112, BIASES_APART = 16383 - 1023 };
    const union {
        double number;
        uint64_t bits;
    } from = {.number = x};
    const unsigned __int128 magnitude = from.bits & ~((uint64_t)1 << 63), sign = from.bits >> 63;
    if (!isnormal(x)) return x;
    const union {
        unsigned __int128 bits;
        quad number;
    } to = {.bits = sign << 127 |
                    ((magnitude << (WIDE_FRACTION - FRACTION)) + ((unsigned __int128)BIASES_APART << WIDE_FRACTION))};
    return to.number;
}

assay_status quad_read_piece(assay_context *ctx, const quad_tensor *tensor, int64_t first, int64_t count, quad *values)
{
    const assay_source *source = tensor->source;
    OWNED double *numbers = NULL;
    MUST(assay_alloc_f64(ctx, tensor->path, count, &numbers));
    MUST(source->read(ctx, source->self, tensor->path, first, count, numbers));
#pragma omp parallel for num_threads(ctx->threads) schedule(static)
    for (int64_t i = 0; i < count; i++) values[i] = widened(numbers[i]);
    return ASSAY_OK;
}

assay_status quad_read_indices(assay_context *ctx, const quad_tensors *in, const char *path, int64_t count,
                               const int32_t **indices)
{
    const quad_tensor *tensor = quad_tensors_find(in, path);
    assay_status status = check_tensor(ctx, tensor, path, count, true);
    *indices = status == ASSAY_OK ? tensor->indices : NULL;
    return status;
}

assay_status quad_alloc(assay_context *ctx, int64_t count, quad **values)
{
    return assay_alloc(ctx, "binary128 scratch", count, sizeof **values, values);
}
