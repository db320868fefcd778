/* The second form: every operation once more, naively, in binary128, straight from the formulas of SPEC 1 to 9 and
 * 11, forward only. It shares no code with oracle/ops, oracle/moe, oracle/mesh and oracle/layer (their headers give the
 * configurations, and assay_tables the names and shapes of tensors), so what both forms get wrong alike can only be the
 * specification: where it uses the float64 engine, for large products, it checks it (quad_product.h). certify.h holds float64 results against it.
 *
 * An operation reads named tensors and adds named results, under the paths of the fixture (INTERFACE.md). Optional
 * tensors are there or not. Inputs are binary128, so that a central difference can move one by 1e-10 of itself. */
#ifndef ASSAY_QUAD_SPEC_H
#define ASSAY_QUAD_SPEC_H

#include "oracle/base/tensor.h"
#include "oracle/layer/batch_split_function.h"
#include "oracle/layer/deepseek_stack.h"
#include "oracle/moe/moe.h"
#include "oracle/moe/permute.h"
#include "oracle/moe/routing.h"
#include "oracle/ops/gated_mlp.h"
#include "oracle/ops/gmm_layout.h"
#include "oracle/ops/gqa.h"
#include "oracle/ops/quant_recipe.h"
#include "oracle/ops/quantize.h"

typedef __float128 quad;

/* Numbers or indices: one of the two pointers is NULL. Both are where the numbers are read from `source`, under the
 * tensor's path, a piece at a time, since they are too many to hold: what quad_moe says it reads so may come so. */
typedef struct quad_tensor {
    char path[ASSAY_PATH_SIZE];
    assay_shape shape;
    quad *values;
    int32_t *indices;
    const assay_source *source;
} quad_tensor;

/* Owns its tensors. Starts zeroed. */
typedef struct quad_tensors {
    quad_tensor *items;
    int count;
} quad_tensors;

void quad_tensors_free(quad_tensors *tensors);                                       /* safe on a zeroed struct */
const quad_tensor *quad_tensors_find(const quad_tensors *tensors, const char *path); /* NULL when there is none */

/* Adds a tensor of undefined contents for the caller to fill, or a copy. Refuses a path that is there already. */
assay_status quad_tensors_add(assay_context *ctx, quad_tensors *tensors, const char *path, const assay_shape *shape,
                              quad **values);
assay_status quad_tensors_add_indices(assay_context *ctx, quad_tensors *tensors, const char *path,
                                      const assay_shape *shape, int32_t **indices);
assay_status quad_tensors_copy_f64(assay_context *ctx, quad_tensors *tensors, const char *path,
                                   const assay_shape *shape, const double *values);
assay_status quad_tensors_copy_i32(assay_context *ctx, quad_tensors *tensors, const char *path,
                                   const assay_shape *shape, const int32_t *indices);
assay_status quad_tensors_stream(assay_context *ctx, quad_tensors *tensors, const char *path, const assay_shape *shape,
                                 const assay_source *source);

/* inputs/x [...,D], weights/scale [D] -> outputs/y [...,D] */
assay_status quad_rms_norm(assay_context *ctx, double epsilon, const quad_tensors *in, quad_tensors *out);

/* inputs/x [...,D], weights/{wi_0,wi_1}/kernel [D,F] (fused: weights/wi/kernel [D,2F]), weights/wo/kernel [F,D],
 * weights/{wi_0,wi_1,wo}/bias? -> outputs/y [...,D], checkpoints/{mlpwi_0,mlpwi_1} [...,F] (fused: mlpwi [...,2F]),
 * mlp_intermediate [...,F] and mlpwo */
assay_status quad_gated_mlp(assay_context *ctx, const assay_gated_mlp_config *config, const quad_tensors *in,
                            quad_tensors *out);

/* The same by a training recipe, with cotangents/y -> the same outputs, all gradients, and as checkpoints mlpwi_0_gradient and
 * mlpwi_1_gradient [...,F] (fused: mlpwi_gradient [...,2F]). */
assay_status quad_quantised_mlp(assay_context *ctx, const assay_gated_mlp_config *config, const quad_tensors *in,
                                quad_tensors *out);

/* inputs/lhs [M,Kd], weights/rhs [G,Kd,N] and, by the layout, inputs/{group_sizes,masked_m,psum_m} [G] or inputs/m_indices
 * [M] -> outputs/y [M,N]; masked: lhs and y [G,M,...]; k_grouped: inputs/rhs [M,N], inputs/c [G,Kd,N]? -> outputs/y
 * [G,Kd,N]. Rows of no group are 0. */
assay_status quad_gmm(assay_context *ctx, const assay_gmm_config *config, const quad_tensors *in, quad_tensors *out);

/* The same by a training recipe, with cotangents/y -> outputs/y, gradients/inputs/lhs and gradients/weights/rhs. */
assay_status quad_quantised_gmm(assay_context *ctx, const assay_gmm_config *config, const assay_recipe_config *recipe,
                                const quad_tensors *in, quad_tensors *out);

/* inputs/x [T,D], inputs/selected_experts [T,K] -> outputs/{sorted_inputs,sorted_selected_experts,group_sizes} */
assay_status quad_permute(assay_context *ctx, const assay_permute_dims *dims, const quad_tensors *in,
                          quad_tensors *out);

/* inputs/sorted [T*K,D], inputs/sorted_selected_experts [T*K], inputs/weights [T,K] -> outputs/y [T,D] */
assay_status quad_unpermute(assay_context *ctx, const assay_permute_dims *dims, const quad_tensors *in,
                            quad_tensors *out);

/* inputs/logits [B,S,E], or inputs/x [B,S,D] and weights/gate/kernel; weights/gate/bias?, weights/per_expert_scale?,
 * weights/tid2eid and inputs/input_ids for hash routing -> outputs/{weights,lb_loss?,z_loss?,bias_updates?} and
 * routing/{selected_experts,weights,margin,group_sizes,sorted_selected_experts}. Where `in` has
 * routing/selected_experts that is the choice, and the margin is that of the choice which the scores would have made.
 */
assay_status quad_routing(assay_context *ctx, const assay_routing_config *config, const quad_tensors *in,
                          quad_tensors *out);

/* A MoE block, and how it is spread over a mesh; a zeroed sharding is one device. */
typedef struct quad_moe_config {
    assay_moe_config moe;
    assay_sharding sharding;
    int64_t w13_shards; /* of whose gate and up wi has columns side by side (w13_reorder_size); 0 is 1 */
} quad_moe_config;

/* The sparse block by a training recipe, with cotangents -> outputs, routing/, checkpoints/ and all gradients. */
assay_status quad_quantised_moe(assay_context *ctx, const quad_moe_config *config, const quad_tensors *in,
                                quad_tensors *out);

/* The tensors of the op `moe` (moe.h) -> outputs/{y,lb_loss?,z_loss?,bias_updates?}, routing/ as above; dropping:
 * routing/{combine_mask,dispatch_mask}. The path of the configuration changes no other number. Over a mesh: what
 * sharded_moe.h lists; only choices that a shard has no room for change y. */
assay_status quad_moe(assay_context *ctx, const quad_moe_config *config, const quad_tensors *in, quad_tensors *out);
/* The same of `count` inputs: `in` and `out` [count]. A row that is the same in several of them, through an expert whose
 * weights are the same, is computed once; each expert's weights are read once. */
assay_status quad_moe_many(assay_context *ctx, const quad_moe_config *config, int count, const quad_tensors *in,
                           quad_tensors *out);
/* Whether the block may get the tensor of that path as a source: a kernel of routed experts, on one device. */
bool quad_moe_streams(const quad_moe_config *config, const char *path);

/* The checkpoints of the same block, laid out as moe.h (over a mesh: sharded_moe.h) says:
 * checkpoints/{moe_mlpwi_0,moe_mlpwi_1,moe_intermediate,moe_mlpwo}, with fused weights moe_mlpwi as well, and of the
 * shared expert checkpoints/{mlpwi_0,mlpwi_1,mlp_intermediate,mlpwo}. */
assay_status quad_moe_checkpoints(assay_context *ctx, const quad_moe_config *config, const quad_tensors *in,
                                  quad_tensors *out);

/* Where a number of a kernel lies among those of all shards (weights_on_shards): of expert e, column d of D, column h of H,
 * or, of up in fused weights, H + h. weight: ASSAY_MLP_WI, WI_0, WI_1 or WO. */
int64_t quad_kernel_place(const assay_moe_config *config, const assay_sharding *sharding, int weight, int64_t e,
                          int64_t d, int64_t h);

/* inputs/x [T,D] -> outputs/codes, outputs/scale, outputs/tensor_scale [1]?, all bits (oracle/ops/quantize.h) */
assay_status quad_quantize(assay_context *ctx, const assay_quantize_config *config, const quad_tensors *in,
                           quad_tensors *out);
/* inputs/codes, of which two e2m1 are a byte with config->pack, inputs/scale, inputs/tensor_scale [1]? -> outputs/y [T,D] */
assay_status quad_dequantize(assay_context *ctx, const assay_quantize_config *config, const quad_tensors *in,
                             quad_tensors *out);

/* inputs/x [B,S,N,Dr], inputs/positions [B,S] -> outputs/y [B,S,N,Dr] */
assay_status quad_yarn_rope(assay_context *ctx, const assay_rope_config *config, const quad_tensors *in,
                            quad_tensors *out);

/* inputs/query [B,S,N,Dq], inputs/key [B,S,Nkv,Dq], inputs/value [B,S,Nkv,Dv], weights/sinks [N]?,
 * inputs/segment_ids [B,S]? -> outputs/attention_out [B,S,N,Dv], outputs/lse [B,N,S] */
assay_status quad_attention(assay_context *ctx, const assay_attention_config *config, const quad_tensors *in,
                            quad_tensors *out);

/* The tensors of the op `mla` (INTERFACE.md) -> outputs/y [B,S,D] */
assay_status quad_mla(assay_context *ctx, const assay_mla_config *config, const quad_tensors *in, quad_tensors *out);

/* The same by a training recipe, with cotangents/y -> outputs/y, all checkpoints of mla.h, all gradients */
assay_status quad_quantised_mla(assay_context *ctx, const assay_mla_config *config, const quad_tensors *in,
                                quad_tensors *out);

/* checkpoints/ under the names of mla.h, and checkpoints/lse; rows are [B,S], or [B,S,N] where there are heads */
assay_status quad_mla_checkpoints(assay_context *ctx, const assay_mla_config *config, const quad_tensors *in,
                                  quad_tensors *out);

/* Checkpoints of an attention layer as a mesh of more than one shard has them: of what has heads each shard's own,
 * [M,B/b,S,N/h,..] (lse [M,B/b,N/h,S]); h is mesh expert times mlp_tensor, b data times fsdp. On one shard they stay. */
assay_status quad_spread_heads(assay_context *ctx, const quad_tensors *parts, int64_t heads, int64_t kv_heads,
                               const assay_mesh *mesh, quad_tensors *out);

/* The tensors of the op `gqa` (INTERFACE.md) -> outputs/y [B,S,D] */
assay_status quad_gqa(assay_context *ctx, const assay_gqa_config *config, const quad_tensors *in, quad_tensors *out);

/* Every intermediate of it, as checkpoints/ under the names of gqa.h, with lse; y is checkpoints/out_proj */
assay_status quad_gqa_parts(assay_context *ctx, const assay_gqa_config *config, const quad_tensors *in,
                            quad_tensors *parts);

/* The tensors of a layer or a stack of layers (deepseek_stack.h) -> outputs/ and routing/ as there,
 * under the batch-split schedule as in batch_split.h, without its events. routing/Pselected_experts, where `in` has it,
 * is the choice. */
assay_status quad_stack(assay_context *ctx, const assay_stack_config *config, const quad_tensors *in,
                        quad_tensors *out);

/* checkpoints/P of the same: the layer's input, those of mla or gqa and, as of mlp and moe, those of its second half. */
assay_status quad_stack_checkpoints(assay_context *ctx, const assay_stack_config *config, const quad_tensors *in,
                                    quad_tensors *out);

/* The tensors of one function of the batch-split module (batch_split_function.h) -> its outputs/. Of a NAME_bwd central
 * differences of NAME by all that it is differentiated by, at what was given to NAME and where its residuals are. */
assay_status quad_batch_split_function(assay_context *ctx, const assay_function_view *view, const quad_tensors *in,
                                       quad_tensors *out);

/* An operation as certify.h takes it: `config` is for the functions alone. */
typedef struct quad_operation {
    assay_status (*evaluate)(assay_context *ctx, const void *config, const quad_tensors *in, quad_tensors *out);
    /* Adds the checkpoints that evaluate does not give; NULL where there are none. */
    assay_status (*checkpoints)(assay_context *ctx, const void *config, const quad_tensors *in, quad_tensors *out);
    /* evaluate of `count` inputs at once, which mostly differ in little, and what evaluate gives under routing/ alone, with
     * less work; NULL: there is no such way. */
    assay_status (*evaluate_many)(assay_context *ctx, const void *config, int count, const quad_tensors *in,
                                  quad_tensors *out);
    assay_status (*route)(assay_context *ctx, const void *config, const quad_tensors *in, quad_tensors *out);
    /* Whether a tensor of that path may be one with a source; NULL: none may. */
    bool (*streams)(const void *config, const char *path);
    /* Whether evaluate gives gradients too, which then are no derivatives of its outputs (they go straight through what is
     * quantised); NULL: never. */
    bool (*gives_gradients)(const void *config);
} quad_operation;

#endif
