#include "oracle/layer/batch_split.h"

assay_status assay_batch_split_check(assay_context *ctx, const assay_stack_config *config)
{
    (void)config;
    return assay_fail(ctx, ASSAY_INTERNAL, "not there yet");
}

assay_batch_split_sizes assay_batch_split_sizes_of(const assay_stack_config *config)
{
    (void)config;
    return (assay_batch_split_sizes){0};
}

int64_t assay_batch_split_memory(const assay_stack_config *config)
{
    (void)config;
    return 0;
}
