/* What ggml.c calls of ggml's C interface (ggml.h, ggml-alloc.h and ggml-backend.h of llama.cpp), for libraries that ship without
 * headers. Tensors, contexts and graphs stay opaque. Sizes ne[] are in ggml's order, the fastest first. */
#ifndef ASSAY_GGML_API_H
#define ASSAY_GGML_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ggml_tensor ggml_tensor;
typedef struct ggml_context ggml_context;
typedef struct ggml_cgraph ggml_cgraph;
typedef struct ggml_backend *ggml_backend_t;
typedef struct ggml_backend_reg *ggml_backend_reg_t;
typedef struct ggml_backend_buffer *ggml_backend_buffer_t;

enum { GGML_TYPE_F32 = 0, GGML_TYPE_F16 = 1, GGML_TYPE_I32 = 26, GGML_TYPE_BF16 = 30 };
enum { GGML_PREC_F32 = 10 };
enum { GGML_ROPE_NORMAL = 0, GGML_ROPE_NEOX = 2 };

struct ggml_init_params {
    size_t mem_size;
    void *mem_buffer;
    bool no_alloc;
};

/* ---- contexts, tensors, running ---- */

const char *ggml_type_name(int type);
size_t ggml_tensor_overhead(void);
size_t ggml_graph_overhead(void);
ggml_context *ggml_init(struct ggml_init_params params);
void ggml_free(ggml_context *ctx);
ggml_tensor *ggml_new_tensor(ggml_context *ctx, int type, int rank, const int64_t *ne);
int64_t ggml_nelements(const ggml_tensor *t);
size_t ggml_nbytes(const ggml_tensor *t);
ggml_cgraph *ggml_new_graph(ggml_context *ctx);
void ggml_build_forward_expand(ggml_cgraph *graph, ggml_tensor *t);
ggml_backend_reg_t ggml_backend_load(const char *path);
void *ggml_backend_reg_get_proc_address(ggml_backend_reg_t reg, const char *name);
void ggml_backend_load_all_from_path(const char *folder);
ggml_backend_reg_t ggml_backend_reg_by_name(const char *name);
ggml_backend_t ggml_backend_init_by_name(const char *name, const char *params);
void ggml_backend_free(ggml_backend_t backend);
ggml_backend_buffer_t ggml_backend_alloc_ctx_tensors(ggml_context *ctx, ggml_backend_t backend);
void ggml_backend_buffer_free(ggml_backend_buffer_t buffer);
void ggml_backend_tensor_set(ggml_tensor *t, const void *data, size_t offset, size_t size);
void ggml_backend_tensor_get(const ggml_tensor *t, void *data, size_t offset, size_t size);
int ggml_backend_graph_compute(ggml_backend_t backend, ggml_cgraph *graph);

/* ---- operators ---- */

ggml_tensor *ggml_add(ggml_context *ctx, ggml_tensor *a, ggml_tensor *b);
ggml_tensor *ggml_mul(ggml_context *ctx, ggml_tensor *a, ggml_tensor *b);
ggml_tensor *ggml_div(ggml_context *ctx, ggml_tensor *a, ggml_tensor *b);
ggml_tensor *ggml_scale(ggml_context *ctx, ggml_tensor *a, float s);
ggml_tensor *ggml_sum_rows(ggml_context *ctx, ggml_tensor *a);
ggml_tensor *ggml_cont(ggml_context *ctx, ggml_tensor *a);
ggml_tensor *ggml_reshape_2d(ggml_context *ctx, ggml_tensor *a, int64_t ne0, int64_t ne1);
ggml_tensor *ggml_reshape_3d(ggml_context *ctx, ggml_tensor *a, int64_t ne0, int64_t ne1, int64_t ne2);
ggml_tensor *ggml_view_2d(ggml_context *ctx, ggml_tensor *a, int64_t ne0, int64_t ne1, size_t nb1, size_t offset);
ggml_tensor *ggml_permute(ggml_context *ctx, ggml_tensor *a, int axis0, int axis1, int axis2, int axis3);
ggml_tensor *ggml_get_rows(ggml_context *ctx, ggml_tensor *a, ggml_tensor *rows);
ggml_tensor *ggml_rms_norm(ggml_context *ctx, ggml_tensor *a, float epsilon);
ggml_tensor *ggml_relu(ggml_context *ctx, ggml_tensor *a);
ggml_tensor *ggml_sigmoid(ggml_context *ctx, ggml_tensor *a);
ggml_tensor *ggml_swiglu_split(ggml_context *ctx, ggml_tensor *gate, ggml_tensor *up);
ggml_tensor *ggml_geglu_split(ggml_context *ctx, ggml_tensor *gate, ggml_tensor *up);
ggml_tensor *ggml_geglu_erf_split(ggml_context *ctx, ggml_tensor *gate, ggml_tensor *up);
ggml_tensor *ggml_swiglu_oai(ggml_context *ctx, ggml_tensor *gate, ggml_tensor *up, float alpha, float limit);
ggml_tensor *ggml_soft_max(ggml_context *ctx, ggml_tensor *a);
ggml_tensor *ggml_soft_max_ext(ggml_context *ctx, ggml_tensor *a, ggml_tensor *mask, float scale, float max_bias);
ggml_tensor *ggml_argsort_top_k(ggml_context *ctx, ggml_tensor *a, int k);
/* a [k,n], b [k,m] -> [n,m] */
ggml_tensor *ggml_mul_mat(ggml_context *ctx, ggml_tensor *a, ggml_tensor *b);
/* experts [k,n,E], b [k,K or 1,T], ids [K,T] -> [n,K,T] */
ggml_tensor *ggml_mul_mat_id(ggml_context *ctx, ggml_tensor *experts, ggml_tensor *b, ggml_tensor *ids);
/* a [n,K,T] + biases [n,E] of ids [K,T] */
ggml_tensor *ggml_add_id(ggml_context *ctx, ggml_tensor *a, ggml_tensor *biases, ggml_tensor *ids);
/* x [Dr,N,T], positions [T] */
ggml_tensor *ggml_rope_ext(ggml_context *ctx, ggml_tensor *x, ggml_tensor *positions, ggml_tensor *factors, int dims,
                           int mode, int original_length, float base, float scale, float ext_factor, float attn_factor,
                           float beta_fast, float beta_slow);
/* q [d,S,N,B], k [d,S,Nkv,B], v [dv,S,Nkv,B], mask [S,S,1,B] float16 -> [dv,N,S,B] */
ggml_tensor *ggml_flash_attn_ext(ggml_context *ctx, ggml_tensor *q, ggml_tensor *k, ggml_tensor *v, ggml_tensor *mask,
                                 float scale, float max_bias, float softcap);
void ggml_flash_attn_ext_set_prec(ggml_tensor *out, int precision);
void ggml_flash_attn_ext_add_sinks(ggml_tensor *out, ggml_tensor *sinks);

#endif
