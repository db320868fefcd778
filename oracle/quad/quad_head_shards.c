/* Heads over a mesh: which numbers of each intermediate a shard has. */
#include <string.h>

#include "oracle/quad/quad_internal.h"

static int64_t one_at_least(int64_t n)
{
    return n > 1 ? n : 1;
}

/* Sizes of the axes data, fsdp, expert, mlp_tensor; heads of queries and of keys, of one shard. */
typedef struct spread {
    int64_t data, fsdp, expert, tensor;
    int64_t heads, kv_heads;
} spread;

/* The head among all that a shard's own is; `part` of them all are the shard's. Of qkv_proj come queries, keys, values. */
static int64_t head_of(const spread *m, const char *name, int64_t part, int64_t own)
{
    const int64_t parts = m->expert * m->tensor, n = m->heads, g = m->kv_heads;
    const bool of_keys = strcmp(name, "key_proj") == 0 || strcmp(name, "value_proj") == 0;
    if (strcmp(name, "qkv_proj") != 0) return part * (of_keys ? g : n) + own;
    if (own < n) return part * n + own;
    const int64_t value = own >= n + g, in_part = own - n - value * g;
    return parts * (n + value * g) + part * g + in_part;
}

/* Shard by shard, ((data, fsdp), expert, mlp_tensor); heads are in blocks by (mlp_tensor, expert). [B,S,N,width], or [B,N,S]. */
static assay_status add_parts(assay_context *ctx, const quad_tensor *whole, const char *name, const spread *m,
                              quad_tensors *out)
{
    assay_status status;
    const bool second = whole->shape.rank == 3;
    const int64_t *dims = whole->shape.dims, groups = m->data * m->fsdp, parts = m->expert * m->tensor;
    const int64_t all = dims[second ? 1 : 2], sequence = dims[second ? 2 : 1], width = second ? 1 : dims[3];
    const int64_t batch = dims[0] / groups, heads = all / parts, shards = groups * parts;
    const assay_shape shape = second ? assay_shape_of(4, shards, batch, heads, sequence)
                                     : assay_shape_of(5, shards, batch, sequence, heads, width);
    quad *to = NULL;
    TRY(quad_tensors_add(ctx, out, whole->path, &shape, &to));
    for (int64_t i = 0; i < shards * batch * sequence * heads * width; i++) {
        const int64_t outer = i / width, shard = outer / (batch * sequence * heads);
        const int64_t part = shard % m->tensor * m->expert + shard / m->tensor % m->expert;
        const int64_t b = shard / parts * batch + outer / (sequence * heads) % batch;
        const int64_t s = second ? outer % sequence : outer / heads % sequence;
        const int64_t head = head_of(m, name, part, second ? outer / sequence % heads : outer % heads);
        to[i] = whole->values[second ? (b * all + head) * sequence + s
                                     : ((b * sequence + s) * all + head) * width + i % width];
    }
cleanup:
    return status;
}

assay_status quad_spread_heads(assay_context *ctx, const quad_tensors *parts, int64_t heads, int64_t kv_heads,
                               const assay_mesh *mesh, quad_tensors *out)
{
    static const char *const of_heads[] = {"qkv_proj", "query_proj", "key_proj", "value_proj", "attention_out", "lse"};
    const int64_t *sizes = mesh->size;
    spread m = {one_at_least(sizes[ASSAY_AXIS_DATA]),
                one_at_least(sizes[ASSAY_AXIS_FSDP]),
                one_at_least(sizes[ASSAY_AXIS_EXPERT]),
                one_at_least(sizes[ASSAY_AXIS_MLP_TENSOR]),
                heads,
                kv_heads};
    assay_status status = ASSAY_OK;
    const bool one = m.data * m.fsdp * m.expert * m.tensor == 1;
    if (heads % (m.expert * m.tensor) != 0 || kv_heads % (m.expert * m.tensor) != 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%lld heads and %lld of keys are not to be divided by %lld",
                          (long long)heads, (long long)kv_heads, (long long)(m.expert * m.tensor));
    }
    m.heads /= m.expert * m.tensor;
    m.kv_heads /= m.expert * m.tensor;
    for (int i = 0; i < parts->count; i++) {
        const quad_tensor *whole = &parts->items[i];
        const char *name = NULL;
        quad *values = NULL;
        for (size_t k = 0; k < sizeof of_heads / sizeof *of_heads; k++) {
            if (strcmp(whole->path + strlen("checkpoints/"), of_heads[k]) == 0) name = of_heads[k];
        }
        if (name != NULL && !one) {
            TRY(add_parts(ctx, whole, name, &m, out));
            continue;
        }
        TRY(quad_tensors_add(ctx, out, whole->path, &whole->shape, &values));
        memcpy(values, whole->values, (size_t)assay_shape_count(&whole->shape) * sizeof *values);
    }
cleanup:
    return status;
}
