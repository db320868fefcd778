#include "oracle/blocks/mlp.h"
#include "oracle/blocks/tests/block_problem.h"

TEST_LABELS(threads);

#define MLP(...)                                                                                                       \
    {                                                                                                                  \
        .rows = 6, .emb_dim = 8, .mlp_dim = 12, .activation = {ASSAY_SILU, ASSAY_LINEAR}, __VA_ARGS__                  \
    }

/* In the parts that experts and meshes have. */
static const assay_mlp_graph_config FORMS[] = {
    {.mlp = MLP(.fused = false), .place = ASSAY_MLP_DENSE, .batch = 2, .sequence = 3},
    {.mlp = MLP(.fused = true), .place = ASSAY_MLP_DENSE, .batch = 2, .sequence = 3},
    {.mlp = MLP(.glu = ASSAY_GLU_GPT_OSS, .limit = 1), .place = ASSAY_MLP_ROUTED, .slices = 2, .chunks = 2},
    {.mlp = MLP(.fused = true, .hidden_shards = 3), .place = ASSAY_MLP_ROUTED, .slices = 2},
    {.mlp = MLP(.hidden_shards = 3), .place = ASSAY_MLP_ROUTED, .weighs_h = true},
    {.mlp = MLP(.groups = 3), .place = ASSAY_MLP_ROUTED},
    {.mlp = MLP(.fused = true, .groups = 3), .place = ASSAY_MLP_ROUTED, .weighs_h = true},
    {.mlp = MLP(.fused = false), .place = ASSAY_MLP_SHARED},
};
enum { FORM_COUNT = sizeof FORMS / sizeof *FORMS };

static void graph_of(const assay_mlp_graph_config *config, graph *g)
{
    assay_mlp_graph(g, config);
}

static void check_each(void (*check)(const graph *g))
{
    for (int i = 0; i < FORM_COUNT; i++) {
        graph g;
        graph_of(&FORMS[i], &g);
        check(&g);
    }
}

static void recomputing(const graph *g)
{
    block_check_recomputing(g, false);
}

TEST(test_any_checkpoints_can_be_computed_again)
{
    check_each(recomputing);
}

TEST(test_intermediates_lie_on_the_grid)
{
    check_each(block_check_grid);
}

/* --- forms of the same --- */

TEST(test_no_rows_have_zero_gradients)
{
    assay_context ctx = assay_context_default(2);
    for (int i = 2; i < FORM_COUNT; i++) {
        assay_mlp_graph_config config = FORMS[i];
        OWNED_BY(block_close) block_problem p;
        config.mlp.rows = config.mlp.groups = 0;
        graph g;
        graph_of(&config, &g);
        block_open(&p, &g, false);
        block_run(&ctx, &p);
        for (int t = 1; t < g.tensor_count; t++)
            for (int64_t k = 0; k < graph_size(&g, t) && block_is_given(&g, t); k++)
                assert_true(p.gradients[t][k] == 0);
    }
}

TEST(test_nan_stays_in_its_row)
{
    assay_context ctx = assay_context_default(2);
    const int64_t bad = 4;
    for (int i = 0; i < FORM_COUNT; i++) {
        graph g;
        graph_of(&FORMS[i], &g);
        OWNED_BY(block_close) block_problem p, other;
        block_open(&p, &g, false);
        block_open(&other, &g, false);
        block_value(&other, "inputs/x")[bad * p.dim + 3] = NAN;
        block_run(&ctx, &p);
        block_run(&ctx, &other);
        const double *const rows[][2] = {{p.values[g.result], other.values[g.result]},
                                         {block_gradient(&p, "inputs/x"), block_gradient(&other, "inputs/x")}};
        for (int k = 0; k < 2; k++) {
            const int64_t after = (bad + 1) * p.dim;
            assert_same_bits(rows[k][1], rows[k][0], bad * p.dim);
            assert_all_nan(rows[k][1] + bad * p.dim, p.dim);
            assert_same_bits(rows[k][1] + after, rows[k][0] + after, p.tokens * p.dim - after);
        }
    }
}
