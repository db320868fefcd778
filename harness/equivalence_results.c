#include "harness/equivalence_results.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"

static assay_status fill_given(assay_context *ctx, const assay_source *in, assay_kept *kept)
{
    const char *path = kept->spec->path;
    if (!assay_path_is_given(path)) return ASSAY_OK;
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

static bool wants(void *self, const char *path)
{
    const assay_kept *kept = assay_results_find(self, path);
    return kept != NULL && !assay_path_is_given(path);
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

const assay_kept *assay_results_locate(const assay_results *results, const assay_tensor_spec *spec, int64_t index,
                                       int64_t *at)
{
    static const char *const halves[] = {"wi_0", "wi_1"};
    char path[ASSAY_PATH_SIZE];
    const assay_kept *same = assay_results_find(results, spec->path);
    const int64_t width = spec->shape.rank > 0 ? spec->shape.dims[spec->shape.rank - 1] : 1;
    const int64_t row = index / width, column = index % width, half = width / 2;
    *at = index;
    if (same != NULL && assay_shape_equal(&same->spec->shape, &spec->shape)) return same;
    if (renamed(spec->path, "wi", halves[column >= half], path)) {
        *at = row * half + column % half;
        return assay_results_find(results, path);
    }
    for (int i = 0; i < 2; i++) {
        if (!renamed(spec->path, halves[i], "wi", path)) continue;
        *at = row * 2 * width + i * width + column;
        return assay_results_find(results, path);
    }
    return NULL;
}

static bool source_has(void *self, const char *path)
{
    return assay_path_is_given(path) && assay_results_find(self, path) != NULL;
}

/* The spec of the other form's tensor is not at hand: it follows from the path and from what it is made of. */
static assay_tensor_spec spec_of(const assay_results *results, const char *path)
{
    char other[ASSAY_PATH_SIZE];
    const assay_kept *kept = assay_results_find(results, path);
    const bool joins = kept == NULL && renamed(path, "wi", "wi_0", other);
    const bool cuts = kept == NULL && !joins && (renamed(path, "wi_0", "wi", other) || renamed(path, "wi_1", "wi", other));
    assay_tensor_spec spec = {0};
    if (joins || cuts) kept = assay_results_find(results, other);
    if (kept == NULL) return spec;
    spec = *kept->spec;
    snprintf(spec.path, sizeof spec.path, "%s", path);
    int64_t *width = &spec.shape.dims[spec.shape.rank - 1];
    if (joins) *width *= 2;
    if (cuts) *width /= 2;
    return spec;
}

static assay_status other_read(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                               double *out)
{
    const assay_tensor_spec spec = spec_of(self, path);
    for (int64_t i = 0; i < count; i++) {
        int64_t at = 0;
        const assay_kept *kept = assay_results_locate(self, &spec, first + i, &at);
        if (kept == NULL || kept->values == NULL) return assay_fail(ctx, ASSAY_INTERNAL, "%s is not there", path);
        out[i] = kept->values[at];
    }
    return ASSAY_OK;
}

static assay_status source_read(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                double *out)
{
    const assay_kept *kept = assay_results_find(self, path);
    if (kept == NULL || kept->values == NULL) return assay_fail(ctx, ASSAY_INTERNAL, "%s is not there", path);
    memcpy(out, kept->values + first, (size_t)count * sizeof *out);
    return ASSAY_OK;
}

static assay_status source_read_i32(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                    int32_t *out)
{
    const assay_kept *kept = assay_results_find(self, path);
    if (kept == NULL || kept->indices == NULL) return assay_fail(ctx, ASSAY_INTERNAL, "%s is not there", path);
    memcpy(out, kept->indices + first, (size_t)count * sizeof *out);
    return ASSAY_OK;
}

assay_source assay_results_source(assay_results *results)
{
    return (assay_source){
        .self = results, .has = source_has, .read = source_read, .read_i32 = source_read_i32};
}

assay_source assay_results_source_of_other(assay_results *results)
{
    return (assay_source){
        .self = results, .has = source_has, .read = other_read, .read_i32 = source_read_i32};
}
