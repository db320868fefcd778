/* Backends: a command with {request} and {candidate}, or a shared object that exports assay_backend_run. Both run in a
 * process of their own, with a time limit; a crash is a result, not an accident. */
#pragma once

#include "harness/backends/process.h"

/* ---- what --backend may say ---- */

/* Refuses what is neither a shared object that is there nor a command with both placeholders; NULL too. */
assay_status assay_backend_check(assay_context *ctx, const char *spec);

/* With --serve: refuses a shared object, a command with a placeholder, and NULL. */
assay_status assay_backend_server_check(assay_context *ctx, const char *command);

/* A shared object rather than a command. */
bool assay_backend_is_shared_object(const char *spec);

/* ---- runs ---- */

/* Exit status of a backend command (and of the process that hosts a shared object). */
enum {
    ASSAY_BACKEND_EXIT_DONE = 0,
    ASSAY_BACKEND_EXIT_UNSUPPORTED = 77,
    ASSAY_BACKEND_EXIT_NOT_STARTED =
        126, /* as a shell has it of what it cannot start, and 127 of what it cannot find */
    ASSAY_BACKEND_EXIT_NOT_FOUND = 127
};

typedef enum assay_backend_outcome {
    ASSAY_OUTCOME_DONE,
    ASSAY_OUTCOME_UNSUPPORTED, /* the backend says that it does not have this case */
    ASSAY_OUTCOME_FAILED       /* crashed, timed out, gave up, wrote out of bounds or no candidate */
} assay_backend_outcome;

enum { ASSAY_BACKEND_LINES = 20 }; /* of its output that are kept */

typedef struct assay_backend_end {
    assay_backend_outcome outcome;
    bool repeats; /* two runs on the same request gave the same bits */
    bool
        is_unfit; /* FAILED: it cannot be started, or gave nothing that can be read: that says nothing of its kernels */
    char message[600]; /* why it failed or is unsupported; what did not repeat */
    char output[4096]; /* the last lines that the (last) run printed */
    double seconds;    /* wall clock of the (first) run */
} assay_backend_end;

typedef struct assay_backend_server assay_backend_server; /* server.h */

/* What a run gave: the checksum of every dataset, by their paths. Starts zeroed. */
typedef struct assay_candidate_sums {
    struct assay_candidate_sum *items;
    int count;
} assay_candidate_sums;

/* A case's first run where the second one comes later. Starts zeroed. */
typedef struct assay_backend_first {
    bool ran;
    assay_backend_end end;
    assay_candidate_sums sums;
} assay_backend_first;

typedef struct assay_backend_call {
    const char *spec;
    assay_backend_server *server;     /* that is asked; NULL: each run is a process */
    const assay_backend_first *first; /* of a server: has run; NULL, or zeroed: both run now */
    const char *request;              /* the file, which is there */
    const char *candidate;            /* where the second run's result will lie */
    const char *golden; /* where the caller will write the golden: nothing lies there while the backend runs; or NULL */
    const char *log;    /* where the last run's output will lie; NULL: nowhere */
    bool hostile;       /* a shared object sees other numbers at the same addresses before the call that counts */
    const char *folder; /* in which each run gets a folder of its own */
    assay_process_limits limits; /* of a run */
} assay_backend_call;

/* Runs the backend twice on the request, each time in a folder of its own and, but for a server's, in a process of its
 * own, and holds the two candidates against each other, bit for bit. What the first run gave has no name any more when the second begins. A candidate is
 * read in a process of its own first (examine_file.h). On DONE the candidate is in place.
 *
 * The status is what is not the backend's doing: no memory, no disk, a folder that cannot be written. */
assay_status assay_backend_execute(assay_context *ctx, const assay_backend_call *call, assay_backend_end *end);

/* The first run by itself, of a server that has other requests before the second one. Nothing of it stays but the log of a
 * run that failed. */
assay_status assay_backend_execute_first(assay_context *ctx, const assay_backend_call *call,
                                         assay_backend_first *first);
void assay_backend_first_free(assay_backend_first *first);
