/* What every call of <assay/test.h> begins and ends with. */
#include <omp.h>
#include <stdio.h>

#include "harness/test/test_internal.h"

void assay_test_begin(assay_test_call *call, const assay_context *ctx, int threads, assay_cached_golden *held)
{
    call->ctx = *ctx;
    call->held = held;
    call->threads = 0;
#pragma omp parallel num_threads(threads)
    {
        fegetenv(&call->before[omp_get_thread_num()]);
        fesetenv(FE_DFL_ENV);
#pragma omp master
        call->threads = omp_get_num_threads();
    }
    if (held != NULL) pthread_mutex_lock(&held->turn);
}

int assay_test_refuse_null(const char *what, char *message)
{
    if (message != NULL) snprintf(message, ASSAY_TEST_MESSAGE, "%s is NULL", what);
    return ASSAY_TEST_BAD_INPUT;
}

int assay_test_end(assay_test_call *call, assay_status status, char *message)
{
    if (call->held != NULL) pthread_mutex_unlock(&call->held->turn);
#pragma omp parallel num_threads(call->threads)
    if (omp_get_thread_num() < call->threads) fesetenv(&call->before[omp_get_thread_num()]);
    if (message != NULL) snprintf(message, ASSAY_TEST_MESSAGE, "%.511s", status == ASSAY_OK ? "" : call->ctx.message);
    return status == ASSAY_OK ? ASSAY_TEST_OK : ASSAY_TEST_BAD_INPUT;
}
