#include "tests/support/test_tensors.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

static assay_status add(assay_context *ctx, test_tensors *tensors, const char *path, assay_dtype type, int64_t count,
                        assay_tensor **added)
{
    assay_tensor_spec spec = {.type = type, .shape = assay_shape_of(1, count)};
    assay_tensor_call(&spec, path);
    return assay_tensor_set_add(ctx, &tensors->set, &spec, added);
}

static assay_tensor *add_whole(test_tensors *tensors, const char *path, assay_dtype type, int64_t count)
{
    assay_context ctx = {.threads = 1};
    assay_tensor *added = NULL;
    if (add(&ctx, tensors, path, type, count, &added) != ASSAY_OK) return NULL;
    added->written = count;
    return added;
}

double *test_tensors_add(test_tensors *tensors, const char *path, int64_t count)
{
    const assay_tensor *added = add_whole(tensors, path, ASSAY_FLOAT64, count);
    return added == NULL ? NULL : added->values;
}

int32_t *test_tensors_add_i32(test_tensors *tensors, const char *path, int64_t count)
{
    const assay_tensor *added = add_whole(tensors, path, ASSAY_INT32, count);
    return added == NULL ? NULL : added->indices;
}

void test_tensors_remove(test_tensors *tensors, const char *path)
{
    assay_tensor_set *set = &tensors->set;
    assay_tensor *tensor = assay_tensor_set_find(set, path);
    int kept = 0;
    if (tensor == NULL) return;
    const int index = (int)(tensor - set->items);
    free(tensor->values);
    free(tensor->indices);
    memmove(tensor, tensor + 1, (size_t)(set->count - index - 1) * sizeof *tensor);
    for (int place = 0; place < set->count; place++) {
        const int item = set->by_path[place];
        if (item != index) set->by_path[kept++] = item > index ? item - 1 : item;
    }
    set->count--;
}

static bool has(void *self, const char *path)
{
    const test_tensors *tensors = self;
    return assay_tensor_set_find(&tensors->set, path) != NULL;
}

static assay_status read_f64(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                             double *out)
{
    test_tensors *tensors = self;
    const assay_source in = assay_tensor_set_source(&tensors->set);
    tensors->reads += count;
    return in.read(ctx, in.self, path, first, count, out);
}

static assay_status read_i32(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                             int32_t *out)
{
    test_tensors *tensors = self;
    const assay_source in = assay_tensor_set_source(&tensors->set);
    tensors->reads += count;
    return in.read_i32(ctx, in.self, path, first, count, out);
}

assay_source test_tensors_source(test_tensors *tensors)
{
    return (assay_source){.self = tensors, .has = has, .read = read_f64, .read_i32 = read_i32};
}

static bool wants(void *self, const char *path)
{
    const test_tensors *tensors = self;
    if (tensors->wanted == NULL) return true;
    for (const char *const *glob = tensors->wanted; *glob != NULL; glob++) {
        if (fnmatch(*glob, path, 0) == 0) return true;
    }
    return false;
}

/* Room for `count` more elements of the tensor. */
static assay_status lengthen(assay_context *ctx, test_tensors *tensors, const char *path, assay_dtype type,
                             int64_t count)
{
    assay_tensor *tensor = assay_tensor_set_find(&tensors->set, path);
    if (!wants(tensors, path)) return assay_fail(ctx, ASSAY_INTERNAL, "'%s' is written and nobody wants it", path);
    if (tensor == NULL) return add(ctx, tensors, path, type, count, NULL);
    const size_t size = (size_t)(tensor->count + count + 1);
    void *grown = tensor->indices != NULL ? realloc(tensor->indices, size * sizeof *tensor->indices)
                                          : realloc(tensor->values, size * sizeof *tensor->values);
    if (grown == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for '%s'", path);
    if (tensor->indices != NULL)
        tensor->indices = grown;
    else
        tensor->values = grown;
    tensor->count += count;
    tensor->spec.shape.dims[0] = tensor->count;
    return ASSAY_OK;
}

static assay_status write_f64(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    test_tensors *tensors = self;
    const assay_sink out = assay_tensor_set_sink(&tensors->set);
    const assay_status status = lengthen(ctx, tensors, path, ASSAY_FLOAT64, count);
    return status == ASSAY_OK ? out.write(ctx, out.self, path, count, values) : status;
}

static assay_status write_i32(assay_context *ctx, void *self, const char *path, int64_t count, const int32_t *values)
{
    test_tensors *tensors = self;
    const assay_sink out = assay_tensor_set_sink(&tensors->set);
    const assay_status status = lengthen(ctx, tensors, path, ASSAY_INT32, count);
    return status == ASSAY_OK ? out.write_i32(ctx, out.self, path, count, values) : status;
}

assay_sink test_tensors_sink(test_tensors *tensors)
{
    return (assay_sink){.self = tensors, .wants = wants, .write = write_f64, .write_i32 = write_i32};
}
