#include "harness/operations/operation.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/operations/op_block.h"
#include "harness/operations/op_work.h"
#include "harness/operations/operands.h"
#include "oracle/base/memory.h"
#include "oracle/graph/graph_kind.h"

const assay_operation *const assay_operations[] = {
#define X(name) &assay_op_##name,
    ASSAY_OPERATIONS(X)
#undef X
        NULL,
};

const assay_operation *assay_operation_by_name(const char *name)
{
    for (int i = 0; assay_operations[i] != NULL; i++) {
        if (strcmp(assay_operations[i]->name, name) == 0) return assay_operations[i];
    }
    return NULL;
}

bool assay_is_layer(const assay_case *c)
{
    const assay_operation *operation = assay_operation_by_name(c->op);
    return operation != NULL && (operation->components & ASSAY_USES_LAYER) != 0;
}

void assay_operation_names(char *names, size_t size, bool (*has)(const assay_operation *operation))
{
    names[0] = '\0';
    for (int i = 0; assay_operations[i] != NULL; i++) {
        const size_t used = strlen(names);
        if (has != NULL && !has(assay_operations[i])) continue;
        snprintf(names + used, size - used, "%s%s", used > 0 ? ", " : "", assay_operations[i]->name);
    }
}

static assay_status unknown_operation(assay_context *ctx, const assay_case *c)
{
    char names[256];
    assay_operation_names(names, sizeof names, NULL);
    return assay_refuse(ctx, "%s: op is \"%s\", expected one of %s", c->name, c->op, names);
}

/* A mesh, a schedule and chunks belong to some operations alone: named rather than ignored. */
static assay_status check_common(assay_context *ctx, const assay_case *c, const assay_operation *operation)
{
    const assay_model_config *m = &c->config;
    const bool one = c->mesh_data == 1 && c->mesh_fsdp == 1 && c->mesh_expert == 1 && c->mesh_tensor == 1 &&
                     c->mesh_mlp_tensor == 1 && c->mesh_fsdp_transpose == 1;
    if (!operation->mesh && !one) {
        return assay_refuse(ctx,
                            "mesh is data %" PRId64 ", fsdp %" PRId64 ", expert %" PRId64 ", tensor %" PRId64
                            ", mlp_tensor %" PRId64 ", fsdp_transpose %" PRId64
                            ", expected 1, 1, 1, 1, 1, 1: op %s runs on one device",
                            c->mesh_data, c->mesh_fsdp, c->mesh_expert, c->mesh_tensor, c->mesh_mlp_tensor,
                            c->mesh_fsdp_transpose, c->op);
    }
    if (!(operation->mesh && (operation->components & ASSAY_USES_EXPERTS) != 0) &&
        (m->use_ring_of_experts || m->num_moe_emb_chunks > 0 || m->num_moe_token_chunks > 1)) {
        return assay_refuse(
            ctx, "%s needs experts on a mesh, which op %s does not have",
            m->use_ring_of_experts ? "use_ring_of_experts" : "num_moe_emb_chunks or num_moe_token_chunks", c->op);
    }
    if (!operation->mesh && m->weights_on_shards) {
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_weights_on_shards, "false: op %s runs on one device", c->op);
    }
    if (m->function.text[0] != '\0' && strcmp(c->op, "batch_split") != 0) {
        return assay_refuse(ctx, "function is \"%s\", expected \"\": op %s is no single function", m->function.text,
                            c->op);
    }
    if (c->only_layer >= 0 && !assay_is_stack(c)) {
        return assay_refuse(ctx, "only_layer is %" PRId64 ": op %s is no stack of layers", c->only_layer, c->op);
    }
    if (c->dtype == ASSAY_INT32) {
        return assay_refuse(ctx, "dtype is int32, expected a float type");
    }
    return ASSAY_OK;
}

/* So that no product of sizes, and no sum of them in memory(), leaves 64 bits. */
static assay_status check_sizes(assay_context *ctx, const assay_case *c)
{
    const double most = 0x1p50; /* numbers; 9 PB */
    const assay_model_config *m = &c->config;
    double rows = (double)c->batch * (double)c->sequence, dim = (double)m->base_emb_dim;
    double copies = rows * fmax(1.0, (double)m->num_experts_per_tok), experts = fmax(1.0, (double)m->num_experts);
    double hidden = fmax((double)m->base_mlp_dim, fmax(1.0, (double)m->shared_experts) * (double)m->base_moe_mlp_dim);
    double widest = fmax(1.0, fmax(dim, 2.0 * hidden));
    double numbers = fmax(copies * fmax(widest, experts), experts * dim * 2.0 * hidden);
    if (!(numbers <= most)) {
        return assay_fail(ctx, ASSAY_NO_MEMORY, "needs at least %.4g bytes of memory, %" PRId64 " are available",
                          (double)sizeof(double) * numbers, assay_memory_available());
    }
    return ASSAY_OK;
}

/* A key of `inputs:` names a tensor by its path; that of an input or a weight may leave out the folder. */
static bool names_tensor(const assay_tensor_list *list, const char *key)
{
    static const char *const folders[] = {"", "inputs/", "weights/"};
    char path[2 * ASSAY_PATH_SIZE];
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(path, sizeof path, "%s%s", folders[i], key);
        const assay_tensor_entry *entry = assay_tensor_list_find(list, path);
        if (entry != NULL && assay_role_is_input(entry->spec.role)) return true;
    }
    return false;
}

static assay_status check_inputs(assay_context *ctx, const assay_case *c, const assay_tensor_list *list)
{
    for (int i = 0; i < c->input_count; i++) {
        if (names_tensor(list, c->inputs[i].path)) continue;
        return assay_refuse(ctx, "%s: inputs.%s is no tensor of op %s with this configuration; see assay show %s",
                            c->name, c->inputs[i].path, c->op, c->name);
    }
    return ASSAY_OK;
}

/* Gradients flow the other way: they come behind all that is forward, in the reverse order. */
static assay_status turn_gradients(assay_context *ctx, assay_tensor_list *list)
{
    assay_tensor_entry *entries = calloc((size_t)list->count + 1, sizeof *entries);
    if (entries == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the list of tensors");
    int forward = 0, backward = list->count;
    for (int i = 0; i < list->count; i++) {
        const bool gradient = list->entries[i].spec.role == ASSAY_ROLE_GRADIENT;
        entries[gradient ? --backward : forward++] = list->entries[i];
    }
    free(list->entries);
    list->entries = entries;
    return ASSAY_OK;
}

static bool may_have_dtype(const assay_tensor_spec *spec)
{
    return assay_role_is_input(spec->role) && spec->type != ASSAY_INT32;
}

/* A pattern of dtypes that matches nothing is a slip of the pen. */
static assay_status apply_dtypes(assay_context *ctx, const assay_case *c, assay_tensor_list *list)
{
    for (int d = 0; d < c->dtype_count; d++) {
        bool found = false;
        for (int i = 0; i < list->count; i++) {
            assay_tensor_spec *spec = &list->entries[i].spec;
            const bool keeps = assay_case_keeps(c, &c->dtypes[d], spec);
            const bool given = may_have_dtype(spec) && assay_case_dtype_matches(&c->dtypes[d], spec->path);
            if (keeps) spec->kept_as = c->dtypes[d].type;
            if (given) spec->type = c->dtypes[d].type; /* the last one counts */
            found |= keeps || given;
        }
        if (found) continue;
        return assay_fail(
            ctx, ASSAY_BAD_INPUT,
            "%s: dtypes has \"%s\", which matches no input, weight or cotangent of op %s that holds floats, and no "
            "output of a program; "
            "see assay show %s",
            c->name, c->dtypes[d].pattern, c->op, c->name);
    }
    return ASSAY_OK;
}

/* Every operation has tensors of normals: cotangents. */
static void apply_fill(const assay_case *c, assay_tensor_list *list)
{
    for (int i = 0; i < list->count; i++) {
        assay_tensor_entry *entry = &list->entries[i];
        const bool normal = may_have_dtype(&entry->spec) && entry->fill.distribution == ASSAY_NORMAL;
        if (normal) entry->fill.distribution = c->fill;
    }
}

assay_status assay_operation_configure(assay_context *ctx, const assay_operation *operation, const assay_case *c,
                                       assay_operation_config *config)
{
    return operation->config_of == NULL ? ASSAY_OK : operation->config_of(ctx, c, config);
}

assay_status assay_operation_prepare(assay_context *ctx, const assay_case *c, const assay_operation **operation,
                                     assay_tensor_list *list)
{
    char reason[ASSAY_MESSAGE_SIZE];
    assay_status status;
    assay_operation_config config;
    *list = (assay_tensor_list){0};
    *operation = assay_operation_by_name(c->op);
    if (*operation == NULL) return unknown_operation(ctx, c);
    TRY(check_common(ctx, c, *operation));
    TRY(check_sizes(ctx, c));
    TRY(assay_model_check(ctx, c, (*operation)->components));
    TRY(assay_operation_configure(ctx, *operation, c, &config));
    TRY(assay_operation_describe(ctx, *operation, c, &config, list));
    TRY(turn_gradients(ctx, list));
    TRY(check_inputs(ctx, c, list));
    TRY(apply_dtypes(ctx, c, list));
    apply_fill(c, list);
    TRY(assay_quantise_list(ctx, c, *operation, list));
    TRY(assay_sketch_list(ctx, c, list));
cleanup:
    if (status != ASSAY_OK) {
        assay_tensor_list_free(list);
        if (strncmp(ctx->message, c->name, strlen(c->name)) != 0) {
            snprintf(reason, sizeof reason, "%s", ctx->message);
            assay_fail(ctx, status, "%s: %.900s", c->name, reason);
        }
    }
    return status;
}

assay_status assay_operation_graph(assay_context *ctx, const assay_operation *operation, const assay_case *c, graph *g)
{
    assay_operation_config config;
    const assay_status status = assay_operation_configure(ctx, operation, c, &config);
    if (status == ASSAY_OK) operation->graph(&config, g);
    return status;
}

assay_status assay_operation_inaccurate(assay_context *ctx, const assay_operation *operation, const assay_case *c,
                                        const char **form)
{
    OWNED graph *g = NULL;
    *form = NULL;
    if (operation->graph == NULL) return ASSAY_OK;
    MUST(assay_alloc(ctx, "the graph of a case", 1, sizeof *g, &g));
    MUST(assay_operation_graph(ctx, operation, c, g));
    for (int i = 0; i < g->step_count; i++)
        if (g->steps[i].kind->inaccurate != NULL) *form = g->steps[i].kind->inaccurate;
    return ASSAY_OK;
}

assay_status assay_operation_evaluate(assay_context *ctx, const assay_operation *operation, const assay_case *c,
                                      const assay_source *in, const assay_sink *out)
{
    assay_operation_config config;
    MUST(assay_operation_configure(ctx, operation, c, &config));
    if (operation->run != NULL) return operation->run(ctx, c, &config, in, out);
    return (operation->graph != NULL ? assay_block_run : assay_work_run)(ctx, operation, c, &config, in, out);
}

/* Where no message is wanted: of a case that was checked, or whose check will say it. */
static bool configured(const assay_operation *operation, const assay_case *c, assay_operation_config *config)
{
    assay_context ctx = {0};
    return assay_operation_configure(&ctx, operation, c, config) == ASSAY_OK;
}

bool assay_operation_streams(const assay_operation *operation, const assay_case *c, const char *path)
{
    assay_operation_config config;
    const quad_operation *form = &operation->second_form;
    return form->streams != NULL && configured(operation, c, &config) && form->streams(&config, path);
}

static double counted(const assay_operation *operation, const void *config, bool backward)
{
    const assay_operation_count *count = &operation->count;
    double operations = backward ? count->both : count->forward;
    for (const char *axis = count->axes; *axis != '\0'; axis++)
        operations *= (double)operation->axis_size(config, *axis);
    return operations;
}

double assay_operation_flops(const assay_operation *operation, const assay_case *c, bool backward)
{
    assay_operation_config config;
    if (!configured(operation, c, &config)) return 0.0;
    if (operation->operations != NULL) return operation->operations(&config, backward);
    return operation->count.axes != NULL ? counted(operation, &config, backward)
                                         : assay_block_flops(operation, &config, backward);
}

int64_t assay_operation_memory(const assay_operation *operation, const assay_case *c)
{
    assay_operation_config config;
    if (!configured(operation, c, &config)) return 0;
    if (operation->bytes != NULL) return operation->bytes(&config);
    return operation->graph != NULL ? assay_block_memory(operation, c, &config)
                                    : assay_work_memory(operation, c, &config);
}

assay_status assay_case_resolve(assay_context *ctx, const assay_case *c, assay_model_config *resolved)
{
    const assay_operation *operation = assay_operation_by_name(c->op);
    const bool function = c->config.function.text[0] != '\0'; /* of a layer, whose router it may have */
    const unsigned components = operation != NULL ? operation->components | (function ? ASSAY_USES_ROUTER : 0) : 0;
    return assay_model_resolve(ctx, c, components, resolved);
}

assay_status assay_case_yaml(assay_context *ctx, const assay_case *c, char **text)
{
    assay_case resolved = *c;
    MUST(assay_case_resolve(ctx, c, &resolved.config));
    return assay_case_to_yaml(ctx, &resolved, text);
}

/* The case as it is computed; keys that the operation does not read, as a model's file has many, are as if they had not been given. */
static assay_status as_read(assay_context *ctx, const assay_case *c, assay_case *read)
{
    const assay_operation *operation = assay_operation_by_name(c->op);
    *read = *c;
    MUST(assay_case_resolve(ctx, c, &read->config));
    if (operation == NULL) return ASSAY_OK;
    /* a function of the schedule has a layer's keys */
    const bool all =
        (operation->components & ASSAY_USES_SCHEDULE) != 0 && (operation->components & ASSAY_USES_LAYER) == 0;
    for (int i = 0; !all && i < ASSAY_MODEL_KEYS; i++) {
        const unsigned components = assay_model_keys[i].components;
        if (components != 0 && (components & operation->components) == 0) assay_case_leave_open(read, i);
    }
    return ASSAY_OK;
}

assay_status assay_case_brief_yaml(assay_context *ctx, const assay_case *c, char **text)
{
    assay_case read;
    MUST(as_read(ctx, c, &read));
    return assay_case_to_short_yaml(ctx, &read, text);
}
