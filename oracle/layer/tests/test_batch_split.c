/* The batch-split schedule against layer after layer; its report, its refusals, want of memory. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/layer/batch_split_internal.h"
#include "oracle/layer/batch_split_weights.h"
#include "oracle/layer/tests/layer_case.h"
#include "tests/support/assay_test.h"

/* With sizes that fsdp 2 divides, and what the schedule asks for. */
static layer_case plain_case(int64_t layers, int64_t dense, int64_t batch, int64_t sequence)
{
    layer_case c = layer_case_make(layers, dense, batch, sequence);
    c.config.mla.kv_lora_rank = 4;
    c.config.mla.rope.pairwise = true;
    c.config.moe.routing.renormalize_exactly = true;
    layer_case_fill(&c);
    return c;
}

static layer_case split_case(const layer_case *plain, assay_mesh mesh, int64_t factor)
{
    layer_case c = *plain;
    c.config.sharding = (assay_sharding){.mesh = mesh, .tensor_shards = 1, .token_chunks = 1};
    c.config.batch_split_factor = factor;
    return c;
}

static double largest(const memory_tensor *t)
{
    double most = 0;
    for (int64_t i = 0; i < t->count; i++) most = fmax(most, fabs(t->values[i]));
    return most;
}

/* Outputs and gradients of `split` are those of `plain`. */
static int assert_equal_results(const memory_store *split, const memory_store *plain)
{
    int compared = 0;
    for (int i = 0; i < split->count; i++) {
        const memory_tensor *found = &split->items[i];
        const bool result = strncmp(found->path, "outputs/", 8) == 0 || strncmp(found->path, "gradients/", 10) == 0;
        if (!result) continue;
        const memory_tensor *expected = layer_case_get(plain, found->path);
        assert_int_equal(found->count, expected->count);
        assert_close(found->values, expected->values, found->count, 0, 1e-13 * largest(expected));
        compared++;
    }
    return compared;
}

static void the_schedule_is_the_stack(void **state)
{
    static const struct {
        int64_t layers, dense, batch, sequence;
        assay_mesh mesh;
        int64_t factor;
    } table[] = {
        {4, 0, 2, 3, {{1, 1, 1}}, 1}, {4, 0, 2, 3, {{1, 1, 1}}, 2}, {6, 2, 4, 3, {{1, 1, 2}}, 2},
        {4, 0, 8, 2, {{1, 2, 2}}, 2}, {5, 1, 8, 1, {{2, 1, 4}}, 1}, {6, 0, 32, 1, {{2, 2, 4}}, 2},
        {4, 0, 8, 2, {{1, 1, 2}}, 4},
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = assay_context_default(1);
        layer_case plain = plain_case(table[i].layers, table[i].dense, table[i].batch, table[i].sequence);
        layer_case split = split_case(&plain, table[i].mesh, table[i].factor);
        memory_store expected = {0}, found = {0};
        layer_case_run(&ctx, &plain, &expected);
        layer_case_run(&ctx, &split, &found);
        assert_true(assert_equal_results(&found, &expected) > 40);
        memory_store_free(&expected);
        memory_store_free(&found);
        layer_case_free(&plain);
    }
}

/* One layer alone, as the op deepseek_layer has it. */
static void one_layer_goes_without_the_scan(void **state)
{
    assay_context ctx = assay_context_default(1);
    layer_case plain = layer_case_make(1, 0, 4, 3);
    memory_store expected = {0}, found = {0};
    (void)state;
    plain.config.single = true;
    plain.config.mla.rope.pairwise = true;
    layer_case_fill(&plain);
    layer_case split = split_case(&plain, (assay_mesh){{1, 1, 2}}, 2);
    layer_case_run(&ctx, &plain, &expected);
    layer_case_run(&ctx, &split, &found);
    assert_true(assert_equal_results(&found, &expected) > 15);
    memory_store_free(&expected);
    memory_store_free(&found);
    layer_case_free(&plain);
}

static void threads_change_nothing(void **state)
{
    static const int threads[] = {1, 2, 7};
    layer_case plain = plain_case(4, 0, 8, 2);
    layer_case split = split_case(&plain, (assay_mesh){{1, 2, 2}}, 2);
    memory_store first = {0};
    (void)state;
    for (int i = 0; i < 3; i++) {
        assay_context ctx = assay_context_default(threads[i]);
        memory_store found = {0};
        layer_case_run(&ctx, &split, i == 0 ? &first : &found);
        if (i > 0) layer_case_assert_same(&found, &first);
        memory_store_free(&found);
    }
    memory_store_free(&first);
    layer_case_free(&plain);
}

/* Whole checkpoints out of microbatches: those of the plain stack, and mla_out its first half. */
static void checkpoints_are_merged(void **state)
{
    static const char *const names[] = {"decoder_layer_input", "attention_out", "lse"};
    assay_context ctx = assay_context_default(1);
    layer_case plain = plain_case(4, 0, 4, 3);
    layer_case split = split_case(&plain, (assay_mesh){{1, 1, 2}}, 2);
    memory_store expected = {0}, found = {0};
    (void)state;
    layer_case_run(&ctx, &plain, &expected);
    layer_case_run(&ctx, &split, &found);
    for (int layer = 0; layer < 4; layer++) {
        for (int i = 0; i < 3; i++) {
            char path[ASSAY_PATH_SIZE];
            snprintf(path, sizeof path, "checkpoints/layers/%d/%s", layer, names[i]);
            const memory_tensor *one = layer_case_get(&found, path), *other = layer_case_get(&expected, path);
            assert_int_equal(one->count, other->count);
            assert_close(one->values, other->values, one->count, 0, 1e-14 * largest(other));
        }
    }
    memory_store_free(&expected);
    memory_store_free(&found);
    layer_case_free(&plain);
}

/* The report is what the sizes say; operations too, where no shard has more rows than are kept. */
static void the_report_is_the_model(void **state)
{
    assay_context ctx = assay_context_default(1);
    layer_case plain = plain_case(5, 1, 8, 2);
    layer_case split = split_case(&plain, (assay_mesh){{1, 1, 1}}, 2);
    assay_remat_report model;
    memory_store found = {0};
    (void)state;
    layer_case_run(&ctx, &split, &found);
    assert_ok(&ctx, assay_stack_remat_model(&ctx, &split.config, &model));
    assert_true(model.bytes_offloaded > 0);
    assert_true(layer_case_get(&found, "remat/bytes_kept")->values[0] == (double)model.bytes_kept);
    assert_true(layer_case_get(&found, "remat/bytes_offloaded")->values[0] == (double)model.bytes_offloaded);
    assert_true(layer_case_get(&found, "remat/operations_recomputed")->values[0] == model.operations_recomputed);
    memory_store_free(&found);
    layer_case_free(&plain);
}

static bool wants_no_gradient(void *self, const char *path)
{
    (void)self;
    return strncmp(path, "gradients/", 10) != 0;
}

/* Without backward nothing is kept, and there are fewer events. */
static void forward_alone(void **state)
{
    assay_context ctx = assay_context_default(1);
    layer_case plain = plain_case(4, 0, 4, 3);
    layer_case split = split_case(&plain, (assay_mesh){{1, 1, 2}}, 2);
    memory_store with = {0}, without = {0};
    (void)state;
    layer_case_run(&ctx, &split, &with);
    const assay_source in = memory_store_source(&split.in);
    assay_sink out = memory_store_sink(&without);
    out.wants = wants_no_gradient;
    assert_ok(&ctx, assay_stack_run(&ctx, &split.config, &in, &out));
    const memory_tensor *one = layer_case_get(&with, "outputs/y"), *other = layer_case_get(&without, "outputs/y");
    assert_same_bits(other->values, one->values, one->count);
    const assay_schedule_dims dims = {0, 4, 2, false};
    assert_int_equal(layer_case_get(&without, "schedule/events")->count,
                     assay_schedule_count(&dims) * ASSAY_EVENT_FIELDS);
    memory_store_free(&with);
    memory_store_free(&without);
    layer_case_free(&plain);
}

/* Row r of a shard goes to microbatch r mod f. */
static void rows_alternate(void **state)
{
    enum { SHARDS = 2, FACTOR = 3, ROWS = 2, WIDTH = 2, COUNT = SHARDS * FACTOR * ROWS * WIDTH };
    const bs_run run = {.factor = FACTOR, .sizes = {.shards = SHARDS, .rows = ROWS}};
    double x[COUNT], back[COUNT], parts[FACTOR][SHARDS * ROWS * WIDTH];
    int32_t y[COUNT], y_back[COUNT], y_parts[FACTOR][SHARDS * ROWS * WIDTH];
    double *const split[FACTOR] = {parts[0], parts[1], parts[2]};
    int32_t *const y_split[FACTOR] = {y_parts[0], y_parts[1], y_parts[2]};
    (void)state;
    for (int i = 0; i < COUNT; i++) y[i] = i, x[i] = i;
    assay_fill_nan(&parts[0][0], COUNT);
    assay_fill_nan(back, COUNT);
    bs_split(split, x, &run, WIDTH);
    bs_split_i32(y_split, y, &run, WIDTH);
    for (int i = 0; i < COUNT; i++) {
        const int row = i / WIDTH % (FACTOR * ROWS), shard = i / WIDTH / (FACTOR * ROWS);
        const int at = (shard * ROWS + row / FACTOR) * WIDTH + i % WIDTH;
        assert_true(parts[row % FACTOR][at] == x[i]);
        assert_int_equal(y_parts[row % FACTOR][at], y[i]);
    }
    bs_merge(back, (const double *const *)split, &run, WIDTH);
    bs_merge_i32(y_back, (const int32_t *const *)y_split, &run, WIDTH);
    assert_memory_equal(back, x, sizeof x);
    assert_memory_equal(y_back, y, sizeof y);
}

typedef void (*change)(assay_stack_config *c);
static void factor_0(assay_stack_config *c)
{
    c->batch_split_factor = -1;
}
static void factor_17(assay_stack_config *c)
{
    c->batch_split_factor = 17;
}
static void factor_3(assay_stack_config *c)
{
    c->batch_split_factor = 3;
}
static void data_3(assay_stack_config *c)
{
    c->sharding.mesh.size[ASSAY_AXIS_DATA] = 3;
}
static void three_layers(assay_stack_config *c)
{
    c->dense_layers = 1;
}
static void experts_3(assay_stack_config *c)
{
    c->moe.routing.num_experts = 5;
}
static void dim_7(assay_stack_config *c)
{
    c->mla.emb_dim = 7;
}
static void q_lora_5(assay_stack_config *c)
{
    c->mla.q_lora_rank = 5;
}
static void kv_lora_5(assay_stack_config *c)
{
    c->mla.kv_lora_rank = 5;
}
static void no_compression(assay_stack_config *c)
{
    c->mla.q_lora_rank = 0;
}
static void not_pairwise(assay_stack_config *c)
{
    c->mla.rope.pairwise = false;
}
static void scaled(assay_stack_config *c)
{
    c->mla.rope.attention_scaling = true;
}
static void softmax(assay_stack_config *c)
{
    c->moe.routing.score_func = ASSAY_SCORE_SOFTMAX;
}
static void group_max(assay_stack_config *c)
{
    c->moe.routing.n_routing_groups = 2, c->moe.routing.group_score = ASSAY_GROUP_MAX;
}
static void loss(assay_stack_config *c)
{
    c->moe.routing.load_balance_loss_weight = 1;
}
static void updates(assay_stack_config *c)
{
    c->moe.routing.routed_bias_update_rate = 1;
}
static void dense_path(assay_stack_config *c)
{
    c->moe.path = ASSAY_MOE_DENSE;
}
static void fused(assay_stack_config *c)
{
    c->moe.fused_weights = true;
}
static void clamped(assay_stack_config *c)
{
    c->moe.glu = ASSAY_GLU_CLAMPED;
}
static void gelu(assay_stack_config *c)
{
    c->moe.activation = ASSAY_GELU;
}
static void not_shared(assay_stack_config *c)
{
    c->moe.shared_mlp_dim = 0;
}
static void ring(assay_stack_config *c)
{
    c->sharding.ring_of_experts = true;
}
static void buffer(assay_stack_config *c)
{
    c->sharding.ragged_buffer_factor = 1;
}
static void chunks(assay_stack_config *c)
{
    c->sharding.emb_chunks = 2;
}
static void tensor(assay_stack_config *c)
{
    c->sharding.tensor_shards = 2;
}

static void what_it_lacks_is_refused(void **state)
{
    static const struct {
        change apply;
        const char *message;
    } table[] = {
        {factor_0, "batch_split_factor is -1, expected 1 to 16"},
        {factor_17, "batch_split_factor is 17"},
        {factor_3, "batch is 8, expected a multiple of 4 shards (mesh) times 3 (batch_split_factor)"},
        {data_3, "batch is 8, expected a multiple of 12 shards (mesh) times 2"},
        {three_layers, "needs 4 MoE layers or more, found 3"},
        {experts_3, "num_experts is 5, expected a multiple of mesh.expert = 2"},
        {dim_7, "base_emb_dim is 7, expected a multiple of mesh.fsdp = 2"},
        {q_lora_5, "q_lora_rank is 5, expected a multiple of mesh.fsdp = 2"},
        {kv_lora_5, "kv_lora_rank is 5, expected a multiple of mesh.fsdp = 2"},
        {no_compression, "q_lora_rank above 0"},
        {not_pairwise, "rope_pairwise=true"},
        {scaled, "rope_attention_scaling=false"},
        {softmax, "routed_score_func=sigmoid"},
        {group_max, "group_score=top2_sum"},
        {loss, "load_balance_loss_weight=0"},
        {updates, "routed_bias_update_rate=0"},
        {dense_path, "sparse_matmul=true"},
        {fused, "experts that are not fused"},
        {clamped, "mlp_activations=[silu, linear], not clamped"},
        {gelu, "mlp_activations=[silu, linear], not clamped"},
        {not_shared, "shared_experts above 0"},
        {ring, "use_ring_of_experts=false"},
        {buffer, "no ragged_buffer_factor"},
        {chunks, "no chunks"},
        {tensor, "mesh.tensor=1"},
    };
    (void)state;
    layer_case plain = plain_case(4, 0, 8, 2);
    const layer_case good = split_case(&plain, (assay_mesh){{1, 2, 2}}, 2);
    assay_context ctx = assay_context_default(1);
    assert_ok(&ctx, assay_batch_split_check(&ctx, &good.config));
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_stack_config config = good.config;
        table[i].apply(&config);
        assert_int_equal(assay_batch_split_check(&ctx, &config), ASSAY_BAD_INPUT);
        if (strstr(ctx.message, table[i].message) == NULL) fail_msg("%s, not %s", ctx.message, table[i].message);
    }
    layer_case_free(&plain);
}

static void out_of_memory_leaves_nothing_behind(void **state)
{
    layer_case plain = plain_case(4, 0, 2, 1);
    layer_case split = split_case(&plain, (assay_mesh){{1, 1, 1}}, 2);
    const assay_source in = memory_store_source(&split.in);
    int64_t n = 0;
    (void)state;
    for (;; n += 1 + n / 16) { /* every one at first, then fewer */
        assay_context ctx = assay_context_default(1);
        memory_store found = {0};
        const assay_sink out = memory_store_sink(&found);
        assay_fail_allocation(n);
        const assay_status status = assay_stack_run(&ctx, &split.config, &in, &out);
        assay_fail_allocation(-1);
        memory_store_free(&found);
        if (!assay_allocation_failed()) {
            assert_ok(&ctx, status);
            break;
        }
        assert_int_equal(status, ASSAY_NO_MEMORY);
    }
    assert_true(n > 100);
    layer_case_free(&plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_schedule_is_the_stack),
        cmocka_unit_test(one_layer_goes_without_the_scan),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(checkpoints_are_merged),
        cmocka_unit_test(the_report_is_the_model),
        cmocka_unit_test(forward_alone),
        cmocka_unit_test(rows_alternate),
        cmocka_unit_test(what_it_lacks_is_refused),
        cmocka_unit_test(out_of_memory_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
