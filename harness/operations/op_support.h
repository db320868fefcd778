/* What the rows of the registry share: describing tensors, reading them whole, writing results and their scales. */
#pragma once

#include "harness/operations/operation.h"
#include "oracle/layer/decoder_stack.h"
#include "oracle/moe/moe.h"
#include "oracle/ops/quant_recipe.h"

/* A shape as text and numbers: {"BSD", {b, s, d}} gives labels "B", "S", "D". */
typedef struct assay_dims {
    const char *labels; /* one letter an axis, as in docs/operations.md, and one for each sum of them (op_support.c) */
    int64_t dims[ASSAY_MAX_RANK];
} assay_dims;

/* Appends to a list. After a failure nothing is appended any more. */
struct assay_describer {
    assay_context *ctx;
    const assay_case *c;
    const void *config; /* the operation's, whose letters axis_size knows */
    int64_t (*axis_size)(const void *config, char axis);
    assay_tensor_list *list;
    const char *layer,
        *block;          /* where a block is: "" when it is the operation itself, "layers/0/" and "moe/" in a stack */
    assay_status status; /* the first failure */
    assay_tensor_entry nowhere;
};

assay_describer assay_describer_of(assay_context *ctx, const assay_operation *operation, const assay_case *c,
                                   const void *config, assay_tensor_list *list);
/* A tensor by its path; fill NULL: it is no input that is drawn. */
void assay_describe_sized(assay_describer *d, const char *path, assay_dtype type, const assay_fill *fill,
                          assay_dims dims);
void assay_describe(assay_describer *d, const char *path, assay_dtype type, const assay_fill *fill, const char *axes);
/* The tensor so far from the end of the list; something that nobody reads after a failure. */
assay_tensor_entry *assay_described(assay_describer *d, int back);
/* inputs/... or weights/... of the case's type, and gradients/... of it. */
void assay_describe_variable(assay_describer *d, const char *path, assay_fill fill, const char *axes);
void assay_describe_sized_variable(assay_describer *d, const char *path, assay_fill fill, assay_dims dims);
/* outputs/LAYER name float64 and, unless `fill` is NULL, cotangents/LAYER name of the case's type. */
void assay_describe_output(assay_describer *d, const char *name, const assay_fill *fill, const char *axes);
void assay_describe_sized_output(assay_describer *d, const char *name, const assay_fill *fill, assay_dims dims);
/* weights/LAYER BLOCK name with its gradient; of int32, without one. */
void assay_describe_weight(assay_describer *d, const char *name, assay_fill fill, const char *axes);
void assay_describe_integers(assay_describer *d, const char *name, assay_fill fill, const char *axes);
/* The weights of a table, biases where the case has them. */
void assay_describe_weights(assay_describer *d, const assay_tensor_table *table);
/* FOLDER/LAYER name: checkpoints and routing. */
void assay_describe_result(assay_describer *d, const char *folder, const char *name, assay_dtype type,
                           const char *axes);
void assay_describe_sized_result(assay_describer *d, const char *folder, const char *name, assay_dtype type,
                                 assay_dims dims);
/* checkpoints/LAYER name of a row, where there is such a tensor. */
void assay_describe_checkpoint(assay_describer *d, const assay_tensor_row *row);
assay_dims assay_dims_of(const char *axes, const assay_shape *shape);

/* inputs/positions as the case's `positions` says, unless `inputs:` describes it; in [0, max_position_embeddings). */
void assay_describe_positions(assay_describer *d);
/* inputs/segment_ids, which is there when the case says how to fill it; with it there may be padding. */
void assay_describe_segments(assay_describer *d);
bool assay_has_padding(const assay_case *c);

/* The tensors of a block, by kind. */
void assay_describe_moe_weights(assay_describer *d, const assay_moe_config *config, const assay_sharding *sharding);
/* Of these the router's; without its kernel where emb_dim is 0. And inputs/input_ids, where a table of them chooses. */
void assay_describe_router(assay_describer *d, const assay_moe_config *config);
void assay_describe_input_ids(assay_describer *d, const assay_routing_config *config);
/* Of a quad_moe_config. */
int64_t assay_block_axis_size(const void *config, char axis);
/* inputs/LAYER physical_to_logical_map, a given choice and expert_map, as far as the block has them. */
void assay_describe_moe_inputs(assay_describer *d, const assay_moe_config *config);
/* inputs/LAYER selected_experts and routing_weights, where the case gives them; refuses what goes ill together. */
void assay_describe_choice_input(assay_describer *d, const assay_routing_config *config);
/* Whether it gives the choice, of any layer; and the weights of that layer. */
bool assay_gives_choice(const assay_case *c);
bool assay_gives_routing_weights(const assay_case *c, const char *layer);
void assay_describe_moe_checkpoints(assay_describer *d, const assay_moe_config *config, const assay_sharding *sharding);
/* With outputs/LAYER lb_loss and bias_updates where they are on, which come of the choice. */
void assay_describe_moe_routing(assay_describer *d, const assay_moe_config *config, const assay_sharding *sharding);
/* Of these the losses, and what a mesh has others of. */
void assay_describe_sharded_routing(assay_describer *d, const assay_moe_config *config, const assay_sharding *sharding);
void assay_describe_balance(assay_describer *d, const assay_routing_config *config, bool sharded);

assay_fill assay_fill_normal(double scale, double mean);
assay_fill assay_fill_fan_in(int64_t fan_in); /* normal, scale 1/sqrt(fan_in) */
assay_fill assay_fill_range(assay_distribution distribution, double low, double high);

/* Where the case lists the tensor's values: as many as it has, since a pattern of indices makes no sense. */
void assay_require_all_values(assay_describer *d, const char *path, int64_t count);

/* Large gradients of the list become sketches, where the case asks for them (sketched_run.c). */
assay_status assay_sketch_list(assay_context *ctx, const assay_case *c, assay_tensor_list *list);

/* Configurations of the operations from the case's keys. */
assay_status assay_routing_config_of(assay_context *ctx, const assay_case *c, assay_routing_config *config);
assay_status assay_moe_config_of(assay_context *ctx, const assay_case *c, assay_moe_config *config);
/* The mesh, the ring and the chunks of a case. */
assay_status assay_sharding_of(assay_context *ctx, const assay_case *c, assay_sharding *sharding);
/* recipe NULL: the case has none. */
assay_status assay_quant_recipe_config_of(assay_context *ctx, const assay_case *c, assay_quant_recipe_config *config);
assay_status assay_linear_recipe_of(assay_context *ctx, const assay_case *c,
                                    assay_quant_recipe_config *config); /* of layers that are no grouped products */
/* Of all three calibrations: "KEY is VALUE, expected absmax: WHO WHY". */
assay_status assay_require_absmax(assay_context *ctx, const assay_model_config *m, const char *who, const char *why);
/* Of a layer that is no grouped product: qwix cuts its gradients off at the range of a calibration. */
assay_status assay_refuse_cutting_off(assay_context *ctx, const char *layer, const assay_quant_recipe_config *config);
/* mlp_activations[index], and how gate and up are joined; `asked`: by a limit, whatever the block. */
assay_status assay_activation_of(assay_context *ctx, const assay_model_config *m, int index, assay_activation *f);
assay_status assay_glu_of(assay_context *ctx, const assay_model_config *m, bool asked, assay_glu *glu);
assay_status assay_mlp_config_of(assay_context *ctx, const assay_case *c, assay_gated_mlp_config *config);
/* How h of `columns` numbers a row is quantised (quant_hidden_format); its format is NULL where it is not. */
assay_status assay_hidden_config_of(assay_context *ctx, const assay_case *c, int64_t columns,
                                    assay_quantize_config *hidden);
bool assay_quantises_hidden(const assay_case *c);
/* How the case's keys quant_... say that it is quantised. */
assay_quantize_config assay_quantize_rules_of(const assay_case *c, const assay_block_format *format, int64_t rows,
                                              int64_t columns);
/* Refuses what no recipe of a MoE block has. */
assay_status assay_check_recipe_moe(assay_context *ctx, const assay_moe_config *moe, int64_t w13_shards);
/* Refuses what no code of h is quantised for. */
assay_status assay_check_hidden_moe(assay_context *ctx, const assay_moe_config *moe, const assay_sharding *sharding);
assay_status assay_rope_config_of(assay_context *ctx, const assay_case *c, assay_rope_config *config);
/* Of heads of head_dim numbers, of which partial_rotary_factor are turned. */
assay_status assay_key_rope_config_of(assay_context *ctx, const assay_case *c, assay_rope_config *config);
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
/* Of attention; 0: none. */
assay_status assay_window_of(assay_context *ctx, const assay_model_config *m, int64_t *window);

/* MaxText goes by model_name for the choice of experts and by decoder_block for their weights. */
assay_router_family assay_router_family_of(const assay_model_config *m);

/* Refuses, by block and key, what the model says of `parts` (ASSAY_USES_...) and the operation would not honour. */
assay_status assay_model_check(assay_context *ctx, const assay_case *c, unsigned components);
/* The case's configuration with what is computed in the place of values that it leaves open. */
assay_status assay_model_resolve(assay_context *ctx, const assay_case *c, unsigned components,
                                 assay_model_config *resolved);

/* The mesh of a case. */
assay_mesh assay_mesh_of(const assay_case *c);
/* Of an operation with its heads over the mesh: refuses what splits no heads. */
assay_status assay_check_head_mesh(assay_context *ctx, const assay_case *c);

/* "KEY is VALUE, expected ", and what: of keys that hold whole numbers, truth values or names. */
assay_status assay_refuse_key(assay_context *ctx, const assay_model_config *m, int key, const char *expected, ...)
    __attribute__((format(printf, 4, 5)));
/* Refuses a key whose value is below 1: "emb_dim (base_emb_dim) is 0, expected 1 or more". */
assay_status assay_require_positive(assay_context *ctx, const char *key, int64_t value);
/* Of a normalisation by itself. */
typedef struct assay_norm_config {
    double epsilon; /* the first, since it is what the second form gets */
    int64_t batch, sequence, dim;
} assay_norm_config;
assay_status assay_norm_config_of(assay_context *ctx, const assay_case *c, void *config);
int64_t assay_norm_axis_size(const void *config, char axis);
