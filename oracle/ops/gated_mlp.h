/* Gated MLP (docs/operations.md, "mlp"; MaxText layers/linears.py MlpBlock and moe.py apply_ffn_activation).
 *
 * x [rows,D]; weights as in the table below; -> y [rows,D]; keeps a, b, h [rows,H].
 *   a = x wi_0 + wi_0_bias;  b = x wi_1 + wi_1_bias;  h = glu(a, b);  y = h wo + wo_bias
 *   glu plain:    act_0(a) * act_1(b)
 *   glu gpt_oss:  a' = min(a, limit), b' = clip(b, -limit, limit): a' * sigmoid(1.702 a') * (b' + 1)
 *   glu clamped:  a' = min(a, limit), b' = clip(b, -limit, limit): act_0(a') * b'                    (DeepSeek-V4)
 * Fused: wi [D,2H], gate columns first; one product. The same bits either way. At a clamp's edge the value passes
 * and so does its gradient (JAX halves it there): cases keep clear of edges.
 *
 * By a training recipe (quant_recipe.h) each of the products, x wi_0, x wi_1 (fused: x wi) and h wo, and each of their two of
 * backward, takes what the recipe makes of its operands. What a kernel computes of these, h and the gradients of a and b, is
 * quantised as it is, in float64; what lies between the products is not quantised: activation, gradients of biases, sums.
 * Fused then has scales of gate and up together, and other bits.
 *
 * NaN in x reaches the rows that hold it, and in backward dwi_0, dwi_1, dwo: callers pass only rows that count. */
#pragma once

#include "oracle/base/tensor_table.h"
#include "oracle/ops/activation.h"
#include "oracle/ops/quant_recipe.h"
#include "oracle/ops/quantize.h"

typedef enum assay_glu { ASSAY_GLU_PLAIN, ASSAY_GLU_GPT_OSS, ASSAY_GLU_CLAMPED } assay_glu;

typedef struct assay_gated_mlp_config {
    int64_t rows, emb_dim, mlp_dim;
    assay_activation activation[2]; /* of a and of b; gpt_oss: sigmoid, linear */
    assay_glu glu;
    double limit;
    double alpha; /* gpt_oss: of its sigmoid; 0 is 1.702, which all models have */
    bool fused;
    /* That H is split over, each of which has its own columns of wi_0 and wi_1 and rows of wo: what is a product over H
     * is the sum of theirs, ascending, and wo_bias comes once, after it. 0 is 1. Divides H. */
    int64_t hidden_shards;
    /* Rows that come in groups, one after the other, of which each has weights of its own: these then have an axis of groups
     * in front, and so have their gradients, which of an empty group are 0. 0: one group of all rows, without that axis. */
    int64_t groups;
    assay_quantize_config
        hidden; /* how h is quantised before the product with wo (requantise.h); format NULL: it is not */
    assay_quant_recipe_config recipe; /* of one shard of H; its recipe is NULL: none */
} assay_gated_mlp_config;

/* The weights. Not fused: wi_0, wi_1; fused: wi. Biases may be there or not. */
typedef enum assay_mlp_weight {
    ASSAY_MLP_WI,        /* [D,2H] */
    ASSAY_MLP_WI_0,      /* [D,H] */
    ASSAY_MLP_WI_1,      /* [D,H] */
    ASSAY_MLP_WI_0_BIAS, /* [H] */
    ASSAY_MLP_WI_1_BIAS, /* [H] */
    ASSAY_MLP_WO,        /* [H,D] */
    ASSAY_MLP_WO_BIAS,   /* [D] */
    ASSAY_MLP_WEIGHTS
} assay_mlp_weight;

/* What is worth keeping, by its checkpoint name; likewise. */
typedef enum assay_mlp_checkpoint {
    ASSAY_MLPWI,            /* [rows,2H]: a and b */
    ASSAY_MLPWI_0,          /* [rows,H]: a */
    ASSAY_MLPWI_1,          /* [rows,H]: b */
    ASSAY_MLP_INTERMEDIATE, /* [rows,H]: h */
    ASSAY_MLP_CODES,        /* [rows,H]: of h that is quantised, as numbers of their type */
    ASSAY_MLP_SCALE,        /* [rows,blocks]: their scales */
    ASSAY_MLPWO,            /* [rows,D]: y */
    ASSAY_MLPWI_GRADIENT,   /* [rows,2H]: of a and b, which backward quantises by a recipe */
    ASSAY_MLPWI_0_GRADIENT, /* [rows,H]: of a */
    ASSAY_MLPWI_1_GRADIENT, /* [rows,H]: of b */
    ASSAY_MLPWO_GRADIENT,   /* [rows,D]: dy of routed rows, which is no cotangent */
    ASSAY_MLP_CHECKPOINTS
} assay_mlp_checkpoint;

/* Which MLP it is; its tensors are called by that. */
typedef enum assay_mlp_place { ASSAY_MLP_DENSE, ASSAY_MLP_ROUTED, ASSAY_MLP_SHARED, ASSAY_MLP_PLACES } assay_mlp_place;

/* One row each, at the sizes of the configuration: of routed experts those of one. A checkpoint's axes are the last
 * one, [H]. Without a name: what the configuration does not have, and everything where mlp_dim is 0. */
assay_tensor_row assay_mlp_weight_row(const assay_gated_mlp_config *config, assay_mlp_place place, int weight);
assay_tensor_row assay_mlp_checkpoint_row(const assay_gated_mlp_config *config, assay_mlp_place place, int checkpoint);
/* "checkpoints/moe_mlpwi_0" and the numbers of a row of it; 0: there is no such checkpoint. */
int64_t assay_mlp_checkpoint_path(const assay_gated_mlp_config *config, assay_mlp_place place, int checkpoint,
                                  char path[ASSAY_PATH_SIZE]);
assay_tensor_table assay_mlp_weight_table(const assay_gated_mlp_config *config, assay_mlp_place place);
