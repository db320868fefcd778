/* Error scales against correct implementations: in another arithmetic, with each rounding to nearest and float32 sums from the
 * last term to the first. Every tensor must pass, and with scales that are not far too large. */

#include "compare/profile.h"
#include "compare/thresholds.h"
#include "harness/plan/results.h"
#include "harness/tests/golden_trial.h"
#include "harness/tests/nearest_arithmetic.h"

TEST_LABELS(slow);

/* The RMS of error over deviation, the rounding of the result included; fails beyond the threshold of an element. */
static double ratio_of(const assay_tensor *golden, const assay_tensor *candidate, const assay_tensor *sigma,
                       const assay_profile *profile)
{
    const double quantile = assay_thresholds_of(1e-6, golden->count, 1, 0).element;
    const double unit = assay_dtype_unit_roundoff(profile->storage);
    const double half = assay_dtype_least_subnormal(profile->storage) / 2;
    double squares = 0, scaled = 0;
    for (int64_t i = 0; i < golden->count; i++) {
        const double value = golden->values[i], scale = sigma->values[i], rounding = fmax(unit * fabs(value), half);
        if (!isfinite(value)) {
            assert_true(value == candidate->values[i] && scale == 0);
            continue;
        }
        const double error = fabs(assay_dtype_round(profile->storage, candidate->values[i], false) - value);
        if (!(error <= quantile * scale + rounding))
            fail_msg("%s %s[%lld]: %g, error %g, scale %g", profile->precision.name, golden->spec.path, (long long)i,
                     value, error, scale);
        if (scale == 0) continue;
        squares += error * error / (scale * scale + rounding * rounding / 3);
        scaled++;
    }
    return scaled > 0 ? sqrt(squares / scaled) : NAN;
}

static void run(trial *t, const assay_arithmetic *arithmetic, const assay_emulation *emulation,
                assay_tensor_set *results)
{
    assay_context candidate = t->ctx;
    candidate.arithmetic = arithmetic;
    candidate.emulation = emulation;
    for (int i = 0; i < t->plan.list.count; i++) {
        const assay_tensor_spec *spec = &t->plan.list.entries[i].spec;
        if (!assay_role_is_input(spec->role)) assert_ok(&t->ctx, assay_tensor_set_add(&t->ctx, results, spec, NULL));
    }
    const assay_sink out = assay_tensor_set_sink(results);
    assert_ok(&candidate, assay_operation_evaluate(&candidate, t->plan.operation, t->c, &t->source, &out));
}

/* A case, and how far its scales may be from errors. most: above 1 where numbers are below the normal ones, of which a scale is no envelope.
 * wide: a scale has a wide berth beside a kink, or covers what cancels in other forms of a function than ours. */
typedef struct scaled_case {
    const char *name, *set;
    double most;
    bool wide;
} scaled_case;

enum { FEW = 8 }; /* elements, whose RMS says nothing */

/* In float32 norms and the like need not be as rough as the profile allows. */
static void check_nearest(trial *t, const assay_profile *profile, double least, double most)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set results = {0};
    const assay_emulation types = {.storage = profile->storage};
    int checked = 0;
    run(t, &nearest_arithmetic, &types, &results);
    for (int i = 0; i < results.count; i++) {
        const char *path = results.items[i].spec.path;
        const assay_tensor *sigma = assay_results_scales(&t->golden, profile, path);
        if (sigma == NULL) continue;
        const double ratio = ratio_of(assay_tensor_set_find(&t->golden, path), &results.items[i], sigma, profile);
        if (isnan(ratio)) continue; /* nothing of it has an error */
        if (!(ratio >= least && ratio < most) && sigma->count >= FEW)
            fail_msg("%s %s %s: %g", t->c->name, profile->precision.name, path, ratio);
        checked++;
    }
    assert_true(checked > 0);
}

/* least: in types of 16 bits, of what is not wide; and in float32. */
static void check(assay_case *c, double most, const double least[2], bool wide)
{
    OWNED_BY(trial_close) trial t;
    trial_evaluate(&t, c, NULL);
    for (int p = 0; p < t.plan.precision_count; p++) {
        const assay_profile *profile = assay_profile_by_name(t.plan.precisions[p].name);
        check_nearest(&t, profile, profile->storage == ASSAY_FLOAT32 ? least[1] : wide ? 0.1 : least[0], most);
    }
}

#define HALVES "checkpoints=all;profiles=[bf16, f16]"
#define THREE "checkpoints=all;profiles=[bf16, f16, f32]"
#define TINY "checkpoints=all;profiles=f16;dtype=float16;inputs.cotangents/y={scale: 1.0e-4}"

/* Roundings that scales must have: the harmonic mean of those of a tensor. */
TEST(test_roundings)
{
#define PROGRAM "{case: a, op: program, dtype: float32, seed: 1, profiles: "
    static const struct {
        const char *text, *path;
        double least;
    } table[] = {
        /* a large bias makes a large sum, whose rounding a softmax of all experts keeps */
        {"{case: a, op: moe, model: {decoder_block: gpt_oss, base_emb_dim: 1, base_moe_mlp_dim: 1, num_experts: 4, "
         "num_experts_per_tok: 4, routed_bias: true, norm_topk_prob: true, fused_moe_func: true, mlp_activations_limit:"
         " 7, mlp_activations: [sigmoid, linear]}, batch: 2, sequence: 2, inputs: {weights/gate/bias: {scale: 0.14, "
         "mean: 34.5}}, gradients: [none], profiles: [bf16]}",
         "error_scale/bf16/routing/weights", 1e-7},
        /* three numbers of the size of x in exp2(x log2e - lse log2e) */
        {PROGRAM "[f32], sizes: {T: 256, E: 2}, inputs: {x: {axes: [T, E], scale: 0.5}, z: {axes: [E], values: [40, "
                 "20]}}, outputs: {p: 'max(softmax(add(x, z), over=\"E\"), over=\"E\")'}}",
         "error_scale/f32/outputs/p", 40 * 0x1p-24 * 0.6},
        /* large scores that the backward computes again, in another order */
        {PROGRAM "[f32], sizes: {B: 8, S: 1, N: 1, H: 64}, inputs: {q: {axes: [B, S, N, H], scale: 30.0}, k: [B, S, N, "
                 "H], v: [B, S, N, H]}, outputs: {y: 'attention(q, k, v)'}}",
         "error_scale/f32/gradients/inputs/v", 1e-6},
        /* ds times the scale, among the smallest numbers of float16 */
        {PROGRAM "[f16], sizes: {B: 1, S: 8, N: 2, H: 64}, inputs: {q: [B, S, N, H], k: [B, S, N, H], v: [B, S, N, H], "
                 "cotangents/y: {scale: 1.0e-5}}, outputs: {y: 'attention(q, k, v)'}}",
         "error_scale/f16/gradients/inputs/k", 2e-8},
        /* a sigmoid that is stored is 1 */
        {PROGRAM "[bf16], sizes: {T: 1}, inputs: {x: {axes: [T], values: [20]}}, outputs: {y: 'sub(1, sigmoid(x))'}}",
         "error_scale/bf16/outputs/y", 0x1p-24},
        /* what cancels at float64, of which members may all have drawn no error */
        {"{case: a, op: program, seed: 5805, profiles: [f64], sizes: {T: 3, D: 26, E: 13, K: 2}, inputs: {x: {axes: "
         "[T, "
         "D], scale: 10.0}}, weights: {gate: [D, E]}, steps: {z: 'product(\"TD,DE->TE\", x, gate)', i: "
         "'top_k(\"E->K\", z)', c: 'pick(softmax(z, over=\"E\"), i)'}, outputs: {w: 'div(c, sum(c, over=\"K\"))'}}",
         "error_scale/f64/gradients/inputs/x", 1e-18},
        /* gates that no number of float16 is have no logarithm: a run that took it would overflow */
        {PROGRAM "[f16], fused: all, sizes: {T: 2, F: 1}, inputs: {x: {axes: [T, F], values: [-30, -30]}, b: [T, F]}, "
                 "outputs: {y: 'linear_scan(sigmoid(x), b, over=\"T\")'}}",
         "error_scale/f16/gradients/inputs/x", 1e-30}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        OWNED_BY(trial_close) trial t;
        double sum = 0;
        trial_evaluate(&t, case_from(table[i].text), NULL);
        const assay_tensor *scale = assay_tensor_set_find(&t.golden, table[i].path);
        for (int64_t k = 0; k < scale->count; k++) sum += 1 / scale->values[k];
        assert_true((double)scale->count / sum >= table[i].least);
    }
}

TEST(test_scales_of_parts)
{
    static const scaled_case table[] = {
        {"rms_norm/prime-width", THREE, 1.05, false},
        {"rms_norm/true-width", THREE, 1.05, false},
        {"rms_norm/small-latents", TINY, 1.3, false},
        {"gmm/rows-15-16-17", THREE, 1.05, false},
        {"gmm/padded-tail", THREE, 1.05, false},
        {"permute/no-expert", "profiles=bf16", 1.05, false},
        {"unpermute/primes", HALVES, 1.05, false},
        {"mlp/silu", THREE, 1.05, false},
        {"mlp/silu", TINY ";inputs.x={scale: 1.0e-2}", 1.3, false},
        {"mlp/gelu-fused", THREE, 1.05, false},
        {"mlp/gelu-exact", THREE, 1.05, true},
        {"mlp/relu", HALVES, 1.05, true},
        {"mlp/two-activations", HALVES, 1.05, false},
        {"mlp/biases", THREE, 1.05, false},
        {"mlp/gpt-oss-clamp", HALVES, 1.05, true},
        {"mlp/deepseek4-clamp", HALVES, 1.05, true},
        {"routing/deepseek3-groups", THREE, 1.05, false},
        {"routing/softmax-factor-2.5", THREE, 1.05, false},
        {"routing/deepseek2-16b", THREE, 1.05, false},
        {"routing/gpt-oss", THREE, 1.05, false},
        {"routing/sqrtsoftplus", THREE, 1.05, false},
        {"routing/mixtral", THREE, 1.05, false},
        {"routing/gemma4", THREE, 1.05, false},
        {"routing/llama4", THREE, 1.05, false},
        {"routing/balance", THREE, 1.05, false},
        {"routing/balance-softmax", THREE, 1.05, false},
        {"moe/small", THREE, 1.05, false},
        {"moe/small", TINY, 1.3, false},
        {"moe/deepseek3-tiny-dense", THREE, 1.05, false},
        {"moe/mixtral-capacity-tight", HALVES, 1.05, false},
        {"moe/balance", HALVES, 1.05, false},
        {"moe/llama4", THREE, 1.05, false},
        {"moe/llama4", TINY, 1.3, false},
        {"moe/gpt-oss", HALVES, 1.05, true},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        check(case_named(table[i].name, table[i].set), table[i].most, (const double[]){0.25, 0}, table[i].wide);
}

#define SMALL                                                                                                          \
    "config: {base_emb_dim: 40, base_mlp_dim: 24, base_moe_mlp_dim: 24, base_num_query_heads: 2, num_experts: 6,"      \
    " num_experts_per_tok: 2, qk_nope_head_dim: 24, qk_rope_head_dim: 16, v_head_dim: 24,"                             \
    " base_num_decoder_layers: 2, first_num_dense_layers: 1}\nmodel: deepseek3-tiny\nbatch: 2\ncheckpoints: all\n"

/* Padding of attention, whose lse is -infinity; keys in more than one block. Grouped-query attention with all that it may have: the first
 * layer's window is short. */
TEST(test_scales_of_layers)
{
    static const char *const table[] = {
        "case: a\nop: yarn_rope\nsequence: 8\nprofiles: [bf16, f32]\n" SMALL,
        "case: a\nop: attention\nsequence: 24\nprofiles: [bf16, f16]\n"
        "inputs: {segment_ids: {distribution: integers, low: 0, high: 2}}\n" SMALL,
        "case: a\nop: attention\nsequence: 180\nprofiles: [bf16, f32]\n" SMALL,
        "case: a\nop: mla\nsequence: 13\nprofiles: [bf16, f32]\n" SMALL,
        "case: a\nop: deepseek_layer\nsequence: 8\nprofiles: [f16]\n" SMALL,
        "case: a\nop: deepseek_stack\nsequence: 8\nprofiles: [bf16]\n" SMALL,
        "case: a\nop: decoder_stack\nsequence: 8\nseed: 7\nprofiles: [bf16]\nmodel: gpt-oss-20b\nbatch: "
        "2\ncheckpoints: all\n"
        "config: {base_emb_dim: 40, base_moe_mlp_dim: 24, base_num_query_heads: 16, base_num_kv_heads: 4, head_dim: 4,"
        " num_experts: 6, num_experts_per_tok: 2, base_num_decoder_layers: 2, sliding_window_size: 3}\n",
        "case: a\nop: decoder_layer\nsequence: 8\nprofiles: [f16]\nmodel: qwen3-30b-a3b\nbatch: 2\ncheckpoints: all\n"
        "config: {base_emb_dim: 40, base_moe_mlp_dim: 24, base_num_query_heads: 4, base_num_kv_heads: 1, head_dim: 16,"
        " num_experts: 6, num_experts_per_tok: 2, fused_qkv: true}\n"};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        check(case_from(table[i]), 1.05, (const double[]){0.35, 0.05}, false);
}
