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
