/* Cases with the tag `exact` at the shapes of tiles are what the tag says: each number that a kernel stores is one of the
 * storage type, in every profile. And wrong kernels that leave out a tail, or start a group a row off, fail by equality. */
#include "compare/profile.h"
#include "harness/power/power_test.h"
#include "harness/tests/golden_trial.h"

TEST_LABELS(slow);

/* Of two keys with one score lse holds ln 2, which nothing that follows forward takes. */
static bool is_stored(const assay_tensor *tensor)
{
    if (strcmp(tensor->spec.path, "checkpoints/lse") == 0) return false;
    const assay_tensor_role role = tensor->spec.role;
    return tensor->values != NULL &&
           (role == ASSAY_ROLE_OUTPUT || role == ASSAY_ROLE_GRADIENT || role == ASSAY_ROLE_CHECKPOINT);
}

/* How many numbers are none of the type. */
static int64_t outside(const assay_tensor_set *golden, assay_dtype type)
{
    int64_t count = 0;
    for (int i = 0; i < golden->count; i++) {
        const assay_tensor *tensor = &golden->items[i];
        for (int64_t k = 0; is_stored(tensor) && k < tensor->count; k++)
            count += tensor->values[k] != assay_dtype_round(type, tensor->values[k], false);
    }
    return count;
}

static int64_t outside_of_case(assay_case *c, const char *profile)
{
    OWNED_BY(trial_close) trial t;
    trial_evaluate(&t, c, NULL);
    const int64_t count = outside(&t.golden, assay_profile_by_name(profile)->storage);
    return count;
}

TEST(results_are_numbers_of_the_storage_type)
{
    int count = 0, seen = 0;
    assay_case *cases = all_cases(&count);
    for (int i = 0; i < count; i++) {
        if (!has_tag(&cases[i], "exact-tile")) continue;
        seen++;
        for (int p = 0; p < cases[i].profiles.count; p++) {
            const char *profile = cases[i].profiles.items[p];
            const int64_t wrong = outside_of_case(case_named(cases[i].name, "checkpoints=all"), profile);
            if (wrong != 0) fail_msg("%s: %lld numbers are none of %s", cases[i].name, (long long)wrong, profile);
        }
    }
    assert_true(seen >= 23);
    assay_cases_free(cases, count);
}

/* What the check is for: sums that need more bits than bfloat16 has. */
TEST(sums_of_more_bits_are_seen)
{
    static const char *const set = "inputs.lhs={distribution: integers, low: -90, high: 90}";
    assert_true(outside_of_case(case_named("gmm/exact-k136", set), "bf16") > 1000);
    assert_int_equal(outside_of_case(case_named("gmm/exact-k136", set), "f32"), 0);
}

/* The last 8 of a contraction, a group that starts a row off, a mask that is a key off: seen at the coarsest type. */
TEST(tails_and_offsets_fail_by_equality)
{
    static const char *const wrong[] = {"contraction_cut_to_64", "contraction_cut_to_128", "contraction_tail",
                                        "group_offset",          "next_key_seen",          "mask_off_by_one"};
    static const char *const names[] = {"gmm/exact-k136", "gmm/exact-one-hot", "moe/exact-k136",   "moe/exact-pairs",
                                        "mlp/exact-k136", "gqa/exact-one-hot", "mla/exact-one-hot"};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        trial t;
        OWNED_BY(assay_power_test_free) assay_power_test found = {0};
        trial_evaluate(&t, case_named(names[n], NULL), NULL);
        for (int i = 0; i < t.plan.spec_count; i++) {
            assay_tensor *scale = &t.golden.items[i];
            if (t.plan.specs[i].role == ASSAY_ROLE_ERROR_SCALE)
                memset(scale->values, 0, (size_t)scale->count * sizeof(double));
        }
        assert_ok(&t.ctx,
                  assay_power_test_run(&t.ctx, &t.plan, &t.golden, assay_profile_by_name("bf16"), 1e-6, NULL, &found));
        int seen = 0;
        for (int i = 0; i < assay_mutant_count; i++) {
            const assay_mutant_result *r = &found.items[i];
            for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
                if (strcmp(r->mutant->name, wrong[w]) != 0 || r->outcome == ASSAY_MUTANT_NOT_APPLICABLE) continue;
                if (r->outcome != ASSAY_MUTANT_DETECTED) fail_msg("%s: %s is not detected", names[n], wrong[w]);
                seen++;
            }
        }
        assert_true(seen >= 3);
        trial_close(&t);
    }
}
