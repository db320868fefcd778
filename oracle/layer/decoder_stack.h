/* Decoder layers and stacks of them (docs/operations.md, "decoder_layer" without the schedule; MaxText models/deepseek.py DeepSeekDenseLayer,
 * DeepSeekMoELayer; mixtral.py MixtralDecoderLayer; qwen3.py Qwen3MoeDecoderLayer; gpt_oss.py GptOssDecoderLayer).
 *
 *   h = x + attention(rms_norm(x))
 *   y = h + mlp(rms_norm(h)) in the first `dense_layers` layers, h + moe(rms_norm(h)) in the rest
 *
 * The attention is mla.h's or gqa.h's.
 *
 * Tensors come from a source and results go to a sink under the paths of docs/interface.md; one layer's weights are in memory at a
 * time. P is "" when `single` (one layer), else "layers/i/":
 *   inputs/x [B,S,D], inputs/positions [B,S], inputs/segment_ids [B,S]?,
 *   weights/P{pre,post}_self_attention_layer_norm/scale [D], weights/Pself_attention/(as mla.h, gqa.h),
 *   weights/Pmlp/{wi_0,wi_1,wo}/kernel (fused: wi/kernel) or weights/Pmoe/(as moe.h),
 *   cotangents/y?, cotangents/Plb_loss?; routing/Pselected_experts, where the source has it, fixes the choice.
 * A token of padding whose x holds NaN or infinity counts as 0; no other token may.
 * Results: outputs/y, outputs/P{lb_loss,bias_updates}, gradients/ of inputs/x and every weight, checkpoints/PNAME (the
 * names of remat.h, and lse), routing/P(as moe.h), and remat/{bytes_kept,bytes_offloaded,operations_recomputed} []; of a
 * stack without the batch-split schedule gradients/checkpoints/Pdecoder_layer_input, at the boundaries of layers.
 * What the sink does not want is not computed; without a wanted gradient there is no backward, and nothing is kept.
 *
 * Forward keeps the intermediates of each layer as the policy says; backward takes them, or computes them again. */
#pragma once

#include "oracle/blocks/gqa.h"
#include "oracle/blocks/mla.h"
#include "oracle/layer/remat.h"
#include "oracle/moe/moe.h"
#include "oracle/moe/sharded_moe.h"

/* Which of the two a layer has. */
typedef enum assay_layer_attention { ASSAY_LAYER_MLA, ASSAY_LAYER_GQA } assay_layer_attention;

/* Which layers, counted from 0, have the window of gqa.h; the others see all keys before them. */
typedef enum assay_window_layers {
    ASSAY_WINDOWS_EVERYWHERE,
    ASSAY_WINDOWS_EVEN,
    ASSAY_WINDOWS_ODD
} assay_window_layers;

typedef struct assay_stack_sizes {
    int64_t batch, sequence, emb_dim;
} assay_stack_sizes;

typedef struct assay_stack_config {
    int64_t layers, dense_layers; /* of all layers, the first ones that are dense */
    int64_t first_layer; /* those before it are left out: inputs/x is its input, y that of layer `layers` - 1 */
    bool single;         /* one layer, without a prefix */
    assay_layer_attention attention;
    assay_mla_config mla;
    assay_gqa_config gqa;
    assay_window_layers windows; /* gqa */
    assay_gated_mlp_config mlp;  /* of the dense layers; rows is batch * sequence */
    assay_moe_config moe;        /* of the others */
    assay_sharding sharding;     /* of the MoE blocks: sharded_moe.h */
    int64_t batch_split_factor;  /* of use_batch_split_schedule (batch_split.h); 0: layer after layer */
    double kept_capacity;  /* of that: how many times its share of rows a shard keeps of mlpwi_0 and 1; 0: twice */
    bool merge_gating_gmm; /* of that: the experts' two up products are one */
    double epsilon;        /* of the two norms of a layer */
    assay_remat_policy policy;
} assay_stack_config;

assay_status assay_stack_check(assay_context *ctx, const assay_stack_config *config);

assay_status assay_stack_run(assay_context *ctx, const assay_stack_config *config, const assay_source *in,
                             const assay_sink *out);

/* What the policy should cost: the report that a run with every gradient wanted gives. */
assay_status assay_stack_remat_model(assay_context *ctx, const assay_stack_config *config, assay_remat_report *report);

/* Of its tensors' paths: "layers/3/", or "" for the single layer. */
enum { ASSAY_LAYER_PREFIX_SIZE = 32 };
void assay_layer_prefix(const assay_stack_config *config, int64_t layer, char prefix[ASSAY_LAYER_PREFIX_SIZE]);
bool assay_layer_is_dense(const assay_stack_config *config, int64_t layer);
/* Of its attention, to which the other parts must fit. */
assay_stack_sizes assay_stack_sizes_of(const assay_stack_config *config);
/* A layer: inputs x, positions and segment_ids, weights with their folders, checkpoints by the names of remat.h, and lse. The block
 * of experts is one step; under the batch-split schedule such a layer ends with what its block is given. */
extern const struct graph_kind assay_kind_experts;
void assay_layer_graph(graph *g, const assay_stack_config *config, int64_t layer);

int64_t assay_stack_memory(const assay_stack_config *config);
double assay_stack_flops(const assay_stack_config *config, bool backward);
