#include "harness/commands/command.h"

#include <cjson/cJSON.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/yaml_reader.h"
#include "compare/profile_yaml.h"
#include "fixtures/atomic_file.h"
#include "harness/backends/examine_file.h"
#include "harness/backends/server.h"

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

assay_status assay_command_profile(assay_context *ctx, const assay_options *options, const assay_fixture_reader *golden,
                                   const char *dtype_name, assay_profile *profile)
{
    return assay_profile_named(ctx, "--precision", options->precision, golden, dtype_name, profile);
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
        if (t->compared && !(t->worst_beyond <= worst)) worst = t->worst_beyond;
        if (t->compared && !(t->worst_row <= worst)) worst = t->worst_row;
    }
    return worst;
}

/* An option and its value, quoted for the shell. */
static void write_word(FILE *out, const char *option, const char *value)
{
    fprintf(out, "%s '", option);
    for (; *value != '\0'; value++) {
        if (*value == '\'') fputs("'\\'", out);
        fputc(*value, out);
    }
    fputc('\'', out);
}

static bool file_has_case(char *path, const char *name)
{
    assay_context ctx = {.threads = 1};
    assay_case *cases = NULL;
    int count = 0;
    bool found = false;
    if (assay_cases_find(&ctx, 1, &path, &cases, &count) != ASSAY_OK) return false;
    for (int i = 0; i < count; i++) found |= strcmp(cases[i].name, name) == 0;
    assay_cases_free(cases, count);
    return found;
}

/* A case of a YAML file is found by that file alone. */
static const char *argument_of(const assay_options *o, const char *what)
{
    for (int i = 0; i < o->argument_count; i++) {
        char *argument = o->arguments[i];
        if (assay_yaml_extension(argument) != NULL && file_has_case(argument, what)) return argument;
    }
    return what;
}

void assay_command_print(FILE *out, const assay_options *o, const char *command, const char *what,
                         const char *equivalence)
{
    fprintf(out, "assay %s", command);
    write_word(out, "", argument_of(o, what));
    if (equivalence != NULL) fprintf(out, " --equivalence %s", equivalence);
    if (o->backend != NULL) write_word(out, " --backend", o->backend);
    if (o->serve) fprintf(out, " --serve");
    if (o->staged) fprintf(out, " --staged");
    if (o->hostile) fprintf(out, " --hostile");
    if (o->trust) fprintf(out, " --trust");
    if (strcmp(o->container, "h5") != 0) fprintf(out, " --container %s", o->container);
    if (o->precision != NULL) write_word(out, " --precision", o->precision);
    if (o->false_alarm != ASSAY_FALSE_ALARM) fprintf(out, " --false-alarm %.10g", o->false_alarm);
    if (o->backend != NULL && o->timeout != ASSAY_TIMEOUT) fprintf(out, " --timeout %.10g", o->timeout);
    if (o->memory > 0) fprintf(out, " --memory %.10gM", (double)o->memory / (1 << 20));
    for (int i = 0; i < o->set_count; i++) write_word(out, " --set", o->sets[i]);
    if (o->weights != NULL) write_word(out, " --weights", o->weights);
}

void assay_command_reproduce(const assay_options *o, const char *command, const char *what, const char *equivalence,
                             char *text, size_t size)
{
    text[0] = '\0';
    FILE *out = fmemopen(text, size, "w");
    if (out == NULL) return;
    assay_command_print(out, o, command, what, equivalence);
    if (o->backend != NULL) fprintf(out, " --keep DIR -v");
    if (fclose(out) != 0) text[0] = '\0'; /* half a command is none */
}

assay_status assay_command_check_reports(assay_context *ctx, const assay_options *options)
{
    const char *const files[] = {options->json_file, options->junit_file, options->html_file};
    for (int i = 0; i < 3; i++) {
        assay_atomic_file file;
        if (files[i] == NULL) continue;
        MUST(assay_atomic_file_create(ctx, files[i], &file));
        assay_atomic_file_abandon(&file);
    }
    return ASSAY_OK;
}

assay_status assay_command_open_candidate(assay_context *ctx, const char *path, assay_fixture_reader **candidate)
{
    MUST(assay_examine_file(ctx, path));
    MUST(assay_fixture_open(ctx, path, candidate));
    const char *kind = assay_fixture_text(*candidate, "kind");
    if (kind == NULL || strcmp(kind, "golden") != 0) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: kind is golden, expected candidate: no backend's results", path);
}

assay_status assay_command_write_json(assay_context *ctx, const char *path, const struct cJSON *root)
{
    OWNED char *text = cJSON_Print(root);
    if (text == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the report");
    return assay_write_file_atomically(ctx, path, text);
}

assay_status assay_command_write_reports(assay_context *ctx, const assay_options *options, int count,
                                         const assay_report *reports)
{
    const struct {
        const char *file;
        assay_status (*write)(assay_context *ctx, int count, const assay_report *reports, char **text);
    } forms[] = {{options->json_file, assay_report_json},
                 {options->junit_file, assay_report_junit},
                 {options->html_file, assay_report_html}};
    for (int i = 0; i < 3; i++) {
        OWNED char *text = NULL;
        if (forms[i].file == NULL) continue;
        MUST(forms[i].write(ctx, count, reports, &text));
        MUST(assay_write_file_atomically(ctx, forms[i].file, text));
    }
    return ASSAY_OK;
}
