/* The order of events: of a run, literally; what the checker must not let pass; the trace. */

#include "oracle/layer/schedule_groups.h"
#include "oracle/layer/tests/split_case.h"
#include "tests/support/assay_test.h"

/* Four layers, two microbatches. Written as "pass stage layer.microbatch", pass f or b; no microbatch: for all. */
static const char *const four_layers[] = {
    "f gather_weights 0", "f gather_weights 1",
    /* layer 0 */
    "f mla_with_norms 0.0", "f mla_with_norms 0.1", "f route 0.0", "f route 0.1", "f compute 0.0", "f compute 0.1",
    "f unroute 0.0", "f offload 0",
    /* layer 1, with the end of layer 0 */
    "f gather_weights 2", "f unroute 0.1", "f mla_with_norms 1.0", "f mla_with_norms 1.1", "f route 1.0", "f route 1.1",
    "f compute 1.0", "f compute 1.1", "f unroute 1.0", "f offload 1",
    /* layer 2 */
    "f gather_weights 3", "f unroute 1.1", "f mla_with_norms 2.0", "f mla_with_norms 2.1", "f route 2.0", "f route 2.1",
    "f compute 2.0", "f compute 2.1", "f unroute 2.0", "f offload 2",
    /* layer 3 */
    "f unroute 2.1", "f mla_with_norms 3.0", "f mla_with_norms 3.1", "f route 3.0", "f route 3.1", "f compute 3.0",
    "f compute 3.1", "f unroute 3.0", "f unroute 3.1",
    /* backward, layer 3 */
    "b gather_weights 2", "b unroute_bwd 3.1", "b mla_with_norms_remat 3.0", "b mla_with_norms_remat 3.1",
    "b route_remat 3.0", "b route_remat 3.1", "b compute_remat 3.0", "b compute_remat 3.1", "b unroute_bwd 3.0",
    "b compute_bwd 3.0", "b compute_bwd 3.1", "b route_bwd 3.0", "b route_bwd 3.1", "b mla_with_norms_bwd 3.0",
    "b mla_with_norms_bwd 3.1", "b unroute_bwd 2.1",
    /* layer 2 */
    "b gather_weights 1", "b reduce_scatter_ws_grad 3", "b fetch 2", "b mla_with_norms_remat 2.0",
    "b mla_with_norms_remat 2.1", "b route_remat 2.0", "b route_remat 2.1", "b compute_remat 2.0",
    "b compute_remat 2.1", "b unroute_bwd 2.0", "b compute_bwd 2.0", "b compute_bwd 2.1", "b route_bwd 2.0",
    "b route_bwd 2.1", "b mla_with_norms_bwd 2.0", "b mla_with_norms_bwd 2.1", "b unroute_bwd 1.1",
    /* layer 1 */
    "b gather_weights 0", "b reduce_scatter_ws_grad 2", "b all_reduce_ws_grad_dcn 3", "b insert_layer_ws_grad 3",
    "b fetch 1", "b mla_with_norms_remat 1.0", "b mla_with_norms_remat 1.1", "b route_remat 1.0", "b route_remat 1.1",
    "b compute_remat 1.0", "b compute_remat 1.1", "b unroute_bwd 1.0", "b compute_bwd 1.0", "b compute_bwd 1.1",
    "b route_bwd 1.0", "b route_bwd 1.1", "b mla_with_norms_bwd 1.0", "b mla_with_norms_bwd 1.1", "b unroute_bwd 0.1",
    /* layer 0 */
    "b reduce_scatter_ws_grad 1", "b all_reduce_ws_grad_dcn 2", "b insert_layer_ws_grad 2", "b fetch 0",
    "b mla_with_norms_remat 0.0", "b mla_with_norms_remat 0.1", "b route_remat 0.0", "b route_remat 0.1",
    "b compute_remat 0.0", "b compute_remat 0.1", "b unroute_bwd 0.0", "b compute_bwd 0.0", "b compute_bwd 0.1",
    "b route_bwd 0.0", "b route_bwd 0.1", "b mla_with_norms_bwd 0.0", "b mla_with_norms_bwd 0.1",
    "b all_reduce_ws_grad_dcn 1", "b insert_layer_ws_grad 1", "b reduce_scatter_ws_grad 0",
    "b all_reduce_ws_grad_dcn 0", "b insert_layer_ws_grad 0"};
enum { EVENTS = sizeof four_layers / sizeof *four_layers };

static const assay_schedule_dims four_dims = {.first_layer = 0, .layers = 4, .factor = 2, .backward = true};

typedef struct one_event {
    int32_t values[ASSAY_EVENT_FIELDS];
} one_event;

static one_event parse(const char *text)
{
    char pass, name[64];
    int layer, microbatch = -1, stage = 0;
    assert_true(sscanf(text, "%c %63s %d.%d", &pass, name, &layer, &microbatch) >= 3);
    while (stage < ASSAY_STAGES && strcmp(name, assay_stage_names[stage]) != 0) stage++;
    if (stage == ASSAY_STAGES) fail_msg("no stage '%s'", name);
    return (one_event){{pass == 'b', stage, layer, microbatch}};
}

typedef struct list {
    one_event events[EVENTS + 1];
    int count;
} list;

static list valid(void)
{
    list l = {.count = EVENTS};
    for (int i = 0; i < EVENTS; i++) l.events[i] = parse(four_layers[i]);
    return l;
}

static int find(const list *l, const char *text)
{
    const one_event wanted = parse(text);
    for (int i = 0; i < l->count; i++)
        if (memcmp(&l->events[i], &wanted, sizeof wanted) == 0) return i;
    fail_msg("no event '%s'", text);
    return -1;
}

static void take_out(list *l, int at)
{
    memmove(&l->events[at], &l->events[at + 1], (size_t)(l->count - at - 1) * sizeof l->events[0]);
    l->count--;
}

static void put_in(list *l, int at, one_event event)
{
    memmove(&l->events[at + 1], &l->events[at], (size_t)(l->count - at) * sizeof l->events[0]);
    l->events[at] = event;
    l->count++;
}

static assay_status check(assay_context *ctx, const list *l, const assay_schedule_dims *dims)
{
    return assay_schedule_check(ctx, l->events[0].values, l->count, dims);
}

TEST_WITH_CONTEXT(a_run_has_these_events)
{
    OWNED_BY(layer_case_free) layer_case c = split_case_small(4, 0, 2);
    OWNED_BY(test_tensors_free) test_tensors out = {0};
    layer_case_run(&ctx, &c, &out);
    const assay_tensor *found = layer_case_get(&out, "schedule/events");
    assert_int_equal(found->count, EVENTS * ASSAY_EVENT_FIELDS);
    for (int i = 0; i < EVENTS; i++) {
        const one_event expected = parse(four_layers[i]);
        if (memcmp(found->indices + i * ASSAY_EVENT_FIELDS, &expected, sizeof expected) != 0)
            fail_msg("event %d is not '%s'", i, four_layers[i]);
    }
}

/* Layers count over the whole stack, dense ones before the schedule included. */
TEST(runs_of_other_sizes_pass_the_check)
{
    static const struct {
        int64_t layers, dense, factor;
    } table[] = {{4, 0, 1}, {4, 0, 3}, {6, 1, 2}, {7, 2, 1}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = assay_context_default(1);
        OWNED_BY(layer_case_free) layer_case c = split_case_small(table[i].layers, table[i].dense, table[i].factor);
        OWNED_BY(test_tensors_free) test_tensors out = {0};
        assay_schedule_dims dims = {table[i].dense, table[i].layers - table[i].dense, table[i].factor, true};
        layer_case_run(&ctx, &c, &out);
        const assay_tensor *found = layer_case_get(&out, "schedule/events");
        assert_int_equal(found->count, assay_schedule_count(&dims) * ASSAY_EVENT_FIELDS);
        assert_ok(&ctx, assay_schedule_check(&ctx, found->indices, found->count / ASSAY_EVENT_FIELDS, &dims));
        dims.first_layer++;
        assert_int_equal(assay_schedule_check(&ctx, found->indices, found->count / ASSAY_EVENT_FIELDS, &dims),
                         ASSAY_BAD_INPUT);
    }
}

/* Microbatches 0 and 1 of a stage of layer 2. */
static void exchange(const assay_tensor *events, int pass, int stage)
{
    for (int64_t i = 0; i < events->count; i += ASSAY_EVENT_FIELDS) {
        int32_t *e = events->indices + i;
        if (e[0] == pass && e[1] == stage && e[2] == 2 && e[3] < 2) e[3] = 1 - e[3];
    }
}

/* With three microbatches two are unrouted within the layer, one after the other. */
TEST_WITH_CONTEXT(three_microbatches)
{
    const assay_schedule_dims dims = {.first_layer = 0, .layers = 4, .factor = 3, .backward = true};
    OWNED_BY(layer_case_free) layer_case c = split_case_small(4, 0, 3);
    OWNED_BY(test_tensors_free) test_tensors out = {0};
    layer_case_run(&ctx, &c, &out);
    const assay_tensor *found = layer_case_get(&out, "schedule/events");
    for (int backward = 0; backward < 2; backward++) {
        const int stage = backward ? ASSAY_STAGE_UNROUTE_BWD : ASSAY_STAGE_UNROUTE;
        exchange(found, backward, stage);
        assert_int_equal(assay_schedule_check(&ctx, found->indices, found->count / ASSAY_EVENT_FIELDS, &dims),
                         ASSAY_BAD_INPUT);
        exchange(found, backward, stage);
        assert_ok(&ctx, assay_schedule_check(&ctx, found->indices, found->count / ASSAY_EVENT_FIELDS, &dims));
    }
}

TEST(the_count_is_known_beforehand)
{
    assay_schedule_dims dims = four_dims;
    assert_int_equal(assay_schedule_count(&dims), EVENTS);
    dims.backward = false;
    /* all forward ones but the offloads */
    assert_int_equal(assay_schedule_count(&dims), 36);
}

/* Without backward there are no offloads, and nothing of backward. */
TEST_WITH_CONTEXT(forward_alone)
{
    assay_schedule_dims dims = four_dims;
    list l = valid();
    dims.backward = false;
    while (l.events[l.count - 1].values[0] == 1) take_out(&l, l.count - 1);
    assert_bad_input(&ctx, check(&ctx, &l, &dims), "forward offload of layer 0 should not be there");
    for (int layer = 0; layer < 3; layer++) {
        char text[32];
        snprintf(text, sizeof text, "f offload %d", layer);
        take_out(&l, find(&l, text));
    }
    assert_ok(&ctx, check(&ctx, &l, &dims));
}

TEST_WITH_CONTEXT(a_missing_or_repeated_event_is_refused)
{
    for (int i = 0; i < EVENTS; i++) {
        list l = valid();
        const one_event event = l.events[i];
        take_out(&l, i);
        assert_bad_input(&ctx, check(&ctx, &l, &four_dims), "is missing");
        put_in(&l, i, event);
        assert_ok(&ctx, check(&ctx, &l, &four_dims));
        put_in(&l, i, event);
        assert_bad_input(&ctx, check(&ctx, &l, &four_dims), "is there twice");
    }
}

TEST_WITH_CONTEXT(an_event_of_no_such_schedule_is_refused)
{
    static const one_event table[] = {
        {{0, ASSAY_STAGE_FETCH, 0, -1}},
        {{1, ASSAY_STAGE_OFFLOAD, 0, -1}},
        {{2, ASSAY_STAGE_ROUTE, 0, 0}},
        {{-1, ASSAY_STAGE_ROUTE, 0, 0}},
        {{0, ASSAY_STAGE_ROUTE, 4, 0}},
        {{0, ASSAY_STAGE_ROUTE, -1, 0}},
        {{0, ASSAY_STAGE_ROUTE, 0, 2}},
        {{0, ASSAY_STAGE_ROUTE, 0, -1}},
        {{0, ASSAY_STAGES, 0, 0}},
        {{0, -1, 0, 0}},
        {{0, ASSAY_STAGE_ROUTE, 0, -2}},
        {{0, ASSAY_STAGE_ROUTE_BWD, 0, 0}},
        {{0, ASSAY_STAGE_GATHER_WEIGHTS, 0, 0}},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        list l = valid();
        put_in(&l, 5, table[i]);
        assert_bad_input(&ctx, check(&ctx, &l, &four_dims), "event 5 is {");
        assert_non_null(strstr(ctx.message, "no event of such a schedule"));
    }
    /* the last layer's residuals and weights stay where they are */
    static const char *const ends[] = {"f offload 3", "b fetch 3", "b gather_weights 3"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        list l = valid();
        put_in(&l, ends[i][0] == 'f' ? 5 : l.count, parse(ends[i]));
        assert_bad_input(&ctx, check(&ctx, &l, &four_dims), "of layer 3 should not be there");
    }
}

/* An event moved right before or behind another: which rule it breaks. */
TEST_WITH_CONTEXT(a_wrong_order_is_refused)
{
    static const struct {
        const char *event, *where, *other, *message;
    } table[] = {
        /* gathered too late, too early */
        {"f gather_weights 1", "behind", "f mla_with_norms 0.0", "forward gather_weights of layer 1 comes after"},
        {"f gather_weights 0", "behind", "f mla_with_norms 0.0", "forward gather_weights of layer 0 comes after"},
        {"f gather_weights 3", "behind", "f mla_with_norms 2.1", "forward gather_weights of layer 3 comes after"},
        {"f gather_weights 3", "before", "f gather_weights 2", "comes after gather_weights of layer 3"},
        {"b gather_weights 1", "behind", "b mla_with_norms_remat 2.0",
         "backward gather_weights of layer 1 comes after"},
        {"b gather_weights 0", "before", "b gather_weights 1", "comes after gather_weights of layer 0"},
        /* the last microbatch's unroute not deferred, or for too long */
        {"f unroute 0.1", "behind", "f unroute 0.0",
         "forward gather_weights of layer 2 comes after unroute of layer 0"},
        {"f unroute 1.1", "before", "f gather_weights 3", "comes after unroute of layer 1"},
        {"f unroute 1.1", "behind", "f mla_with_norms 2.0",
         "unroute of layer 1, microbatch 1 comes after mla_with_norms"},
        {"b unroute_bwd 2.1", "behind", "b compute_remat 2.1", "unroute_bwd of layer 2, microbatch 1 comes after"},
        {"b unroute_bwd 1.1", "before", "b mla_with_norms_bwd 2.1",
         "mla_with_norms_bwd of layer 2, microbatch 1 comes after"},
        {"b unroute_bwd 2.0", "before", "b compute_remat 2.0", "comes after unroute_bwd of layer 2"},
        {"b unroute_bwd 2.0", "behind", "b compute_bwd 2.0", "comes after compute_bwd of layer 2"},
        /* microbatches exchanged */
        {"f mla_with_norms 1.1", "before", "f mla_with_norms 1.0",
         "forward mla_with_norms of layer 1, microbatch 0 comes after"},
        {"f route 1.1", "before", "f route 1.0", "forward route of layer 1, microbatch 0 comes after"},
        {"f unroute 0.1", "before", "f unroute 0.0", "forward unroute of layer 0, microbatch 0 comes after"},
        {"b compute_bwd 0.1", "before", "b compute_bwd 0.0",
         "backward compute_bwd of layer 0, microbatch 0 comes after"},
        /* stages out of order, or one microbatch through all of them before the next */
        {"f compute 2.0", "before", "f route 2.0", "forward route of layer 2, microbatch 0 comes after compute"},
        {"f route 2.0", "before", "f mla_with_norms 2.1",
         "forward mla_with_norms of layer 2, microbatch 1 comes after route"},
        {"b route_remat 2.0", "before", "b mla_with_norms_remat 2.1", "comes after route_remat of layer 2"},
        {"b mla_with_norms_bwd 1.0", "before", "b route_bwd 1.0", "comes after mla_with_norms_bwd of layer 1"},
        {"b route_bwd 1.0", "before", "b compute_bwd 1.1", "comes after route_bwd of layer 1"},
        /* offloaded before it is there, or late; fetched late or early */
        {"f offload 1", "before", "f compute 1.1", "comes after offload of layer 1"},
        {"f offload 1", "behind", "f mla_with_norms 2.0", "forward offload of layer 1 comes after"},
        {"b fetch 1", "behind", "b mla_with_norms_remat 1.0", "backward fetch of layer 1 comes after"},
        {"b fetch 0", "before", "b mla_with_norms_bwd 2.1", "comes after fetch of layer 0"},
        /* reduced in the wrong layer */
        {"b reduce_scatter_ws_grad 3", "before", "b mla_with_norms_bwd 3.1",
         "comes after reduce_scatter_ws_grad of layer 3"},
        {"b reduce_scatter_ws_grad 3", "before", "b all_reduce_ws_grad_dcn 3",
         "backward reduce_scatter_ws_grad of layer 3 comes after"},
        {"b reduce_scatter_ws_grad 1", "behind", "b mla_with_norms_bwd 0.1",
         "backward reduce_scatter_ws_grad of layer 1 comes after"},
        {"b all_reduce_ws_grad_dcn 3", "behind", "b reduce_scatter_ws_grad 3",
         "comes after all_reduce_ws_grad_dcn of layer 3"},
        {"b all_reduce_ws_grad_dcn 3", "behind", "b mla_with_norms_remat 1.0",
         "layer 3 comes after mla_with_norms_remat of layer 1"},
        {"b all_reduce_ws_grad_dcn 0", "before", "b reduce_scatter_ws_grad 0",
         "reduce_scatter_ws_grad of layer 0 comes after"},
        {"b insert_layer_ws_grad 2", "before", "b all_reduce_ws_grad_dcn 2",
         "all_reduce_ws_grad_dcn of layer 2 comes after"},
        /* backward before the end of forward */
        {"b gather_weights 2", "before", "f unroute 3.1",
         "unroute of layer 3, microbatch 1 comes after the start of backward"},
        {"f gather_weights 0", "behind", "b insert_layer_ws_grad 0", "comes after the start of backward"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        list l = valid();
        take_out(&l, find(&l, table[i].event));
        const int other = find(&l, table[i].other);
        put_in(&l, strcmp(table[i].where, "behind") == 0 ? other + 1 : other, parse(table[i].event));
        assert_int_equal(l.count, EVENTS);
        if (check(&ctx, &l, &four_dims) != ASSAY_BAD_INPUT || strstr(ctx.message, table[i].message) == NULL)
            fail_msg("%s %s %s: \"%s\"", table[i].event, table[i].where, table[i].other, ctx.message);
    }
}

/* As text: one object a line, whose braces are closed. */
TEST(the_trace_is_chromes_format)
{
    static const int32_t events[] = {0, ASSAY_STAGE_GATHER_WEIGHTS, 3, -1, 1, ASSAY_STAGE_ROUTE_BWD, 4, 1};
    static const int32_t groups[] = {43, ASSAY_NO_GROUP};
    static const char expected[] =
        "{\"traceEvents\": [\n"
        "{\"name\": \"gather_weights\", \"cat\": \"forward\", \"ph\": \"X\", \"ts\": 0, \"dur\": 1, \"pid\": 0, "
        "\"tid\": 0, \"args\": {\"layer\": 3, \"group\": 43}},\n"
        "{\"name\": \"route_bwd\", \"cat\": \"backward\", \"ph\": \"X\", \"ts\": 1, \"dur\": 1, \"pid\": 1, "
        "\"tid\": 2, \"args\": {\"layer\": 4}}\n"
        "], \"displayTimeUnit\": \"ms\"}\n";
    char found[1024] = "";
    FILE *file = tmpfile();
    assert_non_null(file);
    assay_schedule_trace(file, events, groups, 2);
    rewind(file);
    found[fread(found, 1, sizeof found - 1, file)] = '\0';
    fclose(file);
    assert_string_equal(found, expected);
}

TEST(a_trace_of_nothing_and_of_strangers)
{
    static const int32_t events[] = {0, ASSAY_STAGES, 0, 0};
    char found[1024] = "";
    for (int count = 0; count < 2; count++) {
        FILE *file = tmpfile();
        assert_non_null(file);
        assay_schedule_trace(file, events, NULL, count);
        rewind(file);
        found[fread(found, 1, sizeof found - 1, file)] = '\0';
        fclose(file);
        assert_int_equal(strstr(found, "\"unknown\"") != NULL, count);
    }
}

TEST_WITH_CONTEXT(no_memory)
{
    assay_schedule schedule = {0};
    const list l = valid();
    assay_fail_allocation(0);
    assert_int_equal(check(&ctx, &l, &four_dims), ASSAY_NO_MEMORY);
    assay_fail_allocation(-1);
    for (int i = 0; i < 200; i++) {
        const bool full = schedule.count == schedule.room;
        assay_fail_allocation(0);
        const assay_status status = assay_schedule_add(&ctx, &schedule, true, ASSAY_STAGE_FETCH, i, -1);
        assay_fail_allocation(-1);
        assert_int_equal(status, full ? ASSAY_NO_MEMORY : ASSAY_OK);
        if (full) assert_ok(&ctx, assay_schedule_add(&ctx, &schedule, true, ASSAY_STAGE_FETCH, i, -1));
    }
    assert_int_equal(schedule.count, 200);
    for (int i = 0; i < 200; i++) {
        const int32_t expected[] = {1, ASSAY_STAGE_FETCH, i, -1};
        assert_memory_equal(schedule.events + i * ASSAY_EVENT_FIELDS, expected, sizeof expected);
    }
    assay_schedule_free(&schedule);
    assay_schedule_free(&schedule);
}
