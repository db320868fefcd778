/* The commands of the program: one file each, one row in a table. */
#pragma once

#include <stdio.h>

#include "compare/report.h"
#include "harness/commands/choose.h"
#include "harness/commands/each_case.h"
#include "harness/golden/golden.h"

/* Exit status. */
enum { ASSAY_EXIT_PASS = 0, ASSAY_EXIT_FAIL = 1, ASSAY_EXIT_BAD_INPUT = 2, ASSAY_EXIT_VACUOUS = 3 };

typedef struct assay_command {
    const char *name, *arguments, *summary, *details;
    unsigned options; /* sum of ASSAY_OPT_ values */
    int least, most;  /* how many arguments; most -1: any number */
    bool shares;      /* its cases are shared out where mpirun has started several processes; else the first has all */
    /* Returns a status; *exit_code is what the program ends with when that is ASSAY_OK. NULL: the build was made without it. */
    assay_status (*run)(assay_context *ctx, const assay_options *options, int *exit_code);
} assay_command;

extern const assay_command assay_command_list, assay_command_convert, assay_command_show, assay_command_generate,
    assay_command_request, assay_command_compare, assay_command_run, assay_command_fuzz, assay_command_verify,
    assay_command_power, assay_command_check, assay_command_trace, assay_command_calibrate, assay_command_shared_object,
    assay_command_tolerance, assay_command_between;

/* The exit status of a verdict. */
int assay_exit_of(assay_verdict verdict);

/* The profile that --precision names, built in, in a YAML file or the golden's own (NULL: none), or the one of the
 * golden's grid. */
assay_status assay_command_profile(assay_context *ctx, const assay_options *options, const assay_fixture_reader *golden,
                                   const char *dtype_name, assay_profile *profile);

/* A candidate's file, read in a process of its own first. A golden's own results pass against it, and say nothing about any kernel:
 * refused. */
assay_status assay_command_open_candidate(assay_context *ctx, const char *path, assay_fixture_reader **candidate);

/* Refuses a --backend that is neither kind, or with --serve no server's command. */
assay_status assay_command_backend_check(assay_context *ctx, const assay_options *options);

/* The largest excess over a threshold, over all tensors; of elements, of their errors beyond the rounding of the result,
 * which alone comes up to the threshold where the kernel's own error is small. */
double assay_report_worst(const assay_report *report);

/* The command that gives the result again, to which options of `assay COMMAND` may be added. equivalence: NULL where there is none. */
void assay_command_print(FILE *out, const assay_options *options, const char *command, const char *what,
                         const char *equivalence);
/* The same for a report, into `text`: "assay run 'moe/small' --backend './libmine.so' --keep DIR -v"; "" where it has no room. */
void assay_command_reproduce(const assay_options *options, const char *command, const char *what,
                             const char *equivalence, char *text, size_t size);

/* --json, --junit and --html: refuses, before anything runs, a file that cannot be made. */
assay_status assay_command_check_reports(assay_context *ctx, const assay_options *options);
struct cJSON;
assay_status assay_command_write_json(assay_context *ctx, const char *path, const struct cJSON *root);
assay_status assay_command_write_reports(assay_context *ctx, const assay_options *options, int count,
                                         const assay_report *reports);
