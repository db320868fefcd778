#include "harness/backends/examine_file.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fixtures/fixture.h"
#include "harness/backends/process.h"
#include "oracle/base/memory.h"

#define LEAST_MEMORY ((int64_t)1 << 30)
#define LEAST_SECONDS 60.0
#define BYTES_PER_SECOND 1e6

/* What the copy of this process is told, and tells: both have it in one memory. */
typedef struct examination {
    const char *const *paths;
    int count;
    int at;         /* the path that it has come to */
    bool elements;  /* whether these are tried too */
    int64_t memory; /* that the copy may take beyond what this process has */
    assay_status status;
    char message[ASSAY_MESSAGE_SIZE];
} examination;

static void limit_memory(int64_t memory)
{
    long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL) return;
    if (fscanf(file, "%lld", &pages) == 1) {
        const rlim_t most = (rlim_t)(pages * sysconf(_SC_PAGESIZE) + memory);
        setrlimit(RLIMIT_AS, &(struct rlimit){.rlim_cur = most, .rlim_max = most});
    }
    fclose(file);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0});
}

static assay_status try_all(assay_context *ctx, const char *path, bool elements)
{
    OWNED_BY(assay_fixture_release) assay_fixture_reader *reader = NULL;
    MUST(assay_fixture_open(ctx, path, &reader));
    for (int i = 0; elements && i < assay_fixture_count(reader); i++) {
        const assay_status status = assay_fixture_try_elements(ctx, reader, assay_fixture_spec(reader, i)->path);
        if (status == ASSAY_NO_MEMORY) return status;
    }
    return ASSAY_OK; /* a dataset that cannot be read is that dataset's finding */
}

static int examine(void *data)
{
    examination *e = data;
    assay_context ctx = {.threads = 1};
    limit_memory(e->memory);
    for (e->at = 0; e->at < e->count; e->at++) {
        struct stat found;
        const char *path = e->paths[e->at];
        if (!e->elements && (!assay_fixture_is_file_name(path) || stat(path, &found) != 0 || !S_ISREG(found.st_mode)))
            continue;
        e->status = try_all(&ctx, path, e->elements);
        if (e->status != ASSAY_OK) break;
    }
    snprintf(e->message, sizeof e->message, "%s", ctx.message);
    return 0;
}

/* Of a copy that lived, what it found; of another, how it ended. */
static assay_status conclude(assay_context *ctx, const examination *e, const assay_process_result *result,
                             double seconds)
{
    const char *path = e->paths[e->at < e->count ? e->at : e->count - 1];
    if (result->end == ASSAY_PROCESS_TIMED_OUT) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%.500s: reading it takes more than %.0f s", path, seconds);
    }
    if (result->end == ASSAY_PROCESS_KILLED) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%.500s ended its reader by signal %d (%s)", path, result->code,
                          strsignal(result->code));
    }
    if (result->code != 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%.500s ended its reader with exit status %d", path, result->code);
    }
    if (e->status == ASSAY_NO_MEMORY) {
        return assay_fail(ctx, ASSAY_NO_MEMORY, "%.500s: reading it takes more than %lld MB of memory", path,
                          (long long)(e->memory >> 20));
    }
    return e->status == ASSAY_OK ? ASSAY_OK : assay_fail(ctx, e->status, "%s", e->message);
}

static assay_status look_at(assay_context *ctx, int count, const char *const *paths, bool elements)
{
    assay_process_result result;
    int64_t size = 0;
    for (int i = 0; i < count; i++) {
        struct stat found;
        if (stat(paths[i], &found) == 0 && S_ISREG(found.st_mode) && found.st_size < INT64_MAX / 8 - size)
            size += found.st_size;
    }
    const int64_t allowed = LEAST_MEMORY + 3 * size, left = assay_memory_available();
    const double seconds = LEAST_SECONDS + (double)size / BYTES_PER_SECOND;
    examination *e = mmap(NULL, sizeof *e, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (e == MAP_FAILED) return assay_fail(ctx, ASSAY_NO_MEMORY, "%.500s: no memory", paths[0]);
    *e = (examination){.paths = paths, .count = count, .elements = elements, .memory = allowed < left ? allowed : left};
    assay_status status = assay_process_call(ctx, examine, e, seconds, &result);
    if (status == ASSAY_OK) {
        status = conclude(ctx, e, &result, seconds);
        if (status == ASSAY_NO_MEMORY && allowed <= left) status = ASSAY_BAD_INPUT; /* the file's fault, not ours */
    }
    munmap(e, sizeof *e);
    return status;
}

assay_status assay_examine_file(assay_context *ctx, const char *path)
{
    return look_at(ctx, 1, &path, true);
}

assay_status assay_examine_structure(assay_context *ctx, int count, const char *const *paths)
{
    for (int i = 0; i < count; i++) {
        if (assay_fixture_is_file_name(paths[i])) return look_at(ctx, count, paths, false);
    }
    return ASSAY_OK;
}
