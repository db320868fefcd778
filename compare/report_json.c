#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/compare_internal.h"
#include "compare/printable.h"
#include "compare/report.h"

enum { REPORT_VERSION = 1 };

/* JSON has no NaN and no infinity: these become texts. */
static cJSON *number(double value)
{
    if (isnan(value)) return cJSON_CreateString("nan");
    if (isinf(value)) return cJSON_CreateString(value > 0.0 ? "inf" : "-inf");
    return cJSON_CreateNumber(value);
}

/* Every function below returns false when memory ran out; a NULL item is a failed creation. */
static bool put(cJSON *object, const char *key, cJSON *item)
{
    if (item != NULL && cJSON_AddItemToObject(object, key, item)) return true;
    cJSON_Delete(item);
    return false;
}

static bool put_text(cJSON *object, const char *key, const char *text)
{
    char shown[ASSAY_PRINTABLE_SIZE];
    return put(object, key, cJSON_CreateString(assay_printable(text, shown)));
}

static bool put_number(cJSON *object, const char *key, double value)
{
    return put(object, key, number(value));
}

static bool put_bool(cJSON *object, const char *key, bool value)
{
    return put(object, key, cJSON_CreateBool(value));
}

static bool append_number(cJSON *array, double value)
{
    cJSON *item = number(value);
    if (item != NULL && cJSON_AddItemToArray(array, item)) return true;
    cJSON_Delete(item);
    return false;
}

/* Starts an array or object as a member; NULL when memory ran out. */
static cJSON *start(cJSON *object, const char *key, cJSON *item)
{
    return put(object, key, item) ? item : NULL;
}

static cJSON *start_element(cJSON *array)
{
    cJSON *item = cJSON_CreateObject();
    if (item != NULL && cJSON_AddItemToArray(array, item)) return item;
    cJSON_Delete(item);
    return NULL;
}

static bool put_shape(cJSON *object, const assay_shape *shape)
{
    cJSON *array = start(object, "shape", cJSON_CreateArray());
    bool ok = array != NULL;
    for (int axis = 0; ok && axis < shape->rank; axis++) ok = append_number(array, (double)shape->dims[axis]);
    return ok;
}

/* The index along each of the first `rank` axes. */
static bool put_index(cJSON *object, const assay_shape *shape, int rank, int64_t index)
{
    int64_t axes[ASSAY_MAX_RANK];
    cJSON *array = start(object, "index", cJSON_CreateArray());
    bool ok = array != NULL;
    for (int axis = rank - 1; axis >= 0; axis--) {
        axes[axis] = index % shape->dims[axis];
        index /= shape->dims[axis];
    }
    for (int axis = 0; ok && axis < rank; axis++) ok = append_number(array, (double)axes[axis]);
    return ok;
}

static bool put_outliers(cJSON *object, const char *key, const assay_shape *shape, int rank, int count,
                         const assay_outlier *worst)
{
    cJSON *array = start(object, key, cJSON_CreateArray());
    bool ok = array != NULL;
    for (int i = 0; ok && i < count; i++) {
        cJSON *item = start_element(array);
        ok = item != NULL && put_index(item, shape, rank, worst[i].index) &&
             put_number(item, "golden", worst[i].golden) && put_number(item, "candidate", worst[i].candidate) &&
             put_number(item, "excess", worst[i].excess);
    }
    return ok;
}

/* Those that were used. What is logarithmic inside is shown as it is. */
static bool put_statistics(cJSON *object, const assay_tensor_result *r)
{
    cJSON *array = start(object, "statistics", cJSON_CreateArray());
    bool ok = array != NULL;
    for (int i = 0; ok && r->worst_statistic >= 0 && i < r->statistics_count; i++) {
        const assay_statistic_result *s = &r->statistics[i];
        const bool size = assay_statistic_is_size(i);
        char slice[ASSAY_SLICE_TEXT];
        if (s->expected[ASSAY_NULL_DEVIATION] == 0) continue;
        assay_slice_text(r, i, slice);
        cJSON *item = start_element(array);
        ok = item != NULL && put_text(item, "name", assay_statistic_name(i)) && put_text(item, "slice", slice) &&
             put_number(item, "value", size ? exp(s->value) : s->value) &&
             put_number(item, "least", size ? 0 : s->least) &&
             put_number(item, "most", size ? exp(s->most) : s->most) && put_number(item, "excess", s->excess) &&
             put_number(item, "spreads", s->deviations) && put_number(item, "members", s->expected[ASSAY_NULL_MEMBERS]);
    }
    return ok;
}

static const char *finding_name(assay_finding finding)
{
    static const char *const names[] = {
        [ASSAY_FINDING_NONE] = "none",           [ASSAY_FINDING_MISSING] = "missing",
        [ASSAY_FINDING_SHAPE] = "shape",         [ASSAY_FINDING_TYPE] = "type",
        [ASSAY_FINDING_NONFINITE] = "nonfinite", [ASSAY_FINDING_INTEGERS] = "unequal",
        [ASSAY_FINDING_ELEMENTS] = "elements",   [ASSAY_FINDING_ROWS] = "rows",
        [ASSAY_FINDING_SIZE] = "size",           [ASSAY_FINDING_SLICE] = "slice",
        [ASSAY_FINDING_BIAS] = "bias",           [ASSAY_FINDING_SLOPE] = "slope",
        [ASSAY_FINDING_SIGN] = "sign",           [ASSAY_FINDING_TOWARD_ZERO] = "toward_zero",
        [ASSAY_FINDING_NO_SCALE] = "no_scale"};
    return names[finding];
}

static bool fill_tensor(cJSON *o, const assay_tensor_result *r)
{
    const assay_shape *shape = &r->spec.shape;
    bool given = r->finding != ASSAY_FINDING_MISSING;
    return put_text(o, "path", r->spec.path) && put_shape(o, shape) &&
           put_text(o, "type", assay_dtype_name(r->spec.type)) &&
           put(o, "candidate_type",
               given ? cJSON_CreateString(assay_dtype_name(r->candidate_type)) : cJSON_CreateNull()) &&
           put_text(o, "verdict", assay_verdict_name(r->verdict)) && put_text(o, "finding", finding_name(r->finding)) &&
           put_text(o, "message", r->message) && put_bool(o, "required", r->required) &&
           put_bool(o, "compared", r->compared) && put_bool(o, "exact", r->exact) &&
           put_number(o, "elements", (double)r->elements) && put_number(o, "rows", (double)r->rows) &&
           put_number(o, "wrong_elements", (double)r->wrong_elements) &&
           put_number(o, "wrong_rows", (double)r->wrong_rows) && put_number(o, "max_error", r->max_error) &&
           put_number(o, "rms_ratio", r->rms_ratio) && put_number(o, "worst_element", r->worst_element) &&
           put_number(o, "worst_row", r->worst_row) && put_number(o, "worst_beyond_rounding", r->worst_beyond) &&
           put_outliers(o, "elements_worst", shape, shape->rank, r->elements_worst_count, r->elements_worst) &&
           put_outliers(o, "rows_worst", shape, shape->rank > 0 ? shape->rank - 1 : 0, r->rows_worst_count,
                        r->rows_worst) &&
           put_statistics(o, r);
}

static bool put_routing(cJSON *o, const assay_routing_summary *routing)
{
    if (!routing->judged && routing->message[0] == '\0') return put(o, "routing", cJSON_CreateNull());
    cJSON *object = start(o, "routing", cJSON_CreateObject());
    return object != NULL && put_bool(object, "judged", routing->judged) &&
           put_number(object, "tokens", (double)routing->tokens) &&
           put_number(object, "exact", (double)routing->exact) &&
           put_number(object, "admissible", (double)routing->admissible) &&
           put_number(object, "wrong", (double)routing->wrong) &&
           put_bool(object, "evaluated_again", routing->evaluated_again) &&
           put_text(object, "message", routing->message);
}

/* null where the golden states none. */
static bool put_power(cJSON *object, const assay_power *power)
{
    if (!power->stated) return put(object, "power", cJSON_CreateNull());
    cJSON *item = start(object, "power", cJSON_CreateObject());
    return item != NULL && put_number(item, "mutants", power->effective) &&
           put_number(item, "detected", power->detected) &&
           (!power->stated_by_stage || put_number(item, "detected_by_stage", power->detected_by_stage)) &&
           put_text(item, "vacuous", power->vacuous);
}

/* Absent where nobody looked. */
static bool put_explanation(cJSON *object, const assay_report *report)
{
    if (report->explanation[0] == '\0') return true;
    cJSON *names = start(object, "explained_by", cJSON_CreateArray());
    bool ok = names != NULL && put_text(object, "explanation", report->explanation);
    for (int i = 0; ok && i < report->explained_count; i++) {
        cJSON *name = cJSON_CreateString(report->explained_by[i]);
        ok = name != NULL && cJSON_AddItemToArray(names, name);
    }
    return ok;
}

/* As text on one line: a tree takes several times its memory, and there may be ten thousands of tensors. */
static bool append_tensor(cJSON *array, const assay_tensor_result *r)
{
    cJSON *tree = cJSON_CreateObject();
    char *text = tree != NULL && fill_tensor(tree, r) ? cJSON_PrintUnformatted(tree) : NULL;
    cJSON *item = text != NULL ? cJSON_CreateRaw(text) : NULL;
    const bool ok = item != NULL && cJSON_AddItemToArray(array, item);
    if (!ok) cJSON_Delete(item);
    cJSON_free(text);
    cJSON_Delete(tree);
    return ok;
}

/* Absent where it is not known. */
static bool put_known_text(cJSON *o, const char *name, const char *text)
{
    return text[0] == '\0' || put_text(o, name, text);
}

static bool fill_report(cJSON *o, const assay_report *report)
{
    cJSON *unknown, *tensors;
    bool ok = put_text(o, "case", report->case_name) && put_text(o, "op", report->op) &&
              put_text(o, "profile", report->profile) && put_text(o, "golden", report->golden_path) &&
              put_text(o, "candidate", report->candidate_path) && put_number(o, "false_alarm", report->false_alarm) &&
              put_known_text(o, "generator", report->generator) && put_known_text(o, "program", report->program) &&
              put_known_text(o, "reproduce", report->reproduce) && put_number(o, "seconds", report->seconds) &&
              put_text(o, "verdict", assay_verdict_name(report->verdict)) && put_text(o, "message", report->message) &&
              put_known_text(o, "diagnosis", report->diagnosis) && put_explanation(o, report) &&
              put_known_text(o, "known", report->expected_failure) && put_known_text(o, "order", report->order) &&
              put_known_text(o, "codes", report->codes) && put_known_text(o, "kinks", report->kinks) &&
              put_known_text(o, "form", report->inaccurate ? ASSAY_INACCURATE_TEXT : "");
    ok = ok && (!report->one_process || cJSON_AddTrueToObject(o, "one_process") != NULL);
    ok = ok && put_routing(o, &report->routing) && put_power(o, &report->power);
    ok = ok && (unknown = start(o, "unknown", cJSON_CreateArray())) != NULL;
    for (int i = 0; ok && i < report->unknown_count; i++) {
        char shown[ASSAY_PRINTABLE_SIZE];
        cJSON *text = cJSON_CreateString(assay_printable(report->unknown[i], shown));
        ok = text != NULL && cJSON_AddItemToArray(unknown, text);
    }
    ok = ok && (tensors = start(o, "tensors", cJSON_CreateArray())) != NULL;
    for (int i = 0; ok && i < report->count; i++) ok = append_tensor(tensors, &report->tensors[i]);
    if (!ok || report->stages == NULL) return ok;
    cJSON *stages = start(o, "stages", cJSON_CreateObject());
    return stages != NULL && fill_report(stages, report->stages);
}

/* cJSON's memory is cJSON's to free. */
static char *print(const cJSON *root)
{
    char *printed = cJSON_Print(root), *text = NULL;
    if (printed != NULL) {
        size_t length = strlen(printed);
        text = malloc(length + 2);
        if (text != NULL) {
            memcpy(text, printed, length);
            memcpy(text + length, "\n", 2);
        }
    }
    cJSON_free(printed);
    return text;
}

assay_status assay_report_json(assay_context *ctx, int count, const assay_report *reports, char **text)
{
    cJSON *root = cJSON_CreateObject(), *array = NULL;
    *text = NULL;
    bool ok = root != NULL && put_text(root, "format", "assay-report") &&
              put_number(root, "format_version", REPORT_VERSION) &&
              (array = start(root, "reports", cJSON_CreateArray())) != NULL;
    for (int i = 0; ok && i < count; i++) {
        cJSON *item = start_element(array);
        ok = item != NULL && fill_report(item, &reports[i]);
    }
    if (ok) *text = print(root);
    cJSON_Delete(root);
    return *text != NULL ? ASSAY_OK : assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the JSON report");
}
