/* MLA with its heads over a mesh: which numbers of each intermediate a shard has. */
#include <string.h>

#include "oracle/spec/spec_internal.h"

static int64_t one_at_least(int64_t n)
{
    return n > 1 ? n : 1;
}

/* Sizes of the axes data, fsdp, expert, mlp_tensor. */
typedef struct mesh_sizes {
    int64_t data, fsdp, expert, tensor;
} mesh_sizes;

/* One number of a tensor [B,S,N,width], or [B,N,S] (then width is 1), by its place. */
static int64_t place_of(const spec_tensor *whole, bool heads_second, int64_t b, int64_t s, int64_t head, int64_t i)
{
    const int64_t *dims = whole->shape.dims;
    return heads_second ? (b * dims[1] + head) * dims[2] + s : ((b * dims[1] + s) * dims[2] + head) * dims[3] + i;
}

/* Shard by shard, ((data, fsdp), expert, mlp_tensor); heads are in blocks by (mlp_tensor, expert). */
static assay_status add_parts(assay_context *ctx, const spec_tensor *whole, mesh_sizes m, spec_tensors *out)
{
    assay_status status;
    const bool heads_second = whole->shape.rank == 3;
    const int64_t groups = m.data * m.fsdp, width = heads_second ? 1 : whole->shape.dims[3];
    const int64_t sequence = whole->shape.dims[heads_second ? 2 : 1];
    const int64_t batch = whole->shape.dims[0] / groups;
    const int64_t heads = whole->shape.dims[heads_second ? 1 : 2] / (m.expert * m.tensor);
    const int64_t shards = groups * m.expert * m.tensor;
    const assay_shape shape = heads_second ? assay_shape_of(4, shards, batch, heads, sequence)
                                           : assay_shape_of(5, shards, batch, sequence, heads, width);
    spec_quad *part = NULL;
    TRY(spec_tensors_add(ctx, out, whole->path, &shape, &part));
    for (int64_t shard = 0; shard < shards; shard++) {
        const int64_t tensor = shard % m.tensor, expert = shard / m.tensor % m.expert;
        const int64_t group = shard / (m.tensor * m.expert), first = (tensor * m.expert + expert) * heads;
        for (int64_t i = 0; i < batch * sequence * heads * width; i++) {
            const int64_t outer = i / width;
            const int64_t s = heads_second ? outer % sequence : outer / heads % sequence;
            const int64_t head = heads_second ? outer / sequence % heads : outer % heads;
            const int64_t b = outer / (sequence * heads);
            *part++ = whole->values[place_of(whole, heads_second, group * batch + b, s, first + head, i % width)];
        }
    }
cleanup:
    return status;
}

assay_status spec_sharded_mla_checkpoints(assay_context *ctx, const assay_mla_config *config, const assay_mesh *mesh,
                                          const spec_tensors *in, spec_tensors *out)
{
    static const char *const of_heads[] = {"query_proj", "key_proj", "value_proj", "attention_out", "lse"};
    const int64_t *sizes = mesh->size;
    const mesh_sizes m = {one_at_least(sizes[ASSAY_AXIS_DATA]), one_at_least(sizes[ASSAY_AXIS_FSDP]),
                          one_at_least(sizes[ASSAY_AXIS_EXPERT]), one_at_least(sizes[ASSAY_AXIS_MLP_TENSOR])};
    assay_status status = ASSAY_OK;
    spec_tensors parts = {0};
    if (m.data * m.fsdp * m.expert * m.tensor == 1) return spec_mla_parts(ctx, config, in, out);
    if (config->heads % (m.expert * m.tensor) != 0 || config->batch % (m.data * m.fsdp) != 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%lld heads and %lld rows of the batch are not to be divided",
                          (long long)config->heads, (long long)config->batch);
    }
    TRY(spec_mla_parts(ctx, config, in, &parts));
    for (int i = 0; i < parts.count; i++) {
        const spec_tensor *whole = &parts.items[i];
        bool has_heads = false;
        for (size_t k = 0; k < sizeof of_heads / sizeof *of_heads; k++)
            has_heads |= strcmp(whole->path + strlen("checkpoints/"), of_heads[k]) == 0;
        if (has_heads) {
            TRY(add_parts(ctx, whole, m, out));
        } else {
            spec_quad *values = NULL;
            TRY(spec_tensors_add(ctx, out, whole->path, &whole->shape, &values));
            memcpy(values, whole->values, (size_t)assay_shape_count(&whole->shape) * sizeof *values);
        }
    }
cleanup:
    spec_tensors_free(&parts);
    return status;
}
