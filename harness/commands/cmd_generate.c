#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fixtures/files.h"
#include "fixtures/fixture.h"
#include "harness/certify/certificate.h"
#include "harness/commands/command.h"
#include "harness/fixes/fixes.h"
#include "harness/plan/golden_open.h"
#include "harness/plan/golden_read.h"
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
                          "-o PATH is missing: a .h5 or .safetensors file for one case, or a folder");
    }
    MUST(assay_fixture_check_name(ctx, options->output));
    if (assay_fixture_is_file_name(options->output) && count > 1) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "-o %s is one file, but %d cases are asked for: give a folder",
                          options->output, count);
    }
    if (!assay_fixture_is_file_name(options->output) && stat(options->output, &info) == 0 && !S_ISDIR(info.st_mode)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "-o %s is neither a folder nor a .h5 or .safetensors file",
                          options->output);
    }
    return ASSAY_OK;
}

static assay_status make_plan(assay_context *ctx, const assay_options *options, assay_plan *plan, assay_case *c)
{
    assay_profile profile;
    const bool named = options->precision != NULL;
    if (named) {
        MUST(assay_command_profile(ctx, options, NULL, "", &profile));
        MUST(assay_case_add_profile(ctx, c, profile.precision.name));
    }
    MUST(assay_plan_make_with(ctx, plan, c, NULL, named ? &profile : NULL));
    plan->weights = options->weights;
    plan->recipe = options->recipe;
    if (options->certify) MUST(assay_plan_certify(ctx, plan, options->budget));
    if (options->mutants) MUST(assay_plan_mutants(ctx, plan));
    plan->by_stage = &assay_stages_judge;
    return ASSAY_OK;
}

/* Every case is planned, and held against the user's inputs, before the first is written: a bad one costs nothing. */
static assay_status check_cases(assay_context *ctx, const assay_options *options, const assay_chosen *chosen)
{
    assay_status status = ASSAY_OK;
    for (int i = 0; i < chosen->count && status == ASSAY_OK; i++) {
        assay_plan plan = {0};
        assay_case *c = &chosen->cases[i];
        if (chosen->goldens[i] != NULL) {
            const char *option = options->inputs != NULL    ? "--inputs"
                                 : options->weights != NULL ? "--weights"
                                 : options->recipe          ? "--recipe"
                                                            : NULL;
            if (option == NULL) continue;
            return assay_fail(ctx, ASSAY_BAD_INPUT, "%s is a golden, which has its inputs: %s has no use",
                              chosen->goldens[i], option);
        }
        if (options->materialise) {
            return assay_fail(ctx, ASSAY_BAD_INPUT,
                              "%s is no golden: a request of a case has all its elements, and "
                              "--materialise has no use",
                              c->name);
        }
        status = make_plan(ctx, options, &plan, c);
        if (status == ASSAY_OK) status = assay_inputs_check(ctx, &plan, options->inputs);
        assay_plan_free(&plan);
    }
    return status;
}

typedef assay_status (*file_writer)(assay_context *ctx, const assay_plan *plan, const char *path,
                                    const char *inputs_file, bool quiet);

static assay_status write_of_case(assay_context *ctx, const assay_options *options, file_writer write, assay_case *c,
                                  const char *path)
{
    OWNED_BY(assay_plan_free) assay_plan plan = {0};
    MUST(make_plan(ctx, options, &plan, c));
    return write(ctx, &plan, path, options->inputs, options->quiet);
}

/* The request with which a stored golden was, or could have been, tried. */
static assay_status write_of_golden(assay_context *ctx, const assay_options *options, const char *stored,
                                    const char *path)
{
    OWNED_BY(assay_golden_close) assay_golden golden = {0};
    MUST(assay_golden_open(ctx, stored, &golden));
    MUST(assay_golden_plan(ctx, &golden, NULL));
    golden.plan.recipe = !options->materialise;
    const assay_source source = assay_golden_inputs(golden.reader);
    return assay_request_write_from(ctx, &golden.plan, path, &source, options->quiet);
}

/* What a case is written as. */
typedef struct writing {
    const assay_options *options;
    const assay_chosen *chosen;
    file_writer write;
} writing;

static double cost(void *self, int i)
{
    const writing *w = self;
    return w->write == assay_golden_write ? assay_case_cost(&w->chosen->cases[i])
                                          : 0; /* a request is quickly written */
}

static assay_status work(assay_context *ctx, void *self, int i, FILE *result)
{
    (void)result;
    const writing *w = self;
    char path[4096];
    const char *stored = w->chosen->goldens[i];
    MUST(output_path(ctx, w->options, &w->chosen->cases[i], path, sizeof path));
    if (stored != NULL && assay_is_same_file(stored, path)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "-o %s is the golden itself", path);
    }
    MUST(assay_make_parents(ctx, path));
    MUST(stored != NULL ? write_of_golden(ctx, w->options, stored, path)
                        : write_of_case(ctx, w->options, w->write, &w->chosen->cases[i], path));
    printf("%s\n", path);
    fflush(stdout);
    return ASSAY_OK;
}

/* `how`: of assay_choose. */
static assay_status write_files(assay_context *ctx, const assay_options *options, unsigned how, file_writer write)
{
    OWNED_BY(assay_chosen_free) assay_chosen chosen = {0};
    writing w = {.options = options, .chosen = &chosen, .write = write};
    MUST(assay_choose(ctx, options, how, &chosen));
    MUST(check_output(ctx, options, chosen.count));
    MUST(check_cases(ctx, options, &chosen));
    return assay_each_case(ctx, &(assay_each){.self = &w,
                                              .count = chosen.count,
                                              .ranks = options->ranks,
                                              .apart = true,
                                              .quiet = options->quiet,
                                              .cost = cost,
                                              .work = work});
}

static assay_status run_generate(assay_context *ctx, const assay_options *options, int *exit_code)
{
    *exit_code = ASSAY_EXIT_PASS;
    if (!options->certify && options->budget != ASSAY_BUDGET_UNSAID) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--budget is the certificate's: it goes with --certify");
    }
    return write_files(ctx, options, 0, assay_golden_write);
}

static assay_status run_request(assay_context *ctx, const assay_options *options, int *exit_code)
{
    *exit_code = ASSAY_EXIT_PASS;
    return write_files(ctx, options, ASSAY_CHOOSE_GOLDENS, assay_request_write);
}

const assay_command assay_command_generate = {
    .name = "generate",
    .arguments = "CASE... -o PATH",
    .summary = "golden fixtures: inputs, outputs, gradients, error scales",
    .details =
        "Prints the path of each file when it is in place. With --certify results are held against a second form in\n"
        "binary128 first, and nothing is written where one of them is wrong. With --mutants the golden holds which "
        "wrong\n"
        "backends it detects, and its verdicts state their power (docs/power.md). With --precision it has error "
        "scales of\n"
        "that profile too, beside those of the case.\n",
    .options = ASSAY_OPT_CHOOSE | ASSAY_OPT_OUTPUT | ASSAY_OPT_CONTAINER | ASSAY_OPT_SET | ASSAY_OPT_INPUTS |
               ASSAY_OPT_WEIGHTS | ASSAY_OPT_CERTIFY | ASSAY_OPT_PROFILE | ASSAY_OPT_RECIPE,
    .least = 1,
    .most = -1,
    .shares = true,
    .run = run_generate,
};

const assay_command assay_command_request = {
    .name = "request",
    .arguments = "CASE|GOLDEN... -o PATH",
    .summary = "what a backend may see: no outputs, no gradients",
    .details = "The root attribute `expects` lists what the candidate file is to hold. A golden's has the inputs\n"
               "that are stored in it, and the recipes of the others; with --materialise it has them all.\n",
    .options = ASSAY_OPT_CHOOSE | ASSAY_OPT_OUTPUT | ASSAY_OPT_CONTAINER | ASSAY_OPT_SET | ASSAY_OPT_INPUTS |
               ASSAY_OPT_WEIGHTS | ASSAY_OPT_RECIPE | ASSAY_OPT_MATERIALISE,
    .least = 1,
    .most = -1,
    .shares = true,
    .run = run_request,
};
