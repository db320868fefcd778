/* Error scales without one member, held against those of an ensemble that never had it. */

#include "harness/scales/ensemble_internal.h"
#include "oracle/base/random.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

enum { MEMBERS = 8, BATCH = 3, ROWS = 40, COLUMNS = 70, COUNT = BATCH * ROWS * COLUMNS };

static const assay_shape shape = {3, {BATCH, ROWS, COLUMNS}};

/* Near Gaussian, of variance 1. */
static double normal(const char *stream, int64_t number)
{
    double sum = 0;
    for (int64_t i = 0; i < 12; i++)
        sum += ldexp((double)(assay_random_bits(3, stream, (uint64_t)(12 * number + i)) >> 11), -53) - 0.5;
    return sum;
}

/* How large element i is: a factor for its row times one for its column. */
static double sigma_of(int64_t i)
{
    return exp(normal("row", i / COLUMNS) + 0.5 * normal("column", i % COLUMNS));
}

/* An error of a member, of variance 1. */
typedef double draw(int member, int64_t i);

static double by_itself(int member, int64_t i)
{
    return normal("element", member * (int64_t)COUNT + i);
}

static double with_its_row(int member, int64_t i)
{
    return normal("by row", member * (int64_t)COUNT + i / COLUMNS);
}

static double with_its_column(int member, int64_t i)
{
    return normal("by column", member * (int64_t)COLUMNS + i % COLUMNS);
}

static double with_all(int member, int64_t i)
{
    (void)i;
    return normal("whole", member);
}

/* An ensemble's errors, and the scales without `out` in two ways: held out, and of an ensemble of the others. */
typedef struct trial {
    float errors[MEMBERS][COUNT];
    double whole[COUNT], squares[COUNT], held[COUNT], others[COUNT];
} trial;

static void add(double *squares, const float *errors)
{
    for (int64_t i = 0; i < COUNT; i++) squares[i] += (double)errors[i] * errors[i];
}

static void evaluate(trial *t, int out)
{
    assay_context ctx = assay_context_default(2);
    OWNED_BY(assay_error_model_free) assay_error_model model = {0};
    OWNED_BY(assay_leave_one_out_free) assay_leave_one_out held = {0};
    for (int64_t i = 0; i < COUNT; i++) t->whole[i] = t->others[i] = 0;
    for (int m = 0; m < MEMBERS; m++) {
        add(t->whole, t->errors[m]);
        if (m != out) add(t->others, t->errors[m]);
    }
    assay_fill_nan(t->held, COUNT);
    assert_ok(&ctx, assay_error_model_fit(&ctx, &shape, MEMBERS, t->whole, &model));
    assay_error_model_scale(&ctx, &model, t->whole);
    assert_ok(&ctx, assay_leave_one_out_start(&ctx, &model, COUNT, t->errors[0], &held));
    assay_leave_one_out_squares(&held, 0, COUNT, t->squares);
    assay_leave_one_out_variances(&held, out, 0, 5, t->squares, t->held); /* in pieces of any size */
    assay_leave_one_out_variances(&held, out, 5, COUNT - 5, t->squares + 5, t->held + 5);
    for (int64_t i = 0; i < COUNT; i++) t->held[i] = sqrt(t->held[i]);
    assert_ok(&ctx, assay_ensemble_smooth(&ctx, &shape, MEMBERS - 1, t->others));
}

TEST(test_like_an_ensemble_of_the_others)
{
    static trial t;
    static draw *const draws[] = {by_itself, with_its_row, with_its_column, with_all};
    for (size_t form = 0; form < sizeof draws / sizeof *draws; form++) {
        double against_whole = 0, against_others = 0;
        for (int m = 0; m < MEMBERS; m++)
            for (int64_t i = 0; i < COUNT; i++) t.errors[m][i] = (float)(sigma_of(i) * draws[form](m, i));
        for (int out = 0; out < MEMBERS; out++) {
            evaluate(&t, out);
            for (int64_t i = 0; i < COUNT; i++) {
                const double ratio = t.held[i] / t.others[i], error = t.errors[out][i];
                if (!(ratio > 0.9 && ratio < 1.11))
                    fail_msg("form %zu, member %d, element %lld: %g", form, out, (long long)i, ratio);
                against_whole += error * error / (t.whole[i] * t.whole[i]) / (MEMBERS * COUNT);
                against_others += error * error / (t.held[i] * t.held[i]) / (MEMBERS * COUNT);
            }
        }
        /* squares over a mean of their own are 1 on average; over that of 7 others 1.4, if all err as one */
        if (!(against_whole < 1.001 && against_others > 1.05 && against_others < 1.6))
            fail_msg("form %zu: mean squares %g and %g", form, against_whole, against_others);
    }
}

/* Of rows and columns without errors nothing follows for others; a row that a member alone has errors in is 0 to the
 * others, exactly; what is not finite counts as no error. */
TEST(test_zeros_and_what_is_not_finite)
{
    static trial t;
    for (int m = 0; m < MEMBERS; m++) {
        for (int64_t i = 0; i < COUNT; i++) {
            const bool zero = i / COLUMNS == 4 || i % COLUMNS == 9 || (i / COLUMNS == 7 && m != 2);
            t.errors[m][i] = zero ? 0 : (float)by_itself(m, i);
        }
        t.errors[m][COUNT - 1] = NAN;
    }
    evaluate(&t, 2);
    for (int64_t i = 0; i < COUNT - 1; i++) {
        const bool zero = i / COLUMNS == 4 || i % COLUMNS == 9 || i / COLUMNS == 7;
        assert_true(zero ? t.held[i] == 0 : t.held[i] > 0.5 && t.held[i] < 2);
    }
    evaluate(&t, 3);
    for (int64_t i = 7 * COLUMNS; i < 8 * COLUMNS; i++) assert_true(i % COLUMNS == 9 || t.held[i] > 0);
}

TEST_WITH_CONTEXT(test_nothing)
{
    const assay_shape none = {2, {0, 3}};
    OWNED_BY(assay_error_model_free) assay_error_model model = {0};
    OWNED_BY(assay_leave_one_out_free) assay_leave_one_out held = {0};
    assert_ok(&ctx, assay_error_model_fit(&ctx, &none, MEMBERS, NULL, &model));
    assert_ok(&ctx, assay_leave_one_out_start(&ctx, &model, 0, NULL, &held));
    assay_leave_one_out_squares(&held, 0, 0, NULL);
    assay_leave_one_out_variances(&held, 0, 0, 0, NULL, NULL);
    assert_null(held.memory);
}
