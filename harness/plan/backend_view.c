#include "harness/plan/backend_view.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "oracle/base/memory.h"

static const struct {
    assay_dtype dtype;
    assay_backend_type type;
} type_table[] = {
    {ASSAY_FLOAT64, ASSAY_BACKEND_FLOAT64},
    {ASSAY_FLOAT32, ASSAY_BACKEND_FLOAT32},
    {ASSAY_TFLOAT32, ASSAY_BACKEND_FLOAT32},
    {ASSAY_BFLOAT16, ASSAY_BACKEND_BFLOAT16},
    {ASSAY_FLOAT16, ASSAY_BACKEND_FLOAT16},
    {ASSAY_FLOAT8_E4M3FN, ASSAY_BACKEND_FLOAT8_E4M3FN},
    {ASSAY_FLOAT8_E5M2, ASSAY_BACKEND_FLOAT8_E5M2},
    {ASSAY_INT32, ASSAY_BACKEND_INT32},
    {ASSAY_FLOAT4_E2M1FN, ASSAY_BACKEND_FLOAT4_E2M1FN},
    {ASSAY_FLOAT8_E8M0FNU, ASSAY_BACKEND_FLOAT8_E8M0FNU},
};
enum { TYPES = sizeof type_table / sizeof *type_table, OTHER_SETTINGS = 12 };

assay_backend_type assay_backend_type_of(assay_dtype dtype)
{
    for (int i = 0; i < TYPES; i++) {
        if (type_table[i].dtype == dtype) return type_table[i].type;
    }
    return ASSAY_BACKEND_FLOAT64;
}

bool assay_dtype_of_backend(assay_backend_type type, assay_dtype *dtype)
{
    for (int i = 0; i < TYPES; i++) {
        if (type_table[i].type == type) {
            *dtype = type_table[i].dtype;
            return true;
        }
    }
    return false;
}

bool assay_dtype_is_negated(assay_dtype type)
{
    return type != ASSAY_INT32 && assay_dtype_size(type) > 1;
}

/* Texts as they are, a pair joined by a comma, numbers and booleans as YAML writes them. */
static void setting_text(const assay_model_key *key, const assay_model_config *config, char *text, size_t size)
{
    const void *value = (const char *)config + key->offset;
    if (key->type == ASSAY_KEY_S) {
        snprintf(text, size, "%s", ((const assay_text *)value)->text);
    } else if (key->type == ASSAY_KEY_A) {
        const assay_text_pair *pair = value;
        snprintf(text, size, "%s,%s", pair->item[0], pair->item[1]);
    } else {
        assay_model_key_text(key, config, text, size);
    }
}

/* Room for the value of the next key. */
static char *add(assay_backend_settings *s, const char *key)
{
    char *value = s->values[s->count];
    s->items[s->count++] = (assay_backend_setting){.key = key, .value = value};
    return value;
}

static void add_text(assay_backend_settings *s, const char *key, const char *text)
{
    snprintf(add(s, key), ASSAY_KEY_VALUE_SIZE, "%s", text);
}

static void add_number(assay_backend_settings *s, const char *key, int64_t value)
{
    snprintf(add(s, key), ASSAY_KEY_VALUE_SIZE, "%" PRId64, value);
}

/* quant_formats.PATH, whose text lies before that of its value. */
static void add_format(assay_backend_settings *s, const assay_case_quant_format *of)
{
    char *key = add(s, "");
    const int length = snprintf(key, ASSAY_KEY_VALUE_SIZE, "quant_formats.%s", of->path);
    snprintf(key + length + 1, ASSAY_KEY_VALUE_SIZE - (size_t)length - 1, "%s", of->format->name);
    s->items[s->count - 1] = (assay_backend_setting){.key = key, .value = key + length + 1};
}

assay_status assay_backend_settings_make(assay_context *ctx, const assay_case *c, assay_backend_settings *s)
{
    assay_model_config config;
    const int most = ASSAY_MODEL_KEYS + OTHER_SETTINGS + c->quant_format_count;
    MUST(assay_alloc_list(ctx, "the configuration's keys", most, sizeof *s->items, &s->items));
    MUST(assay_alloc_list(ctx, "the configuration's keys", most, sizeof *s->values, &s->values));
    MUST(assay_case_resolve(ctx, c, &config));
    for (int i = 0; i < ASSAY_MODEL_KEYS; i++) {
        setting_text(&assay_model_keys[i], &config, add(s, assay_model_keys[i].name), ASSAY_KEY_VALUE_SIZE);
    }
    add_text(s, "op", c->op);
    add_text(s, "case", c->name);
    add_number(s, "batch", c->batch);
    add_number(s, "sequence", c->sequence);
    add_number(s, "mesh.data", c->mesh_data);
    add_number(s, "mesh.fsdp", c->mesh_fsdp);
    add_number(s, "mesh.expert", c->mesh_expert);
    add_number(s, "mesh.tensor", c->mesh_tensor);
    add_number(s, "mesh.mlp_tensor", c->mesh_mlp_tensor);
    add_number(s, "mesh.fsdp_transpose", c->mesh_fsdp_transpose);
    if (c->only_layer >= 0) add_number(s, "only_layer", c->only_layer);
    add_text(s, "dtype", assay_dtype_name(c->dtype));
    for (int i = 0; i < c->quant_format_count; i++) add_format(s, &c->quant_formats[i]);
    return ASSAY_OK;
}

void assay_backend_settings_free(assay_backend_settings *settings)
{
    free(settings->items);
    free(settings->values);
    *settings = (assay_backend_settings){0};
}

assay_status assay_backend_tensor_read(assay_context *ctx, const assay_source *source, const assay_tensor_spec *spec,
                                       assay_backend_tensor *tensor)
{
    OWNED double *values = NULL;
    OWNED void *data = NULL;
    const int64_t count = assay_shape_count(&spec->shape);
    MUST(assay_alloc(ctx, spec->path, count, assay_dtype_size(spec->type), &data));
    if (spec->type == ASSAY_INT32) {
        MUST(source->read_i32(ctx, source->self, spec->path, 0, count, data));
    } else {
        MUST(assay_alloc_f64(ctx, spec->path, count, &values));
        MUST(source->read(ctx, source->self, spec->path, 0, count, values));
        assay_dtype_encode(spec->type, count, values, data);
    }
    *tensor = (assay_backend_tensor){.path = spec->path,
                                     .type = assay_backend_type_of(spec->type),
                                     .rank = spec->shape.rank,
                                     .dims = spec->shape.dims,
                                     .data = data};
    data = NULL;
    return ASSAY_OK;
}

assay_backend_result assay_backend_result_of(const assay_tensor_spec *spec)
{
    return (assay_backend_result){.path = spec->path,
                                  .type = spec->type == ASSAY_INT32 ? ASSAY_BACKEND_INT32 : ASSAY_BACKEND_FLOAT32,
                                  .rank = spec->shape.rank,
                                  .dims = spec->shape.dims,
                                  .required = assay_role_is_required(spec->role),
                                  .written = 1};
}
