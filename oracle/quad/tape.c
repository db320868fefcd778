#include "oracle/quad/tape.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "oracle/quad/quad_internal.h"

/* A result that waits for its values, or for the gradient of its node. */
struct quad_shown {
    char path[ASSAY_PATH_SIZE];
    assay_shape shape;
    quad_node node;
    bool gradient;
    int64_t columns; /* of the pieces that `index` has an order of; NULL: as they lie */
    const int64_t *index;
};

/* --- memory --- */

static void *grown(quad_tape *t, void *list, int count, size_t size)
{
    void *more = realloc(list, ((size_t)count + 1) * size);
    if (more == NULL) quad_refuse(t, "no memory for the tape");
    if (more == NULL) t->status = ASSAY_NO_MEMORY;
    return more;
}

void quad_refuse(quad_tape *t, const char *format, ...)
{
    char message[512];
    va_list arguments;
    if (t->status != ASSAY_OK) return;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    t->status = assay_refuse(t->ctx, "%s", message);
}

void *quad_keep(quad_tape *t, int64_t count, size_t size)
{
    void *memory = NULL;
    if (t->status != ASSAY_OK) return NULL;
    void **kept = grown(t, t->kept, t->kept_count, sizeof *kept);
    if (kept == NULL) return NULL;
    t->kept = kept;
    t->status = assay_alloc(t->ctx, "the tape", count, size, &memory);
    if (t->status == ASSAY_OK) t->kept[t->kept_count++] = memory;
    return memory;
}

int64_t *quad_indices(quad_tape *t, int64_t count)
{
    return quad_keep(t, count, sizeof(int64_t));
}

/* --- nodes --- */

static quad_node add_record(quad_tape *t, quad_record record)
{
    if (t->count == t->room) {
        const int room = t->room == 0 ? 64 : 2 * t->room;
        quad_record *records = realloc(t->records, (size_t)room * sizeof *records);
        if (records == NULL) t->status = assay_fail(t->ctx, ASSAY_NO_MEMORY, "no memory for the tape");
        if (records == NULL) return 0;
        t->records = records;
        t->room = room;
        if (t->count == 0) t->records[t->count++] = (quad_record){0}; /* node 0 */
    }
    t->records[t->count] = record;
    return t->count++;
}

quad *quad_new(quad_tape *t, int64_t rows, int64_t columns, quad_record record, quad_node *y)
{
    *y = 0;
    if (t->status != ASSAY_OK) return NULL;
    record.rows = rows;
    record.columns = columns;
    record.own = true;
    for (int i = 0; t->records != NULL && i < QUAD_OPERANDS; i++) {
        const quad_record *operand = &t->records[record.from[i]];
        record.wanted |= operand->wanted;
        if (operand->stream != NULL && !record.reads_streams)
            t->status = assay_fail(t->ctx, ASSAY_INTERNAL, "'%s' is not in memory as a whole", operand->stream->path);
    }
    if (t->status != ASSAY_OK) return NULL;
    t->status = quad_alloc(t->ctx, rows * columns, &record.values);
    if (t->status != ASSAY_OK) return NULL;
    quad *const values = record.values; /* they stay where they are when the list grows */
    *y = add_record(t, record);
    if (*y == 0) free(values);
    return *y == 0 ? NULL : values;
}

int64_t quad_rows(const quad_tape *t, quad_node x)
{
    return x == 0 ? 0 : t->records[x].rows;
}

int64_t quad_columns(const quad_tape *t, quad_node x)
{
    return x == 0 ? 0 : t->records[x].columns;
}

const quad *quad_values(const quad_tape *t, quad_node x)
{
    return x == 0 ? NULL : t->records[x].values;
}

quad_node quad_span(quad_tape *t, quad_node x, int64_t offset, int64_t rows, int64_t columns)
{
    if (x == 0 || t->status != ASSAY_OK) return 0;
    const quad_record *of = &t->records[x];
    if (offset < 0 || offset + rows * columns > of->rows * of->columns) {
        quad_refuse(t, "%lld rows of %lld from number %lld on, of a matrix of %lld", (long long)rows,
                    (long long)columns, (long long)offset, (long long)(of->rows * of->columns));
        return 0;
    }
    const quad_record part = {.rows = rows,
                              .columns = columns,
                              .values = of->values == NULL ? NULL : of->values + offset,
                              .wanted = of->wanted,
                              .stream = of->stream,
                              .part_of = of->part_of != 0 ? of->part_of : x,
                              .offset = of->offset + offset};
    return add_record(t, part);
}

quad_node quad_view(quad_tape *t, quad_node x, int64_t columns)
{
    const int64_t count = quad_rows(t, x) * quad_columns(t, x);
    return quad_span(t, x, 0, columns > 0 ? count / columns : 0, columns);
}

quad_node quad_rows_of(quad_tape *t, quad_node x, int64_t first, int64_t count)
{
    return quad_span(t, x, first * quad_columns(t, x), count, quad_columns(t, x));
}

quad_node quad_constant(quad_tape *t, int64_t rows, int64_t columns, quad **values)
{
    quad_node y;
    *values = quad_new(t, rows, columns, (quad_record){0}, &y);
    return y;
}

/* --- what was given --- */

/* "folder/PREFIXrest", of weights "weights/PREFIXBLOCKrest". */
static void path_of(const quad_tape *t, const char *path, char full[ASSAY_PATH_SIZE])
{
    static const char boundaries[] = "gradients/checkpoints/";
    const bool of_layer = strncmp(path, boundaries, sizeof boundaries - 1) == 0;
    const int folder = of_layer ? (int)sizeof boundaries - 1 : (int)(strchr(path, '/') + 1 - path);
    const bool weight = strncmp(path, "weights/", 8) == 0 && t->block != NULL;
    snprintf(full, ASSAY_PATH_SIZE, "%.*s%s%s%s", folder, path, t->prefix, weight ? t->block : "", path + folder);
}

static const quad_tensor *find(const quad_tape *t, const char *path)
{
    char full[ASSAY_PATH_SIZE];
    path_of(t, path, full);
    const quad_tensor *found = quad_tensors_find(t->in, full);
    return found == NULL && strncmp(path, "inputs/", 7) == 0 ? quad_tensors_find(t->in, path) : found;
}

static bool ends(const char *path, const char *end)
{
    return strlen(path) >= strlen(end) && strcmp(path + strlen(path) - strlen(end), end) == 0;
}

/* Whether somebody looks at the gradient of a tensor, or a sketch of it. */
static bool names_gradient(const quad_tape *t, const char *path)
{
    const size_t folder = strlen("gradients/"), length = strlen(path);
    if (t->wanted == NULL) return t->back;
    for (int i = 0; i < t->wanted->count; i++) {
        const char *of = t->wanted->items[i].path;
        if (strncmp(of, "gradients/", folder) != 0 || strncmp(of + folder, path, length) != 0) continue;
        if (of[folder + length] == '\0' || of[folder + length] == '/') return true;
    }
    return false;
}

/* The way to a gradient of what is computed leads through any tensor. */
static bool wants_gradient(const quad_tape *t, const char *path)
{
    static const char boundaries[] = "gradients/checkpoints/";
    for (int i = 0; t->back && t->wanted != NULL && i < t->wanted->count; i++) {
        const char *of = t->wanted->items[i].path;
        if (ends(of, "_gradient") || ends(of, "_grad") || strncmp(of, boundaries, sizeof boundaries - 1) == 0)
            return true;
    }
    return names_gradient(t, path);
}

static quad_node leaf_of(quad_tape *t, const quad_tensor *tensor, int64_t rows, int64_t columns)
{
    for (quad_node x = 1; x < t->count; x++)
        if (t->records[x].with == tensor && t->records[x].back == NULL) return quad_span(t, x, 0, rows, columns);
    const quad_record leaf = {.rows = rows,
                              .columns = columns,
                              .values = tensor->values,
                              .wanted = tensor->source == NULL && wants_gradient(t, tensor->path),
                              .stream = tensor->source != NULL ? tensor : NULL,
                              .with = tensor};
    return add_record(t, leaf);
}

quad_node quad_input_optional(quad_tape *t, const char *path, int64_t rows, int64_t columns)
{
    const quad_tensor *tensor = find(t, path);
    if (tensor == NULL || t->status != ASSAY_OK) return 0;
    if (tensor->source == NULL) {
        const quad *values;
        t->status = quad_read(t->ctx, t->in, tensor->path, rows * columns, &values);
    } else if (assay_shape_count(&tensor->shape) != rows * columns) {
        quad_refuse(t, "'%s' has %lld numbers, expected %lld", tensor->path,
                    (long long)assay_shape_count(&tensor->shape), (long long)(rows * columns));
    }
    return t->status == ASSAY_OK ? leaf_of(t, tensor, rows, columns) : 0;
}

static void require(quad_tape *t, const char *path)
{
    char full[ASSAY_PATH_SIZE];
    path_of(t, path, full);
    if (find(t, path) == NULL) quad_refuse(t, "the tensor '%s' is missing", full);
}

quad_node quad_input(quad_tape *t, const char *path, int64_t rows, int64_t columns)
{
    require(t, path);
    return quad_input_optional(t, path, rows, columns);
}

assay_shape quad_shape_of(quad_tape *t, const char *path)
{
    const quad_tensor *tensor = find(t, path);
    require(t, path);
    return tensor == NULL ? (assay_shape){0} : tensor->shape;
}

quad_node quad_input_rows(quad_tape *t, const char *path)
{
    const assay_shape shape = quad_shape_of(t, path);
    const int64_t last = shape.rank > 0 ? shape.dims[shape.rank - 1] : 0;
    if (t->status == ASSAY_OK && last < 1) quad_refuse(t, "'%s' has no last axis of numbers", path);
    return t->status == ASSAY_OK ? quad_input(t, path, assay_shape_count(&shape) / last, last) : 0;
}

const int32_t *quad_input_indices_optional(quad_tape *t, const char *path, int64_t count)
{
    const quad_tensor *tensor = find(t, path);
    const int32_t *indices = NULL;
    if (tensor == NULL || t->status != ASSAY_OK) return NULL;
    t->status = quad_read_indices(t->ctx, t->in, tensor->path, count, &indices);
    return indices;
}

const int32_t *quad_input_indices(quad_tape *t, const char *path, int64_t count)
{
    require(t, path);
    return quad_input_indices_optional(t, path, count);
}

/* --- results --- */

static bool wants(const quad_tape *t, const char *full)
{
    return t->wanted == NULL || strncmp(full, "own/", 4) == 0 || quad_tensors_find(t->wanted, full) != NULL;
}

bool quad_wants(const quad_tape *t, const char *path)
{
    char full[ASSAY_PATH_SIZE];
    path_of(t, path, full);
    return wants(t, full);
}

static void show(quad_tape *t, const char *path, quad_shown one)
{
    const quad_node x = one.node;
    const assay_shape shape = one.shape;
    path_of(t, path, one.path);
    if (t->status != ASSAY_OK || x == 0) return;
    if (assay_shape_count(&shape) != quad_rows(t, x) * quad_columns(t, x)) {
        quad_refuse(t, "'%s' has %lld numbers, expected %lld", one.path,
                    (long long)(quad_rows(t, x) * quad_columns(t, x)), (long long)assay_shape_count(&shape));
        return;
    }
    quad_shown *shown = grown(t, t->shown, t->shown_count, sizeof *shown);
    if (shown == NULL) return;
    t->shown = shown;
    t->shown[t->shown_count++] = one;
}

void quad_put(quad_tape *t, const char *path, assay_shape shape, quad_node x)
{
    show(t, path, (quad_shown){.shape = shape, .node = x});
}

void quad_put_gradient(quad_tape *t, const char *path, assay_shape shape, quad_node x)
{
    quad_put_gradient_of(t, path, shape, x, 1, NULL);
}

void quad_put_gradient_of(quad_tape *t, const char *path, assay_shape shape, quad_node x, int64_t columns,
                          const int64_t *index)
{
    show(t, path, (quad_shown){.shape = shape, .node = x, .gradient = true, .columns = columns, .index = index});
}

int32_t *quad_put_indices(quad_tape *t, const char *path, assay_shape shape)
{
    char full[ASSAY_PATH_SIZE];
    int32_t *indices = NULL;
    path_of(t, path, full);
    if (t->status == ASSAY_OK) t->status = quad_tensors_add_indices(t->ctx, t->out, full, &shape, &indices);
    return indices;
}

/* --- the sweep --- */

quad *quad_into(quad_tape *t, quad_node x)
{
    const quad_record *of = &t->records[x];
    quad_record *root = of->part_of != 0 ? &t->records[of->part_of] : &t->records[x];
    if (x == 0 || !of->wanted || t->status != ASSAY_OK) return NULL;
    if (root->gradient == NULL) {
        const int64_t count = root->rows * root->columns;
        t->status = quad_alloc(t->ctx, count, &root->gradient);
        for (int64_t i = 0; t->status == ASSAY_OK && i < count; i++) root->gradient[i] = 0;
    }
    return t->status == ASSAY_OK ? root->gradient + of->offset : NULL;
}

/* An output's gradient begins with its cotangent. */
static void seed(quad_tape *t, const quad_shown *one)
{
    char path[ASSAY_PATH_SIZE];
    if (one->gradient || strncmp(one->path, "outputs/", 8) != 0) return;
    snprintf(path, sizeof path, "cotangents/%.*s", ASSAY_PATH_SIZE - 12, one->path + 8);
    if (quad_tensors_find(t->in, path) != NULL) quad_seed(t, one->node, path);
}

void quad_seed(quad_tape *t, quad_node x, const char *path)
{
    const int64_t count = quad_rows(t, x) * quad_columns(t, x);
    const quad *cotangent = NULL;
    if (t->status == ASSAY_OK) t->status = quad_read(t->ctx, t->in, path, count, &cotangent);
    quad *into = quad_into(t, x);
    for (int64_t i = 0; into != NULL && i < count; i++) into[i] += cotangent[i];
}

/* Nobody asks for it any more, but for what is shown or was given. */
static void drop_gradient(quad_tape *t, quad_node x)
{
    for (int i = 0; i < t->shown_count; i++) {
        const quad_node shown = t->shown[i].node, root = t->records[shown].part_of;
        if (t->shown[i].gradient && (shown == x || root == x)) return;
    }
    free(t->records[x].gradient);
    t->records[x].gradient = NULL;
}

/* Back from the outputs' cotangents, and what was seeded. */
static void sweep(quad_tape *t)
{
    for (int i = 0; i < t->shown_count; i++) seed(t, &t->shown[i]);
    for (quad_node x = t->count - 1; x > 0 && t->status == ASSAY_OK; x--) {
        const quad_record *y = &t->records[x];
        if (y->back == NULL || y->gradient == NULL) continue;
        y->back(t, y);
        drop_gradient(t, x);
    }
}

/* --- from beginning to end --- */

static void copy_out(quad_tape *t, const quad_shown *one, const quad *values)
{
    quad *to = NULL;
    if (t->status != ASSAY_OK || !wants(t, one->path)) return;
    t->status = quad_tensors_add(t->ctx, t->out, one->path, &one->shape, &to);
    for (int64_t i = 0; t->status == ASSAY_OK && i < assay_shape_count(&one->shape); i++) {
        const int64_t from = one->index == NULL ? i : one->index[i / one->columns] * one->columns + i % one->columns;
        to[i] = values == NULL ? 0 : values[from];
    }
}

static void put_leaf_gradients(quad_tape *t)
{
    for (quad_node x = 1; x < t->count; x++) {
        const quad_record *leaf = &t->records[x];
        const quad_tensor *tensor = leaf->with;
        char path[ASSAY_PATH_SIZE + 16];
        if (!leaf->wanted || leaf->back != NULL || tensor == NULL || !names_gradient(t, tensor->path)) continue;
        snprintf(path, sizeof path, "gradients/%s", tensor->path);
        quad *to = NULL;
        if (t->status == ASSAY_OK) t->status = quad_tensors_add(t->ctx, t->out, path, &tensor->shape, &to);
        for (int64_t i = 0; t->status == ASSAY_OK && i < leaf->rows * leaf->columns; i++)
            to[i] = leaf->gradient == NULL ? 0 : leaf->gradient[i];
    }
}

/* The gradient that is left of a node: zero where nothing came back to it. */
static void put_shown(quad_tape *t)
{
    for (int i = 0; i < t->shown_count; i++) {
        const quad_shown *one = &t->shown[i];
        const quad_record *of = &t->records[one->node];
        const quad_record *root = of->part_of != 0 ? &t->records[of->part_of] : of;
        const quad *gradient = root->gradient == NULL ? NULL : root->gradient + of->offset;
        copy_out(t, one, one->gradient ? gradient : of->values);
    }
}

static void close_tape(quad_tape *t)
{
    for (int i = 0; i < t->count; i++) {
        if (t->records[i].end != NULL) t->records[i].end(&t->records[i]);
        if (t->records[i].own) free(t->records[i].values);
        free(t->records[i].gradient);
    }
    for (int i = 0; i < t->kept_count; i++) free(t->kept[i]);
    free(t->kept);
    free(t->records);
    free(t->shown);
}

static assay_status run_tape(quad_tape *t, quad_form *form, const void *config)
{
    form(t, config);
    if (t->back) sweep(t);
    put_shown(t);
    put_leaf_gradients(t);
    close_tape(t);
    return t->status;
}

assay_status quad_differentiate(assay_context *ctx, quad_form *form, const void *config, const quad_tensors *in,
                                const quad_tensors *wanted, quad_tensors *out, bool *straight_through)
{
    quad_tape t = {.ctx = ctx, .in = in, .out = out, .wanted = wanted, .back = true};
    const assay_status status = run_tape(&t, form, config);
    if (straight_through != NULL) *straight_through = t.straight_through;
    return status;
}

assay_status quad_evaluate(assay_context *ctx, quad_form *form, const void *config, const quad_tensors *in,
                           const quad_tensors *wanted, quad_tensors *out)
{
    quad_tape t = {.ctx = ctx, .in = in, .out = out, .wanted = wanted};
    return run_tape(&t, form, config);
}
