/* On a kink several gradients are equally right: all of them pass, and others do not. */
#include "harness/tests/golden_trial.h"
#include "oracle/base/step_change.h"

TEST_LABELS(units);

#define KINKED(step)                                                                                                   \
    "case: test/kinks\nop: program\nsizes: {T: 3, D: 4}\n"                                                             \
    "inputs: {x: {axes: [T, D], values: [0, 1, -1, 2, 2, 2, -2, 1, 0, 0, 0, -3]}}\nsteps: {}\n"                        \
    "outputs:\n  y: " step "\nprofiles: [f64, f32, bf16]\n"

static const char *const PROGRAMS[] = {
    KINKED("tanh(abs(x))"),
    KINKED("tanh(relu(x))"),
    KINKED("tanh(clamp(x, low=-1.0, high=2.0))"),
    KINKED("tanh(maximum(x, mul(x, 0.1)))"),
    KINKED("tanh(minimum(x, 0.0))"),
    KINKED("tanh(max(x, over=\"D\"))"),
    KINKED("tanh(max(x, over=\"D\", first=true))"),
};

/* Gradients of the kernel whose slope on every kink is this far from the least to the largest. */
static void give(trial *t, const assay_profile *profile, double by)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set low = {0}, high = {0};
    const assay_step_change least = {.how = ASSAY_STEP_KINKS, .by = 0}, most = {.how = ASSAY_STEP_KINKS, .by = 1};
    assay_context ctx = t->ctx;
    ctx.change = &least;
    trial_run(t, &ctx, &t->source, &low);
    ctx.change = &most;
    trial_run(t, &ctx, &t->source, &high);
    for (int i = 0; i < low.count; i++) {
        assay_tensor *tensor = &low.items[i];
        if (tensor->spec.role != ASSAY_ROLE_GRADIENT) continue;
        for (int64_t k = 0; k < tensor->count; k++)
            tensor->values[k] += by * (high.items[i].values[k] - tensor->values[k]);
    }
    trial_round(&low, profile->storage);
    trial_write_candidate(t, &low, profile, trial_is_result);
}

static const struct {
    double by;
    bool passes;
} KERNELS[] = {{0, true}, {0.25, true}, {0.5, true}, {1, true}, {-0.5, false}, {1.5, false}};

TEST_IN_FOLDER(every_slope_of_a_kink_passes_and_no_other)
{
    static const char *const profiles[] = {"f64", "f32", "bf16"};
    for (size_t i = 0; i < sizeof PROGRAMS / sizeof *PROGRAMS; i++) {
        OWNED_BY(trial_close) trial t;
        bool said = false;
        trial_write(&t, folder, case_from(PROGRAMS[i]));
        for (size_t k = 0; k < sizeof KERNELS / sizeof *KERNELS; k++) {
            for (size_t p = 0; p < sizeof profiles / sizeof *profiles; p++) {
                const assay_profile *profile = assay_profile_by_name(profiles[p]);
                const assay_judging how = trial_judging(profile);
                give(&t, profile, KERNELS[k].by);
                OWNED_BY(assay_report_free) assay_report report = trial_judge(&t, &how);
                if ((report.verdict == ASSAY_PASS) != KERNELS[k].passes)
                    fail_msg("program %d, %g of the way, %s: %s", (int)i, KERNELS[k].by, profiles[p], report.message);
                said |= strstr(report.kinks, "gradients/inputs/x[") != NULL;
            }
        }
        assert_true(said);
    }
}

TEST_IN_FOLDER(without_memory_nothing_is_lost)
{
    trial t;
    trial_write(&t, folder, case_from(PROGRAMS[0]));
    const assay_profile *profile = assay_profile_by_name("f64");
    assay_judging how = trial_judging(profile);
    give(&t, profile, 1);
    for (int64_t n = 0;; n++) {
        assay_report report = {0};
        const assay_status status = trial_try_judge(&t, &how, n, &report);
        const bool done = had_memory(&t.ctx, status);
        if (done) assert_int_equal(report.verdict, ASSAY_PASS);
        assay_report_free(&report);
        if (done) break;
    }
    trial_close(&t);
}
