/* Small cases of every operation, in ways that may change nothing: with 1, 2 and 7 threads, over memory that held NaN, zeros or numbers,
 * read and copied or in place, one result at a time; and in ways that must fail, say so in a line and keep nothing: without memory, by a
 * source or a sink that fails, with values of keys that are none. Instruction sets are ci/same-bits'. */
#include "harness/plan/results.h"
#include "harness/tests/golden_trial.h"
#include "oracle/arithmetic/emulated.h"

TEST_LABELS(threads);

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* Small: operations of a case. Under a sanitizer few cases of each operation. Of more places to fail and results than these some, spread over
 * all. */
#define MOST_OPERATIONS (SANITIZED ? 2e5 : 2e6)
enum { FEW = 3, FAILURES = SANITIZED ? 8 : 20, RESULTS = 12 };

/* The way to the operation and from it. */
typedef struct passage {
    assay_source in;
    assay_sink out;
    const char *only;                 /* the result that is wanted; NULL: all are */
    bool lends;                       /* tensors are used where they lie */
    int calls, fails;                 /* reads and writes; which one fails, -1: none */
    const assay_emulation *emulation; /* NULL: float64 */
} passage;

static bool has(void *self, const char *path)
{
    const passage *p = self;
    return p->in.has(p->in.self, path);
}

static assay_status pass(assay_context *ctx, passage *p, const char *path)
{
    return p->calls++ == p->fails ? assay_fail(ctx, ASSAY_IO, "%s: the disk is gone", path) : ASSAY_OK;
}

static assay_status read_f64(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count, double *to)
{
    passage *p = self;
    MUST(pass(ctx, p, path));
    return p->in.read(ctx, p->in.self, path, first, count, to);
}

static assay_status read_i32(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                             int32_t *to)
{
    passage *p = self;
    MUST(pass(ctx, p, path));
    return p->in.read_i32(ctx, p->in.self, path, first, count, to);
}

static const double *lend(void *self, const char *path, int64_t first, int64_t count)
{
    const passage *p = self;
    return p->lends ? p->in.lend(p->in.self, path, first, count) : NULL;
}

static bool wants(void *self, const char *path)
{
    const passage *p = self;
    return (p->only == NULL || strcmp(path, p->only) == 0) && assay_wants(&p->out, path);
}

static assay_status write_f64(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    passage *p = self;
    MUST(pass(ctx, p, path));
    return p->out.write(ctx, p->out.self, path, count, values);
}

static assay_status write_i32(assay_context *ctx, void *self, const char *path, int64_t count, const int32_t *values)
{
    passage *p = self;
    MUST(pass(ctx, p, path));
    return p->out.write_i32(ctx, p->out.self, path, count, values);
}

static double *room(void *self, const char *path, int64_t count)
{
    const passage *p = self;
    return p->lends ? p->out.room(p->out.self, path, count) : NULL;
}

/* Room for all results. */
static assay_tensor_set rooms(trial *t)
{
    assay_tensor_set results = {0};
    for (int i = 0; i < t->plan.spec_count; i++) {
        const assay_tensor_spec *spec = &t->plan.specs[i];
        if (!assay_role_is_input(spec->role)) assert_ok(&t->ctx, assay_tensor_set_add(&t->ctx, &results, spec, NULL));
    }
    return results;
}

static assay_status run(trial *t, int threads, passage *p, assay_tensor_set *results)
{
    assay_context ctx = assay_context_default(threads);
    if (p->emulation != NULL) ctx.arithmetic = &assay_arithmetic_emulated;
    ctx.emulation = p->emulation;
    p->in = assay_input_source(&t->golden);
    p->out = assay_results_sink(results);
    const assay_source source = {p, has, read_f64, read_i32, NULL, lend};
    const assay_sink sink = {p, wants, write_f64, write_i32, NULL, room};
    const assay_status status = assay_operation_run(&ctx, t->plan.operation, t->c, &source, &sink);
    memcpy(t->ctx.message, ctx.message, sizeof ctx.message);
    return status;
}

/* Over memory that was NaN, into the golden: what all else is held against. Its allocations. */
static int64_t reference(trial *t, passage *p)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set results = rooms(t);
    assay_fill_allocations(0xff);
    assay_fail_allocation(INT64_MAX);
    assert_ok(&t->ctx, run(t, 1, p, &results));
    const int64_t allocations = INT64_MAX - assay_allocations_left();
    assay_fail_allocation(-1);
    assay_fill_allocations(-1);
    for (int i = 0; i < results.count; i++) {
        const assay_tensor *from = &results.items[i], *to = assay_tensor_set_find(&t->golden, from->spec.path);
        const size_t count = (size_t)from->count;
        if (from->written != from->count) fail_msg("%s: %s is not whole", t->c->name, from->spec.path);
        if (from->values != NULL) memcpy(to->values, from->values, count * sizeof *to->values);
        if (from->indices != NULL) memcpy(to->indices, from->indices, count * sizeof *to->indices);
    }
    return allocations;
}

static bool is_same(const assay_tensor *a, const assay_tensor *b)
{
    const size_t count = (size_t)a->count;
    return a->written == a->count &&
           (a->values == NULL || memcmp(a->values, b->values, count * sizeof *a->values) == 0) &&
           (a->indices == NULL || memcmp(a->indices, b->indices, count * sizeof *a->indices) == 0);
}

/* Over memory whose bytes were `held`. */
static void assert_runs_same(trial *t, int threads, passage p, int held, const char *how)
{
    assay_fill_allocations(held);
    OWNED_BY(assay_tensor_set_free) assay_tensor_set results = rooms(t);
    const assay_status status = run(t, threads, &p, &results);
    assay_fill_allocations(-1);
    if (status != ASSAY_OK) fail_msg("%s %s: %s", t->c->name, how, t->ctx.message);
    for (int i = 0; i < results.count; i++) {
        const assay_tensor *found = &results.items[i], *expected = assay_tensor_set_find(&t->golden, found->spec.path);
        const bool wanted = p.only == NULL || strcmp(found->spec.path, p.only) == 0;
        if (wanted ? !is_same(found, expected) : found->written != 0)
            fail_msg("%s: %s has other bits %s", t->c->name, found->spec.path, how);
    }
}

/* What a recipe quantises on the way back the batch-split schedule shows beside gradients alone. */
static bool is_alone(const trial *t, const assay_tensor_spec *spec)
{
    const bool beside = t->c->config.use_batch_split_schedule && strstr(spec->path, "_gradient") != NULL;
    return assay_role_is_result(spec->role) && !beside;
}

/* An input that is not there stands for nothing, or a line says so. */
static void check_left_out(trial *t, assay_tensor *left)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set results = rooms(t);
    passage p = {.fails = -1};
    left->written = 0;
    const bool runs = run(t, 1, &p, &results) == ASSAY_OK;
    left->written = left->count;
    if (!runs && strstr(t->ctx.message, left->spec.path) == NULL)
        fail_msg("%s without %s: %s", t->c->name, left->spec.path, t->ctx.message);
}

static void check_results_alone(trial *t)
{
    int count = 0, at = 0;
    for (int i = 0; i < t->golden.count; i++) count += is_alone(t, &t->golden.items[i].spec);
    for (int i = 0; i < t->golden.count; i++) {
        const assay_tensor_spec *spec = &t->golden.items[i].spec;
        if (assay_role_is_input(spec->role)) check_left_out(t, &t->golden.items[i]);
        if (!is_alone(t, spec)) continue;
        const bool chosen = count <= RESULTS || at * RESULTS / count != (at + 1) * RESULTS / count;
        const passage p = {.only = spec->path, .lends = true, .fails = -1};
        if (chosen) assert_runs_same(t, 1, p, 0xff, "where nothing else is wanted");
        at++;
    }
}

static void assert_failed(const trial *t, assay_status status, assay_status expected, int64_t kept, const char *how)
{
    if (status != expected || t->ctx.message[0] == '\0' || strchr(t->ctx.message, '\n') != NULL)
        fail_msg("%s without %s: status %d: %s", t->c->name, how, (int)status, t->ctx.message);
    if (kept != 0) fail_msg("%s without %s: %lld allocations are lost", t->c->name, how, (long long)kept);
}

static void assert_fails(trial *t, passage p, int64_t allocation, assay_status expected, const char *how)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set results = rooms(t);
    const int64_t before = assay_live_allocations();
    assay_fail_allocation(allocation);
    const assay_status status = run(t, 1, &p, &results);
    assay_fail_allocation(-1);
    assert_failed(t, status, expected, assay_live_allocations() - before, how);
}

/* The place of failure i, of `count`. */
static int64_t place_of(int i, int64_t count)
{
    return count <= FAILURES ? i : (2 * i + 1) * count / (2 * FAILURES);
}

static void check_failures(trial *t, passage p, int64_t calls, int64_t allocations)
{
    char how[64];
    for (int i = 0; i < FAILURES && i < allocations; i++) {
        snprintf(how, sizeof how, "allocation %d of %d", (int)place_of(i, allocations), (int)allocations);
        assert_fails(t, p, place_of(i, allocations), ASSAY_NO_MEMORY, how);
    }
    for (int i = 0; i < FAILURES && i < calls; i++) {
        p.fails = (int)place_of(i, calls);
        snprintf(how, sizeof how, "call %d of %d", p.fails, (int)calls);
        assert_fails(t, p, -1, ASSAY_IO, how);
    }
}

static assay_status plan_and_draw(assay_context *ctx, const assay_case *c)
{
    OWNED_BY(assay_plan_free) assay_plan plan = {0};
    OWNED_BY(assay_inputs_close) assay_inputs inputs = {0};
    OWNED_BY(assay_tensor_set_free) assay_tensor_set set = {0};
    MUST(assay_plan_make(ctx, &plan, c));
    MUST(assay_inputs_open(ctx, &inputs, c, &plan.list, NULL));
    const assay_source source = assay_inputs_source(&inputs);
    return assay_plan_tensors(ctx, &set, &plan, &source);
}

static void check_plan_without_memory(trial *t)
{
    assay_fail_allocation(INT64_MAX);
    assert_ok(&t->ctx, plan_and_draw(&t->ctx, t->c));
    const int64_t allocations = INT64_MAX - assay_allocations_left();
    for (int i = 0; i < FAILURES && i < allocations; i++) {
        const int64_t before = assay_live_allocations();
        assay_fail_allocation(place_of(i, allocations));
        const assay_status status = plan_and_draw(&t->ctx, t->c);
        assay_fail_allocation(-1);
        assert_failed(t, status, ASSAY_NO_MEMORY, assay_live_allocations() - before, "an allocation of its plan");
    }
}

static void check(assay_case *c)
{
    static const assay_emulation emulation = {
        .precision = {"bf16", 0x1p-9, 0x1p-9, 0x1p-24, 0x1p-24, 0x1p-20, .inputs = ASSAY_BFLOAT16},
        .storage = ASSAY_BFLOAT16,
        .multiply = ASSAY_BFLOAT16,
        .seed = 1};
    trial t;
    assay_context ctx = assay_context_default(1);
    assert_ok(&ctx, assay_case_set(&ctx, c, "profiles=none"));
    assert_ok(&ctx, assay_case_set(&ctx, c, "checkpoints=all"));
    c->sketch_above = 0;
    trial_plan(&t, c);
    assert_ok(&ctx, assay_plan_tensors(&ctx, &t.golden, &t.plan, &t.source));
    for (int emulated = 1; emulated >= 0; emulated--) {
        const passage plain = {.lends = true, .fails = -1, .emulation = emulated ? &emulation : NULL};
        passage copied = plain, counted = plain;
        copied.lends = false;
        const int64_t allocations = reference(&t, &counted);
        assert_runs_same(&t, 2, copied, 0, "with 2 threads, over zeros, read and copied");
        assert_runs_same(&t, 7, plain, 0x3f, "with 7 threads, over numbers");
        check_failures(&t, plain, counted.calls, allocations);
    }
    check_results_alone(&t);
    check_plan_without_memory(&t);
    assay_tensor_set_free(&t.golden);
    assay_inputs_close(&t.inputs); /* the case is one of a list */
    assay_plan_free(&t.plan);
}

TEST(runs)
{
    int count = 0;
    assay_case *cases = all_cases(&count);
    for (int k = 0; assay_operations[k] != NULL; k++) {
        const assay_operation *operation = assay_operations[k];
        int checked = 0;
        for (int i = 0; i < count && !(SANITIZED && checked == FEW); i++) {
            if (strcmp(cases[i].op, operation->name) != 0 || has_tag(&cases[i], "true-size")) continue;
            if (assay_operation_flops(operation, &cases[i], true) > MOST_OPERATIONS) continue;
            check(&cases[i]);
            checked++;
        }
        if (checked < FEW) fail_msg("%s has %d small cases", operation->name, checked);
    }
    assay_cases_free(cases, count);
}

/* Whether it is refused, in a line that begins with the case. */
static bool is_refused(const assay_case *c, const char *key, const char *value)
{
    assay_context ctx = assay_context_default(1);
    OWNED_BY(assay_plan_free) assay_plan plan = {0};
    OWNED_BY(assay_case_free) assay_case changed = {0};
    char set[128];
    snprintf(set, sizeof set, "%s=%s", key, value);
    assert_ok(&ctx, assay_case_copy(&ctx, c, &changed));
    assay_status status = assay_case_set(&ctx, &changed, set);
    const char *begin = status == ASSAY_OK ? c->name : "--set ";
    if (status == ASSAY_OK) status = assay_plan_make(&ctx, &plan, &changed);
    const bool said = strncmp(ctx.message, begin, strlen(begin)) == 0 && strchr(ctx.message, '\n') == NULL;
    if (status != ASSAY_OK && ((status != ASSAY_BAD_INPUT && status != ASSAY_NO_MEMORY) || !said))
        fail_msg("%s with %s: status %d: %s", c->name, set, (int)status, ctx.message);
    return status != ASSAY_OK;
}

/* Each key at values that are none, or none for the operation. */
TEST(refusals)
{
    static const char *const values[] = {"0", "-1", "7", "1e300", ".inf", "true", "[silu, gelu]"};
    int count = 0;
    assay_case *cases = all_cases(&count);
    for (int op = 0; assay_operations[op] != NULL; op++) {
        const assay_case *c = cases;
        while (strcmp(c->op, assay_operations[op]->name) != 0) c++;
        for (int k = 0; k < ASSAY_MODEL_KEYS; k++) {
            const char *key = assay_model_keys[k].name;
            for (size_t v = 0; v < sizeof values / sizeof *values; v += SANITIZED ? 3 : 1)
                is_refused(c, key, values[v]);
            if (!is_refused(c, key, "[]")) fail_msg("%s takes %s: []", c->name, key);
        }
    }
    assay_cases_free(cases, count);
}
