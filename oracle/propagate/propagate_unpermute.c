#include <stdlib.h>

#include "oracle/base/memory.h"
#include "oracle/propagate/propagate_ops.h"

/* One token: y is a sum of K products, d_sorted a product, d_weights a sum of D products. A weight of 1 is no product. */
static void propagate_token(const assay_precision *precision, const assay_unpermute_variances *v,
                            const assay_unpermute_run *run, const int32_t *place, int64_t t)
{
    const int64_t per_token = run->dims.experts_per_token, dim = run->dims.emb_dim, first = t * per_token;
    const double *weights = run->weights, *dy = run->dy + t * dim;
    const double operands = weights == NULL ? 0 : 2 * assay_square(precision->multiply);
    for (int64_t d = 0; v->y != NULL && d < dim; d++) {
        double sum = 0, squares = 0, terms = 0, given = 0;
        for (int64_t i = first; i < first + per_token; i++) {
            if (place[i] < 0) continue;
            const double value = run->sorted[place[i] * dim + d], weight = weights == NULL ? 1 : weights[i];
            given += assay_propagate_given_product(precision, value, weight);
            terms += assay_square(value * weight);
            assay_propagate_term(&sum, &squares, value * weight);
        }
        v->y[t * dim + d] = operands * terms + assay_square(precision->accumulate) * squares + given;
    }
    for (int64_t i = first; i < first + per_token; i++) {
        if (place[i] < 0) {
            if (v->d_weights != NULL) v->d_weights[i] = 0;
            continue;
        }
        const int64_t at = place[i] * dim;
        for (int64_t d = 0; v->d_sorted != NULL && d < dim; d++) {
            v->d_sorted[at + d] = weights == NULL ? 0
                                                  : operands * assay_square(weights[i] * dy[d]) +
                                                        assay_propagate_given_product(precision, weights[i], dy[d]);
        }
        if (v->d_weights == NULL) continue;
        v->d_weights[i] = assay_propagate_dot(precision, dim, run->sorted + at, dy);
        for (int64_t d = 0; d < dim; d++)
            v->d_weights[i] += assay_propagate_given_product(precision, run->sorted[at + d], dy[d]);
    }
}

assay_status assay_propagate_unpermute(assay_context *ctx, const assay_precision *precision,
                                       const assay_unpermute_variances *v, const assay_unpermute_run *run)
{
    const int64_t tokens = run->dims.tokens, copies = tokens * run->dims.experts_per_token, dim = run->dims.emb_dim;
    int32_t *place = NULL; /* of a copy: its row, or -1 */
    MUST(assay_alloc_i32(ctx, "places of copies", copies, &place));
    for (int64_t i = 0; i < copies; i++) place[i] = ASSAY_NO_EXPERT;
    for (int64_t j = 0; j < copies; j++) {
        if (run->order[j] != ASSAY_NO_EXPERT) {
            place[run->order[j]] = (int32_t)j;
        } else {
            for (int64_t d = 0; v->d_sorted != NULL && d < dim; d++) v->d_sorted[j * dim + d] = 0;
        }
    }
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t t = 0; t < tokens; t++) propagate_token(precision, v, run, place, t);
    free(place);
    return ASSAY_OK;
}
