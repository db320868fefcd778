#include "harness/backends/backend.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fixtures/fixture.h"
#include "fixtures/leftovers.h"
#include "harness/backends/backend_end.h"
#include "harness/backends/backend_files.h"
#include "harness/backends/examine_file.h"
#include "harness/backends/process.h"
#include "harness/backends/server.h"
#include "oracle/base/memory.h"

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

/* Appends `text` as one word of the shell. */
static size_t append_quoted(char *out, size_t used, size_t size, const char *text)
{
    if (used < size) out[used++] = '\'';
    for (; *text != '\0' && used + 4 < size; text++) {
        if (*text == '\'') {
            memcpy(out + used, "'\\''", 4);
            used += 4;
        } else {
            out[used++] = *text;
        }
    }
    if (used < size) out[used++] = '\'';
    return used;
}

/* The command with its placeholders replaced; both must occur. */
static assay_status fill_command(assay_context *ctx, const char *spec, const char *request, const char *candidate,
                                 char *out, size_t size)
{
    size_t used = 0;
    bool has_request = false, has_candidate = false;
    while (*spec != '\0' && used + 1 < size) {
        if (strncmp(spec, "{request}", 9) == 0) {
            used = append_quoted(out, used, size, request);
            spec += 9;
            has_request = true;
        } else if (strncmp(spec, "{candidate}", 11) == 0) {
            used = append_quoted(out, used, size, candidate);
            spec += 11;
            has_candidate = true;
        } else {
            out[used++] = *spec++;
        }
    }
    if (used + 1 >= size) return assay_fail(ctx, ASSAY_BAD_INPUT, "--backend: the command is too long");
    out[used] = '\0';
    if (!has_request || !has_candidate) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "--backend is neither a shared object (.so) nor a command with {request} and {candidate}");
    }
    return ASSAY_OK;
}

/* One run: its files lie in a folder of its own, and what it gave is known by its checksums. */
typedef struct one_run {
    char folder[2304], candidate[2560], log[2560];
    int place; /* of the folder (fixtures/leftovers.h) */
    assay_candidate_sums sums;
} one_run;

static assay_status begin_run(assay_context *ctx, const assay_backend_call *call, one_run *run)
{
    const char *name = strrchr(call->candidate, '/');
    run->place = -1;
    snprintf(run->folder, sizeof run->folder, "%s/" ASSAY_RUN_FOLDER "XXXXXX", call->folder);
    if (mkdtemp(run->folder) == NULL) {
        const assay_status status = assay_fail(ctx, ASSAY_IO, "%s: %s", run->folder, strerror(errno));
        run->folder[0] = '\0';
        return status;
    }
    run->place = assay_leftover_path(run->folder);
    snprintf(run->candidate, sizeof run->candidate, "%s/%.250s", run->folder,
             name == NULL ? call->candidate : name + 1);
    snprintf(run->log, sizeof run->log, "%s/log", run->folder);
    return ASSAY_OK;
}

static void remove_folder(one_run *run)
{
    if (run->folder[0] == '\0') return;
    assay_remove_tree(run->folder);
    assay_leftover_done(run->place);
    run->folder[0] = '\0';
}

static void end_run(one_run *run)
{
    free(run->sums.items);
    remove_folder(run);
}

/* A shared object is hosted by the program itself, in another process. */
static assay_status start(assay_context *ctx, const assay_backend_call *call, const one_run *run, int calls,
                          assay_process_result *process)
{
    char self[4096], command[8192], times[8];
    if (!assay_backend_is_shared_object(call->spec)) {
        const char *const argv[] = {"/bin/sh", "-c", command, NULL};
        MUST(fill_command(ctx, call->spec, call->request, run->candidate, command, sizeof command));
        return assay_process_run(ctx, argv, run->log, &call->limits, process);
    }
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0) return assay_fail(ctx, ASSAY_IO, "/proc/self/exe cannot be read");
    self[length] = '\0';
    snprintf(times, sizeof times, "%d", calls);
    const char *const argv[] = {
        self, "shared-object", call->spec, call->request, run->candidate, times, call->hostile ? "hostile" : NULL,
        NULL};
    return assay_process_run(ctx, argv, run->log, &call->limits, process);
}

typedef struct assay_candidate_sum {
    char path[ASSAY_PATH_SIZE], checksum[ASSAY_CHECKSUM_SIZE];
} assay_candidate_sum;

static assay_status sum_datasets(assay_context *ctx, const char *path, assay_candidate_sums *sums)
{
    OWNED_BY(assay_fixture_release) assay_fixture_reader *reader = NULL;
    MUST(assay_fixture_open(ctx, path, &reader));
    MUST(assay_alloc(ctx, "checksums", assay_fixture_count(reader) + 1, sizeof *sums->items, &sums->items));
    for (; sums->count < assay_fixture_count(reader); sums->count++) {
        assay_candidate_sum *sum = &sums->items[sums->count];
        snprintf(sum->path, sizeof sum->path, "%s", assay_fixture_spec(reader, sums->count)->path);
        MUST(assay_fixture_checksum(ctx, reader, sum->path, sum->checksum));
    }
    return ASSAY_OK;
}

/* The path of the first dataset that two candidates do not have alike; NULL: there is none. */
static const char *first_difference(const assay_candidate_sums *a, const assay_candidate_sums *b)
{
    for (int i = 0; i < a->count || i < b->count; i++) {
        if (i == a->count) return b->items[i].path;
        if (i == b->count) return a->items[i].path;
        const int order = strcmp(a->items[i].path, b->items[i].path);
        if (order != 0) return order < 0 ? a->items[i].path : b->items[i].path;
        if (strcmp(a->items[i].checksum, b->items[i].checksum) != 0) return a->items[i].path;
    }
    return NULL;
}

/* What the run's candidate holds; else why that cannot be known. Of a link the second run could change what the first one
 * gave. */
static assay_status read_candidate(assay_context *ctx, const assay_backend_call *call, one_run *run,
                                   assay_backend_end *end)
{
    struct stat found;
    if (lstat(run->candidate, &found) != 0) {
        assay_backend_fail(end, assay_backend_is_shared_object(call->spec)
                                    ? "the backend wrote no candidate file: it ended the process before it returned"
                                    : "the backend wrote no candidate file");
        return ASSAY_OK;
    }
    if (S_ISLNK(found.st_mode) || (S_ISREG(found.st_mode) && found.st_nlink != 1)) {
        assay_backend_fail(end, "the candidate file is a link; expected a file of its own");
        return ASSAY_OK;
    }
    assay_status status = assay_examine_file(ctx, run->candidate);
    if (status == ASSAY_OK) status = sum_datasets(ctx, run->candidate, &run->sums);
    if (status != ASSAY_BAD_INPUT) return status;
    assay_backend_fail(end, ctx->message); /* what a backend wrote is its result, a damaged file too */
    return ASSAY_OK;
}

static assay_status run_once(assay_context *ctx, const assay_backend_call *call, int calls, one_run *run,
                             assay_backend_end *end)
{
    assay_process_result process;
    MUST(begin_run(ctx, call, run));
    if (call->server != NULL) {
        MUST(assay_backend_server_ask(ctx, call->server, call->request, run->candidate, run->log, call->limits.timeout,
                                      end));
    } else {
        MUST(start(ctx, call, run, calls, &process));
        assay_backend_judge(&process, run->log, call->limits.timeout, end);
    }
    return end->outcome == ASSAY_OUTCOME_DONE ? read_candidate(ctx, call, run, end) : ASSAY_OK;
}

static void give_log(const assay_backend_call *call, const one_run *run)
{
    if (call->log != NULL) rename(run->log, call->log);
}

assay_status assay_backend_execute_first(assay_context *ctx, const assay_backend_call *call, assay_backend_first *first)
{
    OWNED_BY(end_run) one_run run = {0};
    *first = (assay_backend_first){.end = {.repeats = true}};
    if (call->log != NULL) MUST(assay_backend_clear_place(ctx, call->log));
    MUST(run_once(ctx, call, 1, &run, &first->end));
    if (first->end.outcome != ASSAY_OUTCOME_DONE) give_log(call, &run);
    first->sums = run.sums;
    run.sums = (assay_candidate_sums){0};
    first->ran = true;
    return ASSAY_OK;
}

void assay_backend_first_free(assay_backend_first *first)
{
    free(first->sums.items);
    *first = (assay_backend_first){0};
}

/* The second run must not be able to find what the first one gave: its folder goes before. A shared object is called twice
 * in it, so that what one call leaves behind shows in the next. */
static assay_status run_again(assay_context *ctx, const assay_backend_call *call, one_run *first, one_run *second,
                              assay_backend_end *end)
{
    const double seconds = end->seconds;
    const bool earlier = first->folder[0] == '\0';
    remove_folder(first);
    if (!earlier && assay_backend_path_exists(first->candidate)) {
        assay_backend_fail(end, "the first run's candidate cannot be removed");
        return ASSAY_OK;
    }
    MUST(run_once(ctx, call, 2, second, end));
    end->seconds = seconds;
    if (end->outcome != ASSAY_OUTCOME_DONE) {
        char message[600];
        snprintf(message, sizeof message, "in a second run: %.580s", end->message);
        snprintf(end->message, sizeof end->message, "%s", message);
        end->outcome = ASSAY_OUTCOME_FAILED; /* UNSUPPORTED now, and not before, as well */
        return ASSAY_OK;
    }
    const char *different = first_difference(earlier ? &call->first->sums : &first->sums, &second->sums);
    end->repeats = different == NULL;
    if (!end->repeats) {
        snprintf(end->message, sizeof end->message, "two runs%s gave different bits in %s",
                 earlier ? ", with others between," : "", different);
    }
    return ASSAY_OK;
}

/* What the last run gave, to where the caller wants it. */
static assay_status take(assay_context *ctx, const assay_backend_call *call, const one_run *last,
                         assay_backend_end *end)
{
    const char *const places[] = {call->golden, call->candidate, call->log};
    for (int i = 0; i < 3; i++) {
        if (places[i] == NULL || !assay_backend_path_exists(places[i])) continue;
        char message[600];
        snprintf(message, sizeof message, "the backend left something at %.500s", places[i]);
        assay_backend_fail(end, message);
        return ASSAY_OK;
    }
    give_log(call, last);
    if (rename(last->candidate, call->candidate) == 0 || end->outcome != ASSAY_OUTCOME_DONE) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_IO, "%s: cannot be put in place: %s", call->candidate, strerror(errno));
}

assay_status assay_backend_execute(assay_context *ctx, const assay_backend_call *call, assay_backend_end *end)
{
    OWNED_BY(end_run) one_run first = {0}, second = {0};
    const bool earlier = call->first != NULL && call->first->ran;
    *end = earlier ? call->first->end : (assay_backend_end){.repeats = true};
    if (earlier && end->outcome != ASSAY_OUTCOME_DONE) return ASSAY_OK;
    /* what an earlier run left must not be taken for this one's, nor be read by it */
    if (call->golden != NULL) MUST(assay_backend_clear_place(ctx, call->golden));
    MUST(assay_backend_clear_place(ctx, call->candidate));
    if (call->log != NULL) MUST(assay_backend_clear_place(ctx, call->log));
    if (!earlier) MUST(run_once(ctx, call, 1, &first, end));
    if (end->outcome == ASSAY_OUTCOME_DONE) MUST(run_again(ctx, call, &first, &second, end));
    return take(ctx, call, second.folder[0] != '\0' ? &second : &first, end);
}
