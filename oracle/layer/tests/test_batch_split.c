/* The batch-split schedule, which the equivalence batchsplit-plain has against layer after layer: its report, what is not wanted or
 * missing. Numbers of its functions are certified. */

#include "oracle/arithmetic/emulated.h"
#include "oracle/layer/batch_split_internal.h"
#include "oracle/layer/schedule_events.h"
#include "oracle/layer/tests/split_case.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

/* The report is what the sizes say; operations too, but for the rows of a shard that are more than are kept. */
TEST(the_report_is_the_model)
{
    static const assay_mesh meshes[] = {{{1, 1, 1}}, {{2, 1, 1}}, {{1, 2, 2}}, {{1, 1, 4}}};
    for (int i = 0; i < 4; i++) {
        assay_context ctx = assay_context_default(1);
        OWNED_BY(layer_case_free) layer_case plain = split_case_plain(5, 1, 8, 2);
        layer_case split = split_case_of(&plain, meshes[i], 2);
        assay_remat_report model;
        OWNED_BY(test_tensors_free) test_tensors found = {0};
        layer_case_run(&ctx, &split, &found);
        assert_ok(&ctx, assay_stack_remat_model(&ctx, &split.config, &model));
        const double operations = layer_case_get(&found, "remat/operations_recomputed")->values[0];
        assert_true(model.bytes_offloaded > 0);
        assert_true(layer_case_get(&found, "remat/bytes_kept")->values[0] == (double)model.bytes_kept);
        assert_true(layer_case_get(&found, "remat/bytes_offloaded")->values[0] == (double)model.bytes_offloaded);
        assert_true(meshes[i].size[ASSAY_AXIS_EXPERT] > 2 ? operations >= model.operations_recomputed
                                                          : operations == model.operations_recomputed);
    }
}

static bool wants_no_gradient(void *self, const char *path)
{
    (void)self;
    return strncmp(path, "gradients/", 10) != 0;
}

/* Without backward nothing is kept, and there are fewer events. */
TEST_WITH_CONTEXT(forward_alone)
{
    OWNED_BY(layer_case_free) layer_case plain = split_case_plain(4, 0, 4, 3);
    layer_case split = split_case_of(&plain, (assay_mesh){{1, 1, 2}}, 2);
    OWNED_BY(test_tensors_free) test_tensors with = {0}, without = {0};
    layer_case_run(&ctx, &split, &with);
    const assay_source in = test_tensors_source(&split.in);
    assay_sink out = test_tensors_sink(&without);
    out.wants = wants_no_gradient;
    assert_ok(&ctx, assay_stack_run(&ctx, &split.config, &in, &out));
    const assay_tensor *one = layer_case_get(&with, "outputs/y"), *other = layer_case_get(&without, "outputs/y");
    assert_same_bits(other->values, one->values, one->count);
    const assay_schedule_dims dims = {0, 4, 2, false};
    assert_int_equal(layer_case_get(&without, "schedule/events")->count,
                     assay_schedule_count(&dims) * ASSAY_EVENT_FIELDS);
}

static const assay_emulation bfloat16 = {.precision = {.storage = 0x1p-9,
                                                       .multiply = 0x1p-9,
                                                       .accumulate = 0x1p-24,
                                                       .router = 0x1p-24,
                                                       .elementary = 0x1p-20},
                                         .storage = ASSAY_BFLOAT16,
                                         .multiply = ASSAY_BFLOAT16,
                                         .seed = 3};

static void assert_bfloat16(const double *values, int64_t count)
{
    OWNED double *rounded = malloc((size_t)count * sizeof *rounded);
    assert_non_null(rounded);
    assay_dtype_round_many(ASSAY_BFLOAT16, count, values, rounded);
    assert_same_bits(rounded, values, count);
}

/* A shard with more rows than are kept computes them again, and counts it; the bits are those of a run that keeps all. Where
 * bfloat16 is emulated, what is stored is of that type. */
TEST(rows_beyond_the_capacity_are_computed_again)
{
    static const char *const stored[] = {"outputs/y", "gradients/inputs/x", "checkpoints/moe_mlpwi_0",
                                         "checkpoints/moe_mlpwi_1"};
    for (int emulated = 0; emulated < 2; emulated++) {
        assay_context ctx = assay_context_default(2);
        OWNED_BY(layer_case_free) layer_case plain = layer_case_make(1, 0, 16, 3);
        plain.config = split_case_form(plain.config);
        plain.config.single = true;
        layer_case_fill(&plain);
        layer_case split = split_case_of(&plain, (assay_mesh){{2, 1, 4}}, 2);
        double *bias = layer_case_get(&plain.in, "weights/moe/gate/bias")->values;
        OWNED_BY(test_tensors_free) test_tensors all = {0}, cut = {0};
        if (emulated) ctx.arithmetic = &assay_arithmetic_emulated;
        if (emulated) ctx.emulation = &bfloat16;
        for (int e = 0; e < 4; e++) bias[e] = e < 2 ? 5 : 0; /* two of four shards get everything */
        split.config.kept_capacity = 4;
        layer_case_run(&ctx, &split, &all);
        split.config.kept_capacity = 1;
        layer_case_run(&ctx, &split, &cut);
        layer_case_assert_same(&cut, &all);
        const double again = layer_case_get(&cut, "remat/operations_recomputed")->values[0] -
                             layer_case_get(&all, "remat/operations_recomputed")->values[0];
        const assay_batch_split_sizes sizes = assay_batch_split_sizes_of(&split.config);
        /* of both kernels all copies of the expert axis, on two shards of data and in both microbatches */
        assert_true(again == 2 * 2 * 4.0 * 8 * 5 * (double)sizes.copies);
        for (int i = 0; emulated && i < 4; i++)
            assert_bfloat16(layer_case_get(&cut, stored[i])->values, layer_case_get(&cut, stored[i])->count);
    }
}

/* What is added may have been stored, and so may a sum that is not the last, which is rounded as a partial sum is. */
TEST(sums_of_gradients)
{
    const int weight = BS_ROUTED + ASSAY_MLP_WO;
    assay_context ctx = assay_context_default(2);
    OWNED_BY(layer_case_free) layer_case plain = split_case_plain(4, 0, 12, 1);
    layer_case split = split_case_of(&plain, (assay_mesh){{1, 2, 2}}, 3);
    const stack_run stack = {.config = &split.config};
    bs_run run;
    OWNED_BY(bs_weights_free) bs_weights g;
    OWNED_BY(bs_gradient_sums_close) bs_gradient_sums sums;
    uint64_t seed = 41;
    ctx.arithmetic = &assay_arithmetic_emulated;
    ctx.emulation = &bfloat16;
    bs_run_of(&run, &stack);
    assert_ok(&ctx, bs_weights_alloc(&ctx, &run, &g, true, NULL));
    const int64_t count = run.sizes.shards * bs_weight_count(&run, weight, true);
    double *sum = g.values[weight], *before = malloc((size_t)count * sizeof *before);
    assert_non_null(before);
    assert_ok(&ctx, bs_gradient_sums_open(&ctx, &run, &sums, &g, weight, weight + 1));
    for (int64_t i = 0; i < run.factor; i++) {
        double *each = bs_gradients_of(&sums, i)->values[weight];
        memcpy(before, sum, (size_t)count * sizeof *sum);
        for (int64_t j = 0; j < count; j++) each[j] = layer_case_uniform(&seed);
        bs_add_gradients(&ctx, &run, &sums, i);
        assert_bfloat16(i < run.factor - 1 ? sum : each, count);
        for (int64_t j = 0; i == run.factor - 1 && j < count; j++) {
            const double exact = before[j] + each[j];
            assert_true(fabs(sum[j] - exact) <= 8 * bfloat16.precision.accumulate * fabs(exact));
        }
    }
    free(before);
}

static assay_status run_status(assay_context *ctx, const layer_case *c)
{
    OWNED_BY(test_tensors_free) test_tensors found = {0};
    const assay_source in = test_tensors_source((test_tensors *)(uintptr_t)&c->in);
    const assay_sink out = test_tensors_sink(&found);
    const assay_status status = assay_stack_run(ctx, &c->config, &in, &out);
    return status;
}

TEST_WITH_CONTEXT(missing_and_foreign_weights_are_refused)
{
    static const char *const foreign[] = {"wi_0_bias", "wi_1_bias", "wo_bias", "per_expert_scale"};
    layer_case plain = split_case_plain(4, 0, 2, 1);
    OWNED_BY(layer_case_free) layer_case split = split_case_of(&plain, (assay_mesh){{1, 1, 1}}, 2);
    for (int i = 0; i < 4; i++) {
        char path[ASSAY_PATH_SIZE];
        snprintf(path, sizeof path, "weights/layers/2/moe/%s", foreign[i]);
        assert_non_null(test_tensors_add(&split.in, path, 4 * 8));
        assert_bad_input(&ctx, run_status(&ctx, &split), path);
        test_tensors_remove(&split.in, path);
    }
    assert_ok(&ctx, run_status(&ctx, &split));
    test_tensors_remove(&split.in, "weights/layers/2/moe/wo");
    assert_int_not_equal(run_status(&ctx, &split), ASSAY_OK);
}
