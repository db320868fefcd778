/* Text in memory: what is written is there, and memory that runs out is told. */
#include "oracle/base/growing_text.h"

#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "tests/support/assay_test.h"

TEST(test_text)
{
    char *text = NULL;
    size_t size = 7;
    FILE *out = assay_text_open(&text, &size);
    assert_non_null(out);
    assert_true(assay_text_close(out, &text));
    assert_string_equal(text, "");
    assert_int_equal(size, 0);
    free(text);
    out = assay_text_open(&text, &size);
    for (int i = 0; i < 100000; i++) fprintf(out, "%d,", i % 10);
    assert_true(assay_text_close(out, &text));
    assert_int_equal(size, 200000);
    assert_int_equal(strlen(text), 200000);
    assert_int_equal(strncmp(text + 199980, "0,1,2,3,4,5,6,7,8,9,", 20), 0);
    free(text);
}

TEST(test_no_memory)
{
    for (int left = 0; left < 6; left++) {
        char *text = NULL;
        size_t size = 0;
        FILE *out = assay_text_open(&text, &size);
        assert_non_null(out);
        assay_fail_allocation(left); /* once: there is memory again before the end */
        for (int i = 0; i < 100000; i++) fprintf(out, "%d,", i % 10);
        assert_true(assay_allocation_failed());
        assay_fail_allocation(-1);
        assert_false(assay_text_close(out, &text));
        assert_null(text);
    }
}
