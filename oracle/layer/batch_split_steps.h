/* What the batch-split schedule computes within each shard, as graphs: a function of the module is a range of the steps of one of
 * them, which is run forward, or back, on one shard after the other. Private to the schedule. */
#pragma once

#include "oracle/layer/batch_split_internal.h"

typedef struct bs_steps {
    graph graph;
    int first;          /* BS_... of its weights */
    int shown;          /* what it computes and then quantises, a checkpoint; 0: there is none */
    int needed[3];      /* that backward begins with, made again; 0: no more */
    int of[MB_TENSORS]; /* its tensors; 0: it has no such */
} bs_steps;

/* recipe NULL: the configuration's. */
void bs_attention_graph(graph *g, const bs_run *run, const assay_quant_recipe_config *recipe);

void bs_sum_steps(bs_steps *s, const bs_run *run);

/* [BS_STEPS_KINDS], by the recipe; alone: also those of functions by themselves. Of the routed experts the schedule weighs the rows that go into wo. A kernel that weighs those
 * that come out computes the same with other roundings, above all of a gradient that cancels in the product with wo: half of the
 * emulated runs are such a kernel. By a recipe it is not the same: what is quantised is h weighed. */
void bs_steps_open(bs_steps *steps, const assay_context *ctx, const bs_run *run,
                   const assay_quant_recipe_config *recipe, bool alone);

/* Lists of tensors end with MB_NONE. On each shard makes those of `made`, of what there is of the microbatch. */
assay_status bs_steps_forward(assay_context *ctx, const bs_layer *at, bs_steps_kind kind, bs_microbatch *b,
                              const bs_tensor *made);
assay_status bs_steps_forward_shard(assay_context *ctx, const bs_layer *at, bs_steps_kind kind, bs_microbatch *b,
                                    int64_t shard, const bs_tensor *made);
/* What backward needs: it is there until backward has used it up. */
assay_status bs_steps_remat(assay_context *ctx, const bs_layer *at, bs_steps_kind kind, bs_microbatch *b);
/* From the gradients that d has to those of `made`, and of the weights: norms' scales are summed over all shards. */
assay_status bs_steps_backward(assay_context *ctx, const bs_layer *at, bs_steps_kind kind, bs_microbatch *b,
                               bs_microbatch *d, const bs_tensor *made);
