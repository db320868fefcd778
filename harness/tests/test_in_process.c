/* <assay/test.h>: the verdict on tensors in memory is the one on the same bits in files, and what cannot be judged is refused with
 * one line. */
#include <fenv.h>
#include <float.h>
#include <pthread.h>

#include "compare/report.h"
#include "harness/judge/judge.h"
#include "harness/plan/backend_view.h"
#include "harness/tests/in_process_kernel.h"

TEST_LABELS(catalogue);

/* Each is a candidate; what it is judged is the file's affair too. */
static void be_right(kernel *k)
{
    (void)k;
}

static double flushed(double value)
{
    return fabs(value) < FLT_MIN ? 0 : value;
}

static double scaled(double value)
{
    return 1.25 * value;
}

static double far_off(double value)
{
    return value + 1;
}

static void change_values(const assay_backend_tensor *result, double (*change)(double))
{
    const int64_t count = count_of(result);
    OWNED double *values = malloc((size_t)count * sizeof *values);
    assay_dtype type;
    assert_non_null(values);
    assert_true(assay_dtype_of_backend(result->type, &type));
    assay_dtype_decode(type, count, result->data, values);
    for (int64_t i = 0; i < count; i++) values[i] = change(values[i]);
    assay_dtype_encode(type, count, values, (void *)(uintptr_t)result->data);
}

static void scale_first(kernel *k)
{
    for (int i = 0; i < k->count; i++) {
        const assay_backend_tensor *r = &k->results[i];
        if (r->type == ASSAY_BACKEND_INT32 || strncmp(r->path, "outputs/", 8) != 0) continue;
        change_values(r, scaled);
        return;
    }
}

static void write_nan(kernel *k)
{
    const assay_backend_tensor *last = &k->results[k->count - 1];
    assay_dtype type;
    assert_true(assay_dtype_of_backend(last->type, &type));
    memset((void *)(uintptr_t)last->data, 0xff, assay_dtype_size(type));
}

static void leave_last_out(kernel *k)
{
    k->count--;
    free((void *)(uintptr_t)k->results[k->count].data);
}

static void flatten_last(kernel *k)
{
    static const int64_t none[1] = {0};
    k->results[k->count - 1].rank = 1;
    k->results[k->count - 1].dims = none;
}

static void give_unknown(kernel *k)
{
    k->results[k->count - 1].path = "outputs/unheard_of";
}

static void give_integers(kernel *k)
{
    assay_backend_tensor *last = &k->results[k->count - 1];
    const int64_t count = count_of(last);
    free((void *)(uintptr_t)last->data);
    last->type = ASSAY_BACKEND_INT32;
    last->data = calloc((size_t)count + 1, sizeof(int32_t));
    assert_non_null(last->data);
}

/* The same experts in other slots: the golden is evaluated again. */
static void swap_slots(kernel *k)
{
    assay_backend_tensor *chosen = result_of(k, "routing/selected_experts");
    int32_t *experts = (int32_t *)(uintptr_t)chosen->data;
    const int32_t first = experts[0];
    experts[0] = experts[1];
    experts[1] = first;
    float *weights = (float *)(uintptr_t)result_of(k, "routing/weights")->data;
    const float weight = weights[0];
    weights[0] = weights[1];
    weights[1] = weight;
    assay_backend_tensor *order = result_of(k, "routing/sorted_selected_experts"); /* it has the golden's slots */
    free((void *)(uintptr_t)order->data);
    *order = k->results[--k->count];
}

static void choose_badly(kernel *k)
{
    assay_backend_tensor *chosen = result_of(k, "routing/selected_experts");
    int32_t *experts = (int32_t *)(uintptr_t)chosen->data;
    experts[0] = experts[1];
}

/* Numbers of bfloat16 in a tensor of float32. */
static void coarsen(const assay_backend_tensor *result)
{
    float *values = (float *)(uintptr_t)result->data;
    assert_int_equal(result->type, ASSAY_BACKEND_FLOAT32);
    for (int64_t i = 0; i < count_of(result); i++)
        values[i] = (float)assay_dtype_round(ASSAY_BFLOAT16, (double)values[i], false);
}

static void coarsen_weights(kernel *k)
{
    coarsen(result_of(k, "routing/weights"));
}

static void double_weights(kernel *k)
{
    const assay_backend_tensor *weights = result_of(k, "routing/weights");
    float *values = (float *)(uintptr_t)weights->data;
    for (int64_t i = 0; i < count_of(weights); i++) values[i] *= 2;
}

static void coarsen_weights_in_other_slots(kernel *k)
{
    swap_slots(k);
    coarsen_weights(k);
}

/* As hardware that flushes what is below float32's normal numbers. */
static void flush(kernel *k)
{
    for (int i = 0; i < k->count; i++) change_values(&k->results[i], flushed);
}

static void flush_and_write_nan(kernel *k)
{
    flush(k);
    write_nan(k);
}

static void flush_and_be_far_off(kernel *k)
{
    flush(k);
    change_values(&k->results[k->count - 1], far_off);
}

static void coarsen_lse(kernel *k)
{
    coarsen(result_of(k, "outputs/lse"));
}

static void coarsen_loss(kernel *k)
{
    coarsen(result_of(k, "outputs/lb_loss"));
}

/* The results as a file, bit for bit. */
static void write_file(const kernel *k, const char *path)
{
    assay_context ctx = assay_context_default(1);
    assay_fixture_writer *writer = NULL;
    assert_ok(&ctx, assay_fixture_create(&ctx, path, &writer));
    for (int i = 0; i < k->count; i++) {
        const assay_backend_tensor *r = &k->results[i];
        assay_dtype type;
        assert_true(assay_dtype_of_backend(r->type, &type));
        const assay_tensor_spec spec = spec_of(r->path, type, r->rank, r->dims);
        assert_ok(&ctx, assay_fixture_declare(&ctx, writer, &spec));
        assert_ok(&ctx, assay_fixture_append_raw(&ctx, writer, r->path, count_of(r), r->data));
    }
    assert_ok(&ctx, assay_fixture_finish(&ctx, writer));
}

/* What `assay compare` says of the two files, to be freed. */
static char *text_of_files(const char *golden_path, const char *candidate_path, const char *profile,
                           assay_verdict *verdict)
{
    assay_context ctx = assay_context_default(1);
    OWNED_BY(assay_golden_close) assay_golden golden = {0};
    OWNED_BY(assay_fixture_release) assay_fixture_reader *candidate = NULL;
    OWNED_BY(assay_report_free) assay_report report = {0};
    char *text = NULL;
    const assay_judging how = {.profile = assay_profile_by_name(profile), .false_alarm = 1e-6, .quiet = true};
    const assay_report_style style = {.verbosity = 1};
    assert_ok(&ctx, assay_golden_open(&ctx, golden_path, &golden));
    assert_ok(&ctx, assay_fixture_open(&ctx, candidate_path, &candidate));
    assert_ok(&ctx, assay_judge(&ctx, &golden, candidate, &how, &report, NULL));
    assert_ok(&ctx, assay_report_text(&ctx, &report, &style, &text));
    *verdict = report.verdict;
    return text;
}

#define TINY "inputs.x={distribution: normal, scale: 1e-20}"

static const struct {
    const char *name, *set;
    void (*change)(kernel *k);
    assay_verdict verdict;
} candidates[] = {
    {"rms_norm/one-row", NULL, be_right, ASSAY_PASS},
    {"rms_norm/one-row", NULL, scale_first, ASSAY_FAIL},
    {"mlp/biases-fused", NULL, write_nan, ASSAY_FAIL},
    {"mlp/biases-fused", NULL, leave_last_out, ASSAY_FAIL},
    {"mlp/biases-fused", NULL, flatten_last, ASSAY_FAIL},
    {"mlp/biases-fused", NULL, give_unknown, ASSAY_FAIL},
    {"mlp/biases-fused", NULL, give_integers, ASSAY_FAIL},
    {"mlp/exact", NULL, be_right, ASSAY_PASS},
    {"mlp/silu", TINY, be_right, ASSAY_PASS},
    {"mlp/silu", TINY, flush, ASSAY_NOT_COMPARABLE},
    {"mlp/silu", TINY, flush_and_write_nan, ASSAY_FAIL},
    {"mlp/silu", TINY, flush_and_be_far_off, ASSAY_FAIL},
    {"moe/small", "sequence=5", be_right, ASSAY_PASS},
    {"moe/small", NULL, scale_first, ASSAY_FAIL},
    {"moe/small", NULL, swap_slots, ASSAY_PASS},
    {"moe/small", NULL, choose_badly, ASSAY_FAIL},
    {"moe/small", NULL, coarsen_weights, ASSAY_FAIL},
    {"moe/small", NULL, coarsen_weights_in_other_slots, ASSAY_FAIL},
    {"decoder_layer/mixtral", NULL, double_weights, ASSAY_FAIL},
    {"attention/deepseek", NULL, coarsen_lse, ASSAY_FAIL},
    {"routing/balance", NULL, coarsen_loss, ASSAY_FAIL},
    {"moe/mesh-fsdp2", NULL, coarsen_weights, ASSAY_FAIL},
    {"moe/mesh-fsdp2", NULL, be_right, ASSAY_PASS},
    {"moe/mesh-fsdp2", NULL, scale_first, ASSAY_FAIL},
    {"rms_norm/all-zero", "gradients=none", be_right, ASSAY_VACUOUS},
};

TEST_IN_FOLDER(test_verdict_is_that_on_files)
{
    for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++) {
        const assay_test_options options = {
            .sets = &candidates[i].set, .set_count = candidates[i].set != NULL, .cache = folder->path};
        assay_test *test = open_with(candidates[i].name, &options);
        kernel k;
        assay_test_report *report = NULL;
        assay_verdict verdict = ASSAY_PASS;
        run_kernel(&k, test, assay_profile_by_name(assay_test_precision(test))->storage);
        candidates[i].change(&k);
        assert_done(assay_test_save(test, folder->file, said));
        write_file(&k, folder->other);
        char *expected = text_of_files(folder->file, folder->other, assay_test_precision(test), &verdict);
        assert_done(assay_test_check(test, k.count, k.results, &report, said));
        free_results(&k); /* the report does without */
        if (verdict != candidates[i].verdict) fail_msg("%zu: %s", i, expected);
        assert_int_equal(assay_test_report_verdict(report), verdict);
        assert_string_equal(assay_test_report_text(report, 1, 0, said), expected);
        assert_int_equal(assay_test_report_first_wrong(report)[0] != '\0', verdict == ASSAY_FAIL);
        free(expected);
        assay_test_close(test);
        assert_non_null(strstr(assay_test_report_html(report, said), "<html")); /* the report does without the test */
        assert_non_null(strstr(assay_test_report_json(report, said), "\"assay-report\""));
        assay_test_report_free(report);
        folder_count(folder->path, true);
    }
}

/* Inputs are the bits that a request has. */
TEST_IN_FOLDER(test_inputs_are_those_of_the_golden)
{
    static const char *const names[] = {"rms_norm/one-row", "moe/small", "routing/deepseek3-groups", "mla/small"};
    static const char *const sets[] = {"dtype=float8_e4m3fn"};
    for (size_t i = 0; i < 2 * sizeof names / sizeof *names; i++) {
        const assay_test_options options = {
            .cache = "", .sets = sets, .set_count = (int32_t)(i % 2), .precision = "bf16"};
        OWNED_BY(close_test) assay_test *test = open_with(names[i / 2], &options), *again = NULL;
        assert_done(assay_test_save(test, folder->file, said));
        again = open_with(folder->file, &(assay_test_options){.precision = "bf16"});
        assert_string_equal(assay_test_yaml(again), assay_test_yaml(test));
        assert_int_equal(assay_test_given_count(again), assay_test_given_count(test));
        assert_true(assay_test_given_count(test) > 0);
        for (int k = 0; k < assay_test_given_count(test); k++) {
            assay_backend_tensor drawn, same, stored;
            assay_dtype type;
            assert_done(assay_test_given(test, k, &drawn, said));
            assert_done(assay_test_given(test, k, &same, said));
            assert_done(assay_test_given(again, k, &stored, said));
            assert_ptr_equal(drawn.data, same.data);
            assert_string_equal(drawn.path, stored.path);
            assert_int_equal(drawn.type, stored.type);
            assert_true(assay_dtype_of_backend(drawn.type, &type));
            assert_memory_equal(drawn.data, stored.data, (size_t)count_of(&drawn) * assay_dtype_size(type));
        }
    }
}

/* A user's own inputs: what a file lacks is drawn, and the golden is another one where the file is. */
TEST_IN_FOLDER_WITH_CONTEXT(test_own_inputs)
{
    const assay_test_options options = {.cache = folder->path, .inputs = folder->file, .precision = "bf16"};
    const assay_tensor_spec spec = spec_of("inputs/x", ASSAY_FLOAT32, 3, DIMS(1, 1, 100));
    double x[100], before = 0;
    for (int round = 0; round < 3; round++) {
        assay_backend_tensor given, y;
        for (int i = 0; i < 100; i++) x[i] = i % 4 + (round > 0 ? 1 : 0.5);
        if (round < 2) assert_ok(&ctx, write_datasets(&ctx, folder->file, NULL, 1, &(test_dataset){spec, x}));
        OWNED_BY(close_test) assay_test *test = open_with("rms_norm/one-row", &options);
        assert_done(assay_test_given(test, 0, &given, said));
        assert_string_equal(given.path, "inputs/x");
        double found[100];
        assay_dtype_decode(ASSAY_BFLOAT16, 100, given.data, found);
        assert_same_bits(found, x, 100);
        assert_done(assay_test_golden(test, "outputs/y", &y, said));
        assert_true(round == 2 ? before == ((const double *)y.data)[0] : before != ((const double *)y.data)[0]);
        before = ((const double *)y.data)[0];
        if (round == 2) assert_done(assay_test_save(test, folder->other, said));
    }
    assert_int_equal(folder_count(folder->path, false), 4); /* inputs, two goldens that are kept, one that was saved */
    assay_test *test = open_with(folder->other, NULL);
    assay_backend_tensor y;
    assert_done(assay_test_golden(test, "outputs/y", &y, said));
    assert_true(before == ((const double *)y.data)[0]);
    assay_test_close(test);
    assert_refused(assay_test_open("moe/small", &options, &test, said), "inputs/x has shape [1,1,100], expected");
    assert_refused(assay_test_open(folder->other, &options, &test, said), "nothing can be set in a golden");
}

/* As a program may have set it, in its own thread and in those that it works with. */
static void set_rounding(int threads, int rounding)
{
#pragma omp parallel num_threads(threads)
    fesetround(rounding);
}

/* The bits of a golden do not follow the caller's way of rounding, which is his again after each call. */
TEST(test_rounding_is_to_nearest)
{
    for (int threads = 1; threads <= 3; threads += 2) {
        /* large enough for several threads, in double precision so that a last bit shows */
        static const char *const sets[] = {"gradients=all", "sequence=64", "dtype=float32"};
        const assay_test_options options = {
            .cache = "", .precision = "f32", .sets = sets, .set_count = 3, .threads = threads, .no_explanation = 1};
        kernel right, other;
        assay_test *test[2];
        int verdict[2];
        for (int i = 0; i < 2; i++) {
            assay_test_report *report = NULL;
            kernel *k = i == 0 ? &right : &other;
            set_rounding(threads, i == 0 ? FE_TONEAREST : FE_UPWARD);
            test[i] = open_with("mla/small", &options);
            run_kernel(k, test[i], ASSAY_FLOAT64);
            assert_done(assay_test_check(test[i], k->count, k->results, &report, said));
            verdict[i] = assay_test_report_verdict(report);
            assert_non_null(assay_test_report_text(report, 1, 0, said));
            assay_test_report_free(report);
            const int left = fegetround();
            set_rounding(threads, FE_TONEAREST);
            assert_int_equal(left, i == 0 ? FE_TONEAREST : FE_UPWARD);
        }
        assert_int_equal(verdict[0], ASSAY_TEST_PASS);
        assert_int_equal(verdict[1], ASSAY_TEST_PASS);
        assert_int_equal(right.count, other.count);
        for (int i = 0; i < right.count; i++) {
            const size_t size = right.results[i].type == ASSAY_BACKEND_INT32 ? sizeof(int32_t) : sizeof(double);
            assert_memory_equal(right.results[i].data, other.results[i].data,
                                (size_t)count_of(&right.results[i]) * size);
        }
        free_results(&right);
        free_results(&other);
        for (int i = 0; i < 2; i++) assay_test_close(test[i]);
    }
}

static const char two_cases[] =
    "case: one\nop: mlp\nmodel: deepseek3-tiny\n---\ncase: two\nop: mlp\nmodel: deepseek3-tiny\n";

TEST(test_bad_input_is_refused)
{
    static const char *const bad_set = "num_experts=zero", *const unknown_set = "num_expert=4";
    const struct {
        const char *what;
        assay_test_options options;
        const char *message;
    } refused[] = {
        {NULL, {0}, "a case is missing"},
        {"moe/nope", {0}, "there is none of this name"},
        {"moe/*", {0}, "expected one"},
        {two_cases, {0}, "case: 2 cases, expected one"},
        {"case: x\nop: mop\n", {0}, "mop"},
        {"no_such_file.yml", {0}, "no_such_file.yml"},
        {"no_such_file.h5", {0}, "no_such_file.h5"},
        {"moe/small", {.precision = "bf17"}, "precision is \"bf17\", expected"},
        {"moe/small", {.precision = "no_such.yml"}, "no_such.yml"},
        {"moe/small", {.sets = &bad_set, .set_count = 1}, "num_experts"},
        {"moe/small", {.sets = &unknown_set, .set_count = 1}, "num_expert"},
        {"moe/small", {.set_count = 1}, "sets is NULL"},
        {"moe/small", {.threads = -1}, "threads is -1, expected 0 to 1024"},
        {"moe/small", {.false_alarm = 0.7}, "false_alarm is 0.7"},
        {"moe/small", {.cache_bytes = -1}, "cache_bytes is -1"},
        {"moe/small", {.inputs = "no_such_file.h5"}, "no_such_file.h5"},
        {"moe/small", {.only_count = 1}, "only_count is 1 and only is NULL"},
        {"moe/small", {.only = &unknown_set, .only_count = 1}, "only has num_expert=4, which matches no output"},
        {"moe/small", {.weights = "no_such.safetensors"}, "no_such.safetensors"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assay_test *test = (assay_test *)&test;
        assert_refused(assay_test_open(refused[i].what, &refused[i].options, &test, said), refused[i].message);
        assert_null(test);
    }
    assert_int_equal(assay_test_open("moe/nope", NULL, &(assay_test *){NULL}, NULL), ASSAY_TEST_BAD_INPUT);
}

TEST(test_results_that_are_none_are_refused)
{
    static const float values[4] = {0};
    static const int64_t four[1] = {4}, negative[1] = {-4}, huge[2] = {INT64_MAX / 2, 5},
                         many[13] = {4, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    char long_path[400];
    memset(long_path, 'a', sizeof long_path - 1);
    long_path[sizeof long_path - 1] = '\0';
    const assay_backend_type f32 = ASSAY_BACKEND_FLOAT32;
    const struct {
        assay_backend_tensor results[2];
        int32_t count;
        const char *message;
    } refused[] = {
        {{{"outputs/y", (assay_backend_type)17, 1, four, values}}, 1, "a type that is none"},
        {{{NULL, f32, 1, four, values}}, 1, "a path is missing"},
        {{{long_path, f32, 1, four, values}}, 1, "the path is too long"},
        {{{"outputs/y", f32, 13, many, values}}, 1, "a rank from 0 to 12"},
        {{{"outputs/y", f32, -1, four, values}}, 1, "a rank from 0 to 12"},
        {{{"outputs/y", f32, 1, NULL, values}}, 1, "a rank from 0 to 12"},
        {{{"outputs/y", f32, 1, negative, values}}, 1, "outputs/y"},
        {{{"outputs/y", f32, 2, huge, values}}, 1, "outputs/y"},
        {{{"outputs/y", f32, 1, four, NULL}}, 1, "data is NULL"},
        {{{"outputs/y", f32, 1, four, values}, {"outputs/y", f32, 1, four, values}}, 2, "outputs/y is there twice"},
        {{{"outputs/y", f32, 1, four, values}}, -1, "-1 results"},
    };
    OWNED_BY(close_test) assay_test *test = open_with("rms_norm/one-row", &(assay_test_options){.cache = ""});
    assay_test_report *report = NULL;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_refused(assay_test_check(test, refused[i].count, refused[i].results, &report, said), refused[i].message);
        assert_null(report);
    }
    assert_done(assay_test_check(test, 0, NULL, &report, said)); /* nothing given: a finding */
    assert_int_equal(assay_test_report_verdict(report), ASSAY_TEST_FAIL);
    assay_test_report_free(report);
    assay_backend_tensor tensor;
    assert_refused(assay_test_given(test, assay_test_given_count(test), &tensor, said), "expected 0 to");
    assert_refused(assay_test_given(test, -1, &tensor, said), "given tensor -1, expected 0 to");
    assert_refused(assay_test_golden(test, "inputs/x", &tensor, said), "inputs/x is no result of");
    assert_null(assay_test_expected(test, -1));
    assert_null(assay_test_setting(test, assay_test_setting_count(test)));
    assay_test_close(NULL);
    assay_test_report_free(NULL);
}

/* What a caller forgot is said, and ends nobody's program. */
TEST(test_null_is_refused)
{
    OWNED_BY(close_test) assay_test *test = open_with("rms_norm/one-row", &(assay_test_options){.cache = ""});
    assay_test_report *report = NULL;
    assay_backend_tensor tensor;
    assay_test *other = NULL;
    assert_refused(assay_test_open("moe/mixtral", NULL, NULL, said), "the place of the test is NULL");
    assert_refused(assay_test_given(NULL, 0, &tensor, said), "the test is NULL");
    assert_refused(assay_test_given(test, 0, NULL, said), "the tensor is NULL");
    assert_refused(assay_test_golden(NULL, "outputs/y", &tensor, said), "the test is NULL");
    assert_refused(assay_test_golden(test, "outputs/y", NULL, said), "the tensor is NULL");
    assert_refused(assay_test_prepare(NULL, said), "the test is NULL");
    assert_refused(assay_test_save(NULL, "x.h5", said), "the test is NULL");
    assert_refused(assay_test_check(NULL, 0, NULL, &report, said), "the test is NULL");
    assert_refused(assay_test_check(test, 0, NULL, NULL, said), "the report is NULL");
    assert_refused(assay_test_cases(0, NULL, 0, NULL, NULL, said), "the place of the names is NULL");
    static const char *const sets[] = {NULL};
    assert_refused(assay_test_open("moe/mixtral", &(assay_test_options){.sets = sets, .set_count = 1}, &other, said),
                   "options: sets[0] is NULL");
    assert_null(other);
    assert_int_equal(assay_test_given_count(NULL) + assay_test_expected_count(NULL) + assay_test_setting_count(NULL),
                     0);
    assert_null(assay_test_name(NULL));
    assert_null(assay_test_op(NULL));
    assert_null(assay_test_yaml(NULL));
    assert_null(assay_test_precision(NULL));
    assert_null(assay_test_setting(NULL, 0));
    assert_null(assay_test_expected(NULL, 0));
    assert_null(assay_test_report_text(NULL, 0, 0, said));
    assert_null(assay_test_report_json(NULL, said));
    assert_null(assay_test_report_html(NULL, said));
    assert_string_equal(assay_test_report_message(NULL), "the report is NULL");
    assert_string_equal(assay_test_report_bugs(NULL), "");
    assert_string_equal(assay_test_report_first_wrong(NULL), "");
    assert_int_equal(assay_test_report_verdict(NULL), ASSAY_TEST_NOT_COMPARABLE);
}

TEST_IN_FOLDER(test_golden_as_a_case)
{
    static const char *const endings[] = {"h5", "safetensors"}, *const set = "seed=3";
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        char path[TEST_PATH_SIZE];
        snprintf(path, sizeof path, "%s/golden.%s", folder->path, endings[i]);
        OWNED_BY(close_test) assay_test *test = open_with("moe/small", &(assay_test_options){.cache = ""});
        assert_done(assay_test_save(test, path, said));
        assert_refused(assay_test_save(test, "golden.pt", said), "golden.pt: expected a name that ends in");
        assay_test_close(test);
        assert_string_equal(verdict_with(path, NULL), "PASS");
        const assay_test_options options = {.sets = &set, .set_count = 1};
        assert_refused(assay_test_open(path, &options, &test, said), "nothing can be set in a golden");
        test = open_with(path, NULL);
        assert_refused(assay_test_save(test, folder->other, said), "is a golden already: copy the file");
    }
}

static void require_some(bool staged)
{
    static const char *const only[] = {"outputs/*", "gradients/inputs/x"}, *const set = "checkpoints=all";
    OWNED_BY(close_test)
    assay_test *test = open_with(
        "moe/small", &(assay_test_options){
                         .cache = "", .only = only, .only_count = 2, .sets = &set, .set_count = 1, .staged = staged});
    int required = 0;
    for (int i = 0; i < assay_test_expected_count(test); i++) required += assay_test_expected(test, i)->required;
    assert_int_equal(required, 2);
    kernel right, wrong;
    run_kernel(&right, test, ASSAY_BFLOAT16);
    run_kernel(&wrong, test, ASSAY_BFLOAT16);
    const assay_backend_tensor y = *result_of(&right, "outputs/y"), dx = *result_of(&right, "gradients/inputs/x"),
                               dw = *result_of(&right, "gradients/weights/wo"),
                               zeros = *result_of(&wrong, "gradients/weights/wo"),
                               stage = *result_of(&right, "checkpoints/moe_mlpwi_0");
    memset((void *)(uintptr_t)zeros.data, 0, (size_t)count_of(&zeros) * 2);
    const struct {
        assay_backend_tensor results[4];
        int32_t count;
        const char *first_wrong;
    } table[] = {{{stage, y, dx}, 3, ""},
                 {{stage, y, dx, dw}, 4, ""},
                 {{stage, y, dx, zeros}, 4, "gradients/weights/wo"},
                 {{stage, y, dw}, 3, "gradients/inputs/x"},
                 {{stage, dx, dw}, 3, "outputs/y"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_test_report *report;
        assert_done(assay_test_check(test, table[i].count, table[i].results, &report, said));
        assert_string_equal(assay_test_report_first_wrong(report), table[i].first_wrong);
        assay_test_report_free(report);
    }
    free_results(&right);
    free_results(&wrong);
}

/* What need not be given is judged all the same where it is. Of stages no more is asked for than of the whole. */
TEST(test_only_some_results_are_required)
{
    require_some(false);
    require_some(true);
}

/* A profile that the case does not name is evaluated too, and one of the user's own. */
TEST_IN_FOLDER(test_any_profile)
{
    char own[TEST_PATH_SIZE];
    snprintf(own, sizeof own, "%s/own.yml", folder->path);
    FILE *file = fopen(own, "wb");
    assert_non_null(file);
    fputs("name: mine\nlike: bf16\nrouter: float32\n", file);
    fclose(file);
    assert_string_equal(verdict_with("moe/small", &(assay_test_options){.cache = "", .precision = "bf16_router"}),
                        "PASS");
    assert_string_equal(verdict_with("moe/small", &(assay_test_options){.cache = "", .precision = own}), "PASS");
}

static const char *setting_of(const assay_test *test, const char *key)
{
    for (int i = 0; i < assay_test_setting_count(test); i++) {
        if (strcmp(assay_test_setting(test, i)->key, key) == 0) return assay_test_setting(test, i)->value;
    }
    return "";
}

TEST(test_a_golden_without_error_scales)
{
    static const char *const only[] = {"outputs/y"};
    char message[ASSAY_TEST_MESSAGE];
    double first[2];
    for (int unscaled = 0; unscaled < 2; unscaled++) {
        const assay_test_options options = {.cache = "", .unscaled = unscaled, .only = only, .only_count = 1};
        OWNED_BY(close_test) assay_test *test = open_with("rms_norm/one-row", &options);
        assay_backend_tensor y;
        assay_test_report *report = NULL;
        assert_int_equal(assay_test_golden(test, "outputs/y", &y, message), ASSAY_TEST_OK);
        first[unscaled] = *(const double *)y.data;
        assert_int_equal(assay_test_check(test, 1, &y, &report, message), ASSAY_TEST_OK);
        assert_int_equal(assay_test_report_verdict(report), unscaled ? ASSAY_TEST_NOT_COMPARABLE : ASSAY_TEST_PASS);
        assay_test_report_free(report);
    }
    assert_true(first[0] == first[1]);
}

TEST(test_case_is_described)
{
    static const char *const sets[] = {"sequence=3", "num_experts_per_tok=1"};
    const char yaml[] = "case: mine/router\nop: routing\nmodel: mixtral-8x7b\nconfig: {num_experts: 4, base_emb_dim: "
                        "8}\nbatch: 1\nsequence: 2\n";
    OWNED_BY(close_test)
    assay_test *test = open_with("moe/mixtral", &(assay_test_options){.sets = sets, .set_count = 2});
    assert_string_equal(assay_test_name(test), "moe/mixtral");
    assert_string_equal(assay_test_op(test), "moe");
    assert_string_equal(assay_test_precision(test), "bf16");
    assert_string_equal(setting_of(test, "sequence"), "3");
    assert_string_equal(setting_of(test, "num_experts_per_tok"), "1");
    assert_string_equal(setting_of(test, "case"), "moe/mixtral");
    assert_non_null(strstr(assay_test_yaml(test), "sequence: 3"));
    assay_test_close(test);
    test = open_with(yaml, NULL);
    assert_string_equal(assay_test_name(test), "mine/router");
}

TEST(test_names_of_the_catalogue)
{
    static const char *const globs[] = {"moe/*", "mla/small"}, *const excluded[] = {"mesh", "moe/gpt-oss*",
                                                                                    "deepseek3"};
    char *names = NULL;
    assert_done(assay_test_cases(2, globs, 3, excluded, &names, said));
    assert_non_null(strstr(names, "moe/mixtral\n"));
    assert_null(strstr(names, "moe/gpt-oss"));
    assert_null(strstr(names, "moe/mesh-fsdp2\n"));
    assert_null(strstr(names, "moe/small\n")); /* tagged deepseek3 */
    assay_test_free(names);
    assert_done(assay_test_cases(0, NULL, 0, NULL, &names, said));
    assert_non_null(strstr(names, "rms_norm/one-row\n"));
    assert_null(strstr(names, "true-size/"));
    assay_test_free(names);
    static const char *const none[] = {"nothing/*", NULL};
    static const char *const slip[] = {"meshh"};
    assert_refused(assay_test_cases(1, none, 0, NULL, &names, said), "nothing/*");
    assert_null(names);
    assert_refused(assay_test_cases(1, NULL, 0, NULL, &names, said), "one is missing");
    assert_refused(assay_test_cases(2, none, 0, NULL, &names, said), "one is missing");
    assert_refused(assay_test_cases(0, NULL, 1, slip, &names, said), "\"meshh\", which no case has");
    assert_int_equal(strncmp(assay_test_version(), "0.", 2), 0);
}

/* --- memory that runs out, and threads */

/* What a user's test does, from end to end, with y doubled and, where experts are chosen, two slots exchanged. */
static int use_all(const char *what, const assay_test_options *options)
{
    static double y[4096];
    static int32_t chosen[256];
    OWNED_BY(close_test) assay_test *test = NULL;
    assay_test_report *report = NULL;
    assay_backend_tensor results[2], tensor;
    int count = 1, status = assay_test_open(what, options, &test, said);
    for (int i = 0; status == ASSAY_TEST_OK && i < assay_test_given_count(test); i++) {
        status = assay_test_given(test, i, &tensor, said);
    }
    if (status == ASSAY_TEST_OK) status = assay_test_golden(test, "outputs/y", &results[0], said);
    if (status == ASSAY_TEST_OK) {
        assert_true(count_of(&results[0]) <= 4096);
        for (int64_t i = 0; i < count_of(&results[0]); i++) y[i] = 2 * ((const double *)results[0].data)[i];
        results[0].data = y;
    }
    if (status == ASSAY_TEST_OK && strcmp(assay_test_op(test), "moe") == 0) {
        status = assay_test_golden(test, "routing/selected_experts", &results[count++], said);
    }
    if (status == ASSAY_TEST_OK && count == 2) {
        assert_true(count_of(&results[1]) <= 256);
        memcpy(chosen, results[1].data, (size_t)count_of(&results[1]) * sizeof *chosen);
        chosen[0] = ((const int32_t *)results[1].data)[1];
        chosen[1] = ((const int32_t *)results[1].data)[0];
        results[1].data = chosen;
    }
    if (status == ASSAY_TEST_OK) status = assay_test_check(test, count, results, &report, said);
    if (status == ASSAY_TEST_OK) {
        assert_int_equal(assay_test_report_verdict(report), ASSAY_TEST_FAIL);
        if (assay_test_report_text(report, 0, 0, said) == NULL || assay_test_report_json(report, said) == NULL ||
            assay_test_report_html(report, said) == NULL) {
            status = ASSAY_TEST_BAD_INPUT;
        }
    }
    assay_test_report_free(report);
    return status;
}

/* A case that is kept, with the search for a known bug; one that is evaluated; a choice of experts that is given. */
TEST_IN_FOLDER(test_memory_may_run_out_anywhere)
{
    static const char *const only = "outputs/y";
    const assay_test_options kept = {
        .cache = folder->path, .threads = 1, .precision = "f32", .only = &only, .only_count = 1};
    const assay_test_options fresh = {.cache = "", .threads = 1, .precision = "f32", .no_explanation = 1};
    const assay_test_options plain = {.cache = folder->path, .threads = 1, .no_explanation = 1};
    const struct {
        const char *what;
        const assay_test_options *options;
        int64_t first_step, step; /* of few allocations each is tried, of many some */
    } forms[] = {{"rms_norm/one-row", &kept, 1, 7}, {"rms_norm/one-row", &fresh, 1, 7}, {"moe/small", &plain, 41, 997}};
    for (size_t form = 0; form < sizeof forms / sizeof *forms; form++) {
        assert_int_equal(use_all(forms[form].what, forms[form].options), ASSAY_TEST_OK);
        for (int64_t n = 0;; n += n < 300 ? forms[form].first_step : forms[form].step) {
            said[0] = '\0';
            assay_fail_allocation(n);
            const int status = use_all(forms[form].what, forms[form].options);
            const bool failed = assay_allocation_failed();
            assay_fail_allocation(-1);
            if (!failed) {
                assert_int_equal(status, ASSAY_TEST_OK);
                assert_true(n > 300);
                break;
            }
            if (status != ASSAY_TEST_OK) assert_true(said[0] != '\0');
        }
    }
}

/* All that it is given, and a report on nothing given. */
static bool use(assay_test *test)
{
    char message[ASSAY_TEST_MESSAGE];
    assay_test_report *report = NULL;
    assay_backend_tensor tensor;
    bool right = true;
    for (int i = 0; right && i < assay_test_given_count(test); i++)
        right = assay_test_given(test, i, &tensor, message) == ASSAY_TEST_OK;
    right = right && assay_test_check(test, 0, NULL, &report, message) == ASSAY_TEST_OK &&
            assay_test_report_verdict(report) == ASSAY_TEST_FAIL && assay_test_report_html(report, message) != NULL &&
            assay_test_golden(test, "outputs/y", &tensor, message) == ASSAY_TEST_OK;
    assay_test_report_free(report);
    return right;
}

static void *use_in_thread(void *name)
{
    const assay_test_options options = {.cache = "", .threads = 1};
    OWNED_BY(close_test) assay_test *test = NULL;
    char message[ASSAY_TEST_MESSAGE];
    const intptr_t right = assay_test_open(name, &options, &test, message) == ASSAY_TEST_OK && use(test);
    return (void *)right;
}

static void *use_shared(void *test)
{
    intptr_t right = 1;
    for (int round = 0; right && round < 4; round++) right = use(test);
    return (void *)right;
}

static void run_threads(int count, void *(*work)(void *), void *const *of_each)
{
    pthread_t threads[8];
    for (int i = 0; i < count; i++) assert_int_equal(pthread_create(&threads[i], NULL, work, of_each[i]), 0);
    for (int i = 0; i < count; i++) {
        void *right = NULL;
        assert_int_equal(pthread_join(threads[i], &right), 0);
        assert_non_null(right);
    }
}

/* HDF5 must have been built for it, as Debian's is. */
TEST(test_threads_use_tests_of_their_own)
{
    static void *const names[] = {"moe/small", "mlp/biases-fused", "moe/small", "rms_norm/one-row"};
    hbool_t safe = 0;
    assert_true(H5is_library_threadsafe(&safe) >= 0 && safe);
    for (int round = 0; round < 3; round++) run_threads(4, use_in_thread, names);
}

/* From the first call on, which evaluates the golden. */
TEST(test_threads_share_a_test)
{
    const assay_test_options options = {.cache = "", .threads = 1, .no_explanation = 1};
    for (int round = 0; round < 5; round++) {
        OWNED_BY(close_test) assay_test *test = open_with("mlp/silu", &options);
        run_threads(8, use_shared, (void *const[]){test, test, test, test, test, test, test, test});
    }
}
