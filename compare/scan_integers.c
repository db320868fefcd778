#include <math.h>

#include "compare/outliers.h"
#include "compare/tensor_compare.h"

static void compare_chunk(const assay_comparison *c, int64_t first, int64_t count, assay_tensor_result *result,
                          assay_facts *facts)
{
    const int32_t *golden = c->golden_integers, *candidate = c->candidate_integers;
    for (int64_t i = 0; i < count; i++) {
        facts->all_zero = facts->all_zero && golden[i] == 0;
        if (golden[i] == candidate[i]) continue;
        double error = fabs((double)candidate[i] - (double)golden[i]);
        assay_outlier found = {.index = first + i, .golden = golden[i], .candidate = candidate[i], .excess = INFINITY};
        result->wrong_elements++;
        if (error > result->max_error) result->max_error = error;
        assay_outlier_keep(result->elements_worst, &result->elements_worst_count, &found);
    }
}

assay_status assay_scan_integers(assay_context *ctx, const assay_comparison *c, assay_tensor_result *result,
                                 assay_facts *facts, bool *unreadable)
{
    assay_status status = ASSAY_OK;
    const char *path = result->spec.path;
    *facts = (assay_facts){.golden_nan = -1, .bad_scale = -1, .all_zero = true};
    *unreadable = false;
    result->exact = true;
    for (int64_t first = 0; first < result->elements; first += ASSAY_CHUNK) {
        int64_t count = result->elements - first < ASSAY_CHUNK ? result->elements - first : ASSAY_CHUNK;
        TRY(assay_fixture_read_i32(ctx, c->golden, path, first, count, c->golden_integers));
        status = assay_fixture_read_i32(ctx, c->candidate, path, first, count, c->candidate_integers);
        *unreadable = status == ASSAY_BAD_INPUT;
        if (*unreadable) return ASSAY_OK;
        TRY(status);
        compare_chunk(c, first, count, result, facts);
    }
    result->worst_element = result->wrong_elements > 0 ? INFINITY : 0.0;
cleanup:
    return status;
}
