#include <stdio.h>

#include "oracle/quad/quad_internal.h"
#include "oracle/quad/quad_product.h"

int64_t quad_group_of(const assay_gmm_config *config, const int32_t *index, int64_t row)
{
    int64_t begin = 0;
    if (config->layout == ASSAY_GMM_CONTIGUOUS) return index[row];
    if (config->layout == ASSAY_GMM_MASKED) {
        return row % config->dims.m < index[row / config->dims.m] ? row / config->dims.m : -1;
    }
    for (int64_t g = 0; g < config->dims.groups; g++) {
        const int64_t end = config->layout == ASSAY_GMM_PSUM ? index[g] : begin + index[g];
        if (row >= begin && row < end) return g;
        begin = end;
        while (config->layout == ASSAY_GMM_PSUM && begin % config->alignment != 0) begin++;
    }
    return -1;
}

assay_status quad_read_gmm_index(assay_context *ctx, const assay_gmm_config *config, const quad_tensors *in,
                                 const int32_t **index)
{
    char path[ASSAY_PATH_SIZE];
    assay_status status;
    snprintf(path, sizeof path, "inputs/%s", assay_gmm_index_name(config->layout));
    TRY(quad_read_indices(ctx, in, path, assay_gmm_index_count(config), index));
    const bool contiguous = config->layout == ASSAY_GMM_CONTIGUOUS;
    const bool sizes = config->layout == ASSAY_GMM_RAGGED || config->layout == ASSAY_GMM_K_GROUPED;
    int64_t most = contiguous ? config->dims.groups - 1 : config->dims.m;
    for (int64_t i = 0; i < assay_gmm_index_count(config); i++) {
        const int32_t found = (*index)[i];
        if (found < (contiguous ? -1 : 0) || found > most) {
            return assay_fail(ctx, ASSAY_BAD_INPUT, "%s[%lld] is %d, expected 0 to %lld", path, (long long)i,
                              (int)found, (long long)most);
        }
        if (sizes) most -= found;
    }
cleanup:
    return status;
}

static assay_status quad_k_grouped(assay_context *ctx, const assay_gmm_config *config, const quad_tensors *in,
                                   quad_tensors *out)
{
    assay_status status;
    const quad *lhs = NULL, *rhs = NULL;
    const int32_t *index = NULL;
    const int64_t m = config->dims.m, k = config->dims.k, n = config->dims.n, groups = config->dims.groups;
    const assay_shape shape = assay_shape_of(3, groups, k, n);
    const quad_tensor *c = quad_tensors_find(in, "inputs/c");
    quad *y = NULL;
    TRY(quad_read(ctx, in, "inputs/lhs", m * k, &lhs));
    TRY(quad_read(ctx, in, "inputs/rhs", m * n, &rhs));
    TRY(quad_read_gmm_index(ctx, config, in, &index));
    TRY(quad_tensors_add(ctx, out, "outputs/y", &shape, &y));
    for (int64_t at = 0; at < groups * k * n; at++) y[at] = c != NULL ? c->values[at] : 0;
    for (int64_t row = 0; row < m; row++) {
        const int64_t g = quad_group_of(config, index, row);
        for (int64_t at = 0; g >= 0 && at < k * n; at++)
            y[g * k * n + at] += lhs[row * k + at / n] * rhs[row * n + at % n];
    }
cleanup:
    return status;
}

assay_status quad_gmm(assay_context *ctx, const assay_gmm_config *config, const quad_tensors *in, quad_tensors *out)
{
    assay_status status = ASSAY_OK;
    const quad *lhs = NULL, *rhs = NULL;
    const int32_t *index = NULL;
    quad *y = NULL;
    const int64_t m = config->dims.m, k = config->dims.k, n = config->dims.n, groups = config->dims.groups;
    const bool masked = config->layout == ASSAY_GMM_MASKED;
    const int64_t rows = masked ? groups * m : m;
    const assay_shape shape = masked ? assay_shape_of(3, groups, m, n) : assay_shape_of(2, m, n);
    if (config->layout == ASSAY_GMM_K_GROUPED) return quad_k_grouped(ctx, config, in, out);
    TRY(quad_read(ctx, in, "inputs/lhs", rows * k, &lhs));
    TRY(quad_read(ctx, in, "weights/rhs", groups * k * n, &rhs));
    TRY(quad_read_gmm_index(ctx, config, in, &index));
    TRY(quad_tensors_add(ctx, out, "outputs/y", &shape, &y));
    for (int64_t i = 0; i < rows * n; i++) y[i] = 0;
    for (int64_t row = 0, count = 1; row < rows; row += count) {
        const int64_t g = quad_group_of(config, index, row);
        for (count = 1; row + count < rows && quad_group_of(config, index, row + count) == g;) count++;
        const quad_product product = quad_product_xw(y + row * n, lhs + row * k, rhs + g * k * n, count, n, k);
        if (g >= 0) TRY(quad_multiply(ctx, &product));
    }
cleanup:
    return status;
}
