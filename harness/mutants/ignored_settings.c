/* Settings of a case that a backend has not read: the case with the value that a kernel without the feature has. A row for
 * each key that changes numbers, so that a failure says "equals this case with capacity_factor -1". Keys of sizes, of how
 * tensors lie, of families and of what is kept in memory have none; a test holds that every other key has one. */
#include <math.h>

#include "harness/mutants/mutants_tensors.h"

#define ROUTER ASSAY_PART_ROUTER
#define EXPERTS ASSAY_PART_EXPERTS
#define GATED (ASSAY_PART_MLP | ASSAY_PART_EXPERTS)
#define ROPE ASSAY_PART_ROPE
#define SHARING (ASSAY_PART_SHARING | ASSAY_PART_GROUPED)
#define NORMED (ASSAY_PART_NORM | ASSAY_PART_LATENT)
#define SCALED (ASSAY_PART_QUANTIZE | ASSAY_PART_DEQUANTIZE | ASSAY_PART_CACHE | ASSAY_HAS_HIDDEN | ASSAY_HAS_RECIPE)

#define READ_AS(of, name_, text, shown)                                                                                \
    {                                                                                                                  \
        .name = "ignores_" #name_, .models = "this case with " #name_ " " shown, .bugs = "", .traits = of, .keys = {   \
            {.key = ASSAY_KEY_AT_##name_, .how = ASSAY_KEY_READ_AS, .value = text}                                     \
        }                                                                                                              \
    }
#define KEY(of, name, text) READ_AS(of, name, text, text)
#define NO_TEXT(of, name) READ_AS(of, name, "", "\"\"")
#define CODES(what, text, ...)                                                                                         \
    {                                                                                                                  \
        .name = what, .models = text, .bugs = "", .traits = ASSAY_HAS_CODES, .change_inputs = read_bits, __VA_ARGS__   \
    }

static bool is_code(assay_dtype type)
{
    return type == ASSAY_FLOAT8_E4M3FN || type == ASSAY_FLOAT8_E5M2 || type == ASSAY_FLOAT4_E2M1FN;
}

/* Codes become the whole numbers that their bits are. */
static bool read_bits(const assay_mutation *m)
{
    bool changed = false;
    for (int i = 0; i < m->tensors->count; i++) {
        const assay_tensor *tensor = &m->tensors->items[i];
        if (!assay_role_is_input(tensor->spec.role) || !is_code(tensor->spec.type) || tensor->values == NULL) continue;
        for (int64_t k = 0; k < tensor->count; k++) {
            uint8_t bits = 0;
            assay_dtype_encode(tensor->spec.type, 1, &tensor->values[k], &bits);
            tensor->values[k] = bits;
            changed = true;
        }
    }
    return changed;
}

const assay_mutant assay_ignored_settings[] = {
    /* routing */
    NO_TEXT(ROUTER, routing_method),
    NO_TEXT(ROUTER, routed_score_func),
    KEY(ROUTER, routed_bias, "false"),
    KEY(ROUTER, routed_scaling_factor, "1"),
    KEY(ROUTER, n_routing_groups, "-1"),
    NO_TEXT(ROUTER, group_score),
    KEY(ROUTER, top_k_in_group, "2"),
    KEY(ROUTER, norm_topk_prob, "false"),
    KEY(ROUTER, use_random_routing, "false"),
    KEY(ROUTER, first_num_hash_layers, "0"),
    KEY(ROUTER, load_balance_loss_weight, "0"),
    KEY(ROUTER, load_balance_loss_scope, "sequence"),
    KEY(ROUTER, load_balance_loss_pre_bias, "false"),
    KEY(ROUTER, router_z_loss_weight, "0"),
    KEY(ROUTER, routed_bias_update_rate, "0"),

    /* experts */
    KEY(EXPERTS, shared_experts, "0"),
    KEY(EXPERTS, num_fused_shared_experts, "0"),
    KEY(EXPERTS | ROUTER, apply_routed_scaling_factor_on_output, "true"),
    KEY(EXPERTS, apply_router_weight_on_input, "false"),
    KEY(EXPERTS, local_expert_offset, "0"),
    KEY(EXPERTS, num_redundant_experts, "0"),
    KEY(EXPERTS, capacity_factor, "-1"),
    KEY(EXPERTS | ROUTER, fused_moe_func, "false"),
    KEY(EXPERTS, ragged_buffer_factor, "-1"),
    KEY(GATED, w13_reorder_size, "1"),
    KEY(GATED, mlp_activations, "silu"),
    KEY(GATED, mlp_activations_limit, "0"),
    KEY(GATED, mlp_bias, "false"),
    KEY(ASSAY_PART_GROUPS, mk_alignment_for_contiguous_layout, "128"),

    /* attention and norms */
    KEY(SHARING, attention_type, "global"),
    KEY(SHARING, sliding_window_size, "0"),
    KEY(ASSAY_PART_ATTENTION, attn_logits_soft_cap, "0"),
    KEY(SHARING | ASSAY_PART_MERGE, attention_sink, "false"),
    KEY(ASSAY_PART_MERGE | ASSAY_PART_DECODE, lse_base, "e"),
    KEY(ASSAY_PART_MERGE | ASSAY_PART_DECODE, empty_row, "-inf"),
    KEY(SHARING, attention_bias, "false"),
    KEY(SHARING, use_qk_norm, "false"),
    KEY(ASSAY_PART_CACHE, cache_norm, "none"),
    KEY(ASSAY_PART_CACHE, cache_rope, "false"),
    KEY(SHARING | ASSAY_PART_LATENT, query_pre_attn_scalar, "0"),
    KEY(ASSAY_PART_ATTENTION, mask_padding, "true"),
    KEY(NORMED | SHARING, normalization_layer_epsilon, "1e-5"),
    KEY(ASSAY_PART_LATENT, latent_norm_epsilon, "-1"),
    KEY(ROPE, rope_type, "default"),
    KEY(ROPE, rope_max_timescale, "10000"),
    KEY(SHARING, partial_rotary_factor, "1"),
    KEY(ROPE | ASSAY_PART_DECODE, rope_factor, "1"),
    KEY(ROPE | ASSAY_PART_LATENT | ASSAY_PART_DECODE, mscale, "1"),
    KEY(ROPE, beta_fast, "32"),
    KEY(ROPE, beta_slow, "1"),
    KEY(ROPE | ASSAY_PART_LATENT | ASSAY_PART_DECODE, max_position_embeddings, "163840"),
    KEY(ROPE, original_max_position_embeddings, "4096"),
    KEY(ROPE, rope_interleave, "false"),
    KEY(ROPE, rope_truncate, "true"),
    KEY(ROPE, rope_attention_scaling, "false"),
    KEY(ROPE, rope_pairwise, "false"),
    {.name = "ignores_positions",
     .models = "this case with positions that count from 0",
     .bugs = "",
     .traits = ROPE | ASSAY_PART_ATTENTION,
     .inputs = {.of = "positions", .edit = assay_edit_each, .each = assay_counted_position}},

    /* formats of few bits */
    KEY(SCALED, quant_scale, "divide"),
    KEY(SCALED, quant_scale_rounding, "nearest"),
    KEY(SCALED, quant_subnormal_scale, "true"),
    KEY(SCALED, quant_smallest_amax, "0"),
    KEY(SCALED, quant_saturate, "true"),
    KEY(SCALED, quant_elements, "multiply"),
    KEY(SCALED, quant_ties, "even"),
    KEY(SCALED, quant_scale_layout, "row_major"),
    KEY(SCALED, quant_negative_zero, "true"),
    NO_TEXT(ASSAY_HAS_HIDDEN, quant_hidden_format),
    KEY(ASSAY_HAS_HIDDEN, quant_hidden_tensor_scale, "0"),
    NO_TEXT(ASSAY_HAS_RECIPE, quant_recipe),
    KEY(ASSAY_HAS_RECIPE, act_quantization_calibration_method, "absmax"),
    KEY(ASSAY_HAS_RECIPE, weight_quantization_calibration_method, "absmax"),
    KEY(ASSAY_HAS_RECIPE, bwd_quantization_calibration_method, "absmax"),
    CODES("codes_as_integers", "this case with codes taken as plain integers, times their scales", .each = false),
    CODES("codes_as_integers_unscaled", "this case with codes taken as plain integers, without their scales",
          .inputs = {.of = ASSAY_BLOCK_SCALES " " ASSAY_TENSOR_SCALES, .edit = assay_edit_replace, .by = 1}),
};
const int assay_ignored_setting_count = sizeof assay_ignored_settings / sizeof *assay_ignored_settings;

bool assay_mutant_is_ignored_setting(const assay_mutant *mutant)
{
    for (int i = 0; i < assay_ignored_setting_count; i++) {
        if (mutant == &assay_ignored_settings[i]) return true;
    }
    return false;
}
