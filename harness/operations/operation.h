/* The registry of operations: for each, which tensors a case has and how to evaluate it. One row an operation. */
#pragma once

#include <stddef.h>

#include "cases/case.h"
#include "oracle/arithmetic/precision.h"
#include "oracle/graph/graph.h"
#include "oracle/quad/quad.h"

/* A tensor as the operand of a product: for each index of its first `batch` axes a matrix, whose rows are the next `rows`
 * axes. Products sum over its columns, or over its rows. rows is 0: it is none that could be quantised. */
typedef struct assay_operand_axes {
    int batch, rows;
    bool sums_rows;
} assay_operand_axes;

/* What a tensor with a format is; the codes stand before their scales. */
typedef enum assay_operand_tensor {
    ASSAY_OPERAND_CODES,
    ASSAY_OPERAND_SCALE,
    ASSAY_OPERAND_TENSOR_SCALE
} assay_operand_tensor;

typedef struct assay_tensor_entry {
    assay_tensor_spec spec; /* path with its folder: inputs/, weights/, cotangents/, outputs/, gradients/, ... */
    assay_fill fill;        /* inputs/, weights/, cotangents/: how it is made when the case does not say */
    int unused_row_axes;    /* of rows that may belong to nothing and hold anything, NaN too: how many leading axes
                               number them; 0: every row counts. Such rows of a result are not judged */
    bool derived;           /* it follows from other inputs (assay_operation.derive) */
    bool infinite;          /* what is given may hold infinities */
    bool any_number;        /* or NaN */
    bool nan_codes;         /* codes of e4m3, of which 0x7f and 0xff are NaN: for the one the other will do */
    bool always_stored;     /* a checkpoint that every golden has: what others are made of is judged by it */
    bool requantised;       /* a checkpoint that a kernel quantises by a recipe, whose codes have no tensor */
    assay_operand_axes operand;
    const assay_block_format *format; /* of quantised operands (operands.h); NULL: it is numbers */
    assay_operand_tensor part;
    int32_t least, most; /* of whole numbers: what is outside is refused when it is read; 0, 0: anything goes */
} assay_tensor_entry;

/* Every tensor that an operation could read or give for a case, in the order of the data flow: what stands first is
 * computed first, gradients from the output back. */
typedef struct assay_tensor_list {
    assay_tensor_entry *entries;
    int count;
    assay_tensor_spec *sketched; /* gradients in whose place there are sketches */
    int sketched_count;
} assay_tensor_list;

/* An operation's configuration, which it makes of a case: what its functions and its second form get. */
typedef union assay_operation_config {
    max_align_t align;
    char bytes[8192];
} assay_operation_config;

typedef struct assay_describer assay_describer; /* op_support.h */
typedef struct assay_work assay_work;           /* op_work.h */

/* How many operations it takes: so many for each index of some axes, forward or forward and backward together. */
typedef struct assay_operation_count {
    const char *axes; /* letters; NULL: nothing is said here */
    double forward, both;
} assay_operation_count;

/* `config` is what config_of has made of the case; others call the functions assay_operation_NAME below, which have it made. */
typedef struct assay_operation {
    /* --- required --- */
    const char *name;
    const char *summary; /* one line for people */
    /* Refuses configurations that this operation cannot have; says which keys and what was expected. */
    assay_status (*config_of)(assay_context *ctx, const assay_case *c, void *config);
    /* Of the letters that its tensors' axes have. */
    int64_t (*axis_size)(const void *config, char axis);
    quad_operation second_form;
    /* Evaluation is one of three. A graph (op_block.c); with `run` it is what people are shown; */
    void (*graph)(const void *config, graph *g);
    /* or a function of tensors in memory (op_work.h), which makes all results of what is given; */
    assay_status (*compute)(assay_context *ctx, const assay_work *w);
    /* or a function from source to sink: tensors and results by the paths of describe. */
    assay_status (*run)(assay_context *ctx, const assay_case *c, const void *config, const assay_source *in,
                        const assay_sink *out);

    /* --- optional: what stands behind NULL, 0 or false --- */
    unsigned components; /* ASSAY_USES_...: what of a model changes its numbers; 0: nothing does */
    bool by_token;       /* its rows are tokens, which do not know each other; false: they are sequences */
    bool mesh;           /* whether a case may be spread over a mesh */
    bool quantised;      /* whether operands may be codes with scales (operands.h) */
    /* Appends the operation's tensors: inputs, then weights and results in the order in which they are used and
     * computed; a gradient beside what it is of. Inputs, weights and cotangents have the case's dtype (of those that `dtypes:` names
     * assay_operation_prepare changes it), results float64, indices int32. NULL: the graph says it. */
    void (*describe)(assay_describer *d, const void *config);
    /* Of its products, or of other operations where it has none; a multiply and an add are 2. NULL, and no axes in `count`: of the
     * graph's steps. */
    double (*operations)(const void *config, bool backward);
    assay_operation_count count;
    int64_t (*bytes)(const void *config); /* that a run takes at its peak; NULL: of its graph, or its tensors */

    /* --- optional: NULL, and there is nothing of the kind --- */
    /* An input that follows from others, of which `in` gives those that are drawn (assay_tensor_entry.derived): values
     * or indices, whole; values are rounded to the tensor's grid afterwards. */
    assay_status (*derive)(assay_context *ctx, const assay_case *c, const assay_tensor_entry *entry,
                           const assay_source *in, double *values, int32_t *indices);
    /* Whether a candidate's tensor of schedule/ keeps the rules of the case's schedule; refuses with the one that it
     * breaks. NULL: it is compared for equality. */
    assay_status (*lawful)(assay_context *ctx, const assay_case *c, const char *path, const int32_t *values,
                           int64_t count, const assay_source *candidate);
    /* Which rows of a tensor that may have unused ones are used, allocated. NULL: only given tensors have such. */
    assay_status (*used_rows)(assay_context *ctx, const assay_case *c, const assay_tensor_entry *of,
                              const assay_source *in, bool **used);
} assay_operation;

/* The operations, in the order in which they are listed; assay_op_NAME is defined in one of the op_*.c. */
#define ASSAY_OPERATIONS(X)                                                                                            \
    X(rms_norm)                                                                                                        \
    X(layer_norm)                                                                                                      \
    X(l2_norm)                                                                                                         \
    X(gmm)                                                                                                             \
    X(permute)                                                                                                         \
    X(unpermute)                                                                                                       \
    X(routing)                                                                                                         \
    X(mlp)                                                                                                             \
    X(moe)                                                                                                             \
    X(yarn_rope)                                                                                                       \
    X(attention)                                                                                                       \
    X(merge_states)                                                                                                    \
    X(mla_decode)                                                                                                      \
    X(gqa_decode)                                                                                                      \
    X(cache_append)                                                                                                    \
    X(mla)                                                                                                             \
    X(gqa)                                                                                                             \
    X(deepseek_layer)                                                                                                  \
    X(deepseek_stack)                                                                                                  \
    X(decoder_layer)                                                                                                   \
    X(decoder_stack)                                                                                                   \
    X(batch_split)                                                                                                     \
    X(quantize)                                                                                                        \
    X(dequantize)                                                                                                      \
    X(program)

#define X(name) extern const assay_operation assay_op_##name;
ASSAY_OPERATIONS(X)
#undef X

extern const assay_operation *const assay_operations[];           /* ends with NULL */
const assay_operation *assay_operation_by_name(const char *name); /* NULL when there is none */
/* "rms_norm, gmm": of all, or of those that have something. */
void assay_operation_names(char *names, size_t size, bool (*has)(const assay_operation *operation));
bool assay_is_layer(const assay_case *c); /* one decoder layer or a stack of them */

/* What holds for every operation (sizes above 0, no mesh where it has none, ...), then the operation's own check, then
 * the tensors. Refuses inputs that the case describes and the operation does not have. */
assay_status assay_operation_prepare(assay_context *ctx, const assay_case *c, const assay_operation **operation,
                                     assay_tensor_list *list);

/* Its functions for a case. What cannot be made of the case is 0, false or nothing where there is no status. */
assay_status assay_operation_configure(assay_context *ctx, const assay_operation *operation, const assay_case *c,
                                       assay_operation_config *config);
assay_status assay_operation_graph(assay_context *ctx, const assay_operation *operation, const assay_case *c, graph *g);
/* What the less accurate forms of its steps are, in words (graph_kind.inaccurate); NULL: no step has one. */
assay_status assay_operation_inaccurate(assay_context *ctx, const assay_operation *operation, const assay_case *c,
                                        const char **form);
bool assay_operation_streams(const assay_operation *operation, const assay_case *c, const char *path);
double assay_operation_flops(const assay_operation *operation, const assay_case *c, bool backward);
int64_t assay_operation_memory(const assay_operation *operation, const assay_case *c);

/* Evaluates: results by the paths of assay_operation_prepare's list. */
assay_status assay_operation_run(assay_context *ctx, const assay_operation *operation, const assay_case *c,
                                 const assay_source *in, const assay_sink *out);
/* The same of gradients in full, where the case would have sketches of them, and of operands that are numbers. */
assay_status assay_operation_evaluate(assay_context *ctx, const assay_operation *operation, const assay_case *c,
                                      const assay_source *in, const assay_sink *out);

/* The configuration with what is computed in the place of values that are left open. */
assay_status assay_case_resolve(assay_context *ctx, const assay_case *c, assay_model_config *resolved);
/* case_yaml: the complete case (assay_case_to_yaml), resolved so. */
assay_status assay_case_yaml(assay_context *ctx, const assay_case *c, char **text);
/* A case file that gives the same, without the keys of a model that have their defaults. */
assay_status assay_case_brief_yaml(assay_context *ctx, const assay_case *c, char **text);

/* Of a tensor whose rows may be unused: how many numbers a row has. */
int64_t assay_unused_row_width(const assay_tensor_entry *entry);

const assay_tensor_entry *assay_tensor_list_find(const assay_tensor_list *list, const char *path);
void assay_tensor_list_free(assay_tensor_list *list); /* safe on a zeroed struct */
