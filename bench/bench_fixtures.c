/* Fixtures written and read, checksums with them, against a plain file of the same bytes, which is on the disk
 * too when it is written. Each comes and goes in one call. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench/bench.h"
#include "fixtures/fixture.h"
#include "oracle/base/memory.h"

enum { ROWS = 4096, COLUMNS = 4096 };
static const int64_t COUNT = (int64_t)ROWS * COLUMNS;
static const char *const TENSOR = "outputs/y";

typedef struct files {
    char folder[256], fixture[300], plain[300];
    assay_dtype type;
    double *values;
    void *bytes; /* as they are stored */
} files;

static assay_status write_fixture(assay_context *ctx, void *self)
{
    const files *f = self;
    assay_tensor_spec spec = {
        .type = f->type, .shape = assay_shape_of(2, (int64_t)ROWS, (int64_t)COLUMNS), .labels = {"M", "N"}};
    assay_fixture_writer *writer = NULL;
    assay_status status;
    snprintf(spec.path, sizeof spec.path, "%s", TENSOR);
    TRY(assay_fixture_create(ctx, f->fixture, &writer));
    TRY(assay_fixture_declare(ctx, writer, &spec));
    TRY(assay_fixture_append(ctx, writer, TENSOR, COUNT, f->values));
cleanup:
    return assay_fixture_end(ctx, writer, status);
}

static assay_status read_fixture(assay_context *ctx, void *self)
{
    const files *f = self;
    assay_fixture_reader *reader = NULL;
    assay_status status;
    TRY(assay_fixture_open(ctx, f->fixture, &reader));
    TRY(assay_fixture_read(ctx, reader, TENSOR, 0, COUNT, f->values));
cleanup:
    assay_fixture_close(reader);
    return status;
}

static assay_status write_plain(assay_context *ctx, void *self)
{
    const files *f = self;
    FILE *file = fopen(f->plain, "wb");
    if (file == NULL) return assay_fail(ctx, ASSAY_IO, "%s cannot be created", f->plain);
    size_t written = fwrite(f->bytes, assay_dtype_size(f->type), (size_t)COUNT, file);
    const bool on_disk = fflush(file) == 0 && fsync(fileno(file)) == 0;
    if (fclose(file) != 0 || !on_disk || written != (size_t)COUNT)
        return assay_fail(ctx, ASSAY_IO, "%s cannot be written", f->plain);
    return ASSAY_OK;
}

static assay_status read_plain(assay_context *ctx, void *self)
{
    const files *f = self;
    FILE *file = fopen(f->plain, "rb");
    if (file == NULL) return assay_fail(ctx, ASSAY_IO, "%s cannot be opened", f->plain);
    size_t read = fread(f->bytes, assay_dtype_size(f->type), (size_t)COUNT, file);
    fclose(file);
    return read == (size_t)COUNT ? ASSAY_OK : assay_fail(ctx, ASSAY_IO, "%s cannot be read", f->plain);
}

/* In this order: what is read was written by the line before. */
static const struct line {
    const char *name;
    bench_run fixture, plain;
} lines[] = {
    {"write", write_fixture, write_plain},
    {"read", read_fixture, read_plain},
};
enum { LINES = sizeof lines / sizeof *lines };

/* Targets with several threads; 0: none. Four times as many bytes of numbers as of the file come and go with bfloat16. */
static const struct form {
    const char *ending;
    assay_dtype type;
    double targets[LINES];
} forms[] = {
    {"h5", ASSAY_FLOAT64, {0.8, 0.6}},
    {"h5", ASSAY_BFLOAT16, {0.5, 0.35}},
    {"safetensors", ASSAY_FLOAT64, {0.8, 0.6}},
    {"safetensors", ASSAY_BFLOAT16, {0.5, 0.35}},
};
enum { FORMS = sizeof forms / sizeof *forms };

static assay_status bench_form(assay_context *ctx, files *f, const struct form *form, bench_report *report)
{
    const assay_dtype type = form->type;
    const double gigabytes = 1e-9 * (double)COUNT * (double)assay_dtype_size(type);
    char name[64];
    f->type = type;
    assay_dtype_encode(type, COUNT, f->values, f->bytes);
    for (int i = 0; i < LINES; i++) {
        const bench_pair pair = {name, lines[i].fixture, lines[i].plain, gigabytes,
                                 ctx->threads > 1 ? form->targets[i] : 0};
        snprintf(name, sizeof name, "%s, %s [%d,%d]", lines[i].name, assay_dtype_name(type), ROWS, COLUMNS);
        MUST(bench_line(ctx, report, &pair, f));
    }
    return ASSAY_OK;
}

assay_status bench_fixtures(assay_context *ctx, bench_report *report)
{
    files f = {0};
    assay_status status;
    TRY(bench_folder(ctx, f.folder, sizeof f.folder));
    snprintf(f.plain, sizeof f.plain, "%s/plain", f.folder);
    TRY(assay_alloc_f64(ctx, "values", COUNT, &f.values));
    TRY(assay_alloc(ctx, "bytes", COUNT, sizeof(double), &f.bytes));
    bench_fill(f.values, COUNT);
    for (int i = 0; i < FORMS; i++) {
        char heading[64];
        snprintf(heading, sizeof heading, "Fixtures, .%s, %s", forms[i].ending, assay_dtype_name(forms[i].type));
        snprintf(f.fixture, sizeof f.fixture, "%s/fixture.%s", f.folder, forms[i].ending);
        bench_heading(heading, "fixture", "plain file", "GB/s");
        for (ctx->threads = 1; ctx->threads <= 2; ctx->threads++) TRY(bench_form(ctx, &f, &forms[i], report));
        unlink(f.fixture);
    }
cleanup:
    unlink(f.fixture);
    unlink(f.plain);
    rmdir(f.folder);
    free(f.values);
    free(f.bytes);
    return status;
}
