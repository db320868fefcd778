/* What the experts of a case are chosen by, given choices, and its errors. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/operations/op_support.h"
#include "harness/routing_choice/given_choice_internal.h"
#include "harness/scales/ensemble.h"
#include "oracle/base/memory.h"
#include "oracle/moe/routing_rule.h"

static assay_router_choice *router_at(const assay_conditional *c, const char *path)
{
    for (int i = 0; i < c->count; i++) {
        if (strcmp(c->routers[i].path, path) == 0) return &c->routers[i];
    }
    return NULL;
}

static bool source_has(void *self, const char *path)
{
    const assay_conditional *c = self;
    const assay_router_choice *router = router_at(c, path);
    return router != NULL ? router->known : c->inputs.has(c->inputs.self, path);
}

static assay_status source_read(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                double *out)
{
    const assay_conditional *c = self;
    assay_status status = c->inputs.read(ctx, c->inputs.self, path, first, count, out);
    if (status == ASSAY_OK) assay_ensemble_round_given(ctx, path, count, out);
    return status;
}

static assay_status source_read_i32(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                    int32_t *out)
{
    const assay_conditional *c = self;
    const assay_router_choice *router = router_at(c, path);
    if (router == NULL) return c->inputs.read_i32(ctx, c->inputs.self, path, first, count, out);
    memcpy(out, router->experts + first, (size_t)count * sizeof *out);
    return ASSAY_OK;
}

assay_source assay_conditional_source(assay_conditional *c)
{
    return (assay_source){.self = c, .has = source_has, .read = source_read, .read_i32 = source_read_i32};
}

/* One run: its scores into memory, or their squared distances from those added up. */
typedef struct scores_run {
    assay_conditional *c;
    int64_t experts;
    int64_t *written; /* of each router: scores, then choices */
    bool member;      /* of the ensemble */
} scores_run;

/* routing/P/biased_scores belongs to the choice routing/P/selected_experts. */
static int router_of_scores(const scores_run *run, const char *path)
{
    char scores[ASSAY_PATH_SIZE];
    for (int i = 0; i < run->c->count; i++) {
        const char *choice = run->c->routers[i].path;
        const int prefix = (int)(strrchr(choice, '/') + 1 - choice);
        snprintf(scores, sizeof scores, "%.*sbiased_scores", prefix, choice);
        if (strcmp(scores, path) == 0) return i;
    }
    return -1;
}

static bool run_wants(void *self, const char *path)
{
    const scores_run *run = self;
    const assay_router_choice *router = router_at(run->c, path);
    if (router != NULL) return !run->member && !router->known;
    return router_of_scores(run, path) >= 0;
}

static assay_status run_write(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    const scores_run *run = self;
    const int i = router_of_scores(run, path);
    assay_router_choice *router = &run->c->routers[i];
    const int64_t first = run->written[i];
    if (count > router->tokens * run->experts - first) {
        return assay_fail(ctx, ASSAY_INTERNAL, "%s has more elements than its shape", path);
    }
    run->written[i] += count;
    if (!run->member) {
        memcpy(router->scores + first, values, (size_t)count * sizeof *values);
        return ASSAY_OK;
    }
    for (int64_t k = 0; k < count; k++) {
        const double error = values[k] - router->scores[first + k];
        router->tau[first + k] += error * error;
    }
    return ASSAY_OK;
}

static assay_status run_write_i32(assay_context *ctx, void *self, const char *path, int64_t count,
                                  const int32_t *values)
{
    const scores_run *run = self;
    const assay_router_choice *router = router_at(run->c, path);
    int64_t *written = &run->written[run->c->count + (int)(router - run->c->routers)];
    if (count > router->tokens * router->per_token - *written) {
        return assay_fail(ctx, ASSAY_INTERNAL, "%s has more elements than its shape", path);
    }
    memcpy(router->experts + *written, values, (size_t)count * sizeof *values);
    *written += count;
    return ASSAY_OK;
}

static assay_status run_once(assay_context *ctx, scores_run *run, const assay_plan *plan)
{
    assay_status status;
    const assay_source in = assay_conditional_source(run->c);
    const assay_sink out = {.self = run, .wants = run_wants, .write = run_write, .write_i32 = run_write_i32};
    memset(run->written, 0, 2 * (size_t)run->c->count * sizeof *run->written);
    TRY(plan->operation->run(ctx, plan->c, &in, &out, NULL, 0));
    for (int i = 0; i < run->c->count; i++) {
        const assay_router_choice *router = &run->c->routers[i];
        if (run->written[i] != router->tokens * run->experts) {
            status = assay_fail(ctx, ASSAY_INTERNAL, "%s: its scores were not written in full", router->path);
            goto cleanup;
        }
    }
cleanup:
    return status;
}

static assay_status start_run(assay_context *ctx, scores_run *run, const assay_plan *plan)
{
    run->experts = plan->c->config.num_experts;
    run->written = calloc(2 * (size_t)run->c->count + 1, sizeof *run->written);
    return run->written != NULL ? ASSAY_OK : assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the list of scores");
}

/* What the oracle chooses by these scores. A table's choice needs none. */
static assay_status choose(assay_context *ctx, const assay_plan *plan, const assay_router_choice *router)
{
    assay_status status;
    assay_routing_config config;
    double *values = NULL, margin;
    int32_t *indices = NULL;
    TRY(assay_routing_config_of(ctx, plan->c, &config));
    const assay_routing_rule rule = assay_routing_rule_of(&config);
    if (rule.hash) return ASSAY_OK;
    const int64_t experts = config.num_experts, room = 2 * experts + 1; /* groups and experts are no more */
    TRY(assay_alloc_f64(ctx, "scores of a token", 2 * experts + room, &values));
    TRY(assay_alloc_i32(ctx, "experts of a token", room + experts, &indices));
    const assay_routing_scratch scratch = {values, values + experts, values + 2 * experts, indices, indices + room};
    for (int64_t t = 0; t < router->tokens; t++) {
        memcpy(values, router->scores + t * experts, (size_t)experts * sizeof *values);
        assay_routing_select(router->golden + t * router->per_token, &margin, &scratch, &config, &rule);
    }
cleanup:
    free(values);
    free(indices);
    return status;
}

assay_status assay_conditional_scores(assay_context *ctx, assay_conditional *c, const assay_plan *plan)
{
    assay_status status;
    scores_run run = {.c = c};
    TRY(start_run(ctx, &run, plan));
    for (int i = 0; i < c->count; i++) {
        TRY(assay_alloc_f64(ctx, "scores of experts", c->routers[i].tokens * run.experts, &c->routers[i].scores));
    }
    TRY(run_once(ctx, &run, plan));
    for (int i = 0; i < c->count; i++) {
        c->routers[i].known = true;
        TRY(choose(ctx, plan, &c->routers[i]));
    }
cleanup:
    free(run.written);
    return status;
}

static assay_status tau_of(assay_context *ctx, assay_router_choice *router, int64_t experts, int members,
                           double deviations)
{
    assay_status status = ASSAY_OK;
    const assay_shape shape = assay_shape_of(2, router->tokens, experts);
    if (members > 0) TRY(assay_ensemble_smooth(ctx, &shape, members, router->tau));
    for (int64_t i = 0; i < router->tokens * experts; i++) router->tau[i] *= deviations;
cleanup:
    return status;
}

assay_status assay_conditional_tau(assay_context *ctx, assay_conditional *c, const assay_plan *plan, double deviations)
{
    assay_status status;
    const int members = assay_ensemble_members(plan);
    scores_run run = {.c = c, .member = true};
    TRY(start_run(ctx, &run, plan));
    for (int i = 0; i < c->count; i++) {
        const int64_t count = c->routers[i].tokens * run.experts;
        TRY(assay_alloc_f64(ctx, "errors of scores", count, &c->routers[i].tau));
        memset(c->routers[i].tau, 0, (size_t)count * sizeof *c->routers[i].tau);
    }
    for (int number = 0; number < members; number++) {
        const assay_emulation emulation = assay_ensemble_member(plan, &plan->precisions[0], "choice", number);
        assay_context member = *ctx;
        member.arithmetic = &assay_arithmetic_emulated;
        member.emulation = &emulation;
        status = run_once(&member, &run, plan);
        memcpy(ctx->message, member.message, sizeof ctx->message);
        if (status != ASSAY_OK) goto cleanup;
    }
    for (int i = 0; i < c->count; i++) TRY(tau_of(ctx, &c->routers[i], run.experts, members, deviations));
cleanup:
    free(run.written);
    return status;
}
