/* A MoE block with random weights, run by oracle/moe or oracle/mesh through its source and sink. */
#ifndef ASSAY_SPEC_TESTS_SPEC_MOE_CASE_H
#define ASSAY_SPEC_TESTS_SPEC_MOE_CASE_H

#include "oracle/spec/tests/spec_sharded_case.h"

typedef struct moe_variant {
    assay_moe_config config;
    assay_sharding sharding; /* zeroed: one device */
    bool gate_bias, expert_biases, per_expert_scale;
    bool ties;     /* whole numbers in x and the gate: many equal logits */
    bool two_hot;  /* the gate's bias sends every token to the first two experts: the others are empty */
    bool replayed; /* the choice is given */
} moe_variant;

spec_moe_config moe_case_config(const moe_variant *v);

/* Makes the inputs, runs the block and leaves all it gives, gradients too, in the case's results. */
void moe_case_start(spec_case *c, const moe_variant *v, uint64_t seed);

/* Parts of configurations. */
#define SIZES .batch = 2, .sequence = 3, .num_experts = 6, .num_experts_per_tok = 2
#define NO_GROUPS .n_routing_groups = -1, .topk_routing_group = -1
#define GROUPS .n_routing_groups = 3, .topk_routing_group = 2
#define WIDTHS .emb_dim = 5, .moe_mlp_dim = 7
#define DEEPSEEK3 .family = ASSAY_ROUTER_DEEPSEEK3, .routed_scaling_factor = 2.5
#define BALANCE .load_balance_loss_weight = .7, .routed_bias_update_rate = 1e-3

#endif
