/* How floats behave while assay works for a caller in his own process: rounded to nearest, without flush to zero or traps, in
 * the calling thread and in those that work with it. Goldens would have other bits otherwise. */
#ifndef ASSAY_HARNESS_TEST_FLOAT_MODE_H
#define ASSAY_HARNESS_TEST_FLOAT_MODE_H

#include <fenv.h>

enum { ASSAY_MOST_THREADS = 1024 };

typedef struct assay_float_mode {
    int threads;
    fenv_t before[ASSAY_MOST_THREADS]; /* the caller's, of each thread */
} assay_float_mode;

void assay_float_mode_set(assay_float_mode *mode, int threads);
void assay_float_mode_restore(const assay_float_mode *mode);

#endif
