#include "oracle/layer/tests/split_case.h"

assay_stack_config split_case_form(assay_stack_config config)
{
    config.mla.kv_lora_rank = 4;
    config.mla.rope.pairwise = true;
    config.moe.routing.renormalize_exactly = true;
    config.sharding =
        (assay_sharding){.mesh = {{1, 1, 1}}, .tensor_shards = 1, .token_chunks = 1, .weight_before_wo = true};
    return config;
}

layer_case split_case_plain(int64_t layers, int64_t dense, int64_t batch, int64_t sequence)
{
    layer_case c = layer_case_make(layers, dense, batch, sequence);
    c.config = split_case_form(c.config);
    layer_case_fill(&c);
    return c;
}

layer_case split_case_of(const layer_case *plain, assay_mesh mesh, int64_t factor)
{
    layer_case c = *plain;
    c.config.sharding = (assay_sharding){.mesh = mesh, .tensor_shards = 1, .token_chunks = 1};
    c.config.batch_split_factor = factor;
    return c;
}

layer_case split_case_small(int64_t layers, int64_t dense, int64_t factor)
{
    const layer_case plain = split_case_plain(layers, dense, factor, 1);
    return split_case_of(&plain, (assay_mesh){{1, 1, 1}}, factor);
}
