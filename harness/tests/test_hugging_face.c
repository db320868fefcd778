/* A config.json in place of a model: those of public models say what our models of the same name say, key by key; what
 * would change numbers is refused. The files hold facts of the published configurations. */

#include "harness/operations/op_support.h"
#include "harness/operations/operation.h"
#include "harness/tests/harness_test.h"

#define CONFIGS ASSAY_ROOT "/harness/tests/hugging_face/"

static const char *const models[] = {"deepseek2-16b", "deepseek2-236b", "deepseek3-671b", "kimi-k2-1t",
                                     "glm4.5-355b",   "mixtral-8x7b",   "mixtral-8x22b",  "qwen3-235b-a22b",
                                     "qwen3-30b-a3b", "gpt-oss-20b",    "gpt-oss-120b"};

static char *yaml_of(const char *set)
{
    assay_context ctx = assay_context_default(1);
    char *yaml = NULL;
    OWNED_BY(free_case) assay_case *c = case_named("moe/small", set);
    assert_ok(&ctx, assay_case_yaml(&ctx, c, &yaml));
    return yaml;
}

/* Names are not the same; of some models only the configuration says how long a sequence may be; and MaxText has Mixtral's
 * factor of queries in their kernel. */
TEST(public_configurations_say_what_our_models_say)
{
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char set[TEST_PATH_SIZE];
        int lines = 0;
        snprintf(set, sizeof set, "model=%s", models[i]);
        OWNED char *ours = yaml_of(set);
        snprintf(set, sizeof set, "model=" CONFIGS "%s.json", models[i]);
        OWNED char *theirs = yaml_of(set);
        const char *a = ours, *b = theirs;
        for (; *a != '\0' && *b != '\0'; lines++) {
            const int length = (int)strcspn(a, "\n"), other = (int)strcspn(b, "\n");
            const bool same = length == other && strncmp(a, b, (size_t)length) == 0;
            if (!same && !assay_begins(a, "  model_name:") && !assay_begins(a, "  max_position_embeddings: 163840") &&
                !(assay_begins(models[i], "mixtral") && assay_begins(b, "  query_pre_attn_scalar: 0.0883"))) {
                fail_msg("%s: %.*s, found %.*s", models[i], length, a, other, b);
            }
            a += length + (a[length] != '\0');
            b += other + (b[other] != '\0');
        }
        assert_true(lines > 90 && *a == '\0' && *b == '\0');
    }
}

/* A case of a configuration with one setting changed: `from` becomes `to`. To be freed with assay_cases_free(c, 1). */
static assay_case *changed(const test_folder *folder, assay_context *ctx, const char *model, const char *from,
                           const char *to, assay_status *status)
{
    char path[TEST_PATH_SIZE], assignment[2 * TEST_PATH_SIZE];
    size_t size = 0;
    snprintf(path, sizeof path, CONFIGS "%s.json", model);
    char *text = (char *)bytes_of(path, &size);
    text[size] = '\0';
    char *place = strstr(text, from);
    if (place == NULL) fail_msg("%s has no %s", model, from);
    FILE *file = fopen(folder->file, "w");
    assert_non_null(file);
    fprintf(file, "%.*s%s%s", (int)(place - text), text, to, place + strlen(from));
    assert_int_equal(fclose(file), 0);
    snprintf(path, sizeof path, "%s/config.json", folder->path);
    assert_int_equal(rename(folder->file, path), 0);
    snprintf(assignment, sizeof assignment, "model=%s", path);
    assay_case *c = case_named("moe/small", NULL);
    *status = assay_case_set(ctx, c, assignment);
    free(text);
    assert_int_equal(unlink(path), 0);
    return c;
}

static assay_status read_changed(const test_folder *folder, assay_context *ctx, const char *model, const char *from,
                                 const char *to)
{
    assay_status status;
    assay_cases_free(changed(folder, ctx, model, from, to, &status), 1);
    return status;
}

TEST_IN_FOLDER(what_changes_numbers_is_refused)
{
    static const struct {
        const char *model, *from, *to, *words;
    } table[] = {
        {"deepseek3-671b", "\"model_type\": \"deepseek_v3\"", "\"model_type\": \"deepseek_v33\"",
         "model_type: expected one that docs/hugging-face.md has, found deepseek_v33, did you mean deepseek_v"},
        {"deepseek3-671b", "\"model_type\": \"deepseek_v3\",", "", "unknown key architectures in model"},
        {"deepseek3-671b", "\"n_group\": 8", "\"n_groups\": 8", "the key n_group is missing"},
        {"deepseek3-671b", "\"n_group\": 8", "\"n_group\": 8, \"index_topk\": 2048",
         "unknown key index_topk in a configuration of deepseek_v3: it may change numbers"},
        {"deepseek3-671b", "\"seq_aux\"", "\"seq\"", "unknown key seq in a configuration"},
        {"deepseek3-671b", "\"seq_aux\"", "\"norm_topk_porb\"", "did you mean norm_topk_prob?"},
        {"deepseek3-671b", "\"moe_layer_freq\": 1", "\"moe_layer_freq\": 2",
         "moe_layer_freq: expected 1 (no operation here has another), found 2"},
        {"deepseek3-671b", "\"noaux_tc\"", "\"greedy\"", "topk_method: expected noaux_tc"},
        {"deepseek3-671b", "\"sigmoid\"", "\"softmax\"", "scoring_func: expected sigmoid"},
        {"deepseek3-671b", "\"silu\"", "\"gelu\"", "hidden_act: expected silu|swish"},
        {"deepseek2-16b", "\"rope_theta\": 10000", "\"rope_interleave\": false, \"rope_theta\": 10000",
         "rope_interleave: expected true"},
        {"deepseek3-671b", "\"rope_theta\": 10000,",
         "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000},",
         "rope_parameters says another rotation than rope_scaling, expected one of the two"},
        {"deepseek3-671b", "\"attention_bias\": false", "\"attention_bias\": true", "attention_bias: expected false"},
        {"deepseek3-671b", "\"yarn\"", "\"dynamic\"", "type: expected default|yarn"},
        {"deepseek3-671b", "\"mscale\": 1.0", "\"mscale\": 0.707", "mscale is 0.707 and mscale_all_dim 1"},
        {"deepseek3-671b", "\"factor\": 40,", "", "rope_scaling has no factor"},
        {"deepseek3-671b", "\"type\": \"yarn\"", "\"type\": \"default\"",
         "rope_scaling has mscale_all_dim, expected none where the type is not yarn"},
        {"deepseek3-671b", "\"beta_fast\": 32", "\"beta_fats\": 32", "did you mean beta_fast?"},
        {"deepseek3-671b", "\"rope_theta\": 10000,", "", "the key rope_theta is missing"},
        {"deepseek3-671b", "\"rope_theta\": 10000,", "\"rope_theta\": null,", "rope_theta is null, expected a value"},
        {"deepseek3-671b", "\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": null",
         "rms_norm_eps is null, expected a value"},
        {"mixtral-8x7b", "\"num_key_value_heads\": 8", "\"num_key_value_heads\": null",
         "num_key_value_heads is null, expected a value"},
        {"gpt-oss-20b", "\"rope_scaling\": {", "\"task_specific_params\": {", "the key rope_scaling is missing"},
        {"gpt-oss-20b", "\"rope_scaling\": {", "\"rope_scaling\": null, \"task_specific_params\": {",
         "rope_scaling is null, expected a value"},
        {"deepseek3-671b", "\"hidden_size\": 7168", "\"hidden_size\": \"7168\"",
         "base_emb_dim: expected a whole number"},
        {"deepseek3-671b", "\"hidden_size\": 7168", "\"hidden_size\": 7168, \"hidden_size\": 1", "is given twice"},
        {"deepseek2-16b", "\"greedy\"", "\"noaux_tc\"", "topk_method: expected greedy|group_limited_greedy"},
        {"qwen3-30b-a3b", "\"use_sliding_window\": false", "\"use_sliding_window\": true",
         "use_sliding_window: expected false"},
        {"qwen3-30b-a3b", "\"mlp_only_layers\": []", "\"mlp_only_layers\": [3]", "mlp_only_layers: expected []"},
        {"qwen3-30b-a3b", "\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 2",
         "decoder_sparse_step: expected 1"},
        {"qwen3-30b-a3b", "\"num_experts\": 128", "\"id2label\": {}", "the key num_experts is missing"},
        {"qwen3-30b-a3b", "\"num_experts\": 128", "\"num_experts\": 128, \"num_local_experts\": 128",
         "num_experts stands there too"},
        {"gpt-oss-20b", "\"sliding_attention\"", "\"full_attention\"", "layer_types: expected sliding_attention"},
        {"gpt-oss-20b", "\"swiglu_limit\"", "\"swiglu_alpha\": 1.5, \"swiglu_limit\"", "swiglu_alpha: expected 1.702"},
        {"gpt-oss-20b", "{", "[", "expected YAML"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = assay_context_default(1);
        const assay_status status = read_changed(folder, &ctx, table[i].model, table[i].from, table[i].to);
        if (status != ASSAY_BAD_INPUT || strstr(ctx.message, table[i].words) == NULL)
            fail_msg("%s: expected %s, found %s", table[i].to, table[i].words, status == ASSAY_OK ? "ok" : ctx.message);
    }
}

/* What transformers writes since its fifth version, and what changes nothing. */
TEST_IN_FOLDER(other_forms_are_read)
{
    static const struct {
        const char *model, *from, *to;
    } table[] = {
        {"qwen3-30b-a3b", "\"rope_theta\": 10000000",
         "\"rope_parameters\": {\"rope_theta\": 10000000, \"rope_type\": \"default\"}"},
        {"qwen3-30b-a3b", "\"num_experts\": 128", "\"num_local_experts\": 128"},
        {"deepseek3-671b", "\"type\": \"yarn\"", "\"type\": \"yarn\", \"rope_type\": \"yarn\""},
        {"mixtral-8x7b", "\"sliding_window\": null", "\"sliding_window\": null, \"head_dim\": null"},
        {"gpt-oss-20b", "\"swiglu_limit\"", "\"swiglu_alpha\": 1.702, \"swiglu_limit\""},
        {"mixtral-8x7b", "\"use_cache\": true", "\"use_cache\":true"},
        {"deepseek3-671b", "\"q_lora_rank\": 1536", "\"q_lora_rank\": null"},
        {"gpt-oss-20b", "\"rope_scaling\"", "\"rope_parameters\""},
        {"deepseek3-671b", "\"silu\"", "\"swish\""},
        {"deepseek2-16b", "\"rope_theta\": 10000", "\"rope_interleave\": true, \"rope_theta\": 10000"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = assay_context_default(1);
        assert_ok(&ctx, read_changed(folder, &ctx, table[i].model, table[i].from, table[i].to));
    }
}

/* DeepSeek's attention: scores times (Dn + Dr)^-0.5, with yarn times m^2, m = 0.1 mscale_all_dim ln(factor) + 1, whatever
 * max_position_embeddings is; m is 1 without mscale_all_dim and for a factor up to 1. */
TEST_IN_FOLDER(scores_are_scaled_as_in_transformers)
{
    static const char plain[] = "\"rope_scaling\": null, \"task_specific_params\": {";
    const struct {
        const char *from, *to;
        double mscale_all_dim, factor;
    } table[] = {
        {"\"type\": \"yarn\"", "\"type\": \"yarn\"", 1, 40},
        {"\"rope_scaling\": {", plain, 0, 40},
        {"\"rope_scaling\": {", plain + strlen("\"rope_scaling\": null, "), 0, 40},
        {"\"rope_scaling\": {", "\"rope_scaling\": {\"type\": \"default\"}, \"task_specific_params\": {", 0, 40},
        {"\"max_position_embeddings\": 163840", "\"max_position_embeddings\": 4096", 1, 40},
        {"\"max_position_embeddings\": 163840", "\"max_position_embeddings\": 2048", 1, 40},
        {"\"factor\": 40", "\"factor\": 1", 1, 1},
        {"\"mscale\": 1.0,\n    \"mscale_all_dim\": 1.0", "\"finetuned\": true", 0, 40},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = assay_context_default(1);
        assay_mla_config mla;
        assay_status status;
        OWNED_BY(free_case)
        assay_case *c = changed(folder, &ctx, "deepseek3-671b", table[i].from, table[i].to, &status);
        assert_ok(&ctx, status);
        assert_ok(&ctx, assay_mla_config_of(&ctx, c, &mla));
        const double m = 0.1 * table[i].mscale_all_dim * log(table[i].factor) + 1;
        const double wanted = m * m / sqrt(192), found = assay_mla_softmax_scale(&mla);
        if (!(fabs(found - wanted) < 1e-15)) fail_msg("%s: expected %.17g, found %.17g", table[i].to, wanted, found);
    }
}

/* transformers keeps 1e-6 in the norms of the latents; the others take rms_norm_eps. */
TEST(the_latents_may_have_an_epsilon_of_their_own)
{
    static const struct {
        const char *set;
        double latent, layer;
    } table[] = {{"normalization_layer_epsilon=1e-5", 1e-5, 1e-5},
                 {"normalization_layer_epsilon=1e-5;latent_norm_epsilon=1e-6", 1e-6, 1e-5},
                 {"latent_norm_epsilon=0", 0, 1e-6}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char set[TEST_PATH_SIZE];
        assay_context ctx = assay_context_default(1);
        assay_stack_config stack;
        snprintf(set, sizeof set, "model=" CONFIGS "deepseek3-671b.json;%s", table[i].set);
        OWNED_BY(free_case) assay_case *c = case_named("deepseek_layer/moe", set);
        assert_ok(&ctx, assay_stack_config_of(&ctx, c, &stack));
        assert_true(stack.mla.epsilon == table[i].latent && stack.epsilon == table[i].layer);
    }
}

/* Qwen3 weighs by a softmax over all experts, and divides where norm_topk_prob says so; transformers' default is false. */
TEST_IN_FOLDER(qwen3_divides_where_it_says_so)
{
    enum { EXPERTS = 128, CHOSEN = 8 };
    static const struct {
        const char *to;
        bool divided;
    } table[] = {{"\"norm_topk_prob\": true", true}, {"\"norm_topk_prob\": false", false}, {"\"id2label\": {}", false}};
    double logits[EXPERTS], all = 0, chosen = 0;
    for (int e = 0; e < EXPERTS; e++) {
        logits[e] = -0.25 * e;
        all += exp(logits[e]);
        chosen += e < CHOSEN ? exp(logits[e]) : 0;
    }
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = assay_context_default(1);
        assay_routing_config config;
        OWNED_BY(assay_routing_free) assay_routing routing = {0};
        assay_status status;
        OWNED_BY(free_case)
        assay_case *c = changed(folder, &ctx, "qwen3-30b-a3b", "\"norm_topk_prob\": true", table[i].to, &status);
        assert_ok(&ctx, status);
        c->batch = c->sequence = 1;
        assert_ok(&ctx, assay_model_check(&ctx, c, ASSAY_USES_ROUTER));
        assert_ok(&ctx, assay_routing_config_of(&ctx, c, &config));
        assert_ok(&ctx, assay_routing_alloc(&ctx, &routing, &config));
        assert_ok(&ctx, assay_routing_forward(&ctx, &routing, &(assay_routing_inputs){.logits = logits}, &config));
        for (int k = 0; k < CHOSEN; k++) {
            const double wanted = exp(logits[k]) / (table[i].divided ? chosen : all);
            assert_int_equal(routing.selected_experts[k], k);
            assert_true(fabs(routing.weights[k] - wanted) < 1e-15);
        }
    }
}

/* Yarn without mscale scales cosine and sine, and no scores. */
TEST(yarn_without_mscale)
{
    OWNED_BY(free_case) assay_case *c = case_named("moe/small", "model=" CONFIGS "gpt-oss-20b.json");
    assert_true(c->config.rope_attention_scaling);
    assay_cases_free(c, 1);
    c = case_named("moe/small", "model=" CONFIGS "deepseek2-16b.json");
    assert_false(c->config.rope_attention_scaling);
    assert_true(c->config.mscale == 0.707 && c->config.n_routing_groups == -1 && c->config.q_lora_rank == 0);
}
