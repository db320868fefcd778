#include "oracle/ops/glu.h"
#include "oracle/ops/tests/ops_test.h"

TEST(test_beyond_a_clamp_nothing_moves)
{
    static const struct {
        double a, b;
        bool a_moves, b_moves;
    } CASES[] = {{1, 1, true, true},      {2, 2, true, true},       {2, -2, true, true}, {2.001, 1, false, true},
                 {1, 2.001, true, false}, {1, -2.001, true, false}, {-9, 1, true, true}, {3, 3, false, false}};
    const assay_context ctx = assay_context_default(1);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        for (int form = ASSAY_GLU_GPT_OSS; form <= ASSAY_GLU_CLAMPED; form++) {
            const assay_gated_mlp_config config = {
                .activation = {ASSAY_SILU, ASSAY_LINEAR}, .glu = (assay_glu)form, .limit = 2};
            const double dh = 1;
            double da = NAN, db = NAN;
            assay_glu_backward(&ctx, &da, &db, &dh, &CASES[i].a, &CASES[i].b, 1, &config);
            assert_true(isfinite(da) && (da != 0) == CASES[i].a_moves);
            assert_true(isfinite(db) && (db != 0) == CASES[i].b_moves);
        }
    }
}

/* GPT-OSS's gate with an alpha of 1. */
TEST(test_alpha_of_1_is_silu)
{
    const assay_context ctx = assay_context_default(1);
    const assay_gated_mlp_config config = {.glu = ASSAY_GLU_GPT_OSS, .limit = 2, .alpha = 1};
    for (double a = -8; a < 3; a += 0.37) {
        const double b = 0, dh = 1, clamped = fmin(a, 2);
        double silu = NAN, slope = NAN, h = NAN, da = NAN, db = NAN;
        assay_activation_many(&ctx, ASSAY_SILU, 1, &clamped, &silu, &slope);
        assay_glu_forward(&ctx, &h, &a, &b, 1, &config);
        assay_glu_backward(&ctx, &da, &db, &dh, &a, &b, 1, &config);
        assert_true(fabs(h - silu) < 1e-15 && fabs(db - silu) < 1e-15);
        assert_true(fabs(da - (a > 2 ? 0 : slope)) < 1e-15);
    }
}
