#include "oracle/moe/routing.h"
#include "tests/support/assay_test.h"

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
