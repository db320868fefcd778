/* Where the rows of a grouped product lie: MaxText's ragged rows, and the layouts of serving engines (DeepGEMM
 * csrc/apis/gemm.hpp, tests/generators.py).
 *
 *   ragged      group_sizes [G]: the groups' rows follow each other, rows behind the last belong to none
 *   contiguous  m_indices [M]: the group of each row, -1 of none. Rows of an aligned block are of one group, and those
 *               of none come last in it, since a kernel takes the group of a block from its first row
 *   masked      masked_m [G], of [G,max_m] rows: the first masked_m[g] of part g
 *   psum        psum_m [G]: group g's rows end before psum_m[g], and begin at psum_m[g-1] (of the first: at 0), rounded up
 *               to the alignment
 *   k_grouped   as ragged, for the other product: y[g] = c[g] + lhs_g^T rhs_g, the gradient of a weight
 *
 * Refused: an index outside its range, and what is said above. */
#pragma once

#include "oracle/ops/gmm.h"

typedef enum assay_gmm_layout {
    ASSAY_GMM_RAGGED,
    ASSAY_GMM_CONTIGUOUS,
    ASSAY_GMM_MASKED,
    ASSAY_GMM_PSUM,
    ASSAY_GMM_K_GROUPED,
    ASSAY_GMM_LAYOUTS
} assay_gmm_layout;

typedef struct assay_gmm_config {
    assay_gmm_layout layout;
    int64_t alignment;   /* contiguous and psum */
    assay_gmm_dims dims; /* masked: m is max_m */
} assay_gmm_config;

const char *assay_gmm_index_name(assay_gmm_layout layout); /* "m_indices" */
int64_t assay_gmm_index_count(const assay_gmm_config *config);
int64_t assay_gmm_places(const assay_gmm_config *config); /* rows that there are, used or not */

/* The rows that are used, group after group: places [assay_gmm_places] of which *rows are filled, group_sizes [G]. */
assay_status assay_gmm_find_rows(assay_context *ctx, const assay_gmm_config *config, const int32_t *index,
                                 int32_t *group_sizes, int64_t *places, int64_t *rows);

/* packed [rows,width] from the rows at `places` of [places,width], and back: all other rows become 0. */
void assay_gmm_pack(double *packed, const double *unpacked, int64_t width, const int64_t *places, int64_t rows);
void assay_gmm_scatter(double *unpacked, int64_t count, const double *packed, int64_t width, const int64_t *places,
                       int64_t rows);
