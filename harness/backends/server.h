/* A backend command that is started once and takes one request a line (docs/your-kernel.md, "A server"). */
#pragma once

#include "harness/backends/backend.h"

/* The command is started for the first request, and again for the one after it failed at the protocol. memory: as in
 * assay_process_limits. */
assay_status assay_backend_server_make(assay_context *ctx, const char *command, int64_t memory,
                                       assay_backend_server **server);
/* Ends the server's input, and where that does not end it, the server; NULL is safe. */
void assay_backend_server_free(assay_backend_server *server);

/* One request, and its answer within `timeout` seconds, the start of the command included: end->outcome, message, output and
 * seconds. What it prints besides goes to the file `log`. Where it dies, hangs, or answers what is no answer or was not asked
 * for, it is ended. */
assay_status assay_backend_server_ask(assay_context *ctx, assay_backend_server *server, const char *request,
                                      const char *candidate, const char *log, double timeout, assay_backend_end *end);
