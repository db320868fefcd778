/* Weights between the source, the mesh and the sink: who has which part, and that gradients go back the same way. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/layer/batch_split_scan.h"
#include "oracle/layer/batch_split_weights.h"
#include "oracle/layer/tests/layer_case.h"
#include "tests/support/assay_test.h"

enum { LAYER = 2, DIMS = 3 };

/* Of layer 2 in the case below, by hand: dims[fsdp] is split over fsdp, and dims[0] over expert where `experts`. */
static const struct {
    const char *name;
    int64_t dims[DIMS];
    int fsdp; /* -1: the same on every shard */
    bool experts;
} weights[BS_WEIGHTS] = {
    [BS_PRE_NORM] = {"pre_self_attention_layer_norm/scale", {8, 1, 1}, -1, false},
    [BS_MLA + ASSAY_MLA_WQ_A] = {"self_attention/wq_a/kernel", {8, 6, 1}, 0, false},
    [BS_MLA + ASSAY_MLA_WQ_B] = {"self_attention/wq_b/kernel", {6, 3, 4 + 2}, 0, false},
    [BS_MLA + ASSAY_MLA_Q_NORM] = {"self_attention/q_norm/scale", {6, 1, 1}, -1, false},
    [BS_MLA + ASSAY_MLA_WKV_A] = {"self_attention/wkv_a/kernel", {8, 4 + 2, 1}, 0, false},
    [BS_MLA + ASSAY_MLA_WKV_B] = {"self_attention/wkv_b/kernel", {4, 3, 4 + 5}, 0, false},
    [BS_MLA + ASSAY_MLA_KV_NORM] = {"self_attention/kv_norm/scale", {4, 1, 1}, -1, false},
    [BS_MLA + ASSAY_MLA_OUT] = {"self_attention/out/kernel", {3, 5, 8}, 2, false},
    [BS_POST_NORM] = {"post_self_attention_layer_norm/scale", {8, 1, 1}, -1, false},
    [BS_GATE] = {"moe/gate/kernel", {8, 6, 1}, 0, false},
    [BS_GATE_BIAS] = {"moe/gate/bias", {6, 1, 1}, -1, false},
    [BS_ROUTED + ASSAY_MLP_WI_0] = {"moe/wi_0", {6, 8, 7}, 1, true},
    [BS_ROUTED + ASSAY_MLP_WI_1] = {"moe/wi_1", {6, 8, 7}, 1, true},
    [BS_ROUTED + ASSAY_MLP_WO] = {"moe/wo", {6, 7, 8}, 2, true},
    [BS_SHARED + ASSAY_MLP_WI_0] = {"moe/shared_experts/wi_0/kernel", {8, 11, 1}, 0, false},
    [BS_SHARED + ASSAY_MLP_WI_1] = {"moe/shared_experts/wi_1/kernel", {8, 11, 1}, 0, false},
    [BS_SHARED + ASSAY_MLP_WO] = {"moe/shared_experts/wo/kernel", {11, 8, 1}, 1, false},
};

static bool is_there(int w)
{
    return weights[w].name != NULL;
}

typedef struct weights_case {
    layer_case layers;
    test_tensors out;
    assay_source source;
    assay_sink sink;
    stack_run stack;
    bs_run run;
} weights_case;

static void open_case(weights_case *c, assay_mesh mesh)
{
    *c = (weights_case){.layers = layer_case_make(5, 1, assay_mesh_shards(&mesh), 1)};
    assay_stack_config *config = &c->layers.config;
    config->mla.heads = 3;
    config->mla.v_head_dim = 5;
    config->mla.kv_lora_rank = 4;
    config->mla.rope.pairwise = true;
    config->moe.routing.num_experts = 6;
    config->moe.moe_mlp_dim = 7;
    config->moe.shared_mlp_dim = 11;
    config->sharding = (assay_sharding){.mesh = mesh, .tensor_shards = 1, .token_chunks = 1};
    config->batch_split_factor = 1;
    layer_case_fill(&c->layers);
    c->source = test_tensors_source(&c->layers.in);
    c->sink = test_tensors_sink(&c->out);
    c->stack = (stack_run){.config = config, .in = &c->source, .out = &c->sink};
    bs_run_of(&c->run, &c->stack);
}

static void close_case(weights_case *c)
{
    assay_tensor_set_free(&c->out.set);
    layer_case_free(&c->layers);
}

static int64_t whole_count(int w)
{
    return weights[w].dims[0] * weights[w].dims[1] * weights[w].dims[2];
}

static const assay_tensor *tensor_of(const test_tensors *store, const char *folder, int w)
{
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "%s/layers/%d/%s", folder, LAYER, weights[w].name);
    const assay_tensor *found = layer_case_get(store, path);
    assert_int_equal(found->count, whole_count(w));
    return found;
}

/* A shard's part of a weight, and where each of its numbers lies in the whole tensor. */
typedef struct part {
    int64_t first[DIMS], dims[DIMS], count;
} part;

static part part_of(const weights_case *c, int w, int64_t shard, bool gathered)
{
    const assay_mesh *mesh = c->run.mesh;
    part p = {.count = 1};
    for (int i = 0; i < DIMS; i++) {
        int64_t parts = 1, index = 0;
        if (i == weights[w].fsdp && !gathered) {
            parts = mesh->size[ASSAY_AXIS_FSDP];
            index = assay_mesh_index(mesh, shard, ASSAY_AXIS_FSDP);
        }
        if (i == 0 && weights[w].experts) {
            parts = mesh->size[ASSAY_AXIS_EXPERT];
            index = assay_mesh_index(mesh, shard, ASSAY_AXIS_EXPERT);
        }
        p.dims[i] = weights[w].dims[i] / parts;
        p.first[i] = index * p.dims[i];
        p.count *= p.dims[i];
    }
    return p;
}

static int64_t place_of(const part *p, int w, int64_t at)
{
    const int64_t k = at % p->dims[2], j = at / p->dims[2] % p->dims[1], i = at / (p->dims[2] * p->dims[1]);
    return ((p->first[0] + i) * weights[w].dims[1] + p->first[1] + j) * weights[w].dims[2] + p->first[2] + k;
}

static void alloc_nan(assay_context *ctx, const weights_case *c, bs_weights *w, bool gathered)
{
    assert_ok(ctx, bs_weights_alloc(ctx, &c->run, w, gathered, NULL));
    for (int i = 0; i < BS_WEIGHTS; i++)
        assay_fill_nan(w->values[i], c->run.sizes.shards * bs_weight_count(&c->run, i, gathered));
}

static void assert_parts(const weights_case *c, const bs_weights *found, bool gathered)
{
    for (int w = 0; w < BS_WEIGHTS; w++) {
        if (!is_there(w)) continue;
        const double *whole = tensor_of(&c->layers.in, "weights", w)->values;
        for (int64_t shard = 0; shard < c->run.sizes.shards; shard++) {
            const part p = part_of(c, w, shard, gathered);
            const double *values = found->values[w] + shard * p.count;
            assert_int_equal(bs_weight_count(&c->run, w, gathered), p.count);
            for (int64_t i = 0; i < p.count; i++) assert_true(values[i] == whole[place_of(&p, w, i)]);
        }
    }
}

static const assay_mesh meshes[] = {{{1, 1, 1}}, {{3, 1, 1}}, {{1, 2, 1}}, {{1, 1, 3}}, {{2, 2, 2}}, {{1, 2, 3}}};
enum { MESHES = sizeof meshes / sizeof *meshes };

TEST(every_shard_has_its_part)
{
    for (int m = 0; m < MESHES; m++) {
        assay_context ctx = assay_context_default(1);
        weights_case c;
        bs_weights scattered, gathered;
        open_case(&c, meshes[m]);
        alloc_nan(&ctx, &c, &scattered, false);
        alloc_nan(&ctx, &c, &gathered, true);
        assert_ok(&ctx, bs_extract_layer_weights(&ctx, &c.run, &scattered, LAYER));
        assert_parts(&c, &scattered, false);
        bs_gather_weights(&ctx, &c.run, &gathered, &scattered);
        assert_parts(&c, &gathered, true);
        bs_weights_free(&scattered);
        bs_weights_free(&gathered);
        close_case(&c);
    }
}

/* Whole numbers, whose sums are exact; those that are complete already are the same on every shard. */
static void fill_gradients(const weights_case *c, bs_weights *g)
{
    for (int w = 0; w < BS_WEIGHTS; w++) {
        if (!is_there(w)) continue;
        const int64_t count = bs_weight_count(&c->run, w, true);
        for (int64_t shard = 0; shard < c->run.sizes.shards; shard++) {
            const int64_t salt = weights[w].fsdp < 0 ? 0 : shard;
            for (int64_t i = 0; i < count; i++)
                g->values[w][shard * count + i] = (double)((i * 37 + salt * 101 + w * 13) % 251 - 125);
        }
    }
}

static void reduce(assay_context *ctx, weights_case *c, const bs_weights *gathered)
{
    bs_weights scattered;
    alloc_nan(ctx, c, &scattered, false);
    assert_ok(ctx, bs_reduce_scatter_ws_grad(ctx, &c->run, &scattered, gathered));
    assert_ok(ctx, bs_all_reduce_ws_grad_dcn(ctx, &c->run, &scattered));
    assert_ok(ctx, bs_insert_layer_ws_grad(ctx, &c->run, &scattered, LAYER));
    bs_weights_free(&scattered);
}

TEST(gradients_are_sums_over_shards)
{
    for (int m = 0; m < MESHES; m++) {
        assay_context ctx = assay_context_default(1);
        weights_case c;
        bs_weights gathered;
        open_case(&c, meshes[m]);
        alloc_nan(&ctx, &c, &gathered, true);
        fill_gradients(&c, &gathered);
        reduce(&ctx, &c, &gathered);
        for (int w = 0; w < BS_WEIGHTS; w++) {
            if (!is_there(w)) continue;
            const assay_tensor *found = tensor_of(&c.out, "gradients/weights", w);
            double *sum = calloc((size_t)found->count, sizeof *sum);
            const int64_t shards = weights[w].fsdp < 0 ? 1 : c.run.sizes.shards;
            assert_non_null(sum);
            for (int64_t shard = 0; shard < shards; shard++) {
                const part p = part_of(&c, w, shard, true);
                for (int64_t i = 0; i < p.count; i++)
                    sum[place_of(&p, w, i)] += gathered.values[w][shard * p.count + i];
            }
            assert_same_bits(found->values, sum, found->count);
            free(sum);
        }
        bs_weights_free(&gathered);
        close_case(&c);
    }
}

/* Gradients that nobody wants are not there on the way, nor written. */
TEST(unwanted_gradients_are_left_out)
{
    static const char *const wanted[] = {"gradients/weights/layers/2/moe/wo", "gradients/weights/*/q_norm/scale", NULL};
    assay_context ctx = assay_context_default(1);
    weights_case c;
    bs_weights gathered, like;
    open_case(&c, (assay_mesh){{1, 2, 1}});
    c.out.wanted = wanted;
    alloc_nan(&ctx, &c, &gathered, true);
    fill_gradients(&c, &gathered);
    bs_drop_unwanted(&c.run, &gathered, LAYER);
    assert_ok(&ctx, bs_weights_alloc(&ctx, &c.run, &like, false, &gathered));
    for (int w = 0; w < BS_WEIGHTS; w++) {
        if (!is_there(w)) continue;
        const bool kept = w == BS_ROUTED + ASSAY_MLP_WO || w == BS_MLA + ASSAY_MLA_Q_NORM;
        assert_int_equal(gathered.values[w] != NULL, kept);
        assert_int_equal(like.values[w] != NULL, kept);
    }
    assert_ok(&ctx, bs_reduce_scatter_ws_grad(&ctx, &c.run, &like, &gathered));
    assert_ok(&ctx, bs_all_reduce_ws_grad_dcn(&ctx, &c.run, &like));
    assert_ok(&ctx, bs_insert_layer_ws_grad(&ctx, &c.run, &like, LAYER));
    assert_int_equal(c.out.set.count, 2);
    bs_weights_free(&gathered);
    bs_weights_free(&like);
    close_case(&c);
}

static assay_status there_and_back(assay_context *ctx, const weights_case *c)
{
    assay_status status;
    bs_weights scattered = {0}, gathered = {0};
    TRY(bs_weights_alloc(ctx, &c->run, &scattered, false, NULL));
    TRY(bs_extract_layer_weights(ctx, &c->run, &scattered, LAYER));
    TRY(bs_weights_alloc(ctx, &c->run, &gathered, true, NULL));
    bs_gather_weights(ctx, &c->run, &gathered, &scattered);
    TRY(bs_reduce_scatter_ws_grad(ctx, &c->run, &scattered, &gathered));
    TRY(bs_all_reduce_ws_grad_dcn(ctx, &c->run, &scattered));
    TRY(bs_insert_layer_ws_grad(ctx, &c->run, &scattered, LAYER));
cleanup:
    bs_weights_free(&scattered);
    bs_weights_free(&gathered);
    return status;
}

TEST(no_memory)
{
    assay_context ctx = assay_context_default(1);
    weights_case c;
    int64_t n = 0;
    open_case(&c, (assay_mesh){{2, 2, 1}});
    for (;; n++) {
        assay_fail_allocation(n);
        const assay_status status = there_and_back(&ctx, &c);
        assay_fail_allocation(-1);
        assay_tensor_set_free(&c.out.set);
        if (!assay_allocation_failed()) {
            assert_ok(&ctx, status);
            break;
        }
        assert_int_equal(status, ASSAY_NO_MEMORY);
    }
    int64_t there = 0;
    for (int w = 0; w < BS_WEIGHTS; w++) there += is_there(w);
    assert_true(n > 5 * there);
    close_case(&c);
}

/* A gate without bias has one of 0, whose gradient nobody gets. */
TEST(the_gates_bias_may_be_off)
{
    assay_context ctx = assay_context_default(1);
    weights_case c;
    bs_weights scattered;
    open_case(&c, (assay_mesh){{1, 2, 1}});
    test_tensors_remove(&c.layers.in, "weights/layers/2/moe/gate/bias");
    alloc_nan(&ctx, &c, &scattered, false);
    assert_ok(&ctx, bs_extract_layer_weights(&ctx, &c.run, &scattered, LAYER));
    for (int i = 0; i < 2 * 6; i++) assert_true(scattered.values[BS_GATE_BIAS][i] == 0);
    bs_drop_unwanted(&c.run, &scattered, LAYER);
    for (int w = 0; w < BS_WEIGHTS; w++)
        assert_int_equal(scattered.values[w] == NULL, w == BS_GATE_BIAS || !is_there(w));
    bs_weights_free(&scattered);
    close_case(&c);
}

TEST(missing_and_foreign_weights_are_refused)
{
    static const char *const foreign[] = {"wi_0_bias", "wi_1_bias", "wo_bias", "per_expert_scale"};
    assay_context ctx = assay_context_default(1);
    weights_case c;
    bs_weights scattered;
    open_case(&c, (assay_mesh){{1, 2, 1}});
    alloc_nan(&ctx, &c, &scattered, false);
    for (int i = 0; i < 4; i++) {
        char path[ASSAY_PATH_SIZE];
        snprintf(path, sizeof path, "weights/layers/2/moe/%s", foreign[i]);
        assert_non_null(test_tensors_add(&c.layers.in, path, 6 * 8));
        assert_int_equal(bs_extract_layer_weights(&ctx, &c.run, &scattered, LAYER), ASSAY_BAD_INPUT);
        assert_non_null(strstr(ctx.message, path));
        test_tensors_remove(&c.layers.in, path);
    }
    assert_ok(&ctx, bs_extract_layer_weights(&ctx, &c.run, &scattered, LAYER));
    test_tensors_remove(&c.layers.in, "weights/layers/2/moe/wo");
    assert_int_not_equal(bs_extract_layer_weights(&ctx, &c.run, &scattered, LAYER), ASSAY_OK);
    bs_weights_free(&scattered);
    close_case(&c);
}
