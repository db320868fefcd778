/* Grouped products in every layout. */
#include <stdio.h>

#include "oracle/quad/tape.h"

static int64_t group_of(const assay_gmm_config *config, const int32_t *index, int64_t row)
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

static const int32_t *read_index(quad_tape *t, const assay_gmm_config *config)
{
    char path[ASSAY_PATH_SIZE];
    const bool contiguous = config->layout == ASSAY_GMM_CONTIGUOUS;
    const bool sizes = config->layout == ASSAY_GMM_RAGGED || config->layout == ASSAY_GMM_K_GROUPED;
    int64_t most = contiguous ? config->dims.groups - 1 : config->dims.m;
    snprintf(path, sizeof path, "inputs/%s", assay_gmm_index_name(config->layout));
    const int32_t *index = quad_input_indices(t, path, assay_gmm_index_count(config));
    for (int64_t i = 0; index != NULL && i < assay_gmm_index_count(config); i++) {
        if (index[i] < (contiguous ? -1 : 0) || index[i] > most)
            quad_refuse(t, "%s[%lld] is %d, expected 0 to %lld", path, (long long)i, (int)index[i], (long long)most);
        if (sizes) most -= index[i];
    }
    return t->status == ASSAY_OK ? index : NULL;
}

/* y[g] = c[g] + lhs_g^T rhs_g: outer products of rows, which are scattered to their group. */
static quad_node k_grouped(quad_tape *t, const assay_gmm_dims *d, const int64_t *group)
{
    const quad_node lhs = quad_input(t, "inputs/lhs", d->m, d->k), rhs = quad_input(t, "inputs/rhs", d->m, d->n);
    int64_t *of = quad_indices(t, d->m * d->k);
    for (int64_t i = 0; of != NULL && i < d->m * d->k; i++)
        of[i] = group[i / d->k] < 0 ? -1 : group[i / d->k] * d->k + i % d->k;
    const quad_node outer = quad_weigh(t, quad_repeat(t, rhs, d->k), quad_view(t, lhs, 1));
    return quad_add(t, quad_scatter(t, outer, of, d->groups * d->k),
                    quad_input_optional(t, "inputs/c", d->groups * d->k, d->n));
}

void quad_gmm(quad_tape *t, const void *self)
{
    const quad_gmm_config *both = self;
    const assay_gmm_config *config = &both->gmm;
    const assay_gmm_dims *d = &config->dims;
    const bool masked = config->layout == ASSAY_GMM_MASKED;
    const int64_t rows = masked ? d->groups * d->m : d->m;
    const int32_t *index = read_index(t, config);
    int64_t *group = quad_indices(t, rows);
    for (int64_t row = 0; group != NULL && row < rows; row++) group[row] = group_of(config, index, row);
    if (group == NULL) return;
    if (config->layout == ASSAY_GMM_K_GROUPED) {
        quad_put(t, "outputs/y", assay_shape_of(3, d->groups, d->k, d->n), k_grouped(t, d, group));
        return;
    }
    const quad_node y = quad_linear(t, (quad_layer){.x = quad_input(t, "inputs/lhs", rows, d->k),
                                                    .w = quad_input(t, "weights/rhs", d->groups * d->k, d->n),
                                                    .groups = d->groups,
                                                    .group = group,
                                                    .recipe = &both->recipe,
                                                    .counts_all = config->layout == ASSAY_GMM_RAGGED});
    quad_put(t, "outputs/y", masked ? assay_shape_of(3, d->groups, d->m, d->n) : assay_shape_of(2, d->m, d->n), y);
}
