/* The order of events of the batch-split schedule (docs/expert-parallelism.md): a result of its own, that a backend's trace can be held
 * against.
 *
 * Each event is four whole numbers {pass, stage, layer, microbatch}: pass 0 forward, 1 backward; stage a number
 * of assay_stage; the layer that it works for; the microbatch, or -1 where it is for all. Layers count from 0 over the
 * whole stack, those before the schedule included. */
#pragma once

#include <stdio.h>

#include "oracle/base/status.h"

/*    code, name: MaxText's function names where it has one */
#define ASSAY_STAGE_TABLE(X)                                                                                           \
    X(GATHER_WEIGHTS, gather_weights)                                                                                  \
    X(MLA_WITH_NORMS, mla_with_norms)                                                                                  \
    X(ROUTE, route)     /* norm, shared expert, selection of experts, all-gather and sort */                           \
    X(COMPUTE, compute) /* the experts */                                                                              \
    X(UNROUTE, unroute)                                                                                                \
    X(OFFLOAD, offload)                                                                                                \
    X(FETCH, fetch) /* offloaded residuals back */                                                                     \
    X(MLA_WITH_NORMS_REMAT, mla_with_norms_remat)                                                                      \
    X(ROUTE_REMAT, route_remat)                                                                                        \
    X(COMPUTE_REMAT, compute_remat)                                                                                    \
    X(UNROUTE_BWD, unroute_bwd)                                                                                        \
    X(COMPUTE_BWD, compute_bwd)                                                                                        \
    X(ROUTE_BWD, route_bwd)                                                                                            \
    X(MLA_WITH_NORMS_BWD, mla_with_norms_bwd)                                                                          \
    X(REDUCE_SCATTER_WS_GRAD, reduce_scatter_ws_grad)                                                                  \
    X(ALL_REDUCE_WS_GRAD_DCN, all_reduce_ws_grad_dcn)                                                                  \
    X(INSERT_LAYER_WS_GRAD, insert_layer_ws_grad)

typedef enum assay_stage {
#define X(code, name) ASSAY_STAGE_##code,
    ASSAY_STAGE_TABLE(X)
#undef X
        ASSAY_STAGES
} assay_stage;

extern const char *const assay_stage_names[ASSAY_STAGES];

enum { ASSAY_EVENT_FIELDS = 4 }; /* pass, stage, layer, microbatch */

typedef struct assay_schedule {
    int32_t *events; /* [count, ASSAY_EVENT_FIELDS] */
    int64_t count, room;
} assay_schedule;

void assay_schedule_free(assay_schedule *schedule); /* safe on a zeroed struct */
assay_status assay_schedule_add(assay_context *ctx, assay_schedule *schedule, bool backward, assay_stage stage,
                                int64_t layer, int64_t microbatch);

typedef struct assay_schedule_dims {
    int64_t first_layer, layers; /* under the schedule: layers first_layer to first_layer + layers - 1 */
    int64_t factor;              /* batch_split_factor */
    bool backward;
} assay_schedule_dims;

/* Events of a schedule of that size. */
int64_t assay_schedule_count(const assay_schedule_dims *dims);

/* The rules: all of forward before backward; each stage once for each layer and microbatch, in the order of its data
 * flow; weights gathered one layer ahead, residuals fetched no earlier than that; the last microbatch of a layer
 * unrouted after the weights of the layer after the next are asked for; gradients reduce-scattered one layer behind and
 * all-reduced two behind, but for the ends. Refuses with the first event that breaks one, and says which. */
assay_status assay_schedule_check(assay_context *ctx, const int32_t *events, int64_t count,
                                  const assay_schedule_dims *dims);

/* As Chrome's trace event format (chrome://tracing, Perfetto): one duration event each, in unit steps; pid is the pass,
 * tid the microbatch (or the row of collectives). An event that has a scheduling group (schedule_groups.h) shows it;
 * groups may be NULL. */
void assay_schedule_trace(FILE *file, const int32_t *events, const int32_t *groups, int64_t count);
