/* Cases, settings of cases, profiles, models, lists of known failures: texts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/case.h"
#include "compare/profile_yaml.h"
#include "harness/backends/expected_failures.h"
#include "harness/plan/plan_make.h"
#include "tests/fuzz/fuzz.h"

static char *yaml_of(const assay_case *c)
{
    char *text = NULL;
    assay_context ctx = fuzz_context();
    fuzz_require(assay_case_to_yaml(&ctx, c, &text) == ASSAY_OK, "a case that was read cannot be written");
    return text;
}

/* The case that a stored text gives, as text. */
static char *read_again(const char *text)
{
    assay_case *again = NULL;
    int count = 0;
    assay_context ctx = fuzz_context();
    fuzz_require(assay_cases_parse_stored(&ctx, "again.yml", text, strlen(text), &again, &count) == ASSAY_OK &&
                     count == 1,
                 ctx.message);
    char *second = yaml_of(&again[0]);
    assay_cases_free(again, count);
    return second;
}

/* What was read can be written, and reads as the same; but keys that were given at their default are not said again. */
static void check_case_again(const assay_case *c)
{
    char *text = yaml_of(c), *second = read_again(text), *third = read_again(second);
    fuzz_require(strcmp(second, third) == 0, "a case reads as another than it was");
    const char *at = text;
    for (char *rest = third, *line; (line = strsep(&rest, "\n")) != NULL;) {
        const size_t length = strlen(line);
        while (*at != '\0' && (strncmp(at, line, length) != 0 || (at[length] != '\n' && at[length] != '\0'))) {
            at += strcspn(at, "\n");
            at += *at == '\n';
        }
        if (length > 0 && *at == '\0') fprintf(stderr, "fuzz: %s\n", line);
        fuzz_require(length == 0 || *at != '\0', "a case reads as another than it was");
    }
    free(third);
    free(second);
    free(text);
}

static void plan(const assay_case *c)
{
    assay_plan made = {0};
    assay_context ctx = fuzz_context();
    fuzz_check(&ctx, assay_plan_describe(&ctx, &made, c, NULL, NULL));
    assay_plan_free(&made);
}

static void try_case_yaml(const uint8_t *data, size_t size)
{
    assay_case *cases = NULL;
    int count = 0;
    assay_context ctx = fuzz_context();
    const assay_status status = assay_cases_parse(&ctx, "case.yml", (const char *)data, size, &cases, &count);
    fuzz_check(&ctx, status);
    for (int i = 0; status == ASSAY_OK && i < count && i < 2; i++) {
        check_case_again(&cases[i]);
        plan(&cases[i]);
    }
    if (status == ASSAY_OK) assay_cases_free(cases, count);
}

static const assay_case *catalogue(int *count)
{
    static assay_case *cases;
    static int found;
    assay_context ctx = fuzz_context();
    if (cases == NULL) fuzz_require(assay_catalogue(&ctx, &cases, &found) == ASSAY_OK, ctx.message);
    *count = found;
    return cases;
}

static void case_seeds(fuzz_corpus *corpus)
{
    int count = 0;
    const assay_case *cases = catalogue(&count);
    for (int i = 0; i < count; i += 5) { /* every key is in them */
        char *text = NULL;
        assay_context ctx = fuzz_context();
        fuzz_require(assay_case_to_short_yaml(&ctx, &cases[i], &text) == ASSAY_OK, ctx.message);
        fuzz_seed_text(corpus, text);
        free(text);
    }
}

const fuzz_target fuzz_case_yaml = {"case_yaml", try_case_yaml, case_seeds, true};

/* The number of a case of the catalogue, and a --set on each line. */
static void try_case_set(const uint8_t *data, size_t size)
{
    int count = 0;
    assay_case c = {0};
    assay_context ctx = fuzz_context();
    char *text = fuzz_text(data, size), *rest = text, *line = strsep(&rest, "\n");
    const assay_case *cases = catalogue(&count);
    fuzz_require(assay_case_copy(&ctx, &cases[strtoul(line, NULL, 10) % (unsigned)count], &c) == ASSAY_OK, ctx.message);
    while ((line = strsep(&rest, "\n")) != NULL) {
        char *before = yaml_of(&c);
        ctx = fuzz_context();
        const assay_status status = assay_case_set(&ctx, &c, line);
        fuzz_check(&ctx, status);
        char *after = yaml_of(&c);
        fuzz_require(status == ASSAY_OK || strcmp(before, after) == 0, "a value that was refused changed the case");
        free(before);
        free(after);
    }
    check_case_again(&c);
    plan(&c);
    assay_case_free(&c);
    free(text);
}

static void set_seeds(fuzz_corpus *corpus)
{
    fuzz_seed_text(corpus, "0\nbatch=2\nsequence=5\nseed=7\ndtype=float32\nmesh.expert=2\n");
    fuzz_seed_text(corpus,
                   "300\nmodel=deepseek3-671b\nnum_experts=8\nnum_experts_per_tok=3\nrouted_score_func=sigmoid\n");
    fuzz_seed_text(corpus,
                   "400\ninputs.x={distribution: uniform, low: -1, high: 2}\ndtypes.weights/*=float32\nfill=bell\n");
    fuzz_seed_text(corpus, "500\ngradients=none\ncheckpoints=all\nprofiles=f32, bf16\npositions.start=3\ncase=mine\n");
    fuzz_seed_text(corpus, "600\nquant_formats.weights/wo=mxfp4\nmlp_activations=[silu, linear]\nrope_factor=1e300\n");
}

const fuzz_target fuzz_case_set = {"case_set", try_case_set, set_seeds, true};

static void try_profile(const uint8_t *data, size_t size)
{
    assay_profile profile, again;
    char text[ASSAY_PROFILE_YAML_SIZE], second[ASSAY_PROFILE_YAML_SIZE];
    assay_context ctx = fuzz_context();
    const assay_status status = assay_profile_parse(&ctx, "profile.yml", (const char *)data, size, &profile);
    fuzz_check(&ctx, status);
    if (status != ASSAY_OK) return;
    assay_profile_to_yaml(&profile, text);
    fuzz_require(assay_profile_parse(&ctx, "again.yml", text, strlen(text), &again) == ASSAY_OK, ctx.message);
    assay_profile_to_yaml(&again, second);
    fuzz_require(strcmp(text, second) == 0, "a profile reads as another than it was");
}

static void profile_seeds(fuzz_corpus *corpus)
{
    int count = 0;
    const assay_profile *profiles = assay_profiles(&count);
    for (int i = 0; i < count; i++) {
        char text[ASSAY_PROFILE_YAML_SIZE];
        assay_profile_to_yaml(&profiles[i], text);
        fuzz_seed_text(corpus, text);
    }
}

const fuzz_target fuzz_profile_yaml = {"profile_yaml", try_profile, profile_seeds, true};

/* A model, as MaxText writes it or as Hugging Face's config.json, under a case. */
static void try_model(const uint8_t *data, size_t size)
{
    static const char *const operations[] = {"moe/deepseek3-tiny-sparse", "deepseek_layer/batch-split"};
    int count = 0;
    const assay_case *cases = catalogue(&count);
    char assignment[300];
    snprintf(assignment, sizeof assignment, "model=%s", fuzz_file("config.json", data, size));
    for (int i = 0; i < count; i++) {
        if (strcmp(cases[i].name, operations[0]) != 0 && strcmp(cases[i].name, operations[1]) != 0) continue;
        assay_case c = {0};
        assay_context ctx = fuzz_context();
        fuzz_require(assay_case_copy(&ctx, &cases[i], &c) == ASSAY_OK, ctx.message);
        const assay_status status = assay_case_set(&ctx, &c, assignment);
        fuzz_check(&ctx, status);
        if (status == ASSAY_OK) check_case_again(&c);
        if (status == ASSAY_OK) plan(&c);
        assay_case_free(&c);
        if (status != ASSAY_OK) return;
    }
}

/* ASSAY_ROOT: the source. */
static void model_seeds(fuzz_corpus *corpus)
{
    static const char *const files[] = {
        "harness/tests/hugging_face/deepseek3-671b.json",
        "harness/tests/hugging_face/gpt-oss-20b.json",
        "harness/tests/hugging_face/glm4.5-355b.json",
        "harness/tests/hugging_face/kimi-k2-1t.json",
        "harness/tests/hugging_face/mixtral-8x7b.json",
        "harness/tests/hugging_face/qwen3-30b-a3b.json",
        "harness/tests/hugging_face/deepseek2-16b.json",
        "cases/models/deepseek3-671b.yml",
        "cases/models/gpt-oss-20b.yml",
        "cases/models/mixtral-8x7b.yml",
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[4096];
        size_t size = 0;
        snprintf(path, sizeof path, ASSAY_ROOT "/%s", files[i]);
        uint8_t *text = fuzz_read(path, &size);
        fuzz_seed(corpus, text, size);
        free(text);
    }
}

const fuzz_target fuzz_model = {"model", try_model, model_seeds, true};

static void try_known(const uint8_t *data, size_t size)
{
    assay_expected_failures failures = {0};
    assay_context ctx = fuzz_context();
    fuzz_check(&ctx, assay_expected_failures_read(&ctx, fuzz_file("known.txt", data, size), &failures));
    for (int i = 0; i < failures.count; i++) {
        fuzz_require(failures.entries[i].pattern[0] != '\0' && failures.entries[i].reason[0] != '\0',
                     "an entry without a case or a reason");
    }
    assay_expected_failures_find(&failures, "moe/deepseek3-tiny-sparse");
    assay_expected_failures_free(&failures);
}

static void known_seeds(fuzz_corpus *corpus)
{
    fuzz_seed_text(
        corpus,
        "# comment\nmoe/* no routing here\ngqa/window-[a-z]* \t windows # and more\n\nrms_norm/one-row too small\n");
}

const fuzz_target fuzz_known = {"known", try_known, known_seeds, true};
