/* What the forms of blocks are made of, and give each other. */
#pragma once

#include "oracle/quad/tape.h"

/* An axis of a mesh that is not there, or parts that nothing is cut into. */
static inline int64_t quad_one_at_least(int64_t n)
{
    return n > 1 ? n : 1;
}

static inline int64_t quad_tokens(const assay_routing_config *config)
{
    return config->batch * config->sequence;
}

/* --- attention --- */

/* x [tokens,width], of which padding that is not finite counts as 0. */
quad_node quad_used_tokens(quad_tape *t, quad_node x, bool masked);
/* y [B*S,D] of x; checkpoints are put. */
quad_node quad_mla_of(quad_tape *t, const quad_mla_config *config, quad_node x);
quad_node quad_gqa_of(quad_tape *t, const quad_gqa_config *config, quad_node x);
quad quad_softmax_scale(const assay_mla_config *config);
/* [count,1]: what is added to numbers that are not there, whose index is -1; 0 elsewhere. */
quad_node quad_missing(quad_tape *t, const int64_t *index, int64_t count, quad number);
/* 1 less the share of the sink, of rows [..,heads] with these log-sum-exps. */
quad_node quad_gates(quad_tape *t, int64_t rows, int64_t heads, quad_node lse, quad_node sinks);
/* The numbers of a cache of bytes, in the order of its rows, of `width` numbers each. */
void quad_cache_numbers(quad_tape *t, const assay_cache_stream *s, int64_t width, quad *to);
/* These numbers, as float32, into the bytes of a cache, as they are given. */
void quad_append_stream(quad_tape *t, const assay_cache_stream *s, int64_t tokens, const quad *x, const quad *second);
/* Of every head the numbers [first, first + width); heads of a, and beside each of them one of b. [tokens,heads*..] */
quad_node quad_of_heads(quad_tape *t, quad_node x, int64_t heads, int64_t first, int64_t width);
quad_node quad_heads_beside(quad_tape *t, quad_node a, quad_node b, int64_t heads);

/* A checkpoint of heads, [B,S,N,width] (width 0: lse, [B,N,S]), or what each shard of the mesh has of it. */
typedef struct quad_heads {
    int64_t batch, sequence, heads, kv_heads;
    const assay_mesh *mesh;
} quad_heads;
void quad_put_heads(quad_tape *t, const quad_heads *heads, const char *path, int64_t width, quad_node x);

/* --- gated MLPs --- */

typedef struct quad_mlp {
    assay_gated_mlp_config config; /* rows is nothing to it */
    quad_node w[ASSAY_MLP_WEIGHTS];
    int64_t groups;
    const int64_t *group; /* of each row; NULL: one of all */
    const int64_t *set;   /* as a quad_layer has them */
    int64_t shards;
    int64_t slices, hidden;                 /* of D and of H: by a recipe each is a layer of its own; 0 is 1 */
    int64_t w13_shards;                     /* columns of wi: gate and up of shard 0, of shard 1, ...; 0 is 1 */
    quad_node up, a, b, h, codes, scale, y; /* made by quad_mlp_run; up: with fused weights */
} quad_mlp;
void quad_mlp_weights(quad_tape *t, quad_mlp *m, assay_mlp_place place, int64_t groups);
void quad_mlp_run(quad_tape *t, quad_mlp *m, quad_node x);
/* Checkpoints: rows as they are, or each a part of a row: row index[i] of those that all rows have `parts` of. */
typedef struct quad_mlp_layout {
    assay_shape rows;     /* all axes but the last */
    const int64_t *index; /* [count]; NULL: as they are. -1: a row of zeros */
    int64_t count, parts;
} quad_mlp_layout;
void quad_put_mlp(quad_tape *t, const quad_mlp *m, assay_mlp_place place, const quad_mlp_layout *layout);

/* --- routing --- */

/* Logits and what is made of them are [T,E]. */
typedef struct quad_router {
    const int32_t *selected; /* [T,K] */
    quad_node weights;       /* [T,K] */
    quad_node logits, scored, scores, biased, probabilities, of_z_loss;
} quad_router;
/* x 0: inputs/x, or inputs/logits. Where routing/selected_experts is given that is the choice; own/selected_experts and
 * own/weights are those that the scores make. */
quad_router quad_route(quad_tape *t, const assay_routing_config *config, quad_node x);
quad_router quad_route_by(quad_tape *t, const assay_routing_config *config, quad_node logits);
typedef struct quad_losses {
    quad_node lb_loss, z_loss, bias_updates; /* [1,1], [1,1], [1,E]; 0: there is none */
} quad_losses;
quad_losses quad_losses_of(quad_tape *t, const assay_routing_config *config, const quad_router *r,
                           const int32_t *selected);
void quad_put_losses(quad_tape *t, const assay_routing_config *config, const quad_losses *losses);

/* --- experts --- */

/* Rows that experts compute: of each its expert (-1: none, its results are 0), the token that it is of (-1: zeros), the choice
 * that it is (-1: none, its weight is 1), and the token that its y goes to (-1: nowhere). Starts zeroed. */
typedef struct quad_expert_rows {
    int64_t count;
    int64_t *expert, *token, *choice, *to;
} quad_expert_rows;
assay_status quad_rows_alloc(quad_tape *t, int64_t count, quad_expert_rows *rows); /* all -1 */

quad_node quad_moe_of(quad_tape *t, const quad_moe_config *config, quad_node x);
void quad_experts_of(quad_tape *t, const quad_moe_config *config, quad_mlp *m);
quad_node quad_expert_sum(quad_tape *t, const quad_moe_config *config, quad_node x, const quad_router *r,
                          const quad_expert_rows *rows, quad_mlp *m);
quad_node quad_shared_of(quad_tape *t, const assay_moe_config *config, quad_node x); /* 0: there is none */
/* Of each choice its replica, which is put; or its number among the experts that are here, -1 elsewhere. [T,K] */
const int32_t *quad_put_replicas(quad_tape *t, const assay_moe_config *c, const int32_t *selected);
const int32_t *quad_local_experts(quad_tape *t, const assay_moe_config *c, const int32_t *selected);
/* Makes the kernels whole that are given as they lie on shards. */
void quad_gather_kernels(quad_tape *t, const quad_moe_config *config, quad_mlp *m);

/* --- shards --- */

/* Whether the block is spread over a mesh, or computed in pieces as if it were. */
bool quad_is_sharded(const quad_moe_config *config);
quad_node quad_sharded_experts(quad_tape *t, const quad_moe_config *config, quad_node x);

/* Where the tokens are that a shard works on. */
typedef enum quad_exchange {
    QUAD_SEND,   /* its own, each copy of which is sent to the shard of its expert */
    QUAD_GATHER, /* those of its whole expert axis; expert ids are rolled, so that its own come first */
    QUAD_SAME,   /* all of them, as on every other shard */
    QUAD_STAY    /* those of its expert axis, as on every other shard of it; the rows of other experts stay empty */
} quad_exchange;

/* Which copies of tokens each shard of a mesh sorts, and which its experts compute, in one part after the other: chunks
 * of the sequence, or microbatches. M shards, C parts. */
typedef struct quad_sharding {
    quad_exchange exchange;
    int64_t shards, expert_shards, hidden_shards, experts, local_experts, per_token;
    int64_t chunks, microbatches, parts;
    bool shard_axis;        /* whether tensors have one */
    int64_t own_rows, rows; /* of the batch: that a shard owns of a part, that it sorts of it */
    int64_t sequence;       /* of a part */
    int64_t copies, buffer; /* that a shard sorts of a part; rows that its experts may get */
    int32_t *sorted;        /* [M,C,copies]: sorted_selected_experts */
    int32_t *sizes;         /* [M,C,E]: how many of each expert (gathered: rolled) it sorts */
    int32_t *local_order;   /* [M,C,buffer]: local_sorted_indices */
    int32_t *local_sizes;   /* [M,C,E/P]: rows of each of its experts */
    int32_t *choices;       /* [M,C,buffer]: the choice (token * K + k) in each row after that, -1: none */
} quad_sharding;

/* The tape's; NULL after an error. selected: what copies are sorted by. microbatches: of the batch-split schedule; 0: there is none. */
const quad_sharding *quad_sharding_make(quad_tape *t, const quad_moe_config *config, int64_t microbatches,
                                        const int32_t *selected);
/* The shard at a place of the expert axis that is like this one else. */
int64_t quad_sharding_peer(const quad_sharding *sharding, int64_t shard, int64_t index);
/* The token at a place of what a shard sorts of a part. */
int64_t quad_sharding_token(const quad_sharding *sharding, int64_t shard, int64_t part, int64_t place);
/* The choice (token * K + k) at a place of what it has sorted; -1: none. */
int64_t quad_sharding_choice(const quad_sharding *sharding, int64_t shard, int64_t part, int64_t place);
/* [M,C,last], or [M,last] without parts. */
assay_shape quad_sharding_shape(const quad_sharding *sharding, int64_t last);
/* The routed experts' y, and their checkpoints in the rows of each shard. experts [T,K]: whose weights a choice has. */
quad_node quad_sharding_experts(quad_tape *t, const quad_moe_config *config, quad_node x, const quad_router *r,
                                const int32_t *experts, const quad_sharding *sharding);
