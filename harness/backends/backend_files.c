#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fixtures/files.h"
#include "harness/backends/backend_files.h"
#include "oracle/base/tensor.h"

assay_status assay_backend_make_folder(assay_context *ctx, const char *keep, char *folder, size_t size)
{
    if (keep != NULL) {
        snprintf(folder, size, "%s/", keep);
        assay_status status = assay_make_parents(ctx, folder);
        snprintf(folder, size, "%s", keep);
        return status;
    }
    const char *temporary = getenv("TMPDIR");
    snprintf(folder, size, "%s/assay-XXXXXX", temporary != NULL && temporary[0] != '\0' ? temporary : "/tmp");
    if (mkdtemp(folder) == NULL) return assay_fail(ctx, ASSAY_IO, "%s: %s", folder, strerror(errno));
    return ASSAY_OK;
}

void assay_backend_remove_folder(char *folder)
{
    FTS *tree = fts_open((char *const[]){folder, NULL}, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    if (tree == NULL) return;
    for (FTSENT *entry = fts_read(tree); entry != NULL; entry = fts_read(tree)) {
        if (entry->fts_info != FTS_D) remove(entry->fts_accpath); /* a folder comes again after what is in it */
    }
    fts_close(tree);
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

bool assay_backend_place_is_taken(const char *path)
{
    struct stat found;
    return lstat(path, &found) == 0;
}

assay_status assay_backend_clear_place(assay_context *ctx, const char *path)
{
    if (unlink(path) == 0 || errno == ENOENT) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_IO, "%s cannot be removed: %s", path, strerror(errno));
}

void assay_backend_last_lines(const char *log, int lines, char *text, size_t size)
{
    text[0] = '\0';
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
    for (char *c = text; *c != '\0'; c++) {
        if ((unsigned char)*c < ' ' && *c != '\n') *c = ' '; /* reports take no control characters */
    }
    char *first = text + length;
    while (first > text && (first[-1] != '\n' || --lines > 0)) first--;
    memmove(text, first, strlen(first) + 1);
}
