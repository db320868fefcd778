/* Copies of cases, and changes that --set does not make. */

#include "cases/tests/same_case.h"

static const char YAML[] =
    "case: c\nop: moe\ntags: [one, two]\nmodel: {base_emb_dim: 8, num_experts: 4, routed_bias: true}\n"
    "batch: 2\ninputs: {x: {values: [1, 2, 3]}, gate/bias: {scale: 2}}\n"
    "dtypes: {weights/gate/bias: float32}\nquant_formats: {weights/wo: nvfp4}\ngradients: [inputs/x]\n";

static char *whole(assay_context *ctx, const assay_case *c)
{
    char *text = NULL;
    assert_ok(ctx, assay_case_to_yaml(ctx, c, &text));
    return text;
}

TEST_WITH_CONTEXT(a_copy_is_equal_and_owns_what_it_has)
{
    assay_case *c = case_from(YAML), copy = {0};
    assert_ok(&ctx, assay_case_copy(&ctx, c, &copy));
    char *before = whole(&ctx, c), *copied = whole(&ctx, &copy);
    assert_string_equal(before, copied);
    free(copied);
    assert_ptr_equal(copy.inputs[0].fill.values, copy.inputs[0].values);
    copy.inputs[0].values[0] = 9;
    assay_case_drop_input(&copy, 1);
    assay_case_drop_quant_format(&copy, 0);
    assay_case_drop_tags(&copy);
    copy.dtypes[0].type = ASSAY_FLOAT16;
    assert_ok(&ctx, assay_case_set(&ctx, &copy, "gradients=all"));
    OWNED char *after = whole(&ctx, c);
    assert_string_equal(before, after);
    assert_int_equal(copy.input_count, 1);
    assert_int_equal(copy.tags.count, 0);
    assert_int_equal(copy.quant_format_count, 0);
    free(before);
    assay_case_free(&copy);
    assay_cases_free(c, 1);
}

TEST_WITH_CONTEXT(a_copy_without_memory_is_none)
{
    OWNED_BY(free_case) assay_case *c = case_from(YAML);
    for (int n = 0;; n++) {
        assay_case copy = {0};
        assay_fail_allocation(n);
        const assay_status status = assay_case_copy(&ctx, c, &copy);
        const bool whole_copy = copy.tags.count == 2;
        assay_case_free(&copy);
        if (had_memory(&ctx, status)) break;
        assert_false(whole_copy);
    }
}

/* What says nothing is left out, what was given stays, and reading it again gives the same. */
TEST_WITH_CONTEXT(a_short_case_says_the_same)
{
    OWNED_BY(free_case) assay_case *c = case_from(YAML);
    OWNED char *text = NULL;
    assert_true(assay_case_says_key(c, ASSAY_KEY_AT_routed_bias));
    assert_false(assay_case_says_key(c, ASSAY_KEY_AT_kv_lora_rank));
    assert_ok(&ctx, assay_case_to_short_yaml(&ctx, c, &text));
    assert_non_null(strstr(text, "num_experts: 4"));
    assert_null(strstr(text, "kv_lora_rank"));
    OWNED_BY(free_case) assay_case *again = case_from(text);
    OWNED char *one = whole(&ctx, c), *other = whole(&ctx, again);
    assert_string_equal(one, other);
    assert_memory_equal(c->config.is_set, again->config.is_set, sizeof c->config.is_set);
    assay_case_leave_open(c, ASSAY_KEY_AT_routed_bias);
    assert_false(c->config.routed_bias || assay_case_says_key(c, ASSAY_KEY_AT_routed_bias));
}
