#define _GNU_SOURCE /* getdents64 */
#include "oracle/base/leftovers.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PLACES = 32, LONGEST = 4096, DEEPEST = 200, PATIENCE = 2000 /* ms */ };

/* Free, being filled in, or the process that noted it. */
enum { FREE = 0, FILLING = -1 };

typedef struct leftover {
    atomic_int owner;
    int line; /* -1: it is a path */
    char path[LONGEST];
} leftover;

/* A signal handler is given nothing. */
static leftover leftovers[PLACES];

static int note(const char *path, int line)
{
    for (int i = 0; strlen(path) < LONGEST && i < PLACES; i++) {
        int owner = FREE;
        if (!atomic_compare_exchange_strong(&leftovers[i].owner, &owner, FILLING)) continue;
        strcpy(leftovers[i].path, path);
        leftovers[i].line = line;
        atomic_store(&leftovers[i].owner, getpid());
        return i;
    }
    return -1;
}

int assay_leftover_path(const char *path)
{
    return note(path, -1);
}

int assay_leftover_line(int descriptor)
{
    return note("", descriptor);
}

void assay_leftover_done(int place)
{
    if (place >= 0) atomic_store(&leftovers[place].owner, FREE);
}

/* opendir would ask for memory, which a signal handler must not. A backend may have taken a folder's permissions. */
static void remove_below(int parent, const char *name, int depth)
{
    _Alignas(struct dirent64) char entries[2048];
    const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    int folder = openat(parent, name, flags);
    if (folder < 0 && errno == EACCES && fchmodat(parent, name, S_IRWXU, 0) == 0) folder = openat(parent, name, flags);
    if (folder < 0) return;
    fchmod(folder, S_IRWXU);
    ssize_t length = 0;
    while ((length = getdents64(folder, entries, sizeof entries)) > 0) {
        const struct dirent64 *entry = NULL;
        for (ssize_t at = 0; at < length; at += entry->d_reclen) {
            entry = (const struct dirent64 *)(entries + at);
            if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
            if (unlinkat(folder, entry->d_name, 0) == 0 || depth == DEEPEST) continue;
            remove_below(folder, entry->d_name, depth + 1);
            unlinkat(folder, entry->d_name, AT_REMOVEDIR);
        }
    }
    close(folder);
}

void assay_remove_tree(const char *path)
{
    if (unlink(path) == 0) return;
    remove_below(AT_FDCWD, path, 0);
    rmdir(path);
}

/* What noted the line has ended all that it started when nothing comes any more. */
static void see_end(const leftover *l)
{
    char bytes[64];
    struct pollfd end = {.fd = l->line, .events = POLLIN};
    while (poll(&end, 1, PATIENCE) > 0 && read(l->line, bytes, sizeof bytes) > 0) continue;
}

static void for_own(bool lines, void (*what)(const leftover *))
{
    for (int i = 0; i < PLACES; i++) {
        const leftover *l = &leftovers[i];
        if (atomic_load(&l->owner) == getpid() && (l->line >= 0) == lines) what(l);
    }
}

static void shut(const leftover *l)
{
    shutdown(l->line, SHUT_WR);
}

static void remove_path(const leftover *l)
{
    assay_remove_tree(l->path);
}

void assay_leftovers_remove(void)
{
    for_own(true, shut);
    for_own(false, remove_path); /* at once: mpirun gives 2 ms between SIGTERM and SIGKILL */
    for_own(true, see_end);
    for_own(false, remove_path); /* what was written meanwhile */
}

assay_lock_state assay_lock(int descriptor)
{
    if (flock(descriptor, LOCK_EX | LOCK_NB) == 0) return ASSAY_LOCK_HELD;
    return errno == EWOULDBLOCK ? ASSAY_LOCK_TAKEN : ASSAY_LOCK_UNKNOWN;
}
