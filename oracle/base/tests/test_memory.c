#include <sys/resource.h>

#include "oracle/base/memory.h"
#include "tests/support/assay_test.h"

TEST_WITH_CONTEXT(counts_are_products)
{
    int64_t count = -1;
    assert_ok(&ctx, assay_checked_count(&ctx, "x", 3, (int64_t[]){2, 3, 5}, &count));
    assert_int_equal(count, 30);
    assert_ok(&ctx, assay_checked_count(&ctx, "x", 0, NULL, &count));
    assert_int_equal(count, 1);
    assert_ok(&ctx, assay_checked_count(&ctx, "x", 3, (int64_t[]){7, 0, 5}, &count));
    assert_int_equal(count, 0);
    assert_ok(&ctx, assay_checked_count(&ctx, "x", 2, (int64_t[]){INT64_C(1) << 31, 16}, &count));
    assert_true(count == INT64_C(1) << 35);
    assert_ok(&ctx, assay_checked_count(&ctx, "x", 1, (int64_t[]){INT64_MAX / 16}, &count));
    assert_true(count == INT64_MAX / 16);
}

TEST_WITH_CONTEXT(impossible_counts_are_refused)
{
    int64_t count = 5;
    assert_int_equal(assay_checked_count(&ctx, "wi_0", 2, (int64_t[]){4, -1}, &count), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message, "wi_0: dimension 1 is -1, expected 0 or more");
    assert_int_equal(count, 0);
    const int64_t too_large[][3] = {{INT64_MAX / 16 + 1, 1, 1},
                                    {INT64_C(1) << 32, INT64_C(1) << 32, 1},
                                    {INT64_MAX, INT64_MAX, INT64_MAX},
                                    {INT64_C(1) << 40, INT64_C(1) << 40, 0}};
    for (size_t i = 0; i < sizeof too_large / sizeof *too_large; i++) {
        count = 5;
        assert_bad_input(&ctx, assay_checked_count(&ctx, "wi_0", 3, too_large[i], &count), "wi_0");
        assert_int_equal(count, 0);
    }
}

TEST_WITH_CONTEXT(memory_is_aligned_and_may_be_empty)
{
    const int64_t counts[] = {0, 1, 7, 8, 1000, 6000};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        OWNED double *f64 = NULL;
        OWNED int32_t *i32 = NULL;
        void *bytes = NULL, *line = NULL;
        assert_ok(&ctx, assay_alloc_f64(&ctx, "x", counts[i], &f64));
        assert_ok(&ctx, assay_alloc_i32(&ctx, "x", counts[i], &i32));
        assert_ok(&ctx, assay_alloc(&ctx, "x", counts[i], 3, &bytes));
        assert_non_null(f64);
        assert_ok(&ctx, assay_alloc_aligned(&ctx, "x", counts[i], 3, &line));
        assert_int_equal((uintptr_t)line % 64, 0);
        free(line);
        const size_t alignment = counts[i] == 6000 ? 64 : 16;
        assert_int_equal((uintptr_t)f64 % alignment, 0);
        assert_int_equal((uintptr_t)i32 % alignment, 0);
        assert_int_equal((uintptr_t)bytes % alignment, 0);
        memset(f64, 1, (size_t)counts[i] * sizeof *f64); /* the address sanitizer looks on */
        memset(i32, 1, (size_t)counts[i] * sizeof *i32);
        memset(bytes, 1, (size_t)counts[i] * 3);
        free(bytes);
    }
}

TEST_WITH_CONTEXT(impossible_allocations_are_refused)
{
    const int64_t counts[] = {-1, INT64_MIN, INT64_MAX, INT64_MAX / 8};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        double *x = (double *)1;
        assert_int_equal(assay_alloc_f64(&ctx, "dwo", counts[i], &x), ASSAY_BAD_INPUT);
        assert_null(x);
        assert_non_null(strstr(ctx.message, "dwo"));
    }
}

TEST_WITH_CONTEXT(a_failing_allocation_is_reported)
{
    double *f64 = (double *)1;
    assay_fail_allocation(0);
    assert_int_equal(assay_alloc_f64(&ctx, "dwo", 10, &f64), ASSAY_NO_MEMORY);
    assay_fail_allocation(-1);
    assert_true(assay_allocation_failed());
    assert_null(f64);
    assert_string_equal(ctx.message, "dwo: no memory for 128 bytes");
    int32_t *i32 = (int32_t *)1;
    assay_fail_allocation(0);
    assert_int_equal(assay_alloc_i32(&ctx, "ids", 10, &i32), ASSAY_NO_MEMORY);
    assay_fail_allocation(-1);
    assert_null(i32);
}

TEST_WITH_CONTEXT(more_than_there_is_is_refused)
{
    int64_t available = assay_memory_available();
    assert_true(available > 0 && available < INT64_C(1) << 60);
    assert_ok(&ctx, assay_require_memory(&ctx, "case", 0));
    assert_ok(&ctx, assay_require_memory(&ctx, "case", available / 2));
    assert_int_equal(assay_require_memory(&ctx, "case", INT64_MAX), ASSAY_NO_MEMORY);
    assert_non_null(strstr(ctx.message, "case needs 9223372036854775807 bytes of memory, "));
    assert_non_null(strstr(ctx.message, "are available"));
}

TEST(a_text_grows)
{
    OWNED char *text = NULL;
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
}

TEST(a_text_that_memory_ran_out_for)
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

TEST(a_text_is_whole_or_none)
{
    char *text = strdup("whole");
    FILE *out;
    for (int unbuffered = 0; unbuffered < 2; unbuffered++) { /* closing fails, or writing did */
        out = fopen("/dev/full", "w");
        assert_non_null(out);
        if (unbuffered) setvbuf(out, NULL, _IONBF, 0);
        fputs("lost", out);
        if (text == NULL) text = strdup("cut sho");
        assert_false(assay_text_close(out, &text));
        assert_null(text);
    }
    out = fopen("/dev/null", "w"); /* all went well, and yet there is no text */
    assert_non_null(out);
    assert_false(assay_text_close(out, &text));
}

TEST(the_address_space_limit_counts)
{
    long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lld", &pages), 1);
    fclose(file);
    const int64_t room = INT64_C(64) << 20;
    struct rlimit before, limited;
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    limited = before;
    limited.rlim_cur = (rlim_t)(pages * 4096 + room);
    assert_int_equal(setrlimit(RLIMIT_AS, &limited), 0);
    int64_t available = assay_memory_available();
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    assert_true(available > 0 && available <= room);
}
