/* What the files of the second form share. */
#ifndef ASSAY_QUAD_SPEC_INTERNAL_H
#define ASSAY_QUAD_SPEC_INTERNAL_H

#include <stdlib.h>

#include "oracle/base/memory.h"
#include "oracle/quad/quad.h"

/* The list takes the tensor's pointers over, under another name. Of a lent tensor they stay the lender's: its list is
 * freed without them. */
assay_status quad_tensors_list(assay_context *ctx, quad_tensors *tensors, const char *path, const quad_tensor *tensor);

/* The tensor of that path goes from one list to the other. */
assay_status quad_tensors_move(assay_context *ctx, quad_tensors *from, const char *path, quad_tensors *to);

/* The tensor at `path`, which must have `count` elements; absent: an error, or NULL for the optional forms. */
assay_status quad_read(assay_context *ctx, const quad_tensors *in, const char *path, int64_t count,
                       const quad **values);
assay_status quad_read_optional(assay_context *ctx, const quad_tensors *in, const char *path, int64_t count,
                                const quad **values);
assay_status quad_read_indices(assay_context *ctx, const quad_tensors *in, const char *path, int64_t count,
                               const int32_t **indices);
assay_status quad_read_optional_indices(assay_context *ctx, const quad_tensors *in, const char *path, int64_t count,
                                        const int32_t **indices);
/* inputs/x: its values and the sizes of its last axis and of all others together. */
assay_status quad_read_rows(assay_context *ctx, const quad_tensors *in, const char *path, const quad_tensor **tensor,
                            int64_t *rows, int64_t *dim);
assay_status quad_alloc(assay_context *ctx, int64_t count, quad **values);

/* Of a grouped product: its index of groups, and the group of a row; -1: of none. */
assay_status quad_read_gmm_index(assay_context *ctx, const assay_gmm_config *config, const quad_tensors *in,
                                 const int32_t **index);
int64_t quad_group_of(const assay_gmm_config *config, const int32_t *index, int64_t row);

/* codes times scales of dy [rows,columns] as a recipe quantises it for dx. */
assay_status quad_quantise_gradient(assay_context *ctx, const assay_recipe_config *recipe, int64_t rows,
                                    int64_t columns, const quad *dy, quad *numbers);

quad quad_sigmoid(quad x);
quad quad_activation(assay_activation f, quad x);
quad quad_glu(const assay_activation activation[2], assay_glu glu, double limit, quad a, quad b);
void quad_softmax(int64_t count, const quad *x, quad *p);
void quad_scores(assay_score_func f, int64_t count, const quad *logits, quad *scores);
/* y [columns] = x [rows] times w [rows,columns], whose rows are `ld` apart. */
void quad_vector_matrix(int64_t rows, int64_t columns, const quad *x, const quad *w, int64_t ld,
                        quad *y);
uint64_t quad_next_random(uint64_t *state);

/* Elements [first, first + count) of a tensor that has a source. */
assay_status quad_read_piece(assay_context *ctx, const quad_tensor *tensor, int64_t first, int64_t count,
                             quad *values);

/* The weights of a table; NULL: it is not there, which of a bias alone is no error. `experts`: each tensor has so many of
 * them one after the other. `streams` gets those that have a source, whose weights are NULL; it may be NULL itself. */
assay_status quad_read_weights(assay_context *ctx, const assay_tensor_table *table, const quad_tensors *in,
                               int64_t experts, const quad **weights, const quad_tensor **streams);

/* A gated MLP. */
typedef struct quad_mlp {
    assay_gated_mlp_config config; /* rows is nothing to it */
    const quad *w[ASSAY_MLP_WEIGHTS];
    int64_t w13_shards; /* columns of wi: gate and up of shard 0, of shard 1, ...; 0 is 1 */
} quad_mlp;
/* Of some rows: a, b, h [rows,H] and y [rows,D]. */
typedef struct quad_mlp_values {
    quad *a, *b, *h, *y;
    /* [rows]: where h is quantised, the row of h that its codes are of; h's own: NULL, the list or a row of it. What h is
     * more than that goes straight through: the derivative that kernels take. */
    const quad *const *held;
} quad_mlp_values;
/* A row of h as codes and scales, and the numbers that these are; NULL: not wanted. */
void quad_requantise_row(const assay_quantize_config *config, int64_t columns, const quad *h, quad *codes,
                         quad *scale, quad *numbers);
assay_status quad_mlp_values_alloc(assay_context *ctx, const assay_gated_mlp_config *config, int64_t rows,
                                   quad_mlp_values *values);
void quad_mlp_values_free(quad_mlp_values *values); /* safe on a zeroed struct */
assay_status quad_mlp_rows(assay_context *ctx, const quad_mlp *mlp, int64_t rows, const quad *x,
                           const quad_mlp_values *to);

/* checkpoints/ of a gated MLP, [rows,width]: a, b, h and y, with fused weights also a and b side by side; NULL: none. */
typedef struct quad_mlp_checkpoints {
    quad *values[ASSAY_MLP_CHECKPOINTS];
} quad_mlp_checkpoints;
assay_status quad_add_mlp_checkpoints(assay_context *ctx, quad_tensors *out, const assay_gated_mlp_config *config,
                                      assay_mlp_place place, const assay_shape *rows, quad_mlp_checkpoints *added);
void quad_keep_mlp(const quad_mlp_checkpoints *to, const quad_mlp *mlp, int64_t row, const quad *a,
                   const quad *b, const quad *h, const quad *y);

/* order [count]: positions of `keys` sorted ascending, equal keys in their order; sizes [groups]: how many of each. Keys
 * of no group are left out, and as many -1 follow. */
void quad_sort_by_expert(int64_t count, const int32_t *keys, int64_t groups, int32_t *order, int32_t *sizes);

/* The choice of one token by `biased` [E], and its margin. `allowed` [E] is scratch. */
assay_status quad_select(assay_context *ctx, const assay_routing_config *config, const quad *biased, bool *allowed,
                         int32_t *selected, quad *margin);

/* quad_routing without outputs/weights: what a MoE block has of it. */
assay_status quad_route(assay_context *ctx, const assay_routing_config *config, const quad_tensors *in,
                        quad_tensors *out);

/* x over the root of its mean square plus epsilon, times scale; rows of `dim`, x's `ld` apart, y's without gaps. */
void quad_rms_norm_rows(int64_t rows, int64_t dim, double epsilon, const quad *x, int64_t ld,
                        const quad *scale, quad *y);

/* turns [tokens,Dr]: for each pair the cosine and the sine of its angle, times the attention factor. The caller frees
 * them. */
assay_status quad_rope_turns(assay_context *ctx, const assay_rope_config *config, int64_t tokens,
                             const int32_t *positions, quad **turns);
/* y [Dr] is x [Dr] turned by one token's turn [Dr]; they may not overlap. */
void quad_rotate(const assay_rope_config *config, const quad *turn, const quad *x, quad *y);

/* Laid out as quad_attention's tensors; segment_ids may be NULL. */
typedef struct quad_attention_problem {
    const assay_attention_config *config;
    const quad *query, *key, *value;
    const quad *sinks; /* NULL: none */
    const int32_t *segment_ids;
    quad *attention_out, *lse; /* written */
} quad_attention_problem;
assay_status quad_attend(assay_context *ctx, const quad_attention_problem *problem);
/* Of as many heads of keys as of queries, without sinks; all are overwritten. */
typedef struct quad_attention_gradients {
    const quad *attention_out; /* given */
    quad *query, *key, *value;
} quad_attention_gradients;
void quad_attend_back(const quad_attention_problem *problem, const quad_attention_gradients *d);

/* Every intermediate of MLA, under checkpoints/ and their names; y is checkpoints/out_proj. */
assay_status quad_mla_parts(assay_context *ctx, const assay_mla_config *config, const quad_tensors *in,
                            quad_tensors *parts);

/* Where the tokens are that a shard works on. */
typedef enum quad_exchange {
    QUAD_SEND,   /* its own, each copy of which is sent to the shard of its expert */
    QUAD_GATHER, /* those of its whole expert axis; expert ids are rolled, so that its own come first */
    QUAD_SAME,   /* all of them, as on every other shard */
    QUAD_STAY    /* those of its expert axis, as on every other shard of it; the rows of other experts stay empty */
} quad_exchange;

/* Which copies of tokens each shard of a mesh sorts, and which its experts compute, in one part after the other: chunks
 * of the sequence, or microbatches. Starts zeroed. M shards, C parts. */
typedef struct quad_spread {
    quad_exchange exchange;
    int64_t shards, expert_shards, hidden_shards, experts, local_experts, per_token;
    int64_t chunks, microbatches, parts;
    bool part_axis;         /* whether tensors have one */
    int64_t own_rows, rows; /* of the batch: that a shard owns of a part, that it sorts of it */
    int64_t sequence;       /* of a part */
    int64_t copies, buffer; /* that a shard sorts of a part; rows that its experts may get */
    int32_t *sorted;        /* [M,C,copies]: sorted_selected_experts */
    int32_t *sizes;         /* [M,C,E]: how many of each expert (gathered: rolled) it sorts */
    int32_t *local_order;   /* [M,C,buffer]: local_sorted_indices */
    int32_t *local_sizes;   /* [M,C,E/P]: rows of each of its experts */
    int32_t *choices;       /* [M,C,buffer]: the choice (token * K + k) in each row after that, -1: none */
    bool *dropped;          /* [T*K]: whether no shard has it */
} quad_spread;

/* microbatches: of the batch-split schedule; 0: there is none. */
assay_status quad_spread_make(assay_context *ctx, quad_spread *spread, const quad_moe_config *config,
                              int64_t microbatches, const int32_t *selected);
void quad_spread_free(quad_spread *spread); /* safe on a zeroed struct */
/* The shard at a place of the expert axis that is like this one else. */
int64_t quad_spread_peer(const quad_spread *spread, int64_t shard, int64_t index);
/* The token at a place of what a shard sorts of a part. */
int64_t quad_spread_token(const quad_spread *spread, int64_t shard, int64_t part, int64_t place);
/* [M,C,last], or [M,last] without parts. */
assay_shape quad_spread_shape(const quad_spread *spread, int64_t last);

/* What a MoE block reads. Starts zeroed. */
typedef struct quad_block {
    const assay_moe_config *config;
    const quad_tensor *x;
    quad_mlp experts, shared;                      /* the weights of all experts */
    const quad *shared_gate;                  /* [D], or NULL */
    const quad *weights;                      /* [T,K] */
    const int32_t *selected;                       /* [T,K] */
    const bool *dropped;                           /* [T,K], or NULL */
    bool weight_before_wo;                         /* an expert's own y has its weight already */
    quad *gathered[ASSAY_MLP_WEIGHTS];        /* kernels of all experts that come on shards */
    const quad_tensor *streams[ASSAY_MLP_WEIGHTS]; /* kernels of all experts that are read one at a time, or NULL */
    /* h that codes are of: checkpoints/moe_intermediate and mlp_intermediate, where the input has them; and which row of the
     * first a slot of a token has (NULL: dense). */
    const quad *held, *held_shared;
    int64_t *held_rows;
    quad *y; /* [T,D]: what the block gives */
} quad_block;

assay_status quad_block_read(assay_context *ctx, const assay_moe_config *config, const quad_tensors *in,
                             quad_block *block);
void quad_block_free(quad_block *block);
/* order: routing/sorted_selected_experts. */
assay_status quad_block_hold(assay_context *ctx, const quad_tensors *in, const quad_tensor *order, quad_block *block);
/* quad_route of a block, whose slots may be more than its choices (moe.h). */
assay_status quad_moe_route(assay_context *ctx, const assay_moe_config *config, const quad_tensors *in,
                            quad_tensors *out);
/* Makes the kernels whole that the input has as they lie on shards (sharding->weights_on_shards). */
assay_status quad_block_gather(assay_context *ctx, const assay_sharding *sharding, quad_block *block);
/* One row that an expert gets. */
typedef struct quad_block_row {
    const quad_block *block;
    int64_t expert; /* its number, or one of the two below */
    int64_t choice; /* (token * K + k): the token as it gets it, with its weight where that goes on before; -1: none */
    int64_t token;  /* of no choice: the token alone; -1: a row of zeros */
} quad_block_row;
enum { QUAD_EXPERT_NONE = -1 /* the row's results are 0 */, QUAD_EXPERT_SHARED = -2 };
/* Rows, each block's one after the other. The results of row number `row` go to `keep`, one at a time. */
typedef struct quad_block_rows {
    const quad_block_row *rows;
    int64_t count;
    void (*keep)(void *self, int64_t row, const quad *a, const quad *b, const quad *h,
                 const quad *y);
    void *self;
} quad_block_rows;
assay_status quad_block_rows_alloc(assay_context *ctx, int64_t count, quad_block_row **rows);
/* Expert by expert. The same row through the same weights, as blocks that were moved along one line have them, is computed
 * once. Blocks are of one configuration. */
assay_status quad_block_compute(assay_context *ctx, const quad_block_rows *rows);
/* y of each of `count` blocks: the sum over choices, and the shared expert. */
assay_status quad_block_combine(assay_context *ctx, int count, const quad_block *blocks);
/* Dropping: places of an expert in a batch row, and the place of a choice: its rank in (s,k) order among the choices of
 * its expert in its batch row. */
int64_t quad_capacity(const assay_moe_config *config);
int64_t quad_block_position(const quad_block *block, int64_t choice);

/* With local experts: the choices by the numbers that experts have here, -1 elsewhere, in *selected [T*K], which the
 * caller frees; routing/sorted_selected_experts and routing/local_group_sizes are of those. Else *selected is NULL. */
assay_status quad_localise(assay_context *ctx, const assay_moe_config *config, const quad_tensors *in,
                           quad_tensors *out, int32_t **selected);

/* Whether the block is spread over a mesh, or computed in pieces as if it were. */
bool quad_is_sharded(const quad_moe_config *config);
assay_status quad_sharded_moe(assay_context *ctx, const quad_moe_config *config, const quad_tensors *in,
                              quad_tensors *out);
/* checkpoints/moe_... of the routed experts, in the rows of each shard. */
assay_status quad_add_spread_checkpoints(assay_context *ctx, const quad_block *block, const quad_spread *spread,
                                         quad_tensors *out);

/* The MoE half of a layer under the batch-split schedule: the tensors of quad_moe -> outputs/y, routing/ and
 * checkpoints/ as batch_split.h lists them. */
assay_status quad_batch_split_moe(assay_context *ctx, const assay_stack_config *config, const quad_tensors *in,
                                  quad_tensors *out);
assay_status quad_batch_split_checkpoints(assay_context *ctx, const assay_stack_config *config, const quad_tensors *in,
                                          quad_tensors *out);

#endif
