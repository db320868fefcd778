/* How this process was started: alone, or as one of several by mpirun. */
#pragma once

#include "harness/ranks/ranks.h"

/* Whether there are several. */
bool assay_launch_is_shared(void);
/* This one's number among them, from 0. */
int assay_launch_rank(void);
/* Cores for this process: all of the machine, or its share of those that it may run on. */
int assay_launch_cores(void);
/* Whether a person looks at standard output: mpirun gives every process a terminal of its own. */
bool assay_launch_shows_output(void);

/* The group of the processes that were started together; NULL where this one is alone. Opens the module with MPI, which
 * lies beside the program or among its libraries; without it several processes are refused. What this process starts
 * finds nothing of mpirun in its environment, and its temporary files in a folder that goes with the run. */
assay_status assay_launch_open(assay_context *ctx, assay_rank_group **group);
