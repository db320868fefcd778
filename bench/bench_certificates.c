/* Products in binary128, which certificates are made of, against the same products in float64. The ratio is one over how
 * many float64 products one takes: some 20 to 50, where one multiplication at a time takes more than 1000. */
#include <stdlib.h>

#include "bench/bench.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/quad/quad_product.h"

enum { ROWS = 256, COLUMNS = 512, STEPS = 1024 };
static const double TARGET = 0.01;

typedef struct products {
    double *a, *b, *c;
    quad *x, *w, *y;
} products;

static assay_status in_binary128(assay_context *ctx, void *self)
{
    const products *p = self;
    const quad_product product = quad_product_xw(p->y, p->x, p->w, ROWS, COLUMNS, STEPS);
    return quad_matmul(ctx, &product);
}

static assay_status in_float64(assay_context *ctx, void *self)
{
    const products *p = self;
    const assay_matmul_args args = assay_product_ab(p->c, p->a, p->b, ROWS, COLUMNS, STEPS);
    return assay_matmul(ctx, &args);
}

static assay_status alloc(assay_context *ctx, products *p)
{
    assay_status status;
    const struct {
        quad **to;
        int64_t count;
    } quads[] = {{&p->x, ROWS * STEPS}, {&p->w, STEPS * COLUMNS}, {&p->y, ROWS * COLUMNS}};
    TRY(assay_alloc_f64(ctx, "a", ROWS * STEPS, &p->a));
    TRY(assay_alloc_f64(ctx, "b", STEPS * COLUMNS, &p->b));
    TRY(assay_alloc_f64(ctx, "c", ROWS * COLUMNS, &p->c));
    for (size_t i = 0; i < sizeof quads / sizeof *quads; i++) {
        void *values = NULL;
        TRY(assay_alloc(ctx, "numbers in binary128", quads[i].count, sizeof(quad), &values));
        *quads[i].to = values;
    }
cleanup:
    return status;
}

assay_status bench_certificates(assay_context *ctx, bench_report *report)
{
    static const char *const names[] = {"256 x 512, k 1024, of float64", "256 x 512, k 1024, all 113 bits"};
    const double amount = 2e-9 * ROWS * COLUMNS * STEPS;
    products p = {0};
    assay_status status;
    assay_context own = *ctx;
    TRY(alloc(ctx, &p));
    bench_fill(p.a, ROWS * STEPS);
    bench_fill(p.b, STEPS * COLUMNS);
    bench_heading("Certificates: products in binary128", "binary128", "float64", "GFLOP/s");
    for (int wide = 0; wide < 2; wide++) {
        bench_result result;
        for (int64_t i = 0; i < ROWS * STEPS; i++) p.x[i] = wide ? p.a[i] / (quad)3 : p.a[i];
        for (int64_t i = 0; i < STEPS * COLUMNS; i++) p.w[i] = wide ? p.b[i] / (quad)3 : p.b[i];
        TRY(bench_side_by_side(&own, (bench_work){in_binary128, &p}, (bench_work){in_float64, &p}, &result));
        bench_line(report, names[wide], own.threads, amount, &result, TARGET);
    }
cleanup:
    free(p.a);
    free(p.b);
    free(p.c);
    free(p.x);
    free(p.w);
    free(p.y);
    return status;
}
