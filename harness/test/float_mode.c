#include "harness/test/float_mode.h"

#include <omp.h>

void assay_float_mode_set(assay_float_mode *mode, int threads)
{
    mode->threads = 0;
#pragma omp parallel num_threads(threads)
    {
        fegetenv(&mode->before[omp_get_thread_num()]);
        fesetenv(FE_DFL_ENV);
#pragma omp master
        mode->threads = omp_get_num_threads();
    }
}

void assay_float_mode_restore(const assay_float_mode *mode)
{
#pragma omp parallel num_threads(mode->threads)
    if (omp_get_thread_num() < mode->threads) fesetenv(&mode->before[omp_get_thread_num()]);
}
