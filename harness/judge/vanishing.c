#include "harness/judge/vanishing.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"

enum { CHUNK = 1 << 16 };

static const char WHY[] = "numbers below 1e-36, of which correct kernels may have 0";

static bool is_of_numbers(const assay_tensor_result *r)
{
    return r->spec.type != ASSAY_INT32 && r->compared && r->finding != ASSAY_FINDING_NONFINITE &&
           r->elements_worst_count > 0;
}

/* A quotient or product of two vanished numbers is no larger. */
static double most_off(void)
{
    return sqrt(FLT_MIN);
}

/* The worst element need not be beyond its threshold, where a row or a statistic is. */
static bool is_off_by_little(const assay_tensor_result *r)
{
    const assay_outlier *worst = &r->elements_worst[0];
    return fmax(r->max_wrong_error, fabs(worst->candidate - worst->golden)) < most_off();
}

/* Whether the tensor has a number below the normal ones, and its largest. */
static assay_status look_at(assay_context *ctx, assay_fixture_reader *golden, const assay_tensor_result *r,
                            bool *subnormal, double *largest)
{
    OWNED double *values = NULL;
    *largest = 0;
    MUST(assay_alloc_f64(ctx, r->spec.path, CHUNK, &values));
    for (int64_t first = 0; first < r->elements; first += CHUNK) {
        const int64_t count = r->elements - first < CHUNK ? r->elements - first : CHUNK;
        MUST(assay_fixture_read(ctx, golden, r->spec.path, first, count, values));
        for (int64_t i = 0; i < count; i++) {
            const double size = fabs(values[i]);
            *subnormal |= size > 0 && size < FLT_MIN;
            *largest = fmax(*largest, size);
        }
    }
    return ASSAY_OK;
}

/* The first wrong tensor; NULL: there is none, or one is wrong by more, or not by its numbers. */
static const assay_tensor_result *first_wrong(const assay_report *report)
{
    const assay_tensor_result *first = NULL;
    for (int i = 0; i < report->count; i++) {
        const assay_tensor_result *r = &report->tensors[i];
        if (r->verdict != ASSAY_FAIL) continue;
        if (!is_of_numbers(r) || !is_off_by_little(r)) return NULL;
        if (first == NULL) first = r;
    }
    return first;
}

static void excuse(assay_tensor_result *r)
{
    char was[sizeof r->message];
    const size_t path = strlen(r->spec.path);
    memcpy(was, r->message, sizeof was);
    r->verdict = ASSAY_NOT_COMPARABLE;
    snprintf(r->message, sizeof r->message, "%s: %s: %.200s", r->spec.path, WHY,
             strlen(was) > path + 2 ? was + path + 2 : "");
}

assay_status assay_judge_vanishing(assay_context *ctx, assay_fixture_reader *golden, const assay_profile *profile,
                                   assay_report *report)
{
    const assay_tensor_result *wrong = first_wrong(report);
    bool subnormal = false, before = true;
    double largest = 0;
    const bool float32 = profile->accumulate_bits <= 23;
    if (report->verdict != ASSAY_FAIL || !float32 || wrong == NULL || report->unknown_count > 0) return ASSAY_OK;
    for (int i = 0; before; i++) {
        const assay_tensor_result *r = &report->tensors[i];
        before = r != wrong;
        if (r->spec.type != ASSAY_INT32) MUST(look_at(ctx, golden, r, &subnormal, &largest));
    }
    if (!subnormal && wrong->elements_worst[0].candidate != 0 && !(largest > most_off())) return ASSAY_OK;
    for (int i = 0; i < report->count; i++) {
        if (report->tensors[i].verdict == ASSAY_FAIL) excuse(&report->tensors[i]);
    }
    report->verdict = ASSAY_NOT_COMPARABLE;
    snprintf(report->message, sizeof report->message, "%s", wrong->message);
    report->diagnosis[0] = '\0';
    return ASSAY_OK;
}
