#include "harness/backends/bounded_log.h"

#include <string.h>
#include <unistd.h>

#include "fixtures/files.h"

static const char NOTICE[] = "(the beginning was left out)\n";

/* Its second half becomes the first one, from the first whole line on. */
static bool drop_beginning(assay_bounded_log *log)
{
    char piece[1 << 14];
    const int64_t notice = (int64_t)sizeof NOTICE - 1;
    int64_t from = log->size / 2, to = notice;
    bool whole = false;
    while (from < log->size) {
        const ssize_t length = pread(log->file, piece, sizeof piece, from);
        if (length <= 0) return false;
        from += length;
        const char *end = whole ? NULL : memchr(piece, '\n', (size_t)length);
        const ssize_t skipped = end == NULL ? 0 : end + 1 - piece;
        whole = true;
        if (assay_put(log->file, to, (size_t)(length - skipped), piece + skipped) != 0) return false;
        to += length - skipped;
    }
    log->size = to;
    return assay_put(log->file, 0, (size_t)notice, NOTICE) == 0 && ftruncate(log->file, to) == 0;
}

bool assay_bounded_log_write(assay_bounded_log *log, const void *text, size_t length)
{
    if (log->size + (int64_t)length > ASSAY_LOG_MOST && !drop_beginning(log)) return false;
    if (assay_put(log->file, log->size, length, text) != 0) return false;
    log->size += (int64_t)length;
    return true;
}
