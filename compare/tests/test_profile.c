#include "compare/profile.h"
#include "compare/thresholds.h"
#include "tests/support/assay_test.h"

TEST(test_profiles)
{
    static const char *const names[] = {"f64", "f32",  "bf16",        "bf16_router",      "bf16_sums",
                                        "f16", "tf32", "tpu_default", "fp8_e4m3_block128"};
    int count = 0;
    const assay_profile *profiles = assay_profiles(&count);
    assert_int_equal(count, 9);
    for (int i = 0; i < count; i++) {
        const assay_profile *p = &profiles[i];
        assert_string_equal(p->precision.name, names[i]);
        const assay_precision derived = assay_profile_precision(p);
        assert_true(derived.storage == p->precision.storage && derived.multiply == p->precision.multiply &&
                    derived.accumulate == p->precision.accumulate && derived.router == p->precision.router &&
                    derived.elementary == p->precision.elementary);
        double rms = assay_dtype_unit_roundoff(p->storage) / sqrt(3.0); /* of one rounding */
        assert_close(&p->precision.storage, &rms, 1, 1e-15, 0.0);
        assert_true(p->precision.accumulate <= p->precision.storage);
        const bool scaled = strcmp(names[i], "fp8_e4m3_block128") == 0;
        assert_int_equal(p->precision.accumulator.block, scaled ? 128 : 0);
        assert_int_equal(p->precision.scaled.block, scaled ? 128 : 0);
        assert_ptr_equal(assay_profile_by_name(names[i]), p);
        assert_true(strlen(p->summary) > 0);
        assert_non_null(strstr(assay_profile_names(), names[i]));
        /* operands that lose something on their way into a product */
        const double lost = assay_dtype_unit_roundoff(p->multiply) / sqrt(3.0);
        const double multiply = p->multiply == p->storage ? 0 : lost;
        assert_close(&p->precision.multiply, &multiply, 1, 1e-15, 0.0);
        assert_false(p->any_of_tied);
        assert_int_equal(p->statistics, p->storage == ASSAY_FLOAT64 ? ASSAY_FLOAT64 : ASSAY_FLOAT32);
        if (p->coarser != NULL || scaled) continue; /* not the first of its type */
        assert_ptr_equal(assay_profile_by_name(assay_dtype_name(p->storage)), p);
        assert_ptr_equal(assay_profile_for_dtype(p->storage), p);
    }
    assert_ptr_equal(assay_profile_for_dtype(ASSAY_TFLOAT32), assay_profile_by_name("tf32"));
    assert_null(assay_profile_by_name("fp8"));
    assert_null(assay_profile_by_name("int32"));
    assert_null(assay_profile_by_name(""));
    assert_null(assay_profile_for_dtype(ASSAY_INT32));
    assert_null(assay_profile_for_dtype(ASSAY_FLOAT8_E4M3FN));
}

/* The threshold's own tail, from erfc, adds up to the stated probability. */
TEST(test_thresholds)
{
    static const int64_t counts[] = {1, 2, 1000, 1000000000};
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 4; j++) {
            for (int64_t statistics = 0; statistics < 9; statistics += 8) {
                const assay_thresholds t = assay_thresholds_of(1e-6, counts[i], counts[j], statistics);
                const double elements = (double)counts[i] * erfc(t.element / sqrt(2.0));
                const double rows = (double)counts[j] * erfc(t.row / sqrt(2.0));
                const double part = statistics > 0 ? 1e-6 / 3 : 0.5e-6,
                             tails = 2.0 * (double)statistics * t.statistic_tail;
                assert_close(&elements, &part, 1, 1e-9, 0.0);
                assert_close(&rows, &part, 1, 1e-9, 0.0);
                assert_close(&tails, statistics > 0 ? &part : &t.statistic_tail, 1, 1e-9, 0.0);
            }
        }
    }
    assert_true(assay_thresholds_of(1e-300, 1000000000, 1, 0).element < 40.0);
    assert_true(assay_thresholds_of(0.5, 0, 0, 0).element > 1.0);
}

/* Few draws say little: the quantile of a normal one, and far more of a few. */
TEST(test_quantiles)
{
    const assay_thresholds t = {.statistic_tail = 1e-9};
    assert_true(assay_statistic_quantile(&t, 1e9) > 5.9 && assay_statistic_quantile(&t, 1e9) < 6.1);
    assert_true(assay_statistic_quantile(&t, 16) > 1.5 * assay_statistic_quantile(&t, 1e9));
    assert_true(assay_statistic_quantile(&t, 8) > assay_statistic_quantile(&t, 16));
}
