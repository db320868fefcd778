#include "oracle/ops/gmm_layout.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

int64_t assay_gmm_places(const assay_gmm_config *config)
{
    return config->dims.m * (config->layout == ASSAY_GMM_MASKED ? config->dims.groups : 1);
}

static assay_status refuse(assay_context *ctx, const assay_gmm_config *config, int64_t at, int32_t found,
                           const char *expected)
{
    return assay_refuse(ctx, "%s[%" PRId64 "] is %" PRId32 ", expected %s", assay_gmm_index_name(config->layout), at,
                        found, expected);
}

static assay_status refuse_range(assay_context *ctx, const assay_gmm_config *config, int64_t at, int32_t found,
                                 int64_t least, int64_t most, const char *why)
{
    return assay_refuse(ctx, "%s[%" PRId64 "] is %" PRId32 ", expected %" PRId64 " to %" PRId64 "%s",
                        assay_gmm_index_name(config->layout), at, found, least, most, why);
}

static assay_status check_indices(assay_context *ctx, const assay_gmm_config *config, const int32_t *index)
{
    for (int64_t row = 0; row < config->dims.m; row++) {
        const int32_t group = index[row], before = row % config->alignment > 0 ? index[row - 1] : group;
        if (group < -1 || group >= config->dims.groups)
            return refuse_range(ctx, config, row, group, -1, config->dims.groups - 1, "");
        if (group == before || group == -1) continue;
        return refuse(ctx, config, row, group,
                      before == -1 ? "-1: it lies behind padding in its aligned block"
                                   : "the group of the row before or -1: an aligned block is of one group");
    }
    return ASSAY_OK;
}

/* The rows of every group as [first, end), for layouts in which they are together. */
static assay_status find_range(assay_context *ctx, const assay_gmm_config *config, const int32_t *index, int64_t g,
                               int64_t *first, int64_t *end)
{
    const int64_t m = config->dims.m, alignment = config->alignment;
    switch (config->layout) {
    case ASSAY_GMM_MASKED:
        if (index[g] < 0 || index[g] > m) return refuse_range(ctx, config, g, index[g], 0, m, ", its rows");
        *first = g * m;
        *end = *first + index[g];
        break;
    case ASSAY_GMM_PSUM:
        *first = (*end + alignment - 1) / alignment * alignment;
        if (index[g] < *first || index[g] > m) {
            return refuse_range(
                ctx, config, g, index[g], *first, m,
                g > 0 ? ", from where the group before ends, rounded up to the alignment, to the rows of lhs"
                      : ", the rows of lhs");
        }
        *end = index[g];
        break;
    default:
        *first = *end;
        *end += index[g];
    }
    return ASSAY_OK;
}

assay_status assay_gmm_find_rows(assay_context *ctx, const assay_gmm_config *config, const int32_t *index,
                                 int32_t *group_sizes, int64_t *places, int64_t *rows)
{
    const bool contiguous = config->layout == ASSAY_GMM_CONTIGUOUS;
    const bool sizes = config->layout == ASSAY_GMM_RAGGED || config->layout == ASSAY_GMM_K_GROUPED;
    int64_t first = 0, end = 0, found = 0;
    if (sizes) MUST(assay_gmm_check_groups(ctx, index, &config->dims, rows));
    if (contiguous) MUST(check_indices(ctx, config, index));
    for (int64_t g = 0; g < config->dims.groups; g++) {
        const int64_t before = found;
        if (!contiguous) MUST(find_range(ctx, config, index, g, &first, &end));
        for (int64_t row = contiguous ? 0 : first; row < (contiguous ? config->dims.m : end); row++)
            if (!contiguous || index[row] == g) places[found++] = row;
        group_sizes[g] = (int32_t)(found - before);
    }
    *rows = found;
    return ASSAY_OK;
}

void assay_gmm_pack(double *packed, const double *unpacked, int64_t width, const int64_t *places, int64_t rows)
{
    for (int64_t row = 0; row < rows; row++)
        memcpy(packed + row * width, unpacked + places[row] * width, (size_t)width * sizeof *packed);
}

void assay_gmm_scatter(double *unpacked, int64_t count, const double *packed, int64_t width, const int64_t *places,
                       int64_t rows)
{
    memset(unpacked, 0, (size_t)(count * width) * sizeof *unpacked);
    for (int64_t row = 0; row < rows; row++)
        memcpy(unpacked + places[row] * width, packed + row * width, (size_t)width * sizeof *unpacked);
}
