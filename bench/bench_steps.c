/* A program of 40 steps on [512,4096], as `assay` runs it, against the same steps called one after the other from C. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "cases/case.h"
#include "harness/operations/operation.h"
#include "oracle/base/tensor_set.h"
#include "oracle/ops/activation.h"
#include "oracle/ops/rms_norm.h"

enum { ROUNDS = 10, ROWS = 512, DIM = 4096, COUNT = ROWS * DIM };

typedef struct steps {
    assay_case *c;
    assay_tensor_set given, results;
    double *x, *s, *n, *y, *rstd; /* of the calls; x and s are those of the set */
} steps;

/* Rounds of norm, sum, SiLU and product. */
static char *case_text(void)
{
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    if (to == NULL) return NULL;
    fprintf(to, "case: bench/steps\nop: program\nprofiles: none\ngradients: none\nsizes: {T: %d, D: %d}\n", ROWS, DIM);
    fprintf(to, "inputs: {x: [T, D]}\nweights: {s: [D]}\nsteps:\n");
    for (int i = 0; i < ROUNDS; i++) {
        fprintf(to, "  n%d: rms_norm(%s%.0d, s)\n", i, i == 0 ? "x" : "m", i);
        fprintf(to, "  a%d: add(n%d, x)\n  g%d: silu(a%d)\n", i, i, i, i);
        if (i + 1 < ROUNDS) fprintf(to, "  m%d: mul(g%d, n%d)\n", i + 1, i, i);
    }
    fprintf(to, "outputs: {y: 'mul(g%d, n%d)'}\n", ROUNDS - 1, ROUNDS - 1);
    fclose(to);
    return text;
}

static assay_status as_program(assay_context *ctx, void *self)
{
    steps *s = self;
    const assay_source in = assay_tensor_set_source(&s->given);
    const assay_sink out = assay_tensor_set_sink(&s->results);
    assay_tensor_set_rewind(&s->results);
    return assay_operation_run(ctx, assay_operation_by_name("program"), s->c, &in, &out, NULL, 0);
}

static void add_silu(const assay_context *ctx, double *a, const double *n, const double *x)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < COUNT; i++) a[i] = n[i] + x[i];
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < ROWS; row++)
        assay_activation_many(ctx, ASSAY_SILU, DIM, a + row * DIM, a + row * DIM, NULL);
}

static void multiply(const assay_context *ctx, double *y, const double *n)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < COUNT; i++) y[i] *= n[i];
}

static assay_status as_calls(assay_context *ctx, void *self)
{
    steps *s = self;
    const double *from = s->x;
    for (int i = 0; i < ROUNDS; i++) {
        assay_rms_norm_forward(ctx, s->n, s->rstd, from, s->s, ROWS, DIM, 1e-6);
        add_silu(ctx, s->y, s->n, s->x);
        multiply(ctx, s->y, s->n);
        from = s->y;
    }
    return ASSAY_OK;
}

static assay_status add_tensor(assay_context *ctx, assay_tensor_set *set, const char *path, assay_shape shape,
                               double **values)
{
    assay_tensor_spec spec = {.type = ASSAY_FLOAT64, .shape = shape};
    assay_tensor *tensor = NULL;
    assay_tensor_call(&spec, path);
    MUST(assay_tensor_set_add(ctx, set, &spec, &tensor));
    bench_fill(tensor->values, tensor->count);
    tensor->written = tensor->count;
    *values = tensor->values;
    return ASSAY_OK;
}

assay_status bench_steps(assay_context *ctx, bench_report *report)
{
    assay_status status;
    steps s = {0};
    int count = 0;
    double *unused;
    char *text = case_text();
    const bench_array arrays[] = {{&s.n, COUNT}, {&s.y, COUNT}, {&s.rstd, ROWS}};
    const bench_pair pair = {"40 steps, [512,4096]", as_program, as_calls, 1e-6 * 4 * ROUNDS * COUNT, 1 / 1.3};
    TRY(text != NULL ? ASSAY_OK : assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for a case"));
    TRY(assay_cases_parse(ctx, "bench", text, strlen(text), &s.c, &count));
    TRY(bench_alloc(ctx, arrays, sizeof arrays / sizeof *arrays));
    TRY(add_tensor(ctx, &s.given, "inputs/x", assay_shape_of(2, ROWS, DIM), &s.x));
    TRY(add_tensor(ctx, &s.given, "weights/s", assay_shape_of(1, DIM), &s.s));
    TRY(add_tensor(ctx, &s.results, "outputs/y", assay_shape_of(2, ROWS, DIM), &unused));
    bench_heading("A program against its steps called from C, forward", "program", "calls", "million numbers/s");
    TRY(bench_lines(ctx, report, &pair, &s));
    TRY(as_program(ctx, &s));
    TRY(memcmp(unused, s.y, COUNT * sizeof *unused) == 0
            ? ASSAY_OK
            : assay_fail(ctx, ASSAY_INTERNAL, "the program gave other numbers than the calls"));
cleanup:
    bench_free(arrays, sizeof arrays / sizeof *arrays);
    assay_tensor_set_free(&s.given);
    assay_tensor_set_free(&s.results);
    assay_cases_free(s.c, count);
    free(text);
    return status;
}
