/* Ids of scheduling groups as MaxText's scan has them, literally; barriers between events; what the checks refuse. */

#include "oracle/layer/schedule_groups.h"
#include "oracle/layer/tests/split_case.h"
#include "tests/support/assay_test.h"

enum { MOST_EVENTS = 256, MOST_BARRIERS = 256 };

/* The events of a run, their groups and barriers. */
typedef struct schedule_case {
    assay_schedule_dims dims;
    int32_t events[MOST_EVENTS * ASSAY_EVENT_FIELDS], groups[MOST_EVENTS],
        barriers[MOST_BARRIERS * ASSAY_BARRIER_FIELDS];
    int64_t count, barrier_count;
} schedule_case;

static int64_t take(const test_tensors *out, const char *path, int32_t *values, int64_t room)
{
    const assay_tensor *found = layer_case_get(out, path);
    assert_true(found->count <= room);
    memcpy(values, found->indices, (size_t)found->count * sizeof *values);
    return found->count;
}

static schedule_case run_of(int64_t layers, int64_t dense, int64_t factor)
{
    assay_context ctx = assay_context_default(1);
    schedule_case s = {.dims = {dense, layers - dense, factor, true}};
    OWNED_BY(layer_case_free) layer_case c = split_case_small(layers, dense, factor);
    OWNED_BY(test_tensors_free) test_tensors out = {0};
    layer_case_run(&ctx, &c, &out);
    s.count = take(&out, "schedule/events", s.events, MOST_EVENTS * ASSAY_EVENT_FIELDS) / ASSAY_EVENT_FIELDS;
    assert_int_equal(take(&out, "schedule/groups", s.groups, MOST_EVENTS), s.count);
    s.barrier_count =
        take(&out, "schedule/barriers", s.barriers, MOST_BARRIERS * ASSAY_BARRIER_FIELDS) / ASSAY_BARRIER_FIELDS;
    assert_int_equal(s.barrier_count, assay_schedule_barrier_count(&s.dims));
    return s;
}

static int find(const schedule_case *s, int pass, int stage, int layer, int microbatch)
{
    const int32_t event[] = {pass, stage, layer, microbatch};
    for (int i = 0; i < s->count; i++)
        if (memcmp(s->events + i * ASSAY_EVENT_FIELDS, event, sizeof event) == 0) return i;
    fail_msg("no event {%d, %d, %d, %d}", pass, stage, layer, microbatch);
    return -1;
}

static bool has_barrier(const schedule_case *s, int first, int second)
{
    for (int64_t i = 0; i < s->barrier_count; i++) {
        const int32_t *barrier = s->barriers + i * ASSAY_BARRIER_FIELDS;
        if (barrier[0] == first && barrier[1] == second) return true;
    }
    return false;
}

static assay_status check_groups(assay_context *ctx, const schedule_case *s)
{
    return assay_schedule_check_groups(ctx, s->events, s->count, &s->dims, s->groups);
}

static assay_status check_barriers(assay_context *ctx, const schedule_case *s)
{
    return assay_schedule_check_barriers(ctx, s->events, s->count, &s->dims, s->barriers);
}

static void exchange(int32_t *values, int64_t a, int64_t b, int64_t fields)
{
    for (int64_t i = 0; i < fields; i++) {
        const int32_t kept = values[a * fields + i];
        values[a * fields + i] = values[b * fields + i];
        values[b * fields + i] = kept;
    }
}

/* Layer by layer: gather_weights forward, backward, reduce_scatter_ws_grad; 0: no such event. Four layers have no scan
 * between the ends, five have one layer in it. */
TEST(the_scan_gives_these_ids)
{
    static const struct {
        int layers, dense;
        int32_t forward[6], backward[6], scatter[6];
    } table[] = {
        {4, 0, {40, 41, 42, 44}, {53, 51, 50, 0}, {55, 54, 53, 51}},
        {5, 0, {40, 41, 42, 43, 44}, {53, 52, 51, 50, 0}, {55, 54, 53, 52, 51}},
        {6, 0, {40, 41, 42, 43, 43, 44}, {53, 52, 52, 51, 50, 0}, {55, 54, 53, 52, 52, 51}},
        {6, 2, {40, 41, 42, 44}, {53, 51, 50, 0}, {55, 54, 53, 51}},
    };
    for (size_t row = 0; row < sizeof table / sizeof *table; row++) {
        const schedule_case s = run_of(table[row].layers, table[row].dense, 1);
        for (int64_t i = 0; i < s.count; i++) {
            const int32_t *event = s.events + i * ASSAY_EVENT_FIELDS;
            const int64_t layer = event[2] - table[row].dense;
            int32_t expected = ASSAY_NO_GROUP;
            if (event[1] == ASSAY_STAGE_GATHER_WEIGHTS)
                expected = event[0] == 0 ? table[row].forward[layer] : table[row].backward[layer];
            if (event[1] == ASSAY_STAGE_REDUCE_SCATTER_WS_GRAD) expected = table[row].scatter[layer];
            assert_int_equal(s.groups[i], expected);
        }
    }
}

/* batch_split_layer names no groups; the barriers are there. */
TEST(one_layer_alone_has_no_groups)
{
    const assay_schedule_dims dims = {.first_layer = 0, .layers = 1, .factor = 2, .backward = true};
    static const int32_t events[] = {0, ASSAY_STAGE_GATHER_WEIGHTS,         0, -1,
                                     1, ASSAY_STAGE_REDUCE_SCATTER_WS_GRAD, 0, -1};
    int32_t groups[2];
    assay_schedule_groups(events, 2, &dims, groups);
    assert_int_equal(groups[0], ASSAY_NO_GROUP);
    assert_int_equal(groups[1], ASSAY_NO_GROUP);
    /* forward 1 + 3 staggered + 3 stages of 2; backward 3 stages of 2, 1 before the scatter, 1 before the reduce */
    assert_int_equal(assay_schedule_barrier_count(&dims), 10 + 8);
}

/* Every barrier that upstream's text has, seen once; and pairs that have none. */
TEST(barriers_stand_here)
{
    const schedule_case s = run_of(4, 0, 2);
    static const struct {
        int pass, stage[2], layer[2], microbatch[2];
        bool there;
    } table[] = {
        {0, {ASSAY_STAGE_GATHER_WEIGHTS, ASSAY_STAGE_MLA_WITH_NORMS}, {1, 1}, {-1, 0}, true},
        {0, {ASSAY_STAGE_MLA_WITH_NORMS, ASSAY_STAGE_MLA_WITH_NORMS}, {1, 1}, {0, 1}, true},
        {0, {ASSAY_STAGE_MLA_WITH_NORMS, ASSAY_STAGE_ROUTE}, {1, 1}, {1, 1}, true},
        {0, {ASSAY_STAGE_ROUTE, ASSAY_STAGE_ROUTE}, {1, 1}, {0, 1}, true},
        {0, {ASSAY_STAGE_ROUTE, ASSAY_STAGE_COMPUTE}, {1, 1}, {0, 0}, true},
        {0, {ASSAY_STAGE_COMPUTE, ASSAY_STAGE_COMPUTE}, {1, 1}, {0, 1}, true},
        {0, {ASSAY_STAGE_COMPUTE, ASSAY_STAGE_UNROUTE}, {1, 1}, {1, 1}, true},
        {0, {ASSAY_STAGE_UNROUTE, ASSAY_STAGE_UNROUTE}, {1, 1}, {0, 1}, false},
        {0, {ASSAY_STAGE_UNROUTE, ASSAY_STAGE_MLA_WITH_NORMS}, {1, 2}, {1, 0}, false},
        {0, {ASSAY_STAGE_GATHER_WEIGHTS, ASSAY_STAGE_UNROUTE}, {3, 1}, {-1, 1}, false},
        {0, {ASSAY_STAGE_COMPUTE, ASSAY_STAGE_OFFLOAD}, {1, 1}, {1, -1}, false},
        {1, {ASSAY_STAGE_GATHER_WEIGHTS, ASSAY_STAGE_MLA_WITH_NORMS_REMAT}, {2, 2}, {-1, 0}, true},
        {1, {ASSAY_STAGE_MLA_WITH_NORMS_REMAT, ASSAY_STAGE_MLA_WITH_NORMS_REMAT}, {1, 1}, {0, 1}, false},
        {1, {ASSAY_STAGE_MLA_WITH_NORMS_REMAT, ASSAY_STAGE_ROUTE_REMAT}, {1, 1}, {0, 0}, false},
        {1, {ASSAY_STAGE_ROUTE_REMAT, ASSAY_STAGE_COMPUTE_REMAT}, {1, 1}, {1, 1}, true},
        {1, {ASSAY_STAGE_UNROUTE_BWD, ASSAY_STAGE_COMPUTE_BWD}, {1, 1}, {1, 1}, true},
        {1, {ASSAY_STAGE_COMPUTE_BWD, ASSAY_STAGE_ROUTE_BWD}, {1, 1}, {0, 0}, true},
        {1, {ASSAY_STAGE_MLA_WITH_NORMS_BWD, ASSAY_STAGE_UNROUTE_BWD}, {2, 1}, {0, 0}, true},
        {1, {ASSAY_STAGE_MLA_WITH_NORMS_BWD, ASSAY_STAGE_UNROUTE_BWD}, {2, 1}, {1, 1}, true},
        {1, {ASSAY_STAGE_MLA_WITH_NORMS_BWD, ASSAY_STAGE_REDUCE_SCATTER_WS_GRAD}, {2, 2}, {1, -1}, true},
        {1, {ASSAY_STAGE_REDUCE_SCATTER_WS_GRAD, ASSAY_STAGE_ALL_REDUCE_WS_GRAD_DCN}, {2, 2}, {-1, -1}, true},
        {1, {ASSAY_STAGE_ALL_REDUCE_WS_GRAD_DCN, ASSAY_STAGE_INSERT_LAYER_WS_GRAD}, {2, 2}, {-1, -1}, false},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        int at[2];
        for (int end = 0; end < 2; end++)
            at[end] = find(&s, table[i].pass, table[i].stage[end], table[i].layer[end], table[i].microbatch[end]);
        if (has_barrier(&s, at[0], at[1]) != table[i].there) fail_msg("row %d", (int)i);
    }
    /* 10 a layer forward, 8 backward, 2 between neighbours, 1 for weights that backward gathers */
    assert_int_equal(s.barrier_count, 4 * (10 + 8) + 3 * (2 + 1));
}

/* None of a run's is crossed, whatever its size. */
TEST(runs_pass)
{
    static const int64_t table[][3] = {{4, 0, 1}, {4, 0, 3}, {6, 1, 2}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = assay_context_default(1);
        schedule_case s = run_of(table[i][0], table[i][1], table[i][2]);
        assert_ok(&ctx, check_groups(&ctx, &s));
        assert_ok(&ctx, check_barriers(&ctx, &s));
    }
}

/* Two events change places with their groups; an id of another stage, of none, or none at all is refused. */
TEST_WITH_CONTEXT(groups_go_with_their_events)
{
    schedule_case s = run_of(4, 0, 2);
    const int gather = find(&s, 1, ASSAY_STAGE_GATHER_WEIGHTS, 0, -1);
    const int scatter = find(&s, 1, ASSAY_STAGE_REDUCE_SCATTER_WS_GRAD, 1, -1);
    exchange(s.events, gather, scatter, ASSAY_EVENT_FIELDS);
    assert_bad_input(&ctx, check_groups(&ctx, &s),
                     "reduce_scatter_ws_grad of layer 1 is in scheduling group 53, expected 54");
    exchange(s.groups, gather, scatter, 1);
    assert_ok(&ctx, check_groups(&ctx, &s));
    s.groups[gather] = ASSAY_NO_GROUP;
    assert_int_equal(check_groups(&ctx, &s), ASSAY_BAD_INPUT);
    s.groups[gather] = 54;
    s.groups[2] = 40;
    assert_bad_input(&ctx, check_groups(&ctx, &s),
                     "forward mla_with_norms of layer 0, microbatch 0 is in scheduling group 40, "
                     "expected -1 (none)");
}

TEST_WITH_CONTEXT(barriers_in_any_order)
{
    schedule_case s = run_of(4, 0, 2);
    for (int64_t i = 0; i < s.barrier_count / 2; i++)
        exchange(s.barriers, i, s.barrier_count - 1 - i, ASSAY_BARRIER_FIELDS);
    assert_ok(&ctx, check_barriers(&ctx, &s));
}

/* Neither end moves across; an event that no barrier is about goes where it likes. */
TEST_WITH_CONTEXT(nothing_moves_across_a_barrier)
{
    schedule_case s = run_of(4, 0, 2);
    for (int64_t i = 0; i < s.barrier_count; i++) {
        schedule_case moved = s;
        const int32_t *ends = s.barriers + i * ASSAY_BARRIER_FIELDS;
        exchange(moved.events, ends[0], ends[1], ASSAY_EVENT_FIELDS);
        assert_int_equal(check_barriers(&ctx, &moved), ASSAY_BAD_INPUT);
        /* their barriers with them */
        assert_ok(&ctx, assay_schedule_barriers(&ctx, moved.events, s.count, &s.dims, moved.barriers));
        assert_bad_input(&ctx, check_barriers(&ctx, &moved), "moved across the barrier behind");
    }
    const int insert = find(&s, 1, ASSAY_STAGE_INSERT_LAYER_WS_GRAD, 3, -1);
    const int fetch = find(&s, 1, ASSAY_STAGE_FETCH, 1, -1);
    exchange(s.events, insert, fetch, ASSAY_EVENT_FIELDS);
    assert_ok(&ctx, check_barriers(&ctx, &s));
}

TEST_WITH_CONTEXT(a_missing_or_foreign_barrier_is_refused)
{
    const schedule_case s = run_of(4, 0, 2);
    const int route = find(&s, 0, ASSAY_STAGE_ROUTE, 1, 0), offload = find(&s, 0, ASSAY_STAGE_OFFLOAD, 1, -1);
    const int32_t table[][2] = {{route, offload}, {offload, route}, {-1, 5}, {5, INT32_MAX}, {route, route}};
    for (size_t row = 0; row < sizeof table / sizeof *table; row++) {
        for (int64_t i = 0; i < s.barrier_count; i += 7) {
            schedule_case other = s;
            memcpy(other.barriers + i * ASSAY_BARRIER_FIELDS, table[row], sizeof table[row]);
            assert_int_equal(check_barriers(&ctx, &other), ASSAY_BAD_INPUT);
            assert_true(strstr(ctx.message, "there is no barrier between events") != NULL ||
                        strstr(ctx.message, "is missing") != NULL);
        }
    }
    /* one twice, another one not at all */
    schedule_case other = s;
    memcpy(other.barriers, other.barriers + ASSAY_BARRIER_FIELDS, ASSAY_BARRIER_FIELDS * sizeof *other.barriers);
    assert_bad_input(&ctx, check_barriers(&ctx, &other),
                     "the barrier between forward gather_weights of layer 0 and forward "
                     "mla_with_norms of layer 0, microbatch 0 is missing");
}

/* Barriers are between events: what these lack or have twice is refused here too. */
TEST_WITH_CONTEXT(events_that_are_none)
{
    schedule_case s = run_of(4, 0, 2);
    assert_bad_input(&ctx, assay_schedule_check_barriers(&ctx, s.events, s.count - 2, &s.dims, s.barriers),
                     "all_reduce_ws_grad_dcn of layer 0 is missing");
    s.events[2] = 99;
    assert_bad_input(&ctx, check_barriers(&ctx, &s), "no event of such a schedule");
    assert_int_equal(check_groups(&ctx, &s), ASSAY_BAD_INPUT);
    memcpy(s.events, s.events + ASSAY_EVENT_FIELDS, ASSAY_EVENT_FIELDS * sizeof *s.events);
    assert_bad_input(&ctx, check_barriers(&ctx, &s), "is there twice");
}

TEST_WITH_CONTEXT(no_memory)
{
    const schedule_case s = run_of(4, 0, 2);
    for (int i = 0; i < 3; i++) {
        assay_fail_allocation(i);
        assert_int_equal(check_barriers(&ctx, &s), ASSAY_NO_MEMORY);
        assay_fail_allocation(-1);
    }
    assert_ok(&ctx, check_barriers(&ctx, &s));
}
