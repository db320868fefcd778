#include "oracle/spec/spec_internal.h"

assay_status spec_gmm(assay_context *ctx, const assay_gmm_dims *dims, const spec_tensors *in, spec_tensors *out)
{
    assay_status status = ASSAY_OK;
    const spec_quad *lhs = NULL, *rhs = NULL;
    const int32_t *group_sizes = NULL;
    spec_quad *y = NULL;
    int64_t m = dims->m, k = dims->k, n = dims->n, row = 0;
    TRY(spec_read(ctx, in, "inputs/lhs", m * k, &lhs));
    TRY(spec_read(ctx, in, "weights/rhs", dims->groups * k * n, &rhs));
    TRY(spec_read_indices(ctx, in, "inputs/group_sizes", dims->groups, &group_sizes));
    assay_shape shape = assay_shape_of(2, m, n);
    TRY(spec_tensors_add(ctx, out, "outputs/y", &shape, &y));
    for (int64_t i = 0; i < m * n; i++) y[i] = 0;
    for (int64_t g = 0; g < dims->groups; g++) {
        if (group_sizes[g] < 0 || group_sizes[g] > m - row) {
            status = assay_fail(ctx, ASSAY_BAD_INPUT, "group %lld has size %d, expected 0 to %lld", (long long)g,
                                (int)group_sizes[g], (long long)(m - row));
            goto cleanup;
        }
        for (int64_t end = row + group_sizes[g]; row < end; row++) {
            spec_vector_matrix(k, n, lhs + row * k, rhs + g * k * n, n, y + row * n);
        }
    }
cleanup:
    return status;
}
