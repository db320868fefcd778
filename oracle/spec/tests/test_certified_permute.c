/* permute and unpermute, forward and backward, certified in binary128. */
#include <stdlib.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/spec/tests/spec_case.h"

static void start(spec_case *c, uint64_t seed)
{
    case_start(c, seed);
    c->ctx = assay_context_default(1);
}

static void certify_permute(const assay_permute_dims *sizes, const int32_t *selected, uint64_t seed)
{
    spec_case c;
    start(&c, seed);
    int64_t t = sizes->tokens, k = sizes->experts_per_token, dim = sizes->emb_dim;
    const double *x = case_random(&c, "inputs/x", 1, DIMS(t, dim));
    const double *dy = case_random(&c, "cotangents/sorted_inputs", 1, DIMS(t * k, dim));
    case_indices(&c, "inputs/selected_experts", selected, DIMS(t, k));
    double *sorted = case_output(&c, "outputs/sorted_inputs", DIMS(t * k, dim));
    double *dx = case_output(&c, "gradients/inputs/x", DIMS(t, dim));
    int32_t *order = case_index_output(&c, "outputs/sorted_selected_experts", DIMS(t * k));
    int32_t *groups = case_index_output(&c, "outputs/group_sizes", DIMS(sizes->experts));
    assert_ok(&c.ctx, assay_permute_order(&c.ctx, order, groups, selected, sizes));
    assay_permute_forward(sorted, x, order, sizes);
    assert_ok(&c.ctx, assay_permute_backward(&c.ctx, dx, dy, order, sizes));
    case_certify_outputs(&c, "permute", sizes, 0);
    case_certify_gradients(&c, "permute", sizes, GRADIENT_LIMIT);

    spec_case back;
    start(&back, seed + 1);
    const double *rows = case_random(&back, "inputs/sorted", 1, DIMS(t * k, dim));
    const double *weights = case_random(&back, "inputs/weights", 1, DIMS(t, k));
    dy = case_random(&back, "cotangents/y", 1, DIMS(t, dim));
    case_indices(&back, "inputs/sorted_selected_experts", order, DIMS(t * k));
    double *y = case_output(&back, "outputs/y", DIMS(t, dim));
    double *d_rows = case_output(&back, "gradients/inputs/sorted", DIMS(t * k, dim));
    double *d_weights = case_output(&back, "gradients/inputs/weights", DIMS(t, k));
    assert_ok(&back.ctx, assay_unpermute_forward(&back.ctx, y, rows, order, weights, sizes));
    assert_ok(&back.ctx, assay_unpermute_backward(&back.ctx, d_rows, d_weights, dy, rows, order, weights, sizes));
    case_certify_outputs(&back, "unpermute", sizes, OUTPUT_LIMIT);
    case_certify_gradients(&back, "unpermute", sizes, GRADIENT_LIMIT);
    case_end(&back);
    case_end(&c);
}

static void test_permute(void **state)
{
    (void)state;
    certify_permute(&(assay_permute_dims){5, 2, 4, 3}, (int32_t[]){2, 0, 2, 3, 0, 2, 3, 2, 2, 0}, 700);
    certify_permute(&(assay_permute_dims){3, 1, 3, 5}, (int32_t[]){1, 1, 1}, 710);
    certify_permute(&(assay_permute_dims){2, 3, 3, 1}, (int32_t[]){2, 1, 0, 0, 2, 1}, 720);
    certify_permute(&(assay_permute_dims){1, 1, 1, 1}, (int32_t[]){0}, 730);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_permute)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
