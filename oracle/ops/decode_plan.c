/* What is read of a cache, in whole numbers. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "oracle/base/memory.h"
#include "oracle/base/step_change.h"
#include "oracle/ops/decode_internal.h"

assay_key_range decode_overlap(assay_key_range a, assay_key_range b)
{
    const int64_t begin = assay_larger(a.begin, b.begin);
    return (assay_key_range){begin, assay_larger(begin, assay_smaller(a.end, b.end))};
}

int64_t assay_decode_place(const assay_decode_config *c, int64_t row, int64_t head)
{
    if (!c->heads_first) return row * c->kv_heads + head;
    return (row / c->stride * c->kv_heads + head) * c->stride + row % c->stride;
}

int64_t decode_place_of_lse(const assay_decode_config *c, int64_t row)
{
    const int64_t token = row / c->heads;
    return (token / c->sequence * c->heads + row % c->heads) * c->sequence + token % c->sequence;
}

int64_t assay_decode_keys(const assay_decode_plan *plan, int64_t list)
{
    return plan->starts[list * (plan->splits + 1) + plan->splits];
}

static assay_status alloc_plan(assay_context *ctx, assay_decode_plan *plan, int64_t rows, int64_t heads)
{
    const int64_t starts = plan->lists * (plan->splits + 1), seen = plan->lists * plan->tokens * plan->splits;
    int64_t *numbers = NULL;
    MUST(assay_alloc(ctx, "keys that are read", rows + starts + heads, sizeof *numbers, &numbers));
    plan->numbers = numbers;
    if (rows > 0) plan->rows = numbers;
    plan->starts = numbers + rows;
    if (heads > 0) plan->heads = numbers + rows + starts;
    return assay_alloc(ctx, "keys that are seen", seen, sizeof *plan->seen, &plan->seen);
}

void assay_decode_plan_free(assay_decode_plan *plan)
{
    free(plan->numbers);
    free(plan->seen);
    *plan = (assay_decode_plan){0};
}

/* Equal shares of pages or keys; or chunks of what was there before the new tokens, and these. */
static void cut_sequence(const assay_decode_config *c, int64_t keys, int64_t unit, int64_t splits, int64_t *starts)
{
    const int64_t share = ((keys + unit - 1) / unit + splits - 1) / splits * unit,
                  size = c->chunk > 0 ? c->chunk : share;
    const int64_t end = c->chunk > 0 ? assay_larger(keys - c->sequence, 0) : keys;
    for (int64_t split = 0; split < splits; split++) starts[split] = assay_smaller(split * size, end);
    starts[splits] = keys;
}

static void plan_sequence(const assay_decode_config *c, const assay_decode_inputs *in, int64_t b,
                          const assay_decode_plan *plan)
{
    const int64_t keys = in->lengths[b];
    const int64_t whole = (keys + c->page - 1) / c->page * c->page;
    int64_t *rows = plan->rows + b * plan->longest;
    for (int64_t key = 0; key < (c->max_pages > 0 ? whole : keys); key++) {
        const int64_t page = c->max_pages == 0 ? b : in->places[b * c->max_pages + key / c->page];
        rows[key] = page * c->stride + key % c->page;
    }
    cut_sequence(c, keys, c->max_pages > 0 ? c->page : 1, plan->splits, plan->starts + b * (plan->splits + 1));
}

/* Entries that name a row, one after the other; splits have equal shares of all entries that are read. */
static void plan_list(const assay_decode_config *c, const assay_decode_inputs *in, int64_t token,
                      const assay_decode_plan *plan)
{
    const int64_t entries = in->lengths == NULL ? c->topk : in->lengths[token / c->sequence];
    const int64_t size = assay_larger((entries + plan->splits - 1) / plan->splits, 1), all = c->pages * c->page;
    int64_t *rows = plan->rows + token * plan->longest, *starts = plan->starts + token * (plan->splits + 1), count = 0;
    for (int64_t entry = 0; entry < plan->splits * size; entry++) {
        const int64_t index = entry < entries ? in->places[token * c->topk + entry] : -1;
        if (entry % size == 0) starts[entry / size] = count;
        if (index >= 0 && index < all) rows[count++] = index / c->page * c->stride + index % c->page;
    }
    starts[plan->splits] = count;
}

void assay_decode_see(const assay_decode_plan *plan, int64_t list, int64_t token, assay_key_range keys)
{
    const int64_t *starts = plan->starts + list * (plan->splits + 1);
    assay_key_range *seen = decode_seen(plan, list, token, 0);
    for (int64_t split = 0; split < plan->splits; split++)
        seen[split] = decode_overlap(keys, (assay_key_range){starts[split], starts[split + 1]});
}

static assay_key_range keys_of_token(const assay_decode_config *c, const assay_decode_plan *plan, int64_t list,
                                     int64_t token)
{
    const int64_t keys = assay_decode_keys(plan, list), more = c->variant.sees_next ? 2 : 1;
    const int64_t end = assay_larger(assay_smaller(keys - plan->tokens + token + more, keys), 0);
    return (assay_key_range){c->window > 0 ? assay_larger(end - c->window, 0) : 0, end};
}

assay_status assay_decode_plan_make(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                    assay_decode_plan *plan)
{
    const bool lists = c->topk > 0;
    const int64_t group = c->heads / c->kv_heads;
    MUST(assay_decode_check_table(ctx, c, in));
    *plan = (assay_decode_plan){.lists = lists ? c->batch * c->sequence : c->batch,
                                .tokens = lists ? 1 : c->sequence,
                                .splits = assay_larger(c->splits, 1),
                                .longest = assay_larger(c->topk, 1),
                                .unseen = -INFINITY};
    for (int64_t b = 0; b < c->batch && !lists; b++) plan->longest = assay_larger(plan->longest, in->lengths[b]);
    if (c->max_pages > 0) plan->longest = (plan->longest + c->page - 1) / c->page * c->page;
    MUST(alloc_plan(ctx, plan, plan->lists * plan->longest, c->heads));
    for (int64_t head = 0; head < c->heads; head++)
        plan->heads[head] = c->variant.in_turns ? head % group * c->kv_heads + head / group : head;
    for (int64_t list = 0; list < plan->lists; list++) {
        lists ? plan_list(c, in, list, plan) : plan_sequence(c, in, list, plan);
        for (int64_t token = 0; token < plan->tokens; token++)
            assay_decode_see(plan, list, token, keys_of_token(c, plan, list, token));
    }
    const assay_step_change *change = ctx->change;
    if (change != NULL && change->reading != NULL && change->reading(change->change, c, in, plan) &&
        change->found != NULL)
        *change->found = true;
    return ASSAY_OK;
}

assay_status decode_cut(assay_context *ctx, const assay_decode_config *c, const assay_decode_plan *whole,
                        int64_t splits, int64_t unit, assay_decode_plan *cut)
{
    *cut = *whole;
    cut->numbers = NULL;
    cut->splits = splits;
    MUST(alloc_plan(ctx, cut, 0, 0));
    for (int64_t list = 0; list < whole->lists; list++) {
        cut_sequence(c, assay_decode_keys(whole, list), unit, splits, cut->starts + list * (splits + 1));
        for (int64_t token = 0; token < whole->tokens; token++)
            assay_decode_see(cut, list, token, *decode_seen(whole, list, token, 0));
    }
    return ASSAY_OK;
}

assay_status assay_decode_check_cached(assay_context *ctx, const assay_decode_config *d, const assay_decode_plan *plan,
                                       const char *path, const double *cache, int64_t numbers)
{
    for (int64_t list = 0; list < plan->lists; list++) {
        for (int64_t i = 0; i < assay_decode_keys(plan, list) * d->kv_heads; i++) {
            const int64_t key = i / d->kv_heads, row = plan->rows[list * plan->longest + key];
            const double *at = cache + assay_decode_place(d, row, i % d->kv_heads) * numbers, *end = at + numbers;
            while (at < end && isfinite(*at)) at++;
            if (at == end) continue;
            return assay_refuse(ctx,
                                "%s: row %" PRId64
                                " holds NaN or an infinity, expected finite numbers: it is key %" PRId64
                                " of %s %" PRId64,
                                path, row, key, d->topk > 0 ? "the list of token" : "sequence", list);
        }
    }
    return ASSAY_OK;
}
