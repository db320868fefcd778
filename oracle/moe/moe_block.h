/* What the files of the MoE block share; moe.h and sharded_moe.h are the contract.
 *
 * A block is computed at sites: one device is one of them, over a mesh each shard is one for each chunk of the sequence. The gate
 * fixes logits (moe_router.c); each site routes its tokens and sorts their copies (moe_route.c); then lists of whole numbers say
 * which copy each row of an expert is of, and which row each copy gets, whatever the path and the mesh (moe_lists.c). Expert by
 * expert rows go forward and backward (moe_experts.c), one reading of the weights for all of it; sums run over a token's copies,
 * and over the sites that route it, ascending. Then the router's backward and the shared expert join in.
 *
 * Site c M + m is chunk c of shard m, of M; the shards of the axis mlp_tensor, which differ in their columns of H alone, are one
 * here: how their parts add up is the gated MLP's business. Copy s * copies + t * K + k is choice k of token t of site s, row
 * s * buffer + i is row i of those that the experts of site s compute. */
#pragma once

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/blocks/mlp.h"
#include "oracle/graph/graph_kind.h"
#include "oracle/moe/replicas.h"
#include "oracle/moe/sharded_moe.h"

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

/* Rows of one expert that lie at one site. */
typedef struct moe_rows {
    int64_t expert;
    const int32_t *group_sizes; /* of those that come together */
    int64_t first;              /* place in the checkpoints */
    int64_t size, count;        /* rows of choices; rows: dense T; dropping `size`, or one more of zeros; else `size` */
    const int32_t *copies;      /* [size] */
    const int32_t *tokens;      /* [count]: of a row, -1 for the row of zeros */
    const double *weights;      /* [count]: what multiplies a row's output */
    const double *x;            /* [count,D] */
    double *y;                  /* [count,D] */
    const double *dy;           /* [count,D]: cotangent of y */
    double *dx;                 /* [count,D] */
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
    bool choice_is_input;
    double *d_lb_loss, *d_z_loss; /* [losses] */
    double *d_logits;
} moe_router;

/* What one site routes. */
typedef struct moe_site {
    assay_routing_inputs inputs;
    assay_routing routing;
} moe_site;

struct moe_block {
    const assay_moe_config *config;
    const assay_sharding *sharding;
    bool sharded; /* false: one device, dropping and dense ones among them */
    const assay_source *in;
    assay_mesh mesh; /* of the shards that tokens lie on: without mlp_tensor */
    assay_shard_sizes sizes;
    assay_routing_config routing; /* of a site's tokens */
    assay_permute_dims permute; /* likewise: K is that of slots, its experts are the groups that copies are sorted by */
    assay_replicas replicas;    /* of experts; none: zero */
    moe_results results;
    int64_t sites, tokens, experts, emb_dim; /* tokens of the whole batch, experts of the router */
    int64_t chosen;                          /* by the router, of a token's slots; behind them fused shared experts */
    int64_t local_experts;                   /* whose weights the block has, fused shared ones too */
    int64_t
        joined; /* by a recipe with scales of all experts of a shard these come together, as one gated MLP of groups */
    int64_t pieces; /* that the rows of an expert come in */
    int64_t losses,
        loss_copies;   /* lb_loss and z_loss: one of each shard, or one of all; shards of H have the same one */
    int64_t kept_rows; /* of a routed checkpoint that is kept whole; 0: it is written as rows come */
    bool dense, llama4;
    bool weighs_x, weighs_h; /* the routing weight is there, and 1 on y */
    /* What somebody looks at, and what that needs. */
    bool need_y, need_dx, need_router_gradient, need_row_dx, need_forward, need_backward;

    const double *x, *dy; /* [T,D]: lent by the source, or the block's own */
    double *own_x, *own_dy;
    double *scaled_dy;       /* [T,D] times late_factor; NULL: dy */
    double *gate, *scaled_x; /* llama4: sigmoid(weight) [T], and x times that */
    moe_router router;
    double *of_sites[2];  /* what sites have of logits and given weights, where there are several; */
    int32_t *site_ids[2]; /* of input_ids and the given choice */
    moe_site *site;       /* [sites] */
    /* Lists. */
    int64_t routers;            /* sites that route one token */
    int32_t *token_of;          /* [sites,tokens of one]: in the batch */
    int32_t *places;            /* [T,routers]: where in token_of it stands, ascending */
    int32_t *slot_ids;          /* [copies] with fused shared experts; NULL: the router's choice */
    int32_t *placed;            /* [copies]: what copies are sorted by, where that is no expert of all; NULL: it is */
    int32_t *order;             /* [sites,copies of one]: choices by group */
    int32_t *group_sizes;       /* [sites,groups] */
    int32_t *local_group_sizes; /* [sites,groups that are computed there] */
    int32_t *copy_of;           /* [sites,buffer]: of a row; -1: of none */
    int32_t *row_of;            /* [copies]: that its x goes to; -1: to none */
    /* RouteMetadata: where rows are sent, the last where the batch is split. */
    int32_t *local_sorted_indices;   /* [M,buffer] */
    int32_t *reshaped_group_sizes;   /* [M,P] */
    int32_t *all_shards_group_sizes; /* [M,P,P] */

    double *weights;   /* [copies]: of the router, and of slots */
    double *d_weights; /* [copies] */
    moe_slots slots;
    int64_t capacity; /* dropping */
    moe_rows rows;
    int32_t *rows_tokens;
    double *rows_weights, *rows_x, *rows_dy, *rows_d_weights; /* of the rows at hand */
    double *expert_y, *expert_dx;                             /* [rows,D]; dense: of one expert, [T,D] */
    moe_mlp expert, shared;
    double *y, *dx; /* [T,D] */
};

/* Of a configuration that was checked. */
assay_status moe_block_run(assay_context *ctx, const assay_moe_config *config, const assay_sharding *sharding,
                           const assay_source *in, const assay_sink *out);

/* --- moe_lists.c --- */

/* Of a batch over the mesh: which token each place of each site is. */
assay_status moe_list_tokens(assay_context *ctx, moe_block *block);
/* `bytes` of each token of all sites from those of the whole batch; lent where there is one site: *own is NULL then. */
assay_status moe_give_sites(assay_context *ctx, const moe_block *block, const char *what, size_t bytes,
                            const void *whole, void **own, const void **of_sites);
/* Its transpose: the sum over sites, ascending, each of which may be stored before; `spread` may be changed, and may be `whole` where
 * there is one site. */
void moe_collect(const assay_context *ctx, const moe_block *block, int64_t width, assay_rounding rounding,
                 double *whole, double *of_sites);
/* Once all sites have routed and sorted: copy_of, row_of, local_group_sizes; capacity. */
assay_status moe_list_rows(assay_context *ctx, moe_block *block);
/* The first of a site's own groups among those that it sorts: 0 where its own come first. */
int64_t moe_first_group(const moe_block *block, int64_t site);
/* The group of a replica of an expert among those that copies are sorted by; -1: there is no such replica. */
int64_t moe_group_of(const moe_block *block, int64_t expert, int64_t replica);
/* That copies of all sites are sorted by, before the ring's numbering. */
int32_t moe_group_of_copy(const moe_block *block, int64_t copy);
/* The copy whose y a row gives, and the row whose y a copy gets, -1: none. Where every shard has the whole batch the first one's copies get
 * what the others have computed. */
int64_t moe_copy_of_y(const moe_block *block, int64_t copy);
int64_t moe_row_of_y(const moe_block *block, int64_t copy);

/* --- moe_route.c --- */

assay_status moe_route(assay_context *ctx, moe_block *block);
void moe_route_free(moe_block *block);
/* d_logits of all tokens, and what d_bias and d_per_expert_scale are; NULL where the block has no such tensor. */
assay_status moe_route_backward(assay_context *ctx, moe_block *block, double *d_bias, double *d_scale);
/* d_weights of all tokens [T,K], where the weights are given. */
assay_status moe_given_backward(assay_context *ctx, moe_block *block, double *d_weights);
/* What belongs to routing (moe_results.c). */
assay_status moe_write_routing(assay_context *ctx, const moe_block *block);

/* Rows: parallel over them, the same bits for any number of threads and instruction set. tokens NULL: row i is token i;
 * weights NULL: 1. */
void moe_gather(const assay_context *ctx, double *rows, const double *x, const int32_t *tokens, const double *weights,
                int64_t count, int64_t dim);
assay_status moe_router_forward(assay_context *ctx, moe_block *block);
/* Of a kernel [D,columns] that x is multiplied with, from d [T,columns]: the sum over owners of x^T d of their tokens. Written where
 * it is wanted. */
assay_status moe_write_kernel_gradient(assay_context *ctx, const moe_block *block, int result, const double *d,
                                       int64_t columns, assay_product kind);
/* The gradients of the gate; its part joins dx. */
assay_status moe_router_backward(assay_context *ctx, moe_block *block);
void moe_router_free(moe_router *router);

/* The gate of the shared expert. Starts zeroed. */
typedef struct moe_shared_gate {
    double *kernel;        /* [D] */
    double *logits, *gate; /* [T]: x kernel, and its sigmoid */
    double *dy;            /* [T,D]: the cotangent of what the gate multiplies; NULL without gradients */
} moe_shared_gate;
assay_status moe_shared_gate_forward(assay_context *ctx, moe_shared_gate *g, const moe_block *block, bool gradients);
/* y [T,D]: not yet times the gate. The kernel's gradient is written; the part of x joins dx, which may be NULL. */
assay_status moe_shared_gate_backward(assay_context *ctx, const moe_shared_gate *g, const moe_block *block,
                                      const double *y, double *dx);
void moe_shared_gate_free(moe_shared_gate *g);

assay_status moe_experts_run(assay_context *ctx, moe_block *block);
/* Forward and backward; joins y and dx. */
assay_status moe_shared_run(assay_context *ctx, moe_block *block);
