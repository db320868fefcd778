/* <assay/test.h>: goldens are kept, never trusted blindly, and shared by processes. */
#include <dirent.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harness/tests/in_process_kernel.h"

TEST_LABELS(slow);

/* The one golden of the folder; its place and number on the disk. */
static void find_golden(const char *folder, char path[TEST_PATH_SIZE + 64], struct stat *about)
{
    DIR *list = opendir(folder);
    int found = 0;
    assert_non_null(list);
    for (struct dirent *entry = readdir(list); entry != NULL; entry = readdir(list)) {
        if (strstr(entry->d_name, ".golden.h5") == NULL) continue;
        snprintf(path, TEST_PATH_SIZE + 64, "%s/%s", folder, entry->d_name);
        found++;
    }
    closedir(list);
    assert_int_equal(found, 1);
    assert_int_equal(stat(path, about), 0);
}

TEST_IN_FOLDER(test_golden_is_found_again)
{
    const assay_test_options options = {.cache = folder->path, .threads = 1},
                             other = {.cache = folder->path, .precision = "f32"};
    struct stat first, second;
    char path[TEST_PATH_SIZE + 64];
    assert_string_equal(verdict_with("moe/small", &options), "PASS");
    find_golden(folder->path, path, &first);
    assert_string_equal(verdict_with("moe/small", &options), "PASS");
    find_golden(folder->path, path, &second);
    assert_int_equal(first.st_ino, second.st_ino);
    assert_true(first.st_size == second.st_size);
    assert_string_equal(verdict_with("moe/small", &other), "FAIL"); /* bfloat16 is too coarse for it */
    assert_int_equal(folder_count(folder->path, false), 2);
}

/* A damaged golden is not trusted, one that is cut short neither, nor another case's under this one's name. */
TEST_IN_FOLDER(test_damaged_golden_is_evaluated_again)
{
    const assay_test_options options = {.cache = folder->path};
    char path[TEST_PATH_SIZE + 64], other_path[TEST_PATH_SIZE + 64];
    struct stat about;
    size_t size, other_size;
    assert_string_equal(verdict_with("rms_norm/one-row", &options), "PASS");
    find_golden(folder->path, other_path, &about);
    OWNED unsigned char *other = bytes_of(other_path, &other_size);
    remove(other_path);
    assert_string_equal(verdict_with("moe/small", &options), "PASS");
    find_golden(folder->path, path, &about);
    OWNED unsigned char *whole = bytes_of(path, &size);
    for (int form = 0; form < 4; form++) {
        FILE *file = fopen(path, "wb");
        assert_non_null(file);
        whole[size / 2] ^= (unsigned char)(form == 0);
        if (form == 2) {
            assert_int_equal(fwrite(other, 1, other_size, file), other_size);
        } else {
            const size_t kept = form == 1 ? size / 3 : form == 3 ? 0 : size;
            assert_int_equal(fwrite(whole, 1, kept, file), kept);
        }
        fclose(file);
        whole[size / 2] ^= (unsigned char)(form == 0);
        assert_string_equal(verdict_with("moe/small", &options), "PASS");
        size_t repaired_size;
        OWNED unsigned char *repaired = bytes_of(path, &repaired_size);
        assert_int_equal(repaired_size, size);
        assert_memory_equal(repaired, whole, size);
    }
}

TEST_IN_FOLDER(test_cache_is_bounded)
{
    static const char *const sets[] = {"seed=1", "seed=2", "seed=3"};
    assay_test_options options = {.cache = folder->path, .set_count = 1};
    char path[TEST_PATH_SIZE + 64], foreign[TEST_PATH_SIZE];
    struct stat about, newest;
    snprintf(foreign, sizeof foreign, "%s/notes.golden.h5", folder->path);
    options.sets = &sets[0];
    assert_string_equal(verdict_with("rms_norm/one-row", &options), "PASS");
    find_golden(folder->path, path, &about);
    FILE *file = fopen(foreign, "wb");
    assert_non_null(file);
    for (int64_t i = 0; i < 4 * about.st_size; i++) fputc('x', file);
    fclose(file);
    options.cache_bytes = about.st_size * 5 / 2;
    options.sets = &sets[1];
    assert_string_equal(verdict_with("rms_norm/one-row", &options), "PASS");
    assert_int_equal(folder_count(folder->path, false), 3);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL); /* files' times come in ticks */
    options.sets = &sets[0];                                  /* used again, so that the second goes */
    assert_string_equal(verdict_with("rms_norm/one-row", &options), "PASS");
    options.sets = &sets[2];
    assert_string_equal(verdict_with("rms_norm/one-row", &options), "PASS");
    assert_int_equal(folder_count(folder->path, false), 3);
    assert_int_equal(stat(path, &newest), 0);
    assert_int_equal(stat(foreign, &newest), 0); /* no file of ours, and stays */
    char left[2 * TEST_PATH_SIZE + 64];          /* by a process that was killed */
    snprintf(left, sizeof left, "%s/.%s.partial-00000001", folder->path, strrchr(path, '/') + 1);
    assert_int_equal(rename(path, left), 0);
    options.cache_bytes = 1;
    options.sets = &sets[1];
    assert_string_equal(verdict_with("rms_norm/one-row", &options), "PASS"); /* it is open, and gone */
    assert_int_equal(folder_count(folder->path, false), 1);
    assert_int_equal(access(left, F_OK), -1);
}

/* Without a folder that can be written, all works; it is evaluated each time. */
TEST_IN_FOLDER(test_no_cache)
{
    char below[TEST_PATH_SIZE + 16];
    FILE *file = fopen(folder->file, "wb");
    assert_non_null(file);
    fclose(file);
    snprintf(below, sizeof below, "%s/sub", folder->file);
    assert_string_equal(verdict_with("rms_norm/one-row", &(assay_test_options){.cache = below}), "PASS");
    assert_string_equal(verdict_with("rms_norm/one-row", &(assay_test_options){.cache = ""}), "PASS");
    assert_int_equal(folder_count(folder->path, false), 1);
}

TEST_IN_FOLDER(test_cache_of_the_environment)
{
    char named[72], *absolute = realpath(folder->path, NULL);
    assert_non_null(absolute);
    assert_int_equal(setenv("XDG_CACHE_HOME", absolute, 1), 0);
    unsetenv("ASSAY_CACHE");
    assert_string_equal(verdict_with("rms_norm/one-row", NULL), "PASS");
    snprintf(named, sizeof named, "%s/assay", folder->path);
    assert_int_equal(folder_count(named, true), 1);
    assert_int_equal(setenv("ASSAY_CACHE", "", 1), 0);
    assert_string_equal(verdict_with("rms_norm/one-row", NULL), "PASS");
    assert_int_equal(folder_count(named, true), 0);
    assert_int_equal(setenv("ASSAY_CACHE_BYTES", "12 MB", 1), 0);
    assay_test *test = NULL;
    assert_refused(assay_test_open("moe/small", NULL, &test, said),
                   "ASSAY_CACHE_BYTES is \"12 MB\", expected a whole number above 0");
    unsetenv("ASSAY_CACHE_BYTES");
    unsetenv("ASSAY_CACHE");
    unsetenv("XDG_CACHE_HOME");
    remove(named);
    free(absolute);
}

/* Several processes that want the same golden, and no room for what they make. */
enum { PROCESSES = 6 };

/* In a child, where no assertion may jump back into the tests. */
static bool has_golden(const assay_test_options *options)
{
    OWNED_BY(close_test) assay_test *test = NULL;
    assay_backend_tensor y;
    const bool has = assay_test_open("rms_norm/one-row", options, &test, said) == ASSAY_TEST_OK &&
                     assay_test_golden(test, "outputs/y", &y, said) == ASSAY_TEST_OK;
    if (!has) fprintf(stderr, "%s\n", said);
    return has;
}

/* Each process takes one golden after the other, of seeds that go round. */
static void fill_cache_together(const char *folder, int64_t bytes, int rounds, int seeds)
{
    pid_t children[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] > 0) continue;
        bool right = true;
        for (int round = 0; round < rounds && right; round++) {
            char text[32];
            const char *set = text;
            snprintf(text, sizeof text, "seed=%d", 1 + (i + round) % seeds);
            const assay_test_options options = {
                .cache = folder, .cache_bytes = bytes, .sets = &set, .set_count = 1, .threads = 1};
            right = has_golden(&options);
        }
        _exit(right ? 0 : 1);
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status = -1;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
}

TEST_IN_FOLDER(test_processes_share_a_cache)
{
    fill_cache_together(folder->path, 1 << 20, 6, 2);
    assert_int_equal(folder_count(folder->path, false), 2);
}

/* What one has written another may remove before it is opened. */
TEST_IN_FOLDER(test_processes_share_a_cache_beyond_its_limit)
{
    char dead[2 * TEST_PATH_SIZE], path[TEST_PATH_SIZE + 64];
    struct stat about;
    fill_cache_together(folder->path, 1, 24, 24);
    assert_int_equal(folder_count(folder->path, false), 0);
    /* of a process that died between the two */
    fill_cache_together(folder->path, 1 << 20, 1, 1);
    find_golden(folder->path, path, &about);
    snprintf(dead, sizeof dead, "%s.%08x.h5", path, 0x7ffffffe);
    assert_int_equal(rename(path, dead), 0);
    fill_cache_together(folder->path, 1, 1, 1);
    assert_int_equal(folder_count(folder->path, false), 0);
}
