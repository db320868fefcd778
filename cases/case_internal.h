/* What the sources of cases/ share with each other and with nobody else. */
#pragma once

#include <stdio.h>

#include "cases/yaml_reader.h"
#include "oracle/base/nearest.h"

/* A file that was compiled into the program. */
typedef struct assay_embedded_file {
    const char *name; /* "moe" of catalogue/moe.yml */
    const unsigned char *text;
    size_t size;
} assay_embedded_file;

extern const assay_embedded_file assay_embedded_models[], assay_embedded_catalogue[], assay_embedded_neutral_keys[],
    assay_embedded_hugging_face[];
extern const int assay_embedded_model_count, assay_embedded_catalogue_count, assay_embedded_neutral_key_count,
    assay_embedded_hugging_face_count;

/* Whether a key stands in cases/neutral_keys/LIST.txt, where lines that begin with # are comments. Each list begins with one. */
bool assay_key_is_neutral(const char *list, const char *name);

typedef struct assay_case_list {
    assay_case *cases;
    int count;
    bool stored; /* assay_yaml.stored, while they are read */
} assay_case_list;

assay_status assay_text_list_append(assay_context *ctx, assay_text_list *list, const char *text, size_t length);

/* A case with every default in place. */
assay_status assay_case_init(assay_context *ctx, assay_case *c);

/* Reads the value of one key of a case other than op, model, config and inputs: "batch", "mesh.expert". *known says
 * whether there is such a key; when not, nothing else is done. */
assay_status assay_case_read_field(const assay_yaml *y, assay_case *c, const char *key, const yaml_node_t *value,
                                   bool *known);
void assay_case_offer_fields(assay_nearest *nearest); /* their names */

/* model: a name, a path or a mapping. */
assay_status assay_case_read_model(const assay_yaml *y, assay_case *c, const yaml_node_t *node);
/* The keys of a model in a mapping. */
assay_status assay_model_read_mapping(const assay_yaml *y, const yaml_node_t *node, assay_model_config *config);
/* A configuration of Hugging Face, which has a model_type (docs/hugging-face.md). */
assay_status assay_hugging_face_read(const assay_yaml *y, const yaml_node_t *root, assay_model_config *config);
/* config: unknown keys are refused. */
assay_status assay_case_read_config(const assay_yaml *y, assay_case *c, const yaml_node_t *node);
/* The same by its name, and the keys of MaxText that might change something; false for any other. */
bool assay_model_read_by_name(const assay_yaml *y, assay_model_config *config, const char *name,
                              const yaml_node_t *value, assay_status *status);
void assay_model_offer_keys(assay_nearest *nearest); /* both kinds */
/* rope_interleave until it is given: MaxText's is true, and means nothing to its plain RoPE, whose pairs are halves. */
bool assay_model_interleaves(const assay_model_config *config);

/* A float type. */
assay_status assay_case_read_dtype(const assay_yaml *y, const yaml_node_t *node, const char *what, assay_dtype *type);
/* One of dtypes or of quant_formats, which goes behind the others, in place of what was there for that pattern; or all of them. */
typedef assay_status assay_case_reader(const assay_yaml *y, assay_case *c, const char *pattern,
                                       const yaml_node_t *key_node, const yaml_node_t *value);
assay_case_reader assay_case_read_dtype_of, assay_case_read_quant_format_of;
assay_status assay_case_read_all(const assay_yaml *y, assay_case *c, const yaml_node_t *node, const char *what,
                                 assay_case_reader *read);

/* One of inputs, which replaces what was there for that path. */
assay_status assay_case_read_input(const assay_yaml *y, assay_case *c, const char *path, const yaml_node_t *key_node,
                                   const yaml_node_t *value);
/* The keys that op program has besides (case_program.c), once the others are read; refused where the operation is another one. */
assay_status assay_case_read_program(const assay_yaml *y, assay_case *c, const yaml_node_t *root);
bool assay_case_is_of_program(const char *key);
void assay_case_offer_of_program(assay_nearest *nearest);
/* Whether what stands under `inputs` says the axes of a tensor; that tensor. */
bool assay_case_declares(const assay_yaml *y, const yaml_node_t *value);
assay_status assay_case_read_declared(const assay_yaml *y, assay_case *c, bool weight, const char *name,
                                      const yaml_node_t *key_node, const yaml_node_t *value);
assay_status assay_case_read_size(const assay_yaml *y, assay_case *c, const char *axis, const yaml_node_t *key_node,
                                  const yaml_node_t *value);
/* After a change; refuses with "ORIGIN:line:column: STEP: ". */
assay_status assay_case_compile(assay_context *ctx, const char *origin, assay_case *c);
void assay_case_write_inputs(FILE *out, const assay_case *c); /* that are declared, with their fills */
void assay_case_write_program(FILE *out, const assay_case *c);
bool assay_case_is_declared(const assay_case *c, const char *path);
void assay_case_write_fill(FILE *out, const assay_case_input *input);
