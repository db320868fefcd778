/* What the files of the batch-split schedule share; batch_split.h is the contract. Arrays are [shards, ...] (mesh.h): M
 * shards, b rows of the batch of one shard's microbatch, P shards of the expert axis, R = copies. */
#ifndef ASSAY_LAYER_BATCH_SPLIT_INTERNAL_H
#define ASSAY_LAYER_BATCH_SPLIT_INTERNAL_H

#include "oracle/layer/batch_split.h"
#include "oracle/layer/layer_internal.h"

typedef struct bs_run {
    const stack_run *stack; /* configuration, source and sink, and the store of residuals */
    const assay_mesh *mesh;
    int64_t factor;
    assay_batch_split_sizes sizes;
    assay_mla_config mla;                        /* of one shard's microbatch: batch is b */
    graph attention;                             /* of that, with its norm and the sum (batch_split_mla.h) */
    graph shared;                                /* the shared expert of that */
    assay_routing_config routing;                /* of one shard's microbatch */
    double *yarn_freqs[ASSAY_MOST_MICROBATCHES]; /* [M,b,S,Dr/2] of each microbatch */
    assay_schedule schedule;
} bs_run;

/* run->shared, by the recipe of a function by itself, or NULL. */
void bs_shared_graph(bs_run *run, const assay_recipe_config *recipe);

/* split: x [M,f*b,width] -> microbatches [M,b,width], row r to microbatch r mod f; merge is the inverse. */
void bs_split(double *const *microbatches, const double *x, const bs_run *run, int64_t width);
void bs_merge(double *x, const double *const *microbatches, const bs_run *run, int64_t width);
void bs_split_i32(int32_t *const *microbatches, const int32_t *x, const bs_run *run, int64_t width);
void bs_merge_i32(int32_t *x, const int32_t *const *microbatches, const bs_run *run, int64_t width);

/* Weights of one layer; also their gradients (NULL: nobody wants it, or the table has none). Scattered, as they lie
 * between uses: split over fsdp (and experts over expert), the same on every shard of data. Gathered: whole but for
 * experts. Shard s's part begins at values[w] + s * bs_weight_count(...). */
enum {
    BS_PRE_NORM,
    BS_MLA, /* ASSAY_MLA_WQ_A ... */
    BS_POST_NORM = BS_MLA + ASSAY_MLA_WEIGHTS,
    BS_GATE,
    BS_GATE_BIAS,
    BS_SHARED,                                 /* ASSAY_MLP_WI_0 ... */
    BS_ROUTED = BS_SHARED + ASSAY_MLP_WEIGHTS, /* likewise, of all experts */
    BS_WEIGHTS = BS_ROUTED + ASSAY_MLP_WEIGHTS,
};
typedef struct bs_weights {
    double *values[BS_WEIGHTS];
} bs_weights;
void bs_weights_free(bs_weights *w); /* safe on a zeroed struct */
/* The whole tensor; without a name: there is none. */
assay_tensor_row bs_weight_row(const bs_run *run, int weight);
/* A shard's part of it. */
assay_shape bs_weight_shape(const bs_run *run, int weight, bool gathered);
/* Numbers of that; 0: there is no such weight. */
int64_t bs_weight_count(const bs_run *run, int weight, bool gathered);
/* Room for all of them; `like` NULL, or only those that `like` has. */
assay_status bs_weights_alloc(assay_context *ctx, const bs_run *run, bs_weights *w, bool gathered,
                              const bs_weights *like);

/* [M,a,b], sizes checked. */
assay_status bs_alloc_shards(assay_context *ctx, const bs_run *run, const char *what, int64_t a, int64_t b,
                             double **out);
assay_status bs_alloc_shards_i32(assay_context *ctx, const bs_run *run, const char *what, int64_t a, int64_t b,
                                 int32_t **out);

/* A shard's part of a gathered weight or of its gradient; NULL where there is none. */
double *bs_weight_of(const bs_run *run, const bs_weights *w, int weight, int64_t shard);

/* values [M,count] of each shard, or NULL: every shard gets the sum of all, ascending. */
void bs_sum_over_shards(const assay_context *ctx, const bs_run *run, double *values, int64_t count);

/* sum_grads: gradients of the weights from `first` to before `end` are made for each microbatch apart and then added. */
typedef struct bs_gradient_sums {
    bs_weights sums; /* the caller's arrays, of some weights */
    bs_weights each; /* room for those of one microbatch, when there are more */
} bs_gradient_sums;
assay_status bs_gradient_sums_open(assay_context *ctx, const bs_run *run, bs_gradient_sums *s, const bs_weights *g,
                                   int first, int end);
void bs_gradient_sums_close(bs_gradient_sums *s);
/* Where microbatch i's go: the first one's where the sum will be. */
const bs_weights *bs_gradients_of(const bs_gradient_sums *s, int64_t i);
/* After microbatch i. What is not the sum of all yet may be stored. */
void bs_add_gradients(const assay_context *ctx, const bs_run *run, const bs_gradient_sums *s, int64_t i);

/* Whether the sink wants FOLDER/layers/i/NAME, whose path it leaves. */
bool bs_wants(const bs_run *run, int64_t layer, const char *folder, const char *name, char path[ASSAY_PATH_SIZE]);
/* Writes that of the whole batch, where it is wanted, from its microbatches: `width` numbers for each row. */
assay_status bs_write_merged(assay_context *ctx, const bs_run *run, int64_t layer, const char *folder, const char *name,
                             double *const *microbatches, int64_t width);

/* What a layer keeps for backward, for each microbatch. Everything is [M,...]. */
typedef struct bs_residuals {
    double *layer_inputs[ASSAY_MOST_MICROBATCHES]; /* [M,b,S,D]; offloaded */
    double *mla_out[ASSAY_MOST_MICROBATCHES];      /* [M,b,S,D] */
    double *attn_out[ASSAY_MOST_MICROBATCHES];     /* [M,b,S,N,Dv]; offloaded */
    double *lse[ASSAY_MOST_MICROBATCHES];          /* [M,b,N,S] */
    double *mlpwi_0[ASSAY_MOST_MICROBATCHES];      /* [M,capacity,H]; offloaded */
    double *mlpwi_1[ASSAY_MOST_MICROBATCHES];
    int32_t *selected_experts; /* [M,gathered,K] of the last microbatch, ids rolled */
} bs_residuals;
void bs_residuals_free(bs_residuals *r); /* safe on a zeroed struct */

/* The last microbatch of a layer before its unroute, which comes in the next layer; or the gradients of these. */
typedef struct bs_deferred {
    double *moe_inputs;        /* [M,b,S,D] */
    double *routed_out;        /* [M,R,D] sorted, rolled; 0 beyond the shard's rows */
    double *shared_out;        /* [M,b,S,D] */
    int32_t *selected_experts; /* [M,gathered,K] ids rolled; not of gradients */
} bs_deferred;
void bs_deferred_free(bs_deferred *deferred); /* safe on a zeroed struct */

/* batch_split_schedule: xs (in: layer inputs of each microbatch) become the outputs of all but the last, which is
 * `last`. The arrays of xs belong to the caller before and after; residuals and `last` are allocated. */
assay_status bs_batch_split_schedule(assay_context *ctx, bs_run *run, int64_t layer, double *const *xs,
                                     bs_deferred *last, bs_residuals *residuals, const bs_weights *w);
/* dxs (in: cotangents of the outputs of all but the last, whose is d_last) become those of the layer's inputs; `g`
 * [gathered] the gradients of the weights as each shard has them, norms' scales and the gate's bias summed over all
 * shards. Takes the residuals. */
assay_status bs_batch_split_schedule_bwd(assay_context *ctx, bs_run *run, int64_t layer, double *const *dxs,
                                         const bs_deferred *d_last, bs_residuals *residuals, const bs_weights *w,
                                         const bs_weights *g);

#endif
