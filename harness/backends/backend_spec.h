/* What --backend may say. */
#pragma once

#include "oracle/base/status.h"

/* Refuses what is neither a shared object that is there nor a command with both placeholders; NULL too. */
assay_status assay_backend_check(assay_context *ctx, const char *spec);

/* With --serve: refuses a shared object, a command with a placeholder, and NULL. */
assay_status assay_backend_server_check(assay_context *ctx, const char *command);

/* A shared object rather than a command. */
bool assay_backend_is_shared_object(const char *spec);
