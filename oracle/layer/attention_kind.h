/* The attention of a layer as the layer sees it: a table of functions for each kind (attention_mla.c, attention_gqa.c).
 *
 * Intermediates go by their slots of remat.h, query_wa_proj to out_proj in the order of the data flow, and
 * ASSAY_REMAT_LSE; a kind that has none at a slot has no row for it. */
#ifndef ASSAY_LAYER_ATTENTION_KIND_H
#define ASSAY_LAYER_ATTENTION_KIND_H

#include "oracle/layer/deepseek_stack.h"
#include "oracle/ops/ops_shares.h"

enum { ATTENTION_FIRST = ASSAY_REMAT_QUERY_WA_PROJ, ATTENTION_LAST = ASSAY_REMAT_OUT_PROJ };

/* Those of the layer's kind. */
typedef union attention_residuals {
    assay_mla_residuals mla;
    assay_gqa_residuals gqa;
} attention_residuals;

typedef struct attention_call {
    const assay_stack_config *config;
    int64_t layer;
    const double *x; /* [B,S,D], normalised */
    const int32_t *positions, *segment_ids;
    double *const *weights; /* in the order of the kind's table */
} attention_call;

typedef struct attention_kind {
    int weights;
    assay_stack_sizes (*sizes)(const assay_stack_config *config);
    const assay_rope_config *(*rope)(const assay_stack_config *config);
    assay_status (*check)(assay_context *ctx, const assay_stack_config *config);
    assay_tensor_row (*weight_row)(const assay_stack_config *config, int weight);
    assay_tensor_row (*tensor_row)(const assay_stack_config *config, int slot); /* without a name: there is none */
    double (*tensor_flops)(const assay_stack_config *config, int64_t layer, int slot);
    double (*backward_flops)(const assay_stack_config *config, int64_t layer);
    /* What ranks share of compute and of backward (oracle/ops/ops_shares.h). */
    void (*tensor_shares)(assay_run_shares *shares, double least, const assay_stack_config *config, int64_t layer,
                          int slot);
    void (*backward_shares)(assay_run_shares *shares, double least, const assay_stack_config *config, int64_t layer);
    double **(*value)(attention_residuals *r, int slot); /* of a slot that the kind has */
    void (*free)(attention_residuals *r);                /* safe on a zeroed union */
    /* Allocates and computes one intermediate from those before it. */
    assay_status (*compute)(assay_context *ctx, attention_residuals *r, int slot, const attention_call *call);
    /* dx [B,S,D]; gradients in the order of the weights, NULL where nobody wants one. */
    assay_status (*backward)(assay_context *ctx, double *dx, double *const *gradients, const double *dy,
                             const attention_residuals *r, const attention_call *call);
} attention_kind;

extern const attention_kind attention_mla, attention_gqa;

const attention_kind *attention_of(const assay_stack_config *config);

#endif
