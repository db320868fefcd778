/* The reference arithmetic against OpenBLAS. */
#include <stdlib.h>

#include "bench/bench.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"

/* `groups` products one after another, as a grouped product makes them, with operands of their own. */
typedef struct shape {
    const char *name;
    int64_t groups, m, n, k;
    bool transpose_a, transpose_b;
} shape;

static const shape shapes[] = {
    {"square 1024", 1, 1024, 1024, 1024, false, false},
    {"square 1024, A^T B", 1, 1024, 1024, 1024, true, false},
    {"square 1024, A B^T", 1, 1024, 1024, 1024, false, true},
    {"square 2048", 1, 2048, 2048, 2048, false, false},
    {"tall 4096 x 512, k 512", 1, 4096, 512, 512, false, false},
    {"tall 4096 x 512, k 512, A B^T", 1, 4096, 512, 512, false, true},
    {"weights' gradient 512 x 512, k 4096, A^T B", 1, 512, 512, 4096, true, false},
    {"projection 1024 x 2048, k 7168", 1, 1024, 2048, 7168, false, false},
    {"grouped 32 of 128 x 512, k 1024", 32, 128, 512, 1024, false, false},
    {"grouped 32 of 128 x 1024, k 512, A B^T", 32, 128, 1024, 512, false, true},
    {"grouped 32 of 1024 x 512, k 128, A^T B", 32, 1024, 512, 128, true, false},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };
static const double TARGET = 0.9;

typedef struct product {
    const shape *shape;
    const assay_arithmetic *arithmetic;
    double *c;
    const double *a, *b;
} product;

static assay_status run_product(assay_context *ctx, void *self)
{
    const product *p = self;
    const shape *s = p->shape;
    for (int64_t g = 0; g < s->groups; g++) {
        assay_matmul_args args = {
            .c = p->c + g * s->m * s->n,
            .ldc = s->n,
            .a = p->a + g * s->m * s->k,
            .lda = s->transpose_a ? s->m : s->k,
            .transpose_a = s->transpose_a,
            .b = p->b + g * s->k * s->n,
            .ldb = s->transpose_b ? s->k : s->n,
            .transpose_b = s->transpose_b,
            .m = s->m,
            .n = s->n,
            .k = s->k,
        };
        assay_status status = p->arithmetic->matmul(ctx, &args);
        RETURN_IF(status != ASSAY_OK, status);
    }
    return ASSAY_OK;
}

static assay_status bench_shape(assay_context *ctx, const shape *s, bench_report *report)
{
    double *a = NULL, *b = NULL, *ours_c = NULL, *other_c = NULL;
    const double gigaflop = 2e-9 * (double)s->groups * (double)s->m * (double)s->n * (double)s->k;
    bench_result result;
    assay_status status;
    TRY(assay_alloc_f64(ctx, "a", s->groups * s->m * s->k, &a));
    TRY(assay_alloc_f64(ctx, "b", s->groups * s->k * s->n, &b));
    TRY(assay_alloc_f64(ctx, "c", s->groups * s->m * s->n, &ours_c));
    TRY(assay_alloc_f64(ctx, "c", s->groups * s->m * s->n, &other_c));
    bench_fill(a, s->groups * s->m * s->k);
    bench_fill(b, s->groups * s->k * s->n);
    product ours = {.shape = s, .arithmetic = &assay_arithmetic_reference, .c = ours_c, .a = a, .b = b};
    product other = {.shape = s, .arithmetic = &assay_arithmetic_blas, .c = other_c, .a = a, .b = b};
    TRY(bench_side_by_side(ctx, (bench_work){run_product, &ours}, (bench_work){run_product, &other}, &result));
    bench_line(report, s->name, ctx->threads, gigaflop, &result, TARGET);
cleanup:
    free(a);
    free(b);
    free(ours_c);
    free(other_c);
    return status;
}

assay_status bench_matmul(assay_context *ctx, bench_report *report)
{
    bench_heading("Matrix products", "reference", "OpenBLAS", "GFLOP/s");
    for (ctx->threads = 1; ctx->threads <= 2; ctx->threads++) {
        for (int i = 0; i < SHAPES; i++) {
            assay_status status = bench_shape(ctx, &shapes[i], report);
            RETURN_IF(status != ASSAY_OK, status);
        }
    }
    return ASSAY_OK;
}
