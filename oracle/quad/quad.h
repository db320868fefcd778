/* The second form: every operation once more, naively, in binary128, straight from the formulas of docs/operations.md. It
 * shares no code with oracle/ops, oracle/moe, oracle/mesh and oracle/layer (their headers give the configurations, and
 * their tables the names and shapes of tensors), so what both forms get wrong alike can only be the definition: where it uses
 * the float64 engine, for large products, it checks it (quad_product.h). harness/certify/certify.h holds float64 results against it.
 *
 * A form reads named tensors and puts named results, under the paths of the fixture (docs/interface.md), on a tape (tape.h), whose sweep
 * gives the gradients of the sum over outputs of <cotangent, output>. Optional tensors are there or not. Inputs are
 * binary128, so that a central difference can move one by 1e-10 of itself. */
#pragma once

#include "oracle/base/tensor.h"
#include "oracle/layer/batch_split_function.h"
#include "oracle/layer/decoder_stack.h"
#include "oracle/moe/moe.h"
#include "oracle/moe/permute.h"
#include "oracle/moe/routing.h"
#include "oracle/ops/cache_format.h"
#include "oracle/ops/decode_attention.h"
#include "oracle/ops/gated_mlp.h"
#include "oracle/ops/gmm_layout.h"
#include "oracle/ops/merge_states.h"
#include "oracle/ops/quant_recipe.h"
#include "oracle/ops/quantize.h"
#include "oracle/program/program.h"

typedef __float128 quad;

/* Numbers or indices: one of the two pointers is NULL. Both are where the numbers are read from `source`, under the
 * tensor's path, a piece at a time, since they are too many to hold: what quad_moe says it reads so may come so. */
typedef struct quad_tensor {
    char path[ASSAY_PATH_SIZE];
    assay_shape shape;
    quad *values;
    int32_t *indices;
    const assay_source *source;
} quad_tensor;

/* Owns its tensors. Starts zeroed. */
typedef struct quad_tensors {
    quad_tensor *items;
    int count;
} quad_tensors;

void quad_tensors_free(quad_tensors *tensors);                                       /* safe on a zeroed struct */
const quad_tensor *quad_tensors_find(const quad_tensors *tensors, const char *path); /* NULL when there is none */

/* Adds a tensor of undefined contents for the caller to fill, or a copy. Refuses a path that is there already. */
assay_status quad_tensors_add(assay_context *ctx, quad_tensors *tensors, const char *path, const assay_shape *shape,
                              quad **values);
assay_status quad_tensors_add_indices(assay_context *ctx, quad_tensors *tensors, const char *path,
                                      const assay_shape *shape, int32_t **indices);
assay_status quad_tensors_copy_f64(assay_context *ctx, quad_tensors *tensors, const char *path,
                                   const assay_shape *shape, const double *values);
assay_status quad_tensors_copy_i32(assay_context *ctx, quad_tensors *tensors, const char *path,
                                   const assay_shape *shape, const int32_t *indices);
assay_status quad_tensors_stream(assay_context *ctx, quad_tensors *tensors, const char *path, const assay_shape *shape,
                                 const assay_source *source);

/* The list takes the tensor's pointers over, under another name. Of a lent tensor they stay the lender's: its list is
 * freed without them. */
assay_status quad_tensors_list(assay_context *ctx, quad_tensors *tensors, const char *path, const quad_tensor *tensor);

/* The tensor at `path`, which must have `count` elements; absent: an error, or NULL for the optional forms. */
assay_status quad_read(assay_context *ctx, const quad_tensors *in, const char *path, int64_t count,
                       const quad **values);
assay_status quad_read_optional(assay_context *ctx, const quad_tensors *in, const char *path, int64_t count,
                                const quad **values);
assay_status quad_read_indices(assay_context *ctx, const quad_tensors *in, const char *path, int64_t count,
                               const int32_t **indices);
assay_status quad_alloc(assay_context *ctx, int64_t count, quad **values);
uint64_t quad_next_random(uint64_t *state);

/* An operation on the tape: reads, computes, puts. `config` is its own. */
typedef struct quad_tape quad_tape;
typedef void quad_form(quad_tape *t, const void *config);
void *quad_keep(quad_tape *t, int64_t count, size_t size); /* lives as long as the tape; NULL after an error */

/* Those results that `wanted` names, NULL: all; and gradients/ of what it has one of (or a sketch of one): `in` has cotangents/.
 * *straight_through, which may be NULL: whether gradients are not derivatives, since what is quantised passes as it is. */
assay_status quad_differentiate(assay_context *ctx, quad_form *form, const void *config, const quad_tensors *in,
                                const quad_tensors *wanted, quad_tensors *out, bool *straight_through);
/* The same without gradients. */
assay_status quad_evaluate(assay_context *ctx, quad_form *form, const void *config, const quad_tensors *in,
                           const quad_tensors *wanted, quad_tensors *out);

/* The forms, by what `config` points to. Their tensors are those of the operation of the name. */
typedef struct quad_gmm_config {
    assay_gmm_config gmm;
    assay_quant_recipe_config recipe; /* its recipe is NULL: none */
} quad_gmm_config;

/* A MoE block, and how it is spread over a mesh; a zeroed sharding is one device. */
typedef struct quad_moe_config {
    assay_moe_config moe;
    assay_sharding sharding;
    int64_t w13_shards; /* of whose gate and up wi has columns side by side (w13_reorder_size); 0 is 1 */
} quad_moe_config;

/* Attention as a mesh of more than one shard has it: checkpoints of what has heads are each shard's own,
 * [M,B/b,S,N/h,..] (lse [M,B/b,N/h,S]); h is mesh expert times mlp_tensor, b data times fsdp. */
typedef struct quad_mla_config {
    assay_mla_config mla;
    assay_mesh mesh;
} quad_mla_config;
typedef struct quad_gqa_config {
    assay_gqa_config gqa;
    assay_mesh mesh;
} quad_gqa_config;

typedef struct quad_decode_config {
    assay_decode_config decode;      /* its scale is not read */
    assay_mla_config mla;            /* of a latent cache: what the scale follows from */
    double query_scale;              /* of another; 0: the root of the head's size */
    assay_cache_append_config bytes; /* streams of a cache of bytes; 0: of numbers */
    bool split_cache;                /* latents and their rope are two caches */
} quad_decode_config;

quad_form quad_rms_norm;     /* double: epsilon */
quad_form quad_layer_norm;   /* likewise */
quad_form quad_l2_norm;      /* likewise */
quad_form quad_gated_mlp;    /* assay_gated_mlp_config */
quad_form quad_gmm;          /* quad_gmm_config */
quad_form quad_permute;      /* assay_permute_dims */
quad_form quad_unpermute;    /* assay_permute_dims */
quad_form quad_routing;      /* assay_routing_config */
quad_form quad_moe;          /* quad_moe_config */
quad_form quad_quantize;     /* assay_quantize_config */
quad_form quad_dequantize;   /* assay_quantize_config */
quad_form quad_yarn_rope;    /* assay_rope_config */
quad_form quad_attention;    /* assay_attention_config */
quad_form quad_merge_states; /* assay_merge_states_config */
quad_form quad_decode;       /* quad_decode_config */
quad_form quad_cache_append; /* assay_cache_append_config */
quad_form quad_mla;          /* quad_mla_config */
quad_form quad_gqa;          /* quad_gqa_config */
quad_form quad_stack;        /* assay_stack_config; under the batch-split schedule too, without its events */
quad_form quad_program;      /* a pointer to an assay_program */
quad_form quad_function;     /* assay_function_view: one function of the batch-split module, or its NAME_bwd */

/* An operation as certify.h takes it. */
typedef struct quad_operation {
    quad_form *form;
    /* Whether a tensor of that path may be one with a source; NULL: none may. */
    bool (*streams)(const void *config, const char *path);
} quad_operation;

/* Whether the block may get the tensor of that path as a source: a kernel of routed experts, on one device, without a recipe. */
bool quad_moe_streams(const void *config, const char *path);

/* Where a number of a kernel lies among those of all shards (weights_on_shards): of expert e, column d of D, column h of H,
 * or, of up in fused weights, H + h. weight: ASSAY_MLP_WI, WI_0, WI_1 or WO. */
int64_t quad_kernel_place(const assay_moe_config *config, const assay_sharding *sharding, int weight, int64_t e,
                          int64_t d, int64_t h);
