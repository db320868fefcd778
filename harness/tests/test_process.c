/* A function in a process of its own: how it ends is told, and it takes nothing with it. */
#include <signal.h>
#include <unistd.h>

#include "harness/backends/process.h"
#include "tests/support/assay_test.h"

static int ends_with(void *data)
{
    printf("nobody sees this\n");
    fflush(stdout);
    return *(int *)data;
}

static int dies(void *data)
{
    (void)data;
    return raise(SIGTERM);
}

static int never_ends(void *data)
{
    sleep(3600);
    return *(int *)data;
}

TEST_WITH_CONTEXT(test_ends)
{
    assay_process_result result;
    int code = 42;
    assert_ok(&ctx, assay_process_call(&ctx, ends_with, &code, 60, &result));
    assert_int_equal(result.end, ASSAY_PROCESS_EXITED);
    assert_int_equal(result.code, 42);
    assert_ok(&ctx, assay_process_call(&ctx, dies, NULL, 60, &result));
    assert_int_equal(result.end, ASSAY_PROCESS_KILLED);
    assert_int_equal(result.code, SIGTERM);
    assert_ok(&ctx, assay_process_call(&ctx, never_ends, &code, 0.1, &result));
    assert_int_equal(result.end, ASSAY_PROCESS_TIMED_OUT);
    assert_true(result.seconds >= 0.1 && result.seconds < 30);
}
