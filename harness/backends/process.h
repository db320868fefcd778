/* Runs a command of the user's, or a function of ours, in a process of its own with limits. Between it and this process stands
 * another one, the supervisor: whatever the command starts, in a session of its own too, becomes a child of the supervisor
 * and is ended by it, when the command ends, when its time is over, or when this process dies. */
#pragma once

#include "oracle/base/status.h"

typedef enum assay_process_end {
    ASSAY_PROCESS_EXITED,
    ASSAY_PROCESS_KILLED,
    ASSAY_PROCESS_TIMED_OUT
} assay_process_end;

typedef struct assay_process_result {
    assay_process_end end;
    int code;       /* exit status, or the signal that killed it */
    double seconds; /* wall clock */
} assay_process_result;

typedef struct assay_process_limits {
    double timeout; /* seconds; beyond them everything is killed */
    int64_t memory; /* bytes of its own that a process may have (RLIMIT_DATA); 0: no limit */
} assay_process_limits;

/* Runs argv (argv[0] looked up in PATH) in a process group of its own, standard output and error into the file `log`, of which
 * the end is kept (bounded_log.h). Fails only when the command cannot be started. */
assay_status assay_process_run(assay_context *ctx, const char *const *argv, const char *log,
                               const assay_process_limits *limits, assay_process_result *result);

/* Calls `work` in a copy of this process: its result is the exit status, what it prints is thrown away. It may use
 * everything but threads, of which the copy has none. */
assay_status assay_process_call(assay_context *ctx, int (*work)(void *), void *data, double timeout,
                                assay_process_result *result);

/* A process that goes on. */
typedef struct assay_process {
    int pid;                  /* of its supervisor, which ends when it has ended; 0: none */
    int line;                 /* to the supervisor */
    int place;                /* of the line (fixtures/leftovers.h) */
    int input, output, error; /* our ends of its pipes */
} assay_process;

/* Starts argv as assay_process_run does, with pipes. */
assay_status assay_process_start(assay_context *ctx, const char *const *argv, int64_t memory, assay_process *process);
/* Closes its input, waits `patience` seconds for its end, kills all that it started, closes the pipes. *result says how it
 * ended (`seconds` is not set). Zeroes *process; safe on a zeroed one. */
void assay_process_stop(assay_process *process, double patience, assay_process_result *result);
