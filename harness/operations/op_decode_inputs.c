/* Inputs of attention over a cache that follow from others: tables, lists, bytes; and which rows they use. */
#include "harness/operations/op_decode.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"

/* Of each list other rows in a drawn order, none of them twice, but for about one entry in eight, which is no row. */
static assay_status derive_lists(assay_context *ctx, const assay_decode_config *d, uint64_t seed, int32_t *indices)
{
    enum { SOME = 8, APART = 7919 };
    const assay_fill order = {.distribution = ASSAY_PERMUTATION}, which = assay_fill_range(ASSAY_INTEGERS, 0, SOME - 1);
    const int64_t all = d->pages * d->page, entries = d->batch * d->sequence * d->topk;
    const int32_t none[] = {-1, INT32_MAX, INT32_MIN, (int32_t)all};
    const assay_shape rows_shape = assay_shape_of(1, all), shape = assay_shape_of(1, entries);
    OWNED int32_t *rows = NULL;
    MUST(assay_alloc_i32(ctx, "rows", all, &rows));
    MUST(assay_random_fill_i32(ctx, &order, seed, "inputs/indices", &rows_shape, rows));
    MUST(assay_random_fill_i32(ctx, &which, seed, "inputs/indices/invalid", &shape, indices));
    for (int64_t i = 0; i < entries; i++) {
        const int64_t entry = i % d->topk, first = i / d->topk * APART % all;
        indices[i] = indices[i] == 0 || entry >= all ? none[i % 4] : rows[(first + entry) % all];
    }
    return ASSAY_OK;
}

/* Pages in any order, none of them twice; what lies behind those of a sequence is padding. */
static assay_status derive_table(assay_context *ctx, const assay_case *c, const decode_config *config,
                                 const assay_tensor_entry *entry, const assay_source *in, int32_t *indices)
{
    const assay_decode_config *d = &config->quad.decode;
    const assay_fill fill = {.distribution = ASSAY_PERMUTATION};
    const char *path = entry->spec.path;
    OWNED int32_t *keys = NULL;
    OWNED int32_t *pages = NULL;
    int64_t next = 0;
    const assay_shape shape = assay_shape_of(1, d->pages);
    MUST(assay_alloc_i32(ctx, "inputs/cache_seqlens", d->batch, &keys));
    MUST(in->read_i32(ctx, in->self, "inputs/cache_seqlens", 0, d->batch, keys));
    MUST(assay_alloc_i32(ctx, "pages", d->pages, &pages));
    MUST(assay_random_fill_i32(ctx, &fill, c->seed, path, &shape, pages));
    for (int64_t b = 0; b < d->batch; b++) {
        const int64_t used = (keys[b] + d->page - 1) / d->page;
        for (int64_t i = 0; i < d->max_pages; i++) {
            indices[b * d->max_pages + i] = i < used && next < d->pages ? pages[next] : config->padding;
            next += i < used;
        }
    }
    const assay_decode_inputs made = {.lengths = keys, .places = indices};
    if (next <= d->pages) return assay_decode_check_table(ctx, d, &made);
    return assay_fail(
        ctx, ASSAY_BAD_INPUT,
        "pagedattn_num_pages is %" PRId64 ", expected %" PRId64
        " or more, which the keys of inputs/cache_seqlens fill; or an inputs/block_table that shares pages",
        d->pages, next);
}

/* What is read by lengths and a table, or by lists. */
static assay_status read_plan(assay_context *ctx, const assay_decode_config *d, const assay_source *source,
                              assay_decode_plan *plan)
{
    const bool lists = d->topk > 0;
    const int64_t entries = lists ? d->sequence * d->topk : d->max_pages;
    OWNED int32_t *lengths = NULL, *places = NULL;
    MUST(assay_read_all_i32(ctx, source, lists ? "inputs/topk_length" : "inputs/cache_seqlens", d->batch, &lengths));
    MUST(assay_read_all_i32(ctx, source, lists ? "inputs/indices" : "inputs/block_table", d->batch * entries, &places));
    const assay_decode_inputs in = {.lengths = lengths, .places = places};
    return assay_decode_plan_make(ctx, d, &in, plan);
}

/* Rows of the cache that lie in the length of a sequence or in a list, of heads by themselves. */
static void use_cached(const assay_decode_config *d, const assay_decode_plan *plan, bool *used)
{
    for (int64_t i = 0; i < plan->lists * plan->longest * d->kv_heads; i++) {
        const int64_t key = i / d->kv_heads;
        if (key % plan->longest < assay_decode_keys(plan, key / plan->longest))
            used[assay_decode_place(d, plan->rows[key], i % d->kv_heads)] = true;
    }
}

static assay_status derive_bytes(assay_context *ctx, const assay_case *c, const decode_config *config, const char *path,
                                 const assay_source *in, int32_t *indices)
{
    const assay_decode_config *d = &config->quad.decode;
    const int64_t rows = d->pages * d->stride * d->kv_heads;
    OWNED_BY(assay_decode_plan_free) assay_decode_plan plan = {0};
    OWNED bool *used = NULL;
    OWNED int32_t *slots = NULL; /* of tokens that sequences have, and -1 of others */
    MUST(read_plan(ctx, d, in, &plan));
    MUST(assay_alloc(ctx, "rows that are used", rows, sizeof *used, &used));
    MUST(assay_alloc_i32(ctx, "slots", d->pages * d->page, &slots));
    memset(used, 0, (size_t)rows * sizeof *used);
    use_cached(d, &plan, used);
    for (int64_t i = 0; i < d->pages * d->page; i++)
        slots[i] = used[assay_decode_place(d, i / d->page * d->stride + i % d->page, 0)] ? (int32_t)i : -1;
    return assay_draw_cache(ctx, c->seed, &config->quad.bytes, path, in, slots, indices);
}

assay_status decode_derive(assay_context *ctx, const assay_case *c, const assay_tensor_entry *entry,
                           const assay_source *in, double *values, int32_t *indices)
{
    assay_operation_config of;
    const decode_config *config = (const void *)&of;
    (void)values;
    MUST(assay_operation_configure(ctx, assay_operation_by_name(c->op), c, &of));
    if (strcmp(entry->spec.path, "inputs/block_table") == 0) return derive_table(ctx, c, config, entry, in, indices);
    if (strcmp(entry->spec.path, "inputs/indices") == 0)
        return derive_lists(ctx, &config->quad.decode, c->seed, indices);
    return derive_bytes(ctx, c, config, entry->spec.path, in, indices);
}

/* Rows [parts,B,S,N] of splits that have keys. */
static void use_splits(const assay_decode_config *d, const assay_decode_plan *plan, bool *used)
{
    const int64_t tokens = d->batch * d->sequence;
    for (int64_t i = 0; i < d->splits * tokens * d->heads; i++) {
        const int64_t token = i / d->heads % tokens, split = i / d->heads / tokens;
        const assay_key_range *keys = &plan->seen[token * plan->splits + split];
        used[i] = keys->begin < keys->end;
    }
}

assay_status decode_used_rows(assay_context *ctx, const assay_case *c, const assay_tensor_entry *of,
                              const assay_source *source, bool **used)
{
    assay_operation_config config;
    const assay_decode_config *d = decode_of(&config);
    OWNED_BY(assay_decode_plan_free) assay_decode_plan plan = {0};
    const int64_t rows = assay_shape_count(&of->spec.shape) / assay_unused_row_width(of);
    MUST(assay_operation_configure(ctx, assay_operation_by_name(c->op), c, &config));
    MUST(read_plan(ctx, d, source, &plan));
    MUST(assay_alloc(ctx, "rows that are used", rows, sizeof **used, used));
    memset(*used, 0, (size_t)rows * sizeof **used);
    if (of->spec.role == ASSAY_ROLE_CHECKPOINT) use_splits(d, &plan, *used);
    if (of->spec.role == ASSAY_ROLE_INPUT) use_cached(d, &plan, *used);
    return ASSAY_OK;
}
