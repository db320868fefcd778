/* A case as <assay/backend.h> shows it: to a shared object, and to a test in process. */
#pragma once

#include <assay/backend.h>

#include "cases/model_config.h"
#include "harness/plan/plan.h"

assay_backend_type assay_backend_type_of(assay_dtype dtype);
bool assay_dtype_of_backend(assay_backend_type type, assay_dtype *dtype); /* false: there is no such type */

/* Whether a hostile run shows tensors of the type with the other sign too: not codes and scales of a byte. */
bool assay_dtype_is_negated(assay_dtype type);

/* Every key of a configuration, resolved as case_yaml is, as text. Starts zeroed. */
typedef struct assay_backend_settings {
    assay_backend_setting *items;
    char (*values)[ASSAY_KEY_VALUE_SIZE];
    int count;
} assay_backend_settings;

assay_status assay_backend_settings_make(assay_context *ctx, const assay_case *c, assay_backend_settings *settings);
void assay_backend_settings_free(assay_backend_settings *settings);

/* A tensor of a source in the type of its spec, which outlives it; the data are allocated. */
assay_status assay_backend_tensor_read(assay_context *ctx, const assay_source *source, const assay_tensor_spec *spec,
                                       assay_backend_tensor *tensor);
/* A result as it is asked for, without data. */
assay_backend_result assay_backend_result_of(const assay_tensor_spec *spec);
