/* The registry of operations: for each, which tensors a case has and how to evaluate it. One row an operation. */
#ifndef ASSAY_HARNESS_OPERATION_H
#define ASSAY_HARNESS_OPERATION_H

#include "cases/case.h"
#include "oracle/arithmetic/precision.h"
#include "oracle/base/tensor.h"

/* Every tensor of a case, in the order in which a fixture lists them. */
typedef struct assay_tensor_entry {
    assay_tensor_spec spec; /* path with its folder: inputs/, weights/, cotangents/, outputs/, gradients/, ... */
    assay_fill fill;        /* inputs/, weights/, cotangents/: how it is made when the case does not say */
    bool rows_may_be_unused; /* rows that belong to no group may hold anything, NaN too */
} assay_tensor_entry;

typedef struct assay_tensor_list {
    assay_tensor_entry *entries;
    int count;
} assay_tensor_list;

typedef struct assay_operation {
    const char *name;
    const char *summary;   /* one line for --help and the docs */
    const char *reference; /* the section of docs/operations.md that documents it */
    /* Refuses configurations that this operation cannot have; says which keys and what was expected. */
    assay_status (*check)(assay_context *ctx, const assay_case *c);
    /* Appends the operation's tensors: all that it could give, whatever the case asks for. Types of outputs and gradients
     * are float64, of indices int32, of inputs, weights and cotangents the case's dtype. */
    assay_status (*describe)(assay_context *ctx, const assay_case *c, assay_tensor_list *list);
    assay_status (*run)(assay_context *ctx, const assay_case *c, const assay_source *in, const assay_sink *out,
                        const assay_precision *precisions, int precision_count);
    double (*flops)(const assay_case *c, bool backward);
    int64_t (*memory)(const assay_case *c); /* bytes that run takes at its peak */
} assay_operation;

extern const assay_operation *const assay_operations[]; /* ends with NULL */
const assay_operation *assay_operation_by_name(const char *name); /* NULL when there is none */

/* Appends one tensor; dims as (label, size) pairs in a text: describe helpers. */
assay_status assay_tensor_list_add(assay_context *ctx, assay_tensor_list *list, const char *path, assay_dtype type,
                                   const assay_fill *fill, int rank, const char *const *labels, const int64_t *dims);
const assay_tensor_entry *assay_tensor_list_find(const assay_tensor_list *list, const char *path);
void assay_tensor_list_free(assay_tensor_list *list);

#endif
