/* Roundings that a profile allows and of which error scales must know. */

#include "harness/scales/ensemble_internal.h"
#include "harness/tests/golden_trial.h"
#include "harness/tests/nearest_arithmetic.h"
#include "tests/support/test_tensors.h"

static bool is_result(const assay_tensor_spec *spec)
{
    return assay_has_error_scale(spec);
}

/* Softmax as a kernel of its own, whose result the gradient reads as it was stored. */
TEST_IN_FOLDER(a_softmax_may_be_stored)
{
    static const char *const names[] = {"attention/narrow-values", "attention/segments", "mla/small"};
    const assay_profile *profile = assay_profile_by_name("bf16");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        OWNED_BY(trial_close) trial t;
        OWNED_BY(test_tensors_free) test_tensors results = {0};
        trial_write(&t, folder, case_named(names[i], "profiles=bf16"));
        const assay_emulation types = {.storage = profile->storage, .stores_parts = true};
        const assay_sink out = test_tensors_sink(&results);
        assay_context kernel = t.ctx;
        kernel.arithmetic = &nearest_arithmetic;
        kernel.emulation = &types;
        assert_ok(&kernel, assay_operation_evaluate(&kernel, t.plan.operation, t.c, &t.source, &out));
        trial_write_candidate(&t, &results.set, profile, is_result);
        OWNED_BY(assay_report_free) assay_report report = trial_compare(&t, profile);
        if (report.verdict != ASSAY_PASS) fail_msg("%s: %s", names[i], report.message);
    }
}

/* Key 29 of a head is seen by few queries, and its gradient is one number, ds = 0.6487, times a query. Of p in bfloat16 ds falls one step of
 * that grid lower, as in oneDNN. Four steps are no rounding. */
TEST_IN_FOLDER(a_gradient_read_from_a_stored_softmax)
{
    const assay_profile *profile = assay_profile_by_name("bf16");
    const double exact = 0.6487, found[] = {165.0 / 256, 162.0 / 256};
    OWNED_BY(trial_close) trial t;
    trial_write(&t, folder, case_named("attention/narrow-values", "profiles=bf16"));
    const assay_tensor *key = assay_tensor_set_find(&t.golden, "gradients/inputs/key");
    const int64_t *sizes = key->spec.shape.dims, wide = sizes[3], first = (sizes[1] + 29) * sizes[2] * wide;
    for (int i = 0; i < 2; i++) {
        OWNED_BY(assay_tensor_set_free) assay_tensor_set results = {0};
        assert_ok(&t.ctx, assay_tensor_set_copy(&t.ctx, &t.golden, &results));
        double *row = assay_tensor_set_find(&results, "gradients/inputs/key")->values + first;
        for (int64_t k = 0; k < wide; k++) row[k] *= found[i] / exact;
        trial_write_candidate(&t, &results, profile, is_result);
        OWNED_BY(assay_report_free) assay_report report = trial_compare(&t, profile);
        if ((report.verdict == ASSAY_PASS) != (i == 0)) fail_msg("%g: %s", found[i], report.message);
    }
}

/* Half of an ensemble's members, and half of those of every other draw. */
TEST(half_of_the_members_store_it)
{
    enum { FEWEST = 8 };
    int stored[2][2] = {0};
    OWNED_BY(trial_close) trial t;
    trial_plan(&t, case_named("attention/seven", NULL));
    for (int m = 0; m < FEWEST; m++) {
        const assay_emulation e = assay_ensemble_member(&t.plan, &t.plan.precisions[0], "ensemble", m);
        stored[e.second_form][e.stores_parts]++;
    }
    for (int i = 0; i < 4; i++) assert_int_equal(stored[i / 2][i % 2], FEWEST / 4);
}

/* One row of attention in float64, its keys in `parts` that are merged by their lse: as flash-decoding and ring attention do. */
static double merged_row(const assay_tensor *const qkv[3], int64_t row, int64_t head, int parts, double *out)
{
    const int64_t *sizes = qkv[0]->spec.shape.dims, heads = sizes[2], deep = sizes[3],
                  wide = qkv[2]->spec.shape.dims[3];
    const int64_t first = row / sizes[1] * sizes[1], keys = row - first + 1;
    const double *q = qkv[0]->values + (row * heads + head) * deep;
    double lses[8], parts_of[8 * 64] = {0}, largest = -INFINITY, sum = 0;
    for (int part = 0; part < parts; part++) {
        double scores[64], most = -INFINITY, l = 0, *o = parts_of + part * 64;
        const int64_t begin = first + keys * part / parts, end = first + keys * (part + 1) / parts;
        for (int64_t k = begin; k < end; k++) {
            double score = 0;
            const double *key = qkv[1]->values + (k * heads + head) * deep;
            for (int64_t d = 0; d < deep; d++) score += q[d] * key[d];
            scores[k - begin] = score;
            most = fmax(most, score);
        }
        for (int64_t k = begin; k < end; k++) {
            const double p = exp(scores[k - begin] - most);
            l += p;
            for (int64_t d = 0; d < wide; d++) o[d] += p * qkv[2]->values[(k * heads + head) * wide + d];
        }
        lses[part] = begin == end ? -INFINITY : most + log(l);
        for (int64_t d = 0; d < wide && begin < end; d++) o[d] /= l;
        largest = fmax(largest, lses[part]);
    }
    for (int part = 0; part < parts; part++) sum += exp(lses[part] - largest);
    const double lse = largest + log(sum);
    for (int64_t d = 0; d < wide; d++) {
        out[d] = 0;
        for (int part = 0; part < parts; part++) out[d] += parts_of[part * 64 + d] * exp(lses[part] - lse);
    }
    return lse;
}

TEST_IN_FOLDER(a_softmax_may_be_merged_from_parts)
{
    static const struct {
        const char *seed, *scale;
        int parts;
    } cases[] = {{"1", "1.3", 2}, {"2", "1.3", 8}, {"3", "3", 3}, {"4", "3", 7}};
    const assay_profile *profile = assay_profile_by_name("f64");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        OWNED_BY(trial_close) trial t;
        char set[TEST_PATH_SIZE];
        OWNED_BY(assay_tensor_set_free) assay_tensor_set results = {0};
        snprintf(set, sizeof set,
                 "profiles=f64;gradients=none;batch=1;sequence=33;base_num_query_heads=2;seed=%s;inputs.query="
                 "{distribution: normal, scale: %s};qk_nope_head_dim=32;qk_rope_head_dim=32;v_head_dim=64",
                 cases[i].seed, cases[i].scale);
        trial_write(&t, folder, case_named("attention/deepseek", set));
        assert_ok(&t.ctx, assay_tensor_set_copy(&t.ctx, &t.golden, &results));
        assay_tensor *out = assay_tensor_set_find(&results, "outputs/attention_out");
        assay_tensor *lse = assay_tensor_set_find(&results, "outputs/lse");
        const assay_tensor *qkv[] = {assay_tensor_set_find(&t.golden, "inputs/query"),
                                     assay_tensor_set_find(&t.golden, "inputs/key"),
                                     assay_tensor_set_find(&t.golden, "inputs/value")};
        const int64_t tokens = out->spec.shape.dims[1], heads = out->spec.shape.dims[2];
        for (int64_t row = 0; row < tokens; row++) {
            for (int64_t head = 0; head < heads; head++) {
                double values[64];
                lse->values[head * tokens + row] = merged_row(qkv, row, head, cases[i].parts, values);
                for (int64_t d = 0; d < 64; d++) out->values[(row * heads + head) * 64 + d] = values[d];
            }
        }
        trial_write_candidate(&t, &results, profile, is_result);
        OWNED_BY(assay_report_free) assay_report report = trial_compare(&t, profile);
        if (report.verdict != ASSAY_PASS)
            fail_msg("seed %s, scale %s, parts %d: %s", cases[i].seed, cases[i].scale, cases[i].parts, report.message);
    }
}

/* The gradient of the values from exponentials of a row, and dout over their sum, both rounded as operands. */
TEST_IN_FOLDER(a_value_gradient_from_exponentials)
{
    static const char *const names[] = {"attention/sharp", "attention/narrow-values"};
    const assay_profile *profile = assay_profile_by_name("tf32");
    for (int n = 0; n < 2; n++) {
        OWNED_BY(trial_close) trial t;
        OWNED_BY(assay_tensor_set_free) assay_tensor_set results = {0};
        trial_write(&t, folder, case_named(names[n], "profiles=tf32"));
        assert_ok(&t.ctx, assay_tensor_set_copy(&t.ctx, &t.golden, &results));
        assay_tensor *gradient = assay_tensor_set_find(&results, "gradients/inputs/value");
        const double *q = assay_tensor_set_find(&t.golden, "inputs/query")->values;
        const assay_tensor *key = assay_tensor_set_find(&t.golden, "inputs/key");
        const double *dout = assay_tensor_set_find(&t.golden, "cotangents/attention_out")->values;
        const int64_t *sizes = key->spec.shape.dims, length = sizes[1], heads = sizes[2], deep = sizes[3];
        const int64_t wide = gradient->spec.shape.dims[3];
        memset(gradient->values, 0, (size_t)gradient->count * sizeof *gradient->values);
        for (int64_t row = 0; row < sizes[0] * length * heads; row++) {
            const int64_t at = row / heads % length, first = row - at * heads;
            double e[256], most = -INFINITY, sum = 0;
            for (int64_t j = 0; j <= at; j++) {
                e[j] = 0;
                for (int64_t d = 0; d < deep; d++)
                    e[j] += q[row * deep + d] * key->values[(first + j * heads) * deep + d];
                most = fmax(most, e[j]);
            }
            for (int64_t j = 0; j <= at; j++) sum += e[j] = exp(e[j] - most);
            for (int64_t j = 0; j <= at; j++) {
                for (int64_t d = 0; d < wide; d++)
                    gradient->values[(first + j * heads) * wide + d] +=
                        assay_dtype_round(profile->multiply, e[j], false) *
                        assay_dtype_round(profile->multiply, dout[row * wide + d] / sum, false);
            }
        }
        trial_write_candidate(&t, &results, profile, is_result);
        OWNED_BY(assay_report_free) assay_report report = trial_compare(&t, profile);
        if (report.verdict != ASSAY_PASS) fail_msg("%s: %s", names[n], report.message);
    }
}

/* What a sink takes as 1 - sigmoid(lse - sink), which automatic differentiation has. */
TEST_IN_FOLDER(a_sinks_gradient_through_a_sigmoid)
{
    const assay_profile *profile = assay_profile_by_name("f32");
    OWNED_BY(trial_close) trial t;
    OWNED_BY(assay_tensor_set_free) assay_tensor_set results = {0};
    trial_write(&t, folder,
                case_named("attention/sinks", "profiles=f32;inputs.weights/sinks={distribution: constant, mean: -7}"));
    assert_ok(&t.ctx, assay_tensor_set_copy(&t.ctx, &t.golden, &results));
    assay_tensor *gradient = assay_tensor_set_find(&results, "gradients/weights/sinks");
    const assay_tensor *lse = assay_tensor_set_find(&t.golden, "outputs/lse");
    const assay_tensor *out = assay_tensor_set_find(&t.golden, "outputs/attention_out");
    const assay_tensor *dout = assay_tensor_set_find(&t.golden, "cotangents/attention_out");
    const int64_t *sizes = out->spec.shape.dims;
    for (int64_t head = 0; head < sizes[2]; head++) {
        float sum = 0;
        for (int64_t row = 0; row < sizes[0] * sizes[1]; row++) {
            float d = 0;
            const float of_row = (float)lse->values[(row / sizes[1] * sizes[2] + head) * sizes[1] + row % sizes[1]];
            const float gate = 1 / (1 + expf(-7 - of_row));
            for (int64_t i = (row * sizes[2] + head) * sizes[3], k = 0; k < sizes[3]; k++)
                d += (float)dout->values[i + k] * ((float)out->values[i + k] / gate);
            sum -= d * gate * (1 - gate);
        }
        gradient->values[head] = (double)sum;
    }
    trial_write_candidate(&t, &results, profile, is_result);
    OWNED_BY(assay_report_free) assay_report report = trial_compare(&t, profile);
    if (report.verdict != ASSAY_PASS) fail_msg("%s", report.message);
}

/* Bfloat16 reaches further down than float16, whose grid is finer elsewhere: only numbers that lie there are rounded. */
TEST(inputs_beyond_the_range_of_a_type_are_rounded)
{
    static const struct {
        const char *name, *set;
        assay_dtype inputs;
    } table[] = {
        {"rms_norm/small-latents", "profiles=f16", ASSAY_FLOAT16},
        {"rms_norm/small-latents", "profiles=f16;dtypes.*=bfloat16", ASSAY_FLOAT64}, /* used as it is given */
        {"rms_norm/small-latents", "profiles=bf16", ASSAY_FLOAT64},
        {"rms_norm/small-latents", "profiles=f32", ASSAY_FLOAT64},
        {"mlp/exact", "profiles=f16;dtype=bfloat16", ASSAY_FLOAT64},
        {"mlp/silu", "profiles=f16;dtype=float32", ASSAY_FLOAT16},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        OWNED_BY(trial_close) trial t;
        assay_precision settled;
        trial_plan(&t, case_named(table[i].name, table[i].set));
        assert_int_equal(t.plan.precision_count, 1);
        assert_ok(&t.ctx, assay_settle_inputs(&t.ctx, &t.plan, &t.source, &settled));
        if (settled.inputs != table[i].inputs)
            fail_msg("%s %s: %s", table[i].name, table[i].set, assay_dtype_name(settled.inputs));
    }
}
