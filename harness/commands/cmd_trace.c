#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixtures/atomic_file.h"
#include "harness/commands/command.h"
#include "oracle/base/memory.h"
#include "oracle/layer/schedule_events.h"

#define EVENTS "schedule/events"
#define GROUPS "schedule/groups"

static assay_status find_events(assay_context *ctx, const assay_fixture_reader *reader, const char *path,
                                int64_t *count)
{
    const assay_tensor_spec *spec = assay_fixture_find(reader, EVENTS);
    char shape[64] = "none";
    if (spec != NULL) assay_shape_text(&spec->shape, shape, sizeof shape);
    if (spec == NULL || spec->type != ASSAY_INT32 || spec->shape.rank != 2 ||
        spec->shape.dims[1] != ASSAY_EVENT_FIELDS) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "%s: " EVENTS " is %s, expected int32 [events,%d]: the case must have "
                          "use_batch_split_schedule",
                          path, shape, ASSAY_EVENT_FIELDS);
    }
    *count = spec->shape.dims[0];
    return ASSAY_OK;
}

/* NULL where the file has none, or none that belong to its events. */
static assay_status read_groups(assay_context *ctx, assay_fixture_reader *reader, int64_t count, int32_t **groups)
{
    const assay_tensor_spec *spec = assay_fixture_find(reader, GROUPS);
    if (spec == NULL || spec->type != ASSAY_INT32 || assay_shape_count(&spec->shape) != count) return ASSAY_OK;
    MUST(assay_alloc_i32(ctx, GROUPS, count, groups));
    return assay_fixture_read_i32(ctx, reader, GROUPS, 0, count, *groups);
}

static assay_status run(assay_context *ctx, const assay_options *options, int *exit_code)
{
    OWNED_BY(assay_fixture_release) assay_fixture_reader *reader = NULL;
    const char *path = options->arguments[0];
    OWNED int32_t *events = NULL, *groups = NULL;
    int64_t count = 0;
    OWNED char *text = NULL;
    size_t size = 0;
    *exit_code = ASSAY_EXIT_PASS;
    if (options->output == NULL) return assay_fail(ctx, ASSAY_BAD_INPUT, "trace needs -o FILE.json");
    MUST(assay_fixture_open(ctx, path, &reader));
    const char *kind = assay_fixture_text(reader, "kind");
    if (kind != NULL && strcmp(kind, "golden") == 0) MUST(assay_fixture_check_stored(ctx, reader));
    MUST(find_events(ctx, reader, path, &count));
    MUST(assay_alloc_i32(ctx, EVENTS, count * ASSAY_EVENT_FIELDS, &events));
    MUST(assay_fixture_read_i32(ctx, reader, EVENTS, 0, count * ASSAY_EVENT_FIELDS, events));
    MUST(read_groups(ctx, reader, count, &groups));
    FILE *memory = assay_text_open(&text, &size);
    if (memory != NULL) assay_schedule_trace(memory, events, groups, count);
    if (memory == NULL || !assay_text_close(memory, &text)) {
        return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the trace of %s", path);
    }
    return assay_write_file_atomically(ctx, options->output, text);
}

const assay_command assay_command_trace = {
    .name = "trace",
    .arguments = "FIXTURE",
    .summary = "the order of events of a batch-split schedule, as a Chrome trace",
    .details = "FIXTURE is a golden, or a candidate that has schedule/events. The trace opens in chrome://tracing or "
               "Perfetto;\n"
               "events take one unit of time each, and show their scheduling groups where the file has them.\n",
    .options = ASSAY_OPT_OUTPUT | ASSAY_OPT_TRUST,
    .least = 1,
    .most = 1,
    .run = run,
};
