#define _GNU_SOURCE /* O_TMPFILE */
#include "oracle/base/whole_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "oracle/base/leftovers.h"

enum { PARTIAL_EXTRA = 32 }; /* what the partial name has more than the final one */

/* The folder is the part of *path before *name, which may be empty. */
static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

static assay_status check_target(assay_context *ctx, const char *path)
{
    struct stat found;
    if (*file_name(path) == '\0') return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: expected the name of a file", path);
    if (stat(path, &found) == 0 && !S_ISREG(found.st_mode)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s is %s; expected the name of a file", path,
                          S_ISDIR(found.st_mode) ? "a folder" : "no ordinary file");
    }
    return ASSAY_OK;
}

static int open_folder(const char *path, int flags)
{
    char folder[4096];
    size_t length = (size_t)(file_name(path) - path);
    if (length >= sizeof folder) return -1;
    memcpy(folder, path, length);
    strcpy(folder + length, ".");
    return open(folder, flags | O_CLOEXEC, 0666);
}

enum { LINK_SIZE = 32 };

static void link_to_descriptor(int descriptor, char link[LINK_SIZE])
{
    snprintf(link, LINK_SIZE, "/proc/self/fd/%d", descriptor);
}

/* A file without a name is gone when this process dies, whatever it dies of. -1 where the file system has none, or
 * where it could get no name later. */
static int open_nameless(const char *path)
{
    char link[LINK_SIZE];
    int descriptor = open_folder(path, O_TMPFILE | O_RDWR);
    if (descriptor < 0) return -1;
    link_to_descriptor(descriptor, link);
    if (access(link, F_OK) == 0) return descriptor;
    close(descriptor);
    return -1;
}

static const char PARTIAL[] = ".partial-"; /* and eight digits */

static bool is_partial(const char *name)
{
    enum { DIGITS = 8 };
    const size_t length = strlen(name), tail = strlen(PARTIAL) + DIGITS;
    if (name[0] != '.' || length <= tail) return false;
    name += length - tail;
    return strncmp(name, PARTIAL, strlen(PARTIAL)) == 0 && strspn(name + strlen(PARTIAL), "0123456789abcdef") == DIGITS;
}

/* Removes what dead processes left beside the target: files with a partial name that nobody has locked. */
static void sweep(const char *path)
{
    const int folder = open_folder(path, O_RDONLY | O_DIRECTORY);
    DIR *list = folder < 0 ? NULL : fdopendir(folder);
    if (list == NULL && folder >= 0) close(folder);
    for (struct dirent *entry = list == NULL ? NULL : readdir(list); entry != NULL; entry = readdir(list)) {
        struct stat found;
        if (!is_partial(entry->d_name) || fstatat(folder, entry->d_name, &found, AT_SYMLINK_NOFOLLOW) != 0) continue;
        if (!S_ISREG(found.st_mode) || found.st_uid != geteuid()) continue;
        const int left = openat(folder, entry->d_name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (left < 0) continue;
        if (assay_lock(left) == ASSAY_LOCK_HELD) unlinkat(folder, entry->d_name, 0);
        close(left);
    }
    if (list != NULL) closedir(list);
}

/* Between its creation and its lock another process may have swept it away. */
static bool hold_partial(const assay_whole_file *file)
{
    struct stat found;
    return assay_lock(file->descriptor) != ASSAY_LOCK_TAKEN && fstat(file->descriptor, &found) == 0 &&
           found.st_nlink > 0;
}

/* A new file of that name, locked. False: errno says why not. */
static bool open_partial(assay_whole_file *file)
{
    file->descriptor = open(file->partial, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file->descriptor < 0) return false;
    if (hold_partial(file)) return true;
    close(file->descriptor);
    file->descriptor = -1;
    errno = EEXIST;
    return false;
}

/* Gives the nameless file, or a new one, a name beside the target: .NAME.partial-XXXXXXXX. */
static assay_status name_partial(assay_context *ctx, assay_whole_file *file)
{
    enum { ATTEMPTS = 100, LONGEST_NAME = 200 };
    const char *name = file_name(file->path);
    int folder = (int)(name - file->path);
    char link[LINK_SIZE];
    const bool exists = file->descriptor >= 0;
    if (exists) link_to_descriptor(file->descriptor, link);
    if (exists) assay_lock(file->descriptor);
    sweep(file->path);
    errno = EEXIST;
    for (int i = 0; i < ATTEMPTS && !file->named && errno == EEXIST; i++) {
        uint32_t number = 0;
        if (getrandom(&number, sizeof number, 0) < 0) break;
        snprintf(file->partial, strlen(file->path) + PARTIAL_EXTRA, "%.*s.%.*s%s%08x", folder, file->path, LONGEST_NAME,
                 name, PARTIAL, number);
        const int place = assay_leftover_path(file->partial); /* before it is there: a signal may come at any time */
        if (exists) {
            file->named = linkat(AT_FDCWD, link, AT_FDCWD, file->partial, AT_SYMLINK_FOLLOW) == 0;
        } else {
            file->named = open_partial(file);
        }
        if (file->named) {
            file->place = place;
        } else {
            assay_leftover_done(place);
        }
    }
    if (file->named) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_IO, "%s: cannot be %s: %s", file->path, exists ? "put in place" : "written",
                      strerror(errno));
}

assay_status assay_whole_file_create(assay_context *ctx, const char *path, assay_whole_file *file)
{
    assay_status status;
    *file = (assay_whole_file){.descriptor = -1, .place = -1};
    TRY(check_target(ctx, path));
    file->path = strdup(path);
    file->partial = malloc(strlen(path) + PARTIAL_EXTRA);
    if (file->path == NULL || file->partial == NULL) {
        TRY(assay_fail(ctx, ASSAY_NO_MEMORY, "%s: no memory", path));
    }
    file->descriptor = open_nameless(path);
    if (file->descriptor < 0) TRY(name_partial(ctx, file));
cleanup:
    if (status != ASSAY_OK) assay_whole_file_abandon(file);
    return status;
}

static assay_status fail_to_write(assay_context *ctx, const assay_whole_file *file)
{
    return assay_fail(ctx, ASSAY_IO, "%s: cannot be written: %s", file->path, strerror(errno));
}

/* Best effort: some file systems refuse. */
static void sync_folder(const char *path)
{
    int descriptor = open_folder(path, O_RDONLY | O_DIRECTORY);
    if (descriptor < 0) return;
    fsync(descriptor);
    close(descriptor);
}

assay_status assay_whole_file_finish(assay_context *ctx, assay_whole_file *file)
{
    assay_status status = ASSAY_OK;
    int lock = -1;
    /* A quota, a full disk or a network may be heard of only now: what was there stays until all is on the disk. */
    if (fsync(file->descriptor) < 0) TRY(fail_to_write(ctx, file));
    if (!file->named) TRY(name_partial(ctx, file));
    lock = fcntl(file->descriptor, F_DUPFD_CLOEXEC, 0); /* nobody may sweep it away until it has its final name */
    const int closed = close(file->descriptor);
    file->descriptor = -1;
    if (closed < 0) TRY(fail_to_write(ctx, file));
    if (rename(file->partial, file->path) < 0) {
        TRY(assay_fail(ctx, ASSAY_IO, "%s: cannot be put in place: %s", file->path, strerror(errno)));
    }
    file->named = false;
    sync_folder(file->path);
cleanup:
    if (lock >= 0) close(lock);
    assay_whole_file_abandon(file);
    return status;
}

void assay_whole_file_abandon(assay_whole_file *file)
{
    if (file->named) unlink(file->partial);
    if (file->path != NULL) assay_leftover_done(file->place);
    if (file->path != NULL && file->descriptor >= 0) close(file->descriptor);
    free(file->partial);
    free(file->path);
    *file = (assay_whole_file){0};
}

static assay_status write_text(assay_context *ctx, const assay_whole_file *file, const char *text)
{
    for (size_t left = strlen(text); left > 0;) {
        const ssize_t done = write(file->descriptor, text, left);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return fail_to_write(ctx, file);
        text += done;
        left -= (size_t)done;
    }
    return ASSAY_OK;
}

assay_status assay_write_whole_file(assay_context *ctx, const char *path, const char *text)
{
    assay_whole_file file;
    MUST(assay_whole_file_create(ctx, path, &file));
    assay_status status = write_text(ctx, &file, text);
    if (status == ASSAY_OK) return assay_whole_file_finish(ctx, &file);
    assay_whole_file_abandon(&file);
    return status;
}
