/* A report on its way between two processes. */

#include "compare/steps.h"
#include "harness/commands/report_parcel.h"
#include "tests/support/assay_test.h"

static char *pack(size_t *size)
{
    char *text = NULL, name[] = "outputs/z", *unknown[] = {name};
    assay_tensor_result tensors[] = {{.verdict = ASSAY_FAIL, .elements = 3}};
    assay_report stages = {.case_name = "stages"};
    assay_step step = {.kind = "linear"};
    assay_step_tensor made[] = {{.name = "x"}, {.name = "y"}};
    assay_steps steps = {.step_count = 1, .tensor_count = 2, .steps = &step, .tensors = made};
    const assay_report report = {.case_name = "mlp/silu",
                                 .tensors = tensors,
                                 .count = 1,
                                 .unknown = unknown,
                                 .unknown_count = 1,
                                 .steps = &steps,
                                 .stages = &stages};
    FILE *out = open_memstream(&text, size);
    assay_report_pack(&report, out);
    fclose(out);
    return text;
}

TEST_WITH_CONTEXT(comes_as_it_was)
{
    size_t size = 0;
    OWNED char *text = pack(&size);
    const char *at = text;
    OWNED_BY(assay_report_free) assay_report report;
    assert_ok(&ctx, assay_report_unpack(&ctx, &at, text + size, &report));
    assert_ptr_equal(at, text + size);
    assert_string_equal(report.case_name, "mlp/silu");
    assert_int_equal(report.tensors[0].elements, 3);
    assert_string_equal(report.unknown[0], "outputs/z");
    assert_string_equal(report.steps->steps[0].kind, "linear");
    assert_string_equal(report.steps->tensors[1].name, "y");
    assert_string_equal(report.stages->case_name, "stages");
}

/* A worker may be ended while it writes. */
TEST(refuses_what_is_cut_short)
{
    size_t size = 0;
    OWNED char *text = pack(&size);
    for (size_t length = 0; length < size; length += 7) {
        char *part = malloc(length + 1); /* so that a sanitizer sees what is read behind it */
        assert_non_null(part);
        memcpy(part, text, length);
        const char *at = part;
        OWNED_BY(assay_report_free) assay_report report;
        assay_context ctx = {.threads = 1};
        assert_int_not_equal(assay_report_unpack(&ctx, &at, part + length, &report), ASSAY_OK);
        free(part);
    }
}

TEST(takes_no_memory_for_more_names_than_bytes)
{
    size_t size = 0;
    OWNED char *text = pack(&size);
    for (int count = -1; count != 0; count = count < 0 ? 1 << 30 : 0) {
        OWNED_BY(assay_report_free) assay_report report;
        assay_context ctx = {.threads = 1};
        memcpy(&report, text, sizeof report);
        report.unknown_count = count;
        memcpy(text, &report, sizeof report);
        const char *at = text;
        assay_fail_allocation(1); /* 0 is that of the tensors */
        assert_int_not_equal(assay_report_unpack(&ctx, &at, text + size, &report), ASSAY_OK);
        assert_false(assay_allocation_failed());
        assay_fail_allocation(-1);
    }
}
