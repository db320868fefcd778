/* Heads over a mesh: bits, memory and refusals; what they give the certified cases hold. */
#include "oracle/mesh/head_shards.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/blocks/gqa.h"
#include "oracle/blocks/mla.h"
#include "oracle/blocks/tests/block_problem.h"
#include "tests/support/test_tensors.h"

TEST_LABELS(threads);

enum { BATCH = 2, HEADS = 6, MESHES = 6, LAYERS = 4, ONE_LAYER = 0 };

/* data, fsdp, expert, mlp_tensor */
static const assay_mesh meshes[MESHES] = {{{1, 1, 2, 1}}, {{1, 1, 1, 3}}, {{1, 1, 2, 3}},
                                          {{2, 1, 3, 1}}, {{1, 2, 3, 2}}, {{2, 1, 1, 1}}};

static const assay_mla_config whole_mla = {.batch = BATCH,
                                           .sequence = 7,
                                           .emb_dim = 7,
                                           .heads = HEADS,
                                           .qk_nope_head_dim = 5,
                                           .v_head_dim = 3,
                                           .q_lora_rank = 3,
                                           .kv_lora_rank = 5,
                                           .epsilon = 1e-3,
                                           .mscale = 0.7,
                                           .rope = {.dim = 4,
                                                    .yarn = true,
                                                    .rope_max_timescale = 10000,
                                                    .rope_factor = 40,
                                                    .beta_fast = 32,
                                                    .beta_slow = 1,
                                                    .max_position_embeddings = 160,
                                                    .original_max_position_embeddings = 64,
                                                    .interleave = true,
                                                    .truncate = true},
                                           .mask_padding = true};

/* MLA with and without query compression, GQA with projections of their own and with one: all that has heads, and all that has
 * none. */
static void make_graph(graph *g, int layer, int64_t batch, int64_t parts)
{
    assay_mla_config mla = whole_mla;
    const assay_gqa_config gqa = {.batch = batch,
                                  .sequence = 7,
                                  .emb_dim = 5,
                                  .heads = 2 * HEADS / parts,
                                  .kv_heads = HEADS / parts,
                                  .head_dim = 4,
                                  .window = 3,
                                  .query_scale = 0.5,
                                  .fused_qkv = layer == 3,
                                  .bias = true,
                                  .qk_norm = true,
                                  .sinks = true,
                                  .epsilon = 1e-3,
                                  .rope = {4, true, 10000, 32, 32, 1, 160, 64, false, false, true, false},
                                  .mask_padding = true};
    mla.batch = batch;
    mla.heads = HEADS / parts;
    if (layer == 1) mla.q_lora_rank = 0;
    if (layer < 2) assay_mla_graph(g, &mla);
    if (layer >= 2) assay_gqa_graph(g, &gqa);
}

typedef struct sharded {
    graph whole, own;
    block_problem p;
    double *y;
    test_tensors out;
} sharded;

/* Pointers into itself: it must stay where it is. */
static void open_sharded(sharded *s, int layer, const assay_mesh *mesh)
{
    *s = (sharded){0};
    make_graph(&s->whole, layer, BATCH, 1);
    make_graph(&s->own, layer, BATCH / assay_head_batch_shards(mesh), assay_head_shards(mesh));
    block_open(&s->p, &s->whole, true);
    s->y = test_nans(s->p.tokens * s->p.dim);
}

static void close_sharded(sharded *s)
{
    assay_tensor_set_free(&s->out.set);
    free(s->y);
    block_close(&s->p);
}

static assay_status run(assay_context *ctx, sharded *s, const assay_mesh *mesh, bool backward)
{
    const assay_sink out = test_tensors_sink(&s->out);
    double *weights[ASSAY_MOST_ROWS] = {NULL}, *gradients[ASSAY_MOST_ROWS] = {NULL};
    for (int i = 0; i < s->whole.weight_count; i++) {
        weights[i] = s->p.values[s->whole.weights[i]];
        gradients[i] = s->p.gradients[s->whole.weights[i]];
    }
    const assay_head_run all = {.mesh = mesh,
                                .whole = &s->whole,
                                .own = &s->own,
                                .x = block_value(&s->p, "inputs/x"),
                                .positions = s->p.positions,
                                .segment_ids = s->p.segment_ids,
                                .weights = weights,
                                .y = s->y,
                                .dx = block_gradient(&s->p, "inputs/x"),
                                .gradients = gradients,
                                .dy = backward ? s->p.dy : NULL,
                                .out = &out};
    return assay_head_shards_run(ctx, &all);
}

TEST(test_threads_leave_the_bits)
{
    assay_context ctx = assay_context_default(1);
    sharded one;
    open_sharded(&one, ONE_LAYER, &meshes[4]);
    assert_ok(&ctx, run(&ctx, &one, &meshes[4], true));
    for (int threads = 2; threads <= 7; threads += 5) {
        sharded s;
        open_sharded(&s, ONE_LAYER, &meshes[4]);
        ctx = assay_context_default(threads);
        assert_ok(&ctx, run(&ctx, &s, &meshes[4], true));
        assert_same_bits(s.y, one.y, s.p.tokens * s.p.dim);
        for (int t = 1; t < s.whole.tensor_count; t++) {
            if (block_is_given(&s.whole, t))
                assert_same_bits(s.p.gradients[t], one.p.gradients[t], graph_size(&s.whole, t));
        }
        close_sharded(&s);
    }
    close_sharded(&one);
}

TEST(test_want_of_memory)
{
    for (int layer = 0; layer < LAYERS; layer += 2) {
        assay_context ctx = assay_context_default(1);
        int64_t n;
        sharded s;
        open_sharded(&s, layer, &meshes[0]);
        for (n = 0;; n++) {
            assay_fail_allocation(n);
            const assay_status status = run(&ctx, &s, &meshes[0], true);
            assay_tensor_set_free(&s.out.set);
            if (had_memory(&ctx, status)) break;
        }
        assert_true(n > 40);
        close_sharded(&s);
    }
}

TEST(test_refusals)
{
    static const struct {
        assay_mesh mesh;
        int64_t kv_heads;
        const char *words;
    } rows[] = {
        {{{1, 1, 4, 1}},
         HEADS,
         "mla: heads (base_num_query_heads) is 6, expected a multiple of mesh.expert times mesh.mlp_tensor, which is "
         "4"},
        {{{1, 1, 3, 4}}, HEADS, "which is 12"},
        {{{1, 1, 3, 1}}, 2, "heads of keys (base_num_kv_heads) is 2, expected a multiple of mesh.expert"},
        {{{3, 1, 1, 1}}, HEADS, "batch is 2, expected a multiple of mesh.data times mesh.fsdp, which is 3"},
        {{{INT64_MAX, 2, 1, 1}}, HEADS, "mesh: its size does not fit"},
    };
    assay_context ctx = assay_context_default(1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(assay_head_shards_check(&ctx, "mla", &rows[i].mesh, HEADS, rows[i].kv_heads, BATCH),
                         ASSAY_BAD_INPUT);
        if (strstr(ctx.message, rows[i].words) == NULL) fail_msg("%s", ctx.message);
    }
    for (int mesh = 0; mesh < MESHES; mesh++)
        assert_ok(&ctx, assay_head_shards_check(&ctx, "mla", &meshes[mesh], HEADS, HEADS, BATCH));
}
