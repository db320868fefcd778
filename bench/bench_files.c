#include "bench/bench_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/statistics.h"
#include "oracle/base/memory.h"
#include "oracle/base/random.h"

static assay_status append(assay_context *ctx, assay_fixture_writer *writer, const assay_tensor_spec *spec,
                           const double *values)
{
    const int64_t count = assay_shape_count(&spec->shape);
    MUST(assay_fixture_declare(ctx, writer, spec));
    for (int64_t first = 0; first < count; first += BENCH_SLICE) {
        const int64_t size = count - first < BENCH_SLICE ? count - first : BENCH_SLICE;
        MUST(assay_fixture_append(ctx, writer, spec->path, size, values));
    }
    return ASSAY_OK;
}

/* The tensor's null distributions, wide enough for anything. */
static assay_status append_null(assay_context *ctx, assay_fixture_writer *writer, const assay_tensor_spec *spec)
{
    static const double row[ASSAY_NULL_COLUMNS] = {
        [ASSAY_NULL_LOW] = -100, [ASSAY_NULL_HIGH] = 100, [ASSAY_NULL_DEVIATION] = 1, [ASSAY_NULL_MEMBERS] = 16};
    const int count = assay_statistics_rows(&spec->shape);
    assay_tensor_spec null = {.type = ASSAY_FLOAT32,
                              .shape = assay_shape_of(2, (int64_t)count, (int64_t)ASSAY_NULL_COLUMNS)};
    snprintf(null.path, sizeof null.path, "null/bf16/%.100s", spec->path);
    MUST(assay_fixture_declare(ctx, writer, &null));
    for (int i = 0; i < count; i++) MUST(assay_fixture_append(ctx, writer, null.path, ASSAY_NULL_COLUMNS, row));
    return ASSAY_OK;
}

static assay_status append_all(assay_context *ctx, assay_fixture_writer *writer, const bench_files *files, bool golden,
                               const double *values, const double *scales)
{
    for (int i = 0; i < files->count; i++) {
        assay_tensor_spec spec = files->tensor(files->self, i), scale = spec;
        if (golden) spec.type = ASSAY_FLOAT64;
        MUST(append(ctx, writer, &spec, values));
        if (!golden) continue;
        scale.type = ASSAY_FLOAT32;
        snprintf(scale.path, sizeof scale.path, "error_scale/bf16/%.100s", spec.path);
        MUST(append(ctx, writer, &scale, scales));
        MUST(append_null(ctx, writer, &spec));
    }
    return ASSAY_OK;
}

assay_status bench_write_file(assay_context *ctx, const bench_files *files, bool golden, const char *path)
{
    const assay_fill normal = {.distribution = ASSAY_NORMAL, .scale = 1};
    const assay_shape slice = assay_shape_of(1, (int64_t)BENCH_SLICE);
    assay_fixture_writer *writer = NULL;
    double *values = NULL, *scales = NULL;
    assay_status status;
    TRY(assay_alloc_f64(ctx, "values", BENCH_SLICE, &values));
    TRY(assay_alloc_f64(ctx, "scales", BENCH_SLICE, &scales));
    TRY(assay_random_fill(ctx, &normal, 1, "large", &slice, ASSAY_FLOAT64, 0, BENCH_SLICE, values));
    for (int64_t i = 0; i < BENCH_SLICE; i++) scales[i] = 0x1p-10;
    TRY(assay_fixture_create(ctx, path, &writer));
    TRY(assay_fixture_set_text(ctx, writer, "kind", golden ? "golden" : "candidate"));
    TRY(assay_fixture_set_text(ctx, writer, "case", "large"));
    TRY(assay_fixture_set_text(ctx, writer, "case_yaml", "case: large\nop: rms_norm\ndtype: bfloat16\n"));
    TRY(append_all(ctx, writer, files, golden, values, scales));
cleanup:
    status = assay_fixture_end(ctx, writer, status);
    free(values);
    free(scales);
    return status;
}
