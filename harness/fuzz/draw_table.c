#include "harness/fuzz/draw_table.h"

#include <stddef.h>

#include "cases/maxtext_keys.h"

#define NORM ASSAY_PART_NORM
#define MLP ASSAY_PART_MLP
#define ROUTER ASSAY_PART_ROUTER
#define EXPERTS ASSAY_PART_EXPERTS
#define ROPE ASSAY_PART_ROPE
#define ATTENTION ASSAY_PART_ATTENTION
#define LATENT ASSAY_PART_LATENT
#define GROUPED ASSAY_PART_GROUPED
#define LAYER ASSAY_PART_LAYER
#define GROUPS ASSAY_PART_GROUPS
#define SORT (ASSAY_PART_SORT | ASSAY_PART_COMBINE)
#define SHARING ASSAY_PART_SHARING
#define DECODE ASSAY_PART_DECODE
#define CACHE ASSAY_PART_CACHE
#define GATED (MLP | EXPERTS)
#define QUANTIZED (ASSAY_PART_QUANTIZE | ASSAY_PART_DEQUANTIZE)
#define WRITTEN (QUANTIZED | CACHE)
#define ALL (~0u)

const int assay_draw_edges[] = {8, 16, 32, 64, 128, 256, 0};

const assay_draw_key assay_draw_keys[] = {
    {"sequence", ALL, 24, "1 2 3 4 5-9 edge edge edge"},
    {"batch", ALL, 10, "1 2 3 4"},
    {"seed", ALL, 10, "1-9999"},
    {"positions.start", ROPE | ATTENTION, 10, "0 1 255 4095 40000 131000 163000"},
    {"positions.step", ROPE, 5, "1 2 7 977"},
    {"gradients", ALL, 1, "all none"},
    {"checkpoints", ALL, 2, "all none"},
    {"dtype", ALL, 2, "bfloat16 float32 float16"},

    /* widths */
    {"base_emb_dim", ALL, 16, "1-24 edge edge 131 160 192"},
    {"base_mlp_dim", MLP, 12, "1-24 edge edge 61 160"},
    {"base_moe_mlp_dim", EXPERTS | GROUPS, 12, "1-24 edge edge 61 160"},
    {"base_num_query_heads", ATTENTION, 5, "1 2 3 4 5 8"},
    {"base_num_kv_heads", GROUPED | SHARING | CACHE, 5, "1 2 3 4"},
    {"head_dim", GROUPED | SHARING, 5, "2 4 6 16 62 64 66 128"},
    {"q_lora_rank", LATENT, 5, "0 1-9 edge"},
    {"kv_lora_rank", LATENT | DECODE | CACHE, 5, "1-9 edge"},
    {"qk_nope_head_dim", ATTENTION | LATENT, 5, "1-9 edge 128"},
    {"qk_rope_head_dim", ROPE | DECODE | CACHE, 5, "2 4 6 8 10 16 64"},
    {"v_head_dim", ATTENTION | LATENT, 6, "1-9 edge 96"},
    {"base_num_decoder_layers", LAYER, 3, "1 2 3 4"},
    {"first_num_dense_layers", LAYER, 2, "0 1 2"},

    /* routing */
    {"num_experts", ROUTER | EXPERTS | GROUPS | ASSAY_PART_SORT, 12, "1-9 edge edge 96 257;num_experts_per_tok=8"},
    {"num_experts_per_tok", ROUTER | EXPERTS | GROUPS | SORT, 12, "1 1 2 3 4-9"},
    {"n_routing_groups", ROUTER, 5,
     "-1;topk_routing_group=-1 2;topk_routing_group=1 4;topk_routing_group=2 3;topk_routing_group=2"},
    {"routed_bias", ROUTER, 4, "true false"},
    {"routed_scaling_factor", ROUTER, 5, "1 2.5 0.3 16"},
    {"routed_score_func", ROUTER, 3, "sigmoid softmax"},
    {"norm_topk_prob", ROUTER, 4, "true false"},
    {"group_score", ROUTER, 2, "top2_sum max"},
    {"routing_method", ROUTER, 2,
     "Default Renormalize DeepSeekV3 Llama4 TopK SigmoidRenorm MiniMax2 Sigmoid TopKSigmoid"},
    {"decoder_block", ROUTER, 3, "deepseek mixtral qwen3_moe gpt_oss llama4 gemma4 glm4_moe kimi_k2"},
    {"load_balance_loss_weight", ROUTER, 3, "0.1 0"},
    {"load_balance_loss_scope", ROUTER, 1, "sequence batch"},
    {"load_balance_loss_pre_bias", ROUTER, 1, "false true"},
    {"router_z_loss_weight", ROUTER, 2, "0.01 0"},
    {"routed_bias_update_rate", ROUTER, 3, "0.01 0"},

    /* experts */
    {"shared_experts", EXPERTS, 4, "0 1 2 3"},
    {"num_fused_shared_experts", EXPERTS, 1, "0 1"},
    {"sparse_matmul", EXPERTS, 5, "true false"},
    {"capacity_factor", EXPERTS, 4, "-1 1 1.5 0.5"},
    {"prefuse_moe_weights", EXPERTS, 3, "true false"},
    {"fused_moe_func", EXPERTS, 1, "true false"},
    {"apply_router_weight_on_input", EXPERTS, 1, "true false"},
    {"local_num_experts", EXPERTS, 1, "0 1 2"},
    {"mlp_activations", GATED, 5, "silu gelu sigmoid relu"},
    {"mlp_activations_limit", GATED, 4, "0 0.5 7"},
    {"mlp_bias", GATED, 5, "true false"},
    {"fused_mlp", MLP, 4, "true false"},
    {"gmm_layout", GROUPS, 3, "ragged contiguous masked psum k_grouped"},

    /* formats of few bits: each with rules that it has */
    {"quant_format", QUANTIZED, 12,
     "mxfp4;quant_scale=divide;quant_scale_rounding=up mxfp4;quant_scale=divide;quant_scale_rounding=down "
     "mxfp8_e4m3;quant_scale=multiply;quant_scale_rounding=up mxfp8_e5m2;quant_scale=divide;quant_scale_rounding=down "
     "nvfp4;quant_scale=invert;quant_scale_rounding=nearest "
     "nvfp4_16x16;quant_scale=invert;quant_scale_rounding=nearest "
     "fp4_e4m3_1x16;quant_scale=divide;quant_scale_rounding=nearest fp4_1x32;quant_scale=multiply "
     "fp8_e4m3_1x128;quant_scale=invert;quant_scale_rounding=up fp8_e4m3_128x1;quant_scale=divide "
     "fp8_e4m3_128x128;quant_scale=invert fp8_e5m2_1x128;quant_scale=multiply"},
    {"quant_scale", WRITTEN, 4, "divide multiply invert"},
    {"quant_scale_rounding", WRITTEN, 4, "nearest up down"},
    {"quant_scale_layout", QUANTIZED, 4, "row_major swizzled_128x4"},
    {"quant_elements", WRITTEN, 3, "multiply divide"},
    {"quant_ties", WRITTEN, 3, "even down"},
    {"quant_smallest_amax", WRITTEN, 3, "0 1.0e-4"},
    {"quant_subnormal_scale", WRITTEN, 3, "true false"},
    {"quant_saturate", WRITTEN, 3, "true false"},
    {"quant_negative_zero", WRITTEN, 3, "true false"},
    {"pack_codes", QUANTIZED, 3, "true false"},
    {"quant_hidden_format", GATED, 5,
     "fp8_e4m3_1x128 fp8_e4m3_1x128;quant_scale=multiply;quant_smallest_amax=1.0e-4 "
     "fp8_e5m2_1x128;quant_scale=invert;quant_scale_rounding=up mxfp8_e4m3;quant_scale_rounding=up "
     "mxfp8_e4m3;quant_scale_rounding=down;quant_subnormal_scale=false mxfp8_e5m2;quant_scale_rounding=up "
     "mxfp4;quant_scale_rounding=up mxfp4;quant_scale_rounding=down;quant_ties=down "
     "nvfp4;quant_scale=invert;quant_hidden_tensor_scale=2.0e-3 fp4_e4m3_1x16 fp4_1x32;quant_scale=multiply "
     "fp4_1x128;quant_negative_zero=false"},
    {"quant_recipe", GATED | GROUPS | LATENT, 4,
     "deepseek_v3 deepseek_v3;quant_scale_rounding=up fp8_full fp8_full;dtype=float32 "
     "fp8_full;bwd_quantization_calibration_method=fixed,2 fp8_full;bwd_quantization_calibration_method=absmax,0.9"},

    /* attention */
    {"attention_sink", GROUPED | SHARING | ASSAY_PART_MERGE, 3, "true false"},
    {"attention_bias", GROUPED, 3, "true false"},
    {"num_states", ASSAY_PART_MERGE, 2, "1 2-9"},
    {"lse_base", ASSAY_PART_MERGE | DECODE, 2, "e 2"},
    {"empty_row", ASSAY_PART_MERGE | DECODE, 1, "-inf inf"},
    {"lse_layout", DECODE, 1, "BNS BSN"},
    {"return_lse", DECODE, 1, "true false"},
    {"cache_length", DECODE, 2, "1-9 edge"},
    {"pagedattn_num_pages", DECODE, 3, "0;pagedattn_page_stride=0;cache_length=13 40"},
    {"pagedattn_tokens_per_page", DECODE | CACHE, 3, "1 2 4 7 16 64"},
    {"pagedattn_max_pages_per_group", DECODE, 2, "1 2 3 7"},
    {"pagedattn_page_stride", DECODE | CACHE, 1, "0 17 65"},
    {"block_table_padding", DECODE, 1, "-1 2147480000"},
    {"kv_layout", DECODE | CACHE, 2, "NHD HND"},
    {"kv_cache_dtype", CACHE | DECODE, 5,
     "auto fp8_ds_mla;quant_scale_rounding=up;quant_smallest_amax=0.0448;quant_elements=divide "
     "fp8_ds_mla;quant_scale_rounding=nearest fp8_model1;quant_scale_rounding=up fp8_indexer fp8_e4m3 "
     "fp4_indexer;quant_scale_rounding=up;quant_ties=down fp8_e4m3_per_head fp8_e4m3_per_token "
     "mxfp8;quant_scale_rounding=up mxfp8;quant_scale_rounding=down nvfp4;quant_scale=invert"},
    {"cache_rope", CACHE, 3, "true false"},
    {"kv_cache_split", CACHE | DECODE, 3, "true false"},
    {"attn_impl", DECODE, 2, "absorb naive"},
    {"num_kv_splits", DECODE, 3, "0 1 2-9"},
    {"use_indexer", DECODE, 2, "false true;use_chunked_prefill=false;sliding_window_size=0"},
    {"indexer_topk", DECODE, 2, "1 2 5 16"},
    {"use_chunked_prefill", DECODE, 2, "false true;num_kv_splits=0;use_indexer=false"},
    {"prefill_chunk_size", DECODE, 2, "1 2 5 64"},
    {"use_qk_norm", GROUPED, 3, "true false"},
    {"fused_qkv", GROUPED, 2, "true false"},
    {"sliding_window_size", SHARING | LATENT, 4, "0 1 2-9 edge"},
    {"attn_logits_soft_cap", ATTENTION, 3, "0 1 30 50"},
    {"partial_rotary_factor", GROUPED | CACHE, 3, "1 0.5 0.25"},
    {"query_pre_attn_scalar", LATENT | GROUPED | DECODE, 3, "0 1 0.125"},
    {"mscale", LATENT | ROPE | DECODE, 3, "1 0.707 0.1"},
    {"rope_type", ROPE, 4, "default yarn"},
    {"rope_factor", ROPE, 3, "1 4 32 40"},
    {"rope_interleave", ROPE, 5, "true false"},
    {"rope_truncate", ROPE, 3, "true false"},
    {"rope_attention_scaling", ROPE, 3, "true false"},
    {"rope_max_timescale", ROPE, 2, "10000 150000 1000000"},
    {"beta_fast", ROPE, 2, "32 8 16"},
    {"mask_padding", ATTENTION, 2, "true false"},
    {"normalization_layer_epsilon", NORM | LATENT | LAYER, 3, "1e-5 1e-6 1e-3"},

    /* meshes */
    {"mesh.expert", EXPERTS | ATTENTION, 2, "1 2 4"},
    {"mesh.data", EXPERTS | ATTENTION, 2, "1 2"},
    {"mesh.fsdp", EXPERTS | ATTENTION, 2, "1 2"},
    {"mesh.tensor", EXPERTS | ATTENTION, 1, "1 2"},
    {"mesh.mlp_tensor", EXPERTS, 1, "1 2"},
    {"use_ring_of_experts", EXPERTS, 1, "true false"},
    {NULL, 0, 0, NULL},
};

/* harness/mutants/README.md, "What makes bugs show". */
const assay_draw_fill assay_draw_fills[] = {
    {"*", "{distribution: normal, scale: 1}", 4},
    {"*", "{distribution: normal, scale: 0.001}", 3},
    {"*", "{distribution: normal, scale: 0.03}", 3},
    {"*", "{distribution: normal, scale: 30}", 2},
    {"*", "{distribution: normal, scale: 1, mean: 2}", 2},
    {"*", "{distribution: uniform, low: -1, high: 1}", 3},
    {"*", "{distribution: uniform, low: -3, high: -1}", 2},
    {"*", "{distribution: constant, mean: 0.125}", 2},
    {"*", "{distribution: constant, mean: 0}", 2},
    {"*", "{distribution: near_ties, low: -1, high: 1}", 2},
    {"*", "{distribution: row_powers, low: -6, high: 6}", 2},
    {"*", "{distribution: block_powers, scale: 0.0625, low: -4, high: 4}", 1},
    {"*", "{distribution: cancel}", 2},
    {"*", "{distribution: integers, low: -3, high: 3}", 3},
    {"*bias", "{distribution: uniform, low: 10, high: 12}", 4},
    {"*bias", "{distribution: uniform, low: -1, high: 1}", 6},
    {"*bias", "{distribution: near_ties, mean: 12, low: -2, high: 2}", 3},
    {"*gate/bias", "{distribution: normal, scale: 0.14, mean: 34.5}", 4},
    {"*gate/kernel", "{distribution: integers, low: -1, high: 1, scale: 0.5}", 6},
    {"*gate/kernel", "{distribution: constant, mean: 0}", 4},
    {"logits", "{distribution: uniform, low: -9, high: -3}", 4},
    {"logits", "{distribution: integers, low: -4, high: 0}", 6},
    {"logits", "{distribution: normal, scale: 8, mean: -10}", 4},
    {"lhs", "{tail_nan_rows: 3}", 4},
    {"segment_ids", "{distribution: integers, low: 0, high: 2}", 8},
    {"segment_ids", "{distribution: integers, low: 1, high: 2}", 4},
    {"*selected_experts", "{distribution: integers, low: 0, high: 1}", 4},
    {NULL, NULL, 0},
};
