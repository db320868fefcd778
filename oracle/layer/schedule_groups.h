/* What MaxText tells the compiler about the order of the batch-split schedule, beyond the data flow: ids of scheduling
 * groups, which its scan gives to the collectives of weights alone, and optimization barriers between events.
 *
 * groups [events]: the id of each event's scheduling group, or ASSAY_NO_GROUP. barriers [barriers,2]: two positions in the
 * events; what comes out of the first goes through a barrier before the second takes it, so that neither moves across.
 * Barriers inside one event (around the all-gather of route, behind the reduce-scatter of unroute) cannot be seen here. */
#pragma once

#include "oracle/layer/schedule_events.h"

enum { ASSAY_NO_GROUP = -1, ASSAY_BARRIER_FIELDS = 2 };

void assay_schedule_groups(const int32_t *events, int64_t count, const assay_schedule_dims *dims, int32_t *groups);
/* Refuses the first event whose group is not that of its stage, pass and layer. */
assay_status assay_schedule_check_groups(assay_context *ctx, const int32_t *events, int64_t count,
                                         const assay_schedule_dims *dims, const int32_t *groups);

int64_t assay_schedule_barrier_count(const assay_schedule_dims *dims);
/* Of events in any order that have all that barriers stand between. */
assay_status assay_schedule_barriers(assay_context *ctx, const int32_t *events, int64_t count,
                                     const assay_schedule_dims *dims, int32_t *barriers);
/* As many as the schedule has, in any order. Refuses events that moved across a barrier, a barrier that is missing, and
 * one that the schedule does not have. */
assay_status assay_schedule_check_barriers(assay_context *ctx, const int32_t *events, int64_t count,
                                           const assay_schedule_dims *dims, const int32_t *barriers);
