#include "harness/plan/inputs.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/operations/operands.h"
#include "oracle/base/memory.h"

/* Codes without their scales are no numbers. */
static assay_status check_operands(assay_context *ctx, const assay_inputs *inputs, const char *file)
{
    for (int i = 0; i < inputs->list->count; i++) {
        const assay_tensor_entry *entry = &inputs->list->entries[i];
        const char *of = assay_operand_of(inputs->list, entry)->spec.path;
        const bool here = assay_fixture_find(inputs->file, entry->spec.path) != NULL;
        const bool codes = assay_fixture_find(inputs->file, of) != NULL;
        if (entry->part == ASSAY_OPERAND_CODES || here == codes) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: has %s without %s, expected both or neither", file,
                          codes ? of : entry->spec.path, codes ? entry->spec.path : of);
    }
    return ASSAY_OK;
}

static assay_status check_file(assay_context *ctx, const assay_inputs *inputs, const char *file)
{
    for (int i = 0; i < assay_fixture_count(inputs->file); i++) {
        const assay_tensor_spec *found = assay_fixture_spec(inputs->file, i);
        if (!assay_role_is_input(found->role)) continue;
        const assay_tensor_entry *entry = assay_tensor_list_find(inputs->list, found->path);
        if (entry == NULL) {
            return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: %s is no tensor of %s; see assay show", file, found->path,
                              inputs->c->name);
        }
        if (!assay_shape_equal(&entry->spec.shape, &found->shape)) {
            char expected[128], actual[128];
            assay_shape_text(&entry->spec.shape, expected, sizeof expected);
            assay_shape_text(&found->shape, actual, sizeof actual);
            return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: %s has shape %s, expected %s", file, found->path, actual,
                              expected);
        }
    }
    return check_operands(ctx, inputs, file);
}

assay_status assay_inputs_open(assay_context *ctx, assay_inputs *inputs, const assay_case *c,
                               const assay_tensor_list *list, const char *file)
{
    assay_status status = ASSAY_OK;
    *inputs = (assay_inputs){.c = c, .list = list, .file_name = file};
    if (file == NULL) return ASSAY_OK;
    TRY(assay_fixture_open(ctx, file, &inputs->file));
    TRY(check_file(ctx, inputs, file));
cleanup:
    if (status != ASSAY_OK) assay_inputs_close(inputs);
    return status;
}

static assay_status add_weights(assay_context *ctx, assay_inputs *inputs, const char *text)
{
    if (text == NULL) return ASSAY_OK;
    for (int i = 0; inputs->file != NULL && i < assay_fixture_count(inputs->file); i++) {
        const assay_tensor_spec *spec = assay_fixture_spec(inputs->file, i);
        if (spec->role != ASSAY_ROLE_WEIGHT) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: %s is given, and --weights gives all weights", inputs->file_name,
                          spec->path);
    }
    inputs->weights_name = text;
    return assay_model_weights_open(ctx, text, inputs->c, inputs->list, &inputs->weights);
}

assay_status assay_inputs_open_plan(assay_context *ctx, assay_inputs *inputs, const assay_plan *plan, const char *file)
{
    assay_status status;
    TRY(assay_inputs_open(ctx, inputs, plan->c, &plan->list, file));
    TRY(add_weights(ctx, inputs, plan->weights));
cleanup:
    if (status != ASSAY_OK) assay_inputs_close(inputs);
    return status;
}

static bool in_file(const assay_inputs *inputs, const char *path)
{
    return inputs->file != NULL && assay_fixture_find(inputs->file, path) != NULL;
}

/* Not of integers, which are few and drawn whole, of what follows from other inputs, and of NaN in unused rows. */
static bool recipe_of(void *self, const char *path, assay_random_recipe *recipe)
{
    const assay_inputs *inputs = self;
    const assay_tensor_entry *entry = assay_tensor_list_find(inputs->list, path);
    const assay_case_input *rule = assay_case_input_of(inputs->c, path);
    if (in_file(inputs, path)) {
        const assay_source file = assay_fixture_source(inputs->file);
        return file.recipe(file.self, path, recipe);
    }
    if (inputs->weights != NULL && assay_model_weights_has(inputs->weights, path)) return false;
    if (entry->spec.type == ASSAY_INT32 || entry->format != NULL || (rule == NULL && entry->derived)) return false;
    if (rule != NULL && (rule->tail_nan_rows > 0 || rule->unused_nan)) return false;
    *recipe = (assay_random_recipe){.fill = rule != NULL ? rule->fill : entry->fill, .seed = inputs->c->seed};
    return true;
}

static assay_status check_recipes(assay_context *ctx, assay_inputs *inputs)
{
    assay_random_recipe recipe;
    for (int i = 0; i < inputs->list->count; i++) {
        const assay_tensor_spec *spec = &inputs->list->entries[i].spec;
        if (assay_role_is_input(spec->role) && recipe_of(inputs, spec->path, &recipe)) return ASSAY_OK;
    }
    return assay_fail(ctx, ASSAY_BAD_INPUT,
                      "%s: --recipe leaves nothing out: no input, weight or cotangent is drawn from the seed",
                      inputs->c->name);
}

assay_status assay_inputs_check(assay_context *ctx, const assay_plan *plan, const char *file)
{
    assay_inputs inputs;
    assay_status status = assay_inputs_open_plan(ctx, &inputs, plan, file);
    if (status == ASSAY_OK && plan->recipe) status = check_recipes(ctx, &inputs);
    assay_inputs_close(&inputs);
    return status;
}

void assay_inputs_close(assay_inputs *inputs)
{
    assay_fixture_close(inputs->file);
    inputs->file = NULL;
    assay_model_weights_close(inputs->weights);
    inputs->weights = NULL;
}

static bool has(void *self, const char *path)
{
    const assay_inputs *inputs = self;
    return assay_role_is_input(assay_role_of(path)) && assay_tensor_list_find(inputs->list, path) != NULL;
}

static assay_status check_values(assay_context *ctx, const char *origin, const assay_tensor_entry *entry, int64_t first,
                                 int64_t count, const double *values)
{
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(values[i])) {
            if (entry->unused_row_axes > 0 || entry->any_number || (entry->infinite && isinf(values[i]))) continue;
            return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: %s[%" PRId64 "] is %g, expected a finite number", origin,
                              entry->spec.path, first + i, values[i]);
        }
        if (assay_dtype_round(entry->spec.type, values[i], false) != values[i]) {
            return assay_fail(
                ctx, ASSAY_BAD_INPUT,
                "%s: %s[%" PRId64 "] is %.17g, which is no %s value; give --set dtypes.%s=float32 or round it first",
                origin, entry->spec.path, first + i, values[i], assay_dtype_name(entry->spec.type), entry->spec.path);
        }
    }
    return ASSAY_OK;
}

/* The last rows hold NaN, or all that belong to nothing. */
static assay_status fill_unused(assay_context *ctx, const assay_inputs *inputs, const assay_tensor_entry *entry,
                                const assay_case_input *rule, int64_t first, int64_t count, double *out)
{
    const assay_operation *operation = assay_operation_by_name(inputs->c->op);
    const int64_t width = assay_unused_row_width(entry);
    const int64_t start = assay_shape_count(&entry->spec.shape) - rule->tail_nan_rows * width;
    OWNED bool *used = NULL;
    if (rule->unused_nan && operation->used_rows == NULL) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "inputs.%s: unused_nan is for rows of layouts that have unused ones",
                          rule->path);
    }
    if (rule->unused_nan) {
        const assay_source in = assay_inputs_source((assay_inputs *)inputs);
        MUST(operation->used_rows(ctx, inputs->c, entry, &in, &used));
    }
    for (int64_t i = 0; i < count; i++) {
        if (first + i >= start || (used != NULL && !used[(first + i) / width])) out[i] = NAN;
    }
    return ASSAY_OK;
}

/* An input that follows from others, whole. */
static assay_status derive(assay_context *ctx, const assay_inputs *inputs, const assay_tensor_entry *entry,
                           double *values, int32_t *indices)
{
    const int64_t count = assay_shape_count(&entry->spec.shape);
    const assay_source drawn = assay_inputs_source((assay_inputs *)(uintptr_t)inputs);
    const assay_operation *operation = assay_operation_by_name(inputs->c->op);
    const assay_status status = operation->derive(ctx, inputs->c, entry, &drawn, values, indices);
    for (int64_t i = 0; status == ASSAY_OK && values != NULL && i < count; i++)
        values[i] = assay_dtype_round(entry->spec.type, values[i], false);
    return status;
}

static assay_status read_derived(assay_context *ctx, const assay_inputs *inputs, const assay_tensor_entry *entry,
                                 int64_t first, int64_t count, double *out)
{
    OWNED double *whole = NULL;
    MUST(assay_alloc_f64(ctx, entry->spec.path, assay_shape_count(&entry->spec.shape), &whole));
    MUST(derive(ctx, inputs, entry, whole, NULL));
    memcpy(out, whole + first, (size_t)count * sizeof *out);
    return ASSAY_OK;
}

/* The numbers of a tensor before it is quantised, which are drawn as if it were not; in float32 at most, as quantising takes them. */
static assay_status read_dense(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                               double *out)
{
    const assay_inputs *inputs = self;
    const assay_tensor_entry *entry = assay_tensor_list_find(inputs->list, path);
    const assay_case_input *rule = assay_case_input_of(inputs->c, path);
    const assay_case_dtype *dtype = assay_case_dtype_of(inputs->c, path);
    const assay_fill fill = rule != NULL ? rule->fill : entry->fill;
    const assay_dtype type = dtype != NULL ? dtype->type : inputs->c->dtype;
    return assay_random_fill(ctx, &fill, inputs->c->seed, path, &entry->spec.shape,
                             type == ASSAY_FLOAT64 ? ASSAY_FLOAT32 : type, first, count, out);
}

static assay_status read_values(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                double *out)
{
    const assay_inputs *inputs = self;
    const assay_tensor_entry *entry = assay_tensor_list_find(inputs->list, path);
    if (in_file(inputs, path)) {
        assay_status status = assay_fixture_read(ctx, inputs->file, path, first, count, out);
        return status == ASSAY_OK ? check_values(ctx, inputs->file_name, entry, first, count, out) : status;
    }
    if (inputs->weights != NULL && assay_model_weights_has(inputs->weights, path)) {
        assay_status status = assay_model_weights_read(ctx, inputs->weights, path, first, count, out);
        return status == ASSAY_OK ? check_values(ctx, inputs->weights_name, entry, first, count, out) : status;
    }
    if (entry->format != NULL) {
        const assay_source dense = {.self = self, .read = read_dense};
        return assay_operand_quantise(ctx, inputs->c, inputs->list, entry, &dense, first, count, out);
    }
    const assay_case_input *rule = assay_case_input_of(inputs->c, path);
    assay_fill fill = rule != NULL ? rule->fill : entry->fill;
    if (rule == NULL && entry->derived) return read_derived(ctx, inputs, entry, first, count, out);
    assay_status status =
        assay_random_fill(ctx, &fill, inputs->c->seed, path, &entry->spec.shape, entry->spec.type, first, count, out);
    if (status == ASSAY_OK && rule != NULL && (rule->tail_nan_rows > 0 || rule->unused_nan)) {
        if (entry->unused_row_axes == 0) {
            return assay_fail(ctx, ASSAY_BAD_INPUT,
                              "inputs.%s: %s is for rows that may belong to no group, or to padding", rule->path,
                              rule->unused_nan ? "unused_nan" : "tail_nan_rows");
        }
        return fill_unused(ctx, inputs, entry, rule, first, count, out);
    }
    return status;
}

static assay_status check_integers(assay_context *ctx, const assay_tensor_entry *entry, const char *origin,
                                   int64_t first, int64_t count, const int32_t *values)
{
    if (entry->least == 0 && entry->most == 0) return ASSAY_OK;
    for (int64_t i = 0; i < count; i++) {
        if (values[i] >= entry->least && values[i] <= entry->most) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: %s[%" PRId64 "] is %" PRId32 ", expected %" PRId32 " to %" PRId32,
                          origin, entry->spec.path, first + i, values[i], entry->least, entry->most);
    }
    return ASSAY_OK;
}

static assay_status read_integers(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                  int32_t *out)
{
    const assay_inputs *inputs = self;
    const assay_tensor_entry *entry = assay_tensor_list_find(inputs->list, path);
    OWNED int32_t *whole = NULL;
    if (in_file(inputs, path)) {
        MUST(assay_fixture_read_i32(ctx, inputs->file, path, first, count, out));
        return check_integers(ctx, entry, inputs->file_name, first, count, out);
    }
    const assay_case_input *rule = assay_case_input_of(inputs->c, path);
    assay_fill fill = rule != NULL ? rule->fill : entry->fill;
    if (rule != NULL && (rule->tail_nan_rows > 0 || rule->unused_nan))
        return assay_fail(ctx, ASSAY_BAD_INPUT, "inputs.%s: whole numbers have no NaN: %s", rule->path,
                          rule->unused_nan ? "unused_nan" : "tail_nan_rows");
    /* a permutation or distinct experts are drawn whole */
    MUST(assay_alloc_i32(ctx, path, assay_shape_count(&entry->spec.shape), &whole));
    if (rule == NULL && entry->derived) {
        MUST(derive(ctx, inputs, entry, NULL, whole));
    } else {
        MUST(assay_random_fill_i32(ctx, &fill, inputs->c->seed, path, &entry->spec.shape, whole));
    }
    memcpy(out, whole + first, (size_t)count * sizeof *out);
    return check_integers(ctx, entry, inputs->c->name, first, count, out);
}

assay_source assay_inputs_source(assay_inputs *inputs)
{
    return (assay_source){
        .self = inputs, .has = has, .read = read_values, .read_i32 = read_integers, .recipe = recipe_of};
}
