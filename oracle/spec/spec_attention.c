#include <math.h>
#include <quadmath.h>

#include "oracle/spec/spec_internal.h"

static bool visible(const spec_attention_problem *p, int64_t b, int64_t query, int64_t key)
{
    if (key > query || (p->config->window > 0 && query - key >= p->config->window)) return false;
    if (p->segment_ids == NULL) return true;
    const int32_t *segments = p->segment_ids + b * p->config->sequence;
    if (p->config->mask_padding && segments[query] == 0) return false;
    return segments[query] == segments[key];
}

static int64_t kv_heads(const assay_attention_config *config)
{
    return config->kv_heads == 0 ? config->heads : config->kv_heads;
}

/* One query of one head: `seen` [S] and `p` [S] are scratch. Returns the log of the sum of exponentials. A sink is one
 * more score, whose probability goes nowhere. */
static spec_quad attend(const spec_attention_problem *problem, int64_t b, int64_t head, int64_t query, int64_t *seen,
                        spec_quad *p)
{
    const assay_attention_config *config = problem->config;
    int64_t s = config->sequence, heads = config->heads, dim = config->qk_dim, v_dim = config->v_dim, count = 0;
    int64_t shared = kv_heads(config), kv = head * shared / config->heads;
    const spec_quad *q = problem->query + ((b * s + query) * heads + head) * dim;
    spec_quad *out = problem->attention_out + ((b * s + query) * heads + head) * v_dim;
    spec_quad largest = 0, sum = 0;
    for (int64_t d = 0; d < v_dim; d++) out[d] = 0;
    for (int64_t key = 0; key < s; key++) {
        if (!visible(problem, b, query, key)) continue;
        const spec_quad *k = problem->key + ((b * s + key) * shared + kv) * dim;
        spec_quad score = 0;
        for (int64_t d = 0; d < dim; d++) score += q[d] * k[d];
        if (count == 0 || score > largest) largest = score;
        seen[count] = key;
        p[count++] = score;
    }
    if (count == 0) return -INFINITY;
    for (int64_t i = 0; i < count; i++) {
        p[i] = expq(p[i] - largest);
        sum += p[i];
    }
    const spec_quad sink = problem->sinks == NULL ? 0 : expq(problem->sinks[head] - largest);
    for (int64_t i = 0; i < count; i++) {
        const spec_quad *v = problem->value + ((b * s + seen[i]) * shared + kv) * v_dim;
        spec_quad weight = p[i] / (sum + sink);
        for (int64_t d = 0; d < v_dim; d++) out[d] += weight * v[d];
    }
    return largest + logq(sum);
}

assay_status spec_attend(assay_context *ctx, const spec_attention_problem *problem)
{
    const assay_attention_config *config = problem->config;
    assay_status status = ASSAY_OK;
    spec_quad *p = NULL;
    void *seen = NULL;
    TRY(spec_alloc(ctx, config->sequence, &p));
    TRY(assay_alloc(ctx, "visible keys", config->sequence, sizeof(int64_t), &seen));
    for (int64_t b = 0; b < config->batch; b++) {
        for (int64_t head = 0; head < config->heads; head++) {
            spec_quad *lse = problem->lse + (b * config->heads + head) * config->sequence;
            for (int64_t query = 0; query < config->sequence; query++) {
                lse[query] = attend(problem, b, head, query, seen, p);
            }
        }
    }
cleanup:
    free(p);
    free(seen);
    return status;
}

assay_status spec_attention(assay_context *ctx, const assay_attention_config *config, const spec_tensors *in,
                            spec_tensors *out)
{
    assay_status status = ASSAY_OK;
    int64_t b = config->batch, s = config->sequence, heads = config->heads, rows = b * s * heads;
    int64_t kv_rows = b * s * kv_heads(config);
    assay_shape values = assay_shape_of(4, b, s, heads, config->v_dim), sums = assay_shape_of(3, b, heads, s);
    spec_attention_problem problem = {.config = config};
    TRY(spec_read(ctx, in, "inputs/query", rows * config->qk_dim, &problem.query));
    TRY(spec_read(ctx, in, "inputs/key", kv_rows * config->qk_dim, &problem.key));
    TRY(spec_read(ctx, in, "inputs/value", kv_rows * config->v_dim, &problem.value));
    TRY(spec_read_optional(ctx, in, "weights/sinks", heads, &problem.sinks));
    TRY(spec_read_optional_indices(ctx, in, "inputs/segment_ids", b * s, &problem.segment_ids));
    TRY(spec_tensors_add(ctx, out, "outputs/attention_out", &values, &problem.attention_out));
    TRY(spec_tensors_add(ctx, out, "outputs/lse", &sums, &problem.lse));
    TRY(spec_attend(ctx, &problem));
cleanup:
    return status;
}
