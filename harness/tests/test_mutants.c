/* The table of mutants: well-formed, each is detected in some case, and applies to the operations to which it did. */

#include "compare/compare.h"
#include "harness/mutants/mutants_tensors.h"
#include "harness/power/power_test.h"
#include "harness/tests/golden_trial.h"

TEST_LABELS(slow);

enum { OPERATIONS = 64, MUTANTS = 512 };

static int operation_index(const char *op)
{
    for (int i = 0; assay_operations[i] != NULL; i++) {
        if (strcmp(assay_operations[i]->name, op) == 0) return i;
    }
    fail_msg("%s is no operation", op);
    return -1;
}

static void check_bugs(const char *bugs)
{
    const char *at = bugs;
    while (*at != '\0') {
        char *end = NULL;
        const long number = strtol(at, &end, 10);
        assert_true(end != at && number >= 1 && number <= 199);
        at = *end == ',' ? end + 1 : end;
        assert_true(*end == ',' || *end == '\0');
    }
}

TEST(table_is_well_formed)
{
    assert_true(assay_mutant_count >= 60 && assay_mutant_count <= MUTANTS);
    for (int i = 0; i < assay_mutant_count; i++) {
        const assay_mutant *m = &assay_mutants[i];
        assert_ptr_equal(assay_mutant_by_name(m->name), m);
        check_bugs(m->bugs);
        assert_true(assay_mutant_is_evaluated(m) || m->results.edit != NULL || m->integers.edit != NULL ||
                    m->change_results != NULL);
    }
    assert_null(assay_mutant_by_name("no_such"));
}

/* Keys that are no setting which a kernel could leave unread: sizes, what tensors there are and how they lie, the family,
 * the schedule, what is kept in memory, and sums of shards. Every other key has an ignored setting. */
static const char no_settings[] =
    "model_name decoder_block base_emb_dim base_mlp_dim base_moe_mlp_dim base_num_query_heads base_num_decoder_layers "
    "first_num_dense_layers num_experts num_experts_per_tok num_states topk_routing_group local_num_experts "
    "q_lora_rank "
    "kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim base_num_kv_heads head_dim fused_qkv fused_mlp "
    "prefuse_moe_weights fused_moe_mlp sparse_matmul gmm_layout use_ring_of_experts num_moe_emb_chunks "
    "num_moe_token_chunks weights_on_shards shard_exp_on_fsdp vocab_size batch_split_factor use_batch_split_schedule "
    "function merge_gating_gmm quant_format pack_codes layer_axis remat_policy lse_layout return_lse cache_length "
    "pagedattn_num_pages pagedattn_tokens_per_page pagedattn_max_pages_per_group pagedattn_page_stride "
    "block_table_padding kv_layout attn_impl num_kv_splits use_indexer indexer_topk use_chunked_prefill "
    "prefill_chunk_size kv_cache_dtype "
    "kv_cache_split cache_gradients";

TEST(each_key_has_an_ignored_setting)
{
    int rows[ASSAY_MODEL_KEYS] = {0};
    for (int i = 0; i < assay_ignored_setting_count; i++) {
        const assay_mutant *m = &assay_ignored_settings[i];
        assert_true(strlen(m->name) < ASSAY_EXPLAINED_NAME);
        assert_ptr_equal(assay_mutant_by_name(m->name), m);
        assert_true(assay_mutant_is_ignored_setting(m) && strncmp(m->models, "this case with ", 15) == 0);
        rows[m->keys[0].key] += m->keys[0].how == ASSAY_KEY_READ_AS;
    }
    assert_false(assay_mutant_is_ignored_setting(&assay_mutants[0]));
    for (int key = 0; key < ASSAY_MODEL_KEYS; key++) {
        const char *name = assay_model_keys[key].name;
        const bool none = assay_any_word(no_settings, name, assay_is_word) || is_checkpoint(name);
        if (rows[key] != !none) fail_msg("%s: %d ignored settings, expected %d", name, rows[key], !none);
    }
}

/* All cases but large ones, those with the fewest operations first. */
typedef struct catalogue {
    assay_case *all;
    int count;
} catalogue;

static double work_of(const assay_case *c)
{
    return has_tag(c, "true-size") ? INFINITY : assay_operation_flops(assay_operation_by_name(c->op), c, true);
}

static int by_work(const void *a, const void *b)
{
    const double one = work_of(a), other = work_of(b);
    return (one > other) - (one < other);
}

static catalogue small_cases(void)
{
    assay_context ctx = assay_context_default(1);
    catalogue found = {0};
    assert_ok(&ctx, assay_catalogue(&ctx, &found.all, &found.count));
    qsort(found.all, (size_t)found.count, sizeof *found.all, by_work);
    while (found.count > 0 && isinf(work_of(&found.all[found.count - 1]))) assay_case_free(&found.all[--found.count]);
    return found;
}

enum { OFFERS = 2 }; /* cases of an operation in which a mutant is looked for that was detected in some case */

/* Of each operation: cases in which a mutant was looked for, whether it is for one, and whether it applied to one. */
static int offered[MUTANTS][OPERATIONS];
static bool claimed[MUTANTS][OPERATIONS], applied[MUTANTS][OPERATIONS], detected[MUTANTS];

/* Results that were not computed: numbers that no change leaves as they are. */
static void fill_results(const assay_tensor_set *tensors)
{
    for (int i = 0; i < tensors->count; i++) {
        assay_tensor *tensor = &tensors->items[i];
        if (assay_role_is_input(tensor->spec.role)) continue;
        for (int64_t k = 0; k < tensor->count; k++) {
            if (tensor->values != NULL) tensor->values[k] = (double)(k + 2);
            if (tensor->indices != NULL) tensor->indices[k] = (int32_t)(k % 2);
        }
        tensor->written = tensor->count;
    }
}

/* By what is drawn alone: its configuration, inputs and results change. */
static bool may_apply(assay_context *ctx, const assay_mutant *mutant, const assay_plan *plan,
                      const assay_tensor_set *drawn)
{
    assay_case c = *plan->c;
    OWNED_BY(assay_tensor_set_free) assay_tensor_set changed = {0};
    const assay_mutation m = {.c = &c, .profile = assay_profile_by_name("f32"), .tensors = &changed};
    bool applies = assay_mutant_configure(mutant, &c);
    if (!applies) return false;
    assert_ok(ctx, assay_tensor_set_copy(ctx, drawn, &changed));
    assert_ok(ctx, assay_mutant_change_inputs(ctx, mutant, &m, &applies));
    if (applies) assert_ok(ctx, assay_mutant_change_results(ctx, mutant, &m, &applies));
    return applies || assay_mutant_changes_steps(mutant);
}

static bool has_case(const char *mutant, const char *op);

/* Whether the case is one of the first of its operation to which some mutant may apply. */
static bool shows_more(const assay_case *small)
{
    trial t;
    OWNED_BY(assay_tensor_set_free) assay_tensor_set drawn = {0};
    bool more = false;
    trial_plan(&t, case_named(small->name, "profiles=none"));
    const int op = operation_index(small->op);
    assert_ok(&t.ctx, assay_plan_tensors(&t.ctx, &drawn, &t.plan, &t.source));
    fill_results(&drawn);
    for (int i = 0; i < assay_mutant_count; i++) {
        /* what changes steps is offered everywhere, and need not apply */
        const bool of_caches = (assay_mutants[i].traits & (ASSAY_HAS_CACHE_BYTES | ASSAY_USES_DECODE)) != 0;
        const bool looked_for = of_caches && !applied[i][op] && has_case(assay_mutants[i].name, small->op);
        const bool enough = offered[i][op] >= OFFERS && detected[i] && !looked_for;
        if (!assay_mutant_is_for(&assay_mutants[i], &t.plan)) continue;
        claimed[i][op] = true;
        if (enough || !may_apply(&t.ctx, &assay_mutants[i], &t.plan, &drawn)) continue;
        offered[i][op]++;
        more = true;
    }
    trial_close(&t);
    return more;
}

/* As of a rank without experts: nothing would be wrong with no result. */
static bool gives_zeros(const assay_tensor_set *golden)
{
    bool zeros = true;
    for (int i = 0; i < golden->count; i++) {
        const assay_tensor *tensor = &golden->items[i];
        if (tensor->spec.role != ASSAY_ROLE_OUTPUT) continue;
        for (int64_t k = 0; k < tensor->count; k++)
            zeros &= (tensor->values != NULL ? tensor->values[k] : tensor->indices[k]) == 0;
    }
    return zeros;
}

/* At f32, whose error scales alone are made. A required mutant with an effect is detected wherever it applies. */
static void try_case(const char *name)
{
    assay_context ctx = assay_context_default(1);
    trial t;
    OWNED_BY(assay_power_test_free) assay_power_test found = {0};
    trial_evaluate(&t, case_named(name, "profiles=[f32]"), NULL);
    const assay_plan *plan = &t.plan;
    for (int i = 0; i < plan->spec_count; i++) {
        assay_tensor *scale = &t.golden.items[i];
        if (plan->specs[i].role != ASSAY_ROLE_ERROR_SCALE) continue;
        if (assay_case_is_exact(t.c)) {
            memset(scale->values, 0, (size_t)scale->count * sizeof(double));
        } else if (scale->written < scale->count) {
            fail_msg("%s has no %s", t.c->op, plan->specs[i].path);
        }
    }
    assert_ok(&ctx, assay_power_test_run(&ctx, plan, &t.golden, assay_profile_by_name("f32"), 1e-6, NULL, &found));
    const bool zeros = gives_zeros(&t.golden);
    const int op = operation_index(t.c->op);
    for (int i = 0; i < assay_mutant_count; i++) {
        const assay_mutant_result *r = &found.items[i];
        applied[i][op] |= r->outcome != ASSAY_MUTANT_NOT_APPLICABLE;
        detected[i] |= r->outcome == ASSAY_MUTANT_DETECTED;
        if (zeros) continue;
        if (r->required && r->outcome == ASSAY_MUTANT_PASSES)
            fail_msg("%s lets the required mutant %s pass", name, r->mutant->name);
        /* bits cannot become NaN */
        const bool nothing = (plan->operation->components & (ASSAY_USES_QUANTIZE | ASSAY_USES_CACHE)) &&
                             strcmp(r->mutant->name, "nan_results") == 0;
        if (r->mutant->always && !nothing) assert_int_equal(r->outcome, ASSAY_MUTANT_DETECTED);
    }
    trial_close(&t);
}

/* Mutants that are for an operation and apply to none of its cases. */
static const struct {
    const char *ops, *mutants;
} without_case[] = {
    /* none of them is square */
    {"layer_norm l2_norm merge_states gqa_decode", "transposed"},
    /* it has none */
    {"l2_norm", "norm_scales_missing"},
    /* which have no segments, and keys and values in a cache */
    {"mla_decode gqa_decode", "segments_ignored mask_off_by_one"},
    /* a latent cache has one head, and no other has latent keys */
    {"mla_decode", "kv_heads_modulo cache_layout_other"},
    {"gqa_decode",
     "scale_of_latent value_of_last_numbers cache_rows_with_scales rope_before_latents index_below_0_first "
     "index_below_0_last index_beyond_unmasked topk_length_ignored topk_tile_whole indices_of_pages "
     "indices_local list_of_first_token"},
    {"mla_decode", "given_scale_of_first_head given_scale_of_keys"},
    /* meshes that no layer takes, heads that its mesh does not split, and what it does not give */
    {"deepseek_layer deepseek_stack decoder_layer decoder_stack",
     "hash_ids_ignored expert_scale_missing tensor_part_missing tensor_sum_twice hidden_bias_summed "
     "buffer_unlimited losses_of_first_shard shared_gate_missing scale_from_hidden head_part_alone "
     "head_sum_twice head_axes_exchanged latent_gradients_local lse_in_base_2"},
    /* options that other layers have a case of */
    {"deepseek_stack decoder_layer", "replicas_summed replica_gradients_averaged"},
    {"decoder_layer decoder_stack", "local_ids_global"},
    {"deepseek_stack decoder_layer decoder_stack", "local_offset_twice"},
    {"deepseek_layer deepseek_stack decoder_stack", "expert_map_ignored"},
    /* DeepSeek's experts have no biases and another gate */
    {"deepseek_layer deepseek_stack",
     "requantise_tensor_scale_missing alpha_other clamp_missing biases_missing down_bias_twice "
     "positions_in_bf16"},
    /* routers, schedules and weights over shards that are DeepSeek's; padding makes the router's choice NaN */
    {"decoder_layer decoder_stack",
     "group_score_other groups_ignored masked_groups_at_zero group_count_off_by_one routing_method_other "
     "router_bias_in_bf16 capacity_half ring_step_missing hidden_shared_part_alone fsdp_gathered_rolled "
     "fsdp_scattered_rolled expert_axes_exchanged gathered_halves_concatenated microbatch_choices_first "
     "microbatch_gradients_missing shared_slot_scaled blind_rows_nan sinks_in_lse balance_bias_other "
     "bias_updates_negated"},
    /* options without a case */
    {"deepseek_stack", "group_score_other capacity_half shared_slot_scaled blind_rows_nan"},
    /* likewise */
    {"decoder_stack", "slot_order_lost hidden_part_alone hidden_sum_twice hidden_shards_mismatched "
                      "hidden_halves_contiguous hidden_dx_local hidden_router_gradient_local hidden_gradients_scaled "
                      "z_loss_missing z_loss_twice losses_times_shards"},
    /* a function has a part of a block under names of its own, and each shard's rows as a tensor's */
    {"batch_split",
     "replicas_summed replica_gradients_averaged slot_order_lost hash_ids_ignored padding_in_last_group "
     "padding_contracted padding_in_group_0 padding_in_group_last block_of_first_row groups_unaligned "
     "accumulator_missing capacity_half recipe_scales_of_each_expert local_ids_global local_offset_twice "
     "expert_map_ignored ring_step_missing tensor_part_missing tensor_sum_twice hidden_part_alone "
     "hidden_shared_part_alone hidden_sum_twice hidden_bias_summed hidden_shards_mismatched "
     "hidden_halves_contiguous hidden_dx_local hidden_router_gradient_local hidden_gradients_scaled "
     "fsdp_gathered_rolled fsdp_scattered_rolled expert_axes_exchanged gathered_halves_concatenated "
     "buffer_half buffer_unlimited shard_rows_rolled shard_gradients_rolled shard_rows_summed "
     "gate_up_swapped fused_interleaved fused_shards_other activation_other alpha_other clamp_missing "
     "biases_missing down_bias_twice shared_expert_missing shared_expert_scaled shared_slot_scaled "
     "weight_other_side shared_gate_missing rope_attention_scaling rope_pairing rope_interleave "
     "losses_times_shards last_batch_row_zero"},
    /* of a block's experts */
    {"gmm mlp mla gqa", "recipe_scales_of_each_expert"},
    /* of experts whose width is over shards, or their embedding in chunks, by a recipe: cases of moe */
    {"gmm mlp mla gqa deepseek_layer deepseek_stack decoder_stack batch_split", "recipe_scales_of_all_parts"},
    /* no gate and up */
    {"gmm mla", "operand_scales_of_up_for_gate operand_scales_interleaved operand_tensor_scale_of_gate "
                "operand_tensor_scale_of_larger"},
    /* one matrix, not one for each expert */
    {"mla mlp", "operand_scale_of_next_expert operand_scales_at_unpadded_offsets operand_tensor_scale_of_first"},
    /* no such output */
    {"mla gqa", "lse_in_base_2"},
    /* its query is scaled by a key of its own; windows are elsewhere in layers */
    {"gqa", "query_scale_missing sinks_in_lse windows_elsewhere"},
    /* option without a case */
    {"mlp", "requantise_tensor_scale_missing"},
    /* what quantises is a step, whose rules mutants of steps change */
    {"program", "requantise_missing requantise_amax_before_activation requantise_scale_rounding_other "
                "requantise_tensor_scale_missing"},
    /* these know operands by the names that operations have for them */
    {"program", "operand_scale_of_next_expert operand_scales_of_up_for_gate operand_scales_at_unpadded_offsets "
                "operand_scales_interleaved operand_tensor_scale_of_gate operand_tensor_scale_of_larger "
                "operand_tensor_scale_of_first"},
    /* bits have no gradients */
    {"quantize dequantize cache_append", "zero_gradients zero_input_gradients negated_gradients gradients_99"},
    {"cache_append", "zero_weight_gradients transposed last_head_zero last_batch_row_zero"},
    /* and what changes numbers changes none of them */
    {"quantize cache_append",
     "nan_results zero_outputs negated_outputs outputs_1_2^-7 nan_last_element doubled halved "
     "scaled_by_root scaled_1_2^-7 scaled_1_2^-8 rows_reversed rows_shifted columns_swapped halves_swapped "
     "last_row_zero last_row_stale last_tile_zero last_columns_zero last_tile_off truncated stored_coarser"},
};

static bool has_case(const char *mutant, const char *op)
{
    for (size_t i = 0; i < sizeof without_case / sizeof *without_case; i++) {
        if (assay_any_word(without_case[i].ops, op, assay_is_word) &&
            assay_any_word(without_case[i].mutants, mutant, assay_is_word))
            return false;
    }
    return true;
}

/* Of each operation the smallest cases to which its mutants may apply. Each is detected in some case, and applies to one of each
 * operation that it is for. */
TEST(each_is_detected)
{
    catalogue small = small_cases();
    int missed = 0;
    for (int i = 0; i < small.count; i++)
        if (shows_more(&small.all[i])) try_case(small.all[i].name);
    for (int i = 0; i < assay_mutant_count; i++) {
        for (int op = 0; assay_operations[op] != NULL; op++) {
            const char *mutant = assay_mutants[i].name, *name = assay_operations[op]->name;
            const bool expected = claimed[i][op] && has_case(mutant, name);
            if (applied[i][op] == expected) continue;
            print_error("the mutant %s applies to %s case of %s\n", mutant, expected ? "no" : "a", name);
            missed++;
        }
        if (detected[i]) continue;
        print_error("no case shows the mutant %s: %s\n", assay_mutants[i].name, assay_mutants[i].models);
        missed++;
    }
    assert_int_equal(missed, 0);
    assay_cases_free(small.all, small.count);
}

/* Whether a path of the plan ends in the word, or lies in that folder. */
static bool is_named(const assay_plan *plan, const char *word, bool (*fits)(const char *path, const char *word))
{
    bool found = false;
    for (int i = 0; i < plan->spec_count; i++) found |= fits(plan->specs[i].path, word);
    return found;
}

/* Every word of a row's lists is of use in one of the cases: none is misspelt. */
static void check_words(const char *name, const char *list, const assay_plan *plans, int count,
                        bool (*fits)(const char *path, const char *word))
{
    char words[256], *rest = NULL;
    snprintf(words, sizeof words, "%s", list != NULL ? list : "");
    for (char *word = strtok_r(words, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        bool found = false;
        for (int p = 0; p < count && !found; p++) found = is_named(&plans[p], word, fits);
        if (!found) fail_msg("%s: no tensor is named by \"%s\"", name, word);
    }
}

TEST_WITH_CONTEXT(rows_name_tensors)
{
    catalogue small = small_cases();
    OWNED assay_plan *plans = calloc((size_t)small.count, sizeof *plans);
    for (int i = 0; i < small.count; i++) assert_ok(&ctx, assay_plan_make(&ctx, &plans[i], &small.all[i]));
    for (int i = 0; i < assay_mutant_count; i++) {
        const assay_mutant *m = &assay_mutants[i];
        check_words(m->name, m->inputs.of, plans, small.count, assay_path_ends);
        check_words(m->name, m->results.of, plans, small.count, assay_path_in);
        check_words(m->name, m->results.named, plans, small.count, assay_path_ends);
        check_words(m->name, m->integers.of, plans, small.count, assay_path_in);
        check_words(m->name, m->takes.of, plans, small.count, assay_path_in);
        check_words(m->name, m->takes.named, plans, small.count, assay_path_ends);
    }
    for (int i = 0; i < small.count; i++) assay_plan_free(&plans[i]);
    assay_cases_free(small.all, small.count);
}

/* Cut off: on the grid, not beyond the value, and the next number of the grid is. */
TEST(truncated_is_towards_zero)
{
    const assay_profile *profile = assay_profile_by_name("bf16");
    const double unit = assay_dtype_unit_roundoff(ASSAY_BFLOAT16);
    OWNED_BY(trial_close) trial t;
    trial_evaluate(&t, case_named("rms_norm/deepseek", "profiles=none"), NULL);
    const assay_tensor *y = assay_tensor_set_find(&t.golden, "outputs/y");
    for (int64_t i = 0; i < y->count; i++) y->values[i] = (i % 2 == 0 ? 1 : -1) * (1 + (double)i / 97) / 64;
    bool changes = false;
    const assay_mutation m = {.c = t.c, .profile = profile, .tensors = &t.golden};
    assert_ok(&t.ctx, assay_mutant_change_results(&t.ctx, assay_mutant_by_name("truncated"), &m, &changes));
    assert_true(changes);
    for (int64_t i = 0; i < y->count; i++) {
        const double value = (1 + (double)i / 97) / 64, found = (i % 2 == 0 ? 1 : -1) * y->values[i];
        int exponent = 0;
        frexp(value, &exponent); /* in [2^(exponent - 1), 2^exponent) */
        assert_true(assay_dtype_round(ASSAY_BFLOAT16, found, false) == found);
        assert_true(found <= value && value - found < ldexp(2 * unit, exponent - 1));
    }
}

/* Of one token: the weights of biased_weights over their sum, times what they are scaled by. */
TEST(biased_weights_are_divided)
{
    static const char *const names[] = {"biased_weights", "biased_weights_divided"};
    assay_tensor_set results[2];
    OWNED_BY(trial_close) trial t;
    trial_evaluate(&t, case_named("routing/odd-sizes", "profiles=[f32]"), NULL);
    for (int i = 0; i < 2; i++) results[i] = trial_mutant(&t, "f32", names[i]);
    const assay_tensor *biased = assay_tensor_set_find(&results[0], "outputs/weights");
    const assay_tensor *divided = assay_tensor_set_find(&results[1], "outputs/weights");
    const int64_t chosen = t.c->config.num_experts_per_tok;
    for (int64_t token = 0; token < biased->count; token += chosen) {
        double sum = 0.0;
        for (int64_t k = 0; k < chosen; k++) sum += biased->values[token + k];
        for (int64_t k = 0; k < chosen; k++) {
            const double expected = t.c->config.routed_scaling_factor * biased->values[token + k] / sum;
            assert_true(fabs(divided->values[token + k] - expected) < 1e-14 * fabs(expected));
        }
    }
    for (int i = 0; i < 2; i++) assay_tensor_set_free(&results[i]);
}

/* Weights of a softmax over the chosen: each token's add up to less, and over their sum they are the right ones. */
TEST(a_softmax_over_the_chosen_is_left_out)
{
    OWNED_BY(trial_close) trial t;
    trial_evaluate(&t, case_named("routing/given-softmax", "profiles=[f32]"), NULL);
    OWNED_BY(assay_tensor_set_free) assay_tensor_set results = trial_mutant(&t, "f32", "division_missing");
    const assay_tensor *right = assay_tensor_set_find(&t.golden, "outputs/weights");
    const assay_tensor *wrong = assay_tensor_set_find(&results, "outputs/weights");
    const int64_t chosen = t.c->config.num_experts_per_tok;
    for (int64_t token = 0; token < right->count; token += chosen) {
        double sum = 0.0;
        for (int64_t k = 0; k < chosen; k++) sum += wrong->values[token + k];
        for (int64_t k = 0; k < chosen; k++)
            assert_true(fabs(wrong->values[token + k] - right->values[token + k] * sum) < 1e-14);
        assert_true(sum < 1 && (sum > 0 || right->values[token] == 0));
    }
}
