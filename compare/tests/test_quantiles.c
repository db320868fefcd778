/* Quantiles against binary128 and against closed forms. */
#include <float.h>
#include <quadmath.h>

#include "compare/quantiles.h"
#include "tests/support/assay_test.h"

static const double freedoms[] = {1,  1.5, 2,    3,  4,   5,   7,   8,   10,   15,    23,  31, 31.5,
                                  47, 63,  64.5, 99, 127, 255, 511, 999, 4095, 99999, 1e6, 1e7};
enum { FREEDOMS = sizeof freedoms / sizeof *freedoms };

/* The tails of a sweep from DBL_MIN to almost 1/2. */
static bool next_tail(double *log_tail, double step, double *tail)
{
    *log_tail = *log_tail == 0 ? log(DBL_MIN) : *log_tail + step;
    *tail = fmax(exp(*log_tail), DBL_MIN);
    return *tail < 0.499;
}

/* The relative error of a quantile, from what its tail is in binary128. `slope`: of the tail, x times the density. */
static double error_of(__float128 upper, __float128 slope, double tail)
{
    return fabs((double)((upper - tail) / slope));
}

static double normal_error(double x, double tail)
{
    const __float128 q = x, density = expq(-q * q / 2) / sqrtq(2 * M_PIq);
    return error_of(erfcq(q / M_SQRT2q) / 2, q * density, tail);
}

/* 1 / (1 + d1 / (1 + d2 / ...)) of the incomplete beta function (DLMF 8.17.22), by Lentz's method. */
static __float128 beta_fraction(__float128 a, __float128 b, __float128 x)
{
    __float128 numerators = 1, denominators = 0, value = 1, ratio = 0;
    for (int n = 1; fabsq(ratio - 1) > 1e-30Q && n < 1 << 20; n++) {
        const __float128 m = n / 2;
        const __float128 term = n % 2 == 0 ? m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
                                           : -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
        denominators = 1 / (1 + term * denominators);
        numerators = 1 + term / numerators;
        ratio = numerators * denominators;
        value *= ratio;
    }
    return 1 / value;
}

/* The tail as I_z(f/2, 1/2) / 2 with z = f / (f + x^2): no formula that quantiles.c has. */
static double student_error(double x, double tail, double freedom)
{
    const __float128 a = (__float128)freedom / 2, w = x / sqrtq(freedom), z = 1 / (1 + w * w);
    const __float128 beta = expq(lgammaq(a) + lgammaq(0.5Q) - lgammaq(a + 0.5Q));
    const __float128 slope = expq(-a * log1pq(w * w)) * w * sqrtq(z) / beta;
    const __float128 upper = z < (a + 1) / (a + 2.5Q) ? slope / (2 * a) * beta_fraction(a, 0.5Q, z)
                                                      : 0.5Q - slope * beta_fraction(0.5Q, a, 1 - z);
    return error_of(upper, slope, tail);
}

TEST(test_normal_quantile_is_that_of_binary128)
{
    double log_tail = 0, tail, worst = 0;
    while (next_tail(&log_tail, 0.0371, &tail))
        worst = fmax(worst, normal_error(assay_normal_upper_quantile(tail), tail));
    assert_true(worst <= 1e-14);
    assert_true(assay_normal_upper_quantile(0.5) == 0.0);
    assert_false(normal_error(3.0 * (1 + 1e-11), 0.5 * erfc(3.0 / sqrt(2.0))) <= 1e-12); /* the check can fail */
}

TEST(test_student_quantile_is_that_of_binary128)
{
    for (int i = 0; i < FREEDOMS; i++) {
        double log_tail = 0, tail, worst = 0, where = 0;
        while (next_tail(&log_tail, 4.57, &tail)) {
            const double error = student_error(assay_student_upper_quantile(tail, freedoms[i]), tail, freedoms[i]);
            if (error <= worst) continue;
            worst = error;
            where = tail;
        }
        if (!(worst <= 1e-12)) fail_msg("%g degrees of freedom: %g off at %g", freedoms[i], worst, where);
    }
    assert_false(student_error(3.0, 0.5 * (1 - 1e-11), 7) <= 1e-12); /* the check can fail */
}

/* One, two and four degrees of freedom have closed forms; in binary128, for 1 - 4p(1-p) and the like cancel. */
TEST(test_student_quantile_is_the_closed_form)
{
    double log_tail = 0, tail;
    while (next_tail(&log_tail, 1.17, &tail)) {
        const __float128 p = tail, q = 4 * p * (1 - p);
        const __float128 four = cosq(acosq(sqrtq(q)) / 3) / sqrtq(q);
        const double expected[3] = {(double)(1 / tanq(M_PIq * p)), (double)((1 - 2 * p) * sqrtq(2 / q)),
                                    (double)(2 * sqrtq(four - 1))};
        const double found[3] = {assay_student_upper_quantile(tail, 1), assay_student_upper_quantile(tail, 2),
                                 assay_student_upper_quantile(tail, 4)};
        assert_close(found, expected, 3, 1e-12, 0);
    }
}

/* Thresholds do not jump where another formula begins, and grow where the tail or the freedom shrinks. */
TEST(test_student_quantile_has_no_steps)
{
    for (int i = 0; i < FREEDOMS; i++) {
        double log_tail = 0, tail, before = INFINITY;
        while (next_tail(&log_tail, 1.17, &tail)) {
            const double x = assay_student_upper_quantile(tail, freedoms[i]);
            assert_true(x < before && x > 0);
            if (i > 0) assert_true(x < assay_student_upper_quantile(tail, freedoms[i - 1]));
            before = x;
        }
    }
    const double near = assay_student_upper_quantile(0.04, 31),
                 far = assay_student_upper_quantile(nextafter(0.04, 1), 31);
    assert_close(&near, &far, 1, 1e-13, 0);
    assert_true(isinf(assay_student_upper_quantile(DBL_MIN, 0.5))); /* 1e614 */
}
