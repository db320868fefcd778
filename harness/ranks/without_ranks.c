/* No process has others: ranks are NULL, and what is called where they are not is here for the linker alone. */
#include "harness/ranks/ranks.h"

assay_status assay_ranks_open(assay_context *ctx, assay_ranks **ranks)
{
    *ranks = NULL;
    if (!assay_launch_is_shared()) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT,
                      "mpirun has started several processes: this build was made without ranks (ASSAY_WITHOUT=ranks)");
}

bool assay_ranks_begin(assay_ranks *ranks)
{
    return ranks != NULL;
}

bool assay_ranks_report(assay_ranks *ranks, const assay_rank_report *report, const char *data, size_t size)
{
    (void)report, (void)data, (void)size;
    return ranks != NULL;
}

assay_status assay_ranks_hear(assay_context *ctx, assay_ranks *ranks, int from, bool wait, assay_rank_report **report,
                              size_t *size)
{
    (void)ranks, (void)from, (void)wait, (void)report, (void)size;
    return assay_fail(ctx, ASSAY_INTERNAL, "there are no ranks");
}

void assay_ranks_close(assay_ranks *ranks, assay_status status, const char *message)
{
    (void)ranks, (void)status, (void)message;
}
