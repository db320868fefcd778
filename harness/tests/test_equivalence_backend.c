/* The two forms of a backend: a command that copies a candidate made beforehand. */

#include "compare/profile.h"
#include "fixtures/leftovers.h"
#include "harness/equivalences/equivalence_backend.h"
#include "harness/tests/harness_test.h"

static const char mlp[] =
    "{case: mlp/x, op: mlp, batch: 1, sequence: 3, seed: 5, dtype: bfloat16, profiles: none, model: "
    "{base_emb_dim: 4, base_mlp_dim: 3}}";

/* A folder with the oracle's results of both forms, as candidates. */
typedef struct fixture {
    assay_context ctx;
    assay_case *c;
    assay_other_form other;
    const assay_equivalence *equivalence;
    char folder[64], one[128], two[128], command[512];
    assay_backend_check_options options;
} fixture;

static bool is_given(const char *path)
{
    return assay_role_is_input(assay_role_of(path));
}

/* The results of a golden alone; `wrong`, or NULL, is off by a tenth of its largest number in one place. */
static void write_candidate(fixture *f, const assay_form *form, const char *file, const char *wrong)
{
    assay_fixture_writer *writer = NULL;
    assert_ok(&f->ctx, assay_fixture_create(&f->ctx, file, &writer));
    for (int i = 0; i < form->plan.spec_count; i++) {
        const assay_tensor *tensor = &form->results.items[i];
        assay_tensor_spec spec = tensor->spec;
        if (is_given(spec.path)) continue;
        double *values = malloc((size_t)tensor->count * sizeof *values), most = 0;
        assert_non_null(values);
        memcpy(values, tensor->values, (size_t)tensor->count * sizeof *values);
        for (int64_t k = 0; k < tensor->count; k++) most = fmax(most, fabs(values[k]));
        if (wrong != NULL && strcmp(wrong, spec.path) == 0) values[tensor->count / 2] += 0.1 * most;
        spec.type = ASSAY_FLOAT32;
        assert_ok(&f->ctx, assay_fixture_declare(&f->ctx, writer, &spec));
        assert_ok(&f->ctx, assay_fixture_append(&f->ctx, writer, spec.path, tensor->count, values));
        free(values);
    }
    assert_ok(&f->ctx, assay_fixture_finish(&f->ctx, writer));
}

static void set_up(fixture *f, const char *wrong_in_one, const char *wrong_in_two)
{
    assay_form one = {0}, two = {0};
    *f = (fixture){.ctx = assay_context_default(1), .folder = "/tmp/assay-test-XXXXXX"};
    assert_non_null(mkdtemp(f->folder));
    f->c = case_from(mlp);
    f->equivalence = assay_equivalence_by_name("fused-unfused");
    assert_true(assay_other_form_of(f->c, f->equivalence, &f->other));
    snprintf(f->one, sizeof f->one, "%s/one.h5", f->folder);
    snprintf(f->two, sizeof f->two, "%s/two.h5", f->folder);
    assert_ok(&f->ctx, assay_form_evaluate(&f->ctx, f->c, NULL, &one));
    assert_ok(&f->ctx, assay_form_evaluate(&f->ctx, &f->other.c, NULL, &two));
    /* the other form's own kernels are other random numbers: its results must come from the same ones */
    assay_form_free(&two);
    assert_ok(&f->ctx, assay_form_of_other(&f->ctx, &f->other, &one, &two));
    const assay_source in = assay_input_source(&two.results);
    const assay_sink out = assay_results_sink(&two.results);
    assert_ok(&f->ctx, assay_operation_evaluate(&f->ctx, two.plan.operation, &two.c, &in, &out));
    write_candidate(f, &one, f->one, wrong_in_one);
    write_candidate(f, &two, f->two, wrong_in_two);
    assay_form_free(&one);
    assay_form_free(&two);
    snprintf(f->command, sizeof f->command,
             "if grep -aq 'fused_mlp: true' {request}; then cp %s {candidate}; else cp %s "
             "{candidate}; fi",
             f->two, f->one);
    f->options = (assay_backend_check_options){.backend = f->command,
                                               .folder = f->folder,
                                               .profile = assay_profile_by_name("bf16"),
                                               .false_alarm = 1e-6,
                                               .limits = {.timeout = 60},
                                               .quiet = true};
}

static void tear_down(fixture *f)
{
    assay_remove_tree(f->folder);
    assay_cases_free(f->c, 1);
}

static assay_verdict verdict_of(fixture *f, assay_report *report)
{
    OWNED_BY(assay_form_free) assay_form one = {0};
    assay_backend_end end = {0};
    assert_ok(&f->ctx, assay_backend_first_form(&f->ctx, &f->options, f->c, &one, &end));
    assert_int_equal(end.outcome, ASSAY_OUTCOME_DONE);
    assert_ok(&f->ctx, assay_backend_other_form(&f->ctx, &f->options, &one, f->equivalence, &f->other, &end, report));
    assert_int_equal(end.outcome, ASSAY_OUTCOME_DONE);
    return report->verdict;
}

TEST(right_forms_pass)
{
    fixture f;
    assay_report report = {0};
    set_up(&f, NULL, NULL);
    assert_int_equal(verdict_of(&f, &report), ASSAY_PASS);
    assert_string_equal(report.case_name, "mlp/x fused-unfused");
    assert_string_equal(report.profile, "bf16");
    assert_int_equal(report.count, 4); /* y, and gradients of x, wi and wo */
    for (int i = 0; i < report.count; i++) assert_true(report.tensors[i].compared);
    assay_report_free(&report);
    tear_down(&f);
}

TEST(an_error_in_either_form_is_named)
{
    static const struct {
        const char *one, *two, *named;
    } rows[] = {
        {"outputs/y", NULL, "outputs/y"},
        {NULL, "outputs/y", "outputs/y"},
        {"gradients/weights/wi_0/kernel", NULL, "gradients/weights/wi/kernel"},
        {"gradients/weights/wi_1/kernel", NULL, "gradients/weights/wi/kernel"},
        {NULL, "gradients/weights/wi/kernel", "gradients/weights/wi/kernel"},
        {NULL, "gradients/inputs/x", "gradients/inputs/x"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fixture f;
        assay_report report = {0};
        set_up(&f, rows[i].one, rows[i].two);
        assert_int_equal(verdict_of(&f, &report), ASSAY_FAIL);
        if (strstr(report.message, rows[i].named) != report.message) fail_msg("row %d: %s", (int)i, report.message);
        assay_report_free(&report);
        tear_down(&f);
    }
}

/* Of two correct results: sqrt(2) times one's error scale, and the rounding of the first. */
TEST(scales_are_those_of_a_difference)
{
    fixture f;
    assay_form one = {0}, oracle = {0};
    assay_backend_end end = {0};
    set_up(&f, NULL, NULL);
    assert_ok(&f.ctx, assay_backend_first_form(&f.ctx, &f.options, f.c, &one, &end));
    assert_ok(&f.ctx, assay_form_evaluate(&f.ctx, f.c, assay_profile_by_name("bf16"), &oracle));
    const assay_tensor *y = assay_tensor_set_find(&one.results, "outputs/y");
    const assay_tensor *found = assay_tensor_set_find(&one.results, "error_scale/bf16/outputs/y");
    const assay_tensor *scale = assay_tensor_set_find(&oracle.results, "error_scale/bf16/outputs/y");
    for (int64_t i = 0; i < y->count; i++) {
        const double rounding = 0x1p-8 * fabs(y->values[i]) + 0x1p-134;
        const double expected = sqrt(2 * scale->values[i] * scale->values[i] + rounding * rounding / 3);
        assert_true(scale->values[i] > 0);
        assert_close(&found->values[i], &expected, 1, 1e-14, 0);
    }
    assay_form_free(&one);
    assay_form_free(&oracle);
    tear_down(&f);
}

TEST(no_memory_is_reported)
{
    fixture f;
    set_up(&f, NULL, NULL);
    for (int64_t n = 0;; n += 1 + n / 8) { /* not each: every run starts four processes */
        assay_form one = {0};
        assay_backend_end end = {0};
        assay_report report = {0};
        assay_fail_allocation(n);
        assay_status status = assay_backend_first_form(&f.ctx, &f.options, f.c, &one, &end);
        if (status == ASSAY_OK && end.outcome == ASSAY_OUTCOME_DONE) {
            status = assay_backend_other_form(&f.ctx, &f.options, &one, f.equivalence, &f.other, &end, &report);
        }
        assay_fail_allocation(-1);
        const bool failed = assay_allocation_failed(), done = end.outcome == ASSAY_OUTCOME_DONE;
        assay_form_free(&one);
        assay_report_free(&report);
        if (!failed) {
            assert_ok(&f.ctx, status);
            break;
        }
        assert_true(status == ASSAY_NO_MEMORY || !done);
    }
    tear_down(&f);
}
