/* Every family with every option, small: the table that the tests of routing and of its error scales walk. */
#pragma once

#include "oracle/moe/routing.h"

enum {
    BATCH = 2,
    SEQUENCE = 3,
    TOKENS = BATCH * SEQUENCE,
    EXPERTS = 14,
    MOST_CHOSEN = 14,
    HASH_ROWS = 5,
    CASE_COUNT = 33
};

typedef struct routing_case {
    const char *name;
    assay_routing_config config; /* without sizes, but for num_experts_per_tok */
    bool bias, expert_scale, given;
} routing_case;

extern const routing_case CASES[CASE_COUNT];
const routing_case *case_named(const char *name); /* NULL when there is none */

typedef struct case_data {
    assay_routing_config config;
    double logits[TOKENS * EXPERTS], bias[EXPERTS], expert_scale[EXPERTS], d_weights[TOKENS * MOST_CHOSEN];
    int32_t table[HASH_ROWS * MOST_CHOSEN], input_ids[TOKENS], given[TOKENS * MOST_CHOSEN];
    assay_routing_inputs in;
} case_data;

/* In [0,1), and roughly normal: what the bounds of the gauge's tests were found with. */
double case_uniform(uint64_t *state);
double case_normal(uint64_t *state);

/* Inputs from a seed. */
void fill_case(case_data *data, const routing_case *c);
/* Whether the case has an lb_loss. */
bool has_balance(const case_data *data);
