/* One case of `assay run`: request, backend, golden, verdict. */
#pragma once

#include "harness/backends/backend.h"
#include "harness/backends/backend_files.h"
#include "harness/commands/command.h"

/* What it is of, and then what the backend did and the comparer says. */
typedef struct assay_case_run {
    assay_case *c;
    const char *stored;               /* its golden; NULL: the case is evaluated */
    assay_backend_server *server;     /* NULL: none */
    const assay_backend_first *first; /* its first run, where that has been; or NULL */
    int trials;                       /* of --hostile; 0: none. While it runs: which one it is */
    assay_backend_folder temporary;   /* of the case; none with --keep */
    char golden[2304], request[2304], candidate[2304], log[2304];
    assay_backend_end end;
    assay_report report;
} assay_case_run;

/* Every case is planned and has a profile before the first one runs, so that a bad one costs nothing. A stored golden has
 * error scales for it. */
assay_status assay_run_check(assay_context *ctx, const assay_options *options, const assay_chosen *chosen);

/* Of a case of a server the first run alone: the second one comes when other cases have run. */
assay_status assay_run_case_first(assay_context *ctx, const assay_options *options, assay_case_run *r,
                                  assay_backend_first *first);

/* The status is what is not the backend's doing. The report is the caller's to free. */
assay_status assay_run_case(assay_context *ctx, const assay_options *options, assay_case_run *r);
