/* A case of cases.yml, as what is measured. */
#pragma once

#include "harness/plan/plan_make.h"
#include "harness/plan/results.h"

/* Starts zeroed. */
typedef struct bench_case {
    assay_case *cases, *c;
    int count;
    assay_plan plan;
    assay_tensor_set tensors; /* all of them, of bench_case_open */
} bench_case;

/* The case bench/NAME with these profiles ("profiles=none"), planned. */
assay_status bench_case_plan(assay_context *ctx, const char *name, const char *profiles, bench_case *b);
/* The same without profiles, with its tensors in memory. */
assay_status bench_case_open(assay_context *ctx, const char *name, bench_case *b);
void bench_case_close(bench_case *b);

/* A bench_case, or what begins with one, forward and backward, whose results are kept. */
assay_status bench_case_run(assay_context *ctx, void *self);
/* The same, but results go nowhere: what becomes of them is not the operation's time. */
assay_status bench_case_run_bare(assay_context *ctx, void *self);
/* Operations of that, in 10^9. */
double bench_case_gigaflop(const bench_case *b);
