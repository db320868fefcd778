/* The table of mutants: well-formed, and each applies to every operation that it is for. */
#include <math.h>
#include <stdlib.h>

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
        assert_true(end != at && number >= 1 && number <= 99);
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
    "first_num_dense_layers num_experts num_experts_per_tok topk_routing_group local_num_experts q_lora_rank "
    "kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim base_num_kv_heads head_dim fused_qkv fused_mlp "
    "prefuse_moe_weights fused_moe_mlp sparse_matmul gmm_layout use_ring_of_experts num_moe_emb_chunks "
    "num_moe_token_chunks weights_on_shards shard_exp_on_fsdp vocab_size batch_split_factor use_batch_split_schedule "
    "function merge_gating_gmm quant_format pack_codes layer_axis remat_policy";

static bool is_word(const char *text, const char *word)
{
    return strcmp(text, word) == 0;
}

static bool is_checkpoint_key(const char *name)
{
#define X(type, key, value)                                                                                            \
    if (strcmp(name, #key) == 0) return true;
    ASSAY_CHECKPOINT_KEY_TABLE(X)
#undef X
    return false;
}

TEST(each_key_has_an_ignored_setting)
{
    int rows[ASSAY_MODEL_KEYS] = {0};
    for (int i = 0; i < assay_ignored_setting_count; i++) {
        const assay_mutant *m = &assay_ignored_settings[i];
        assert_true(strlen(m->name) < ASSAY_EXPLAINED_NAME);
        assert_ptr_equal(assay_mutant_by_name(m->name), m);
        assert_true(assay_mutant_is_ignored_setting(m) && strncmp(m->models, "this case with ", 15) == 0);
        rows[m->key.key] += m->key.how == ASSAY_KEY_READ_AS;
    }
    assert_false(assay_mutant_is_ignored_setting(&assay_mutants[0]));
    for (int key = 0; key < ASSAY_MODEL_KEYS; key++) {
        const char *name = assay_model_keys[key].name;
        const bool none = assay_any_word(no_settings, name, is_word) || is_checkpoint_key(name);
        if (rows[key] != !none) fail_msg("%s: %d ignored settings, expected %d", name, rows[key], !none);
    }
}

/* Small cases that have, between them, what every mutant changes. */
static const char *const cases[] = {"moe/recipe-deepseek-v3-powers",
                                    "mla/recipe-fp8-full-no-q-lora",
                                    "mla/recipe-deepseek-v3-powers",
                                    "moe/recipe-fp8-full",
                                    "mlp/recipe-fp8-full",
                                    "mlp/recipe-deepseek-v3-powers",
                                    "gmm/recipe-fp8-full",
                                    "gmm/recipe-deepseek-v3-powers",
                                    "routing/float32-bias",
                                    "moe/float32-bias",
                                    "yarn_rope/two-dimensions",
                                    "yarn_rope/ten-dimensions",
                                    "routing/balance-even",
                                    "routing/odd-sizes",
                                    "routing/z-loss",
                                    "routing/gemma4-without-norm",
                                    "mla/one-head",
                                    "mla/packed",
                                    "mla/no-query-compression",
                                    "mla/late-positions",
                                    "rms_norm/one-column",
                                    "rms_norm/small-latents",
                                    "attention/one-token",
                                    "attention/padding-nan",
                                    "attention/segments",
                                    "attention/grouped",
                                    "attention/sinks",
                                    "attention/window",
                                    "gqa/checkpoints",
                                    "gqa/qwen3",
                                    "gqa/mixtral",
                                    "gqa/fused-qkv",
                                    "gqa/segments",
                                    "gqa/interleave",
                                    "gqa/gpt-oss-late",
                                    "gqa/own-kv-heads",
                                    "permute/one-token",
                                    "permute/empty-first-last",
                                    "unpermute/one-token",
                                    "gmm/exact-padded",
                                    "gmm/padded-tail",
                                    "gmm/rows-7-8-9",
                                    "gmm/rows-127-128-129",
                                    "gmm/empty-run",
                                    "gmm/contiguous-any-order",
                                    "gmm/masked-primes",
                                    "gmm/psum-primes",
                                    "gmm/k-grouped-accumulate",
                                    "mlp/one-wide",
                                    "mlp/biases-fused",
                                    "mlp/gpt-oss",
                                    "routing/given-ids",
                                    "routing/method-sigmoid",
                                    "moe/method-sigmoid",
                                    "moe/local-experts",
                                    "moe/local-expert-map",
                                    "deepseek_layer/method-sigmoid",
                                    "deepseek_stack/method-minimax2",
                                    "moe/given-choice",
                                    "moe/given-ids-none",
                                    "deepseek_layer/given-choice",
                                    "deepseek_stack/given-choice",
                                    "moe/mesh-primes",
                                    "moe/mesh-ring-gpt-oss-chunks",
                                    "moe/mesh-gemma4",
                                    "moe/mesh-groups",
                                    "moe/mesh-ring-fused-weights-chunks",
                                    "moe/mesh-hash",
                                    "moe/mesh-ring-balance",
                                    "moe/mesh-checkpoints",
                                    "moe/mesh-ring-fsdp2-expert2",
                                    "moe/mesh-tensor4-expert2",
                                    "moe/mesh-buffer-half",
                                    "moe/mesh-mlp-tensor4-gpt-oss",
                                    "moe/mesh-mlp-tensor2-fused-weights",
                                    "moe/mesh-weights-exp-fsdp2-expert2",
                                    "moe/mesh-weights-transpose2-fused",
                                    "moe/mixtral-capacity-ample",
                                    "moe/small",
                                    "moe/shared-gate",
                                    "moe/shared-slot-late-factor",
                                    "moe/weight-on-input-shared",
                                    "moe/mesh-losses-global",
                                    "moe/replicas-biases",
                                    "deepseek_layer/dense-fused",
                                    "deepseek_layer/moe-balance",
                                    "deepseek_layer/moe-groups",
                                    "deepseek_layer/losses-global",
                                    "deepseek_layer/shared-slot",
                                    "deepseek_layer/dense-padding",
                                    "deepseek_layer/moe-fused-weights",
                                    "deepseek_layer/moe-dropping",
                                    "deepseek_stack/one-layer",
                                    "deepseek_stack/balance",
                                    "deepseek_stack/segments",
                                    "deepseek_stack/losses-global",
                                    "deepseek_stack/five-layers-fused",
                                    "deepseek_layer/mesh-expert4",
                                    "deepseek_layer/mesh-ring",
                                    "deepseek_layer/batch-split-mesh",
                                    "deepseek_stack/batch-split-groups",
                                    "deepseek_stack/batch-split-fsdp2",
                                    "mla/mesh-model2-expert2",
                                    "gqa/mesh-gpt-oss",
                                    "deepseek_layer/mesh-mlp-tensor2",
                                    "deepseek_stack/mesh-mlp-tensor2",
                                    "deepseek_layer/mesh-weights-fsdp2",
                                    "deepseek_stack/mesh-weights-fsdp2",
                                    "deepseek_stack/mesh-remat",
                                    "batch_split/route-mesh2",
                                    "batch_split/unroute-mesh2",
                                    "batch_split/quantized-psum-scatter-mesh2",
                                    "batch_split/gmm-bwd-recipe-mesh2",
                                    "batch_split/compute-linear-recipe-mesh2",
                                    "batch_split/shared-expert-recipe-mesh2",
                                    "batch_split/expert-selection-bwd-recipe-mesh2",
                                    "batch_split/rms-norm-bwd",
                                    "batch_split/initialize-yarn-freqs",
                                    "batch_split/compute-gating",
                                    "batch_split/compute-linear-mesh2",
                                    "batch_split/mla-with-norms-mesh2",
                                    "batch_split/shared-expert-and-route-mesh2",
                                    "batch_split/reduce-scatter-ws-grad-mesh8",
                                    "quantize/mxfp4-ocp",
                                    "quantize/mxfp4-triton",
                                    "quantize/mxfp4-ties",
                                    "quantize/mxfp8-e4m3-ocp",
                                    "quantize/mxfp8-denormal",
                                    "quantize/nvfp4-transformer-engine",
                                    "quantize/fp4-deepgemm-ties",
                                    "quantize/fp8-1x128-deepgemm",
                                    "quantize/fp8-small-deepgemm",
                                    "quantize/fp8-1x128-transformer-engine",
                                    "dequantize/mxfp4",
                                    "dequantize/mxfp4-square",
                                    "dequantize/nvfp4",
                                    "dequantize/fp8-1x128",
                                    "gmm/mxfp4-weights",
                                    "gmm/nvfp4",
                                    "mlp/fp8",
                                    "mlp/nvfp4-fused",
                                    "mla/nvfp4",
                                    "mlp/nvfp4",
                                    "moe/nvfp4",
                                    "moe/mixed-formats-fused",
                                    "quantize/nvfp4-swizzled",
                                    "dequantize/mxfp8-swizzled"};

static bool claimed[MUTANTS][OPERATIONS], applied[MUTANTS][OPERATIONS], tried[OPERATIONS];

/* At f32, whose error scales alone are made. A required mutant with an effect is detected wherever it applies. */
static void try_case(const char *name)
{
    assay_context ctx = assay_context_default(1);
    trial t;
    assay_power_test found = {0};
    trial_evaluate(&t, case_named(name, "profiles=[f32]"), NULL);
    const assay_plan *plan = &t.plan;
    for (int i = 0; i < plan->spec_count; i++) {
        assay_tensor *scale = &t.golden.items[i];
        if (plan->specs[i].role != ASSAY_ROLE_ERROR_SCALE) continue;
        if (assay_case_is_exact(t.c)) {
            memset(scale->values, 0, (size_t)scale->count * sizeof(double));
        } else if (scale->written < scale->count) {
            fail_msg("%s: .run gives no %s, and .ensemble asks for none", t.c->op, plan->specs[i].path);
        }
    }
    assert_ok(&ctx, assay_power_test_run(&ctx, plan, &t.golden, assay_profile_by_name("f32"), 1e-6, NULL, &found));
    const int op = operation_index(t.c->op);
    tried[op] = true;
    for (int i = 0; i < assay_mutant_count; i++) {
        const assay_mutant_result *r = &found.items[i];
        claimed[i][op] |= assay_mutant_is_for(r->mutant, plan);
        applied[i][op] |= r->outcome != ASSAY_MUTANT_NOT_APPLICABLE;
        if (r->required && r->outcome == ASSAY_MUTANT_PASSES)
            fail_msg("%s lets the required mutant %s pass", name, r->mutant->name);
        /* bits cannot become NaN */
        const bool nothing =
            (plan->operation->parts & ASSAY_PART_QUANTIZE) && strcmp(r->mutant->name, "nan_results") == 0;
        if (r->mutant->always && !nothing) assert_int_equal(r->outcome, ASSAY_MUTANT_DETECTED);
    }
    assay_power_test_free(&found);
    trial_close(&t);
}

/* All cases of operations that no case above has, but for large ones. */
static void try_others(void)
{
    assay_context ctx = assay_context_default(1);
    assay_case *all = NULL;
    int count = 0;
    assert_ok(&ctx, assay_catalogue(&ctx, &all, &count));
    for (int op = 0; assay_operations[op] != NULL; op++) {
        const bool others = !tried[op];
        for (int i = 0; others && i < count; i++) {
            const bool same = strcmp(all[i].op, assay_operations[op]->name) == 0;
            if (same && !has_tag(&all[i], "true-size")) try_case(all[i].name);
        }
    }
    assay_cases_free(all, count);
}

/* Mutants that are for an operation, and apply to no case of it. */
static const struct {
    const char *op, *mutants;
} without_case[] = {
    {"mla",
     "mask_off_by_one lse_in_base_2 transposed contraction_cut_to_32 contraction_cut_to_64 contraction_cut_to_128"},
    {"gqa", "query_scale_missing mask_off_by_one lse_in_base_2 sinks_in_lse windows_elsewhere"},
    {"deepseek_stack", "group_score_other capacity_half shared_slot_scaled next_key_seen"},
    {"decoder_stack", "no_expert_last slot_order_lost hidden_part_alone hidden_sum_twice hidden_shards_mismatched "
                      "hidden_halves_contiguous hidden_dx_local hidden_router_gradient_local hidden_gradients_scaled "
                      "next_key_seen z_loss_missing z_loss_twice losses_times_shards"},
    {"deepseek_layer deepseek_stack decoder_layer decoder_stack",
     "replicas_summed replica_gradients_averaged hash_ids_ignored expert_scale_missing local_ids_global "
     "local_offset_twice expert_map_ignored tensor_part_missing tensor_sum_twice hidden_bias_summed buffer_unlimited "
     "losses_of_first_shard shared_gate_missing scale_from_hidden head_part_alone head_sum_twice head_axes_exchanged "
     "latent_gradients_local mask_off_by_one blind_rows_nan lse_in_base_2"},
    {"deepseek_layer deepseek_stack", "alpha_other clamp_missing biases_missing down_bias_twice positions_in_bf16"},
    {"decoder_layer decoder_stack",
     "group_score_other groups_ignored masked_groups_at_zero group_count_off_by_one routing_method_other capacity_half "
     "ring_step_missing hidden_shared_part_alone fsdp_gathered_rolled fsdp_scattered_rolled expert_axes_exchanged "
     "gathered_halves_concatenated microbatch_choices_first microbatch_gradients_missing shared_slot_scaled "
     "sinks_in_lse bias_updates_negated balance_bias_other router_bias_in_bf16"},
    /* a function has a part of a block under names of its own, and each shard's rows as a tensor's */
    {"batch_split",
     "replicas_summed replica_gradients_averaged slot_order_lost hash_ids_ignored padding_in_last_group "
     "padding_contracted padding_in_group_0 padding_in_group_last block_of_first_row alpha_other "
     "groups_unaligned accumulator_missing capacity_half local_ids_global local_offset_twice expert_map_ignored "
     "ring_step_missing tensor_part_missing tensor_sum_twice hidden_part_alone hidden_shared_part_alone "
     "hidden_sum_twice hidden_bias_summed hidden_shards_mismatched hidden_halves_contiguous hidden_dx_local "
     "hidden_router_gradient_local hidden_gradients_scaled fsdp_gathered_rolled fsdp_scattered_rolled "
     "expert_axes_exchanged gathered_halves_concatenated buffer_half buffer_unlimited shard_rows_rolled "
     "shard_gradients_rolled shard_rows_summed gradients_summed_twice gradients_averaged gate_up_swapped "
     "fused_interleaved fused_shards_other activation_other clamp_missing biases_missing down_bias_twice "
     "shared_expert_missing shared_expert_scaled shared_slot_scaled weight_other_side shared_gate_missing "
     "rope_attention_scaling rope_pairing rope_interleave losses_times_shards last_batch_row_zero"},
    {"gmm mla", "operand_scales_of_up_for_gate operand_tensor_scale_of_gate operand_tensor_scale_of_larger "
                "operand_scales_interleaved"},
    {"mla mlp", "operand_scale_of_next_expert operand_tensor_scale_of_first operand_scales_at_unpadded_offsets"},
    {"layer_norm", "transposed"},
    /* of a block's experts */
    {"gmm mlp mla batch_split", "recipe_scales_of_each_expert"},
    /* bits have no gradients, and what changes numbers changes none of them */
    {"quantize dequantize", "zero_gradients zero_input_gradients negated_gradients gradients_99"},
    {"quantize", "nan_results zero_outputs negated_outputs outputs_1_2^-7 nan_last_element doubled halved "
                 "scaled_by_root scaled_1_2^-7 "
                 "scaled_1_2^-8 rows_reversed rows_shifted columns_swapped halves_swapped last_row_zero last_row_stale "
                 "last_tile_zero last_columns_zero last_tile_off truncated stored_coarser"},
};

static bool has_case(const char *mutant, const char *op)
{
    for (size_t i = 0; i < sizeof without_case / sizeof *without_case; i++) {
        if (assay_any_word(without_case[i].op, op, is_word) && assay_any_word(without_case[i].mutants, mutant, is_word))
            return false;
    }
    return true;
}

TEST(each_applies_to_its_operations)
{
    int wrong = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) try_case(cases[i]);
    try_others();
    for (int i = 0; i < assay_mutant_count; i++) {
        for (int op = 0; assay_operations[op] != NULL; op++) {
            const char *mutant = assay_mutants[i].name, *name = assay_operations[op]->name;
            const bool expected = claimed[i][op] && has_case(mutant, name);
            if (expected && !applied[i][op]) {
                print_error("no case of %s is one to which the mutant %s applies: %s\n", name, mutant,
                            assay_mutants[i].models);
            }
            if (applied[i][op] && !expected) print_error("the mutant %s applies to %s, and should not\n", mutant, name);
            wrong += applied[i][op] != expected;
        }
    }
    assert_int_equal(wrong, 0);
}

/* The first word of the list that ends no path in the plan, or is no folder of it; NULL: there is none. */
static const char *stray_word(char *list, const assay_plan *plans, int count,
                              bool (*fits)(const char *path, const char *word))
{
    char *rest = NULL;
    for (char *word = strtok_r(list, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        bool found = false;
        for (int p = 0; p < count; p++) {
            for (int i = 0; i < plans[p].spec_count; i++) found |= fits(plans[p].specs[i].path, word);
        }
        if (!found) return word;
    }
    return NULL;
}

/* Every word of a row's lists is of use in one of the cases: none is misspelt. */
TEST(rows_name_tensors)
{
    enum { CASES = sizeof cases / sizeof *cases };
    assay_context ctx = assay_context_default(1);
    assay_case *c[CASES];
    assay_plan plans[CASES] = {0};
    for (int i = 0; i < CASES; i++) {
        c[i] = case_named(cases[i], "profiles=[f32]");
        assert_ok(&ctx, assay_plan_make(&ctx, &plans[i], c[i]));
    }
    for (int i = 0; i < assay_mutant_count; i++) {
        const assay_mutant *m = &assay_mutants[i];
        const struct {
            const char *list;
            bool (*fits)(const char *path, const char *word);
        } lists[] = {{m->inputs.of, assay_path_ends},     {m->results.of, assay_path_in},
                     {m->results.named, assay_path_ends}, {m->integers.of, assay_path_in},
                     {m->takes.of, assay_path_in},        {m->takes.named, assay_path_ends}};
        for (size_t k = 0; k < sizeof lists / sizeof *lists; k++) {
            char list[256];
            snprintf(list, sizeof list, "%s", lists[k].list != NULL ? lists[k].list : "");
            const char *stray = stray_word(list, plans, CASES, lists[k].fits);
            if (stray != NULL) fail_msg("%s: no tensor is named by \"%s\"", m->name, stray);
        }
    }
    for (int i = 0; i < CASES; i++) {
        assay_plan_free(&plans[i]);
        assay_cases_free(c[i], 1);
    }
}

/* Cut off: on the grid, not beyond the value, and the next number of the grid is. */
TEST(truncated_is_towards_zero)
{
    const assay_profile *profile = assay_profile_by_name("bf16");
    const double unit = assay_dtype_unit_roundoff(ASSAY_BFLOAT16);
    trial t;
    trial_evaluate(&t, case_named("rms_norm/deepseek", "profiles=none"), NULL);
    const assay_tensor *y = assay_tensor_set_find(&t.golden, "outputs/y");
    for (int64_t i = 0; i < y->count; i++) y->values[i] = (i % 2 == 0 ? 1 : -1) * (1 + (double)i / 97) / 64;
    const assay_mutation m = {.c = t.c, .profile = profile, .tensors = &t.golden};
    assert_true(assay_mutant_change_results(assay_mutant_by_name("truncated"), &m));
    for (int64_t i = 0; i < y->count; i++) {
        const double value = (1 + (double)i / 97) / 64, found = (i % 2 == 0 ? 1 : -1) * y->values[i];
        int exponent = 0;
        frexp(value, &exponent); /* in [2^(exponent - 1), 2^exponent) */
        assert_true(assay_dtype_round(ASSAY_BFLOAT16, found, false) == found);
        assert_true(found <= value && value - found < ldexp(2 * unit, exponent - 1));
    }
    trial_close(&t);
}

/* Of one token: the weights of biased_weights over their sum, times what they are scaled by. */
TEST(biased_weights_are_divided)
{
    static const char *const names[] = {"biased_weights", "biased_weights_divided"};
    assay_context ctx = assay_context_default(1);
    assay_tensor_set results[2] = {{0}};
    bool applies = false;
    trial t;
    trial_evaluate(&t, case_named("routing/odd-sizes", "profiles=[f32]"), NULL);
    const assay_trial f32 = trial_at(&t, "f32");
    for (int i = 0; i < 2; i++) {
        assert_ok(&ctx, assay_mutant_make(&ctx, &f32, assay_mutant_by_name(names[i]), &results[i], &applies));
        assert_true(applies);
    }
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
    trial_close(&t);
}
