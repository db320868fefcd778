#include "harness/golden/layer_golden.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "harness/golden/layer_run.h"
#include "harness/operations/op_support.h"
#include "harness/plan/golden_read.h"

/* The tensor is of this layer, or of no layer. */
static bool belongs(const char *path, int64_t layer)
{
    const int64_t of = assay_layer_of(path);
    return of == layer || of < 0;
}

static bool is_boundary(const char *path)
{
    return assay_path_ends(path, "decoder_layer_input");
}

/* Whether a pattern matches a tensor of the role that the layer alone has too. */
static bool has_match(const assay_golden *stack, char *pattern, assay_tensor_role role, int64_t layer)
{
    const assay_text_list one = {.items = &pattern, .count = 1};
    char prefix[32];
    bool found = false;
    snprintf(prefix, sizeof prefix, "%s/", assay_role_folders[role]);
    for (int i = 0; !found && i < stack->plan.list.count; i++) {
        const char *path = stack->plan.list.entries[i].spec.path;
        found = assay_text_list_matches(&one, prefix, path) && belongs(path, layer) && !is_boundary(path);
    }
    return found;
}

/* Of gradients or checkpoints the patterns that are left. */
static assay_status choose(assay_context *ctx, const assay_golden *stack, const assay_text_list *patterns,
                           assay_tensor_role role, int64_t layer, assay_case *c)
{
    char assignment[4096];
    int used = snprintf(assignment, sizeof assignment, "%s=[", assay_role_folders[role]), kept = 0;
    for (int i = 0; i < patterns->count && used < (int)sizeof assignment - ASSAY_PATH_SIZE; i++) {
        if (!has_match(stack, patterns->items[i], role, layer)) continue;
        used += snprintf(assignment + used, sizeof assignment - (size_t)used, "%s'%.150s'", kept++ > 0 ? ", " : "",
                         patterns->items[i]);
    }
    snprintf(assignment + used, sizeof assignment - (size_t)used, kept > 0 ? "]" : "none]");
    return assay_case_set(ctx, c, assignment);
}

static bool names_tensor(const assay_case_dtype *dtype, const assay_golden *stack, int64_t layer)
{
    bool found = false;
    for (int i = 0; !found && i < stack->plan.list.count; i++) {
        const assay_tensor_spec *spec = &stack->plan.list.entries[i].spec;
        found = assay_role_is_given(spec->role) && spec->type != ASSAY_INT32 && belongs(spec->path, layer) &&
                assay_case_dtype_matches(dtype, spec->path);
    }
    return found;
}

static void keep_types(const assay_golden *stack, int64_t layer, assay_case *c)
{
    int kept = 0;
    for (int i = 0; i < c->dtype_count; i++) {
        if (names_tensor(&c->dtypes[i], stack, layer)) c->dtypes[kept++] = c->dtypes[i];
    }
    c->dtype_count = kept;
}

static void drop_inputs(int64_t layer, assay_case *c)
{
    for (int i = c->input_count; i-- > 0;) {
        char path[ASSAY_PATH_SIZE + 8];
        snprintf(path, sizeof path, "/%s", c->inputs[i].path); /* the folder may be left out */
        if (!belongs(path, layer)) assay_case_drop_input(c, i);
    }
}

static assay_status check_boundary(assay_context *ctx, const assay_golden *stack, const char *path)
{
    if (assay_fixture_find(stack->reader, path) != NULL) return ASSAY_OK;
    return assay_fail(
        ctx, ASSAY_BAD_INPUT,
        "%s: the golden has no %s, of which its layer would be made (gradients and checkpoints of the case "
        "name it: docs/large.md)",
        stack->c->name, path);
}

static void boundaries(const assay_golden *stack, int64_t layer, char x[ASSAY_PATH_SIZE], char dy[ASSAY_PATH_SIZE])
{
    assay_boundary_path(layer, false, x);
    assay_boundary_path(layer + 1, true, dy);
    if (layer == 0) snprintf(x, ASSAY_PATH_SIZE, "inputs/x");
    if (layer + 1 == stack->c->config.base_num_decoder_layers) snprintf(dy, ASSAY_PATH_SIZE, "cotangents/y");
}

assay_status assay_layer_case(assay_context *ctx, const assay_golden *stack, int64_t layer, assay_case *c)
{
    char text[2 * ASSAY_PATH_SIZE], x[ASSAY_PATH_SIZE], dy[ASSAY_PATH_SIZE];
    const assay_case *of = stack->c;
    if (!assay_is_stack(of) || of->only_layer >= 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s is no stack of layers: --layer has no use", of->name);
    }
    if (layer >= of->config.base_num_decoder_layers) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--layer is %" PRId64 ", expected 0 to %" PRId64 ": %s has no other",
                          layer, of->config.base_num_decoder_layers - 1, of->name);
    }
    boundaries(stack, layer, x, dy);
    MUST(check_boundary(ctx, stack, x));
    MUST(assay_case_copy(ctx, of, c));
    if (of->gradients.count > 1 || strcmp(of->gradients.items[0], "none") != 0) MUST(check_boundary(ctx, stack, dy));
    snprintf(text, sizeof text, "only_layer=%" PRId64, layer);
    MUST(assay_case_set(ctx, c, text));
    snprintf(text, sizeof text, "case=%.130s-layer-%" PRId64, of->name, layer);
    MUST(assay_case_set(ctx, c, text));
    snprintf(c->description, sizeof c->description, "layer %" PRId64 " of %.200s alone", layer, of->name);
    drop_inputs(layer, c);
    keep_types(stack, layer, c);
    MUST(choose(ctx, stack, &of->gradients, ASSAY_ROLE_GRADIENT, layer, c));
    MUST(choose(ctx, stack, &of->checkpoints, ASSAY_ROLE_CHECKPOINT, layer, c));
    if (of->profiles.count == 1 && strcmp(of->profiles.items[0], "none") == 0)
        MUST(assay_case_set(ctx, c, "profiles=[bf16]"));
    return ASSAY_OK;
}

/* The golden's path of a tensor of the layer's case. */
static const char *path_in(const assay_layer_given *given, const char *path)
{
    if (strcmp(path, "inputs/x") == 0) return given->x;
    return strcmp(path, "cotangents/y") == 0 ? given->dy : path;
}

static bool has(void *self, const char *path)
{
    const assay_layer_given *given = self;
    return assay_role_is_given(assay_role_of(path)) &&
           assay_fixture_find(given->stack->reader, path_in(given, path)) != NULL;
}

static assay_status read_values(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                double *out)
{
    const assay_layer_given *given = self;
    const char *from = path_in(given, path);
    const assay_status status = given->given.read(ctx, given->given.self, from, first, count, out);
    const assay_case_dtype *own = assay_case_dtype_of(given->stack->c, path);
    const assay_dtype type = own != NULL ? own->type : given->stack->c->dtype;
    if (status == ASSAY_OK && from != path) assay_dtype_round_many(type, count, out, out);
    return status;
}

static assay_status read_integers(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                  int32_t *out)
{
    const assay_layer_given *given = self;
    return given->given.read_i32(ctx, given->given.self, path, first, count, out);
}

/* Of what stands elsewhere in the golden there is none. */
static bool recipe_of(void *self, const char *path, assay_random_recipe *recipe)
{
    const assay_layer_given *given = self;
    return path_in(given, path) == path && given->given.recipe(given->given.self, path, recipe);
}

assay_source assay_layer_source(assay_layer_given *given, const assay_golden *stack, int64_t layer)
{
    *given = (assay_layer_given){.stack = stack, .given = assay_golden_given(stack->reader)};
    boundaries(stack, layer, given->x, given->dy);
    return (assay_source){
        .self = given, .has = has, .read = read_values, .read_i32 = read_integers, .recipe = recipe_of};
}
