#include "oracle/base/tensor_table.h"

#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"

/* As much of a text as there is room for, and its end. Members ask for paths all the time: printf takes ten times as long. */
static char *append(char *to, const char *end, const char *text)
{
    while (to + 1 < end && *text != '\0') *to++ = *text++;
    *to = '\0';
    return to;
}

assay_tensor_row assay_tensor_row_of(const assay_tensor_form *form, const void *config,
                                     int64_t (*axis_size)(const void *config, char axis))
{
    assay_tensor_row row = {.name = form->name, .kind = form->kind, .fan_in = 1, .inputs = form->inputs};
    append(row.axes, row.axes + sizeof row.axes, form->axes);
    for (const char *axis = row.axes; *axis != '\0'; axis++) {
        const int64_t size = axis_size(config, *axis);
        if (row.shape.rank < form->inputs) row.fan_in *= size;
        row.shape.dims[row.shape.rank++] = size;
    }
    return row;
}

assay_tensor_row assay_tensor_row_below(const char *axes, const int64_t *dims, assay_tensor_row row)
{
    assay_tensor_row below = row;
    const int more = (int)strlen(axes);
    below.shape.rank = more + row.shape.rank;
    below.below += more;
    for (int axis = 0; axis < below.shape.rank; axis++) {
        below.axes[axis] = axis < more ? axes[axis] : row.axes[axis - more];
        below.shape.dims[axis] = axis < more ? dims[axis] : row.shape.dims[axis - more];
    }
    below.axes[below.shape.rank] = '\0';
    return below;
}

int64_t assay_tensor_row_count(const assay_tensor_row *row)
{
    return row->name == NULL ? 0 : assay_shape_count(&row->shape);
}

void assay_tensor_path(const char *root, const char *prefix, const assay_tensor_row *row, char path[ASSAY_PATH_SIZE])
{
    const char *end = path + ASSAY_PATH_SIZE;
    char *to = append(append(path, end, root), end, prefix);
    if (row->folder != NULL) to = append(to, end, row->folder);
    append(to, end, row->name);
}

assay_status assay_weights_alloc(assay_context *ctx, const assay_source *in, const char *prefix,
                                 const assay_tensor_table *table, double **weights)
{
    for (int i = 0; i < table->count; i++) {
        const assay_tensor_row *row = &table->rows[i];
        char path[ASSAY_PATH_SIZE];
        if (row->name == NULL) continue;
        assay_tensor_path("weights/", prefix, row, path);
        if (row->kind == ASSAY_BIAS && !in->has(in->self, path)) continue;
        MUST(assay_alloc_f64(ctx, path, assay_tensor_row_count(row), &weights[i]));
    }
    return ASSAY_OK;
}

assay_status assay_weights_lend(assay_context *ctx, const assay_source *in, const char *prefix,
                                const assay_tensor_table *table, int64_t expert, double *const *room, double **weights)
{
    for (int i = 0; i < table->count; i++) {
        const int64_t count = assay_tensor_row_count(&table->rows[i]), first = expert * count;
        char path[ASSAY_PATH_SIZE];
        if (room[i] == NULL) continue;
        assay_tensor_path("weights/", prefix, &table->rows[i], path);
        weights[i] = in->lend == NULL ? NULL : (double *)in->lend(in->self, path, first, count);
        if (weights[i] != NULL) continue;
        weights[i] = room[i];
        MUST(in->read(ctx, in->self, path, first, count, room[i]));
    }
    return ASSAY_OK;
}

static bool wants_gradient(const assay_sink *out, const char *prefix, const assay_tensor_row *row,
                           char path[ASSAY_PATH_SIZE])
{
    assay_tensor_path("gradients/weights/", prefix, row, path);
    return assay_wants(out, path);
}

bool assay_wants_any_gradient(const assay_source *in, const assay_sink *out, const char *prefix,
                              const assay_tensor_table *table)
{
    bool wants = false;
    for (int i = 0; i < table->count; i++) {
        char path[ASSAY_PATH_SIZE];
        if (table->rows[i].name == NULL) continue;
        assay_tensor_path("weights/", prefix, &table->rows[i], path);
        wants |= in->has(in->self, path) && wants_gradient(out, prefix, &table->rows[i], path);
    }
    return wants;
}

assay_status assay_gradients_alloc(assay_context *ctx, const assay_sink *out, const char *prefix,
                                   const assay_tensor_table *table, double *const *weights, double **gradients)
{
    for (int i = 0; i < table->count; i++) {
        char path[ASSAY_PATH_SIZE];
        if (weights[i] == NULL || !wants_gradient(out, prefix, &table->rows[i], path)) continue;
        MUST(assay_alloc_f64(ctx, path, assay_tensor_row_count(&table->rows[i]), &gradients[i]));
    }
    return ASSAY_OK;
}

void assay_gradients_place(const assay_sink *out, const char *prefix, const assay_tensor_table *table,
                           double *const *room, double **gradients)
{
    for (int i = 0; i < table->count; i++) {
        const int64_t count = assay_tensor_row_count(&table->rows[i]);
        char path[ASSAY_PATH_SIZE];
        gradients[i] = room[i];
        if (room[i] == NULL || out->room == NULL || !wants_gradient(out, prefix, &table->rows[i], path)) continue;
        double *place = out->room(out->self, path, count);
        if (place != NULL) gradients[i] = place;
    }
}

assay_status assay_gradients_write(assay_context *ctx, const assay_sink *out, const char *prefix,
                                   const assay_tensor_table *table, double *const *gradients)
{
    for (int i = 0; i < table->count; i++) {
        char path[ASSAY_PATH_SIZE];
        if (gradients[i] == NULL || !wants_gradient(out, prefix, &table->rows[i], path)) continue;
        MUST(out->write(ctx, out->self, path, assay_tensor_row_count(&table->rows[i]), gradients[i]));
    }
    return ASSAY_OK;
}

assay_status assay_gradients_write_zeros(assay_context *ctx, const assay_sink *out, const char *prefix,
                                         const assay_tensor_table *table, double *const *gradients)
{
    for (int i = 0; i < table->count; i++) {
        const int64_t count = assay_tensor_row_count(&table->rows[i]);
        char path[ASSAY_PATH_SIZE];
        if (gradients[i] == NULL || !wants_gradient(out, prefix, &table->rows[i], path)) continue;
        if (out->write_zeros != NULL) {
            MUST(out->write_zeros(ctx, out->self, path, count));
            continue;
        }
        memset(gradients[i], 0, (size_t)count * sizeof *gradients[i]);
        MUST(out->write(ctx, out->self, path, count, gradients[i]));
    }
    return ASSAY_OK;
}

void assay_weights_free(const assay_tensor_table *table, double **weights)
{
    for (int i = 0; i < table->count; i++) {
        free(weights[i]);
        weights[i] = NULL;
    }
}
