/* The table of mutants, which `assay list --mutants` prints.
 *
 * A row begins with what the mutant is: its name, what it models, bugs, which traits an operation needs for it, and
 * which operations must detect it. Then it says what it changes, of which most rows need one:
 *   KEY(key, how, by)            a key of the configuration: FLIP a flag; a number TO, PLUS, TIMES, SQUARED
 *   TEXT(key, "one>other")       a text; .keys = {CHANGE(...), CHANGE(...)}: two keys; .sets = {FLAG(...)}: what is no key
 *   INPUTS(paths, edit, .by = n) inputs, weights and chosen experts whose paths end in one of these; for three edits MOVED(paths,
 *                                axis, places), REPLACED(paths, number) and MULTIPLIED(paths, number of the case)
 *   COTANGENTS(paths, edit, ...) the same of cotangents
 *   RESULTS(folders, edit, ...)  the golden's results in these folders; with `.named = paths` those of them alone
 *   INTEGERS(folders, edit, ...) the same of indices and counts
 *   HIDDEN_SCALES(edit, ...)     scales of h that the kernel quantises itself
 *   STEP(kind, tensors, how, ...) a step of this kind that reads or makes one of these tensors, wherever it stands; CHANGED(word):
 *                                what is no step of a graph, or is told another parameter
 *   .degrade, .whole_blocks, .whole_rows: the arithmetic
 *   .configure, .change_inputs, .change_results: a function, for what one key or tensor alone cannot say
 * and, where it needs to, how it is evaluated (`.golden_choice` ...) and to which cases alone it applies (`.where`).
 *
 * Most edits are three: `fill` and `scale` (`.by`) change numbers, `move` exchanges them. ALONG(axis, places) says which: for
 * each place along the axis, from which one its numbers come, or that they are of the part that is changed (to 0, by `move`).
 * Axes are labels or what mutant_change.c calls them; places stand in mutants_places.c; `.number` or, by the case,
 * `.of_case` says of how many. EACH(numbers) changes each number by itself. mutants.h says what each member means; mutants_tensors.h lists the functions to choose from.
 * A new one is declared there and stands in the file of its kind. */
#include <math.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"
#include "harness/operations/op_support.h"

/* Traits of operations: one of them is enough; 0 is every operation. */
#define ROUTER ASSAY_PART_ROUTER
#define EXPERTS ASSAY_PART_EXPERTS
#define GATED (ASSAY_PART_MLP | ASSAY_PART_EXPERTS)
#define LATENT ASSAY_PART_LATENT
#define GROUPED ASSAY_PART_GROUPED
#define PROJECTED (ASSAY_PART_LATENT | ASSAY_PART_GROUPED)
#define ROPE ASSAY_PART_ROPE
#define ATTENTION ASSAY_PART_ATTENTION
#define SHARING ASSAY_PART_SHARING
#define MERGE ASSAY_PART_MERGE
#define DECODE ASSAY_PART_DECODE
#define CACHE ASSAY_PART_CACHE
#define NORMED (ASSAY_PART_NORM | ASSAY_PART_LATENT)
#define LAYER ASSAY_PART_LAYER
#define GROUPS ASSAY_PART_GROUPS
#define SORT ASSAY_PART_SORT
#define COMBINE ASSAY_PART_COMBINE
#define QUANTIZE ASSAY_PART_QUANTIZE
#define DEQUANTIZE ASSAY_PART_DEQUANTIZE
#define CODES ASSAY_HAS_CODES
#define HIDDEN ASSAY_HAS_HIDDEN
#define CACHE_BYTES ASSAY_HAS_CACHE_BYTES
#define RECIPE ASSAY_HAS_RECIPE
#define RECIPE_OF_BLOCKS ASSAY_HAS_RECIPE_OF_BLOCKS
#define WITH_INTERMEDIATES (GATED | ATTENTION)
#define WITH_LINEAR (GATED | PROJECTED | GROUPS)
#define WITH_PRODUCTS (WITH_INTERMEDIATES | GROUPS)
#define WITH_FUNCTIONS (ASSAY_PART_NORM | ROPE | ATTENTION)

/* Paths of inputs and weights, folders of results. */
#define UP_WEIGHTS "wi wi_0 wi_1"
#define KERNELS "wi wi_0 wi_1 wo"
#define EXPERT_WEIGHTS "wi wi_0 wi_1 wo wi_0_bias wi_1_bias wo_bias rhs"
#define EVERYTHING "outputs gradients checkpoints"

/* What is divided is not, and the reverse; a softmax over all is one over the chosen. */
#define METHODS                                                                                                        \
    "Default>Renormalize Renormalize>Default DeepSeekV3>Sigmoid RenormalizeNaive>Default TopK>Renormalize "            \
    "SigmoidRenorm>Sigmoid MiniMax2>Sigmoid Sigmoid>SigmoidRenorm TopKSigmoid>SigmoidRenorm"

#define CHANGE(name, change, value)                                                                                    \
    {                                                                                                                  \
        .key = ASSAY_KEY_AT_##name, .how = ASSAY_KEY_##change, .by = value                                             \
    }
#define KEY(name, change, value) .keys = {CHANGE(name, change, value)}
#define TEXT(name, pairs) .keys = {{.key = ASSAY_KEY_AT_##name, .how = ASSAY_KEY_EXCHANGED, .value = pairs}}
#define FLAG(name) offsetof(assay_model_config, name)
#define INPUTS(paths, ...) .inputs = {.of = paths, .edit = __VA_ARGS__}
#define COTANGENTS(paths, ...) .inputs = {.of = paths, .cotangents = true, .edit = __VA_ARGS__}
#define MOVED(paths, name, map, ...) INPUTS(paths, assay_edit_move, ALONG(name, map), __VA_ARGS__)
#define REPLACED(paths, number) INPUTS(paths, assay_edit_replace, .by = number)
#define MULTIPLIED(paths, number) INPUTS(paths, assay_edit_scale, .by = 1, OF_CASE(number))
#define RESULTS(folders, ...) .results = {.of = folders, .edit = __VA_ARGS__}
#define INTEGERS(folders, ...) .integers = {.of = folders, .edit = __VA_ARGS__}
#define HIDDEN_SCALES(...) .hidden_scales = {.edit = __VA_ARGS__}
#define STEP(of, named, change, ...) .step = {.how = ASSAY_STEP_##change, .kind = of, .tensors = named, __VA_ARGS__}
#define CHANGED(of) .step = {.how = ASSAY_STEP_DETACHED, .kind = of}
#define EACH(map) assay_edit_each, .each = assay_##map
#define ALONG(name, map) .axis = name, .places = assay_##map
#define OF_CASE(name) .of_case = ASSAY_CASE_##name
#define WHERE(name) .where = ASSAY_WHERE_##name
#define LOG2_E 1.4426950408889634
#define NO_SINK (-1000.0) /* far below any score */
#define WHOLE_SEQUENCE 1e9

const assay_mutant assay_mutants[] = {
    /* the whole candidate is nothing */
    {"zero_results", "every result is zero", "", 0, ASSAY_EVERYWHERE, .always = true,
     RESULTS(EVERYTHING, assay_edit_fill, .by = 0), INTEGERS("outputs routing", assay_edit_fill, .by = 0)},
    {"nan_results", "every result is NaN", "16, 26, 55", 0, ASSAY_EVERYWHERE, .always = true,
     RESULTS(EVERYTHING, assay_edit_fill, .by = NAN)},
    {"no_results", "no result is given", "", 0, ASSAY_EVERYWHERE, .always = true,
     .change_results = assay_edit_omit_all},
    {"result_missing", "the last result is not given", "59", 0, ASSAY_EVERYWHERE, .always = true,
     .change_results = assay_edit_omit_last},
    {"other_seed", "the results of other inputs", "33", 0, ASSAY_EVERYWHERE, .other_seed = true},

    /* routing */
    {"biased_weights", "combine weights from the biased scores, not divided", "1", ROUTER, ASSAY_IN_BLOCKS,
     .golden_choice = true, WHERE(biased_choice), .sets = {FLAG(weigh_biased), FLAG(undivided)}},
    {"biased_weights_divided", "combine weights from the biased scores, divided by their sum", "1", ROUTER,
     ASSAY_IN_BLOCKS, .golden_choice = true, WHERE(divided_bias), .sets = {FLAG(weigh_biased)}},
    {"group_score_other", "groups ranked by their largest instead of the sum of two, or the reverse", "4", ROUTER,
     ASSAY_IN_BLOCKS, .configure = assay_edit_other_group_score},
    {"groups_ignored", "experts are chosen without groups", "3", ROUTER, ASSAY_IN_BLOCKS, WHERE(groups),
     .keys = {CHANGE(n_routing_groups, TO, -1), CHANGE(topk_routing_group, TO, -1)}},
    {"masked_groups_at_zero", "experts of groups that go are chosen by 0, not by minus infinity", "3", ROUTER,
     ASSAY_IN_BLOCKS, WHERE(groups), .sets = {FLAG(masked_at_zero)}},
    {"group_count_off_by_one", "one group more is kept, or one less", "3", ROUTER, ASSAY_NOWHERE,
     .configure = assay_edit_other_group_count},
    {"score_function_other", "softmax instead of sigmoid, or the reverse", "5", ROUTER, ASSAY_IN_BLOCKS,
     TEXT(routed_score_func, "softmax>sigmoid *>softmax")},
    {"division_missing", "routing weights are not divided by their sum, or not by that of the chosen", "6", ROUTER,
     ASSAY_IN_BLOCKS, .golden_choice = true, WHERE(divides_or_chosen), .sets = {FLAG(undivided)}},
    {"division_flag_ignored", "norm_topk_prob is taken the other way round", "6, 18", ROUTER, ASSAY_IN_BLOCKS,
     KEY(norm_topk_prob, FLIP, 0)},
    {"routing_method_other", "a serving engine's routing method is taken for its neighbour", "6", ROUTER,
     ASSAY_IN_BLOCKS, TEXT(routing_method, METHODS)},
    {"scaling_missing", "the scaling factor is left out", "7, 9", ROUTER, ASSAY_IN_BLOCKS,
     KEY(routed_scaling_factor, TO, 1)},
    {"scaling_twice", "the scaling factor is applied twice", "8", ROUTER, ASSAY_IN_BLOCKS,
     KEY(routed_scaling_factor, SQUARED, 0)},
    {"scaling_not_in_backward", "what flows back through routed experts is without the scaling factor", "7, 59", ROUTER,
     ASSAY_NOWHERE, .each = true, .golden_choice = true, KEY(routed_scaling_factor, TO, 1),
     .takes = {.of = "gradients"}},
    {"division_detached", "backward takes the sum that weights are divided by for a constant", "6, 59", ROUTER,
     ASSAY_NOWHERE, .golden_choice = true, WHERE(divides_anyhow), .sets = {FLAG(division_detached)}},
    {"router_bias_missing", "the router's bias is dropped", "19", ROUTER, ASSAY_ALONE, REPLACED("gate/bias", 0)},
    {"router_missing", "logits of zero: the first experts for every token", "15", ROUTER, ASSAY_IN_BLOCKS,
     REPLACED("gate/kernel logits", 0)},
    {"router_rolled", "logits belong to the expert before", "20", ROUTER, ASSAY_IN_BLOCKS,
     MOVED("gate/kernel logits", "last", next_place)},
    {"runner_up_chosen", "the last choice is an expert that should not be chosen", "15, 17", ROUTER, ASSAY_IN_BLOCKS,
     .golden_choice = true, INPUTS("selected_experts", assay_edit_runner_up)},
    {"replicas_summed", "every replica of an expert adds its output", "22", EXPERTS, ASSAY_IN_BLOCKS, WHERE(replicas),
     INPUTS("wo wo_bias", EACH(times_replicas))},
    {"replica_gradients_averaged", "the gradient of an expert is the mean of its replicas' instead of their sum", "59",
     EXPERTS, ASSAY_IN_BLOCKS, WHERE(replicas),
     RESULTS("gradients/weights", EACH(by_replicas), .named = EXPERT_WEIGHTS)},
    {"no_expert_last", "slots of -1 are read as an expert, one of the last", "80", ROUTER, ASSAY_IN_BLOCKS,
     WHERE(gives_choice), INPUTS("selected_experts", assay_edit_none_to_last)},
    {"slot_order_lost", "given experts are sorted, and their weights are not", "81", EXPERTS, ASSAY_IN_BLOCKS,
     WHERE(gives_choice), INPUTS("selected_experts", assay_edit_sort_slots)},
    {"choice_dropped", "the last choice of each token is lost", "29", EXPERTS, ASSAY_IN_BLOCKS, WHERE(several_choices),
     KEY(num_experts_per_tok, PLUS, -1)},
    {"hash_ids_ignored", "hash routing looks up the first row of its table", "", EXPERTS, ASSAY_NOWHERE,
     REPLACED("input_ids", 0)},
    {"expert_scale_missing", "the scale of each expert is left out", "", ROUTER, ASSAY_NOWHERE,
     REPLACED("per_expert_scale", 1)},
    {"router_in_bf16", "logits, scores and routing weights in bfloat16", "12, 13", ROUTER, ASSAY_NOWHERE,
     .golden_choice = true, .degrade = assay_degrade_router, .makes = "a router in bfloat16",
     .asks = "compute the router in bfloat16"},
    {"router_bias_in_bf16", "the router's bias is rounded to bfloat16", "13", ROUTER, ASSAY_NOWHERE,
     INPUTS("gate/bias", EACH(in_bf16))},

    /* dispatch and grouped products */
    {"expert_off_by_one", "weights of the expert after", "20, 21", EXPERTS | GROUPS, ASSAY_IN_BLOCKS,
     MOVED(EXPERT_WEIGHTS, "first", next_place)},
    {"last_expert_empty", "the last expert's weights are never read", "17, 25", EXPERTS | GROUPS, ASSAY_NOWHERE,
     MOVED(EXPERT_WEIGHTS, "first", last_place)},
    {"group_offset", "one row goes to the next group", "21, 24", GROUPS, ASSAY_ALONE,
     INPUTS("group_sizes", assay_edit_move_group_row)},
    {"groups_rolled", "group sizes of the group after", "20", GROUPS, ASSAY_ALONE,
     MOVED("group_sizes", "each", next_place)},
    {"padding_in_last_group", "rows behind the last group are taken for rows of it", "26, 27", GROUPS, ASSAY_ALONE,
     INPUTS("group_sizes", assay_edit_pad_last_group)},
    {"padding_contracted", "padding is contracted as rows of the group before it", "27", GROUPS, ASSAY_ALONE,
     INPUTS("m_indices masked_m psum_m", EACH(contracted_padding))},
    {"padding_in_group_0", "a group of -1 is taken for the first", "29", GROUPS, ASSAY_ALONE, WHERE(contiguous_layout),
     KEY(mk_alignment_for_contiguous_layout, TO, 1), INPUTS("m_indices", EACH(group_for_none), .by = 0)},
    {"padding_in_group_last", "a group of -1 is taken for the last", "29", GROUPS, ASSAY_ALONE,
     WHERE(contiguous_layout), KEY(mk_alignment_for_contiguous_layout, TO, 1),
     INPUTS("m_indices", EACH(group_for_none), .by = -1)},
    {"block_of_first_row", "blocks of twice the alignment are of the group of their first row", "29", GROUPS,
     ASSAY_ALONE, WHERE(contiguous_layout), KEY(mk_alignment_for_contiguous_layout, TO, 1),
     INPUTS("m_indices", EACH(group_of_first_row))},
    {"rows_cut_to_blocks", "of each group the rows beyond its last whole block of 8 are left out", "28, 30",
     EXPERTS | GROUPS, ASSAY_ALONE, .golden_choice = true, .whole_rows = 8},
    {"rows_cut_to_16", "of each group the rows beyond its last whole block of 16 are left out", "28, 30",
     EXPERTS | GROUPS, ASSAY_NOWHERE, .each = true, .golden_choice = true, .whole_rows = 16},
    {"rows_cut_to_32", "of each group the rows beyond its last whole block of 32 are left out", "28, 30",
     EXPERTS | GROUPS, ASSAY_NOWHERE, .each = true, .golden_choice = true, .whole_rows = 32},
    {"rows_cut_to_64", "of each group the rows beyond its last whole block of 64 are left out", "28, 30",
     EXPERTS | GROUPS, ASSAY_NOWHERE, .each = true, .golden_choice = true, .whole_rows = 64},
    {"rows_cut_to_128", "of each group the rows beyond its last whole block of 128 are left out", "28, 30",
     EXPERTS | GROUPS, ASSAY_NOWHERE, .each = true, .golden_choice = true, .whole_rows = 128},
    {"last_row_of_groups", "the last row of each group is left out", "28, 30", EXPERTS | GROUPS, ASSAY_NOWHERE,
     .each = true, .golden_choice = true, .whole_rows = -1},
    {"groups_unaligned", "a group begins where the one before ends, not at the next aligned row", "24", GROUPS,
     ASSAY_ALONE, WHERE(psum_layout), KEY(mk_alignment_for_contiguous_layout, TO, 1)},
    {"accumulator_missing", "what the product is added to is overwritten", "", GROUPS, ASSAY_ALONE,
     REPLACED("inputs/c", 0)},
    {"first_copy_only", "of the copies for an expert only the first is there", "29", SORT, ASSAY_ALONE,
     .change_results = assay_edit_keep_first_copies},
    {"unstable_sort", "of copies for the same expert the last token's comes first, and the order does not tell", "29",
     SORT, ASSAY_ALONE, MOVED("x selected_experts", "rows or numbers", reversed),
     .change_results = assay_edit_count_from_front},
    {"choices_reversed", "indices of the sort in the wrong order", "24, 29", SORT | COMBINE, ASSAY_ALONE,
     MOVED("selected_experts sorted_selected_experts", "rows or numbers", reversed)},
    {"weights_ignored", "rows are summed without their weights", "32, 39", COMBINE, ASSAY_ALONE,
     REPLACED("weights", 1)},
    {"capacity_half", "the buffers of experts hold half of what they should", "", EXPERTS, ASSAY_NOWHERE,
     WHERE(drops_tokens), KEY(capacity_factor, TIMES, 0.5)},
    {"contraction_tail", "the last tile of the contracted axis is left out", "28", GATED | LATENT | GROUPS,
     ASSAY_NOWHERE, MOVED("wo wo/kernel rhs wkv_a/kernel", "summed", last_tile, .number = 16)},
    {"contraction_cut_to_8", "contracted axes are cut to whole blocks of 8", "28", WITH_LINEAR, ASSAY_NOWHERE,
     .each = true, .golden_choice = true, .whole_blocks = 8},
    {"contraction_cut_to_16", "contracted axes are cut to whole blocks of 16", "28", WITH_LINEAR, ASSAY_NOWHERE,
     .each = true, .golden_choice = true, .whole_blocks = 16},
    {"contraction_cut_to_32", "contracted axes are cut to whole blocks of 32", "28", WITH_LINEAR, ASSAY_NOWHERE,
     .each = true, .golden_choice = true, .whole_blocks = 32},
    {"contraction_cut_to_64", "contracted axes are cut to whole blocks of 64", "28", WITH_LINEAR, ASSAY_NOWHERE,
     .each = true, .golden_choice = true, .whole_blocks = 64},
    {"contraction_cut_to_128", "contracted axes are cut to whole blocks of 128", "28", WITH_LINEAR, ASSAY_NOWHERE,
     .each = true, .golden_choice = true, .whole_blocks = 128},

    /* codes and scales */
    {"ties_other", "ties of e2m1 go down instead of to even, or the reverse", "87", QUANTIZE | CACHE, ASSAY_ALONE,
     TEXT(quant_ties, "even>down *>even")},
    {"scale_rounding_other", "scales are rounded down instead of up, or the reverse; or not to powers of two", "44, 87",
     QUANTIZE | CACHE, ASSAY_ALONE, .configure = assay_edit_other_scale_rounding},
    {"scale_division_other", "amax times the reciprocal of the largest instead of over it, or the reverse", "87",
     QUANTIZE | CACHE, ASSAY_ALONE, WHERE(exact_codes), TEXT(quant_scale, "divide>multiply multiply>divide")},
    {"element_division_other", "numbers times the reciprocal of their scale instead of over it, or the reverse", "87",
     QUANTIZE | CACHE, ASSAY_ALONE, WHERE(exact_codes), TEXT(quant_elements, "divide>multiply multiply>divide")},
    {"smallest_amax_missing", "amax has no least value", "87", QUANTIZE | CACHE, ASSAY_ALONE,
     KEY(quant_smallest_amax, TO, 0)},
    {"saturation_missing", "elements beyond the largest become NaN or infinite", "87", QUANTIZE | CACHE, ASSAY_ALONE,
     KEY(quant_saturate, FLIP, 0)},
    {"zero_sign_other", "zeros lose their sign, or keep it", "", QUANTIZE | CACHE, ASSAY_ALONE,
     KEY(quant_negative_zero, FLIP, 0)},
    {"subnormal_scale_other", "2^-127 is no scale, or is one", "87", QUANTIZE | CACHE, ASSAY_ALONE,
     KEY(quant_subnormal_scale, FLIP, 0)},
    {"codes_swapped_in_byte", "of two codes in a byte the first is in the high bits", "85", QUANTIZE, ASSAY_ALONE,
     INTEGERS("outputs", assay_edit_swap_nibbles, .named = "codes")},
    {"scale_code_off_by_one", "the code of every scale is one too large", "87", QUANTIZE, ASSAY_ALONE,
     INTEGERS("outputs", EACH(plus), .by = 1, .named = "scale")},
    {"scale_codes_rolled", "scales belong to the block after", "42, 84", QUANTIZE, ASSAY_ALONE,
     INTEGERS("outputs", assay_edit_move, ALONG("each", next_place), .named = "scale")},
    {"scales_not_swizzled", "scales lie row by row in each tile of 128 x 4", "84", QUANTIZE, ASSAY_ALONE,
     INTEGERS("outputs", assay_edit_move, ALONG("each", swizzled), .named = "scale")},
    {"scale_padding_not_cleared", "the padding of swizzled scales is not 0", "84", QUANTIZE, ASSAY_ALONE,
     INTEGERS("outputs", EACH(padding_of_scales), .named = "scale")},
    {"scales_read_row_by_row", "of swizzled scales each tile is read row by row", "84", DEQUANTIZE, ASSAY_ALONE,
     MOVED("inputs/scale", "each", unswizzled)},
    {"codes_read_swapped", "of two codes in a byte the high bits are read first", "85", DEQUANTIZE, ASSAY_ALONE,
     INPUTS("inputs/codes", assay_edit_swap_nibbles)},
    {"scale_of_next_block", "scales of the block after, along the row", "42, 84", DEQUANTIZE, ASSAY_ALONE,
     MOVED("inputs/scale", "last", next_place)},
    {"scale_of_next_rows", "scales of the block below", "42, 84", DEQUANTIZE, ASSAY_ALONE,
     MOVED("inputs/scale", "first", next_place)},
    {"scale_transposed", "scales lie along the other axis", "84", DEQUANTIZE, ASSAY_ALONE,
     MOVED("inputs/scale", "last two", transposed)},
    {"scale_doubled", "the exponent of every scale is one too large", "87", DEQUANTIZE, ASSAY_ALONE,
     INPUTS("inputs/scale", assay_edit_scale, .by = 2)},
    {"scales_missing", "codes are taken for numbers", "43", DEQUANTIZE, ASSAY_ALONE, REPLACED("inputs/scale", 1)},
    {"tensor_scale_missing", "the scale of the tensor is left out", "86", DEQUANTIZE, ASSAY_ALONE,
     REPLACED("tensor_scale", 1)},
    {"tensor_scale_inverted", "what is divided by the scale of the tensor should be multiplied by it", "86", DEQUANTIZE,
     ASSAY_ALONE, INPUTS("tensor_scale", assay_edit_invert)},

    /* the pages of a cache */
    {"floor_of_amax", "the least scale is taken for the least amax", "68", CACHE, ASSAY_ALONE,
     KEY(quant_smallest_amax, TIMES, 1.0 / 448)},
    {"cache_scales_as_e8m0", "scales keep their exponent alone", "68, 100", CACHE | CACHE_BYTES, ASSAY_ALONE,
     CHANGED("scales as e8m0")},
    {"cache_scales_inverted", "scales are taken for their reciprocals", "68", CACHE | CACHE_BYTES, ASSAY_ALONE,
     CHANGED("scales inverted")},
    {"cache_scales_rolled", "scales belong to the block after", "68", CACHE | CACHE_BYTES, ASSAY_ALONE,
     CHANGED("scales rolled")},
    {"cache_scale_of_zero", "the code 0 of a scale in e8m0 is read as 0, not as 2^-127", "101", CACHE_BYTES,
     ASSAY_ALONE, CHANGED("zero scale")},
    {"cache_scales_of_next_token", "scales are those of the token after in the page", "", CACHE_BYTES, ASSAY_ALONE,
     CHANGED("scales of the next token")},
    {"cache_scales_swizzled", "scales are read as if 4 tokens by 4 blocks of them were a tile on its side", "105",
     CACHE_BYTES, ASSAY_ALONE, CHANGED("scales swizzled")},
    {"cache_codes_as_fnuz", "codes of e4m3fn are read as those of e4m3fnuz, half as large", "102", CACHE_BYTES,
     ASSAY_ALONE, CHANGED("codes as fnuz")},
    {"cache_nibbles_swapped", "the two numbers of a byte are read in the other order", "104", CACHE_BYTES, ASSAY_ALONE,
     CHANGED("nibbles swapped")},
    {"given_scale_multiplied", "the reciprocal of the scale that is given", "68", CACHE | CACHE_BYTES, ASSAY_ALONE,
     CHANGED("given scale multiplied")},
    {"given_scale_ignored", "the scale that is given is left out", "68, 103", CACHE | CACHE_BYTES, ASSAY_ALONE,
     CHANGED("given scale ignored")},
    {"given_scale_of_first_head", "every head has the scale of the first", "68, 103", CACHE | CACHE_BYTES, ASSAY_ALONE,
     CHANGED("scale of the first head")},
    {"given_scale_of_keys", "values have the scale of keys", "68", CACHE | CACHE_BYTES, ASSAY_ALONE,
     CHANGED("scale of keys")},
    {"slot_of_next", "a token goes to the slot after its own", "69", CACHE, ASSAY_ALONE, CHANGED("next slot")},
    {"skipped_slots_written", "a token without a slot goes to the last one", "69", CACHE, ASSAY_ALONE,
     CHANGED("skipped slots")},
    {"page_cleared", "a page is cleared when a token comes to it", "69", CACHE, ASSAY_ALONE, CHANGED("page cleared")},
    {"slots_of_half_pages", "slots are those of pages half as large", "129", CACHE, ASSAY_ALONE,
     CHANGED("slots of half pages")},
    {"cache_rows_with_scales", "codes and scales of a token lie beside each other, not behind those of the page", "70",
     CACHE | CACHE_BYTES, ASSAY_ALONE, CHANGED("rows with scales")},
    {"rope_before_latents", "the rope lies before the latents", "70", CACHE | CACHE_BYTES, ASSAY_ALONE,
     CHANGED("rope first")},
    {"rope_quantised", "the rope goes through e4m3, too", "70", CACHE, ASSAY_ALONE, CHANGED("rope quantised")},
    {"written_stride_ignored", "pages are written as if they had as many rows as tokens", "66", CACHE, ASSAY_ALONE,
     CHANGED("no stride")},
    {"written_layout_other", "heads and tokens of a page are written in the other order", "66", CACHE, ASSAY_ALONE,
     CHANGED("other layout")},
    {"cache_norm_missing", "latents or keys are written without their norm", "121", CACHE, ASSAY_ALONE,
     CHANGED("cache norm missing")},
    {"cache_norm_by_one_more", "the weights of the norm are taken for what is added to 1", "121", CACHE, ASSAY_ALONE,
     CHANGED("cache norm by one more")},
    {"cache_norm_of_others", "the norm is over latents with their rope, or over latents alone in the place of both", "",
     CACHE, ASSAY_ALONE, CHANGED("cache norm of others")},
    {"cache_norm_last", "the norm comes after the rotation", "76", CACHE, ASSAY_ALONE, CHANGED("cache norm last")},
    {"cache_rope_missing", "what should be rotated is written as it came", "122", CACHE, ASSAY_ALONE,
     CHANGED("cache rope missing")},
    {"cache_rope_twice", "what is rotated already is rotated once more", "122", CACHE, ASSAY_ALONE,
     CHANGED("cache rope twice")},
    {"cache_rope_by_slot", "tokens are rotated by their slots, not by their positions", "", CACHE, ASSAY_ALONE,
     CHANGED("cache rope by slot")},
    {"cache_rope_of_rest", "the numbers beside those that should be are rotated", "120", CACHE, ASSAY_ALONE,
     CHANGED("cache rope of the rest")},
    {"cache_rope_of_whole_heads", "whole heads are rotated where a part of them is", "120", CACHE, ASSAY_ALONE,
     KEY(partial_rotary_factor, TO, 1)},
    {"cache_rope_of_halves", "halves are rotated where numbers side by side are a pair", "50, 122", CACHE, ASSAY_ALONE,
     WHERE(pairwise), .keys = {CHANGE(rope_interleave, TO, 0), CHANGE(rope_pairwise, TO, 0)}},
    {"cache_codes_before_rope", "numbers become codes before they are rotated, and once more behind it", "", CACHE,
     ASSAY_NOWHERE, CHANGED("cache codes first")},

    /* training recipes */
    {"recipe_ignored", "nothing is quantised", "43", RECIPE, ASSAY_ALONE, .configure = assay_edit_recipe_ignored},
    {"recipe_blocks_along_rows",
     "for the weight gradient blocks lie along the columns, not the rows that are summed over", "42, 84",
     RECIPE_OF_BLOCKS, ASSAY_ALONE, .recipe_bug = "dw_along_rows"},
    {"recipe_blocks_along_columns", "for the gradient of the input blocks lie along the rows", "42, 84",
     RECIPE_OF_BLOCKS, ASSAY_ALONE, .recipe_bug = "dx_along_columns"},
    {"recipe_forward_codes", "the weight gradient takes x as forward quantised it", "84", RECIPE_OF_BLOCKS, ASSAY_ALONE,
     .recipe_bug = "forward_x"},
    {"recipe_type_other", "e4m3 backward instead of e5m2, or the reverse", "87", RECIPE, ASSAY_ALONE,
     .recipe_bug = "e4m3 e5m2"},
    {"recipe_calibrated_over_other_axis",
     "scales of the output's gradient are those of its columns instead of its rows, "
     "and the reverse",
     "42, 84", RECIPE, ASSAY_ALONE, .recipe_bug = "other_axis"},
    {"recipe_forward_scales_lost", "backward multiplies codes of forward without their scales", "43", RECIPE,
     ASSAY_ALONE, WHERE(products_of_recipe), .recipe_bug = "scales_lost"},
    {"recipe_scales_of_each_expert", "scales by column are of one expert each instead of all", "84", RECIPE,
     ASSAY_ALONE, WHERE(block_or_layer), .recipe_bug = "each_expert"},
    {"recipe_scales_of_all_parts", "scales are of all shards of H or chunks of the embedding instead of each its own",
     "84", RECIPE, ASSAY_ALONE, WHERE(parts_of_products), .recipe_bug = "all_parts"},
    {"recipe_scales_of_next_shard", "gathered codes are multiplied with the scales of the shard after their own", "84",
     ASSAY_IS_FUNCTION, ASSAY_NOWHERE, WHERE(gathers_codes), .recipe_bug = "next_shard"},
    {"recipe_scales_of_receiver", "codes are gathered without their scales, and the receiving shard's are taken", "84",
     ASSAY_IS_FUNCTION, ASSAY_NOWHERE, WHERE(gathers_codes), .recipe_bug = "receiver"},
    {"recipe_scale_rounding_other", "scales are powers of two, or not", "44, 87", RECIPE_OF_BLOCKS, ASSAY_ALONE,
     WHERE(deepseek_v3_recipe), TEXT(quant_scale_rounding, "up>nearest *>up")},
    {"recipe_calibration_other", "a gradient is calibrated by its values instead of a fixed range, or the reverse",
     "87", RECIPE, ASSAY_ALONE, WHERE(fp8_full_recipe),
     TEXT(bwd_quantization_calibration_method, "absmax>fixed,1 *>absmax")},

    /* codes and scales of operands */
    {"operand_scales_missing", "codes of an operand are taken for numbers", "43", CODES, ASSAY_IN_BLOCKS,
     REPLACED(ASSAY_BLOCK_SCALES, 1)},
    {"operand_scale_of_next_block", "scales of the block after along the contraction", "42, 84", CODES, ASSAY_IN_BLOCKS,
     MOVED(ASSAY_BLOCK_SCALES, "contracted", next_place)},
    {"operand_scale_of_neighbour", "scales of the row or column beside", "42, 84", CODES, ASSAY_IN_BLOCKS,
     MOVED(ASSAY_BLOCK_SCALES, "beside", next_place)},
    {"operand_scale_transposed", "scales are read as if their two axes were exchanged", "84", CODES, ASSAY_IN_BLOCKS,
     MOVED(ASSAY_BLOCK_SCALES, "last two", read_transposed)},
    {"operand_scale_of_next_expert", "scales of the expert after", "20", CODES, ASSAY_IN_BLOCKS,
     MOVED(ASSAY_BLOCK_SCALES, "matrices", next_place)},
    {"operand_last_scale_missing", "the last block along the contraction has a scale of zero", "28, 84", CODES,
     ASSAY_IN_BLOCKS, MOVED(ASSAY_BLOCK_SCALES, "contracted", last_place)},
    {"operand_scale_off_by_one", "the exponent of every scale is one too large", "87", CODES, ASSAY_IN_BLOCKS,
     INPUTS(ASSAY_BLOCK_SCALES, assay_edit_scale, .by = 2)},
    {"operand_scale_inverted", "scales that are to be divided by are multiplied by, or the reverse", "86", CODES,
     ASSAY_IN_BLOCKS, INPUTS(ASSAY_BLOCK_SCALES, assay_edit_invert)},
    {"operand_codes_swapped", "of two codes in a byte the high bits are read first", "85", CODES, ASSAY_IN_BLOCKS,
     .change_inputs = assay_edit_swap_pairs},
    {"operand_scales_of_up_for_gate", "gate has the scales of up, and up those of gate", "34", CODES, ASSAY_IN_BLOCKS,
     INPUTS("wi_0_scale wi_0/kernel_scale", assay_edit_swap_gate_up)},
    {"operand_scale_of_first_block", "every block along the contraction has the scale of the first", "42", CODES,
     ASSAY_IN_BLOCKS, MOVED(ASSAY_BLOCK_SCALES, "contracted", first_place)},
    {"operand_scales_at_unpadded_offsets", "scales of experts are looked for without the padding of those before", "84",
     CODES, ASSAY_IN_BLOCKS, MOVED(ASSAY_BLOCK_SCALES, "each", unpadded_offsets)},
    {"operand_scales_interleaved", "scales of fused gate and up are read as interleaved", "34", CODES, ASSAY_IN_BLOCKS,
     MOVED("wi_scale wi/kernel_scale", "last", alternating)},
    {"operand_tensor_scale_missing", "the scale of the tensor is left out", "86", CODES, ASSAY_IN_BLOCKS,
     REPLACED(ASSAY_TENSOR_SCALES, 1)},
    {"operand_tensor_scale_inverted", "what is divided by the scale of the tensor should be multiplied by it", "86",
     CODES, ASSAY_IN_BLOCKS, INPUTS(ASSAY_TENSOR_SCALES, assay_edit_invert)},
    {"operand_tensor_scale_of_gate", "up has the gate's scale of the tensor", "95", CODES, ASSAY_IN_BLOCKS,
     INPUTS("wi_1_tensor_scale wi_1/kernel_tensor_scale", assay_edit_take_from_gate)},
    {"operand_tensor_scale_of_larger", "gate and up have the larger of their two scales of the tensor", "95", CODES,
     ASSAY_IN_BLOCKS, INPUTS("wi_1_tensor_scale wi_1/kernel_tensor_scale", assay_edit_larger_of_both)},
    {"operand_tensor_scale_of_first", "every expert has the scale of the first one's tensor", "86", CODES,
     ASSAY_IN_BLOCKS, MOVED(ASSAY_TENSOR_SCALES, "each", first_place)},

    /* h that the kernel quantises itself */
    {"requantise_missing", "h goes on as it is", "", HIDDEN, ASSAY_NOWHERE, .configure = assay_edit_hidden_as_it_is},
    {"requantise_amax_before_activation", "scales of h are those of gate times up, before the activation", "", HIDDEN,
     ASSAY_NOWHERE, .requantise = assay_requantise_before_activation},
    {"requantise_scale_of_next_block", "scales of the block after, along the row", "42, 84", HIDDEN, ASSAY_IN_BLOCKS,
     HIDDEN_SCALES(assay_edit_move, ALONG("last", next_place))},
    {"requantise_scale_of_next_row", "scales of the row after", "42, 84", HIDDEN, ASSAY_IN_BLOCKS,
     HIDDEN_SCALES(assay_edit_move, ALONG("beside", next_place))},
    {"requantise_scale_transposed", "scales are read as if their two axes were exchanged", "84, 98", HIDDEN,
     ASSAY_IN_BLOCKS, HIDDEN_SCALES(assay_edit_move, ALONG("last two", read_transposed))},
    {"requantise_scale_of_row", "one scale for a row, that of its first block", "42", HIDDEN, ASSAY_IN_BLOCKS,
     HIDDEN_SCALES(assay_edit_move, ALONG("last", first_place))},
    {"requantise_scale_doubled", "the exponent of every scale is one too large", "87", HIDDEN, ASSAY_IN_BLOCKS,
     HIDDEN_SCALES(assay_edit_scale, .by = 2)},
    {"requantise_scale_rounding_other", "scales are no powers of two, or such rounded the other way", "99", HIDDEN,
     ASSAY_NOWHERE, .configure = assay_edit_other_scale_rounding},
    {"requantise_tensor_scale_missing", "the scale of the tensor is left out", "86", HIDDEN, ASSAY_IN_BLOCKS,
     HIDDEN_SCALES(assay_edit_scale, .by = 1, OF_CASE(per_hidden_scale))},
    {"requantise_truncated", "elements are rounded towards zero", "44", HIDDEN, ASSAY_NOWHERE,
     .requantise = assay_requantise_truncated},

    {"local_ids_global", "global expert ids index the experts that a rank has", "20", EXPERTS, ASSAY_IN_BLOCKS,
     KEY(local_expert_offset, TO, 0)},
    {"local_offset_twice", "the offset of a rank's experts is subtracted twice", "21", EXPERTS, ASSAY_IN_BLOCKS,
     KEY(local_expert_offset, TIMES, 2)},
    {"expert_map_ignored", "a rank's experts are taken for the first ones", "20", EXPERTS, ASSAY_IN_BLOCKS,
     INPUTS("expert_map", EACH(first_experts))},

    /* shards and microbatches */
    {"expert_ids_global", "global expert ids index a shard's own experts", "20", EXPERTS, ASSAY_IN_BLOCKS,
     WHERE(expert_shards), MOVED(EXPERT_WEIGHTS, "first", clamped_ids, OF_CASE(expert_shards))},
    {"expert_shard_off_by_one", "rows go to the expert shard after", "21, 24", EXPERTS, ASSAY_IN_BLOCKS,
     WHERE(expert_shards), MOVED(EXPERT_WEIGHTS, "first", next_shard, OF_CASE(expert_shards))},
    {"expert_shard_first_only", "the experts of every shard but the first give nothing", "21", EXPERTS, ASSAY_IN_BLOCKS,
     WHERE(expert_shards), MOVED(EXPERT_WEIGHTS, "each", all_but_first_shard, OF_CASE(expert_shards))},
    {"expert_shard_missing", "the part of the last expert shard is missing from the sum", "24", EXPERTS,
     ASSAY_IN_BLOCKS, WHERE(expert_shards), MOVED(EXPERT_WEIGHTS, "each", last_shard, OF_CASE(expert_shards))},
    {"expert_shard_twice", "the part of the last expert shard is summed twice", "22", EXPERTS, ASSAY_IN_BLOCKS,
     WHERE(expert_shards),
     INPUTS("wo wo_bias", assay_edit_scale, .by = 2, ALONG("each", last_shard), OF_CASE(expert_shards))},
    {"ring_step_missing", "each shard lacks the part of the expert shard before it", "22", EXPERTS, ASSAY_IN_BLOCKS,
     .each_shard = true, WHERE(ring), MOVED(EXPERT_WEIGHTS, "each", shard_before, OF_CASE(expert_shards))},
    {"tensor_part_missing", "the part of the last tensor shard is missing from the up products", "23", EXPERTS,
     ASSAY_IN_BLOCKS, MOVED(UP_WEIGHTS, "second", last_shard, OF_CASE(tensor_shards))},
    {"tensor_sum_twice", "the up products are summed over the tensor shards twice", "22", EXPERTS, ASSAY_IN_BLOCKS,
     MULTIPLIED(UP_WEIGHTS, tensor_shards)},
    {"hidden_part_alone", "y is the part of the first shard of H: nothing is summed", "23", EXPERTS, ASSAY_IN_BLOCKS,
     WHERE(hidden_shards), MOVED("wo", "second", all_but_first_shard, OF_CASE(hidden_shards))},
    {"hidden_shared_part_alone", "of the shared expert the part of the first shard of H: its parts are not summed",
     "38", EXPERTS, ASSAY_IN_BLOCKS, WHERE(hidden_shards),
     MOVED("shared_experts/wo/kernel", "each", all_but_first_shard, OF_CASE(hidden_shards))},
    {"hidden_sum_twice", "the parts of y that shards of H have are summed twice", "22", EXPERTS, ASSAY_IN_BLOCKS,
     WHERE(hidden_shards), MULTIPLIED("wo", hidden_shards)},
    {"hidden_bias_summed", "the bias of wo is added on every shard of H before the sum", "37", EXPERTS, ASSAY_IN_BLOCKS,
     WHERE(hidden_shards), MULTIPLIED("wo_bias", hidden_shards)},
    {"hidden_shards_mismatched", "a shard of H has the columns of up that the shard after should have", "35", EXPERTS,
     ASSAY_IN_BLOCKS, WHERE(hidden_shards),
     MOVED("wi wi_1 wi_1_bias", "last", up_of_next_shard, OF_CASE(hidden_shards))},
    {"hidden_halves_contiguous", "gate and up as one tensor are split over H as if they were one width", "35", EXPERTS,
     ASSAY_IN_BLOCKS, WHERE(hidden_shards), MOVED("wi", "last", halves_contiguous, OF_CASE(hidden_shards))},
    {"hidden_dx_local", "the gradient of x is that of the first shard of H", "59", EXPERTS, ASSAY_IN_BLOCKS,
     .takes = {.of = "gradients/inputs"}, WHERE(hidden_shards),
     MOVED("wi wi_0 wi_1", "last", all_but_first_columns_of_h, OF_CASE(hidden_shards))},
    {"hidden_router_gradient_local", "the router's gradient is that of the first shard's columns of y", "59", EXPERTS,
     ASSAY_IN_BLOCKS, .takes = {.of = "gradients/weights", .named = "gate/kernel"}, WHERE(hidden_shards),
     COTANGENTS("y", assay_edit_move, ALONG("last", all_but_first_shard), OF_CASE(hidden_shards))},
    {"hidden_gradients_scaled", "gradients of what all shards of H have alike are summed over them", "59", EXPERTS,
     ASSAY_IN_BLOCKS, WHERE(hidden_shards),
     RESULTS("gradients/weights", assay_edit_scale, .by = 1, OF_CASE(hidden_shards),
             .named = "gate/kernel gate/bias wo_bias")},
    {"fsdp_gathered_rolled", "weights gathered over fsdp begin with the part of the shard after", "24", EXPERTS,
     ASSAY_IN_BLOCKS, MOVED(UP_WEIGHTS, "fsdp", next_shard, OF_CASE(fsdp_shards))},
    {"fsdp_scattered_rolled", "each fsdp shard has the kernels' gradients of the shard after", "24, 59", EXPERTS,
     ASSAY_IN_BLOCKS, WHERE(weights_on_shards),
     RESULTS("gradients/weights", assay_edit_move, ALONG("fsdp", next_shard), OF_CASE(fsdp_shards), .named = KERNELS)},
    {"expert_axes_exchanged", "experts that lie over expert, then fsdp, are gathered the other way round", "24",
     EXPERTS, ASSAY_IN_BLOCKS, WHERE(weights_on_shards), MOVED(KERNELS, "first", expert_axes_exchanged)},
    {"gathered_halves_concatenated", "gate and up of each shard stay side by side when they are gathered", "35",
     EXPERTS, ASSAY_IN_BLOCKS, WHERE(weights_on_shards), MOVED("wi", "each", halves_concatenated)},
    {"buffer_half", "the buffer of a shard holds half of what it should, or the balanced case alone", "24", EXPERTS,
     ASSAY_IN_BLOCKS, .configure = assay_edit_half_buffer},
    {"buffer_unlimited", "rows beyond the buffer of a shard are kept", "", EXPERTS, ASSAY_IN_BLOCKS,
     KEY(ragged_buffer_factor, TO, -1)},
    {"shard_rows_rolled", "each shard gets the rows of the shard after", "24", EXPERTS, ASSAY_IN_BLOCKS,
     RESULTS("outputs gradients/inputs", assay_edit_move, ALONG("B", next_shard), OF_CASE(shards_of_rows))},
    {"shard_gradients_rolled", "each shard gets the input gradient of the shard after", "24", EXPERTS, ASSAY_IN_BLOCKS,
     RESULTS("gradients/inputs", assay_edit_move, ALONG("B", next_shard), OF_CASE(shards_of_rows))},
    {"shard_rows_summed", "rows are summed over shards that hold different tokens", "23", EXPERTS, ASSAY_IN_BLOCKS,
     RESULTS("outputs", assay_edit_sum_shard_rows)},
    {"losses_of_first_shard", "every shard has the loss and the bias updates of the first", "57, 58", EXPERTS,
     ASSAY_IN_BLOCKS, RESULTS("outputs", assay_edit_move, ALONG("shard", first_place))},
    {"router_gradient_local", "the router's gradient is that of the first shard's tokens", "59", EXPERTS,
     ASSAY_IN_BLOCKS, .takes = {.of = "gradients/weights", .named = "gate/kernel"},
     .change_inputs = assay_edit_keep_first_shard},
    {"gradients_not_summed", "weight gradients are those of the first data and fsdp shard", "59", EXPERTS,
     ASSAY_IN_BLOCKS, .takes = {.of = "gradients/weights"}, .change_inputs = assay_edit_keep_first_replica},
    {"gradients_summed_twice", "weight gradients are summed over data and fsdp twice", "59", EXPERTS, ASSAY_IN_BLOCKS,
     RESULTS("gradients/weights", assay_edit_scale, .by = 1, OF_CASE(replicas))},
    {"gradients_averaged", "weight gradients are means over data and fsdp instead of sums", "59", EXPERTS,
     ASSAY_IN_BLOCKS, RESULTS("gradients/weights", assay_edit_scale, .by = 1, OF_CASE(per_replica))},
    {"expert_gradients_scaled", "gradients of routed experts times the number of expert shards", "59", EXPERTS,
     ASSAY_IN_BLOCKS, WHERE(expert_shards),
     RESULTS("gradients/weights", assay_edit_scale, .by = 1, OF_CASE(expert_shards), .named = EXPERT_WEIGHTS)},
    {"microbatch_choices_first", "every microbatch goes by the choices of the first", "60", LAYER, ASSAY_NOWHERE,
     .golden_choice = true, WHERE(microbatches), MOVED("selected_experts", "first", first_microbatch)},
    {"microbatch_gradients_missing", "weight gradients lack the last microbatch", "59", LAYER, ASSAY_EVERYWHERE,
     .takes = {.of = "gradients/weights"}, WHERE(microbatches), .change_inputs = assay_edit_drop_last_microbatch},

    /* functions of the batch-split module, whose results have an axis of shards */
    {"function_shards_rolled", "each shard has the results of the shard after", "20, 21", ASSAY_IS_FUNCTION,
     ASSAY_NOWHERE, WHERE(function_shards), RESULTS("outputs", assay_edit_move, ALONG("shard", next_place))},
    {"function_sums_twice", "sums over the shards of experts are taken twice", "22", ASSAY_IS_FUNCTION, ASSAY_NOWHERE,
     WHERE(function_sums), RESULTS("outputs", assay_edit_scale, .by = 1, OF_CASE(expert_shards))},
    {"function_weights_unsorted", "rows are sorted by expert, and their routing weights are not", "24, 39",
     ASSAY_IS_FUNCTION, ASSAY_NOWHERE, .change_results = assay_edit_unsort_weights},

    /* expert MLP and combine */
    {"gate_up_swapped", "gate and up exchanged", "34", GATED, ASSAY_IN_BLOCKS,
     INPUTS("wi wi/kernel wi_0 wi_0/kernel wi_0/bias wi_0_bias", assay_edit_swap_gate_up)},
    {"fused_interleaved", "fused gate and up read as interleaved", "34, 35", GATED, ASSAY_ALONE,
     MOVED("wi wi/kernel", "last", interleaved)},
    {"fused_shards_other", "gate and up of each tensor shard side by side taken for all of gate first, or the reverse",
     "35", GATED, ASSAY_IN_BLOCKS, MOVED("wi wi/kernel", "last", other_layout)},
    {"dx_without_gate", "the input gradient lacks the part of the gate", "41", GATED, ASSAY_IN_BLOCKS,
     .golden_choice = true, STEP("linear", "wi wi/kernel wi_0 wi_0/kernel", DETACHED, .input = 0)},
    {"dx_without_up", "the input gradient lacks the part of up", "41", GATED, ASSAY_IN_BLOCKS, .golden_choice = true,
     STEP("linear", "wi wi/kernel wi_1 wi_1/kernel", DETACHED, .input = 1)},
    {"activation_other", "gelu instead of silu, or the reverse", "", GATED, ASSAY_NOWHERE,
     TEXT(mlp_activations, "silu>gelu gelu>silu")},
    {"alpha_other", "the gate goes into its sigmoid as it is, or times another number than 1.702", "36", GATED,
     ASSAY_NOWHERE, WHERE(gpt_oss_gate), .keys = {{.how = ASSAY_KEY_ALPHA, .by = 1}}},
    {"clamp_missing", "the clamp of the gate is dropped", "36", GATED, ASSAY_NOWHERE,
     KEY(mlp_activations_limit, TO, 1e30)},
    {"biases_missing", "the biases of the experts are dropped", "37", GATED, ASSAY_IN_BLOCKS,
     REPLACED("wi_0_bias wi_1_bias wo_bias wi_0/bias wi_1/bias wo/bias", 0)},
    {"down_bias_twice", "the down bias is added twice", "37", GATED, ASSAY_NOWHERE,
     INPUTS("wo_bias wo/bias", assay_edit_scale, .by = 2)},
    {"shared_expert_missing", "the shared expert is dropped", "11", EXPERTS, ASSAY_IN_BLOCKS,
     KEY(shared_experts, TO, 0)},
    {"shared_expert_scaled", "the shared expert is scaled as a routed one", "10", EXPERTS, ASSAY_IN_BLOCKS,
     MULTIPLIED("shared_experts/wo/kernel", scaling_factor)},
    {"shared_slot_scaled", "the slot of the shared expert has the weight of engines that scale elsewhere", "10",
     EXPERTS, ASSAY_IN_BLOCKS, INPUTS("wo", assay_edit_scale_shared_slots)},
    {"weight_other_side", "the routing weight is on the input of experts instead of the output, or the reverse", "39",
     EXPERTS, ASSAY_NOWHERE, KEY(apply_router_weight_on_input, FLIP, 0)},
    {"shared_gate_missing", "the shared expert's gate is left out, or a softmax of its one logit", "11", EXPERTS,
     ASSAY_IN_BLOCKS, WHERE(shared_gate), TEXT(decoder_block, "*>qwen3_moe")},
    {"sums_in_bf16", "sums are accumulated in bfloat16", "40", WITH_PRODUCTS, ASSAY_NOWHERE, .golden_choice = true,
     .degrade = assay_degrade_sums, .makes = "sums in bfloat16", .asks = "sum in bfloat16"},
    {"operands_in_fp8", "products of operands rounded to e4m3", "44", WITH_PRODUCTS, ASSAY_NOWHERE,
     .golden_choice = true, .degrade = assay_degrade_operands, .makes = "operands in e4m3",
     .asks = "multiply operands that are rounded to e4m3"},
    {"intermediates_in_bf16", "what is stored between kernels is rounded to bfloat16", "", WITH_INTERMEDIATES,
     ASSAY_NOWHERE, .golden_choice = true, .degrade = assay_degrade_intermediates, .makes = "intermediates in bfloat16",
     .asks = "store intermediates in bfloat16"},

    /* MLA, rotary embedding, attention */
    {"mscale_missing", "the factor of mscale is left out of the softmax scale", "46", LATENT, ASSAY_IN_BLOCKS,
     WHERE(yarn), KEY(mscale, TO, 0)},
    {"query_scale_missing", "queries without the root of the head size, or with it twice", "48", ATTENTION,
     ASSAY_IN_BLOCKS, INPUTS("query wq_b/kernel", assay_edit_scale_by_root)},
    {"scale_from_hidden", "the softmax scale from the model's width over its heads", "48", LATENT, ASSAY_NOWHERE,
     WHERE(no_layer), MULTIPLIED("wq_b/kernel query/kernel", head_over_hidden)},
    {"head_part_alone", "y is the part of the first shard's heads: nothing is summed", "38", PROJECTED, ASSAY_IN_BLOCKS,
     WHERE(head_shards), MOVED("out/kernel", "each", all_but_first_shard, OF_CASE(head_shards))},
    {"head_sum_twice", "what is the sum over shards of heads already is summed over them again", "22", PROJECTED,
     ASSAY_IN_BLOCKS, WHERE(head_shards), MULTIPLIED("out/kernel", head_shards)},
    {"head_axes_exchanged", "queries of the heads that a shard would have in the order ('expert', 'model')", "",
     PROJECTED, ASSAY_IN_BLOCKS, WHERE(head_shards), MOVED("wq_b/kernel query/kernel", "N", head_axes_exchanged)},
    {"latent_gradients_local", "gradients of the latents' weights are those of the first shard's heads", "59", LATENT,
     ASSAY_IN_BLOCKS,
     .takes = {.of = "gradients/weights", .named = "wq_a/kernel q_norm/scale wkv_a/kernel kv_norm/scale"},
     WHERE(head_shards), MOVED("out/kernel", "each", all_but_first_shard, OF_CASE(head_shards))},
    {"rope_attention_scaling", "cosine and sine are scaled, or not, the other way round", "47", ROPE, ASSAY_NOWHERE,
     KEY(rope_attention_scaling, FLIP, 0)},
    {"rope_pairing", "pairs come out side by side instead of in halves, or the reverse", "50", ROPE, ASSAY_ALONE,
     KEY(rope_pairwise, FLIP, 0)},
    {"rope_interleave", "pairs are read as halves instead of side by side, or the reverse", "50", ROPE, ASSAY_IN_BLOCKS,
     .keys = {CHANGE(rope_interleave, GIVEN, 0), CHANGE(rope_interleave, FLIP, 0)}},
    {"rope_truncation", "the ramp's ends are truncated, or not, the other way round", "49", ROPE, ASSAY_NOWHERE,
     KEY(rope_truncate, FLIP, 0)},
    {"rope_type", "plain instead of YaRN, or the reverse", "49", ROPE, ASSAY_NOWHERE,
     .keys = {{ASSAY_KEY_AT_rope_type, ASSAY_KEY_EXCHANGED, 0, "yarn>default *>yarn"},
              CHANGE(rope_interleave, GIVEN, 0)}},
    {"rope_factor", "YaRN's factor is twice what it should be", "49", ROPE, ASSAY_NOWHERE, WHERE(yarn),
     KEY(rope_factor, TIMES, 2)},
    {"rope_betas", "YaRN's ramp ends at half the rotations", "49", ROPE, ASSAY_NOWHERE, WHERE(yarn),
     KEY(beta_fast, TIMES, 0.5)},
    {"rope_timescale", "another base of the frequencies", "49", ROPE, ASSAY_ALONE, KEY(rope_max_timescale, TIMES, 50)},
    {"positions_zero", "every token is at position 0", "46", ROPE, ASSAY_IN_BLOCKS, REPLACED("positions", 0)},
    {"positions_shifted", "positions count from 1", "", ROPE, ASSAY_ALONE, INPUTS("positions", EACH(next_position))},
    {"positions_in_bf16", "positions are rounded to bfloat16", "51", ROPE, ASSAY_NOWHERE,
     INPUTS("positions", EACH(position_in_bf16))},
    {"rope_key_missing", "the part of the key that is rotated is zero", "50", LATENT, ASSAY_IN_BLOCKS,
     STEP("rope", "rotated_key", TIMES, .by = 0)},
    {"kv_norm_scale_missing", "the scale of the latent norm of keys and values is left out", "52", LATENT,
     ASSAY_NOWHERE, REPLACED("kv_norm/scale", 1)},
    {"kv_norm_missing", "the latent norm of keys and values is left out", "52", LATENT, ASSAY_NOWHERE,
     STEP("rms_norm", "kv_norm/scale", TIMES, .by = 1)},
    {"q_norm_scale_missing", "the scale of the latent norm of queries is left out", "52", LATENT, ASSAY_NOWHERE,
     REPLACED("q_norm/scale", 1)},
    {"norm_scales_missing", "every norm is without its scale", "52", NORMED | CACHE, ASSAY_ALONE,
     REPLACED("scale per_expert_scale", 1)},
    {"epsilon_other", "epsilon 1e-5 instead of 1e-6, or the reverse", "52", NORMED | CACHE, ASSAY_NOWHERE,
     .configure = assay_edit_other_epsilon},
    {"epsilon_doubled", "epsilon twice; or outside the root, of vectors of size 1", "52", NORMED | CACHE, ASSAY_NOWHERE,
     .keys = {CHANGE(normalization_layer_epsilon, TIMES, 2), CHANGE(latent_norm_epsilon, TIMES, 2)}},
    {"mask_off_by_one", "keys and values of the token before", "55", ATTENTION, ASSAY_ALONE,
     MOVED("key value", "second", held_back), STEP(NULL, "key_proj value_proj", HELD_BACK)},
    {"segments_ignored", "tokens see other documents", "55", ATTENTION, ASSAY_ALONE,
     INPUTS("segment_ids", EACH(one_segment))},
    {"padding_not_masked", "tokens see padding", "55, 57", ATTENTION, ASSAY_NOWHERE, KEY(mask_padding, TO, false)},
    {"next_key_seen", "queries see the key after their own", "55", ATTENTION, ASSAY_IN_BLOCKS, CHANGED("next key")},
    {"blind_rows_nan", "rows that see no key are NaN", "55, 62", ATTENTION | MERGE, ASSAY_IN_BLOCKS,
     CHANGED("blind rows")},
    {"heads_rolled", "queries belong to the head before", "54", ATTENTION, ASSAY_NOWHERE,
     MOVED("wq_b/kernel query/kernel query", "N", next_place)},
    {"lse_in_base_2", "the log-sum-exp is in base 2", "53", ATTENTION | MERGE, ASSAY_ALONE,
     RESULTS("outputs", assay_edit_scale, .by = LOG2_E, .named = "lse")},
    {"lse_transposed", "log-sum-exps of heads by tokens lie as those of tokens by heads, or the reverse", "133",
     MERGE | DECODE, ASSAY_ALONE,
     RESULTS("outputs", assay_edit_move, ALONG("last two", read_transposed), .named = "lse")},
    {"empty_row_finite", "where there is no key lse is a large negative number, not an infinity", "134", MERGE | DECODE,
     ASSAY_ALONE, RESULTS("outputs", EACH(finite), .by = -5e4, .named = "lse")},
    {"kv_heads_modulo", "query head n reads the keys of head n % Nkv", "71", SHARING, ASSAY_IN_BLOCKS,
     CHANGED("heads modulo")},
    {"window_one_longer", "a window of one key more", "72", SHARING, ASSAY_IN_BLOCKS, WHERE(window),
     KEY(sliding_window_size, PLUS, 1)},
    {"window_ignored", "a local layer sees every earlier key", "72", SHARING, ASSAY_IN_BLOCKS, WHERE(window),
     KEY(sliding_window_size, TO, WHOLE_SEQUENCE)},
    {"sinks_missing", "sinks never reach the softmax", "73", SHARING | MERGE, ASSAY_IN_BLOCKS,
     REPLACED("sinks", NO_SINK)},
    {"sinks_twice", "a sink is counted twice in the sum", "74", SHARING | MERGE, ASSAY_IN_BLOCKS,
     INPUTS("sinks", EACH(plus), .by = 1 / LOG2_E)},
    {"sinks_in_base_2", "a sink is the exponent of 2", "74", SHARING | MERGE, ASSAY_IN_BLOCKS,
     INPUTS("sinks", assay_edit_scale, .by = 1 / LOG2_E)},
    {"sinks_in_lse", "the log-sum-exp counts the sink", "75", SHARING | MERGE, ASSAY_ALONE,
     .change_results = assay_edit_sinks_in_lse},
    {"sinks_not_in_backward", "backward goes by the log-sum-exp without the sink", "75", SHARING | MERGE,
     ASSAY_IN_BLOCKS, REPLACED("sinks", NO_SINK), .takes = {.of = "gradients"}},
    {"merge_unweighed", "the parts of attention weigh alike, whatever their log-sum-exp", "67", MERGE, ASSAY_IN_BLOCKS,
     REPLACED("partial_lse", 1)},
    {"merge_in_other_base", "log-sum-exps of parts are taken for those of the other base", "53", MERGE, ASSAY_IN_BLOCKS,
     TEXT(lse_base, "e>2 2>e")},
    {"partial_lse_transposed", "log-sum-exps of parts are read as those of tokens by heads", "133", MERGE,
     ASSAY_IN_BLOCKS, MOVED("partial_lse", "last two", read_transposed)},
    {"parts_at_other_strides", "of parts but the first heads and tokens are read in the other order", "66", MERGE,
     ASSAY_IN_BLOCKS, INPUTS("partial_out", assay_edit_other_strides)},
    /* a few tokens over a cache */
    {"scale_of_latent", "scores are scaled by the width of the absorbed query (576^-1/2)", "61", DECODE,
     ASSAY_IN_BLOCKS, CHANGED("latent scale")},
    {"value_of_last_numbers", "the value is the last numbers of a latent key, not the first", "61", DECODE,
     ASSAY_IN_BLOCKS, CHANGED("last numbers")},
    {"empty_row_other", "where there is no key lse is the other infinity", "62", MERGE | DECODE, ASSAY_IN_BLOCKS,
     TEXT(empty_row, "inf>-inf -inf>inf")},
    {"empty_split_nan", "a part without keys holds NaN, which its weight of 0 does not take out", "62", MERGE | DECODE,
     ASSAY_IN_BLOCKS, CHANGED("empty splits")},
    {"last_page_lost", "the keys of a page that is not full are left out", "63", DECODE, ASSAY_IN_BLOCKS,
     CHANGED("partial page")},
    {"last_page_whole", "all rows of the last page are read", "63", DECODE, ASSAY_IN_BLOCKS, CHANGED("whole page")},
    {"page_too_many", "one page more is read where the last one is full", "63", DECODE, ASSAY_IN_BLOCKS,
     CHANGED("next page")},
    {"lengths_ignored", "every page of the table is read, entries that are none as page 0", "63, 64", DECODE,
     ASSAY_IN_BLOCKS, CHANGED("whole table")},
    {"length_of_next", "the length is that of the next sequence", "63", DECODE, ASSAY_IN_BLOCKS,
     CHANGED("next length")},
    {"newest_key_missing", "a length is one short: the newest key is not seen", "130", DECODE, ASSAY_IN_BLOCKS,
     CHANGED("newest key")},
    {"length_plus_one", "a length is one too large: the row behind the newest key is seen", "130", DECODE,
     ASSAY_IN_BLOCKS, CHANGED("one key more")},
    {"lanes_counted", "up to the end of the last page keys that are zeros are counted", "131", DECODE, ASSAY_IN_BLOCKS,
     CHANGED("zero lanes")},
    {"tail_times_zero", "the rest of the last page is multiplied by 0, which does not take its NaN out", "132", DECODE,
     ASSAY_IN_BLOCKS, CHANGED("weighed tail")},
    {"window_of_pages", "a window begins where its first page does", "128", DECODE, ASSAY_IN_BLOCKS,
     CHANGED("pages of the window")},
    {"masked_scores_capped", "masked scores are capped, and weigh exp(-cap)", "127", DECODE, ASSAY_IN_BLOCKS,
     CHANGED("capped mask")},
    {"table_of_first", "every sequence reads the pages of the first one", "63", DECODE, ASSAY_IN_BLOCKS,
     CHANGED("first table")},
    {"table_transposed", "the block table is read with its axes exchanged", "63", DECODE, ASSAY_IN_BLOCKS,
     CHANGED("table transposed")},
    {"table_ignored", "pages are read in their order in memory", "63", DECODE, ASSAY_IN_BLOCKS, CHANGED("no table")},
    {"table_wraps", "every page of the table is read, an entry of -1 as the last page of all", "135", DECODE,
     ASSAY_IN_BLOCKS, CHANGED("wrapped table")},
    {"pages_adjacent", "of two entries of the table the second is taken for the page after the first", "129", DECODE,
     ASSAY_IN_BLOCKS, CHANGED("adjacent pages")},
    {"pages_halved", "the table is read as one of pages half as large", "129", DECODE, ASSAY_IN_BLOCKS,
     CHANGED("half pages")},
    {"causal_from_start", "token i of several sees the first i + 1 keys of the cache", "65", DECODE, ASSAY_IN_BLOCKS,
     CHANGED("first keys")},
    {"causal_missing", "each of several tokens sees all keys", "65", DECODE, ASSAY_IN_BLOCKS, CHANGED("all keys")},
    {"page_stride_ignored", "pages are read as if they had as many rows as keys", "66", DECODE, ASSAY_IN_BLOCKS,
     CHANGED("no stride")},
    {"cache_layout_other", "heads and rows of a cache are read in the other order", "66", DECODE, ASSAY_IN_BLOCKS,
     CHANGED("other layout")},
    {"split_weights_of_largest", "splits weigh by their largest scores, not by their log-sum-exps", "67", DECODE,
     ASSAY_IN_BLOCKS, CHANGED("largest of a split")},
    {"last_split_lost", "the last split is not merged", "67", DECODE, ASSAY_IN_BLOCKS, CHANGED("last split")},
    {"part_lse_of_piece", "the log-sum-exp of a part is that of the last half of its keys", "107", DECODE,
     ASSAY_IN_BLOCKS, CHANGED("lse of a piece")},
    {"lse_of_last_part", "the log-sum-exp is that of the last part", "107", DECODE, ASSAY_IN_BLOCKS,
     CHANGED("lse of the last part")},
    {"merge_base_other", "parts in base e are merged as if in base 2, or the reverse", "53", DECODE, ASSAY_IN_BLOCKS,
     CHANGED("other base")},
    {"merge_strides_of_first",
     "heads of the last part lie further apart than the merge thinks, as views of padded values", "66", DECODE,
     ASSAY_IN_BLOCKS, CHANGED("merge strides")},
    {"empty_part_counted", "a part without keys has a log-sum-exp of 0, and so its weight", "106", DECODE,
     ASSAY_IN_BLOCKS, CHANGED("empty parts counted")},
    {"chunk_offset_missing", "every chunk of the context reads the keys of the first one", "108", DECODE,
     ASSAY_IN_BLOCKS, CHANGED("first chunk")},
    {"context_causal", "chunks of the context have the causal mask of the new tokens", "108", DECODE, ASSAY_IN_BLOCKS,
     CHANGED("causal context")},
    {"index_below_0_first", "an index below 0 is taken for row 0", "110", DECODE, ASSAY_IN_BLOCKS,
     CHANGED("index below 0 as the first")},
    {"index_below_0_last", "an index below 0 counts from the end of the cache", "110", DECODE, ASSAY_IN_BLOCKS,
     CHANGED("index below 0 as the last")},
    {"index_beyond_unmasked", "an index behind the cache is not masked", "109", DECODE, ASSAY_IN_BLOCKS,
     CHANGED("index beyond as the last")},
    {"topk_length_ignored", "every entry of a list is read", "111", DECODE, ASSAY_IN_BLOCKS, CHANGED("all entries")},
    {"topk_tile_whole", "entries behind topk_length are read as far as the tile goes, of 8", "111", DECODE,
     ASSAY_IN_BLOCKS, CHANGED("whole tile")},
    {"indices_of_pages", "an index is taken for that of a page", "112", DECODE, ASSAY_IN_BLOCKS,
     CHANGED("index of a page")},
    {"indices_local", "indices of all rows count from a sequence's own share of them", "112", DECODE, ASSAY_IN_BLOCKS,
     CHANGED("index of the sequence")},
    {"list_of_first_token", "every token of a sequence reads the list of the first one", "113", DECODE, ASSAY_IN_BLOCKS,
     CHANGED("first list")},
    {"sinks_of_splits", "the sink is counted in every split", "74", DECODE, ASSAY_IN_BLOCKS,
     CHANGED("sinks of splits")},
    {"sink_gradients_missing", "nothing flows back into the sinks", "75", SHARING | MERGE, ASSAY_IN_BLOCKS,
     RESULTS("gradients/weights", assay_edit_fill, .by = 0, .named = "sinks")},
    {"qk_norms_missing", "the norms of queries and keys are left out", "76", GROUPED, ASSAY_IN_BLOCKS,
     STEP("rms_norm", "query_norm/scale key_norm/scale", TIMES, .by = 1)},
    {"qk_norm_scales_missing", "the norms of queries and keys are without their scales", "76", GROUPED, ASSAY_IN_BLOCKS,
     REPLACED("query_norm/scale key_norm/scale", 1)},
    {"projection_biases_missing", "the biases of the projections are dropped", "77", GROUPED, ASSAY_IN_BLOCKS,
     REPLACED("query/bias key/bias value/bias out/bias qkv_proj/bias", 0)},
    {"head_scale_other", "queries are scaled by the root of head_dim where their kernel has it, or not at all", "48",
     GROUPED, ASSAY_IN_BLOCKS, .configure = assay_edit_other_query_scale},
    {"functions_in_bf16", "exponentials, norms and phases in bfloat16", "51", WITH_FUNCTIONS, ASSAY_NOWHERE,
     .golden_choice = true, .degrade = assay_degrade_functions, .makes = "exponentials, norms and phases in bfloat16",
     .asks = "take exponentials, norms or phases in bfloat16"},
    {"previous_token", "inputs of the row before", "21, 60", ASSAY_HAS_X, ASSAY_IN_BLOCKS,
     MOVED("x", "rows", held_back)},

    {"windows_elsewhere", "layers with a sliding window are without, the others have it", "78", GROUPED,
     ASSAY_EVERYWHERE, WHERE(windows), .sets = {FLAG(windows_in_odd_layers)}},
    {"layer_norms_exchanged", "the norms before attention and before the experts are exchanged", "79", LAYER,
     ASSAY_EVERYWHERE, INPUTS("pre_self_attention_layer_norm/scale", assay_edit_exchange_layer_norms)},
    {"residual_missing", "the second addition of a layer is left out", "", LAYER, ASSAY_EVERYWHERE,
     STEP("add", "layer_sum", TIMES, .input = 1, .by = 1)},

    /* training state */
    {"balance_loss_missing", "the balance loss is zero", "57", ROUTER, ASSAY_IN_BLOCKS,
     RESULTS("outputs", assay_edit_fill, .by = 0, .named = "lb_loss")},
    {"balance_loss_twice", "the balance loss is twice what it should be", "57", ROUTER, ASSAY_NOWHERE,
     KEY(load_balance_loss_weight, TIMES, 2)},
    {"balance_densities_other", "densities of each sequence instead of all tokens, or the reverse", "57", ROUTER,
     ASSAY_NOWHERE, .configure = assay_edit_other_densities},
    {"balance_bias_other", "the bias that selects has a part in the balance loss, or the reverse", "57", ROUTER,
     ASSAY_NOWHERE, WHERE(biased_balance), KEY(load_balance_loss_pre_bias, FLIP, 0)},
    {"z_loss_missing", "the z-loss is zero", "57", ROUTER, ASSAY_IN_BLOCKS,
     RESULTS("outputs", assay_edit_fill, .by = 0, .named = "z_loss")},
    {"z_loss_twice", "the z-loss is twice what it should be", "57", ROUTER, ASSAY_NOWHERE,
     KEY(router_z_loss_weight, TIMES, 2)},
    {"loss_gradients_missing", "nothing flows back from the losses of the router", "57", ROUTER, ASSAY_NOWHERE,
     COTANGENTS("lb_loss z_loss", assay_edit_scale, .by = 0)},
    {"losses_times_shards", "losses and what flows back from them are times the number of shards once more", "57",
     EXPERTS, ASSAY_NOWHERE, COTANGENTS("lb_loss z_loss", assay_edit_scale, .by = 1, OF_CASE(token_shards)),
     RESULTS("outputs", assay_edit_scale, .by = 1, OF_CASE(token_shards), .named = "lb_loss z_loss")},
    {"bias_updates_negated", "the bias is updated the wrong way", "58", ROUTER, ASSAY_IN_BLOCKS,
     RESULTS("outputs", assay_edit_scale, .by = -1, .named = "bias_updates")},

    /* results that are wrong as a whole */
    {"zero_outputs", "outputs are zero", "", 0, ASSAY_EVERYWHERE, RESULTS("outputs", assay_edit_fill, .by = 0)},
    {"zero_gradients", "gradients are zero", "57, 59", 0, ASSAY_EVERYWHERE,
     RESULTS("gradients", assay_edit_fill, .by = 0)},
    {"zero_weight_gradients", "weight gradients are never computed", "59", ASSAY_HAS_WEIGHTS, ASSAY_EVERYWHERE,
     RESULTS("gradients/weights", assay_edit_fill, .by = 0)},
    {"zero_input_gradients", "gradients of the inputs are never computed", "54", 0, ASSAY_EVERYWHERE,
     RESULTS("gradients/inputs", assay_edit_fill, .by = 0)},
    {"zero_router_gradient", "nothing flows back into the router", "18, 59", ROUTER, ASSAY_IN_BLOCKS,
     RESULTS("gradients", assay_edit_fill, .by = 0, .named = "gate/kernel logits")},
    {"router_gradient_lost", "nothing flows back through the routing weights", "18, 59", ROUTER, ASSAY_NOWHERE,
     .golden_choice = true, CHANGED("router")},
    {"negated_outputs", "outputs with the wrong sign", "", 0, ASSAY_EVERYWHERE,
     RESULTS("outputs", assay_edit_scale, .by = -1)},
    {"negated_gradients", "gradients with the wrong sign", "", 0, ASSAY_EVERYWHERE,
     RESULTS("gradients", assay_edit_scale, .by = -1)},
    {"outputs_1_2^-7", "outputs times 1 + 2^-7", "", 0, ASSAY_NOWHERE,
     RESULTS("outputs", assay_edit_scale, .by = 1 + 0x1p-7)},
    {"gradients_99", "gradients are 1 % too small", "59", 0, ASSAY_NOWHERE,
     RESULTS("gradients", assay_edit_scale, .by = 0.99)},
    {"integers_off_by_one", "indices and counts are one too large", "21", SORT, ASSAY_ALONE,
     INTEGERS("outputs routing", EACH(plus), .by = 1)},
    {"integers_rolled", "indices and counts of the place after", "20, 29", SORT, ASSAY_ALONE,
     INTEGERS("outputs routing", assay_edit_move, ALONG("each", next_place))},

    /* results that are wrong in part: each tensor must say so by itself */
    {"nan_last_element", "the last element is never written", "26, 33", 0, ASSAY_EVERYWHERE, .each = true,
     RESULTS(EVERYTHING, assay_edit_fill, ALONG("each", last_place), .by = NAN)},
    {"doubled", "every value is added twice", "8, 22, 38", 0, ASSAY_NOWHERE, .each = true,
     RESULTS(EVERYTHING, assay_edit_scale, .by = 2)},
    {"halved", "every value is divided by two", "59", 0, ASSAY_NOWHERE, .each = true,
     RESULTS(EVERYTHING, assay_edit_scale, .by = 0.5)},
    {"scaled_by_root", "scaled by the root of the width", "48", 0, ASSAY_NOWHERE, .each = true,
     RESULTS(EVERYTHING, assay_edit_scale_by_root)},
    {"scaled_1_2^-7", "a factor of 1 + 2^-7", "", 0, ASSAY_NOWHERE, .each = true,
     RESULTS(EVERYTHING, assay_edit_scale, .by = 1 + 0x1p-7)},
    {"scaled_1_2^-8", "a factor of 1 + 2^-8", "", 0, ASSAY_NOWHERE, .each = true,
     RESULTS(EVERYTHING, assay_edit_scale, .by = 1 + 0x1p-8)},
    {"rows_reversed", "rows in the reverse order", "24", 0, ASSAY_NOWHERE, .each = true,
     RESULTS(EVERYTHING, assay_edit_move, ALONG("rows or numbers", reversed))},
    {"rows_shifted", "each row is that of the row before", "21, 24", 0, ASSAY_NOWHERE, .each = true,
     RESULTS(EVERYTHING, assay_edit_move, ALONG("rows or numbers", place_before))},
    {"transposed", "square matrices transposed", "", ASSAY_HAS_WEIGHTS, ASSAY_NOWHERE, .each = true,
     RESULTS(EVERYTHING, assay_edit_move, ALONG("last two", transposed))},
    {"columns_swapped", "first and last column exchanged", "", 0, ASSAY_NOWHERE, .each = true,
     RESULTS(EVERYTHING, assay_edit_move, ALONG("last", ends_exchanged))},
    {"halves_swapped", "the two halves of each row exchanged", "34, 50", 0, ASSAY_NOWHERE, .each = true,
     RESULTS(EVERYTHING, assay_edit_move, ALONG("last", halves_exchanged))},
    {"last_row_zero", "the last row is zero", "29, 30", 0, ASSAY_NOWHERE, .each = true,
     RESULTS(EVERYTHING, assay_edit_fill, ALONG("rows", last_place), .by = 0)},
    {"last_row_stale", "the last row is that of the row before", "33", 0, ASSAY_NOWHERE, .each = true,
     RESULTS(EVERYTHING, assay_edit_move, ALONG("rows", last_stale))},
    {"last_tile_zero", "the last tile of 128 columns, or half of them, is zero", "28, 42, 43", 0, ASSAY_NOWHERE,
     .each = true, RESULTS(EVERYTHING, assay_edit_scale, ALONG("last", last_tile_or_half), .number = 128, .by = 0)},
    {"last_columns_zero", "the last 8 columns, or half of them, are zero", "28, 54", 0, ASSAY_NOWHERE, .each = true,
     RESULTS(EVERYTHING, assay_edit_move, ALONG("last", last_or_half), .number = 8)},
    {"last_tile_off", "the last tile of 128 columns, or half of them, is off by 2 %", "42, 45", 0, ASSAY_NOWHERE,
     .each = true, RESULTS(EVERYTHING, assay_edit_scale, ALONG("last", last_tile_or_half), .number = 128, .by = 1.02)},
    {"last_expert_zero", "nothing of the last expert", "25", ROUTER | GROUPS, ASSAY_NOWHERE, .each = true,
     RESULTS(EVERYTHING, assay_edit_scale, ALONG("expert", last_place), .by = 0)},
    {"empty_expert_unwritten", "gradients of experts without tokens are NaN", "25", EXPERTS | GROUPS, ASSAY_NOWHERE,
     .each = true, RESULTS("gradients", assay_edit_empty_experts_to_nan)},
    {"last_expert_doubled", "the last expert is summed twice", "22, 23", ROUTER | GROUPS, ASSAY_NOWHERE, .each = true,
     RESULTS(EVERYTHING, assay_edit_scale, ALONG("expert", last_place), .by = 2)},
    {"experts_exchanged", "the first two experts' parts exchanged", "20", EXPERTS | GROUPS, ASSAY_NOWHERE, .each = true,
     RESULTS(EVERYTHING, assay_edit_move, ALONG("experts first", first_two_exchanged))},
    {"last_head_zero", "nothing of the last head", "54", ROPE | ATTENTION, ASSAY_NOWHERE, .each = true,
     RESULTS(EVERYTHING, assay_edit_scale, ALONG("N", last_place), .by = 0)},
    {"last_batch_row_zero", "nothing of the last batch row", "54", ASSAY_PART_ALL, ASSAY_NOWHERE, .each = true,
     RESULTS(EVERYTHING, assay_edit_scale, ALONG("B", last_of_several), .by = 0)},
    {"truncated", "results are rounded towards zero", "44", 0, ASSAY_NOWHERE, .each = true,
     RESULTS(EVERYTHING, assay_edit_truncate)},
    {"stored_coarser", "results are rounded to a coarser type first", "13, 40", 0, ASSAY_NOWHERE, .each = true,
     RESULTS(EVERYTHING, assay_edit_coarser)},
};
const int assay_mutant_count = sizeof assay_mutants / sizeof *assay_mutants;

const assay_mutant *assay_mutant_by_name(const char *name)
{
    for (int i = 0; i < assay_mutant_count; i++) {
        if (strcmp(assay_mutants[i].name, name) == 0) return &assay_mutants[i];
    }
    for (int i = 0; i < assay_ignored_setting_count; i++) {
        if (strcmp(assay_ignored_settings[i].name, name) == 0) return &assay_ignored_settings[i];
    }
    return NULL;
}

const char *assay_mutant_way(const assay_mutant *mutant)
{
    if (assay_mutant_changes_configuration(mutant)) return "configuration";
    if (assay_mutant_changes_steps(mutant)) return "steps";
    if (mutant->degrade != NULL || assay_mutant_is_lossy(mutant)) return "arithmetic";
    if (assay_mutant_requantises(mutant)) return "arithmetic";
    return assay_mutant_changes_inputs(mutant) || mutant->other_seed ? "inputs" : "results";
}

bool assay_mutant_changes_steps(const assay_mutant *mutant)
{
    return mutant->step.how != ASSAY_STEP_AS_IT_IS;
}

bool assay_mutant_is_lossy(const assay_mutant *mutant)
{
    return mutant->whole_blocks > 0 || mutant->whole_rows != 0;
}

bool assay_mutant_requantises(const assay_mutant *mutant)
{
    return mutant->requantise != NULL || mutant->hidden_scales.edit != NULL;
}

bool assay_mutant_is_evaluated(const assay_mutant *mutant)
{
    return strcmp(assay_mutant_way(mutant), "results") != 0;
}

static unsigned traits_of(const assay_plan *plan)
{
    unsigned traits = plan->operation->parts;
    const assay_quant_recipe *recipe = assay_quant_recipe_by_name(plan->c->config.quant_recipe.text);
    if (recipe != NULL) traits |= ASSAY_HAS_RECIPE;
    if (recipe != NULL && recipe->dx_dy.scales == ASSAY_SCALES_BLOCKS) traits |= ASSAY_HAS_RECIPE_OF_BLOCKS;
    if (strcmp(plan->operation->name, "batch_split") == 0) traits |= ASSAY_IS_FUNCTION;
    if ((traits & DECODE) != 0 && strcmp(plan->c->config.kv_cache_dtype.text, "auto") != 0) traits |= CACHE_BYTES;
    for (int i = 0; i < plan->list.count; i++) {
        const assay_tensor_spec *spec = &plan->list.entries[i].spec;
        if (strcmp(spec->path, "inputs/x") == 0) traits |= ASSAY_HAS_X;
        if (plan->list.entries[i].format != NULL) traits |= ASSAY_HAS_CODES;
        if (assay_path_is_hidden(spec->path)) traits |= ASSAY_HAS_HIDDEN;
        if (spec->role == ASSAY_ROLE_WEIGHT) traits |= ASSAY_HAS_WEIGHTS;
    }
    return traits;
}

bool assay_mutant_is_for(const assay_mutant *mutant, const assay_plan *plan)
{
    return mutant->traits == 0 || (mutant->traits & traits_of(plan)) != 0;
}

bool assay_mutant_is_required(const assay_mutant *mutant, const assay_plan *plan)
{
    const unsigned parts = plan->operation->parts & ASSAY_PART_ALL;
    const bool layers = (parts & ASSAY_PART_LAYER) != 0, several = (parts & (parts - 1)) != 0;
    const assay_extent extent = layers ? ASSAY_EVERYWHERE : several ? ASSAY_IN_BLOCKS : ASSAY_ALONE;
    return assay_mutant_is_for(mutant, plan) && extent <= mutant->required;
}
