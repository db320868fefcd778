#include "compare/compare.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/compare_internal.h"
#include "compare/profile_yaml.h"
#include "compare/steps.h"
#include "oracle/base/clock.h"
#include "oracle/base/memory.h"

#define MARGIN "routing/margin"

/* "error_scale/bf16/outputs/y"; NULL where the golden has none. */
static const assay_tensor_spec *scale_of(const assay_comparison *c, const char *path)
{
    char scale[ASSAY_PATH_SIZE];
    assay_path_at(ASSAY_ROLE_ERROR_SCALE, c->profile->precision.name, path, scale);
    return assay_fixture_find(c->golden, scale);
}

/* The profiles for which the golden has error scales: "f64, f32". */
static void name_scales(const assay_fixture_reader *golden, char *names, size_t size)
{
    size_t length = 0;
    char last[ASSAY_PATH_SIZE] = "";
    names[0] = '\0';
    for (int i = 0; i < assay_fixture_count(golden); i++) {
        const assay_tensor_spec *spec = assay_fixture_spec(golden, i);
        if (spec->role != ASSAY_ROLE_ERROR_SCALE) continue;
        const char *name = strchr(spec->path, '/') + 1;
        int count = (int)strcspn(name, "/");
        if ((size_t)count == strlen(last) && strncmp(name, last, (size_t)count) == 0) continue;
        snprintf(last, sizeof last, "%.*s", count, name);
        if (length + (size_t)count + 3 > size) return;
        length += (size_t)snprintf(names + length, size - length, "%s%s", length == 0 ? "" : ", ", last);
    }
}

/* A tensor that is compared, and where it stands. */
typedef struct place {
    const assay_tensor_spec *spec;
    int rank;
} place;

int assay_order_rank(assay_order order, const assay_tensor_spec *spec)
{
    for (int i = 0; i < order.count; i++) {
        if (order.specs[i].role == spec->role && strcmp(order.specs[i].path, spec->path) == 0) return i;
    }
    return order.count + (int)spec->role;
}

static int by_rank(const void *a, const void *b)
{
    const place *first = a, *second = b;
    if (first->rank != second->rank) return first->rank < second->rank ? -1 : 1;
    return strcmp(first->spec->path, second->spec->path);
}

bool assay_order_requires(assay_order order, const assay_tensor_spec *spec)
{
    bool wanted = order.only_count == 0;
    for (int i = 0; !wanted && i < order.only_count; i++) wanted = fnmatch(order.only[i], spec->path, 0) == 0;
    return wanted && assay_role_is_required(spec->role);
}

static void start_result(assay_order order, const assay_tensor_spec *spec, assay_tensor_result *result)
{
    const int64_t length = assay_row_length(&spec->shape);
    result->spec = *spec;
    /* the golden may be closed while the report lives */
    for (int axis = 0; axis < spec->shape.rank; axis++) {
        const char *label = spec->labels[axis] == NULL ? "" : spec->labels[axis];
        snprintf(result->axis_labels[axis], sizeof result->axis_labels[axis], "%s", label);
    }
    memset(result->spec.labels, 0, sizeof result->spec.labels);
    result->worst_statistic = -1;
    result->required = assay_order_requires(order, spec);
    result->elements = assay_shape_count(&spec->shape);
    result->rows = length > 0 ? result->elements / length : 0;
}

static assay_status list_tensors(assay_context *ctx, const assay_fixture_reader *golden, assay_order order,
                                 assay_report *report)
{
    const int total = assay_fixture_count(golden);
    int count = 0;
    OWNED place *places = NULL;
    MUST(assay_alloc_list(ctx, "results of tensors", total + 1, sizeof *places, &places));
    MUST(assay_alloc_list(ctx, "results of tensors", total + 1, sizeof *report->tensors, &report->tensors));
    for (int i = 0; i < total; i++) {
        const assay_tensor_spec *spec = assay_fixture_spec(golden, i);
        if (assay_role_is_compared(spec->role)) places[count++] = (place){spec, assay_order_rank(order, spec)};
    }
    qsort(places, (size_t)count, sizeof *places, by_rank);
    for (int i = 0; i < count; i++) start_result(order, places[i].spec, &report->tensors[i]);
    report->count = count;
    return ASSAY_OK;
}

static bool is_null_row(const double row[ASSAY_NULL_COLUMNS])
{
    const double deviation = row[ASSAY_NULL_DEVIATION];
    return deviation > 0 && isfinite(deviation) && row[ASSAY_NULL_LOW] <= row[ASSAY_NULL_HIGH] &&
           row[ASSAY_NULL_MEMBERS] >= 2;
}

/* Before error model 6 null distributions took a log-sum-exp, and what a router gives, to be stored as activations are. */
static bool null_is_of_storage(const assay_fixture_reader *golden)
{
    const char *model = assay_fixture_text(golden, "error_model");
    return model != NULL && strtol(model, NULL, 10) < 6;
}

/* The tensor's null distributions, if the golden has them: `used` grows by the statistics that have one. */
static assay_status read_null(assay_context *ctx, const assay_comparison *c, assay_tensor_result *result, int64_t *used)
{
    char path[ASSAY_PATH_SIZE];
    double rows[ASSAY_STATISTICS * ASSAY_NULL_COLUMNS];
    const assay_shape *shape = &result->spec.shape;
    assay_path_at(ASSAY_ROLE_NULL, c->profile->precision.name, result->spec.path, path);
    const assay_tensor_spec *null = assay_fixture_find(c->golden, path);
    if (null == NULL) return ASSAY_OK;
    if (assay_tensor_kept(&result->spec) != ASSAY_KEPT_STORED && null_is_of_storage(c->golden)) return ASSAY_OK;
    const bool has_shape = null->shape.rank == 2 && null->shape.dims[1] == ASSAY_NULL_COLUMNS &&
                           assay_statistics_rows_are_known(shape, null->shape.dims[0]);
    if (!has_shape || null->type == ASSAY_INT32) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s has another shape or type than null distributions have", path);
    }
    MUST(assay_fixture_read(ctx, c->golden, path, 0, assay_shape_count(&null->shape), rows));
    for (int s = 0; s < ASSAY_STATISTICS; s++) {
        double *row = result->statistics[s].expected;
        const int stored = assay_statistic_row(shape, s);
        if (stored < 0 || stored >= null->shape.dims[0]) continue;
        memcpy(row, rows + stored * ASSAY_NULL_COLUMNS, ASSAY_NULL_COLUMNS * sizeof *row);
        /* a library's functions in float32 may all err to one side, as PyTorch's erf does */
        if (s == ASSAY_STATISTIC_SIGN && c->profile->storage <= ASSAY_FLOAT32) row[ASSAY_NULL_DEVIATION] = 0;
        if (row[ASSAY_NULL_DEVIATION] == 0) continue;
        if (!is_null_row(row)) {
            return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: row %d is no null distribution", path, stored);
        }
        ++*used;
    }
    result->statistics_count = ASSAY_STATISTICS;
    return ASSAY_OK;
}

/* Thresholds for everything that this golden can be compared on, whether or not the candidate has it. */
static assay_status find_thresholds(assay_context *ctx, assay_comparison *c, double false_alarm, assay_report *report)
{
    int64_t elements = 0, rows = 0, statistics = 0;
    for (int i = 0; i < report->count; i++) {
        assay_tensor_result *r = &report->tensors[i];
        const assay_tensor_spec *scale = scale_of(c, r->spec.path);
        if (scale == NULL) continue;
        if (!assay_shape_equal(&scale->shape, &r->spec.shape) || scale->type == ASSAY_INT32) {
            return assay_fail(ctx, ASSAY_BAD_INPUT, "%s has another shape or type than %s", scale->path, r->spec.path);
        }
        elements += r->elements;
        rows += r->rows;
        MUST(read_null(ctx, c, r, &statistics));
    }
    c->thresholds = assay_thresholds_of(false_alarm, elements, rows, statistics);
    report->statistic_tail = c->thresholds.statistic_tail;
    return ASSAY_OK;
}

static assay_status alloc_buffers(assay_context *ctx, assay_comparison *c)
{
    MUST(assay_alloc_f64(ctx, "values of the golden", ASSAY_CHUNK, &c->golden_values));
    MUST(assay_alloc_f64(ctx, "values of the candidate", ASSAY_CHUNK, &c->candidate_values));
    MUST(assay_alloc_f64(ctx, "error scales", ASSAY_CHUNK, &c->scales));
    MUST(assay_alloc_f64(ctx, "weights of errors", ASSAY_CHUNK, &c->inverse));
    MUST(assay_alloc_i32(ctx, "integers of the golden", ASSAY_CHUNK, &c->golden_integers));
    return assay_alloc_i32(ctx, "integers of the candidate", ASSAY_CHUNK, &c->candidate_integers);
}

static void free_buffers(assay_comparison *c)
{
    free(c->golden_values);
    free(c->candidate_values);
    free(c->scales);
    free(c->inverse);
    free(c->golden_integers);
    free(c->candidate_integers);
}

static void note_evidence(const assay_tensor_result *result, const assay_facts *facts, assay_certificate_inputs *shown)
{
    bool informs = result->compared && result->verdict == ASSAY_PASS && result->elements > 0 && !facts->all_zero;
    if (!result->required) return;
    if (result->spec.type == ASSAY_INT32) {
        shown->integers = shown->integers || informs;
    } else {
        shown->floats = shown->floats || informs;
    }
}

/* Any lawful order of events passes. */
static assay_status compare_rules(assay_context *ctx, const assay_comparison *c, assay_order order,
                                  assay_tensor_result *result)
{
    int32_t *values = NULL;
    const assay_source candidate = assay_fixture_source(c->candidate);
    MUST(assay_alloc_i32(ctx, result->spec.path, result->elements, &values));
    assay_status status = assay_fixture_read_i32(ctx, c->candidate, result->spec.path, 0, result->elements, values);
    const bool unreadable = status == ASSAY_BAD_INPUT;
    if (status == ASSAY_OK)
        status = order.lawful(ctx, order.self, result->spec.path, values, result->elements, &candidate);
    free(values);
    if (unreadable) assay_judge_unreadable(ctx->message, result);
    if (!unreadable && (status == ASSAY_OK || status == ASSAY_BAD_INPUT))
        assay_judge_rules(status == ASSAY_OK ? NULL : ctx->message, result);
    if (status != ASSAY_BAD_INPUT) return status;
    ctx->message[0] = '\0';
    return ASSAY_OK;
}

static assay_status compare_tensor(assay_context *ctx, const assay_comparison *c, assay_order order,
                                   assay_tensor_result *result, assay_certificate_inputs *shown)
{
    assay_facts facts;
    bool unreadable = false;
    char scales[128] = "";
    const assay_tensor_spec *found = assay_fixture_find(c->candidate, result->spec.path);
    const assay_tensor_spec *scale = scale_of(c, result->spec.path);
    const bool floats = result->spec.type != ASSAY_INT32;
    if (found != NULL) result->candidate_type = found->type;
    if (assay_judge_structure(c->profile, found, assay_fixture_text(c->candidate, "kind"), result)) return ASSAY_OK;
    if (strcmp(result->spec.path, MARGIN) == 0) {
        snprintf(result->message, sizeof result->message, "%s: not compared: the oracle's own measure", MARGIN);
        return ASSAY_OK;
    }
    if (assay_path_is_hidden(result->spec.path)) {
        snprintf(result->message, sizeof result->message, "%s: judged by what errors allow", result->spec.path);
        return ASSAY_OK;
    }
    if (result->spec.role == ASSAY_ROLE_SCHEDULE && order.lawful != NULL) return compare_rules(ctx, c, order, result);
    if (!floats) {
        MUST(assay_scan_integers(ctx, c, result, &facts, &unreadable));
    } else if (scale == NULL) {
        name_scales(c->golden, scales, sizeof scales);
        MUST(assay_scan_finite(ctx, c, result, &facts, &unreadable));
    } else {
        MUST(assay_scan_floats(ctx, c, scale->path, result, &facts, &unreadable));
    }
    if (unreadable) {
        assay_judge_unreadable(ctx->message, result);
        ctx->message[0] = '\0';
    } else {
        assay_judge_values(c->profile, &facts, floats && scale == NULL ? scales : NULL,
                           assay_profile_left_out(c->golden, c->profile->precision.name), result);
        note_evidence(result, &facts, shown);
    }
    return ASSAY_OK;
}

/* Copies of what the candidate was given are no results of its own. What a golden holds besides results (error scales,
 * null distributions ...) is nobody's to give. */
static bool is_unknown(const assay_fixture_reader *golden, assay_order order, const assay_tensor_spec *spec)
{
    if (order.with_stages && spec->role == ASSAY_ROLE_CHECKPOINT) return false;
    if (assay_role_is_input(spec->role)) return false;
    return assay_fixture_find(golden, spec->path) == NULL || !assay_role_is_compared(spec->role);
}

static assay_status find_unknown(assay_context *ctx, const assay_comparison *c, assay_order order, assay_report *report)
{
    int total = assay_fixture_count(c->candidate);
    MUST(assay_alloc_list(ctx, "the list of unknown datasets", total + 1, sizeof *report->unknown, &report->unknown));
    for (int i = 0; i < total; i++) {
        const assay_tensor_spec *spec = assay_fixture_spec(c->candidate, i);
        if (!is_unknown(c->golden, order, spec)) continue;
        report->unknown[report->unknown_count] = strdup(spec->path);
        if (report->unknown[report->unknown_count] == NULL) {
            return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the list of unknown datasets");
        }
        report->unknown_count++;
    }
    return ASSAY_OK;
}

static assay_status check_arguments(assay_context *ctx, const assay_fixture_reader *golden, double false_alarm)
{
    const char *kind = assay_fixture_text(golden, "kind");
    if (kind == NULL || strcmp(kind, "golden") != 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "kind is %.64s, expected golden", kind == NULL ? "not given" : kind);
    }
    if (!(false_alarm > 0.0 && false_alarm <= 0.5)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "the false-alarm probability is %g, expected above 0 and up to 0.5",
                          false_alarm);
    }
    return ASSAY_OK;
}

static void copy_text(char *to, size_t size, const assay_fixture_reader *reader, const char *name)
{
    const char *text = assay_fixture_text(reader, name);
    snprintf(to, size, "%s", text == NULL ? "" : text);
}

static assay_status compare_at(assay_context *ctx, assay_fixture_reader *golden, assay_fixture_reader *candidate,
                               const assay_profile *profile, double false_alarm, assay_order order,
                               assay_report *report)
{
    assay_status status;
    assay_certificate_inputs shown = {0};
    assay_comparison c = {.golden = golden, .candidate = candidate, .profile = profile};
    *report = (assay_report){.false_alarm = false_alarm};
    TRY(check_arguments(ctx, golden, false_alarm));
    TRY(assay_profile_check_golden(ctx, golden, profile));
    copy_text(report->case_name, sizeof report->case_name, golden, "case");
    copy_text(report->op, sizeof report->op, golden, "op");
    copy_text(report->generator, sizeof report->generator, golden, "generator");
    snprintf(report->profile, sizeof report->profile, "%s", profile->precision.name);
    TRY(list_tensors(ctx, golden, order, report));
    TRY(find_thresholds(ctx, &c, false_alarm, report));
    TRY(find_unknown(ctx, &c, order, report));
    TRY(alloc_buffers(ctx, &c));
    for (int i = 0; i < report->count; i++) {
        const assay_tensor_result *r = &report->tensors[i];
        if (r->required && r->spec.type != ASSAY_INT32 && r->elements > 0) shown.floats_required = true;
        const double started = assay_clock();
        TRY(compare_tensor(ctx, &c, order, &report->tensors[i], &shown));
        report->tensors[i].seconds = assay_clock() - started;
    }
    TRY(assay_power_read(ctx, golden, report->profile, &report->power));
    assay_conclude(report, &shown);
cleanup:
    free_buffers(&c);
    if (status != ASSAY_OK) assay_report_free(report);
    return status;
}

/* --- forms of very different errors --- */

/* Below which size (its logarithm) a kernel of the less accurate form errs with the probability `tail`: its errors are as many
 * independent ones as their spread says, so that a mean of squares has a chi-squared distribution, whose lower tail the first term of its
 * series bounds. `expected` begins with the size of kernels that round their sums once. */
static double least_of_form(const double expected[ASSAY_NULL_COLUMNS], double tail)
{
    const double deviation = expected[ASSAY_NULL_DEVIATION], half = 1 / (4 * deviation * deviation);
    return expected[ASSAY_NULL_LOW] + 0.5 * ((log(tail) + lgamma(half + 1)) / half - log(half));
}

static bool has_scales(const assay_fixture_reader *golden, const assay_profile *profile)
{
    const assay_comparison c = {.golden = (assay_fixture_reader *)golden, .profile = profile};
    bool found = false;
    for (int i = 0; profile != NULL && !found && i < assay_fixture_count(golden); i++)
        found = scale_of(&c, assay_fixture_spec(golden, i)->path) != NULL;
    return found;
}

/* Whether errors that are too large for the accurate form are of the size that the other one has: a bug's may be far smaller. */
static bool errs_as_form(const assay_report *accurate, const assay_report *inaccurate, double tail)
{
    bool any = false;
    for (int i = 0; i < accurate->count; i++) {
        const assay_statistic_result *size = &inaccurate->tensors[i].statistics[ASSAY_STATISTIC_SIZE];
        if (size->expected[ASSAY_NULL_DEVIATION] == 0) continue;
        const bool errs = size->value >= least_of_form(size->expected, tail / accurate->count);
        if (accurate->tensors[i].verdict == ASSAY_FAIL && !errs) return false;
        any |= errs;
    }
    return any;
}

assay_status assay_compare_undiagnosed(assay_context *ctx, assay_fixture_reader *golden,
                                       assay_fixture_reader *candidate, const assay_profile *profile,
                                       double false_alarm, assay_order order, assay_report *report)
{
    const assay_profile *other = assay_profile_inaccurate(profile->precision.name);
    assay_report inaccurate = {0};
    if (!has_scales(golden, other)) return compare_at(ctx, golden, candidate, profile, false_alarm, order, report);
    MUST(compare_at(ctx, golden, candidate, profile, false_alarm / 2, order, report));
    report->false_alarm = false_alarm;
    if (report->verdict != ASSAY_FAIL) return ASSAY_OK;
    const assay_status status = compare_at(ctx, golden, candidate, other, false_alarm / 2, order, &inaccurate);
    if (status == ASSAY_OK && inaccurate.verdict == ASSAY_PASS && errs_as_form(report, &inaccurate, false_alarm / 2)) {
        assay_report_free(report);
        *report = inaccurate;
        report->inaccurate = true;
        report->false_alarm = false_alarm;
        snprintf(report->profile, sizeof report->profile, "%s", profile->precision.name);
        return assay_power_read(ctx, golden, report->profile, &report->power);
    }
    assay_report_free(&inaccurate);
    return status;
}

assay_status assay_compare(assay_context *ctx, assay_fixture_reader *golden, assay_fixture_reader *candidate,
                           const assay_profile *profile, double false_alarm, assay_order order, assay_report *report)
{
    assay_status status;
    TRY(assay_compare_undiagnosed(ctx, golden, candidate, profile, false_alarm, order, report));
    if (report->verdict == ASSAY_FAIL) TRY(assay_diagnose(ctx, golden, candidate, profile, report));
cleanup:
    if (status != ASSAY_OK) assay_report_free(report);
    return status;
}

assay_status assay_compare_thresholds(assay_context *ctx, assay_fixture_reader *golden, const assay_profile *profile,
                                      double false_alarm, assay_order order, const char *path, double *thresholds)
{
    assay_comparison c = {.golden = golden, .profile = profile};
    OWNED_BY(assay_report_free) assay_report all = {0};
    OWNED double *values = NULL;
    const assay_tensor_spec *spec = assay_fixture_find(golden, path), *scale = scale_of(&c, path);
    MUST(check_arguments(ctx, golden, false_alarm));
    if (spec == NULL || !assay_role_is_compared(spec->role) || spec->type == ASSAY_INT32)
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%.200s: no result of floats", path);
    if (scale == NULL)
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: the golden has no error scales for the profile %s", path,
                          profile->precision.name);
    MUST(list_tensors(ctx, golden, order, &all));
    MUST(find_thresholds(ctx, &c, false_alarm, &all));
    const int64_t count = assay_shape_count(&spec->shape);
    MUST(assay_alloc_f64(ctx, path, count, &values));
    MUST(assay_fixture_read(ctx, golden, path, 0, count, values));
    MUST(assay_fixture_read(ctx, golden, scale->path, 0, count, thresholds));
    assay_element_thresholds(&c.thresholds, assay_profile_type_of(profile, spec), count, values, thresholds);
    return ASSAY_OK;
}

void assay_report_free(assay_report *report)
{
    for (int i = 0; i < report->unknown_count; i++) free(report->unknown[i]);
    free(report->unknown);
    for (int i = 0; report->pictures != NULL && i < report->count; i++) free(report->pictures[i]);
    free(report->pictures);
    assay_steps_free(report->steps);
    free(report->tensors);
    if (report->stages != NULL) assay_report_free(report->stages);
    free(report->stages);
    *report = (assay_report){0};
}

const assay_tensor_result *assay_result_of(const assay_report *report, const char *path)
{
    for (int i = 0; i < report->count; i++)
        if (strcmp(report->tensors[i].spec.path, path) == 0) return &report->tensors[i];
    return NULL;
}
