/* By Newton's method on the tail itself. What it is applied to is convex or concave, so that after one step it comes from one
 * side, whatever it started from; it ends where a step no longer goes on. */
#include "compare/quantiles.h"

#include <float.h>
#include <math.h>

enum { MOST_STEPS = 200, NODES = 84 };
#define NODE_STEP 0.0625

static const double PI = 3.14159265358979323846264, SQRT_PI = 1.77245385090551602729817,
                    SQRT_2 = 1.41421356237309504880169, ROOT_OF_TWO_PI = 2.50662827463100050241577;

/* The logarithm of the tail is concave. */
double assay_normal_upper_quantile(double tail)
{
    double x = tail < 0.1 ? sqrt(-2.0 * log(tail)) : (0.5 - tail) * ROOT_OF_TWO_PI;
    for (int i = 0; i < MOST_STEPS; i++) {
        const double upper = 0.5 * erfc(x / SQRT_2), density = exp(-0.5 * x * x) / ROOT_OF_TWO_PI;
        const double step = log1p((upper - tail) / tail) * (upper / density);
        x += step;
        if (fabs(step) <= DBL_EPSILON * fabs(x)) break;
    }
    return x;
}

/* Gamma(a + 1/2) / Gamma(a): Stirling's series of the logarithm from 32 on (its next term is below 1e-16 there), and below
 * that the recurrence. */
static double gamma_ratio(double a)
{
    double before = 1.0;
    for (; a < 32.0; a += 1.0) before *= a / (a + 0.5);
    const double inverse = 1.0 / a, square = inverse * inverse;
    const double series = inverse * (-1.0 / 8 + square * (1.0 / 192 + square * (-1.0 / 640 + square * (17.0 / 14336))));
    return before * sqrt(a) * exp(series);
}

/* The trapezoidal rule for an integral from 0 to infinity, over v = width exp(pi/2 sinh t). */
typedef struct nodes {
    double place[2 * NODES + 1], weight[2 * NODES + 1];
} nodes;

static void find_nodes(nodes *n)
{
    for (int k = 0; k <= 2 * NODES; k++) {
        const double t = (k - NODES) * NODE_STEP;
        n->place[k] = exp(0.5 * PI * sinh(t));
        n->weight[k] = 0.5 * PI * NODE_STEP * n->place[k] * cosh(t);
    }
}

/* How often x times the density there goes into the tail beyond: the integral of the ratio of densities at x (1 + v) and at x.
 * All terms are positive, and nothing cancels, however many degrees of freedom there are. */
static double student_mass(const nodes *n, double x, double freedom)
{
    const double root = sqrt(freedom) / x, at = 1.0 + root * root; /* (f + x^2) / x^2 */
    const double width = 1.0 / ((freedom + 1.0) / at + x / (1.0 + x));
    double sum = 0.0;
    for (int k = 0; k <= 2 * NODES; k++) {
        const double v = width * n->place[k];
        sum += exp(-0.5 * (freedom + 1.0) * log1p(v * (2.0 + v) / at)) * n->weight[k];
    }
    return width * sum;
}

static double student_log_density(double x, double freedom)
{
    const double w = x / sqrt(freedom), log_peak = log(gamma_ratio(0.5 * freedom) / (SQRT_PI * sqrt(freedom)));
    return log_peak -
           0.5 * (freedom + 1.0) * (w < 1e8 ? log1p(w * w) : 2.0 * log(w)); /* a larger square may overflow */
}

/* Near the middle: the tail is convex there, and the normal quantile, from which it starts, lies to the left. */
static double student_near(const nodes *n, double tail, double freedom, double x)
{
    for (int i = 0; i < MOST_STEPS; i++) {
        const double step = x * student_mass(n, x, freedom) - tail / exp(student_log_density(x, freedom));
        x += step;
        if (fabs(step) <= DBL_EPSILON * x) break;
    }
    return x;
}

/* Further out: the logarithm of the tail by that of x, which is concave, and a line where x is large. */
static double student_far(const nodes *n, double tail, double freedom, double x)
{
    double y = log(x);
    for (int i = 0; i < MOST_STEPS && y < log(DBL_MAX); i++) {
        x = exp(y);
        const double mass = student_mass(n, x, freedom);
        const double step = (student_log_density(x, freedom) + y + log(mass) - log(tail)) * mass;
        y += step;
        if (fabs(step) <= DBL_EPSILON * fmax(1.0, fabs(y))) break;
    }
    return exp(y);
}

double assay_student_upper_quantile(double tail, double freedom)
{
    const double normal = assay_normal_upper_quantile(tail);
    nodes n;
    if (!(normal > 0.0)) return normal;
    find_nodes(&n);
    return tail > 0.04 ? student_near(&n, tail, freedom, normal) : student_far(&n, tail, freedom, normal);
}
