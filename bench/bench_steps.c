/* A program of 40 steps (bench/steps), forward, against the same steps called one after the other from C. */
#include <string.h>

#include "bench/bench.h"
#include "bench/bench_case.h"
#include "oracle/ops/activation.h"
#include "oracle/ops/rms_norm.h"

enum { ROUNDS = 10, ROWS = 512, DIM = 4096, COUNT = ROWS * DIM };
static const double TARGET = 0.9;

/* The case, which is run first, and what the calls give. */
typedef struct problem {
    bench_case own;
    double *n, *y, *rstd;
} problem;

static const double *tensor(const problem *p, const char *path)
{
    return assay_tensor_set_find(&p->own.tensors, path)->values;
}

/* y = silu(n + x) n */
static void call_three(const assay_context *ctx, double *y, const double *n, const double *x)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < COUNT; i++) y[i] = n[i] + x[i];
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < ROWS; row++)
        assay_activation_many(ctx, ASSAY_SILU, DIM, y + row * DIM, y + row * DIM, NULL);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < COUNT; i++) y[i] *= n[i];
}

static assay_status call_steps(assay_context *ctx, void *self)
{
    const problem *p = self;
    const double *x = tensor(p, "inputs/x"), *s = tensor(p, "weights/s");
    for (int i = 0; i < ROUNDS; i++) {
        assay_rms_norm_forward(ctx, p->n, p->rstd, i == 0 ? x : p->y, s, ROWS, DIM, 1e-6);
        call_three(ctx, p->y, p->n, x);
    }
    return ASSAY_OK;
}

assay_status bench_steps(assay_context *ctx, bench_report *report)
{
    assay_status status;
    problem p = {0};
    const bench_array arrays[] = {{&p.n, COUNT}, {&p.y, COUNT}, {&p.rstd, ROWS}};
    const bench_pair pair = {"40 steps, [512,4096]", bench_case_run_bare, call_steps, 4e-6 * ROUNDS * COUNT, TARGET};
    TRY(bench_alloc(ctx, arrays, 3));
    TRY(bench_case_open(ctx, "steps", &p.own));
    TRY(bench_case_run(ctx, &p.own));
    TRY(call_steps(ctx, &p));
    if (memcmp(tensor(&p, "outputs/y"), p.y, COUNT * sizeof *p.y) != 0)
        TRY(assay_fail(ctx, ASSAY_INTERNAL, "the program gave other numbers than the calls"));
    bench_heading("A program against its steps called from C, forward", "program", "calls", "10^6 numbers/s");
    TRY(bench_lines(ctx, report, &pair, &p));
cleanup:
    bench_free(arrays, 3);
    bench_case_close(&p.own);
    return status;
}
