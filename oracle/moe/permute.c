#include "oracle/moe/permute.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"

assay_status assay_permute_order(assay_context *ctx, int32_t *order, int32_t *group_sizes,
                                 const int32_t *selected_experts, const assay_permute_dims *dims) {
    assay_status status;
    int64_t *next = NULL;
    void *memory = NULL;
    int64_t copies = dims->tokens * dims->experts_per_token;
    TRY(assay_alloc(ctx, "permute", dims->experts + 1, sizeof *next, &memory));
    next = memory;
    for (int64_t e = 0; e < dims->experts; e++)
        group_sizes[e] = 0;
    for (int64_t i = 0; i < copies; i++) {
        int32_t expert = selected_experts[i];
        if (expert < 0 || expert >= dims->experts) {
            status =
                assay_fail(ctx, ASSAY_BAD_INPUT, "selected_experts[%" PRId64 "] is %" PRId32 ", expected 0 to %" PRId64,
                           i, expert, dims->experts - 1);
            goto cleanup;
        }
        group_sizes[expert]++;
    }
    next[0] = 0;
    for (int64_t e = 0; e < dims->experts; e++)
        next[e + 1] = next[e] + group_sizes[e];
    for (int64_t i = 0; i < copies; i++)
        order[next[selected_experts[i]]++] = (int32_t)i;
cleanup:
    free(next);
    return status;
}

/* place[order[j]] = j; refuses what is no permutation of 0 .. copies-1. */
static assay_status invert(assay_context *ctx, int64_t **place, const int32_t *order, int64_t copies) {
    void *memory = NULL;
    assay_status status = assay_alloc(ctx, "unpermute", copies, sizeof **place, &memory);
    RETURN_IF(status != ASSAY_OK, status);
    int64_t *inverse = memory;
    for (int64_t i = 0; i < copies; i++)
        inverse[i] = -1;
    for (int64_t j = 0; j < copies; j++) {
        if (order[j] < 0 || order[j] >= copies || inverse[order[j]] >= 0) {
            free(inverse);
            return assay_fail(ctx, ASSAY_BAD_INPUT,
                              "sorted_selected_experts[%" PRId64 "] is %" PRId32
                              ", expected a permutation of 0 to %" PRId64,
                              j, order[j], copies - 1);
        }
        inverse[order[j]] = j;
    }
    *place = inverse;
    return ASSAY_OK;
}

void assay_permute_forward(double *sorted_inputs, const double *x, const int32_t *order,
                           const assay_permute_dims *dims) {
    int64_t copies = dims->tokens * dims->experts_per_token;
    for (int64_t j = 0; j < copies; j++) {
        memcpy(sorted_inputs + j * dims->emb_dim, x + order[j] / dims->experts_per_token * dims->emb_dim,
               (size_t)dims->emb_dim * sizeof *x);
    }
}

assay_status assay_permute_backward(assay_context *ctx, double *dx, const double *d_sorted, const int32_t *order,
                                    const assay_permute_dims *dims) {
    return assay_unpermute_forward(ctx, dx, d_sorted, order, NULL, dims);
}

assay_status assay_unpermute_forward(assay_context *ctx, double *y, const double *sorted, const int32_t *order,
                                     const double *weights, const assay_permute_dims *dims) {
    int64_t *place = NULL;
    int64_t per_token = dims->experts_per_token, dim = dims->emb_dim;
    assay_status status = invert(ctx, &place, order, dims->tokens * per_token);
    RETURN_IF(status != ASSAY_OK, status);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t t = 0; t < dims->tokens; t++) {
        double *out = y + t * dim;
        for (int64_t i = 0; i < dim; i++)
            out[i] = 0.0;
        for (int64_t k = 0; k < per_token; k++) {
            const double *row = sorted + place[t * per_token + k] * dim;
            double weight = weights == NULL ? 1.0 : weights[t * per_token + k];
            for (int64_t i = 0; i < dim; i++)
                out[i] = fma(weight, row[i], out[i]);
        }
    }
    free(place);
    return ASSAY_OK;
}

assay_status assay_unpermute_backward(assay_context *ctx, double *d_sorted, double *d_weights, const double *dy,
                                      const double *sorted, const int32_t *order, const double *weights,
                                      const assay_permute_dims *dims) {
    int64_t *place = NULL;
    int64_t per_token = dims->experts_per_token, dim = dims->emb_dim;
    assay_status status = invert(ctx, &place, order, dims->tokens * per_token);
    RETURN_IF(status != ASSAY_OK, status);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t copy = 0; copy < dims->tokens * per_token; copy++) {
        const double *up = dy + copy / per_token * dim;
        int64_t row = place[copy] * dim;
        double weight = weights == NULL ? 1.0 : weights[copy], product = 0.0;
        for (int64_t i = 0; d_sorted != NULL && i < dim; i++)
            d_sorted[row + i] = weight * up[i];
        for (int64_t i = 0; d_weights != NULL && i < dim; i++)
            product = fma(sorted[row + i], up[i], product);
        if (d_weights != NULL) d_weights[copy] = product;
    }
    free(place);
    return ASSAY_OK;
}

static double square(double x) {
    return x * x;
}

assay_status assay_unpermute_gauge(assay_context *ctx, const assay_precision *p, double *variance_y,
                                   double *variance_d_sorted, double *variance_d_weights, const double *dy,
                                   const double *sorted, const int32_t *order, const double *weights,
                                   const assay_permute_dims *dims) {
    int64_t *place = NULL;
    int64_t per_token = dims->experts_per_token, dim = dims->emb_dim;
    assay_status status = invert(ctx, &place, order, dims->tokens * per_token);
    RETURN_IF(status != ASSAY_OK, status);
    /* operands may be rounded as they enter; a product of two is one rounding of the accumulator */
    double entry = weights == NULL ? 0.0 : 2.0 * p->multiply * p->multiply;
    for (int64_t t = 0; variance_y != NULL && t < dims->tokens; t++) {
        for (int64_t i = 0; i < dim; i++) {
            double absolute = 0.0, squares = 0.0;
            for (int64_t k = 0; k < per_token; k++) {
                double weight = weights == NULL ? 1.0 : weights[t * per_token + k];
                double term = fabs(weight * sorted[place[t * per_token + k] * dim + i]);
                absolute += term;
                squares += term * term;
            }
            variance_y[t * dim + i] = entry * squares + (double)per_token * square(p->accumulate * absolute);
        }
    }
    for (int64_t copy = 0; copy < dims->tokens * per_token; copy++) {
        const double *up = dy == NULL ? NULL : dy + copy / per_token * dim;
        int64_t row = place[copy] * dim;
        double weight = weights == NULL ? 1.0 : weights[copy], absolute = 0.0, squares = 0.0;
        for (int64_t i = 0; variance_d_sorted != NULL && i < dim; i++) {
            variance_d_sorted[row + i] = (entry + square(p->accumulate)) * square(weight * up[i]);
        }
        if (variance_d_weights == NULL) continue;
        for (int64_t i = 0; i < dim; i++) {
            double term = fabs(sorted[row + i] * up[i]);
            absolute += term;
            squares += term * term;
        }
        variance_d_weights[copy] = 2.0 * square(p->multiply) * squares + (double)dim * square(p->accumulate * absolute);
    }
    free(place);
    return ASSAY_OK;
}
