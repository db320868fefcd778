/* Functions that glibc has since 2.28, for the wheel alone (python/wheel_backend.py): system calls, and a table. On newer systems glibc's are found first. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int fstatat(int folder, const char *restrict path, struct stat *restrict found, int flags)
{
    return (int)syscall(SYS_newfstatat, folder, path, found, flags);
}

int stat(const char *restrict path, struct stat *restrict found)
{
    return fstatat(AT_FDCWD, path, found, 0);
}

int lstat(const char *restrict path, struct stat *restrict found)
{
    return fstatat(AT_FDCWD, path, found, AT_SYMLINK_NOFOLLOW);
}

int fstat(int file, struct stat *found)
{
    return (int)syscall(SYS_fstat, file, found);
}

int close_range(unsigned first, unsigned last, int flags)
{
    const int done = (int)syscall(SYS_close_range, first, last, flags);
    if (done == 0 || errno != ENOSYS) return done;
    const unsigned most = (unsigned)sysconf(_SC_OPEN_MAX); /* Linux before 5.9 */
    for (unsigned i = first; i <= last && i < most; i++) close((int)i);
    return 0;
}

const char *sigabbrev_np(int number)
{
    static const char *const names[] = {
        [SIGABRT] = "ABRT", [SIGBUS] = "BUS", [SIGFPE] = "FPE", [SIGILL] = "ILL", [SIGSEGV] = "SEGV"};
    return number > 0 && number < (int)(sizeof names / sizeof *names) ? names[number] : NULL;
}
