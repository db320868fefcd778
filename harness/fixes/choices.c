#include "harness/fixes/choices.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/thresholds.h"
#include "harness/fixes/choice.h"
#include "harness/operations/op_support.h"
#include "harness/scales/ensemble.h"
#include "oracle/base/memory.h"
#include "oracle/moe/permute.h"
#include "oracle/moe/routing_rule.h"

static bool is_choice(const assay_tensor_spec *spec)
{
    return spec->type == ASSAY_INT32 && assay_path_is_choice(spec->path) && spec->shape.rank > 0;
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
    if (status != ASSAY_OK && status != ASSAY_BAD_INPUT) return status;
    router->known = status == ASSAY_OK;
    ctx->message[0] = '\0';
    return ASSAY_OK;
}

/* So that the first wrong token is that of the first layer. */
static int by_layer(const void *a, const void *b)
{
    return ((const assay_router_choice *)a)->rank - ((const assay_router_choice *)b)->rank;
}

assay_status assay_choices_read(assay_context *ctx, assay_fixture_reader *golden, assay_order order,
                                assay_fixture_reader *candidate, assay_choices *c)
{
    const int total = assay_fixture_count(golden);
    MUST(assay_alloc_list(ctx, "the list of routers", total + 1, sizeof *c->routers, &c->routers));
    for (int i = 0; i < total; i++) {
        const assay_tensor_spec *spec = assay_fixture_spec(golden, i);
        if (!is_choice(spec) || is_input(golden, spec)) continue;
        assay_router_choice *router = &c->routers[c->count++];
        const int64_t count = assay_shape_count(&spec->shape);
        snprintf(router->path, sizeof router->path, "%s", spec->path);
        router->rank = assay_order_rank(order, spec);
        router->per_token = spec->shape.dims[spec->shape.rank - 1];
        router->tokens = count / router->per_token;
        MUST(assay_alloc_i32(ctx, spec->path, count, &router->golden));
        MUST(assay_alloc_i32(ctx, spec->path, count, &router->candidate));
        MUST(assay_fixture_read_i32(ctx, golden, spec->path, 0, count, router->golden));
        MUST(read_candidate(ctx, candidate, spec, router));
    }
    qsort(c->routers, (size_t)c->count, sizeof *c->routers, by_layer);
    return ASSAY_OK;
}

void assay_choices_free(assay_choices *c)
{
    for (int i = 0; i < c->count; i++) {
        free(c->routers[i].golden);
        free(c->routers[i].candidate);
        free(c->routers[i].tau);
    }
    free(c->routers);
    free(c->used);
    assay_tensor_set_free(&c->results);
    *c = (assay_choices){0};
}

static bool differs(const assay_router_choice *r)
{
    return r->known && memcmp(r->golden, r->candidate, (size_t)(r->tokens * r->per_token) * sizeof *r->golden) != 0;
}

bool assay_choices_differ(const assay_choices *c)
{
    bool any = false;
    for (int i = 0; i < c->count; i++) any |= differs(&c->routers[i]);
    return any;
}

bool assay_choices_all_known(const assay_choices *c)
{
    bool all = true;
    for (int i = 0; i < c->count; i++) all &= c->routers[i].known;
    return all;
}

void assay_choices_count(assay_choices *c)
{
    for (int i = 0; i < c->count; i++) {
        if (!c->routers[i].known) continue;
        c->summary.judged = true;
        c->summary.tokens += c->routers[i].tokens;
        c->summary.exact += c->routers[i].tokens;
    }
}

/* --- to evaluate with --- */

static assay_tensor_spec choice_of(const assay_router_choice *router)
{
    assay_tensor_spec spec = {.type = ASSAY_INT32, .shape = assay_shape_of(2, router->tokens, router->per_token)};
    memcpy(spec.path, router->path, sizeof spec.path);
    return spec;
}

/* routing/P/biased_scores [T,E], which belongs to the choice routing/P/selected_experts, or top_k. */
static assay_tensor_spec scores_of(const assay_router_choice *router)
{
    assay_tensor_spec spec = {.type = ASSAY_FLOAT64,
                              .shape = assay_shape_of(2, router->tokens, router->config.num_experts)};
    const int prefix = (int)(strrchr(router->path, '/') + 1 - router->path);
    snprintf(spec.path, sizeof spec.path, "%.*sbiased_scores", prefix, router->path);
    return spec;
}

static bool is_of_experts(const assay_router_choice *router)
{
    return assay_path_ends(router->path, "selected_experts");
}

static bool is_padded(const assay_router_choice *router)
{
    return !is_of_experts(router) && isfinite(router->above);
}

static assay_choice token_of(const assay_router_choice *router, const assay_choices *c, int64_t t)
{
    return (assay_choice){.experts = router->config.num_experts,
                          .per_token = router->per_token,
                          .padded = is_padded(router),
                          .above = router->above,
                          .free = c->used != NULL && !c->used[t],
                          .golden = router->golden + t * router->per_token,
                          .selected = router->candidate + t * router->per_token};
}

/* The golden's own choices become indices, whoever wrote them into it: they must be those of its case. */
static assay_status check_golden(assay_context *ctx, const assay_choices *c)
{
    for (int i = 0; i < c->count; i++) {
        const assay_router_choice *r = &c->routers[i];
        const assay_routing_config *config = &r->config;
        const int64_t tokens = config->batch * config->sequence, count = r->tokens * r->per_token;
        if (r->tokens != tokens || r->per_token != config->num_experts_per_tok) {
            return assay_fail(ctx, ASSAY_BAD_INPUT,
                              "%.90s has %" PRId64 " tokens with %" PRId64 " experts, expected %" PRId64
                              " with %" PRId64,
                              r->path, r->tokens, r->per_token, tokens, config->num_experts_per_tok);
        }
        for (int64_t k = 0; k < count; k++) {
            if (r->golden[k] >= -is_padded(r) && r->golden[k] < config->num_experts) continue;
            return assay_fail(ctx, ASSAY_BAD_INPUT, "%.90s[%" PRId64 "] is %" PRId32 ", expected 0 to %" PRId64,
                              r->path, k, r->golden[k], config->num_experts - 1);
        }
    }
    return ASSAY_OK;
}

/* Of a program as many groups of one as there are rows. */
static assay_status config_of(assay_context *ctx, const assay_case *c, assay_router_choice *router)
{
    if (c->program == NULL) return assay_routing_config_of(ctx, c, &router->config);
    for (int i = 0; i < c->program->line_count; i++) {
        const assay_program_line *line = &c->program->lines[i];
        const assay_program_node *node = &c->program->nodes[line->node];
        if (!node->chosen || strcmp(line->path, router->path) != 0) continue;
        const assay_shape *scores = &c->program->nodes[node->in[0]].shape;
        router->above = assay_program_number(node, "above");
        router->any_of_tied = assay_program_number(node, "lowest") == 0;
        router->config = (assay_routing_config){.batch = 1,
                                                .sequence = assay_shape_count(&node->shape) / router->per_token,
                                                .num_experts = scores->dims[scores->rank - 1],
                                                .num_experts_per_tok = node->shape.dims[node->shape.rank - 1]};
        return ASSAY_OK;
    }
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%.90s is no choice of the program", router->path);
}

static assay_status find_used(assay_context *ctx, const assay_plan *plan, const assay_source *in, assay_choices *c)
{
    const assay_tensor_entry *entry = assay_tensor_list_find(&plan->list, c->routers[0].path);
    if (entry == NULL || entry->unused_row_axes == 0) return ASSAY_OK;
    return plan->operation->used_rows(ctx, plan->c, entry, in, &c->used);
}

assay_status assay_choices_adopt(assay_context *ctx, assay_choices *c, const assay_plan *evaluated,
                                 const assay_source *in, bool others, assay_tensor_set *adopted)
{
    if (c->count == 0) return ASSAY_OK;
    for (int i = 0; i < c->count; i++) MUST(config_of(ctx, evaluated->c, &c->routers[i]));
    MUST(find_used(ctx, evaluated, in, c));
    MUST(check_golden(ctx, c));
    for (int i = 0; i < c->count; i++) {
        const assay_router_choice *r = &c->routers[i];
        const assay_tensor_spec spec = choice_of(r);
        assay_tensor *choice = NULL;
        if (!r->known && !others) continue;
        MUST(assay_tensor_set_add(ctx, adopted, &spec, &choice));
        choice->written = choice->count;
        for (int64_t t = 0; t < r->tokens; t++) {
            const assay_choice token = token_of(r, c, t);
            memcpy(choice->indices + t * r->per_token,
                   r->known && assay_choice_is_valid(&token) ? token.selected : token.golden,
                   (size_t)r->per_token * sizeof *choice->indices);
        }
    }
    return ASSAY_OK;
}

/* --- the scores --- */

/* One run, whose results are those of the set. */
static assay_status run_once(assay_context *ctx, const assay_plan *plan, const assay_source *in,
                             assay_tensor_set *results)
{
    assay_rounded rounded = {{in, NULL}, plan->c, NULL};
    const assay_source source = assay_rounded_source(&rounded);
    const assay_sink out = assay_tensor_set_sink(results);
    assay_tensor_set_rewind(results);
    const assay_status status = assay_operation_run(ctx, plan->operation, plan->c, &source, &out);
    return status == ASSAY_OK ? assay_tensor_set_require_complete(ctx, results) : status;
}

/* What the oracle chooses by these scores. A table's choice needs none. */
static assay_status choose(assay_context *ctx, const assay_router_choice *router)
{
    const assay_routing_config *config = &router->config;
    OWNED double *values = NULL;
    double margin;
    OWNED int32_t *indices = NULL;
    const assay_routing_rule rule = assay_routing_rule_of(config);
    if (rule.hash) return ASSAY_OK;
    const int64_t experts = config->num_experts, room = 2 * experts + 1; /* groups and experts are no more */
    MUST(assay_alloc_f64(ctx, "scores of a token", 2 * experts + room, &values));
    MUST(assay_alloc_i32(ctx, "experts of a token", room + experts, &indices));
    const assay_routing_scratch scratch = {values,  values + experts, values + 2 * experts,
                                           indices, indices + room,   NULL};
    for (int64_t t = 0; t < router->tokens; t++) {
        memcpy(values, router->scores + t * experts, (size_t)experts * sizeof *values);
        int32_t *golden = router->golden + t * router->per_token;
        assay_routing_select(golden, &margin, &scratch, config, &rule);
        for (int64_t k = 0; k < router->per_token && is_padded(router); k++)
            if (!(router->scores[t * experts + golden[k]] > router->above)) golden[k] = ASSAY_NO_EXPERT;
    }
    return ASSAY_OK;
}

/* Fills golden and scores of every router from one run, and the choices that are not given. */
static assay_status find_scores(assay_context *ctx, assay_choices *c, const assay_plan *plan, const assay_source *in,
                                assay_tensor_set *adopted)
{
    for (int i = 0; i < c->count; i++) {
        const assay_tensor_spec scores = scores_of(&c->routers[i]), choice = choice_of(&c->routers[i]);
        MUST(assay_tensor_set_add(ctx, &c->results, &scores, NULL));
        if (!c->routers[i].known) MUST(assay_tensor_set_add(ctx, &c->results, &choice, NULL));
    }
    MUST(run_once(ctx, plan, in, &c->results));
    const assay_source results = assay_tensor_set_source(&c->results);
    for (int i = 0; i < c->count; i++) {
        assay_router_choice *router = &c->routers[i];
        const assay_tensor_spec scores = scores_of(router), choice = choice_of(router);
        const int64_t count = router->tokens * router->config.num_experts;
        router->scores = assay_tensor_set_find(&c->results, scores.path)->values;
        if (!router->known) MUST(assay_tensor_set_read(ctx, adopted, &choice, &results));
        MUST(choose(ctx, router));
        MUST(assay_alloc_f64(ctx, "errors of scores", count, &router->tau));
        memset(router->tau, 0, (size_t)count * sizeof *router->tau);
    }
    return ASSAY_OK;
}

/* Squared distances of a member's scores from those without errors. */
static void add_errors(const assay_tensor *scores, assay_router_choice *router)
{
    for (int64_t k = 0; k < scores->count; k++) {
        const double error = scores->values[k] - router->scores[k];
        router->tau[k] += error * error;
    }
}

/* Numbers below `vanishing` may be 0, or be flushed to it: a softmax of far scores in float32. */
static assay_status tau_of(assay_context *ctx, assay_router_choice *router, int members, double deviations,
                           double vanishing)
{
    const int64_t experts = router->config.num_experts;
    const assay_shape shape = assay_shape_of(2, router->tokens, experts);
    if (members > 0) MUST(assay_ensemble_smooth(ctx, &shape, members, router->tau));
    for (int64_t i = 0; i < router->tokens * experts; i++) router->tau[i] = router->tau[i] * deviations + vanishing;
    return ASSAY_OK;
}

/* Fills tau: `deviations` times the spread of the scores over an ensemble of the plan's one profile. */
static assay_status find_tau(assay_context *ctx, assay_choices *c, const assay_plan *plan, const assay_source *in,
                             double deviations)
{
    assay_status status = ASSAY_OK;
    const int members = assay_ensemble_members(plan, &plan->precisions[0]);
    const double vanishing = plan->precisions[0].router > DBL_EPSILON ? FLT_MIN : 0;
    OWNED_BY(assay_tensor_set_free) assay_tensor_set scores = {0};
    for (int i = 0; i < c->count; i++) {
        const assay_tensor_spec spec = scores_of(&c->routers[i]);
        MUST(assay_tensor_set_add(ctx, &scores, &spec, NULL));
    }
    for (int number = 0; number < members; number++) {
        const assay_emulation emulation = assay_ensemble_member(plan, &plan->precisions[0], "choice", number);
        assay_context member = *ctx;
        member.arithmetic = &assay_arithmetic_emulated;
        member.emulation = &emulation;
        status = run_once(&member, plan, in, &scores);
        memcpy(ctx->message, member.message, sizeof ctx->message);
        MUST(status);
        for (int i = 0; i < c->count; i++) add_errors(&scores.items[i], &c->routers[i]);
    }
    for (int i = 0; i < c->count; i++) MUST(tau_of(ctx, &c->routers[i], members, deviations, vanishing));
    return status;
}

/* --- the verdict --- */

static void place_of(const assay_router_choice *router, int64_t sequence, int64_t t, char text[160])
{
    if (is_of_experts(router)) {
        snprintf(text, 160, "%.90s: token [%" PRId64 ",%" PRId64 "]", router->path, t / sequence, t % sequence);
    } else {
        snprintf(text, 160, "%.90s: row %" PRId64, router->path, t);
    }
}

/* One line on a wrong token. */
static void describe_wrong(const assay_router_choice *router, const assay_choice *token, assay_choice_verdict verdict,
                           int64_t sequence, int64_t t, char message[256])
{
    const char *what = is_of_experts(router) ? "expert" : "index";
    char place[160];
    int32_t chosen, better;
    place_of(router, sequence, t, place);
    if (verdict == ASSAY_CHOICE_INVALID) {
        snprintf(message, 256, "%s: not %" PRId64 " different %s of 0 to %" PRId64, place, token->per_token,
                 is_of_experts(router) ? "experts" : "indices", token->experts - 1);
        return;
    }
    assay_choice_swap(token, &chosen, &better);
    if (token->fixed) {
        snprintf(message, 256, "%s: %s %d chosen, the table says %d", place, what, chosen, better);
    } else if (verdict == ASSAY_CHOICE_TIE) {
        snprintf(message, 256, "%s: %s %d chosen, %s %d ties with it exactly: the lower index comes first", place, what,
                 chosen, what, better);
    } else {
        snprintf(message, 256, "%s: %s %d chosen, better is %d: off by %.3g times what errors allow", place, what,
                 chosen, better, assay_choice_excess(token));
    }
}

/* Judges all tokens. In a program any of equal numbers may be chosen: top_k of PyTorch promises no order. */
static void judge_all(assay_choices *c, bool any_of_tied)
{
    assay_routing_summary *summary = &c->summary;
    *summary = (assay_routing_summary){.judged = true};
    for (int i = 0; i < c->count; i++) {
        const assay_router_choice *router = &c->routers[i];
        const assay_routing_config *config = &router->config;
        const assay_routing_rule rule = assay_routing_rule_of(config);
        const int64_t experts = config->num_experts;
        for (int64_t t = 0; router->known && t < router->tokens; t++) {
            assay_choice token = token_of(router, c, t);
            token.groups = rule.groups ? config->n_routing_groups : 1;
            token.groups_kept = rule.groups ? config->topk_routing_group : 1;
            token.group_score = config->group_score;
            token.fixed = rule.hash;
            token.any_of_tied = any_of_tied || router->any_of_tied;
            token.scores = router->scores + t * experts;
            token.tau = router->tau + t * experts;
            const assay_choice_verdict verdict = assay_choice_judge(&token);
            summary->tokens++;
            summary->exact += verdict == ASSAY_CHOICE_EXACT;
            summary->admissible += verdict == ASSAY_CHOICE_ADMISSIBLE;
            if (verdict == ASSAY_CHOICE_EXACT || verdict == ASSAY_CHOICE_ADMISSIBLE) continue;
            if (summary->wrong++ > 0) continue;
            c->wrong_path = router->path;
            describe_wrong(router, &token, verdict, config->sequence, t, summary->message);
        }
    }
}

/* Errors of scores are needed only where another set was chosen. */
assay_status assay_choices_judge(assay_context *ctx, assay_choices *c, const assay_plan *plan,
                                 const assay_profile *profile, double false_alarm, const assay_source *in,
                                 assay_tensor_set *adopted)
{
    assay_status status;
    int64_t scores = 0;
    const int threads = ctx->threads;
    ctx->threads = assay_plan_threads(ctx, plan);
    TRY(find_scores(ctx, c, plan, in, adopted));
    judge_all(c, profile->any_of_tied);
    if (c->summary.exact == c->summary.tokens || assay_routing_rule_of(&c->routers[0].config).hash) goto cleanup;
    for (int i = 0; i < c->count; i++) scores += c->routers[i].tokens * c->routers[i].config.num_experts;
    /* thresholds of elements take half of what they are given */
    TRY(find_tau(ctx, c, plan, in, assay_thresholds_of(2 * false_alarm, scores, 0, 0).element));
    judge_all(c, profile->any_of_tied);
cleanup:
    ctx->threads = threads;
    return status;
}

static bool is_differing_choice(const assay_choices *c, const char *path)
{
    bool found = false;
    for (int i = 0; i < c->count; i++) found |= differs(&c->routers[i]) && strcmp(c->routers[i].path, path) == 0;
    return found;
}

/* The wrong choice is blamed, also where it follows an admissible one that differs: what lies between was compared with
 * the golden of another choice. What is wrong before any choice differs stays the first. */
void assay_choices_note(const assay_choices *c, assay_report *report)
{
    bool before = true, blamed = true;
    report->routing = c->summary;
    if (c->summary.wrong == 0) return;
    for (int i = 0; i < report->count; i++) {
        assay_tensor_result *r = &report->tensors[i];
        before &= !is_differing_choice(c, r->spec.path);
        blamed &= !before || r->verdict != ASSAY_FAIL;
        if (strcmp(r->spec.path, c->wrong_path) != 0) continue;
        r->verdict = ASSAY_FAIL;
        r->finding = ASSAY_FINDING_INTEGERS;
        snprintf(r->message, sizeof r->message, "%s", c->summary.message);
    }
    report->verdict = ASSAY_FAIL;
    if (!blamed) return;
    snprintf(report->message, sizeof report->message, "%s", c->summary.message);
    report->diagnosis[0] = '\0'; /* what follows another choice of experts looks like nothing */
}
