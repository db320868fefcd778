#include "oracle/moe/replicas.h"
#include "tests/support/assay_test.h"

TEST_WITH_CONTEXT(test_replicas_by_hand)
{
    static const int32_t map[] = {2, 0, 1, 2, 0, 2};
    static const int32_t selected[] = {2, 0, 1, 2, 2, 0, 2, 1}; /* [4,2] */
    static const int32_t expected[] = {0, 1, 2, 3, 5, 1, 0, 2};
    OWNED_BY(assay_replicas_free) assay_replicas r = {0};
    int32_t physical[8];
    assert_ok(&ctx, assay_replicas_make(&ctx, &r, map, 6, 3));
    assert_int_equal(r.most, 3);
    assert_memory_equal(r.first, ((int32_t[]){0, 2, 3, 6}), 4 * sizeof(int32_t));
    assert_memory_equal(r.ids, ((int32_t[]){1, 4, 2, 0, 3, 5}), sizeof map);
    assert_memory_equal(r.place, ((int32_t[]){3, 0, 2, 4, 1, 5}), sizeof map);
    assay_replicas_choose(&r, physical, selected, NULL, &(assay_permute_dims){.tokens = 4, .experts_per_token = 2});
    assert_memory_equal(physical, expected, sizeof expected);
}

TEST_WITH_CONTEXT(test_refused_maps)
{
    static const struct {
        int32_t map[4];
        const char *words;
    } refused[] = {
        {{0, 1, 3, 2}, "physical_to_logical_map[2] is 3, expected 0 to 2"},
        {{0, -1, 1, 2}, "physical_to_logical_map[1] is -1, expected 0 to 2"},
        {{0, 2, 2, 0}, "has no replica of expert 1"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assay_replicas r = {0};
        assert_bad_input(&ctx, assay_replicas_make(&ctx, &r, refused[i].map, 4, 3), refused[i].words);
        assert_null(r.ids);
        ctx.message[0] = '\0';
    }
}
