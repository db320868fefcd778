#include "harness/backends/backend_end.h"

#include <stdio.h>
#include <string.h>

#include "harness/backends/backend_files.h"

enum { EXIT_OF_AN_EXCEPTION = 1 }; /* Python's */

void assay_backend_fail(assay_backend_end *end, const char *message)
{
    end->outcome = ASSAY_OUTCOME_FAILED;
    end->is_unfit = true;
    snprintf(end->message, sizeof end->message, "%.590s", message);
}

void assay_backend_judge(const assay_process_result *process, const char *log, double timeout, assay_backend_end *end)
{
    char message[600], exception[400] = "";
    assay_backend_last_lines(log, ASSAY_BACKEND_LINES, end->output, sizeof end->output);
    const char *line = strrchr(end->output, '\n');
    line = line == NULL ? end->output : line + 1;
    if (process->code == EXIT_OF_AN_EXCEPTION) assay_backend_exception(log, exception, sizeof exception);
    if (exception[0] != '\0') line = exception;
    const char *separator = line[0] == '\0' ? "" : ": ";
    end->seconds = process->seconds;
    end->outcome = ASSAY_OUTCOME_DONE;
    if (process->end == ASSAY_PROCESS_TIMED_OUT) {
        snprintf(message, sizeof message, "the backend took longer than %g s and was stopped", timeout);
    } else if (process->end == ASSAY_PROCESS_KILLED) {
        snprintf(message, sizeof message, "the backend crashed: %s%s%.390s", strsignal(process->code), separator, line);
    } else if (process->code == ASSAY_BACKEND_EXIT_UNSUPPORTED) {
        end->outcome = ASSAY_OUTCOME_UNSUPPORTED;
        snprintf(end->message, sizeof end->message, "%.390s", line[0] != '\0' ? line : "the backend gave no reason");
        return;
    } else if (process->code != ASSAY_BACKEND_EXIT_DONE) {
        snprintf(message, sizeof message, "the backend ended with status %d%s%.390s", process->code, separator, line);
    } else {
        return;
    }
    assay_backend_fail(end, message);
    end->is_unfit = process->end == ASSAY_PROCESS_EXITED &&
                    (process->code == ASSAY_BACKEND_EXIT_NOT_STARTED || process->code == ASSAY_BACKEND_EXIT_NOT_FOUND);
}
