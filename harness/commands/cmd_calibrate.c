#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/certificate.h"
#include "harness/command.h"
#include "oracle/arithmetic/arithmetic.h"

/* What else a golden holds, which the new one is to hold too. */
typedef struct extras {
    bool certificate, mutants;
} extras;

/* The case of a golden, and its extras. */
static assay_status read_case(assay_context *ctx, const char *path, assay_case **cases, int *count, extras *found)
{
    assay_status status;
    assay_fixture_reader *reader = NULL;
    TRY(assay_fixture_open(ctx, path, &reader));
    const char *kind = assay_fixture_text(reader, "kind"), *yaml = assay_fixture_text(reader, "case_yaml");
    const char *engine = assay_fixture_text(reader, "engine");
    if (kind == NULL || strcmp(kind, "golden") != 0 || yaml == NULL) {
        status = assay_fail(ctx, ASSAY_BAD_INPUT, "%s: kind is %s, expected golden with case_yaml", path,
                            kind == NULL ? "not given" : kind);
        goto cleanup;
    }
    if (engine == NULL || strcmp(engine, ctx->arithmetic->name) != 0) {
        status = assay_fail(ctx, ASSAY_BAD_INPUT, "%s: its engine is %s, expected %s (--engine)", path,
                            engine == NULL ? "not given" : engine, ctx->arithmetic->name);
        goto cleanup;
    }
    *found = (extras){false, false};
    for (int i = 0; i < assay_fixture_count(reader); i++) {
        found->certificate |= assay_path_in(assay_fixture_spec(reader, i)->path, "certificate");
        found->mutants |= assay_path_in(assay_fixture_spec(reader, i)->path, "discrimination");
    }
    TRY(assay_cases_parse(ctx, path, yaml, strlen(yaml), cases, count));
cleanup:
    assay_fixture_close(reader);
    return status;
}

/* profiles=[those of the case, and the new one] */
static assay_status add_profile(assay_context *ctx, assay_case *c, const char *path, const char *name)
{
    char assignment[1024] = "profiles=[";
    size_t length = strlen(assignment);
    for (int i = 0; i < c->profiles.count; i++) {
        if (strcmp(c->profiles.items[i], name) == 0) {
            return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: has the profile %s already", path, name);
        }
        if (strcmp(c->profiles.items[i], "none") == 0) continue;
        length += (size_t)snprintf(assignment + length, sizeof assignment - length, "%.32s, ", c->profiles.items[i]);
    }
    snprintf(assignment + length, sizeof assignment - length, "%.32s]", name);
    return assay_case_set(ctx, c, assignment);
}

static assay_status calibrate(assay_context *ctx, const assay_options *options, const char *path)
{
    assay_status status;
    assay_case *cases = NULL;
    assay_plan plan = {0};
    extras also = {false, false};
    int count = 0;
    TRY(read_case(ctx, path, &cases, &count, &also));
    TRY(add_profile(ctx, &cases[0], path, options->precision));
    TRY(assay_plan_make(ctx, &plan, &cases[0]));
    if (also.certificate) TRY(assay_plan_certify(ctx, &plan, ASSAY_BUDGET_UNSAID));
    if (also.mutants) TRY(assay_plan_mutants(ctx, &plan));
    /* its own inputs, whatever they were made from; the new file takes the place of the old one when it is whole */
    TRY(assay_golden_write(ctx, &plan, path, path, options->quiet));
    printf("%s\n", path);
cleanup:
    assay_plan_free(&plan);
    assay_cases_free(cases, count);
    return status;
}

static assay_status run(assay_context *ctx, const assay_options *options, int *exit_code)
{
    *exit_code = ASSAY_EXIT_PASS;
    if (options->precision == NULL) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "calibrate needs --precision NAME, expected %s", assay_profile_names());
    }
    if (assay_profile_by_name(options->precision) == NULL) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--precision is \"%s\", expected %s", options->precision,
                          assay_profile_names());
    }
    for (int i = 0; i < options->argument_count; i++) {
        const assay_status status = calibrate(ctx, options, options->arguments[i]);
        if (status != ASSAY_OK) return status;
    }
    return ASSAY_OK;
}

const assay_command assay_command_calibrate = {
    .name = "calibrate",
    .arguments = "FIXTURE...",
    .summary = "adds the error scales of a profile to golden fixtures that exist",
    .details = "The case is evaluated again from the fixture's own inputs; --precision names the profile. The file is "
               "replaced\n"
               "when the new one is whole.\n",
    .options = ASSAY_OPT_PRECISION,
    .least = 1,
    .most = -1,
    .run = run,
};
