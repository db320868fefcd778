#include "oracle/base/tensor_set.h"

#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"

/* The first place in by_path whose path is not below `path`. */
static int place_of(const assay_tensor_set *set, const char *path)
{
    int low = 0, high = set->count;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (strcmp(set->items[set->by_path[middle]].spec.path, path) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

assay_tensor *assay_tensor_set_find(const assay_tensor_set *set, const char *path)
{
    const int place = place_of(set, path);
    if (place == set->count) return NULL;
    assay_tensor *tensor = &set->items[set->by_path[place]];
    return strcmp(tensor->spec.path, path) == 0 ? tensor : NULL;
}

static assay_status make_room(assay_context *ctx, assay_tensor_set *set)
{
    if (set->count < set->room) return ASSAY_OK;
    const int room = 2 * set->room + 8;
    MUST(assay_grow(ctx, "the list of tensors", room, sizeof *set->items, &set->items));
    MUST(assay_grow(ctx, "the list of tensors", room, sizeof *set->by_path, &set->by_path));
    set->room = room;
    return ASSAY_OK;
}

assay_status assay_tensor_set_add(assay_context *ctx, assay_tensor_set *set, const assay_tensor_spec *spec,
                                  assay_tensor **added)
{
    assay_tensor tensor = {.spec = *spec};
    const int place = place_of(set, spec->path);
    if (assay_tensor_set_find(set, spec->path) != NULL) {
        return assay_fail(ctx, ASSAY_INTERNAL, "the tensor %s is there twice", spec->path);
    }
    MUST(make_room(ctx, set));
    MUST(assay_checked_count(ctx, spec->path, spec->shape.rank, spec->shape.dims, &tensor.count));
    MUST(spec->type == ASSAY_INT32 ? assay_alloc_i32(ctx, spec->path, tensor.count, &tensor.indices)
                                   : assay_alloc_f64(ctx, spec->path, tensor.count, &tensor.values));
    memmove(set->by_path + place + 1, set->by_path + place, (size_t)(set->count - place) * sizeof *set->by_path);
    set->by_path[place] = set->count;
    set->items[set->count] = tensor;
    if (added != NULL) *added = &set->items[set->count];
    set->count++;
    return ASSAY_OK;
}

assay_status assay_tensor_set_read(assay_context *ctx, assay_tensor_set *set, const assay_tensor_spec *spec,
                                   const assay_source *in)
{
    assay_tensor *t = NULL;
    MUST(assay_tensor_set_add(ctx, set, spec, &t));
    MUST(t->indices != NULL ? in->read_i32(ctx, in->self, spec->path, 0, t->count, t->indices)
                            : in->read(ctx, in->self, spec->path, 0, t->count, t->values));
    t->written = t->count;
    return ASSAY_OK;
}

assay_status assay_tensor_set_copy(assay_context *ctx, const assay_tensor_set *set, assay_tensor_set *copy)
{
    assay_status status = ASSAY_OK;
    int64_t bytes = 0;
    for (int i = 0; i < set->count; i++) bytes += set->items[i].count * (int64_t)sizeof(double);
    TRY(assay_require_memory(ctx, "a copy of all tensors", bytes));
    for (int i = 0; i < set->count; i++) {
        const assay_tensor *from = &set->items[i];
        assay_tensor *to = NULL;
        TRY(assay_tensor_set_add(ctx, copy, &from->spec, &to));
        const size_t count = (size_t)from->count;
        if (from->indices != NULL) memcpy(to->indices, from->indices, count * sizeof *to->indices);
        if (from->values != NULL) memcpy(to->values, from->values, count * sizeof *to->values);
        to->written = from->written;
    }
cleanup:
    if (status != ASSAY_OK) assay_tensor_set_free(copy);
    return status;
}

void assay_tensor_set_free(assay_tensor_set *set)
{
    for (int i = 0; i < set->count; i++) {
        free(set->items[i].values);
        free(set->items[i].indices);
    }
    free(set->items);
    free(set->by_path);
    *set = (assay_tensor_set){0};
}

bool assay_tensor_is_complete(const assay_tensor *tensor)
{
    return tensor->written == tensor->count;
}

assay_status assay_tensor_set_require_complete(assay_context *ctx, const assay_tensor_set *set)
{
    for (int i = 0; i < set->count; i++) {
        const assay_tensor *tensor = &set->items[i];
        if (assay_tensor_is_complete(tensor)) continue;
        return assay_fail(ctx, ASSAY_INTERNAL, "%s was not written in full", tensor->spec.path);
    }
    return ASSAY_OK;
}

void assay_tensor_set_rewind(assay_tensor_set *set)
{
    for (int i = 0; i < set->count; i++) set->items[i].written = 0;
}

/* The tensor of that path, which must hold what is asked for; `status`: what it is not to have it. */
static assay_status tensor_of(assay_context *ctx, const assay_tensor_set *set, const char *path, bool integers,
                              assay_status status, assay_tensor **tensor)
{
    *tensor = assay_tensor_set_find(set, path);
    if (*tensor == NULL) return assay_fail(ctx, status, "%s is not there", path);
    if (((*tensor)->indices != NULL) == integers) return ASSAY_OK;
    return assay_fail(ctx, status, "%s holds %s, expected %s", path, integers ? "numbers" : "int32",
                      integers ? "int32" : "numbers");
}

/* The tensor whose elements [first, first + count) are read. */
static assay_status tensor_to_read(assay_context *ctx, const assay_tensor_set *set, const char *path, bool integers,
                                   int64_t first, int64_t count, assay_tensor **tensor)
{
    MUST(tensor_of(ctx, set, path, integers, ASSAY_BAD_INPUT, tensor));
    if (first >= 0 && count >= 0 && count <= (*tensor)->written - first) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_INTERNAL, "%s has fewer elements than are asked for", path);
}

/* The tensor that `count` more elements are written to, which come after `*first`. */
static assay_status tensor_to_write(assay_context *ctx, const assay_tensor_set *set, const char *path, bool integers,
                                    int64_t count, assay_tensor **tensor, int64_t *first)
{
    MUST(tensor_of(ctx, set, path, integers, ASSAY_INTERNAL, tensor));
    if (count > (*tensor)->count - (*tensor)->written) {
        return assay_fail(ctx, ASSAY_INTERNAL, "%s has more elements than its shape", path);
    }
    *first = (*tensor)->written;
    (*tensor)->written += count;
    return ASSAY_OK;
}

static bool set_has(void *self, const char *path)
{
    const assay_tensor *tensor = assay_tensor_set_find(self, path);
    return tensor != NULL && assay_tensor_is_complete(tensor);
}

static assay_status set_read(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                             double *out)
{
    assay_tensor *tensor = NULL;
    const assay_status status = tensor_to_read(ctx, self, path, false, first, count, &tensor);
    if (status == ASSAY_OK) memcpy(out, tensor->values + first, (size_t)count * sizeof *out);
    return status;
}

static assay_status set_read_i32(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                 int32_t *out)
{
    assay_tensor *tensor = NULL;
    const assay_status status = tensor_to_read(ctx, self, path, true, first, count, &tensor);
    if (status == ASSAY_OK) memcpy(out, tensor->indices + first, (size_t)count * sizeof *out);
    return status;
}

static const double *set_lend(void *self, const char *path, int64_t first, int64_t count)
{
    const assay_tensor *tensor = assay_tensor_set_find(self, path);
    const bool there = tensor != NULL && tensor->values != NULL && assay_tensor_is_complete(tensor);
    return there && first >= 0 && count <= tensor->count - first ? tensor->values + first : NULL;
}

assay_source assay_tensor_set_source(const assay_tensor_set *set)
{
    return (assay_source){
        .self = (void *)set, .has = set_has, .read = set_read, .read_i32 = set_read_i32, .lend = set_lend};
}

static bool set_wants(void *self, const char *path)
{
    return assay_tensor_set_find(self, path) != NULL;
}

static assay_status set_write(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    assay_tensor *tensor = NULL;
    int64_t first = 0;
    const assay_status status = tensor_to_write(ctx, self, path, false, count, &tensor, &first);
    if (status == ASSAY_OK && values != tensor->values + first)
        memcpy(tensor->values + first, values, (size_t)count * sizeof *values);
    return status;
}

static double *set_room(void *self, const char *path, int64_t count)
{
    const assay_tensor *tensor = assay_tensor_set_find(self, path);
    const bool there = tensor != NULL && tensor->values != NULL && count <= tensor->count - tensor->written;
    return there ? tensor->values + tensor->written : NULL;
}

static assay_status set_write_i32(assay_context *ctx, void *self, const char *path, int64_t count,
                                  const int32_t *values)
{
    assay_tensor *tensor = NULL;
    int64_t first = 0;
    const assay_status status = tensor_to_write(ctx, self, path, true, count, &tensor, &first);
    if (status == ASSAY_OK) memcpy(tensor->indices + first, values, (size_t)count * sizeof *values);
    return status;
}

assay_sink assay_tensor_set_sink(assay_tensor_set *set)
{
    return (assay_sink){
        .self = set, .wants = set_wants, .write = set_write, .write_i32 = set_write_i32, .room = set_room};
}

static bool overlay_has(void *self, const char *path)
{
    const assay_overlay *o = self;
    return o->over.has(o->over.self, path) || o->under.has(o->under.self, path);
}

static const assay_source *layer_of(const assay_overlay *o, const char *path)
{
    return o->over.has(o->over.self, path) ? &o->over : &o->under;
}

static assay_status overlay_read(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                 double *out)
{
    const assay_source *in = layer_of(self, path);
    return in->read(ctx, in->self, path, first, count, out);
}

static assay_status overlay_read_i32(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                     int32_t *out)
{
    const assay_source *in = layer_of(self, path);
    return in->read_i32(ctx, in->self, path, first, count, out);
}

static const double *overlay_lend(void *self, const char *path, int64_t first, int64_t count)
{
    const assay_source *in = layer_of(self, path);
    return in->lend == NULL ? NULL : in->lend(in->self, path, first, count);
}

assay_source assay_overlay_source(assay_overlay *overlay)
{
    return (assay_source){
        .self = overlay, .has = overlay_has, .read = overlay_read, .read_i32 = overlay_read_i32, .lend = overlay_lend};
}

static bool tee_wants(void *self, const char *path)
{
    const assay_tee *t = self;
    return t->first.wants(t->first.self, path) || t->second.wants(t->second.self, path);
}

static assay_status tee_write(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    const assay_tee *t = self;
    if (t->first.wants(t->first.self, path)) MUST(t->first.write(ctx, t->first.self, path, count, values));
    if (t->second.wants(t->second.self, path)) MUST(t->second.write(ctx, t->second.self, path, count, values));
    return ASSAY_OK;
}

static assay_status tee_write_i32(assay_context *ctx, void *self, const char *path, int64_t count,
                                  const int32_t *values)
{
    const assay_tee *t = self;
    if (t->first.wants(t->first.self, path)) MUST(t->first.write_i32(ctx, t->first.self, path, count, values));
    if (t->second.wants(t->second.self, path)) MUST(t->second.write_i32(ctx, t->second.self, path, count, values));
    return ASSAY_OK;
}

assay_sink assay_tee_sink(assay_tee *tee)
{
    return (assay_sink){.self = tee, .wants = tee_wants, .write = tee_write, .write_i32 = tee_write_i32};
}
