/* The catalogue, the models, and finding cases by name, glob and file. */

#include "cases/case.h"
#include "cases/case_internal.h"
#include "cases/tests/same_case.h"

TEST_LABELS(slow);

enum { LEAST_CASES = 275 };

static bool has_tag(const assay_case *c, const char *tag)
{
    for (int i = 0; i < c->tags.count; i++) {
        if (strcmp(c->tags.items[i], tag) == 0) return true;
    }
    return false;
}

TEST_WITH_CONTEXT(has_distinct_described_cases)
{
    assay_case *cases = NULL;
    int count = 0;
    assert_ok(&ctx, assay_catalogue(&ctx, &cases, &count));
    assert_true(count >= LEAST_CASES);
    for (int i = 0; i < count; i++) {
        const assay_case *c = &cases[i];
        for (int j = 0; j < i; j++) assert_string_not_equal(c->name, cases[j].name);
        /* A name begins with its operation; one of true size says so instead, lest a glob finds it. */
        size_t folder = strcspn(c->name, "/");
        bool true_size = strncmp(c->name, "true-size/", folder + 1) == 0;
        assert_true(true_size || strncmp(c->name, c->op, folder) == 0);
        assert_int_equal(true_size, has_tag(c, "true-size"));
        assert_true(has_tag(c, c->op));
        if (strlen(c->description) <= 10) print_error("%s: \"%s\" says too little\n", c->name, c->description);
        assert_true(strlen(c->description) > 10);
        assert_true(true_size || c->batch * c->sequence <= 512);
    }
    assay_cases_free(cases, count);
}

/* Each bug of routing, dispatch, grouped products, expert MLPs, combining, rotary embedding and attention that one
 * operation on one device can show. */
TEST_WITH_CONTEXT(every_bug_has_a_case)
{
    static const int BUGS[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 15, 17, 18,
                               19, 25, 26, 27, 28, 29, 30, 31, 32, 34, 36, 37, 39, 40, 41, 42,
                               46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60};
    assay_case *cases = NULL;
    int count = 0;
    assert_ok(&ctx, assay_catalogue(&ctx, &cases, &count));
    for (size_t b = 0; b < sizeof BUGS / sizeof *BUGS; b++) {
        char tag[16];
        int found = 0;
        snprintf(tag, sizeof tag, "bug-%d", BUGS[b]);
        for (int i = 0; i < count; i++) found += has_tag(&cases[i], tag);
        if (found == 0) print_error("no case has the tag %s\n", tag);
        assert_true(found > 0);
    }
    assay_cases_free(cases, count);
}

TEST(models_know_their_names)
{
    for (int i = 0; i < assay_embedded_model_count; i++) {
        assay_context ctx = {.threads = 1};
        assay_case *c = NULL;
        char text[128];
        int count = 0;
        const char *name = assay_embedded_models[i].name;
        snprintf(text, sizeof text, "case: a\nop: moe\nmodel: %s\n", name);
        assert_ok(&ctx, assay_cases_parse(&ctx, "t.yml", text, strlen(text), &c, &count));
        const char *expected = strcmp(name, "llama4-scout") == 0 ? "llama4-17b-16e" : name;
        assert_string_equal(c->model, expected);
        assert_string_equal(c->config.model_name.text, expected);
        assert_true(c->config.decoder_block.text[0] != '\0');
        assert_true(c->config.base_emb_dim > 0 && c->config.base_moe_mlp_dim > 0 && c->config.num_experts > 0);
        assay_cases_free(c, count);
    }
}

TEST_WITH_CONTEXT(deepseek3_is_as_published)
{
    static const char TEXT[] = "case: a\nop: moe\nmodel: deepseek3-671b\n";
    assay_case *c = NULL;
    int count = 0;
    assert_ok(&ctx, assay_cases_parse(&ctx, "t.yml", TEXT, strlen(TEXT), &c, &count));
    const assay_model_config *m = &c->config;
    assert_int_equal(m->base_emb_dim, 7168);
    assert_int_equal(m->base_mlp_dim, 18432);
    assert_int_equal(m->base_moe_mlp_dim, 2048);
    assert_int_equal(m->num_experts, 256);
    assert_int_equal(m->num_experts_per_tok, 8);
    assert_int_equal(m->n_routing_groups, 8);
    assert_int_equal(m->topk_routing_group, 4);
    assert_true(m->routed_scaling_factor == 2.5);
    assert_true(m->normalization_layer_epsilon == 1e-6);
    assert_string_equal(m->routed_score_func.text, "sigmoid");
    assert_true(m->routed_bias);
    assert_int_equal(m->q_lora_rank, 1536);
    assay_cases_free(c, count);
}

static void find(assay_context *ctx, int count, const char *const *patterns, assay_case **cases, int *found)
{
    assert_ok(ctx, assay_cases_find(ctx, count, (char *const *)(const void *)patterns, cases, found));
}

TEST_WITH_CONTEXT(finds_names_globs_and_files)
{
    static const char FILE_TEXT[] = "case: mine/one\nop: moe\n---\ncase: mine/two\nop: mlp\n";
    char path[] = "./assay_case_XXXXXX.yml";
    assay_case *cases = NULL, *all = NULL;
    int count = 0, all_count = 0;
    write_case_file(path, FILE_TEXT);
    assert_ok(&ctx, assay_catalogue(&ctx, &all, &all_count));

    find(&ctx, 1, (const char *const[]){"moe/deepseek3-tiny-sparse"}, &cases, &count);
    assert_int_equal(count, 1);
    assert_string_equal(cases[0].name, "moe/deepseek3-tiny-sparse");
    assay_cases_free(cases, count);

    /* In catalogue order and once each, whatever the order of the patterns; files last. */
    find(&ctx, 5, (const char *const[]){path, "routing/*", "gmm/*", path, "gmm/*"}, &cases, &count);
    int next = 0;
    for (int i = 0; i < all_count; i++) {
        if (strcmp(all[i].op, "gmm") != 0 && strcmp(all[i].op, "routing") != 0) continue;
        assert_null(assay_case_difference(&cases[next++], &all[i]));
    }
    assert_int_equal(count, next + 2);
    assert_string_equal(cases[next].name, "mine/one");
    assert_string_equal(cases[next + 1].name, "mine/two");
    assay_cases_free(cases, count);

    /* Everything, but nothing of true size unless it is asked for. */
    find(&ctx, 1, (const char *const[]){"*"}, &cases, &count);
    int large = 0;
    for (int i = 0; i < all_count; i++) large += strncmp(all[i].name, "true-size/", 10) == 0;
    assert_true(large > 0);
    assert_int_equal(count, all_count - large);
    assay_cases_free(cases, count);
    find(&ctx, 1, (const char *const[]){"true-size/*"}, &cases, &count);
    assert_int_equal(count, large);
    assay_cases_free(cases, count);
    find(&ctx, 0, NULL, &cases, &count);
    assert_int_equal(count, 0);
    assay_cases_free(cases, count);

    assay_cases_free(all, all_count);
    assert_int_equal(remove(path), 0);
}

TEST(refuses_what_matches_nothing)
{
    static const struct {
        const char *pattern, *words;
    } REFUSED[] = {
        {"moe/deepsek3-tiny-sparse", "there is none of this name, did you mean moe/deepseek3-tiny-sparse"},
        {"moe", "there is none of this name, did you mean 'moe/*'?"},
        {"deepseek3-tiny-sparse", "did you mean moe/deepseek3-tiny-sparse"},
        {"nothing/*", "nothing/*: expected a case of the catalogue, a glob that matches some, or a YAML file"},
        {"nowhere.yml", "nowhere.yml: No such file"},
        {"./", "./: expected a file"},
        {"", "expected a case of the catalogue"},
    };
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
        assay_context ctx = {.threads = 1};
        assay_case *cases = NULL;
        int count = -1;
        char *pattern = (char *)(uintptr_t)REFUSED[i].pattern;
        assert_int_not_equal(assay_cases_find(&ctx, 1, &pattern, &cases, &count), ASSAY_OK);
        if (strstr(ctx.message, REFUSED[i].words) == NULL) print_error("%s\n", ctx.message);
        assert_non_null(strstr(ctx.message, REFUSED[i].words));
        assert_null(cases);
        assert_int_equal(count, 0);
    }
}

TEST_WITH_CONTEXT(refuses_two_cases_of_one_name)
{
    static const char TEXT[] = "case: moe/deepseek3-tiny-sparse\nop: moe\n";
    char path[] = "./assay_case_XXXXXX.yml";
    assay_case *cases = NULL;
    int count = 0;
    write_case_file(path, TEXT);
    char *const patterns[] = {path, (char *)(uintptr_t) "moe/*"};
    assert_int_equal(assay_cases_find(&ctx, 2, patterns, &cases, &count), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message, "two of the cases asked for are called moe/deepseek3-tiny-sparse");
    assert_ok(&ctx, assay_cases_find(&ctx, 1, patterns, &cases, &count));
    assert_int_equal(count, 1);
    assay_cases_free(cases, count);
    assert_int_equal(remove(path), 0);
}

TEST(matches_lists_of_patterns)
{
    static const struct {
        const char *items[2];
        int count;
        bool x, kernel, bias;
    } LISTS[] = {
        {{"all"}, 1, true, true, true},
        {{"none"}, 1, false, false, false},
        {{NULL}, 0, false, false, false},
        {{"inputs/x"}, 1, true, false, false},
        {{"weights/*"}, 1, false, true, true},
        {{"*"}, 1, true, true, true},
        {{"all", "checkpoints/*"}, 2, true, true, true},
        {{"weights/gate/kernel", "all"}, 2, true, true, true},
        {{"none", "inputs/x"}, 2, true, false, false},
        {{"inputs/x", "weights/gate/[b]*"}, 2, true, false, true},
        {{"x"}, 1, false, false, false},
        {{"gradients/inputs/x"}, 1, false, false, false},
    };
    for (size_t i = 0; i < sizeof LISTS / sizeof *LISTS; i++) {
        char *items[2] = {(char *)(uintptr_t)LISTS[i].items[0], (char *)(uintptr_t)LISTS[i].items[1]};
        const assay_text_list list = {items, LISTS[i].count};
        assert_int_equal(assay_text_list_matches(&list, "gradients/", "gradients/inputs/x"), LISTS[i].x);
        assert_int_equal(assay_text_list_matches(&list, "gradients/", "gradients/weights/gate/kernel"),
                         LISTS[i].kernel);
        assert_int_equal(assay_text_list_matches(&list, "gradients/", "gradients/weights/gate/bias"), LISTS[i].bias);
        assert_false(assay_text_list_matches(&list, "gradients/", "outputs/inputs/x"));
    }
}
