/* To be loaded before the C library (LD_PRELOAD): FAIL_CALL=NAME fails when it is called for the FAIL_AT-th time in a process, with the
 * error number FAIL_ERRNO; with FAIL_ON set, every time from then on. Of a process alone, and of copies of it. With
 * NO_NAMELESS_FILES set the file system has no O_TMPFILE. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

static char failing[32];
static int first, error_number, calls;
static bool goes_on, no_nameless_files;

/* What the process starts, a backend above all, is spared. */
__attribute__((constructor)) static void begin(void)
{
    const char *call = getenv("FAIL_CALL"), *at = getenv("FAIL_AT"), *number = getenv("FAIL_ERRNO");
    unsetenv("LD_PRELOAD");
    no_nameless_files = getenv("NO_NAMELESS_FILES") != NULL;
    if (call == NULL || at == NULL || number == NULL) return;
    strncpy(failing, call, sizeof failing - 1);
    first = atoi(at);
    error_number = atoi(number);
    goes_on = getenv("FAIL_ON") != NULL;
}

static bool fails(const char *name)
{
    if (strcmp(failing, name) != 0) return false;
    calls++;
    if (calls != first && (calls < first || !goes_on)) return false;
    errno = error_number;
    return true;
}

/* The C library's own. */
static void *own(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

int fsync(int descriptor)
{
    int (*call)(int) = (int (*)(int))own("fsync");
    return fails("fsync") ? -1 : call(descriptor);
}

int rename(const char *from, const char *to)
{
    int (*call)(const char *, const char *) = (int (*)(const char *, const char *))own("rename");
    return fails("rename") ? -1 : call(from, to);
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags)
{
    int (*call)(int, const char *, int, const char *, int) =
        (int (*)(int, const char *, int, const char *, int))own("linkat");
    return fails("linkat") ? -1 : call(from_folder, from, to_folder, to, flags);
}

ssize_t pwrite(int descriptor, const void *bytes, size_t size, off_t at)
{
    ssize_t (*call)(int, const void *, size_t, off_t) = (ssize_t(*)(int, const void *, size_t, off_t))own("pwrite");
    return fails("pwrite") ? -1 : call(descriptor, bytes, size, at);
}

ssize_t pread(int descriptor, void *bytes, size_t size, off_t at)
{
    ssize_t (*call)(int, void *, size_t, off_t) = (ssize_t(*)(int, void *, size_t, off_t))own("pread");
    return fails("pread") ? -1 : call(descriptor, bytes, size, at);
}

int ftruncate(int descriptor, off_t size)
{
    int (*call)(int, off_t) = (int (*)(int, off_t))own("ftruncate");
    return fails("ftruncate") ? -1 : call(descriptor, size);
}

pid_t fork(void)
{
    pid_t (*call)(void) = (pid_t(*)(void))own("fork");
    return fails("fork") ? -1 : call();
}

int pipe2(int ends[2], int flags)
{
    int (*call)(int *, int) = (int (*)(int *, int))own("pipe2");
    return fails("pipe2") ? -1 : call(ends, flags);
}

int socketpair(int domain, int type, int protocol, int ends[2])
{
    int (*call)(int, int, int, int *) = (int (*)(int, int, int, int *))own("socketpair");
    return fails("socketpair") ? -1 : call(domain, type, protocol, ends);
}

char *mkdtemp(char *path)
{
    char *(*call)(char *) = (char *(*)(char *))own("mkdtemp");
    return fails("mkdtemp") ? NULL : call(path);
}

int open(const char *path, int flags, ...)
{
    int (*call)(const char *, int, ...) = (int (*)(const char *, int, ...))own("open");
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    if (!no_nameless_files || (flags & O_TMPFILE) != O_TMPFILE) return call(path, flags, mode);
    errno = EOPNOTSUPP;
    return -1;
}
