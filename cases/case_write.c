/* A case as YAML that stands by itself: every key is there, the model in place. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cases/case_internal.h"
#include "cases/yaml_text.h"
#include "oracle/base/memory.h"
#include "oracle/program/program.h"

static void write_text(FILE *out, const char *before, const char *text)
{
    char quoted[4 * ASSAY_MESSAGE_SIZE + 3];
    assay_yaml_quoted_text(text, quoted, sizeof quoted);
    fprintf(out, "%s%s", before, quoted);
}

static bool same_list(const assay_text_list *a, const assay_text_list *b)
{
    bool same = a->count == b->count;
    for (int i = 0; same && i < a->count; i++) same = strcmp(a->items[i], b->items[i]) == 0;
    return same;
}

/* Unless it is as it would be without the line. */
static void write_list(FILE *out, const char *key, const assay_text_list *list, const assay_text_list *otherwise)
{
    if (otherwise != NULL && same_list(list, otherwise)) return;
    fprintf(out, "%s: [", key);
    for (int i = 0; i < list->count; i++) write_text(out, i > 0 ? ", " : "", list->items[i]);
    fprintf(out, "]\n");
}

/* Numbers and true as they were given, without the quotes of a text. */
static void write_maxtext_key(FILE *out, const char *name, const char *value)
{
    const bool plain = value[strspn(value, "0123456789.+-eE")] == '\0' || strcasecmp(value, "true") == 0;
    fprintf(out, "  %s", name);
    if (plain) {
        fprintf(out, ": %s", value);
    } else {
        write_text(out, ": ", value);
    }
    fprintf(out, "\n");
}

/* Of a case without a format the rules of quantising say nothing, of one without a recipe its calibrations, where caches take
 * numbers as they come what would change them, and its text is as it was before there were any. */
static bool says_nothing(const assay_case *c, int key)
{
    if (key == ASSAY_KEY_AT_cache_norm || key == ASSAY_KEY_AT_cache_rope)
        return strcmp(c->config.cache_norm.text, assay_model_defaults.cache_norm.text) == 0 && !c->config.cache_rope &&
               !assay_case_says_key(c, key);
    if (key >= ASSAY_KEY_AT_quant_recipe && key <= ASSAY_KEY_AT_bwd_quantization_calibration_method)
        return c->config.quant_recipe.text[0] == '\0' && !assay_case_says_key(c, key);
    return key >= ASSAY_KEY_AT_quant_format && key <= ASSAY_KEY_AT_pack_codes &&
           c->config.quant_format.text[0] == '\0' && c->config.quant_hidden_format.text[0] == '\0' &&
           strcmp(c->config.kv_cache_dtype.text, "auto") == 0 && !assay_case_says_key(c, key);
}

/* The model under the name it came with, and under config a name that was given over it. */
static void write_config(FILE *out, const assay_case *c, bool all)
{
    char value[ASSAY_KEY_VALUE_SIZE];
    fprintf(out, "model:\n");
    for (int i = 0; i < ASSAY_MODEL_KEYS; i++) {
        const assay_model_key *key = &assay_model_keys[i];
        const bool named = strcmp(key->name, "model_name") == 0;
        if (says_nothing(c, i)) continue;
        if (!all && !assay_case_says_key(c, i) && !(named && c->model[0] != '\0')) continue;
        if (named) {
            write_text(out, "  model_name: ", c->model);
            fprintf(out, "\n");
            continue;
        }
        assay_model_key_text(key, &c->config, value, sizeof value);
        fprintf(out, "  %s: %s\n", key->name, value);
    }
    for (int i = 0; i < ASSAY_MAXTEXT_KEYS; i++) {
        if (c->config.maxtext[i].text[0] == '\0') continue;
        write_maxtext_key(out, assay_maxtext_keys[i].name, c->config.maxtext[i].text);
    }
    if (strcmp(c->model, c->config.model_name.text) == 0) return;
    write_text(out, "config: {model_name: ", c->config.model_name.text);
    fprintf(out, "}\n");
}

static void write_inputs(FILE *out, const assay_case *c, bool all)
{
    bool any = c->input_count > 0; /* a program's weights stand in a block of their own */
    for (int i = 0; c->program != NULL && i < c->program->tensor_count; i++) any |= !c->program->tensors[i].weight;
    if (any || all) fprintf(out, any ? "inputs:\n" : "inputs: {}\n");
    assay_case_write_inputs(out, c);
    for (int i = 0; i < c->input_count; i++) {
        if (assay_case_is_declared(c, c->inputs[i].path)) continue;
        write_text(out, "  ", c->inputs[i].path);
        fprintf(out, ": {");
        assay_case_write_fill(out, &c->inputs[i]);
        fprintf(out, "}\n");
    }
}

static void write_mesh(FILE *out, const assay_case *c, bool all)
{
    const int64_t devices = c->mesh_data * c->mesh_fsdp * c->mesh_expert * c->mesh_tensor * c->mesh_mlp_tensor;
    if (!all && devices == 1) return;
    fprintf(out, "mesh: {data: %" PRId64 ", fsdp: %" PRId64 ", expert: %" PRId64, c->mesh_data, c->mesh_fsdp,
            c->mesh_expert);
    if (c->mesh_tensor > 1) fprintf(out, ", tensor: %" PRId64, c->mesh_tensor);
    if (c->mesh_mlp_tensor > 1) fprintf(out, ", mlp_tensor: %" PRId64, c->mesh_mlp_tensor);
    if (c->mesh_fsdp_transpose > 1) fprintf(out, ", fsdp_transpose: %" PRId64, c->mesh_fsdp_transpose);
    fprintf(out, "}\n");
}

/* plain: a case with every default, whose lines are left out; NULL: all are written. */
static void write_case(FILE *out, const assay_case *c, const assay_case *plain)
{
    const bool all = plain == NULL;
    write_text(out, "case: ", c->name);
    if (all || c->description[0] != '\0') write_text(out, "\ndescription: ", c->description);
    fprintf(out, "\n");
    write_list(out, "tags", &c->tags, all ? NULL : &plain->tags);
    write_text(out, "op: ", c->op);
    fprintf(out, "\n");
    if (c->program == NULL) write_config(out, c, all);
    if (all || c->batch != plain->batch) fprintf(out, "batch: %" PRId64 "\n", c->batch);
    if (all || c->sequence != plain->sequence) fprintf(out, "sequence: %" PRId64 "\n", c->sequence);
    write_mesh(out, c, all);
    if (all || c->seed != plain->seed) fprintf(out, "seed: %" PRIu64 "\n", c->seed);
    if (all || c->dtype != plain->dtype) fprintf(out, "dtype: %s\n", assay_dtype_name(c->dtype));
    for (int i = 0; i < c->dtype_count; i++) {
        write_text(out, i == 0 ? "dtypes: {" : ", ", c->dtypes[i].pattern);
        fprintf(out, ": %s%s", assay_dtype_name(c->dtypes[i].type), i + 1 == c->dtype_count ? "}\n" : "");
    }
    for (int i = 0; i < c->quant_format_count; i++) {
        write_text(out, i == 0 ? "quant_formats: {" : ", ", c->quant_formats[i].path);
        fprintf(out, ": %s%s", c->quant_formats[i].format->name, i + 1 == c->quant_format_count ? "}\n" : "");
    }
    if (c->fill != ASSAY_NORMAL) fprintf(out, "fill: %s\n", assay_distribution_name(c->fill));
    write_inputs(out, c, all);
    assay_case_write_program(out, c);
    if (all || c->position_start != plain->position_start || c->position_step != plain->position_step)
        fprintf(out, "positions: {start: %" PRId64 ", step: %" PRId64 "}\n", c->position_start, c->position_step);
    if (c->sketch_above > 0) fprintf(out, "sketch_above: %" PRId64 "\n", c->sketch_above);
    if (c->drawn_above > 0) fprintf(out, "drawn_above: %" PRId64 "\n", c->drawn_above);
    if (c->only_layer >= 0) fprintf(out, "only_layer: %" PRId64 "\n", c->only_layer);
    write_list(out, "gradients", &c->gradients, all ? NULL : &plain->gradients);
    write_list(out, "checkpoints", &c->checkpoints, all ? NULL : &plain->checkpoints);
    write_list(out, "profiles", &c->profiles, all ? NULL : &plain->profiles);
}

static assay_status to_yaml(assay_context *ctx, const assay_case *c, const assay_case *plain, char **text)
{
    char *memory = NULL;
    size_t size = 0;
    *text = NULL;
    FILE *out = assay_text_open(&memory, &size);
    if (out == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "%s: no memory to write it as YAML", c->name);
    write_case(out, c, plain);
    if (!assay_text_close(out, &memory)) {
        return assay_fail(ctx, ASSAY_NO_MEMORY, "%s: no memory to write it as YAML", c->name);
    }
    *text = memory;
    return ASSAY_OK;
}

assay_status assay_case_to_yaml(assay_context *ctx, const assay_case *c, char **text)
{
    return to_yaml(ctx, c, NULL, text);
}

assay_status assay_case_to_short_yaml(assay_context *ctx, const assay_case *c, char **text)
{
    assay_case plain;
    MUST(assay_case_init(ctx, &plain));
    const assay_status status = to_yaml(ctx, c, &plain, text);
    assay_case_free(&plain);
    return status;
}
