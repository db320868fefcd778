#include "harness/backend.h"

#include <errno.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixtures/fixture.h"
#include "harness/golden.h"
#include "harness/process.h"
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

assay_status assay_backend_make_folder(assay_context *ctx, const char *keep, char *folder, size_t size)
{
    if (keep != NULL) {
        snprintf(folder, size, "%s/", keep);
        assay_status status = assay_make_parents(ctx, folder);
        snprintf(folder, size, "%s", keep);
        return status;
    }
    const char *temporary = getenv("TMPDIR");
    snprintf(folder, size, "%s/assay-XXXXXX", temporary != NULL && temporary[0] != '\0' ? temporary : "/tmp");
    if (mkdtemp(folder) == NULL) return assay_fail(ctx, ASSAY_IO, "%s: %s", folder, strerror(errno));
    return ASSAY_OK;
}

void assay_backend_remove_folder(char *folder)
{
    FTS *tree = fts_open((char *const[]){folder, NULL}, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    if (tree == NULL) return;
    for (FTSENT *entry = fts_read(tree); entry != NULL; entry = fts_read(tree)) {
        if (entry->fts_info != FTS_D) remove(entry->fts_accpath); /* a folder comes again after what is in it */
    }
    fts_close(tree);
}

void assay_backend_file(char *path, size_t size, const char *folder, const char *name, const char *what)
{
    char flat[2 * ASSAY_PATH_SIZE];
    snprintf(flat, sizeof flat, "%s", name);
    for (char *c = flat; *c != '\0'; c++) {
        if (*c == '/') *c = '-';
    }
    snprintf(path, size, "%s/%s.%s.h5", folder, flat, what);
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

/* The last line that the backend printed and that begins with `prefix`; "" when there is none. */
static void last_line(const char *log, const char *prefix, char *line, size_t size)
{
    char buffer[512];
    line[0] = '\0';
    FILE *file = fopen(log, "re");
    if (file == NULL) return;
    while (fgets(buffer, sizeof buffer, file) != NULL) {
        buffer[strcspn(buffer, "\n")] = '\0';
        for (char *c = buffer; *c != '\0'; c++) {
            if ((unsigned char)*c < ' ') *c = ' '; /* reports take no control characters */
        }
        if (buffer[0] != '\0' && strncmp(buffer, prefix, strlen(prefix)) == 0) snprintf(line, size, "%.390s", buffer);
    }
    fclose(file);
}

static void judge(const assay_process_result *process, const char *log, double timeout, assay_backend_end *end)
{
    char line[400];
    last_line(log, "", line, sizeof line);
    const char *separator = line[0] == '\0' ? "" : ": ";
    end->seconds = process->seconds;
    if (process->end == ASSAY_PROCESS_TIMED_OUT) {
        end->outcome = ASSAY_OUTCOME_FAILED;
        snprintf(end->message, sizeof end->message, "the backend took longer than %g s and was stopped", timeout);
    } else if (process->end == ASSAY_PROCESS_KILLED) {
        end->outcome = ASSAY_OUTCOME_FAILED;
        snprintf(end->message, sizeof end->message, "the backend crashed: %s%s%s", strsignal(process->code), separator,
                 line);
    } else if (process->code == ASSAY_BACKEND_EXIT_UNSUPPORTED) {
        end->outcome = ASSAY_OUTCOME_UNSUPPORTED;
        snprintf(end->message, sizeof end->message, "%s", line);
    } else if (process->code != ASSAY_BACKEND_EXIT_DONE) {
        end->outcome = ASSAY_OUTCOME_FAILED;
        snprintf(end->message, sizeof end->message, "the backend ended with status %d%s%s", process->code, separator,
                 line);
    } else {
        end->outcome = ASSAY_OUTCOME_DONE;
    }
}

/* The path of the first dataset whose values differ between two candidates; "" when none does. */
static assay_status first_difference(assay_context *ctx, const char *a, const char *b, char *path, size_t size)
{
    enum { CHUNK = 1 << 16 };
    assay_status status;
    assay_fixture_reader *first = NULL, *second = NULL;
    double *x = NULL, *y = NULL;
    path[0] = '\0';
    TRY(assay_fixture_open(ctx, a, &first));
    TRY(assay_fixture_open(ctx, b, &second));
    TRY(assay_alloc_f64(ctx, "candidate", CHUNK, &x));
    TRY(assay_alloc_f64(ctx, "candidate", CHUNK, &y));
    for (int i = 0; path[0] == '\0' && i < assay_fixture_count(first); i++) {
        const assay_tensor_spec *spec = assay_fixture_spec(first, i);
        const assay_tensor_spec *other = assay_fixture_find(second, spec->path);
        int64_t total = assay_shape_count(&spec->shape);
        bool same = other != NULL && assay_shape_equal(&spec->shape, &other->shape);
        for (int64_t at = 0; same && at < total; at += CHUNK) {
            int64_t count = total - at < CHUNK ? total - at : CHUNK;
            TRY(assay_fixture_read(ctx, first, spec->path, at, count, x));
            TRY(assay_fixture_read(ctx, second, spec->path, at, count, y));
            same = memcmp(x, y, (size_t)count * sizeof *x) == 0;
        }
        if (!same) snprintf(path, size, "%s", spec->path);
    }
cleanup:
    free(x);
    free(y);
    assay_fixture_close(first);
    assay_fixture_close(second);
    return status;
}

static void no_candidate(assay_backend_end *end)
{
    end->outcome = ASSAY_OUTCOME_FAILED;
    snprintf(end->message, sizeof end->message, "the backend wrote no candidate file");
}

/* The program itself, hosting the shared object in another process. It runs the backend twice and says in a line of its
 * own what did not repeat. */
static assay_status execute_shared_object(assay_context *ctx, const char *spec, const char *request,
                                          const char *candidate, const char *log, double timeout,
                                          assay_backend_end *end)
{
    char self[4096], line[400];
    assay_process_result process;
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0) return assay_fail(ctx, ASSAY_IO, "/proc/self/exe cannot be read");
    self[length] = '\0';
    const char *const argv[] = {self, "shared-object", spec, request, candidate, NULL};
    assay_status status = assay_process_run(ctx, argv, log, timeout, &process);
    RETURN_IF(status != ASSAY_OK, status);
    judge(&process, log, timeout, end);
    if (end->outcome == ASSAY_OUTCOME_DONE && access(candidate, F_OK) != 0) no_candidate(end);
    last_line(log, "differs: ", line, sizeof line); /* the backend may print as the process ends, behind ours */
    end->repeats = line[0] == '\0';
    if (!end->repeats) snprintf(end->message, sizeof end->message, "two runs gave different bits in %.300s", line + 9);
    return ASSAY_OK;
}

static assay_status execute_command(assay_context *ctx, const char *spec, const char *request, const char *candidate,
                                    const char *folder, const char *log, double timeout, assay_backend_end *end)
{
    char command[8192], again[4096], path[ASSAY_PATH_SIZE];
    assay_process_result process;
    double seconds = 0.0;
    assay_status status;
    snprintf(again, sizeof again, "%s/again.h5", folder);
    unlink(again);
    for (int run = 0; run < 2; run++) {
        const char *file = run == 0 ? candidate : again;
        const char *const argv[] = {"/bin/sh", "-c", command, NULL};
        TRY(fill_command(ctx, spec, request, file, command, sizeof command));
        TRY(assay_process_run(ctx, argv, log, timeout, &process));
        judge(&process, log, timeout, end);
        if (run == 0) seconds = end->seconds;
        if (end->outcome == ASSAY_OUTCOME_DONE && access(file, F_OK) != 0) no_candidate(end);
        if (end->outcome != ASSAY_OUTCOME_DONE) goto cleanup;
    }
    if (first_difference(ctx, candidate, again, path, sizeof path) != ASSAY_OK) {
        end->outcome = ASSAY_OUTCOME_FAILED;
        snprintf(end->message, sizeof end->message, "%.500s", ctx->message);
    } else {
        end->repeats = path[0] == '\0';
        if (!end->repeats) snprintf(end->message, sizeof end->message, "two runs gave different bits in %s", path);
    }
cleanup:
    end->seconds = seconds;
    unlink(again);
    return status;
}

assay_status assay_backend_execute(assay_context *ctx, const char *spec, const char *request, const char *candidate,
                                   const char *folder, double timeout, assay_backend_end *end)
{
    char log[4096];
    *end = (assay_backend_end){.repeats = true};
    snprintf(log, sizeof log, "%s/backend.log", folder);
    unlink(candidate); /* what an earlier run left must not be taken for this one's */
    assay_status status = assay_backend_is_shared_object(spec)
                              ? execute_shared_object(ctx, spec, request, candidate, log, timeout, end)
                              : execute_command(ctx, spec, request, candidate, folder, log, timeout, end);
    unlink(log);
    return status;
}
