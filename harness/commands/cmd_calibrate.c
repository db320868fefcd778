#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/certify/certificate.h"
#include "harness/commands/command.h"
#include "harness/plan/golden_read.h"
#include "harness/plan/plan_make.h"
#include "harness/power/power_test.h"
#include "oracle/arithmetic/arithmetic.h"

/* What else a golden holds, which the new one is to hold too. */
typedef struct extras {
    bool certificate, mutants;
} extras;

/* The case of a golden, and its extras. */
static assay_status read_case(assay_context *ctx, const assay_fixture_reader *reader, const char *path,
                              assay_case **cases, int *count, extras *found)
{
    assay_status status;
    const char *yaml = assay_fixture_text(reader, "case_yaml"), *engine = assay_fixture_text(reader, "engine");
    if (yaml == NULL) return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: the attribute case_yaml is missing", path);
    if (engine == NULL || strcmp(engine, ctx->arithmetic->name) != 0) {
        status = assay_fail(ctx, ASSAY_BAD_INPUT, "%s: its engine is %s, expected %s (--engine)", path,
                            engine == NULL ? "not given" : engine, ctx->arithmetic->name);
        goto cleanup;
    }
    *found = (extras){.certificate = assay_fixture_has_folder(reader, "certificate"),
                      .mutants = assay_fixture_has_folder(reader, "discrimination")};
    TRY(assay_cases_parse_stored(ctx, path, yaml, strlen(yaml), cases, count));
cleanup:
    return status;
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
    assay_status status;
    assay_case *cases = NULL;
    assay_plan plan = {0};
    assay_fixture_reader *reader = NULL;
    extras also = {false, false};
    int count = 0;
    TRY(assay_fixture_open_golden(ctx, path, &reader));
    TRY(read_case(ctx, reader, path, &cases, &count, &also));
    TRY(refuse_profile_there(ctx, &cases[0], path, profile->precision.name));
    TRY(assay_case_add_profile(ctx, &cases[0], profile->precision.name));
    TRY(assay_plan_make_with(ctx, &plan, &cases[0], reader, profile));
    if (also.certificate) TRY(assay_plan_certify(ctx, &plan, ASSAY_BUDGET_UNSAID));
    if (also.mutants) TRY(assay_plan_mutants(ctx, &plan));
    /* its own inputs, whatever they were made from; the new file takes the place of the old one when it is whole */
    TRY(assay_golden_write(ctx, &plan, path, path, options->quiet));
    printf("%s\n", path);
cleanup:
    assay_fixture_close(reader);
    assay_plan_free(&plan);
    assay_cases_free(cases, count);
    return status;
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
