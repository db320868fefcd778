/* Gated MLP (SPEC 7; MaxText layers/linears.py MlpBlock and moe.py apply_ffn_activation).
 *
 * x [rows,D]; wi_0, wi_1 [D,H]; wo [H,D]; biases [H], [H], [D] or NULL -> y [rows,D]; keeps a, b, h [rows,H].
 *   a = x wi_0 + wi_0_bias;  b = x wi_1 + wi_1_bias;  h = glu(a, b);  y = h wo + wo_bias
 *   glu plain:    act_0(a) * act_1(b)
 *   glu gpt_oss:  a' = min(a, limit), b' = clip(b, -limit, limit): a' * sigmoid(1.702 a') * (b' + 1)
 *   glu clamped:  a' = min(a, limit), b' = clip(b, -limit, limit): act_0(a') * b'                    (DeepSeek-V4)
 * Fused: wi [D,2H], gate columns first; one product. The same bits either way. At a clamp's edge the value passes
 * and so does its gradient (JAX halves it there): cases keep clear of edges.
 *
 * NaN in x reaches the rows that hold it, and in backward dwi_0, dwi_1, dwo: callers pass only rows that count. */
#ifndef ASSAY_OPS_GATED_MLP_H
#define ASSAY_OPS_GATED_MLP_H

#include "oracle/arithmetic/precision.h"
#include "oracle/ops/activation.h"

typedef enum assay_glu { ASSAY_GLU_PLAIN, ASSAY_GLU_GPT_OSS, ASSAY_GLU_CLAMPED } assay_glu;

typedef struct assay_gated_mlp_config {
    int64_t rows, emb_dim, mlp_dim;
    assay_activation activation[2]; /* of a and of b; gpt_oss: sigmoid, linear */
    assay_glu glu;
    double limit;
    bool fused;
} assay_gated_mlp_config;

typedef struct assay_gated_mlp_weights {
    const double *wi;                              /* [D,2H] when fused, else NULL */
    const double *wi_0, *wi_1;                     /* [D,H] when not fused, else NULL */
    const double *wo;                              /* [H,D] */
    const double *wi_0_bias, *wi_1_bias, *wo_bias; /* or NULL */
} assay_gated_mlp_weights;

/* What forward keeps for backward. a and b are after bias and before the clamp; rows are `ld` apart. In the fused form
 * a and b are the two halves of one [rows,2H] buffer. */
typedef struct assay_gated_mlp_residuals {
    double *a, *b; /* checkpoints mlpwi_0, mlpwi_1 */
    int64_t ld;
    double *h; /* [rows,H] */
    double *storage;
} assay_gated_mlp_residuals;

assay_status assay_gated_mlp_residuals_alloc(assay_context *ctx, assay_gated_mlp_residuals *r,
                                             const assay_gated_mlp_config *config);
void assay_gated_mlp_residuals_free(assay_gated_mlp_residuals *r); /* safe on a zeroed struct */

/* Forward in its three steps, so that one whose results are kept can be left out: a and b, or, not fused, one of them;
 * h from them; y from h. */
typedef enum assay_gated_mlp_branch { ASSAY_BRANCH_GATE, ASSAY_BRANCH_UP, ASSAY_BRANCH_BOTH } assay_gated_mlp_branch;
assay_status assay_gated_mlp_up(assay_context *ctx, assay_gated_mlp_residuals *r, assay_gated_mlp_branch branch,
                                const double *x, const assay_gated_mlp_weights *w,
                                const assay_gated_mlp_config *config);
void assay_gated_mlp_gate(const assay_context *ctx, assay_gated_mlp_residuals *r, const assay_gated_mlp_config *config);
assay_status assay_gated_mlp_down(assay_context *ctx, double *y, const assay_gated_mlp_residuals *r,
                                  const assay_gated_mlp_weights *w, const assay_gated_mlp_config *config);

/* All three. */
assay_status assay_gated_mlp_forward(assay_context *ctx, double *y, assay_gated_mlp_residuals *r, const double *x,
                                     const assay_gated_mlp_weights *w, const assay_gated_mlp_config *config);

/* Results of backward; a NULL one is skipped with the work that only it needs. All are overwritten. */
typedef struct assay_gated_mlp_gradients {
    double *dx;                      /* [rows,D] */
    double *dwi;                     /* [D,2H] when fused */
    double *dwi_0, *dwi_1;           /* [D,H] when not fused */
    double *dwo;                     /* [H,D] */
    double *dwi_0_bias, *dwi_1_bias; /* [H] */
    double *dwo_bias;                /* [D] */
    double *dh;                      /* [rows,H]: dy wo^T, for the gradient of a routing weight: see moe */
} assay_gated_mlp_gradients;

assay_status assay_gated_mlp_backward(assay_context *ctx, const assay_gated_mlp_gradients *g, const double *dy,
                                      const assay_gated_mlp_residuals *r, const double *x,
                                      const assay_gated_mlp_weights *w, const assay_gated_mlp_config *config);

#endif
