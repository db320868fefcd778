/* Kernels of experts that lie on shards (SPEC 9): each number of the whole looked up where it is. */
#include "oracle/quad/quad_internal.h"

static int64_t one_at_least(int64_t n)
{
    return n > 1 ? n : 1;
}

/* Which part of `parts` an index is in, and where in it. */
typedef struct split {
    int64_t part, place, size;
} split;

static split split_of(int64_t index, int64_t count, int64_t parts)
{
    const int64_t size = count / parts;
    return (split){index / size, index % size, size};
}

int64_t quad_kernel_place(const assay_moe_config *config, const assay_sharding *s, int weight, int64_t e, int64_t d,
                          int64_t h)
{
    const int64_t *axes = s->mesh.size, width = config->moe_mlp_dim, half = h / width;
    const int64_t transposes = one_at_least(s->fsdp_transpose), tensors = one_at_least(axes[ASSAY_AXIS_MLP_TENSOR]);
    const int64_t fsdps = one_at_least(axes[ASSAY_AXIS_FSDP]) / transposes;
    const int64_t experts = one_at_least(axes[ASSAY_AXIS_EXPERT]);
    const bool exp_on_fsdp = s->shard_exp_on_fsdp;
    const split of_e = split_of(e, config->routing.num_experts, exp_on_fsdp ? experts * fsdps : experts);
    const split of_d = split_of(d, config->emb_dim, exp_on_fsdp ? 1 : fsdps);
    const split of_h = split_of(h % width, width, transposes * tensors);
    const int64_t fsdp = exp_on_fsdp ? of_e.part % fsdps : of_d.part;
    const int64_t expert = exp_on_fsdp ? of_e.part / fsdps : of_e.part;
    const int64_t transpose = of_h.part / tensors, tensor = of_h.part % tensors;
    const int64_t shard = ((fsdp * transposes + transpose) * experts + expert) * tensors + tensor;
    const int64_t kernel = shard * of_e.size + of_e.place;
    if (weight == ASSAY_MLP_WO) return (kernel * of_h.size + of_h.place) * of_d.size + of_d.place;
    const int64_t halves = weight == ASSAY_MLP_WI ? 2 : 1;
    return (kernel * of_d.size + of_d.place) * halves * of_h.size + half * of_h.size + of_h.place;
}

assay_status quad_block_gather(assay_context *ctx, const assay_sharding *sharding, quad_block *block)
{
    static const int kernels[] = {ASSAY_MLP_WI, ASSAY_MLP_WI_0, ASSAY_MLP_WI_1, ASSAY_MLP_WO};
    const int64_t experts = block->config->routing.num_experts, dim = block->config->emb_dim;
    for (int i = 0; sharding->weights_on_shards && i < 4; i++) {
        const int weight = kernels[i];
        const int64_t width = (weight == ASSAY_MLP_WI ? 2 : 1) * block->config->moe_mlp_dim;
        const quad *on_shards = block->experts.w[weight];
        if (on_shards == NULL) continue;
        const assay_status status = quad_alloc(ctx, experts * dim * width, &block->gathered[weight]);
        if (status != ASSAY_OK) return status;
        for (int64_t at = 0; at < experts * dim * width; at++) {
            const int64_t e = at / (dim * width), row = at / (weight == ASSAY_MLP_WO ? dim : width);
            const int64_t h = weight == ASSAY_MLP_WO ? row % width : at % width;
            const int64_t d = weight == ASSAY_MLP_WO ? at % dim : row % dim;
            block->gathered[weight][at] = on_shards[quad_kernel_place(block->config, sharding, weight, e, d, h)];
        }
        block->experts.w[weight] = block->gathered[weight];
    }
    return ASSAY_OK;
}
