#include "harness/equivalences/counterpart.h"

#include <stdio.h>
#include <string.h>

static const char *const halves[] = {"wi_0", "wi_1"};

/* The path with the component `from` replaced by `to`; false where it has none. */
static bool renamed(const char *path, const char *from, const char *to, char *out)
{
    const size_t length = strlen(from);
    for (const char *at = strstr(path, from); at != NULL; at = strstr(at + 1, from)) {
        const bool begins = at > path && at[-1] == '/', ends = at[length] == '/' || at[length] == '\0';
        if (!begins || !ends) continue;
        snprintf(out, ASSAY_PATH_SIZE, "%.*s%s%.100s", (int)(at - path), path, to, at + length);
        return true;
    }
    return false;
}

bool assay_path_names_half(const char *path)
{
    char other[ASSAY_PATH_SIZE], whole[ASSAY_PATH_SIZE];
    snprintf(whole, sizeof whole, "/%.120s", path); /* a key of `inputs:` may begin with it */
    return renamed(whole, "wi", "", other) || renamed(whole, "wi_0", "", other) || renamed(whole, "wi_1", "", other);
}

/* wi of the tensor's form is wi_0 and wi_1 here. */
static bool find_halves(const assay_tensor_set *tensors, const assay_tensor_spec *spec, assay_counterpart *found)
{
    char path[ASSAY_PATH_SIZE];
    found->piece = found->pitch = found->width / 2;
    for (int i = 0; i < 2; i++) {
        if (!renamed(spec->path, "wi", halves[i], path)) return false;
        found->part[i] = assay_tensor_set_find(tensors, path);
        if (found->part[i] == NULL || 2 * found->part[i]->count != assay_shape_count(&spec->shape)) return false;
    }
    return true;
}

/* wi_0 or wi_1 of the tensor's form lies in wi here. */
static bool find_whole(const assay_tensor_set *tensors, const assay_tensor_spec *spec, assay_counterpart *found)
{
    char path[ASSAY_PATH_SIZE];
    found->piece = found->width;
    found->pitch = 2 * found->width;
    found->part[1] = NULL;
    for (int i = 0; i < 2; i++) {
        if (!renamed(spec->path, halves[i], "wi", path)) continue;
        found->offset = i * found->width;
        found->part[0] = assay_tensor_set_find(tensors, path);
        return found->part[0] != NULL && found->part[0]->count == 2 * assay_shape_count(&spec->shape);
    }
    return false;
}

/* A shape that is the same by chance has other labels. */
static bool same_axes(const assay_tensor_spec *a, const assay_tensor_spec *b)
{
    bool same = assay_shape_equal(&a->shape, &b->shape);
    for (int i = 0; same && i < a->shape.rank; i++) same = strcmp(a->labels[i], b->labels[i]) == 0;
    return same;
}

/* The shard, and what it has of the rows. */
static bool is_row_axis(const char *label)
{
    static const char *const rows[] = {"shard", "b", "f*b", "T"};
    bool found = false;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) found |= strcmp(rows[i], label) == 0;
    return found;
}

/* The same numbers of all shards, one after the other, on more or fewer of them. */
static bool same_rows(const assay_tensor_spec *a, const assay_tensor_spec *b)
{
    bool same = a->shape.rank == b->shape.rank && a->shape.rank > 1 && strcmp(a->labels[0], "shard") == 0 &&
                assay_shape_count(&a->shape) == assay_shape_count(&b->shape);
    for (int i = 0; same && i < a->shape.rank; i++) {
        same = strcmp(a->labels[i], b->labels[i]) == 0 &&
               (is_row_axis(a->labels[i]) || a->shape.dims[i] == b->shape.dims[i]);
    }
    return same;
}

bool assay_find_counterpart(const assay_tensor_set *tensors, const assay_tensor_spec *spec, assay_counterpart *found)
{
    const assay_tensor *same = assay_tensor_set_find(tensors, spec->path);
    const int64_t width = spec->shape.rank > 0 ? spec->shape.dims[spec->shape.rank - 1] : 1;
    *found = (assay_counterpart){.part = {same, NULL}, .width = width, .piece = width, .pitch = width};
    if (same != NULL && (same_axes(&same->spec, spec) || same_rows(&same->spec, spec))) return true;
    return find_halves(tensors, spec, found) || find_whole(tensors, spec, found);
}

int assay_counterpart_at(const assay_counterpart *c, int64_t index, int64_t *at)
{
    const int64_t row = index / c->width, column = index % c->width;
    *at = row * c->pitch + c->offset + column % c->piece;
    return (int)(column / c->piece);
}

assay_status assay_counterpart_read(assay_context *ctx, const assay_tensor_set *tensors, assay_tensor *to)
{
    assay_counterpart found;
    if (!assay_find_counterpart(tensors, &to->spec, &found)) {
        return assay_fail(ctx, ASSAY_INTERNAL, "%s is not there", to->spec.path);
    }
    for (int64_t i = 0; i < to->count; i++) {
        int64_t at = 0;
        const int part = assay_counterpart_at(&found, i, &at);
        if (to->indices != NULL) to->indices[i] = found.part[part]->indices[at];
        if (to->values != NULL) to->values[i] = found.part[part]->values[at];
    }
    to->written = to->count;
    return ASSAY_OK;
}
