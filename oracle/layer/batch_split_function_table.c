/* The table of the functions of the batch-split module. */
#include "oracle/layer/batch_split_function_internal.h"

#include <stdio.h>
#include <string.h>

/* clang-format off */
#define W(...) ((const bs_weight_form[]){__VA_ARGS__, {-1, NULL}})
#define QUERY_WEIGHTS                                                                                                  \
    {BS_MLA + ASSAY_MLA_WQ_A, "wq_a_weights"}, {BS_MLA + ASSAY_MLA_WQ_B, "wq_b_weights"},                              \
    {BS_MLA + ASSAY_MLA_Q_NORM, "q_norm_scale_weights"}
#define KEY_WEIGHTS                                                                                                    \
    {BS_MLA + ASSAY_MLA_WKV_A, "wkv_a_weights"}, {BS_MLA + ASSAY_MLA_WKV_B, "wkv_b_weights"},                          \
    {BS_MLA + ASSAY_MLA_KV_NORM, "kv_norm_scale_weights"}
#define MLA_WEIGHTS QUERY_WEIGHTS, KEY_WEIGHTS, {BS_MLA + ASSAY_MLA_OUT, "out_weights"}
#define NORMED_MLA_WEIGHTS {BS_PRE_NORM, "pre_attn_scale"}, MLA_WEIGHTS
#define SHARED_WEIGHTS                                                                                                 \
    {BS_SHARED + ASSAY_MLP_WI_0, "shared_w0"}, {BS_SHARED + ASSAY_MLP_WI_1, "shared_w1"},                              \
    {BS_SHARED + ASSAY_MLP_WO, "shared_wo"}
#define ROUTE_WEIGHTS                                                                                                  \
    {BS_POST_NORM, "post_attn_scale"}, SHARED_WEIGHTS, {BS_GATE, "gate_kernel"}, {BS_GATE_BIAS, "gate_bias"}
#define MOE_WEIGHTS                                                                                                    \
    ROUTE_WEIGHTS, {BS_ROUTED + ASSAY_MLP_WI_0, "routed_w0"}, {BS_ROUTED + ASSAY_MLP_WI_1, "routed_w1"},               \
    {BS_ROUTED + ASSAY_MLP_WO, "routed_wo"}

/* As gather_weights and its neighbours unpack them. */
const bs_weight_form bs_bundle[BS_BUNDLE] = {
    {BS_PRE_NORM, "pre_attn_norm"}, {BS_MLA + ASSAY_MLA_WQ_A, "wq_a"}, {BS_MLA + ASSAY_MLA_WQ_B, "wq_b"},
    {BS_MLA + ASSAY_MLA_Q_NORM, "q_norm"}, {BS_MLA + ASSAY_MLA_WKV_A, "wkv_a"}, {BS_MLA + ASSAY_MLA_WKV_B, "wkv_b"},
    {BS_MLA + ASSAY_MLA_KV_NORM, "kv_norm"}, {BS_MLA + ASSAY_MLA_OUT, "out"}, {BS_POST_NORM, "post_attn_norm"},
    {BS_GATE, "gate"}, {BS_GATE_BIAS, "bias"}, {BS_ROUTED + ASSAY_MLP_WI_0, "routed_wi_0"},
    {BS_ROUTED + ASSAY_MLP_WI_1, "routed_wi_1"}, {BS_ROUTED + ASSAY_MLP_WO, "routed_wo"},
    {BS_SHARED + ASSAY_MLP_WI_0, "shared_wi_0"}, {BS_SHARED + ASSAY_MLP_WI_1, "shared_wi_1"},
    {BS_SHARED + ASSAY_MLP_WO, "shared_wo"}};

/* Axes as bs_axis_size has them; M: of the layer, N: of a NAME_bwd, as NAME has it, B: all weights. */
#define T(name_, axes_, ...) {.name = name_, .axes = axes_, ##__VA_ARGS__}
#define M(name_, axes_, tensor_, ...) {.name = name_, .axes = axes_, .tensor = MB_##tensor_, ##__VA_ARGS__}
#define N(name_, ...) {.name = name_, ##__VA_ARGS__}
#define B(name_, lying_, ...) {.name = name_, .lying = lying_, ##__VA_ARGS__}
#define INTEGERS ASSAY_HOLDS_INTEGERS
#define ROLLED M("selected_experts", "mGK", ROLLED, .holds = ASSAY_HOLDS_ROLLED)
#define OWN_COUNTS M("group_sizes", "me", OWN_COUNTS, .holds = ASSAY_HOLDS_OWN_COUNTS)
#define ROUTED                                                                                                         \
    M("x", "mrD", ROWS), M("selected_experts", "mGK", ROLLED, .holds = INTEGERS), M("weights", "mr", ROW_WEIGHTS),     \
        M("group_sizes", "me", OWN_COUNTS, .holds = INTEGERS)
/* What the MoE half leaves: of the last microbatch what is before its unroute. */
#define MOE_RESULTS                                                                                                    \
    M("xs", "moaSD", OUTPUTS), M("moe_inputs", "maSD", MOE_INPUTS), M("routed_expert_out", "mrD", ROUTED_OUT),         \
        M("shared_expert_out", "maSD", SHARED_OUT), M("selected_experts", "mGK", ROLLED, .holds = INTEGERS),           \
        M("mlpwi_0", "mjyH", MLPWI_0), M("mlpwi_1", "mjyH", MLPWI_1)
#define QUERY_PRODUCTS "mTDL mTLNq "
#define KEY_PRODUCTS "mTDw mTlNu "
#define MLA_PRODUCTS QUERY_PRODUCTS KEY_PRODUCTS "mTSNq mTSNv mTNvD "
#define ROUTE_PRODUCTS "mTDE mTDF mTDF mTFD "
#define MOE_PRODUCTS ROUTE_PRODUCTS "mrDH mrDH mrHD "

static const assay_batch_split_function table[] = {
    {"fetch_weights", .bundles = {B("params", BS_WHOLE), B("weights", BS_WHOLE)}, .call = bs_call_fetch_weights},
    {"split", .in = {T("x", "mdSD")}, .out = {T("microbatches", "mjaSD")}, .call = bs_call_split},
    {"merge", .in = {T("microbatches", "mjaSD")}, .out = {T("x", "mdSD")}, .call = bs_call_merge},
    {"extract_layer_weights", .in = {T("layer_idx", "", .holds = ASSAY_HOLDS_LAYER)},
     .bundles = {B("all_weights", BS_STACKED), B("weights", BS_SCATTERED)}, .call = bs_call_extract_layer_weights},
    {"insert_layer_ws_grad", .in = {T("layer_idx", "", .holds = ASSAY_HOLDS_LAYER)},
     .bundles = {B("all_ws_grad", BS_STACKED), B("ws_grad", BS_SCATTERED), B("all_ws_grad", BS_STACKED)},
     .call = bs_call_insert_layer_ws_grad},
    {"gather_weights", .bundles = {B("weights", BS_SCATTERED), B("weights", BS_GATHERED)},
     .call = bs_call_gather_weights},
    {"reduce_scatter_ws_grad", .bundles = {B("ws_grad", BS_GATHERED, .sums = true), B("ws_grad", BS_SCATTERED)},
     .call = bs_call_reduce_scatter_ws_grad},
    {"all_reduce_ws_grad_dcn", .bundles = {B("ws_grad", BS_SCATTERED, .sums = true), B("ws_grad", BS_SCATTERED)},
     .call = bs_call_all_reduce_ws_grad_dcn},

    {"rms_norm", W({BS_PRE_NORM, "scale"}), {M("x", "maSD", LAYER_INPUTS)}, {M("y", "maSD", MLA_INPUTS)}, .steps = BS_STEPS_ATTENTION},
    {"rms_norm_bwd", .in = {N("x"), N("y_grad")}},
    {"initialize_yarn_mask", .out = {T("mask", "RR")}, .call = bs_call_initialize_yarn_mask},
    {"initialize_yarn_freqs", .in = {T("positions", "maS", .holds = ASSAY_HOLDS_POSITIONS)}, .out = {T("yarn_freqs", "maSR")},
     .call = bs_call_initialize_yarn_freqs},
    {"yarn", .in = {T("inputs", "maSNR"), M("freqs", "maSR", ANGLES, .holds = ASSAY_HOLDS_ANGLES)}, .out = {T("output", "maSNR")},
     .call = bs_call_yarn},
    {"yarn_bwd", .in = {N("freqs"), N("output_grad")}},

    {"query_projection", W(QUERY_WEIGHTS), {M("inputs_q", "maSD", MLA_INPUTS), M("yarn_freqs", "maSR", ANGLES, .holds = ASSAY_HOLDS_ANGLES)},
     {M("query", "maSNq", QUERY)}, .products = QUERY_PRODUCTS, .steps = BS_STEPS_ATTENTION},
    {"query_projection_bwd", .in = {N("inputs_q"), N("yarn_freqs"), N("query_grad")}},
    {"kv_projection", W(KEY_WEIGHTS), {M("inputs", "maSD", MLA_INPUTS), M("yarn_freqs", "maSR", ANGLES, .holds = ASSAY_HOLDS_ANGLES)},
     {M("key", "maSNq", KEY), M("value", "maSNv", VALUE)}, .products = KEY_PRODUCTS, .steps = BS_STEPS_ATTENTION},
    {"kv_projection_bwd", .in = {N("inputs"), N("yarn_freqs"), N("key_grad"), N("value_grad")}},
    {"get_key_value", W({BS_MLA + ASSAY_MLA_WKV_B, "wkv_b_weights"}),
     {M("low_rank_main", "maSl", LOW_RANK), M("key_rope", "maSR", KEY_ROPE)}, {M("key", "maSNq", KEY), M("value", "maSNv", VALUE)},
     .products = "mTlNu", .quantises = true, .steps = BS_STEPS_ATTENTION},
    {"get_key_value_bwd", .in = {N("low_rank_main"), N("key_grad"), N("value_grad")}},
    {"tpu_flash_attention",
     .in = {M("query", "maSNq", QUERY, .holds = ASSAY_HOLDS_QUERY), M("key", "maSNq", KEY), M("value", "maSNv", VALUE)},
     .out = {M("attention_output", "maSNv", ATTN_OUT), M("logsumexp", "maNS", LSE)}, .products = "mTSNq mTSNv", .steps = BS_STEPS_ATTENTION},
    {"tpu_flash_attention_bwd",
     .in = {N("attention_output_grad"), N("query"), N("key"), N("value"), N("attention_output"), N("logsumexp")}},
    {"mla", W(MLA_WEIGHTS), {M("inputs", "maSD", MLA_INPUTS), M("yarn_freqs", "maSR", ANGLES, .holds = ASSAY_HOLDS_ANGLES)},
     {M("out", "maSD", OUT_PROJ), M("attn_out", "maSNv", ATTN_OUT), M("lse", "maNS", LSE)}, .products = MLA_PRODUCTS, .steps = BS_STEPS_ATTENTION},
    {"mla_remat", W(QUERY_WEIGHTS, KEY_WEIGHTS),
     {M("inputs", "maSD", MLA_INPUTS), M("yarn_freqs", "maSR", ANGLES, .holds = ASSAY_HOLDS_ANGLES)},
     {M("query", "maSNq", QUERY), M("key", "maSNq", KEY), M("value", "maSNv", VALUE)}, .products = QUERY_PRODUCTS KEY_PRODUCTS, .steps = BS_STEPS_ATTENTION},
    {"mla_bwd", .in = {N("inputs"), N("yarn_freqs"), N("attn_out"), N("lse"), N("out_grad")}},
    {"mla_with_norms", W(NORMED_MLA_WEIGHTS),
     {M("inputs", "mjaSD", LAYER_INPUTS), M("yarn_freqs", "mjaSR", ANGLES, .holds = ASSAY_HOLDS_ANGLES)},
     {M("mla_out", "mjaSD", MLA_OUT), M("attn_out", "mjaSNv", ATTN_OUT), M("lse", "mjaNS", LSE)}, .products = MLA_PRODUCTS, .steps = BS_STEPS_ATTENTION},
    {"mla_with_norms_remat", W({BS_PRE_NORM, "pre_attn_scale"}, QUERY_WEIGHTS, KEY_WEIGHTS),
     {M("layer_inputs", "mjaSD", LAYER_INPUTS), M("yarn_freqs", "mjaSR", ANGLES, .holds = ASSAY_HOLDS_ANGLES)},
     {M("query", "mjaSNq", QUERY), M("key", "mjaSNq", KEY), M("value", "mjaSNv", VALUE)}, .products = QUERY_PRODUCTS KEY_PRODUCTS, .steps = BS_STEPS_ATTENTION},
    {"mla_with_norms_bwd",
     .in = {N("layer_inputs", .of = "inputs"), N("yarn_freqs"), N("attn_out"), N("lse"), N("mla_out_grad")},
     .back = bs_mla_with_norms_bwd},

    {"shared_expert", W(SHARED_WEIGHTS), {M("inputs", "maSD", X_NORM)}, {M("y", "maSD", SHARED_OUT)},
     .products = "mTDF mTDF mTFD", .quantises = true, .made = {T("shared_intermediate", "maSF")}, .steps = BS_STEPS_SHARED},
    {"shared_expert_bwd", .in = {N("inputs"), N("y_grad")},
     .made = {T("shared_mlpwi_0_gradient", "maSF"), T("shared_mlpwi_1_gradient", "maSF")}},
    {"expert_group_mask", .in = {T("gate_logits", "mTE")}, .out = {T("mask", "mTE")}, .call = bs_call_expert_group_mask},
    {"expert_indices_and_weights",
     .in = {T("gate_logits", "mTE", .constant = true), T("pre_bias_logits", "mTE", .holds = ASSAY_HOLDS_WEIGHTS)},
     .out = {T("indices", "mTK", .holds = INTEGERS), T("weights", "mTK")}, .call = bs_call_expert_indices_and_weights},
    {"expert_indices_and_weights_bwd", .in = {N("gate_logits"), N("pre_bias_logits"), N("weights_grad")},
     .call = bs_call_expert_indices_and_weights_bwd},
    {"expert_selection", W({BS_GATE, "routing_kernel"}, {BS_GATE_BIAS, "routing_bias"}), {M("x", "mTD", X_NORM)},
     {M("selected_experts", "mTK", CHOICES, .holds = INTEGERS), M("weights", "mTK", CHOICE_WEIGHTS),
      M("group_sizes", "mE", COUNTS, .holds = INTEGERS)},
     .products = "mTDE", .quantises = true, .run = bs_expert_selection},
    {"expert_selection_bwd", .in = {N("x"), N("weights_grad")}, .made = {T("logits_gradient", "mTE")},
     .remat = bs_expert_selection, .back = bs_expert_selection_bwd},
    {"route",
     .in = {M("x", "mTD", X_NORM), M("selected_experts", "mTK", CHOICES, .holds = ASSAY_HOLDS_CHOICES),
            M("weights", "mTK", CHOICE_WEIGHTS, .holds = ASSAY_HOLDS_WEIGHTS),
            M("group_sizes", "mE", COUNTS, .holds = ASSAY_HOLDS_COUNTS)},
     .out = {ROUTED}, .run = bs_route},
    {"route_bwd", .in = {ROLLED, N("x_grad"), N("weights_grad")}, .back = bs_route_bwd},
    {"route_impl", .in = {M("x", "mTD", X_NORM), ROLLED}, .out = {M("x", "mrD", ROWS)}, .run = bs_route_impl},
    {"route_impl_bwd", .in = {N("selected_experts"), N("x_grad")}, .back = bs_route_impl_bwd},
    {"unroute", .in = {M("x", "mrD", ROUTED_OUT), ROLLED}, .out = {M("x", "mTD", EXPERTS_OUT)}, .run = bs_unroute},
    {"unroute_bwd", .in = {N("selected_experts"), N("x_grad")}, .back = bs_unroute_bwd},
    {"quantized_psum_scatter", .in = {T("x", "mGD")}, .out = {T("out", "mTD")}, .quantises = true,
     .call = bs_call_quantized_psum_scatter},
    {"quantized_psum_scatter_bwd", .in = {N("out_grad")}},
    {"gmm", W({BS_ROUTED + ASSAY_MLP_WI_0, "kernel"}), {M("inputs", "mrD", ROWS), OWN_COUNTS}, {M("output", "mrH", GATE)},
     .products = "mrDH", .quantises = true, .steps = BS_STEPS_GMM},
    {"gmm_bwd", .in = {N("inputs"), N("group_sizes"), N("output_grad")}},
    {"compute_gating", W({BS_ROUTED + ASSAY_MLP_WI_0, "w0"}, {BS_ROUTED + ASSAY_MLP_WI_1, "w1"}),
     {M("x", "mrD", ROWS), OWN_COUNTS}, {M("layer_w0", "mrH", GATE), M("layer_w1", "mrH", UP)}, .products = "mrDH mrDH",
     .quantises = true, .steps = BS_STEPS_ROUTED},
    {"compute_gating_bwd", .in = {N("x"), N("group_sizes"), N("layer_w0_grad"), N("layer_w1_grad")}},
    {"compute_linear", W({BS_ROUTED + ASSAY_MLP_WO, "wo"}),
     {M("layer_w0", "mrH", GATE), M("layer_w1", "mrH", UP), OWN_COUNTS,
      M("weights", "mr", ROW_WEIGHTS, .holds = ASSAY_HOLDS_WEIGHTS)},
     {M("layer_wo", "mrD", ROUTED_OUT)}, .products = "mrHD", .quantises = true, .made = {T("intermediate_layer", "mrH")},
     .steps = BS_STEPS_ROUTED},
    {"compute_linear_bwd", .in = {N("layer_w0"), N("layer_w1"), N("group_sizes"), N("weights"), N("layer_wo_grad")}},

    {"shared_expert_and_route", W(ROUTE_WEIGHTS), {M("inputs", "maSD", MLA_OUT)}, {ROUTED, M("y", "maSD", SHARED_OUT)},
     .products = ROUTE_PRODUCTS, .run = bs_shared_expert_and_route},
    {"shared_expert_and_route_remat", W(ROUTE_WEIGHTS), {M("inputs", "maSD", MLA_OUT)}, {ROUTED}, .products = ROUTE_PRODUCTS,
     .run = bs_shared_expert_and_route_remat},
    {"shared_expert_and_route_bwd", .in = {N("inputs"), N("x_grad"), N("y_grad"), N("weights_grad")},
     .remat = bs_shared_expert_and_route_remat, .back = bs_shared_expert_and_route_bwd},
    {"unroute_ubatch_fn",
     .in = {M("moe_inputs", "maSD", MOE_INPUTS), M("routed_expert_out", "mrD", ROUTED_OUT),
            M("shared_expert_out", "maSD", SHARED_OUT), ROLLED},
     .out = {M("outputs", "maSD", OUTPUTS), M("selected_experts", "mGK", ROLLED, .holds = INTEGERS)}, .run = bs_unroute_ubatch},
    {"unroute_ubatch_fn_bwd", .in = {N("selected_experts"), N("outputs_grad")}, .back = bs_unroute_ubatch_bwd},
    {"route_compute_unroute", W(MOE_WEIGHTS), {M("xs", "mjaSD", MLA_OUT)}, {MOE_RESULTS}, .products = MOE_PRODUCTS,
     .call = bs_call_layer},
    {"route_compute_unroute_bwd",
     .in = {N("mla_out", .of = "xs"), N("mlpwi_0"), N("mlpwi_1"), N("xs_grad"), N("moe_inputs_grad"),
            N("routed_expert_out_grad"), N("shared_expert_out_grad")}},
    {"batch_split_schedule", W(NORMED_MLA_WEIGHTS, MOE_WEIGHTS),
     {M("inputs", "mjaSD", LAYER_INPUTS), M("yarn_freqs", "mjaSR", ANGLES, .holds = ASSAY_HOLDS_ANGLES)},
     {M("attn_out", "mjaSNv", ATTN_OUT), M("lse", "mjaNS", LSE), M("mla_out", "mjaSD", MLA_OUT), MOE_RESULTS},
     .products = MLA_PRODUCTS MOE_PRODUCTS, .call = bs_call_layer},
    {"batch_split_schedule_bwd",
     .in = {N("layer_inputs", .of = "inputs"), N("yarn_freqs"), N("mla_out"), N("attn_out"), N("lse"), N("mlpwi_0"),
            N("mlpwi_1"), N("xs_grad"), N("moe_inputs_grad"), N("routed_expert_out_grad"), N("shared_expert_out_grad")}},
};

/* Under a shard_map, as the rule of a gradient, or by another name the same function. */
static const char *const aliases[][2] = {
    {"moe", "route_compute_unroute"},
    {"moe_bwd", "route_compute_unroute_bwd"},
    {"route_impl_fwd", "route_impl"},
    {"unroute_impl", "unroute"},
    {"unroute_impl_fwd", "unroute"},
    {"unroute_impl_bwd", "unroute_bwd"},
    {"ragged_dot_with_mask", "gmm"},
    {"ragged_dot_with_mask_fwd", "gmm"},
    {"ragged_dot_with_mask_bwd", "gmm_bwd"},
    {"unroute_ubatch_shard_mapped", "unroute_ubatch_fn"},
    {"unroute_ubatch_fn_remat", "unroute_ubatch_fn_bwd"},
    {"unroute_ubatch_remat_and_bwd_shard_mapped", "unroute_ubatch_fn_bwd"},
};
/* clang-format on */
enum { FUNCTIONS = sizeof table / sizeof *table, ALIASES = sizeof aliases / sizeof *aliases };

const assay_batch_split_function *assay_batch_split_function_at(int place)
{
    return place >= 0 && place < FUNCTIONS ? &table[place] : NULL;
}

const char *assay_batch_split_alias(int place)
{
    return place >= 0 && place < ALIASES ? aliases[place][0] : NULL;
}

const assay_batch_split_function *assay_batch_split_function_of(const char *name)
{
    for (int i = 0; i < ALIASES; i++) {
        if (strcmp(aliases[i][0], name) == 0) name = aliases[i][1];
    }
    for (int i = 0; i < FUNCTIONS; i++) {
        if (strcmp(table[i].name, name) == 0) return &table[i];
    }
    return NULL;
}

const char *assay_function_name(const assay_batch_split_function *f)
{
    return f->name;
}

/* What stands before the end. */
bool bs_ends_with(const char *name, const char *end, char of[ASSAY_PATH_SIZE])
{
    const size_t length = strlen(name), size = strlen(end);
    const bool ends = length > size && strcmp(name + length - size, end) == 0;
    snprintf(of, ASSAY_PATH_SIZE, "%.*s", (int)(ends ? length - size : length), name);
    return ends;
}

const assay_batch_split_function *assay_function_forward(const assay_batch_split_function *f)
{
    char of[ASSAY_PATH_SIZE];
    return bs_ends_with(f->name, "_bwd", of) ? assay_batch_split_function_of(of) : NULL;
}

/* That has what a NAME_bwd shares with NAME. */
const assay_batch_split_function *bs_row_of(const assay_batch_split_function *f)
{
    const assay_batch_split_function *forward = assay_function_forward(f);
    return forward != NULL ? forward : f;
}

const assay_batch_split_function *assay_function_backward(const assay_batch_split_function *f)
{
    for (int i = 0; i < FUNCTIONS; i++) {
        if (assay_function_forward(&table[i]) == f) return &table[i];
    }
    return NULL;
}

assay_status bs_call_function(assay_context *ctx, bs_call *c)
{
    const assay_batch_split_function *f = c->config.function, *row = f->call != NULL ? f : bs_row_of(f);
    return row->call != NULL ? row->call(ctx, c) : bs_call_cut(ctx, c);
}

bool assay_function_is_local(const assay_batch_split_function *f)
{
    const assay_batch_split_function *row = bs_row_of(f);
    bool local = row->bundles[0].lying == BS_NO_BUNDLE;
    for (int i = 0; i < BS_MOST_ARGUMENTS; i++) {
        local &= row->in[i].name == NULL || strpbrk(row->in[i].axes, "Gr") == NULL;
        local &= row->out[i].name == NULL || strpbrk(row->out[i].axes, "Gr") == NULL;
    }
    return local;
}
