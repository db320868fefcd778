/* The writer: what it writes stands by itself and reads back to the same case. */

#include "cases/case.h"
#include "cases/tests/same_case.h"
#include "cases/yaml_text.h"

/* Writes, reads, compares, and writes again. */
static void assert_round_trip(assay_context *ctx, const assay_case *c)
{
    OWNED char *text = NULL, *again = NULL;
    assay_case *read = NULL;
    int count = 0;
    assert_ok(ctx, assay_case_to_yaml(ctx, c, &text));
    assert_ok(ctx, assay_cases_parse(ctx, c->name, text, strlen(text), &read, &count));
    assert_int_equal(count, 1);
    const char *difference = assay_case_difference(c, read);
    if (difference != NULL) print_error("%s: %s differs\n%s\n", c->name, difference, text);
    assert_null(difference);
    assert_ok(ctx, assay_case_to_yaml(ctx, read, &again));
    assert_string_equal(text, again);
    assay_cases_free(read, count);
}

TEST_WITH_CONTEXT(round_trips_the_catalogue)
{
    assay_case *cases = NULL;
    int count = 0;
    assert_ok(&ctx, assay_catalogue(&ctx, &cases, &count));
    assert_true(count > 0);
    for (int i = 0; i < count; i++) assert_round_trip(&ctx, &cases[i]);
    assay_cases_free(cases, count);
}

TEST_WITH_CONTEXT(round_trips_awkward_values)
{
    static const char *const CASES[] = {
        "case: a\nop: b\n",
        "case: a\nop: \"no\"\ndescription: \"say \\\"true\\\": a\\\\b, c # d\"\ntags: ['1', 'null', \"caf\\xe9\", '*', "
        "'a b']\n",
        "case: a\nop: b\nmodel: {model_name: x, num_experts: 3}\nconfig: {model_name: other}\n",
        "case: a\nop: b\nmodel: {num_experts: 3}\nconfig: {model_name: 'true'}\n",
        "case: a\nop: b\nconfig: {rope_factor: -0.0, mscale: 0.1, beta_fast: 5e-324, beta_slow: "
        "1.7976931348623157e308}\n",
        "case: a\nop: b\nconfig: {rope_factor: 0.30000000000000004, mscale: 123456789012345678, routed_score_func: "
        "softmax}\n",
        "case: a\nop: b\nfill: bell\nsketch_above: 2\ndrawn_above: 1\nonly_layer: 0\ninputs: {x: {values: [1, -0.0, "
        "1e-300, 0.1]}, y: "
        "{distribution: integers, low: "
        "-3, high: 0},\n"
        "  z: {distribution: cancel, scale: 3}, v: {distribution: bell, mean: 2}, w: {distribution: near_ties, mean: "
        "2, low: -1, tail_nan_rows: 4}}\n",
        "case: a\nop: b\ngradients: []\ncheckpoints: all\nprofiles: none\nseed: 18446744073709551615\ndtype: "
        "float8_e5m2\n"
        "mesh: {data: 1, fsdp: 2, expert: 3, tensor: 4, mlp_tensor: 5, fsdp_transpose: 6}\npositions: {start: 9, step: "
        "0}\nbatch: "
        "2147483647\n",
        "case: a\nop: b\ndtypes: {weights/*: f32, 'a b*': float8_e4m3fn, '[ab]/c': bf16}\n",
        "case: a\nop: b\nquant_formats: {weights/wo: mxfp4, inputs/x: fp8_e4m3_1x128}\n",
        "case: a\nop: b\nconfig: {mlp_activations: [gelu, 'a b'], moe_mlpwi: offload, mla_kv: device, rope_type: ''}\n",
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        assay_case *c = NULL;
        int count = 0;
        assert_ok(&ctx, assay_cases_parse(&ctx, "t.yml", CASES[i], strlen(CASES[i]), &c, &count));
        assert_round_trip(&ctx, c);
        assay_cases_free(c, count);
    }
}

/* The comparison above must see a difference in any field. */
TEST_WITH_CONTEXT(differences_are_seen)
{
    static const char *const CHANGES[] = {
        "case=z",
        "batch=9",
        "sequence=9",
        "mesh.fsdp=9",
        "seed=9",
        "dtype=f64",
        "positions.step=9",
        "gradients=none",
        "checkpoints=all",
        "profiles=f32",
        "num_experts=9",
        "mscale=9",
        "sparse_matmul=false",
        "rope_type=x",
        "mlp_activations=[silu, gelu]",
        "inputs.y={}",
        "inputs.x={}",
        "inputs.x={values: [1, 3]}",
        "inputs.x={values: [1, -.inf, .inf, 2], tail_nan_rows: 1, unused_nan: true}",
        "quant_formats.weights/wo=mxfp4",
    };
    static const char TEXT[] = "case: a\nop: b\ninputs: {x: {values: [1, 2]}}\n";
    assay_case *a = NULL, *b = NULL;
    int count = 0;
    assert_ok(&ctx, assay_cases_parse(&ctx, "t.yml", TEXT, strlen(TEXT), &a, &count));
    for (size_t i = 0; i < sizeof CHANGES / sizeof *CHANGES; i++) {
        assert_ok(&ctx, assay_cases_parse(&ctx, "t.yml", TEXT, strlen(TEXT), &b, &count));
        assert_null(assay_case_difference(a, b));
        assert_ok(&ctx, assay_case_set(&ctx, b, CHANGES[i]));
        assert_non_null(assay_case_difference(a, b));
        assay_cases_free(b, count);
    }
    assay_cases_free(a, 1);
}

TEST(writes_numbers_and_texts_that_any_reader_takes)
{
    static const struct {
        double value;
        const char *text;
    } NUMBERS[] = {{1, "1.0"},           {0.1, "0.1"},   {1e-6, "1.0e-06"},
                   {1e300, "1.0e+300"},  {-2.5, "-2.5"}, {10000, "10000.0"},
                   {1.5e-10, "1.5e-10"}, {-0.0, "-0.0"}, {0.1 + 0.2, "0.30000000000000004"}};
    static const struct {
        const char *value, *text;
    } TEXTS[] = {{"moe/a-1.b", "moe/a-1.b"},   {"", "\"\""},           {"No", "\"No\""},
                 {"a: b", "\"a: b\""},         {"1e3", "\"1e3\""},     {"-a", "\"-a\""},
                 {"a\"b\\", "\"a\\\"b\\\\\""}, {"a\tb", "\"a\\x09b\""}};
    char text[64];
    for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++) {
        assay_yaml_number_text(NUMBERS[i].value, text, sizeof text);
        assert_string_equal(text, NUMBERS[i].text);
    }
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++) {
        assay_yaml_quoted_text(TEXTS[i].value, text, sizeof text);
        assert_string_equal(text, TEXTS[i].text);
    }
}

/* `assay show` prints from the same function. */
TEST(every_key_has_a_text)
{
    char text[ASSAY_KEY_VALUE_SIZE];
    for (int i = 0; i < ASSAY_MODEL_KEYS; i++) {
        const assay_model_key *key = &assay_model_keys[i];
        assert_ptr_equal(assay_model_key_by_name(key->name), key);
        assay_model_key_text(key, &assay_model_defaults, text, sizeof text);
        assert_true(text[0] != '\0');
    }
    assert_null(assay_model_key_by_name("num_expert"));
    assay_model_key_text(assay_model_key_by_name("mlp_activations"), &assay_model_defaults, text, sizeof text);
    assert_string_equal(text, "[silu, linear]");
    assay_model_key_text(assay_model_key_by_name("capacity_factor"), &assay_model_defaults, text, sizeof text);
    assert_string_equal(text, "-1.0");
}
