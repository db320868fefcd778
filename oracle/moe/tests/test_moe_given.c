/* A block whose choice is given, with its weights: the router's own given back, slots without an expert, experts that
 * are elsewhere. */
#include <math.h>
#include <string.h>

#include "oracle/moe/tests/moe_case.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

enum { B = 2, S = 4, T = B * S, E = 5, K = 3, D = 6, H = 4 };

static moe_case block(assay_moe_path path)
{
    moe_case c = moe_case_deepseek3(B, S, E, K, D, H);
    c.config.path = path;
    c.config.capacity_factor = 1;
    c.expert_bias = true;
    return c;
}

static void give(moe_case *c, const int32_t *ids, const double *weights, int64_t count)
{
    memcpy(test_tensors_add_i32(&c->in, "inputs/selected_experts", count), ids, (size_t)count * sizeof *ids);
    memcpy(test_tensors_add(&c->in, "inputs/routing_weights", count), weights, (size_t)count * sizeof *weights);
    test_tensors_remove(&c->in, "weights/gate/kernel");
    if (c->gate_bias) test_tensors_remove(&c->in, "weights/gate/bias");
}

static void run(int threads, moe_case *c, test_tensors *out)
{
    assay_context ctx = assay_context_default(threads);
    moe_case_run(&ctx, c, out, NULL, 0);
}

/* What the choice and its weights alone decide. */
static const char *const decided[] = {"outputs/y",
                                      "gradients/weights/wi_0",
                                      "gradients/weights/wi_1",
                                      "gradients/weights/wo",
                                      "gradients/weights/wo_bias",
                                      "checkpoints/moe_mlpwo"};

static void assert_same(const test_tensors *a, const test_tensors *b, const char *path)
{
    const assay_tensor *one = moe_case_get(a, path), *other = moe_case_get(b, path);
    assert_int_equal(one->count, other->count);
    if (memcmp(one->values, other->values, (size_t)one->count * sizeof(double)) != 0) fail_msg("%s: other bits", path);
}

/* The router's own choice and weights, given back: the same bits on every path and for any number of threads. */
TEST(test_replay_of_choice_and_weights)
{
    for (int path = ASSAY_MOE_DENSE; path <= ASSAY_MOE_SPARSE; path++) {
        moe_case c = block((assay_moe_path)path);
        test_tensors free_out = {0}, first = {0};
        moe_case_fill(&c, false);
        run(1, &c, &free_out);
        give(&c, moe_case_get(&free_out, "routing/selected_experts")->indices,
             moe_case_get(&free_out, "routing/weights")->values, T * K);
        run(1, &c, &first);
        for (size_t i = 0; i < sizeof decided / sizeof *decided; i++) assert_same(&first, &free_out, decided[i]);
        const assay_tensor *d_weights = moe_case_get(&first, "gradients/inputs/routing_weights");
        assert_int_equal(d_weights->count, T * K);
        for (int t = 0; t < T; t++) assert_true(moe_case_get(&first, "routing/margin")->values[t] == INFINITY);
        assert_null(assay_tensor_set_find(&first.set, "gradients/weights/gate/kernel"));
        for (int threads = 2; threads <= 7; threads += 5) {
            test_tensors again = {0};
            run(threads, &c, &again);
            moe_case_assert_same(&again, &first);
            assay_tensor_set_free(&again.set);
        }
        assay_tensor_set_free(&first.set);
        assay_tensor_set_free(&free_out.set);
        moe_case_free(&c);
    }
}

/* Slots of no expert, with weights of NaN: the bits of a block with so many choices fewer. */
TEST(test_slots_of_none)
{
    static const assay_moe_path paths[] = {ASSAY_MOE_SPARSE, ASSAY_MOE_DENSE};
    for (int p = 0; p < 2; p++) {
        moe_case with = block(paths[p]), fewer = block(paths[p]);
        int32_t ids[T * K], fewer_ids[T * (K - 1)];
        double weights[T * K], fewer_weights[T * (K - 1)];
        test_tensors of_with = {0}, of_fewer = {0};
        for (int t = 0, next = 0; t < T; t++) {
            for (int k = 0; k < K; k++) {
                const bool none = k == (t + 1) % K;
                ids[t * K + k] = none ? -1 : (2 * t + k) % E;
                weights[t * K + k] = none ? NAN : 0.25 + 0.125 * (t + k);
                if (none) continue;
                fewer_ids[next] = ids[t * K + k];
                fewer_weights[next++] = weights[t * K + k];
            }
        }
        moe_case_fill(&with, false);
        moe_case_fill(&fewer, false);
        fewer.config.routing.num_experts_per_tok = K - 1;
        give(&with, ids, weights, T * K);
        give(&fewer, fewer_ids, fewer_weights, T * (K - 1));
        run(2, &with, &of_with);
        run(1, &fewer, &of_fewer);
        for (size_t i = 0; i + 1 < sizeof decided / sizeof *decided; i++) assert_same(&of_with, &of_fewer, decided[i]);
        assert_same(&of_with, &of_fewer, "gradients/inputs/x");
        const double *d = moe_case_get(&of_with, "gradients/inputs/routing_weights")->values;
        for (int i = 0; i < T * K; i++) assert_true(isfinite(d[i]) && (ids[i] >= 0 || d[i] == 0));
        assay_tensor_set_free(&of_with.set);
        assay_tensor_set_free(&of_fewer.set);
        moe_case_free(&with);
        moe_case_free(&fewer);
    }
}

/* A rank with all the experts is the whole; a map that names them in another order finds them there. */
TEST(test_all_experts_are_local)
{
    moe_case c = block(ASSAY_MOE_SPARSE);
    test_tensors whole = {0}, local = {0};
    moe_case_fill(&c, false);
    run(1, &c, &whole);
    c.config.local_num_experts = E;
    for (int32_t e = 0, *map = test_tensors_add_i32(&c.in, "inputs/expert_map", E); e < E; e++) map[e] = e;
    run(3, &c, &local);
    moe_case_assert_same(&local, &whole);
    assay_tensor_set_free(&whole.set);
    assay_tensor_set_free(&local.set);
    moe_case_free(&c);
}

TEST(test_no_memory_is_reported)
{
    moe_case c = block(ASSAY_MOE_SPARSE);
    assay_context ctx = assay_context_default(1);
    const int32_t map[E] = {1, -1, 0, -1, -1};
    int32_t ids[T * K];
    double weights[T * K];
    int64_t n = 0;
    for (int i = 0; i < T * K; i++) ids[i] = i % K == 0 ? -1 : i % E;
    for (int i = 0; i < T * K; i++) weights[i] = 0.5;
    moe_case_fill(&c, false);
    give(&c, ids, weights, T * K);
    c.config.local_num_experts = 2;
    memcpy(test_tensors_add_i32(&c.in, "inputs/expert_map", E), map, sizeof map);
    assay_source source = test_tensors_source(&c.in);
    for (;; n++) {
        test_tensors out = {0};
        assay_sink sink = test_tensors_sink(&out);
        assay_fail_allocation(n);
        const assay_status status = assay_moe_run(&ctx, &c.config, &source, &sink, NULL);
        assay_tensor_set_free(&out.set);
        if (had_memory(&ctx, status)) break;
    }
    assert_true(n > 30);
    moe_case_free(&c);
}
