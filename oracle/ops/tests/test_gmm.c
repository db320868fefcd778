#include "oracle/ops/gmm.h"
#include "oracle/ops/tests/ops_test.h"

TEST_WITH_CONTEXT(test_refused_groups)
{
    const assay_gmm_dims dims = {4, 2, 2, 3};
    const int32_t negative[] = {2, -1, 1}, too_many[] = {2, 2, 1}, overflowing[] = {INT32_MAX, INT32_MAX, INT32_MAX};
    const int32_t *const refused[] = {negative, too_many, overflowing};
    const char *const words[] = {"group_sizes[1] is -1", "add up to 5", "at most the 4 rows"};
    double values[12] = {0}, out[12];
    for (int i = 0; i < 3; i++) {
        assert_bad_input(&ctx, assay_gmm_forward(&ctx, out, values, values, refused[i], &dims), words[i]);
        ctx.message[0] = '\0';
        assert_bad_input(&ctx, assay_gmm_backward(&ctx, out, out, values, values, values, refused[i], &dims), words[i]);
    }
}
