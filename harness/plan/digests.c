#include "harness/plan/digests.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"

void assay_digest_path(const char *of, char path[ASSAY_PATH_SIZE])
{
    snprintf(path, ASSAY_PATH_SIZE, "%s/%.140s", assay_role_folders[ASSAY_ROLE_DIGEST], of);
}

/* An expert's kernel has two axes of its own. */
static bool is_of_experts(const assay_tensor_spec *spec)
{
    return spec->shape.rank == 3 && spec->labels[0][0] == 'E';
}

int64_t assay_digest_blocks(const assay_tensor_spec *of)
{
    return is_of_experts(of) ? of->shape.dims[0] : 1;
}

assay_status assay_digest_sink_open(assay_context *ctx, assay_digest_sink *sink, const assay_plan *plan, assay_sink to)
{
    *sink = (assay_digest_sink){.to = to};
    sink->items = calloc((size_t)plan->list.count + 1, sizeof *sink->items);
    if (sink->items == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the list of digests");
    for (int i = 0; i < plan->list.count; i++) {
        const assay_tensor_spec *spec = &plan->list.entries[i].spec;
        if (!assay_is_digested(plan->c, spec)) continue;
        assay_digested *item = &sink->items[sink->count++];
        item->block = spec->shape;
        memcpy(item->path, spec->path, sizeof item->path);
        assay_digest_path(item->path, item->digest_path);
        if (is_of_experts(spec)) {
            item->block.rank--;
            memmove(item->block.dims, spec->shape.dims + 1, (size_t)item->block.rank * sizeof *item->block.dims);
        }
        item->count = assay_shape_count(&item->block);
    }
    return ASSAY_OK;
}

void assay_digest_sink_close(assay_digest_sink *sink)
{
    for (int i = 0; i < sink->count; i++) free(sink->items[i].buffer);
    free(sink->items);
    *sink = (assay_digest_sink){0};
}

/* NULL: not among them, or nobody wants its digests. */
static assay_digested *find(const assay_digest_sink *sink, const char *path)
{
    for (int i = 0; i < sink->count; i++) {
        assay_digested *item = &sink->items[i];
        if (strcmp(item->path, path) == 0) return sink->to.wants(sink->to.self, item->digest_path) ? item : NULL;
    }
    return NULL;
}

static bool wants(void *self, const char *path)
{
    const assay_digest_sink *sink = self;
    return find(sink, path) != NULL || sink->to.wants(sink->to.self, path);
}

static assay_status write_block(assay_context *ctx, const assay_digest_sink *sink, const assay_digested *item,
                                const double *values)
{
    int32_t words[ASSAY_DIGEST_WORDS];
    const assay_status status = assay_digest_block(ctx, &item->block, values, words);
    RETURN_IF(status != ASSAY_OK, status);
    return sink->to.write_i32(ctx, sink->to.self, item->digest_path, ASSAY_DIGEST_WORDS, words);
}

static assay_status add_numbers(assay_context *ctx, const assay_digest_sink *sink, assay_digested *item, int64_t count,
                                const double *values)
{
    assay_status status = ASSAY_OK;
    while (count > 0) {
        const int64_t room = item->count - item->filled, taken = count < room ? count : room;
        if (taken == item->count) {
            TRY(write_block(ctx, sink, item, values));
        } else {
            if (item->buffer == NULL) TRY(assay_alloc_f64(ctx, item->path, item->count, &item->buffer));
            memcpy(item->buffer + item->filled, values, (size_t)taken * sizeof *values);
            item->filled += taken;
        }
        if (item->filled == item->count) {
            TRY(write_block(ctx, sink, item, item->buffer));
            item->filled = 0;
        }
        values += taken;
        count -= taken;
    }
cleanup:
    return status;
}

static assay_status write_numbers(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    const assay_digest_sink *sink = self;
    assay_digested *item = find(sink, path);
    return item != NULL ? add_numbers(ctx, sink, item, count, values)
                        : sink->to.write(ctx, sink->to.self, path, count, values);
}

static assay_status write_integers(assay_context *ctx, void *self, const char *path, int64_t count,
                                   const int32_t *values)
{
    const assay_digest_sink *sink = self;
    return sink->to.write_i32(ctx, sink->to.self, path, count, values);
}

/* Numbers of zeros where a block does not come whole, and before those who want numbers. */
static assay_status write_plain_zeros(assay_context *ctx, void *self, const char *path, int64_t count)
{
    double *zeros = NULL;
    assay_status status = assay_alloc_zeros(ctx, path, count, &zeros);
    if (status == ASSAY_OK) status = write_numbers(ctx, self, path, count, zeros);
    free(zeros);
    return status;
}

static assay_status write_zeros(assay_context *ctx, void *self, const char *path, int64_t count)
{
    assay_status status = ASSAY_OK;
    assay_digest_sink *sink = self;
    const assay_digested *item = find(sink, path);
    if (item == NULL || item->filled > 0 || count % item->count != 0) return write_plain_zeros(ctx, self, path, count);
    if (!assay_shape_equal(&sink->zeros, &item->block)) {
        TRY(assay_digest_block(ctx, &item->block, NULL, sink->zeros_words));
        sink->zeros = item->block;
    }
    for (; count > 0; count -= item->count)
        TRY(sink->to.write_i32(ctx, sink->to.self, item->digest_path, ASSAY_DIGEST_WORDS, sink->zeros_words));
cleanup:
    return status;
}

assay_sink assay_digest_sink_view(assay_digest_sink *sink)
{
    return (assay_sink){
        .self = sink, .wants = wants, .write = write_numbers, .write_i32 = write_integers, .write_zeros = write_zeros};
}
