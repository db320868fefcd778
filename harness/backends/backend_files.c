#include "harness/backends/backend_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fixtures/files.h"
#include "fixtures/leftovers.h"
#include "oracle/base/tensor.h"

/* In a temporary folder of ours, and from when on it is locked: what lies there without is none of ours. */
static const char MARK[] = ".assay-temporary";
static const char TEMPORARY[] = "assay-";
enum { LETTERS = 6 }; /* of mkdtemp */

static const char *temporary_parent(void)
{
    const char *parent = getenv("TMPDIR");
    return parent != NULL && parent[0] != '\0' ? parent : "/tmp";
}

/* Calls `remove_dead` for the folders of this user in `parent` whose name is `prefix` and mkdtemp's letters. */
static void sweep(const char *parent, const char *prefix, void (*remove_dead)(const char *path))
{
    DIR *list = opendir(parent);
    if (list == NULL) return;
    for (struct dirent *entry = readdir(list); entry != NULL; entry = readdir(list)) {
        const char *name = entry->d_name;
        struct stat found;
        char path[PATH_MAX];
        if (strncmp(name, prefix, strlen(prefix)) != 0 || strlen(name) != strlen(prefix) + LETTERS) continue;
        if (fstatat(dirfd(list), name, &found, AT_SYMLINK_NOFOLLOW) != 0) continue;
        if (!S_ISDIR(found.st_mode) || found.st_uid != geteuid()) continue;
        if (snprintf(path, sizeof path, "%s/%s", parent, name) < (int)sizeof path) remove_dead(path);
    }
    closedir(list);
}

static int open_folder(const char *path)
{
    return open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static void remove_dead_temporary(const char *path)
{
    const int folder = open_folder(path);
    if (folder < 0) return;
    if (faccessat(folder, MARK, F_OK, 0) == 0 && assay_lock(folder) == ASSAY_LOCK_HELD) assay_remove_tree(path);
    close(folder);
}

void assay_backend_folders_sweep(void)
{
    sweep(temporary_parent(), TEMPORARY, remove_dead_temporary);
}

static assay_status make_temporary(assay_context *ctx, assay_backend_folder *folder)
{
    snprintf(folder->path, sizeof folder->path, "%s/%sXXXXXX", temporary_parent(), TEMPORARY);
    if (mkdtemp(folder->path) == NULL) {
        const assay_status status = assay_fail(ctx, ASSAY_IO, "%s: %s", folder->path, strerror(errno));
        folder->path[0] = '\0';
        return status;
    }
    folder->temporary = true;
    folder->place = assay_leftover_path(folder->path);
    folder->lock = open_folder(folder->path);
    if (folder->lock >= 0 && assay_lock(folder->lock) == ASSAY_LOCK_HELD) {
        const int mark = openat(folder->lock, MARK, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (mark >= 0) close(mark);
    }
    return ASSAY_OK;
}

assay_status assay_backend_folder_make(assay_context *ctx, const char *keep, assay_backend_folder *folder)
{
    *folder = (assay_backend_folder){.lock = -1, .place = -1};
    if (keep == NULL) return make_temporary(ctx, folder);
    snprintf(folder->path, sizeof folder->path, "%s/", keep);
    const assay_status status = assay_make_parents(ctx, folder->path);
    if (status == ASSAY_OK) folder->lock = open(keep, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder->lock >= 0 && assay_lock(folder->lock) == ASSAY_LOCK_TAKEN) {
        close(folder->lock);
        *folder = (assay_backend_folder){.lock = -1};
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--keep %s: another run of assay uses this folder now", keep);
    }
    snprintf(folder->path, sizeof folder->path, "%s", keep);
    if (status == ASSAY_OK) sweep(keep, ASSAY_RUN_FOLDER, assay_remove_tree);
    return status;
}

void assay_backend_folder_end(assay_backend_folder *folder)
{
    if (folder->path[0] == '\0') return;
    if (folder->temporary) assay_remove_tree(folder->path);
    assay_leftover_done(folder->place);
    if (folder->lock >= 0) close(folder->lock);
    *folder = (assay_backend_folder){0};
}

void assay_backend_file(char *path, size_t size, const char *folder, const char *name, const char *what)
{
    char flat[2 * ASSAY_PATH_SIZE];
    snprintf(flat, sizeof flat, "%s", name);
    for (char *c = flat; *c != '\0'; c++) {
        if (*c == '/') *c = '-';
    }
    snprintf(path, size, "%s/%s.%s", folder, flat, what);
}

bool assay_backend_path_exists(const char *path)
{
    struct stat found;
    return lstat(path, &found) == 0;
}

assay_status assay_backend_clear_place(assay_context *ctx, const char *path)
{
    if (unlink(path) == 0 || errno == ENOENT) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_IO, "%s cannot be removed: %s", path, strerror(errno));
}

/* The end of a file, as text without white space behind it; "" where it cannot be read. Returns its length. */
static size_t read_end(const char *log, char *text, size_t size)
{
    /* it may be anything by now, a pipe too */
    const int descriptor = open(log, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    struct stat found;
    ssize_t length = -1;
    if (descriptor >= 0 && fstat(descriptor, &found) == 0 && S_ISREG(found.st_mode)) {
        const off_t most = (off_t)size - 1, start = found.st_size > most ? found.st_size - most : 0;
        length = pread(descriptor, text, size - 1, start);
    }
    if (descriptor >= 0) close(descriptor);
    if (length < 0) length = 0;
    while (length > 0 && strchr("\n \r\t", text[length - 1]) != NULL) length--;
    text[length] = '\0';
    for (ssize_t i = 0; i < length; i++) {
        if ((unsigned char)text[i] < ' ' && text[i] != '\n') text[i] = ' '; /* reports take no control characters */
    }
    return (size_t)length;
}

void assay_backend_last_lines(const char *log, int lines, char *text, size_t size)
{
    char *first = text + read_end(log, text, size);
    while (first > text && (first[-1] != '\n' || --lines > 0)) first--;
    memmove(text, first, strlen(first) + 1);
}

/* Behind the heading the calls are indented, then comes the exception; its message may have more lines. */
void assay_backend_exception(const char *log, char *text, size_t size)
{
    enum { MOST = 1 << 16 };
    static const char HEADING[] = "Traceback (most recent call last):";
    char *end = malloc(MOST), *heading = NULL;
    text[0] = '\0';
    if (end == NULL) return;
    read_end(log, end, MOST);
    for (char *at = strstr(end, HEADING); at != NULL; at = strstr(at + 1, HEADING)) heading = at;
    char *line = heading == NULL ? NULL : strchr(heading, '\n');
    while (line != NULL && strchr(" \n", line[1]) != NULL && line[1] != '\0') line = strchr(line + 1, '\n');
    if (line != NULL) snprintf(text, size, "%.*s", (int)strcspn(line + 1, "\n"), line + 1);
    free(end);
}
