/* What is drawn: changes to a case of the catalogue, as data. */
#pragma once

/* A key of a case (assay_case_set) and what it may become: words with spaces between, one of which is drawn. "3-9" is a
 * whole number from 3 to 9, "edge" a size k-1, k or k+1 around 8, 16, 32, 64, 128 or 256. "4;other=2" sets another key as
 * well. */
typedef struct assay_draw_key {
    const char *key;
    unsigned components; /* for operations with one of these (ASSAY_USES_...) */
    int weight;          /* 0: never drawn */
    const char *values;
} assay_draw_key;

/* A tensor that is given, by a glob over its path without the folder, and what it may hold: `inputs.PATH=TEXT`. */
typedef struct assay_draw_fill {
    const char *path, *fill;
    int weight;
} assay_draw_fill;

extern const assay_draw_key assay_draw_keys[]; /* each ends with a NULL */
extern const assay_draw_fill assay_draw_fills[];
extern const int assay_draw_edges[]; /* ends with 0 */

/* More than any of the lists has. */
enum { ASSAY_DRAW_KEYS_MOST = 176, ASSAY_DRAW_EDGES_MOST = 8 };
