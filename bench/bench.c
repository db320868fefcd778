#include "bench/bench.h"

#include <stdio.h>
#include <stdlib.h>

#include "oracle/base/clock.h"
#include "oracle/base/memory.h"

enum { REPETITIONS_LEAST = 5, REPETITIONS_MOST = 41 };
static const double SECONDS_FOR_A_LINE = 1.0;

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, ascending);
    return values[count / 2];
}

static assay_status timed(assay_context *ctx, bench_run run, void *self, double *seconds)
{
    const double start = assay_clock();
    const assay_status status = run(ctx, self);
    *seconds = assay_clock() - start;
    return status;
}

/* Medians. speed: of the ratio of each pair. */
typedef struct medians {
    double ours, other, speed; /* seconds, seconds */
} medians;

static assay_status side_by_side(assay_context *ctx, const bench_pair *pair, void *self, medians *result)
{
    double a[REPETITIONS_MOST], b[REPETITIONS_MOST], speed[REPETITIONS_MOST], start = 0;
    int count = 0;
    /* The first pair warms caches and threads up and is not counted. */
    for (int i = -1; i < REPETITIONS_MOST; i++) {
        double first = 0, second = 0;
        assay_status status = timed(ctx, pair->ours, self, &first);
        if (status == ASSAY_OK) status = timed(ctx, pair->other, self, &second);
        if (status != ASSAY_OK) return status;
        if (i < 0) {
            start = assay_clock();
            continue;
        }
        a[i] = first;
        b[i] = second;
        speed[i] = second / first;
        count = i + 1;
        if (count >= REPETITIONS_LEAST && assay_clock() - start > SECONDS_FOR_A_LINE) break;
    }
    *result = (medians){.ours = median(a, count), .other = median(b, count), .speed = median(speed, count)};
    return ASSAY_OK;
}

void bench_heading(const char *title, const char *ours, const char *other, const char *unit)
{
    printf("\n%s (%s)\n%-44s %7s %10s %10s %7s %7s\n", title, unit, "", "threads", ours, other, "ratio", "target");
}

assay_status bench_line(assay_context *ctx, bench_report *report, const bench_pair *pair, void *self)
{
    medians m;
    MUST(side_by_side(ctx, pair, self, &m));
    printf("%-44s %7d %10.1f %10.1f %7.2f", pair->name, ctx->threads, pair->amount / m.ours, pair->amount / m.other,
           m.speed);
    if (pair->target > 0) {
        const bool met = m.speed >= pair->target;
        report->targets++;
        report->met += met;
        printf(" %7.2f  %s", pair->target, met ? "met" : "MISSED");
    }
    printf("\n");
    fflush(stdout);
    return ASSAY_OK;
}

assay_status bench_lines(assay_context *ctx, bench_report *report, const bench_pair *pair, void *self)
{
    for (ctx->threads = 1; ctx->threads <= 2; ctx->threads++) MUST(bench_line(ctx, report, pair, self));
    return ASSAY_OK;
}

void bench_fill(double *values, int64_t count)
{
    uint64_t state = 1;
    for (int64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        values[i] = (double)(int64_t)state * 0x1p-63;
    }
}

assay_status bench_alloc(assay_context *ctx, const bench_array *arrays, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        MUST(assay_alloc_f64(ctx, "numbers", arrays[i].count, arrays[i].to));
        bench_fill(*arrays[i].to, arrays[i].count);
    }
    return ASSAY_OK;
}

void bench_free(const bench_array *arrays, size_t count)
{
    for (size_t i = 0; i < count; i++) free(*arrays[i].to);
}

assay_status bench_multiply(assay_context *ctx, const assay_matmul_args *products, size_t count)
{
    for (size_t i = 0; i < count; i++) MUST(assay_arithmetic_blas.matmul(ctx, &products[i]));
    return ASSAY_OK;
}

assay_status bench_folder(assay_context *ctx, char *path, size_t size)
{
    const char *parent = getenv("TMPDIR");
    int length = snprintf(path, size, "%s/assay-bench-XXXXXX", parent == NULL ? P_tmpdir : parent);
    if (length >= (int)size || mkdtemp(path) == NULL) return assay_fail(ctx, ASSAY_IO, "%s cannot be made", path);
    return ASSAY_OK;
}
