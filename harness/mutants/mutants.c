/* The table of mutants. Names, texts and bug numbers stand in docs/mutants.md too, and a test holds the two together.
 */
#include "harness/mutants/mutants.h"

#include <string.h>

#include "harness/operations/paths.h"

#define ROUTED "routing moe deepseek_layer deepseek_stack"
#define GATED "mlp moe deepseek_layer deepseek_stack"
#define WITH_EXPERTS "moe deepseek_layer deepseek_stack"
#define LATENT "mla deepseek_layer deepseek_stack"
#define ROTARY "yarn_rope mla deepseek_layer deepseek_stack"
#define ATTENDING "attention mla deepseek_layer deepseek_stack"
#define NORMED "rms_norm mla deepseek_layer deepseek_stack"
#define LAYERS "deepseek_layer deepseek_stack"
#define WITH_PRODUCTS "gmm mlp moe attention mla deepseek_layer deepseek_stack"
#define WITH_INTERMEDIATES "mlp moe attention mla deepseek_layer deepseek_stack"
#define WITH_FUNCTIONS "rms_norm yarn_rope attention mla deepseek_layer deepseek_stack"
#define WITH_X "rms_norm routing mlp moe yarn_rope mla permute deepseek_layer deepseek_stack"
#define WITH_WEIGHTS "rms_norm gmm routing mlp moe mla deepseek_layer deepseek_stack"

#define BF16 (0x1p-8 / 1.7320508075688772)

static bool accumulate_in_bf16(const assay_mutation *m, assay_emulation *e)
{
    (void)m;
    e->precision.accumulate = BF16;
    return true;
}

/* Where there is no router, or it is in bfloat16 anyway, other errors would be drawn and no larger ones. */
static bool route_in_bf16(const assay_mutation *m, assay_emulation *e)
{
    bool routes = false;
    for (int i = 0; i < m->tensors->plan->spec_count; i++) {
        const char *path = m->tensors->plan->specs[i].path;
        routes |=
            assay_path_is_given(path) && (assay_path_ends(path, "gate/kernel") || assay_path_ends(path, "logits"));
    }
    e->precision.router = BF16;
    return routes && assay_dtype_unit_roundoff(m->profile->router) < 0x1p-8;
}

static bool functions_in_bf16(const assay_mutation *m, assay_emulation *e)
{
    (void)m;
    e->precision.elementary = BF16;
    return true;
}

static bool operands_in_fp8(const assay_mutation *m, assay_emulation *e)
{
    if (m->profile->precision.scaled.block > 0) return false;
    e->multiply = ASSAY_FLOAT8_E4M3FN;
    e->precision.multiply = 0x1p-4 / 1.7320508075688772;
    return true;
}

static bool intermediates_in_bf16(const assay_mutation *m, assay_emulation *e)
{
    if (assay_dtype_unit_roundoff(m->profile->storage) >= 0x1p-8) return false;
    e->storage = e->multiply = ASSAY_BFLOAT16;
    e->precision.storage = e->precision.multiply = BF16;
    return true;
}

#define CONFIG(function) .configure = assay_mutant_##function
#define INPUTS(function) .change_inputs = assay_mutant_##function
#define RESULTS(function) .change_results = assay_mutant_##function

const assay_mutant assay_mutants[] = {
    /* the whole candidate is nothing */
    {"zero_results", "every result is zero", "", "all", "all", .always = true, RESULTS(zero_all)},
    {"nan_results", "every result is NaN", "16, 26, 55", "all", "all", .always = true, RESULTS(nan_all)},
    {"no_results", "no result is given", "", "all", "all", .always = true, RESULTS(omit_all)},
    {"result_missing", "the last result is not given", "59", "all", "all", .always = true, RESULTS(omit_last)},
    {"other_seed", "the results of other inputs", "33", "all", "all", .other_seed = true},

    /* routing */
    {"biased_weights", "combine weights from the biased scores, not divided", "1", ROUTED, "routing moe",
     .golden_choice = true, CONFIG(biased_weights)},
    {"biased_weights_divided", "combine weights from the biased scores, divided by their sum", "1", ROUTED,
     "routing moe", .golden_choice = true, CONFIG(biased_weights_divided)},
    {"group_score_other", "groups ranked by their largest instead of the sum of two, or the reverse", "4",
     "routing moe deepseek_layer", "routing moe", CONFIG(other_group_score)},
    {"groups_ignored", "experts are chosen without groups", "3", ROUTED, "routing moe", CONFIG(no_groups)},
    {"group_count_off_by_one", "one group more is kept, or one less", "3", ROUTED, "", CONFIG(other_group_count)},
    {"score_function_other", "softmax instead of sigmoid, or the reverse", "5", ROUTED, "routing moe",
     CONFIG(other_score)},
    {"division_missing", "routing weights are not divided by their sum", "6", ROUTED, "routing moe",
     .golden_choice = true, CONFIG(not_divided), INPUTS(zero_router_bias)},
    {"division_flag_ignored", "norm_topk_prob is taken the other way round", "6, 18", ROUTED, "routing moe",
     CONFIG(divided_or_not)},
    {"scaling_missing", "the scaling factor is left out", "7, 9", ROUTED, "routing moe", CONFIG(factor_missing)},
    {"scaling_twice", "the scaling factor is applied twice", "8", ROUTED, "routing moe", CONFIG(factor_twice)},
    {"router_bias_missing", "the router's bias is dropped", "19", ROUTED, "routing", INPUTS(zero_router_bias)},
    {"router_missing", "logits of zero: the first experts for every token", "15", ROUTED, "routing moe",
     INPUTS(zero_router)},
    {"router_rolled", "logits belong to the expert before", "20", ROUTED, "routing moe", INPUTS(roll_router)},
    {"runner_up_chosen", "the last choice is an expert that should not be chosen", "15, 17", ROUTED, "routing moe",
     INPUTS(runner_up)},
    {"choice_dropped", "the last choice of each token is lost", "29", WITH_EXPERTS, "moe", CONFIG(one_expert_fewer)},
    {"hash_ids_ignored", "hash routing looks up the first row of its table", "", "moe", "", INPUTS(first_id)},
    {"expert_scale_missing", "the scale of each expert is left out", "", "routing moe", "", INPUTS(unit_expert_scales)},
    {"router_in_bf16", "logits, scores and routing weights in bfloat16", "12, 13", ROUTED, "", .golden_choice = true,
     .worsen = route_in_bf16},

    /* dispatch and grouped products */
    {"expert_off_by_one", "weights of the expert after", "20, 21", "gmm moe deepseek_layer deepseek_stack", "gmm moe",
     INPUTS(roll_experts)},
    {"last_expert_empty", "the last expert's weights are never read", "17, 25", "gmm moe deepseek_layer deepseek_stack",
     "", INPUTS(zero_last_expert)},
    {"group_offset", "one row goes to the next group", "21, 24", "gmm", "gmm", INPUTS(move_group_row)},
    {"groups_rolled", "group sizes of the group after", "20", "gmm", "gmm", INPUTS(roll_groups)},
    {"padding_in_last_group", "rows behind the last group are taken for rows of it", "26, 27", "gmm", "gmm",
     INPUTS(pad_last_group)},
    {"unstable_sort", "of copies for the same expert the last token's comes first", "29", "permute", "permute",
     INPUTS(reverse_copies), RESULTS(count_from_front)},
    {"choices_reversed", "indices of the sort in the wrong order", "24, 29", "permute unpermute", "permute unpermute",
     INPUTS(reverse_choices)},
    {"weights_ignored", "rows are summed without their weights", "32, 39", "unpermute", "unpermute",
     INPUTS(unit_weights)},
    {"capacity_half", "the buffers of experts hold half of what they should", "", "moe deepseek_layer", "",
     CONFIG(half_capacity)},
    {"contraction_tail", "the last tile of the contracted axis is left out", "28",
     "gmm mlp moe mla deepseek_layer deepseek_stack", "", INPUTS(zero_last_rows)},

    /* shards and microbatches */
    {"expert_ids_global", "global expert ids index a shard's own experts", "20", WITH_EXPERTS, "moe",
     INPUTS(global_ids)},
    {"expert_shard_off_by_one", "rows go to the expert shard after", "21, 24", WITH_EXPERTS, "moe",
     INPUTS(roll_expert_shards)},
    {"expert_shard_first_only", "the experts of every shard but the first give nothing", "21", WITH_EXPERTS, "moe",
     INPUTS(first_expert_shard)},
    {"expert_shard_missing", "the part of the last expert shard is missing from the sum", "24", WITH_EXPERTS, "moe",
     INPUTS(no_last_expert_shard)},
    {"expert_shard_twice", "the part of the last expert shard is summed twice", "22", WITH_EXPERTS, "moe",
     INPUTS(double_expert_shard)},
    {"ring_step_missing", "each shard lacks the part of the expert shard before it", "22", "moe deepseek_layer", "moe",
     .each_shard = true, INPUTS(no_last_ring_step)},
    {"tensor_part_missing", "the part of the last tensor shard is missing from the up products", "23", "moe", "moe",
     INPUTS(no_last_tensor_shard)},
    {"tensor_sum_twice", "the up products are summed over the tensor shards twice", "22", "moe", "moe",
     INPUTS(tensor_sum_twice)},
    {"fsdp_gathered_rolled", "weights gathered over fsdp begin with the part of the shard after", "24",
     "moe deepseek_stack", "moe", INPUTS(roll_fsdp_shards)},
    {"buffer_half", "the buffer of a shard holds half of what it should, or the balanced case alone", "24",
     WITH_EXPERTS, "moe", CONFIG(half_buffer)},
    {"buffer_unlimited", "rows beyond the buffer of a shard are kept", "", "moe", "moe", CONFIG(no_buffer_limit)},
    {"shard_rows_rolled", "each shard gets the rows of the shard after", "24", WITH_EXPERTS, "moe",
     RESULTS(roll_shard_rows)},
    {"shard_gradients_rolled", "each shard gets the input gradient of the shard after", "24", WITH_EXPERTS, "moe",
     RESULTS(roll_shard_gradients)},
    {"shard_rows_summed", "rows are summed over shards that hold different tokens", "23", WITH_EXPERTS, "moe",
     RESULTS(sum_shard_rows)},
    {"losses_of_first_shard", "every shard has the loss and the bias updates of the first", "57, 58", "moe", "moe",
     RESULTS(first_shard_losses)},
    {"router_gradient_local", "the router's gradient is that of the first shard's tokens", "59", WITH_EXPERTS, "moe",
     .takes = assay_mutant_is_router_gradient, INPUTS(router_of_first_shard)},
    {"gradients_not_summed", "weight gradients are those of the first data and fsdp shard", "59", WITH_EXPERTS, "moe",
     .takes = assay_mutant_is_weight_gradient, INPUTS(gradients_of_first_replica)},
    {"gradients_summed_twice", "weight gradients are summed over data and fsdp twice", "59", WITH_EXPERTS, "moe",
     RESULTS(sum_gradients_twice)},
    {"gradients_averaged", "weight gradients are means over data and fsdp instead of sums", "59", WITH_EXPERTS, "moe",
     RESULTS(average_gradients)},
    {"expert_gradients_scaled", "gradients of routed experts times the number of expert shards", "59", WITH_EXPERTS,
     "moe", RESULTS(undivided_experts)},
    {"microbatch_choices_first", "every microbatch goes by the choices of the first", "60", LAYERS, "",
     .golden_choice = true, INPUTS(first_microbatch_choice)},
    {"microbatch_gradients_missing", "weight gradients lack the last microbatch", "59", LAYERS, LAYERS,
     .takes = assay_mutant_is_weight_gradient, INPUTS(no_last_microbatch)},

    /* expert MLP and combine */
    {"gate_up_swapped", "gate and up exchanged", "34", GATED, "mlp moe", INPUTS(swap_gate_up)},
    {"fused_interleaved", "fused gate and up read as interleaved", "34, 35", "mlp moe deepseek_layer deepseek_stack",
     "mlp", INPUTS(interleave_fused)},
    {"dx_without_gate", "the input gradient lacks the part of the gate", "41", GATED, "mlp moe", .golden_choice = true,
     .lost_weight = "wi_0"},
    {"dx_without_up", "the input gradient lacks the part of up", "41", GATED, "mlp moe", .golden_choice = true,
     .lost_weight = "wi_1"},
    {"activation_other", "gelu instead of silu, or the reverse", "", GATED, "", CONFIG(other_activation)},
    {"clamp_missing", "the clamp of the gate is dropped", "36", "mlp moe", "", CONFIG(no_clamp)},
    {"biases_missing", "the biases of the experts are dropped", "37", "mlp moe", "mlp moe", INPUTS(zero_biases)},
    {"down_bias_twice", "the down bias is added twice", "37", "mlp moe", "", INPUTS(double_down_bias)},
    {"shared_expert_missing", "the shared expert is dropped", "11", WITH_EXPERTS, "moe", CONFIG(no_shared_expert)},
    {"shared_expert_scaled", "the shared expert is scaled as a routed one", "10", WITH_EXPERTS, "moe",
     INPUTS(scale_shared_expert)},
    {"sums_in_bf16", "sums are accumulated in bfloat16", "40", WITH_PRODUCTS, "", .golden_choice = true,
     .worsen = accumulate_in_bf16},
    {"operands_in_fp8", "products of operands rounded to e4m3", "44", WITH_PRODUCTS, "", .golden_choice = true,
     .worsen = operands_in_fp8},
    {"intermediates_in_bf16", "what is stored between kernels is rounded to bfloat16", "", WITH_INTERMEDIATES, "",
     .golden_choice = true, .worsen = intermediates_in_bf16},

    /* MLA, rotary embedding, attention */
    {"mscale_missing", "the factor of mscale is left out of the softmax scale", "46", LATENT, "mla", CONFIG(no_mscale)},
    {"query_scale_missing", "queries without the root of the head size, or with it twice", "48",
     "attention mla deepseek_layer deepseek_stack", "attention mla", INPUTS(scale_query)},
    {"scale_from_hidden", "the softmax scale from the model's width over its heads", "48", "mla", "",
     INPUTS(scale_from_hidden)},
    {"rope_attention_scaling", "cosine and sine are scaled, or not, the other way round", "47", ROTARY, "",
     CONFIG(other_attention_scaling)},
    {"rope_pairing", "pairs come out side by side instead of in halves, or the reverse", "50", ROTARY, "yarn_rope",
     CONFIG(other_pairing)},
    {"rope_interleave", "pairs are read as halves instead of side by side, or the reverse", "50", ROTARY,
     "yarn_rope mla", CONFIG(other_interleave)},
    {"rope_truncation", "the ramp's ends are truncated, or not, the other way round", "49", ROTARY, "",
     CONFIG(other_truncation)},
    {"rope_type", "plain instead of YaRN, or the reverse", "49", ROTARY, "", CONFIG(other_rope_type)},
    {"rope_factor", "YaRN's factor is twice what it should be", "49", ROTARY, "", CONFIG(other_rope_factor)},
    {"rope_betas", "YaRN's ramp ends at half the rotations", "49", ROTARY, "", CONFIG(other_betas)},
    {"rope_timescale", "another base of the frequencies", "49", ROTARY, "yarn_rope", CONFIG(other_timescale)},
    {"positions_zero", "every token is at position 0", "46", ROTARY, "yarn_rope mla", INPUTS(zero_positions)},
    {"positions_shifted", "positions count from 1", "", ROTARY, "yarn_rope", INPUTS(shift_positions)},
    {"positions_in_bf16", "positions are rounded to bfloat16", "51", "yarn_rope mla", "", INPUTS(round_positions)},
    {"rope_key_missing", "the part of the key that is rotated is zero", "50", LATENT, "mla", INPUTS(zero_rope_key)},
    {"kv_norm_scale_missing", "the scale of the latent norm of keys and values is left out", "52", LATENT, "",
     INPUTS(unit_kv_norm)},
    {"kv_norm_missing", "the latent norm of keys and values is left out", "52", LATENT, "", INPUTS(no_kv_norm),
     RESULTS(no_checkpoints)},
    {"q_norm_scale_missing", "the scale of the latent norm of queries is left out", "52", LATENT, "",
     INPUTS(unit_q_norm)},
    {"norm_scales_missing", "every norm is without its scale", "52", NORMED, "rms_norm", INPUTS(unit_norms)},
    {"epsilon_other", "epsilon 1e-5 instead of 1e-6, or the reverse", "52", NORMED, "", CONFIG(other_epsilon)},
    {"mask_off_by_one", "keys and values of the token before", "55", "attention", "attention", INPUTS(shift_keys)},
    {"segments_ignored", "tokens see other documents", "55", ATTENDING, "attention", INPUTS(one_segment)},
    {"padding_not_masked", "tokens see padding", "55, 57", ATTENDING, "", CONFIG(padding_unmasked)},
    {"next_key_seen", "queries see the key after their own", "55", "attention mla deepseek_layer", "attention mla",
     .exchanges_tokens = true, INPUTS(exchange_tokens), RESULTS(no_checkpoints)},
    {"blind_rows_nan", "rows that see no key are NaN", "55", "attention mla", "attention mla", RESULTS(nan_blind_rows)},
    {"heads_rolled", "queries belong to the head before", "54", ATTENDING, "", INPUTS(roll_heads)},
    {"lse_in_base_2", "the log-sum-exp is in base 2", "53", "attention", "attention", RESULTS(base_2_lse)},
    {"functions_in_bf16", "exponentials, norms and phases in bfloat16", "51", WITH_FUNCTIONS, "", .golden_choice = true,
     .worsen = functions_in_bf16},
    {"previous_token", "inputs of the row before", "21, 60", WITH_X, "rms_norm routing mlp moe mla permute",
     INPUTS(previous_token)},

    {"residual_missing", "the second addition of a layer is left out", "", LAYERS, LAYERS, INPUTS(outgrow_residual),
     RESULTS(shrink_back)},

    /* training state */
    {"balance_loss_missing", "the balance loss is zero", "57", ROUTED, "routing moe", RESULTS(zero_balance_loss)},
    {"balance_loss_twice", "the balance loss is twice what it should be", "57", ROUTED, "", CONFIG(twice_balance_loss)},
    {"bias_updates_negated", "the bias is updated the wrong way", "58", ROUTED, "routing moe",
     RESULTS(negate_bias_updates)},

    /* results that are wrong as a whole */
    {"zero_outputs", "outputs are zero", "", "all", "all", RESULTS(zero_outputs)},
    {"zero_gradients", "gradients are zero", "57, 59", "all", "all", RESULTS(zero_gradients)},
    {"zero_weight_gradients", "weight gradients are never computed", "59", WITH_WEIGHTS, WITH_WEIGHTS,
     RESULTS(zero_weight_gradients)},
    {"zero_input_gradients", "gradients of the inputs are never computed", "54", "all", "all",
     RESULTS(zero_input_gradients)},
    {"zero_router_gradient", "nothing flows back into the router", "18, 59", ROUTED, "routing moe",
     RESULTS(zero_router_gradient)},
    {"router_gradient_lost", "nothing flows back through the routing weights", "18, 59", ROUTED, "",
     .golden_choice = true, .lost_weight = "gate", RESULTS(zero_router_gradient)},
    {"negated_outputs", "outputs with the wrong sign", "", "all", "all", RESULTS(negate_outputs)},
    {"negated_gradients", "gradients with the wrong sign", "", "all", "all", RESULTS(negate_gradients)},
    {"integers_off_by_one", "indices and counts are one too large", "21", "permute", "permute",
     RESULTS(integers_off_by_one)},
    {"integers_rolled", "indices and counts of the place after", "20, 29", "permute", "permute",
     RESULTS(roll_integers)},

    /* results that are wrong in part: each tensor must say so by itself */
    {"nan_last_element", "the last element is never written", "26, 33", "all", "all", .each = true, RESULTS(nan_last)},
    {"doubled", "every value is added twice", "8, 22, 38", "all", "", .each = true, RESULTS(double_values)},
    {"halved", "every value is divided by two", "59", "all", "", .each = true, RESULTS(halve_values)},
    {"scaled_by_root", "scaled by the root of the width", "48", "all", "", .each = true, RESULTS(scale_by_root)},
    {"scaled_1_2^-7", "a factor of 1 + 2^-7", "", "all", "", .each = true, RESULTS(scale_7_bits)},
    {"scaled_1_2^-8", "a factor of 1 + 2^-8", "", "all", "", .each = true, RESULTS(scale_8_bits)},
    {"rows_reversed", "rows in the reverse order", "24", "all", "", .each = true, RESULTS(reverse_rows)},
    {"rows_shifted", "each row is that of the row before", "21, 24", "all", "", .each = true, RESULTS(shift_rows)},
    {"transposed", "square matrices transposed", "", "rms_norm gmm routing mlp moe deepseek_layer deepseek_stack", "",
     .each = true, RESULTS(transpose_square)},
    {"columns_swapped", "first and last column exchanged", "", "all", "", .each = true, RESULTS(swap_columns)},
    {"halves_swapped", "the two halves of each row exchanged", "34, 50", "all", "", .each = true, RESULTS(swap_halves)},
    {"last_row_zero", "the last row is zero", "29, 30", "all", "", .each = true, RESULTS(zero_last_row)},
    {"last_row_stale", "the last row is that of the row before", "33", "all", "", .each = true,
     RESULTS(stale_last_row)},
    {"last_tile_zero", "the last tile of 128 columns, or half of them, is zero", "28, 42, 43", "all", "", .each = true,
     RESULTS(zero_last_tile)},
    {"last_columns_zero", "the last 8 columns, or half of them, are zero", "28, 54", "all", "", .each = true,
     RESULTS(zero_last_columns)},
    {"last_tile_off", "the last tile of 128 columns, or half of them, is off by 2 %", "42, 45", "all", "", .each = true,
     RESULTS(scale_last_tile)},
    {"last_expert_zero", "nothing of the last expert", "25", "gmm routing moe deepseek_layer deepseek_stack", "",
     .each = true, RESULTS(zero_last_expert_rows)},
    {"empty_expert_unwritten", "gradients of experts without tokens are NaN", "25",
     "gmm moe deepseek_layer deepseek_stack", "", .each = true, RESULTS(nan_empty_experts)},
    {"last_expert_doubled", "the last expert is summed twice", "22, 23",
     "gmm routing moe deepseek_layer deepseek_stack", "", .each = true, RESULTS(double_last_expert)},
    {"experts_exchanged", "the first two experts' parts exchanged", "20", "gmm moe deepseek_layer deepseek_stack", "",
     .each = true, RESULTS(swap_expert_rows)},
    {"last_head_zero", "nothing of the last head", "54", "yarn_rope attention mla deepseek_layer deepseek_stack", "",
     .each = true, RESULTS(zero_last_head)},
    {"last_batch_row_zero", "nothing of the last batch row", "54",
     "rms_norm routing mlp moe yarn_rope attention mla deepseek_layer deepseek_stack", "", .each = true,
     RESULTS(zero_last_batch)},
    {"truncated", "results are rounded towards zero", "44", "all", "", .each = true, RESULTS(truncate_values)},
    {"stored_coarser", "results are rounded to a coarser type first", "13, 40", "all", "", .each = true,
     RESULTS(coarser_values)},
};
const int assay_mutant_count = sizeof assay_mutants / sizeof *assay_mutants;

const assay_mutant *assay_mutant_by_name(const char *name)
{
    for (int i = 0; i < assay_mutant_count; i++) {
        if (strcmp(assay_mutants[i].name, name) == 0) return &assay_mutants[i];
    }
    return NULL;
}

const char *assay_mutant_way(const assay_mutant *mutant)
{
    if (mutant->configure != NULL) return "configuration";
    if (mutant->worsen != NULL || mutant->lost_weight != NULL) return "arithmetic";
    return mutant->change_inputs != NULL || mutant->other_seed ? "inputs" : "results";
}

bool assay_mutant_is_evaluated(const assay_mutant *mutant)
{
    return mutant->configure != NULL || mutant->change_inputs != NULL || mutant->worsen != NULL ||
           mutant->lost_weight != NULL || mutant->other_seed;
}

/* Whether the word stands in the list. */
static bool names(const char *list, const char *word)
{
    const size_t length = strlen(word);
    if (strcmp(list, "all") == 0) return true;
    for (const char *at = strstr(list, word); at != NULL; at = strstr(at + 1, word)) {
        const bool begins = at == list || at[-1] == ' ', ends = at[length] == ' ' || at[length] == '\0';
        if (begins && ends) return true;
    }
    return false;
}

bool assay_mutant_is_for(const assay_mutant *mutant, const char *op)
{
    return names(mutant->operations, op);
}

bool assay_mutant_is_required(const assay_mutant *mutant, const char *op)
{
    return names(mutant->required, op);
}
