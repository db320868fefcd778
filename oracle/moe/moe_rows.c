/* Moving and adding rows of [rows,D]; threads split rows. */
#include <string.h>

#include "oracle/moe/moe_block.h"
#include "oracle/ops/vector_sums.h"

void moe_gather(const assay_context *ctx, double *rows, const double *x, const int32_t *tokens, const double *weights,
                int64_t count, int64_t dim)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < count; i++) {
        int64_t token = tokens == NULL ? i : tokens[i];
        double *row = rows + i * dim;
        if (token < 0) {
            memset(row, 0, (size_t)dim * sizeof *row);
        } else if (weights == NULL) {
            memcpy(row, x + token * dim, (size_t)dim * sizeof *row);
        } else {
            for (int64_t d = 0; d < dim; d++) row[d] = weights[i] * x[token * dim + d];
        }
    }
}

void moe_accumulate(const assay_context *ctx, double *sum, const double *rows, const double *weights, int64_t count,
                    int64_t dim)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < count; i++)
        assay_add_scaled(ctx, dim, weights == NULL ? 1.0 : weights[i], rows + i * dim, sum + i * dim);
}

void moe_join(const assay_context *ctx, int64_t count, double *total, double *term)
{
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, total);
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, term);
    assay_add(ctx, count, term, total);
}

int64_t moe_row_of(const moe_block *block, int64_t j)
{
    return block->config->path == ASSAY_MOE_DENSE ? block->order[block->rows.first + j] / block->per_token : j;
}
