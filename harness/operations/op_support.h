/* What the rows of the registry share: describing tensors, reading them whole, writing results and their scales. */
#ifndef ASSAY_HARNESS_OP_SUPPORT_H
#define ASSAY_HARNESS_OP_SUPPORT_H

#include "harness/operation.h"
#include "oracle/moe/moe.h"

/* A shape as text and numbers: assay_dims("BSD", b, s, d) gives labels "B", "S", "D". */
typedef struct assay_dims {
    const char *labels; /* one letter an axis; 'd', 'n' etc. are written as they are in SPEC.md */
    int64_t dims[ASSAY_MAX_RANK];
} assay_dims;

assay_status assay_describe(assay_context *ctx, assay_tensor_list *list, const char *path, assay_dtype type,
                            const assay_fill *fill, assay_dims dims);
/* outputs/NAME float64 and, unless `fill` is NULL, cotangents/NAME of the case's type. */
assay_status assay_describe_output(assay_context *ctx, assay_tensor_list *list, const assay_case *c, const char *name,
                                   const assay_fill *fill, assay_dims dims);
/* inputs/... or weights/... of the case's type, and gradients/... of it. */
assay_status assay_describe_variable(assay_context *ctx, assay_tensor_list *list, const assay_case *c, const char *path,
                                     assay_fill fill, assay_dims dims);

assay_fill assay_fill_normal(double scale, double mean);
assay_fill assay_fill_fan_in(int64_t fan_in); /* normal, scale 1/sqrt(fan_in) */
assay_fill assay_fill_range(assay_distribution distribution, double low, double high);

/* The whole tensor, allocated; *out stays NULL for one that the source does not have. */
assay_status assay_read_whole(assay_context *ctx, const assay_source *in, const char *path, int64_t count,
                              double **out);
assay_status assay_read_whole_i32(assay_context *ctx, const assay_source *in, const char *path, int64_t count,
                                  int32_t **out);

bool assay_wants(const assay_sink *out, const char *path);
/* Written if wanted. */
assay_status assay_write_result(assay_context *ctx, const assay_sink *out, const char *path, int64_t count,
                                const double *values);
assay_status assay_write_result_i32(assay_context *ctx, const assay_sink *out, const char *path, int64_t count,
                                    const int32_t *values);
/* The standard deviations of variances, as error_scale/<precision>/<path>, if wanted. */
assay_status assay_write_scale(assay_context *ctx, const assay_sink *out, const assay_precision *precision,
                               const char *path, int64_t count, const double *variance);

/* Configurations of the operations from the case's keys. */
assay_status assay_routing_config_of(assay_context *ctx, const assay_case *c, assay_routing_config *config);
assay_status assay_moe_config_of(assay_context *ctx, const assay_case *c, assay_moe_config *config);
assay_status assay_mlp_config_of(assay_context *ctx, const assay_case *c, assay_gated_mlp_config *config);

/* Gemma 4 scales each expert's weight by a number of its own. */
bool assay_has_per_expert_scale(const assay_case *c);

/* Refuses a key whose value is below 1: "emb_dim (base_emb_dim) is 0, expected 1 or more". */
assay_status assay_require_positive(assay_context *ctx, const char *key, int64_t value);

extern const assay_operation assay_op_rms_norm, assay_op_gmm, assay_op_permute, assay_op_unpermute, assay_op_routing,
    assay_op_mlp, assay_op_moe;

#endif
