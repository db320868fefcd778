#include "harness/routing_choice/given_choice.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compare/thresholds.h"
#include "harness/backends/backend_files.h"
#include "harness/operations/op_support.h"
#include "harness/plan/candidate_rows.h"
#include "harness/plan/golden_read.h"
#include "harness/routing_choice/choice.h"
#include "harness/routing_choice/given_choice_internal.h"
#include "harness/routing_choice/hidden_codes.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/moe/routing_rule.h"

static bool is_choice(const assay_tensor_spec *spec)
{
    return spec->type == ASSAY_INT32 && assay_path_is_choice(spec->path) && spec->shape.rank == 3;
}

/* The case's own choice is no backend's to make: the comparer holds it to equality, as it does any whole numbers. */
static bool is_input(const assay_fixture_reader *golden, const assay_tensor_spec *spec)
{
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "inputs/%.100s", strchr(spec->path, '/') + 1);
    return assay_fixture_find(golden, path) != NULL;
}

/* The candidate's choice, where it gives one that can be read; the comparer has its words for any other. */
static assay_status read_candidate(assay_context *ctx, assay_fixture_reader *candidate, const assay_tensor_spec *spec,
                                   assay_router_choice *router)
{
    const assay_tensor_spec *found = assay_fixture_find(candidate, spec->path);
    const int64_t count = router->tokens * router->per_token;
    if (found == NULL || found->type != ASSAY_INT32 || !assay_shape_equal(&found->shape, &spec->shape)) return ASSAY_OK;
    assay_status status = assay_fixture_read_i32(ctx, candidate, spec->path, 0, count, router->candidate);
    RETURN_IF(status != ASSAY_OK && status != ASSAY_BAD_INPUT, status);
    router->given = status == ASSAY_OK;
    ctx->message[0] = '\0';
    return ASSAY_OK;
}

/* So that the first wrong token is that of the first layer. */
static int by_layer(const void *a, const void *b)
{
    return ((const assay_router_choice *)a)->rank - ((const assay_router_choice *)b)->rank;
}

assay_status assay_given_choice_read(assay_context *ctx, assay_fixture_reader *golden, assay_order order,
                                     assay_fixture_reader *candidate, assay_given_choice *c)
{
    assay_status status = ASSAY_OK;
    const int total = assay_fixture_count(golden);
    c->routers = calloc((size_t)total + 1, sizeof *c->routers);
    if (c->routers == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the list of routers");
    for (int i = 0; i < total; i++) {
        const assay_tensor_spec *spec = assay_fixture_spec(golden, i);
        if (!is_choice(spec) || is_input(golden, spec)) continue;
        assay_router_choice *router = &c->routers[c->count++];
        const int64_t count = assay_shape_count(&spec->shape);
        snprintf(router->path, sizeof router->path, "%s", spec->path);
        router->rank = assay_order_rank(order, spec);
        router->per_token = spec->shape.dims[2];
        router->tokens = spec->shape.dims[0] * spec->shape.dims[1];
        TRY(assay_alloc_i32(ctx, spec->path, count, &router->golden));
        TRY(assay_alloc_i32(ctx, spec->path, count, &router->candidate));
        TRY(assay_fixture_read_i32(ctx, golden, spec->path, 0, count, router->golden));
        TRY(read_candidate(ctx, candidate, spec, router));
    }
    qsort(c->routers, (size_t)c->count, sizeof *c->routers, by_layer);
cleanup:
    return status;
}

void assay_given_choice_free(assay_given_choice *c)
{
    for (int i = 0; i < c->count; i++) {
        free(c->routers[i].golden);
        free(c->routers[i].candidate);
        free(c->routers[i].tau);
    }
    free(c->routers);
    assay_tensor_set_free(&c->choices);
    assay_tensor_set_free(&c->results);
}

static bool differs(const assay_router_choice *r)
{
    return r->given && memcmp(r->golden, r->candidate, (size_t)(r->tokens * r->per_token) * sizeof *r->golden) != 0;
}

static bool any_differs(const assay_given_choice *c)
{
    bool any = false;
    for (int i = 0; i < c->count; i++) any |= differs(&c->routers[i]);
    return any;
}

/* The golden's choice stands wherever the candidate's is the same: there is nothing to evaluate. */
static void summarize_equal(const assay_given_choice *c, assay_routing_summary *summary)
{
    for (int i = 0; i < c->count; i++) {
        if (!c->routers[i].given) continue;
        summary->judged = true;
        summary->tokens += c->routers[i].tokens;
        summary->exact += c->routers[i].tokens;
    }
}

static assay_status plan_again(assay_context *ctx, const assay_golden *golden, const assay_profile *profile,
                               bool staged, assay_again *a)
{
    assay_status status;
    char set[128];
    snprintf(set, sizeof set, "profiles=%s", profile->precision.name);
    TRY(assay_case_set(ctx, a->golden.c, set));
    if (!staged) return assay_golden_plan(ctx, &a->golden, profile);
    TRY(assay_case_set(ctx, a->golden.c, "checkpoints=all"));
    TRY(assay_plan_describe_stages(ctx, &a->golden.plan, a->golden.c, golden->reader, profile));
    a->golden.plan.only = golden->plan.only; /* of the stages no more is asked for than of the whole */
    a->golden.plan.only_count = golden->plan.only_count;
cleanup:
    return status;
}

assay_status assay_again_open(assay_context *ctx, const assay_golden *golden, const assay_profile *profile, bool staged,
                              assay_again *a)
{
    assay_status status;
    a->ctx = *ctx;
    a->ctx.arithmetic = assay_golden_engine(golden);
    if (a->ctx.arithmetic == NULL) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "the attribute engine is missing or unknown");
    }
    TRY(assay_golden_read(ctx, golden->reader, "case_yaml", &a->golden));
    TRY(plan_again(ctx, golden, profile, staged, a));
    TRY(assay_plan_require_memory(ctx, &a->golden.plan));
cleanup:
    a->golden.reader = NULL; /* it stays who judges */
    return status;
}

static assay_choice token_of(const assay_router_choice *router, const assay_again *a, const assay_profile *profile,
                             const double *no_tau, int64_t t)
{
    const assay_routing_rule rule = assay_routing_rule_of(&a->config);
    const int64_t experts = a->config.num_experts;
    return (assay_choice){.experts = experts,
                          .per_token = router->per_token,
                          .groups = rule.groups ? a->config.n_routing_groups : 1,
                          .groups_kept = rule.groups ? a->config.topk_routing_group : 1,
                          .group_score = a->config.group_score,
                          .fixed = rule.hash,
                          .any_of_tied = profile->any_of_tied,
                          .scores = router->scores + t * experts,
                          .tau = router->tau == NULL ? no_tau : router->tau + t * experts,
                          .golden = router->golden + t * router->per_token,
                          .selected = router->candidate + t * router->per_token};
}

/* The golden's own choices become indices, whoever wrote them into it: they must be those of its case. */
assay_status assay_given_choice_check_golden(assay_context *ctx, const assay_given_choice *c, const assay_again *a)
{
    for (int i = 0; i < c->count; i++) {
        const assay_router_choice *r = &c->routers[i];
        const int64_t tokens = a->config.batch * a->config.sequence, count = r->tokens * r->per_token;
        if (r->tokens != tokens || r->per_token != a->config.num_experts_per_tok) {
            return assay_fail(ctx, ASSAY_BAD_INPUT,
                              "%.90s has %" PRId64 " tokens with %" PRId64 " experts, expected %" PRId64
                              " with %" PRId64,
                              r->path, r->tokens, r->per_token, tokens, a->config.num_experts_per_tok);
        }
        for (int64_t k = 0; k < count; k++) {
            if (r->golden[k] >= 0 && r->golden[k] < a->config.num_experts) continue;
            return assay_fail(ctx, ASSAY_BAD_INPUT, "%.90s[%" PRId64 "] is %" PRId32 ", expected 0 to %" PRId64,
                              r->path, k, r->golden[k], a->config.num_experts - 1);
        }
    }
    return ASSAY_OK;
}

/* What is no choice at all cannot be evaluated with: there the golden's stands in. */
assay_status assay_given_choice_take(assay_context *ctx, assay_given_choice *c, const assay_again *a)
{
    assay_status status = ASSAY_OK;
    const double nothing = 0;
    for (int i = 0; i < c->count; i++) {
        const assay_router_choice *r = &c->routers[i];
        const assay_tensor_spec spec = assay_choice_spec(r);
        assay_tensor *valid = NULL;
        if (!r->given) continue;
        TRY(assay_tensor_set_add(ctx, &c->choices, &spec, &valid));
        valid->written = valid->count;
        for (int64_t t = 0; t < r->tokens; t++) {
            const int32_t *mine = r->candidate + t * r->per_token, *theirs = r->golden + t * r->per_token;
            /* ids come first, before any score is looked at */
            const assay_choice token = {.experts = a->config.num_experts,
                                        .per_token = r->per_token,
                                        .groups = 1,
                                        .groups_kept = 1,
                                        .fixed = true,
                                        .scores = &nothing,
                                        .tau = &nothing,
                                        .golden = theirs,
                                        .selected = mine};
            const bool ok = assay_choice_judge(&token) != ASSAY_CHOICE_INVALID;
            memcpy(valid->indices + t * r->per_token, ok ? mine : theirs, (size_t)r->per_token * sizeof *mine);
        }
    }
cleanup:
    return status;
}

assay_status assay_given_choice_hold(assay_context *ctx, assay_given_choice *c, const assay_again *a)
{
    assay_status status;
    TRY(assay_given_choice_check_golden(ctx, c, a));
    TRY(assay_given_choice_take(ctx, c, a));
    for (int i = 0; i < c->count; i++) {
        const assay_router_choice *r = &c->routers[i];
        const assay_tensor_spec spec = assay_choice_spec(r);
        assay_tensor *choice = NULL;
        if (r->given) continue;
        TRY(assay_tensor_set_add(ctx, &c->choices, &spec, &choice));
        choice->written = choice->count;
        memcpy(choice->indices, r->golden, (size_t)choice->count * sizeof *choice->indices);
    }
cleanup:
    return status;
}

static void place_of(const assay_router_choice *router, int64_t sequence, int64_t t, char text[160])
{
    snprintf(text, 160, "%.90s: token [%" PRId64 ",%" PRId64 "]", router->path, t / sequence, t % sequence);
}

/* One line on a wrong token. */
static void describe_wrong(const assay_router_choice *router, const assay_choice *token, assay_choice_verdict verdict,
                           int64_t sequence, int64_t t, char message[256])
{
    char place[160];
    int32_t chosen, better;
    place_of(router, sequence, t, place);
    if (verdict == ASSAY_CHOICE_INVALID) {
        snprintf(message, 256, "%s: not %" PRId64 " different experts of 0 to %" PRId64, place, token->per_token,
                 token->experts - 1);
        return;
    }
    assay_choice_swap(token, &chosen, &better);
    if (token->fixed) {
        snprintf(message, 256, "%s: expert %d chosen, the table says %d", place, chosen, better);
    } else if (verdict == ASSAY_CHOICE_TIE) {
        snprintf(message, 256, "%s: expert %d chosen, expert %d ties with it exactly: the lower index comes first",
                 place, chosen, better);
    } else {
        snprintf(message, 256, "%s: expert %d chosen, better is %d: off by %.3g times what errors allow", place, chosen,
                 better, assay_choice_excess(token));
    }
}

/* Judges all tokens; *wrong_path is the path of the first wrong one, or NULL. */
static assay_status judge(assay_context *ctx, const assay_given_choice *c, const assay_again *a,
                          const assay_profile *profile, assay_routing_summary *summary, const char **wrong_path)
{
    assay_status status;
    double *no_tau = NULL;
    *summary = (assay_routing_summary){.judged = true};
    *wrong_path = NULL;
    TRY(assay_alloc_f64(ctx, "errors of scores", a->config.num_experts, &no_tau));
    for (int64_t e = 0; e < a->config.num_experts; e++) no_tau[e] = 0.0;
    for (int i = 0; i < c->count; i++) {
        const assay_router_choice *router = &c->routers[i];
        for (int64_t t = 0; router->given && t < router->tokens; t++) {
            const assay_choice token = token_of(router, a, profile, no_tau, t);
            const assay_choice_verdict verdict = assay_choice_judge(&token);
            summary->tokens++;
            summary->exact += verdict == ASSAY_CHOICE_EXACT;
            summary->admissible += verdict == ASSAY_CHOICE_ADMISSIBLE;
            if (verdict == ASSAY_CHOICE_EXACT || verdict == ASSAY_CHOICE_ADMISSIBLE) continue;
            if (summary->wrong++ > 0) continue;
            *wrong_path = router->path;
            describe_wrong(router, &token, verdict, a->config.sequence, t, summary->message);
        }
    }
cleanup:
    free(no_tau);
    return status;
}

/* Errors of scores are needed only where another set was chosen. */
assay_status assay_given_choice_judge(assay_context *ctx, assay_given_choice *c, assay_again *a,
                                      const assay_profile *profile, double false_alarm, assay_routing_summary *summary,
                                      const char **wrong_path)
{
    assay_status status;
    int64_t scores = 0;
    TRY(assay_given_choice_check_golden(&a->ctx, c, a));
    TRY(assay_given_choice_take(&a->ctx, c, a));
    a->ctx.threads = assay_plan_threads(ctx, &a->golden.plan);
    TRY(assay_given_choice_scores(&a->ctx, c, &a->golden.plan));
    TRY(judge(&a->ctx, c, a, profile, summary, wrong_path));
    if (summary->exact == summary->tokens || assay_routing_rule_of(&a->config).hash) goto cleanup;
    for (int i = 0; i < c->count; i++) scores += c->routers[i].tokens * a->config.num_experts;
    /* thresholds of elements take half of what they are given */
    const double deviations = assay_thresholds_of(2 * ASSAY_CHOICE_SHARE * false_alarm, scores, 0, 0).element;
    TRY(assay_given_choice_tau(&a->ctx, c, &a->golden.plan, deviations));
    TRY(judge(&a->ctx, c, a, profile, summary, wrong_path));
cleanup:
    memcpy(ctx->message, a->ctx.message, sizeof ctx->message);
    return status;
}

/* The golden once more, given the choices, in a file that nobody else sees. */
assay_status assay_again_evaluate(assay_context *ctx, assay_given_choice *c, assay_again *a, bool quiet)
{
    assay_status status;
    assay_backend_folder folder = {0};
    char path[2304];
    assay_overlay given = {assay_tensor_set_source(&c->choices), c->inputs};
    const assay_source source = assay_overlay_source(&given);
    a->ctx.threads = ctx->threads;
    TRY(assay_backend_folder_make(ctx, NULL, &folder));
    snprintf(path, sizeof path, "%s/golden.h5", folder.path);
    status = assay_golden_write_from(&a->ctx, &a->golden.plan, path, &source, quiet);
    memcpy(ctx->message, a->ctx.message, sizeof ctx->message);
    if (status == ASSAY_OK) status = assay_fixture_open(ctx, path, &a->golden.reader);
cleanup:
    assay_backend_folder_end(&folder);
    return status;
}

static bool is_differing_choice(const assay_given_choice *c, const char *path)
{
    bool found = false;
    for (int i = 0; i < c->count; i++) found |= differs(&c->routers[i]) && strcmp(c->routers[i].path, path) == 0;
    return found;
}

/* The wrong choice is blamed, also where it follows an admissible one that differs: what lies between was compared with
 * the golden of another choice. What is wrong before any choice differs stays the first. */
void assay_given_choice_fail(const assay_given_choice *c, const char *path, const char *message, assay_report *report)
{
    bool before = true, blamed = true;
    for (int i = 0; i < report->count; i++) {
        assay_tensor_result *r = &report->tensors[i];
        before &= !is_differing_choice(c, r->spec.path);
        blamed &= !before || r->verdict != ASSAY_FAIL;
        if (strcmp(r->spec.path, path) != 0) continue;
        r->verdict = ASSAY_FAIL;
        r->finding = ASSAY_FINDING_INTEGERS;
        snprintf(r->message, sizeof r->message, "%s", message);
    }
    report->verdict = ASSAY_FAIL;
    if (!blamed) return;
    snprintf(report->message, sizeof report->message, "%s", message);
    report->diagnosis[0] = '\0'; /* what follows another choice of experts looks like nothing */
}

static assay_status take_rows(assay_context *ctx, const assay_plan *plan, assay_fixture_reader *golden,
                              assay_fixture_reader *candidate, assay_row_orders *orders)
{
    const assay_status status = assay_candidate_take_orders(ctx, plan, golden, candidate, orders);
    return status == ASSAY_OK ? assay_candidate_take_replicas(ctx, plan, golden, candidate, orders) : status;
}

static void note_orders(const assay_row_orders *orders, assay_report *report)
{
    if (orders->other > 0) {
        snprintf(report->order, sizeof report->order,
                 "rows of one expert come in another order than the stable one; judged up to it");
    } else if (orders->other_replicas) {
        snprintf(report->order, sizeof report->order, "tokens go to other replicas of their experts; judged up to it");
    }
    for (int i = 0; i < report->count; i++) {
        assay_tensor_result *r = &report->tensors[i];
        if (strcmp(r->spec.path, orders->wrong_path) != 0 || r->verdict != ASSAY_FAIL) continue;
        const bool blamed = strcmp(report->message, r->message) == 0;
        snprintf(r->message, sizeof r->message, "%.255s", orders->message);
        if (blamed) snprintf(report->message, sizeof report->message, "%.255s", orders->message);
    }
}

/* The report is on the golden that was evaluated again, and its power what the golden that is there states. */
static assay_status hand_over(assay_context *ctx, const assay_golden *golden, assay_again *a, assay_report *report,
                              assay_golden *against)
{
    assay_status status = assay_power_read(ctx, golden->reader, report->profile, &report->power);
    RETURN_IF(status != ASSAY_OK, status);
    assay_report_weigh(report);
    if (a->golden.reader != NULL) {
        *against = a->golden;
        a->golden = (assay_golden){0};
    }
    return ASSAY_OK;
}

/* Gradients go by the order of the rows, where that is an output: the golden once more, given the candidate's. */
static assay_status compare_given_order(assay_context *ctx, assay_golden *golden, assay_fixture_reader *candidate,
                                        const assay_profile *profile, double false_alarm, bool quiet, const char *path,
                                        assay_report *report, assay_golden *against)
{
    assay_status status;
    assay_again a = {0};
    assay_given_choice c = {.inputs = assay_golden_given(golden->reader)};
    assay_tensor_spec spec = *assay_fixture_find(golden->reader, path);
    assay_tensor *order = NULL;
    assay_tensor_call(&spec, "routing/sorted_selected_experts");
    TRY(assay_tensor_set_add(ctx, &c.choices, &spec, &order));
    order->written = order->count;
    TRY(assay_fixture_read_i32(ctx, candidate, path, 0, order->count, order->indices));
    TRY(assay_again_open(ctx, golden, profile, false, &a));
    TRY(assay_again_evaluate(ctx, &c, &a, quiet));
    TRY(assay_compare(ctx, a.golden.reader, candidate, profile, false_alarm, assay_plan_order(&golden->plan), report));
    TRY(hand_over(ctx, golden, &a, report, against));
cleanup:
    assay_golden_close(&a.golden);
    assay_given_choice_free(&c);
    return status;
}

/* Judges the candidate's codes of h; where none is wrong, the golden once more, given them. */
static assay_status go_on_from_codes(assay_context *ctx, assay_given_choice *c, assay_again *a, double false_alarm,
                                     bool quiet, assay_hidden_codes *codes)
{
    assay_status status;
    const assay_source inputs = c->inputs;
    assay_overlay choices = {assay_tensor_set_source(&c->choices), inputs};
    assay_overlay given = {assay_tensor_set_source(&codes->staged), inputs};
    const assay_source in = assay_overlay_source(&choices);
    a->ctx.threads = ctx->threads;
    status = assay_hidden_codes_judge(&a->ctx, &a->golden.plan, &in, false_alarm, codes);
    memcpy(ctx->message, a->ctx.message, sizeof ctx->message);
    RETURN_IF(status != ASSAY_OK || codes->wrong > 0, status);
    c->inputs = assay_overlay_source(&given);
    assay_fixture_close(a->golden.reader);
    a->golden.reader = NULL;
    status = assay_again_evaluate(ctx, c, a, quiet);
    c->inputs = inputs;
    return status;
}

/* The choices are the golden's. */
static assay_status compare_given_codes(assay_context *ctx, assay_golden *golden, assay_fixture_reader *candidate,
                                        const assay_profile *profile, double false_alarm, bool quiet,
                                        assay_given_choice *c, assay_hidden_codes *codes, assay_report *report,
                                        assay_golden *against)
{
    assay_status status;
    assay_again a = {0};
    c->inputs = assay_golden_given(golden->reader);
    TRY(assay_again_open(ctx, golden, profile, false, &a));
    if (c->count > 0) {
        TRY(assay_routing_config_of(ctx, a.golden.c, &a.config));
        TRY(assay_given_choice_hold(ctx, c, &a));
    }
    TRY(go_on_from_codes(ctx, c, &a, false_alarm, quiet, codes));
    TRY(assay_compare(ctx, a.golden.reader != NULL ? a.golden.reader : golden->reader, candidate, profile,
                      (1 - ASSAY_CODES_SHARE) * false_alarm, assay_plan_order(&golden->plan), report));
    report->false_alarm = false_alarm;
    TRY(hand_over(ctx, golden, &a, report, against));
cleanup:
    assay_golden_close(&a.golden);
    return status;
}

static assay_status compare_differing(assay_context *ctx, assay_golden *golden, assay_fixture_reader *candidate,
                                      const assay_profile *profile, double false_alarm, bool quiet,
                                      assay_given_choice *c, assay_report *report, assay_golden *against)
{
    assay_status status;
    assay_again a = {0};
    assay_routing_summary summary = {0};
    assay_row_orders orders = {0};
    assay_hidden_codes codes = {0};
    const char *wrong_path = NULL;
    char line[ASSAY_MESSAGE_SIZE];
    double share = 1 - ASSAY_CHOICE_SHARE;
    c->inputs = assay_golden_given(golden->reader);
    status = assay_again_open(ctx, golden, profile, false, &a);
    if (status == ASSAY_OK) status = assay_routing_config_of(ctx, a.golden.c, &a.config);
    if (status == ASSAY_OK) status = assay_given_choice_judge(ctx, c, &a, profile, false_alarm, &summary, &wrong_path);
    if (status == ASSAY_OK && summary.wrong == 0) status = assay_again_evaluate(ctx, c, &a, quiet);
    if (status != ASSAY_OK && status != ASSAY_BAD_INPUT) goto cleanup;
    snprintf(line, sizeof line, "%s", ctx->message);
    const bool refused = status == ASSAY_BAD_INPUT;
    ctx->message[0] = '\0';
    assay_fixture_reader *held = a.golden.reader != NULL ? a.golden.reader : golden->reader;
    if (a.golden.reader != NULL) TRY(take_rows(ctx, &golden->plan, held, candidate, &orders));
    if (a.golden.reader != NULL) TRY(assay_hidden_codes_take(ctx, &golden->plan, candidate, &codes));
    if (codes.staged.count > 0) {
        share -= ASSAY_CODES_SHARE;
        TRY(go_on_from_codes(ctx, c, &a, false_alarm, quiet, &codes));
        held = a.golden.reader;
    }
    TRY(assay_compare(ctx, held, candidate, profile, share * false_alarm, assay_plan_order(&golden->plan), report));
    note_orders(&orders, report);
    assay_hidden_codes_note(&codes, report);
    report->false_alarm = false_alarm;
    if (refused) {
        summary = (assay_routing_summary){0};
        snprintf(summary.message, sizeof summary.message,
                 "the candidate's choice of experts differs, and the golden cannot be evaluated given it: %.150s",
                 line);
    }
    summary.evaluated_again = a.golden.reader != NULL;
    if (summary.wrong > 0) assay_given_choice_fail(c, wrong_path, summary.message, report);
    report->routing = summary;
    TRY(hand_over(ctx, golden, &a, report, against));
cleanup:
    assay_golden_close(&a.golden);
    assay_hidden_codes_free(&codes);
    return status;
}

assay_status assay_compare_given_choice(assay_context *ctx, assay_golden *golden, assay_fixture_reader *candidate,
                                        const assay_profile *profile, double false_alarm, bool quiet,
                                        assay_report *report, assay_golden *against)
{
    assay_status status;
    assay_given_choice c = {0};
    assay_routing_summary equal = {0};
    assay_row_orders orders = {0};
    assay_hidden_codes codes = {0};
    *report = (assay_report){0};
    *against = (assay_golden){0};
    /* a case that cannot be planned leaves the order of folders */
    status = assay_golden_plan(ctx, golden, profile);
    if (status != ASSAY_OK && status != ASSAY_BAD_INPUT) goto cleanup;
    ctx->message[0] = '\0';
    const assay_order order = assay_plan_order(&golden->plan);
    TRY(assay_candidate_take_sketches(ctx, &golden->plan, candidate));
    TRY(assay_candidate_take_unused(ctx, &golden->plan, golden->reader, candidate));
    TRY(assay_candidate_take_nan_codes(ctx, &golden->plan, golden->reader, candidate));
    TRY(assay_given_choice_read(ctx, golden->reader, order, candidate, &c));
    if (any_differs(&c)) {
        TRY(compare_differing(ctx, golden, candidate, profile, false_alarm, quiet, &c, report, against));
    } else {
        summarize_equal(&c, &equal);
        TRY(take_rows(ctx, &golden->plan, golden->reader, candidate, &orders));
        TRY(assay_hidden_codes_take(ctx, &golden->plan, candidate, &codes));
        if (codes.staged.count > 0) {
            TRY(compare_given_codes(ctx, golden, candidate, profile, false_alarm, quiet, &c, &codes, report, against));
        } else if (orders.output[0] != '\0') {
            TRY(compare_given_order(ctx, golden, candidate, profile, false_alarm, quiet, orders.output, report,
                                    against));
        } else {
            TRY(assay_compare(ctx, golden->reader, candidate, profile, false_alarm, order, report));
        }
        report->routing = equal;
        note_orders(&orders, report);
        assay_hidden_codes_note(&codes, report);
    }
cleanup:
    assay_given_choice_free(&c);
    assay_hidden_codes_free(&codes);
    return status;
}
