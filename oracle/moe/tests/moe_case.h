/* Small MoE blocks with random tensors, for tests. */
#pragma once

#include "oracle/moe/sharded_moe.h"
#include "tests/support/test_tensors.h"

typedef struct moe_case {
    assay_moe_config config;
    bool gate_bias, expert_bias, per_expert_scale, cotangent_lb_loss;
    uint64_t seed;
    test_tensors in;
} moe_case;

/* A block like DeepSeek-V3's: sigmoid scores, a bias that only selects, factor 2.5. */
moe_case moe_case_deepseek3(int64_t batch, int64_t sequence, int64_t experts, int64_t per_token, int64_t emb_dim,
                            int64_t mlp_dim);
/* Fills `in` as the configuration and the flags say. bf16: values on bfloat16's grid. */
void moe_case_fill(moe_case *c, bool bf16);
void moe_case_free(moe_case *c);

/* Runs it and asserts success; results go to `out`. */
void moe_case_run(assay_context *ctx, moe_case *c, test_tensors *out);
const assay_tensor *moe_case_get(const test_tensors *store, const char *path); /* asserts that it is there */

/* Every tensor of `expected` is in `actual`, with the same bits. */
void moe_case_assert_same(const test_tensors *actual, const test_tensors *expected);
/* Within relative * the largest value of the tensor. */
void moe_case_assert_close(const test_tensors *actual, const test_tensors *expected, const char *path, double relative);
