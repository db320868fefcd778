#include "compare/compare_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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
    const assay_dtype kept =
        assay_is_kept_as_codes(&result->spec) ? result->spec.kept_as : assay_profile_type_of(profile, &result->spec);
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

/* Two numbers of float32 lie on the grid of bfloat16 by chance once in 2^32. Error scales that allow for a rounding to that type, as of
 * the score that the log-sum-exp over one key is, allow a mean square of 1. */
static const char *coarse_type(const assay_facts *facts)
{
    for (int k = 0; k < ASSAY_COARSE_TYPES; k++) {
        const double count = (double)facts->coarse[k], most = count + 2 * sqrt(2 * count);
        if (facts->coarse[k] > 1 && facts->fine[k] == 0 && facts->coarse_squares[k] > most)
            return assay_dtype_name(assay_coarse_types[k]);
    }
    return NULL;
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
    } else if (coarse_type(facts) != NULL) {
        judge(result, ASSAY_FAIL, ASSAY_FINDING_TYPE,
              "all elements are numbers of %s, coarser than profile %s allows: %s or finer", coarse_type(facts),
              profile->precision.name, assay_dtype_name(assay_profile_type_of(profile, &result->spec)));
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

const char *assay_verdict_name(assay_verdict verdict)
{
    static const char *const names[] = {"PASS", "FAIL", "VACUOUS", "NOT COMPARABLE", "UNSUPPORTED"};
    return names[verdict];
}

const char *assay_verdict_color(assay_verdict verdict)
{
    return verdict == ASSAY_PASS ? "\033[32m" : verdict == ASSAY_FAIL ? "\033[31m" : "\033[33m";
}

void assay_routing_text(const assay_routing_summary *routing, char text[512])
{
    text[0] = '\0';
    if (!routing->judged) {
        if (routing->message[0] != '\0') snprintf(text, 512, "routing: %s", routing->message);
        return;
    }
    snprintf(text, 512, "routing: %" PRId64 " tokens: %" PRId64 " exact, %" PRId64 " admissible, %" PRId64 " wrong%s",
             routing->tokens, routing->exact, routing->admissible, routing->wrong,
             routing->evaluated_again ? "; compared with the golden evaluated again given the candidate's choice" : "");
}

static const assay_tensor_result *first_of(const assay_report *report, assay_verdict verdict)
{
    for (int i = 0; i < report->count; i++) {
        if (report->tensors[i].verdict == verdict) return &report->tensors[i];
    }
    return NULL;
}

static void say_passed(assay_report *report)
{
    int compared = 0, vacuous = 0;
    const assay_tensor_result *first = first_of(report, ASSAY_VACUOUS);
    for (int i = 0; i < report->count; i++) {
        compared += report->tensors[i].compared;
        vacuous += report->tensors[i].verdict == ASSAY_VACUOUS;
    }
    int length = snprintf(report->message, sizeof report->message, "%d tensor%s correct at %.32s", compared - vacuous,
                          compared - vacuous == 1 ? "" : "s", report->profile);
    if (first != NULL) {
        snprintf(report->message + length, sizeof report->message - (size_t)length, "; zeros would pass in %s%s",
                 first->spec.path, vacuous > 1 ? " and others" : "");
    }
}

/* A kernel without backward, of which nobody said so. */
static bool has_no_gradient(const assay_report *report)
{
    int gradients = 0;
    for (int i = 0; i < report->count; i++) {
        const assay_tensor_result *r = &report->tensors[i];
        if (r->spec.role != ASSAY_ROLE_GRADIENT || !r->required) continue;
        if (r->finding != ASSAY_FINDING_MISSING) return false;
        gradients++;
    }
    return gradients > 0;
}

void assay_conclude(assay_report *report, const assay_certificate_inputs *shown)
{
    const assay_tensor_result *wrong = first_of(report, ASSAY_FAIL);
    const assay_tensor_result *not_comparable = first_of(report, ASSAY_NOT_COMPARABLE);
    const assay_tensor_result *vacuous = first_of(report, ASSAY_VACUOUS);
    bool informed = shown->floats_required ? shown->floats : shown->integers;
    char *message = report->message;
    if (wrong != NULL) {
        report->verdict = ASSAY_FAIL;
        snprintf(message, sizeof report->message, "%s", wrong->message);
        if (wrong->spec.role == ASSAY_ROLE_GRADIENT && has_no_gradient(report))
            snprintf(message, sizeof report->message,
                     "%.400s, nor is any gradient (forward only? --set gradients=none, in Python gradients=False)",
                     wrong->message);
    } else if (report->unknown_count > 0) {
        report->verdict = ASSAY_FAIL;
        const bool result = assay_role_is_result(assay_role_of(report->unknown[0]));
        snprintf(message, sizeof report->message, "%.128s: unknown path, %s", report->unknown[0],
                 result ? "the golden has no such dataset" : "no result has it");
    } else if (not_comparable != NULL) {
        report->verdict = ASSAY_NOT_COMPARABLE;
        snprintf(message, sizeof report->message, "%s", not_comparable->message);
    } else if (!informed) {
        report->verdict = ASSAY_VACUOUS;
        snprintf(message, sizeof report->message, "%s",
                 vacuous != NULL ? vacuous->message
                                 : "nothing but zeros to compare: any backend that does nothing passes");
    } else {
        report->verdict = ASSAY_PASS;
        say_passed(report);
        assay_report_weigh(report);
    }
}

void assay_report_join_stages(assay_report *report)
{
    const assay_report *stages = report->stages;
    const size_t length = strlen(report->message);
    if (stages == NULL) return;
    if (report->verdict == ASSAY_PASS && stages->verdict == ASSAY_PASS) {
        snprintf(report->message + length, sizeof report->message - length, "%s",
                 stages->count > 0 ? "; every stage by itself too" : "; no checkpoint is given to begin a stage with");
    }
    if (stages->verdict != ASSAY_FAIL && stages->verdict != ASSAY_NOT_COMPARABLE) return;
    report->verdict = stages->verdict == ASSAY_FAIL || report->verdict == ASSAY_FAIL ? ASSAY_FAIL : stages->verdict;
    snprintf(report->message, sizeof report->message, "stage %.500s", stages->message);
    snprintf(report->diagnosis, sizeof report->diagnosis, "%s", stages->diagnosis);
    if (stages->explanation[0] == '\0') return;
    snprintf(report->explanation, sizeof report->explanation, "by stage, %.480s", stages->explanation);
    memcpy(report->explained_by, stages->explained_by, sizeof report->explained_by);
    report->explained_count = stages->explained_count;
}

void assay_report_weigh(assay_report *report)
{
    if (report->verdict != ASSAY_PASS || report->power.vacuous[0] == '\0') return;
    report->verdict = ASSAY_VACUOUS;
    snprintf(report->message, sizeof report->message,
             "the golden would let mutant %.64s pass at %.32s: correct, but so is a backend with this bug",
             report->power.vacuous, report->profile);
}
