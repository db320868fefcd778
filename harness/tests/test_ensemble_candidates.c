/* Error scales of the operations that take them from an ensemble, against correct implementations in another
 * arithmetic: each rounding to nearest, and float32 sums from the last term to the first.
 * Every tensor must pass, and with scales that are not far too large. */
#include <math.h>

#include "compare/profile.h"
#include "compare/thresholds.h"
#include "harness/plan/results.h"
#include "harness/tests/golden_trial.h"
#include "harness/tests/nearest_arithmetic.h"
#include "tests/support/test_tensors.h"

/* The RMS of error over deviation, the rounding of the result included; fails beyond the threshold of an element. */
static double ratio_of(const assay_tensor_spec *spec, const double *golden, const double *candidate,
                       const double *sigma, const assay_profile *profile)
{
    const int64_t count = assay_shape_count(&spec->shape);
    const double unit = assay_dtype_unit_roundoff(profile->storage);
    const double quantile = assay_thresholds_of(1e-6, count, 1, 0).element;
    double squares = 0;
    int64_t scaled = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(golden[i])) {
            assert_true(golden[i] == candidate[i] && sigma[i] == 0);
            continue;
        }
        const double error =
            fabs(stored(&(assay_context){.emulation = &(assay_emulation){.storage = profile->storage}}, candidate[i]) -
                 golden[i]);
        const double rounding = unit * fabs(golden[i]);
        if (!(error <= quantile * sigma[i] + rounding))
            fail_msg("%s %s[%lld]: %g, error %g, scale %g", profile->precision.name, spec->path, (long long)i,
                     golden[i], error, sigma[i]);
        if (sigma[i] == 0) continue;
        squares += error * error / (sigma[i] * sigma[i] + rounding * rounding / 3);
        scaled++;
    }
    return scaled > 0 ? sqrt(squares / (double)scaled) : NAN;
}

static void check(const char *yaml)
{
    trial t;
    trial_evaluate(&t, case_from(yaml), NULL);
    assert_true(t.plan.operation->ensemble(t.c));
    for (int p = 0; p < t.plan.precision_count; p++) {
        test_tensors results = {0};
        const assay_profile *profile = assay_profile_by_name(t.plan.precisions[p].name);
        const assay_emulation types = {.storage = profile->storage};
        assay_context candidate = t.ctx;
        candidate.arithmetic = &nearest_arithmetic;
        candidate.emulation = &types;
        const assay_sink out = test_tensors_sink(&results);
        assert_ok(&candidate, t.plan.operation->run(&candidate, t.c, &t.source, &out, NULL, 0));
        /* In float32 norms and the like need not be as rough as the profile allows. */
        const double least = profile->storage == ASSAY_FLOAT32 ? 0.05 : 0.35;
        int checked = 0;
        for (int i = 0; i < t.plan.list.count; i++) {
            const assay_tensor_spec *spec = &t.plan.list.entries[i].spec;
            const assay_tensor *sigma = assay_results_scales(&t.golden, profile, spec->path);
            if (sigma == NULL) continue;
            const double ratio =
                ratio_of(spec, assay_tensor_set_find(&t.golden, spec->path)->values,
                         assay_tensor_set_find(&results.set, spec->path)->values, sigma->values, profile);
            if (isnan(ratio)) continue; /* nothing of it has an error */
            if (!(ratio > least && ratio < 1.05)) fail_msg("%s %s: %g", profile->precision.name, spec->path, ratio);
            checked++;
        }
        assert_true(checked > 0);
        assay_tensor_set_free(&results.set);
    }
    trial_close(&t);
}

#define SMALL                                                                                                          \
    "config: {base_emb_dim: 40, base_mlp_dim: 24, base_moe_mlp_dim: 24, base_num_query_heads: 2, num_experts: 6,"      \
    " num_experts_per_tok: 2, qk_nope_head_dim: 24, qk_rope_head_dim: 16, v_head_dim: 24,"                             \
    " base_num_decoder_layers: 2, first_num_dense_layers: 1}\nmodel: deepseek3-tiny\nbatch: 2\ncheckpoints: all\n"

TEST(test_rope)
{
    check("case: a\nop: yarn_rope\nsequence: 8\nprofiles: [bf16, f32]\n" SMALL);
}

/* Padding too: its lse is -infinity. */
TEST(test_attention)
{
    check("case: a\nop: attention\nsequence: 24\nprofiles: [bf16, f16]\n"
          "inputs: {segment_ids: {distribution: integers, low: 0, high: 2}}\n" SMALL);
}

TEST(test_mla)
{
    check("case: a\nop: mla\nsequence: 13\nprofiles: [bf16, f32]\n" SMALL);
}

TEST(test_layer)
{
    check("case: a\nop: deepseek_layer\nsequence: 8\nprofiles: [f16]\n" SMALL);
}

TEST(test_stack)
{
    check("case: a\nop: deepseek_stack\nsequence: 8\nprofiles: [bf16]\n" SMALL);
}

/* Grouped-query attention with all that it may have; the first layer's window is short. */
TEST(test_grouped_stack)
{
    check(
        "case: a\nop: decoder_stack\nsequence: 8\nseed: 7\nprofiles: [bf16]\nmodel: gpt-oss-20b\nbatch: "
        "2\ncheckpoints: all\n"
        "config: {base_emb_dim: 40, base_moe_mlp_dim: 24, base_num_query_heads: 16, base_num_kv_heads: 4, head_dim: 4,"
        " num_experts: 6, num_experts_per_tok: 2, base_num_decoder_layers: 2, sliding_window_size: 3}\n");
}

TEST(test_normalised_heads)
{
    check(
        "case: a\nop: decoder_layer\nsequence: 8\nprofiles: [f16]\nmodel: qwen3-30b-a3b\nbatch: 2\ncheckpoints: all\n"
        "config: {base_emb_dim: 40, base_moe_mlp_dim: 24, base_num_query_heads: 4, base_num_kv_heads: 1, head_dim: 16,"
        " num_experts: 6, num_experts_per_tok: 2, fused_qkv: true}\n");
}
