/* The reference arithmetic against OpenBLAS. */
#include "bench/bench.h"

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

typedef struct operands {
    const shape *shape;
    double *a, *b, *ours, *other;
} operands;

static assay_status multiply(assay_context *ctx, const assay_arithmetic *arithmetic, const operands *o, double *c)
{
    const shape *s = o->shape;
    for (int64_t g = 0; g < s->groups; g++) {
        const assay_matmul_args args = {
            .c = c + g * s->m * s->n,
            .ldc = s->n,
            .a = o->a + g * s->m * s->k,
            .lda = s->transpose_a ? s->m : s->k,
            .transpose_a = s->transpose_a,
            .b = o->b + g * s->k * s->n,
            .ldb = s->transpose_b ? s->k : s->n,
            .transpose_b = s->transpose_b,
            .m = s->m,
            .n = s->n,
            .k = s->k,
        };
        MUST(arithmetic->matmul(ctx, &args));
    }
    return ASSAY_OK;
}

static assay_status by_reference(assay_context *ctx, void *self)
{
    const operands *o = self;
    return multiply(ctx, &assay_arithmetic_reference, o, o->ours);
}

static assay_status by_blas(assay_context *ctx, void *self)
{
    const operands *o = self;
    return multiply(ctx, &assay_arithmetic_blas, o, o->other);
}

assay_status bench_matmul(assay_context *ctx, bench_report *report)
{
    assay_status status = ASSAY_OK;
    bench_heading("Matrix products", "reference", "OpenBLAS", "GFLOP/s");
    for (int i = 0; i < SHAPES && status == ASSAY_OK; i++) {
        const shape *s = &shapes[i];
        const int64_t c = s->groups * s->m * s->n;
        operands o = {.shape = s};
        const bench_array arrays[] = {
            {&o.a, s->groups * s->m * s->k}, {&o.b, s->groups * s->k * s->n}, {&o.ours, c}, {&o.other, c}};
        const bench_pair pair = {s->name, by_reference, by_blas, 2e-9 * (double)c * (double)s->k, TARGET};
        status = bench_alloc(ctx, arrays, 4);
        if (status == ASSAY_OK) status = bench_lines(ctx, report, &pair, &o);
        bench_free(arrays, 4);
    }
    return status;
}
