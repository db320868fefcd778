/* The table of functions of the batch-split module, and calls of them by tensors: what is quantised is shown and
 * moved, what reaches nothing, what a call refuses. Their numbers are certified. */

#include "oracle/arithmetic/emulated.h"
#include "oracle/layer/batch_split_function.h"
#include "oracle/layer/tests/layer_case.h"
#include "oracle/ops/quantised_deviation.h"
#include "oracle/ops/tests/ops_test.h"
#include "tests/support/test_tensors.h"

TEST_LABELS(threads);

/* Four shards, two microbatches of one row. */
static assay_function_config config_of(const assay_batch_split_function *f)
{
    OWNED_BY(layer_case_free) layer_case c = layer_case_make(1, 0, 8, 2);
    assay_function_config config = {.stack = c.config, .function = f, .layers = 3, .layer_axis = 1};
    config.stack.single = true;
    config.stack.mla.rope.pairwise = true;
    config.stack.mla.kv_lora_rank = 4;
    config.stack.moe.routing.renormalize_exactly = true;
    config.stack.sharding =
        (assay_sharding){.mesh = {{1, 2, 2}}, .tensor_shards = 1, .token_chunks = 1, .weight_before_wo = true};
    config.stack.batch_split_factor = 2;
    return config;
}

/* By the recipe, where the function has it. */
static assay_function_config config_by(const assay_batch_split_function *f, const char *recipe)
{
    assay_function_config config = config_of(f);
    if (!assay_function_quantises(f)) return config;
    config.recipe = (assay_quant_recipe_config){
        .recipe = assay_quant_recipe_by_name(recipe), .type = ASSAY_BFLOAT16, .x = {1, 0}, .w = {1, 0}, .dy = {1, 0}};
    return config;
}

static const assay_batch_split_function *function(int place)
{
    return assay_batch_split_function_at(place);
}

/* What is given: numbers, ids, then what follows of them. */
static void fill(const assay_function_config *config, const assay_function_tensors *tensors, test_tensors *in)
{
    assay_context ctx = assay_context_default(1);
    const assay_source source = test_tensors_source(in);
    const int64_t experts = config->stack.moe.routing.num_experts;
    const int64_t chosen = config->stack.moe.routing.num_experts_per_tok;
    uint64_t seed = 3;
    int32_t choices[256];
    for (int64_t i = 0; i < 256; i++) choices[i] = (int32_t)((i / chosen * 3 + i % chosen) % experts);
    for (int i = 0; i < tensors->count; i++) {
        const assay_function_tensor *t = &tensors->items[i];
        const int64_t count = assay_shape_count(&t->shape);
        double *values = NULL;
        int32_t *indices = NULL;
        if (t->result) continue;
        if (t->integers) indices = test_tensors_add_i32(in, t->path, count);
        if (!t->integers) values = test_tensors_add(in, t->path, count);
        for (int64_t k = 0; k < count && values != NULL; k++)
            values[k] = t->holds == ASSAY_HOLDS_WEIGHTS ? 0.5 : layer_case_uniform(&seed) + 0.01;
        for (int64_t k = 0; k < count && indices != NULL; k++) indices[k] = choices[k % 256];
        if (t->holds == ASSAY_HOLDS_POSITIONS) memset(indices, 0, (size_t)count * sizeof *indices);
        if (t->holds == ASSAY_HOLDS_LAYER) indices[0] = 2;
    }
    for (int i = 0; i < tensors->count; i++) {
        const assay_function_tensor *t = &tensors->items[i];
        if (t->result || t->holds < ASSAY_HOLDS_COUNTS) continue;
        assay_tensor *tensor = assay_tensor_set_find(&in->set, t->path);
        assert_ok(&ctx, assay_function_derive(&ctx, config, t, &source, choices, tensor->values, tensor->indices));
    }
}

static void add_cotangents(const assay_function_tensors *tensors, test_tensors *in)
{
    uint64_t seed = 11;
    for (int i = 0; i < tensors->count; i++) {
        char path[ASSAY_PATH_SIZE];
        const int64_t count = assay_shape_count(&tensors->items[i].shape);
        if (!tensors->items[i].result || !tensors->items[i].differentiated) continue;
        snprintf(path, sizeof path, "cotangents/%.140s", tensors->items[i].path + 8);
        double *values = test_tensors_add(in, path, count);
        for (int64_t k = 0; k < count; k++) values[k] = layer_case_uniform(&seed);
    }
}

static void run(assay_context *ctx, const assay_function_config *config, const test_tensors *in, test_tensors *out)
{
    const assay_source source = test_tensors_source((test_tensors *)(uintptr_t)in);
    const assay_sink sink = test_tensors_sink(out);
    assert_ok(ctx, assay_function_run(ctx, config, &source, &sink));
}

TEST(names_are_found)
{
    for (int i = 0; function(i) != NULL; i++) {
        const char *name = assay_function_name(function(i));
        assert_ptr_equal(assay_batch_split_function_of(name), function(i));
        const size_t length = strlen(name);
        const bool bwd = length > 4 && strcmp(name + length - 4, "_bwd") == 0;
        assert_int_equal(bwd, assay_function_forward(function(i)) != NULL);
        if (bwd) assert_ptr_equal(assay_function_backward(assay_function_forward(function(i))), function(i));
    }
    for (int i = 0; assay_batch_split_alias(i) != NULL; i++)
        assert_non_null(assay_batch_split_function_of(assay_batch_split_alias(i)));
    assert_null(assay_batch_split_function_of("rout"));
    assert_null(assay_batch_split_function_of(""));
}

/* What a function computes and then quantises: shown once, and moved in an emulated run alone, by what the source says of
 * it. */
TEST(what_is_made_and_quantised_is_shown_and_moved)
{
    for (int i = 0; function(i) != NULL; i++) {
        const assay_function_config config = config_by(function(i), "fp8_full");
        assay_context ctx = assay_context_default(1);
        assay_function_tensors tensors, made;
        test_tensors in = {0}, plain = {0}, spread = {0}, moved = {0};
        assay_function_intermediates_of(&config, &made);
        if (made.count == 0) continue;
        assay_function_tensors_of(&config, &tensors);
        fill(&config, &tensors, &in);
        add_cotangents(&tensors, &in);
        run(&ctx, &config, &in, &plain);
        for (int k = 0; k < made.count; k++) {
            char path[ASSAY_PATH_SIZE];
            const assay_tensor *t = assay_tensor_set_find(&plain.set, made.items[k].path);
            if (t == NULL) fail_msg("%s shows no %s", assay_function_name(function(i)), made.items[k].path);
            assert_int_equal(t->count, assay_shape_count(&made.items[k].shape));
            assert_int_equal(t->written, t->count);
            assay_deviation_path(made.items[k].path, path);
            double *values = test_tensors_add(&in, path, t->count);
            for (int64_t n = 0; n < t->count; n++) values[n] = 0.05;
        }
        run(&ctx, &config, &in, &spread); /* no emulated run */
        const assay_emulation emulation = {
            .precision = {.inputs = ASSAY_FLOAT64}, .storage = ASSAY_FLOAT64, .multiply = ASSAY_FLOAT64, .seed = 5};
        ctx.emulation = &emulation;
        run(&ctx, &config, &in, &moved);
        bool other = false;
        for (int k = 0; k < plain.set.count; k++) {
            const assay_tensor *a = &plain.set.items[k], *b = assay_tensor_set_find(&spread.set, a->spec.path),
                               *c = assay_tensor_set_find(&moved.set, a->spec.path);
            if (a->values == NULL) continue;
            assert_same_bits(a->values, b->values, a->count);
            other |= memcmp(a->values, c->values, (size_t)a->count * sizeof(double)) != 0;
        }
        assert_true(other);
        test_tensors *all[] = {&in, &plain, &spread, &moved};
        for (int k = 0; k < 4; k++) assay_tensor_set_free(&all[k]->set);
    }
}

/* A tensor [M,R,..]: its rows, of each shard those of the shard's experts first. */
static bool has_rows(const assay_function_tensor *t)
{
    return t->weight < 0 && t->axes[1] == 'r' && t->shape.rank == 3;
}

static int64_t own_rows(const test_tensors *in, int64_t shard)
{
    const assay_tensor *sizes = assay_tensor_set_find(&in->set, "inputs/group_sizes");
    const int64_t experts = sizes->count / 4;
    int64_t rows = 0;
    for (int64_t e = 0; e < experts; e++) rows += sizes->indices[shard * experts + e];
    return rows;
}

/* What rows beyond the groups hold reaches nothing, and 0 comes out of them. */
TEST(rows_beyond_the_groups)
{
    static const char *const names[] = {"gmm", "gmm_bwd", "compute_gating", "compute_gating_bwd"};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        const assay_function_config config = config_of(assay_batch_split_function_of(names[n]));
        assay_context ctx = assay_context_default(2);
        assay_function_tensors tensors;
        OWNED_BY(test_tensors_free) test_tensors in = {0}, out = {0};
        int64_t beyond = 0;
        assay_function_tensors_of(&config, &tensors);
        fill(&config, &tensors, &in);
        for (int pass = 0; pass < 2; pass++) {
            if (pass == 1) run(&ctx, &config, &in, &out);
            for (int i = 0; i < tensors.count; i++) {
                const assay_function_tensor *t = &tensors.items[i];
                const assay_tensor *tensor = assay_tensor_set_find(pass == 0 ? &in.set : &out.set, t->path);
                const int64_t width = t->shape.dims[2], copies = t->shape.dims[1];
                for (int64_t k = 0; tensor != NULL && pass == 1 && k < tensor->count; k++)
                    assert_true(isfinite(tensor->values[k]));
                for (int64_t row = 0; tensor != NULL && has_rows(t) && row < 4 * copies; row++) {
                    if (row % copies < own_rows(&in, row / copies)) continue;
                    if (pass == 0) assay_fill_nan(tensor->values + row * width, width);
                    for (int64_t k = 0; pass == 1 && k < width; k++) assert_true(tensor->values[row * width + k] == 0);
                    beyond++;
                }
            }
        }
        assert_true(beyond > 0);
    }
}

/* The weight may stand before or behind wo. */
TEST(the_second_form_of_compute_linear)
{
    static const char *const names[] = {"compute_linear", "compute_linear_bwd"};
    for (int n = 0; n < 2; n++) {
        const assay_function_config config = config_of(assay_batch_split_function_of(names[n]));
        const assay_emulation behind = {.second_form = true};
        assay_context ctx = assay_context_default(2);
        assay_function_tensors tensors;
        test_tensors in = {0}, before = {0}, other = {0};
        assay_function_tensors_of(&config, &tensors);
        fill(&config, &tensors, &in);
        run(&ctx, &config, &in, &before);
        ctx.emulation = &behind;
        run(&ctx, &config, &in, &other);
        for (int i = 0; i < before.set.count; i++) {
            const assay_tensor *one = &before.set.items[i], *two = assay_tensor_set_find(&other.set, one->spec.path);
            assert_close(two->values, one->values, one->count, 1e-12, 1e-14);
        }
        test_tensors *all[] = {&in, &before, &other};
        for (int k = 0; k < 3; k++) assay_tensor_set_free(&all[k]->set);
    }
}

/* Operations of products of a call. */
static double counted(const char *name)
{
    const assay_function_config config = config_of(assay_batch_split_function_of(name));
    assay_context ctx = assay_context_default(1);
    test_operations operations = {.count = 0};
    assay_function_tensors tensors;
    OWNED_BY(test_tensors_free) test_tensors in = {0}, out = {0};
    assay_function_tensors_of(&config, &tensors);
    fill(&config, &tensors, &in);
    test_count_operations(&ctx, &operations);
    run(&ctx, &config, &in, &out);
    return operations.count;
}

/* What backward is said to compute again is what _remat computes. */
TEST(operations_are_those_of_remat)
{
    const assay_function_config config = config_of(function(0));
    const double found = counted("mla_with_norms_remat") + 2 * counted("shared_expert_and_route_remat");
    assert_true(found > 0 && assay_batch_split_model(&config.stack).operations_recomputed == found);
}

TEST_WITH_CONTEXT(masks_of_groups)
{
    /* sums of the two largest of each pair: 5 4 4 6; the first of the equal ones; 2 tokens */
    static const double logits[] = {1, 4, 2, 2, 4, 0, 3, 3, -1, -2, -9, 9, 0, 0, -3, -4};
    static const struct {
        int64_t groups, kept;
        assay_group_score score;
        const char *mask;
    } table[] = {{4, 2, ASSAY_GROUP_TOP2_SUM, "1100001100111100"},  {4, 2, ASSAY_GROUP_MAX, "1100110000111100"},
                 {4, 3, ASSAY_GROUP_TOP2_SUM, "1111001111111100"},  {4, 4, ASSAY_GROUP_TOP2_SUM, "1111111111111111"},
                 {-1, 4, ASSAY_GROUP_TOP2_SUM, "1111111111111111"}, {2, 1, ASSAY_GROUP_TOP2_SUM, "0000111111110000"},
                 {8, 2, ASSAY_GROUP_TOP2_SUM, "0100100000011000"}};
    for (size_t row = 0; row < sizeof table / sizeof *table; row++) {
        const assay_routing_config config = {.num_experts = 8,
                                             .n_routing_groups = table[row].groups,
                                             .topk_routing_group = table[row].kept,
                                             .group_score = table[row].score};
        double mask[16];
        assay_fill_nan(mask, 16);
        assert_ok(&ctx, assay_expert_group_mask(&ctx, mask, logits, 2, &config));
        for (int i = 0; i < 16; i++) assert_true(mask[i] == table[row].mask[i] - '0');
    }
}

TEST_WITH_CONTEXT(bad_input_is_refused)
{
    assay_function_config config = config_of(assay_batch_split_function_of("extract_layer_weights"));
    assay_function_tensors tensors;
    OWNED_BY(test_tensors_free) test_tensors in = {0}, out = {0};
    assay_function_tensors_of(&config, &tensors);
    fill(&config, &tensors, &in);
    const assay_source source = test_tensors_source(&in);
    const assay_sink sink = test_tensors_sink(&out);
    assay_tensor_set_find(&in.set, "inputs/layer_idx")->indices[0] = 3;
    assert_int_equal(assay_function_run(&ctx, &config, &source, &sink), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message, "inputs/layer_idx is 3, expected 0 to 2 (base_num_decoder_layers)");
    config.layer_axis = 2;
    assert_int_equal(assay_function_check(&ctx, &config), ASSAY_BAD_INPUT);
    assay_tensor_set_free(&in.set);
    in = (test_tensors){0};
    config = config_of(assay_batch_split_function_of("yarn"));
    config.recipe.recipe = assay_quant_recipe_by_name("fp8_full");
    assert_bad_input(&ctx, assay_function_check(&ctx, &config), "yarn would quantise nothing");
    config.recipe.recipe = NULL;
    assay_function_tensors_of(&config, &tensors);
    fill(&config, &tensors, &in);
    const assay_source angles = test_tensors_source(&in);
    assay_tensor_set_find(&in.set, "inputs/freqs")->values[3] = 9;
    assert_bad_input(&ctx, assay_function_run(&ctx, &config, &angles, &sink), "expected the two of a pair to be equal");
}
