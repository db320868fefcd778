/* What the sections of the benchmark share: two pieces of work timed side by side, and the table of results.
 *
 * The two are run in turn, many times, so that what else the machine does falls on both; the ratio of each pair is
 * taken and the median of those ratios is the result. */
#pragma once

#include <stddef.h>

#include "oracle/arithmetic/arithmetic.h"

typedef assay_status (*bench_run)(assay_context *ctx, void *self);

/* What is measured: two pieces of work on the same things, which do the same amount of it. */
typedef struct bench_pair {
    const char *name;
    bench_run ours, other;
    double amount, target; /* target: what the ratio should reach; 0: none */
} bench_pair;

typedef struct bench_report {
    int targets, met;
} bench_report;

/* A section's title and the names of its two columns. */
void bench_heading(const char *title, const char *ours, const char *other, const char *unit);
/* One line: amounts of work a second, in the heading's unit, and the ratio: how often ours runs while the other runs once. */
assay_status bench_line(assay_context *ctx, bench_report *report, const bench_pair *pair, void *self);
/* A line for one thread, and one for two. */
assay_status bench_lines(assay_context *ctx, bench_report *report, const bench_pair *pair, void *self);

/* `count` numbers from -1 to 1. */
void bench_fill(double *values, int64_t count);

/* Arrays of such numbers; each is freed by bench_free, also where this failed. */
typedef struct bench_array {
    double **to;
    int64_t count;
} bench_array;
assay_status bench_alloc(assay_context *ctx, const bench_array *arrays, size_t count);
void bench_free(const bench_array *arrays, size_t count);

/* Products by OpenBLAS, one after the other. */
assay_status bench_multiply(assay_context *ctx, const assay_matmul_args *products, size_t count);

/* Makes a folder for temporary files, which the caller empties and removes. */
assay_status bench_folder(assay_context *ctx, char *path, size_t size);

/* The sections. They print, and return the first failure. */
assay_status bench_matmul(assay_context *ctx, bench_report *report);
assay_status bench_moe(assay_context *ctx, bench_report *report);
assay_status bench_torch(assay_context *ctx, bench_report *report);
assay_status bench_attention(assay_context *ctx, bench_report *report);
assay_status bench_ensemble(assay_context *ctx, bench_report *report);
assay_status bench_fixtures(assay_context *ctx, bench_report *report);
assay_status bench_compare(assay_context *ctx, bench_report *report);
assay_status bench_steps(assay_context *ctx, bench_report *report);
assay_status bench_program(assay_context *ctx, bench_report *report);
