/* Routing replay: what a case chooses becomes its input, and the case is evaluated again. */
#include <stdio.h>
#include <string.h>

#include "harness/equivalences/other_runs.h"
#include "oracle/base/tensor_set.h"

/* Takes routing/.../selected_experts as inputs/.../selected_experts. */
typedef struct replay {
    assay_tensor_set choices;
    assay_sink sink; /* of the set */
} replay;

static const char FOLDER[] = "inputs/";

static void input_path(const char *choice, char path[ASSAY_PATH_SIZE])
{
    snprintf(path, ASSAY_PATH_SIZE, "%s%.140s", FOLDER, strchr(choice, '/') + 1);
}

static bool wants_choice(void *self, const char *path)
{
    (void)self;
    return assay_path_is_choice(path);
}

static assay_status take_choice(assay_context *ctx, void *self, const char *path, int64_t count, const int32_t *values)
{
    const replay *r = self;
    char input[ASSAY_PATH_SIZE];
    input_path(path, input);
    return r->sink.write_i32(ctx, r->sink.self, input, count, values);
}

static assay_status add_choices(assay_context *ctx, const assay_case *c, assay_tensor_set *choices)
{
    const assay_operation *operation = NULL;
    OWNED_BY(assay_tensor_list_free) assay_tensor_list list = {0};
    MUST(assay_operation_prepare(ctx, c, &operation, &list));
    for (int i = 0; i < list.count; i++) {
        assay_tensor_spec spec = list.entries[i].spec;
        if (!assay_path_is_choice(list.entries[i].spec.path)) continue;
        input_path(list.entries[i].spec.path, spec.path);
        spec.role = ASSAY_ROLE_INPUT;
        MUST(assay_tensor_set_add(ctx, choices, &spec, NULL));
    }
    return ASSAY_OK;
}

assay_status assay_run_replayed(assay_context *ctx, const assay_case *c, const assay_source *in, const assay_sink *out)
{
    assay_status status;
    const assay_operation *operation = assay_operation_by_name(c->op);
    replay r = {0};
    r.sink = assay_tensor_set_sink(&r.choices);
    const assay_sink first = {.self = &r, .wants = wants_choice, .write_i32 = take_choice};
    TRY(add_choices(ctx, c, &r.choices));
    TRY(assay_operation_run(ctx, operation, c, in, &first, NULL, 0));
    assay_overlay both = {assay_tensor_set_source(&r.choices), *in};
    const assay_source replayed = assay_overlay_source(&both);
    TRY(assay_operation_run(ctx, operation, c, &replayed, out, NULL, 0));
cleanup:
    assay_tensor_set_free(&r.choices);
    return status;
}
