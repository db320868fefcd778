#include "harness/equivalences/copied_heads.h"

#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/base/tensor_set.h"

/* Tensors over the heads of keys, as many of which the other case has as heads of queries. */
typedef struct copies {
    int64_t group; /* copies of each */
    assay_tensor_set given, results;
    const assay_sink *out;
} copies;

/* The axis of the heads of keys; -1: it has none. */
static int shared_axis(const assay_tensor_spec *spec)
{
    for (int axis = 0; axis < spec->shape.rank; axis++) {
        if (strcmp(spec->labels[axis], "Nkv") == 0) return axis;
    }
    return -1;
}

/* The element of the case's tensor that an element of the other's is a copy of. */
static int64_t copied_from(const assay_tensor_spec *spec, int64_t group, int64_t index)
{
    int64_t inner = 1, heads = 0;
    const int axis = shared_axis(spec);
    for (int i = axis + 1; i < spec->shape.rank; i++) inner *= spec->shape.dims[i];
    heads = spec->shape.dims[axis];
    return index / (heads * inner) * (heads / group * inner) + index / inner % heads / group * inner + index % inner;
}

static assay_status add_given(assay_context *ctx, copies *k, const assay_tensor_spec *spec, const assay_source *in)
{
    assay_tensor *tensor = NULL;
    OWNED double *values = NULL;
    MUST(assay_tensor_set_add(ctx, &k->given, spec, &tensor));
    MUST(assay_alloc_f64(ctx, spec->path, tensor->count / k->group, &values));
    MUST(in->read(ctx, in->self, spec->path, 0, tensor->count / k->group, values));
    for (int64_t i = 0; i < tensor->count; i++) tensor->values[i] = values[copied_from(spec, k->group, i)];
    tensor->written = tensor->count;
    return ASSAY_OK;
}

static bool wants_other(void *self, const char *path)
{
    const copies *k = self;
    return assay_tensor_set_find(&k->results, path) == NULL && assay_wants(k->out, path);
}

static assay_status write_other(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    const copies *k = self;
    return k->out->write(ctx, k->out->self, path, count, values);
}

static assay_status write_other_i32(assay_context *ctx, void *self, const char *path, int64_t count,
                                    const int32_t *values)
{
    const copies *k = self;
    return k->out->write_i32(ctx, k->out->self, path, count, values);
}

static assay_status write_folded(assay_context *ctx, const copies *k, const assay_tensor *tensor)
{
    const int64_t count = tensor->count / k->group;
    const bool sums = assay_role_of(tensor->spec.path) == ASSAY_ROLE_GRADIENT;
    OWNED double *values = NULL;
    MUST(assay_alloc_f64(ctx, tensor->spec.path, count, &values));
    memset(values, 0, (size_t)count * sizeof *values);
    for (int64_t i = 0; i < tensor->count; i++) {
        double *to = &values[copied_from(&tensor->spec, k->group, i)];
        *to = sums ? *to + tensor->values[i] : tensor->values[i];
    }
    return k->out->write(ctx, k->out->self, tensor->spec.path, count, values);
}

assay_status assay_run_copied_heads(assay_context *ctx, const assay_case *c, const assay_source *in,
                                    const assay_sink *out)
{
    assay_status status;
    const assay_operation *operation = NULL;
    assay_tensor_list list = {0};
    assay_case other = *c;
    copies k = {.group = c->config.base_num_query_heads / c->config.base_num_kv_heads, .out = out};
    other.config.base_num_kv_heads = c->config.base_num_query_heads;
    TRY(assay_operation_prepare(ctx, &other, &operation, &list));
    for (int i = 0; i < list.count; i++) {
        const assay_tensor_spec *spec = &list.entries[i].spec;
        if (shared_axis(spec) < 0) continue;
        if (assay_role_is_given(assay_role_of(spec->path))) {
            TRY(add_given(ctx, &k, spec, in));
        } else if (assay_wants(out, spec->path)) {
            TRY(assay_tensor_set_add(ctx, &k.results, spec, NULL));
        }
    }
    assay_overlay given = {assay_tensor_set_source(&k.given), *in};
    const assay_sink others = {.self = &k, .wants = wants_other, .write = write_other, .write_i32 = write_other_i32};
    assay_tee both = {assay_tensor_set_sink(&k.results), others};
    const assay_source source = assay_overlay_source(&given);
    const assay_sink sink = assay_tee_sink(&both);
    TRY(assay_operation_run(ctx, operation, &other, &source, &sink, NULL, 0));
    for (int i = 0; i < k.results.count; i++) TRY(write_folded(ctx, &k, &k.results.items[i]));
cleanup:
    assay_tensor_set_free(&k.given);
    assay_tensor_set_free(&k.results);
    assay_tensor_list_free(&list);
    return status;
}
