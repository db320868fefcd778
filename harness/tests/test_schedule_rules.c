/* A candidate's schedule/ is judged by the rules: any lawful order passes, an unlawful one fails by the rule; groups and
 * barriers are those of its own order. */
#include "harness/tests/golden_trial.h"
#include "oracle/layer/schedule_groups.h"

TEST_LABELS(slow);

static bool is_result(const assay_tensor_spec *spec)
{
    return assay_role_is_compared(spec->role);
}

static bool is_result_but_groups(const assay_tensor_spec *spec)
{
    return is_result(spec) && strcmp(spec->path, "schedule/groups") != 0 &&
           strcmp(spec->path, "schedule/barriers") != 0;
}

static bool is_result_but_events(const assay_tensor_spec *spec)
{
    return is_result(spec) && strcmp(spec->path, "schedule/events") != 0;
}

/* Where the event {pass, stage, layer, microbatch} is. */
static int64_t place_of(const assay_tensor *events, const int32_t event[ASSAY_EVENT_FIELDS])
{
    for (int64_t i = 0; i < events->count; i += ASSAY_EVENT_FIELDS) {
        if (memcmp(events->indices + i, event, ASSAY_EVENT_FIELDS * sizeof *event) == 0) return i / ASSAY_EVENT_FIELDS;
    }
    fail_msg("there is no such event");
    return -1;
}

/* One event goes to the place of another, those between make room. */
static void move(assay_tensor *events, const int32_t from[ASSAY_EVENT_FIELDS], const int32_t to[ASSAY_EVENT_FIELDS])
{
    enum { FIELDS = ASSAY_EVENT_FIELDS };
    const int64_t first = place_of(events, from), last = place_of(events, to), step = first < last ? 1 : -1;
    for (int64_t i = first; i != last; i += step)
        memcpy(events->indices + i * FIELDS, events->indices + (i + step) * FIELDS, FIELDS * sizeof *from);
    memcpy(events->indices + last * FIELDS, from, FIELDS * sizeof *from);
}

#define FORWARD(stage, layer, microbatch)                                                                              \
    {                                                                                                                  \
        0, ASSAY_STAGE_##stage, layer, microbatch                                                                      \
    }
#define BACKWARD(stage, layer, microbatch)                                                                             \
    {                                                                                                                  \
        1, ASSAY_STAGE_##stage, layer, microbatch                                                                      \
    }

static const struct {
    int32_t from[ASSAY_EVENT_FIELDS], to[ASSAY_EVENT_FIELDS];
    const char *rule; /* NULL: lawful */
} table[] = {
    {FORWARD(OFFLOAD, 0, -1), FORWARD(UNROUTE, 0, 1), NULL},
    {BACKWARD(FETCH, 2, -1), BACKWARD(REDUCE_SCATTER_WS_GRAD, 3, -1), NULL},
    {BACKWARD(INSERT_LAYER_WS_GRAD, 3, -1), BACKWARD(COMPUTE_BWD, 1, 0), NULL},
    {FORWARD(ROUTE, 0, 1), FORWARD(ROUTE, 0, 0), "forward route of layer 0, microbatch 0 comes after route of layer 0"},
    {FORWARD(COMPUTE, 0, 0), FORWARD(ROUTE, 0, 0),
     "forward route of layer 0, microbatch 0 comes after compute of layer 0"},
    {FORWARD(GATHER_WEIGHTS, 2, -1), FORWARD(UNROUTE, 0, 1),
     "forward gather_weights of layer 2 comes after unroute of layer 0"},
    {FORWARD(GATHER_WEIGHTS, 2, -1), FORWARD(GATHER_WEIGHTS, 0, -1),
     "forward mla_with_norms of layer 0, microbatch 0 comes after gather_weights of layer 2"},
    {FORWARD(UNROUTE, 0, 1), FORWARD(MLA_WITH_NORMS, 1, 0),
     "forward unroute of layer 0, microbatch 1 comes after mla_with_norms of layer 1"},
    {FORWARD(OFFLOAD, 0, -1), FORWARD(MLA_WITH_NORMS, 1, 0),
     "forward offload of layer 0 comes after mla_with_norms of layer 1"},
    {BACKWARD(UNROUTE_BWD, 3, 0), BACKWARD(COMPUTE_BWD, 3, 0),
     "backward unroute_bwd of layer 3, microbatch 0 comes after compute_bwd of layer 3"},
    {BACKWARD(FETCH, 2, -1), BACKWARD(MLA_WITH_NORMS_REMAT, 2, 0),
     "backward fetch of layer 2 comes after mla_with_norms_remat of layer 2"},
    {BACKWARD(REDUCE_SCATTER_WS_GRAD, 3, -1), BACKWARD(MLA_WITH_NORMS_REMAT, 2, 0),
     "backward reduce_scatter_ws_grad of layer 3 comes after mla_with_norms_remat of layer 2"},
    {BACKWARD(ALL_REDUCE_WS_GRAD_DCN, 3, -1), BACKWARD(REDUCE_SCATTER_WS_GRAD, 3, -1),
     "backward reduce_scatter_ws_grad of layer 3 comes after all_reduce_ws_grad_dcn of layer 3"},
    {BACKWARD(INSERT_LAYER_WS_GRAD, 3, -1), BACKWARD(ALL_REDUCE_WS_GRAD_DCN, 3, -1),
     "backward all_reduce_ws_grad_dcn of layer 3 comes after insert_layer_ws_grad of layer 3"},
    {BACKWARD(UNROUTE_BWD, 3, 1), FORWARD(UNROUTE, 3, 1), "comes after the start of backward"},
};

static void try_orders(const test_folder *folder, const char *op)
{
    OWNED_BY(trial_close) trial t;
    assay_case *c = case_named("deepseek_stack/batch-split", "profiles=[f32]");
    snprintf(c->op, sizeof c->op, "%s", op);
    trial_write(&t, folder, c);
    const assay_profile *profile = assay_profile_by_name("f32");
    trial_round(&t.golden, ASSAY_FLOAT32);
    assay_tensor *events = assay_tensor_set_find(&t.golden, "schedule/events");
    OWNED int32_t *kept = malloc((size_t)events->count * sizeof *kept);
    assert_non_null(kept);
    memcpy(kept, events->indices, (size_t)events->count * sizeof *kept);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        memcpy(events->indices, kept, (size_t)events->count * sizeof *kept);
        move(events, table[i].from, table[i].to);
        assert_memory_not_equal(events->indices, kept, (size_t)events->count * sizeof *kept);
        trial_write_candidate(&t, &t.golden, profile, is_result_but_groups);
        OWNED_BY(assay_report_free) assay_report report = trial_compare(&t, profile);
        const bool passes = report.verdict == ASSAY_PASS;
        if (passes != (table[i].rule == NULL)) fail_msg("order %d: %s", (int)i, report.message);
        if (!passes && strstr(report.message, table[i].rule) == NULL)
            fail_msg("order %d: %s, expected: %s", (int)i, report.message, table[i].rule);
    }
    /* an event twice, and so another one missing */
    memcpy(events->indices, kept, (size_t)events->count * sizeof *kept);
    memcpy(events->indices, events->indices + ASSAY_EVENT_FIELDS, ASSAY_EVENT_FIELDS * sizeof *kept);
    trial_write_candidate(&t, &t.golden, profile, is_result_but_groups);
    OWNED_BY(assay_report_free) assay_report report = trial_compare(&t, profile);
    assert_int_equal(report.verdict, ASSAY_FAIL);
    assert_non_null(strstr(report.message, "is there twice"));
}

TEST_IN_FOLDER(any_lawful_order_passes)
{
    try_orders(folder, "deepseek_stack");
}

TEST_IN_FOLDER(the_same_layers_by_their_other_name_too)
{
    try_orders(folder, "decoder_stack");
}

static void expect(trial *t, const assay_profile *profile, bool (*is_wanted)(const assay_tensor_spec *spec),
                   const char *path, const char *rule)
{
    trial_write_candidate(t, &t->golden, profile, is_wanted);
    OWNED_BY(assay_report_free) assay_report report = trial_compare(t, profile);
    if ((report.verdict == ASSAY_PASS) != (rule == NULL))
        fail_msg("%s: %s", rule == NULL ? "passes" : rule, report.message);
    if (rule != NULL && (strstr(report.message, path) == NULL || strstr(report.message, rule) == NULL))
        fail_msg("%s, expected %s: %s", report.message, path, rule);
}

TEST_IN_FOLDER(groups_and_barriers_follow_the_order)
{
    OWNED_BY(trial_close) trial t;
    const assay_schedule_dims dims = {.first_layer = 0, .layers = 4, .factor = 2, .backward = true};
    static const int32_t fetch[] = {1, ASSAY_STAGE_FETCH, 2, -1}, gather[] = {1, ASSAY_STAGE_GATHER_WEIGHTS, 1, -1};
    trial_write(&t, folder, case_named("deepseek_stack/batch-split", "profiles=[f32]"));
    const assay_profile *profile = assay_profile_by_name("f32");
    trial_round(&t.golden, ASSAY_FLOAT32);
    const assay_tensor *groups = assay_tensor_set_find(&t.golden, "schedule/groups");
    const assay_tensor *barriers = assay_tensor_set_find(&t.golden, "schedule/barriers");
    assay_tensor *events = assay_tensor_set_find(&t.golden, "schedule/events");
    expect(&t, profile, is_result, NULL, NULL);
    expect(&t, profile, is_result_but_events, "schedule/groups", "is about schedule/events, which is not given");
    /* another lawful order: with the golden's groups, then its own, then its own barriers too */
    move(events, fetch, gather);
    expect(&t, profile, is_result, "schedule/groups",
           "backward fetch of layer 2 is in scheduling group 51, expected -1");
    assay_schedule_groups(events->indices, groups->count, &dims, groups->indices);
    expect(&t, profile, is_result, "schedule/barriers", "breaks a rule");
    assert_ok(&t.ctx, assay_schedule_barriers(&t.ctx, events->indices, groups->count, &dims, barriers->indices));
    expect(&t, profile, is_result, NULL, NULL);
    memcpy(barriers->indices, barriers->indices + ASSAY_BARRIER_FIELDS,
           ASSAY_BARRIER_FIELDS * sizeof *barriers->indices);
    expect(&t, profile, is_result, "schedule/barriers", "the barrier between");
}
