/* The second form of blocks, layers and the batch-split module against numbers of others: found by hand where sizes are 1 or 2, and made by
 * PyTorch's float64 tensors and its gradients, of formulas written there once more, where said. */

#include "oracle/moe/tests/one_token.h"
#include "oracle/quad/tests/quad_case.h"

static assay_rope_config rope_of(int64_t dim, bool yarn, int64_t original)
{
    return (assay_rope_config){dim, yarn, 10000, 40, 32, 1, 163840, original, yarn, true, false, false, NULL};
}

/* Scales are powers of two, so numbers with few bits stay. */
static assay_quant_recipe_config powers(void)
{
    return (assay_quant_recipe_config){
        .recipe = assay_quant_recipe_by_name("deepseek_v3"), .powers = true, .type = ASSAY_FLOAT32};
}

/* a = (3, 1), b = (2, -1.5), h = (6, 0), y = (6, 12) + bias. By a recipe 17 becomes 16 in e4m3; a = 2, b = 3, h = 6; dh = 24,
 * da = 72, db = 48. */
TEST(gated_mlp)
{
    assay_gated_mlp_config config = {.rows = 1, .emb_dim = 2, .mlp_dim = 2, .activation = {ASSAY_LINEAR, ASSAY_RELU}};
#define AROUND "; weights/wi_0/bias 1 2; weights/wi_1/bias -1 -2; weights/wo/kernel 1 2 3 4; weights/wo/bias .25 .5"
#define FOUND "checkpoints/mlpwi_0 3 1; checkpoints/mlpwi_1 2 -1.5; checkpoints/mlpwo 6.25 12.5; outputs/y 6.25 12.5; "
    assert_by_hand(quad_gated_mlp, &config,
                   "inputs/x 2 -1; weights/wi_0/kernel 1 0 0 1; weights/wi_1/kernel 1 0 -1 -.5" AROUND,
                   FOUND "checkpoints/mlpwi -");
    config.fused = true;
    assert_by_hand(quad_gated_mlp, &config, "inputs/x 2 -1; weights/wi/kernel 1 0 1 0 0 1 -1 -.5" AROUND,
                   FOUND "checkpoints/mlpwi 3 1 2 -1.5");
    const assay_gated_mlp_config quantised = {
        .rows = 1, .emb_dim = 1, .mlp_dim = 1, .activation = {ASSAY_LINEAR, ASSAY_LINEAR}, .recipe = powers()};
    assert_by_hand(
        quad_gated_mlp, &quantised,
        "inputs/x 1; weights/wi_0/kernel 2; weights/wi_1/kernel 3; weights/wo/kernel 1.5; weights/wo/bias 5; "
        "cotangents/y 17",
        "outputs/y 14; checkpoints/mlpwi_0_gradient 72; gradients/weights/wo/kernel 96; "
        "gradients/weights/wo/bias 17; gradients/weights/wi_0/kernel 72; gradients/weights/wi_1/kernel 48; "
        "gradients/inputs/x 288");
}

/* All sizes 1. */
static quad_mla_config narrow_mla(void)
{
    return (quad_mla_config){.mla = {.batch = 1,
                                     .sequence = 1,
                                     .emb_dim = 1,
                                     .heads = 1,
                                     .qk_nope_head_dim = 1,
                                     .v_head_dim = 1,
                                     .kv_lora_rank = 1,
                                     .mscale = 1,
                                     .rope = rope_of(2, true, 163840)}};
}

/* One token at position 0; of the softmax scale a factor (0.1 mscale ln 40 + 1)^2 over the root of 3. */
TEST(mla)
{
    static const struct {
        double mscale;
        int64_t original;
        const char *scaled;
    } rows[] = {{1, 163840,
                 "checkpoints/query_proj 1.1547005383792517 2.3094010767585034 3.4641016151377553; checkpoints/lse "
                 "73.90083445627211"},
                {1, 4096,
                 "checkpoints/query_proj 2.1637404617740814 4.327480923548163 6.491221385322245; checkpoints/lse "
                 "138.4793895535412"},
                {.5, 4096,
                 "checkpoints/query_proj 1.619938073812035 3.23987614762407 4.859814221436105; checkpoints/lse "
                 "103.67603672397024"},
                {0, 4096,
                 "checkpoints/query_proj 1.1547005383792517 2.3094010767585034 3.4641016151377553; checkpoints/lse "
                 "73.90083445627211"}};
    quad_mla_config config = narrow_mla();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        static const char given[] =
            "inputs/x 2; inputs/positions # 0; weights/query/kernel 1 2 3; weights/wkv_a/kernel 3 5 7; "
            "weights/kv_norm/scale 4; weights/wkv_b/kernel .5 10; weights/out/kernel 3";
        config.mla.mscale = rows[i].mscale;
        config.mla.rope = rope_of(2, true, rows[i].original);
        assert_by_hand(quad_mla, &config, given, rows[i].scaled);
        assert_by_hand(
            quad_mla, &config, given,
            "outputs/y 120; checkpoints/kv_wa_proj 6 10 14; checkpoints/mla_kv 4; checkpoints/key_proj 2 10 14; "
            "checkpoints/value_proj 40; checkpoints/attention_out 40; checkpoints/out_proj 120; "
            "checkpoints/mla_q -");
    }
    /* 17 becomes 16, and 27, of kv_wa_proj's gradient, 28; all else stays. With an epsilon of 12 the latent is 2 / 4, and the norm's
     * slope 1 / 4 - 2^2 / 4^3. No gradient comes from the score of one token. */
    config.mla.mscale = 1;
    config.mla.epsilon = 12;
    config.mla.rope.original_max_position_embeddings = 163840;
    config.mla.recipe = powers();
    assert_by_hand(quad_mla, &config,
                   "inputs/x 1; inputs/positions # 0; weights/query/kernel 1 2 3; weights/wkv_a/kernel 2 0 0; "
                   "weights/kv_norm/scale 3; weights/wkv_b/kernel 1 1.5; weights/out/kernel 2; cotangents/y 17",
                   "outputs/y 4.5; checkpoints/mla_kv 1.5; checkpoints/q_gradient 0 0 0; checkpoints/kv_gradient 0 32; "
                   "checkpoints/kv_wa_proj_gradient 27 0 0; checkpoints/query_wa_proj_gradient -; "
                   "gradients/weights/out/kernel 36; gradients/weights/wkv_b/kernel 0 48; "
                   "gradients/weights/kv_norm/scale 24; gradients/weights/wkv_a/kernel 28 0 0; "
                   "gradients/weights/query/kernel 0 0 0; gradients/inputs/x 56");
}

/* Head h has the value 10^h times 2; shards are numbered (expert, mlp_tensor), heads lie by (mlp_tensor, expert). */
TEST(heads_on_a_mesh)
{
    quad_mla_config config = narrow_mla();
    config.mla.heads = 4;
    config.mesh = (assay_mesh){{1, 1, 2, 2}};
    assert_by_hand(quad_mla, &config,
                   "inputs/x 2; inputs/positions # 0; weights/query/kernel 0 0 0 1 0 0 2 0 0 3 0 0; "
                   "weights/wkv_a/kernel 1 0 0; weights/kv_norm/scale 1; weights/wkv_b/kernel 1 1 2 10 3 100 4 1000; "
                   "weights/out/kernel 1 1 1 1",
                   "checkpoints/value_proj 1 100 10 1000; checkpoints/attention_out 1 100 10 1000; "
                   "checkpoints/key_proj 1 0 0 3 0 0 2 0 0 4 0 0; checkpoints/mla_kv 1; checkpoints/out_proj 1111; "
                   "checkpoints/lse 0 6.92820323027551 2.3094010767585034 13.85640646055102");
}

/* By PyTorch: every part with more than one number, three tokens, YaRN within its ramp. */
TEST(mla_by_another_hand)
{
    const quad_mla_config config = {.mla = {.batch = 1,
                                            .sequence = 3,
                                            .emb_dim = 4,
                                            .heads = 2,
                                            .qk_nope_head_dim = 3,
                                            .v_head_dim = 2,
                                            .q_lora_rank = 3,
                                            .kv_lora_rank = 2,
                                            .epsilon = 1e-6,
                                            .mscale = 1,
                                            .rope = rope_of(4, true, 4096)}};
    assert_by_hand(
        quad_mla, &config,
        "inputs/x ~ 12; inputs/positions # 3 4 9; weights/wq_a/kernel ~ 12; weights/q_norm/scale ~ 3; "
        "weights/wq_b/kernel ~ 42; weights/wkv_a/kernel ~ 24; weights/kv_norm/scale ~ 2; weights/wkv_b/kernel ~ 20; "
        "weights/out/kernel ~ 16; cotangents/y ~ 12",
        "outputs/y 0.30224422862102 -0.012433730281603 0.28771884277803 -0.026959116124597 0.35093646105231 "
        "0.011734618424865 0.3387293413536 -0.00047250127383908 0.38082984375785 0.032492671285928 0.3710369256298 "
        "0.022699753157878; checkpoints/lse -0.062444772094412 0.55927199092838 1.0075454156327 0.053248668390735 "
        "0.79532149823813 1.1082099919617; gradients/inputs/x -0.5548424678484 -0.87605609778032 0.62420660126805 "
        "0.31154433905926 -0.021299015752396 -0.018987427797513 0.018547766298185 0.014393844028737 -0.019626003363104 "
        "-0.022404062154433 0.018276103967313 0.014874599245096; gradients/weights/wkv_a/kernel -0.23089304562353 "
        "0.85640393741529 0.006954729569225 -0.0030383632063111 -0.0013751806923662 -0.00019830006910434 "
        "0.05488438119731 -0.16857791216249 -0.0030393829641791 -0.0022750580155497 -0.0013818865702968 "
        "-0.00018085875507871 -0.19006769893484 0.70997795890418 0.0055269992073101 -0.0029293196076309 "
        "-0.0013761386749277 -0.00019580845281496 0.095709727886002 -0.3150038906736 -0.004467113326094 "
        "-0.0021660144168695 -0.0013828445528583 -0.00017836713878933");
}

/* One token at position 0: before their norm query (3, 2) and (6, 2), key (4, 3); the second head's sink is 100. */
TEST(gqa)
{
    static const char *const kernels[] = {
        "weights/query/kernel 1 2 3 1; weights/query/bias 1 -2 0 0; weights/key/kernel 2 0; weights/key/bias 0 3; "
        "weights/value/kernel .5 3; weights/value/bias 1 2",
        "weights/qkv_proj/kernel 1 2 3 1 2 0 .5 3; weights/qkv_proj/bias 1 -2 0 0 0 3 1 2"};
    static const char *const found[] = {
        "checkpoints/query_proj 1.5 1 3 1; checkpoints/key_proj 4 3; checkpoints/lse 9 15; "
        "checkpoints/attention_out 2 8 2.432198598505651e-37 9.728794394022605e-37",
        "checkpoints/query_proj 0.5883484054145521 3.922322702763681 0.6708203932499369 2.23606797749979; "
        "checkpoints/key_proj 2.262741699796952 0.848528137423857; checkpoints/lse 4.659481648291925 "
        "3.4152598729818497; "
        "checkpoints/attention_out 2 8 2.263655443046189e-42 9.054621772184756e-42"};
    for (int i = 0; i < 4; i++) {
        const bool fused = i % 2 == 1, normed = i >= 2;
        const quad_gqa_config config = {.gqa = {.batch = 1,
                                                .sequence = 1,
                                                .emb_dim = 1,
                                                .heads = 2,
                                                .kv_heads = 1,
                                                .head_dim = 2,
                                                .query_scale = .5,
                                                .fused_qkv = fused,
                                                .bias = true,
                                                .qk_norm = normed,
                                                .sinks = true,
                                                .rope = rope_of(2, false, 163840)}};
        char given[1024], expected[1024];
        snprintf(given, sizeof given,
                 "inputs/x 2; inputs/positions # 0; %s; weights/query_norm/scale 1 10; weights/key_norm/scale 2 1; "
                 "weights/sinks -inf 100; weights/out/kernel 1 10 100 1000; weights/out/bias .25",
                 kernels[fused]);
        snprintf(expected, sizeof expected, "%s; checkpoints/value_proj 2 8; outputs/y 82.25; checkpoints/qkv_proj %s",
                 found[normed], fused ? "3 2 6 2 4 3 2 8" : "-");
        assert_by_hand(quad_gqa, &config, given, expected);
    }
}

/* By PyTorch: shared keys, a window, sinks, norms, biases, and two of four numbers of a head turned. */
TEST(gqa_by_another_hand)
{
    const quad_gqa_config config = {.gqa = {.batch = 1,
                                            .sequence = 4,
                                            .emb_dim = 3,
                                            .heads = 4,
                                            .kv_heads = 2,
                                            .head_dim = 4,
                                            .window = 2,
                                            .query_scale = .5,
                                            .bias = true,
                                            .qk_norm = true,
                                            .sinks = true,
                                            .epsilon = 1e-6,
                                            .rope = rope_of(2, false, 163840)}};
    assert_by_hand(
        quad_gqa, &config,
        "inputs/x ~ 12; inputs/positions # 0 1 2 5; weights/query/kernel ~ 48; weights/query/bias ~ 16; "
        "weights/key/kernel ~ 24; weights/key/bias ~ 8; weights/value/kernel ~ 24; weights/value/bias ~ 8; "
        "weights/query_norm/scale ~ 4; weights/key_norm/scale ~ 4; weights/sinks ~ 4; weights/out/kernel ~ 48; "
        "weights/out/bias ~ 3; cotangents/y ~ 12",
        "outputs/y 0.92959869621244 -0.92124479183978 0.84951366527811 0.73040073971697 -0.64425048912582 "
        "0.60464123982464 0.72813170537022 -0.6794637205831 0.56286904215979 0.80426601157546 -0.82073633321342 "
        "0.55533201725255; checkpoints/lse 0.033537141714364 1.0314667038173 0.78989830375293 0.80814692863667 "
        "-0.023009162860778 1.1178497983286 0.95308165015233 0.86168679384977 -0.067552494277644 0.55585554198461 "
        "0.57976377496885 0.61028206140071 0.00039606685586594 0.59828983659849 0.58658953811284 0.65240354460038; "
        "gradients/inputs/x 0.25430651634184 -0.062484991672445 0.11911601120203 0.042778177898283 -0.11650194930227 "
        "0.075262165887249 0.11977360170726 0.037840651858787 0.056200915477371 -0.12410575207028 0.084083742683025 "
        "0.031510272960727; gradients/weights/key/kernel 0.0547270399624 -0.029341360387339 -0.005671418170356 "
        "0.0083216786690169 0.021326961228437 0.012333528309388 0.10617168232136 0.00053135105489687 "
        "-0.066077121440499 0.024321396761203 -0.0010156341577678 -0.013739619425338 -0.045157520984666 "
        "-0.0060693485263871 -0.054832350293925 -0.0030129346219025 0.068036280169213 -0.042435267410768 "
        "-0.00082288955937491 0.0087382289895987 0.011338983895477 0.0073418034267316 0.081951966506604 "
        "0.00021849780075041; "
        "gradients/weights/sinks 0.34525233895251 -0.25938137992344 0.011611826210836 0.053336491874132");
}

/* D = H = 1, linear activation: expert e of x is x^2 times 10, 20 or 15; the weight is the logit. */
static quad_moe_config small_block(assay_router_family family, int64_t k)
{
    return (quad_moe_config){.moe = {.routing = one_token(family, ASSAY_SCORE_NONE, 3, k),
                                     .emb_dim = 1,
                                     .moe_mlp_dim = 1,
                                     .path = ASSAY_MOE_SPARSE,
                                     .activation = ASSAY_LINEAR}};
}

#define EXPERTS "; weights/wi_0 1 2 3; weights/wi_1 10 10 10; weights/wo 1 1 .5"
#define SHARED(wi_0, wi_1, wo)                                                                                         \
    "; weights/shared_experts/wi_0/kernel " wi_0 "; weights/shared_experts/wi_1/kernel " wi_1                          \
    "; weights/shared_experts/wo/kernel " wo

TEST(moe)
{
    quad_moe_config config = small_block(ASSAY_ROUTER_DEEPSEEK3, 2);
    config.moe.shared_mlp_dim = 2;
    /* logits 6, 2, 4: expert 0 gives 40, expert 2 gives 60; shared: h = (4, 8) */
    assert_by_hand(quad_moe, &config, "inputs/x 2; weights/gate/kernel 3 1 2" EXPERTS SHARED("1 2", "1 1", "100 1000"),
                   "routing/selected_experts 0 2; outputs/y 8880; outputs/weights -; checkpoints/mlpwi_0 2 4; "
                   "checkpoints/mlpwi_1 2 2; checkpoints/mlpwo 8400");
    /* A recipe that leaves these numbers as they are: dy is 6 and 4 times 1, da 120 and 40, db 12 and 12. */
    config.moe.shared_mlp_dim = 0;
    config.moe.recipe = powers();
    assert_by_hand(quad_moe, &config, "inputs/x 2; weights/gate/kernel 3 1 2; cotangents/y 1" EXPERTS,
                   "outputs/y 480; checkpoints/moe_mlpwo_gradient 6 4; checkpoints/moe_mlpwi_0_gradient 120 40; "
                   "gradients/weights/wi_0 240 0 80; gradients/weights/wo 240 0 480; "
                   "gradients/weights/gate/kernel 80 0 120; gradients/inputs/x 720");
    /* A gate of ln 3 / 2 times x = 2: the sigmoid of ln 3 is 3/4. */
    config = small_block(ASSAY_ROUTER_DEEPSEEK3, 1);
    config.moe.shared_mlp_dim = 1;
    config.moe.shared_gate = true;
    assert_by_hand(
        quad_moe, &config,
        "inputs/x 2; weights/gate/kernel 3 1 2; weights/shared_expert_gate/kernel 0.5493061443340549" EXPERTS SHARED(
            "1", "1", "100"),
        "outputs/y 540; checkpoints/mlp_intermediate 4; checkpoints/moe_intermediate 40");
    /* Logit ln 3 scales the token by 3/4, for the routed expert alone; the weight of the sum is 1. */
    config = small_block(ASSAY_ROUTER_LLAMA4, 1);
    config.moe.shared_mlp_dim = 1;
    assert_by_hand(quad_moe, &config,
                   "inputs/x 2; weights/gate/kernel 0 0.5493061443340548 -1" EXPERTS SHARED("1", "1", "1"),
                   "outputs/y 49");
    /* The routed clamp at 3 does not touch the shared expert. */
    config = small_block(ASSAY_ROUTER_DEEPSEEK3, 1);
    config.moe.shared_mlp_dim = 1;
    config.moe.glu = ASSAY_GLU_CLAMPED;
    config.moe.limit = 3;
    assert_by_hand(quad_moe, &config, "inputs/x 2; weights/gate/kernel 1 3 2" EXPERTS SHARED("5", "5", "1"),
                   "outputs/y 154");
    /* The bias of wo is inside the expert, so the router's weight is on it. */
    config = small_block(ASSAY_ROUTER_DEEPSEEK3, 1);
    assert_by_hand(quad_moe, &config,
                   "inputs/x 2; weights/gate/kernel 1 3 2; weights/wi_0_bias 100 1 100; weights/wi_1_bias 100 -2 100; "
                   "weights/wo_bias 100 5 100" EXPERTS,
                   "outputs/y 570");
}

/* In each of two rows five tokens, of weight 2, 4, ..., choose expert 2: ceil(5 / 3) = 2 places times the factor. */
TEST(moe_dropping)
{
    static const struct {
        double factor;
        const char *expected;
    } rows[] = {
        {.1, "outputs/y 0 0 0 0 0 0 0 0 0 0"},
        {.5, "outputs/y 30 0 0 0 0 6480 0 0 0 0; "
             "routing/combine_mask 0 0 2 0 0 0 0 0 0 0 0 0 0 0 0 0 0 12 0 0 0 0 0 0 0 0 0 0 0 0; "
             "routing/dispatch_mask 0 0 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 0 0 0 0 0 0 0 0 0 0 0 0; "
             "checkpoints/moe_mlpwi_0 0 0 0 0 3 18; checkpoints/moe_mlpwo 0 0 0 0 15 540"},
        {1, "outputs/y 30 240 0 0 0 6480 10290 0 0 0; checkpoints/moe_mlpwi_0 0 0 0 0 0 0 0 0 3 6 18 21"},
        {1.4, "outputs/y 30 240 0 0 0 6480 10290 0 0 0"},
        {1.5, "outputs/y 30 240 810 0 0 6480 10290 15360 0 0"},
        {2.5, "outputs/y 30 240 810 1920 3750 6480 10290 15360 21870 30000"},
        {3, "checkpoints/moe_mlpwi_0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 3 6 9 12 15 0 18 21 24 27 30 0"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        quad_moe_config config = small_block(ASSAY_ROUTER_DEEPSEEK3, 1);
        config.moe.path = ASSAY_MOE_DROPPING;
        config.moe.routing.batch = 2;
        config.moe.routing.sequence = 5;
        config.moe.capacity_factor = rows[i].factor;
        assert_by_hand(quad_moe, &config, "inputs/x 1 2 3 4 5 6 7 8 9 10; weights/gate/kernel 0 1 2" EXPERTS,
                       rows[i].expected);
    }
}

/* By PyTorch: sigmoids divided by their sum, a shared expert, SiLU. */
TEST(moe_by_another_hand)
{
    quad_moe_config config = small_block(ASSAY_ROUTER_DEEPSEEK3, 2);
    config.moe.routing.sequence = 3;
    config.moe.routing.num_experts = 4;
    config.moe.routing.score_func = ASSAY_SCORE_SIGMOID;
    config.moe.routing.routed_scaling_factor = 2.5;
    config.moe.emb_dim = 3;
    config.moe.moe_mlp_dim = config.moe.shared_mlp_dim = 2;
    config.moe.activation = ASSAY_SILU;
    assert_by_hand(
        quad_moe, &config,
        "inputs/x ~ 9; weights/gate/kernel ~ 12; weights/wi_0 ~ 24; weights/wi_1 ~ 24; weights/wo ~ 24" SHARED(
            "~ 6", "~ 6", "~ 6") "; cotangents/y ~ 9",
        "routing/selected_experts 0 1 3 2 1 0; outputs/y -0.0049597591494984 -0.082722048355676 -0.039994588867249 "
        "-0.012033480437973 0.01083926724357 -0.0088964043397471 -0.011461457376726 0.0095168743895945 "
        "-0.007724853703989; routing/weights 1.2726031656611 1.2273968343389 1.3383982629644 1.1616017370356 "
        "1.3336334807026 1.1663665192974; gradients/inputs/x 0.035344121400077 -0.28310622953016 -0.10246547168001 "
        "-0.024566710602871 -0.02219573933352 -0.06416973235142 -0.11449030847165 -0.11749208320624 -0.17115811414047; "
        "gradients/weights/gate/kernel -0.023883635518303 0.025074722551835 0.00066201197300669 -0.00055805490537043 "
        "0.0029675648100771 -0.0033183301727935 -0.0013240239460134 0.0011161098107409 -0.020047749757105 "
        "0.021018572162603 0.00099301795951003 -0.00083708235805564; gradients/weights/wi_0 -0.024403148273501 "
        "-0.088551274710154 0.0051884238422307 0.010058134563661 -0.020175780828397 -0.074464216242466 "
        "0.037364825504517 0.069541213756025 -0.088777239234133 -0.011590202292671 0.019344530541853 0.057951011463354 "
        "0.0033750476528486 -0.0020106284673591 -0.0067500953056971 0.0040212569347183 0.0050625714792728 "
        "-0.0030159427010387 0.0010683491009452 -0.024041701647625 -0.0021366982018905 0.048083403295249 "
        "0.0016025236514178 -0.036062552471437");
}

/* Four experts on two shards, of which e makes x^2 10^e of x; the weight is x. Token t is t + 1. */
TEST(moe_on_a_mesh)
{
#define SIX "routing/selected_experts # 3 0 2 2 3 2; inputs/x 1 2 3 4 5 6"
#define WHOLE "outputs/y 1000 8 2700 6400 125000 21600; "
    static const struct {
        const char *what;
        int64_t batch, data, chunks;
        double buffer;
        bool ring, fused, before;
        const char *tokens, *expected;
    } rows[] = {
        {"the second shard gets tokens 2 and 0, then 3, 5 and 4", 2, 1, 1, 0, false, false, false, SIX,
         WHOLE
         "routing/group_sizes 1 0 1 1 0 0 2 1; routing/sorted_selected_experts 1 2 0 0 2 1; "
         "routing/local_group_sizes 1 0 3 2; routing/expert_shard_id 0 1; routing/reshaped_group_sizes 1 2 0 3; "
         "routing/all_shards_group_sizes 1 2 0 3 1 2 0 3; "
         "routing/local_sorted_indices 0 1 2 3 4 5 0 2 3 1 4 5; "
         "checkpoints/moe_mlpwi_0 2 0 0 0 0 0 3 4 6 1 5 0; "
         "checkpoints/moe_mlpwo 4 0 0 0 0 0 900 1600 3600 1000 25000 0; outputs/bias_updates -3 3 -3 -3 3 3 -3 -3"},
        {"weighed before wo", 2, 1, 1, 0, false, false, true, SIX,
         WHOLE "checkpoints/moe_mlpwo 8 0 0 0 0 0 2700 6400 21600 1000 125000 0"},
        {"a buffer of three rows", 2, 1, 1, 1, false, false, false, SIX,
         "outputs/y 1000 8 2700 6400 0 0; routing/all_shards_group_sizes 1 2 0 3 1 2 0 3; "
         "routing/local_group_sizes 1 0 2 1; routing/local_sorted_indices 0 1 2 0 2 1; "
         "checkpoints/moe_mlpwi_0 2 0 0 3 4 1"},
        {"a buffer of one, which ends within a sender's rows", 2, 1, 1, .5, false, false, false, SIX,
         "outputs/y 0 8 2700 0 0 0; routing/local_sorted_indices 0 0; checkpoints/moe_mlpwi_0 2 3"},
        {"fused_moe_func: both sort all copies, and a shard's rows stay among them", 2, 1, 1, 0, false, true, false,
         SIX,
         WHOLE "routing/group_sizes 1 0 3 2 1 0 3 2; routing/sorted_selected_experts 1 2 3 5 0 4 1 2 3 5 0 4; "
               "routing/local_group_sizes 1 0 3 2; routing/local_sorted_indices -; "
               "checkpoints/moe_mlpwi_0 2 0 0 0 0 0 0 3 4 6 1 5; "
               "checkpoints/moe_mlpwo 4 0 0 0 0 0 0 900 1600 3600 1000 25000"},
        {"the same for two shards of data", 2, 2, 1, 0, false, true, false, SIX,
         WHOLE "routing/group_sizes 1 0 1 1 1 0 1 1 0 0 2 1 0 0 2 1; "
               "routing/sorted_selected_experts 1 2 0 1 2 0 0 2 1 0 2 1; "
               "checkpoints/moe_mlpwi_0 2 0 0 0 3 1 0 0 0 4 6 5"},
        {"both shards have the same tokens", 1, 1, 1, 0, false, false, false,
         "routing/selected_experts # 3 0 2; inputs/x 1 2 3",
         "outputs/y 1000 8 2700; routing/group_sizes 1 0 1 1 1 0 1 1; routing/sorted_selected_experts 1 2 0 1 2 0; "
         "routing/local_group_sizes 1 0 1 1; routing/reshaped_group_sizes 1 2 1 2; "
         "routing/local_sorted_indices 0 1 2 1 2 0; checkpoints/moe_mlpwi_0 2 0 0 3 1 0; "
         "routing/all_shards_group_sizes -"},
        {"a ring: both sort all, the second with its own experts as 0 and 1", 2, 1, 1, 0, true, false, false, SIX,
         WHOLE "routing/group_sizes 1 0 3 2 3 2 1 0; routing/sorted_selected_experts 1 2 3 5 0 4 2 3 5 0 4 1; "
               "routing/local_group_sizes 1 0 3 2; routing/expert_shard_id 0 1; "
               "checkpoints/moe_mlpwi_0 2 0 0 0 0 0 3 4 6 1 5 0; outputs/bias_updates 3 3 -3 -3 3 3 -3 -3; "
               "routing/local_sorted_indices -; routing/reshaped_group_sizes -"},
        {"tokens 0 and 3, then 1 and 4, then 2 and 5", 2, 1, 3, 0, true, false, false, SIX,
         WHOLE "routing/group_sizes 0 0 1 1 1 0 0 1 0 0 2 0 1 1 0 0 0 1 1 0 2 0 0 0; "
               "routing/sorted_selected_experts 1 0 0 1 0 1 1 0 1 0 0 1; "
               "routing/local_group_sizes 0 0 1 0 0 0 1 1 0 1 2 0; "
               "checkpoints/moe_mlpwi_0 0 0 2 0 0 0 4 1 5 0 3 6; outputs/bias_updates 1 3 -1 -1 1 3 -1 -1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        quad_moe_config config = small_block(ASSAY_ROUTER_DEEPSEEK3, 1);
        char given[512];
        config.moe.routing.num_experts = 4;
        config.moe.routing.batch = rows[i].batch;
        config.moe.routing.sequence = 3;
        config.moe.routing.routed_bias_update_rate = 3;
        if (rows[i].fused) config.moe.path = ASSAY_MOE_FUSED;
        config.sharding = (assay_sharding){.mesh = {{rows[i].data, 1, 2}},
                                           .ring_of_experts = rows[i].ring,
                                           .ragged_buffer_factor = rows[i].buffer,
                                           .token_chunks = rows[i].chunks,
                                           .weight_before_wo = rows[i].before};
        snprintf(
            given, sizeof given,
            "%s; weights/gate/kernel 1 1 1 1; weights/wi_0 1 1 1 1; weights/wi_1 1 1 1 1; weights/wo 1 10 100 1000",
            rows[i].tokens);
        print_message("%s\n", rows[i].what);
        assert_by_hand(quad_moe, &config, given, rows[i].expected);
    }
}

/* All widths 1. Attention adds 5 times the sign of x; the norm behind it gives .5 of the sign, of which an MLP makes 1 times 4 times wo; the
 * weight of the one expert is 2.5, whichever it is. */
static assay_stack_config narrow_stack(int64_t batch, int64_t layers, int64_t dense)
{
    quad_mla_config narrow = narrow_mla();
    assay_routing_config routing = one_token(ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_SIGMOID, 2, 1);
    narrow.mla.batch = routing.batch = batch;
    narrow.mla.mscale = 0;
    narrow.mla.rope = rope_of(2, false, 163840);
    routing.routed_scaling_factor = 2.5;
    routing.renormalize_exactly = true;
    routing.load_balance_loss_weight = dense < layers && batch == 1;
    routing.routed_bias_update_rate = batch == 1 ? .5 : 0;
    return (assay_stack_config){
        .layers = layers,
        .dense_layers = dense,
        .single = layers == 1,
        .mla = narrow.mla,
        .mlp = {.rows = batch, .emb_dim = 1, .mlp_dim = 1, .activation = {ASSAY_LINEAR, ASSAY_LINEAR}},
        .moe = {
            .routing = routing, .emb_dim = 1, .moe_mlp_dim = 1, .path = ASSAY_MOE_SPARSE, .activation = ASSAY_LINEAR}};
}

#define ATTENTION(layer)                                                                                               \
    "; weights/" layer "pre_self_attention_layer_norm/scale 3; weights/" layer                                         \
    "self_attention/query/kernel 1 2 3; weights/" layer "self_attention/wkv_a/kernel 5 1 1; weights/" layer            \
    "self_attention/kv_norm/scale 4; weights/" layer "self_attention/wkv_b/kernel 1 10; weights/" layer                \
    "self_attention/out/kernel .125; weights/" layer "post_self_attention_layer_norm/scale .5"
#define DENSE(layer, wo)                                                                                               \
    ATTENTION(layer)                                                                                                   \
    "; weights/" layer "mlp/wi_0/kernel 2; weights/" layer "mlp/wi_1/kernel 8; weights/" layer "mlp/wo/kernel " wo
#define MOE(layer)                                                                                                     \
    ATTENTION(layer)                                                                                                   \
    "; weights/" layer "moe/gate/kernel 1 2; weights/" layer "moe/wi_0 2 2; weights/" layer                            \
    "moe/wi_1 8 8; weights/" layer "moe/wo 3 5"

TEST(layers_and_stacks)
{
    assay_stack_config config = narrow_stack(1, 1, 1);
    assert_by_hand(quad_stack, &config, "inputs/x 2; inputs/positions # 0" DENSE("", "3"),
                   "outputs/y 19; checkpoints/decoder_layer_input 2; checkpoints/kv_wa_proj 15 3 3; "
                   "checkpoints/value_proj 40; checkpoints/out_proj 5; checkpoints/mlpwi_0 1; checkpoints/mlpwi_1 4; "
                   "checkpoints/mlpwo 12");
    config = narrow_stack(1, 1, 0);
    assert_by_hand(quad_stack, &config, "inputs/x 2; inputs/positions # 0" MOE(""),
                   "outputs/y 57; routing/selected_experts 1; routing/weights 2.5; outputs/bias_updates .5 -.5; "
                   "checkpoints/moe_mlpwo 20");
    assert_by_hand(quad_stack, &config, "inputs/x 2; inputs/positions # 0; routing/selected_experts # 0" MOE(""),
                   "outputs/y 37; routing/selected_experts 0; routing/weights 2.5; outputs/bias_updates -.5 .5; "
                   "checkpoints/moe_mlpwo 12");
    /* Eleven layers, of which layers/1/ and layers/10/ are others; the last has experts. */
    config = narrow_stack(1, 11, 10);
    assert_by_hand(quad_stack, &config,
                   "inputs/x 2; inputs/positions # 0" DENSE("layers/0/", "3") DENSE("layers/1/", "7")
                       DENSE("layers/2/", "3") DENSE("layers/3/", "3") DENSE("layers/4/", "3") DENSE("layers/5/", "3")
                           DENSE("layers/6/", "3") DENSE("layers/7/", "3") DENSE("layers/8/", "3")
                               DENSE("layers/9/", "11") MOE("layers/10/"),
                   "outputs/y 275; routing/layers/10/selected_experts 1; outputs/layers/10/bias_updates .5 -.5; "
                   "checkpoints/layers/1/mlpwo 28; checkpoints/layers/9/mlpwo 44; "
                   "checkpoints/layers/10/decoder_layer_input 220; checkpoints/layers/10/moe_mlpwo 20");
}

/* Rows 0 and 1 are the first shard's, 2 and 3 the second's; microbatches are rows 0 and 2, then 1 and 3: on one device too. */
TEST(batch_split_schedule)
{
    assay_stack_config config = narrow_stack(4, 1, 0);
    config.sharding = (assay_sharding){.mesh = {{1, 1, 2}}, .tensor_shards = 1, .token_chunks = 1};
    config.batch_split_factor = 2;
#define FOUR "inputs/x 2 -2 -2 2; inputs/positions # 0 0 0 0; routing/selected_experts # 1 0 1 1" MOE("")
    assert_by_hand(quad_stack, &config, FOUR,
                   "outputs/y 57 23 43 57; routing/selected_experts 1 0 1 1; routing/group_sizes 0 1 2 1; "
                   "checkpoints/decoder_layer_input 2 -2 -2 2; checkpoints/mla_out 7 -7 -7 7; "
                   "checkpoints/attention_out 40 -40 -40 40; checkpoints/moe_mlpwi_0 0 0 -1 0 1 -1 1 0; "
                   "checkpoints/moe_mlpwi_1 0 0 -4 0 4 -4 4 0");
    config.sharding.mesh = (assay_mesh){{1, 1, 1}};
    assert_by_hand(quad_stack, &config, FOUR, "routing/group_sizes 0 2 1 1; checkpoints/moe_mlpwi_0 1 -1 -1 1");
}

/* The norm gives 3 times the sign, the value 9 times it and so much is added, or that of the second layer twice over. No query sees more
 * than its own key where there is a window, and with none the second sees both alike: nothing is added. */
TEST(windows_of_layers)
{
#define GROUPED(layer, out)                                                                                            \
    "; weights/" layer "pre_self_attention_layer_norm/scale 3; weights/" layer                                         \
    "self_attention/query/kernel 0 0; weights/" layer "self_attention/key/kernel 1 1; weights/" layer                  \
    "self_attention/value/kernel 1 10; weights/" layer "self_attention/out/kernel " out "; weights/" layer             \
    "post_self_attention_layer_norm/scale .5; weights/" layer "mlp/wi_0/kernel 2; weights/" layer                      \
    "mlp/wi_1/kernel 8; weights/" layer "mlp/wo/kernel 0"
    static const struct {
        assay_window_layers windows;
        const char *y;
    } rows[] = {{ASSAY_WINDOWS_EVERYWHERE, "outputs/y 28 -28"},
                {ASSAY_WINDOWS_EVEN, "outputs/y 28 -10"},
                {ASSAY_WINDOWS_ODD, "outputs/y 28 -19"}};
    for (int row = 0; row < 3; row++) {
        assay_stack_config config = narrow_stack(1, 2, 2);
        config.attention = ASSAY_LAYER_GQA;
        config.windows = rows[row].windows;
        config.gqa = (assay_gqa_config){.batch = 1,
                                        .sequence = 2,
                                        .emb_dim = 1,
                                        .heads = 1,
                                        .kv_heads = 1,
                                        .head_dim = 2,
                                        .window = 1,
                                        .query_scale = 1,
                                        .rope = config.mla.rope};
        config.mlp.rows = 2;
        assert_by_hand(quad_stack, &config,
                       "inputs/x 1 -1; inputs/positions # 0 1" GROUPED("layers/0/", ".5 .25")
                           GROUPED("layers/1/", "1 .5"),
                       rows[row].y);
    }
}

/* Functions of the batch-split module. Two shards of one expert each, one token a shard, one expert a token, one number everywhere. */
TEST(functions)
{
    static const struct {
        const char *name;
        int64_t dim;
        bool quantised;
        const char *given, *expected;
    } rows[] = {
        /* the token of shard 0 goes to expert 1, that of shard 1 to expert 0; ids are rolled */
        {"route", 1, false,
         "inputs/x 3 5; inputs/selected_experts # 1 0; inputs/weights .5 .25; inputs/group_sizes # 0 1 1 0",
         "outputs/x 5 3 3 5; outputs/weights .25 .5 .5 .25; outputs/selected_experts 1 0 0 1; outputs/group_sizes 1 1"},
        /* each shard's rows go back to whose they are, and are added */
        {"unroute", 1, false, "inputs/x 5 3 30 50; inputs/selected_experts # 1 0 0 1", "outputs/x 33 55"},
        /* y = x k on the rows of a shard's expert; of the other row nothing comes */
        {"gmm_bwd", 1, false,
         "inputs/inputs 2 9 4 9; inputs/group_sizes # 1 2; inputs/output_grad 7 100 1 10; weights/kernel 3 5",
         "outputs/inputs_grad 21 0 5 50; outputs/kernel_grad 14 94"},
        /* epsilon is 3: y = x / 2, d(x (x^2 + 3)^-1/2) = 3 (x^2 + 3)^-3/2; of the scale's gradient both shards' are added */
        {"rms_norm_bwd", 1, false, "inputs/x 1 -1; inputs/y_grad 8 2; weights/scale 1",
         "outputs/scale_grad 3; outputs/x_grad 3 .75"},
        /* scales are 1 on shard 0 and 2^-10 on shard 1: 4.5 goes to 4, 9/2048 to 8/2048; forward only adds */
        {"quantized_psum_scatter", 3, true,
         "inputs/x 1 2 3 4 5 6 10 20 30 40 50 60; cotangents/out 57344 4.5 3 56 0x9p-11 -2",
         "outputs/out 11 22 33 44 55 66; gradients/inputs/x 57344 4 3 56 0x8p-11 -2 57344 4 3 56 0x8p-11 -2"},
        /* the second row of each shard is of no group: on shard 0 its gradient is the column's largest, so 4.5 goes to 4;
         * as its row's largest it is 57344 times a scale that bfloat16 has: 4.51171875 */
        {"gmm_bwd", 1, true,
         "inputs/inputs 448 448 448 448; inputs/group_sizes # 1 1; weights/kernel 448 448; "
         "inputs/output_grad 4.5 57344 4.5 1",
         "outputs/inputs_grad 2021.25 0 2021.25 0; outputs/kernel_grad 1792 2021.25"},
        /* h weighed is 2 sigmoid(2) * 56 / sigmoid(2) * 4 = 448: its scale is 1, as those of wo. The gradient of h weighed is 4.5 * 448 with
         * 4.5 as its row's largest; for wo it goes to 4 where a row of no group is larger */
        {"compute_linear_bwd", 1, true,
         "inputs/layer_w0 2 2 2 2; inputs/layer_w1 63.57877586125032 63.57877586125032 63.57877586125032 "
         "63.57877586125032; inputs/weights 4 4 4 4; inputs/group_sizes # 1 1; "
         "weights/wo 448 448; inputs/layer_wo_grad 4.5 57344 4.5 1",
         "checkpoints/intermediate_layer 448 448 448 448; outputs/weights_grad 226380.0 0 226380.0 0; "
         "outputs/layer_w1_grad 14242.488750902357 0 14242.488750902357 0; outputs/layer_w0_grad 560700.629949468 0 "
         "560700.629949468 0; outputs/wo_grad 1792 2021.25"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const assay_function_config config = {
            .function = assay_batch_split_function_of(rows[i].name),
            .layers = 2,
            .stack = {.layers = 1,
                      .single = true,
                      .mla = {.batch = 2, .sequence = 1, .emb_dim = rows[i].dim, .heads = 1, .rope = {.dim = 2}},
                      .moe = {.routing = {.batch = 2,
                                          .sequence = 1,
                                          .num_experts = 2,
                                          .num_experts_per_tok = 1,
                                          .n_routing_groups = -1},
                              .emb_dim = rows[i].dim,
                              .moe_mlp_dim = 1,
                              .shared_mlp_dim = 1},
                      .sharding = {.mesh = {{1, 1, 2}}, .tensor_shards = 1, .token_chunks = 1},
                      .batch_split_factor = 1,
                      .epsilon = 3},
            .recipe = {.recipe = rows[i].quantised ? assay_quant_recipe_by_name("fp8_full") : NULL,
                       .type = ASSAY_BFLOAT16,
                       .x = {.factor = 1},
                       .w = {.factor = 1},
                       .dy = {.factor = 1}}};
        assay_function_view view;
        assay_function_view_of(&config, &view);
        print_message("%s\n", rows[i].name);
        assert_by_hand(quad_function, &view, rows[i].given, rows[i].expected);
    }
}
