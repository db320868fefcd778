#include "oracle/ops/decode_internal.h"

/* Of a tile of a kernel, the whole of which a mutant reads. */
enum { TILE = 8 };

/* How many entries of a token's list are read. */
static int64_t entries_of(const assay_decode_config *c, const assay_decode_inputs *in, decode_change change,
                          int64_t token)
{
    const int64_t entries = in->topk_length == NULL ? c->topk : in->topk_length[token / c->sequence];
    const int64_t whole = (entries + TILE - 1) / TILE * TILE;
    if (change == ALL_ENTRIES) return c->topk;
    if (change == WHOLE_TILE) return whole < c->topk ? whole : c->topk;
    return entries;
}

/* The row of the cache that an index names; -1: none. */
static int64_t row_of_index(const assay_decode_config *c, decode_change change, int64_t token, int64_t index)
{
    const int64_t all = c->pages * c->page, stride = change == NO_STRIDE ? c->page : c->stride;
    if (change == BELOW_FIRST && index < 0) index = 0;
    if (change == BELOW_LAST && index < 0) index = all - 1;
    if (change == BEYOND_LAST && index >= all) index = all - 1;
    if (index < 0 || index >= all) return -1;
    if (change == INDEX_OF_PAGE) index = index * c->page % all;
    if (change == INDEX_LOCAL) index = (index + token / c->sequence * all / c->batch) % all;
    return index / c->page * stride + index % c->page;
}

static int64_t listed_row(const assay_decode_config *c, const assay_decode_inputs *in, decode_change change,
                          int64_t token, int64_t entry)
{
    const int64_t list = change == FIRST_LIST ? token / c->sequence * c->sequence : token;
    if (entry >= entries_of(c, in, change, token)) return -1;
    return row_of_index(c, change, token, in->indices[list * c->topk + entry]);
}

int64_t assay_decode_listed_row(const assay_decode_config *config, const assay_decode_inputs *in, int64_t token,
                                int64_t entry)
{
    return listed_row(config, in, NOTHING, token, entry);
}

/* The entries of a part, or all that are read. */
static decode_keys entries_of_split(const assay_decode_config *c, const assay_decode_inputs *in, decode_change change,
                                    int64_t token, int64_t part)
{
    const int64_t all = entries_of(c, in, change, token), size = (all + decode_splits(c) - 1) / decode_splits(c);
    return decode_overlap((decode_keys){part * size, (part + 1) * size}, (decode_keys){0, all});
}

void decode_list(const assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                 decode_lists *lists)
{
    const decode_change change = decode_change_of(ctx, c);
    for (int64_t token = 0; token < c->batch * c->sequence; token++) {
        int32_t *rows = lists->rows + token * c->topk, *starts = lists->starts + token * (decode_splits(c) + 1);
        int32_t count = 0;
        for (int64_t part = 0; part < decode_splits(c); part++) {
            const decode_keys entries = entries_of_split(c, in, change, token, part);
            starts[part] = count;
            for (int64_t entry = entries.begin; entry < entries.end; entry++) {
                const int64_t row = listed_row(c, in, change, token, entry);
                if (row >= 0) rows[count++] = (int32_t)row;
            }
            starts[part + 1] = count;
        }
        lists->counts[token] = count;
    }
}

int64_t assay_decode_keys_of_split(const assay_decode_config *c, const assay_decode_inputs *in, int64_t part,
                                   int64_t sequence, int64_t token)
{
    const decode_cached d = {.config = c, .in = in, .sequence = sequence};
    int64_t count = 0;
    if (c->topk == 0) {
        const decode_keys keys = decode_seen_of_split(&d, token, part);
        return keys.end - keys.begin;
    }
    token += sequence * c->sequence;
    const decode_keys entries = entries_of_split(c, in, NOTHING, token, part);
    for (int64_t entry = entries.begin; entry < entries.end; entry++)
        count += listed_row(c, in, NOTHING, token, entry) >= 0;
    return count;
}
