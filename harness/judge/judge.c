#include "harness/judge/judge.h"

#include "compare/pictures.h"
#include "harness/explain/explain.h"
#include "harness/routing_choice/given_choice.h"

assay_golden *assay_judged_by(assay_golden *golden, assay_golden *against)
{
    return against->reader != NULL ? against : golden;
}

static bool are_drawn(const assay_judging *how, assay_verdict verdict)
{
    return how->pictures == ASSAY_PICTURES_OF_ALL ||
           (how->pictures == ASSAY_PICTURES_OF_NOT_PASSED && verdict != ASSAY_PASS);
}

assay_status assay_judge(assay_context *ctx, assay_golden *golden, assay_fixture_reader *candidate,
                         const assay_judging *how, assay_report *report, assay_golden *against)
{
    assay_status status;
    assay_golden again = {0}, *held;
    TRY(assay_compare_given_choice(ctx, golden, candidate, how->profile, how->false_alarm, how->quiet, report, &again));
    held = assay_judged_by(golden, &again);
    if (!how->unexplained) TRY(assay_explain(ctx, held, candidate, how->profile, how->quiet, report));
    if (are_drawn(how, report->verdict)) {
        TRY(assay_pictures_draw(ctx, held->reader, candidate, how->profile, report));
    }
cleanup:
    if (status != ASSAY_OK) {
        assay_report_free(report);
        *report = (assay_report){0};
    }
    if (status != ASSAY_OK || against == NULL) assay_golden_close(&again);
    if (against != NULL) *against = again;
    return status;
}
