/* Seconds of a clock that only goes forward, from some point on. */
#pragma once

#include <time.h>

static inline double assay_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
