#include "oracle/moe/routing.h"
#include "tests/support/assay_test.h"

/* The example of MaxText's own test of token dropping: 4 batch rows, 4 tokens, 2 of 8 experts, capacity 2. */
static const int32_t EXPERTS[] = {0, 5, 0, 4, 1, 0, 3, 5, 1, 2, 4, 1, 5, 0, 7, 1,
                                  6, 2, 2, 3, 4, 2, 1, 2, 4, 1, 0, 7, 5, 0, 4, 7};
static const double WEIGHTS[] = {0.20, 0.80, 0.68, 0.32, 0.78, 0.22, 0.32, 0.68, 0.26, 0.74, 0.21,
                                 0.79, 0.11, 0.89, 0.89, 0.11, 0.74, 0.26, 0.88, 0.12, 0.83, 0.17,
                                 0.35, 0.65, 0.53, 0.47, 0.36, 0.64, 0.85, 0.15, 0.18, 0.82};
/* Rank of each choice among those of its expert in its batch row; 2 and more are dropped. */
static const int32_t RANKS[] = {0, 0, 1, 0, 0, 2, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2,
                                0, 0, 1, 0, 0, 2, 0, 3, 0, 0, 0, 0, 0, 1, 1, 1};

TEST(test_maxtext_masks)
{
    enum { B = 4, S = 4, E = 8, K = 2, C = 2 };
    const assay_routing_config config = {.batch = B, .sequence = S, .num_experts = E, .num_experts_per_tok = K};
    int32_t experts[B * S * K], position[B * S * K];
    double weights[B * S * K], mask[B * S * E * C];
    bool kept[B * S * K];
    for (int i = 0; i < B * S * K; i++) {
        experts[i] = EXPERTS[i];
        weights[i] = WEIGHTS[i];
        position[i] = -1;
    }
    const assay_routing routing = {.selected_experts = experts, .weights = weights};
    assert_int_equal(assay_expert_capacity(&config, 2.0), C);
    assay_fill_nan(mask, B * S * E * C);
    assay_capacity_masks(kept, position, mask, &routing, C, &config);
    int nonzero = 0, expected_nonzero = 0;
    for (int i = 0; i < B * S * K; i++) {
        assert_int_equal(position[i], RANKS[i]);
        assert_int_equal(kept[i], RANKS[i] < C);
        if (RANKS[i] >= C) continue;
        expected_nonzero++;
        assert_true(mask[(i / K * E + EXPERTS[i]) * C + RANKS[i]] == WEIGHTS[i]);
    }
    for (int i = 0; i < B * S * E * C; i++) {
        assert_true(mask[i] >= 0.0);
        nonzero += mask[i] != 0.0;
    }
    assert_int_equal(nonzero, expected_nonzero);
    assert_int_equal(nonzero, 28);
    /* The same without the mask. */
    bool kept_alone[B * S * K];
    assay_capacity_masks(kept_alone, position, NULL, &routing, C, &config);
    for (int i = 0; i < B * S * K; i++) assert_int_equal(kept_alone[i], kept[i]);
}

TEST(test_capacity_formula)
{
    static const struct {
        int64_t sequence, per_token, experts;
        double factor;
        int64_t capacity;
    } table[] = {
        {4, 2, 8, 2.0, 2},         {4, 2, 8, 1.0, 1},
        {4, 2, 7, 1.0, 2},         {4, 2, 7, 1.5, 3},
        {1, 1, 64, 1.0, 1},        {1, 1, 64, 0.5, 0},
        {1, 1, 64, 3.7, 3},        {100, 8, 256, 1.0, 4},
        {100, 8, 256, 1.3, 5},     {3, 2, 3, 1.0, 2},
        {4096, 8, 256, 1.25, 160}, {2, 1, 2, 0.99, 0},
        {5, 1, 2, 0.7, 2},         {4, 2, 8, 1e300, INT64_C(1) << 62},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const assay_routing_config config = {.batch = 3,
                                             .sequence = table[i].sequence,
                                             .num_experts = table[i].experts,
                                             .num_experts_per_tok = table[i].per_token};
        assert_int_equal(assay_expert_capacity(&config, table[i].factor), table[i].capacity);
    }
}

/* One hot expert past the first stretch of experts, one batch row not disturbing the next. */
TEST(test_many_experts)
{
    enum { B = 2, S = 5, E = 2500, C = 3 };
    const assay_routing_config config = {.batch = B, .sequence = S, .num_experts = E, .num_experts_per_tok = 1};
    int32_t experts[B * S] = {2499, 2499, 1024, 2499, 2499, 2499, 1023, 2499, 1023, 0}, position[B * S];
    const int32_t ranks[B * S] = {0, 1, 0, 2, 3, 0, 0, 1, 1, 0};
    double weights[B * S];
    bool kept[B * S];
    for (int i = 0; i < B * S; i++) weights[i] = 1.0 + i;
    const assay_routing routing = {.selected_experts = experts, .weights = weights};
    assay_capacity_masks(kept, position, NULL, &routing, C, &config);
    for (int i = 0; i < B * S; i++) {
        assert_int_equal(position[i], ranks[i]);
        assert_int_equal(kept[i], ranks[i] < C);
    }
    assay_capacity_masks(kept, position, NULL, &routing, 0, &config);
    for (int i = 0; i < B * S; i++) assert_false(kept[i]);
}
