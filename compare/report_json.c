#define _GNU_SOURCE /* asprintf */
#include <math.h>
#include <stdio.h>

#include "compare/compare_internal.h"
#include "compare/json.h"
#include "compare/report.h"

static bool put_shape(cJSON *object, const assay_shape *shape)
{
    cJSON *array = json_list(object, "shape");
    bool ok = array != NULL;
    for (int axis = 0; ok && axis < shape->rank; axis++) ok = json_number(array, NULL, (double)shape->dims[axis]);
    return ok;
}

/* The index along each of the first `rank` axes. */
static bool put_index(cJSON *object, const assay_shape *shape, int rank, int64_t index)
{
    int64_t axes[ASSAY_MAX_RANK];
    cJSON *array = json_list(object, "index");
    bool ok = array != NULL;
    for (int axis = rank - 1; axis >= 0; axis--) {
        axes[axis] = index % shape->dims[axis];
        index /= shape->dims[axis];
    }
    for (int axis = 0; ok && axis < rank; axis++) ok = json_number(array, NULL, (double)axes[axis]);
    return ok;
}

static bool put_outliers(cJSON *object, const char *key, const assay_shape *shape, int rank, int count,
                         const assay_outlier *worst)
{
    cJSON *array = json_list(object, key);
    bool ok = array != NULL;
    for (int i = 0; ok && i < count; i++) {
        cJSON *item = json_object(array, NULL);
        ok = item != NULL && put_index(item, shape, rank, worst[i].index) &&
             json_number(item, "golden", worst[i].golden) && json_number(item, "candidate", worst[i].candidate) &&
             json_number(item, "excess", worst[i].excess);
    }
    return ok;
}

/* Those that were used. What is logarithmic inside is shown as it is. */
static bool put_statistics(cJSON *object, const assay_tensor_result *r)
{
    cJSON *array = json_list(object, "statistics");
    bool ok = array != NULL;
    for (int i = 0; ok && r->worst_statistic >= 0 && i < r->statistics_count; i++) {
        const assay_statistic_result *s = &r->statistics[i];
        const bool size = assay_statistic_is_size(i);
        char slice[ASSAY_SLICE_TEXT];
        if (s->expected[ASSAY_NULL_DEVIATION] == 0) continue;
        assay_slice_text(r, i, slice);
        cJSON *item = json_object(array, NULL);
        ok = item != NULL && json_text(item, "name", assay_statistic_name(i)) && json_text(item, "slice", slice) &&
             json_number(item, "value", size ? exp(s->value) : s->value) &&
             json_number(item, "least", size ? 0 : s->least) &&
             json_number(item, "most", size ? exp(s->most) : s->most) && json_number(item, "excess", s->excess) &&
             json_number(item, "spreads", s->deviations) &&
             json_number(item, "members", s->expected[ASSAY_NULL_MEMBERS]);
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
    return json_text(o, "path", r->spec.path) && put_shape(o, shape) &&
           json_text(o, "type", assay_dtype_name(r->spec.type)) &&
           json_put(o, "candidate_type",
                    given ? cJSON_CreateString(assay_dtype_name(r->candidate_type)) : cJSON_CreateNull()) &&
           json_text(o, "verdict", assay_verdict_name(r->verdict)) &&
           json_text(o, "finding", finding_name(r->finding)) && json_text(o, "message", r->message) &&
           json_bool(o, "required", r->required) && json_bool(o, "compared", r->compared) &&
           json_bool(o, "exact", r->exact) && json_number(o, "elements", (double)r->elements) &&
           json_number(o, "rows", (double)r->rows) && json_number(o, "wrong_elements", (double)r->wrong_elements) &&
           json_number(o, "wrong_rows", (double)r->wrong_rows) && json_number(o, "max_error", r->max_error) &&
           json_number(o, "rms_ratio", r->rms_ratio) && json_number(o, "worst_element", r->worst_element) &&
           json_number(o, "worst_row", r->worst_row) && json_number(o, "worst_beyond_rounding", r->worst_beyond) &&
           put_outliers(o, "elements_worst", shape, shape->rank, r->elements_worst_count, r->elements_worst) &&
           put_outliers(o, "rows_worst", shape, shape->rank > 0 ? shape->rank - 1 : 0, r->rows_worst_count,
                        r->rows_worst) &&
           put_statistics(o, r);
}

static bool put_routing(cJSON *o, const assay_routing_summary *routing)
{
    if (!routing->judged && routing->message[0] == '\0') return json_put(o, "routing", cJSON_CreateNull());
    cJSON *object = json_object(o, "routing");
    return object != NULL && json_bool(object, "judged", routing->judged) &&
           json_number(object, "tokens", (double)routing->tokens) &&
           json_number(object, "exact", (double)routing->exact) &&
           json_number(object, "admissible", (double)routing->admissible) &&
           json_number(object, "wrong", (double)routing->wrong) &&
           json_bool(object, "evaluated_again", routing->evaluated_again) &&
           json_text(object, "message", routing->message);
}

/* null where the golden states none. */
static bool put_power(cJSON *object, const assay_power *power)
{
    if (!power->stated) return json_put(object, "power", cJSON_CreateNull());
    cJSON *item = json_object(object, "power");
    return item != NULL && json_number(item, "mutants", power->effective) &&
           json_number(item, "detected", power->detected) &&
           (!power->stated_by_stage || json_number(item, "detected_by_stage", power->detected_by_stage)) &&
           json_text(item, "vacuous", power->vacuous);
}

/* Absent where nobody looked. */
static bool put_explanation(cJSON *object, const assay_report *report)
{
    if (report->explanation[0] == '\0') return true;
    cJSON *names = json_list(object, "explained_by");
    bool ok = names != NULL && json_text(object, "explanation", report->explanation);
    for (int i = 0; ok && i < report->explained_count; i++) ok = json_text(names, NULL, report->explained_by[i]);
    return ok;
}

/* As text on one line: a tree takes several times its memory, and there may be ten thousands of tensors. */
static bool append_tensor(cJSON *array, const assay_tensor_result *r)
{
    cJSON *tree = cJSON_CreateObject();
    char *text = tree != NULL && fill_tensor(tree, r) ? cJSON_PrintUnformatted(tree) : NULL;
    const bool ok = text != NULL && json_put(array, NULL, cJSON_CreateRaw(text));
    cJSON_free(text);
    cJSON_Delete(tree);
    return ok;
}

/* Absent where it is not known. */
static bool put_known_text(cJSON *o, const char *name, const char *text)
{
    return text[0] == '\0' || json_text(o, name, text);
}

static bool fill_report(cJSON *o, const assay_report *report)
{
    cJSON *unknown, *tensors;
    bool ok = json_text(o, "case", report->case_name) && json_text(o, "op", report->op) &&
              json_text(o, "profile", report->profile) && json_text(o, "golden", report->golden_path) &&
              json_text(o, "candidate", report->candidate_path) && json_number(o, "false_alarm", report->false_alarm) &&
              put_known_text(o, "generator", report->generator) && put_known_text(o, "program", report->program) &&
              put_known_text(o, "reproduce", report->reproduce) && json_number(o, "seconds", report->seconds) &&
              json_text(o, "verdict", assay_verdict_name(report->verdict)) &&
              json_text(o, "message", report->message) && put_known_text(o, "diagnosis", report->diagnosis) &&
              put_explanation(o, report) && put_known_text(o, "known", report->expected_failure) &&
              put_known_text(o, "order", report->order) && put_known_text(o, "codes", report->codes) &&
              put_known_text(o, "kinks", report->kinks) &&
              put_known_text(o, "form", report->inaccurate ? ASSAY_INACCURATE_TEXT : "");
    ok = ok && (!report->one_process || json_bool(o, "one_process", true));
    ok = ok && put_routing(o, &report->routing) && put_power(o, &report->power);
    ok = ok && (unknown = json_list(o, "unknown")) != NULL;
    for (int i = 0; ok && i < report->unknown_count; i++) ok = json_text(unknown, NULL, report->unknown[i]);
    ok = ok && (tensors = json_list(o, "tensors")) != NULL;
    for (int i = 0; ok && i < report->count; i++) ok = append_tensor(tensors, &report->tensors[i]);
    if (!ok || report->stages == NULL) return ok;
    cJSON *stages = json_object(o, "stages");
    return stages != NULL && fill_report(stages, report->stages);
}

assay_status assay_report_json(assay_context *ctx, int count, const assay_report *reports, char **text)
{
    cJSON *root = json_document("assay-report"), *list = json_list(root, "reports");
    bool ok = list != NULL;
    for (int i = 0; ok && i < count; i++) ok = fill_report(json_object(list, NULL), &reports[i]);
    char *printed = ok ? cJSON_Print(root) : NULL;
    *text = NULL;
    if (printed != NULL && asprintf(text, "%s\n", printed) < 0) *text = NULL; /* cJSON's memory is cJSON's to free */
    cJSON_free(printed);
    cJSON_Delete(root);
    return *text != NULL ? ASSAY_OK : assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the JSON report");
}
