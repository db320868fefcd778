/* Backends: a command with {request} and {candidate}, or a shared object that exports assay_backend_run. Both run in a
 * process of their own, with a time limit; a crash is a result, not an accident. */
#ifndef ASSAY_HARNESS_BACKEND_H
#define ASSAY_HARNESS_BACKEND_H

#include <stddef.h>

#include "oracle/base/status.h"

/* Exit status of a backend command (and of the process that hosts a shared object). */
enum { ASSAY_BACKEND_EXIT_DONE = 0, ASSAY_BACKEND_EXIT_UNSUPPORTED = 77 };

typedef enum assay_backend_outcome {
    ASSAY_OUTCOME_DONE,
    ASSAY_OUTCOME_UNSUPPORTED, /* the backend says that it does not have this case */
    ASSAY_OUTCOME_FAILED       /* crashed, timed out, gave up, wrote out of bounds or no candidate */
} assay_backend_outcome;

typedef struct assay_backend_end {
    assay_backend_outcome outcome;
    bool repeats;      /* two runs on the same request gave the same bits */
    char message[600]; /* why it failed or is unsupported; what did not repeat */
    double seconds;    /* wall clock of the (first) run */
} assay_backend_end;

/* Runs the backend on the request file; on DONE the candidate file is there. `folder` is for logs and second runs. */
assay_status assay_backend_execute(assay_context *ctx, const char *spec, const char *request, const char *candidate,
                                   const char *folder, double timeout, assay_backend_end *end);

/* Refuses what is neither a shared object that is there nor a command with both placeholders; NULL too. */
assay_status assay_backend_check(assay_context *ctx, const char *spec);

/* The folder for a backend's files: `keep`, or a new temporary one where that is NULL. */
assay_status assay_backend_make_folder(assay_context *ctx, const char *keep, char *folder, size_t size);
void assay_backend_remove_folder(char *folder); /* with all that is in it */
/* FOLDER/NAME.WHAT.h5; the slashes of a case's name become dashes. */
void assay_backend_file(char *path, size_t size, const char *folder, const char *name, const char *what);

/* A shared object rather than a command. */
bool assay_backend_is_shared_object(const char *spec);

#endif
