#include "harness/judge/judge.h"

#include <stdio.h>

#include <stdlib.h>

#include "compare/pictures.h"
#include "harness/explain/explain.h"
#include "harness/fixes/fixes.h"
#include "harness/judge/case_steps.h"
#include "harness/judge/vanishing.h"
#include "harness/version/version.h"
#include "oracle/base/memory.h"

assay_golden *assay_judged_by(assay_golden *golden, assay_golden *against)
{
    return against->reader != NULL ? against : golden;
}

assay_status assay_judge_draw(assay_context *ctx, const assay_golden *judged_by, assay_fixture_reader *candidate,
                              const assay_profile *profile, const assay_case *c, assay_report *report)
{
    MUST(assay_pictures_draw(ctx, judged_by->reader, candidate, profile, report));
    if (!assay_has_steps(assay_operation_by_name(c->op))) return ASSAY_OK;
    const assay_status status = assay_case_steps(ctx, c, true, &report->steps);
    return status == ASSAY_BAD_INPUT ? ASSAY_OK : status; /* what is no case here is compared without them */
}

/* The whole is judged by a golden that may hold no checkpoints. */
static assay_status plan_with_stages(assay_context *ctx, assay_golden *golden, const assay_profile *profile)
{
    MUST(assay_stages_check(ctx, golden->c));
    MUST(assay_golden_plan(ctx, golden, profile));
    golden->plan.with_stages = true;
    return ASSAY_OK;
}

static assay_status judge_stages(assay_context *ctx, assay_golden *golden, assay_fixture_reader *candidate,
                                 const assay_judging *how, double false_alarm, assay_report *report, assay_stages *by)
{
    MUST(assay_alloc_list(ctx, "the report on stages", 1, sizeof *report->stages, &report->stages));
    return assay_compare_stages(ctx, golden, candidate, how->profile, false_alarm, how->quiet, report->stages, by);
}

assay_status assay_judge(assay_context *ctx, assay_golden *golden, assay_fixture_reader *candidate,
                         const assay_judging *how, assay_report *report, assay_golden *against)
{
    assay_status status;
    assay_golden again = {0}, *held;
    assay_stages by = {0};
    const double share = how->staged ? 0.5 : 1; /* of the false alarms: the whole, and the stages */
    if (how->staged) TRY(plan_with_stages(ctx, golden, how->profile));
    TRY(assay_compare_fixed(ctx, golden, candidate, how->profile, share * how->false_alarm, how->quiet, report,
                            &again));
    if (how->staged) TRY(judge_stages(ctx, golden, candidate, how, share * how->false_alarm, report, &by));
    held = assay_judged_by(golden, &again);
    TRY(assay_judge_vanishing(ctx, held->reader, how->profile, report));
    if (by.golden.reader != NULL) TRY(assay_judge_vanishing(ctx, by.golden.reader, how->profile, report->stages));
    if (!how->unexplained) TRY(assay_explain(ctx, held, NULL, candidate, how->profile, how->quiet, report));
    if (!how->unexplained && by.golden.reader != NULL && report->explained_count == 0) {
        TRY(assay_explain(ctx, &by.golden, &by.adopted, candidate, how->profile, how->quiet, report->stages));
    }
    assay_report_join_stages(report);
    if (how->pictures == ASSAY_PICTURES_OF_ALL ||
        (how->pictures == ASSAY_PICTURES_OF_NOT_PASSED && report->verdict != ASSAY_PASS)) {
        TRY(assay_judge_draw(ctx, held, candidate, how->profile, golden->c, report));
    }
    snprintf(report->program, sizeof report->program, "assay %s", assay_version_text(ctx->isa));
cleanup:
    assay_stages_close(&by);
    if (status != ASSAY_OK) {
        assay_report_free(report);
        *report = (assay_report){0};
    }
    if (status != ASSAY_OK || against == NULL) assay_golden_close(&again);
    if (against != NULL) *against = again;
    return status;
}
