/* The targets in an ordinary build: tries the inputs that once were findings. with_files FOLDER, which has a folder for
 * each target. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/fuzz/fuzz.h"

static int try_file(const fuzz_target *target, const char *path)
{
    enum { MOST = 1 << 20 };
    uint8_t *data = malloc(MOST);
    FILE *file = fopen(path, "rbe");
    fuzz_require(data != NULL && file != NULL, path);
    const size_t size = fread(data, 1, MOST, file);
    fclose(file);
    /* of the size that it has, so that a sanitizer sees what is read behind it */
    uint8_t *exact = realloc(data, size + (size == 0));
    fuzz_require(exact != NULL, "no memory");
    printf("%s\n", path);
    fflush(stdout);
    target->try(exact, size);
    free(exact);
    return 1;
}

int main(int argc, char **argv)
{
    int tried = 0;
    fuzz_require(argc == 2, "usage: with_files FOLDER");
    for (int i = 0; fuzz_targets[i] != NULL; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", argv[1], fuzz_targets[i]->name);
        DIR *folder = opendir(path);
        for (const struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
            if (entry->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%s/%.255s", argv[1], fuzz_targets[i]->name, entry->d_name);
            tried += try_file(fuzz_targets[i], path);
        }
        if (folder != NULL) closedir(folder);
    }
    printf("%d inputs\n", tried);
    return tried > 0 ? 0 : 1;
}
