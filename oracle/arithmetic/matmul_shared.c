#include "oracle/arithmetic/matmul_shared.h"

#include "oracle/base/ranks.h"

/* At most so many pieces: each packs the other operand by itself, which is to be little beside its products. */
enum { MOST_STEPS = 32, WHOLE_TILES = 8 };

/* Along the longer side. */
typedef struct steps {
    int64_t length, size, count;
    bool rows;
} steps;

static steps steps_of(int64_t m, int64_t n)
{
    steps s = {.length = m > n ? m : n, .rows = m > n};
    s.size = (s.length + MOST_STEPS - 1) / MOST_STEPS;
    if (s.size > WHOLE_TILES) s.size = (s.size + WHOLE_TILES - 1) / WHOLE_TILES * WHOLE_TILES;
    s.count = s.size == 0 ? 0 : (s.length + s.size - 1) / s.size;
    return s;
}

static double operations_of(int64_t m, int64_t n, int64_t k)
{
    return 2 * (double)m * (double)n * (double)k;
}

typedef struct product {
    const assay_matmul_args *args;
    steps steps;
} product;

static int64_t size_of(const steps *s, int64_t step)
{
    const int64_t left = s->length - step * s->size;
    return left < s->size ? left : s->size;
}

static assay_status work(assay_context *ctx, void *self, int64_t step)
{
    const product *p = self;
    const int64_t first = step * p->steps.size, size = size_of(&p->steps, step);
    assay_matmul_args args = *p->args;
    if (p->steps.rows) {
        args.m = size;
        args.a += args.transpose_a ? first : first * args.lda;
        args.c += first * args.ldc;
    } else {
        args.n = size;
        args.b += args.transpose_b ? first * args.ldb : first;
        args.c += first;
    }
    return ctx->arithmetic->matmul(ctx, &args);
}

static assay_ranks_part part(void *self, int64_t step, int array)
{
    (void)array;
    const product *p = self;
    const assay_matmul_args *args = p->args;
    const int64_t first = step * p->steps.size, size = size_of(&p->steps, step);
    if (p->steps.rows) return (assay_ranks_part){args->c + first * args->ldc, size, args->n, args->ldc};
    return (assay_ranks_part){args->c + first, args->m, size, args->ldc};
}

assay_status assay_matmul_shared(assay_context *ctx, const assay_matmul_args *args)
{
    product p = {args, steps_of(args->m, args->n)};
    const bool linear = args->kind == ASSAY_PRODUCT_LINEAR || args->kind == ASSAY_PRODUCT_LINEAR_GRADIENT;
    const double operations = operations_of(args->m, args->n, args->k), numbers = (double)args->m * (double)args->n;
    if (!linear || args->ldc != args->n || !ctx->arithmetic->by_element ||
        !assay_ranks_pays(ctx->ranks->least, p.steps.count, operations, numbers))
        return ctx->arithmetic->matmul(ctx, args);
    const assay_ranks_fill fill = {.self = &p,
                                   .count = p.steps.count,
                                   .work = work,
                                   .arrays = 1,
                                   .whole = {{args->c, args->m, args->n, args->n}},
                                   .part = part};
    return assay_ranks_fill_run(ctx, &fill);
}

void assay_matmul_shares(assay_ranks_loop *loop, double least, int64_t m, int64_t n, int64_t k)
{
    const steps s = steps_of(m, n);
    assay_ranks_loop_fill(loop, least, s.count, operations_of(m, n, k), (double)m * (double)n);
}
