#include "oracle/spec/tests/spec_stream.h"

#include <math.h>
#include <stdio.h>

static bool case_has(void *self, const char *path)
{
    const spec_case *c = ((const spec_stream *)self)->c;
    return spec_tensors_find(&c->in, path) != NULL;
}

static assay_status find_slice(assay_context *ctx, const spec_tensors *tensors, const char *path, int64_t first,
                               int64_t count, const spec_tensor **tensor)
{
    *tensor = spec_tensors_find(tensors, path);
    if (*tensor == NULL) return assay_fail(ctx, ASSAY_BAD_INPUT, "no tensor '%s'", path);
    if (first < 0 || count < 0 || first + count > assay_shape_count(&(*tensor)->shape)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "'%s' has no elements %lld to %lld", path, (long long)first,
                          (long long)(first + count));
    }
    return ASSAY_OK;
}

static assay_status case_read(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                              double *out)
{
    const spec_case *c = ((const spec_stream *)self)->c;
    const spec_tensor *tensor = NULL;
    assay_status status = find_slice(ctx, &c->in, path, first, count, &tensor);
    for (int64_t i = 0; status == ASSAY_OK && i < count; i++) out[i] = (double)tensor->values[first + i];
    return status;
}

static assay_status case_read_i32(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                  int32_t *out)
{
    const spec_case *c = ((const spec_stream *)self)->c;
    const spec_tensor *tensor = NULL;
    assay_status status = find_slice(ctx, &c->in, path, first, count, &tensor);
    for (int64_t i = 0; status == ASSAY_OK && i < count; i++) out[i] = tensor->indices[first + i];
    return status;
}

static bool sink_wants(void *self, const char *path)
{
    const spec_stream *stream = self;
    return spec_tensors_find(&stream->c->results, path) != NULL;
}

static assay_status next_slice(assay_context *ctx, spec_stream *stream, const char *path, int64_t count,
                               const spec_tensor **tensor, int64_t *first)
{
    *tensor = spec_tensors_find(&stream->c->results, path);
    if (*tensor == NULL) return assay_fail(ctx, ASSAY_BAD_INPUT, "nobody wants '%s'", path);
    assert_true(stream->c->results.count <= SPEC_CASE_RESULTS);
    int64_t *written = &stream->written[*tensor - stream->c->results.items];
    *first = *written;
    *written += count;
    return find_slice(ctx, &stream->c->results, path, *first, count, tensor);
}

static assay_status sink_write(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    const spec_tensor *tensor = NULL;
    int64_t first = 0;
    assay_status status = next_slice(ctx, self, path, count, &tensor, &first);
    for (int64_t i = 0; status == ASSAY_OK && i < count; i++) tensor->values[first + i] = values[i];
    return status;
}

static assay_status sink_write_i32(assay_context *ctx, void *self, const char *path, int64_t count,
                                   const int32_t *values)
{
    const spec_tensor *tensor = NULL;
    int64_t first = 0;
    assay_status status = next_slice(ctx, self, path, count, &tensor, &first);
    for (int64_t i = 0; status == ASSAY_OK && i < count; i++) tensor->indices[first + i] = values[i];
    return status;
}

assay_source spec_stream_source(spec_stream *stream)
{
    return (assay_source){.self = stream, .has = case_has, .read = case_read, .read_i32 = case_read_i32};
}

assay_sink spec_stream_sink(spec_stream *stream)
{
    return (assay_sink){.self = stream, .wants = sink_wants, .write = sink_write, .write_i32 = sink_write_i32};
}

void case_want(spec_case *c, const char *path, assay_shape shape)
{
    spec_quad *values = NULL;
    assert_ok(&c->ctx, spec_tensors_add(&c->ctx, &c->results, path, &shape, &values));
    for (int64_t i = 0; i < assay_shape_count(&shape); i++) values[i] = NAN;
}

void case_want_indices(spec_case *c, const char *path, assay_shape shape)
{
    int32_t *indices = NULL;
    assert_ok(&c->ctx, spec_tensors_add_indices(&c->ctx, &c->results, path, &shape, &indices));
    for (int64_t i = 0; i < assay_shape_count(&shape); i++) indices[i] = -1;
}

void case_variable(spec_case *c, const char *path, double scale, assay_shape shape)
{
    char gradient[ASSAY_PATH_SIZE];
    assert_true(snprintf(gradient, sizeof gradient, "gradients/%s", path) < ASSAY_PATH_SIZE);
    case_random(c, path, scale, shape);
    case_want(c, gradient, shape);
}

void assert_all_written(const spec_stream *stream)
{
    const spec_tensors *results = &stream->c->results;
    for (int i = 0; i < results->count; i++) {
        if (stream->written[i] == assay_shape_count(&results->items[i].shape)) continue;
        fail_msg("'%s' has %lld elements", results->items[i].path, (long long)stream->written[i]);
    }
}
