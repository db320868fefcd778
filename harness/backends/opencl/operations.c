/* The single operations: RMS norm, the gated MLP, the grouped product, attention. */
#include <stdlib.h>
#include <string.h>

#include "call.h"

void run_rms_norm(call *c)
{
    const assay_backend_tensor *input = given(c, "inputs/x");
    const int64_t n = input->dims[input->rank - 1], count = count_of(input->rank, input->dims), row_count = count / n;
    const argument epsilon = real(number(c->request, "normalization_layer_epsilon"));
    cl_mem x = stored(c, STORED, "inputs/x"), scale = stored(c, STORED, "weights/scale");
    cl_mem d_y = stored(c, STORED, "cotangents/y"), y = stored_room(c, STORED, count);
    LAUNCH(&c->d, STORED, "rms_norm", LINE, row_count * LANES, 1, 1, mem(y), mem(x), mem(scale), num(n), epsilon);
    give(c, "outputs/y", y, c->d.storage);
    if (d_y == NULL) return;
    cl_mem d_x = stored_room(c, STORED, count), terms = word_room(c, count), d_scale = word_room(c, n);
    const rows all = rows_of_one(c, row_count);
    LAUNCH(&c->d, STORED, "rms_norm_backward", LINE, row_count * LANES, 1, 1, mem(d_x), mem(terms), mem(d_y), mem(x),
           mem(scale), num(n), epsilon);
    LAUNCH(&c->d, WIDE, "sum_rows", LINE, n, 1, 1, mem(d_scale), mem(terms), mem(all.segment_table), num(1), num(n));
    give(c, "gradients/inputs/x", d_x, c->d.storage);
    give(c, "gradients/weights/scale", d_scale, ASSAY_BACKEND_FLOAT32);
}

void run_mlp(call *c)
{
    const assay_backend_tensor *input = given(c, "inputs/x");
    const rows all = rows_of_one(c, count_of(input->rank - 1, input->dims));
    cl_mem d_y = stored(c, STORED, "cotangents/y");
    mlp m;
    mlp_load(c, &m, &all, DENSE, "weights/", "/kernel");
    give(c, "outputs/y", mlp_forward(c, &m, stored(c, STORED, "inputs/x")), c->d.storage);
    if (d_y != NULL) give(c, "gradients/inputs/x", mlp_backward(c, &m, d_y), c->d.storage);
}

/* ---- the grouped product ---- */

/* The segments of a layout's rows: one for each group, or for each block of rows. */
static rows segments_of(call *c, int64_t groups, int64_t row_count)
{
    const char *kind = setting(c->request, "gmm_layout");
    const bool contiguous = strcmp(kind, "contiguous") == 0, masked = strcmp(kind, "masked") == 0;
    const bool psum = strcmp(kind, "psum") == 0;
    const int64_t block = (int64_t)number(c->request, "mk_alignment_for_contiguous_layout");
    const int64_t count = contiguous ? (row_count + block - 1) / block : groups;
    const char *path = contiguous ? "inputs/m_indices"
                       : masked   ? "inputs/masked_m"
                       : psum     ? "inputs/psum_m"
                                  : "inputs/group_sizes";
    const int32_t *index = given(c, path)->data;
    cl_int4 *segments = calloc((size_t)count + 1, sizeof *segments);
    if (segments == NULL) leave(&c->d, ASSAY_BACKEND_ERROR, "no memory for %d segments", (int)count);
    cl_int end = 0;
    for (int64_t i = 0; i < count; i++) {
        cl_int first = end, size = index[i], group = (cl_int)i;
        if (contiguous) {
            first = (cl_int)(i * block), group = index[first], size = 0;
            while (group >= 0 && size < block && first + size < row_count && index[first + size] == group) size++;
        } else if (masked) {
            first = (cl_int)(i * (row_count / groups));
        } else if (psum) {
            first = (cl_int)((end + block - 1) / block * block), size = index[i] - first;
        }
        segments[i] = (cl_int4){{first, size, group, 0}};
        end = first + size;
    }
    cl_mem table = copy(&c->d, segments, count * (int64_t)sizeof *segments);
    free(segments);
    return rows_of(c, table, count, groups, row_count);
}

/* y[g] = c[g] + lhs_g^T rhs_g */
static void run_k_grouped(call *c)
{
    const assay_backend_tensor *lhs = given(c, "inputs/lhs"), *rhs = given(c, "inputs/rhs");
    const int64_t M = lhs->dims[0], k = lhs->dims[1], n = rhs->dims[1],
                  groups = given(c, "inputs/group_sizes")->dims[0];
    const rows r = segments_of(c, groups, M);
    cl_mem a = stored(c, STORED, "inputs/lhs"), b = stored(c, STORED, "inputs/rhs"),
           more = stored(c, STORED, "inputs/c");
    cl_mem y = word_room(c, groups * k * n), d_y = stored(c, STORED, "cotangents/y");
    product_weights(c, STORED, y, a, b, more, &r, k, n, plain(k, n));
    give(c, "outputs/y", y, ASSAY_BACKEND_FLOAT32);
    if (d_y == NULL) return;
    cl_mem d_a = stored_room(c, STORED, M * k), d_b = stored_room(c, STORED, M * n);
    product(c, STORED, d_a, b, d_y, NULL, NULL, &r, n, k, transposed(plain(k, n)));
    product(c, STORED, d_b, a, d_y, NULL, NULL, &r, k, n, plain(k, n));
    give(c, "gradients/inputs/lhs", d_a, c->d.storage);
    give(c, "gradients/inputs/rhs", d_b, c->d.storage);
    give(c, "gradients/inputs/c", d_y, c->d.storage);
}

void run_gmm(call *c)
{
    if (is(c->request, "gmm_layout", "k_grouped")) {
        run_k_grouped(c);
        return;
    }
    const assay_backend_tensor *lhs = given(c, "inputs/lhs"), *rhs = given(c, "weights/rhs");
    const int64_t groups = rhs->dims[0], k = rhs->dims[1], n = rhs->dims[2], M = count_of(lhs->rank, lhs->dims) / k;
    const rows r = segments_of(c, groups, M);
    cl_mem a = stored(c, STORED, "inputs/lhs"), b = stored(c, STORED, "weights/rhs");
    cl_mem y = stored_room(c, STORED, M * n), d_y = stored(c, STORED, "cotangents/y");
    product(c, STORED, y, a, b, NULL, NULL, &r, k, n, plain(k, n));
    give(c, "outputs/y", y, c->d.storage);
    if (d_y == NULL) return;
    cl_mem d_a = stored_room(c, STORED, M * k), d_b = word_room(c, groups * k * n);
    product(c, STORED, d_a, d_y, b, NULL, NULL, &r, n, k, transposed(plain(k, n)));
    product_weights(c, STORED, d_b, a, d_y, NULL, &r, k, n, plain(k, n));
    give(c, "gradients/inputs/lhs", d_a, c->d.storage);
    give(c, "gradients/weights/rhs", d_b, ASSAY_BACKEND_FLOAT32);
}

/* ---- attention ---- */

void run_attention(call *c)
{
    const int64_t *q = given(c, "inputs/query")->dims, *kv = given(c, "inputs/value")->dims;
    const int64_t B = q[0], S = q[1], N = q[2], kv_heads = kv[2], qk_dim = q[3], v_dim = kv[3], queries = B * S * N;
    const bool windowed = !is(c->request, "attention_type", "global");
    const struct {
        cl_int batch, sequence, heads, kv_heads, qk_dim, v_dim, window, mask_padding;
    } a = {(cl_int)B,
           (cl_int)S,
           (cl_int)N,
           (cl_int)kv_heads,
           (cl_int)qk_dim,
           (cl_int)v_dim,
           windowed ? (cl_int)number(c->request, "sliding_window_size") : 0,
           is(c->request, "mask_padding", "true")};
    const argument shape = bytes(&a, sizeof a), of_qk = local_floats(TILE * qk_dim), of_v = local_floats(TILE * v_dim);
    cl_mem query = stored(c, STORED, "inputs/query"), key = stored(c, STORED, "inputs/key");
    cl_mem value = stored(c, STORED, "inputs/value"), sinks = stored(c, STORED, "weights/sinks");
    cl_mem segments = integers(c, "inputs/segment_ids"), out = stored_room(c, STORED, queries * v_dim);
    cl_mem lse = word_room(c, queries), lse_all = word_room(c, queries);
    LAUNCH(&c->d, STORED, "attention_forward", SQUARE, S, B * N * TILE, 1, mem(out), mem(lse), mem(lse_all), mem(query),
           mem(key), mem(value), mem(sinks), mem(segments), shape, of_qk, of_qk, of_v, of_v);
    give(c, "outputs/attention_out", out, c->d.storage);
    give(c, "outputs/lse", lse, ASSAY_BACKEND_FLOAT32);

    cl_mem d_out = stored(c, STORED, "cotangents/attention_out"), d_lse = stored(c, STORED, "cotangents/lse");
    if (d_out == NULL && d_lse == NULL) return;
    if (d_out == NULL) d_out = stored_room(c, STORED, queries * v_dim);
    cl_mem through = word_room(c, queries), sink_terms = word_room(c, queries), d_sinks = word_room(c, N);
    cl_mem d_query = stored_room(c, STORED, queries * qk_dim);
    cl_mem d_key = stored_room(c, STORED, B * S * kv_heads * qk_dim);
    cl_mem d_value = stored_room(c, STORED, B * S * kv_heads * v_dim);
    LAUNCH(&c->d, STORED, "attention_through", LINE, S, B * N, 1, mem(through), mem(sink_terms), mem(d_out), mem(out),
           mem(lse), mem(lse_all), mem(d_lse), mem(sinks), mem(segments), shape);
    LAUNCH(&c->d, STORED, "attention_d_query", SQUARE, S, B * N * TILE, 1, mem(d_query), mem(d_out), mem(lse_all),
           mem(through), mem(query), mem(key), mem(value), mem(segments), shape, of_qk, of_qk, of_v, of_v, of_qk);
    LAUNCH(&c->d, STORED, "attention_d_key_value", SQUARE, S, B * kv_heads * TILE, 1, mem(d_key), mem(d_value),
           mem(d_out), mem(lse_all), mem(through), mem(query), mem(key), mem(value), mem(segments), shape, of_qk, of_qk,
           of_v, of_v, of_qk, of_v);
    LAUNCH(&c->d, STORED, "sum_of_sinks", LINE, N, 1, 1, mem(d_sinks), mem(sink_terms), shape);
    give(c, "gradients/inputs/query", d_query, c->d.storage);
    give(c, "gradients/inputs/key", d_key, c->d.storage);
    give(c, "gradients/inputs/value", d_value, c->d.storage);
    give(c, "gradients/weights/sinks", d_sinks, ASSAY_BACKEND_FLOAT32);
}
