#include "compare/findings.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "compare/outliers.h"
#include "compare/slices.h"

static void judge(assay_tensor_result *result, assay_verdict verdict, assay_finding finding, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* "outputs/y: " and the rest of the sentence. */
static void judge(assay_tensor_result *result, assay_verdict verdict, assay_finding finding, const char *format, ...)
{
    va_list arguments;
    int length = snprintf(result->message, sizeof result->message, "%s: ", result->spec.path);
    result->verdict = verdict;
    result->finding = finding;
    va_start(arguments, format);
    vsnprintf(result->message + length, sizeof result->message - (size_t)length, format, arguments);
    va_end(arguments);
}

static void judge_missing(const char *kind, assay_tensor_result *result)
{
    if (!result->required) {
        judge(result, ASSAY_PASS, ASSAY_FINDING_MISSING, "not given (optional)");
    } else if (kind != NULL && strcmp(kind, "candidate") != 0) {
        judge(result, ASSAY_FAIL, ASSAY_FINDING_MISSING, "missing: the file's kind is %.32s, not candidate", kind);
    } else {
        judge(result, ASSAY_FAIL, ASSAY_FINDING_MISSING, "missing: never written");
    }
}

static bool judge_type(const assay_profile *profile, assay_tensor_result *result)
{
    assay_dtype found = result->candidate_type, expected = result->spec.type;
    if (expected == ASSAY_INT32 && found != ASSAY_INT32) {
        judge(result, ASSAY_FAIL, ASSAY_FINDING_TYPE, "type is %s, expected integers", assay_dtype_name(found));
        return true;
    }
    if (expected == ASSAY_INT32) return false;
    if (found == ASSAY_INT32) {
        judge(result, ASSAY_FAIL, ASSAY_FINDING_TYPE,
              "type is int32, expected a float type; bits of one need the attribute float_type");
        return true;
    }
    const assay_dtype kept = assay_profile_type_of(profile, &result->spec);
    if (!(assay_dtype_unit_roundoff(found) <= assay_dtype_unit_roundoff(kept))) {
        judge(result, ASSAY_FAIL, ASSAY_FINDING_TYPE, "type is %s, coarser than profile %s allows: %s or finer",
              assay_dtype_name(found), profile->precision.name, assay_dtype_name(kept));
        return true;
    }
    return false;
}

bool assay_judge_structure(const assay_profile *profile, const assay_tensor_spec *found, const char *kind,
                           assay_tensor_result *result)
{
    char expected[160], shape[160];
    if (found == NULL) {
        judge_missing(kind, result);
        return true;
    }
    if (!assay_shape_equal(&found->shape, &result->spec.shape)) {
        assay_shape_text(&result->spec.shape, expected, sizeof expected);
        assay_shape_text(&found->shape, shape, sizeof shape);
        judge(result, ASSAY_FAIL, ASSAY_FINDING_SHAPE, "shape is %s, expected %s", shape, expected);
        return true;
    }
    return judge_type(profile, result);
}

static void judge_nonfinite(const assay_profile *profile, const assay_facts *facts, assay_tensor_result *result)
{
    char place[ASSAY_INDEX_TEXT];
    assay_element_text(&result->spec.shape, facts->first_nonfinite, place);
    bool overflow = isfinite(facts->first_golden) &&
                    fabs(facts->first_golden) > assay_dtype_max(assay_profile_type_of(profile, &result->spec));
    judge(result, ASSAY_FAIL, ASSAY_FINDING_NONFINITE,
          "%" PRId64 " of %" PRId64 " elements are NaN or infinite where the golden is not so, the first %s: golden "
          "%.6g, candidate %g%s%s",
          facts->nonfinite, result->elements, place, facts->first_golden, facts->first_candidate,
          overflow ? "; the golden is too large for " : "",
          overflow ? assay_dtype_name(assay_profile_type_of(profile, &result->spec)) : "");
}

static void judge_unequal(assay_tensor_result *result)
{
    char place[ASSAY_INDEX_TEXT];
    const assay_outlier *worst = &result->elements_worst[0];
    assay_element_text(&result->spec.shape, worst->index, place);
    judge(result, ASSAY_FAIL, ASSAY_FINDING_INTEGERS,
          "%" PRId64 " of %" PRId64 " %s differ and must be equal, the first %s: golden %.17g, candidate %.17g",
          result->wrong_elements, result->elements,
          result->spec.type == ASSAY_INT32 ? "integers" : "elements of an exact case", place, worst->golden,
          worst->candidate);
}

static void judge_elements(assay_tensor_result *result)
{
    char place[ASSAY_INDEX_TEXT], excess[64];
    const assay_outlier *worst = &result->elements_worst[0];
    assay_element_text(&result->spec.shape, worst->index, place);
    snprintf(excess, sizeof excess, "%.3g times the threshold", worst->excess);
    judge(result, ASSAY_FAIL, ASSAY_FINDING_ELEMENTS,
          "%" PRId64 " of %" PRId64 " elements beyond their threshold, the worst %s: golden %.6g, candidate %.6g, %s",
          result->wrong_elements, result->elements, place, worst->golden, worst->candidate,
          isfinite(worst->excess) ? excess : "which must be equal");
}

static void judge_rows(assay_tensor_result *result)
{
    char place[ASSAY_INDEX_TEXT];
    const assay_outlier *worst = &result->rows_worst[0];
    assay_row_text(&result->spec.shape, worst->index, place);
    if (result->rows == 1) {
        judge(result, ASSAY_FAIL, ASSAY_FINDING_ROWS,
              "no element alone, but all together beyond the threshold: RMS golden %.6g, candidate %.6g, error %.3g "
              "times the threshold",
              worst->golden, worst->candidate, worst->excess);
        return;
    }
    judge(result, ASSAY_FAIL, ASSAY_FINDING_ROWS,
          "%" PRId64 " of %" PRId64 " rows beyond their threshold, the worst row %s: RMS golden %.6g, candidate %.6g, "
          "error %.3g times the threshold",
          result->wrong_rows, result->rows, place, worst->golden, worst->candidate, worst->excess);
}

static bool statistic_is_wrong(const assay_tensor_result *result)
{
    const int worst = result->worst_statistic;
    return worst >= 0 && !(result->statistics[worst].excess <= 1);
}

static void judge_statistic(assay_tensor_result *result)
{
    const int s = result->worst_statistic;
    static const assay_finding findings[] = {ASSAY_FINDING_SIZE, ASSAY_FINDING_BIAS, ASSAY_FINDING_SLOPE,
                                             ASSAY_FINDING_SIGN, ASSAY_FINDING_TOWARD_ZERO};
    char slice[ASSAY_SLICE_TEXT], text[ASSAY_SLICE_TEXT];
    assay_slice_text(result, s, slice);
    assay_statistic_text(result, s, text);
    judge(result, ASSAY_FAIL, s <= ASSAY_STATISTIC_TOWARD_ZERO ? findings[s] : ASSAY_FINDING_SLICE,
          "no element or row alone, but %s%s%s, %.3g times as far out as allowed", slice, slice[0] != '\0' ? ": " : "",
          text, result->statistics[s].excess);
}

static void judge_unscaled(const assay_profile *profile, const char *scales, const char *left_out,
                           assay_tensor_result *result)
{
    const bool own = assay_profile_by_name(profile->precision.name) == NULL;
    result->compared = false;
    if (result->spec.role == ASSAY_ROLE_ROUTING) {
        judge(result, ASSAY_PASS, ASSAY_FINDING_NO_SCALE, "not compared: the golden has no error scale for it");
    } else if (left_out != NULL) {
        judge(result, ASSAY_NOT_COMPARABLE, ASSAY_FINDING_NO_SCALE, "the golden has no profile %s: %s",
              profile->precision.name, left_out);
    } else if (own) {
        judge(result, ASSAY_NOT_COMPARABLE, ASSAY_FINDING_NO_SCALE,
              "the golden has error scales for %.48s, not for the profile %s: assay calibrate adds them",
              scales[0] == '\0' ? "nothing" : scales, profile->precision.name);
    } else if (scales[0] == '\0') {
        judge(result, ASSAY_NOT_COMPARABLE, ASSAY_FINDING_NO_SCALE,
              "the golden has no error scales; generate it again with --set profiles=%s", profile->precision.name);
    } else {
        judge(result, ASSAY_NOT_COMPARABLE, ASSAY_FINDING_NO_SCALE,
              "the golden has error scales for %.48s; generate it again with --set profiles=%s", scales,
              profile->precision.name);
    }
}

static void judge_golden(const assay_facts *facts, assay_tensor_result *result)
{
    char place[ASSAY_INDEX_TEXT];
    bool nan = facts->golden_nan >= 0;
    assay_element_text(&result->spec.shape, nan ? facts->golden_nan : facts->bad_scale, place);
    judge(result, ASSAY_NOT_COMPARABLE, nan ? ASSAY_FINDING_NONFINITE : ASSAY_FINDING_NO_SCALE,
          nan ? "the golden is NaN at %s" : "the golden's error scale at %s is negative or not finite", place);
}

void assay_judge_values(const assay_profile *profile, const assay_facts *facts, const char *scales,
                        const char *left_out, assay_tensor_result *result)
{
    result->compared = true;
    if (scales != NULL && left_out != NULL) {
        judge_unscaled(profile, scales, left_out, result); /* a correct candidate may overflow there */
    } else if (facts->nonfinite > 0) {
        judge_nonfinite(profile, facts, result);
    } else if (result->wrong_elements > 0 && result->exact) {
        judge_unequal(result);
    } else if (result->wrong_elements > 0) {
        judge_elements(result);
    } else if (result->wrong_rows > 0) {
        judge_rows(result);
    } else if (statistic_is_wrong(result)) {
        judge_statistic(result);
    } else if (scales != NULL) {
        judge_unscaled(profile, scales, left_out, result);
    } else if (facts->golden_nan >= 0 || facts->bad_scale >= 0) {
        judge_golden(facts, result);
    } else if (facts->zeros_pass && !(facts->all_zero && result->exact) && result->elements > 0) {
        judge(result, ASSAY_VACUOUS, ASSAY_FINDING_NONE, "zeros would pass at this precision");
    } else {
        result->verdict = ASSAY_PASS;
    }
}

void assay_judge_rules(const char *broken, assay_tensor_result *result)
{
    result->compared = true;
    result->verdict = ASSAY_PASS;
    if (broken != NULL) judge(result, ASSAY_FAIL, ASSAY_FINDING_INTEGERS, "breaks a rule: %.200s", broken);
}

void assay_judge_unreadable(const char *why, assay_tensor_result *result)
{
    judge(result, ASSAY_FAIL, ASSAY_FINDING_TYPE, "cannot be read: %.200s", why);
}
