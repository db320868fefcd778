/* One call of the backend: tensors as buffers, results back, and the host side of what several operations launch. */
#pragma once

#include "device.h"

#pragma GCC visibility push(hidden)

enum { MOST_TENSORS = 64 };

typedef struct call {
    const assay_backend_request *request;
    device d;
    bool used[MOST_TENSORS]; /* tensors of the request that were asked for */
} call;

/* ---- call.c ---- */

/* A tensor of the request, by its whole path; NULL where the case has none. */
const assay_backend_tensor *given(call *c, const char *path);
/* Its numbers on the device, in the storage of a program; its integers. NULL where the case has none. */
cl_mem stored(call *c, enum program which, const char *path);
cl_mem integers(call *c, const char *path);
/* Writes a result, where the case asks for it, from what a program's kernels store, from float32, from int32. */
void give(call *c, const char *path, cl_mem buffer, assay_backend_type type);
/* Room for `count` numbers: as a program stores them, float32 or int32. */
cl_mem stored_room(call *c, enum program which, int64_t count);
cl_mem word_room(call *c, int64_t count);
int64_t stored_size(const call *c, enum program which);

/* ---- products.c: kernels of product.cl ---- */

/* As in product.cl. */
typedef struct layout {
    cl_long first, group, row, column;
} layout;
layout plain(int64_t k, int64_t n); /* [groups,k,n] */
layout transposed(layout of_b);     /* its kernels the other way round */
typedef struct rows {
    int64_t count, segments, tiles, groups;
    cl_mem segment_table, tile_table;
} rows;
/* Segments [count] of int4 on the device, `count` rows in all, at most. */
rows rows_of(call *c, cl_mem segments, int64_t segment_count, int64_t groups, int64_t row_count);
/* All rows, one group. */
rows rows_of_one(call *c, int64_t row_count);

/* out [rows,n] = a [rows,k] b (+ bias [groups,n]) (+ more [rows,n]) */
void product(call *c, enum program which, cl_mem out, cl_mem a, cl_mem b, cl_mem bias, cl_mem more, const rows *r,
             int64_t k, int64_t n, layout of_b);
/* d = a [rows,k] transposed times c [rows,n], by group (+ more [groups,k,n]); in float32 */
void product_weights(call *c, enum program which, cl_mem d, cl_mem a, cl_mem of_c, cl_mem more, const rows *r,
                     int64_t k, int64_t n, layout of_d);

/* ---- mlp.c ---- */

enum { GATE, UP, DOWN, PROJECTIONS };
enum mlp_place { DENSE, ROUTED, SHARED };
typedef struct mlp {
    rows rows;
    int64_t emb, hidden;
    int gate, up;
    float limit;
    cl_mem weights[PROJECTIONS], biases[PROJECTIONS]; /* of GATE and UP the same memory, where they are fused */
    layout layouts[PROJECTIONS];
    char paths[PROJECTIONS][2][96]; /* of weights and of biases */
    cl_mem x, a, b, h;
} mlp;
/* Weights <prefix>wi_0<suffix> and so on (or wi); groups of them as r has them. */
void mlp_load(call *c, mlp *m, const rows *r, enum mlp_place place, const char *prefix, const char *suffix);
/* o [rows,emb] from x */
cl_mem mlp_forward(call *c, mlp *m, cl_mem x);
/* The gradient of x; those of weights are given. */
cl_mem mlp_backward(call *c, const mlp *m, cl_mem d_o);
/* Whether the case's activations are there. */
const char *mlp_refused(const assay_backend_request *request);

/* ---- operations ---- */

void run_rms_norm(call *c);
void run_mlp(call *c);
void run_gmm(call *c);
void run_permute(call *c);
void run_unpermute(call *c);
void run_routing(call *c);
void run_moe(call *c);
void run_attention(call *c);

#pragma GCC visibility pop
