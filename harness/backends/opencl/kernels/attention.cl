/* Causal attention as flash kernels: a work-group has TILE queries (or keys) of one head, and goes through the tiles of
 * the other side in local memory; no row of scores is ever whole. Backward makes scores again from the log-sum-exp. */
typedef struct attention {
    int batch, sequence, heads, kv_heads, qk_dim, v_dim;
    int window;       /* a query sees the last so many tokens; 0: all before it */
    int mask_padding; /* segment 0 sees nothing and is seen by nobody */
} attention;

/* Where token t of batch row b begins in a [B,S,heads,dim] tensor. */
long token_at(const attention *a, int b, int t, int heads, int head, int dim)
{
    return (((long)b * a->sequence + t) * heads + head) * dim;
}

/* A tile of TILE tokens from `first` on, [TILE,dim]. What is beyond the sequence, or padding, is 0: it may hold anything. */
void load_tile(__local float *tile, __global const stored *x, __global const int *segments, const attention *a, int b,
               int first, int heads, int head, int dim)
{
    const int i = get_local_id(1), token = first + i;
    const bool there =
        token < a->sequence && (!segments || !a->mask_padding || segments[(long)b * a->sequence + token] != 0);
    for (int c = get_local_id(0); c < dim; c += TILE)
        tile[i * dim + c] = there ? get(x[token_at(a, b, token, heads, head, dim) + c]) : 0;
}

bool sees(const attention *a, __global const int *segments, int b, int query, int key)
{
    if (query >= a->sequence || key > query || (a->window > 0 && query - key >= a->window)) return false;
    if (!segments) return true;
    const int of_query = segments[(long)b * a->sequence + query], of_key = segments[(long)b * a->sequence + key];
    return of_query == of_key && (of_query != 0 || !a->mask_padding);
}

float product_of_rows(__local const float *x, __local const float *y, int dim)
{
    float sum = 0;
    for (int c = 0; c < dim; c++) sum += x[c] * y[c];
    return sum;
}

/* The first tile of keys that a tile of queries sees. */
int first_tile(const attention *a, int query)
{
    return a->window > 0 && query + 1 > a->window ? (query + 1 - a->window) / TILE * TILE : 0;
}

/* out [B,S,N,Dv], lse [B,N,S] without the sink, lse_all with it. Local room: queries and keys [TILE,Dq], values and sums
 * [TILE,Dv]. */
__kernel __attribute__((reqd_work_group_size(TILE, TILE, 1))) void
attention_forward(__global stored *out, __global float *lse, __global float *lse_all, __global const stored *query,
                  __global const stored *key, __global const stored *value, __global const stored *sinks,
                  __global const int *segments, attention a, __local float *queries, __local float *keys,
                  __local float *values, __local float *sums)
{
    __local float p[TILE][TILE];
    const int i = get_local_id(1), j = get_local_id(0), head = get_group_id(1) % a.heads, b = get_group_id(1) / a.heads;
    const int first = get_group_id(0) * TILE, kv_head = head / (a.heads / a.kv_heads), row = first + i;
    float maximum = -INFINITY, total = 0;
    load_tile(queries, query, segments, &a, b, first, a.heads, head, a.qk_dim);
    for (int c = j; c < a.v_dim; c += TILE) sums[i * a.v_dim + c] = 0;
    for (int tile = first_tile(&a, first); tile <= first; tile += TILE) {
        TILE_READ(); /* of the tile before */
        load_tile(keys, key, segments, &a, b, tile, a.kv_heads, kv_head, a.qk_dim);
        load_tile(values, value, segments, &a, b, tile, a.kv_heads, kv_head, a.v_dim);
        TILE_WRITTEN();
        p[i][j] = sees(&a, segments, b, row, tile + j)
                      ? product_of_rows(queries + i * a.qk_dim, keys + j * a.qk_dim, a.qk_dim)
                      : -INFINITY;
        barrier(CLK_LOCAL_MEM_FENCE);
        float next = maximum;
        for (int q = 0; q < TILE; q++) next = fmax(next, p[i][q]);
        const float shrink = maximum == -INFINITY ? 0 : exp(maximum - next), score = p[i][j];
        barrier(CLK_LOCAL_MEM_FENCE);
        p[i][j] = score == -INFINITY ? 0 : exp(score - next);
        barrier(CLK_LOCAL_MEM_FENCE);
        maximum = next;
        total *= shrink;
        for (int q = 0; q < TILE; q++) total += p[i][q];
        for (int c = j; c < a.v_dim; c += TILE) {
            float sum = sums[i * a.v_dim + c] * shrink;
            for (int q = 0; q < TILE; q++) sum += get(put(p[i][q])) * values[q * a.v_dim + c];
            sums[i * a.v_dim + c] = sum;
        }
    }
    if (row >= a.sequence) return;
    const bool blind = total == 0;
    const float of_scores = blind ? -INFINITY : maximum + log(total);
    const float sink = sinks && !blind ? get(sinks[head]) : -INFINITY;
    const float top = fmax(of_scores, sink), all = blind ? -INFINITY : top + log(exp(of_scores - top) + exp(sink - top));
    const float share = sinks && !blind ? exp(of_scores - all) : 1;
    for (int c = j; c < a.v_dim; c += TILE)
        out[token_at(&a, b, row, a.heads, head, a.v_dim) + c] = put(blind ? 0 : sums[i * a.v_dim + c] / total * share);
    if (j > 0) return;
    lse[((long)b * a.heads + head) * a.sequence + row] = of_scores;
    lse_all[((long)b * a.heads + head) * a.sequence + row] = sinks ? all : of_scores;
}

/* Of each query: through = <d_out, out> - d_lse exp(lse_all - lse), what its scores' gradients have in common; and the
 * term of the sink's gradient. [B,N,S]; d_lse may be NULL. */
__kernel void attention_through(__global float *through, __global float *sink_terms, __global const stored *d_out,
                                __global const stored *out, __global const float *lse, __global const float *lse_all,
                                __global const stored *d_lse, __global const stored *sinks,
                                __global const int *segments, attention a)
{
    const int t = get_global_id(0), head = get_global_id(1) % a.heads, b = get_global_id(1) / a.heads;
    const long n = ((long)b * a.heads + head) * a.sequence + t;
    float sum = 0;
    if (t >= a.sequence) return;
    const long first = token_at(&a, b, t, a.heads, head, a.v_dim);
    const bool blind = lse[n] == -INFINITY; /* it sees nothing: its gradient may hold anything */
    for (int c = 0; c < a.v_dim && !blind; c++) sum += get(d_out[first + c]) * get(out[first + c]);
    sink_terms[n] = sinks && !blind ? -sum * exp(get(sinks[head]) - lse_all[n]) : 0;
    through[n] = sum - (d_lse && !blind ? get(d_lse[n]) * exp(lse_all[n] - lse[n]) : 0);
}

__kernel void sum_of_sinks(__global float *d_sinks, __global const float *sink_terms, attention a)
{
    const int head = get_global_id(0);
    float sum = 0;
    if (head >= a.heads) return;
    for (int b = 0; b < a.batch; b++)
        for (int t = 0; t < a.sequence; t++) sum += sink_terms[((long)b * a.heads + head) * a.sequence + t];
    d_sinks[head] = sum;
}

/* p and the gradient of the score of one query with one key, rounded as they go into the next products. */
float2 probability(const attention *a, __global const int *segments, int b, int row, int column,
                   __local const float *of_query, __local const float *of_key, __local const float *d_out,
                   __local const float *of_value, float lse, float through)
{
    if (!sees(a, segments, b, row, column)) return (float2)(0);
    const float p = exp(product_of_rows(of_query, of_key, a->qk_dim) - lse);
    return (float2)(get(put(p)), get(put(p * (product_of_rows(d_out, of_value, a->v_dim) - through))));
}

/* d_query: a work-group for a tile of queries. Local room: as attention_forward, d_out in place of sums; d [TILE,Dq]. */
__kernel __attribute__((reqd_work_group_size(TILE, TILE, 1))) void
attention_d_query(__global stored *d_query, __global const stored *d_out, __global const float *lse_all,
                  __global const float *through, __global const stored *query, __global const stored *key,
                  __global const stored *value, __global const int *segments, attention a, __local float *queries,
                  __local float *keys, __local float *values, __local float *d_outs, __local float *d)
{
    __local float ds[TILE][TILE];
    const int i = get_local_id(1), j = get_local_id(0), head = get_group_id(1) % a.heads, b = get_group_id(1) / a.heads;
    const int first = get_group_id(0) * TILE, kv_head = head / (a.heads / a.kv_heads), row = first + i;
    const long n = ((long)b * a.heads + head) * a.sequence + min(row, a.sequence - 1);
    load_tile(queries, query, segments, &a, b, first, a.heads, head, a.qk_dim);
    load_tile(d_outs, d_out, segments, &a, b, first, a.heads, head, a.v_dim);
    for (int c = j; c < a.qk_dim; c += TILE) d[i * a.qk_dim + c] = 0;
    for (int tile = first_tile(&a, first); tile <= first; tile += TILE) {
        TILE_READ();
        load_tile(keys, key, segments, &a, b, tile, a.kv_heads, kv_head, a.qk_dim);
        load_tile(values, value, segments, &a, b, tile, a.kv_heads, kv_head, a.v_dim);
        TILE_WRITTEN();
        ds[i][j] = probability(&a, segments, b, row, tile + j, queries + i * a.qk_dim, keys + j * a.qk_dim,
                               d_outs + i * a.v_dim, values + j * a.v_dim, lse_all[n], through[n])
                       .s1;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int c = j; c < a.qk_dim; c += TILE)
            for (int q = 0; q < TILE; q++) d[i * a.qk_dim + c] += ds[i][q] * keys[q * a.qk_dim + c];
    }
    for (int c = j; c < a.qk_dim && row < a.sequence; c += TILE)
        d_query[token_at(&a, b, row, a.heads, head, a.qk_dim) + c] = put(d[i * a.qk_dim + c]);
}

/* d_key and d_value: a work-group for a tile of keys, through all heads that share it. Local room: d_k [TILE,Dq], d_v
 * [TILE,Dv] besides. */
__kernel __attribute__((reqd_work_group_size(TILE, TILE, 1))) void
attention_d_key_value(__global stored *d_key, __global stored *d_value, __global const stored *d_out,
                      __global const float *lse_all, __global const float *through, __global const stored *query,
                      __global const stored *key, __global const stored *value, __global const int *segments,
                      attention a, __local float *queries, __local float *keys, __local float *values,
                      __local float *d_outs, __local float *d_k, __local float *d_v)
{
    __local float p[TILE][TILE], ds[TILE][TILE];
    const int i = get_local_id(1), j = get_local_id(0);
    const int kv_head = get_group_id(1) % a.kv_heads, b = get_group_id(1) / a.kv_heads, shared = a.heads / a.kv_heads;
    const int first = get_group_id(0) * TILE;
    load_tile(keys, key, segments, &a, b, first, a.kv_heads, kv_head, a.qk_dim);
    load_tile(values, value, segments, &a, b, first, a.kv_heads, kv_head, a.v_dim);
    for (int c = j; c < a.qk_dim; c += TILE) d_k[i * a.qk_dim + c] = 0;
    for (int c = j; c < a.v_dim; c += TILE) d_v[i * a.v_dim + c] = 0;
    for (int head = kv_head * shared; head < (kv_head + 1) * shared; head++) {
        for (int tile = first; tile < a.sequence; tile += TILE) {
            const int row = min(tile + i, a.sequence - 1);
            const long n = ((long)b * a.heads + head) * a.sequence + row;
            TILE_READ();
            load_tile(queries, query, segments, &a, b, tile, a.heads, head, a.qk_dim);
            load_tile(d_outs, d_out, segments, &a, b, tile, a.heads, head, a.v_dim);
            TILE_WRITTEN();
            const float2 found =
                probability(&a, segments, b, tile + i, first + j, queries + i * a.qk_dim, keys + j * a.qk_dim,
                            d_outs + i * a.v_dim, values + j * a.v_dim, lse_all[n], through[n]);
            p[i][j] = found.s0, ds[i][j] = found.s1;
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int c = j; c < a.qk_dim; c += TILE)
                for (int q = 0; q < TILE; q++) d_k[i * a.qk_dim + c] += ds[q][i] * queries[q * a.qk_dim + c];
            for (int c = j; c < a.v_dim; c += TILE)
                for (int q = 0; q < TILE; q++) d_v[i * a.v_dim + c] += p[q][i] * d_outs[q * a.v_dim + c];
        }
    }
    for (int c = j; c < a.qk_dim && first + i < a.sequence; c += TILE)
        d_key[token_at(&a, b, first + i, a.kv_heads, kv_head, a.qk_dim) + c] = put(d_k[i * a.qk_dim + c]);
    for (int c = j; c < a.v_dim && first + i < a.sequence; c += TILE)
        d_value[token_at(&a, b, first + i, a.kv_heads, kv_head, a.v_dim) + c] = put(d_v[i * a.v_dim + c]);
}
