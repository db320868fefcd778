/* A bfloat16 candidate held against a golden with its error scales, 1 GB of both, as the command does: files of others
 * are tried in a process of their own first, and the golden's checksums checked. Against reading the same files, and
 * against the same comparison without the one and the other. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench/bench.h"
#include "compare/compare.h"
#include "compare/statistics.h"
#include "harness/backends/examine_file.h"
#include "oracle/base/memory.h"

enum { ROWS = 36864, COLUMNS = 2048, SLICE = 1 << 18 };
static const int64_t COUNT = (int64_t)ROWS * COLUMNS;
static const double FALSE_ALARM = 1e-6;
static const double LIMIT = 0.9; /* checks may take a tenth of the time */

typedef struct pair {
    char folder[256], golden[300], candidate[300];
    double *values, *scales;
    bool isolated; /* tried in a process of their own first */
} pair;

/* Wide enough for anything: what is measured is how long it takes to look. */
static assay_status append_null(assay_context *ctx, assay_fixture_writer *writer)
{
    double rows[ASSAY_STATISTICS * ASSAY_NULL_COLUMNS];
    const assay_shape shape = assay_shape_of(2, (int64_t)ROWS, (int64_t)COLUMNS);
    const int count = assay_statistics_rows(&shape);
    assay_tensor_spec spec = {.type = ASSAY_FLOAT32,
                              .path = "null/bf16/outputs/y",
                              .shape = assay_shape_of(2, (int64_t)count, (int64_t)ASSAY_NULL_COLUMNS),
                              .labels = {"statistic", "column"}};
    for (int s = 0; s < count; s++) {
        double *row = rows + s * ASSAY_NULL_COLUMNS;
        row[ASSAY_NULL_LOW] = -100, row[ASSAY_NULL_HIGH] = 100, row[ASSAY_NULL_SPREAD] = 1,
        row[ASSAY_NULL_MEMBERS] = 16;
    }
    assay_status status;
    TRY(assay_fixture_declare(ctx, writer, &spec));
    TRY(assay_fixture_append(ctx, writer, spec.path, count * ASSAY_NULL_COLUMNS, rows));
cleanup:
    return status;
}

static assay_status append(assay_context *ctx, assay_fixture_writer *writer, const char *path, assay_dtype type,
                           const double *values)
{
    assay_tensor_spec spec = {
        .type = type, .shape = assay_shape_of(2, (int64_t)ROWS, (int64_t)COLUMNS), .labels = {"T", "D"}};
    assay_status status;
    snprintf(spec.path, sizeof spec.path, "%s", path);
    TRY(assay_fixture_declare(ctx, writer, &spec));
    for (int64_t first = 0; first < COUNT; first += SLICE) {
        TRY(assay_fixture_append(ctx, writer, path, SLICE, values + first));
    }
cleanup:
    return status;
}

/* scales NULL: a candidate. */
static assay_status write_fixture(assay_context *ctx, const char *path, const double *values, const double *scales)
{
    assay_fixture_writer *writer = NULL;
    assay_status status;
    TRY(assay_fixture_create(ctx, path, &writer));
    TRY(assay_fixture_set_text(ctx, writer, "kind", scales == NULL ? "candidate" : "golden"));
    TRY(append(ctx, writer, "outputs/y", scales == NULL ? ASSAY_BFLOAT16 : ASSAY_FLOAT64, values));
    if (scales != NULL) TRY(append(ctx, writer, "error_scale/bf16/outputs/y", ASSAY_FLOAT32, scales));
    if (scales != NULL) TRY(append_null(ctx, writer));
    status = assay_fixture_finish(ctx, writer);
    writer = NULL;
cleanup:
    assay_fixture_abandon(writer);
    return status;
}

static assay_status run_compare(assay_context *ctx, void *self)
{
    const pair *p = self;
    assay_fixture_reader *golden = NULL, *candidate = NULL;
    assay_report report = {0};
    assay_status status;
    const char *const paths[] = {p->golden, p->candidate};
    if (p->isolated) {
        TRY(assay_examine_structure(ctx, 2, paths));
        TRY(assay_examine_file(ctx, p->candidate));
    }
    TRY(assay_fixture_open_golden(ctx, p->golden, &golden));
    TRY(assay_fixture_open(ctx, p->candidate, &candidate));
    TRY(assay_compare(ctx, golden, candidate, assay_profile_by_name("bf16"), FALSE_ALARM, (assay_order){0}, &report));
    if (report.verdict != ASSAY_PASS) status = assay_fail(ctx, ASSAY_INTERNAL, "%s", report.message);
cleanup:
    assay_report_free(&report);
    assay_fixture_close(golden);
    assay_fixture_close(candidate);
    return status;
}

static assay_status run_bare(assay_context *ctx, void *self)
{
    pair bare = *(pair *)self;
    bare.isolated = false;
    ctx->trusts = true;
    const assay_status status = run_compare(ctx, &bare);
    ctx->trusts = false;
    return status;
}

static assay_status run_isolated(assay_context *ctx, void *self)
{
    ctx->trusts = true;
    const assay_status status = run_compare(ctx, self);
    ctx->trusts = false;
    return status;
}

static assay_status read_file(assay_context *ctx, const pair *p, const char *path)
{
    assay_fixture_reader *reader = NULL;
    assay_status status;
    TRY(assay_fixture_open(ctx, path, &reader));
    for (int i = 0; i < assay_fixture_count(reader); i++) {
        if (assay_shape_count(&assay_fixture_spec(reader, i)->shape) != COUNT) continue; /* the null distributions */
        for (int64_t first = 0; first < COUNT; first += SLICE) {
            TRY(assay_fixture_read(ctx, reader, assay_fixture_spec(reader, i)->path, first, SLICE, p->values));
        }
    }
cleanup:
    assay_fixture_close(reader);
    return status;
}

static assay_status run_reading(assay_context *ctx, void *self)
{
    const pair *p = self;
    assay_status status;
    TRY(read_file(ctx, p, p->golden));
    TRY(read_file(ctx, p, p->candidate));
cleanup:
    return status;
}

assay_status bench_compare(assay_context *ctx, bench_report *report)
{
    const double gigabytes = 1e-9 * (double)COUNT * (sizeof(double) + sizeof(float) + 2);
    bench_result result;
    pair p = {.isolated = true};
    assay_status status;
    TRY(bench_folder(ctx, p.folder, sizeof p.folder));
    snprintf(p.golden, sizeof p.golden, "%s/golden.h5", p.folder);
    snprintf(p.candidate, sizeof p.candidate, "%s/candidate.h5", p.folder);
    TRY(assay_alloc_f64(ctx, "values", COUNT, &p.values));
    TRY(assay_alloc_f64(ctx, "scales", COUNT, &p.scales));
    bench_fill(p.values, COUNT);
    for (int64_t i = 0; i < COUNT; i++) p.scales[i] = 0x1p-9;
    TRY(write_fixture(ctx, p.golden, p.values, p.scales));
    TRY(write_fixture(ctx, p.candidate, p.values, NULL));
    bench_heading("Comparison of a candidate with a golden", "compare", "reading", "GB/s");
    for (ctx->threads = 1; ctx->threads <= 2; ctx->threads++) {
        TRY(bench_side_by_side(ctx, (bench_work){run_compare, &p}, (bench_work){run_reading, &p}, &result));
        bench_line(report, "bf16 [36864,2048] with error scales and null", ctx->threads, gigabytes, &result, 0);
    }
    bench_heading("What isolation and checksums cost a comparison", "with", "without", "GB/s");
    for (ctx->threads = 1; ctx->threads <= 2; ctx->threads++) {
        TRY(bench_side_by_side(ctx, (bench_work){run_isolated, &p}, (bench_work){run_bare, &p}, &result));
        bench_line(report, "files tried in a process of their own", ctx->threads, gigabytes, &result, LIMIT);
        TRY(bench_side_by_side(ctx, (bench_work){run_compare, &p}, (bench_work){run_bare, &p}, &result));
        bench_line(report, "that, and the golden's checksums", ctx->threads, gigabytes, &result, LIMIT);
    }
cleanup:
    unlink(p.golden);
    unlink(p.candidate);
    rmdir(p.folder);
    free(p.values);
    free(p.scales);
    return status;
}
