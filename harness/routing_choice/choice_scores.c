/* What the experts of a case are chosen by, given choices, and its errors. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/operations/op_support.h"
#include "harness/routing_choice/given_choice_internal.h"
#include "harness/scales/ensemble.h"
#include "oracle/base/memory.h"
#include "oracle/moe/routing_rule.h"

/* routing/P/biased_scores [T,E], which belongs to the choice routing/P/selected_experts. */
static assay_tensor_spec scores_of(const assay_router_choice *router, int64_t experts)
{
    assay_tensor_spec spec = {.type = ASSAY_FLOAT64, .shape = assay_shape_of(2, router->tokens, experts)};
    const int prefix = (int)(strrchr(router->path, '/') + 1 - router->path);
    snprintf(spec.path, sizeof spec.path, "%.*sbiased_scores", prefix, router->path);
    return spec;
}

assay_tensor_spec assay_choice_spec(const assay_router_choice *router)
{
    assay_tensor_spec spec = {.type = ASSAY_INT32, .shape = assay_shape_of(2, router->tokens, router->per_token)};
    memcpy(spec.path, router->path, sizeof spec.path);
    return spec;
}

/* One run, whose results are those of the set. */
static assay_status run_once(assay_context *ctx, const assay_given_choice *c, const assay_plan *plan,
                             assay_tensor_set *results)
{
    assay_overlay numbers = {assay_tensor_set_source(&c->choices), c->inputs};
    const assay_source given = assay_overlay_source(&numbers);
    assay_rounded rounded = {&given, plan->c};
    const assay_source in = assay_rounded_source(&rounded);
    const assay_sink out = assay_tensor_set_sink(results);
    assay_tensor_set_rewind(results);
    const assay_status status = assay_operation_run(ctx, plan->operation, plan->c, &in, &out, NULL, 0);
    return status == ASSAY_OK ? assay_tensor_set_require_complete(ctx, results) : status;
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
    const assay_routing_scratch scratch = {values,  values + experts, values + 2 * experts,
                                           indices, indices + room,   NULL};
    for (int64_t t = 0; t < router->tokens; t++) {
        memcpy(values, router->scores + t * experts, (size_t)experts * sizeof *values);
        assay_routing_select(router->golden + t * router->per_token, &margin, &scratch, &config, &rule);
    }
cleanup:
    free(values);
    free(indices);
    return status;
}

assay_status assay_given_choice_scores(assay_context *ctx, assay_given_choice *c, const assay_plan *plan)
{
    assay_status status = ASSAY_OK;
    for (int i = 0; i < c->count; i++) {
        const assay_tensor_spec scores = scores_of(&c->routers[i], plan->c->config.num_experts);
        const assay_tensor_spec choice = assay_choice_spec(&c->routers[i]);
        TRY(assay_tensor_set_add(ctx, &c->results, &scores, NULL));
        if (!c->routers[i].given) TRY(assay_tensor_set_add(ctx, &c->results, &choice, NULL));
    }
    TRY(run_once(ctx, c, plan, &c->results));
    const assay_source results = assay_tensor_set_source(&c->results);
    for (int i = 0; i < c->count; i++) {
        assay_router_choice *router = &c->routers[i];
        const assay_tensor_spec scores = scores_of(router, plan->c->config.num_experts);
        const assay_tensor_spec choice = assay_choice_spec(router);
        router->scores = assay_tensor_set_find(&c->results, scores.path)->values;
        if (!router->given) TRY(assay_tensor_set_read(ctx, &c->choices, &choice, &results));
        TRY(choose(ctx, plan, router));
    }
cleanup:
    return status;
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
static assay_status tau_of(assay_context *ctx, assay_router_choice *router, int64_t experts, int members,
                           double deviations, double vanishing)
{
    assay_status status = ASSAY_OK;
    const assay_shape shape = assay_shape_of(2, router->tokens, experts);
    if (members > 0) TRY(assay_ensemble_smooth(ctx, &shape, members, router->tau));
    for (int64_t i = 0; i < router->tokens * experts; i++) router->tau[i] = router->tau[i] * deviations + vanishing;
cleanup:
    return status;
}

assay_status assay_given_choice_tau(assay_context *ctx, assay_given_choice *c, const assay_plan *plan,
                                    double deviations)
{
    assay_status status = ASSAY_OK;
    const int members = assay_ensemble_members(plan, &plan->precisions[0]);
    const double vanishing = plan->precisions[0].router > DBL_EPSILON ? FLT_MIN : 0;
    const int64_t experts = plan->c->config.num_experts;
    assay_tensor_set scores = {0};
    for (int i = 0; i < c->count; i++) {
        const assay_tensor_spec spec = scores_of(&c->routers[i], experts);
        const int64_t count = assay_shape_count(&spec.shape);
        TRY(assay_tensor_set_add(ctx, &scores, &spec, NULL));
        TRY(assay_alloc_f64(ctx, "errors of scores", count, &c->routers[i].tau));
        memset(c->routers[i].tau, 0, (size_t)count * sizeof *c->routers[i].tau);
    }
    for (int number = 0; number < members; number++) {
        const assay_emulation emulation = assay_ensemble_member(plan, &plan->precisions[0], "choice", number);
        assay_context member = *ctx;
        member.arithmetic = &assay_arithmetic_emulated;
        member.emulation = &emulation;
        status = run_once(&member, c, plan, &scores);
        memcpy(ctx->message, member.message, sizeof ctx->message);
        if (status != ASSAY_OK) goto cleanup;
        for (int i = 0; i < c->count; i++) add_errors(&scores.items[i], &c->routers[i]);
    }
    for (int i = 0; i < c->count; i++) TRY(tau_of(ctx, &c->routers[i], experts, members, deviations, vanishing));
cleanup:
    assay_tensor_set_free(&scores);
    return status;
}
