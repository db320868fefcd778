/* Two forms of the same thing agree; with an error planted in one of them they do not. */
#include <stdio.h>
#include <string.h>

#include "harness/equivalence.h"
#include "harness/tests/harness_test.h"
#include "oracle/arithmetic/arithmetic.h"

static void parse(assay_context *ctx, const char *yaml, assay_case **cases)
{
    int count = 0;
    assert_ok(ctx, assay_cases_parse(ctx, "test", yaml, strlen(yaml), cases, &count));
    assert_int_equal(count, 1);
}

static const char moe[] = "{case: moe/x, op: moe, batch: 2, sequence: 4, seed: 5, dtype: float32, profiles: none, model: "
                          "{model_name: deepseek3-x, decoder_block: deepseek, base_emb_dim: 12, base_moe_mlp_dim: 7, "
                          "num_experts: 6, num_experts_per_tok: 2, routed_score_func: sigmoid, shared_experts: 1}}";
static const char mla[] = "{case: mla/x, op: mla, batch: 2, sequence: 5, seed: 5, dtype: float32, profiles: none, "
                          "positions: {start: 9000}, model: {base_emb_dim: 12, base_num_query_heads: 2, q_lora_rank: 6, "
                          "kv_lora_rank: 5, qk_nope_head_dim: 4, qk_rope_head_dim: 2, v_head_dim: 3, rope_type: yarn}}";
static const char stack[] =
    "{case: deepseek_stack/x, op: deepseek_stack, batch: 2, sequence: 4, seed: 5, dtype: float32, profiles: none, model: "
    "{model_name: deepseek3-x, decoder_block: deepseek, base_emb_dim: 12, base_mlp_dim: 9, base_moe_mlp_dim: 7, "
    "num_experts: 6, num_experts_per_tok: 2, routed_score_func: sigmoid, shared_experts: 1, base_num_query_heads: 2, "
    "q_lora_rank: 6, kv_lora_rank: 5, qk_nope_head_dim: 4, qk_rope_head_dim: 2, v_head_dim: 3, rope_type: yarn, "
    "base_num_decoder_layers: 2, first_num_dense_layers: 1}}";

/* An error in the other form alone: one key of its configuration is changed as well. */
static const assay_equivalence *planted_in;
static const char *planted;

static bool other_with_error(const assay_case *c, assay_other_form *form)
{
    assay_context ctx = assay_context_default(1);
    if (!planted_in->other(c, form)) return false;
    return assay_case_set(&ctx, &form->c, planted) == ASSAY_OK;
}

static const struct {
    const char *name, *yaml, *error;
} rows[] = {
    {"fused-unfused", moe, "mlp_activations=gelu"},
    {"fused-unfused", stack, "mlp_activations=gelu"},
    {"dense-sparse", moe, "routed_scaling_factor=1.0000001"},
    {"dense-sparse", stack, "routed_scaling_factor=1.0000001"},
    {"sparse-fused_moe", moe, "mlp_activations=relu"},
    {"capacity-dropless", moe, "capacity_factor=0.5"},
    {"mla-absorbed", mla, "mscale=1.000001"},
    {"remat-kept", stack, "normalization_layer_epsilon=1.0000001e-5"},
    {"blas-reference", mla, "normalization_layer_epsilon=1.00001e-5"},
    {"blas-reference", stack, "mscale=1.0000001"},
    {"threads", moe, "routed_scaling_factor=1.0000000000000002"},
};

static void forms_agree_and_errors_are_found(void **state)
{
    (void)state;
    bool tried[16] = {false};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assay_context ctx = assay_context_default(1);
        assay_case *c = NULL;
        assay_equivalence_result result;
        const assay_equivalence *e = assay_equivalence_by_name(rows[i].name);
        assert_non_null(e);
        tried[e - assay_equivalences] = true;
        parse(&ctx, rows[i].yaml, &c);
        assert_ok(&ctx, assay_equivalence_check(&ctx, c, e, &result));
        if (!result.applies || !result.holds) fail_msg("%s %s: %g at %s", e->name, c->name, result.worst, result.path);
        assert_true(result.tensors > 0);
        planted_in = e;
        planted = rows[i].error;
        const assay_equivalence wrong = {e->name, e->summary, e->holding, other_with_error};
        assert_ok(&ctx, assay_equivalence_check(&ctx, c, &wrong, &result));
        if (!result.applies || result.holds) fail_msg("%s %s: %s is not seen", e->name, c->name, rows[i].error);
        assert_true(result.path[0] != '\0');
        assay_cases_free(c, 1);
    }
    for (int e = 0; assay_equivalences[e].name != NULL; e++) {
        if (!tried[e]) fail_msg("%s has no planted error", assay_equivalences[e].name);
    }
}

static uint64_t next(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *seed >> 33;
}

static void set_number(assay_context *ctx, assay_case *c, const char *key, uint64_t value)
{
    char text[128];
    snprintf(text, sizeof text, "%s=%d", key, (int)value);
    assert_ok(ctx, assay_case_set(ctx, c, text));
}

static void set_text(assay_context *ctx, assay_case *c, const char *text)
{
    assert_ok(ctx, assay_case_set(ctx, c, text));
}

/* Sizes from 1, variants, seeds. */
static void draw(assay_context *ctx, assay_case *c, uint64_t *seed)
{
    static const char *const activations[] = {"mlp_activations=silu", "mlp_activations=gelu", "mlp_activations=sigmoid"};
    const uint64_t experts = 1 + next(seed) % 9;
    set_number(ctx, c, "seed", next(seed) % 1000);
    set_number(ctx, c, "batch", 1 + next(seed) % 3);
    set_number(ctx, c, "sequence", 1 + next(seed) % 9);
    set_number(ctx, c, "base_emb_dim", 1 + next(seed) % 19);
    set_number(ctx, c, "base_mlp_dim", 1 + next(seed) % 11);
    set_number(ctx, c, "base_moe_mlp_dim", 1 + next(seed) % 11);
    set_number(ctx, c, "num_experts", experts);
    set_number(ctx, c, "num_experts_per_tok", 1 + next(seed) % experts);
    set_number(ctx, c, "shared_experts", next(seed) % 3);
    set_number(ctx, c, "q_lora_rank", next(seed) % 7);
    set_number(ctx, c, "kv_lora_rank", 1 + next(seed) % 7);
    set_number(ctx, c, "qk_nope_head_dim", 1 + next(seed) % 5);
    set_number(ctx, c, "qk_rope_head_dim", 2 + 2 * (next(seed) % 3));
    set_number(ctx, c, "v_head_dim", 1 + next(seed) % 5);
    set_number(ctx, c, "base_num_query_heads", 1 + next(seed) % 3);
    set_number(ctx, c, "first_num_dense_layers", next(seed) % 3);
    set_text(ctx, c, activations[next(seed) % 3]);
    if (next(seed) % 2 == 0) set_text(ctx, c, "mlp_bias=true");
    if (next(seed) % 2 == 0) set_text(ctx, c, "rope_interleave=false");
    if (next(seed) % 3 == 0) set_text(ctx, c, "routed_bias=true");
}

/* ASSAY_DRAWS asks for more than the usual number. */
static void drawn_configurations_agree(void **state)
{
    (void)state;
    static const char *const forms[] = {moe, mla, stack};
    const char *asked = getenv("ASSAY_DRAWS");
    const int draws = asked == NULL ? 200 : atoi(asked);
    uint64_t seed = 1;
    int checked = 0;
    for (int i = 0; i < draws; i++) {
        assay_context ctx = assay_context_default(1);
        assay_case *c = NULL;
        parse(&ctx, forms[i % 3], &c);
        draw(&ctx, c, &seed);
        for (const assay_equivalence *e = assay_equivalences; e->name != NULL; e++) {
            assay_equivalence_result result;
            assert_ok(&ctx, assay_equivalence_check(&ctx, c, e, &result));
            checked += result.applies;
            if (result.applies && !result.holds) {
                char *yaml = NULL;
                assert_ok(&ctx, assay_case_to_yaml(&ctx, c, &yaml));
                print_error("%s", yaml);
                fail_msg("%s: %g gauges at %s[%d]: %.17g and %.17g", e->name, result.worst, result.path,
                         (int)result.index, result.one, result.other);
            }
        }
        assay_cases_free(c, 1);
    }
    assert_true(checked >= 4 * draws);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms_agree_and_errors_are_found),
        cmocka_unit_test(drawn_configurations_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
