/* Low-precision implementations of the block over a mesh spread as those on one device. */

#include "oracle/arithmetic/emulated.h"
#include "oracle/moe/tests/sharded_case.h"
#include "tests/support/assay_test.h"

static const char *const wanted[] = {"outputs/*", "gradients/*", NULL};

#define RMS(unit) ((unit)*0.57735026918962576451)
static const assay_precision bf16 = {
    .name = "bf16", .storage = RMS(0x1p-8), .accumulate = RMS(0x1p-24), .router = RMS(0x1p-24), .elementary = 0x1p-22};

/* The sum of squares of the members' errors. */
static double squares_of(test_tensors *members, int count, const assay_tensor *exact)
{
    double squares = 0;
    for (int member = 0; member < count; member++) {
        const assay_tensor *values = moe_case_get(&members[member], exact->spec.path);
        for (int64_t i = 0; i < exact->count; i++) {
            const double error = values->values[i] - exact->values[i];
            assert_true(isfinite(error));
            squares += error * error;
        }
    }
    return squares;
}

/* What is stored where is what it is on one device: with the same seed the same bits, wherever nothing is summed over
 * shards. (llama4 stores its scaled tokens here.) */
TEST(test_stores)
{
    for (int variant = 0; variant < SHARDED_CASES; variant++) {
        for (int64_t shards = 1; shards <= 4 && variant != SHARDED_CASE_LLAMA4; shards *= 2) {
            const assay_emulation emulation = {
                .precision = bf16, .storage = ASSAY_BFLOAT16, .multiply = ASSAY_BFLOAT16, .seed = 3};
            assay_context ctx = assay_context_default(1);
            assay_sharding sharding = sharded_case_mesh(1, 1, shards);
            OWNED_BY(moe_case_free) moe_case c = sharded_case(variant, 4);
            OWNED_BY(test_tensors_free) test_tensors whole = {.wanted = wanted}, actual = {.wanted = wanted};
            ctx.arithmetic = &assay_arithmetic_emulated;
            ctx.emulation = &emulation;
            sharding.ring_of_experts = shards == 1;
            moe_case_run(&ctx, &c, &whole);
            sharded_case_run(&ctx, &c, &sharding, &actual);
            sharded_case_assert_bits(&actual, &whole, "outputs/y");
            sharded_case_assert_bits(&actual, &whole, "gradients/inputs/x");
            if (shards == 1) moe_case_assert_same(&actual, &whole);
        }
    }
}

TEST(test_spread)
{
    enum { MEMBERS = 36 };
    static const int variants[] = {0, SHARDED_CASE_LLAMA4, 3, 5, 6}; /* no clamps, which few members cross */
    for (int i = 0; i < 5; i++) {
        for (int form = 0; form < (variants[i] == SHARDED_CASE_LLAMA4 ? 4 : 5); form++) {
            assay_context ctx = assay_context_default(1);
            assay_sharding sharding = sharded_case_mesh(2, 1, 2);
            OWNED_BY(moe_case_free)
            moe_case c = form == 3 ? sharded_case_wide(variants[i], 4) : sharded_case(variants[i], 4);
            test_tensors whole = {.wanted = wanted}, members[MEMBERS], alone[MEMBERS];
            sharding.ring_of_experts = form == 1 || form == 2;
            sharding.emb_chunks = form == 2 ? 3 : 0;
            sharding.token_chunks = form == 2 ? 2 : 1;
            sharding.tensor_shards = form == 2 ? 2 : 1;
            sharding.mesh.size[ASSAY_AXIS_MLP_TENSOR] = form == 3 ? 3 : 1;
            sharding.weight_before_wo = form == 4;
            moe_case_run(&ctx, &c, &whole);
            for (int member = 0; member < MEMBERS; member++) {
                const assay_emulation emulation = {.precision = bf16,
                                                   .storage = ASSAY_BFLOAT16,
                                                   .multiply = ASSAY_FLOAT64,
                                                   .seed = (uint64_t)member + 1};
                ctx.arithmetic = &assay_arithmetic_emulated;
                ctx.emulation = &emulation;
                members[member] = alone[member] = (test_tensors){.wanted = wanted};
                sharded_case_run(&ctx, &c, &sharding, &members[member]);
                moe_case_run(&ctx, &c, &alone[member]);
            }
            for (int j = 0; j < whole.set.count; j++) {
                const assay_tensor *exact = &whole.set.items[j];
                const double squares = squares_of(members, MEMBERS, exact), of_one = squares_of(alone, MEMBERS, exact);
                const double ratio = squares == of_one ? 1 : sqrt(squares / of_one); /* both may be 0 */
                if (!(ratio > 0.6 && ratio < 2))
                    fail_msg("variant %d, form %d: '%s' spreads %g", variants[i], form, exact->spec.path, ratio);
            }
            for (int member = 0; member < MEMBERS; member++) {
                assay_tensor_set_free(&members[member].set);
                assay_tensor_set_free(&alone[member].set);
            }
            assay_tensor_set_free(&whole.set);
        }
    }
}
