/* A failing case made as small as it stays failing for the same reason: the same first wrong tensor, wrong in the same way,
 * and, where a known bug was named, by the same bug. Greedy and without chance: what is said is left out, values become
 * plain, sizes are halved and then counted down, until nothing more can go. */
#pragma once

#include <signal.h>

#include "harness/fuzz/attempt.h"
#include "harness/fuzz/draw.h"

typedef struct assay_shrinking {
    assay_tried *tried;
    assay_draw_sets sets;              /* which stay */
    const volatile sig_atomic_t *stop; /* what is smallest so far will do, once this is not 0; NULL: never */
    double deadline;                   /* and from this time of assay_clock on; 0: none */
    int tries, steps;                  /* cases that were tried, those that failed alike */
    assay_reason reason;               /* of the case as it came */
} assay_shrinking;

/* `c` becomes the smallest. */
assay_status assay_shrink(assay_context *ctx, assay_shrinking *s, assay_case *c);

/* Stopped, or out of tries or time. */
bool assay_shrinking_is_over(const assay_shrinking *s);
