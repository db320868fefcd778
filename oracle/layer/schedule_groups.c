#include "oracle/layer/schedule_groups.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/layer/schedule_internal.h"

/* Ids by pass, stage and layer as scan_batch_split_layers has them: the first row that fits counts. A layer is one
 * `from` the start or the end of the schedule, or any. */
static const struct {
    int32_t pass, stage;
    enum { START, END, ANY } from;
    int64_t layer;
    int32_t group;
} group_table[] = {
    {0, ASSAY_STAGE_GATHER_WEIGHTS, START, 0, 40},         {0, ASSAY_STAGE_GATHER_WEIGHTS, START, 1, 41},
    {0, ASSAY_STAGE_GATHER_WEIGHTS, START, 2, 42},         {0, ASSAY_STAGE_GATHER_WEIGHTS, END, 0, 44},
    {0, ASSAY_STAGE_GATHER_WEIGHTS, ANY, 0, 43},           {1, ASSAY_STAGE_GATHER_WEIGHTS, END, 1, 50},
    {1, ASSAY_STAGE_GATHER_WEIGHTS, END, 2, 51},           {1, ASSAY_STAGE_GATHER_WEIGHTS, START, 0, 53},
    {1, ASSAY_STAGE_GATHER_WEIGHTS, ANY, 0, 52},           {1, ASSAY_STAGE_REDUCE_SCATTER_WS_GRAD, END, 0, 51},
    {1, ASSAY_STAGE_REDUCE_SCATTER_WS_GRAD, START, 0, 55}, {1, ASSAY_STAGE_REDUCE_SCATTER_WS_GRAD, START, 1, 54},
    {1, ASSAY_STAGE_REDUCE_SCATTER_WS_GRAD, START, 2, 53}, {1, ASSAY_STAGE_REDUCE_SCATTER_WS_GRAD, ANY, 0, 52},
};

static int32_t group_of(const int32_t *event, const assay_schedule_dims *dims)
{
    const int64_t layer = event[ASSAY_EVENT_LAYER] - dims->first_layer, from_end = dims->layers - 1 - layer;
    if (dims->layers == 1) return ASSAY_NO_GROUP; /* batch_split_layer has none */
    for (size_t i = 0; i < sizeof group_table / sizeof *group_table; i++) {
        if (group_table[i].pass != event[ASSAY_EVENT_PASS] || group_table[i].stage != event[ASSAY_EVENT_STAGE])
            continue;
        if (group_table[i].from == START && group_table[i].layer != layer) continue;
        if (group_table[i].from == END && group_table[i].layer != from_end) continue;
        return group_table[i].group;
    }
    return ASSAY_NO_GROUP;
}

void assay_schedule_groups(const int32_t *events, int64_t count, const assay_schedule_dims *dims, int32_t *groups)
{
    for (int64_t i = 0; i < count; i++) groups[i] = group_of(events + i * ASSAY_EVENT_FIELDS, dims);
}

assay_status assay_schedule_check_groups(assay_context *ctx, const int32_t *events, int64_t count,
                                         const assay_schedule_dims *dims, const int32_t *groups)
{
    for (int64_t i = 0; i < count; i++) {
        const int32_t *event = events + i * ASSAY_EVENT_FIELDS;
        const int32_t group = group_of(event, dims);
        if (groups[i] == group) continue;
        return assay_refuse(ctx, "schedule: %s is in scheduling group %" PRId32 ", expected %" PRId32 "%s",
                            assay_event_name_of(event).text, groups[i], group,
                            group == ASSAY_NO_GROUP ? " (none)" : "");
    }
    return ASSAY_OK;
}

/* Which events of a layer a barrier lies between. */
typedef enum barrier_link {
    EACH,      /* each microbatch by itself */
    NEXT,      /* a microbatch and the next one: staggered_call */
    TO_FIRST,  /* what is for all microbatches, then the first of them */
    FROM_LAST, /* the last microbatch, then what is for all */
    FOR_ALL,   /* both are for all */
    LAYER_DOWN /* each microbatch, and the layer before it */
} barrier_link;

/* In mla_with_norms_remat there is one too, on a result that nobody takes. */
static const struct {
    int32_t pass, first, second;
    barrier_link link;
} barrier_table[] = {
    {0, ASSAY_STAGE_GATHER_WEIGHTS, ASSAY_STAGE_MLA_WITH_NORMS, TO_FIRST},
    {0, ASSAY_STAGE_MLA_WITH_NORMS, ASSAY_STAGE_MLA_WITH_NORMS, NEXT},
    {0, ASSAY_STAGE_MLA_WITH_NORMS, ASSAY_STAGE_ROUTE, EACH},
    {0, ASSAY_STAGE_ROUTE, ASSAY_STAGE_ROUTE, NEXT},
    {0, ASSAY_STAGE_ROUTE, ASSAY_STAGE_COMPUTE, EACH},
    {0, ASSAY_STAGE_COMPUTE, ASSAY_STAGE_COMPUTE, NEXT},
    {0, ASSAY_STAGE_COMPUTE, ASSAY_STAGE_UNROUTE, EACH},
    {1, ASSAY_STAGE_GATHER_WEIGHTS, ASSAY_STAGE_MLA_WITH_NORMS_REMAT, TO_FIRST},
    {1, ASSAY_STAGE_ROUTE_REMAT, ASSAY_STAGE_COMPUTE_REMAT, EACH},
    {1, ASSAY_STAGE_UNROUTE_BWD, ASSAY_STAGE_COMPUTE_BWD, EACH},
    {1, ASSAY_STAGE_COMPUTE_BWD, ASSAY_STAGE_ROUTE_BWD, EACH},
    {1, ASSAY_STAGE_MLA_WITH_NORMS_BWD, ASSAY_STAGE_UNROUTE_BWD, LAYER_DOWN},
    {1, ASSAY_STAGE_MLA_WITH_NORMS_BWD, ASSAY_STAGE_REDUCE_SCATTER_WS_GRAD, FROM_LAST},
    {1, ASSAY_STAGE_REDUCE_SCATTER_WS_GRAD, ASSAY_STAGE_ALL_REDUCE_WS_GRAD_DCN, FOR_ALL},
};
enum { BARRIER_ROWS = sizeof barrier_table / sizeof *barrier_table };

/* The layer and microbatch of both ends of a row's barrier at (layer, m); false: it has none there. */
typedef struct barrier_ends {
    int64_t layer[ASSAY_BARRIER_FIELDS], microbatch[ASSAY_BARRIER_FIELDS];
} barrier_ends;

static bool ends_of(const assay_schedule_dims *dims, int row, int64_t layer, int64_t m, barrier_ends *ends)
{
    const barrier_link link = barrier_table[row].link;
    *ends = (barrier_ends){{layer, layer}, {m, m}};
    if (link == NEXT) ends->microbatch[1] = m + 1;
    if (link == LAYER_DOWN) ends->layer[1] = layer - 1;
    if (link == TO_FIRST || link == FOR_ALL) ends->microbatch[0] = -1;
    if (link == FROM_LAST || link == FOR_ALL) ends->microbatch[1] = -1;
    if ((link == TO_FIRST || link == FOR_ALL) && m > 0) return false;
    if ((link == NEXT && m == dims->factor - 1) || (link == FROM_LAST && m < dims->factor - 1)) return false;
    return ends->layer[1] >= 0 &&
           assay_schedule_expects(dims, barrier_table[row].pass, barrier_table[row].first, ends->layer[0]) &&
           assay_schedule_expects(dims, barrier_table[row].pass, barrier_table[row].second, ends->layer[1]);
}

int64_t assay_schedule_barrier_count(const assay_schedule_dims *dims)
{
    int64_t count = 0;
    barrier_ends ends;
    for (int64_t layer = 0; layer < dims->layers; layer++) {
        for (int row = 0; row < BARRIER_ROWS; row++) {
            for (int64_t m = 0; m < dims->factor; m++) count += ends_of(dims, row, layer, m, &ends);
        }
    }
    return count;
}

static assay_status locate(assay_context *ctx, const assay_timetable *t, int row, const barrier_ends *ends,
                           int32_t *barrier)
{
    for (int end = 0; end < ASSAY_BARRIER_FIELDS; end++) {
        const int32_t pass = barrier_table[row].pass;
        const int32_t stage = end == 0 ? barrier_table[row].first : barrier_table[row].second;
        const int64_t at = *assay_timetable_slot(t, pass, stage, ends->layer[end], ends->microbatch[end]);
        const int32_t event[] = {pass, stage, (int32_t)(ends->layer[end] + t->dims->first_layer),
                                 (int32_t)ends->microbatch[end]};
        if (at < 0) return assay_refuse(ctx, "schedule: %s is missing", assay_event_name_of(event).text);
        barrier[end] = (int32_t)at;
    }
    return ASSAY_OK;
}

assay_status assay_schedule_barriers(assay_context *ctx, const int32_t *events, int64_t count,
                                     const assay_schedule_dims *dims, int32_t *barriers)
{
    OWNED_BY(assay_timetable_close) assay_timetable t = {0};
    barrier_ends ends;
    MUST(assay_timetable_open(ctx, &t, events, count, dims));
    for (int64_t layer = 0; layer < dims->layers; layer++) {
        for (int row = 0; row < BARRIER_ROWS; row++) {
            for (int64_t m = 0; m < dims->factor; m++) {
                if (!ends_of(dims, row, layer, m, &ends)) continue;
                MUST(locate(ctx, &t, row, &ends, barriers));
                barriers += ASSAY_BARRIER_FIELDS;
            }
        }
    }
    return ASSAY_OK;
}

static int by_positions(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;
    for (int i = 0; i < ASSAY_BARRIER_FIELDS; i++) {
        if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
    }
    return 0;
}

static assay_status hold(assay_context *ctx, const int32_t *events, const int32_t *wanted, const int32_t *found)
{
    const assay_event_name first = assay_event_name_of(events + (int64_t)wanted[0] * ASSAY_EVENT_FIELDS);
    const assay_event_name second = assay_event_name_of(events + (int64_t)wanted[1] * ASSAY_EVENT_FIELDS);
    const int order = by_positions(found, wanted);
    if (wanted[0] > wanted[1]) {
        return assay_refuse(ctx, "schedule: %s moved across the barrier behind %s", second.text, first.text);
    }
    if (order < 0) {
        return assay_refuse(
            ctx, "schedule: there is no barrier between events %" PRId32 " and %" PRId32 " of such a schedule",
            found[0], found[1]);
    }
    if (order > 0) {
        return assay_refuse(ctx, "schedule: the barrier between %s and %s is missing", first.text, second.text);
    }
    return ASSAY_OK;
}

assay_status assay_schedule_check_barriers(assay_context *ctx, const int32_t *events, int64_t count,
                                           const assay_schedule_dims *dims, const int32_t *barriers)
{
    enum { FIELDS = ASSAY_BARRIER_FIELDS };
    const int64_t barrier_count = assay_schedule_barrier_count(dims);
    OWNED int32_t *wanted = NULL, *found = NULL;
    MUST(assay_alloc_i32(ctx, "schedule/barriers", barrier_count * FIELDS, &wanted));
    MUST(assay_alloc_i32(ctx, "schedule/barriers", barrier_count * FIELDS, &found));
    MUST(assay_schedule_barriers(ctx, events, count, dims, wanted));
    memcpy(found, barriers, (size_t)(barrier_count * FIELDS) * sizeof *found);
    qsort(wanted, (size_t)barrier_count, FIELDS * sizeof *wanted, by_positions);
    qsort(found, (size_t)barrier_count, FIELDS * sizeof *found, by_positions);
    for (int64_t i = 0; i < barrier_count; i++) MUST(hold(ctx, events, wanted + i * FIELDS, found + i * FIELDS));
    return ASSAY_OK;
}
