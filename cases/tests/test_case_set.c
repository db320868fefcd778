/* --set key=value. */

#include "cases/case.h"
#include "cases/tests/same_case.h"

static assay_case *new_case(void)
{
    return case_from("case: a\nop: moe\nmodel: deepseek3-tiny\ninputs: {x: {values: [1, 2]}}\n");
}

TEST_WITH_CONTEXT(sets_what_a_case_has)
{
    static const char *const ASSIGNMENTS[] = {
        "case=moe/other",
        "batch=3",
        "sequence=1_000",
        "seed=7",
        "dtype=float16",
        "fill=bell",
        "only_layer=0",
        "drawn_above=1e6",
        "gradients=inputs/x, weights/wo",
        "checkpoints=[mla_q]",
        "profiles=none",
        "mesh.data=2",
        "mesh.fsdp=3",
        "mesh.expert=4",
        "positions.start=5",
        "positions.step=0",
        "num_experts=32",
        "routed_scaling_factor=1.0",
        "norm_topk_prob=yes",
        "routed_score_func=",
        "mlp_activations=[gelu, linear]",
        "mla_q=offload",
        "inputs.x={distribution: uniform, low: -1}",
        "inputs.weights/gate/bias={mean: 3}",
        "dtypes.weights/*=float16",
        "dtypes.gate/bias=float32",
        "dtypes.weights/*=float8_e5m2",
        "quant_formats.weights/wo=mxfp4",
        "quant_formats.inputs/x=nvfp4",
        "quant_formats.weights/wo=fp8_e4m3_128x128",
    };
    /* the same in a file; of dtypes and formats the newest is last, and counts */
    static const char EXPECTED[] =
        "case: moe/other\nop: moe\nmodel: deepseek3-tiny\nbatch: 3\nsequence: 1000\nseed: 7\ndtype: float16\nfill: "
        "bell\n"
        "only_layer: 0\ndrawn_above: 1000000\ngradients: [inputs/x, weights/wo]\ncheckpoints: [mla_q]\nprofiles: none\n"
        "mesh: {data: 2, fsdp: 3, expert: 4}\npositions: {start: 5, step: 0}\n"
        "config: {num_experts: 32, routed_scaling_factor: 1.0, norm_topk_prob: true, routed_score_func: '', "
        "mlp_activations: [gelu, linear], mla_q: offload}\n"
        "inputs: {x: {distribution: uniform, low: -1}, weights/gate/bias: {mean: 3}}\n"
        "dtypes: {gate/bias: float32, weights/*: float8_e5m2}\n"
        "quant_formats: {inputs/x: nvfp4, weights/wo: fp8_e4m3_128x128}\n";
    OWNED_BY(free_case) assay_case *c = new_case(), *expected = case_from(EXPECTED);
    for (size_t i = 0; i < sizeof ASSIGNMENTS / sizeof *ASSIGNMENTS; i++) {
        assert_ok(&ctx, assay_case_set(&ctx, c, ASSIGNMENTS[i]));
    }
    const char *difference = assay_case_difference(c, expected);
    if (difference != NULL) fail_msg("%s", difference);
    assert_true(c->inputs[0].fill.high == 1); /* as where nothing was said before */
    assert_null(c->inputs[0].values);
    assert_true(assay_case_quantises(c, "weights/wo") && assay_case_quantises(c, "weights/wo_scale"));
    assert_true(assay_case_quantises(c, "inputs/x_tensor_scale"));
    assert_false(assay_case_quantises(c, "weights/wo_bias"));
    assert_int_equal(assay_case_dtype_of(c, "weights/gate/bias")->type, ASSAY_FLOAT8_E5M2);
    assert_ok(&ctx, assay_case_set(&ctx, c, "dtypes.gate/bias=float32"));
    assert_int_equal(assay_case_dtype_of(c, "weights/gate/bias")->type, ASSAY_FLOAT32);
    assert_int_equal(assay_case_dtype_of(c, "weights/wo")->type, ASSAY_FLOAT8_E5M2);
    assert_null(assay_case_dtype_of(c, "inputs/x"));
    assert_ok(&ctx, assay_case_set(&ctx, c, "dtypes.y=float32")); /* a cotangent is named with its folder */
    assert_null(assay_case_dtype_of(c, "cotangents/y"));
    assert_ok(&ctx, assay_case_set(&ctx, c, "dtypes.cotangents/*=float32"));
    assert_int_equal(assay_case_dtype_of(c, "cotangents/y")->type, ASSAY_FLOAT32);
}

TEST_WITH_CONTEXT(refuses_and_changes_nothing)
{
    static const struct {
        const char *assignment, *words;
    } REFUSED[] = {
        {"num_expert=4", "--set num_expert=4: unknown key, did you mean num_experts?"},
        {"expert=4", "--set expert=4: unknown key, did you mean mesh.expert?"},
        {"zzzzzzzz=4", "--set zzzzzzzz=4: unknown key"},
        {"num_experts=four",
         "--set num_experts=four: num_experts: expected a whole number from 0 to 2147483647, found four"},
        {"num_experts=", "found \"\""},
        {"num_experts", "--set num_experts: expected key=value"},
        {"=4", "--set =4: expected key=value"},
        {"batch=0", "--set batch=0: batch: expected a whole number from 1"},
        {"batch=#1", "expected a value after =, found none"},
        {"batch=2\n---\n3", "--set: expected key=value on one line"},
        {"seed=-1", "seed: expected a whole number"},
        {"dtype=int8", "dtype: expected one of"},
        {"case=a b", "case: expected a name"},
        {"gradients=*", "--set gradients=*: expected YAML, found"},
        {"gradients=[a, b", "--set gradients=[a, b: expected YAML, found"},
        {"profiles=[bf16, [a]]", "profiles: expected a text, found a list"},
        {"mesh={data: 2}", "unknown key"},
        {"op=mlp", "unknown key"},
        {"inputs.x=3", "x: expected a mapping"},
        {"inputs.x={values: [1, a]}", "values: expected a finite number, found a"},
        {"inputs.={scale: 1}", "expected a tensor such as"},
        {"model=nowhere.json", "model: nowhere.json: No such file"},
        {"model=deepseek3-tny", "did you mean deepseek3-tiny or deepseek2-16b?"},
        {"model={model_type: llama}", "model_type: expected one that docs/hugging-face.md has, found llama"},
        {"model={model_type: mixtral}", "the key hidden_size is missing, which a configuration of mixtral has"},
        {"dtypes.x=int32", "dtypes: expected one of float64"},
        {"dtypes.=float32", "expected a tensor such as weights/gate/bias, or a glob"},
        {"quant_formats.weights/wo=fp7", "quant_formats: expected one of mxfp4, mxfp8_e4m3"},
        {"quant_formats.weights/wo=", "quant_formats: expected one of mxfp4"},
        {"quant_formats./wo=mxfp4", "expected a tensor such as weights/wi_0, in quant_formats, found /wo"},
        {"mlp_activations=[a, b, c]", "expected one or two texts"},
    };
    OWNED_BY(free_case) assay_case *c = new_case();
    const assay_case before = *c;
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
        assert_int_equal(assay_case_set(&ctx, c, REFUSED[i].assignment), ASSAY_BAD_INPUT);
        if (strstr(ctx.message, REFUSED[i].words) == NULL || strncmp(ctx.message, "--set", 5) != 0) {
            print_error("%s\nexpected %s\ngot      %s\n", REFUSED[i].assignment, REFUSED[i].words, ctx.message);
            fail();
        }
    }
    assert_int_equal(c->batch, before.batch);
    assert_memory_equal(&c->config, &before.config, sizeof c->config);
    assert_string_equal(c->name, before.name);
    assert_ptr_equal(c->gradients.items, before.gradients.items);
    assert_ptr_equal(c->profiles.items, before.profiles.items);
    assert_int_equal(c->input_count, 1);
    assert_int_equal(c->dtype_count, 0);
    assert_int_equal(c->quant_format_count, 0);
    assert_true(c->inputs[0].values[1] == 2);
}

TEST(reports_every_failed_allocation)
{
    static const char *const ASSIGNMENTS[] = {
        "profiles=bf16,f32",
        "inputs.y={values: [1]}",
        "mlp_activations=relu",
        "dtypes.y=float32",
        "quant_formats.weights/wo=nvfp4",
        "model={model_type: mixtral, hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: "
        "2,"
        " num_key_value_heads: 1, num_local_experts: 4, num_experts_per_tok: 2, rms_norm_eps: 1e-5, rope_theta: 1e6,"
        " max_position_embeddings: 64, rope_scaling: {type: yarn, factor: 4, original_max_position_embeddings: 16}}"};
    for (size_t i = 0; i < sizeof ASSIGNMENTS / sizeof *ASSIGNMENTS; i++) {
        for (int64_t n = 0;; n++) {
            assay_context ctx = {.threads = 1};
            assay_case *c = new_case();
            assay_fail_allocation(n);
            assay_status status = assay_case_set(&ctx, c, ASSIGNMENTS[i]);
            const bool done = had_memory(&ctx, status);
            assert_true(done ? n > 0 : c->profiles.count == 4 && c->input_count == 1);
            assay_cases_free(c, 1);
            if (done) break;
        }
    }
}
