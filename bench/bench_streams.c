/* Experts of the true size with two rows each: the time is that of reading their weights, or of writing the weights'
 * gradients. Against a plain reading or writing of the same bytes. */
#include <stdlib.h>

#include "bench/bench.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"

enum { ROWS = 2, EMBEDDING = 7168, WIDTH = 2048, EXPERTS = 4 };
static const int64_t ELEMENTS = (int64_t)EMBEDDING * WIDTH;
static const double TARGET = 0.8;

typedef struct expert {
    double *weights, *x, *y;
    double sums[EXPERTS * EMBEDDING / 8]; /* what the reading finds, so that it is not left out */
} expert;

/* y [ROWS,WIDTH] = x [ROWS,EMBEDDING] weights */
static assay_status forward(assay_context *ctx, void *self)
{
    const expert *e = self;
    assay_matmul_args args = assay_product_ab(e->y, e->x, NULL, ROWS, WIDTH, EMBEDDING);
    for (int64_t i = 0; i < EXPERTS; i++) {
        args.b = e->weights + i * ELEMENTS;
        assay_status status = assay_matmul(ctx, &args);
        RETURN_IF(status != ASSAY_OK, status);
    }
    return ASSAY_OK;
}

/* dx [ROWS,EMBEDDING] = dy [ROWS,WIDTH] weights^T */
static assay_status backward_input(assay_context *ctx, void *self)
{
    const expert *e = self;
    assay_matmul_args args = assay_product_abt(e->y, e->x, NULL, ROWS, EMBEDDING, WIDTH);
    for (int64_t i = 0; i < EXPERTS; i++) {
        args.b = e->weights + i * ELEMENTS;
        assay_status status = assay_matmul(ctx, &args);
        RETURN_IF(status != ASSAY_OK, status);
    }
    return ASSAY_OK;
}

/* dweights = x^T dy */
static assay_status backward_weights(assay_context *ctx, void *self)
{
    const expert *e = self;
    assay_matmul_args args = assay_product_atb(NULL, e->x, e->y, EMBEDDING, WIDTH, ROWS);
    for (int64_t i = 0; i < EXPERTS; i++) {
        args.c = e->weights + i * ELEMENTS;
        assay_status status = assay_matmul(ctx, &args);
        RETURN_IF(status != ASSAY_OK, status);
    }
    return ASSAY_OK;
}

/* Eight rows at a time: as many streams as the processor's prefetching likes. */
static double read_rows(const double *rows)
{
    typedef double lanes __attribute__((vector_size(64)));
    lanes sum[8] = {0};
    for (int64_t i = 0; i < WIDTH; i += 8) {
        for (int64_t row = 0; row < 8; row++) sum[row] += *(const lanes *)(rows + row * WIDTH + i);
    }
    double total = 0;
    for (int row = 0; row < 8; row++) total += sum[row][0];
    return total;
}

static assay_status read_all(assay_context *ctx, void *self)
{
    expert *e = self;
#pragma omp parallel for num_threads(ctx->threads) schedule(static)
    for (int64_t row = 0; row < EXPERTS * EMBEDDING; row += 8) e->sums[row / 8] = read_rows(e->weights + row * WIDTH);
    return ASSAY_OK;
}

static assay_status write_all(assay_context *ctx, void *self)
{
    const expert *e = self;
#pragma omp parallel for num_threads(ctx->threads) schedule(static)
    for (int64_t row = 0; row < EXPERTS * EMBEDDING; row++) {
        for (int64_t i = 0; i < WIDTH; i++) e->weights[row * WIDTH + i] = (double)(row + i);
    }
    return ASSAY_OK;
}

/* What writes the weights comes last. */
static const struct line {
    const char *name;
    assay_status (*product)(assay_context *ctx, void *self);
    assay_status (*plain)(assay_context *ctx, void *self);
} lines[] = {
    {"x [2,7168] times wi [7168,2048]; reading", forward, read_all},
    {"dy [2,2048] times wi^T; reading", backward_input, read_all},
    {"x^T dy [7168,2048]; writing", backward_weights, write_all},
};
enum { LINES = sizeof lines / sizeof *lines };

assay_status bench_streams(assay_context *ctx, bench_report *report)
{
    expert e = {0};
    bench_result result;
    assay_status status;
    const double gigabytes = 8e-9 * (double)(EXPERTS * ELEMENTS);
    TRY(assay_alloc_f64(ctx, "weights", EXPERTS * ELEMENTS, &e.weights));
    TRY(assay_alloc_f64(ctx, "x", (int64_t)ROWS * EMBEDDING, &e.x));
    TRY(assay_alloc_f64(ctx, "y", (int64_t)ROWS * EMBEDDING, &e.y));
    bench_fill(e.weights, EXPERTS * ELEMENTS);
    bench_fill(e.x, (int64_t)ROWS * EMBEDDING);
    bench_fill(e.y, (int64_t)ROWS * EMBEDDING);
    bench_heading("Two rows an expert of the true size", "product", "plain", "GB/s");
    for (int i = 0; i < LINES; i++) {
        for (ctx->threads = 1; ctx->threads <= 2; ctx->threads++) {
            TRY(bench_side_by_side(ctx, (bench_work){lines[i].product, &e}, (bench_work){lines[i].plain, &e}, &result));
            bench_line(report, lines[i].name, ctx->threads, gigabytes, &result, TARGET);
        }
    }
cleanup:
    free(e.weights);
    free(e.x);
    free(e.y);
    return status;
}
