/* Attention over a cache: what is read in the place of what should be, as lengths, pages, lists, rows of caches and ranges of keys. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"
#include "harness/operations/op_decode.h"

static assay_decode_config config_of(const assay_case *c)
{
    assay_context ctx = assay_context_default(1);
    assay_operation_config config;
    const assay_status status = assay_operation_configure(&ctx, assay_operation_by_name(c->op), c, &config);
    return status == ASSAY_OK ? *decode_of(&config) : (assay_decode_config){0};
}

/* --- lengths, block tables and lists --- */

/* n: number i of a tensor; page 0: there are none; most: keys of a sequence; rows: that lists may name. */
double assay_cached(const assay_places *p, int64_t i, double n)
{
    const assay_model_config *m = &p->m->c->config;
    const assay_tensor *table = assay_tensor_set_find(p->m->tensors, "inputs/block_table");
    const double page = (double)(m->pagedattn_num_pages > 0 ? m->pagedattn_tokens_per_page : 0);
    const double pages = (double)(page > 0 ? m->pagedattn_num_pages : p->m->c->batch);
    const double most = table == NULL ? (double)m->cache_length : page * (double)assay_tensor_width(table);
    const double each = page > 0 ? page : (double)m->cache_length, rows = pages * each;
    const double tail = page > 0 ? fmod(n, page) : 0, batch = (double)p->m->c->batch;
    const assay_tensor *slots = assay_tensor_set_find(p->m->tensors, "inputs/slot_mapping");
    const bool makes = strcmp(m->cache_norm.text, "none") != 0 || m->cache_rope,
               is_length = p->tensor->spec.shape.rank == 1;
    const bool is_unmade = makes && p->tensor->spec.role == ASSAY_ROLE_INPUT;
    const double share = floor((double)(i / (p->count / p->m->c->batch)) * rows / batch);
#define X(name, becomes)                                                                                               \
    case ASSAY_CACHED_##name:                                                                                          \
        return becomes;
    switch ((int)p->m->row->by) {
        ASSAY_CACHED_TABLE(X)
    }
#undef X
    return n;
}

/* Every entry of the block table is a page. */
bool assay_edit_none_to_first_page(const assay_mutation *m)
{
    const assay_tensor *table = assay_tensor_set_find(m->tensors, "inputs/block_table");
    for (int64_t i = 0; table != NULL && i < table->count; i++)
        if (table->indices[i] < 0 || table->indices[i] >= m->c->config.pagedattn_num_pages) table->indices[i] = 0;
    return false;
}

/* --- rows of caches --- */

/* Numbers or bytes of rows come from where they would be without a stride, or (by: 1) with heads and rows of a page exchanged. */
bool assay_edit_cache_rows(const assay_mutation *m, assay_tensor *cache)
{
    const assay_decode_config d = config_of(m->c);
    const int64_t rows = d.pages * d.stride * d.kv_heads, width = cache->count / rows;
    const size_t size = (size_t)width * (cache->values != NULL ? sizeof *cache->values : sizeof *cache->indices);
    char *to = cache->values != NULL ? (char *)cache->values : (char *)cache->indices, *from = (char *)m->scratch;
    bool moved = false;
    memcpy(from, to, (size_t)rows * size);
    for (int64_t i = 0; i < rows; i++) {
        const int64_t row = i / d.kv_heads, at = assay_decode_place(&d, row, i % d.kv_heads);
        const bool dense = m->row->by == 0 && row % d.stride < d.page;
        assay_decode_config other = d;
        other.heads_first = d.heads_first != (m->row->by == 1);
        if (dense) other.stride = d.page;
        const int64_t place =
            assay_decode_place(&other, dense ? row / d.stride * d.page + row % d.stride : row, i % d.kv_heads);
        memcpy(to + (size_t)at * size, from + (size_t)place * size, size);
        moved |= place != at;
    }
    return moved;
}

/* --- splits --- */

/* Rows of the last split lie half as far apart again. */
int64_t assay_padded_last_part(const assay_places *p, int64_t i)
{
    const int64_t each = p->count / p->tensor->spec.shape.dims[0], first = p->count - each, at = i - first;
    const int64_t wide = assay_tensor_width(p->tensor), apart = wide + wide / 2;
    if (first == 0 || i < first) return i;
    return at % apart < wide ? first + at / apart * wide + at % apart : ASSAY_CHANGED;
}

bool assay_edit_sink_of_parts(const assay_mutation *m, assay_tensor *sinks)
{
    const int64_t splits = config_of(m->c).splits;
    for (int64_t head = 0; head < sinks->count && splits > 1; head++) sinks->values[head] += log((double)splits);
    return splits > 1;
}

/* A log-sum-exp whose weight is 0, in every type. */
static const double FAR_BELOW = -6e4;

/* Of a split without keys: its weight becomes 0, and it holds NaN. */
bool assay_edit_empty_parts_to_nan(const assay_mutation *m)
{
    assay_tensor *lse = assay_tensor_set_find(m->tensors, "inputs/partial_lse");
    assay_tensor *out = assay_tensor_set_find(m->tensors, "inputs/partial_out");
    if (lse == NULL) lse = assay_tensor_set_find(m->tensors, "checkpoints/partial_lse");
    if (out == NULL) out = assay_tensor_set_find(m->tensors, "checkpoints/partial_out");
    if (lse == NULL || out == NULL) return false;
    const int64_t tokens = m->c->sequence, heads = m->c->config.base_num_query_heads, width = assay_tensor_width(out);
    bool changed = false;
    for (int64_t i = 0; i < lse->count; i++) {
        const int64_t row = (i / tokens / heads * tokens + i % tokens) * heads + i / tokens % heads;
        if (!isinf(lse->values[i])) continue;
        for (int64_t d = 0; d < width; d++) out->values[row * width + d] = NAN;
        lse->values[i] = FAR_BELOW;
        changed = true;
    }
    return changed;
}

/* --- what is read --- */

static int64_t *starts_of(const assay_decode_plan *plan, int64_t list)
{
    return plan->starts + list * (plan->splits + 1);
}

/* Of a token that sees the keys up to `end`. */
static assay_key_range window_to(const assay_decode_config *c, int64_t end)
{
    return (assay_key_range){c->window > 0 && end > c->window ? end - c->window : 0, end > 0 ? end : 0};
}

static void see(int change, const assay_decode_config *c, const assay_decode_plan *plan, int64_t list, int64_t token)
{
    const int64_t keys = assay_decode_keys(plan, list);
    const int64_t end = change == ASSAY_READ_from_start ? token + 1 : keys - plan->tokens + token + 1;
    assay_key_range seen = window_to(c, change == ASSAY_READ_all_keys || end > keys ? keys : end);
    if (change == ASSAY_READ_window_of_pages) seen.begin -= seen.begin % c->page;
    assay_decode_see(plan, list, token, seen);
}

/* Of a split: the context has the mask of the new tokens; or but the last half of what a token sees. */
static void see_part(int change, const assay_decode_plan *plan, int64_t list, int64_t token, int64_t split)
{
    assay_key_range *seen = &plan->seen[(list * plan->tokens + token) * plan->splits + split];
    const int64_t end = starts_of(plan, list)[split + 1] - plan->tokens + token + 1;
    if (change == ASSAY_READ_half_of_parts) seen->begin += (seen->end - seen->begin) / 2;
    if (change == ASSAY_READ_context_causal && split < plan->splits - 1 && seen->end > end)
        seen->end = end > seen->begin ? end : seen->begin;
}

/* The row of a key in a table of pages half as large, or of the chunk of the context that is read for all. */
static int64_t row_of(int change, const assay_decode_config *c, const assay_decode_inputs *in,
                      const assay_decode_plan *plan, int64_t list, int64_t key)
{
    const int64_t *rows = plan->rows + list * plan->longest, half = c->page / 2;
    if (change == ASSAY_READ_half_pages) {
        const int64_t page = in->places[(list * c->max_pages + key / half) % (c->batch * c->max_pages)];
        return (page < 0 || page >= c->pages ? 0 : page * half) + key % half;
    }
    return change == ASSAY_READ_first_chunk && key < starts_of(plan, list)[plan->splits - 1] ? rows[key % c->chunk]
                                                                                             : rows[key];
}

/* So many keys of zeros in the place `at` of a list, which a token sees that sees what lies before or behind it, or nothing. */
static void insert_lanes(const assay_decode_plan *plan, int64_t list, int64_t at, int64_t lanes)
{
    int64_t *rows = plan->rows + list * plan->longest, *starts = starts_of(plan, list), home = 0;
    memmove(rows + at + lanes, rows + at, (size_t)(assay_decode_keys(plan, list) - at) * sizeof *rows);
    for (int64_t i = at; i < at + lanes; i++) rows[i] = -1;
    for (int64_t split = 1; split <= plan->splits; split++) {
        if (starts[split] <= at && split < plan->splits) home = split;
        if (starts[split] > at) starts[split] += lanes;
    }
    for (int64_t i = 0; i < plan->tokens * plan->splits; i++) {
        const bool is_home = i % plan->splits == home;
        assay_key_range *seen = plan->seen + list * plan->tokens * plan->splits + i;
        if (is_home && seen->begin == seen->end) *seen = (assay_key_range){at, at};
        seen->begin += seen->begin > at ? lanes : 0;
        seen->end += seen->end > at || (is_home && seen->end == at) ? lanes : 0;
    }
}

static bool applies(int change, const assay_decode_config *c)
{
    const bool dense = c->topk == 0, paged = c->max_pages > 0, several = dense && c->sequence > 1;
#define X(name, where)                                                                                                 \
    case ASSAY_READ_##name:                                                                                            \
        return where;
    switch (change) {
        ASSAY_READ_TABLE(X)
    }
#undef X
    return false;
}

bool assay_change_reading(int change, const assay_decode_config *c, const assay_decode_inputs *in,
                          assay_decode_plan *plan)
{
    if (!applies(change, c)) return false;
    if (change == ASSAY_READ_masked_capped) plan->unseen = -c->soft_cap;
    if (change == ASSAY_READ_tail) plan->unseen = -DBL_MAX;
    for (int64_t list = 0; list < plan->lists; list++) {
        const int64_t keys = assay_decode_keys(plan, list), tail = (c->page - keys % c->page) % c->page;
        for (int64_t key = 0; key < keys; key++)
            plan->rows[list * plan->longest + key] = row_of(change, c, in, plan, list, key);
        for (int64_t i = 0; i < plan->tokens * plan->splits; i++) {
            if (i % plan->splits == 0 && c->topk == 0) see(change, c, plan, list, i / plan->splits);
            see_part(change, plan, list, i / plan->splits, i % plan->splits);
        }
        /* rows of the last page behind the keys count as keys of the split before them */
        for (int64_t split = 1; split <= plan->splits && change == ASSAY_READ_tail; split++)
            if (starts_of(plan, list)[split] == keys) starts_of(plan, list)[split] += tail;
        if (change == ASSAY_READ_lanes && tail > 0) insert_lanes(plan, list, window_to(c, keys).begin, tail);
    }
    return true;
}
