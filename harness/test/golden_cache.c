#define _GNU_SOURCE /* AT_ flags, syscall */
#include "harness/test/golden_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "compare/profile_yaml.h"
#include "fixtures/digest.h"
#include "fixtures/files.h"
#include "fixtures/leftovers.h"
#include "harness/backends/backend_files.h"
#include "harness/golden/golden.h"
#include "harness/version/version.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"

#define SUFFIX ".golden.h5"
#define USUAL_BYTES ((int64_t)2 << 30)

enum { DIGITS = ASSAY_DIGEST_SIZE - 1 };

static assay_status join(assay_context *ctx, const char *folder, const char *name, char **path)
{
    if (asprintf(path, "%s/%s", folder, name) >= 0) return ASSAY_OK;
    *path = NULL;
    return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the path of a golden");
}

assay_status assay_cache_folder(assay_context *ctx, const char *wanted, char **folder)
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    *folder = NULL;
    if (wanted == NULL) wanted = getenv("ASSAY_CACHE");
    if (wanted != NULL) {
        if (wanted[0] == '\0') return ASSAY_OK;
        *folder = strdup(wanted);
        return *folder != NULL ? ASSAY_OK : assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the path of a folder");
    }
    if (base != NULL && base[0] == '/') return join(ctx, base, "assay", folder); /* others are to be ignored */
    if (home != NULL && home[0] == '/') return join(ctx, home, ".cache/assay", folder);
    return ASSAY_OK;
}

assay_status assay_cache_bytes(assay_context *ctx, int64_t wanted, int64_t *bytes)
{
    const char *text = getenv("ASSAY_CACHE_BYTES");
    char *end = NULL;
    *bytes = wanted > 0 ? wanted : USUAL_BYTES;
    if (wanted != 0 || text == NULL || text[0] == '\0') return ASSAY_OK;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (errno != 0 || *end != '\0' || value <= 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "ASSAY_CACHE_BYTES is \"%.64s\", expected a whole number above 0",
                          text);
    }
    *bytes = value;
    return ASSAY_OK;
}

/* The user's own inputs, as the bytes of their file. */
static assay_status add_file(assay_context *ctx, assay_sha256 *hash, const char *path)
{
    enum { PIECE = 1 << 16 };
    assay_status status;
    void *piece = NULL;
    FILE *file = fopen(path, "rb");
    if (file == NULL) return assay_fail(ctx, ASSAY_IO, "%s: %s", path, strerror(errno));
    TRY(assay_alloc(ctx, path, PIECE, 1, &piece));
    for (size_t count; (count = fread(piece, 1, PIECE, file)) > 0;) assay_sha256_add(hash, count, piece);
    if (ferror(file)) status = assay_fail(ctx, ASSAY_IO, "%s: cannot be read", path);
cleanup:
    free(piece);
    fclose(file);
    return status;
}

/* Those of a checkpoint that the case reads: the files may be a hundred times larger. */
static assay_status add_weights(assay_context *ctx, assay_sha256 *hash, const assay_inputs *inputs)
{
    enum { PIECE = 1 << 14 };
    OWNED double *piece = NULL;
    MUST(assay_alloc_f64(ctx, "weights", PIECE, &piece));
    for (int i = 0; i < inputs->list->count; i++) {
        const assay_tensor_spec *spec = &inputs->list->entries[i].spec;
        const int64_t count = assay_shape_count(&spec->shape);
        if (!assay_model_weights_has(inputs->weights, spec->path)) continue;
        assay_sha256_add(hash, strlen(spec->path) + 1, spec->path);
        for (int64_t first = 0; first < count; first += PIECE) {
            const int64_t some = count - first < PIECE ? count - first : PIECE;
            MUST(assay_model_weights_read(ctx, inputs->weights, spec->path, first, some, piece));
            assay_sha256_add(hash, (size_t)some * sizeof *piece, piece);
        }
    }
    return ASSAY_OK;
}

/* What a golden follows from. Another program may make other goldens: its code is a part of it. "" where that is not
 * known. */
static assay_status find_key(assay_context *ctx, const assay_inputs *inputs, const assay_profile *profile,
                             const char *yaml, char key[ASSAY_DIGEST_SIZE])
{
    assay_status status = ASSAY_OK;
    assay_sha256 *hash = NULL;
    char build[65], profile_yaml[ASSAY_PROFILE_YAML_SIZE];
    assay_build_id(build);
    key[0] = '\0';
    if (build[0] == '\0') return ASSAY_OK;
    assay_profile_to_yaml(profile, profile_yaml);
    const char *const parts[] = {"assay golden", ASSAY_VERSION, build, ctx->arithmetic->name, profile_yaml, yaml};
    TRY(assay_sha256_start(ctx, &hash));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) assay_sha256_add(hash, strlen(parts[i]) + 1, parts[i]);
    if (inputs->file != NULL) TRY(add_file(ctx, hash, inputs->file_name));
    if (inputs->weights != NULL) TRY(add_weights(ctx, hash, inputs));
    assay_sha256 *whole = hash;
    hash = NULL;
    TRY(assay_sha256_finish(ctx, whole, key));
cleanup:
    assay_sha256_free(hash);
    return status;
}

/* Refuses another case's golden under this one's name, and of course a file that is damaged. */
static assay_status open_checked(assay_context *ctx, const char *path, const char *yaml, assay_golden *golden)
{
    assay_status status;
    TRY(assay_golden_open(ctx, path, golden));
    if (strcmp(assay_fixture_text(golden->reader, "case_yaml"), yaml) != 0) {
        status = assay_fail(ctx, ASSAY_BAD_INPUT, "%s holds another case", path);
    }
cleanup:
    if (status != ASSAY_OK) assay_golden_close(golden);
    return status;
}

/* Whoever makes a golden opens it under a name of his own before it has its key's: KEY.golden.h5.THREAD.h5. */
#define OWN_SUFFIX ".%08x.h5"
enum { OWN_EXTRA = 12 };

/* Ours; but what a living thread has not opened yet is that thread's. */
static bool is_ours(const char *name)
{
    const char *rest = name + DIGITS + strlen(SUFFIX);
    unsigned thread = 0;
    int length = 0;
    if (strspn(name, "0123456789abcdef") != DIGITS || strncmp(name + DIGITS, SUFFIX, strlen(SUFFIX)) != 0) return false;
    if (rest[0] == '\0') return true;
    const bool own =
        sscanf(rest, OWN_SUFFIX "%n", &thread, &length) == 1 && length == OWN_EXTRA && rest[length] == '\0';
    return own && kill((pid_t)thread, 0) != 0 && errno == ESRCH;
}

typedef struct kept_file {
    char name[NAME_MAX + 1];
    int64_t bytes;
    struct timespec used;
} kept_file;

static int by_use(const void *a, const void *b)
{
    const kept_file *x = a, *y = b;
    if (x->used.tv_sec != y->used.tv_sec) return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
    return (x->used.tv_nsec > y->used.tv_nsec) - (x->used.tv_nsec < y->used.tv_nsec);
}

/* What cannot be listed or removed stays: the next one tries again. */
static void remove_oldest(const char *folder, int64_t most)
{
    kept_file *files = NULL;
    int count = 0, room = 0;
    int64_t total = 0;
    DIR *list = opendir(folder);
    if (list == NULL) return;
    for (struct dirent *entry = readdir(list); entry != NULL; entry = readdir(list)) {
        struct stat about;
        if (!is_ours(entry->d_name) || fstatat(dirfd(list), entry->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0) continue;
        if (count == room) {
            room = room == 0 ? 64 : 2 * room;
            kept_file *more = realloc(files, (size_t)room * sizeof *files);
            if (more == NULL) goto cleanup;
            files = more;
        }
        snprintf(files[count].name, sizeof files[count].name, "%s", entry->d_name);
        files[count].bytes = about.st_size;
        files[count].used = about.st_mtim;
        total += files[count++].bytes;
    }
    if (total > most) qsort(files, (size_t)count, sizeof *files, by_use);
    for (int i = 0; i < count && total > most; i++) {
        if (unlinkat(dirfd(list), files[i].name, 0) == 0 || errno == ENOENT) total -= files[i].bytes;
    }
cleanup:
    free(files);
    closedir(list);
}

/* Without a cache: a file that has no name any more when this returns. */
static assay_status evaluate_aside(assay_context *ctx, const assay_plan *plan, const assay_source *source,
                                   const char *yaml, assay_golden *golden)
{
    OWNED_BY(assay_backend_folder_end) assay_backend_folder folder = {0};
    char path[2304];
    MUST(assay_backend_folder_make(ctx, NULL, &folder));
    assay_backend_file(path, sizeof path, folder.path, "golden", "h5");
    MUST(assay_golden_write_from(ctx, plan, path, source, true));
    return open_checked(ctx, path, yaml, golden);
}

static bool can_be_written(assay_context *ctx, const char *folder, const char *path)
{
    const bool made = assay_make_parents(ctx, path) == ASSAY_OK;
    return made && access(folder, W_OK | X_OK) == 0;
}

/* Evaluated, opened, and then put where others find it: they may remove it as soon as it is there. */
static assay_status evaluate_into(assay_context *ctx, const assay_plan *plan, const assay_source *source,
                                  const char *folder, const char *path, const char *yaml, assay_golden *golden)
{
    assay_status status;
    char *own = NULL;
    if (!can_be_written(ctx, folder, path)) return ASSAY_IO;
    if (asprintf(&own, "%s" OWN_SUFFIX, path, (unsigned)syscall(SYS_gettid)) < 0)
        return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the path of a golden");
    const int place = assay_leftover_path(own);
    TRY(assay_golden_write_from(ctx, plan, own, source, true));
    status = open_checked(ctx, own, yaml, golden);
    if (status == ASSAY_OK && rename(own, path) == 0) goto cleanup;
    unlink(own);
    if (status != ASSAY_OK && status != ASSAY_NO_MEMORY) status = ASSAY_IO; /* others have removed or changed it */
cleanup:
    assay_leftover_done(place);
    free(own);
    return status;
}

assay_status assay_cache_golden(assay_context *ctx, const assay_plan *plan, assay_inputs *inputs,
                                const assay_profile *profile, const char *folder, int64_t bytes, assay_golden *golden)
{
    assay_status status;
    const assay_source source = assay_inputs_source(inputs);
    char *yaml = NULL, *path = NULL, key[ASSAY_DIGEST_SIZE] = "", name[ASSAY_DIGEST_SIZE + sizeof SUFFIX];
    TRY(assay_case_yaml(ctx, plan->c, &yaml));
    if (folder != NULL) TRY(find_key(ctx, inputs, profile, yaml, key));
    if (key[0] == '\0') {
        TRY(evaluate_aside(ctx, plan, &source, yaml, golden));
        goto cleanup;
    }
    snprintf(name, sizeof name, "%s%s", key, SUFFIX);
    TRY(join(ctx, folder, name, &path));
    status = open_checked(ctx, path, yaml, golden);
    if (status == ASSAY_OK) {
        utimensat(AT_FDCWD, path, NULL, 0); /* used just now */
        goto cleanup;
    }
    if (status == ASSAY_NO_MEMORY) goto cleanup;
    status = evaluate_into(ctx, plan, &source, folder, path, yaml, golden);
    if (status == ASSAY_OK) {
        remove_oldest(folder, bytes);
    } else if (status == ASSAY_IO) { /* a full disk, or a folder that others have removed */
        status = evaluate_aside(ctx, plan, &source, yaml, golden);
    }
    ctx->message[0] = status == ASSAY_OK ? '\0' : ctx->message[0];
cleanup:
    free(yaml);
    free(path);
    return status;
}
