#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/certify/certificate.h"
#include "harness/commands/command.h"
#include "harness/fixes/fixes.h"
#include "harness/plan/golden_open.h"
#include "harness/power/power_test.h"

static assay_status check_engine(assay_context *ctx, const assay_fixture_reader *reader, const char *path)
{
    const char *engine = assay_fixture_text(reader, "engine");
    if (engine != NULL && strcmp(engine, ctx->arithmetic->name) == 0) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: its engine is %s, expected %s (--engine)", path,
                      engine == NULL ? "not given" : engine, ctx->arithmetic->name);
}

static assay_status refuse_profile_there(assay_context *ctx, const assay_case *c, const char *path, const char *name)
{
    for (int i = 0; i < c->profiles.count; i++) {
        if (strcmp(c->profiles.items[i], name) != 0) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: has the profile %s already", path, name);
    }
    return ASSAY_OK;
}

static assay_status calibrate(assay_context *ctx, const assay_options *options, const assay_profile *profile,
                              const char *path)
{
    OWNED_BY(assay_golden_close) assay_golden golden = {0};
    assay_plan *plan = &golden.plan;
    MUST(assay_golden_open(ctx, path, &golden));
    MUST(check_engine(ctx, golden.reader, path));
    MUST(refuse_profile_there(ctx, golden.c, path, profile->precision.name));
    MUST(assay_case_add_profile(ctx, golden.c, profile->precision.name));
    MUST(assay_golden_plan(ctx, &golden, profile));
    MUST(assay_plan_require_memory(ctx, plan));
    /* what the golden holds beside its results, the new one is to hold too */
    if (assay_fixture_has(golden.reader, ASSAY_ROLE_CERTIFICATE))
        MUST(assay_plan_certify(ctx, plan, ASSAY_BUDGET_UNSAID));
    if (assay_fixture_has(golden.reader, ASSAY_ROLE_DISCRIMINATION)) MUST(assay_plan_mutants(ctx, plan));
    plan->by_stage = &assay_stages_judge;
    /* its own inputs, whatever they were made from; the new file takes the place of the old one when it is whole */
    plan->recipe = true; /* where the file has recipes */
    MUST(assay_golden_write(ctx, plan, path, path, options->quiet));
    printf("%s\n", path);
    return ASSAY_OK;
}

static assay_status run(assay_context *ctx, const assay_options *options, int *exit_code)
{
    *exit_code = ASSAY_EXIT_PASS;
    if (options->precision == NULL) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "calibrate needs --precision NAME, expected %s, or a .yml file",
                          assay_profile_names());
    }
    assay_profile profile;
    assay_status status = assay_command_profile(ctx, options, NULL, "", &profile);
    for (int i = 0; status == ASSAY_OK && i < options->argument_count; i++) {
        status = calibrate(ctx, options, &profile, options->arguments[i]);
    }
    return status;
}

const assay_command assay_command_calibrate = {
    .name = "calibrate",
    .arguments = "FIXTURE...",
    .summary = "adds the error scales of a profile to golden fixtures that exist",
    .details = "The case is evaluated again from the fixture's own inputs; --precision names the profile, or a "
               "YAML\n"
               "file with one of your own, which the fixture keeps. The file is replaced when the new one is whole.\n",
    .options = ASSAY_OPT_PRECISION,
    .least = 1,
    .most = -1,
    .run = run,
};
