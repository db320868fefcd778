/* What the files of the block's propagation share. It observes a run (moe.h): the variances of one precision go with the
 * block's own tensors, from the logits through the rows of each expert to y, and back to dx. */
#pragma once

#include "oracle/moe/moe_block.h"
#include "oracle/propagate/propagate_gated_mlp.h"
#include "oracle/propagate/propagate_moe.h"

/* One precision; NULL where not needed. */
typedef struct moe_scales {
    const assay_precision *precision;
    const assay_sink *out; /* where scales go */
    assay_sink sink;       /* takes variances under the paths of the results */
    moe_results results;   /* of that sink */
    bool any;              /* it wants anything */
    bool router;           /* it wants what the router's gradient is in */
    double *logits;        /* [T,E] */
    double *weights;       /* [T,K]: what combines */
    double *gate;          /* llama4: [T], the scale of a token */
    double *y, *dx;        /* [T,D] */
    double *d_weights;     /* [T,K] */
    moe_checkpoints checkpoints;
} moe_scales;

/* Variances of the rows at hand, of one precision after the other. */
typedef struct moe_row_scratch {
    const moe_mlp *mlp; /* whose rows it has room for; NULL: of none yet */
    double *a, *b;      /* [rows,H], as the values are laid out */
    double *h;          /* [rows,H] */
    double *y, *dx;     /* [rows,D] */
    double *gradients[ASSAY_MLP_WEIGHTS];
    double *weights;    /* [rows]: of what multiplies a row's output */
    double *x, *factor; /* llama4, [rows,D]; [rows]: the scales of its tokens */
    double *dy;         /* [rows,D] */
    double *dh;         /* [rows,H]: of backward, no variance */
    double *products;   /* [rows,D]: of h wo with exact operands */
    /* What h has more where its row's weight goes onto it before it is stored, [rows,H], and what comes of that in y,
     * [rows,D]. */
    double *weighted_h, *weighted_y;
    bool weighted; /* there is such */
} moe_row_scratch;

typedef struct moe_propagation {
    moe_scales *scales; /* [count] */
    int count;
    /* [T,D]: the sum so far of the terms of y, and the squares of all partial sums and terms (assay_propagate_term);
     * likewise of dx. */
    double *sum_y, *squares_y, *sum_dx, *squares_dx;
    moe_row_scratch rows;
} moe_propagation;

/* The observer's rows(). */
assay_status moe_propagate_rows(assay_context *ctx, void *self, const moe_block *block, const moe_mlp *mlp,
                                const moe_rows *rows);
/* Its combined(). */
void moe_propagate_combined(void *self, const assay_context *ctx, const moe_block *block, const moe_rows *rows);
void moe_row_scratch_free(moe_row_scratch *s);

/* For sum += part: both are stored before they are added. */
static inline void moe_propagate_join(const assay_precision *precision, int64_t count, const double *sum,
                                      const double *part, double *variance_sum, const double *variance_part)
{
    for (int64_t i = 0; i < count; i++)
        variance_sum[i] +=
            variance_part[i] + assay_propagate_stored(precision, sum[i]) + assay_propagate_stored(precision, part[i]);
}
