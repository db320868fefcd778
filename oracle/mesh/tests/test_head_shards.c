/* Heads over a mesh: refusals; what they give the certified cases hold. */
#include "oracle/mesh/head_shards.h"
#include "tests/support/assay_test.h"

enum { BATCH = 2, HEADS = 6, MESHES = 6 };

/* data, fsdp, expert, mlp_tensor */
static const assay_mesh meshes[MESHES] = {{{1, 1, 2, 1}}, {{1, 1, 1, 3}}, {{1, 1, 2, 3}},
                                          {{2, 1, 3, 1}}, {{1, 2, 3, 2}}, {{2, 1, 1, 1}}};

TEST_WITH_CONTEXT(test_refusals)
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
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_bad_input(&ctx, assay_head_shards_check(&ctx, "mla", &rows[i].mesh, HEADS, rows[i].kv_heads, BATCH),
                         rows[i].words);
    }
    for (int mesh = 0; mesh < MESHES; mesh++)
        assert_ok(&ctx, assay_head_shards_check(&ctx, "mla", &meshes[mesh], HEADS, HEADS, BATCH));
}
