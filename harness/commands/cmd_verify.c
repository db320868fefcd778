#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/command.h"
#include "oracle/arithmetic/arithmetic.h"

/* Refusals from here on are verdicts on the fixture, not on the command line. */
static assay_status verify_golden(assay_context *ctx, assay_fixture_reader *reader, const char *path, bool quiet)
{
    assay_status status;
    assay_case *cases = NULL;
    assay_plan plan = {0};
    int count = 0;
    const char *yaml = assay_fixture_text(reader, "case_yaml"), *engine = assay_fixture_text(reader, "engine");
    const assay_arithmetic *arithmetic = engine == NULL ? NULL : assay_arithmetic_by_name(engine);
    if (yaml == NULL || arithmetic == NULL) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: the attribute %s is missing or unknown", path,
                          yaml == NULL ? "case_yaml" : "engine");
    }
    assay_context own = *ctx;
    own.arithmetic = arithmetic;
    TRY(assay_cases_parse(ctx, path, yaml, strlen(yaml), &cases, &count));
    TRY(assay_plan_make(ctx, &plan, &cases[0]));
    status = assay_golden_recompute(&own, &plan, reader, quiet);
    if (status != ASSAY_OK) assay_fail(ctx, status, "%s", own.message);
cleanup:
    assay_plan_free(&plan);
    assay_cases_free(cases, count);
    return status;
}

static assay_status run(assay_context *ctx, const assay_options *options, int *exit_code)
{
    int failed = 0;
    *exit_code = ASSAY_EXIT_PASS;
    for (int i = 0; i < options->argument_count; i++) {
        const char *path = options->arguments[i], *kind = NULL;
        assay_fixture_reader *reader = NULL;
        /* what cannot be opened at all is bad input, and ends the command */
        assay_status status = assay_fixture_open(ctx, path, &reader);
        if (status != ASSAY_OK) return status;
        status = assay_fixture_check_digests(ctx, reader);
        if (status == ASSAY_OK) {
            kind = assay_fixture_text(reader, "kind");
            if (kind != NULL && strcmp(kind, "golden") == 0) status = verify_golden(ctx, reader, path, options->quiet);
        }
        if (status == ASSAY_NO_MEMORY || status == ASSAY_INTERNAL) {
            assay_fixture_close(reader);
            return status;
        }
        if (status == ASSAY_OK) {
            bool golden = kind != NULL && strcmp(kind, "golden") == 0;
            printf("PASS  %s: %d digests%s\n", path, assay_fixture_count(reader),
                   golden ? ", recomputed bit for bit" : "");
        } else {
            printf("FAIL  %s: %s\n", path, ctx->message);
            failed++;
        }
        assay_fixture_close(reader);
        ctx->message[0] = '\0';
    }
    printf("%d of %d fixtures verified\n", options->argument_count - failed, options->argument_count);
    if (failed > 0) *exit_code = ASSAY_EXIT_FAIL;
    return ASSAY_OK;
}

const assay_command assay_command_verify = {
    .name = "verify",
    .arguments = "FIXTURE...",
    .summary = "integrity of fixtures: digests, recomputation bit for bit",
    .details =
        "A golden's results are computed again from its own inputs; requests and candidates have digests only.\n",
    .options = 0,
    .least = 1,
    .most = -1,
    .run = run,
};
