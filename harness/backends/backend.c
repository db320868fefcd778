#include "harness/backends/backend.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fixtures/digest.h"
#include "fixtures/fixture.h"
#include "harness/backends/backend_end.h"
#include "harness/backends/backend_files.h"
#include "harness/backends/examine_file.h"
#include "harness/backends/process.h"
#include "harness/backends/server.h"
#include "oracle/base/leftovers.h"
#include "oracle/base/memory.h"

enum { CHUNK = 1 << 16 }; /* elements that are held against each other at a time */

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

/* One run: its files lie in a folder of its own. */
typedef struct one_run {
    char folder[2304], candidate[2560], log[2560];
    int place;                    /* of the folder (oracle/base/leftovers.h) */
    assay_fixture_reader *reader; /* of the candidate, once it was found sound */
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
    assay_fixture_close(run->reader);
    run->reader = NULL;
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
    const char *const argv[] = {self, "shared-object", call->spec, call->request, run->candidate, times, NULL};
    return assay_process_run(ctx, argv, run->log, &call->limits, process);
}

/* The run's candidate, opened; else why not. Of a link the second run could change what the first one gave. */
static assay_status open_candidate(assay_context *ctx, const assay_backend_call *call, one_run *run,
                                   assay_backend_end *end)
{
    assay_status status;
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
    status = assay_examine_file(ctx, run->candidate);
    if (status == ASSAY_OK) status = assay_fixture_open(ctx, run->candidate, &run->reader);
    if (status != ASSAY_BAD_INPUT) return status;
    assay_backend_fail(end, ctx->message); /* what a backend wrote is its result, a damaged file too */
    return ASSAY_OK;
}

/* On DONE the run's candidate is open. */
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
    if (end->outcome == ASSAY_OUTCOME_DONE) MUST(open_candidate(ctx, call, run, end));
    return ASSAY_OK;
}

/* Whether both have the tensor, with the same bits. */
static assay_status same_tensor(assay_context *ctx, assay_fixture_reader *a, assay_fixture_reader *b, const char *path,
                                double *x, double *y, bool *same)
{
    const assay_tensor_spec *one = assay_fixture_find(a, path), *other = assay_fixture_find(b, path);
    *same = one != NULL && other != NULL && one->type == other->type && assay_shape_equal(&one->shape, &other->shape);
    const int64_t total = *same ? assay_shape_count(&one->shape) : 0;
    for (int64_t at = 0; *same && at < total; at += CHUNK) {
        const int64_t count = total - at < CHUNK ? total - at : CHUNK;
        MUST(assay_fixture_read(ctx, a, path, at, count, x));
        MUST(assay_fixture_read(ctx, b, path, at, count, y));
        *same = memcmp(x, y, (size_t)count * sizeof *x) == 0;
    }
    return ASSAY_OK;
}

/* The path of the first dataset that two candidates do not have alike; "" when there is none. */
static assay_status first_difference(assay_context *ctx, assay_fixture_reader *a, assay_fixture_reader *b, char *path,
                                     size_t size)
{
    assay_status status;
    double *x = NULL, *y = NULL;
    assay_fixture_reader *const either[] = {a, b};
    path[0] = '\0';
    TRY(assay_alloc_f64(ctx, "candidate", CHUNK, &x));
    TRY(assay_alloc_f64(ctx, "candidate", CHUNK, &y));
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < assay_fixture_count(either[side]); i++) {
            const char *name = assay_fixture_spec(either[side], i)->path;
            bool same = true;
            if (side == 1 && assay_fixture_find(a, name) != NULL) continue; /* has been looked at */
            TRY(same_tensor(ctx, a, b, name, x, y, &same));
            if (same) continue;
            snprintf(path, size, "%s", name);
            goto cleanup;
        }
    }
cleanup:
    free(x);
    free(y);
    return status;
}

static assay_status hold_against(assay_context *ctx, const one_run *first, const one_run *second,
                                 assay_backend_end *end)
{
    char path[ASSAY_PATH_SIZE];
    const assay_status status = first_difference(ctx, first->reader, second->reader, path, sizeof path);
    if (status == ASSAY_BAD_INPUT) { /* a damaged dataset */
        assay_backend_fail(end, ctx->message);
        return ASSAY_OK;
    }
    end->repeats = path[0] == '\0';
    if (!end->repeats) snprintf(end->message, sizeof end->message, "two runs gave different bits in %s", path);
    return status;
}

/* ---- first runs that are kept as digests ---- */

typedef struct assay_candidate_digest {
    char path[ASSAY_PATH_SIZE], digest[ASSAY_DIGEST_SIZE];
} assay_candidate_digest;

static assay_status digest_of(assay_context *ctx, assay_fixture_reader *reader, const assay_tensor_spec *spec,
                              double *values, assay_candidate_digest *out)
{
    assay_status status;
    assay_sha256 *hash = NULL;
    const int64_t total = assay_shape_count(&spec->shape);
    snprintf(out->path, sizeof out->path, "%s", spec->path);
    TRY(assay_sha256_start(ctx, &hash));
    assay_sha256_add(hash, sizeof spec->type, &spec->type);
    assay_sha256_add(hash, sizeof spec->shape.rank, &spec->shape.rank);
    assay_sha256_add(hash, (size_t)spec->shape.rank * sizeof *spec->shape.dims, spec->shape.dims);
    for (int64_t at = 0; at < total; at += CHUNK) {
        const int64_t count = total - at < CHUNK ? total - at : CHUNK;
        TRY(assay_fixture_read(ctx, reader, spec->path, at, count, values));
        assay_sha256_add(hash, (size_t)count * sizeof *values, values);
    }
    assay_sha256 *whole = hash;
    hash = NULL;
    status = assay_sha256_finish(ctx, whole, out->digest);
cleanup:
    assay_sha256_free(hash);
    return status;
}

static assay_status digests_of(assay_context *ctx, assay_fixture_reader *reader, assay_candidate_digest **digests,
                               int *count)
{
    assay_status status;
    double *values = NULL;
    void *memory = NULL;
    *digests = NULL;
    *count = 0;
    TRY(assay_alloc_f64(ctx, "candidate", CHUNK, &values));
    TRY(assay_alloc(ctx, "digests", assay_fixture_count(reader) + 1, sizeof **digests, &memory));
    *digests = memory;
    for (int i = 0; i < assay_fixture_count(reader); i++)
        TRY(digest_of(ctx, reader, assay_fixture_spec(reader, i), values, &(*digests)[(*count)++]));
cleanup:
    free(values);
    return status;
}

/* As hold_against, of a first run that left digests: the first dataset that is not there, or is another. */
static assay_status hold_against_digests(assay_context *ctx, const assay_backend_first *first, const one_run *second,
                                         assay_backend_end *end)
{
    assay_status status;
    assay_candidate_digest *digests = NULL;
    const char *different = NULL;
    int count = 0;
    TRY(digests_of(ctx, second->reader, &digests, &count));
    for (int i = 0; different == NULL && i < count; i++) {
        bool same = false;
        for (int k = 0; k < first->count && !same; k++) {
            same = strcmp(first->digests[k].path, digests[i].path) == 0 &&
                   strcmp(first->digests[k].digest, digests[i].digest) == 0;
        }
        if (!same) different = digests[i].path;
    }
    if (different == NULL && count != first->count) different = "the list of datasets";
    end->repeats = different == NULL;
    if (!end->repeats) {
        snprintf(end->message, sizeof end->message, "two runs, in two orders of the cases, gave different bits in %s",
                 different);
    }
cleanup:
    free(digests);
    return status;
}

static void give_log(const assay_backend_call *call, const one_run *run)
{
    if (call->log != NULL) rename(run->log, call->log);
}

assay_status assay_backend_execute_first(assay_context *ctx, const assay_backend_call *call, assay_backend_first *first)
{
    assay_status status;
    one_run run = {0};
    *first = (assay_backend_first){.end = {.repeats = true}};
    if (call->log != NULL) TRY(assay_backend_clear_place(ctx, call->log));
    TRY(run_once(ctx, call, 1, &run, &first->end));
    if (first->end.outcome == ASSAY_OUTCOME_DONE) {
        status = digests_of(ctx, run.reader, &first->digests, &first->count);
        if (status == ASSAY_BAD_INPUT) { /* a damaged dataset */
            assay_backend_fail(&first->end, ctx->message);
            status = ASSAY_OK;
        }
    }
    if (first->end.outcome != ASSAY_OUTCOME_DONE) give_log(call, &run);
    first->ran = true;
cleanup:
    end_run(&run);
    return status;
}

void assay_backend_first_free(assay_backend_first *first)
{
    free(first->digests);
    *first = (assay_backend_first){0};
}

/* The second run must not be able to find what the first one gave: its folder goes, and the reader holds a file without
 * a name. A shared object is called twice in it, so that what one call leaves behind shows in the next. */
static assay_status run_again(assay_context *ctx, const assay_backend_call *call, one_run *first, one_run *second,
                              assay_backend_end *end)
{
    const double seconds = end->seconds;
    const bool earlier = first->folder[0] == '\0';
    remove_folder(first);
    if (!earlier && assay_backend_place_is_taken(first->candidate)) {
        assay_backend_fail(end, "the first run's candidate cannot be removed");
        return ASSAY_OK;
    }
    MUST(run_once(ctx, call, 2, second, end));
    end->seconds = seconds;
    if (end->outcome == ASSAY_OUTCOME_DONE) {
        MUST(earlier ? hold_against_digests(ctx, call->first, second, end) : hold_against(ctx, first, second, end));
    } else {
        char message[600];
        snprintf(message, sizeof message, "in a second run: %.580s", end->message);
        snprintf(end->message, sizeof end->message, "%s", message);
        end->outcome = ASSAY_OUTCOME_FAILED; /* UNSUPPORTED now, and not before, as well */
    }
    return ASSAY_OK;
}

/* What the last run gave, to where the caller wants it. */
static assay_status take(assay_context *ctx, const assay_backend_call *call, const one_run *last,
                         assay_backend_end *end)
{
    const char *const places[] = {call->golden, call->candidate, call->log};
    for (int i = 0; i < 3; i++) {
        if (places[i] == NULL || !assay_backend_place_is_taken(places[i])) continue;
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
    assay_status status;
    one_run first = {0}, second = {0};
    const bool earlier = call->first != NULL && call->first->ran;
    *end = earlier ? call->first->end : (assay_backend_end){.repeats = true};
    if (earlier && end->outcome != ASSAY_OUTCOME_DONE) return ASSAY_OK;
    /* what an earlier run left must not be taken for this one's, nor be read by it */
    if (call->golden != NULL) TRY(assay_backend_clear_place(ctx, call->golden));
    TRY(assay_backend_clear_place(ctx, call->candidate));
    if (call->log != NULL) TRY(assay_backend_clear_place(ctx, call->log));
    if (!earlier) TRY(run_once(ctx, call, 1, &first, end));
    if (end->outcome == ASSAY_OUTCOME_DONE) TRY(run_again(ctx, call, &first, &second, end));
    TRY(take(ctx, call, second.folder[0] != '\0' ? &second : &first, end));
cleanup:
    end_run(&first);
    end_run(&second);
    return status;
}
