#include "harness/tolerances/tolerance.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    size_t field;
    double most;
} members[] = {{"atol", offsetof(assay_tolerance, atol), 1e300},
               {"rtol", offsetof(assay_tolerance, rtol), 1e300},
               {"largest", offsetof(assay_tolerance, largest), 1e300},
               {"matched", offsetof(assay_tolerance, matched), 1},
               {"diff", offsetof(assay_tolerance, diff), 2}};

assay_status assay_tolerance_parse(assay_context *ctx, const char *text, assay_tolerance *tolerance)
{
    enum { MEMBERS = sizeof members / sizeof *members };
    bool seen[MEMBERS] = {false}, ok = true;
    *tolerance = (assay_tolerance){.matched = 1, .diff = INFINITY};
    for (const char *rest = text; ok; rest++) {
        char name[16];
        double number = -1;
        int used = 0, i = 0;
        ok = sscanf(rest, "%15[a-z]=%lf%n", name, &number, &used) == 2;
        while (ok && i < MEMBERS && strcmp(members[i].name, name) != 0) i++;
        ok = ok && i < MEMBERS && !seen[i] && number >= 0 && number <= members[i].most;
        if (ok) *(double *)((char *)tolerance + members[i].field) = number;
        if (ok) seen[i] = true;
        rest += used;
        if (*rest == '\0') break;
        ok = ok && *rest == ',';
    }
    if (!seen[0] && !seen[1] && !seen[2]) tolerance->atol = INFINITY; /* the rest alone is a rule, too */
    if (ok) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT,
                      "--audit is \"%.200s\", expected numbers from 0 up as atol=5e-3,rtol=0, of atol, rtol, largest, "
                      "matched (up to 1) and diff (up to 2)",
                      text);
}

bool assay_tolerance_accepts(const assay_tolerance *t, int64_t count, const double *golden, const double *candidate)
{
    double largest = 0, sizes = 0, products = 0;
    int64_t off = 0;
    for (int64_t i = 0; t->largest > 0 && i < count; i++)
        if (isfinite(golden[i])) largest = fmax(largest, fabs(golden[i]));
    const double atol = t->atol + t->largest * largest;
    for (int64_t i = 0; i < count; i++) {
        const double right = golden[i], found = candidate[i];
        if (right == found || (isnan(right) && isnan(found))) {
            if (isfinite(right)) sizes += 2 * right * right, products += right * right;
            continue;
        }
        if (!isfinite(right) || !isfinite(found)) return false;
        off += !(fabs(found - right) <= atol + t->rtol * fabs(right));
        sizes += right * right + found * found;
        products += right * found;
    }
    if ((double)off > (1 - t->matched) * (double)count) return false;
    return isinf(t->diff) || sizes == 0 || 1 - 2 * products / sizes <= t->diff;
}

bool assay_tolerance_accepts_tensor(const assay_tolerance *t, const assay_tensor *golden, const assay_tensor *candidate)
{
    if (golden->count > 0 && !assay_tensor_is_complete(candidate)) return false;
    if (golden->indices != NULL)
        return memcmp(golden->indices, candidate->indices, (size_t)golden->count * sizeof *golden->indices) == 0;
    return assay_tolerance_accepts(t, golden->count, golden->values, candidate->values);
}

/* The number of two digits that is not below x. */
static double round_up(double x)
{
    if (!(x > 0)) return 0;
    const double unit = pow(10, floor(log10(x)) - 1);
    return ceil(x / unit * (1 - 0x1p-50)) * unit * (1 + 0x1p-50);
}

/* The least atol beside that rtol; *at: the golden value that asks for it. */
static double least_atol(int64_t count, const double *golden, const double *thresholds, double rtol, double *at)
{
    double atol = 0;
    *at = 0;
    for (int64_t i = 0; i < count; i++) {
        const double left = thresholds[i] - rtol * fabs(golden[i]);
        if (!isfinite(golden[i]) || !(left > atol)) continue;
        atol = left;
        *at = fabs(golden[i]);
    }
    return atol;
}

/* What is allowed on average, atol + rtol * mean, is convex in rtol, and falls where the element that asks for atol is
 * larger than the mean. */
assay_tolerance assay_tolerance_fit(int64_t count, const double *golden, const double *thresholds)
{
    enum { STEPS = 60 };
    double sum = 0, low = 0, high = 0, at;
    int64_t finite = 0;
    for (int64_t i = 0; i < count; i++) {
        const double size = fabs(golden[i]);
        if (!isfinite(size)) continue;
        sum += size;
        finite++;
        if (size > 0) high = fmax(high, thresholds[i] / size);
    }
    const double mean = finite > 0 ? sum / (double)finite : 0;
    least_atol(count, golden, thresholds, 0, &at);
    if (at <= mean) high = 0;
    for (int step = 0; step < STEPS; step++) {
        const double middle = 0.5 * (low + high);
        least_atol(count, golden, thresholds, middle, &at);
        *(at > mean ? &low : &high) = middle;
    }
    const double rtol = round_up(high);
    return (assay_tolerance){.rtol = rtol,
                             .atol = round_up(least_atol(count, golden, thresholds, rtol, &at)),
                             .matched = 1,
                             .diff = INFINITY};
}
