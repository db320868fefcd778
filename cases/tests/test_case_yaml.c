/* The reader of case files: what it takes. */

#include "cases/case.h"
#include "cases/tests/same_case.h"

static assay_status parse(assay_context *ctx, const char *text, assay_case **cases, int *count)
{
    return assay_cases_parse(ctx, "t.yml", text, strlen(text), cases, count);
}

TEST_WITH_CONTEXT(reads_every_key)
{
    static const char TEXT[] = "case: moe/mine\n"
                               "description: >\n"
                               "  one line\n"
                               "tags: [moe, smoke]\n"
                               "config: {sparse_matmul: no, n_routing_groups: 4, routed_scaling_factor: 1.5}\n"
                               "op: moe\n"
                               "model: deepseek3-tiny\n"
                               "batch: 2\n"
                               "sequence: 1_6\n"
                               "mesh: {data: 2, expert: 4}\n"
                               "seed: 18446744073709551615\n"
                               "dtype: f32\n"
                               "inputs:\n"
                               "  x: {scale: 2, mean: -1}\n"
                               "  gate/bias: {values: [1, -2.5, .5]}\n"
                               "  lhs: {distribution: integers, low: -3, high: 3, tail_nan_rows: 5}\n"
                               "positions: {start: 100, step: 7}\n"
                               "gradients: [inputs/x, 'weights/gate/*']\n"
                               "checkpoints: all\n"
                               "profiles: [bf16]\n";
    assay_case *c = NULL;
    int count = 0;
    assert_ok(&ctx, parse(&ctx, TEXT, &c, &count));
    assert_int_equal(count, 1);
    assert_string_equal(c->name, "moe/mine");
    assert_string_equal(c->description, "one line");
    assert_int_equal(c->tags.count, 2);
    assert_string_equal(c->tags.items[1], "smoke");
    assert_string_equal(c->op, "moe");
    assert_string_equal(c->model, "deepseek3-tiny");
    assert_string_equal(c->config.model_name.text, "deepseek3-tiny");
    assert_int_equal(c->config.num_experts, 16); /* of the model */
    assert_false(c->config.sparse_matmul);       /* over the model, though it stands before it */
    assert_int_equal(c->config.n_routing_groups, 4);
    assert_true(c->config.routed_scaling_factor == 1.5);
    assert_int_equal(c->batch, 2);
    assert_int_equal(c->sequence, 16);
    assert_int_equal(c->mesh_data, 2);
    assert_int_equal(c->mesh_fsdp, 1);
    assert_int_equal(c->mesh_expert, 4);
    assert_true(c->seed == UINT64_MAX);
    assert_int_equal(c->dtype, ASSAY_FLOAT32);
    assert_int_equal(c->input_count, 3);
    assert_string_equal(c->inputs[0].path, "x");
    assert_int_equal(c->inputs[0].fill.distribution, ASSAY_NORMAL);
    assert_true(c->inputs[0].fill.scale == 2 && c->inputs[0].fill.mean == -1);
    assert_int_equal(c->inputs[1].fill.distribution, ASSAY_VALUES);
    assert_int_equal(c->inputs[1].fill.value_count, 3);
    assert_ptr_equal(c->inputs[1].fill.values, c->inputs[1].values);
    assert_true(c->inputs[1].values[1] == -2.5);
    assert_int_equal(c->inputs[1].line, 15);
    assert_int_equal(c->inputs[2].tail_nan_rows, 5);
    assert_int_equal(c->position_start, 100);
    assert_int_equal(c->position_step, 7);
    assert_int_equal(c->gradients.count, 2);
    assert_string_equal(c->checkpoints.items[0], "all");
    assert_int_equal(c->profiles.count, 1);
    assay_cases_free(c, count);
}

TEST_WITH_CONTEXT(defaults_fill_the_rest)
{
    assay_case *c = NULL;
    int count = 0;
    assert_ok(&ctx, parse(&ctx, "---\ncase: a\nop: gmm\n---\ncase: b\nop: mlp\n...\n", &c, &count));
    assert_int_equal(count, 2);
    assert_string_equal(c[1].name, "b");
    assert_string_equal(c->model, "");
    assert_int_equal(c->batch, 1);
    assert_int_equal(c->sequence, 1);
    assert_int_equal(c->mesh_data * c->mesh_fsdp * c->mesh_expert, 1);
    assert_int_equal(c->seed, 0);
    assert_int_equal(c->dtype, ASSAY_BFLOAT16);
    assert_int_equal(c->position_start, 0);
    assert_int_equal(c->position_step, 1);
    assert_string_equal(c->gradients.items[0], "all");
    assert_string_equal(c->checkpoints.items[0], "none");
    assert_int_equal(c->profiles.count, 4);
    assert_string_equal(c->profiles.items[2], "bf16");
    assert_int_equal(c->config.topk_routing_group, -1);
    assert_string_equal(c->config.mlp_activations.item[0], "silu");
    assert_string_equal(c->config.mlp_activations.item[1], "linear");
    assert_string_equal(c->config.decoder_layer_input.text, "device");
    assert_string_equal(c->config.mla_q.text, "remat");
    assay_cases_free(c, count);
}

TEST_WITH_CONTEXT(takes_numbers_as_people_write_them)
{
    static const struct {
        const char *text;
        double value;
    } REALS[] = {{"1e-6", 1e-6},     {"1.0e-6", 1e-6}, {"10_000", 10000}, {"1.0e+3", 1000}, {".5", 0.5},
                 {"2.", 2},          {"-0.25", -0.25}, {"+3", 3},         {"1E5", 1e5},     {"0", 0},
                 {"1_0.2_5", 10.25}, {"0.001", 0.001}, {"5e-324", 5e-324}};
    static const struct {
        const char *text;
        int64_t value;
    } WHOLES[] = {{"1e3", 1000}, {"64.0", 64}, {"1_024", 1024}, {"+7", 7}, {"2147483647", INT32_MAX}, {"2.5e1", 25}};
    static const struct {
        const char *text;
        bool value;
    } BOOLS[] = {{"true", true}, {"True", true}, {"TRUE", true},   {"yes", true},
                 {"on", true},   {"No", false},  {"false", false}, {"off", false}};
    assay_case *c = NULL;
    char text[256];
    int count = 0;
    for (size_t i = 0; i < sizeof REALS / sizeof *REALS; i++) {
        snprintf(text, sizeof text, "case: a\nop: b\nconfig: {routed_scaling_factor: %s}\n", REALS[i].text);
        assert_ok(&ctx, parse(&ctx, text, &c, &count));
        assert_same_bits(&c->config.routed_scaling_factor, &REALS[i].value, 1);
        assay_cases_free(c, count);
    }
    for (size_t i = 0; i < sizeof WHOLES / sizeof *WHOLES; i++) {
        snprintf(text, sizeof text, "case: a\nop: b\nbatch: %s\n", WHOLES[i].text);
        assert_ok(&ctx, parse(&ctx, text, &c, &count));
        assert_int_equal(c->batch, WHOLES[i].value);
        assay_cases_free(c, count);
    }
    for (size_t i = 0; i < sizeof BOOLS / sizeof *BOOLS; i++) {
        snprintf(text, sizeof text, "case: a\nop: b\nconfig: {routed_bias: %s, sparse_matmul: %s}\n", BOOLS[i].text,
                 BOOLS[i].text);
        assert_ok(&ctx, parse(&ctx, text, &c, &count));
        assert_int_equal(c->config.routed_bias, BOOLS[i].value);
        assert_int_equal(c->config.sparse_matmul, BOOLS[i].value);
        assay_cases_free(c, count);
    }
}

/* A long name, a long list and deep nesting are refused or read, and never slow or fatal. */
TEST_WITH_CONTEXT(survives_sizes)
{
    enum { LARGE = 200000 };
    static char text[LARGE + 200];
    assay_case *c = NULL;
    int count = 0;

    size_t start = (size_t)snprintf(text, sizeof text, "case: a\nop: ");
    memset(text + start, 'x', 5000);
    snprintf(text + start + 5000, 8, "\n");
    assert_int_equal(parse(&ctx, text, &c, &count), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message, "t.yml:2:5: op: expected at most 63 bytes, found 5000");

    start = (size_t)snprintf(text, sizeof text, "case: a\nop: b\nconfig: ");
    memset(text + start, '[', LARGE / 2);
    text[start + LARGE / 2] = '\0';
    assert_bad_input(&ctx, parse(&ctx, text, &c, &count), "t.yml:3:5009: more brackets are open");

    start = (size_t)snprintf(text, sizeof text, "case: a\nop: b\nconfig: [");
    for (int i = 0; i < LARGE / 4; i++) start += (size_t)snprintf(text + start, sizeof text - start, "&a,");
    assert_bad_input(&ctx, parse(&ctx, text, &c, &count),
                     "t.yml:3:15010: more anchors and aliases than any case needs");
    /* of a file that is no case nothing is shown */
    assert_int_equal(parse(&ctx, "root:x:0:0:a secret\nand more", &c, &count), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message, "t.yml:1:1: expected a case (case: NAME, op: ...), found a text");

    start = (size_t)snprintf(text, sizeof text, "case: a\nop: b\nconfig:\n");
    for (int i = 0; i < LARGE / 4; i++) start += (size_t)snprintf(text + start, sizeof text - start, "- ");
    snprintf(text + start, sizeof text - start, "a\n");
    assert_bad_input(&ctx, parse(&ctx, text, &c, &count),
                     "t.yml:4:1: config: expected a mapping (key: value), found a list");

    start = (size_t)snprintf(text, sizeof text, "case: a\nop: b\ninputs: {x: {values: [");
    for (int i = 0; i < 20000; i++) start += (size_t)snprintf(text + start, sizeof text - start, "1,");
    snprintf(text + start, sizeof text - start, "2]}}\n");
    assert_ok(&ctx, parse(&ctx, text, &c, &count));
    assert_int_equal(c->inputs[0].fill.value_count, 20001);
    assert_true(c->inputs[0].values[20000] == 2);
    assay_cases_free(c, count);

    start = (size_t)snprintf(text, sizeof text, "case: a\nop: b\nmodel:\n");
    for (int i = 0; i < 5000; i++) start += (size_t)snprintf(text + start, sizeof text - start, "  k%d: 1\n", i);
    assert_bad_input(&ctx, parse(&ctx, text, &c, &count), "more than 4096 keys");
}

TEST_WITH_CONTEXT(takes_aliases)
{
    assay_case *c = NULL;
    int count = 0;
    assert_ok(&ctx, parse(&ctx, "case: a\nop: b\nbatch: &n 3\nsequence: *n\ninputs: {x: &f {scale: 2}, y: *f}\n", &c,
                          &count));
    assert_int_equal(c->sequence, 3);
    assert_true(c->inputs[1].fill.scale == 2);
    assay_cases_free(c, count);
    /* One that holds itself is a list like any other. */
    assert_bad_input(&ctx, parse(&ctx, "case: a\nop: b\ntags: &t [*t]\n", &c, &count),
                     "t.yml:3:7: tags: expected a text, found a list");
}

/* A file of MaxText's as it is: keys of no interest here, lists, comments; its name decides the routing family. */
TEST_WITH_CONTEXT(reads_a_maxtext_model_file)
{
    static const char MODEL[] =
        "# Copyright\nbase_emb_dim: 64\nbase_num_kv_heads: 4\nmlp_activations: [\"gelu\",\"linear\"]\n"
        "compress_ratios: [0, 0, 4]\nmlp_activations_limit: 10\nrope_max_timescale: 10_000 # theta\n"
        "decoder_block: \"deepseek4\"\nnormalization_layer_epsilon: 1.0e-6\n";
    char path[] = "./assay_model_XXXXXX.yml", text[256];
    assay_case *c = NULL;
    int count = 0;
    write_case_file(path, MODEL);

    snprintf(text, sizeof text, "case: a\nop: moe\nmodel: %s\nconfig: {base_emb_dim: 32}\n", path);
    assert_ok(&ctx, parse(&ctx, text, &c, &count));
    assert_int_equal(c->config.base_emb_dim, 32);
    assert_true(c->config.mlp_activations_limit == 10);
    assert_true(c->config.normalization_layer_epsilon == 1e-6);
    assert_string_equal(c->config.mlp_activations.item[0], "gelu");
    assert_string_equal(c->config.decoder_block.text, "deepseek4");
    assert_memory_equal(c->model, "assay_model_", 12);
    assert_null(strchr(c->model, '.'));
    assert_string_equal(c->model, c->config.model_name.text);
    assay_cases_free(c, count);

    /* Relative to the folder of the case file. */
    snprintf(text, sizeof text, "case: a\nop: moe\nmodel: %s\n", strrchr(path, '/') + 1);
    assert_ok(&ctx, assay_cases_parse(&ctx, "./case.yml", text, strlen(text), &c, &count));
    assert_int_equal(c->config.base_emb_dim, 64);
    assay_cases_free(c, count);
    assert_int_equal(remove(path), 0);
}

/* Plain RoPE has halves for pairs and everything else interleaves, until rope_interleave is given. */
TEST(rope_interleave_follows_rope_type)
{
    static const struct {
        const char *rest;
        bool interleave;
    } CASES[] = {
        {"", false},
        {"config: {rope_factor: 4}", false},
        {"config: {rope_type: default}", false},
        {"config: {rope_type: yarn}", true},
        {"config: {rope_type: yarn, rope_interleave: false}", false},
        {"config: {rope_interleave: false, rope_type: yarn}", false},
        {"config: {rope_type: default, rope_interleave: true}", true},
        {"config: {rope_interleave: true, rope_type: default}", true},
        {"config: {rope_type: yarn, rope_factor: 4}", true},
        {"model: {rope_type: yarn}\nconfig: {rope_type: default}", false},
        {"model: {rope_type: yarn, rope_interleave: true}\nconfig: {rope_type: default}", true},
        {"model: {rope_type: yarn, rope_interleave: false}\nconfig: {mscale: 2}", false},
        {"model: deepseek3-tiny", true},
        {"model: deepseek3-tiny\nconfig: {rope_type: default}", false},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        assay_context ctx = {.threads = 1};
        assay_case *c = NULL;
        char text[256];
        int count = 0;
        snprintf(text, sizeof text, "case: a\nop: mla\n%s\n", CASES[i].rest);
        assert_ok(&ctx, parse(&ctx, text, &c, &count));
        if (c->config.rope_interleave != CASES[i].interleave) print_error("%s\n", CASES[i].rest);
        assert_int_equal(c->config.rope_interleave, CASES[i].interleave);
        assay_cases_free(c, count);
    }
}

TEST(reports_every_failed_allocation)
{
    static const char TEXT[] = "case: a\nop: moe\nmodel: deepseek3-tiny\ntags: [a, b]\nprofiles: bf16, f32\n"
                               "inputs: {x: {values: [1, 2]}, y: {scale: 2}}\nconfig: {mlp_activations: relu}\n"
                               "---\ncase: b\nop: mlp\n";
    for (int64_t n = 0;; n++) {
        assay_context ctx = {.threads = 1};
        assay_case *c = NULL;
        int count = 0;
        assay_fail_allocation(n);
        assay_status status = parse(&ctx, TEXT, &c, &count);
        if (had_memory(&ctx, status)) {
            assert_int_equal(count, 2);
            assay_cases_free(c, count);
            assert_true(n > 20);
            return;
        }
        assert_null(c);
    }
}
