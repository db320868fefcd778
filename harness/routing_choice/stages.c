#include "harness/routing_choice/stages.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/operations/op_support.h"
#include "harness/plan/golden_read.h"
#include "harness/routing_choice/given_choice_internal.h"
#include "harness/routing_choice/hidden_codes.h"
#include "oracle/base/memory.h"

assay_status assay_stages_check(assay_context *ctx, const assay_case *c)
{
    const assay_model_config *m = &c->config;
    const int64_t devices =
        c->mesh_data * c->mesh_fsdp * c->mesh_fsdp_transpose * c->mesh_expert * c->mesh_tensor * c->mesh_mlp_tensor;
    const bool spread = devices > 1 || m->use_ring_of_experts || m->ragged_buffer_factor > 0 ||
                        m->num_moe_emb_chunks > 0 || m->num_moe_token_chunks > 1 || m->weights_on_shards;
    const bool split = m->use_batch_split_schedule || strcmp(c->op, "batch_split") == 0;
    if (!spread && !split) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: --staged takes no case %s", c->name,
                      spread ? "that is spread over a mesh, or as over one (--no-mesh, --exclude)"
                             : "of the batch-split schedule (--exclude)");
}

/* What a stage begins with: a checkpoint, or the gradient of one. Codes are taken by themselves. */
static bool begins_stage(const assay_tensor_spec *spec)
{
    static const char gradient[] = "gradients/checkpoints/";
    if (assay_path_is_hidden(spec->path)) return false;
    return spec->role == ASSAY_ROLE_CHECKPOINT || strncmp(spec->path, gradient, strlen(gradient)) == 0;
}

/* What is not as it should be is left to the comparison. */
static bool is_usable(const assay_profile *profile, const assay_tensor_spec *expected, const assay_tensor_spec *found)
{
    return found != NULL && found->type != ASSAY_INT32 && assay_shape_equal(&found->shape, &expected->shape) &&
           assay_dtype_unit_roundoff(found->type) <=
               assay_dtype_unit_roundoff(assay_profile_type_of(profile, expected));
}

static bool are_finite(const assay_tensor *tensor)
{
    bool finite = true;
    for (int64_t i = 0; finite && i < tensor->count; i++) finite = isfinite(tensor->values[i]);
    return finite;
}

static assay_status take(assay_context *ctx, const assay_tensor_spec *expected, assay_fixture_reader *candidate,
                         assay_tensor_set *staged)
{
    assay_status status;
    assay_tensor_spec spec = *expected;
    assay_tensor *tensor = NULL;
    assay_staged_path(expected->path, spec.path);
    spec.role = ASSAY_ROLE_INPUT;
    TRY(assay_tensor_set_add(ctx, staged, &spec, &tensor));
    status = assay_fixture_read(ctx, candidate, expected->path, 0, tensor->count, tensor->values);
    if (status == ASSAY_OK && are_finite(tensor)) tensor->written = tensor->count;
    if (status != ASSAY_BAD_INPUT) goto cleanup;
    ctx->message[0] = '\0';
    status = ASSAY_OK;
cleanup:
    return status;
}

/* Given weights of a router are a result of its stage, which begins at the inputs where no checkpoint comes before it. */
static bool ends_stage(const assay_tensor_spec *spec)
{
    return spec->role == ASSAY_ROLE_ROUTING && assay_has_error_scale(spec);
}

/* Tensors that stay without elements are not in the set's source. */
static assay_status take_all(assay_context *ctx, const assay_plan *plan, const assay_profile *profile,
                             assay_fixture_reader *candidate, assay_tensor_set *staged, int *taken)
{
    assay_status status = ASSAY_OK;
    *taken = 0;
    for (int i = 0; i < plan->spec_count; i++) {
        const assay_tensor_spec *spec = &plan->specs[i];
        const bool found = is_usable(profile, spec, assay_fixture_find(candidate, spec->path));
        *taken += found && ends_stage(spec);
        if (!found || !begins_stage(spec)) continue;
        TRY(take(ctx, spec, candidate, staged));
        *taken += assay_tensor_is_complete(&staged->items[staged->count - 1]);
    }
cleanup:
    return status;
}

static bool all_given(const assay_given_choice *c)
{
    bool all = true;
    for (int i = 0; i < c->count; i++) all &= c->routers[i].given;
    return all;
}

static assay_status take_choices(assay_context *ctx, assay_given_choice *c, assay_again *a,
                                 const assay_profile *profile, double false_alarm, assay_routing_summary *summary,
                                 const char **wrong_path)
{
    if (c->count == 0) return ASSAY_OK;
    const assay_status status = assay_routing_config_of(ctx, a->golden.c, &a->config);
    RETURN_IF(status != ASSAY_OK, status);
    if (!all_given(c)) return assay_given_choice_hold(ctx, c, a);
    return assay_given_choice_judge(ctx, c, a, profile, false_alarm, summary, wrong_path);
}

/* The candidate's codes of h, judged by its own h where it gives that; the stage behind them begins with them, where they
 * are right. */
static assay_status take_codes(assay_context *ctx, assay_given_choice *c, assay_again *a,
                               assay_fixture_reader *candidate, double false_alarm, assay_hidden_codes *codes,
                               assay_overlay *given)
{
    assay_status status;
    assay_overlay choices = {assay_tensor_set_source(&c->choices), c->inputs};
    const assay_source in = assay_overlay_source(&choices);
    TRY(assay_hidden_codes_take(ctx, &a->golden.plan, candidate, codes));
    if (codes->staged.count == 0) return ASSAY_OK;
    a->ctx.threads = ctx->threads;
    status = assay_hidden_codes_judge(&a->ctx, &a->golden.plan, &in, false_alarm, codes);
    memcpy(ctx->message, a->ctx.message, sizeof ctx->message);
    TRY(status);
    *given = (assay_overlay){assay_tensor_set_source(&codes->staged), c->inputs};
    c->inputs = assay_overlay_source(given);
cleanup:
    return status;
}

/* Evaluates and compares; what cannot be evaluated fails with its line. */
static assay_status compare(assay_context *ctx, assay_given_choice *c, assay_again *a, assay_fixture_reader *candidate,
                            const assay_profile *profile, double false_alarm, bool quiet, assay_report *report)
{
    assay_status status;
    assay_routing_summary summary = {0};
    const char *wrong_path = NULL;
    assay_hidden_codes codes = {0};
    assay_overlay given = {0};
    status = take_choices(ctx, c, a, profile, false_alarm, &summary, &wrong_path);
    if (status == ASSAY_OK) status = take_codes(ctx, c, a, candidate, false_alarm, &codes, &given);
    if (status == ASSAY_OK) status = assay_again_evaluate(ctx, c, a, quiet);
    if (status == ASSAY_BAD_INPUT) {
        report->verdict = ASSAY_FAIL;
        snprintf(report->message, sizeof report->message, "not evaluated from the candidate's checkpoints: %.190s",
                 ctx->message);
        ctx->message[0] = '\0';
        status = ASSAY_OK;
        goto cleanup;
    }
    TRY(status);
    double share = summary.judged ? 1 - ASSAY_CHOICE_SHARE : 1;
    if (codes.codes > 0) share -= ASSAY_CODES_SHARE;
    TRY(assay_compare(ctx, a->golden.reader, candidate, profile, share * false_alarm, assay_plan_order(&a->golden.plan),
                      report));
    if (summary.wrong > 0) assay_given_choice_fail(c, wrong_path, summary.message, report);
    report->routing = summary;
    assay_hidden_codes_note(&codes, report);
cleanup:
    assay_hidden_codes_free(&codes);
    return status;
}

assay_status assay_compare_stages(assay_context *ctx, assay_golden *golden, assay_fixture_reader *candidate,
                                  const assay_profile *profile, double false_alarm, bool quiet, assay_report *report,
                                  assay_stages *by)
{
    assay_status status;
    assay_again a = {0};
    assay_tensor_set staged = {0};
    int taken = 0;
    assay_overlay given = {.under = assay_golden_given(golden->reader)};
    assay_given_choice c = {0};
    *report = (assay_report){0};
    TRY(assay_stages_check(ctx, golden->c));
    TRY(assay_again_open(ctx, golden, profile, true, &a));
    TRY(take_all(ctx, &a.golden.plan, profile, candidate, &staged, &taken));
    if (taken == 0) goto cleanup;
    given.over = assay_tensor_set_source(&staged);
    c.inputs = assay_overlay_source(&given);
    TRY(assay_given_choice_read(ctx, golden->reader, assay_plan_order(&a.golden.plan), candidate, &c));
    TRY(compare(ctx, &c, &a, candidate, profile, false_alarm, quiet, report));
    report->false_alarm = false_alarm;
    snprintf(report->case_name, sizeof report->case_name, "%.140s, by stage", golden->c->name);
    if (by != NULL && report->verdict == ASSAY_FAIL && a.golden.reader != NULL) {
        *by = (assay_stages){a.golden, staged};
        a.golden = (assay_golden){0};
        staged = (assay_tensor_set){0};
    }
cleanup:
    assay_golden_close(&a.golden);
    assay_given_choice_free(&c);
    assay_tensor_set_free(&staged);
    return status;
}

void assay_stages_close(assay_stages *by)
{
    assay_golden_close(&by->golden);
    assay_tensor_set_free(&by->given);
}

static assay_status judge(assay_context *ctx, assay_fixture_reader *reader, assay_fixture_reader *candidate,
                          const assay_profile *profile, double false_alarm, bool *fails)
{
    assay_status status;
    assay_golden golden = {0};
    assay_report report = {0};
    TRY(assay_golden_read(ctx, reader, "case_yaml", &golden));
    TRY(assay_compare_stages(ctx, &golden, candidate, profile, false_alarm, true, &report, NULL));
    *fails = report.verdict == ASSAY_FAIL;
cleanup:
    assay_report_free(&report);
    golden.reader = NULL; /* the caller's */
    assay_golden_close(&golden);
    return status;
}

const assay_stage_judge assay_stages_judge = {.check = assay_stages_check, .compare = judge};
