/* Propagated error scales of the MoE block against the spread of its emulated runs: the two are held against the same
 * candidates, and null distributions are members of the one over scales of the other. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "oracle/arithmetic/emulated.h"
#include "oracle/moe/tests/moe_case.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

#define RMS(unit_roundoff) ((unit_roundoff)*0.57735026918962576451)

enum { MEMBERS = 12, TENSORS = 24 };

static const assay_precision bf16 = {.name = "bf16",
                                     .storage = RMS(0x1p-8),
                                     .accumulate = ASSAY_FLOAT32_RMS,
                                     .router = ASSAY_FLOAT32_RMS,
                                     .elementary = 0x1p-22,
                                     .least = 0x1p-133};
static const assay_precision f16 = {.name = "f16",
                                    .storage = RMS(0x1p-11),
                                    .accumulate = ASSAY_FLOAT32_RMS,
                                    .router = ASSAY_FLOAT32_RMS,
                                    .elementary = 0x1p-22,
                                    .least = 0x1p-24};

/* The cotangents' size, and that of the weights beside an ordinary one. */
typedef struct sizes {
    double cotangents, weights;
} sizes;

static moe_case make_case(const sizes *size, bool llama4, assay_dtype grid)
{
    moe_case c = moe_case_deepseek3(2, 12, 6, llama4 ? 1 : 3, 24, 20);
    c.seed = 5;
    c.config.shared_mlp_dim = 16;
    c.weight_scale = size->weights;
    if (llama4) c.config.routing.family = ASSAY_ROUTER_LLAMA4;
    if (llama4) c.config.routing.score_func = ASSAY_SCORE_NONE;
    if (llama4) c.gate_bias = false;
    moe_case_fill(&c, true);
    for (int i = 0; i < c.in.set.count; i++) {
        const assay_tensor *tensor = &c.in.set.items[i];
        const double factor = strcmp(tensor->spec.path, "cotangents/y") == 0 ? size->cotangents : 1;
        for (int64_t j = 0; tensor->values != NULL && j < tensor->count; j++)
            tensor->values[j] = assay_dtype_round(grid, factor * tensor->values[j], false);
    }
    return c;
}

/* Sum of squared errors of one tensor over its sum of variances. */
static double spread(const assay_tensor *member, const assay_tensor *golden, const assay_tensor *scale)
{
    double squares = 0, variances = 0;
    for (int64_t i = 0; i < golden->count; i++) {
        const double error = member->values[i] - golden->values[i];
        squares += error * error;
        variances += scale->values[i] * scale->values[i];
    }
    return squares == 0 && variances == 0 ? NAN : squares / variances;
}

/* Stochastic rounding has twice the variance of rounding to nearest. Above the normal numbers sigma is an envelope, so
 * that less of it is left; where both ways of weighing count, less as well. Emulated products round all operands to
 * storage; gradients of logits, which a router keeps in float32, may come to nothing there with small weights. */
static void check(const assay_precision *precision, assay_dtype storage, const sizes *size, bool llama4)
{
    assay_context ctx = assay_context_default(2), member = ctx;
    assay_emulation emulation = {.precision = *precision, .storage = storage, .multiply = storage};
    test_tensors golden = {0};
    moe_case c = make_case(size, llama4, storage);
    double sums[TENSORS] = {0};
    int checked = 0;
    member.arithmetic = &assay_arithmetic_emulated;
    member.emulation = &emulation;
    moe_case_run(&ctx, &c, &golden, precision, 1);
    for (int number = 0; number <= MEMBERS; number++) {
        test_tensors drawn = {0};
        emulation.seed = (uint64_t)number;
        if (number < MEMBERS) moe_case_run(&member, &c, &drawn, NULL, 0);
        for (int i = 0, at = 0; i < golden.set.count; i++) {
            const char *path = golden.set.items[i].spec.path;
            char name[2 * ASSAY_PATH_SIZE];
            snprintf(name, sizeof name, "error_scale/%s/%s", precision->name, path);
            const assay_tensor *scale = assay_tensor_set_find(&golden.set, name);
            if (scale == NULL || strncmp(path, "checkpoints/", 12) == 0) continue;
            if (size->weights < 1 && strcmp(path, "gradients/weights/gate/kernel") == 0) continue;
            assert_true(at < TENSORS);
            if (number < MEMBERS) {
                sums[at] += spread(moe_case_get(&drawn, path), &golden.set.items[i], scale) / MEMBERS;
            } else if (!isnan(sums[at])) {
                print_message("%-46s %-5s %.2f\n", path, precision->name, sums[at]);
                assert_true(sums[at] > 0.3 && sums[at] < 2.1);
                checked++;
            }
            at++;
        }
        assay_tensor_set_free(&drawn.set);
    }
    assert_true(checked >= 8);
    assay_tensor_set_free(&golden.set);
    moe_case_free(&c);
}

TEST(test_bfloat16)
{
    const sizes ordinary = {1, 1};
    check(&bf16, ASSAY_BFLOAT16, &ordinary, false);
    check(&bf16, ASSAY_BFLOAT16, &ordinary, true);
}

/* The gradients, then hidden values too, below 2^-14. */
TEST(test_below_the_normal_numbers_of_float16)
{
    const sizes gradients = {0x1p-13, 1}, both = {0x1p-6, 0x1p-5};
    for (int llama4 = 0; llama4 < 2; llama4++) {
        check(&f16, ASSAY_FLOAT16, &gradients, llama4 != 0);
        check(&f16, ASSAY_FLOAT16, &both, llama4 != 0);
    }
}
