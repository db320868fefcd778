#include "harness/fixes/fixes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "harness/fixes/choices.h"
#include "harness/fixes/evaluate_again.h"
#include "harness/fixes/hidden_codes.h"
#include "harness/fixes/kinks.h"
#include "harness/fixes/stages.h"
#include "harness/plan/candidate_rows.h"
#include "harness/plan/golden_read.h"
#include "harness/plan/written_codes.h"
#include "oracle/arithmetic/arithmetic.h"

/* Of the probability of a false alarm, as ASSAY_CODES_SHARE is; the rest is for what is compared. */
#define CHOICE_SHARE 0.25

typedef struct fixes {
    const assay_golden *golden;
    assay_golden again; /* its case at one profile, open once it is evaluated */
    const assay_arithmetic *engine;
    const assay_profile *profile;
    double false_alarm, share; /* of the report; what is left of it for what is compared */
    bool staged, quiet;
    assay_choices choices;
    assay_row_orders orders;
    assay_hidden_codes codes;
    assay_tensor_set adopted; /* what the case is evaluated with, but for the codes */
} fixes;

static void fixes_free(fixes *f)
{
    assay_golden_close(&f->again);
    assay_choices_free(&f->choices);
    assay_hidden_codes_free(&f->codes);
    assay_tensor_set_free(&f->adopted);
}

/* Stage by stage with all checkpoints. */
static assay_status plan_again(assay_context *ctx, fixes *f)
{
    assay_status status;
    char set[128];
    assay_golden *again = &f->again;
    f->engine = assay_golden_engine(f->golden);
    if (f->engine == NULL) return assay_fail(ctx, ASSAY_BAD_INPUT, "the attribute engine is missing or unknown");
    TRY(assay_golden_read(ctx, f->golden->reader, "case_yaml", again));
    snprintf(set, sizeof set, "profiles=%s", f->profile->precision.name);
    TRY(assay_case_set(ctx, again->c, set));
    if (f->staged) {
        TRY(assay_case_set(ctx, again->c, "checkpoints=all"));
        TRY(assay_plan_describe_stages(ctx, &again->plan, again->c, f->golden->reader, f->profile));
        again->plan.only = f->golden->plan.only; /* of the stages no more is asked for than of the whole */
        again->plan.only_count = f->golden->plan.only_count;
    } else {
        TRY(assay_golden_plan(ctx, again, f->profile));
    }
    TRY(assay_plan_require_memory(ctx, &again->plan));
cleanup:
    again->reader = NULL; /* it stays who judges */
    return status;
}

static assay_status judge_choices(assay_context *ctx, fixes *f, const assay_source *in)
{
    f->share -= CHOICE_SHARE;
    return assay_choices_judge(ctx, &f->choices, &f->again.plan, f->profile, CHOICE_SHARE * f->false_alarm, in,
                               &f->adopted);
}

static assay_status judge_codes(assay_context *ctx, fixes *f, const assay_source *in)
{
    f->share -= ASSAY_CODES_SHARE;
    return assay_hidden_codes_judge(ctx, &f->again.plan, in, ASSAY_CODES_SHARE * f->false_alarm, &f->codes);
}

/* Judges what is taken, and evaluates given what is right of it. A wrong choice of experts is the end of it, but not of
 * stages: those behind it begin with what the candidate has. So it is with wrong codes, which are left out else. */
static assay_status evaluate_given(assay_context *ctx, fixes *f)
{
    assay_status status;
    const bool differ = assay_choices_differ(&f->choices);
    const bool judges = f->staged ? f->choices.count > 0 && assay_choices_all_known(&f->choices) : differ;
    assay_overlay fixed = {assay_tensor_set_source(&f->adopted), assay_golden_inputs(f->golden->reader)};
    const assay_source source = assay_overlay_source(&fixed);
    assay_overlay coded = {assay_tensor_set_source(&f->codes.staged), source};
    const assay_source in = assay_overlay_source(&coded);
    const assay_arithmetic *own = ctx->arithmetic;
    ctx->arithmetic = f->engine;
    TRY(assay_choices_adopt(ctx, &f->choices, &f->again.plan, &source, !judges, &f->adopted));
    if (judges) TRY(judge_choices(ctx, f, &source));
    if (f->choices.summary.wrong > 0 && !f->staged) {
        assay_hidden_codes_free(&f->codes);
        goto cleanup;
    }
    if (f->codes.staged.count > 0) TRY(judge_codes(ctx, f, &source));
    if (f->codes.wrong > 0 && !f->staged) assay_tensor_set_free(&f->codes.staged);
    if (f->staged || differ || f->orders.is_output || f->codes.staged.count > 0)
        TRY(assay_evaluate_again(ctx, f->golden->reader, &f->again, &in, ASSAY_MOST_IN_MEMORY, f->quiet));
cleanup:
    ctx->arithmetic = own;
    return status;
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
        snprintf(r->message, sizeof r->message, "%.511s", orders->message);
        if (blamed) snprintf(report->message, sizeof report->message, "%.511s", orders->message);
    }
}

static void note_written(const assay_written_codes *codes, assay_report *report)
{
    char of[96];
    if (codes->codes + codes->outputs == 0) return;
    snprintf(of, sizeof of, "%" PRId64 " codes and %" PRId64 " scales of the cache", codes->codes, codes->scales);
    if (codes->outputs > 0) snprintf(of, sizeof of, "%" PRId64 " numbers of fp8", codes->outputs);
    snprintf(report->codes, sizeof report->codes,
             "%s: %" PRId64 " as the golden's, %" PRId64 " within errors, %" PRId64 " %s wrong", of, codes->exact,
             codes->admissible, codes->wrong, codes->outputs > 0 ? "of them" : "blocks or plain numbers");
    for (int i = 0; codes->wrong > 0 && i < report->count; i++) {
        assay_tensor_result *r = &report->tensors[i];
        if (strcmp(r->spec.path, codes->wrong_path) != 0 || r->verdict != ASSAY_FAIL) continue;
        const bool blamed = strcmp(report->message, r->message) == 0;
        snprintf(r->message, sizeof r->message, "%s", codes->message);
        if (blamed) snprintf(report->message, sizeof report->message, "%s", codes->message);
    }
}

/* With the bytes that errors allow as the golden has them; afterwards they are the candidate's again. */
static assay_status compare_written(assay_context *ctx, const fixes *f, const assay_plan *plan,
                                    assay_fixture_reader *held, assay_fixture_reader *candidate, assay_report *report)
{
    OWNED_BY(assay_written_codes_free) assay_written_codes codes = {0};
    MUST(assay_written_codes_adopt(ctx, plan, f->profile, f->share * f->false_alarm, f->staged, held, candidate,
                                   &codes));
    const double share = f->share - (codes.codes + codes.outputs > 0 ? ASSAY_CODES_SHARE : 0);
    MUST(assay_compare(ctx, held, candidate, f->profile, share * f->false_alarm, assay_plan_order(plan), report));
    note_written(&codes, report);
    return assay_written_codes_put_back(ctx, candidate, &codes);
}

/* Where gradients fail on a kink alone the candidate is compared once more, with the golden's there. */
static assay_status compare_on_kinks(assay_context *ctx, const fixes *f, const assay_plan *plan,
                                     assay_fixture_reader *held, assay_fixture_reader *candidate, assay_report *report)
{
    OWNED_BY(assay_kinks_free) assay_kinks kinks = {0};
    assay_overlay fixed = {assay_tensor_set_source(&f->adopted), assay_golden_inputs(f->golden->reader)};
    const assay_source source = assay_overlay_source(&fixed);
    assay_overlay coded = {assay_tensor_set_source(&f->codes.staged), source};
    const assay_source in = assay_overlay_source(&coded);
    bool wrong = false;
    for (int i = 0; i < report->count; i++) {
        const assay_tensor_result *r = &report->tensors[i];
        wrong |= r->verdict == ASSAY_FAIL && r->spec.role == ASSAY_ROLE_GRADIENT;
    }
    if (!wrong || !assay_has_kinks(plan)) return ASSAY_OK;
    MUST(assay_kinks_adopt(ctx, plan, f->profile, f->share * f->false_alarm, &in, held, candidate, &kinks));
    if (kinks.count > 0) {
        assay_report_free(report);
        MUST(compare_written(ctx, f, plan, held, candidate, report));
        assay_kinks_note(&kinks, report);
    }
    return assay_kinks_put_back(ctx, candidate, &kinks);
}

/* Against what was evaluated; else against the golden. */
static assay_status compare(assay_context *ctx, const fixes *f, assay_fixture_reader *candidate, assay_report *report)
{
    assay_fixture_reader *held = f->again.reader != NULL ? f->again.reader : f->golden->reader;
    const assay_plan *plan = f->staged ? &f->again.plan : &f->golden->plan;
    if (f->again.reader != NULL) MUST(assay_candidate_put_as_golden(ctx, plan, held, candidate));
    MUST(compare_written(ctx, f, plan, held, candidate, report));
    MUST(compare_on_kinks(ctx, f, plan, held, candidate, report));
    report->false_alarm = f->false_alarm;
    note_orders(&f->orders, report);
    assay_choices_note(&f->choices, report);
    assay_hidden_codes_note(&f->codes, report);
    return ASSAY_OK;
}

/* --- the whole --- */

/* Another choice that nothing can be evaluated with is judged as any whole numbers are. */
static assay_status evaluate_or_say_why_not(assay_context *ctx, fixes *f, bool differ)
{
    assay_routing_summary *summary = &f->choices.summary;
    assay_status status = plan_again(ctx, f);
    if (status == ASSAY_OK) status = evaluate_given(ctx, f);
    if (!differ || (status != ASSAY_OK && status != ASSAY_BAD_INPUT)) return status;
    summary->evaluated_again = f->again.reader != NULL;
    if (status == ASSAY_OK) return ASSAY_OK;
    *summary = (assay_routing_summary){0};
    snprintf(summary->message, sizeof summary->message,
             "the candidate's choice of experts differs, and the golden cannot be evaluated given it: %.150s",
             ctx->message);
    ctx->message[0] = '\0';
    return ASSAY_OK;
}

/* The report is on the golden that was evaluated again, and its power what the golden that is there states. */
static assay_status hand_over(assay_context *ctx, fixes *f, assay_report *report, assay_golden *against)
{
    MUST(assay_power_read(ctx, f->golden->reader, report->profile, &report->power));
    assay_report_weigh(report);
    *against = f->again;
    f->again = (assay_golden){0};
    return ASSAY_OK;
}

assay_status assay_compare_fixed(assay_context *ctx, assay_golden *golden, assay_fixture_reader *candidate,
                                 const assay_profile *profile, double false_alarm, bool quiet, assay_report *report,
                                 assay_golden *against)
{
    OWNED_BY(fixes_free)
    fixes f = {.golden = golden, .profile = profile, .false_alarm = false_alarm, .share = 1, .quiet = quiet};
    const assay_plan *plan = &golden->plan;
    *report = (assay_report){0};
    *against = (assay_golden){0};
    /* a case that cannot be planned leaves the order of folders */
    const assay_status status = assay_golden_plan(ctx, golden, profile);
    if (status != ASSAY_OK && status != ASSAY_BAD_INPUT) return status;
    ctx->message[0] = '\0';
    MUST(assay_candidate_put_as_golden(ctx, plan, golden->reader, candidate));
    MUST(assay_choices_read(ctx, golden->reader, assay_plan_order(plan), candidate, &f.choices));
    MUST(assay_hidden_codes_adopt(ctx, plan, candidate, &f.codes));
    const bool differ = assay_choices_differ(&f.choices);
    if (!differ) assay_choices_count(&f.choices);
    if (!differ) MUST(assay_candidate_align_rows(ctx, plan, golden->reader, candidate, &f.orders, &f.adopted));
    if (differ || f.orders.is_output || f.codes.staged.count > 0) MUST(evaluate_or_say_why_not(ctx, &f, differ));
    if (differ && f.again.reader != NULL)
        MUST(assay_candidate_align_rows(ctx, plan, f.again.reader, candidate, &f.orders, &f.adopted));
    MUST(compare(ctx, &f, candidate, report));
    return f.again.reader != NULL ? hand_over(ctx, &f, report, against) : ASSAY_OK;
}

/* --- stage by stage --- */

assay_status assay_stages_check(assay_context *ctx, const assay_case *c)
{
    const assay_model_config *m = &c->config;
    const int64_t devices =
        c->mesh_data * c->mesh_fsdp * c->mesh_fsdp_transpose * c->mesh_expert * c->mesh_tensor * c->mesh_mlp_tensor;
    const bool sharded = devices > 1 || m->use_ring_of_experts || m->ragged_buffer_factor > 0 ||
                         m->num_moe_emb_chunks > 0 || m->num_moe_token_chunks > 1 || m->weights_on_shards;
    const bool split = m->use_batch_split_schedule || strcmp(c->op, "batch_split") == 0;
    if (!sharded && !split) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: --staged takes no case %s", c->name,
                      sharded ? "that is spread over a mesh, or as over one (--no-mesh, --exclude)"
                              : "of the batch-split schedule (--exclude)");
}

assay_status assay_compare_stages(assay_context *ctx, assay_golden *golden, assay_fixture_reader *candidate,
                                  const assay_profile *profile, double false_alarm, bool quiet, assay_report *report,
                                  assay_stages *by)
{
    assay_status status;
    int taken = 0;
    fixes f = {
        .golden = golden, .profile = profile, .false_alarm = false_alarm, .share = 1, .quiet = quiet, .staged = true};
    const assay_plan *plan = &f.again.plan;
    *report = (assay_report){0};
    TRY(assay_stages_check(ctx, golden->c));
    TRY(plan_again(ctx, &f));
    TRY(assay_stages_adopt(ctx, plan, profile, candidate, &f.adopted, &taken));
    if (taken == 0) goto cleanup;
    TRY(assay_choices_read(ctx, golden->reader, assay_plan_order(plan), candidate, &f.choices));
    TRY(assay_hidden_codes_adopt(ctx, plan, candidate, &f.codes));
    status = evaluate_given(ctx, &f);
    if (status == ASSAY_BAD_INPUT) {
        report->verdict = ASSAY_FAIL;
        snprintf(report->message, sizeof report->message, "not evaluated from the candidate's checkpoints: %.440s",
                 ctx->message);
        ctx->message[0] = '\0';
    } else {
        TRY(status);
        TRY(compare(ctx, &f, candidate, report));
    }
    status = ASSAY_OK;
    report->false_alarm = false_alarm;
    snprintf(report->case_name, sizeof report->case_name, "%.140s, by stage", golden->c->name);
    if (by != NULL && report->verdict == ASSAY_FAIL && f.again.reader != NULL) {
        *by = (assay_stages){f.again, f.adopted};
        f.again = (assay_golden){0};
        f.adopted = (assay_tensor_set){0};
    }
cleanup:
    fixes_free(&f);
    return status;
}

void assay_stages_close(assay_stages *by)
{
    assay_golden_close(&by->golden);
    assay_tensor_set_free(&by->adopted);
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
