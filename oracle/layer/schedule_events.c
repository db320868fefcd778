#include "oracle/layer/schedule_events.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/layer/schedule_internal.h"

const char *const assay_stage_names[ASSAY_STAGES] = {
#define X(code, name) [ASSAY_STAGE_##code] = #name,
    ASSAY_STAGE_TABLE(X)
#undef X
};

enum {
    PASS = ASSAY_EVENT_PASS,
    STAGE = ASSAY_EVENT_STAGE,
    LAYER = ASSAY_EVENT_LAYER,
    MICROBATCH = ASSAY_EVENT_MICROBATCH
};

void assay_schedule_free(assay_schedule *schedule)
{
    free(schedule->events);
    *schedule = (assay_schedule){0};
}

assay_status assay_schedule_add(assay_context *ctx, assay_schedule *schedule, bool backward, assay_stage stage,
                                int64_t layer, int64_t microbatch)
{
    if (schedule->count == schedule->room) {
        int32_t *more = NULL;
        const int64_t room = 2 * schedule->room + 64;
        assay_status status = assay_alloc_i32(ctx, "schedule/events", room * ASSAY_EVENT_FIELDS, &more);
        if (status != ASSAY_OK) return status;
        if (schedule->count > 0) {
            memcpy(more, schedule->events, (size_t)(schedule->count * ASSAY_EVENT_FIELDS) * sizeof *more);
        }
        free(schedule->events);
        schedule->events = more;
        schedule->room = room;
    }
    int32_t *event = schedule->events + schedule->count++ * ASSAY_EVENT_FIELDS;
    event[PASS] = backward;
    event[STAGE] = (int32_t)stage;
    event[LAYER] = (int32_t)layer;
    event[MICROBATCH] = (int32_t)microbatch;
    return ASSAY_OK;
}

int64_t assay_schedule_count(const assay_schedule_dims *dims)
{
    const int64_t layers = dims->layers, each = layers * dims->factor;
    const int64_t forward = layers + 4 * each;
    /* offloads and fetches, gathers, three collectives of gradients */
    return dims->backward ? forward + 2 * (layers - 1) + layers - 1 + 3 * layers + 7 * each : forward;
}

int64_t *assay_timetable_slot(const assay_timetable *t, int64_t pass, int64_t stage, int64_t layer, int64_t microbatch)
{
    const int64_t lanes = t->dims->factor + 1;
    return &t->at[((pass * ASSAY_STAGES + stage) * t->dims->layers + layer) * lanes + microbatch + 1];
}

static bool is_collective(int64_t stage)
{
    return stage == ASSAY_STAGE_GATHER_WEIGHTS || stage == ASSAY_STAGE_OFFLOAD || stage == ASSAY_STAGE_FETCH ||
           stage >= ASSAY_STAGE_REDUCE_SCATTER_WS_GRAD;
}

static bool is_forward(int64_t stage)
{
    return stage <= ASSAY_STAGE_OFFLOAD;
}

static bool is_backward(int64_t stage)
{
    return stage == ASSAY_STAGE_GATHER_WEIGHTS || stage > ASSAY_STAGE_OFFLOAD;
}

assay_event_name assay_event_name_of(const int32_t event[ASSAY_EVENT_FIELDS])
{
    assay_event_name name;
    const int32_t stage = event[STAGE];
    char lane[32] = "";
    if (event[MICROBATCH] >= 0) snprintf(lane, sizeof lane, ", microbatch %" PRId32, event[MICROBATCH]);
    snprintf(name.text, sizeof name.text, "%s %s of layer %" PRId32 "%s", event[PASS] == 0 ? "forward" : "backward",
             stage >= 0 && stage < ASSAY_STAGES ? assay_stage_names[stage] : "unknown", event[LAYER], lane);
    return name;
}

static assay_status refuse(assay_context *ctx, int64_t pass, int64_t stage, int64_t layer, int64_t microbatch,
                           const char *what)
{
    const int32_t event[] = {(int32_t)pass, (int32_t)stage, (int32_t)layer, (int32_t)microbatch};
    return assay_refuse(ctx, "schedule: %s %s", assay_event_name_of(event).text, what);
}

static assay_status fill(assay_context *ctx, assay_timetable *t, const int32_t *events, int64_t count)
{
    const assay_schedule_dims *dims = t->dims;
    for (int64_t i = 0; i < count; i++) {
        const int32_t *e = events + i * ASSAY_EVENT_FIELDS;
        const int64_t layer = e[LAYER] - dims->first_layer;
        const bool known = e[PASS] >= 0 && e[PASS] <= (dims->backward ? 1 : 0) && e[STAGE] >= 0 &&
                           e[STAGE] < ASSAY_STAGES && layer >= 0 && layer < dims->layers;
        const bool fits =
            known && (e[PASS] == 0 ? is_forward(e[STAGE]) : is_backward(e[STAGE])) &&
            (is_collective(e[STAGE]) ? e[MICROBATCH] == -1 : e[MICROBATCH] >= 0 && e[MICROBATCH] < dims->factor);
        if (!fits) {
            return assay_refuse(ctx,
                                "schedule: event %" PRId64 " is {%" PRId32 ", %" PRId32 ", %" PRId32 ", %" PRId32
                                "}, no event of such a schedule",
                                i, e[PASS], e[STAGE], e[LAYER], e[MICROBATCH]);
        }
        int64_t *at = assay_timetable_slot(t, e[PASS], e[STAGE], layer, e[MICROBATCH]);
        if (*at >= 0) return refuse(ctx, e[PASS], e[STAGE], e[LAYER], e[MICROBATCH], "is there twice");
        if (i > 0 && e[PASS] < e[PASS - ASSAY_EVENT_FIELDS]) {
            return refuse(ctx, e[PASS], e[STAGE], e[LAYER], e[MICROBATCH], "comes after the start of backward");
        }
        *at = i;
    }
    return ASSAY_OK;
}

assay_status assay_timetable_open(assay_context *ctx, assay_timetable *t, const int32_t *events, int64_t count,
                                  const assay_schedule_dims *dims)
{
    int64_t slots = 0;
    MUST(assay_checked_count(ctx, "schedule", 4, (int64_t[]){2, ASSAY_STAGES, dims->layers, dims->factor + 1}, &slots));
    t->dims = dims;
    MUST(assay_alloc(ctx, "schedule", slots, sizeof *t->at, &t->at));
    for (int64_t i = 0; i < slots; i++) t->at[i] = -1;
    return fill(ctx, t, events, count);
}

void assay_timetable_close(assay_timetable *t)
{
    free(t->at);
    *t = (assay_timetable){0};
}

bool assay_schedule_expects(const assay_schedule_dims *dims, int64_t pass, int64_t stage, int64_t layer)
{
    const bool last = layer == dims->layers - 1;
    if (pass == 1 && !dims->backward) return false;
    if (stage == ASSAY_STAGE_OFFLOAD) return pass == 0 && dims->backward && !last;
    if (stage == ASSAY_STAGE_FETCH) return pass == 1 && !last;
    if (stage == ASSAY_STAGE_GATHER_WEIGHTS) return pass == 0 || !last; /* the last layer's are still there */
    return pass == 0 ? is_forward(stage) : is_backward(stage);
}

static assay_status require_all(assay_context *ctx, const assay_timetable *t)
{
    const assay_schedule_dims *dims = t->dims;
    for (int64_t pass = 0; pass < 2; pass++) {
        for (int64_t stage = 0; stage < ASSAY_STAGES; stage++) {
            for (int64_t layer = 0; layer < dims->layers; layer++) {
                const bool collective = is_collective(stage), wanted = assay_schedule_expects(dims, pass, stage, layer);
                for (int64_t m = collective ? -1 : 0; m < (collective ? 0 : dims->factor); m++) {
                    const bool there = *assay_timetable_slot(t, pass, stage, layer, m) >= 0;
                    if (there == wanted) continue;
                    return refuse(ctx, pass, stage, layer + dims->first_layer, m,
                                  wanted ? "is missing" : "should not be there");
                }
            }
        }
    }
    return ASSAY_OK;
}

/* One event that must come before another. A layer outside the schedule, or a missing event, asks for nothing. */
typedef struct event {
    int64_t pass, stage, layer, microbatch;
} event;

static assay_status require_before(assay_context *ctx, const assay_timetable *t, event first, event second)
{
    const int64_t layers = t->dims->layers;
    char what[128];
    if (first.layer < 0 || first.layer >= layers || second.layer < 0 || second.layer >= layers) return ASSAY_OK;
    const int64_t a = *assay_timetable_slot(t, first.pass, first.stage, first.layer, first.microbatch);
    const int64_t b = *assay_timetable_slot(t, second.pass, second.stage, second.layer, second.microbatch);
    if (a < 0 || b < 0 || a < b) return ASSAY_OK;
    snprintf(what, sizeof what, "comes after %s of layer %" PRId64, assay_stage_names[second.stage],
             second.layer + t->dims->first_layer);
    return refuse(ctx, first.pass, first.stage, first.layer + t->dims->first_layer, first.microbatch, what);
}

/* The stages of one microbatch in a layer, and each stage for one microbatch after the other. */
static assay_status check_flow(assay_context *ctx, const assay_timetable *t, int64_t pass, const assay_stage *stages,
                               int stage_count, int64_t layer)
{
    const int64_t factor = t->dims->factor;
    for (int i = 0; i < stage_count; i++) {
        for (int64_t m = 0; m < factor; m++) {
            if (m + 1 < factor) {
                MUST(
                    require_before(ctx, t, (event){pass, stages[i], layer, m}, (event){pass, stages[i], layer, m + 1}));
            }
            if (i + 1 < stage_count) {
                MUST(
                    require_before(ctx, t, (event){pass, stages[i], layer, m}, (event){pass, stages[i + 1], layer, m}));
            }
        }
        /* the stages are staggered: the next one starts when this one is done for all */
        if (i + 1 < stage_count && stages[i + 1] != ASSAY_STAGE_UNROUTE) {
            MUST(require_before(ctx, t, (event){pass, stages[i], layer, factor - 1},
                                (event){pass, stages[i + 1], layer, 0}));
        }
    }
    return ASSAY_OK;
}

static assay_status check_forward(assay_context *ctx, const assay_timetable *t, int64_t layer)
{
    static const assay_stage stages[] = {ASSAY_STAGE_MLA_WITH_NORMS, ASSAY_STAGE_ROUTE, ASSAY_STAGE_COMPUTE,
                                         ASSAY_STAGE_UNROUTE};
    const int64_t last = t->dims->factor - 1;
    const event start = {0, ASSAY_STAGE_MLA_WITH_NORMS, layer, 0}, unroute = {0, ASSAY_STAGE_UNROUTE, layer, last};
    MUST(check_flow(ctx, t, 0, stages, 4, layer));
    MUST(require_before(ctx, t, (event){0, ASSAY_STAGE_GATHER_WEIGHTS, layer, -1}, start));
    /* one layer ahead, and not more */
    MUST(require_before(ctx, t, (event){0, ASSAY_STAGE_GATHER_WEIGHTS, layer + 1, -1}, start));
    MUST(require_before(ctx, t, start, (event){0, ASSAY_STAGE_GATHER_WEIGHTS, layer + 2, -1}));
    /* the last microbatch's unroute waits until the next weights are asked for, and is done before the next layer */
    MUST(require_before(ctx, t, (event){0, ASSAY_STAGE_GATHER_WEIGHTS, layer + 2, -1}, unroute));
    MUST(require_before(ctx, t, unroute, (event){0, ASSAY_STAGE_MLA_WITH_NORMS, layer + 1, 0}));
    MUST(require_before(ctx, t, (event){0, ASSAY_STAGE_COMPUTE, layer, last},
                        (event){0, ASSAY_STAGE_OFFLOAD, layer, -1}));
    return require_before(ctx, t, (event){0, ASSAY_STAGE_OFFLOAD, layer, -1},
                          (event){0, ASSAY_STAGE_MLA_WITH_NORMS, layer + 1, 0});
}

/* reduce-scatter one layer behind, all-reduce two behind. */
static assay_status check_gradients(assay_context *ctx, const assay_timetable *t, int64_t layer)
{
    const event done = {1, ASSAY_STAGE_MLA_WITH_NORMS_BWD, layer, t->dims->factor - 1};
    const event scatter = {1, ASSAY_STAGE_REDUCE_SCATTER_WS_GRAD, layer, -1};
    const event reduce = {1, ASSAY_STAGE_ALL_REDUCE_WS_GRAD_DCN, layer, -1};
    MUST(require_before(ctx, t, done, scatter));
    MUST(require_before(ctx, t, scatter, (event){1, ASSAY_STAGE_MLA_WITH_NORMS_REMAT, layer - 1, 0}));
    MUST(require_before(ctx, t, scatter, reduce));
    if (layer > 1) {
        MUST(
            require_before(ctx, t, (event){1, ASSAY_STAGE_MLA_WITH_NORMS_BWD, layer - 1, t->dims->factor - 1}, reduce));
        MUST(require_before(ctx, t, reduce, (event){1, ASSAY_STAGE_MLA_WITH_NORMS_REMAT, layer - 2, 0}));
    }
    return require_before(ctx, t, reduce, (event){1, ASSAY_STAGE_INSERT_LAYER_WS_GRAD, layer, -1});
}

static assay_status check_backward(assay_context *ctx, const assay_timetable *t, int64_t layer)
{
    static const assay_stage moe[] = {
        ASSAY_STAGE_MLA_WITH_NORMS_REMAT, ASSAY_STAGE_ROUTE_REMAT, ASSAY_STAGE_COMPUTE_REMAT,
        ASSAY_STAGE_COMPUTE_BWD,          ASSAY_STAGE_ROUTE_BWD,   ASSAY_STAGE_MLA_WITH_NORMS_BWD};
    const int64_t factor = t->dims->factor;
    const event start = {1, ASSAY_STAGE_MLA_WITH_NORMS_REMAT, layer, 0};
    MUST(check_flow(ctx, t, 1, moe, 6, layer));
    for (int64_t m = 0; m < factor; m++) {
        const event unroute = {1, ASSAY_STAGE_UNROUTE_BWD, layer, m};
        MUST(require_before(ctx, t, unroute, (event){1, ASSAY_STAGE_COMPUTE_BWD, layer, m}));
        if (m + 1 < factor) {
            MUST(require_before(ctx, t, (event){1, ASSAY_STAGE_COMPUTE_REMAT, layer, m}, unroute));
            if (m > 0) MUST(require_before(ctx, t, (event){1, ASSAY_STAGE_UNROUTE_BWD, layer, m - 1}, unroute));
        } else { /* it was deferred */
            MUST(require_before(ctx, t, unroute, start));
            MUST(require_before(ctx, t, (event){1, ASSAY_STAGE_MLA_WITH_NORMS_BWD, layer + 1, m}, unroute));
        }
    }
    /* residuals and weights come back one layer ahead, and not more */
    MUST(require_before(ctx, t, (event){1, ASSAY_STAGE_FETCH, layer, -1}, start));
    MUST(require_before(ctx, t, (event){1, ASSAY_STAGE_MLA_WITH_NORMS_BWD, layer + 2, factor - 1},
                        (event){1, ASSAY_STAGE_FETCH, layer, -1}));
    MUST(require_before(ctx, t, (event){1, ASSAY_STAGE_GATHER_WEIGHTS, layer - 1, -1}, start));
    MUST(require_before(ctx, t, (event){1, ASSAY_STAGE_MLA_WITH_NORMS_BWD, layer + 2, factor - 1},
                        (event){1, ASSAY_STAGE_GATHER_WEIGHTS, layer, -1}));
    return check_gradients(ctx, t, layer);
}

assay_status assay_schedule_check(assay_context *ctx, const int32_t *events, int64_t count,
                                  const assay_schedule_dims *dims)
{
    OWNED_BY(assay_timetable_close) assay_timetable t = {0};
    MUST(assay_timetable_open(ctx, &t, events, count, dims));
    MUST(require_all(ctx, &t));
    for (int64_t layer = 0; layer < dims->layers; layer++) MUST(check_forward(ctx, &t, layer));
    for (int64_t layer = 0; dims->backward && layer < dims->layers; layer++) MUST(check_backward(ctx, &t, layer));
    return ASSAY_OK;
}

void assay_schedule_trace(FILE *file, const int32_t *events, const int32_t *groups, int64_t count)
{
    fprintf(file, "{\"traceEvents\": [\n");
    for (int64_t i = 0; i < count; i++) {
        const int32_t *e = events + i * ASSAY_EVENT_FIELDS;
        const char *name = e[STAGE] >= 0 && e[STAGE] < ASSAY_STAGES ? assay_stage_names[e[STAGE]] : "unknown";
        char group[32] = "";
        if (groups != NULL && groups[i] >= 0) snprintf(group, sizeof group, ", \"group\": %" PRId32, groups[i]);
        fprintf(file,
                "{\"name\": \"%s\", \"cat\": \"%s\", \"ph\": \"X\", \"ts\": %" PRId64 ", \"dur\": 1, \"pid\": %" PRId32
                ", \"tid\": %" PRId32 ", \"args\": {\"layer\": %" PRId32 "%s}}%s\n",
                name, e[PASS] == 0 ? "forward" : "backward", i, e[PASS], e[MICROBATCH] + 1, e[LAYER], group,
                i + 1 < count ? "," : "");
    }
    fprintf(file, "], \"displayTimeUnit\": \"ms\"}\n");
}
