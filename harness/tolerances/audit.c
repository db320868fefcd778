/* What a rule lets through, found by execution. */
#include <math.h>

#include "harness/tolerances/tolerance.h"

#define ANYTHING 1e30

static int64_t row_length(const assay_tensor *t)
{
    const int rank = t->spec.shape.rank;
    return rank > 0 && t->count > 0 ? t->spec.shape.dims[rank - 1] : 1;
}

/* Each makes a wrong tensor of the golden one. */

static double zeros(const assay_tensor *t, int64_t i)
{
    (void)t, (void)i;
    return 0;
}

static double negated(const assay_tensor *t, int64_t i)
{
    return -t->values[i];
}

static double next_row(const assay_tensor *t, int64_t i)
{
    return t->values[(i + row_length(t)) % t->count];
}

static double next_column(const assay_tensor *t, int64_t i)
{
    const int64_t row = i / row_length(t) * row_length(t);
    return t->values[row + (i - row + 1) % row_length(t)];
}

static double last_row_zero(const assay_tensor *t, int64_t i)
{
    return i >= t->count - row_length(t) ? 0 : t->values[i];
}

static double last_row_anything(const assay_tensor *t, int64_t i)
{
    return i >= t->count - row_length(t) ? ANYTHING : t->values[i];
}

static double rounded_to_fp8(const assay_tensor *t, int64_t i)
{
    return assay_dtype_round(ASSAY_FLOAT8_E4M3FN, t->values[i], true);
}

static const struct {
    const char *name, *text;
    double (*made)(const assay_tensor *t, int64_t i);
} spoilers[] = {
    {"zeros", "zeros pass", zeros},
    {"negated", "all signs may be flipped", negated},
    {"next_row", "every row may be the next one's", next_row},
    {"next_column", "columns may be shifted by one", next_column},
    {"last_row_zero", "the last row may be zeros", last_row_zero},
    {"last_row_anything", "the last row may be anything", last_row_anything},
    {"rounded_to_fp8", "numbers may be rounded to float8_e4m3fn", rounded_to_fp8},
};

/* The same tensor where nothing was changed. */
static bool spoil(const assay_tensor *t, double (*made)(const assay_tensor *t, int64_t i), double *out)
{
    bool changed = false;
    for (int64_t i = 0; i < t->count; i++) {
        out[i] = isfinite(t->values[i]) ? made(t, i) : t->values[i];
        changed |= isfinite(t->values[i]) && out[i] != t->values[i];
    }
    return changed;
}

static bool accepts_scaled(const assay_tolerance *tolerance, const assay_tensor *t, double factor, double *scratch)
{
    for (int64_t i = 0; i < t->count; i++) scratch[i] = factor * t->values[i];
    return assay_tolerance_accepts(tolerance, t->count, t->values, scratch);
}

/* The largest factor that passes: found by bisection, cut to three digits, and tried again. */
static assay_audit_statement search(const assay_tolerance *tolerance, const assay_tensor *t, double *scratch)
{
    enum { STEPS = 60 };
    double low = 1, high = 1e6;
    for (int step = 0; step < STEPS; step++) {
        const double middle = 0.5 * (low + high);
        *(accepts_scaled(tolerance, t, middle, scratch) ? &low : &high) = middle;
    }
    const double unit = pow(10, floor(log10(low)) - 2), factor = floor(low / unit) * unit;
    const bool passes = factor > 1 && accepts_scaled(tolerance, t, factor, scratch);
    return (assay_audit_statement){.name = "scaled",
                                   .text = "all may be scaled by",
                                   .number = passes ? factor : 0,
                                   .applies = true,
                                   .passes = passes};
}

void assay_tolerance_audit(const assay_tolerance *tolerance, const assay_tensor *golden, double *scratch,
                           assay_audit_statement statements[ASSAY_AUDIT_STATEMENTS])
{
    enum { SPOILERS = sizeof spoilers / sizeof *spoilers };
    for (int i = 0; i < SPOILERS; i++) {
        const bool applies = spoil(golden, spoilers[i].made, scratch);
        statements[i] = (assay_audit_statement){
            .name = spoilers[i].name,
            .text = spoilers[i].text,
            .applies = applies,
            .passes = applies && assay_tolerance_accepts(tolerance, golden->count, golden->values, scratch)};
    }
    statements[SPOILERS] = search(tolerance, golden, scratch);
    statements[SPOILERS].applies = statements[0].applies; /* it is not all zeros */
}
