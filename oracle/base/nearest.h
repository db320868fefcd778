/* The known names nearest to one that is not known, for messages. */
#pragma once

#include <stddef.h>

enum { ASSAY_NEAREST_MOST = 3 };

typedef struct assay_nearest {
    const char *word;
    int most; /* how many names are wanted: 1 to ASSAY_NEAREST_MOST */
    int count;
    const char *names[ASSAY_NEAREST_MOST]; /* nearest first; of equals the one offered first */
    int distances[ASSAY_NEAREST_MOST];
} assay_nearest;

/* Start with {.word = ..., .most = ...}, then offer every known name, as often as you like; they must outlive the result. */
void assay_nearest_offer(assay_nearest *nearest, const char *name);

/* ", did you mean a, b or c?", or nothing when no name is near. */
void assay_nearest_text(const assay_nearest *nearest, char *text, size_t size);
