#include "oracle/ops/gmm_layout.h"
#include "oracle/ops/tests/ops_test.h"

enum { MOST = 16 };

/* Which rows of a layout belong to which group, by hand. */
static const struct {
    assay_gmm_config config;
    int32_t index[MOST];
    int64_t rows;
    int32_t sizes[4];
    int64_t places[MOST];
} lawful[] = {
    {{ASSAY_GMM_RAGGED, 0, {5, 1, 1, 3}}, {2, 0, 1}, 3, {2, 0, 1}, {0, 1, 2}},
    {{ASSAY_GMM_K_GROUPED, 0, {3, 1, 1, 2}}, {1, 2}, 3, {1, 2}, {0, 1, 2}},
    {{ASSAY_GMM_CONTIGUOUS, 2, {6, 1, 1, 2}}, {0, -1, 1, 1, -1, -1}, 3, {1, 2}, {0, 2, 3}},
    {{ASSAY_GMM_CONTIGUOUS, 2, {6, 1, 1, 3}}, {2, -1, 0, 0, 2, 2}, 5, {2, 0, 3}, {2, 3, 0, 4, 5}}, /* in any order */
    {{ASSAY_GMM_CONTIGUOUS, 1, {3, 1, 1, 2}}, {1, -1, 0}, 2, {1, 1}, {2, 0}},
    {{ASSAY_GMM_CONTIGUOUS, 4, {3, 1, 1, 1}}, {0, 0, -1}, 2, {2}, {0, 1}}, /* a block that is cut off */
    {{ASSAY_GMM_MASKED, 0, {3, 1, 1, 3}}, {2, 0, 3}, 5, {2, 0, 3}, {0, 1, 6, 7, 8}},
    {{ASSAY_GMM_PSUM, 4, {9, 1, 1, 3}}, {3, 4, 9}, 8, {3, 0, 5}, {0, 1, 2, 4, 5, 6, 7, 8}},
    {{ASSAY_GMM_PSUM, 1, {3, 1, 1, 3}}, {1, 1, 3}, 3, {1, 0, 2}, {0, 1, 2}},
    {{ASSAY_GMM_PSUM, 4, {4, 1, 1, 1}}, {0}, 0, {0}, {0}},
};

TEST_WITH_CONTEXT(test_rows_by_hand)
{
    for (size_t i = 0; i < sizeof lawful / sizeof *lawful; i++) {
        int32_t sizes[MOST];
        int64_t places[MOST], rows = -1;
        assert_ok(&ctx, assay_gmm_find_rows(&ctx, &lawful[i].config, lawful[i].index, sizes, places, &rows));
        assert_int_equal(rows, lawful[i].rows);
        assert_memory_equal(places, lawful[i].places, (size_t)rows * sizeof *places);
        assert_memory_equal(sizes, lawful[i].sizes, (size_t)lawful[i].config.dims.groups * sizeof *sizes);
    }
}

static const struct {
    assay_gmm_config config;
    int32_t index[MOST];
    const char *words;
} refused[] = {
    {{ASSAY_GMM_RAGGED, 0, {3, 1, 1, 2}}, {2, 2}, "group_sizes add up to 4"},
    {{ASSAY_GMM_K_GROUPED, 0, {3, 1, 1, 2}}, {-1, 2}, "group_sizes[0] is -1"},
    {{ASSAY_GMM_CONTIGUOUS, 2, {4, 1, 1, 2}}, {0, 0, 2, 2}, "m_indices[2] is 2, expected -1 to 1"},
    {{ASSAY_GMM_CONTIGUOUS, 2, {4, 1, 1, 2}}, {0, 0, -2, 1}, "m_indices[2] is -2, expected -1 to 1"},
    {{ASSAY_GMM_CONTIGUOUS, 2, {4, 1, 1, 2}}, {0, 1, 1, 1}, "m_indices[1] is 1, expected the group of the row before"},
    {{ASSAY_GMM_CONTIGUOUS, 2, {4, 1, 1, 2}}, {-1, 0, 1, 1}, "m_indices[1] is 0, expected -1: it lies behind padding"},
    {{ASSAY_GMM_MASKED, 0, {3, 1, 1, 2}}, {3, 4}, "masked_m[1] is 4, expected 0 to 3, its rows"},
    {{ASSAY_GMM_MASKED, 0, {3, 1, 1, 2}}, {-1, 0}, "masked_m[0] is -1, expected 0 to 3"},
    {{ASSAY_GMM_PSUM, 4, {9, 1, 1, 2}}, {3, 3}, "psum_m[1] is 3, expected 4 to 9, from where the group before ends"},
    {{ASSAY_GMM_PSUM, 4, {9, 1, 1, 2}}, {10, 12}, "psum_m[0] is 10, expected 0 to 9, the rows of lhs"},
    {{ASSAY_GMM_PSUM, 4, {9, 1, 1, 2}}, {9, 9}, "psum_m[1] is 9, expected 12 to 9"},
};

TEST_WITH_CONTEXT(test_refused_layouts)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        int32_t sizes[MOST];
        int64_t places[MOST], rows = -1;
        assert_bad_input(&ctx, assay_gmm_find_rows(&ctx, &refused[i].config, refused[i].index, sizes, places, &rows),
                         refused[i].words);
        ctx.message[0] = '\0';
    }
}

TEST(test_packed_rows_come_back)
{
    static const int64_t places[] = {4, 0, 2};
    const double unpacked[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    double packed[6], back[10];
    assay_gmm_pack(packed, unpacked, 2, places, 3);
    assert_memory_equal(packed, ((double[]){9, 10, 1, 2, 5, 6}), sizeof packed);
    assay_fill_nan(back, 10);
    assay_gmm_scatter(back, 5, packed, 2, places, 3);
    assert_memory_equal(back, ((double[]){1, 2, 0, 0, 5, 6, 0, 0, 9, 10}), sizeof back);
}
