#include "oracle/base/status.h"

#include <stdarg.h>
#include <stdio.h>

const char *assay_status_text(assay_status status)
{
    switch (status) {
#define X(code, text)                                                                                                  \
    case code:                                                                                                         \
        return text;
        ASSAY_STATUS_TABLE(X)
#undef X
    }
    return "unknown status";
}

assay_status assay_fail(assay_context *ctx, assay_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(ctx->message, sizeof ctx->message, format, arguments);
    va_end(arguments);
    /* one line, whatever the file or name has in it that is quoted */
    for (char *c = ctx->message; *c != '\0'; c++) {
        if ((unsigned char)*c < ' ') *c = *c == '\n' ? ' ' : '?';
    }
    return status;
}
