/* The verdict on an open candidate, as all who judge have it: with the candidate's own choice of experts, what a failure looks
 * like, which known bug it is, and pictures. */
#pragma once

#include "harness/plan/golden_open.h"

typedef enum assay_pictures_of {
    ASSAY_PICTURES_OF_NONE,
    ASSAY_PICTURES_OF_NOT_PASSED, /* of many cases only those that somebody will look at */
    ASSAY_PICTURES_OF_ALL
} assay_pictures_of;

typedef struct assay_judging {
    const assay_profile *profile;
    double false_alarm;
    bool quiet, unexplained; /* unexplained: a failure is not held against the known bugs */
    bool staged;             /* the candidate's stages are judged as well (harness/fixes/fixes.h) */
    assay_pictures_of pictures;
} assay_judging;

/* *report is zeroed or complete, its paths are the caller's to set. *against: the golden evaluated again given the
 * candidate's choice where that was needed, to be closed; else zeroed. NULL: nobody wants it. */
assay_status assay_judge(assay_context *ctx, assay_golden *golden, assay_fixture_reader *candidate,
                         const assay_judging *how, assay_report *report, assay_golden *against);

/* What a page shows besides: pictures of errors, and the steps of the case. */
assay_status assay_judge_draw(assay_context *ctx, const assay_golden *judged_by, assay_fixture_reader *candidate,
                              const assay_profile *profile, const assay_case *c, assay_report *report);

/* The golden that a report was made with. */
assay_golden *assay_judged_by(assay_golden *golden, assay_golden *against);
