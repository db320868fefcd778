#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cases/case_internal.h"

enum { LARGEST = 64 << 20 };

const char *assay_yaml_extension(const char *path)
{
    const char *dot = strrchr(path, '.');
    bool yaml = dot != NULL && (strcmp(dot, ".yml") == 0 || strcmp(dot, ".yaml") == 0);
    return yaml ? dot : NULL;
}

assay_status assay_read_text_file(assay_context *ctx, const char *path, char **text, size_t *size)
{
    assay_status status = ASSAY_OK;
    char *read = NULL;
    struct stat about;
    *text = NULL;
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO may have no writer */
    FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "rb");
    if (file == NULL) {
        status = assay_fail(ctx, ASSAY_IO, "%s: %s", path, strerror(errno));
        if (descriptor >= 0) close(descriptor);
        return status;
    }
    if (fstat(fileno(file), &about) != 0 || !S_ISREG(about.st_mode) || about.st_size > LARGEST) {
        status = assay_fail(ctx, ASSAY_IO, "%s: expected a file of at most %d bytes", path, LARGEST);
        goto cleanup;
    }
    size_t wanted = (size_t)about.st_size;
    read = malloc(wanted + 1);
    if (read == NULL) {
        status = assay_fail(ctx, ASSAY_NO_MEMORY, "%s: no memory for %zu bytes", path, wanted);
        goto cleanup;
    }
    if (fread(read, 1, wanted, file) != wanted) {
        status = assay_fail(ctx, ASSAY_IO, "%s: could not be read whole", path);
        goto cleanup;
    }
    *text = read;
    *size = wanted;
    read = NULL;
cleanup:
    free(read);
    fclose(file);
    return status;
}
