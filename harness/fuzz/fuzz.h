/* Cases drawn and tried on a backend, one after the other; what fails is shrunk, and reported once for each reason. */
#pragma once

#include <signal.h>

#include "harness/fuzz/draw.h"
#include "harness/fuzz/edges.h"

typedef struct assay_found {
    int64_t draw;                /* its number */
    int alike;                   /* draws that failed for this reason, this one included */
    assay_case c;                /* shrunk */
    char drawn[ASSAY_PATH_SIZE]; /* what it was drawn from, in a word: the description */
    assay_reason reason;
    int tries, steps;                                     /* of shrinking */
    bool is_unsteady;                                     /* the shrunk case did not fail again */
    bool ran_out;                                         /* of time, before it was as small as it gets */
    char message[600], diagnosis[512], explanation[1024]; /* of the case as it was drawn */
    char edges[ASSAY_EDGES_TEXT];                         /* sizes around the shrunk one that fail, and that pass */
} assay_found;

/* What a failure has for shrinking and for sizes around it, though the time of the draws is over; the attempt that runs is
 * waited for. Without a time of the draws nothing is cut short. */
#define ASSAY_FOUND_SECONDS 15.0

typedef struct assay_fuzzing assay_fuzzing;
struct assay_fuzzing {
    assay_tried *tried;
    uint64_t seed;
    const char *op;                    /* NULL: every operation */
    assay_draw_sets sets;              /* none of them of `profiles` */
    double seconds;                    /* how long draws are made; a failure may take ASSAY_FOUND_SECONDS more */
    int64_t cases;                     /* how many are; 0: as many as there is time for */
    int stop_after;                    /* so many reasons were found; 0: never */
    bool quiet;                        /* no progress */
    const volatile sig_atomic_t *stop; /* ends it soon, once this is not 0; NULL: never */
    /* Told of each failure as it is found, shrunk, with the attempt on the smallest case. */
    assay_status (*tell)(assay_context *ctx, void *self, const assay_found *found, const assay_attempt *smallest);
    void *self;
    /* what came of it */
    assay_draws draws;
    assay_found *found;
    int found_count;
    int64_t drawn, passed, failed, known, unsupported, refused;
    double started, taken; /* of assay_clock; seconds */
};

/* To be freed also where it fails: what was found stays. */
assay_status assay_fuzz(assay_context *ctx, assay_fuzzing *f);
void assay_fuzz_free(assay_fuzzing *f);

/* Of what the backend supports: pairs of an operation and a value of a key that ran, and all that could. */
void assay_fuzz_coverage(const assay_fuzzing *f, int *ran, int *all);
