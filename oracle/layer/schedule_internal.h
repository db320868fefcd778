/* Where the events of a schedule are. Private to schedule_*.c. */
#pragma once

#include "oracle/layer/schedule_events.h"

enum { ASSAY_EVENT_PASS, ASSAY_EVENT_STAGE, ASSAY_EVENT_LAYER, ASSAY_EVENT_MICROBATCH };

/* "forward route of layer 3, microbatch 1" */
typedef struct assay_event_name {
    char text[128];
} assay_event_name;
assay_event_name assay_event_name_of(const int32_t event[ASSAY_EVENT_FIELDS]);

/* Whether such a schedule has events of that kind in a layer, which counts from 0 within the schedule. */
bool assay_schedule_expects(const assay_schedule_dims *dims, int64_t pass, int64_t stage, int64_t layer);

/* Position of (pass, stage, layer within the schedule, microbatch), or -1. */
typedef struct assay_timetable {
    int64_t *at;
    const assay_schedule_dims *dims;
} assay_timetable;
int64_t *assay_timetable_slot(const assay_timetable *t, int64_t pass, int64_t stage, int64_t layer, int64_t microbatch);
/* Refuses an event that no such schedule has, one that is there twice, forward after backward; none need be there. */
assay_status assay_timetable_open(assay_context *ctx, assay_timetable *t, const int32_t *events, int64_t count,
                                  const assay_schedule_dims *dims);
void assay_timetable_close(assay_timetable *t); /* safe on a zeroed struct */
