/* Experts of the true size with two rows each: the time is that of reading their weights, or of writing the weights'
 * gradients. Against a plain reading or writing of the same bytes. */
#include "bench/bench.h"

enum { ROWS = 2, EMBEDDING = 7168, WIDTH = 2048, EXPERTS = 4 };
static const int64_t ELEMENTS = (int64_t)EMBEDDING * WIDTH;
static const double TARGET = 0.8;

typedef struct expert {
    double *weights, *x, *y;
    double sums[EXPERTS * EMBEDDING / 8]; /* what the reading finds, so that it is not left out */
} expert;

/* The product of each expert, one operand of which are its weights. */
static assay_status multiply_experts(assay_context *ctx, const expert *e, assay_matmul_args args)
{
    for (int64_t i = 0; i < EXPERTS; i++) {
        assay_matmul_args own = args;
        if (own.c == NULL) own.c = e->weights + i * ELEMENTS;
        if (own.b == NULL) own.b = e->weights + i * ELEMENTS;
        MUST(assay_matmul(ctx, &own));
    }
    return ASSAY_OK;
}

/* y [ROWS,WIDTH] = x [ROWS,EMBEDDING] weights */
static assay_status forward(assay_context *ctx, void *self)
{
    const expert *e = self;
    return multiply_experts(ctx, e, assay_product_ab(e->y, e->x, NULL, ROWS, WIDTH, EMBEDDING));
}

/* dx [ROWS,EMBEDDING] = dy [ROWS,WIDTH] weights^T */
static assay_status backward_input(assay_context *ctx, void *self)
{
    const expert *e = self;
    return multiply_experts(ctx, e, assay_product_abt(e->y, e->x, NULL, ROWS, EMBEDDING, WIDTH));
}

/* dweights = x^T dy */
static assay_status backward_weights(assay_context *ctx, void *self)
{
    const expert *e = self;
    return multiply_experts(ctx, e, assay_product_atb(NULL, e->x, e->y, EMBEDDING, WIDTH, ROWS));
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

assay_status bench_streams(assay_context *ctx, bench_report *report)
{
    const double gigabytes = 8e-9 * (double)(EXPERTS * ELEMENTS);
    /* what writes the weights comes last */
    const bench_pair pairs[] = {{"x [2,7168] times wi [7168,2048]; reading", forward, read_all, gigabytes, TARGET},
                                {"dy [2,2048] times wi^T; reading", backward_input, read_all, gigabytes, TARGET},
                                {"x^T dy [7168,2048]; writing", backward_weights, write_all, gigabytes, TARGET}};
    expert e = {0};
    const bench_array arrays[] = {
        {&e.weights, EXPERTS * ELEMENTS}, {&e.x, (int64_t)ROWS * EMBEDDING}, {&e.y, (int64_t)ROWS * EMBEDDING}};
    assay_status status;
    TRY(bench_alloc(ctx, arrays, 3));
    bench_heading("Two rows an expert of the true size", "product", "plain", "GB/s");
    for (int i = 0; i < 3; i++) TRY(bench_lines(ctx, report, &pairs[i], &e));
cleanup:
    bench_free(arrays, 3);
    return status;
}
