/* Tables of tensors: what the weights and checkpoints of a block are called and how large they are, and what is done with
 * all weights of a block alike. Weights and their gradients are arrays of pointers in the order of their table; NULL where
 * a tensor is not there, or where nobody wants it. */
#pragma once

#include "oracle/base/tensor.h"

/* It says how a case fills the tensor where it does not say so itself. A source may lack ASSAY_BIAS, but nothing else:
 * other biases and sinks are there wherever the table has them. */
typedef enum assay_tensor_kind {
    ASSAY_KERNEL,
    ASSAY_BIAS, /* of an MLP */
    ASSAY_PROJECTION_BIAS,
    ASSAY_NORM_SCALE,
    ASSAY_SINK,
    ASSAY_CHECKPOINT
} assay_tensor_kind;

typedef struct assay_tensor_row {
    const char *name; /* in the folder of its block: "wi_0/kernel"; NULL: there is no such tensor */
    assay_tensor_kind kind;
    char axes[ASSAY_MAX_RANK + 1]; /* one letter each: harness/operations/op_support.c has their labels */
    assay_shape shape;
    int64_t fan_in;     /* of a kernel: how many terms a sum of its product has */
    const char *folder; /* of its block within a layer: "mlp/"; NULL: none */
    int inputs, below;  /* of a kernel: axes that are summed over, and how many are in front of these */
} assay_tensor_row;

/* A row as it is written down, for every configuration alike. */
typedef struct assay_tensor_form {
    const char *name;
    assay_tensor_kind kind;
    const char *axes;
    int inputs; /* of a kernel: so many of its axes, the first ones, are summed over */
} assay_tensor_form;

assay_tensor_row assay_tensor_row_of(const assay_tensor_form *form, const void *config,
                                     int64_t (*axis_size)(const void *config, char axis));
/* The same tensor with more axes in front: one for each expert, or the rows of a checkpoint. */
assay_tensor_row assay_tensor_row_below(const char *axes, const int64_t *dims, assay_tensor_row row);
int64_t assay_tensor_row_count(const assay_tensor_row *row); /* elements; 0 when there is no such tensor */

enum { ASSAY_MOST_ROWS = 32 };
typedef struct assay_tensor_table {
    int count;
    assay_tensor_row rows[ASSAY_MOST_ROWS];
} assay_tensor_table;

/* ROOT PREFIX FOLDER name; root "weights/" or "gradients/weights/", prefix "layers/3/" or "". */
void assay_tensor_path(const char *root, const char *prefix, const assay_tensor_row *row, char path[ASSAY_PATH_SIZE]);

/* Room for the weights, whose pointers are NULL before. */
assay_status assay_weights_alloc(assay_context *ctx, const assay_source *in, const char *prefix,
                                 const assay_tensor_table *table, double **weights);
/* The weights of one expert, where a tensor has those of all one after the other; 0: of a block that has no experts. They are
 * where the source lends them, or in their room. */
assay_status assay_weights_lend(assay_context *ctx, const assay_source *in, const char *prefix,
                                const assay_tensor_table *table, int64_t expert, double *const *room, double **weights);
/* Whether the sink wants the gradient of any weight that the source has. */
bool assay_wants_any_gradient(const assay_source *in, const assay_sink *out, const char *prefix,
                              const assay_tensor_table *table);
/* Room for those gradients of `weights` that the sink wants; NULL before. */
assay_status assay_gradients_alloc(assay_context *ctx, const assay_sink *out, const char *prefix,
                                   const assay_tensor_table *table, double *const *weights, double **gradients);
/* Where the next gradients are made: where the sink will have them, or in their room. */
void assay_gradients_place(const assay_sink *out, const char *prefix, const assay_tensor_table *table,
                           double *const *room, double **gradients);
/* Those that are there and wanted. */
assay_status assay_gradients_write(assay_context *ctx, const assay_sink *out, const char *prefix,
                                   const assay_tensor_table *table, double *const *gradients);
/* The same, all of them 0; what they held is lost. */
assay_status assay_gradients_write_zeros(assay_context *ctx, const assay_sink *out, const char *prefix,
                                         const assay_tensor_table *table, double *const *gradients);
void assay_weights_free(const assay_tensor_table *table, double **weights); /* also gradients; NULL afterwards */
