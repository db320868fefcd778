#include "harness/fuzz/attempt.h"

#include <ctype.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/backends/backend_files.h"
#include "harness/explain/explain.h"
#include "harness/fuzz/draw.h"
#include "harness/golden/golden.h"
#include "harness/judge/judge.h"
#include "harness/plan/inputs.h"
#include "harness/plan/results.h"

/* Layers, sizes and places are what shrinking changes. */
static void without_numbers(const char *text, char *out, size_t size)
{
    size_t length = 0;
    for (; *text != '\0' && length + 1 < size; text++) {
        const bool digit = isdigit((unsigned char)*text) != 0;
        if (digit && length > 0 && out[length - 1] == '#') continue;
        out[length++] = digit ? '#' : *text;
    }
    out[length] = '\0';
}

bool assay_reason_is_alike(const assay_reason *a, const assay_reason *b)
{
    return strcmp(a->where, b->where) == 0 && strcmp(a->what, b->what) == 0;
}

static void fail(assay_attempt *a, const char *what, const char *message)
{
    a->end = ASSAY_ATTEMPT_FAIL;
    snprintf(a->message, sizeof a->message, "%.590s", message);
    without_numbers(what, a->reason.what, sizeof a->reason.what);
}

/* Which finding it is changes with the size of the tensor, where values are wrong. */
static const char *kind_of(assay_finding finding)
{
    switch (finding) {
    case ASSAY_FINDING_MISSING:
        return "missing";
    case ASSAY_FINDING_SHAPE:
    case ASSAY_FINDING_TYPE:
        return "shape or type";
    case ASSAY_FINDING_NONFINITE:
        return "not finite";
    default:
        return "values";
    }
}

static double excess_of(const assay_tensor_result *r)
{
    double most = fmax(r->worst_element, r->worst_row);
    return r->worst_statistic >= 0 ? fmax(most, r->statistics[r->worst_statistic].excess) : most;
}

static void judge(assay_attempt *a)
{
    const assay_report *report = &a->report;
    a->end = ASSAY_ATTEMPT_PASS;
    if (report->verdict == ASSAY_PASS || report->verdict == ASSAY_VACUOUS) return;
    fail(a, report->unknown_count > 0 ? "a result that the case does not have" : "values", report->message);
    for (int i = 0; i < report->count; i++) {
        const assay_tensor_result *r = &report->tensors[i];
        if (r->verdict != ASSAY_FAIL && r->verdict != ASSAY_NOT_COMPARABLE) continue;
        without_numbers(r->spec.path, a->reason.where, sizeof a->reason.where);
        snprintf(a->reason.what, sizeof a->reason.what, "%s", kind_of(r->finding));
        a->reason.excess = excess_of(r);
        break;
    }
}

/* ---- the backend ---- */

static void judge_process(assay_attempt *a, const assay_process_result *process, const char *line, double timeout)
{
    char message[600];
    const char *separator = line[0] == '\0' ? "" : ": ";
    if (process->end == ASSAY_PROCESS_TIMED_OUT) {
        snprintf(message, sizeof message, "the backend took longer than %g s and was stopped", timeout);
    } else if (process->end == ASSAY_PROCESS_KILLED) {
        snprintf(message, sizeof message, "the backend crashed: %s", strsignal(process->code));
    } else if (process->code == ASSAY_BACKEND_EXIT_UNSUPPORTED) {
        a->end = ASSAY_ATTEMPT_UNSUPPORTED;
        snprintf(a->message, sizeof a->message, "%s", line);
        return;
    } else if (process->code == ASSAY_BACKEND_EXIT_DONE) {
        return;
    } else {
        snprintf(message, sizeof message, "the backend ended with status %d%s%.500s", process->code, separator, line);
    }
    fail(a, message, message);
}

static bool same_bits(const assay_tensor *one, const assay_tensor *other)
{
    if (other == NULL || one->spec.type != other->spec.type) return false;
    return one->indices != NULL ? memcmp(one->indices, other->indices, (size_t)one->count * sizeof *one->indices) == 0
                                : memcmp(one->values, other->values, (size_t)one->count * sizeof *one->values) == 0;
}

static void hold_against(assay_attempt *a, const assay_tensor_set *again)
{
    char message[ASSAY_PATH_SIZE + 64];
    for (int i = 0; i < again->count; i++) {
        const assay_tensor *tensor = &again->items[i];
        if (same_bits(tensor, assay_tensor_set_find(&a->results, tensor->spec.path)) &&
            again->count == a->results.count)
            continue;
        snprintf(message, sizeof message, "two runs gave different bits in %s", tensor->spec.path);
        without_numbers(tensor->spec.path, a->reason.where, sizeof a->reason.where);
        fail(a, "two runs gave different bits", message);
        return;
    }
}

/* As `assay run` does it: in two processes, in the second of them twice. */
static assay_status call_shared_object(assay_context *ctx, assay_tried *tried, const assay_source *in, assay_attempt *a)
{
    assay_status status = ASSAY_OK;
    OWNED_BY(assay_tensor_set_free) assay_tensor_set again = {0};
    void *place = NULL;
    const assay_host_memory memory = assay_forks_memory(&tried->forks);
    MUST(memory.take(ctx, memory.self, "host", sizeof(assay_host), &place));
    assay_host *host = place;
    MUST(assay_host_make(ctx, &a->plan, in, &memory, host));
    for (int run = 1; run <= 2 && a->end == ASSAY_ATTEMPT_PASS; run++) {
        assay_process_result process;
        MUST(assay_forks_call(ctx, &tried->forks, host, run, tried->timeout, tried->memory, &process));
        host->message[ASSAY_HOST_MESSAGE - 1] = '\0';
        judge_process(a, &process, host->message, tried->timeout);
        a->seconds += process.seconds;
        if (a->end != ASSAY_ATTEMPT_PASS) break;
        status = assay_host_results(ctx, host, run == 1 ? &a->results : &again);
        if (status == ASSAY_BAD_INPUT) {
            fail(a, ctx->message, ctx->message);
            status = ASSAY_OK;
        }
        MUST(status);
        if (run == 2) hold_against(a, &again);
    }
    if (a->end == ASSAY_ATTEMPT_PASS) MUST(assay_fixture_of_tensors(ctx, "candidate", &a->results, &a->candidate));
    return status;
}

static assay_status run_command(assay_context *ctx, const assay_tried *tried, assay_attempt *a)
{
    static const char *const kinds[] = {"request", "candidate", "golden"};
    char paths[3][2304], *const request = paths[0], *const candidate = paths[1];
    assay_backend_end end;
    for (int i = 0; i < 3; i++) {
        char kind[32];
        snprintf(kind, sizeof kind, "%s.%s", kinds[i], tried->container);
        assay_backend_file(paths[i], sizeof paths[i], tried->folder, "drawn", kind);
    }
    MUST(assay_request_write(ctx, &a->plan, request, NULL, true));
    const assay_backend_call call = {.spec = tried->spec,
                                     .server = tried->server,
                                     .request = request,
                                     .candidate = candidate,
                                     .golden = paths[2],
                                     .folder = tried->folder,
                                     .limits = {tried->timeout, tried->memory}};
    MUST(assay_backend_execute(ctx, &call, &end));
    a->seconds = end.seconds;
    if (end.outcome == ASSAY_OUTCOME_UNSUPPORTED) {
        a->end = ASSAY_ATTEMPT_UNSUPPORTED;
        snprintf(a->message, sizeof a->message, "%s", end.message);
    } else if (end.outcome == ASSAY_OUTCOME_FAILED || !end.repeats) {
        fail(a, end.message, end.message);
    } else {
        MUST(assay_fixture_open(ctx, candidate, &a->candidate));
    }
    return ASSAY_OK;
}

/* ---- the case ---- */

/* Cases that are judged by one profile need the error scales of no other. */
static assay_status set_profile(assay_context *ctx, const assay_tried *tried, assay_case *c, assay_attempt *a)
{
    char set[64 + ASSAY_PRECISION_NAME_SIZE];
    a->profile = tried->profile != NULL ? tried->profile : assay_profile_for_dtype(c->dtype);
    if (a->profile == NULL)
        return assay_fail(ctx, ASSAY_BAD_INPUT, "no profile goes with dtype %s", assay_dtype_name(c->dtype));
    snprintf(set, sizeof set, "profiles=[%s]", a->profile->precision.name);
    return assay_case_set(ctx, c, set);
}

static assay_status prepare(assay_context *ctx, const assay_tried *tried, assay_case *c, int64_t most_elements,
                            assay_attempt *a)
{
    MUST(set_profile(ctx, tried, c, a));
    MUST(assay_plan_describe(ctx, &a->plan, c, NULL, a->profile));
    if (most_elements > 0 && a->plan.elements > most_elements) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: too large", c->name);
    }
    MUST(assay_plan_require_memory(ctx, &a->plan));
    MUST(assay_inputs_open(ctx, &a->inputs, c, &a->plan.list, NULL));
    const assay_source drawn = assay_inputs_source(&a->inputs);
    return assay_plan_tensors(ctx, &a->tensors, &a->plan, &drawn);
}

static assay_status compare(assay_context *ctx, const assay_tried *tried, assay_attempt *a)
{
    const assay_judging how = {
        .profile = a->profile, .false_alarm = tried->false_alarm, .quiet = true, .unexplained = true};
    const assay_status status = assay_judge(ctx, &a->golden, a->candidate, &how, &a->report, &a->against);
    if (status == ASSAY_BAD_INPUT) { /* of the two the candidate is the one that others wrote */
        fail(a, ctx->message, ctx->message);
        return ASSAY_OK;
    }
    if (status == ASSAY_OK) judge(a);
    return status;
}

static bool is_beyond(const assay_tensor *tensor, double most)
{
    const assay_tensor_role role = tensor->spec.role;
    if (role != ASSAY_ROLE_OUTPUT && role != ASSAY_ROLE_CHECKPOINT && role != ASSAY_ROLE_GRADIENT) return false;
    for (int64_t k = 0; tensor->values != NULL && k < tensor->count; k++) {
        if (isfinite(tensor->values[k]) && fabs(tensor->values[k]) > most) return true; /* the lse of no key is -inf */
    }
    return false;
}

/* Whether a result that is not finite may be so because what is stored on the way is beyond the profile's storage type, as
 * 70000 is beyond float16. The golden holds that only with its checkpoints. */
static assay_status overflows(assay_context *ctx, const assay_tried *tried, const assay_case *c, const assay_attempt *a,
                              bool *overflow)
{
    assay_status status = ASSAY_OK;
    const double most = assay_dtype_max(a->profile->storage);
    assay_attempt kept = {0};
    assay_case with = {0};
    bool finite = true;
    *overflow = false;
    for (int i = 0; i < a->report.count; i++) finite &= a->report.tensors[i].finding != ASSAY_FINDING_NONFINITE;
    if (finite || most >= FLT_MAX) return ASSAY_OK;
    TRY(assay_case_copy(ctx, c, &with));
    status = assay_case_set(ctx, &with, "checkpoints=all");
    if (status == ASSAY_OK) status = prepare(ctx, tried, &with, 0, &kept);
    if (status == ASSAY_OK) status = assay_golden_of_memory(ctx, &kept.plan, &kept.tensors, &kept.golden);
    for (int i = 0; status == ASSAY_OK && i < kept.tensors.count; i++)
        *overflow |= is_beyond(&kept.tensors.items[i], most);
cleanup:
    assay_attempt_free(&kept);
    assay_case_free(&with);
    return assay_draw_forgive(ctx, status); /* an operation without checkpoints */
}

assay_status assay_attempt_make(assay_context *ctx, assay_tried *tried, assay_case *c, int64_t most_elements,
                                assay_attempt *a)
{
    bool overflow = false;
    assay_status status;
    *a = (assay_attempt){.end = ASSAY_ATTEMPT_PASS};
    status = prepare(ctx, tried, c, most_elements, a);
    if (status != ASSAY_OK) goto refused;
    const assay_source in = assay_input_source(&a->tensors);
    const bool shared = assay_backend_is_shared_object(tried->spec);
    status = shared ? call_shared_object(ctx, tried, &in, a) : run_command(ctx, tried, a);
    if (status != ASSAY_OK) goto refused;
    if (a->end == ASSAY_ATTEMPT_UNSUPPORTED) return ASSAY_OK;
    /* numbers that are no case, group sizes beyond the rows above all, are found here: no backend must bear them */
    status = assay_golden_of_memory(ctx, &a->plan, &a->tensors, &a->golden);
    if (status == ASSAY_OK && a->end == ASSAY_ATTEMPT_PASS) status = compare(ctx, tried, a);
    if (status == ASSAY_OK && a->report.verdict == ASSAY_NOT_COMPARABLE)
        status = assay_fail(ctx, ASSAY_BAD_INPUT, "%s: %s", c->name, a->report.message);
    if (status == ASSAY_OK && a->report.verdict == ASSAY_FAIL) status = overflows(ctx, tried, c, a, &overflow);
    if (status == ASSAY_OK && overflow)
        status = assay_fail(ctx, ASSAY_BAD_INPUT, "%s: its numbers are too large for %s", c->name,
                            assay_dtype_name(a->profile->storage));
refused:
    if (status == ASSAY_BAD_INPUT) {
        a->end = ASSAY_ATTEMPT_REFUSED;
        snprintf(a->message, sizeof a->message, "%.590s", ctx->message);
        status = ASSAY_OK;
    }
    if (status == ASSAY_OK && a->end == ASSAY_ATTEMPT_FAIL)
        status = assay_known_find(ctx, tried->known, c, &a->reason, &a->known);
    ctx->message[0] = status == ASSAY_OK ? '\0' : ctx->message[0];
    return status;
}

assay_status assay_attempt_explain(assay_context *ctx, assay_attempt *a)
{
    if (a->end != ASSAY_ATTEMPT_FAIL || a->report.count == 0) return ASSAY_OK;
    const assay_status status =
        assay_explain(ctx, assay_judged_by(&a->golden, &a->against), NULL, a->candidate, a->profile, true, &a->report);
    if (a->report.explained_count > 0) snprintf(a->reason.bug, sizeof a->reason.bug, "%s", a->report.explained_by[0]);
    return status;
}

assay_status assay_attempt_equals(assay_context *ctx, assay_attempt *a, const char *bug, bool *equals)
{
    *equals = false;
    const assay_mutant *mutant = assay_mutant_by_name(bug);
    if (a->report.count == 0 || mutant == NULL) return ASSAY_OK;
    return assay_explains(ctx, assay_judged_by(&a->golden, &a->against), a->candidate, a->profile, mutant, &a->report,
                          equals);
}

void assay_attempt_free(assay_attempt *a)
{
    assay_report_free(&a->report);
    assay_golden_close(&a->against);
    assay_golden_close(&a->golden);
    assay_fixture_close(a->candidate);
    assay_tensor_set_free(&a->results);
    assay_tensor_set_free(&a->tensors);
    if (a->inputs.c != NULL) assay_inputs_close(&a->inputs);
    assay_plan_free(&a->plan);
    *a = (assay_attempt){0};
}
