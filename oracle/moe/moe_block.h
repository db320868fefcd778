/* What the files of the MoE block share, and what oracle/mesh sees of it; moe.h is the contract.
 *
 * A run: the router (moe_router.c) fixes choices and weights; then, expert by expert, the rows of its tokens go
 * forward and backward (moe_experts.c), one reading of the weights for all of it; then the
 * router's backward and the shared expert join in. Where tokens and experts lie is the placement's business: all on one
 * device (one_device.c), or spread over a mesh (oracle/mesh). How one device takes rows and combines them is that of
 * its path (dense_moe.c, sparse_moe.c, dropping_moe.c). */
#pragma once

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/blocks/mlp.h"
#include "oracle/moe/moe.h"
#include "oracle/moe/replicas.h"

/* The results of one gated MLP: checkpoints, then the gradient of each weight. */
enum {
    MLP_GRADIENT = ASSAY_MLP_CHECKPOINTS,
    MLP_RESULTS = MLP_GRADIENT + ASSAY_MLP_WEIGHTS,
};
/* Everything that a sink may want, but integers, and of routing what has no error scale. */
enum {
    MOE_Y,
    MOE_LB_LOSS,
    MOE_Z_LOSS,
    MOE_BIAS_UPDATES,
    MOE_WEIGHTS,
    MOE_SLOT_WEIGHTS,
    MOE_DX,
    MOE_DKERNEL,
    MOE_DBIAS,
    MOE_DSCALE,
    MOE_DROUTING_WEIGHTS,
    MOE_DSHARED_GATE,
    MOE_ROUTED,
    MOE_SHARED = MOE_ROUTED + MLP_RESULTS,
    MOE_RESULTS = MOE_SHARED + MLP_RESULTS,
};

typedef struct moe_results {
    const assay_sink *out;
    const assay_moe_config *config;
    bool wanted[MOE_RESULTS];
} moe_results;

void moe_results_open(moe_results *r, const assay_moe_config *config, const assay_source *in, const assay_sink *out);
bool moe_wants(const moe_results *r, int result);
bool moe_wants_any(const moe_results *r, int first, int count);
/* `first`: MOE_ROUTED or MOE_SHARED. */
bool moe_wants_gradient_checkpoints(const moe_results *r, int first);
/* Writes where it is wanted. */
assay_status moe_write(assay_context *ctx, const moe_results *r, int result, int64_t count, const double *values);

/* Rows of one expert; over a mesh those that one shard has for it. */
typedef struct moe_rows {
    int64_t expert;
    const int32_t *group_sizes; /* of those that come together: a shard's */
    int64_t first, size; /* its choices are order[first] to order[first + size - 1]; mesh: place in the checkpoints */
    int64_t count;       /* rows: dense T; dropping `size`, or one more of zeros; else `size` */
    int32_t *tokens;     /* [count]: token of a row, -1 for the row of zeros; mesh: NULL */
    double *weights;     /* [count]: what multiplies a row's output; mesh: NULL */
    const double *x;     /* [count,D] */
    double *y;           /* [count,D] */
    const double *dy;    /* [count,D]: cotangent of y */
    double *dx;          /* [count,D] */
    /* Where the routing weight is on h instead of on y, [count]; else NULL. */
    const double *h_weights;
    double *d_h_weights;
} moe_rows;

struct moe_block;
typedef struct moe_block moe_block;

/* dropping, where a checkpoint is wanted: the row of each slot of the expert, [B*C]. */
typedef struct moe_slots {
    int32_t *row;
    int64_t count;
} moe_slots;

/* Where the rows at hand lie in the checkpoints of a gated MLP: a source and a sink for the run of its graph, before those of
 * the block. The layouts of dense [T,E,width] and of a mesh [M,C,rows,width] are no order of experts, so what is written there
 * is kept whole. */
typedef struct moe_checkpoints {
    const moe_block *block;
    bool routed;          /* experts; else the shared one */
    const moe_rows *rows; /* at hand */
    char path[ASSAY_MLP_CHECKPOINTS][ASSAY_PATH_SIZE];
    int64_t width[ASSAY_MLP_CHECKPOINTS]; /* of a row; 0: there is no such checkpoint */
    double *kept[ASSAY_MLP_CHECKPOINTS];  /* dense, mesh; NULL: nobody wants it */
    double *packed;                       /* dropping: one expert's */
} moe_checkpoints;

/* Of the experts, or of the shared one. */
assay_status moe_checkpoints_open(assay_context *ctx, moe_checkpoints *c, const moe_block *block, bool routed);
void moe_checkpoints_close(moe_checkpoints *c);
/* The rows at hand of a checkpoint that is wanted. */
assay_status moe_checkpoints_put(assay_context *ctx, moe_checkpoints *c, int checkpoint, const double *values);
/* After all rows. */
assay_status moe_checkpoints_finish(assay_context *ctx, moe_checkpoints *c);
/* Has what the block's has of these checkpoints, "staged/" and "spread/" too; rows of no slot are 0. */
assay_source moe_checkpoints_source(moe_checkpoints *c);
assay_sink moe_checkpoints_sink(moe_checkpoints *c);
/* Whether the source gives any of the routed experts' checkpoints, to be read or to go on from. */
bool moe_routed_given(const moe_block *block);

/* One gated MLP with the buffers for its weights and gradients: the routed experts in turn, or the shared one. A pointer is
 * NULL where nobody wants what it would hold. */
typedef struct moe_mlp {
    assay_mlp_graph_config config;
    int64_t most;   /* rows that the buffers have room for */
    int64_t pieces; /* that rows come in */
    assay_tensor_table table;
    double *room_of_weights[ASSAY_MLP_WEIGHTS];
    double *weights[ASSAY_MLP_WEIGHTS]; /* there, or where the source lends them */
    double *room_of_gradients[ASSAY_MLP_WEIGHTS];
    double *gradients[ASSAY_MLP_WEIGHTS]; /* sums over pieces; there, or where the sink will have them */
    double *partials[ASSAY_MLP_WEIGHTS];  /* of one piece; NULL where there is but one */
    bool summing;                         /* gradients hold a sum already */
    double *room[GRAPH_TENSORS];          /* of what steps make: it stays until the next rows come */
    graph graph;                          /* of the rows at hand */
    graph_run run;
    assay_source in;
    assay_sink out;
    moe_checkpoints checkpoints;
} moe_mlp;

/* mlp: config of the most rows, pieces; the rest is zero. */
assay_status moe_mlp_alloc(assay_context *ctx, moe_mlp *mlp, const moe_block *block);
void moe_mlp_free(moe_mlp *mlp);
/* Of one expert, or of the shared one: 0. Its gradients begin before its weights are read, if anybody needs them. */
void moe_mlp_begin(moe_mlp *mlp);
assay_status moe_mlp_read_weights(assay_context *ctx, moe_mlp *mlp, int64_t expert);
/* Reads what the source gives and computes the rest; y of the rows only when `down`. Its checkpoints go to the results. */
assay_status moe_mlp_forward(assay_context *ctx, moe_mlp *mlp, const moe_rows *rows, bool down);
/* dx of the rows where rows->dx is there; the gradients of the weights join the sum. Rows may be fewer than forward's. */
assay_status moe_mlp_backward(assay_context *ctx, moe_mlp *mlp, const moe_rows *rows);
/* The gradients of the weights: 0 where no row came. */
assay_status moe_mlp_write(assay_context *ctx, moe_mlp *mlp, const moe_results *r);

/* The gate: its tensors, its choices, and the gradient of its logits. */
typedef struct moe_router {
    double *kernel, *bias, *per_expert_scale, *logits;
    int32_t *tid2eid, *input_ids, *given_experts;
    double *given_weights; /* then there is no gate: of the above there is the choice alone */
    assay_routing_inputs inputs;
    assay_routing routing;
    double *d_lb_loss, *d_z_loss; /* [losses] */
    double *d_logits;
} moe_router;

/* How a block is split; one device: 1 and false everywhere. */
typedef struct moe_split {
    int64_t shards;
    int64_t losses;      /* lb_loss and z_loss: one of each shard, or one of all */
    int64_t loss_copies; /* of each: shards of H have the same one */
    int64_t owners;      /* of tokens, split along the batch */
    int64_t pieces;      /* that the rows of an expert come in */
    int64_t expert_shards;
    int64_t tensor_shards, emb_chunks;
    int64_t hidden_shards; /* of each shard, over H; each gives its part of a checkpoint's columns, and an lb_loss */
    bool weighs_h;         /* the routing weight is on h */
} moe_split;

struct moe_path;
struct moe_placement;

struct moe_block {
    const assay_moe_config *config;
    const assay_source *in;
    const struct moe_placement *placement;
    void *placed; /* what the placement has of its own; one device: assay_replicas, or NULL */
    moe_split split;
    const struct moe_path *path; /* one device */
    moe_results results;
    int64_t tokens, per_token, experts, emb_dim; /* per_token: slots; experts: of the router */
    int64_t local_experts;                       /* that are computed here, fused shared ones too */
    int64_t
        joined; /* by a recipe with scales of all experts of a shard these come together, as one gated MLP of groups */
    bool llama4;
    /* What somebody looks at, and what that needs. */
    bool need_y, need_dx, need_router_gradient, need_row_dx, need_forward, need_backward;

    double *x, *dy;          /* [T,D] */
    double *scaled_dy;       /* [T,D] times late_factor; NULL: dy */
    int32_t *slot_ids;       /* [T,per_token] with fused shared experts; NULL: the router's choice */
    double *slot_weights;    /* [T,per_token], likewise */
    double *gate, *scaled_x; /* llama4: sigmoid(weight) [T], and x times that */
    moe_router router;
    int32_t *order;         /* [T*K]: the choices by expert */
    int32_t *group_sizes;   /* [local_experts]: of the choices in `order` that are computed */
    int32_t *replica_sizes; /* [P]: the same of each replica, expert after expert; NULL: there are none */
    double *combine;        /* [T,K]: weights of the outputs */
    int64_t capacity;       /* dropping */
    int64_t kept_rows;      /* of a routed checkpoint that is kept whole; 0: it is written as rows come */
    moe_rows rows;
    double *rows_x, *rows_dy; /* [rows,D] gathered */
    moe_mlp expert, shared;
    moe_slots slots;
    double *expert_y, *expert_dx; /* [T*K,D] in the order of `order`; dense: of one expert, [T,D] */
    double *y, *dx;               /* [T,D] */
    double *d_weights;            /* [T,K] */
};

/* Where tokens and experts lie. */
typedef struct moe_placement {
    /* From the logits to the choices, the order of their copies and what rows there are; writes what belongs to routing. */
    assay_status (*route)(assay_context *ctx, moe_block *block);
    int64_t (*row_count)(const moe_block *block, int64_t expert, int64_t piece);
    /* Room for rows, at most so many at a time; over a mesh they are sent there. */
    assay_status (*alloc_rows)(assay_context *ctx, moe_block *block, int64_t most);
    void (*free_rows)(moe_block *block);
    /* block->rows of an expert, all but dy where give_dy is there. */
    void (*gather_rows)(assay_context *ctx, moe_block *block, int64_t expert, int64_t piece);
    /* Once their y is there; and after they are done. NULL: nothing is left. */
    void (*give_dy)(assay_context *ctx, moe_block *block);
    void (*combine)(assay_context *ctx, moe_block *block);
    /* After all experts are: y, dx and d_weights. */
    assay_status (*finish)(assay_context *ctx, moe_block *block);
    /* d_logits of all tokens, and what d_bias and d_per_expert_scale are; NULL where the block has no such tensor. */
    assay_status (*route_backward)(assay_context *ctx, moe_block *block, double *d_bias, double *d_scale);
    /* d_weights of all tokens [T,K], where the weights are given. */
    assay_status (*given_backward)(assay_context *ctx, moe_block *block, double *d_weights);
} moe_placement;

extern const moe_placement moe_one_device;

/* The config was checked; what stands before `path` and kept_rows are set, the rest is zero. */
assay_status moe_block_run(assay_context *ctx, moe_block *block, const assay_sink *out);

/* map [E]: the number of each expert here, -1 where he is elsewhere. */
assay_status moe_read_expert_map(assay_context *ctx, const moe_block *block, int32_t *map);
/* replicas: zeroed. */
assay_status moe_read_replicas(assay_context *ctx, const assay_moe_config *config, const assay_source *in,
                               assay_replicas *replicas);

/* How token copies of one device are grouped, and outputs combined. */
typedef struct moe_path {
    /* order, group_sizes, combine; capacity. */
    assay_status (*plan)(assay_context *ctx, moe_block *block);
    int64_t (*row_count)(const moe_block *block, int64_t expert);
    /* tokens, weights and places of the rows of rows->expert. */
    void (*gather_rows)(moe_block *block);
    /* After an expert is done; NULL: nothing yet. */
    void (*combine)(assay_context *ctx, moe_block *block);
    /* After all are: y and dx; NULL: they are there. */
    assay_status (*finish)(assay_context *ctx, moe_block *block);
} moe_path;

extern const moe_path moe_path_dense, moe_path_sparse, moe_path_dropping;
/* Shared by sparse and dropping. */
void moe_gather_sorted_rows(moe_block *block);
assay_status moe_finish_sorted(assay_context *ctx, moe_block *block);

/* Rows: parallel over them, the same bits for any number of threads and instruction set. tokens NULL: row i is token i;
 * weights NULL: 1. */
void moe_gather(const assay_context *ctx, double *rows, const double *x, const int32_t *tokens, const double *weights,
                int64_t count, int64_t dim);
void moe_accumulate(const assay_context *ctx, double *sum, const double *rows, const double *weights, int64_t count,
                    int64_t dim);
/* total += term, both of which may be stored before. */
void moe_join(const assay_context *ctx, int64_t count, double *total, double *term);
/* The row of choice order[first + j] among the rows at hand. */
int64_t moe_row_of(const moe_block *block, int64_t j);

assay_status moe_router_forward(assay_context *ctx, moe_block *block);
/* routing/biased_scores of the next tokens, where it is wanted: no result, but what a backend's own choice is judged by. */
assay_status moe_write_selecting(assay_context *ctx, const moe_block *block, const assay_routing_inputs *inputs,
                                 int64_t first, int64_t tokens, const assay_routing_config *config);
/* Of a kernel [D,columns] that x is multiplied with, from d [T,columns]: the sum over owners of x^T d of their tokens. Written where
 * it is wanted. */
assay_status moe_write_kernel_gradient(assay_context *ctx, const moe_block *block, int result, const double *d,
                                       int64_t columns, assay_product kind);
/* The gradients of the gate; its part joins dx. */
assay_status moe_router_backward(assay_context *ctx, moe_block *block);
void moe_router_free(moe_router *router);

assay_status moe_llama4_forward(assay_context *ctx, moe_block *block);
/* In place from dx of scaled tokens [tokens,D] to their own; d_weights of their choices. */
void moe_llama4_unscale(const assay_context *ctx, double *d_weights, double *dx, const double *x, const double *gate,
                        const double *weights, int64_t tokens, int64_t dim);

/* The gate of the shared expert. Starts zeroed. */
typedef struct moe_shared_gate {
    double *kernel;        /* [D] */
    double *logits, *gate; /* [T]: x kernel, and its sigmoid */
    double *dy;            /* [T,D]: the cotangent of what the gate multiplies; NULL without gradients */
} moe_shared_gate;
assay_status moe_shared_gate_forward(assay_context *ctx, moe_shared_gate *g, const moe_block *block, bool gradients);
/* y [T,D] times the gate, in place. */
void moe_shared_gate_weigh(const assay_context *ctx, const moe_shared_gate *g, const moe_block *block, double *y);
/* y: before that. The kernel's gradient is written; the part of x joins dx, which may be NULL. */
assay_status moe_shared_gate_backward(assay_context *ctx, const moe_shared_gate *g, const moe_block *block,
                                      const double *y, double *dx);
void moe_shared_gate_free(moe_shared_gate *g);

assay_status moe_experts_run(assay_context *ctx, moe_block *block);
/* Forward and backward; joins y and dx. */
assay_status moe_shared_run(assay_context *ctx, moe_block *block);
