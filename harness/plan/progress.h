/* Progress of long work, on standard error where a person looks; silent elsewhere. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct assay_progress {
    bool shown;
    const char *what;
    int64_t done, total;
    double started, last; /* seconds */
} assay_progress;

/* Shown when standard error is a terminal and `quiet` is false. */
void assay_progress_start(assay_progress *p, bool quiet, const char *what, int64_t total);
void assay_progress_add(assay_progress *p, int64_t amount, const char *detail);
void assay_progress_end(assay_progress *p); /* clears the line */
