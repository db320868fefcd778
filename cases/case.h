/* A case: one operation at one configuration, with everything needed to make its inputs again. Read from YAML
 * (docs/interface.md, "Case file"), changed by --set, written back complete as case_yaml. */
#pragma once

#include <stddef.h>

#include "cases/model_config.h"
#include "oracle/base/block_format.h"
#include "oracle/base/dtype.h"
#include "oracle/base/random.h"
#include "oracle/base/tensor.h"

/* How one tensor is filled: the value of a key under `inputs:`. The key is a path without its leading folder where that
 * is unambiguous ("x", "gate/bias", "wi_0"), or the full path ("weights/wi_0", "cotangents/y"). */
typedef struct assay_case_input {
    char path[ASSAY_PATH_SIZE];
    assay_fill fill; /* fill.values points into `values` */
    double *values;
    int64_t tail_nan_rows; /* the last so many rows hold NaN: rows that may belong to no group (gmm) or be padding */
    bool unused_nan;       /* every row that belongs to nothing holds NaN */
    int line;              /* in the YAML, for messages; 0 when from elsewhere */
} assay_case_input;

/* An entry of `dtypes:`: the type of the tensors whose path matches, with or without its leading folder (that of
 * cotangents never goes without). */
typedef struct assay_case_dtype {
    char pattern[ASSAY_PATH_SIZE];
    assay_dtype type;
} assay_case_dtype;

/* An entry of `quant_formats:`: the tensor of that path, with its folder, is codes with scales. */
typedef struct assay_case_quant_format {
    char path[ASSAY_PATH_SIZE];
    const assay_block_format *format;
} assay_case_quant_format;

/* A list of texts: tags, gradient patterns, checkpoint names, profiles. `all` and `none` as single words are kept as
 * such. */
typedef struct assay_text_list {
    char **items;
    int count;
} assay_text_list;

typedef struct assay_case {
    char name[ASSAY_PATH_SIZE];
    char description[256];
    char op[ASSAY_TEXT_SIZE];
    char model[ASSAY_TEXT_SIZE]; /* model_name before `config`: a model file's own, else the file's name; or "" */
    assay_text_list tags;
    assay_model_config config; /* model, then overrides */
    int64_t batch, sequence;
    int64_t mesh_data, mesh_fsdp, mesh_expert, mesh_tensor, mesh_mlp_tensor, mesh_fsdp_transpose;
    uint64_t seed;
    assay_dtype dtype;        /* the grid of inputs, weights and cotangents; bfloat16 by default */
    assay_case_dtype *dtypes; /* of those that have another */
    int dtype_count;
    assay_case_quant_format *quant_formats; /* of those that are quantised */
    int quant_format_count;
    assay_distribution fill; /* of what is filled with normals when `inputs` does not say: normal or bell */
    assay_case_input *inputs;
    int input_count;
    int64_t position_start, position_step;
    int64_t sketch_above; /* gradients of larger weights are held as sketches (docs/large.md); 0: none is */
    int64_t drawn_above;  /* weights of more elements are in no golden: the seed draws them; 0: all are in it */
    int64_t only_layer;   /* of a stack the one layer that is evaluated, from 0; -1: all of them */
    struct assay_program *program; /* of op program; NULL: it is another operation */
    assay_text_list gradients;     /* default: all */
    assay_text_list checkpoints;   /* default: none */
    assay_text_list profiles;      /* default: f64, f32, bf16, f16 */
} assay_case;

void assay_case_free(assay_case *c); /* safe on a zeroed struct */

/* From text; `origin` is a file name for messages: "cases/moe.yml:12:7: unknown key 'num_expert' ...". A multi-document
 * text gives several; *cases is allocated. */
assay_status assay_cases_parse(assay_context *ctx, const char *origin, const char *text, size_t size,
                               assay_case **cases, int *count);
/* The same of a case_yaml that a program wrote: every key stands there, and none counts as given, so that values which
 * an earlier program wrote without honouring them are as they were then. */
assay_status assay_cases_parse_stored(assay_context *ctx, const char *origin, const char *text, size_t size,
                                      assay_case **cases, int *count);
void assay_cases_free(assay_case *cases, int count);

/* `key=value`: a configuration key, or model (a name, or a path from the working directory, in place of all
 * configuration keys), case, batch, sequence, seed, dtype, gradients, checkpoints, profiles, fill,
 * mesh.{data,fsdp,fsdp_transpose,expert,tensor,mlp_tensor}, positions.{start,step}, inputs.PATH ({distribution: ...} in YAML's flow form), dtypes.PATTERN, quant_formats.PATH. A value
 * that is refused leaves the case as it was. */
assay_status assay_case_set(assay_context *ctx, assay_case *c, const char *assignment);

/* The complete case as YAML, no model file needed; parsing it gives an equal case. *text is allocated. */
assay_status assay_case_to_yaml(assay_context *ctx, const assay_case *c, char **text);

/* The same without the keys that say nothing: neither given nor other than their default. */
assay_status assay_case_to_short_yaml(assay_context *ctx, const assay_case *c, char **text);

/* Changes that --set does not make. `copy` owns what it has, is zeroed before and freed if it fails. */
assay_status assay_case_copy(assay_context *ctx, const assay_case *c, assay_case *copy);
void assay_case_drop_input(assay_case *c, int index);        /* nothing is said of the tensor any more */
void assay_case_drop_quant_format(assay_case *c, int index); /* the tensor is numbers again */
void assay_case_drop_tags(assay_case *c);
void assay_case_leave_open(assay_case *c, int key);     /* its default, as if it had not been given */
bool assay_case_says_key(const assay_case *c, int key); /* it was given, or is not the default */

/* Refuses a program that does not fit its sizes any more. */
assay_status assay_case_check_program(assay_context *ctx, const assay_case *c);

/* Each `PATTERN` (the name of a catalogue case, a glob over the names, a path to a YAML file) as a list of cases: those
 * of the catalogue first and in its order, then those of files; without repeats. A pattern that matches nothing is
 * refused, with the nearest names; so are two cases of one name. A glob finds cases of true size, which fill a disk,
 * only when it begins with "true-size/". */
assay_status assay_cases_find(assay_context *ctx, int pattern_count, char *const *patterns, assay_case **cases,
                              int *count);
assay_status assay_catalogue(assay_context *ctx, assay_case **cases, int *count);

/* What the case says of a tensor, by its path with or without the leading folder; NULL when it says nothing. */
const assay_case_input *assay_case_input_of(const assay_case *c, const char *path);

/* The entry of `dtypes:` that gives a tensor its type, the last that matches; NULL: it has the case's dtype. */
const assay_case_dtype *assay_case_dtype_of(const assay_case *c, const char *path);
bool assay_case_dtype_matches(const assay_case_dtype *dtype, const char *path);
/* Whether the entry names this output of a program, by its path or by its name. */
bool assay_case_keeps(const assay_case *c, const assay_case_dtype *dtype, const assay_tensor_spec *spec);

/* The format of a tensor that is quantised; NULL: it is not. */
const assay_block_format *assay_case_quant_format_of(const assay_case *c, const char *path);
/* Whether operands of products are codes with scales, given so or made so by a recipe. */
bool assay_case_has_codes(const assay_case *c);
bool assay_case_quantises(const assay_case *c, const char *path); /* it, or it is the scale of one that is */

/* A case with the tag `exact` says that every operation of it is exact in its profiles: its error scales are 0, and a
 * candidate is held to equality. */
bool assay_case_is_exact(const assay_case *c);

/* Whether `path` ("gradients/inputs/x") matches an entry of the list: "all", or a pattern (glob) over the path without
 * `prefix` ("gradients/"). "none" matches nothing. */
bool assay_text_list_matches(const assay_text_list *list, const char *prefix, const char *path);
void assay_text_list_free(assay_text_list *list);
