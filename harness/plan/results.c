#include "harness/plan/results.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"

static assay_status fill_given(assay_context *ctx, const assay_source *in, assay_kept *kept)
{
    const char *path = kept->spec->path;
    if (!assay_role_is_given(kept->spec->role)) return ASSAY_OK;
    kept->written = kept->count;
    return kept->indices != NULL ? in->read_i32(ctx, in->self, path, 0, kept->count, kept->indices)
                                 : in->read(ctx, in->self, path, 0, kept->count, kept->values);
}

assay_status assay_results_open(assay_context *ctx, assay_results *results, const assay_plan *plan,
                                const assay_source *in)
{
    assay_status status = ASSAY_OK;
    void *items = NULL;
    *results = (assay_results){.plan = plan};
    TRY(assay_require_memory(ctx, plan->c->name, plan->elements < INT64_MAX / 8 ? 8 * plan->elements : INT64_MAX));
    TRY(assay_alloc(ctx, "results", plan->spec_count, sizeof *results->items, &items));
    results->items = items;
    memset(items, 0, (size_t)plan->spec_count * sizeof *results->items);
    for (int i = 0; i < plan->spec_count; i++) {
        assay_kept *kept = &results->items[i];
        kept->spec = &plan->specs[i];
        kept->count = assay_shape_count(&kept->spec->shape);
        if (kept->spec->type == ASSAY_INT32) {
            TRY(assay_alloc_i32(ctx, kept->spec->path, kept->count, &kept->indices));
        } else {
            TRY(assay_alloc_f64(ctx, kept->spec->path, kept->count, &kept->values));
        }
        TRY(fill_given(ctx, in, kept));
    }
cleanup:
    if (status != ASSAY_OK) assay_results_free(results);
    return status;
}

void assay_results_free(assay_results *results)
{
    for (int i = 0; results->items != NULL && i < results->plan->spec_count; i++) {
        free(results->items[i].values);
        free(results->items[i].indices);
    }
    free(results->items);
    *results = (assay_results){0};
}

assay_kept *assay_results_find(const assay_results *results, const char *path)
{
    for (int i = 0; i < results->plan->spec_count; i++) {
        if (strcmp(results->items[i].spec->path, path) == 0) return &results->items[i];
    }
    return NULL;
}

assay_kept *assay_results_scales(const assay_results *results, const assay_profile *profile, const char *path)
{
    char scale[ASSAY_PATH_SIZE];
    assay_path_at(ASSAY_ROLE_ERROR_SCALE, profile->precision.name, path, scale);
    return assay_results_find(results, scale);
}

static bool wants(void *self, const char *path)
{
    const assay_kept *kept = assay_results_find(self, path);
    /* two forms are no sample */
    return kept != NULL && !assay_role_is_given(kept->spec->role) && kept->spec->role != ASSAY_ROLE_NULL;
}

static assay_status place(assay_context *ctx, void *self, const char *path, int64_t count, assay_kept **kept)
{
    *kept = assay_results_find(self, path);
    if (count <= (*kept)->count - (*kept)->written) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_INTERNAL, "%s has more elements than its shape", path);
}

static assay_status write_values(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    assay_kept *kept = NULL;
    assay_status status = place(ctx, self, path, count, &kept);
    RETURN_IF(status != ASSAY_OK, status);
    memcpy(kept->values + kept->written, values, (size_t)count * sizeof *values);
    kept->written += count;
    return ASSAY_OK;
}

static assay_status write_indices(assay_context *ctx, void *self, const char *path, int64_t count,
                                  const int32_t *indices)
{
    assay_kept *kept = NULL;
    assay_status status = place(ctx, self, path, count, &kept);
    RETURN_IF(status != ASSAY_OK, status);
    memcpy(kept->indices + kept->written, indices, (size_t)count * sizeof *indices);
    kept->written += count;
    return ASSAY_OK;
}

assay_sink assay_results_sink(assay_results *results)
{
    return (assay_sink){.self = results, .wants = wants, .write = write_values, .write_i32 = write_indices};
}

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
static bool find_halves(const assay_results *results, const assay_tensor_spec *spec, assay_counterpart *found)
{
    char path[ASSAY_PATH_SIZE];
    found->piece = found->pitch = found->width / 2;
    for (int i = 0; i < 2; i++) {
        if (!renamed(spec->path, "wi", halves[i], path)) return false;
        found->part[i] = assay_results_find(results, path);
        if (found->part[i] == NULL || 2 * found->part[i]->count != assay_shape_count(&spec->shape)) return false;
    }
    return true;
}

/* wi_0 or wi_1 of the tensor's form lies in wi here. */
static bool find_whole(const assay_results *results, const assay_tensor_spec *spec, assay_counterpart *found)
{
    char path[ASSAY_PATH_SIZE];
    found->piece = found->width;
    found->pitch = 2 * found->width;
    found->part[1] = NULL;
    for (int i = 0; i < 2; i++) {
        if (!renamed(spec->path, halves[i], "wi", path)) continue;
        found->offset = i * found->width;
        found->part[0] = assay_results_find(results, path);
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

bool assay_results_counterpart(const assay_results *results, const assay_tensor_spec *spec, assay_counterpart *found)
{
    const assay_kept *same = assay_results_find(results, spec->path);
    const int64_t width = spec->shape.rank > 0 ? spec->shape.dims[spec->shape.rank - 1] : 1;
    *found = (assay_counterpart){.part = {same, NULL}, .width = width, .piece = width, .pitch = width};
    if (same != NULL && same_axes(same->spec, spec)) return true;
    return find_halves(results, spec, found) || find_whole(results, spec, found);
}

int assay_counterpart_at(const assay_counterpart *c, int64_t index, int64_t *at)
{
    const int64_t row = index / c->width, column = index % c->width;
    *at = row * c->pitch + c->offset + column % c->piece;
    return (int)(column / c->piece);
}

static bool source_has(void *self, const char *path)
{
    const assay_kept *kept = assay_results_find(self, path);
    return kept != NULL && assay_role_is_given(kept->spec->role);
}

static assay_status not_there(assay_context *ctx, const char *path)
{
    return assay_fail(ctx, ASSAY_INTERNAL, "%s is not there", path);
}

static assay_status source_read(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                double *out)
{
    const assay_kept *kept = assay_results_find(self, path);
    if (kept == NULL || kept->values == NULL) return not_there(ctx, path);
    memcpy(out, kept->values + first, (size_t)count * sizeof *out);
    return ASSAY_OK;
}

static assay_status source_read_i32(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                    int32_t *out)
{
    const assay_kept *kept = assay_results_find(self, path);
    if (kept == NULL || kept->indices == NULL) return not_there(ctx, path);
    memcpy(out, kept->indices + first, (size_t)count * sizeof *out);
    return ASSAY_OK;
}

assay_source assay_results_source(assay_results *results)
{
    return (assay_source){.self = results, .has = source_has, .read = source_read, .read_i32 = source_read_i32};
}

static bool other_has(void *self, const char *path)
{
    const assay_given_of_other *given = self;
    return assay_role_is_given(assay_role_of(path)) && assay_tensor_list_find(&given->plan->list, path) != NULL;
}

static assay_status other_read(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                               double *out)
{
    const assay_given_of_other *given = self;
    const assay_tensor_spec *spec = &assay_tensor_list_find(&given->plan->list, path)->spec;
    assay_counterpart found;
    if (!assay_results_counterpart(given->results, spec, &found)) return not_there(ctx, path);
    for (int64_t i = 0; i < count; i++) {
        int64_t at = 0;
        const int part = assay_counterpart_at(&found, first + i, &at);
        out[i] = found.part[part]->values[at];
    }
    return ASSAY_OK;
}

static assay_status other_read_i32(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                   int32_t *out)
{
    const assay_given_of_other *given = self;
    return source_read_i32(ctx, (void *)given->results, path, first, count, out);
}

assay_source assay_given_of_other_source(assay_given_of_other *given)
{
    return (assay_source){.self = given, .has = other_has, .read = other_read, .read_i32 = other_read_i32};
}
