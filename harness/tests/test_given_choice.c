/* Candidates that chose other experts than the golden, or the same in another order: which are held against the golden
 * evaluated again, and which are wrong. The candidates are the oracle's own results given such choices. */
#include "compare/report.h"
#include "harness/fixes/evaluate_again.h"
#include "harness/plan/golden_read.h"
#include "harness/tests/golden_trial.h"

TEST_LABELS(catalogue);

#define PROFILE "bf16"

/* A golden of a case, and a candidate made by the same oracle given choices that a test may change. */
typedef struct fixture {
    trial t;
    assay_tensor_set choices, results;
} fixture;

static int64_t per_token(const assay_tensor *choice)
{
    return choice->spec.shape.dims[2];
}

static int64_t tokens_of(const assay_tensor *choice)
{
    return choice->count / per_token(choice);
}

/* Whatever the golden's digests say: tests tamper with it. */
static void fixture_open(fixture *f, const test_folder *folder, const char *name, const char *set)
{
    assay_case *c = case_named(name, set);
    *f = (fixture){0};
    assert_ok(&f->t.ctx, assay_case_set(&f->t.ctx, c, "profiles=" PROFILE));
    trial_write(&f->t, folder, c);
    f->t.ctx.trusts = true;
    const assay_source stored = assay_fixture_source(f->t.reader);
    for (int i = 0; i < f->t.plan.spec_count; i++) {
        const assay_tensor_spec *spec = &f->t.plan.specs[i];
        if (assay_path_is_choice(spec->path))
            assert_ok(&f->t.ctx, assay_tensor_set_read(&f->t.ctx, &f->choices, spec, &stored));
    }
}

static void write_results(fixture *f)
{
    trial_write_candidate(&f->t, &f->results, assay_profile_by_name(PROFILE), trial_is_result);
}

static void write_candidate(fixture *f)
{
    assay_overlay given = {assay_tensor_set_source(&f->choices), f->t.source};
    const assay_source in = assay_overlay_source(&given);
    trial_run(&f->t, &f->t.ctx, &in, &f->results);
    write_results(f);
}

static assay_report compare_at(fixture *f, const assay_profile *profile)
{
    const assay_judging how = trial_judging(profile);
    return trial_judge(&f->t, &how);
}

static assay_report compare(fixture *f)
{
    return compare_at(f, assay_profile_by_name(PROFILE));
}

static void fixture_free(fixture *f)
{
    assay_tensor_set_free(&f->choices);
    assay_tensor_set_free(&f->results);
    trial_close(&f->t);
}

static void reverse_slots(fixture *f)
{
    for (int i = 0; i < f->choices.count; i++) {
        assay_tensor *r = &f->choices.items[i];
        for (int64_t token = 0; token < tokens_of(r); token++) {
            int32_t *ids = r->indices + token * per_token(r);
            for (int64_t k = 0; k < per_token(r) / 2; k++) {
                const int32_t first = ids[k];
                ids[k] = ids[per_token(r) - 1 - k];
                ids[per_token(r) - 1 - k] = first;
            }
        }
    }
}

static void expect_again(const char *name, const assay_report *report, int64_t tokens, int64_t admissible)
{
    const assay_routing_summary *s = &report->routing;
    if (report->verdict == ASSAY_PASS && s->judged && s->evaluated_again && s->tokens == tokens &&
        s->exact == tokens - admissible && s->admissible == admissible && s->wrong == 0) {
        return;
    }
    char text[512];
    assay_routing_text(s, text);
    fail_msg("%s: %s; %s", name, report->message, text);
}

/* The order of slots, in every operation that routes: weights, capacity, per-shard metadata follow. */
TEST_IN_FOLDER(another_order)
{
    static const char *const names[] = {"routing/factor-1",
                                        "routing/saturated",
                                        "moe/small",
                                        "moe/deepseek3-tiny-dense",
                                        "moe/mixtral-capacity-tight",
                                        "moe/mesh-expert2",
                                        "deepseek_layer/moe",
                                        "deepseek_stack/tiny-4-layers",
                                        "deepseek_stack/batch-split",
                                        "deepseek_layer/mesh-expert4"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        OWNED_BY(fixture_free) fixture f;
        fixture_open(&f, folder, names[i], NULL);
        int64_t tokens = 0;
        for (int r = 0; r < f.choices.count; r++) tokens += tokens_of(&f.choices.items[r]);
        reverse_slots(&f);
        write_candidate(&f);
        OWNED_BY(assay_report_free) assay_report report = compare(&f);
        expect_again(names[i], &report, tokens, 0);
        assay_report_free(&report);
        /* it is no other way of saying the same */
        report = trial_compare(&f.t, assay_profile_by_name(PROFILE));
        assert_int_equal(report.verdict, ASSAY_FAIL);
    }
}

/* The same choice costs nothing and is counted. */
TEST_IN_FOLDER(the_same_choice)
{
    OWNED_BY(fixture_free) fixture f;
    fixture_open(&f, folder, "moe/small", NULL);
    write_candidate(&f);
    OWNED_BY(assay_report_free) assay_report report = compare(&f);
    assert_int_equal(report.verdict, ASSAY_PASS);
    assert_true(report.routing.judged && !report.routing.evaluated_again);
    assert_int_equal(report.routing.exact, 8);
    assert_int_equal(report.routing.tokens, 8);
}

/* One expert in place of another, in the first router. */
static void swap_one(fixture *f, int32_t from, int32_t to, int64_t token)
{
    assay_tensor *r = &f->choices.items[0];
    for (int64_t k = 0; k < per_token(r); k++) {
        if (r->indices[token * per_token(r) + k] == from) r->indices[token * per_token(r) + k] = to;
    }
}

#define TWO_OF_FOUR                                                                                                    \
    "case: two-of-four\nop: routing\nmodel: deepseek3-tiny\nconfig: {num_experts: 4, num_experts_per_tok: 2}\n"        \
    "batch: 1\nsequence: 2\ndtype: float32\nprofiles: [bf16]\ninputs:\n  gate/bias: {distribution: constant, mean: "   \
    "0}\n"

/* Probabilities that float32 does not have are 0 in a correct kernel, and tie; those of 1e-30 do not. */
TEST_IN_FOLDER(vanished_scores_tie)
{
    static const struct {
        const char *logits;
        int wrong;
    } table[] = {{"[0, -103, -120, -110]", 0}, {"[0, -70, -120, -75]", 1}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char set[256];
        OWNED_BY(fixture_free) fixture f;
        snprintf(
            set, sizeof set,
            "num_experts=4;num_experts_per_tok=2;batch=1;sequence=2;inputs.logits={distribution: values, values: %s}",
            table[i].logits);
        fixture_open(&f, folder, "routing/deepseek2-16b", set);
        swap_one(&f, 1, 3, 0);
        write_candidate(&f);
        OWNED_BY(assay_report_free) assay_report report = compare(&f);
        assert_int_equal(report.routing.wrong, table[i].wrong);
        assert_int_equal(report.routing.admissible, 1 - table[i].wrong);
    }
}

/* Logits of two tokens given as values: which token may swap its second expert for which. */
TEST_IN_FOLDER(the_gap_decides)
{
    static const struct {
        const char *logits;
        int32_t from, to;
        int admissible, wrong;
        const char *message;
    } table[] = {
        /* a float32 router has errors of some 2^-24 of a score near 0.7 */
        {"[1, 0.99999988, 0.99999976, -1, 2, 1, 0, -1]", 1, 2, 1, 0, ""},
        {"[1, 0.9999, 0.9998, -1, 2, 1, 0, -1]", 1, 2, 0, 1,
         "routing/selected_experts: token [0,0]: expert 2 chosen, better is 1: off by "},
        {"[1, 0.5, 0.5, -1, 2, 1, 0, -1]", 1, 2, 0, 1,
         "routing/selected_experts: token [0,0]: expert 2 chosen, expert 1 ties with it exactly: the lower index comes "
         "first"},
        {"[1, 0.5, 0.25, -1, 2, 1, 0, -1]", 1, 3, 0, 1,
         "routing/selected_experts: token [0,0]: expert 3 chosen, better is 1: off by "},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char yaml[1024];
        snprintf(yaml, sizeof yaml, TWO_OF_FOUR "  logits: {distribution: values, values: %s}\n", table[i].logits);
        char file[TEST_PATH_SIZE];
        snprintf(file, sizeof file, "%s/case.yml", folder->path);
        FILE *out = fopen(file, "w");
        assert_non_null(out);
        fputs(yaml, out);
        assert_int_equal(fclose(out), 0);
        OWNED_BY(fixture_free) fixture f;
        fixture_open(&f, folder, file, NULL);
        swap_one(&f, table[i].from, table[i].to, 0);
        write_candidate(&f);
        OWNED_BY(assay_report_free) assay_report report = compare(&f);
        const assay_routing_summary *s = &report.routing;
        if (s->admissible != table[i].admissible || s->wrong != table[i].wrong ||
            strncmp(s->message, table[i].message, strlen(table[i].message)) != 0) {
            fail_msg("row %zu: %lld admissible, %lld wrong, %s", i, (long long)s->admissible, (long long)s->wrong,
                     s->message);
        }
        assert_int_equal(report.verdict, table[i].wrong > 0 ? ASSAY_FAIL : ASSAY_PASS);
        assert_true(s->evaluated_again == (table[i].wrong == 0));
        if (table[i].wrong > 0) assert_string_equal(report.message, s->message);
        assay_report_free(&report);
        /* a profile to which all of those that tie are the same */
        assay_profile any = *assay_profile_by_name(PROFILE);
        any.any_of_tied = true;
        report = compare_at(&f, &any);
        const bool tie = strstr(table[i].message, "ties") != NULL;
        assert_int_equal(report.routing.wrong, tie ? 0 : table[i].wrong);
    }
}

/* An expert's scores in the second layer are those given the first layer's choice; a wrong one is named with its layer. */
TEST_IN_FOLDER(layers_follow_each_other)
{
    OWNED_BY(fixture_free) fixture f;
    fixture_open(&f, folder, "deepseek_stack/tiny-4-layers", NULL);
    const int last = f.choices.count - 1;
    assay_tensor *r = &f.choices.items[last];
    assert_true(last > 0);
    int32_t other = 0;
    for (int64_t k = 0; k < per_token(r); k++) {
        if (r->indices[k] == other) {
            other++;
            k = -1;
        }
    }
    r->indices[0] = other;
    write_candidate(&f);
    OWNED_BY(assay_report_free) assay_report report = compare(&f);
    assert_int_equal(report.verdict, ASSAY_FAIL);
    assert_int_equal(report.routing.wrong, 1);
    assert_non_null(strstr(report.message, r->spec.path));
    assert_non_null(strstr(report.message, "token [0,0]: expert "));
}

static void check_same(assay_context *ctx, assay_fixture_reader *a, assay_fixture_reader *b)
{
    static const char *const texts[] = {"kind", "case", "op", "case_yaml", "engine", "generator"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_string_equal(assay_fixture_text(a, texts[i]), assay_fixture_text(b, texts[i]));
    assert_int_equal(assay_fixture_count(a), assay_fixture_count(b));
    for (int i = 0; i < assay_fixture_count(a); i++) {
        const assay_tensor_spec *spec = assay_fixture_spec(a, i);
        const int64_t count = assay_shape_count(&spec->shape);
        OWNED double *x = calloc((size_t)count + 1, sizeof *x), *y = calloc((size_t)count + 1, sizeof *y);
        assert_ok(ctx, assay_fixture_read(ctx, a, spec->path, 0, count, x));
        assert_ok(ctx, assay_fixture_read(ctx, b, spec->path, 0, count, y));
        assert_int_equal(spec->type, assay_fixture_find(b, spec->path)->type);
        assert_same_bits(x, y, count);
    }
}

/* With error scales in float32. */
TEST_IN_FOLDER(evaluated_again_in_memory_as_in_a_file)
{
    OWNED_BY(fixture_free) fixture f;
    assay_golden golden = {0}, again[2] = {{0}, {0}};
    fixture_open(&f, folder, "moe/small", NULL);
    reverse_slots(&f);
    assert_ok(&f.t.ctx, assay_golden_open(&f.t.ctx, f.t.file, &golden));
    assay_overlay given = {assay_tensor_set_source(&f.choices), assay_golden_inputs(golden.reader)};
    const assay_source in = assay_overlay_source(&given);
    for (int i = 0; i < 2; i++) {
        assert_ok(&f.t.ctx, assay_golden_read(&f.t.ctx, golden.reader, f.t.file, &again[i]));
        assert_ok(&f.t.ctx, assay_golden_plan(&f.t.ctx, &again[i], NULL));
        again[i].reader = NULL;
        assert_ok(&f.t.ctx, assay_evaluate_again(&f.t.ctx, golden.reader, &again[i], &in, i * INT64_MAX, true));
    }
    check_same(&f.t.ctx, again[0].reader, again[1].reader);
    for (int i = 0; i < 2; i++) assay_golden_close(&again[i]);
    assay_golden_close(&golden);
}

TEST_IN_FOLDER(no_choice_at_all)
{
    static const int32_t bad[][2] = {{-1, 0}, {0, 0}, {0, 1000}, {INT32_MAX, 1}};
    OWNED_BY(fixture_free) fixture f;
    fixture_open(&f, folder, "moe/small", NULL);
    assay_tensor *r = &f.choices.items[0];
    assert_true(per_token(r) >= 2);
    write_candidate(&f);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int32_t *ids = assay_tensor_set_find(&f.results, r->spec.path)->indices;
        memcpy(ids, r->indices, (size_t)r->count * sizeof *ids);
        memcpy(ids + per_token(r), bad[i], sizeof bad[i]);
        if (i == 1) ids[per_token(r) + 1] = ids[per_token(r)];
        write_results(&f);
        OWNED_BY(assay_report_free) assay_report report = compare(&f);
        assert_int_equal(report.verdict, ASSAY_FAIL);
        assert_int_equal(report.routing.wrong, 1);
        assert_int_equal(report.routing.exact, tokens_of(r) - 1);
        assert_non_null(strstr(report.message, "token [0,1]: not "));
        assert_non_null(strstr(report.message, " different experts of 0 to "));
    }
}

/* Outputs that do not belong to the choice fail, though the choice may be made. */
TEST_IN_FOLDER(nothing_is_loosened)
{
    OWNED_BY(fixture_free) fixture f;
    fixture_open(&f, folder, "moe/small", NULL);
    const assay_tensor *r = &f.choices.items[0];
    write_candidate(&f); /* weights and rows in the golden's order */
    reverse_slots(&f);
    memcpy(assay_tensor_set_find(&f.results, r->spec.path)->indices, r->indices, (size_t)r->count * sizeof *r->indices);
    write_results(&f);
    OWNED_BY(assay_report_free) assay_report report = compare(&f);
    assert_int_equal(report.verdict, ASSAY_FAIL);
    assert_int_equal(report.routing.wrong, 0);
    assert_true(report.routing.evaluated_again);
    assert_non_null(strstr(report.message, "routing/weights: "));
}

TEST_IN_FOLDER(reports_say_it)
{
    OWNED_BY(fixture_free) fixture f;
    fixture_open(&f, folder, "moe/small", NULL);
    OWNED char *text = NULL, *json = NULL, *junit = NULL;
    const assay_report_style style = {0};
    reverse_slots(&f);
    write_candidate(&f);
    OWNED_BY(assay_report_free) assay_report report = compare(&f);
    assert_ok(&f.t.ctx, assay_report_text(&f.t.ctx, &report, &style, &text));
    assert_ok(&f.t.ctx, assay_report_json(&f.t.ctx, 1, &report, &json));
    assert_ok(&f.t.ctx, assay_report_junit(&f.t.ctx, 1, &report, &junit));
    static const char line[] =
        "8 tokens: 8 exact, 0 admissible, 0 wrong; compared with the golden evaluated again given";
    assert_non_null(strstr(text, line));
    assert_non_null(strstr(json, "\"evaluated_again\":\ttrue"));
    assert_non_null(strstr(junit, line));
}

/* So that a test can write to its file. */
static void close_golden(fixture *f)
{
    assay_fixture_close(f->t.reader);
    f->t.reader = NULL;
}

/* A golden whose case nobody can evaluate: one line, and the verdict of before. */
TEST_IN_FOLDER(a_golden_of_another_kind)
{
    static const struct {
        const char *attribute, *value, *said;
    } table[] = {
        {"engine", "abacus", "the attribute engine is missing or unknown"},
        {"case_yaml", "case: moe/small\nop: nothing\n", "the golden cannot be evaluated given it: "},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        OWNED_BY(fixture_free) fixture f;
        fixture_open(&f, folder, "moe/small", NULL);
        reverse_slots(&f);
        write_candidate(&f);
        close_golden(&f);
        hid_t h = H5Fopen(f.t.file, H5F_ACC_RDWR, H5P_DEFAULT), type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
        assert_true(H5Tset_size(type, strlen(table[i].value)) >= 0);
        assert_true(H5Adelete(h, table[i].attribute) >= 0);
        hid_t a = H5Acreate2(h, table[i].attribute, type, space, H5P_DEFAULT, H5P_DEFAULT);
        assert_true(H5Awrite(a, type, table[i].value) >= 0);
        H5Aclose(a);
        H5Sclose(space);
        H5Tclose(type);
        H5Fclose(h);
        OWNED_BY(assay_report_free) assay_report report = compare(&f);
        assert_int_equal(report.verdict, ASSAY_FAIL);
        assert_false(report.routing.judged || report.routing.evaluated_again);
        if (strstr(report.routing.message, table[i].said) == NULL) fail_msg("%s", report.routing.message);
    }
}

/* The file's choices of `chosen` experts for each token, of which the first are `ids`, and the others the first expert. */
static void overwrite(const char *file, const assay_tensor *r, int64_t chosen, int count, const int32_t *ids)
{
    const hsize_t dims[3] = {(hsize_t)r->spec.shape.dims[0], (hsize_t)r->spec.shape.dims[1], (hsize_t)chosen};
    hid_t h = H5Fopen(file, H5F_ACC_RDWR, H5P_DEFAULT), space = H5Screate_simple(3, dims, NULL);
    OWNED int32_t *all = calloc((size_t)(tokens_of(r) * chosen), sizeof *all);
    assert_non_null(all);
    memcpy(all, ids, (size_t)count * sizeof *all);
    assert_true(H5Ldelete(h, r->spec.path, H5P_DEFAULT) >= 0);
    hid_t d = H5Dcreate2(h, r->spec.path, H5T_STD_I32LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(H5Dwrite(d, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, all) >= 0);
    H5Dclose(d);
    H5Sclose(space);
    H5Fclose(h);
}

static void expect_refused(fixture *f, const char *said)
{
    OWNED_BY(assay_report_free) assay_report report = compare(f);
    assert_int_equal(report.verdict, ASSAY_FAIL);
    if (strstr(report.routing.message, said) == NULL) fail_msg("%s", report.routing.message);
    fixture_free(f);
}

/* Choices in a golden that are not those of its case: nothing is looked up by them. */
TEST_IN_FOLDER(a_golden_with_other_choices)
{
    static const int32_t bad[][2] = {{2000000000, 2000000001}, {-2000000000, -2}};
    for (size_t i = 0; i < 2; i++) {
        char said[64];
        fixture f;
        fixture_open(&f, folder, "moe/deepseek4-hash", NULL);
        const assay_tensor *r = &f.choices.items[0];
        write_candidate(&f);
        close_golden(&f);
        overwrite(f.t.file, r, per_token(r), 2, bad[i]);
        snprintf(said, sizeof said, "selected_experts[0] is %d, expected 0 to ", bad[i][0]);
        expect_refused(&f, said);
    }
    fixture f;
    fixture_open(&f, folder, "moe/small", NULL);
    write_candidate(&f);
    close_golden(&f);
    overwrite(f.t.file, &f.choices.items[0], 1, 1, &(int32_t){0});
    overwrite(f.t.candidate, &f.choices.items[0], 1, 1, &(int32_t){1});
    expect_refused(&f, " tokens with 1 experts, expected ");
}

TEST_IN_FOLDER(threads_change_nothing)
{
    OWNED_BY(fixture_free) fixture f;
    fixture_open(&f, folder, "deepseek_layer/moe", NULL);
    char *texts[3] = {NULL};
    reverse_slots(&f);
    write_candidate(&f);
    for (int i = 0; i < 3; i++) {
        static const int threads[] = {1, 2, 7};
        f.t.ctx.threads = threads[i];
        OWNED_BY(assay_report_free) assay_report report = compare(&f);
        assert_ok(&f.t.ctx, assay_report_json(&f.t.ctx, 1, &report, &texts[i]));
        assert_int_equal(f.t.ctx.threads, threads[i]);
    }
    assert_string_equal(texts[0], texts[1]);
    assert_string_equal(texts[0], texts[2]);
    for (int i = 0; i < 3; i++) free(texts[i]);
}

TEST_IN_FOLDER(no_memory)
{
    fixture f;
    fixture_open(&f, folder, "moe/small", NULL);
    reverse_slots(&f);
    swap_one(&f, f.choices.items[0].indices[0], f.choices.items[0].indices[0] == 0 ? 1 : 0, 0);
    write_candidate(&f);
    const assay_judging how = trial_judging(assay_profile_by_name(PROFILE));
    int64_t n = 0, step = 1;
    for (;; n += step) {
        assay_report report;
        const assay_status status = trial_try_judge(&f.t, &how, n, &report);
        assay_report_free(&report);
        if (had_memory(&f.t.ctx, status)) break;
        if (n > 400) step = 37;
    }
    assert_true(n > 100);
    fixture_free(&f);
}
