/* What the files of the second form share. */
#ifndef ASSAY_SPEC_SPEC_INTERNAL_H
#define ASSAY_SPEC_SPEC_INTERNAL_H

#include <stdlib.h>

#include "oracle/base/memory.h"
#include "oracle/spec/spec.h"

/* The tensor at `path`, which must have `count` elements; absent: an error, or NULL for the optional forms. */
assay_status spec_read(assay_context *ctx, const spec_tensors *in, const char *path, int64_t count,
                       const spec_quad **values);
assay_status spec_read_optional(assay_context *ctx, const spec_tensors *in, const char *path, int64_t count,
                                const spec_quad **values);
assay_status spec_read_indices(assay_context *ctx, const spec_tensors *in, const char *path, int64_t count,
                               const int32_t **indices);
assay_status spec_read_optional_indices(assay_context *ctx, const spec_tensors *in, const char *path, int64_t count,
                                        const int32_t **indices);
/* inputs/x: its values and the sizes of its last axis and of all others together. */
assay_status spec_read_rows(assay_context *ctx, const spec_tensors *in, const char *path, const spec_tensor **tensor,
                            int64_t *rows, int64_t *dim);
assay_status spec_alloc(assay_context *ctx, int64_t count, spec_quad **values);

spec_quad spec_sigmoid(spec_quad x);
spec_quad spec_activation(assay_activation f, spec_quad x);
spec_quad spec_glu(const assay_activation activation[2], assay_glu glu, double limit, spec_quad a, spec_quad b);
void spec_softmax(int64_t count, const spec_quad *x, spec_quad *p);
void spec_scores(assay_score_func f, int64_t count, const spec_quad *logits, spec_quad *scores);
/* y [columns] = x [rows] times w [rows,columns], whose rows are `ld` apart. */
void spec_vector_matrix(int64_t rows, int64_t columns, const spec_quad *x, const spec_quad *w, int64_t ld,
                        spec_quad *y);

/* The gated MLP of one row. wi_0 and wi_1 have rows `ld` apart: 2H where they are halves of one matrix. */
typedef struct spec_mlp {
    int64_t emb_dim, mlp_dim, ld;
    const spec_quad *wi_0, *wi_1, *wo;
    const spec_quad *wi_0_bias, *wi_1_bias, *wo_bias; /* or NULL */
    assay_activation activation[2];
    assay_glu glu;
    double limit;
} spec_mlp;
/* a, b, h [H] and y [D] are written. */
void spec_mlp_row(const spec_mlp *mlp, const spec_quad *x, spec_quad *a, spec_quad *b, spec_quad *h, spec_quad *y);

/* order [count]: positions of `keys` sorted ascending, equal keys in their order; sizes [groups]: how many of each. */
void spec_sort_by_expert(int64_t count, const int32_t *keys, int64_t groups, int32_t *order, int32_t *sizes);

/* The choice of one token by `biased` [E], and its margin. `allowed` [E] is scratch. */
assay_status spec_select(assay_context *ctx, const assay_routing_config *config, const spec_quad *biased, bool *allowed,
                         int32_t *selected, spec_quad *margin);

/* spec_routing without outputs/weights: what a MoE block has of it. */
assay_status spec_route(assay_context *ctx, const assay_routing_config *config, const spec_tensors *in,
                        spec_tensors *out);

/* x over the root of its mean square plus epsilon, times scale; rows of `dim`, x's `ld` apart, y's without gaps. */
void spec_rms_norm_rows(int64_t rows, int64_t dim, double epsilon, const spec_quad *x, int64_t ld,
                        const spec_quad *scale, spec_quad *y);

/* turns [tokens,Dr]: for each pair the cosine and the sine of its angle, times the attention factor. The caller frees
 * them. */
assay_status spec_rope_turns(assay_context *ctx, const assay_rope_config *config, int64_t tokens,
                             const int32_t *positions, spec_quad **turns);
/* y [Dr] is x [Dr] turned by one token's turn [Dr]; they may not overlap. */
void spec_rotate(const assay_rope_config *config, const spec_quad *turn, const spec_quad *x, spec_quad *y);

/* Laid out as spec_attention's tensors; segment_ids may be NULL. */
typedef struct spec_attention_problem {
    const assay_attention_config *config;
    const spec_quad *query, *key, *value;
    const int32_t *segment_ids;
    spec_quad *attention_out, *lse; /* written */
} spec_attention_problem;
assay_status spec_attend(assay_context *ctx, const spec_attention_problem *problem);

/* Every intermediate of MLA, under checkpoints/ and their names; y is checkpoints/out_proj. */
assay_status spec_mla_parts(assay_context *ctx, const assay_mla_config *config, const spec_tensors *in,
                            spec_tensors *parts);

/* What a MoE block reads, and one expert's scratch. Starts zeroed. */
typedef struct spec_block {
    const assay_moe_config *config;
    const spec_tensor *x;
    const spec_quad *wi, *wi_0, *wi_1, *wo, *wi_0_bias, *wi_1_bias, *wo_bias; /* of all experts; NULL where absent */
    spec_mlp shared;
    const spec_quad *weights;         /* [T,K] */
    const int32_t *selected;          /* [T,K] */
    spec_quad *token, *a, *b, *h, *y; /* its own */
} spec_block;

assay_status spec_block_read(assay_context *ctx, const assay_moe_config *config, const spec_tensors *in,
                             spec_block *block);
void spec_block_free(spec_block *block);
/* Expert e of a row x [D], into the block's a, b and y. */
void spec_block_expert(const spec_block *block, const spec_quad *x, int64_t e);
/* Token t as its experts get it: llama4 scales it by the sigmoid of its weight. In block->token. */
const spec_quad *spec_block_token(const spec_block *block, int64_t t);
/* Dropping: places of an expert in a batch row, and the place of a choice: its rank in (s,k) order among the choices of
 * its expert in its batch row. */
int64_t spec_capacity(const assay_moe_config *config);
int64_t spec_block_position(const spec_block *block, int64_t choice);

#endif
