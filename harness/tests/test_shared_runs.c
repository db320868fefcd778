/* Layers and stacks by several ranks, with threads in place of processes: the file of one process, byte for byte, whatever is
 * shared (experts, heads, parts of products) and kept for backward; allocations and messages that fail end every rank. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/golden/golden.h"
#include "harness/plan/plan_make.h"
#include "harness/tests/thread_ranks.h"
#include "oracle/base/memory.h"
#include "tests/support/assay_test.h"

TEST_LABELS(catalogue, threads, slow);

typedef struct job {
    assay_case *cases;
    int count;
    assay_plan plan;
    char path[64];
} job;

static assay_status write_golden(assay_context *ctx, void *self)
{
    job *j = self;
    if (ctx->ranks != NULL) ctx->ranks->least = 0;
    const assay_status status = assay_golden_write(ctx, &j->plan, j->path, NULL, true);
    assay_ranks_end_session(ctx->ranks, status, ctx->message);
    return status;
}

/* scales: with those of an ensemble, and null distributions. */
static void open_job(assay_context *ctx, job *j, const char *name, bool scales)
{
    int found = -1;
    *j = (job){0};
    assert_ok(ctx, assay_catalogue(ctx, &j->cases, &j->count));
    for (int i = 0; i < j->count; i++)
        if (strcmp(j->cases[i].name, name) == 0) found = i;
    assert_true(found >= 0);
    assert_ok(ctx, assay_plan_make(ctx, &j->plan, &j->cases[found]));
    snprintf(j->path, sizeof j->path, "/tmp/shared_runs.%d.h5", (int)getpid());
    if (scales) return;
    assay_plan_drop(&j->plan, ASSAY_ROLE_NULL);
    assay_plan_drop(&j->plan, ASSAY_ROLE_ERROR_SCALE);
    snprintf(j->plan.null_left_out, sizeof j->plan.null_left_out, "left out by the test");
    j->plan.precision_count = 0;
}

static void close_job(job *j)
{
    assay_plan_free(&j->plan);
    assay_cases_free(j->cases, j->count);
}

/* What was written, which is gone then; NULL: nothing was. */
static char *take_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) return NULL;
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*size + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *size, file), *size);
    fclose(file);
    unlink(path);
    return bytes;
}

static void assert_same_file(const char *name, const char *path, const char *one, size_t one_size)
{
    size_t size = 0;
    char *found = take_file(path, &size);
    assert_non_null(found);
    if (size != one_size || memcmp(found, one, size) != 0) print_error("%s: another file\n", name);
    assert_int_equal(size, one_size);
    assert_memory_equal(found, one, size);
    free(found);
}

static char *alone(assay_context *ctx, job *j, size_t *size)
{
    assert_ok(ctx, write_golden(ctx, j));
    char *one = take_file(j->path, size);
    assert_non_null(one);
    return one;
}

TEST(any_number_of_ranks_writes_the_file_of_one_process)
{
    static const struct {
        const char *name;
        bool scales;
    } runs[] = {
        {"deepseek_layer/moe", true},
        {"decoder_layer/gpt-oss", false},           /* biases, sinks, a window */
        {"decoder_stack/mixtral-kept", false},      /* what experts leave is given to backward */
        {"decoder_stack/mixtral-offloaded", false}, /* and from a file */
        {"deepseek_stack/tiny-4-layers-mixed", false},
        {"decoder_layer/mixtral-dense-path", false}, /* sums of experts in order */
        {"deepseek_layer/moe-dropping", false},
        {"deepseek_layer/mesh-expert4", false},
        {"attention/segments", false},
        {"gqa/one-kv-head", false},
        {"mlp/silu-fused", false},
    };
    assay_context ctx = assay_context_default(1);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        job j;
        size_t size = 0;
        open_job(&ctx, &j, runs[i].name, runs[i].scales);
        char *one = alone(&ctx, &j, &size);
        for (int ranks = 2; ranks <= 4; ranks++) {
            thread_ranks run = {.size = ranks, .message = -1, .body = write_golden, .self = &j};
            thread_ranks_run(&run);
            if (run.status[0] != ASSAY_OK) print_error("%s: %s\n", runs[i].name, run.text[0]);
            assert_int_equal(run.status[0], ASSAY_OK);
            assert_true(run.counted[0].broadcast > 0);
            assert_same_file(runs[i].name, j.path, one, size);
        }
        free(one);
        close_job(&j);
    }
}

/* Of many allocations and messages, some that lie evenly among them. The first rank may not need the one that is cut off. */
enum { RANKS = 2, SAMPLES = 40, LEAST_FAILURES = 4 };

static void assert_failed_or_same(const job *j, const thread_ranks *run, const char *one, size_t size)
{
    if (run->status[0] == ASSAY_OK) {
        assert_same_file(j->plan.c->name, j->path, one, size);
        return;
    }
    assert_true(strstr(run->text[0], "memory") != NULL || strstr(run->text[0], "was lost") != NULL);
    assert_int_not_equal(access(j->path, F_OK), 0);
}

TEST(allocations_and_messages_of_a_layer_fail)
{
    assay_context ctx = assay_context_default(1);
    job j;
    size_t size = 0;
    open_job(&ctx, &j, "decoder_stack/mixtral-kept", false);
    char *one = alone(&ctx, &j, &size);
    thread_ranks whole = {.size = RANKS, .message = -1, .body = write_golden, .self = &j};
    thread_ranks_run(&whole);
    assert_same_file(j.plan.c->name, j.path, one, size);
    int failures = 0, allocations = 1;
    for (bool failed = true; failed; allocations *= 2) { /* how many there are, within a factor of two */
        thread_ranks run = {.size = RANKS, .message = -1, .body = write_golden, .self = &j};
        assay_fail_allocation(allocations);
        thread_ranks_run(&run);
        failed = assay_allocation_failed();
        assay_fail_allocation(-1);
        assert_failed_or_same(&j, &run, one, size);
    }
    for (int i = 0; i < SAMPLES; i++) {
        thread_ranks run = {.size = RANKS, .message = -1, .body = write_golden, .self = &j};
        assay_fail_allocation(i * (allocations / 4) / SAMPLES);
        thread_ranks_run(&run);
        assay_fail_allocation(-1);
        failures += run.status[0] != ASSAY_OK;
        assert_failed_or_same(&j, &run, one, size);
    }
    assert_true(failures >= LEAST_FAILURES);
    failures = 0;
    for (int i = 0; i < SAMPLES; i++) {
        const thread_fault fault = i % 2 == 0 ? THREAD_FAULT_NOT_SENT : THREAD_FAULT_CUT_SHORT;
        thread_ranks run = {
            .size = RANKS, .fault = fault, .message = i * whole.messages / SAMPLES, .body = write_golden, .self = &j};
        thread_ranks_run(&run);
        failures += run.status[0] != ASSAY_OK;
        assert_failed_or_same(&j, &run, one, size);
    }
    assert_true(failures >= LEAST_FAILURES);
    free(one);
    close_job(&j);
}
