#include "oracle/moe/permute.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

/* A wrong id, or an order that is none: refused, naming the place. */
TEST_WITH_CONTEXT(test_refused)
{
    const assay_permute_dims dims = {2, 2, 3, 1};
    const int32_t high[] = {0, 1, 3, 2}, low[] = {0, 1, 2, -2};
    const int32_t repeated[] = {0, 1, 1, 2}, outside[] = {0, 4, 1, 2}, negative[] = {-2, 0, 1, 2};
    const int32_t *const orders[] = {repeated, outside, negative};
    const char *const words[] = {"[2] is 1", "[1] is 4", "[0] is -2"};
    int32_t order[4], sizes[3];
    double values[4] = {0}, out[4];
    assert_bad_input(&ctx, assay_permute_order(&ctx, order, sizes, high, &dims),
                     "selected_experts[1,0] is 3, expected -1 to 2");
    assert_int_equal(assay_permute_order(&ctx, order, sizes, low, &dims), ASSAY_BAD_INPUT);
    assert_non_null(strstr(ctx.message, "selected_experts[1,1] is -2"));
    for (int i = 0; i < 3; i++) {
        assert_bad_input(&ctx, assay_unpermute_forward(&ctx, out, values, orders[i], values, &dims), words[i]);
        assert_int_equal(assay_unpermute_forward(&ctx, out, values, orders[i], NULL, &dims), ASSAY_BAD_INPUT);
        assert_int_equal(assay_unpermute_backward(&ctx, out, out, values, values, orders[i], values, &dims),
                         ASSAY_BAD_INPUT);
    }
    const assay_permute_dims huge = {INT32_MAX, 2, 3, 1};
    assert_bad_input(&ctx, assay_permute_order(&ctx, order, sizes, high, &huge), "copies of tokens");
}

/* Slots of no expert: what they hold, and the weights of their choices, reach nothing. */
TEST(test_slots_of_no_expert)
{
    const assay_permute_dims dims = {3, 2, 4, 2};
    const int32_t selected[] = {3, -1, -1, -1, 0, 3}, sorted[] = {4, 0, 5, -1, -1, -1};
    const double x[] = {1, 2, 3, 4, 5, 6}, copies[] = {5, 6, 1, 2, 5, 6, 0, 0, 0, 0, 0, 0};
    const double rows[] = {10, 20, 30, 40, 50, 60, NAN, NAN, INFINITY, 1, NAN, 2}, weights[] = {2, NAN, NAN, NAN, 3, 4};
    const double y[] = {60, 80, 0, 0, 230, 300}, dy[] = {1, 1, 1, 1, 1, 2};
    const double d_rows[] = {3, 6, 2, 2, 4, 8, 0, 0, 0, 0, 0, 0}, d_weights[] = {70, 0, 0, 0, 50, 170};
    const double dx[] = {30, 40, 0, 0, 60, 80};
    assay_context ctx = assay_context_default(2);
    int32_t order[6], sizes[4];
    double out[12], of_weights[6];
    assert_ok(&ctx, assay_permute_order(&ctx, order, sizes, selected, &dims));
    assert_memory_equal(order, sorted, sizeof sorted);
    assert_memory_equal(sizes, ((int32_t[]){1, 0, 0, 2}), sizeof sizes);
    assay_fill_nan(out, 12);
    assay_permute_forward(out, x, order, &dims);
    assert_same_bits(out, copies, 12);
    assay_fill_nan(out, 12);
    assert_ok(&ctx, assay_unpermute_forward(&ctx, out, rows, order, weights, &dims));
    assert_same_bits(out, y, 6);
    assay_fill_nan(out, 12);
    assay_fill_nan(of_weights, 6);
    assert_ok(&ctx, assay_unpermute_backward(&ctx, out, of_weights, dy, rows, order, weights, &dims));
    assert_same_bits(out, d_rows, 12);
    assert_same_bits(of_weights, d_weights, 6);
    assay_fill_nan(out, 12);
    assert_ok(&ctx, assay_unpermute_forward(&ctx, out, rows, order, NULL, &dims));
    assert_same_bits(out, dx, 6);
}
