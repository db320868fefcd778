#include "oracle/base/tensor.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "oracle/base/memory.h"

assay_shape assay_shape_of(int rank, ...)
{
    assay_shape shape = {.rank = rank};
    va_list dims;
    va_start(dims, rank);
    for (int axis = 0; axis < rank; axis++) shape.dims[axis] = va_arg(dims, int64_t);
    va_end(dims);
    return shape;
}

int64_t assay_shape_count(const assay_shape *shape)
{
    return assay_axes_product(shape, 0, shape->rank);
}

int64_t assay_axes_product(const assay_shape *shape, int first, int last)
{
    int64_t count = 1;
    for (int axis = first; axis < last; axis++) count *= shape->dims[axis];
    return count;
}

int64_t assay_row_length(const assay_shape *shape)
{
    return shape->rank == 0 ? 1 : shape->dims[shape->rank - 1];
}

bool assay_shape_equal(const assay_shape *a, const assay_shape *b)
{
    bool equal = a->rank == b->rank;
    for (int axis = 0; equal && axis < a->rank; axis++) equal = a->dims[axis] == b->dims[axis];
    return equal;
}

void assay_shape_text(const assay_shape *shape, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (int axis = 0; axis < shape->rank && used < size; axis++) {
        used += (size_t)snprintf(text + used, size - used, axis > 0 ? ",%" PRId64 : "%" PRId64, shape->dims[axis]);
    }
    if (used < size) snprintf(text + used, size - used, "]");
}

const char *const assay_role_folders[ASSAY_ROLES] = {
    [ASSAY_ROLE_NONE] = "",
    [ASSAY_ROLE_INPUT] = "inputs",
    [ASSAY_ROLE_WEIGHT] = "weights",
    [ASSAY_ROLE_COTANGENT] = "cotangents",
    [ASSAY_ROLE_SCHEDULE] = "schedule",
    [ASSAY_ROLE_ROUTING] = "routing",
    [ASSAY_ROLE_CHECKPOINT] = "checkpoints",
    [ASSAY_ROLE_OUTPUT] = "outputs",
    [ASSAY_ROLE_GRADIENT] = "gradients",
    [ASSAY_ROLE_REMAT] = "remat",
    [ASSAY_ROLE_ERROR_SCALE] = "error_scale",
    [ASSAY_ROLE_NULL] = "null",
    [ASSAY_ROLE_CERTIFICATE] = "certificate",
    [ASSAY_ROLE_DISCRIMINATION] = "discrimination",
};

assay_tensor_role assay_role_of(const char *path)
{
    const size_t length = strcspn(path, "/");
    for (int role = ASSAY_ROLE_NONE + 1; role < ASSAY_ROLES && path[length] == '/'; role++) {
        const char *folder = assay_role_folders[role];
        if (strlen(folder) == length && strncmp(path, folder, length) == 0) return (assay_tensor_role)role;
    }
    return ASSAY_ROLE_NONE;
}

bool assay_role_is_input(assay_tensor_role role)
{
    return role >= ASSAY_ROLE_INPUT && role <= ASSAY_ROLE_COTANGENT;
}

bool assay_role_is_compared(assay_tensor_role role)
{
    return role == ASSAY_ROLE_SCHEDULE || assay_role_is_result(role);
}

bool assay_role_is_result(assay_tensor_role role)
{
    return role >= ASSAY_ROLE_ROUTING && role <= ASSAY_ROLE_GRADIENT;
}

bool assay_role_is_required(assay_tensor_role role)
{
    return role == ASSAY_ROLE_OUTPUT || role == ASSAY_ROLE_GRADIENT;
}

void assay_tensor_call(assay_tensor_spec *spec, const char *path)
{
    snprintf(spec->path, sizeof spec->path, "%s", path);
    spec->role = assay_role_of(path);
}

/* "checkpoints/q/codes", "checkpoints/q/scale" of a line q of a program. */
static bool is_of_line(const char *path)
{
    const char folder[] = "checkpoints/", *at = strstr(path, folder);
    return at != NULL && strchr(at + strlen(folder), '/') != NULL &&
           (assay_path_ends(path, "codes") || assay_path_ends(path, "scale"));
}

bool assay_path_is_hidden(const char *path)
{
    return is_of_line(path) || assay_path_ends(path, "moe_hidden_codes") ||
           assay_path_ends(path, "moe_hidden_codes_scale") || assay_path_ends(path, "mlp_hidden_codes") ||
           assay_path_ends(path, "mlp_hidden_codes_scale");
}

bool assay_has_error_scale(const assay_tensor_spec *spec)
{
    const bool weights = spec->role == ASSAY_ROLE_ROUTING &&
                         (assay_path_ends(spec->path, "weights") || assay_path_ends(spec->path, "topk_weights"));
    return spec->type != ASSAY_INT32 && !assay_path_is_hidden(spec->path) &&
           (weights || spec->role == ASSAY_ROLE_CHECKPOINT || assay_role_is_required(spec->role));
}

/* By the end of the path: a layer's stand in folders of their own. */
static const struct {
    const char *end;
    assay_tensor_role role;
    assay_kept kept;
} KEPT[] = {
    {"weights", ASSAY_ROLE_ROUTING, ASSAY_KEPT_BY_ROUTER},
    {"topk_weights", ASSAY_ROLE_ROUTING, ASSAY_KEPT_BY_ROUTER},
    {"biased_scores", ASSAY_ROLE_ROUTING, ASSAY_KEPT_BY_ROUTER},
    {"combine_mask", ASSAY_ROLE_ROUTING, ASSAY_KEPT_BY_ROUTER},
    {"outputs/weights", ASSAY_ROLE_OUTPUT, ASSAY_KEPT_BY_ROUTER},
    {"lb_loss", ASSAY_ROLE_OUTPUT, ASSAY_KEPT_BY_ROUTER},
    {"z_loss", ASSAY_ROLE_OUTPUT, ASSAY_KEPT_BY_ROUTER},
    {"bias_updates", ASSAY_ROLE_OUTPUT, ASSAY_KEPT_BY_ROUTER},
    {"lse", ASSAY_ROLE_OUTPUT, ASSAY_KEPT_AS_STATISTIC},
    {"lse", ASSAY_ROLE_CHECKPOINT, ASSAY_KEPT_AS_STATISTIC},
    {"partial_lse", ASSAY_ROLE_CHECKPOINT, ASSAY_KEPT_AS_STATISTIC},
};

assay_kept assay_tensor_kept(const assay_tensor_spec *spec)
{
    for (size_t i = 0; i < sizeof KEPT / sizeof *KEPT; i++) {
        if (KEPT[i].role == spec->role && assay_path_ends(spec->path, KEPT[i].end)) return KEPT[i].kept;
    }
    return ASSAY_KEPT_STORED;
}

bool assay_path_is_choice(const char *path)
{
    return assay_role_of(path) == ASSAY_ROLE_ROUTING &&
           (assay_path_ends(path, "selected_experts") || assay_path_ends(path, "top_k"));
}

bool assay_path_ends(const char *path, const char *name)
{
    const size_t length = strlen(path), tail = strlen(name);
    return length >= tail && strcmp(path + length - tail, name) == 0 &&
           (length == tail || path[length - tail - 1] == '/');
}

bool assay_begins(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

bool assay_is_word(const char *text, const char *word)
{
    return strcmp(text, word) == 0;
}

bool assay_any_word(const char *words, const char *text, bool (*test)(const char *text, const char *word))
{
    char word[ASSAY_PATH_SIZE];
    for (const char *at = words; *at != '\0'; at += strspn(at, " ")) {
        const size_t length = strcspn(at, " ");
        snprintf(word, sizeof word, "%.*s", (int)length, at);
        if (test(text, word)) return true;
        at += length;
    }
    return false;
}

void assay_path_at(assay_tensor_role role, const char *profile, const char *of, char path[ASSAY_PATH_SIZE])
{
    snprintf(path, ASSAY_PATH_SIZE, "%s/%s/%s", assay_role_folders[role], profile, of);
}

void assay_gradient_path(const char *of, char path[ASSAY_PATH_SIZE])
{
    snprintf(path, ASSAY_PATH_SIZE, "%s/%s", assay_role_folders[ASSAY_ROLE_GRADIENT], of);
}

const char *assay_path_of(const char *path)
{
    const assay_tensor_role role = assay_role_of(path);
    const char *profile = strchr(path, '/'), *of = profile == NULL ? NULL : strchr(profile + 1, '/');
    return of != NULL && (role == ASSAY_ROLE_ERROR_SCALE || role == ASSAY_ROLE_NULL) ? of + 1 : path;
}

#define STAGED "staged/"

void assay_staged_path(const char *of, char path[ASSAY_PATH_SIZE])
{
    snprintf(path, ASSAY_PATH_SIZE, STAGED "%.*s", ASSAY_PATH_SIZE - (int)sizeof STAGED, of);
}

const char *assay_staged_of(const char *path)
{
    return strncmp(path, STAGED, strlen(STAGED)) == 0 ? path + strlen(STAGED) : NULL;
}

assay_status assay_go_on_from(assay_context *ctx, const assay_source *in, const char *path, int64_t first,
                              int64_t count, double *values)
{
    char staged[ASSAY_PATH_SIZE];
    assay_staged_path(path, staged);
    return in->has(in->self, staged) ? in->read(ctx, in->self, staged, first, count, values) : ASSAY_OK;
}

assay_status assay_read_needed(assay_context *ctx, const assay_source *in, const char *path, int64_t count,
                               double **out)
{
    MUST(assay_alloc_f64(ctx, path, count, out));
    return in->read(ctx, in->self, path, 0, count, *out);
}

assay_status assay_read_needed_i32(assay_context *ctx, const assay_source *in, const char *path, int64_t count,
                                   int32_t **out)
{
    MUST(assay_alloc_i32(ctx, path, count, out));
    return in->read_i32(ctx, in->self, path, 0, count, *out);
}

assay_status assay_read_all(assay_context *ctx, const assay_source *in, const char *path, int64_t count, double **out)
{
    *out = NULL;
    return in->has(in->self, path) ? assay_read_needed(ctx, in, path, count, out) : ASSAY_OK;
}

assay_status assay_read_all_i32(assay_context *ctx, const assay_source *in, const char *path, int64_t count,
                                int32_t **out)
{
    *out = NULL;
    return in->has(in->self, path) ? assay_read_needed_i32(ctx, in, path, count, out) : ASSAY_OK;
}

bool assay_wants(const assay_sink *out, const char *path)
{
    return out->wants(out->self, path);
}

assay_status assay_write_result(assay_context *ctx, const assay_sink *out, const char *path, int64_t count,
                                const double *values)
{
    return assay_wants(out, path) ? out->write(ctx, out->self, path, count, values) : ASSAY_OK;
}

assay_status assay_write_result_i32(assay_context *ctx, const assay_sink *out, const char *path, int64_t count,
                                    const int32_t *values)
{
    return assay_wants(out, path) ? out->write_i32(ctx, out->self, path, count, values) : ASSAY_OK;
}

bool assay_wrapped_has(void *self, const char *path)
{
    const assay_source *in = ((const assay_wrapped *)self)->in;
    return in->has(in->self, path);
}

assay_status assay_wrapped_read_i32(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                    int32_t *out)
{
    const assay_source *in = ((const assay_wrapped *)self)->in;
    return in->read_i32(ctx, in->self, path, first, count, out);
}

bool assay_wrapped_wants(void *self, const char *path)
{
    return assay_wants(((const assay_wrapped *)self)->out, path);
}

assay_status assay_wrapped_write_i32(assay_context *ctx, void *self, const char *path, int64_t count,
                                     const int32_t *values)
{
    const assay_sink *out = ((const assay_wrapped *)self)->out;
    return out->write_i32(ctx, out->self, path, count, values);
}
