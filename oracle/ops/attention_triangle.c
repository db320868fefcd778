/* Products of queries and keys, and sums over the causal triangle. */
#include "oracle/ops/attention_internal.h"

#include <math.h>

#include "oracle/ops/vector_sums.h"

assay_status attention_scores(assay_context *ctx, double *out, int64_t ld, const double *a, int64_t rows,
                              const double *b, int64_t columns, int64_t k)
{
    assay_matmul_args args = assay_product_abt(out, a, b, rows, columns, k);
    args.ldc = ld;
    return assay_matmul(ctx, &args);
}

/* Partial sums are rounded, as those of a product are: in this order, where terms may cancel, and, as in another order, as
 * those of terms that grow evenly to the last one. */
static void add_row_by_row(const assay_context *ctx, const attention_triangle *t, int64_t first, int64_t end)
{
    for (int64_t row = first; row < end; row++) {
        double *y = t->y + row * t->width;
        const int64_t from = t->transpose ? row : first, to = t->transpose ? end : row + 1;
        for (int64_t i = from; i < to; i++) {
            const double w = t->transpose ? t->w[i * t->ld + row] : t->w[row * t->ld + i];
            assay_add_scaled(ctx, t->width, w, t->x + i * t->width, y);
        }
        assay_round_sums(ctx, ceil((double)(to - from) / 3), t->width, y);
    }
}

/* The part of it that lies in the rows and columns [first, end). */
static assay_status add_block(assay_context *ctx, const attention_triangle *t, int64_t first, int64_t end)
{
    const int64_t middle = first + (end - first) / 2;
    const int64_t to = t->transpose ? first : middle, from = t->transpose ? middle : first;
    const int64_t rows = t->transpose ? middle - first : end - middle, k = end - first - rows;
    assay_matmul_args square = assay_product_ab(t->y + to * t->width, t->w + middle * t->ld + first,
                                                t->x + from * t->width, rows, t->width, k);
    square.lda = t->ld;
    square.transpose_a = t->transpose;
    square.accumulate = true;
    if (end - first <= ATTENTION_TRIANGLE) {
        add_row_by_row(ctx, t, first, end);
        return ASSAY_OK;
    }
    MUST(add_block(ctx, t, first, middle));
    MUST(assay_matmul(ctx, &square));
    return add_block(ctx, t, middle, end);
}

assay_status attention_add_triangle(assay_context *ctx, const attention_triangle *triangle)
{
    const attention_triangle *t = triangle;
    for (int64_t i = 0; i < t->beyond; i++) {
        const int64_t to = t->transpose ? i + 1 : i, from = t->transpose ? i : i + 1;
        assay_add_scaled(ctx, t->width, t->w[i * t->ld + i + 1], t->x + from * t->width, t->y + to * t->width);
    }
    return add_block(ctx, triangle, 0, triangle->size);
}
