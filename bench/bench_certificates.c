/* Products in binary128, which certificates are made of, against the same products in float64. The ratio is one over how
 * many float64 products one takes: some 20 to 50, where one multiplication at a time takes more than 1000. */
#include <stdlib.h>

#include "bench/bench.h"
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

static assay_status alloc(assay_context *ctx, int64_t count, quad **to)
{
    return assay_alloc(ctx, "numbers in binary128", count, sizeof(quad), to);
}

assay_status bench_certificates(assay_context *ctx, bench_report *report)
{
    static const char *const names[] = {"256 x 512, k 1024, of float64", "256 x 512, k 1024, all 113 bits"};
    products p = {0};
    const bench_array arrays[] = {{&p.a, ROWS * STEPS}, {&p.b, STEPS * COLUMNS}, {&p.c, ROWS * COLUMNS}};
    assay_status status;
    assay_context own = *ctx;
    TRY(bench_alloc(ctx, arrays, 3));
    TRY(alloc(ctx, ROWS * STEPS, &p.x));
    TRY(alloc(ctx, STEPS * COLUMNS, &p.w));
    TRY(alloc(ctx, ROWS * COLUMNS, &p.y));
    bench_heading("Certificates: products in binary128", "binary128", "float64", "GFLOP/s");
    for (int wide = 0; wide < 2; wide++) {
        const bench_pair pair = {names[wide], in_binary128, in_float64, 2e-9 * ROWS * COLUMNS * STEPS, TARGET};
        for (int64_t i = 0; i < ROWS * STEPS; i++) p.x[i] = wide ? p.a[i] / (quad)3 : p.a[i];
        for (int64_t i = 0; i < STEPS * COLUMNS; i++) p.w[i] = wide ? p.b[i] / (quad)3 : p.b[i];
        TRY(bench_line(&own, report, &pair, &p));
    }
cleanup:
    bench_free(arrays, 3);
    free(p.x);
    free(p.w);
    free(p.y);
    return status;
}
