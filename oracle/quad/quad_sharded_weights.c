/* Kernels of experts that lie on shards: each number of the whole looked up where it is. */
#include "oracle/quad/quad_blocks.h"

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
    const int64_t transposes = quad_one_at_least(s->fsdp_transpose),
                  tensors = quad_one_at_least(axes[ASSAY_AXIS_MLP_TENSOR]);
    const int64_t fsdps = quad_one_at_least(axes[ASSAY_AXIS_FSDP]) / transposes;
    const int64_t experts = quad_one_at_least(axes[ASSAY_AXIS_EXPERT]);
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

/* Where each number of the whole kernel, [E,D,width] or of wo [E,H,D], is. */
static quad_node gathered(quad_tape *t, const quad_moe_config *both, int weight, quad_node on_shards)
{
    const assay_moe_config *c = &both->moe;
    const int64_t width = (weight == ASSAY_MLP_WI ? 2 : 1) * c->moe_mlp_dim, dim = c->emb_dim;
    const int64_t count = c->routing.num_experts * dim * width;
    int64_t *place = quad_indices(t, count);
    for (int64_t at = 0; place != NULL && at < count; at++) {
        const int64_t e = at / (dim * width), row = at / (weight == ASSAY_MLP_WO ? dim : width);
        const int64_t h = weight == ASSAY_MLP_WO ? row % width : at % width;
        const int64_t d = weight == ASSAY_MLP_WO ? at % dim : row % dim;
        place[at] = quad_kernel_place(c, &both->sharding, weight, e, d, h);
    }
    return quad_gather(t, quad_view(t, on_shards, 1), place, count);
}

void quad_gather_kernels(quad_tape *t, const quad_moe_config *both, quad_mlp *m)
{
    static const int kernels[] = {ASSAY_MLP_WI, ASSAY_MLP_WI_0, ASSAY_MLP_WI_1, ASSAY_MLP_WO};
    for (int i = 0; both->sharding.weights_on_shards && i < 4; i++)
        if (m->w[kernels[i]] != 0) m->w[kernels[i]] = gathered(t, both, kernels[i], m->w[kernels[i]]);
}
