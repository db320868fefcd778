#include "oracle/ops/gmm_layout.h"

const char *assay_gmm_index_name(assay_gmm_layout layout)
{
    static const char *const names[ASSAY_GMM_LAYOUTS] = {"group_sizes", "m_indices", "masked_m", "psum_m",
                                                         "group_sizes"};
    return names[layout];
}

int64_t assay_gmm_index_count(const assay_gmm_config *config)
{
    return config->layout == ASSAY_GMM_CONTIGUOUS ? config->dims.m : config->dims.groups;
}
