#include "harness/backends/backend_spec.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

bool assay_backend_is_shared_object(const char *spec)
{
    size_t length = strlen(spec);
    return length > 3 && strcmp(spec + length - 3, ".so") == 0 && strchr(spec, '{') == NULL;
}

assay_status assay_backend_check(assay_context *ctx, const char *spec)
{
    if (spec == NULL || spec[0] == '\0') {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "--backend SPEC is missing: a shared object, or a command with {request} and {candidate}");
    }
    if (assay_backend_is_shared_object(spec)) {
        if (access(spec, R_OK) != 0) return assay_fail(ctx, ASSAY_BAD_INPUT, "--backend %s: %s", spec, strerror(errno));
    } else if (strstr(spec, "{request}") == NULL || strstr(spec, "{candidate}") == NULL) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "--backend \"%s\" is neither a shared object (.so) nor a command with {request} and "
                          "{candidate}",
                          spec);
    }
    return ASSAY_OK;
}

assay_status assay_backend_server_check(assay_context *ctx, const char *command)
{
    if (command == NULL || command[0] == '\0') {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "--backend SPEC is missing: with --serve a command that reads requests");
    }
    if (assay_backend_is_shared_object(command)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--serve goes with a command, and --backend %s is a shared object",
                          command);
    }
    if (strstr(command, "{request}") != NULL || strstr(command, "{candidate}") != NULL) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "--backend \"%s\" has a placeholder: with --serve it reads paths from its standard input",
                          command);
    }
    return ASSAY_OK;
}
