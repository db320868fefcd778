/* Results judged, and the report on them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/report.h"
#include "harness/golden/golden_memory.h"
#include "harness/judge/judge.h"
#include "harness/test/test_internal.h"
#include "oracle/base/memory.h"

enum { LARGE = 1 << 22 }; /* elements, from which on somebody looks how much memory there is */

struct assay_test_report {
    assay_context ctx;
    assay_report report;
    assay_cached_golden *held;
    assay_golden against;
    assay_profile profile;
    assay_tensor_set results;
    assay_fixture_reader *candidate; /* of them */
    char bugs[ASSAY_EXPLAINED_MOST * (ASSAY_EXPLAINED_NAME + 1)];
    char *text[2][2], *json, *html; /* text: [verbose][color] */
};

static assay_status refuse(assay_context *ctx, int32_t index, const assay_backend_tensor *given, const char *what)
{
    return assay_fail(ctx, ASSAY_BAD_INPUT, "result %" PRId32 " (%.160s): %s", index,
                      given->path != NULL ? given->path : "no path", what);
}

static assay_status read_spec(assay_context *ctx, int32_t index, const assay_backend_tensor *given,
                              assay_tensor_spec *spec, int64_t *count)
{
    if (given->path == NULL) return refuse(ctx, index, given, "a path is missing");
    if (strlen(given->path) >= ASSAY_PATH_SIZE) return refuse(ctx, index, given, "the path is too long");
    if (!assay_dtype_of_backend(given->type, &spec->type)) return refuse(ctx, index, given, "a type that is none");
    if (given->rank < 0 || given->rank > ASSAY_MAX_RANK || (given->rank > 0 && given->dims == NULL)) {
        return refuse(ctx, index, given, "a rank from 0 to 12 and as many dims are expected");
    }
    assay_tensor_call(spec, given->path);
    spec->shape.rank = given->rank;
    for (int axis = 0; axis < given->rank; axis++) {
        spec->shape.dims[axis] = given->dims[axis];
        spec->labels[axis] = "";
    }
    MUST(assay_checked_count(ctx, spec->path, given->rank, spec->shape.dims, count));
    if (*count > 0 && given->data == NULL) return refuse(ctx, index, given, "data is NULL");
    return ASSAY_OK;
}

/* A copy: reports may be asked for when the caller's memory is gone. */
static assay_status take_tensor(assay_context *ctx, int32_t index, const assay_backend_tensor *given,
                                assay_tensor_set *results)
{
    assay_tensor_spec spec = {0};
    assay_tensor *tensor = NULL;
    int64_t count = 0;
    MUST(read_spec(ctx, index, given, &spec, &count));
    if (count > LARGE) MUST(assay_require_memory(ctx, spec.path, count * (int64_t)sizeof(double)));
    MUST(assay_tensor_set_add(ctx, results, &spec, &tensor));
    if (count > 0 && tensor->indices != NULL) memcpy(tensor->indices, given->data, (size_t)count * sizeof(int32_t));
    if (count > 0 && tensor->values != NULL) assay_dtype_decode(spec.type, count, given->data, tensor->values);
    tensor->written = count;
    return ASSAY_OK;
}

static assay_status take_results(assay_context *ctx, assay_test_report *r, int32_t count,
                                 const assay_backend_tensor *results)
{
    if (count < 0 || (count > 0 && results == NULL)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%" PRId32 " results at %s", count,
                          results == NULL ? "NULL" : "a place");
    }
    for (int i = 0; i < count; i++) MUST(take_tensor(ctx, i, &results[i], &r->results));
    return assay_fixture_of_tensors(ctx, "candidate", &r->results, &r->candidate);
}

static void name_bugs(assay_test_report *r)
{
    size_t length = 0;
    for (int i = 0; i < r->report.explained_count; i++) {
        length += (size_t)snprintf(r->bugs + length, sizeof r->bugs - length, "%s%s", i > 0 ? "," : "",
                                   r->report.explained_by[i]);
    }
}

static assay_status check(assay_context *ctx, assay_test *test, int32_t count, const assay_backend_tensor *results,
                          assay_test_report *r)
{
    assay_status status = ASSAY_OK;
    const assay_judging how = {.profile = &r->profile,
                               .false_alarm = test->false_alarm,
                               .quiet = true,
                               .unexplained = test->unexplained,
                               .staged = test->staged};
    MUST(assay_test_open_golden(ctx, test));
    MUST(take_results(ctx, r, count, results));
    r->held = test->held;
    r->held->users++;
    assay_plan *plan = &r->held->golden.plan;
    MUST(assay_golden_plan(ctx, &r->held->golden, &r->profile));
    plan->only = test->plan.only;
    plan->only_count = test->plan.only_count;
    status = assay_judge(ctx, &r->held->golden, r->candidate, &how, &r->report, &r->against);
    plan->only_count = 0; /* the list is the test's, which may be closed before the report */
    if (status != ASSAY_OK) return status;
    if (test->path != NULL) snprintf(r->report.golden_path, sizeof r->report.golden_path, "%.500s", test->path);
    name_bugs(r);
    return status;
}

int assay_test_check(assay_test *test, int32_t count, const assay_backend_tensor *results, assay_test_report **report,
                     char message[ASSAY_TEST_MESSAGE])
{
    if (test == NULL || report == NULL)
        return assay_test_refuse_null(test == NULL ? "the test" : "the report", message);
    assay_test_call call;
    assay_status status;
    assay_test_begin(&call, &test->ctx, test->ctx.threads, test->held);
    *report = NULL;
    assay_test_report *made = calloc(1, sizeof *made);
    if (made == NULL) TRY(assay_fail(&call.ctx, ASSAY_NO_MEMORY, "no memory for a report"));
    made->ctx = test->ctx;
    made->profile = test->profile;
    TRY(check(&call.ctx, test, count, results, made));
    *report = made;
    made = NULL;
cleanup:;
    const int end = assay_test_end(&call, status, message);
    assay_test_report_free(made); /* which may wait for the golden */
    return end;
}

void assay_test_report_free(assay_test_report *r)
{
    if (r == NULL) return;
    assay_report_free(&r->report);
    assay_golden_close(&r->against);
    assay_fixture_close(r->candidate);
    assay_tensor_set_free(&r->results);
    assay_cached_golden_release(r->held);
    for (int i = 0; i < 4; i++) free(r->text[i / 2][i % 2]);
    free(r->json);
    free(r->html);
    free(r);
}

int assay_test_report_verdict(const assay_test_report *report)
{
    if (report == NULL) return ASSAY_TEST_NOT_COMPARABLE;
    switch (report->report.verdict) {
    case ASSAY_PASS:
        return ASSAY_TEST_PASS;
    case ASSAY_FAIL:
        return ASSAY_TEST_FAIL;
    case ASSAY_VACUOUS:
        return ASSAY_TEST_VACUOUS;
    case ASSAY_NOT_COMPARABLE:
    case ASSAY_UNSUPPORTED: /* of a backend's own saying, which there is none of here */
        break;
    }
    return ASSAY_TEST_NOT_COMPARABLE;
}

const char *assay_test_report_message(const assay_test_report *report)
{
    return report == NULL ? "the report is NULL" : report->report.message;
}

static const char *first_wrong_of(const assay_report *r)
{
    for (int i = 0; r != NULL && i < r->count; i++) {
        if (r->tensors[i].verdict == ASSAY_FAIL) return r->tensors[i].spec.path;
    }
    return "";
}

/* A stage that is wrong says more than what flows from it. */
const char *assay_test_report_first_wrong(const assay_test_report *report)
{
    if (report == NULL) return "";
    const assay_report *r = &report->report;
    const char *stage = first_wrong_of(r->stages), *whole = first_wrong_of(r);
    if (stage[0] != '\0' || whole[0] != '\0') return stage[0] != '\0' ? stage : whole;
    return r->verdict == ASSAY_FAIL && r->unknown_count > 0 ? r->unknown[0] : "";
}

const char *assay_test_report_bugs(const assay_test_report *report)
{
    return report == NULL ? "" : report->bugs;
}

/* A call about a report; false: there is none. */
static bool begin(assay_test_call *call, assay_test_report *r, int threads, char *message)
{
    if (r == NULL) assay_test_refuse_null("the report", message);
    if (r != NULL) assay_test_begin(call, &r->ctx, threads, r->held);
    return r != NULL;
}

/* One of the forms, made if it is not there yet. */
static const char *give(assay_test_call *call, assay_status status, char *const *text, char *message)
{
    assay_test_end(call, status, message);
    return status == ASSAY_OK ? *text : NULL;
}

const char *assay_test_report_text(assay_test_report *r, int verbose, int color, char message[ASSAY_TEST_MESSAGE])
{
    assay_status status = ASSAY_OK;
    assay_test_call call;
    if (!begin(&call, r, 1, message)) return NULL;
    const assay_report_style style = {.color = color != 0, .verbosity = verbose != 0};
    char **text = &r->text[verbose != 0][color != 0];
    if (*text == NULL) status = assay_report_text(&call.ctx, &r->report, &style, text);
    return give(&call, status, text, message);
}

const char *assay_test_report_json(assay_test_report *r, char message[ASSAY_TEST_MESSAGE])
{
    assay_status status = ASSAY_OK;
    assay_test_call call;
    if (!begin(&call, r, 1, message)) return NULL;
    if (r->json == NULL) status = assay_report_json(&call.ctx, 1, &r->report, &r->json);
    return give(&call, status, &r->json, message);
}

const char *assay_test_report_html(assay_test_report *r, char message[ASSAY_TEST_MESSAGE])
{
    assay_status status = ASSAY_OK;
    assay_test_call call;
    if (!begin(&call, r, r == NULL ? 0 : r->ctx.threads, message)) return NULL;
    if (r->report.pictures == NULL) {
        const assay_golden *judged_by = assay_judged_by(&r->held->golden, &r->against);
        status = assay_judge_draw(&call.ctx, judged_by, r->candidate, &r->profile, r->held->golden.c, &r->report);
    }
    if (status == ASSAY_OK && r->html == NULL) status = assay_report_html(&call.ctx, 1, &r->report, &r->html);
    return give(&call, status, &r->html, message);
}
