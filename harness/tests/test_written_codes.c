/* Bytes of a cache that a kernel makes of numbers which it computed: those of correct kernels pass, others are found. */

#include "harness/judge/judge.h"
#include "harness/scales/ensemble.h"
#include "harness/tests/golden_trial.h"
#include "harness/tests/nearest_arithmetic.h"

typedef struct written {
    trial t;
    const assay_profile *profile;
    assay_tensor_set results;
    assay_tensor *bytes, *scales; /* of the results; scales: of formats that have them apart */
} written;

static void open_case(written *f, const test_folder *folder, const char *name, const char *profile, const char *bytes)
{
    char set[64], path[ASSAY_PATH_SIZE];
    snprintf(set, sizeof set, "profiles=%s", profile);
    *f = (written){.profile = assay_profile_by_name(profile)};
    trial_write(&f->t, folder, case_named(name, set));
    assert_ok(&f->t.ctx, assay_tensor_set_copy(&f->t.ctx, &f->t.golden, &f->results));
    snprintf(path, sizeof path, "outputs/%s", bytes);
    f->bytes = assay_tensor_set_find(&f->results, path);
    snprintf(path, sizeof path, "outputs/%s_scale", bytes);
    f->scales = assay_tensor_set_find(&f->results, path);
    assert_non_null(f->bytes);
}

static void close_case(written *f)
{
    assay_tensor_set_free(&f->results);
    trial_close(&f->t);
}

static bool is_output(const assay_tensor_spec *spec)
{
    return spec->role == ASSAY_ROLE_OUTPUT;
}

static assay_report judged(written *f)
{
    const assay_judging how = trial_judging(f->profile);
    trial_write_candidate(&f->t, &f->results, f->profile, is_output);
    return trial_judge(&f->t, &how);
}

/* NULL words: it passes. */
static void expect(written *f, const char *words)
{
    OWNED_BY(assay_report_free) assay_report report = judged(f);
    const bool right = words == NULL ? report.verdict == ASSAY_PASS
                                     : report.verdict == ASSAY_FAIL && strstr(report.message, words) != NULL;
    if (!right) fail_msg("%s: %s (%s)", f->t.c->name, report.message, report.codes);
}

/* Where a token of the case has its row, in all bytes. */
static int64_t row_of(const written *f, int64_t token, int64_t row, int64_t tokens)
{
    const assay_tensor *slots = assay_tensor_set_find(&f->t.golden, "inputs/slot_mapping");
    const int32_t slot = slots->indices[token];
    assert_true(slot >= 0);
    return slot / tokens * f->bytes->spec.shape.dims[1] + slot % tokens * row;
}

/* As many wrong ways as a row of 656 bytes has parts, and every other byte. */
TEST_IN_FOLDER(each_byte_of_a_row_is_judged)
{
    enum { ROW = 656, TOKENS = 4, LATENTS = 512, SCALES = 16, TOKEN = 1 };
    OWNED_BY(close_case) written f;
    open_case(&f, folder, "cache_append/norm-rope-ds-mla", "bf16", "kv_cache");
    expect(&f, NULL);
    int32_t *row = f.bytes->indices + row_of(&f, TOKEN, ROW, TOKENS);
    for (int at = 0; at < LATENTS; at += 73) {
        row[at] ^= 0x80; /* the sign */
        expect(&f, "the code of number ");
        row[at] ^= 0x80;
        row[at] ^= 0x10; /* twice, or half */
        expect(&f, "outputs/kv_cache[");
        row[at] ^= 0x10;
    }
    row[LATENTS + 3] ^= 1; /* the exponent of the first scale */
    expect(&f, "the scale of block 0 of token 1");
    row[LATENTS + 3] ^= 1;
    row[LATENTS] ^= 1; /* no power of two */
    expect(&f, "the scale of block 0 of token 1");
    row[LATENTS] ^= 1;
    row[LATENTS + SCALES + 1] ^= 1; /* of bfloat16 the exponent */
    expect(&f, "the number 0 of token 1");
    row[LATENTS + SCALES + 1] ^= 1;
    row[7] = -1; /* no byte */
    expect(&f, "is nan");
    row[7] = 256 + 5;
    expect(&f, "is nan");
}

/* A code beside the golden's passes where the number that it stands for is near enough, and is counted. */
TEST_IN_FOLDER(a_neighbour_passes_within_errors)
{
    enum { ROW = 656, TOKENS = 4, LATENTS = 512 };
    written f;
    int passed = 0, failed = 0;
    open_case(&f, folder, "cache_append/norm-rope-ds-mla", "bf16", "kv_cache");
    for (int token = 0; token < 2; token++) {
        int32_t *row = f.bytes->indices + row_of(&f, token, ROW, TOKENS);
        for (int at = 0; at < LATENTS; at += 5) {
            if ((row[at] & 0x7f) == 0 || (row[at] & 0x7f) >= 0x7e) continue;
            row[at]++;
            assay_report report = judged(&f);
            passed += report.verdict == ASSAY_PASS;
            failed += report.verdict == ASSAY_FAIL;
            if (report.verdict == ASSAY_PASS) assert_non_null(strstr(report.codes, " 1 within errors, 0 blocks"));
            assay_report_free(&report);
            row[at]--;
        }
    }
    assert_true(passed > 0 && failed > passed);
    close_case(&f);
}

static bool is_output_or_number(const assay_tensor_spec *spec)
{
    return is_output(spec) || spec->role == ASSAY_ROLE_CHECKPOINT;
}

/* ... but not stage by stage beside the number itself, where that is no such code. */
TEST_IN_FOLDER(stages_go_by_the_candidates_numbers)
{
    enum { ROW = 656, TOKENS = 4, LATENTS = 512 };
    written f;
    int whole = 0, staged = 0;
    open_case(&f, folder, "cache_append/norm-rope-ds-mla", "bf16", "kv_cache");
    trial_round(&f.results, ASSAY_BFLOAT16);
    int32_t *row = f.bytes->indices + row_of(&f, 0, ROW, TOKENS);
    assay_judging how = trial_judging(f.profile);
    how.staged = true;
    for (int at = -5; at < LATENTS; at += 5) {
        if (at >= 0 && ((row[at] & 0x7f) == 0 || (row[at] & 0x7f) >= 0x7e)) continue;
        if (at >= 0) row[at]++;
        trial_write_candidate(&f.t, &f.results, f.profile, is_output_or_number);
        assay_report report = trial_judge(&f.t, &how);
        assert_non_null(report.stages);
        if (at < 0) assert_int_equal(report.verdict, ASSAY_PASS);
        whole += strstr(report.codes, " 0 blocks or plain numbers wrong") != NULL;
        staged += report.stages->verdict == ASSAY_PASS;
        assay_report_free(&report);
        if (at >= 0) row[at]--;
    }
    assert_true(staged >= 1 && whole > 2 * staged);
    close_case(&f);
}

/* Rows that no token has, and what lies behind rows, are as they were. */
TEST_IN_FOLDER(bytes_of_no_token_are_exact)
{
    OWNED_BY(close_case) written f;
    open_case(&f, folder, "cache_append/norm-rope-split", "bf16", "ckv_cache");
    const int64_t page = f.bytes->spec.shape.dims[1];
    f.bytes->indices[page - 1] ^= 1; /* the row beyond the page's tokens */
    expect(&f, "outputs/ckv_cache: 1 of ");
    f.bytes->indices[page - 1] ^= 1;
    assert_non_null(f.scales);
    f.scales->indices[f.scales->spec.shape.dims[1] - 1] ^= 1;
    expect(&f, "outputs/ckv_cache_scale: 1 of ");
}

/* The scale of another block, with the codes that the golden has by its own: neither passes for the other's sake. */
TEST_IN_FOLDER(codes_go_by_the_candidates_scale)
{
    OWNED_BY(close_case) written f;
    open_case(&f, folder, "cache_append/key-norm-nvfp4", "bf16", "key_cache");
    assert_non_null(f.scales);
    const assay_tensor *slots = assay_tensor_set_find(&f.t.golden, "inputs/slot_mapping");
    const int64_t page = f.scales->spec.shape.dims[1], tokens = 4, heads = 2, blocks = 2;
    int32_t *scale =
        f.scales->indices + slots->indices[0] / tokens * page + slots->indices[0] % tokens * heads * blocks;
    int passed = 0;
    for (int64_t i = 0; i < heads * blocks; i++) {
        for (int step = -1; step <= 1; step += 2) {
            scale[i] += step;
            assay_report report = judged(&f);
            if (report.verdict == ASSAY_FAIL) assert_non_null(strstr(report.message, " of token 0, head "));
            passed += report.verdict == ASSAY_PASS;
            assay_report_free(&report);
            scale[i] -= step;
        }
    }
    assert_true(passed < heads * blocks);
}

/* Values are written as they come: their bytes are exact beside keys that are computed. */
TEST_IN_FOLDER(what_is_not_computed_is_exact)
{
    OWNED_BY(close_case) written f;
    open_case(&f, folder, "cache_append/key-norm-rope", "bf16", "value_cache");
    f.bytes->indices[row_of(&f, 0, 3 * 16 * 2, 4)] ^= 1; /* the last bit of a bfloat16 number */
    expect(&f, "outputs/value_cache[");
    close_case(&f);
    open_case(&f, folder, "cache_append/rope", "bf16", "kv_cache");
    f.bytes->indices[row_of(&f, 0, 2 * (24 + 8), 4)] ^= 1;
    expect(&f, "outputs/kv_cache[");
}

/* Runs of the emulated arithmetic, rounded to nearest as kernels do, pass; some of their bytes are others. */
TEST_IN_FOLDER(correct_runs_pass)
{
    static const struct {
        const char *name, *profile, *bytes;
    } cases[] = {{"cache_append/norm-rope-ds-mla", "bf16", "kv_cache"},
                 {"cache_append/norm-rope-model1", "bf16", "kv_cache"},
                 {"cache_append/key-norm-partial-rope", "bf16", "key_cache"},
                 {"cache_append/norm-rope-float32", "f32", "kv_cache"}};
    bool others = false;
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        OWNED_BY(close_case) written f;
        open_case(&f, folder, cases[n].name, cases[n].profile, cases[n].bytes);
        const assay_precision precision = assay_case_precision(f.t.c, f.profile);
        for (int number = 0; number < 20; number++) {
            const assay_emulation emulation = assay_ensemble_member(&f.t.plan, &precision, "kernel", number);
            assay_rounded rounded = {{&f.t.source, NULL}, f.t.c, NULL};
            const assay_source in = assay_rounded_source(&rounded);
            assay_context ctx = f.t.ctx;
            ctx.arithmetic = &nearest_arithmetic;
            ctx.emulation = &emulation;
            assay_tensor_set_free(&f.results);
            trial_run(&f.t, &ctx, &in, &f.results);
            OWNED_BY(assay_report_free) assay_report report = judged(&f);
            if (report.verdict != ASSAY_PASS) fail_msg("%s, run %d: %s", cases[n].name, number, report.message);
            others |= strstr(report.codes, " 0 within errors") == NULL;
        }
    }
    assert_true(others);
}

TEST_IN_FOLDER(a_given_scale_is_above_0)
{
    static const double bad[] = {0, -0.125, NAN, INFINITY};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        OWNED_BY(close_case) written f;
        open_case(&f, folder, "cache_append/key-norm-partial-rope", "bf16", "key_cache");
        assay_tensor_set_find(&f.t.golden, "inputs/v_scale")->values[1] = bad[i];
        const assay_source in = assay_input_source(&f.t.golden);
        const assay_sink out = assay_results_sink(&f.results);
        assert_bad_input(&f.t.ctx, assay_operation_run(&f.t.ctx, f.t.plan.operation, f.t.c, &in, &out),
                         "inputs/v_scale[1] is ");
    }
}

/* Who judges leaves the candidate as it was, and says where memory ends. */
TEST_IN_FOLDER(failing_allocations)
{
    OWNED_BY(close_case) written f;
    assay_status status = ASSAY_NO_MEMORY;
    open_case(&f, folder, "cache_append/norm-rope-split", "bf16", "ckv_cache");
    const assay_judging how = trial_judging(f.profile);
    trial_write_candidate(&f.t, &f.results, f.profile, is_output);
    for (int64_t fails = 0; status == ASSAY_NO_MEMORY; fails++) {
        OWNED_BY(assay_report_free) assay_report report = {0};
        status = trial_try_judge(&f.t, &how, fails, &report);
        if (status == ASSAY_OK) assert_int_equal(report.verdict, ASSAY_PASS);
    }
    assert_ok(&f.t.ctx, status);
}
