/* What a model says and an operation would not honour is refused, by key and block; what it leaves open gets said. */
#include "harness/equivalences/equivalence.h"
#include "harness/tests/harness_test.h"

#define MOE                                                                                                            \
    "base_emb_dim: 8, base_moe_mlp_dim: 8, num_experts: 8, num_experts_per_tok: 2, base_mlp_dim: 8, "                  \
    "base_num_query_heads: 2, base_num_decoder_layers: 2"
#define MLA ", q_lora_rank: 8, kv_lora_rank: 8, qk_nope_head_dim: 4, qk_rope_head_dim: 4, v_head_dim: 8"
#define GQA ", base_num_kv_heads: 1, head_dim: 4"
#define WITHOUT_WINDOW                                                                                                 \
    ", decoder_block: gpt_oss, attention_sink: true, attention_bias: true, "                                           \
    "mlp_activations: [sigmoid, linear], mlp_activations_limit: 7.0"
#define OSS WITHOUT_WINDOW ", sliding_window_size: 2"

typedef struct row {
    const char *op, *model;
    const char *words; /* of the refusal; NULL: accepted */
} row;

static const row ROWS[] = {
    /* values that the family would not honour */
    {"moe", MOE ", decoder_block: glm4_moe, routed_score_func: sigmoid, routed_bias: true", NULL},
    {"moe", MOE ", decoder_block: kimi_k2, routed_score_func: sigmoid, routed_scaling_factor: 2.827", NULL},
    {"routing", MOE ", decoder_block: mixtral, routed_score_func: sigmoid",
     "routed_score_func is sigmoid, expected \"\": decoder_block mixtral"},
    {"moe", MOE ", decoder_block: llama4, routed_score_func: sigmoid", "routed_score_func is sigmoid"},
    {"moe", MOE ", quant_format: mxfp4", "quant_format is mxfp4, expected \"\": op moe has formats of operands alone"},
    {"moe", MOE ", quant_scale: invert", "quant_scale is invert, expected divide: op moe"},
    {"moe", MOE ", quant_scale_rounding: up", "quant_scale_rounding is up, expected nearest: op moe"},
    {"moe", MOE ", quant_scale_layout: swizzled_128x4",
     "quant_scale_layout is swizzled_128x4, expected row_major: op moe"},
    {"quantize", "base_emb_dim: 8, quant_format: mxfp4, quant_scale_rounding: up", NULL},
    {"moe", MOE ", decoder_block: mixtral, routed_score_func: sigmoid, fused_moe_func: true", NULL},
    {"mla", MOE MLA ", routed_score_func: sigmoid", NULL},
    {"moe", MOE ", routing_method: Sigmoid, routed_score_func: sigmoid", NULL},
    {"moe", MOE ", routing_method: Sigmoid, routed_score_func: softmax",
     "expected \"\": routing_method Sigmoid has a score"},
    {"moe", MOE ", routing_method: Sigmoid, norm_topk_prob: true", "norm_topk_prob is true, expected false"},
    {"moe", MOE ", routing_method: Sigmoid, routed_bias: true", "routed_bias is true, expected false"},
    {"moe", MOE ", routing_method: MiniMax2, routed_bias: true, routed_scaling_factor: 2.5", NULL},
    {"moe", MOE ", routing_method: MiniMax2, n_routing_groups: 4, topk_routing_group: 2", "n_routing_groups is 4"},
    {"moe", MOE ", routing_method: TopK, routed_scaling_factor: 2.5", "routed_scaling_factor is 2.5, expected 1"},
    {"moe", MOE ", routing_method: TopK, fused_moe_func: true", "fused_moe_func has its own rule"},
    {"moe", MOE ", routing_method: TopK, use_random_routing: true", "use_random_routing has its own rule"},
    {"moe", MOE ", routing_method: TopKSigmoid, load_balance_loss_weight: 0.1", "a choice by the logits"},
    {"moe", MOE ", decoder_block: qwen3_moe, load_balance_loss_weight: 0.1, load_balance_loss_pre_bias: true",
     "load_balance_loss_pre_bias is true, expected false"},
    {"moe", MOE ", routing_method: Llama4", "llama4 with num_experts_per_tok=2"},
    {"moe", MOE ", decoder_block: gemma4, norm_topk_prob: true, use_random_routing: true", NULL},
    {"moe", MOE ", decoder_block: qwen3_moe, routed_scaling_factor: 2.5", "routed_scaling_factor is 2.5, expected 1"},
    {"moe", MOE ", decoder_block: qwen3_moe, n_routing_groups: 4, topk_routing_group: 2", "n_routing_groups is 4"},
    {"moe", MOE ", decoder_block: qwen3_moe, topk_routing_group: 2", "topk_routing_group is 2"},
    {"moe", MOE ", decoder_block: qwen3_moe, group_score: max", "group_score is max"},
    {"moe", MOE ", decoder_block: deepseek, topk_routing_group: 2", "expected n_routing_groups beside it"},
    {"moe", MOE ", decoder_block: deepseek, n_routing_groups: -1, topk_routing_group: 2", NULL},
    {"moe",
     MOE ", decoder_block: deepseek, routed_score_func: sigmoid, n_routing_groups: 4, topk_routing_group: 2, "
         "fused_moe_func: true",
     "n_routing_groups is 4, expected -1: fused_moe_func has no groups"},
    {"moe", MOE ", decoder_block: deepseek, routed_score_func: sigmoid, norm_topk_prob: false",
     "norm_topk_prob is false, expected true: decoder_block deepseek divides"},
    {"moe", MOE ", decoder_block: deepseek, routed_score_func: sigmoid, norm_topk_prob: true", NULL},
    {"moe", MOE ", decoder_block: deepseek, routed_score_func: softmax, norm_topk_prob: true",
     "norm_topk_prob is true, expected false"},
    {"moe", MOE ", decoder_block: mixtral, norm_topk_prob: false", NULL},
    {"moe", MOE ", decoder_block: mixtral, norm_topk_prob: true", NULL},
    {"moe", MOE ", decoder_block: mixtral, norm_topk_prob: false, fused_moe_func: true",
     "norm_topk_prob is false, expected true: fused_moe_func divides"},
    {"moe", MOE ", decoder_block: mixtral, mlp_activations_limit: 7", "mlp_activations_limit is 7"},
    {"moe", MOE ", decoder_block: deepseek4, mlp_activations_limit: 7", NULL},
    {"mlp", MOE ", decoder_block: mixtral, mlp_activations_limit: 7", NULL},
    {"moe", MOE ", mlp_activations: [silu, sigmoid]", "mlp_activations is [silu, sigmoid]"},
    {"mlp", MOE ", mlp_activations: [silu, sigmoid]", NULL},
    {"mlp", MOE ", mlp_activations: [silu, sigmoid], mlp_activations_limit: 7",
     "mlp_activations[1] is \"sigmoid\", expected linear"},
    {"moe", MOE ", capacity_factor: 1.5", "capacity_factor is 1.5, expected -1: with sparse_matmul"},
    {"moe", MOE ", capacity_factor: 1.5, sparse_matmul: false", NULL},
    {"moe", MOE ", decoder_block: qwen3_next, shared_experts: 1", NULL},
    {"moe", MOE ", decoder_block: qwen3_next, shared_experts: 2", "shared_experts is 2"},
    {"moe", MOE ", gmm_layout: masked", "gmm_layout is masked, expected ragged: it is for op gmm, and this is moe"},
    {"routing", MOE ", num_redundant_experts: 2",
     "num_redundant_experts is 2, expected 0: it is for op moe and layers"},
    {"moe", MOE ", num_redundant_experts: 2, sparse_matmul: false", "physical experts need sparse_matmul=true"},
    {"moe", MOE ", num_redundant_experts: 2", NULL},
    {"gmm", MOE ", mk_alignment_for_contiguous_layout: 8", "is 8, expected 128: gmm_layout ragged has no alignment"},
    {"gmm", MOE ", mk_alignment_for_contiguous_layout: 8, gmm_layout: psum", NULL},
    {"mlp", MOE ", decoder_block: qwen3_next, shared_experts: 1", NULL},
    {"moe", MOE ", router_z_loss_weight: 0.1, fused_moe_func: true",
     "router_z_loss_weight=0.1, expected 0: fused_moe_func"},
    {"moe", MOE ", shared_experts: 1, num_fused_shared_experts: 2", "num_fused_shared_experts is 2, expected 0 or"},
    {"moe", MOE ", shared_experts: 1, num_fused_shared_experts: 1", NULL},
    {"moe", MOE ", shared_experts: 1, num_fused_shared_experts: 1, sparse_matmul: false",
     "num_fused_shared_experts needs sparse_matmul=true"},
    {"moe", MOE ", decoder_block: qwen3_next, shared_experts: 1, num_fused_shared_experts: 1", "and have no gate"},
    {"moe", MOE ", shared_experts: 1, num_fused_shared_experts: 1, mlp_bias: true",
     "num_fused_shared_experts needs mlp_bias=false"},
    {"moe", MOE ", decoder_block: deepseek4, mlp_activations_limit: 7, shared_experts: 1, num_fused_shared_experts: 1",
     "num_fused_shared_experts needs experts without a clamp"},
    {"moe", MOE ", apply_router_weight_on_input: true", NULL},
    {"moe", MOE ", apply_router_weight_on_input: true, mlp_bias: true", "apply_router_weight_on_input needs mlp_bias"},
    {"moe", MOE ", apply_router_weight_on_input: true, fused_moe_func: true",
     "apply_router_weight_on_input needs sparse_matmul=true, and neither fused_moe_func nor llama4"},
    {"moe",
     MOE ", decoder_block: deepseek, routed_score_func: sigmoid, routed_scaling_factor: 2, "
         "apply_routed_scaling_factor_on_output: false, apply_router_weight_on_input: true",
     "expected one of the two"},
    {"moe", MOE ", router_z_loss_weight: -1", "router_z_loss_weight=-1, expected a finite number of 0 or more"},
    {"mlp", MOE ", decoder_block: gpt3", "decoder_block is gpt3, which has no gated MLP"},
    {"rms_norm", MOE ", decoder_block: qwen3_5", "which has no RMS norm with a plain scale"},
    {"mla", MOE MLA ", decoder_block: mixtral", "which has no multi-head latent attention"},
    {"deepseek_stack", MOE MLA ", decoder_block: gpt_oss", "which has no multi-head latent attention"},
    {"mla", MOE MLA ", decoder_block: kimi_k2", NULL},
    /* whole layers */
    {"decoder_layer", MOE MLA, NULL},
    {"decoder_layer", MOE MLA ", decoder_block: kimi_k2, routed_score_func: sigmoid", NULL},
    {"decoder_layer", MOE GQA ", decoder_block: mixtral", NULL},
    {"decoder_layer", MOE GQA ", decoder_block: mixtral, attention_sink: true, attention_type: global", NULL},
    {"decoder_stack", MOE GQA ", decoder_block: qwen3_moe, use_qk_norm: true, interleave_moe_layer_step: 1", NULL},
    {"decoder_stack", MOE GQA OSS ", inhomogeneous_layer_cycle_interval: 2", NULL},
    {"decoder_layer", MOE GQA OSS ", attention_type: global", NULL},
    {"decoder_layer", MOE GQA OSS ", attention_type: local_sliding", NULL},
    {"decoder_stack", MOE GQA OSS ", attention_type: local_sliding", "attention_type is local_sliding, expected \"\""},
    {"decoder_stack", MOE GQA OSS ", inhomogeneous_layer_cycle_interval: 4", "inhomogeneous_layer_cycle_interval is 4"},
    {"decoder_stack", MOE GQA ", decoder_block: mixtral, inhomogeneous_layer_cycle_interval: 2", "expected 1"},
    {"decoder_layer", MOE GQA WITHOUT_WINDOW, "sliding_window_size is 0, expected 1 or more"},
    {"decoder_layer", MOE GQA OSS ", use_qk_norm: true", "use_qk_norm is true, expected false: decoder_block gpt_oss"},
    {"decoder_layer", MOE GQA ", decoder_block: mixtral, sliding_window_size: 4", NULL},
    {"decoder_stack", MOE GQA ", decoder_block: mixtral, attention_type: local_sliding, sliding_window_size: 4", NULL},
    {"decoder_layer", MOE GQA ", decoder_block: mixtral, attention_bias: true",
     "attention_bias is true, expected false"},
    {"decoder_layer", MOE GQA ", decoder_block: mixtral, use_qk_norm: true", "use_qk_norm is true, expected false"},
    {"decoder_layer", MOE GQA ", decoder_block: mixtral, shared_experts: 1", "shared_experts is 1, expected 0"},
    {"decoder_stack", MOE GQA ", decoder_block: qwen3_moe, first_num_dense_layers: 1", "first_num_dense_layers is 1"},
    {"decoder_stack", MOE GQA ", decoder_block: qwen3_moe, interleave_moe_layer_step: 2",
     "interleave_moe_layer_step is 2"},
    {"decoder_stack", MOE GQA ", decoder_block: mixtral, use_batch_split_schedule: true",
     "use_batch_split_schedule is true, expected false: decoder_block mixtral"},
    {"decoder_layer", MOE ", head_dim: 4, decoder_block: mixtral, base_num_kv_heads: 3", "base_num_kv_heads"},
    {"decoder_layer", MOE GQA ", decoder_block: mixtral, attention_type: mla", "attention_type is mla"},
    {"decoder_layer", MOE MLA ", decoder_block: deepseek, attention_sink: true",
     "attention_sink is true, expected false"},
    {"decoder_layer", MOE GQA ", decoder_block: llama4", "decoder_block is llama4, which has a layer of another form"},
    {"decoder_layer", MOE GQA ", decoder_block: gemma4", "decoder_block is gemma4, which has"},
    {"decoder_layer", MOE GQA ", decoder_block: glm4_moe", "decoder_block is glm4_moe, which has"},
    {"decoder_layer", MOE GQA ", decoder_block: default", "decoder_block is default, which has"},
    /* names by which MaxText has other layers */
    {"decoder_layer", MOE GQA ", decoder_block: mixtral, model_name: mixtral-8x7b", NULL},
    {"decoder_layer", MOE GQA ", decoder_block: mixtral, model_name: llama3-8b", NULL},
    {"gqa", MOE GQA ", decoder_block: mixtral, model_name: llama3.1-8b",
     "model_name is llama3.1-8b, expected another: op gqa has no scaled frequencies"},
    {"decoder_layer", MOE GQA ", decoder_block: mixtral, model_name: olmo3-7b", "model_name is olmo3-7b"},
    {"decoder_stack", MOE GQA ", decoder_block: mixtral, model_name: gemma3-4b", "model_name is gemma3-4b"},
    {"gqa", MOE GQA ", decoder_block: mixtral, model_name: gemma4-26b", "model_name is gemma4-26b"},
    {"attention", MOE MLA ", model_name: gemma4-26b", NULL},
    {"moe", MOE ", decoder_block: mixtral, model_name: llama3.1-8b", NULL},
    /* keys of MaxText that are none of ours */
    {"mla", MOE MLA ", use_indexer: true, indexer_topk: 2048", "use_indexer is true, expected false: op mla"},
    {"moe", MOE MLA ", use_indexer: true, indexer_topk: 2048", NULL},
    {"mla", MOE MLA ", use_indexer: false", NULL},
    {"mla_decode", MOE MLA ", cache_length: 9, use_indexer: true, indexer_topk: 4", NULL},
    {"mla_decode", MOE MLA ", cache_length: 9, use_indexer: true, sliding_window_size: 2",
     "sliding_window_size is 2, expected 0"},
    {"mla_decode", MOE MLA ", cache_length: 9, use_indexer: true, use_chunked_prefill: true",
     "use_chunked_prefill is true, expected false"},
    {"mla_decode", MOE MLA ", cache_length: 9, use_chunked_prefill: true, num_kv_splits: 2",
     "num_kv_splits is 2, expected 0"},
    {"gqa_decode", MOE GQA ", cache_length: 9, use_indexer: true", "use_indexer is true, expected false: an indexer"},
    {"mla", MOE MLA ", query_pre_attn_scalar: -1", "query_pre_attn_scalar is -1, expected a number above 0"},
    {"mla", MOE MLA ", attention_type: compressed", "attention_type is compressed, expected mla"},
    {"mla", MOE MLA ", compress_ratios: [0, 4]", "compress_ratios is [...], expected []"},
    {"mla", MOE MLA ", compress_ratios: []", NULL},
    {"deepseek_stack", MOE MLA ", mhc_expansion_rate: 4", "mhc_expansion_rate is 4, expected 1"},
    {"mla", MOE MLA ", mhc_expansion_rate: 4", NULL},
    {"mla", MOE MLA ", sliding_window_size: 128", NULL},
    {"mla", MOE MLA ", attention_sink: true", "attention_sink is true, expected false: op mla"},
    {"mla", MOE MLA ", attention_bias: true", "attention_bias is true, expected false"},
    {"deepseek_layer", MOE MLA ", use_qk_norm: true", "use_qk_norm is true, expected false"},
    {"attention", MOE MLA ", chunk_attn_window_size: 128", "chunk_attn_window_size is 128, expected 0"},
    {"attention", MOE MLA ", sliding_window_size: 128, attention_sink: true", NULL},
    {"attention", MOE MLA ", attention_type: chunk", "attention_type is chunk, expected global, local_sliding or mla"},
    {"attention", MOE MLA ", attention_type: local_sliding",
     "sliding_window_size is 0, expected 1 or more with attention_type local_sliding"},
    {"attention", MOE MLA ", decoder_block: gpt_oss, base_num_kv_heads: 1", NULL},
    {"attention", MOE ", decoder_block: gpt_oss, head_dim: 8, base_num_kv_heads: 3",
     "base_num_kv_heads is 3, expected a divisor of base_num_query_heads (2)"},
    {"attention", MOE MLA ", attention_type: mla, base_num_kv_heads: 3", NULL},
    {"gqa", MOE ", head_dim: 8", NULL},
    {"gqa", MOE ", decoder_block: mixtral", "head_dim is 0, expected 1 or more"},
    {"gqa", MOE ", decoder_block: mixtral, head_dim: 7", "head_dim is 7, expected an even number"},
    {"gqa", MOE ", decoder_block: mixtral, head_dim: 8, base_num_kv_heads: 4",
     "base_num_kv_heads is 4, expected a divisor of base_num_query_heads (2)"},
    {"gqa", MOE ", decoder_block: mixtral, head_dim: 8, attention_type: local_sliding", "sliding_window_size is 0"},
    {"gqa", MOE ", decoder_block: mixtral, head_dim: 8, attention_type: mla", "attention_type is mla, expected global"},
    {"gqa", MOE ", decoder_block: mixtral, head_dim: 8, query_pre_attn_scalar: -1",
     "query_pre_attn_scalar is -1, expected a number above 0"},
    {"gqa", MOE ", decoder_block: gemma4, head_dim: 8", "decoder_block is gemma4, which has another attention"},
    {"gqa", MOE ", decoder_block: qwen3_moe, head_dim: 8, qk_norm_with_scale: false", "qk_norm_with_scale is false"},
    {"gqa", MOE ", decoder_block: glm4_moe, head_dim: 8", "which has another attention"},
    {"gqa", MOE ", decoder_block: mixtral, head_dim: 8, partial_rotary_factor: 0.5", NULL},
    {"gqa", MOE ", decoder_block: mixtral, head_dim: 8, partial_rotary_factor: 0.4", "found 3.2"},
    {"gqa", MOE ", decoder_block: mixtral, head_dim: 8, partial_rotary_factor: 1.5", "partial_rotary_factor is 1.5"},
    {"gqa", MOE ", decoder_block: mixtral, head_dim: 8, attn_logits_soft_cap: -1", "attn_logits_soft_cap is -1"},
    {"mla", MOE MLA ", partial_rotary_factor: 0.5", "partial_rotary_factor is 0.5, expected 1"},
    {"attention", MOE MLA ", decoder_block: mixtral, head_dim: 8", NULL},
    {"attention", MOE MLA ", decoder_block: mixtral, head_dim: 16", "head_dim is 16, expected 8"},
    {"yarn_rope", MOE MLA ", decoder_block: mixtral, head_dim: 16", "head_dim is 16, expected 4 (qk_rope_head_dim)"},
    {"yarn_rope", MOE MLA ", partial_rotary_factor: 0.5", "partial_rotary_factor is 0.5, expected 1"},
    {"permute", MOE ", global_parameter_scale: 2", "global_parameter_scale is 2, expected 1"},
    {"permute", MOE ", use_indexer: true, attention_sink: true, mhc_expansion_rate: 4", NULL},
    {"moe", MOE ", attention: vllm_rpa", "attention is vllm_rpa"},
    {"moe", MOE ", logits_via_embedding: true, enable_dropout: false, hidden_size_for_vit: 8", NULL},
};

TEST(what_would_not_be_honoured_is_refused)
{
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        assay_context ctx = assay_context_default(1);
        char yaml[1024];
        OWNED_BY(assay_plan_free) assay_plan plan = {0};
        snprintf(yaml, sizeof yaml, "{case: t, op: %s, sequence: 8, profiles: none, model: {%s}}", ROWS[i].op,
                 ROWS[i].model);
        OWNED_BY(free_case) assay_case *c = case_from(yaml);
        const bool accepted = assay_plan_make(&ctx, &plan, c) == ASSAY_OK;
        const bool right = ROWS[i].words == NULL ? accepted : !accepted && strstr(ctx.message, ROWS[i].words) != NULL;
        if (!right) fail_msg("%s: %s", yaml, accepted ? "accepted" : ctx.message);
    }
}

/* config: and --set go over what a model file says. */
TEST_WITH_CONTEXT(a_key_can_be_set_to_what_changes_nothing)
{
    OWNED_BY(assay_plan_free) assay_plan plan = {0};
    OWNED_BY(free_case)
    assay_case *c = case_from("{case: t, op: mla, profiles: none, model: {base_emb_dim: 8, base_num_query_heads: 2, "
                              "use_indexer: true}}");
    assert_int_equal(assay_plan_make(&ctx, &plan, c), ASSAY_BAD_INPUT);
    assert_ok(&ctx, assay_case_set(&ctx, c, "use_indexer=false"));
    assert_ok(&ctx, assay_plan_make(&ctx, &plan, c));
}

static void has_line(const char *yaml, const char *line)
{
    if (strstr(yaml, line) == NULL) fail_msg("no %s in\n%s", line, yaml);
}

TEST(what_is_left_open_is_said)
{
    static const struct {
        const char *name, *set, *lines[2];
    } rows[] = {
        {"routing/deepseek3-groups", NULL, {"  norm_topk_prob: true\n", "  group_score: top2_sum\n"}},
        {"routing/deepseek3-groups", "routed_bias=false", {"  norm_topk_prob: true\n", "  group_score: max\n"}},
        {"moe/deepseek3-tiny-sparse", NULL, {"  norm_topk_prob: true\n", "  group_score: \"\"\n"}},
        {"moe/deepseek2-16b", NULL, {"  norm_topk_prob: false\n", "  group_score: \"\"\n"}},
        {"mla/small",
         "normalization_layer_epsilon=0.25",
         {"  normalization_layer_epsilon: 0.25\n", "  latent_norm_epsilon: 0.25\n"}},
        {"moe/mixtral", NULL, {"  norm_topk_prob: false\n", "  decoder_block: mixtral\n"}},
        {"moe/mixtral", "fused_moe_func=true", {"  norm_topk_prob: true\n", "  fused_moe_func: true\n"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assay_context ctx = assay_context_default(1);
        OWNED_BY(free_case) assay_case *c = case_named(rows[i].name, rows[i].set);
        OWNED char *yaml = NULL;
        assert_ok(&ctx, assay_case_yaml(&ctx, c, &yaml));
        for (int j = 0; j < 2; j++) has_line(yaml, rows[i].lines[j]);
    }
}

static int lines_of(const char *text)
{
    int lines = 0;
    for (; *text != '\0'; text++) lines += *text == '\n';
    return lines;
}

/* What `assay show` prints is a case file, with --all and without: it is accepted, and says the same of itself. */
TEST_WITH_CONTEXT(what_is_shown_is_a_case)
{
    int count = 0;
    assay_case *cases = all_cases(&count);
    for (int i = 0; i < count; i++) {
        char *texts[2] = {NULL, NULL}, *again = NULL;
        assert_ok(&ctx, assay_case_yaml(&ctx, &cases[i], &texts[0]));
        assert_ok(&ctx, assay_case_brief_yaml(&ctx, &cases[i], &texts[1]));
        for (int brief = 0; brief < 2; brief++) {
            OWNED_BY(free_case) assay_case *c = case_from(texts[brief]);
            assay_tensor_list list = tensors_of(c);
            assay_tensor_list_free(&list);
            assert_ok(&ctx, (brief ? assay_case_brief_yaml : assay_case_yaml)(&ctx, c, &again));
            assert_string_equal(texts[brief], again);
            free(again);
        }
        if (cases[i].program == NULL && lines_of(texts[1]) > 70) fail_msg("not brief:\n%s", texts[1]);
        free(texts[0]);
        free(texts[1]);
    }
    assay_cases_free(cases, count);
}

/* Earlier programs wrote values that nothing honoured; their goldens are as they were. */
TEST_WITH_CONTEXT(stored_cases_are_as_they_were)
{
    static const char stored[] = "{case: t, op: routing, sequence: 4, profiles: none, model: {" MOE
                                 ", decoder_block: deepseek, routed_score_func: sigmoid, norm_topk_prob: false, "
                                 "topk_routing_group: 2, rope_type: yarn, rope_interleave: false}}";
    assay_case *c = NULL;
    OWNED_BY(assay_plan_free) assay_plan plan = {0};
    int count = 0;
    OWNED char *yaml = NULL;
    assert_ok(&ctx, assay_cases_parse_stored(&ctx, "golden", stored, strlen(stored), &c, &count));
    assert_ok(&ctx, assay_plan_make(&ctx, &plan, c));
    assert_ok(&ctx, assay_case_yaml(&ctx, c, &yaml));
    has_line(yaml, "  norm_topk_prob: true\n");
    has_line(yaml, "  rope_interleave: false\n");
    assay_cases_free(c, count);
}

/* What differs from the defaults, and what was given; all of it where it would be another case else. */
TEST_WITH_CONTEXT(what_is_shown_is_brief)
{
    OWNED_BY(free_case) assay_case *c = case_named("gqa_decode/small", "pagedattn_page_stride=0");
    OWNED char *yaml = NULL;
    assert_ok(&ctx, assay_case_brief_yaml(&ctx, c, &yaml));
    has_line(yaml, "  pagedattn_page_stride: 0\n");
    has_line(yaml, "  head_dim: 8\n");
    assert_null(strstr(yaml, "latent_norm_epsilon"));
    assert_null(strstr(yaml, "num_experts"));
    free(yaml);
    assay_cases_free(c, 1);
    c = case_named("mla/small", NULL);
    c->config.rope_interleave = !c->config.rope_interleave; /* of a golden, whose keys do not count as given */
    assay_model_forget_set_keys(&c->config);
    assert_ok(&ctx, assay_case_brief_yaml(&ctx, c, &yaml));
    OWNED_BY(free_case) assay_case *again = case_from(yaml);
    assert_int_equal(again->config.rope_interleave, c->config.rope_interleave);
}

/* What the user said was held against the form that it was said of. */
TEST_WITH_CONTEXT(other_forms_are_not_refused)
{
    OWNED_BY(free_case) assay_case *c = case_named("moe/qwen3-without-norm", NULL);
    int forms = 0;
    for (const assay_equivalence *e = assay_equivalences; e->name != NULL; e++) {
        assay_other_form other;
        assay_plan plan = {0};
        if (!assay_other_form_of(c, e, &other)) continue;
        assert_ok(&ctx, assay_plan_make(&ctx, &plan, &other.c));
        assay_plan_free(&plan);
        forms++;
    }
    assert_true(forms > 5);
}
