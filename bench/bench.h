/* What the sections of the benchmark share: two pieces of work timed side by side, and the table of results.
 *
 * The two are run in turn, many times, so that what else the machine does falls on both; the ratio of each pair is
 * taken and the median of those ratios is the result. */
#ifndef ASSAY_BENCH_BENCH_H
#define ASSAY_BENCH_BENCH_H

#include <stddef.h>

#include "oracle/base/status.h"

typedef struct bench_work {
    assay_status (*run)(assay_context *ctx, void *self);
    void *self;
} bench_work;

/* Medians. speed: how often ours runs while the other runs once; above 1 ours is the faster. */
typedef struct bench_result {
    double ours, other; /* seconds */
    double speed;
} bench_result;

typedef struct bench_report {
    int targets, met;
} bench_report;

double bench_now(void); /* seconds */
assay_status bench_side_by_side(assay_context *ctx, bench_work ours, bench_work other, bench_result *result);

/* A section's title and the names of its two columns. */
void bench_heading(const char *title, const char *ours, const char *other, const char *unit);
/* One line: amounts of work a second, in the heading's unit, and the ratio. target: what the ratio should reach; 0:
 * none. */
void bench_line(bench_report *report, const char *name, int threads, double amount, const bench_result *result,
                double target);

/* `count` numbers from -1 to 1. */
void bench_fill(double *values, int64_t count);

/* Makes a folder for temporary files, which the caller empties and removes. */
assay_status bench_folder(assay_context *ctx, char *path, size_t size);

/* The sections. They print, and return the first failure. */
assay_status bench_matmul(assay_context *ctx, bench_report *report);
assay_status bench_streams(assay_context *ctx, bench_report *report);
assay_status bench_draws(assay_context *ctx, bench_report *report);
assay_status bench_moe(assay_context *ctx, bench_report *report);
assay_status bench_torch(assay_context *ctx, bench_report *report);
assay_status bench_attention(assay_context *ctx, bench_report *report);
assay_status bench_ensemble(assay_context *ctx, bench_report *report);
assay_status bench_fixtures(assay_context *ctx, bench_report *report);
assay_status bench_compare(assay_context *ctx, bench_report *report);
assay_status bench_program(assay_context *ctx, bench_report *report);
assay_status bench_certificates(assay_context *ctx, bench_report *report);

#endif
