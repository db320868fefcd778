#include "harness/golden/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/whole_file.h"

static void case_path(const assay_journal *journal, char path[ASSAY_JOURNAL_PATH])
{
    snprintf(path, ASSAY_JOURNAL_PATH, "%s/case.yml", journal->folder);
}

void assay_journal_part(const assay_journal *journal, int64_t layer, bool backward, char path[ASSAY_JOURNAL_PATH])
{
    snprintf(path, ASSAY_JOURNAL_PATH, "%s/%s-%" PRId64 ".h5", journal->folder, backward ? "backward" : "forward",
             layer);
}

void assay_journal_results(const assay_journal *journal, int number, char path[ASSAY_JOURNAL_PATH])
{
    snprintf(path, ASSAY_JOURNAL_PATH, "%s/results-%d", journal->folder, number);
}

/* What parts that go together have in common. */
static assay_status identity_of(assay_context *ctx, const assay_plan *plan, char **text)
{
    OWNED char *yaml = NULL;
    MUST(assay_case_yaml(ctx, plan->c, &yaml));
    static const char head[] = "# assay " ASSAY_VERSION ", engine %s: a golden that is being made\n%s";
    const size_t size = strlen(yaml) + sizeof head + strlen(ctx->arithmetic->name);
    *text = malloc(size);
    if (*text != NULL) {
        snprintf(*text, size, head, ctx->arithmetic->name, yaml);
    } else {
        return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the journal's case");
    }
    return ASSAY_OK;
}

static assay_status digest_of(assay_context *ctx, const char *identity, char digest[ASSAY_DIGEST_SIZE])
{
    assay_sha256 *hash = NULL;
    MUST(assay_sha256_start(ctx, &hash));
    assay_sha256_add(hash, strlen(identity), identity);
    return assay_sha256_finish(ctx, hash, digest);
}

static assay_status io_error(assay_context *ctx, const char *path)
{
    return assay_fail(ctx, ASSAY_IO, "%s: %s", path, strerror(errno));
}

/* Holds the text of case.yml against `identity`. */
static assay_status check_identity(assay_context *ctx, const assay_journal *journal, const char *identity)
{
    assay_status status = ASSAY_OK;
    struct stat info;
    char *text = NULL;
    const size_t length = strlen(identity);
    if (fstat(journal->lock, &info) != 0) return io_error(ctx, journal->folder);
    text = calloc(1, length + 1);
    if (text == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the journal's case");
    if (info.st_size != (off_t)length || pread(journal->lock, text, length, 0) != (ssize_t)length ||
        memcmp(text, identity, length) != 0) {
        status = assay_fail(ctx, ASSAY_BAD_INPUT,
                            "%s is the work on another case, or of another assay or engine (see its case.yml): remove "
                            "it, or give another -o",
                            journal->folder);
    }
    free(text);
    return status;
}

static assay_status lock(assay_context *ctx, assay_journal *journal, const char *path)
{
    journal->lock = open(path, O_RDONLY | O_CLOEXEC);
    if (journal->lock < 0) return io_error(ctx, path);
    if (flock(journal->lock, LOCK_EX | LOCK_NB) == 0) return ASSAY_OK;
    return errno == EWOULDBLOCK ? assay_fail(ctx, ASSAY_BAD_INPUT, "%s: another process works there", journal->folder)
                                : io_error(ctx, path);
}

assay_status assay_journal_open(assay_context *ctx, assay_journal *journal, const char *path, const assay_plan *plan)
{
    assay_status status;
    char *identity = NULL;
    char file[ASSAY_JOURNAL_PATH];
    *journal = (assay_journal){.lock = -1};
    if (strlen(path) > sizeof journal->folder - 16) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%.64s...: path too long", path);
    }
    snprintf(journal->folder, sizeof journal->folder, "%s.journal", path);
    case_path(journal, file);
    TRY(identity_of(ctx, plan, &identity));
    TRY(digest_of(ctx, identity, journal->work));
    if (mkdir(journal->folder, 0777) == 0) {
        TRY(assay_write_whole_file(ctx, file, identity));
    } else if (errno != EEXIST) {
        status = io_error(ctx, journal->folder);
        goto cleanup;
    } else if (access(file, F_OK) != 0 && rmdir(journal->folder) == 0 && mkdir(journal->folder, 0777) == 0) {
        TRY(assay_write_whole_file(ctx, file, identity)); /* its maker was stopped before it had a case */
    } else if (access(file, F_OK) != 0) {
        status = assay_fail(ctx, ASSAY_BAD_INPUT, "%s is no journal: it has no case.yml", journal->folder);
        goto cleanup;
    }
    TRY(lock(ctx, journal, file));
    TRY(check_identity(ctx, journal, identity));
cleanup:
    free(identity);
    if (status != ASSAY_OK) assay_journal_close(journal);
    return status;
}

void assay_journal_close(assay_journal *journal)
{
    if (journal->lock >= 0) close(journal->lock);
    journal->lock = -1;
}

int64_t assay_journal_bytes(const assay_journal *journal, int64_t layers)
{
    enum { BLOCK = 512 };
    int64_t bytes = 0;
    char path[ASSAY_JOURNAL_PATH];
    struct stat info;
    for (int64_t part = 0; part < 2 * layers; part++) {
        assay_journal_part(journal, part / 2, part % 2 == 1, path);
        if (stat(path, &info) == 0) bytes += (int64_t)info.st_blocks * BLOCK;
    }
    for (int number = 0; number < ASSAY_MOST_RESULTS; number++) {
        assay_journal_results(journal, number, path);
        if (stat(path, &info) == 0) bytes += (int64_t)info.st_blocks * BLOCK;
    }
    return bytes;
}

assay_status assay_journal_remove(assay_context *ctx, assay_journal *journal, int64_t layers)
{
    char path[ASSAY_JOURNAL_PATH];
    for (int number = 0; number < ASSAY_MOST_RESULTS; number++) {
        assay_journal_results(journal, number, path);
        if (unlink(path) != 0 && errno != ENOENT) return io_error(ctx, path);
    }
    for (int64_t part = 0; part < 2 * layers; part++) {
        assay_journal_part(journal, part / 2, part % 2 == 1, path);
        if (unlink(path) != 0 && errno != ENOENT) return io_error(ctx, path);
    }
    case_path(journal, path);
    if (unlink(path) != 0) return io_error(ctx, path);
    return rmdir(journal->folder) == 0 ? ASSAY_OK : io_error(ctx, journal->folder);
}

bool assay_journal_has(const assay_journal *journal, int64_t layer, bool backward)
{
    char path[ASSAY_JOURNAL_PATH];
    assay_journal_part(journal, layer, backward, path);
    return access(path, F_OK) == 0;
}

enum { PART_NAME = 64 };

static void name_part(int64_t layer, bool backward, char name[PART_NAME])
{
    snprintf(name, PART_NAME, "%s of layer %" PRId64, backward ? "backward" : "forward", layer);
}

assay_status assay_journal_sign(assay_context *ctx, const assay_journal *journal, int64_t layer, bool backward,
                                assay_fixture_writer *writer)
{
    char name[PART_NAME];
    name_part(layer, backward, name);
    MUST(assay_fixture_set_text(ctx, writer, "kind", "part"));
    MUST(assay_fixture_set_text(ctx, writer, "part", name));
    return assay_fixture_set_text(ctx, writer, "work", journal->work);
}

static assay_status check_signature(assay_context *ctx, const assay_journal *journal, int64_t layer, bool backward,
                                    const assay_fixture_reader *reader, const char *path)
{
    char name[PART_NAME];
    const char *part = assay_fixture_text(reader, "part"), *work = assay_fixture_text(reader, "work");
    name_part(layer, backward, name);
    if (part == NULL || strcmp(part, name) != 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s is %.64s, expected %s: remove it, and it is made again", path,
                          part != NULL ? part : "of no layer", name);
    }
    if (work != NULL && strcmp(work, journal->work) == 0) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%s is of another journal: remove it, and it is made again", path);
}

assay_status assay_journal_read(assay_context *ctx, const assay_journal *journal, int64_t layer, bool backward,
                                assay_fixture_reader **reader)
{
    char path[ASSAY_JOURNAL_PATH];
    assay_status status;
    *reader = NULL;
    assay_journal_part(journal, layer, backward, path);
    TRY(assay_fixture_open(ctx, path, reader));
    TRY(assay_fixture_check_digests(ctx, *reader));
    TRY(check_signature(ctx, journal, layer, backward, *reader, path));
cleanup:
    if (status != ASSAY_OK) {
        assay_fixture_close(*reader);
        *reader = NULL;
    }
    return status;
}
