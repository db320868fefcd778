#define _GNU_SOURCE /* memfd_create */
/* What a backend prints: the answers of a served one, and what is taken of a log. */
#include <sys/mman.h>

#include "harness/backends/server.c" /* the part of it that no process is needed for */
#include "tests/fuzz/fuzz.h"

static int pipe_of(const uint8_t *data, size_t size)
{
    const int file = memfd_create("pipe", MFD_CLOEXEC);
    fuzz_require(file >= 0 && (size == 0 || write(file, data, size) == (ssize_t)size), "no file in memory");
    lseek(file, 0, SEEK_SET);
    return file;
}

/* The first byte: how much of the rest goes to standard error. */
static void try_served(const uint8_t *data, size_t size)
{
    char line[128];
    if (size == 0) return;
    const size_t rest = size - 1, error = rest * data[0] / 255;
    assay_context ctx = fuzz_context();
    static assay_backend_server server;
    server = (assay_backend_server){0};
    server.process.output = pipe_of(data + 1 + error, rest - error);
    server.process.error = pipe_of(data + 1, error);
    const char *log = fuzz_path("served.log");
    exchange e = {.ctx = &ctx, .server = &server};
    e.log.file = open(log, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    assay_backend_end end = {.outcome = ASSAY_OUTCOME_FAILED};
    fuzz_check(&ctx, drain(&e));
    if (e.answered && e.breach == NULL) receive_answer(&e, &end);
    if (e.breach != NULL) judge_breach(&e, &end);
    fuzz_require(!e.answered || end.outcome == ASSAY_OUTCOME_DONE || end.message[0] != '\0', "no reason of a failure");
    fuzz_require(strchr(end.message, '\n') == NULL, "a message has two lines");
    fuzz_check(&ctx, log_rest(&e));
    close(e.log.file);
    assay_backend_last_lines(log, ASSAY_BACKEND_LINES, end.output, sizeof end.output);
    assay_backend_exception(log, line, sizeof line);
    fuzz_require(strchr(line, '\n') == NULL, "an exception has two lines");
    const assay_process_result results[] = {{.end = ASSAY_PROCESS_EXITED, .code = 3},
                                            {.end = ASSAY_PROCESS_KILLED, .code = SIGSEGV},
                                            {.end = ASSAY_PROCESS_EXITED, .code = ASSAY_BACKEND_EXIT_UNSUPPORTED}};
    for (int i = 0; i < 3; i++) {
        assay_backend_judge(&results[i], log, 1.0, &end);
        fuzz_require(end.message[0] != '\0' && strchr(end.message, '\n') == NULL, "no reason in one line");
    }
    close(server.process.output);
    close(server.process.error);
}

static void served_seeds(fuzz_corpus *corpus)
{
    fuzz_seed_text(corpus, "\x10warning: old driver\nhello\nassay: done\n");
    fuzz_seed_text(corpus, "\x01\nassay: unsupported no groups\nassay: failed\n");
    fuzz_seed_text(
        corpus, "\xf0Traceback (most recent call last):\n  File \"x.py\", line 1\nValueError: no\nassay: failed it\n");
    fuzz_seed_text(corpus, "\x01\r\nassay:\tdone now\rassay: done \x1b[31m\n\xff\xfe");
}

const fuzz_target fuzz_served = {"served", try_served, served_seeds, true};
