/* Random configurations: sizes from 1, variants, meshes, seeds. Every equivalence holds on all of them. */
#include <stdio.h>
#include <stdlib.h>

#include "harness/equivalences/equivalence.h"
#include "harness/tests/harness_test.h"

TEST_LABELS(slow);

typedef struct drawing {
    assay_context ctx;
    assay_case *c;
    uint64_t state;
} drawing;

/* From 0 to below `count`. */
static int64_t pick(drawing *d, int64_t count)
{
    return (int64_t)(test_bits(&d->state) % (uint64_t)count);
}

static bool chance(drawing *d, int64_t in)
{
    return pick(d, in) == 0;
}

static void set(drawing *d, const char *assignment)
{
    assert_ok(&d->ctx, assay_case_set(&d->ctx, d->c, assignment));
}

static void set_number(drawing *d, const char *key, int64_t value)
{
    char text[128];
    snprintf(text, sizeof text, "%s=%d", key, (int)value);
    set(d, text);
}

static void draw_sizes(drawing *d)
{
    static const char *const activations[] = {"mlp_activations=silu", "mlp_activations=gelu",
                                              "mlp_activations=sigmoid"};
    const int64_t experts = 1 + pick(d, 9);
    set_number(d, "seed", pick(d, 1000));
    set_number(d, "batch", 1 + pick(d, 3));
    set_number(d, "sequence", 1 + pick(d, 9));
    set_number(d, "base_emb_dim", 1 + pick(d, 19));
    set_number(d, "base_mlp_dim", 1 + pick(d, 11));
    set_number(d, "base_moe_mlp_dim", 1 + pick(d, 11));
    set_number(d, "num_experts", experts);
    set_number(d, "num_experts_per_tok", 1 + pick(d, experts));
    set_number(d, "shared_experts", pick(d, 3));
    set_number(d, "q_lora_rank", pick(d, 7));
    set_number(d, "kv_lora_rank", 1 + pick(d, 7));
    set_number(d, "qk_nope_head_dim", 1 + pick(d, 5));
    set_number(d, "qk_rope_head_dim", 2 + 2 * pick(d, 3));
    set_number(d, "v_head_dim", 1 + pick(d, 5));
    set_number(d, "base_num_query_heads", 1 + pick(d, 3));
    set_number(d, "first_num_dense_layers", pick(d, 3));
    set(d, activations[pick(d, 3)]);
}

static void draw_variants(drawing *d)
{
    if (chance(d, 2)) set(d, "mlp_bias=true");
    if (chance(d, 2)) set(d, "rope_interleave=false");
    if (chance(d, 3)) set(d, "routed_bias=true");
    if (chance(d, 3)) set(d, "checkpoints=all");
    if (chance(d, 4)) set(d, "prefuse_moe_weights=true");
    if (chance(d, 4)) set(d, "model_name=mixtral");
}

/* Sizes that the mesh divides; a batch of 1 is whole on every shard. */
static void draw_mesh(drawing *d)
{
    const int64_t experts = 1 + pick(d, 4);
    const bool whole = chance(d, 5), ring = !whole && chance(d, 2);
    const int64_t data = whole ? 1 : 1 + pick(d, 2), fsdp = whole ? 1 : 1 + pick(d, 2);
    const int64_t emb = ring && chance(d, 2) ? 2 : 0, tokens = ring && chance(d, 3) ? 2 : 1;
    const int64_t tensor = chance(d, 4) ? 2 : 1, all = experts * (1 + pick(d, 3));
    set_number(d, "mesh.expert", experts);
    set_number(d, "mesh.data", data);
    set_number(d, "mesh.fsdp", fsdp);
    set_number(d, "mesh.tensor", tensor);
    set_number(d, "batch", whole ? 1 : experts * data * fsdp * (1 + pick(d, 2)));
    set_number(d, "sequence", tokens * (1 + pick(d, 4)));
    set_number(d, "num_experts", all);
    set_number(d, "num_experts_per_tok", 1 + pick(d, all));
    if (emb > 0 || tensor > 1) set_number(d, "base_emb_dim", 4 * (1 + pick(d, 4)));
    if (ring) set(d, "use_ring_of_experts=true");
    set_number(d, "num_moe_emb_chunks", emb);
    set_number(d, "num_moe_token_chunks", tokens);
    if (experts > 1 && !ring && chance(d, 8)) set(d, "ragged_buffer_factor=1");
    if (chance(d, 4)) set(d, "routed_bias_update_rate=0.01");
    if (chance(d, 8)) set(d, "load_balance_loss_weight=0.1");
    if (!chance(d, 3)) return;
    set_number(d, "mesh.mlp_tensor", 2);
    set_number(d, "base_emb_dim", 4 * (1 + pick(d, 4)));
    set_number(d, "base_moe_mlp_dim", 2 * (1 + pick(d, 4)));
}

static void draw_heads(drawing *d)
{
    const int64_t shared = 1 + pick(d, 3);
    set_number(d, "seed", pick(d, 1000));
    set_number(d, "batch", 1 + pick(d, 3));
    set_number(d, "sequence", 1 + pick(d, 9));
    set_number(d, "base_emb_dim", 1 + pick(d, 19));
    set_number(d, "base_num_kv_heads", shared);
    set_number(d, "base_num_query_heads", shared * (1 + pick(d, 4)));
    set_number(d, "head_dim", 2 + 2 * pick(d, 4));
    if (chance(d, 2)) set(d, "attention_sink=true");
    if (chance(d, 2)) set(d, "attention_bias=true");
    if (chance(d, 2)) set(d, "use_qk_norm=true");
    if (chance(d, 4)) set(d, "fused_qkv=true");
    if (chance(d, 3)) set_number(d, "sliding_window_size", 1 + pick(d, 9));
    if (chance(d, 3)) set(d, "rope_type=yarn");
}

static void draw_quantised(drawing *d)
{
    static const char *const formats[] = {"nvfp4_16x16", "fp8_e4m3_1x128", "fp8_e4m3_128x1", "fp8_e5m2_128x128"};
    char setting[64];
    const int64_t format = pick(d, 4);
    snprintf(setting, sizeof setting, "quant_format=%s", formats[format]);
    set(d, setting);
    if (format == 0) set(d, "quant_scale=invert");
    set_number(d, "seed", pick(d, 1000));
    set_number(d, "sequence", 1 + pick(d, 150));
    set_number(d, "base_emb_dim", 2 + 2 * pick(d, 90));
}

/* Operands of a grouped product that are codes with scales. */
static void draw_operands(drawing *d)
{
    static const char *const formats[] = {"mxfp4", "mxfp8_e4m3", "nvfp4", "fp8_e4m3_1x128"};
    char setting[64];
    snprintf(setting, sizeof setting, "quant_formats.weights/rhs=%s", formats[pick(d, 4)]);
    set(d, setting);
    snprintf(setting, sizeof setting, "quant_formats.inputs/lhs=%s", formats[pick(d, 4)]);
    if (chance(d, 2)) set(d, setting);
}

/* fused_moe_func on its meshes, with every layout of its weights. */
static void draw_fused(drawing *d)
{
    const int64_t data = 1 + pick(d, 2), hidden = 1 + pick(d, 3), experts = hidden > 1 ? 1 : 1 + pick(d, 4);
    const int64_t all = experts * (1 + pick(d, 3)), layouts[] = {1, hidden, 2 * hidden};
    set(d, "fused_moe_func=true");
    set(d, "prefuse_moe_weights=true");
    set_number(d, "mesh.data", data);
    set_number(d, "mesh.expert", experts);
    set_number(d, "mesh.mlp_tensor", hidden);
    set_number(d, "batch", data * (1 + pick(d, 2)));
    set_number(d, "sequence", 16);
    set_number(d, "num_experts", all);
    set_number(d, "num_experts_per_tok", 1 + pick(d, all));
    set_number(d, "base_moe_mlp_dim", 2 * hidden * (1 + pick(d, 3)));
    set_number(d, "w13_reorder_size", layouts[pick(d, 3)]);
}

/* What serving engines have, on one device. */
static void draw_engine(drawing *d)
{
    static const char *const sides[] = {"apply_routed_scaling_factor_on_output=false",
                                        "apply_router_weight_on_input=true"};
    const bool slot = chance(d, 2);
    set(d, "mlp_bias=false");
    set(d, "routed_scaling_factor=2.5");
    if (slot) set(d, "shared_experts=1");
    if (slot) set(d, "num_fused_shared_experts=1");
    if (chance(d, 2)) set(d, sides[pick(d, slot ? 2 : 1)]);
}

/* Of a case with a map of its own, or of a grouped product. */
static void draw_dims(drawing *d)
{
    set_number(d, "seed", pick(d, 1000));
    set_number(d, "batch", 1 + pick(d, 3));
    set_number(d, "sequence", 1 + pick(d, 9));
    set_number(d, "base_emb_dim", 1 + pick(d, 19));
    set_number(d, "base_moe_mlp_dim", 1 + pick(d, 13));
    set_number(d, "num_experts_per_tok", 1 + pick(d, 6));
}

/* What the fused path of inference computes as well. */
static void draw_inference(drawing *d)
{
    set_number(d, "batch", 1 + pick(d, 2));
    set_number(d, "sequence", 16);
    if (chance(d, 2)) set(d, "model_name=mixtral");
    if (chance(d, 2)) set(d, "prefuse_moe_weights=true");
}

/* Kernels that lie on the shards of a mesh. */
static void draw_kernels(drawing *d)
{
    const int64_t fsdp = 1 + pick(d, 2), experts = 2;
    set(d, "weights_on_shards=true");
    set_number(d, "mesh.fsdp", fsdp);
    set_number(d, "mesh.expert", experts);
    set_number(d, "batch", 2 * fsdp * experts);
    set_number(d, "num_experts", 2 * fsdp * experts);
    set_number(d, "num_experts_per_tok", 1 + pick(d, 4));
    set_number(d, "base_emb_dim", 4 * (1 + pick(d, 4)));
    set_number(d, "base_moe_mlp_dim", 4 * (1 + pick(d, 3)));
    if (chance(d, 2)) set(d, "shard_exp_on_fsdp=true");
}

/* Functions of the schedule whose shards do not talk. */
static void draw_function(drawing *d)
{
    static const char *const functions[] = {"mla_with_norms", "query_projection", "kv_projection", "rms_norm",
                                            "yarn",           "shared_expert"};
    char key[64];
    snprintf(key, sizeof key, "function=%s", functions[pick(d, 6)]);
    set(d, key);
    set_number(d, "seed", pick(d, 1000));
    set_number(d, "batch", 2 * (1 + pick(d, 3)));
    set_number(d, "sequence", 1 + pick(d, 5));
    set_number(d, "mesh.data", 1 + pick(d, 2));
}

/* What the schedule has (oracle/layer/batch_split.h). */
static void draw_schedule(drawing *d)
{
    const int64_t experts = 1 + pick(d, 2), data = 1 + pick(d, 2), fsdp = 1 + pick(d, 2), factor = 1 + pick(d, 2);
    const int64_t dense = pick(d, 2), all = experts * (2 + pick(d, 3));
    set(d, "mlp_activations=silu");
    set_number(d, "seed", pick(d, 1000));
    set_number(d, "mesh.expert", experts);
    set_number(d, "mesh.data", data);
    set_number(d, "mesh.fsdp", fsdp);
    set_number(d, "batch", experts * data * fsdp * factor);
    set_number(d, "sequence", 1 + pick(d, 4));
    set_number(d, "base_emb_dim", 4 * (1 + pick(d, 4)));
    set_number(d, "base_moe_mlp_dim", 2 * (1 + pick(d, 4)));
    set_number(d, "q_lora_rank", 2 * (1 + pick(d, 3)));
    set_number(d, "kv_lora_rank", 2 * (1 + pick(d, 3)));
    set_number(d, "base_num_query_heads", 2);
    set_number(d, "num_experts", all);
    set_number(d, "num_experts_per_tok", 2 + pick(d, all - 1));
    set_number(d, "shared_experts", 1 + pick(d, 2));
    set_number(d, "first_num_dense_layers", dense);
    set_number(d, "base_num_decoder_layers", dense + 4 + pick(d, 2));
    /* or the form that the check makes of a plain stack */
    if (chance(d, 4)) return;
    set(d, "use_batch_split_schedule=true");
    set_number(d, "batch_split_factor", factor);
}

#define HEAD "seed: 5, dtype: float32, profiles: none"
#define MODEL                                                                                                          \
    "model_name: deepseek3-x, decoder_block: deepseek, base_emb_dim: 12, base_mlp_dim: 9, base_moe_mlp_dim: 7, "       \
    "num_experts: 6, num_experts_per_tok: 2, routed_score_func: sigmoid, shared_experts: 1"
#define MLA                                                                                                            \
    "base_num_query_heads: 2, q_lora_rank: 6, kv_lora_rank: 6, qk_nope_head_dim: 4, qk_rope_head_dim: 2, "             \
    "v_head_dim: 4, rope_type: yarn"

static const struct {
    const char *yaml;
    int share;                   /* of all draws */
    void (*draws[3])(drawing *); /* one after the other, until NULL */
} kinds[] = {
    {"{case: moe, op: moe, " HEAD ", model: {" MODEL "}}", 6, {draw_sizes, draw_variants}},
    {"{case: moe-mesh, op: moe, " HEAD ", model: {" MODEL "}}", 8, {draw_sizes, draw_variants, draw_mesh}},
    {"{case: mla, op: mla, " HEAD ", positions: {start: 9000}, model: {base_emb_dim: 12, " MLA "}}",
     4,
     {draw_sizes, draw_variants}},
    {"{case: stack, op: deepseek_stack, " HEAD ", model: {" MODEL ", " MLA ", base_num_decoder_layers: 2}}",
     3,
     {draw_sizes, draw_variants}},
    {"{case: stack-mesh, op: deepseek_stack, " HEAD ", model: {" MODEL ", " MLA ", base_num_decoder_layers: 2}}",
     2,
     {draw_sizes, draw_variants, draw_mesh}},
    {"{case: schedule, op: deepseek_stack, " HEAD ", model: {" MODEL ", " MLA
     ", base_num_decoder_layers: 5, rope_pairwise: true, routed_bias: true}}",
     2,
     {draw_schedule}},
    {"{case: attention, op: attention, " HEAD ", model: {base_num_query_heads: 2}}", 2, {draw_heads}},
    {"{case: gqa, op: gqa, " HEAD ", model: {base_num_query_heads: 2}}", 3, {draw_heads}},
    {"{case: moe-fused, op: moe, " HEAD ", model: {" MODEL "}}", 3, {draw_sizes, draw_variants, draw_fused}},
    {"{case: inference, op: moe, " HEAD ", model: {" MODEL "}}", 3, {draw_sizes, draw_inference}},
    {"{case: kernels, op: moe, " HEAD ", model: {" MODEL "}}", 3, {draw_sizes, draw_variants, draw_kernels}},
    {"{case: function, op: batch_split, " HEAD ", model: {" MODEL ", " MLA
     ", rope_pairwise: true, routed_bias: true, base_num_decoder_layers: 1}, config: {function: mla}}",
     2,
     {draw_function}},
    {"{case: slots, op: moe, " HEAD ", model: {" MODEL "}}", 6, {draw_sizes, draw_variants, draw_engine}},
    {"{case: replicas, op: moe, " HEAD ", model: {" MODEL "}, config: {num_redundant_experts: 4}, inputs: "
     "{physical_to_logical_map: {values: [3, 0, 1, 2, 3, 4, 5, 0, 3, 2]}}}",
     3,
     {draw_dims}},
    {"{case: gmm, op: gmm, " HEAD ", model: {num_experts: 6}}", 2, {draw_dims}},
    {"{case: operands, op: gmm, " HEAD ", model: {num_experts: 6}}", 2, {draw_dims, draw_operands}},
    {"{case: quantize, op: quantize, " HEAD
     ", model: {quant_format: nvfp4_16x16, quant_scale: invert, base_emb_dim: 2}}",
     2,
     {draw_quantised}},
};
enum { KINDS = sizeof kinds / sizeof *kinds, DRAWS = sizeof kinds->draws / sizeof *kinds->draws };
enum { SHARES = 56, EQUIVALENCES = 32 };

static void draw(drawing *d, int kind)
{
    for (int i = 0; i < DRAWS && kinds[kind].draws[i] != NULL; i++) kinds[kind].draws[i](d);
}

static void check(drawing *d, int times[EQUIVALENCES])
{
    assay_form one = {0};
    assert_ok(&d->ctx, assay_form_evaluate(&d->ctx, d->c, assay_profile_by_name("f64"), &one));
    for (int e = 0; assay_equivalences[e].name != NULL; e++) {
        assay_equivalence_result result;
        assert_ok(&d->ctx, assay_equivalence_check(&d->ctx, &one, &assay_equivalences[e], &result));
        times[e] += result.applies;
        if (!result.applies || result.holds) continue;
        char *yaml = NULL;
        assert_ok(&d->ctx, assay_case_to_yaml(&d->ctx, d->c, &yaml));
        print_error("%s", yaml);
        fail_msg("%s: %g at %s[%d]: %.17g and %.17g", assay_equivalences[e].name, result.worst, result.path,
                 (int)result.index, result.one, result.other);
    }
    assay_form_free(&one);
}

/* ASSAY_DRAWS asks for more than the usual number. */
TEST(drawn_configurations_agree)
{
    const char *asked = getenv("ASSAY_DRAWS");
    const int draws = asked == NULL ? 336 : atoi(asked);
    int times[EQUIVALENCES] = {0};
    drawing d = {.state = 1};
    for (int i = 0; i < draws; i++) {
        int kind = 0;
        for (int place = i % SHARES; place >= kinds[kind].share; kind++) place -= kinds[kind].share;
        assert_true(kind < KINDS);
        d.ctx = assay_context_default(1);
        d.c = case_from(kinds[kind].yaml);
        draw(&d, kind);
        check(&d, times);
        assay_cases_free(d.c, 1);
    }
    for (int e = 0; assay_equivalences[e].name != NULL; e++) {
        print_message("%-24s %d configurations\n", assay_equivalences[e].name, times[e]);
        if (times[e] * 50 < draws) fail_msg("%s was hardly tried", assay_equivalences[e].name);
    }
}
