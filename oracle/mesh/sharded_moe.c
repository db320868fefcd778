#include "oracle/mesh/sharded_moe.h"

bool assay_is_sharded(const assay_moe_config *config, const assay_sharding *sharding)
{
    (void)config;
    (void)sharding;
    return false;
}

assay_status assay_sharded_moe_check(assay_context *ctx, const assay_moe_config *config,
                                     const assay_sharding *sharding)
{
    (void)config;
    (void)sharding;
    return assay_fail(ctx, ASSAY_INTERNAL, "not there yet");
}

assay_shard_sizes assay_shard_sizes_of(const assay_moe_config *config, const assay_sharding *sharding)
{
    (void)config;
    (void)sharding;
    return (assay_shard_sizes){0};
}

assay_status assay_sharded_moe_run(assay_context *ctx, const assay_moe_config *config, const assay_sharding *sharding,
                                   const assay_source *in, const assay_sink *out)
{
    (void)config;
    (void)sharding;
    (void)in;
    (void)out;
    return assay_fail(ctx, ASSAY_INTERNAL, "not there yet");
}

int64_t assay_sharded_moe_memory(const assay_moe_config *config, const assay_sharding *sharding)
{
    (void)config;
    (void)sharding;
    return 0;
}
