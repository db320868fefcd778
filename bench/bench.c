#include "bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { REPETITIONS_LEAST = 5, REPETITIONS_MOST = 41 };
static const double SECONDS_FOR_A_LINE = 1.0;

double bench_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

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

static assay_status timed(assay_context *ctx, bench_work work, double *seconds)
{
    double start = bench_now();
    assay_status status = work.run(ctx, work.self);
    *seconds = bench_now() - start;
    return status;
}

assay_status bench_side_by_side(assay_context *ctx, bench_work ours, bench_work other, bench_result *result)
{
    double a[REPETITIONS_MOST], b[REPETITIONS_MOST], speed[REPETITIONS_MOST], start = 0;
    int count = 0;
    /* The first pair warms caches and threads up and is not counted. */
    for (int pair = -1; pair < REPETITIONS_MOST; pair++) {
        double first = 0, second = 0;
        assay_status status = timed(ctx, ours, &first);
        if (status == ASSAY_OK) status = timed(ctx, other, &second);
        RETURN_IF(status != ASSAY_OK, status);
        if (pair < 0) {
            start = bench_now();
            continue;
        }
        a[pair] = first;
        b[pair] = second;
        speed[pair] = second / first;
        count = pair + 1;
        if (count >= REPETITIONS_LEAST && bench_now() - start > SECONDS_FOR_A_LINE) break;
    }
    *result = (bench_result){.ours = median(a, count), .other = median(b, count), .speed = median(speed, count)};
    return ASSAY_OK;
}

void bench_heading(const char *title, const char *ours, const char *other, const char *unit)
{
    printf("\n%s (%s)\n%-44s %7s %10s %10s %7s %7s\n", title, unit, "", "threads", ours, other, "ratio", "target");
}

void bench_line(bench_report *report, const char *name, int threads, double amount, const bench_result *result,
                double target)
{
    printf("%-44s %7d %10.1f %10.1f %7.2f", name, threads, amount / result->ours, amount / result->other,
           result->speed);
    if (target > 0) {
        bool met = result->speed >= target;
        report->targets++;
        report->met += met;
        printf(" %7.2f  %s", target, met ? "met" : "MISSED");
    }
    printf("\n");
    fflush(stdout);
}

void bench_fill(double *values, int64_t count)
{
    uint64_t state = 1;
    for (int64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        values[i] = (double)(int64_t)state * 0x1p-63;
    }
}

assay_status bench_folder(assay_context *ctx, char *path, size_t size)
{
    const char *parent = getenv("TMPDIR");
    int length = snprintf(path, size, "%s/assay-bench-XXXXXX", parent == NULL ? P_tmpdir : parent);
    if (length >= (int)size || mkdtemp(path) == NULL) return assay_fail(ctx, ASSAY_IO, "%s cannot be made", path);
    return ASSAY_OK;
}
