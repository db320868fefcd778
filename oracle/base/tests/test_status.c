#include "oracle/base/status.h"
#include "tests/support/assay_test.h"

TEST(every_status_has_its_text)
{
    assert_string_equal(assay_status_text(ASSAY_OK), "ok");
    assert_string_equal(assay_status_text(ASSAY_BAD_INPUT), "bad input");
    assert_string_equal(assay_status_text(ASSAY_NO_MEMORY), "out of memory");
    assert_string_equal(assay_status_text(ASSAY_IO), "input/output error");
    assert_string_equal(assay_status_text(ASSAY_INTERNAL), "internal error");
    assert_string_equal(assay_status_text((assay_status)99), "unknown status");
}

TEST_WITH_CONTEXT(fail_returns_the_status_and_keeps_the_message)
{
    assert_int_equal(assay_fail(&ctx, ASSAY_IO, "%s has %d rows, expected %d", "x", 3, 4), ASSAY_IO);
    assert_string_equal(ctx.message, "x has 3 rows, expected 4");
}

TEST_WITH_CONTEXT(a_long_message_is_cut_short)
{
    char long_text[2 * ASSAY_MESSAGE_SIZE];
    memset(long_text, 'a', sizeof long_text);
    long_text[sizeof long_text - 1] = '\0';
    ctx.threads = 7;
    assert_int_equal(assay_fail(&ctx, ASSAY_BAD_INPUT, "%s", long_text), ASSAY_BAD_INPUT);
    assert_int_equal(strlen(ctx.message), ASSAY_MESSAGE_SIZE - 1);
    assert_int_equal(ctx.threads, 7);
}

static assay_status tried(assay_status first, int *steps)
{
    assay_status status = ASSAY_OK;
    TRY(first);
    (*steps)++;
cleanup:
    (*steps) += 10;
    return status;
}

static assay_status returned(assay_status first, int *steps)
{
    MUST(first);
    (*steps)++;
    return ASSAY_OK;
}

TEST(macros_leave_when_they_should)
{
    int steps = 0;
    assert_int_equal(tried(ASSAY_OK, &steps), ASSAY_OK);
    assert_int_equal(steps, 11);
    steps = 0;
    assert_int_equal(tried(ASSAY_NO_MEMORY, &steps), ASSAY_NO_MEMORY);
    assert_int_equal(steps, 10);
    assert_int_equal(returned(ASSAY_INTERNAL, &steps), ASSAY_INTERNAL);
    assert_int_equal(steps, 10);
    assert_int_equal(returned(ASSAY_OK, &steps), ASSAY_OK);
    assert_int_equal(steps, 11);
}
