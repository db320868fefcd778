/* The sparse MoE block spread over a virtual mesh (docs/expert-parallelism.md; MaxText moe.py sparse_matmul: route, dispatch, gmm_up, the
 * tensor-parallel reduce, gmm_down, unpermute), forward and backward. Tokens are split over data, fsdp and expert along
 * the batch, experts over the axis `expert`; weights are the same on every shard of `data` and `fsdp`. The N shards of the
 * axis `mlp_tensor` have the same tokens, and H / N of the hidden dimension: the parts of gmm_down are summed (psum_scatter),
 * then comes the bias.
 *
 * ragged all-to-all (default): each shard sorts its copies of tokens by expert, sends them to their experts' shards,
 *   which sort again (expert_traffic.h), and gets them back the same way. A batch of 1 is not split: every shard of
 *   the expert axis has all tokens and takes those of its experts (data and fsdp must be 1).
 * ring of experts: every shard gathers the tokens of its expert axis, rolls expert ids so that its own come first,
 *   computes those, and the partial sums are added and scattered (psum_scatter).
 * fused_moe_func (config->path is ASSAY_MOE_FUSED; tpu-inference fused_moe_gmm.py expert_parallel_gmm,
 *   tensor_parallel_gmm): tokens are split over data and fsdp alone. Every shard of an expert axis routes the same tokens, the
 *   rows of its experts stay at their place among the sorted copies, and the shards' weighted sums are added (psum).
 *
 * Tensors, source and sink, given choices and given checkpoints as in moe.h; the path is sparse or fused. M is the number of
 * shards, C that of token chunks (the axis is there when C > 1), P = mesh expert, sizes are those of
 * assay_shard_sizes_of. Other than there:
 *   outputs/lb_loss [M] and bias_updates [M,E]: each shard's own, of the tokens that it routes (chunks averaged);
 *     cotangents/lb_loss [M]; z_loss likewise; with ASSAY_BALANCE_GLOBAL the losses are one of all tokens, []
 *   routing/selected_experts, weights [B,S,K], margin [B,S]: of every token, as ever
 *   routing/group_sizes [M,(C,)E], sorted_selected_experts [M,(C,)copies]: of the copies that a shard sorts (ring:
 *     gathered, ids rolled)
 *   routing/local_group_sizes [M,(C,)E/P]: rows that its experts compute
 *   with P > 1: routing/expert_shard_id [M]; where rows are sent routing/local_sorted_indices [M,buffer],
 *     routing/reshaped_group_sizes [M,P], and where the batch is split routing/all_shards_group_sizes [M,P,P]
 *   checkpoints/moe_mlpwi_0, moe_mlpwi_1 [M,(C,)buffer,H/N] (moe_mlpwi [..,2H/N]: the shard's gate, then its up),
 *     moe_mlpwo [..,D/N]: in the order of the shard's experts, 0 beyond their rows; fused: in the order of the sorted copies, 0
 *     in other experts' rows, and no moe_mlpwo where N > 1; those of the shared expert as in moe.h
 * Rows that are cut (ragged_buffer_factor; never of a batch that is not split) come back as 0. Gradients of weights are
 * sums over chunks and shards, ascending. An output that every shard has alike (a batch of 1) has its cotangent once.
 * There are no error scales here: they come from an ensemble, for which intermediates are rounded (assay_round). */
#pragma once

#include "oracle/mesh/mesh.h"
#include "oracle/moe/moe.h"

typedef struct assay_sharding {
    assay_mesh mesh;
    int64_t tensor_shards;       /* 1: none; else D of gmm_up's products is split, partial sums added in this order */
    bool ring_of_experts;        /* use_ring_of_experts */
    double ragged_buffer_factor; /* above 0: may drop */
    int64_t emb_chunks;          /* num_moe_emb_chunks; 0: none */
    int64_t token_chunks;        /* num_moe_token_chunks; 1: none */
    /* The kernels of the experts, and their gradients, are as they lie on the shards (sharded_weights.h). */
    bool weights_on_shards;
    bool shard_exp_on_fsdp; /* of these: E is split over fsdp, not D */
    int64_t fsdp_transpose; /* so many of mesh.size[FSDP], the inner ones, split H of a kernel instead; 0 is 1 */
    bool weight_before_wo;  /* the routing weight on h instead of on y, and so in moe_mlpwo (the batch-split model) */
} assay_sharding;

extern const assay_sharding assay_one_device;
/* Whether it is more than that. Dense and dropping blocks compute as one whatever the mesh. */
bool assay_is_sharded(const assay_moe_config *config, const assay_sharding *sharding);

/* That of the block, and where it is sharded refused, each with its key: a batch that the mesh does not divide, experts that the expert axis does not, chunks that
 * do not divide D or S, tensor shards that do not divide D, mlp_tensor where it does not divide H, D (but for fused_moe_func)
 * or the shared expert's width, weights_on_shards where these do not divide E, D or H or there is but one, chunks without the ring,
 * a ragged_buffer_factor with the ring, without an expert axis, or that leaves no row, weight_before_wo with llama4; with
 * fused_moe_func a batch that data and fsdp do not divide, experts and H both split, and everything but the mesh. */
assay_status assay_sharded_moe_check(assay_context *ctx, const assay_moe_config *config,
                                     const assay_sharding *sharding);

typedef struct assay_shard_sizes {
    int64_t shards;           /* that tokens lie on: M / N */
    int64_t expert_shards;    /* P */
    int64_t hidden_shards;    /* N */
    int64_t owners;           /* that tokens are split over; those between two of them have the same ones */
    bool batch_sharded;       /* over the expert axis */
    bool exchanges;           /* copies are sent to the shards of their experts */
    int64_t own_batch;        /* rows of x that a shard owns (batch not split: all) */
    int64_t batch;            /* that it routes: with the ring those of its whole expert axis */
    int64_t chunks, sequence; /* C, and S / C */
    int64_t copies;           /* batch * sequence * K: what it sorts, of one chunk */
    int64_t buffer;           /* rows that its experts may get, of one chunk; `copies` where nothing is sent */
    int64_t local_experts;    /* E / P */
} assay_shard_sizes;
/* Of a configuration that was checked. */
assay_shard_sizes assay_shard_sizes_of(const assay_moe_config *config, const assay_sharding *sharding);

/* Of the letters of the block's tensors, as docs/operations.md and docs/expert-parallelism.md have them. */
int64_t assay_moe_axis_size(const assay_moe_config *config, const assay_sharding *sharding, char axis);
/* Of the routed experts, in the layout of the path, or the shared one; without a name: there is none. */
assay_tensor_row assay_moe_checkpoint_row(const assay_moe_config *config, const assay_sharding *sharding,
                                          assay_mlp_place place, int checkpoint);

/* Forward, then backward when the sink wants a gradient. Reads from `in`, writes to `out`. */
assay_status assay_moe_run(assay_context *ctx, const assay_moe_config *config, const assay_sharding *sharding,
                           const assay_source *in, const assay_sink *out);
/* An upper bound of the bytes of memory that a run takes, with every gradient; the dense path's checkpoints [B,S,E,H], which
 * are kept whole where they are wanted, are not in it. */
int64_t assay_moe_memory(const assay_moe_config *config, const assay_sharding *sharding);
