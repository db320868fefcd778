/* Grouping token copies by expert, and back (docs/operations.md, "permute"; MaxText moe.py permute, unpermute).
 *
 * selected_experts [T,K] in [0,E). flat = its T*K entries; order = stable argsort(flat) (sorted_selected_experts: positions,
 * not ids); sorted_inputs[j] = x[order[j] / K]; group_sizes = bincount(flat, E).
 * An id of -1 is a slot without an expert (vLLM and flashinfer have such): no group counts it, and of so many rows behind
 * the last group order is -1. A row whose order is -1 is 0, its cotangent reaches nothing, and neither does what it holds
 * or the weight of a choice that no row is of, NaN too; their gradients are 0.
 * unpermute: y[t] = sum over k ascending of weights[t,k] * sorted[position of (t,k)].
 * The gradient of permute is unpermute with weights 1, and the other way round; dweights[t,k] = <sorted row, dy[t]>.
 * Any other id outside [0,E), and an order that has a position twice, are refused. */
#pragma once

#include "oracle/base/status.h"

/* The id of no expert, and in an order the position of no choice. */
enum { ASSAY_NO_EXPERT = -1 };

typedef struct assay_permute_dims {
    int64_t tokens, experts_per_token, experts, emb_dim;
} assay_permute_dims;

/* order [T*K] and group_sizes [E] from selected_experts. */
assay_status assay_permute_order(assay_context *ctx, int32_t *order, int32_t *group_sizes,
                                 const int32_t *selected_experts, const assay_permute_dims *dims);

/* The ring's numbering, by which a shard's own experts come first: (id - first) mod experts. */
void assay_roll_experts(int32_t *ids, int64_t count, int64_t first, int64_t experts);

/* Whether an order [T*K] keeps the copies of each expert together, in whatever order within one. Refused, with the place and
 * `path`: a position that is none, one that is there twice, one among another expert's. expert_of: selected_experts. */
assay_status assay_permute_check_order(assay_context *ctx, const char *path, const int32_t *order,
                                       const int32_t *expert_of, const int32_t *group_sizes,
                                       const assay_permute_dims *dims);

void assay_permute_forward(double *sorted_inputs, const double *x, const int32_t *order,
                           const assay_permute_dims *dims);
/* weights NULL means 1: y[t] is the sum over k ascending at the places of t's copies. */
assay_status assay_unpermute_forward(assay_context *ctx, double *y, const double *sorted, const int32_t *order,
                                     const double *weights, const assay_permute_dims *dims);
/* NULL results are skipped. */
assay_status assay_unpermute_backward(assay_context *ctx, double *d_sorted, double *d_weights, const double *dy,
                                      const double *sorted, const int32_t *order, const double *weights,
                                      const assay_permute_dims *dims);
