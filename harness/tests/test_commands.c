/* Commands whose machine fails: neither a verdict on a file nor half an answer, but a status. */
#include <errno.h>
#include <fcntl.h>
#include <sys/types.h>

#include "harness/commands/command.h"
#include "harness/scales/ensemble.h"
#include "harness/tests/harness_test.h"

/* HDF5 1.10 loses some of its own memory where the disk gives nothing; only the address sanitizer calls this. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libhdf5";
}

/* The linker puts this before the C library's own: the read number pread_failure (0: the next one) fails, once. */
static int64_t pread_failure = -1;
ssize_t __real_pread(int descriptor, void *bytes, size_t size, off_t at);
ssize_t __wrap_pread(int descriptor, void *bytes, size_t size, off_t at);

ssize_t __wrap_pread(int descriptor, void *bytes, size_t size, off_t at)
{
    if (pread_failure < 0 || pread_failure-- > 0) return __real_pread(descriptor, bytes, size, at);
    errno = EIO;
    return -1;
}

/* What the command prints goes nowhere. */
static assay_status run(assay_context *ctx, const assay_command *command, const assay_options *options, int *exit_code)
{
    fflush(stdout);
    const int kept = dup(STDOUT_FILENO), nowhere = open("/dev/null", O_WRONLY);
    assert_true(kept >= 0 && nowhere >= 0);
    dup2(nowhere, STDOUT_FILENO);
    *exit_code = -1;
    const assay_status status = command->run(ctx, options, exit_code);
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    close(nowhere);
    return status;
}

static assay_options options_of(const test_folder *folder, char **path)
{
    assay_context ctx = assay_context_default(1);
    assay_case *c = case_named("rms_norm/one-row", "profiles=[f32]");
    assert_ok(&ctx, try_golden(&ctx, c, folder->file, NULL));
    assay_cases_free(c, 1);
    *path = (char *)folder->file;
    return (assay_options){.arguments = path, .argument_count = 1, .quiet = true};
}

TEST_IN_FOLDER(a_read_that_fails_is_no_verdict)
{
    char *path;
    int exit_code;
    int64_t n = 0;
    const assay_options options = options_of(folder, &path);
    for (;; n++) {
        assay_context ctx = assay_context_default(1);
        pread_failure = n;
        const assay_status status = run(&ctx, &assay_command_verify, &options, &exit_code);
        const bool failed = pread_failure < 0;
        pread_failure = -1;
        if (!failed) {
            assert_ok(&ctx, status);
            assert_int_equal(exit_code, ASSAY_EXIT_PASS);
            break;
        }
        assert_int_equal(status, ASSAY_IO);
        assert_message(&ctx, "case.h5: cannot be read: Input/output error");
    }
    assert_true(n > 20);
}

/* A copy whose attribute error_model is another text (NULL: is not there), and whose dataset at `changed` begins otherwise, `by`
 * of its largest. */
static void copy_golden(const test_folder *folder, const char *error_model, const char *changed, double by)
{
    static const char *const texts[] = {"kind", "case", "case_yaml", "op", "engine", "generator"};
    assay_context ctx = assay_context_default(1);
    OWNED_BY(assay_fixture_release) assay_fixture_reader *reader = NULL;
    assay_fixture_writer *writer = NULL;
    assert_ok(&ctx, assay_fixture_open(&ctx, folder->file, &reader));
    assert_ok(&ctx, assay_fixture_create(&ctx, folder->other, &writer));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_ok(&ctx, assay_fixture_set_text(&ctx, writer, texts[i], assay_fixture_text(reader, texts[i])));
    }
    if (error_model != NULL) assert_ok(&ctx, assay_fixture_set_text(&ctx, writer, "error_model", error_model));
    for (int i = 0; i < assay_fixture_count(reader); i++) {
        const assay_tensor_spec *spec = assay_fixture_spec(reader, i);
        const int64_t count = assay_shape_count(&spec->shape);
        OWNED double *values = calloc((size_t)count, sizeof *values);
        assert_non_null(values);
        assert_ok(&ctx, assay_fixture_declare(&ctx, writer, spec));
        assert_ok(&ctx, assay_fixture_read(&ctx, reader, spec->path, 0, count, values));
        double largest = 0.0;
        for (int64_t k = 0; k < count; k++) largest = fmax(largest, fabs(values[k]));
        if (strcmp(spec->path, changed) == 0) values[0] += by * largest;
        assert_ok(&ctx, assay_fixture_append(&ctx, writer, spec->path, count, values));
    }
    assert_ok(&ctx, assay_fixture_finish(&ctx, writer));
}

/* Of another error model a golden's error scales are not held to, and all else is, to 2^-44 of the largest. */
TEST_IN_FOLDER(error_scales_are_verified_by_their_model)
{
    static const struct {
        const char *error_model, *changed;
        double by; /* of the tensor's largest */
        int exit_code;
    } table[] = {
        {ASSAY_ERROR_MODEL, "", 0, ASSAY_EXIT_PASS},
        {ASSAY_ERROR_MODEL, "error_scale/f32/outputs/y", 1, ASSAY_EXIT_FAIL},
        {ASSAY_ERROR_MODEL, "null/f32/outputs/y", 1, ASSAY_EXIT_FAIL},
        {ASSAY_ERROR_MODEL, "gradients/inputs/x", 0x1p-50, ASSAY_EXIT_FAIL},
        {NULL, "", 0, ASSAY_EXIT_PASS},
        {NULL, "error_scale/f32/outputs/y", 1, ASSAY_EXIT_PASS},
        {NULL, "null/f32/outputs/y", 1, ASSAY_EXIT_PASS},
        {NULL, "outputs/y", 1, ASSAY_EXIT_FAIL},
        {NULL, "gradients/inputs/x", 0x1p-43, ASSAY_EXIT_FAIL},
        {NULL, "gradients/inputs/x", 0x1p-45, ASSAY_EXIT_PASS},
        {"1000", "error_scale/f32/outputs/y", 1, ASSAY_EXIT_PASS},
        {"1000", "outputs/y", 1, ASSAY_EXIT_FAIL},
    };
    char *path;
    int exit_code;
    assay_options options = options_of(folder, &path);
    path = (char *)folder->other;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = assay_context_default(1);
        copy_golden(folder, table[i].error_model, table[i].changed, table[i].by);
        assert_ok(&ctx, run(&ctx, &assay_command_verify, &options, &exit_code));
        if (exit_code != table[i].exit_code) fail_msg("row %zu: %d", i, exit_code);
    }
}

TEST_IN_FOLDER(no_memory_is_no_verdict)
{
    char *path;
    int exit_code;
    int64_t step = 1, n = 0;
    const assay_options options = options_of(folder, &path);
    for (;; n += step) {
        assay_context ctx = assay_context_default(1);
        assay_fail_allocation(n);
        const assay_status status = run(&ctx, &assay_command_verify, &options, &exit_code);
        if (had_memory(&ctx, status)) break;
        if (n > 300) step = 37;
    }
    assert_true(n > 100);
}
