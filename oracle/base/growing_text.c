#define _GNU_SOURCE /* fopencookie */
#include "oracle/base/growing_text.h"

#include <stdlib.h>
#include <string.h>

typedef struct growing_text {
    char **text;
    size_t *size, room;
} growing_text;

/* 0 is an error to the stream. */
static ssize_t add(void *self, const char *bytes, size_t count)
{
    growing_text *g = self;
    const size_t needed = *g->size + count + 1;
    if (needed > g->room) {
        const size_t room = needed > 2 * g->room ? needed : 2 * g->room;
        char *more = realloc(*g->text, room);
        if (more == NULL) return 0;
        *g->text = more;
        g->room = room;
    }
    memcpy(*g->text + *g->size, bytes, count);
    *g->size += count;
    (*g->text)[*g->size] = '\0';
    return (ssize_t)count;
}

static int end(void *self)
{
    free(self);
    return 0;
}

FILE *assay_text_open(char **text, size_t *size)
{
    growing_text *g = malloc(sizeof *g);
    FILE *out = NULL;
    *size = 0;
    *text = calloc(1, 1);
    if (g != NULL) *g = (growing_text){text, size, 1};
    if (g != NULL && *text != NULL) out = fopencookie(g, "w", (cookie_io_functions_t){.write = add, .close = end});
    if (out != NULL) return out;
    free(g);
    free(*text);
    *text = NULL;
    return NULL;
}
