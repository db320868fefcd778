/* A shared object called in processes of their own, a few hundred a second: no files, no new program. A process that is
 * forked at the start, before there are threads, waits for orders; for each it forks another, which loads the object and
 * calls it in memory that all of them share. So each call finds a process that has seen nothing, and a crash ends that one
 * alone. */
#pragma once

#include <sys/types.h>

#include "harness/backends/process.h"
#include "harness/host/host.h"

typedef struct assay_forks {
    const char *library;
    pid_t process;
    int line; /* to that process and back */
    unsigned char *memory;
    int64_t size, used;
} assay_forks;

/* `bytes`: of shared memory, which is taken from the machine as it is used. To be called before there are threads. */
assay_status assay_forks_start(assay_context *ctx, assay_forks *forks, const char *library, int64_t bytes);
void assay_forks_stop(assay_forks *forks); /* safe on a zeroed struct */

/* The shared memory is all free again, for the next case; bad input where a case is too large for it. */
assay_host_memory assay_forks_memory(assay_forks *forks);

/* Calls the object `calls` times in a new process; `host` lies in the shared memory. `memory`: bytes that the process may take
 * besides; 0: no limit. */
assay_status assay_forks_call(assay_context *ctx, assay_forks *forks, assay_host *host, int calls, double timeout,
                              int64_t memory, assay_process_result *result);
