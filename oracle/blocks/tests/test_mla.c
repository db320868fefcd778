/* MLA against itself: another engine, what is dropped, skipped, quantised and counted.
 * harness/tests/test_certified.c has it against the second form. */
#include "oracle/blocks/mla.h"
#include "oracle/blocks/tests/block_problem.h"
#include "oracle/ops/quantised_deviation.h"
#include "tests/support/test_tensors.h"

/* Epsilon is large enough to be seen when it is in the wrong place. */
static const struct {
    assay_mla_config config;
    bool segmented;
} samples[] = {
    /* DeepSeek's form: compressed query, YaRN beyond the original length */
    {{.batch = 2,
      .sequence = 5,
      .emb_dim = 7,
      .heads = 3,
      .qk_nope_head_dim = 5,
      .v_head_dim = 3,
      .q_lora_rank = 3,
      .kv_lora_rank = 5,
      .epsilon = 1e-3,
      .mscale = 0.7,
      .rope = {4, true, 10000, 40, 32, 1, 160, 64, true, true, false, false, NULL},
      .mask_padding = true},
     false},
    /* no query compression, pairwise layout, ramp not truncated, attention scaling */
    {{.batch = 1,
      .sequence = 6,
      .emb_dim = 5,
      .heads = 2,
      .qk_nope_head_dim = 2,
      .v_head_dim = 5,
      .kv_lora_rank = 3,
      .epsilon = 1e-3,
      .mscale = 1,
      .rope = {6, true, 500, 4, 8, 1, 400, 100, true, false, true, true, NULL},
      .mask_padding = true},
     false},
    /* segments with padding */
    {{.batch = 2,
      .sequence = 7,
      .emb_dim = 3,
      .heads = 2,
      .qk_nope_head_dim = 2,
      .v_head_dim = 3,
      .q_lora_rank = 2,
      .kv_lora_rank = 3,
      .epsilon = 1e-3,
      .mscale = 1,
      .rope = {2, true, 10000, 40, 32, 1, 160, 64, true, true, false, true, NULL},
      .mask_padding = true},
     true},
};
enum { SAMPLES = sizeof samples / sizeof *samples, PADDED = 2 };

/* Large enough for several blocks of a product and of attention, and of sizes that no block divides. */
static const assay_mla_config LARGE = {
    .batch = 1,
    .sequence = 131,
    .emb_dim = 29,
    .heads = 3,
    .qk_nope_head_dim = 11,
    .v_head_dim = 13,
    .q_lora_rank = 17,
    .kv_lora_rank = 19,
    .epsilon = 1e-6,
    .mscale = 1,
    .rope = {6, true, 10000, 40, 32, 1, 163840, 4096, true, true, false, false, NULL},
    .mask_padding = true};

/* LARGE by a recipe: more tokens than a block has, and more columns of wkv_b. */
static assay_mla_config by_recipe(const char *name)
{
    const assay_calibration absmax = {.factor = 1};
    assay_mla_config config = LARGE;
    config.heads = 6;
    config.recipe = (assay_quant_recipe_config){
        .recipe = assay_quant_recipe_by_name(name), .type = ASSAY_BFLOAT16, .x = absmax, .w = absmax, .dy = absmax};
    assert_non_null(config.recipe.recipe);
    return config;
}

static void graph_of(int sample, graph *g)
{
    assay_mla_graph(g, &samples[sample].config);
}

TEST(test_any_checkpoints_can_be_computed_again)
{
    for (int i = 0; i < SAMPLES; i++) {
        graph g;
        graph_of(i, &g);
        block_check_recomputing(&g, samples[i].segmented);
    }
}

TEST(test_operations_are_those_of_the_products)
{
    for (int i = 0; i < SAMPLES; i++) {
        graph g;
        graph_of(i, &g);
        block_check_operations(&g);
    }
}

TEST(test_padding_reaches_nobody)
{
    graph g;
    graph_of(PADDED, &g);
    block_check_padding(&g);
}

TEST(test_intermediates_lie_on_the_grid)
{
    graph g;
    graph_of(0, &g);
    block_check_grid(&g);
}

TEST(test_blas_agrees)
{
    assay_context ctx = assay_context_default(2), blas = ctx;
    graph g;
    OWNED_BY(block_close) block_problem p, other;
    assay_mla_graph(&g, &LARGE);
    block_open(&p, &g, false);
    block_open(&other, &g, false);
    blas.arithmetic = &assay_arithmetic_blas;
    block_run(&ctx, &p);
    block_run(&blas, &other);
    block_assert_near(other.values[g.result], p.values[g.result], p.tokens * p.dim, 1e-12);
    for (int t = 1; t < g.tensor_count; t++)
        if (block_is_given(&g, t)) block_assert_near(other.gradients[t], p.gradients[t], graph_size(&g, t), 1e-12);
}

/* --- by a recipe --- */

/* What is quantised is moved, and by one tensor's spread the gradients that are made of it change: of a latent its kernel's, of a
 * gradient that of the kernel and all behind it. What forward makes stays, where forward quantises nothing. */
TEST(test_emulated_runs_move_what_a_recipe_quantises)
{
    static const struct {
        const char *of, *changed, *same;
    } table[] = {
        {"mla_q", "wq_b/kernel", "wq_a/kernel"},
        {"mla_kv", "wkv_b/kernel", "wkv_a/kernel"},
        {"attention_out", "out/kernel", "wkv_b/kernel"},
        {"q_gradient", "wq_a/kernel", "wkv_b/kernel"},
        {"query_wa_proj_gradient", "wq_a/kernel", "wq_b/kernel"},
        {"kv_gradient", "kv_norm/scale", "wq_a/kernel"},
        {"kv_wa_proj_gradient", "wkv_a/kernel", "kv_norm/scale"},
    };
    const assay_emulation emulation = {.seed = 3}; /* in exact arithmetic */
    const assay_mla_config config = by_recipe("deepseek_v3");
    assay_context emulated = assay_context_default(1);
    graph g;
    OWNED_BY(block_close) block_problem p, moved;
    emulated.emulation = &emulation;
    assay_mla_graph(&g, &config);
    block_open(&p, &g, false);
    block_open(&moved, &g, false);
    block_run(&emulated, &p);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char checkpoint[ASSAY_PATH_SIZE], path[ASSAY_PATH_SIZE];
        OWNED_BY(test_tensors_free) test_tensors deviations = {0};
        const assay_source in = test_tensors_source(&deviations);
        const int tensor = graph_find(&g, table[i].of);
        int64_t count = graph_size(&g, tensor);
        for (int k = 0; k < g.gradient_count && tensor == 0; k++) {
            const assay_tensor_row *row = &g.tensors[g.gradients[k]].gradient;
            if (strcmp(row->name, table[i].of) == 0) count = assay_tensor_row_count(row);
        }
        snprintf(checkpoint, sizeof checkpoint, "checkpoints/%s", table[i].of);
        assay_deviation_path(checkpoint, path);
        double *deviation = test_tensors_add(&deviations, path, count);
        for (int64_t k = 0; k < count; k++) deviation[k] = 1e-3;
        moved.in = &in;
        block_begin(&moved);
        assert_ok(&emulated, graph_read_deviations(&emulated, &moved.run));
        assert_int_equal(deviations.reads, count);
        assert_ok(&emulated, graph_forward(&emulated, &moved.run));
        assert_ok(&emulated, block_backward(&emulated, &moved));
        assert_same_bits(block_value(&moved, "out_proj"), block_value(&p, "out_proj"), p.tokens * p.dim);
        assert_memory_not_equal(block_gradient(&moved, table[i].changed), block_gradient(&p, table[i].changed),
                                (size_t)block_size(&p, table[i].changed) * sizeof(double));
        assert_same_bits(block_gradient(&moved, table[i].same), block_gradient(&p, table[i].same),
                         block_size(&p, table[i].same));
    }
}

/* A run stage by stage goes on from what is staged for them: here from 0, so that nothing comes to what lies behind. */
TEST_WITH_CONTEXT(test_gradients_that_are_quantised_are_shown)
{
    static const char *const wanted[] = {"checkpoints/*_gradient", NULL}, *const nothing[] = {NULL};
    static const char *const names[] = {"q_gradient", "query_wa_proj_gradient", "kv_gradient", "kv_wa_proj_gradient"};
    const assay_mla_config config = by_recipe("fp8_full");
    test_tensors none = {.wanted = nothing};
    OWNED_BY(test_tensors_free) test_tensors staged = {0}, shown = {.wanted = wanted};
    const assay_source in = test_tensors_source(&staged);
    const assay_sink out = test_tensors_sink(&shown), ignored = test_tensors_sink(&none);
    graph g;
    OWNED_BY(block_close) block_problem p;
    assay_mla_graph(&g, &config);
    block_open(&p, &g, false);
    assert_int_equal(g.gradient_count, 4);
    for (int i = 0; i < 4; i++) {
        char checkpoint[ASSAY_PATH_SIZE], path[ASSAY_PATH_SIZE];
        const int64_t count = assay_tensor_row_count(&g.tensors[g.gradients[i]].gradient);
        snprintf(checkpoint, sizeof checkpoint, "checkpoints/%s", names[i]);
        assay_staged_path(checkpoint, path);
        memset(test_tensors_add(&staged, path, count), 0, (size_t)count * sizeof(double));
    }
    p.in = &in;
    p.out = &ignored;
    block_begin(&p);
    assert_false(graph_wants_gradients(&p.run));
    p.out = &out;
    block_run(&ctx, &p);
    assert_true(graph_wants_gradients(&p.run));
    assert_int_equal(shown.set.count, 4);
    for (int i = 0; i < 4; i++) {
        const assay_tensor *t = &shown.set.items[i];
        assert_string_equal(t->spec.path + strlen("checkpoints/"), names[i]);
        assert_int_equal(t->count, assay_tensor_row_count(&g.tensors[g.gradients[i]].gradient));
        assert_int_equal(block_largest(t->values, t->count) == 0, i == 1); /* behind q_gradient alone */
    }
    assert_true(block_largest(block_gradient(&p, "inputs/x"), p.tokens * p.dim) == 0);
    assert_true(block_largest(block_gradient(&p, "wkv_b/kernel"), block_size(&p, "wkv_b/kernel")) == 0);
    assert_true(block_largest(block_gradient(&p, "out/kernel"), block_size(&p, "out/kernel")) > 0);
}
