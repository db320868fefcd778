/* What the rows of the registry share: describing tensors, reading them whole, writing results and their scales. */
#ifndef ASSAY_HARNESS_OP_SUPPORT_H
#define ASSAY_HARNESS_OP_SUPPORT_H

#include "harness/operations/operation.h"
#include "oracle/layer/deepseek_stack.h"
#include "oracle/moe/moe.h"
#include "oracle/ops/quant_recipe.h"

/* A shape as text and numbers: assay_dims("BSD", b, s, d) gives labels "B", "S", "D". */
typedef struct assay_dims {
    const char *labels; /* one letter an axis, as in docs/operations.md, and one for each sum of them (op_support.c) */
    int64_t dims[ASSAY_MAX_RANK];
} assay_dims;

assay_status assay_describe(assay_context *ctx, assay_tensor_list *list, const char *path, assay_dtype type,
                            const assay_fill *fill, assay_dims dims);
/* outputs/NAME float64 and, unless `fill` is NULL, cotangents/NAME of the case's type. */
assay_status assay_describe_output(assay_context *ctx, assay_tensor_list *list, const assay_case *c, const char *name,
                                   const assay_fill *fill, assay_dims dims);
/* inputs/... or weights/... of the case's type, and gradients/... of it. */
assay_status assay_describe_variable(assay_context *ctx, assay_tensor_list *list, const assay_case *c, const char *path,
                                     assay_fill fill, assay_dims dims);

/* The tensor so far from the end of the list is the operand of a product. */
void assay_mark_operand(assay_tensor_list *list, int back, assay_operand_axes axes);

/* Where a block is in a case: "" and "" when it is the operation itself, "layers/0/" and "moe/" in a stack. */
typedef struct assay_describer {
    assay_context *ctx;
    const assay_case *c;
    assay_tensor_list *list;
    const char *layer, *block;
} assay_describer;

/* weights/LAYER BLOCK name with its gradient; of int32, without one. */
assay_status assay_describe_weight(const assay_describer *d, const char *name, assay_fill fill, assay_dims dims);
assay_status assay_describe_integers(const assay_describer *d, const char *name, assay_fill fill, assay_dims dims);
/* The weights of a table, biases where the case has them; "E": a tensor has those of so many experts. */
assay_status assay_describe_weights(const assay_describer *d, const assay_tensor_table *table, assay_dims of_each);
/* FOLDER/LAYER name: checkpoints and routing. */
assay_status assay_describe_result(const assay_describer *d, const char *folder, const char *name, assay_dtype type,
                                   assay_dims dims);
/* checkpoints/LAYER name of a row, where there is such a tensor. */
assay_status assay_describe_checkpoint(const assay_describer *d, const assay_tensor_row *row);
/* outputs/LAYER name, as assay_describe_output. */
assay_status assay_describe_layer_output(const assay_describer *d, const char *name, const assay_fill *fill,
                                         assay_dims dims);

/* inputs/positions as the case's `positions` says, unless `inputs:` describes it; in [0, max_position_embeddings). */
assay_status assay_describe_positions(assay_context *ctx, assay_tensor_list *list, const assay_case *c);
/* inputs/segment_ids, which is there when the case says how to fill it; with it there may be padding. */
assay_status assay_describe_segments(assay_context *ctx, assay_tensor_list *list, const assay_case *c);
bool assay_has_padding(const assay_case *c);
/* Of [B,S,width] values, those of padding may be NaN or infinite, and no others. */
assay_status assay_require_finite_tokens(assay_context *ctx, const assay_case *c, const char *path,
                                         const double *values, int64_t width, const int32_t *segment_ids);

/* The tensors of a block, by kind. */
assay_status assay_describe_mlp_checkpoints(const assay_describer *d, const assay_gated_mlp_config *config,
                                            assay_mlp_place place, assay_dims rows);
assay_status assay_describe_moe_weights(const assay_describer *d, const assay_moe_config *config,
                                        const assay_sharding *sharding);
/* inputs/LAYER selected_experts and routing_weights, where the case gives them; refuses what goes ill together. */
assay_status assay_describe_given_choice(const assay_describer *d, const assay_routing_config *config);
/* Whether it gives the choice, of any layer; and the weights of that layer. */
bool assay_gives_choice(const assay_case *c);
bool assay_gives_routing_weights(const assay_case *c, const char *layer);
assay_status assay_describe_moe_checkpoints(const assay_describer *d, const assay_moe_config *config,
                                            const assay_sharding *sharding);
/* With outputs/LAYER lb_loss and bias_updates where they are on, which come of the choice. */
assay_status assay_describe_moe_routing(const assay_describer *d, const assay_moe_config *config,
                                        const assay_sharding *sharding);
assay_status assay_describe_balance(const assay_describer *d, const assay_moe_config *config,
                                    const assay_sharding *sharding);
/* Of a block over a mesh: routing/, and the rows of the routed experts' checkpoints. */
assay_status assay_describe_sharded_routing(const assay_describer *d, const assay_moe_config *config,
                                            const assay_sharding *sharding);
assay_dims assay_sharded_rows(const assay_moe_config *config, const assay_sharding *sharding);

assay_fill assay_fill_normal(double scale, double mean);
assay_fill assay_fill_fan_in(int64_t fan_in); /* normal, scale 1/sqrt(fan_in) */
assay_fill assay_fill_range(assay_distribution distribution, double low, double high);

/* The whole tensor, allocated; *out stays NULL for one that the source does not have. */
assay_status assay_read_whole(assay_context *ctx, const assay_source *in, const char *path, int64_t count,
                              double **out);
assay_status assay_read_whole_i32(assay_context *ctx, const assay_source *in, const char *path, int64_t count,
                                  int32_t **out);

/* Where the case lists the tensor's values: as many as it has, since a pattern of indices makes no sense. */
assay_status assay_require_all_values(assay_context *ctx, const assay_case *c, const char *path, int64_t count);

/* For operations without error scales of their own. */
bool assay_every_case(const assay_case *c);

/* Large gradients of the list become sketches, where the case asks for them (sketched_run.h). */
assay_status assay_sketch_list(assay_context *ctx, const assay_case *c, assay_tensor_list *list);

bool assay_wants(const assay_sink *out, const char *path);
/* Written if wanted. */
assay_status assay_write_result(assay_context *ctx, const assay_sink *out, const char *path, int64_t count,
                                const double *values);
/* The same of a stage, after which the run goes on from what the source has in its place (oracle/base/tensor.h). */
assay_status assay_write_stage(assay_context *ctx, const assay_source *in, const assay_sink *out, const char *path,
                               int64_t count, double *values);
assay_status assay_write_result_i32(assay_context *ctx, const assay_sink *out, const char *path, int64_t count,
                                    const int32_t *values);

/* Configurations of the operations from the case's keys. */
assay_status assay_routing_config_of(assay_context *ctx, const assay_case *c, assay_routing_config *config);
/* Whether oracle/propagate has rules for its losses; else error scales come from an ensemble. */
bool assay_routing_propagates(const assay_routing_config *config);
assay_status assay_moe_config_of(assay_context *ctx, const assay_case *c, assay_moe_config *config);
/* The mesh, the ring and the chunks of a case. */
assay_status assay_sharding_of(assay_context *ctx, const assay_case *c, assay_sharding *sharding);
/* recipe NULL: the case has none. */
assay_status assay_recipe_config_of(assay_context *ctx, const assay_case *c, assay_recipe_config *config);
assay_status assay_linear_recipe_of(assay_context *ctx, const assay_case *c,
                                    assay_recipe_config *config); /* of layers that are no grouped products */
assay_status assay_refuse_recipe_on_mesh(assay_context *ctx, const assay_case *c, const assay_recipe_config *config);
assay_status assay_mlp_config_of(assay_context *ctx, const assay_case *c, assay_gated_mlp_config *config);
/* How h of `columns` numbers a row is quantised (quant_hidden_format); its format is NULL where it is not. */
assay_status assay_hidden_config_of(assay_context *ctx, const assay_case *c, int64_t columns,
                                    assay_quantize_config *hidden);
bool assay_quantises_hidden(const assay_case *c);
/* A gated MLP whose kernel quantises what it computed itself: h, or by a recipe gradients as well. */
bool assay_quantises_made(const assay_case *c);
/* Refuses what no recipe of a MoE block has. */
assay_status assay_check_recipe_moe(assay_context *ctx, const assay_moe_config *moe, const assay_sharding *sharding,
                                    int64_t w13_shards);
/* Refuses what no code of h is quantised for. */
assay_status assay_check_hidden_moe(assay_context *ctx, const assay_moe_config *moe, const assay_sharding *sharding);
assay_status assay_rope_config_of(assay_context *ctx, const assay_case *c, assay_rope_config *config);
assay_status assay_attention_config_of(assay_context *ctx, const assay_case *c, assay_attention_config *config);
assay_status assay_gqa_config_of(assay_context *ctx, const assay_case *c, assay_gqa_config *config);
assay_status assay_mla_config_of(assay_context *ctx, const assay_case *c,
                                 assay_mla_config *config); /* without a recipe */
assay_status assay_stack_config_of(assay_context *ctx, const assay_case *c, assay_stack_config *config);
/* Whether layers are numbered: an operation of one layer alone has its tensors without a prefix. */
bool assay_is_stack(const assay_case *c);
/* Whether the attention of the model's layers is gqa.h's; else it is mla.h's. */
bool assay_layer_is_grouped(const assay_model_config *m);

/* Whether the model says that its attention is MLA; whether its heads are head_dim wide, and may share keys. */
bool assay_says_latent(const assay_model_config *m);
bool assay_has_grouped_heads(const assay_model_config *m);
/* What queries are multiplied by: query_pre_attn_scalar, or as the block has it. */
double assay_query_scale_of(const assay_model_config *m);
double assay_latent_epsilon_of(const assay_model_config *m); /* of q_norm and kv_norm */

/* MaxText goes by model_name for the choice of experts and by decoder_block for their weights. */
assay_router_family assay_router_family_of(const assay_model_config *m);

/* Refuses, by block and key, what the model says of `parts` (ASSAY_PART_...) and the operation would not honour. */
assay_status assay_model_check(assay_context *ctx, const assay_case *c, unsigned parts);
/* The case's configuration with what is computed in the place of values that it leaves open. */
assay_status assay_model_resolve(assay_context *ctx, const assay_case *c, unsigned parts, assay_model_config *resolved);

/* Gemma 4 scales each expert's weight by a number of its own. */
bool assay_has_per_expert_scale(const assay_case *c);

/* A moe case with the routing weights on h, before wo. */
assay_status assay_moe_run_weight_before_wo(assay_context *ctx, const assay_case *c, const assay_source *in,
                                            const assay_sink *out);
/* outputs/y of an mla case by its absorbed form. */
assay_status assay_mla_run_absorbed(assay_context *ctx, const assay_case *c, const assay_source *in,
                                    const assay_sink *out);

/* Whether rows of no group count for the scales of its recipe. */
bool assay_gmm_counts_all_rows(const assay_case *c);
/* A gmm case with the same rows in another layout, and its results where the case has them. */
assay_status assay_gmm_run_in_other_layout(assay_context *ctx, const assay_case *c, const assay_source *in,
                                           const assay_sink *out);
/* A quantize case by its transposed tensor in transposed blocks, and its results turned back. */
assay_status assay_quantize_run_transposed(assay_context *ctx, const assay_case *c, const assay_source *in,
                                           const assay_sink *out);
/* The mesh of a case. */
assay_mesh assay_mesh_of(const assay_case *c);
/* Of an operation with its heads over the mesh: refuses what splits no heads. */
assay_status assay_check_head_mesh(assay_context *ctx, const assay_case *c);

/* Refuses a key whose value is below 1: "emb_dim (base_emb_dim) is 0, expected 1 or more". */
assay_status assay_require_positive(assay_context *ctx, const char *key, int64_t value);
/* Of a normalisation by itself: its width and its epsilon. */
assay_status assay_check_norm(assay_context *ctx, const assay_case *c);

#endif
