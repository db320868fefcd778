#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fixtures/files.h"
#include "fixtures/fixture.h"
#include "harness/certify/certificate.h"
#include "harness/commands/command.h"
#include "harness/plan/inputs.h"
#include "harness/plan/plan_make.h"
#include "harness/power/power_test.h"

/* Where the golden of a case goes. */
static assay_status output_path(assay_context *ctx, const assay_options *options, const assay_case *c, char *path,
                                size_t size)
{
    const char *out = options->output;
    size_t length = strlen(out);
    int used =
        assay_fixture_is_file_name(out)
            ? snprintf(path, size, "%s", out)
            : snprintf(path, size, "%s%s%s.%s", out, out[length - 1] == '/' ? "" : "/", c->name, options->container);
    if (used < 0 || used >= (int)size) return assay_fail(ctx, ASSAY_BAD_INPUT, "%.64s...: path too long", out);
    return ASSAY_OK;
}

static assay_status check_output(assay_context *ctx, const assay_options *options, int count)
{
    struct stat info;
    if (options->output == NULL || options->output[0] == '\0') {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "-o PATH is missing: a .h5, .safetensors or .npz file for one case, or a folder");
    }
    if (assay_fixture_is_file_name(options->output) && count > 1) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "-o %s is one file, but %d cases are asked for: give a folder",
                          options->output, count);
    }
    if (!assay_fixture_is_file_name(options->output) && stat(options->output, &info) == 0 && !S_ISDIR(info.st_mode)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "-o %s is neither a folder nor a .h5, .safetensors or .npz file",
                          options->output);
    }
    return ASSAY_OK;
}

static assay_status make_plan(assay_context *ctx, const assay_options *options, assay_plan *plan, assay_case *c)
{
    assay_status status;
    assay_profile profile;
    const bool named = options->precision != NULL;
    if (named) {
        TRY(assay_command_profile(ctx, options, NULL, "", &profile));
        TRY(assay_case_add_profile(ctx, c, profile.precision.name));
    }
    TRY(assay_plan_make_with(ctx, plan, c, NULL, named ? &profile : NULL));
    plan->weights = options->weights;
    if (options->certify) TRY(assay_plan_certify(ctx, plan, options->budget));
    if (options->mutants) TRY(assay_plan_mutants(ctx, plan));
cleanup:
    return status;
}

/* Every case is planned, and held against the user's inputs, before the first is written: a bad one costs nothing. */
static assay_status check_cases(assay_context *ctx, const assay_options *options, assay_case *cases, int count)
{
    assay_status status = ASSAY_OK;
    for (int i = 0; i < count && status == ASSAY_OK; i++) {
        assay_plan plan = {0};
        status = make_plan(ctx, options, &plan, &cases[i]);
        if (status == ASSAY_OK) status = assay_inputs_check(ctx, &plan, options->inputs);
        assay_plan_free(&plan);
    }
    return status;
}

typedef assay_status (*file_writer)(assay_context *ctx, const assay_plan *plan, const char *path,
                                    const char *inputs_file, bool quiet);

static void say_left_out(const assay_options *options, const assay_plan *plan, file_writer write)
{
    if (options->quiet || write != assay_golden_write || plan->null_left_out[0] == '\0') return;
    fprintf(stderr, "%s: no null distributions: %s\n", plan->c->name, plan->null_left_out);
}

static assay_status write_files(assay_context *ctx, const assay_options *options, file_writer write)
{
    assay_status status;
    assay_case *cases = NULL;
    assay_plan plan = {0};
    int count = 0;
    char path[4096];
    TRY(assay_command_cases(ctx, options, &cases, &count));
    TRY(check_output(ctx, options, count));
    TRY(check_cases(ctx, options, cases, count));
    for (int i = 0; i < count; i++) {
        TRY(make_plan(ctx, options, &plan, &cases[i]));
        TRY(output_path(ctx, options, &cases[i], path, sizeof path));
        TRY(assay_make_parents(ctx, path));
        TRY(write(ctx, &plan, path, options->inputs, options->quiet));
        say_left_out(options, &plan, write);
        printf("%s\n", path);
        fflush(stdout);
        assay_plan_free(&plan);
    }
cleanup:
    assay_plan_free(&plan);
    assay_cases_free(cases, count);
    return status;
}

static assay_status run_generate(assay_context *ctx, const assay_options *options, int *exit_code)
{
    *exit_code = ASSAY_EXIT_PASS;
    if (!options->certify && options->budget != ASSAY_BUDGET_UNSAID) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--budget is the certificate's: it goes with --certify");
    }
    return write_files(ctx, options, assay_golden_write);
}

static assay_status run_request(assay_context *ctx, const assay_options *options, int *exit_code)
{
    *exit_code = ASSAY_EXIT_PASS;
    return write_files(ctx, options, assay_request_write);
}

const assay_command assay_command_generate = {
    .name = "generate",
    .arguments = "CASE... -o PATH",
    .summary = "golden fixtures: inputs, outputs, gradients, error scales",
    .details =
        "Prints the path of each file when it is in place. With --certify results are held against a second form in\n"
        "binary128 first, and nothing is written where one of them is wrong. With --mutants the golden holds which "
        "wrong\n"
        "backends it detects, and its verdicts state their power (docs/mutants.md). With --precision it has error "
        "scales of\n"
        "that profile too, beside those of the case.\n",
    .options = ASSAY_OPT_OUTPUT | ASSAY_OPT_CONTAINER | ASSAY_OPT_SET | ASSAY_OPT_INPUTS | ASSAY_OPT_WEIGHTS |
               ASSAY_OPT_CERTIFY | ASSAY_OPT_PROFILE,
    .least = 1,
    .most = -1,
    .run = run_generate,
};

const assay_command assay_command_request = {
    .name = "request",
    .arguments = "CASE... -o PATH",
    .summary = "what a backend may see: no outputs, no gradients",
    .details = "The root attribute `expects` lists what the candidate file is to hold.\n",
    .options = ASSAY_OPT_OUTPUT | ASSAY_OPT_CONTAINER | ASSAY_OPT_SET | ASSAY_OPT_INPUTS | ASSAY_OPT_WEIGHTS,
    .least = 1,
    .most = -1,
    .run = run_request,
};
