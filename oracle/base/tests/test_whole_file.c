/* Files that appear whole or not at all, whatever fails. */
#define _GNU_SOURCE /* O_TMPFILE */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "oracle/base/leftovers.h"
#include "oracle/base/whole_file.h"
#include "tests/support/assay_test.h"

enum { PATH_SIZE = 512 };

/* What fails, and with what; the linker puts these before the C library's own. */
static bool nameless_files_refused;
static int fsync_error, close_error, write_error, interruptions;
int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, mode_t mode);
int __wrap_fsync(int descriptor);
int __real_fsync(int descriptor);
int __wrap_close(int descriptor);
int __real_close(int descriptor);
ssize_t __wrap_write(int descriptor, const void *bytes, size_t size);
ssize_t __real_write(int descriptor, const void *bytes, size_t size);

int __wrap_open(const char *path, int flags, mode_t mode)
{
    if (!nameless_files_refused || (flags & O_TMPFILE) != O_TMPFILE) return __real_open(path, flags, mode);
    errno = EOPNOTSUPP;
    return -1;
}

int __wrap_fsync(int descriptor)
{
    errno = fsync_error;
    return fsync_error != 0 ? -1 : __real_fsync(descriptor);
}

int __wrap_close(int descriptor)
{
    const int result = __real_close(descriptor);
    errno = close_error;
    return close_error != 0 ? -1 : result;
}

/* Three bytes at a time. */
ssize_t __wrap_write(int descriptor, const void *bytes, size_t size)
{
    if (interruptions > 0) {
        interruptions--;
        errno = EINTR;
        return -1;
    }
    errno = write_error;
    return write_error != 0 ? -1 : __real_write(descriptor, bytes, size < 3 ? size : 3);
}

static int setup(void **state)
{
    static char path[32];
    strcpy(path, "whole-file-XXXXXX");
    *state = mkdtemp(path);
    return *state == NULL ? -1 : 0;
}

static int teardown(void **state)
{
    char command[64];
    fsync_error = close_error = write_error = 0;
    snprintf(command, sizeof command, "rm -r '%s'", (const char *)*state);
    return system(command);
}

static int files_in(const char *path)
{
    int count = 0;
    DIR *folder = opendir(path);
    assert_non_null(folder);
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    }
    closedir(folder);
    return count;
}

static void expect_text(const char *path, const char *expected)
{
    char found[64] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    found[fread(found, 1, sizeof found - 1, file)] = '\0';
    fclose(file);
    assert_string_equal(found, expected);
}

TEST_WITH(text_replaces_text, setup, teardown)
{
    char path[PATH_SIZE], name[256];
    assay_context ctx = {.threads = 1};
    memset(name, 'n', 255); /* as long as a name may be */
    name[255] = '\0';
    snprintf(path, sizeof path, "%s/%s", (const char *)*state, name);
    assert_ok(&ctx, assay_write_whole_file(&ctx, path, "a longer text"));
    interruptions = 2;
    assert_ok(&ctx, assay_write_whole_file(&ctx, path, "short"));
    expect_text(path, "short");
    assert_ok(&ctx, assay_write_whole_file(&ctx, path, ""));
    expect_text(path, "");
    assert_int_equal(files_in(*state), 1);
}

TEST_WITH(permissions_follow_the_umask, setup, teardown)
{
    static const mode_t masks[] = {0022, 0077, 0002};
    char path[PATH_SIZE];
    assay_context ctx = {.threads = 1};
    struct stat found;
    snprintf(path, sizeof path, "%s/text", (const char *)*state);
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        const mode_t before = umask(masks[i]);
        const assay_status status = assay_write_whole_file(&ctx, path, "text");
        umask(before);
        assert_ok(&ctx, status);
        assert_int_equal(stat(path, &found), 0);
        assert_int_equal(found.st_mode & 0777, 0666 & ~masks[i]);
    }
}

/* What cannot be brought to the disk replaces nothing and leaves nothing. */
TEST_WITH(failures_keep_what_was_there, setup, teardown)
{
    static int *const calls[] = {&write_error, &fsync_error, &close_error};
    static const int errors[] = {EIO, ENOSPC, EDQUOT};
    char path[PATH_SIZE], said[PATH_SIZE + 128];
    assay_context ctx = {.threads = 1};
    snprintf(path, sizeof path, "%s/text", (const char *)*state);
    assert_ok(&ctx, assay_write_whole_file(&ctx, path, "old"));
    for (size_t i = 0; i < 3; i++) {
        for (size_t j = 0; j < 3; j++) {
            *calls[i] = errors[j];
            const assay_status status = assay_write_whole_file(&ctx, path, "new");
            *calls[i] = 0;
            assert_int_equal(status, ASSAY_IO);
            snprintf(said, sizeof said, "%s: cannot be written: %s", path, strerror(errors[j]));
            assert_string_equal(ctx.message, said);
            assert_int_equal(files_in(*state), 1);
            expect_text(path, "old");
        }
    }
}

TEST_WITH(other_targets_are_refused, setup, teardown)
{
    static const struct {
        const char *path; /* %s: the folder */
        assay_status status;
        const char *said;
    } rows[] = {{"/dev/null", ASSAY_BAD_INPUT, "/dev/null is no ordinary file; expected the name of a file"},
                {"%s", ASSAY_BAD_INPUT, " is a folder; expected the name of a file"},
                {"%s/", ASSAY_BAD_INPUT, "/: expected the name of a file"},
                {"", ASSAY_BAD_INPUT, ": expected the name of a file"},
                {"%s/missing/text", ASSAY_IO, "/missing/text: cannot be written: No such file or directory"},
                {"/proc/text", ASSAY_IO, "/proc/text: cannot be written"}};
    assay_context ctx = {.threads = 1};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char path[PATH_SIZE];
        const char *folder = strstr(rows[i].path, "%s");
        snprintf(path, sizeof path, "%s%s", folder != NULL ? (const char *)*state : "",
                 folder != NULL ? folder + 2 : rows[i].path);
        assert_int_equal(assay_write_whole_file(&ctx, path, "text"), rows[i].status);
        if (strstr(ctx.message, rows[i].said) == NULL) fail_msg("%s", ctx.message);
        assert_null(strchr(ctx.message, '\n'));
    }
    assert_int_equal(files_in(*state), 0);
    if (geteuid() != 0) { /* root may write anywhere */
        char path[PATH_SIZE];
        snprintf(path, sizeof path, "%s/text", (const char *)*state);
        assert_int_equal(chmod(*state, 0500), 0);
        assert_int_equal(assay_write_whole_file(&ctx, path, "text"), ASSAY_IO);
        assert_non_null(strstr(ctx.message, "Permission denied"));
        assert_int_equal(chmod(*state, 0700), 0);
    }
}

/* Nothing is replaced before the end; a name without a folder. */
TEST_WITH(what_was_there_stays_until_the_end, setup, teardown)
{
    char back[PATH_SIZE];
    assay_context ctx = {.threads = 1};
    assay_whole_file file;
    assert_non_null(getcwd(back, sizeof back));
    assert_int_equal(chdir(*state), 0);
    assert_ok(&ctx, assay_write_whole_file(&ctx, "text", "old"));
    assert_ok(&ctx, assay_whole_file_create(&ctx, "text", &file));
    assert_int_equal(files_in("."), nameless_files_refused ? 2 : 1);
    expect_text("text", "old");
    assert_ok(&ctx, assay_whole_file_finish(&ctx, &file));
    expect_text("text", "");
    assert_int_equal(files_in("."), 1);
    assert_int_equal(chdir(back), 0);
}

TEST_WITH(no_memory, setup, teardown)
{
    char path[PATH_SIZE];
    assay_context ctx = {.threads = 1};
    snprintf(path, sizeof path, "%s/text", (const char *)*state);
    for (int64_t n = 0;; n++) {
        assay_fail_allocation(n);
        const assay_status status = assay_write_whole_file(&ctx, path, "text");
        if (had_memory(&ctx, status)) break;
        assert_int_equal(files_in(*state), 0);
    }
    expect_text(path, "text");
}

int main(void)
{
    int failed = assay_run_tests("this file system", NULL, NULL);
    nameless_files_refused = true;
    return failed + assay_run_tests("without nameless files", NULL, NULL);
}

static void make_file(char *path, const char *folder, const char *name)
{
    snprintf(path, PATH_SIZE, "%s/%s", folder, name);
    const int file = __real_open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    assert_true(file >= 0);
    __real_close(file);
}

/* What a dead process left beside the target goes; what a living one has locked stays, and so does what is none of ours. */
TEST_WITH(leftovers_of_the_dead_go, setup, teardown)
{
    static const char *const others[] = {"partial-01234567", ".text.partial-0123456", ".text.partial-0123456g",
                                         ".text.partial-01234567.h5"};
    char path[PATH_SIZE], dead[PATH_SIZE], living[PATH_SIZE], other[4][PATH_SIZE];
    assay_context ctx = {.threads = 1};
    assay_whole_file file;
    for (int nameless = 0; nameless < 2; nameless++) {
        nameless_files_refused = nameless == 0;
        snprintf(path, sizeof path, "%s/text", (const char *)*state);
        make_file(dead, *state, ".other.h5.partial-0123abcd");
        for (int i = 0; i < 4; i++) make_file(other[i], *state, others[i]);
        make_file(living, *state, ".text.partial-89abcdef");
        const int lock = __real_open(living, O_RDONLY | O_CLOEXEC, 0);
        assert_int_equal(assay_lock(lock), ASSAY_LOCK_HELD);
        assert_ok(&ctx, assay_write_whole_file(&ctx, path, "text"));
        assert_int_equal(access(dead, F_OK), -1);
        assert_int_equal(access(living, F_OK), 0);
        for (int i = 0; i < 4; i++) assert_int_equal(access(other[i], F_OK), 0);
        assert_int_equal(files_in(*state), 6);
        __real_close(lock);
        /* one that is growing is not swept away by another */
        assert_ok(&ctx, assay_whole_file_create(&ctx, other[0], &file));
        assert_ok(&ctx, assay_write_whole_file(&ctx, path, "text"));
        assert_int_equal(access(living, F_OK), -1);
        assert_ok(&ctx, assay_whole_file_finish(&ctx, &file));
        assert_int_equal(files_in(*state), 5);
    }
    nameless_files_refused = false;
}

/* A signal handler removes a file that has only its partial name. */
TEST_WITH(signals_remove_what_grows, setup, teardown)
{
    char path[PATH_SIZE];
    assay_context ctx = {.threads = 1};
    assay_whole_file file;
    nameless_files_refused = true;
    snprintf(path, sizeof path, "%s/text", (const char *)*state);
    assert_ok(&ctx, assay_whole_file_create(&ctx, path, &file));
    nameless_files_refused = false;
    assert_int_equal(files_in(*state), 1);
    assay_leftovers_remove();
    assert_int_equal(files_in(*state), 0);
    assay_whole_file_abandon(&file);
}

TEST_WITH(trees_are_removed, setup, teardown)
{
    char command[2 * PATH_SIZE], folder[PATH_SIZE];
    snprintf(folder, sizeof folder, "%s/tree", (const char *)*state);
    snprintf(command, sizeof command,
             "mkdir %s && cd %.64s && mkdir -p a/b/c shut/in && touch a/b/c/file shut/in/file && ln -s /etc a/link && "
             "chmod 0 shut",
             folder, folder);
    assert_int_equal(system(command), 0);
    const int lines[] = {assay_leftover_path(folder), assay_leftover_path(folder)};
    assay_leftover_done(lines[0]);
    assay_leftovers_remove();
    assay_leftover_done(lines[1]);
    assert_int_equal(files_in(*state), 0);
    assert_int_equal(access("/etc/passwd", F_OK), 0);
}
