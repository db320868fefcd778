#include "oracle/base/tensor.h"
#include "tests/support/assay_test.h"

TEST(shapes_count_their_elements)
{
    assay_shape scalar = assay_shape_of(0);
    assay_shape matrix = assay_shape_of(2, INT64_C(3), INT64_C(5));
    assay_shape empty = assay_shape_of(3, INT64_C(3), INT64_C(0), INT64_C(5));
    assay_shape large = assay_shape_of(3, INT64_C(256), INT64_C(7168), INT64_C(2048));
    assert_int_equal(scalar.rank, 0);
    assert_int_equal(assay_shape_count(&scalar), 1);
    assert_int_equal(assay_shape_count(&matrix), 15);
    assert_int_equal(assay_shape_count(&empty), 0);
    assert_true(assay_shape_count(&large) == INT64_C(3758096384));
}

TEST(shapes_are_equal_in_rank_and_every_axis)
{
    assay_shape a = assay_shape_of(2, INT64_C(3), INT64_C(5));
    assay_shape same = assay_shape_of(2, INT64_C(3), INT64_C(5));
    assay_shape swapped = assay_shape_of(2, INT64_C(5), INT64_C(3));
    assay_shape longer = assay_shape_of(3, INT64_C(3), INT64_C(5), INT64_C(1));
    assay_shape scalar = assay_shape_of(0);
    same.dims[2] = 9; /* beyond the rank */
    assert_true(assay_shape_equal(&a, &same));
    assert_true(assay_shape_equal(&scalar, &scalar));
    assert_false(assay_shape_equal(&a, &swapped));
    assert_false(assay_shape_equal(&a, &longer));
    assert_false(assay_shape_equal(&longer, &a));
    assert_false(assay_shape_equal(&a, &scalar));
}

TEST(shapes_have_a_text)
{
    char text[64];
    assay_shape scalar = assay_shape_of(0);
    assay_shape vector = assay_shape_of(1, INT64_C(7));
    assay_shape x = assay_shape_of(3, INT64_C(2), INT64_C(16), INT64_C(64));
    assay_shape_text(&scalar, text, sizeof text);
    assert_string_equal(text, "[]");
    assay_shape_text(&vector, text, sizeof text);
    assert_string_equal(text, "[7]");
    assay_shape_text(&x, text, sizeof text);
    assert_string_equal(text, "[2,16,64]");
}

TEST(a_short_buffer_is_not_overrun)
{
    assay_shape x = assay_shape_of(3, INT64_C(2), INT64_C(16), INT64_C(64));
    for (size_t size = 1; size <= sizeof "[2,16,64]"; size++) {
        char text[16];
        memset(text, '#', sizeof text);
        assay_shape_text(&x, text, size);
        assert_int_equal(strlen(text), size - 1);
        assert_memory_equal(text, "[2,16,64]", size - 1);
        assert_int_equal(text[size], '#');
    }
}
