#include "harness/commands/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/yaml_reader.h"
#include "compare/profile_yaml.h"
#include "harness/backends/server.h"
#include "oracle/base/whole_file.h"

int assay_exit_of(assay_verdict verdict)
{
    switch (verdict) {
    case ASSAY_PASS:
        return ASSAY_EXIT_PASS;
    case ASSAY_VACUOUS:
    case ASSAY_UNSUPPORTED:
        return ASSAY_EXIT_VACUOUS;
    case ASSAY_FAIL:
    case ASSAY_NOT_COMPARABLE:
        break;
    }
    return ASSAY_EXIT_FAIL;
}

/* *found is false where the golden has no profile of that name. */
static assay_status find_in_golden(assay_context *ctx, const assay_fixture_reader *golden, const char *name,
                                   assay_profile *profile, bool *found)
{
    assay_profile *own = NULL;
    int count = 0;
    const assay_status status = assay_profiles_of_golden(ctx, golden, &own, &count);
    for (int i = 0; i < count; i++) {
        if (strcmp(own[i].precision.name, name) != 0) continue;
        *profile = own[i];
        *found = true;
    }
    free(own);
    return status;
}

static assay_status named_profile(assay_context *ctx, const char *name, const assay_fixture_reader *golden,
                                  assay_profile *profile)
{
    assay_status status = ASSAY_OK;
    bool found = false;
    const assay_profile *built_in = assay_profile_by_name(name);
    if (assay_yaml_extension(name) != NULL) return assay_profile_read_file(ctx, name, profile);
    if (built_in != NULL) {
        *profile = *built_in;
        return ASSAY_OK;
    }
    if (golden != NULL) status = find_in_golden(ctx, golden, name, profile, &found);
    if (status != ASSAY_OK || found) return status;
    return assay_fail(ctx, ASSAY_BAD_INPUT,
                      "--precision is \"%s\", expected %s, or a profile of your own in a .yml file", name,
                      assay_profile_names());
}

assay_status assay_command_profile(assay_context *ctx, const assay_options *options, const assay_fixture_reader *golden,
                                   const char *dtype_name, assay_profile *profile)
{
    assay_dtype type;
    if (options->precision != NULL) return named_profile(ctx, options->precision, golden, profile);
    const assay_profile *usual = assay_dtype_from_name(dtype_name, &type) ? assay_profile_for_dtype(type) : NULL;
    if (usual == NULL) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "no profile goes with dtype %s: name one with --precision", dtype_name);
    }
    *profile = *usual;
    return ASSAY_OK;
}

assay_status assay_command_backend_check(assay_context *ctx, const assay_options *options)
{
    return options->serve ? assay_backend_server_check(ctx, options->backend)
                          : assay_backend_check(ctx, options->backend);
}

double assay_report_worst(const assay_report *report)
{
    double worst = 0.0;
    for (int i = 0; i < report->count; i++) {
        const assay_tensor_result *t = &report->tensors[i];
        if (t->compared && !(t->worst_element <= worst)) worst = t->worst_element;
        if (t->compared && !(t->worst_row <= worst)) worst = t->worst_row;
    }
    return worst;
}

void assay_print_word(const char *option, const char *value)
{
    printf("%s '", option);
    for (; *value != '\0'; value++) {
        if (*value == '\'') fputs("'\\'", stdout);
        putchar(*value);
    }
    putchar('\'');
}

assay_status assay_command_write_reports(assay_context *ctx, const assay_options *options, int count,
                                         const assay_report *reports)
{
    assay_status status = ASSAY_OK;
    char *text = NULL;
    if (options->json_file != NULL) {
        TRY(assay_report_json(ctx, count, reports, &text));
        TRY(assay_write_whole_file(ctx, options->json_file, text));
        free(text);
        text = NULL;
    }
    if (options->junit_file != NULL) {
        TRY(assay_report_junit(ctx, count, reports, &text));
        TRY(assay_write_whole_file(ctx, options->junit_file, text));
        free(text);
        text = NULL;
    }
    if (options->html_file != NULL) {
        TRY(assay_report_html(ctx, count, reports, &text));
        TRY(assay_write_whole_file(ctx, options->html_file, text));
    }
cleanup:
    free(text);
    return status;
}
