/* Heads over a mesh: which numbers of each intermediate a shard has. */
#include <string.h>

#include "oracle/quad/quad_blocks.h"

/* Sizes of the axes data, fsdp, expert, mlp_tensor; heads of queries and of keys, of one shard. */
typedef struct axes {
    int64_t data, fsdp, expert, tensor;
    int64_t heads, kv_heads;
} axes;

/* The head among all that a shard's own is; `part` of them all are the shard's. Of qkv_proj come queries, keys, values. */
static int64_t head_of(const axes *m, const char *name, int64_t part, int64_t own)
{
    const int64_t parts = m->expert * m->tensor, n = m->heads, g = m->kv_heads;
    const bool of_keys = strcmp(name, "key_proj") == 0 || strcmp(name, "value_proj") == 0;
    if (strcmp(name, "qkv_proj") != 0) return part * (of_keys ? g : n) + own;
    if (own < n) return part * n + own;
    const int64_t value = own >= n + g, in_part = own - n - value * g;
    return parts * (n + value * g) + part * g + in_part;
}

/* Shard by shard, ((data, fsdp), expert, mlp_tensor); heads are in blocks by (mlp_tensor, expert). [B,S,N,width], or [B,N,S]. */
static void put_shards(quad_tape *t, const quad_heads *h, const axes *m, const char *path, int64_t width, quad_node x)
{
    const bool of_lse = width == 0;
    const char *name = path + strlen("checkpoints/");
    const int64_t groups = m->data * m->fsdp, parts = m->expert * m->tensor, shards = groups * parts, s = h->sequence;
    const int64_t all = quad_rows(t, x) * quad_columns(t, x) / (h->batch * s * quad_one_at_least(width));
    const int64_t batch = h->batch / groups, heads = all / parts, rows = shards * batch * s * heads;
    int64_t *index = quad_indices(t, rows);
    for (int64_t i = 0; index != NULL && i < rows; i++) {
        const int64_t shard = i / (batch * s * heads),
                      part = shard % m->tensor * m->expert + shard / m->tensor % m->expert;
        const int64_t b = shard / parts * batch + i / (s * heads) % batch, at = of_lse ? i % s : i / heads % s;
        const int64_t head = head_of(m, name, part, of_lse ? i / s % heads : i % heads);
        index[i] = of_lse ? (b * all + head) * s + at : (b * s + at) * all + head;
    }
    quad_put(t, path,
             of_lse ? assay_shape_of(4, shards, batch, heads, s) : assay_shape_of(5, shards, batch, s, heads, width),
             quad_gather(t, quad_view(t, x, quad_one_at_least(width)), index, rows));
}

void quad_put_heads(quad_tape *t, const quad_heads *h, const char *path, int64_t width, quad_node x)
{
    const int64_t *sizes = h->mesh->size;
    axes m = {quad_one_at_least(sizes[ASSAY_AXIS_DATA]),
              quad_one_at_least(sizes[ASSAY_AXIS_FSDP]),
              quad_one_at_least(sizes[ASSAY_AXIS_EXPERT]),
              quad_one_at_least(sizes[ASSAY_AXIS_MLP_TENSOR]),
              h->heads,
              h->kv_heads};
    const int64_t parts = m.expert * m.tensor;
    if (x == 0 || !quad_wants(t, path)) return;
    if (h->heads % parts != 0 || h->kv_heads % parts != 0) {
        quad_refuse(t, "%lld heads and %lld of keys are not to be divided by %lld", (long long)h->heads,
                    (long long)h->kv_heads, (long long)parts);
        return;
    }
    m.heads /= parts;
    m.kv_heads /= parts;
    if (m.data * m.fsdp * parts > 1) {
        put_shards(t, h, &m, path, width, x);
    } else if (width == 0) {
        quad_put(t, path, assay_shape_of(3, h->batch, h->heads, h->sequence), x);
    } else {
        const int64_t all = quad_columns(t, x) / width;
        quad_put(t, path, assay_shape_of(4, h->batch, h->sequence, all, width), x);
    }
}
