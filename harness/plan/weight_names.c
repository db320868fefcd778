#include "harness/plan/weight_names.h"

#define LINEAR ASSAY_WEIGHT_LINEAR
#define PLAIN ASSAY_WEIGHT_PLAIN
#define VECTOR ASSAY_WEIGHT_VECTOR
#define MXFP4 ASSAY_WEIGHT_MXFP4
#define WHOLE ASSAY_OUTPUTS_WHOLE
#define FIRST ASSAY_OUTPUTS_FIRST
#define SECOND ASSAY_OUTPUTS_SECOND
#define EVEN ASSAY_OUTPUTS_EVEN
#define ODD ASSAY_OUTPUTS_ODD

const assay_weight_name assay_weight_names[] = {
    /* norms of a layer */
    {"input_layernorm.weight", "pre_self_attention_layer_norm/scale", VECTOR, WHOLE, false},
    {"post_attention_layernorm.weight", "post_self_attention_layer_norm/scale", VECTOR, WHOLE, false},

    /* attention: DeepSeek's, then grouped queries */
    {"self_attn.q_a_proj.weight", "self_attention/wq_a/kernel", LINEAR, WHOLE, false},
    {"self_attn.q_a_layernorm.weight", "self_attention/q_norm/scale", VECTOR, WHOLE, false},
    {"self_attn.q_b_proj.weight", "self_attention/wq_b/kernel", LINEAR, WHOLE, false},
    {"self_attn.kv_a_proj_with_mqa.weight", "self_attention/wkv_a/kernel", LINEAR, WHOLE, false},
    {"self_attn.kv_a_layernorm.weight", "self_attention/kv_norm/scale", VECTOR, WHOLE, false},
    {"self_attn.kv_b_proj.weight", "self_attention/wkv_b/kernel", LINEAR, WHOLE, false},
    {"self_attn.q_proj.weight", "self_attention/query/kernel", LINEAR, WHOLE, false},
    {"self_attn.q_proj.bias", "self_attention/query/bias", VECTOR, WHOLE, false},
    {"self_attn.k_proj.weight", "self_attention/key/kernel", LINEAR, WHOLE, false},
    {"self_attn.k_proj.bias", "self_attention/key/bias", VECTOR, WHOLE, false},
    {"self_attn.v_proj.weight", "self_attention/value/kernel", LINEAR, WHOLE, false},
    {"self_attn.v_proj.bias", "self_attention/value/bias", VECTOR, WHOLE, false},
    {"self_attn.q_norm.weight", "self_attention/query_norm/scale", VECTOR, WHOLE, false},
    {"self_attn.k_norm.weight", "self_attention/key_norm/scale", VECTOR, WHOLE, false},
    {"self_attn.sinks", "self_attention/sinks", VECTOR, WHOLE, false},
    {"self_attn.o_proj.weight", "self_attention/out/kernel", LINEAR, WHOLE, false},
    {"self_attn.o_proj.bias", "self_attention/out/bias", VECTOR, WHOLE, false},

    /* routers */
    {"mlp.gate.weight", "moe/gate/kernel", LINEAR, WHOLE, false},
    {"mlp.gate.e_score_correction_bias", "moe/gate/bias", VECTOR, WHOLE, false},
    {"mlp.router.weight", "moe/gate/kernel", LINEAR, WHOLE, false},
    {"mlp.router.bias", "moe/gate/bias", VECTOR, WHOLE, false},
    {"block_sparse_moe.gate.weight", "moe/gate/kernel", LINEAR, WHOLE, false},
    {"mlp.router.gate.weight", "moe/gate/kernel", LINEAR, WHOLE, false},
    {"mlp.gate.wg.weight", "moe/gate/kernel", LINEAR, WHOLE, false},
    {"mlp.expert_bias", "moe/gate/bias", VECTOR, WHOLE, false},
    {"mlp.e_score_correction_bias", "moe/gate/bias", VECTOR, WHOLE, false},
    {"mlp.experts.e_score_correction_bias", "moe/gate/bias", VECTOR, WHOLE, false},
    {"block_sparse_moe.e_score_correction_bias", "moe/gate/bias", VECTOR, WHOLE, false},

    /* experts, each with its own tensors */
    {"mlp.experts.*.gate_proj.weight", "moe/wi_0", LINEAR, WHOLE, false},
    {"mlp.experts.*.up_proj.weight", "moe/wi_1", LINEAR, WHOLE, false},
    {"mlp.experts.*.down_proj.weight", "moe/wo", LINEAR, WHOLE, false},
    {"block_sparse_moe.experts.*.w1.weight", "moe/wi_0", LINEAR, WHOLE, false},
    {"block_sparse_moe.experts.*.w3.weight", "moe/wi_1", LINEAR, WHOLE, false},
    {"block_sparse_moe.experts.*.w2.weight", "moe/wo", LINEAR, WHOLE, false},

    /* all in one tensor: transformers since its fifth version, the same the other way round, vLLM, GPT-OSS */
    {"mlp.experts.gate_up_proj", "moe/wi_0", LINEAR, FIRST, false},
    {"mlp.experts.gate_up_proj", "moe/wi_1", LINEAR, SECOND, false},
    {"mlp.experts.down_proj", "moe/wo", LINEAR, WHOLE, false},
    {"mlp.experts.gate_up_proj", "moe/wi_0", PLAIN, FIRST, false},
    {"mlp.experts.gate_up_proj", "moe/wi_1", PLAIN, SECOND, false},
    {"mlp.experts.down_proj", "moe/wo", PLAIN, WHOLE, false},
    {"mlp.experts.w13_weight", "moe/wi_0", LINEAR, FIRST, false},
    {"mlp.experts.w13_weight", "moe/wi_1", LINEAR, SECOND, false},
    {"mlp.experts.w2_weight", "moe/wo", LINEAR, WHOLE, false},
    {"mlp.experts.gate_up_proj", "moe/wi_0", PLAIN, EVEN, true},
    {"mlp.experts.gate_up_proj", "moe/wi_1", PLAIN, ODD, true},
    {"mlp.experts.down_proj", "moe/wo", PLAIN, WHOLE, true},
    {"mlp.experts.gate_up_proj_blocks", "moe/wi_0", MXFP4, EVEN, true},
    {"mlp.experts.gate_up_proj_blocks", "moe/wi_1", MXFP4, ODD, true},
    {"mlp.experts.down_proj_blocks", "moe/wo", MXFP4, WHOLE, true},
    {"mlp.experts.gate_up_proj_bias", "moe/wi_0_bias", VECTOR, EVEN, true},
    {"mlp.experts.gate_up_proj_bias", "moe/wi_1_bias", VECTOR, ODD, true},
    {"mlp.experts.down_proj_bias", "moe/wo_bias", VECTOR, WHOLE, true},

    /* shared experts, and layers without experts */
    {"mlp.shared_experts.gate_proj.weight", "moe/shared_experts/wi_0/kernel", LINEAR, WHOLE, false},
    {"mlp.shared_experts.up_proj.weight", "moe/shared_experts/wi_1/kernel", LINEAR, WHOLE, false},
    {"mlp.shared_experts.down_proj.weight", "moe/shared_experts/wo/kernel", LINEAR, WHOLE, false},
    {"mlp.shared_experts.gate_up_proj.weight", "moe/shared_experts/wi_0/kernel", LINEAR, FIRST, false},
    {"mlp.shared_experts.gate_up_proj.weight", "moe/shared_experts/wi_1/kernel", LINEAR, SECOND, false},
    {"mlp.shared_expert.gate_proj.weight", "moe/shared_experts/wi_0/kernel", LINEAR, WHOLE, false},
    {"mlp.shared_expert.up_proj.weight", "moe/shared_experts/wi_1/kernel", LINEAR, WHOLE, false},
    {"mlp.shared_expert.down_proj.weight", "moe/shared_experts/wo/kernel", LINEAR, WHOLE, false},
    {"mlp.shared_expert_gate.weight", "moe/shared_expert_gate/kernel", LINEAR, WHOLE, false},
    {"mlp.shared_mlp.gate_proj.weight", "moe/shared_experts/wi_0/kernel", LINEAR, WHOLE, false},
    {"mlp.shared_mlp.up_proj.weight", "moe/shared_experts/wi_1/kernel", LINEAR, WHOLE, false},
    {"mlp.shared_mlp.down_proj.weight", "moe/shared_experts/wo/kernel", LINEAR, WHOLE, false},
    {"mlp.gate_proj.weight", "mlp/wi_0/kernel", LINEAR, WHOLE, false},
    {"mlp.up_proj.weight", "mlp/wi_1/kernel", LINEAR, WHOLE, false},
    {"mlp.down_proj.weight", "mlp/wo/kernel", LINEAR, WHOLE, false},
    {"mlp.gate_up_proj.weight", "mlp/wi_0/kernel", LINEAR, FIRST, false},
    {"mlp.gate_up_proj.weight", "mlp/wi_1/kernel", LINEAR, SECOND, false},
};
const int assay_weight_name_count = sizeof assay_weight_names / sizeof *assay_weight_names;
