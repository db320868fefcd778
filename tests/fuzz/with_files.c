/* The targets in an ordinary build: tries the inputs that once were findings, and the seeds. with_files FOUND SEEDS: a folder has one for
 * each target; into those of SEEDS they are written. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "tests/fuzz/fuzz.h"

static int try_file(const fuzz_target *target, const char *path)
{
    size_t size = 0;
    uint8_t *data = fuzz_read(path, &size);
    printf("%s\n", path);
    fflush(stdout);
    target->try(data, size);
    free(data);
    return 1;
}

static int try_folder(const fuzz_target *target, const char *folder)
{
    char path[4096];
    int tried = 0;
    DIR *files = opendir(folder);
    for (const struct dirent *entry; files != NULL && (entry = readdir(files)) != NULL;) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%.255s", folder, entry->d_name);
        tried += try_file(target, path);
    }
    if (files != NULL) closedir(files);
    return tried;
}

int main(int argc, char **argv)
{
    int found = 0, seeds = 0;
    fuzz_require(argc == 3, "usage: with_files FOUND SEEDS");
    mkdir(argv[2], 0777);
    for (int i = 0; fuzz_targets[i] != NULL; i++) {
        char folder[4096];
        snprintf(folder, sizeof folder, "%s/%s", argv[1], fuzz_targets[i]->name);
        found += try_folder(fuzz_targets[i], folder);
        snprintf(folder, sizeof folder, "%s/%s", argv[2], fuzz_targets[i]->name);
        mkdir(folder, 0777);
        fuzz_targets[i]->seeds(&(fuzz_corpus){.folder = folder});
        const int of_target = try_folder(fuzz_targets[i], folder);
        fuzz_require(of_target > 0, fuzz_targets[i]->name);
        seeds += of_target;
    }
    printf("%d inputs that were findings, %d seeds\n", found, seeds);
    return found > 0 ? 0 : 1;
}
