/* Commands whose machine fails: neither a verdict on a file nor half an answer, but a status. */
#include <errno.h>
#include <fcntl.h>
#include <sys/types.h>

#include "harness/commands/command.h"
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

/* Every fourth allocation, and fewer of the later ones. */
TEST(a_list_is_whole_or_none)
{
    for (int json = 0; json < 2; json++) {
        const assay_options options = {.json = json == 1};
        int exit_code;
        int64_t n = 0;
        for (;; n += n / 50 + 4) {
            assay_context ctx = assay_context_default(1);
            assay_fail_allocation(n);
            const assay_status status = run(&ctx, &assay_command_list, &options, &exit_code);
            if (had_memory(&ctx, status)) break;
        }
        assert_true(n > 1000);
    }
}
