/* How tensors are filled: `inputs:` of a case. What a fill leaves out is normal, scale 1, mean 0, low 0, high 1. */
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/case_internal.h"
#include "cases/yaml_text.h"
#include "oracle/base/memory.h"
#include "oracle/program/program.h"

/* Whether low and high, or values, mean anything to it. */
static bool has_range(assay_distribution d)
{
    switch (d) {
    case ASSAY_UNIFORM:
    case ASSAY_INTEGERS:
    case ASSAY_NEAR_TIES:
    case ASSAY_BLOCK_POWERS:
    case ASSAY_ROW_POWERS:
    case ASSAY_EXPERTS:
    case ASSAY_GROUP_SIZES:
        return true;
    default:
        return false;
    }
}

static bool has_mean(assay_distribution d)
{
    return d == ASSAY_CONSTANT || d == ASSAY_NEAR_TIES || d == ASSAY_NORMAL || d == ASSAY_INTEGERS ||
           d == ASSAY_VALUES || d == ASSAY_BLOCK_POWERS || d == ASSAY_ROW_POWERS || d == ASSAY_CANCEL ||
           d == ASSAY_BELL || d == ASSAY_RAMP;
}

static bool has_scale(assay_distribution d)
{
    return has_mean(d) && d != ASSAY_CONSTANT && d != ASSAY_NEAR_TIES;
}

/* Which keys a mapping had. */
typedef struct given {
    bool distribution, low, high, values;
} given;

static assay_status read_distribution(const assay_yaml *y, const yaml_node_t *node, assay_distribution *d)
{
    char name[ASSAY_TEXT_SIZE], hint[ASSAY_MESSAGE_SIZE / 2];
    MUST(assay_yaml_text(y, node, "distribution", name, sizeof name));
    if (assay_distribution_from_name(name, d)) return ASSAY_OK;
    char known[256] = "";
    size_t used = 0;
    assay_nearest nearest = {.word = name, .most = 1};
    for (int i = 0; i < ASSAY_DISTRIBUTION_COUNT; i++) {
        const char *text = assay_distribution_name((assay_distribution)i);
        assay_nearest_offer(&nearest, text);
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i > 0 ? ", " : "", text);
    }
    assay_nearest_text(&nearest, hint, sizeof hint);
    return assay_yaml_refuse(y, node, "unknown distribution %s%s (there are %s)", name, hint, known);
}

static assay_status read_values(const assay_yaml *y, const yaml_node_t *node, assay_case_input *input)
{
    if (node->type != YAML_SEQUENCE_NODE || node->data.sequence.items.top == node->data.sequence.items.start) {
        return assay_yaml_refuse_value(y, node, "values", "a list of at least one number");
    }
    int64_t count = node->data.sequence.items.top - node->data.sequence.items.start;
    assay_status status = assay_alloc_f64(y->ctx, "values", count, &input->values);
    input->fill.value_count = count;
    for (int64_t i = 0; i < count && status == ASSAY_OK; i++) {
        const yaml_node_t *item = yaml_document_get_node(y->document, node->data.sequence.items.start[i]);
        status = assay_yaml_real_or_infinite(y, item, "values", &input->values[i]);
    }
    return status;
}

static assay_status read_fill_key(const assay_yaml *y, const char *key, const yaml_node_t *key_node,
                                  const yaml_node_t *value, assay_case_input *input, given *has)
{
    assay_fill *fill = &input->fill;
    if (strcmp(key, "distribution") == 0) {
        has->distribution = true;
        return read_distribution(y, value, &fill->distribution);
    }
    if (strcmp(key, "values") == 0) {
        has->values = true;
        return read_values(y, value, input);
    }
    if (strcmp(key, "tail_nan_rows") == 0) {
        return assay_yaml_integer(y, value, key, 0, INT32_MAX, &input->tail_nan_rows);
    }
    if (strcmp(key, "unused_nan") == 0) return assay_yaml_bool(y, value, key, &input->unused_nan);
    if (strcmp(key, "axes") == 0 || strcmp(key, "integers") == 0) return ASSAY_OK; /* read before (case_program.c) */
    has->low |= strcmp(key, "low") == 0;
    has->high |= strcmp(key, "high") == 0;
    if (strcmp(key, "scale") == 0) return assay_yaml_real(y, value, key, &fill->scale);
    if (strcmp(key, "mean") == 0) return assay_yaml_real(y, value, key, &fill->mean);
    if (strcmp(key, "low") == 0) return assay_yaml_real(y, value, key, &fill->low);
    if (strcmp(key, "high") == 0) return assay_yaml_real(y, value, key, &fill->high);
    return assay_yaml_refuse(y, key_node,
                             "unknown key %.40s in inputs of %s, expected distribution, scale, mean, low, high, "
                             "values, tail_nan_rows or unused_nan",
                             key, input->path);
}

/* Keys that would be passed over in silence are refused, but for a scale and a mean that say nothing: older programs wrote them always. */
static assay_status check_fill(const assay_yaml *y, const yaml_node_t *at, const assay_case_input *input,
                               const given *has)
{
    const assay_fill *fill = &input->fill;
    const char *name = assay_distribution_name(fill->distribution);
    if (has->values != (fill->distribution == ASSAY_VALUES)) {
        return assay_yaml_refuse(y, at, "%s: %s", input->path,
                                 has->values ? "values are for the distribution values" : "values is missing");
    }
    if ((has->low || has->high) && !has_range(fill->distribution)) {
        return assay_yaml_refuse(y, at, "%s: the distribution %s has no low and high", input->path, name);
    }
    if (fill->mean != 0 && !has_mean(fill->distribution) && !y->stored)
        return assay_yaml_refuse(y, at, "%s: the distribution %s has no mean", input->path, name);
    if (fill->scale != 1 && !has_scale(fill->distribution) && !y->stored)
        return assay_yaml_refuse(y, at, "%s: the distribution %s has no scale", input->path, name);
    if (fill->low != 0 && (fill->distribution == ASSAY_EXPERTS || fill->distribution == ASSAY_GROUP_SIZES) &&
        !y->stored)
        return assay_yaml_refuse(y, at, "%s: the distribution %s has no low", input->path, name);
    if (!has->high && (fill->distribution == ASSAY_EXPERTS || fill->distribution == ASSAY_GROUP_SIZES)) {
        return assay_yaml_refuse(y, at, "%s: the distribution %s needs high", input->path, name);
    }
    if (!has_range(fill->distribution)) return ASSAY_OK;
    if (!(fill->low <= fill->high)) {
        return assay_yaml_refuse(y, at, "%s: expected low <= high, found low %g, high %g", input->path, fill->low,
                                 fill->high);
    }
    if (fill->distribution != ASSAY_UNIFORM && (fill->low != rint(fill->low) || fill->high != rint(fill->high))) {
        return assay_yaml_refuse(y, at, "%s: %s expects whole numbers for low and high, found %g and %g", input->path,
                                 name, fill->low, fill->high);
    }
    return ASSAY_OK;
}

static bool is_tensor_path(const char *path)
{
    for (const char *p = path; *p != '\0'; p++) {
        if (!isalnum((unsigned char)*p) && strchr("_/.-", *p) == NULL) return false;
    }
    return path[0] != '\0' && path[0] != '/' && path[strlen(path) - 1] != '/';
}

static assay_status read_fill(const assay_yaml *y, const yaml_node_t *node, assay_case_input *input)
{
    given has = {0};
    assay_status status = ASSAY_OK;
    for (assay_yaml_walk w = assay_yaml_pairs(y, node, input->path); assay_yaml_next(&w, &status);)
        status = read_fill_key(y, w.key, w.key_node, w.value, input, &has);
    if (status != ASSAY_OK) return status;
    if (has.values && !has.distribution) input->fill.distribution = ASSAY_VALUES;
    input->fill.values = input->values;
    return check_fill(y, node, input, &has);
}

/* A program's tensors are filled under their paths, whichever way they are called. */
static const char *path_called(const assay_case *c, const char *path)
{
    const char *slash = strchr(path, '/'), *name = slash == NULL ? path : slash + 1;
    const assay_program_tensor *tensor = c->program == NULL ? NULL : assay_program_find(c->program, name);
    return tensor != NULL && (slash == NULL || strcmp(tensor->path, path) == 0) ? tensor->path : path;
}

/* The place for `path`: where it was before, or a new one at the end. */
static assay_status place_input(assay_context *ctx, assay_case *c, const char *path, assay_case_input **place)
{
    for (int i = 0; i < c->input_count; i++) {
        *place = &c->inputs[i];
        if (strcmp(c->inputs[i].path, path) == 0) return ASSAY_OK;
    }
    MUST(assay_grow(ctx, "the case's inputs", c->input_count + 1, sizeof *c->inputs, &c->inputs));
    *place = &c->inputs[c->input_count++];
    **place = (assay_case_input){0};
    return ASSAY_OK;
}

assay_status assay_case_read_input(const assay_yaml *y, assay_case *c, const char *path, const yaml_node_t *key_node,
                                   const yaml_node_t *value)
{
    assay_case_input input = {.fill = {.distribution = ASSAY_NORMAL, .scale = 1, .high = 1}};
    assay_case_input *place = NULL;
    assay_status status = ASSAY_OK;
    path = path_called(c, path);
    if (strlen(path) >= sizeof input.path || !is_tensor_path(path)) {
        return assay_yaml_refuse(y, key_node, "expected a tensor such as x or weights/wi_0 in inputs, found %.60s",
                                 path);
    }
    memcpy(input.path, path, strlen(path) + 1);
    if (y->located) input.line = (int)key_node->start_mark.line + 1;
    TRY(read_fill(y, value, &input));
    TRY(place_input(y->ctx, c, path, &place));
    free(place->values);
    *place = input;
    input.values = NULL;
cleanup:
    free(input.values);
    return status;
}

const assay_case_input *assay_case_input_of(const assay_case *c, const char *path)
{
    const char *bare = strchr(path, '/') + 1;
    for (int i = 0; i < c->input_count; i++) {
        const char *key = c->inputs[i].path;
        if (strcmp(key, path) == 0 || (strcmp(key, bare) == 0 && strncmp(path, "cotangents/", 11) != 0)) {
            return &c->inputs[i];
        }
    }
    return NULL;
}

static void write_number(FILE *out, const char *before, double x)
{
    char text[48];
    assay_yaml_number_text(x, text, sizeof text);
    fprintf(out, "%s%s", before, text);
}

void assay_case_write_fill(FILE *out, const assay_case_input *input)
{
    const assay_fill *fill = &input->fill;
    fprintf(out, "distribution: %s", assay_distribution_name(fill->distribution));
    write_number(out, ", scale: ", fill->scale);
    write_number(out, ", mean: ", fill->mean);
    if (has_range(fill->distribution)) {
        write_number(out, ", low: ", fill->low);
        write_number(out, ", high: ", fill->high);
    }
    for (int64_t i = 0; i < fill->value_count; i++) write_number(out, i == 0 ? ", values: [" : ", ", fill->values[i]);
    fprintf(out, "%s, tail_nan_rows: %" PRId64 "%s", fill->value_count > 0 ? "]" : "", input->tail_nan_rows,
            input->unused_nan ? ", unused_nan: true" : "");
}
