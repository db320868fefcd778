#include "harness/tests/altering_sink.h"
#include "tests/support/assay_test.h"

static bool wants(void *self, const char *path)
{
    const altering_sink *sink = self;
    return assay_wants(sink->out, path);
}

static void *copy_of(const void *from, int64_t count, size_t size)
{
    void *copy = calloc((size_t)count + 1, size);
    assert_non_null(copy);
    return memcpy(copy, from, (size_t)count * size);
}

static assay_status write_f64(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    const altering_sink *sink = self;
    OWNED double *altered = copy_of(values, count, sizeof *values);
    sink->alter(path, count, altered, NULL);
    const assay_status status = sink->out->write(ctx, sink->out->self, path, count, altered);
    return status;
}

static assay_status write_i32(assay_context *ctx, void *self, const char *path, int64_t count, const int32_t *indices)
{
    const altering_sink *sink = self;
    OWNED int32_t *altered = copy_of(indices, count, sizeof *indices);
    sink->alter(path, count, NULL, altered);
    const assay_status status = sink->out->write_i32(ctx, sink->out->self, path, count, altered);
    return status;
}

assay_sink altering_sink_of(altering_sink *sink)
{
    return (assay_sink){.self = sink, .wants = wants, .write = write_f64, .write_i32 = write_i32};
}
