#include <stdio.h>
#include <stdlib.h>

#include "harness/commands/command.h"
#include "harness/judge/judge.h"

static assay_status run(assay_context *ctx, const assay_options *options, int *exit_code)
{
    const char *golden_path = options->arguments[0], *candidate_path = options->arguments[1];
    OWNED_BY(assay_golden_close) assay_golden golden = {0};
    OWNED_BY(assay_fixture_release) assay_fixture_reader *candidate = NULL;
    assay_profile profile;
    OWNED_BY(assay_report_free) assay_report report = {0};
    OWNED char *text = NULL;
    MUST(assay_golden_open(ctx, golden_path, &golden));
    MUST(assay_command_open_candidate(ctx, candidate_path, &candidate));
    MUST(assay_command_profile(ctx, options, golden.reader, assay_dtype_name(golden.c->dtype), &profile));
    const assay_judging how = {.profile = &profile,
                               .false_alarm = options->false_alarm,
                               .quiet = options->quiet,
                               .staged = options->staged,
                               .pictures = options->html_file != NULL ? ASSAY_PICTURES_OF_ALL : ASSAY_PICTURES_OF_NONE};
    MUST(assay_judge(ctx, &golden, candidate, &how, &report, NULL));
    snprintf(report.golden_path, sizeof report.golden_path, "%s", golden_path);
    snprintf(report.candidate_path, sizeof report.candidate_path, "%s", candidate_path);
    snprintf(report.reproduce, sizeof report.reproduce, "assay compare %s %s --precision %s%s%s", golden_path,
             candidate_path, options->precision != NULL ? options->precision : profile.precision.name,
             options->staged ? " --staged" : "", options->trust ? " --trust" : "");
    assay_report_style style = {.color = options->color, .verbosity = options->verbose ? 1 : 0};
    MUST(assay_report_text(ctx, &report, &style, &text));
    MUST(assay_command_write_reports(ctx, options, 1, &report));
    fputs(text, stdout);
    *exit_code = assay_exit_of(report.verdict);
    return ASSAY_OK;
}

const assay_command assay_command_compare = {
    .name = "compare",
    .arguments = "GOLDEN CANDIDATE",
    .summary = "the verdict on a candidate",
    .details =
        "Structure, types, non-finite values, exact integers, and errors per element and per row against the\n"
        "error scale of the profile (docs/comparing.md). --staged: each stage too, from the candidate's checkpoints.\n",
    .options = ASSAY_OPT_PRECISION | ASSAY_OPT_REPORTS | ASSAY_OPT_STAGED | ASSAY_OPT_TRUST,
    .least = 2,
    .most = 2,
    .run = run,
};
