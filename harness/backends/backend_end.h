/* How a run of a backend ended, in words. */
#pragma once

#include "harness/backends/backend.h"
#include "harness/backends/process.h"

/* FAILED, with this message. */
void assay_backend_fail(assay_backend_end *end, const char *message);

/* What the end of the process says, with the line of its log that tells most; end->output too. */
void assay_backend_judge(const assay_process_result *process, const char *log, double timeout, assay_backend_end *end);
