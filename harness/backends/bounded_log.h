/* A log of which the end is kept: what a backend prints must neither fill the disk nor take time to read. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ASSAY_LOG_MOST ((int64_t)8 << 20) /* bytes; beyond them the first half goes */

typedef struct assay_bounded_log {
    int file; /* open for reading and writing, empty */
    int64_t size;
} assay_bounded_log;

/* False: it cannot be written, and errno says why. Only calls that are safe after a fork. */
bool assay_bounded_log_write(assay_bounded_log *log, const void *text, size_t length);
