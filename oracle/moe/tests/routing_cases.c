#include "oracle/moe/tests/routing_cases.h"

#include <string.h>

#define DEEPSEEK3 .family = ASSAY_ROUTER_DEEPSEEK3, .routed_scaling_factor = 2.5
#define DEEPSEEK2 .family = ASSAY_ROUTER_DEEPSEEK2, .routed_scaling_factor = 16.0
#define DEFAULT .family = ASSAY_ROUTER_DEFAULT
#define GEMMA4 .family = ASSAY_ROUTER_GEMMA4
#define FUSED .family = ASSAY_ROUTER_FUSED
#define GROUPS(n, kept, how) .n_routing_groups = n, .topk_routing_group = kept, .group_score = how
#define BALANCE .load_balance_loss_weight = 0.7, .routed_bias_update_rate = 1e-3

const routing_case CASES[CASE_COUNT] = {
    {"deepseek3",
     {DEEPSEEK3, .score_func = ASSAY_SCORE_SIGMOID, .num_experts_per_tok = 4, GROUPS(7, 3, 0)},
     true,
     0,
     0},
    {"deepseek3 exactly",
     {DEEPSEEK3, .score_func = ASSAY_SCORE_SIGMOID, .num_experts_per_tok = 4, .renormalize_exactly = true},
     true,
     0,
     0},
    {"deepseek3 balance",
     {DEEPSEEK3, .score_func = ASSAY_SCORE_SIGMOID, .num_experts_per_tok = 3, BALANCE},
     true,
     0,
     0},
    {"deepseek3 k=1", {DEEPSEEK3, .score_func = ASSAY_SCORE_SIGMOID, .num_experts_per_tok = 1}, true, 0, 0},
    {"deepseek3 no bias", {DEEPSEEK3, .score_func = ASSAY_SCORE_SIGMOID, .num_experts_per_tok = 3}, 0, 0, 0},
    {"deepseek3 softmax",
     {DEEPSEEK3, .score_func = ASSAY_SCORE_SOFTMAX, .num_experts_per_tok = 3, GROUPS(2, 1, 1), BALANCE},
     true,
     0,
     0},
    {"deepseek3 plain", {DEEPSEEK3, .num_experts_per_tok = 3, BALANCE}, true, 0, 0},
    {"deepseek4", {DEEPSEEK3, .score_func = ASSAY_SCORE_SQRTSOFTPLUS, .num_experts_per_tok = 5}, true, 0, 0},
    {"deepseek4 balance",
     {DEEPSEEK3, .score_func = ASSAY_SCORE_SQRTSOFTPLUS, .num_experts_per_tok = 5, BALANCE},
     true,
     0,
     0},
    {"deepseek4 hash",
     {DEEPSEEK3, .score_func = ASSAY_SCORE_SQRTSOFTPLUS, .num_experts_per_tok = 4, .hash_rows = HASH_ROWS, BALANCE},
     true,
     0,
     0},
    {"deepseek2", {DEEPSEEK2, .score_func = ASSAY_SCORE_SOFTMAX, .num_experts_per_tok = 6, GROUPS(7, 3, 1)}, 0, 0, 0},
    {"deepseek2 balance",
     {DEEPSEEK2, .score_func = ASSAY_SCORE_SOFTMAX, .num_experts_per_tok = 6, BALANCE},
     true,
     0,
     0},
    {"deepseek2 sigmoid", {DEEPSEEK2, .score_func = ASSAY_SCORE_SIGMOID, .num_experts_per_tok = 3}, true, 0, 0},
    {"deepseek2 plain", {DEEPSEEK2, .num_experts_per_tok = 14}, true, 0, 0},
    {"default", {DEFAULT, .num_experts_per_tok = 2}, 0, 0, 0},
    {"default bias", {DEFAULT, .num_experts_per_tok = 4, BALANCE}, true, 0, 0},
    {"default normalised", {DEFAULT, .num_experts_per_tok = 3, .norm_topk_prob = true}, true, true, 0},
    {"default k=1", {DEFAULT, .num_experts_per_tok = 1, .norm_topk_prob = true, BALANCE}, true, true, 0},
    {"default sigmoid", {DEFAULT, .num_experts_per_tok = 3, .score_func = ASSAY_SCORE_SIGMOID, BALANCE}, true, true, 0},
    {"default softmax", {DEFAULT, .num_experts_per_tok = 3, .score_func = ASSAY_SCORE_SOFTMAX, BALANCE}, true, 0, 0},
    {"default hash", {DEFAULT, .num_experts_per_tok = 3, .hash_rows = HASH_ROWS}, true, true, 0},
    {"llama4", {.family = ASSAY_ROUTER_LLAMA4, .num_experts_per_tok = 1, BALANCE}, true, 0, 0},
    {"gemma4", {GEMMA4, .num_experts_per_tok = 4, .norm_topk_prob = true}, 0, true, 0},
    {"gemma4 balance", {GEMMA4, .num_experts_per_tok = 4, BALANCE}, true, true, 0},
    {"fused", {FUSED, .num_experts_per_tok = 4, .norm_topk_prob = true, BALANCE}, true, 0, 0},
    {"fused sigmoid",
     {FUSED, .num_experts_per_tok = 4, .score_func = ASSAY_SCORE_SIGMOID, .norm_topk_prob = true},
     true,
     0,
     0},
    {"fused not divided", {FUSED, .num_experts_per_tok = 3, .score_func = ASSAY_SCORE_SOFTMAX}, 0, 0, 0},
    {"given to deepseek3",
     {DEEPSEEK3, .score_func = ASSAY_SCORE_SIGMOID, .num_experts_per_tok = 4, GROUPS(7, 3, 0), BALANCE},
     true,
     0,
     true},
    {"given to deepseek2", {DEEPSEEK2, .score_func = ASSAY_SCORE_SOFTMAX, .num_experts_per_tok = 4}, true, 0, true},
    {"given to default", {DEFAULT, .num_experts_per_tok = 4, BALANCE}, true, true, true},
    {"given to gemma4", {GEMMA4, .num_experts_per_tok = 4, .norm_topk_prob = true}, true, true, true},
    {"given to fused", {FUSED, .num_experts_per_tok = 4, .norm_topk_prob = true}, true, 0, true},
    {"all experts", {DEEPSEEK3, .score_func = ASSAY_SCORE_SIGMOID, .num_experts_per_tok = 14, BALANCE}, true, 0, 0},
};

const routing_case *case_named(const char *name)
{
    for (int c = 0; c < CASE_COUNT; c++) {
        if (strcmp(CASES[c].name, name) == 0) return &CASES[c];
    }
    return NULL;
}

double case_uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53;
}

double case_normal(uint64_t *state)
{
    double sum = -6.0;
    for (int i = 0; i < 12; i++) sum += case_uniform(state);
    return sum;
}

void fill_case(case_data *data, const routing_case *c)
{
    uint64_t random = 11;
    data->config = c->config;
    data->config.batch = BATCH;
    data->config.sequence = SEQUENCE;
    data->config.num_experts = EXPERTS;
    if (data->config.n_routing_groups == 0) data->config.n_routing_groups = -1;
    const int64_t count = c->config.num_experts_per_tok;
    for (int i = 0; i < TOKENS * EXPERTS; i++) data->logits[i] = (i / EXPERTS == 4 ? 8.0 : 1.5) * case_normal(&random);
    for (int e = 0; e < EXPERTS; e++) data->bias[e] = case_normal(&random);
    for (int e = 0; e < EXPERTS; e++) data->expert_scale[e] = 0.5 + case_uniform(&random);
    for (int i = 0; i < TOKENS * MOST_CHOSEN; i++) data->d_weights[i] = case_normal(&random);
    for (int i = 0; i < HASH_ROWS * count; i++) data->table[i] = (int32_t)((i * 5 + i / count * 3) % EXPERTS);
    for (int t = 0; t < TOKENS; t++) data->input_ids[t] = (t * 3 + 1) % HASH_ROWS;
    for (int i = 0; i < TOKENS * count; i++) data->given[i] = (int32_t)((i * 3 + i / count * 5) % EXPERTS);
    data->in = (assay_routing_inputs){.logits = data->logits,
                                      .bias = c->bias ? data->bias : NULL,
                                      .per_expert_scale = c->expert_scale ? data->expert_scale : NULL,
                                      .tid2eid = c->config.hash_rows > 0 ? data->table : NULL,
                                      .input_ids = c->config.hash_rows > 0 ? data->input_ids : NULL,
                                      .given_experts = c->given ? data->given : NULL};
}

bool has_balance(const case_data *data)
{
    return data->config.load_balance_loss_weight > 0.0 && data->config.hash_rows == 0 &&
           data->config.family != ASSAY_ROUTER_FUSED;
}
