/* What a case costs ranks on paper, against what real runs of 2 and 4 ranks count. */
#include "harness/commands/rank_costs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "harness/golden/golden.h"
#include "harness/plan/inputs.h"
#include "harness/plan/plan_make.h"
#include "harness/tests/thread_ranks.h"
#include "tests/support/assay_test.h"

TEST_LABELS(slow, threads);

/* The reference arithmetic, and a source, that count. */
static _Atomic long long operations, drawn;
static _Atomic int through; /* ranks that are */

static assay_status counting_matmul(assay_context *ctx, const assay_matmul_args *args)
{
    operations += 2 * args->m * args->n * args->k;
    return assay_arithmetic_reference.matmul(ctx, args);
}

typedef struct job {
    const assay_plan *plan;
    char path[64];
    const assay_source *in;
} job;

static bool has(void *self, const char *path)
{
    const assay_source *in = ((const job *)self)->in;
    return in->has(in->self, path);
}

static assay_status read_counted(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                 double *out)
{
    const assay_source *in = ((const job *)self)->in;
    drawn += count * (int64_t)sizeof *out;
    return in->read(ctx, in->self, path, first, count, out);
}

static assay_status read_integers(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                  int32_t *out)
{
    const assay_source *in = ((const job *)self)->in;
    return in->read_i32(ctx, in->self, path, first, count, out);
}

static assay_status write_golden(assay_context *ctx, void *self)
{
    assay_status status;
    assay_inputs inputs = {0};
    job j = *(const job *)self;
    const struct timespec turn = {0, 100000};
    ctx->ranks->least = 0;
    TRY(assay_inputs_open_plan(ctx, &inputs, j.plan, NULL));
    const assay_source in = assay_inputs_source(&inputs);
    const assay_source counted = {.self = &j, .has = has, .read = read_counted, .read_i32 = read_integers};
    j.in = &in;
    status = assay_golden_write_from(ctx, j.plan, j.path, &counted, true);
cleanup:
    assay_inputs_close(&inputs);
    through++; /* who is behind when the session ends leaves the rest */
    while (status == ASSAY_OK && ctx->ranks->rank == 0 && through < ctx->ranks->size) nanosleep(&turn, NULL);
    assay_ranks_end_session(ctx->ranks, status, ctx->message);
    return status;
}

/* What of the sizes on paper is only a bound. */
enum {
    EXACT = 0,
    PUT_AT_MOST = 1 << 0,   /* rows beyond a capacity are not sent */
    DRAWN_AT_MOST = 1 << 1, /* nor is an expert drawn that nobody has chosen */
    UNCOUNTED = 1 << 2,     /* operations: members run in another arithmetic, blocks that are masked are left out */
};

typedef struct row {
    const char *name;
    bool scales, null; /* with error scales; with null distributions */
    unsigned bounds;
} row;

static void assert_between(const row *r, const char *what, double found, double least, double most)
{
    if (!(found >= least && found <= most))
        print_error("%s: %.17g %s, expected %.17g to %.17g\n", r->name, found, what, least, most);
    assert_true(found >= least && found <= most);
}

static double without_looks(const assay_plan *plan)
{
    assay_precision precisions[16];
    assay_plan other = *plan;
    assert_true(plan->precision_count <= 16);
    memcpy(precisions, plan->precisions, (size_t)plan->precision_count * sizeof *precisions);
    for (int p = 0; p < plan->precision_count; p++) precisions[p].given_beyond = false;
    other.precisions = precisions;
    return assay_shared_work_of(&other, 0).drawn;
}

/* Integers for the file are drawn too, and not counted here. */
static double integer_bytes(const assay_plan *plan)
{
    double bytes = 0;
    for (int i = 0; i < plan->list.count; i++) {
        const assay_tensor_spec *spec = &plan->list.entries[i].spec;
        if (assay_role_is_given(spec->role) && spec->type == ASSAY_INT32)
            bytes += (double)sizeof(int32_t) * (double)assay_shape_count(&spec->shape);
    }
    return bytes;
}

/* Everything but which rank has how many pieces follows from the sizes. */
static void compare(assay_context *ctx, const row *r, assay_case *cases, int count, int size)
{
    assay_arithmetic arithmetic = assay_arithmetic_reference;
    assay_plan plan = {0};
    job j = {.plan = &plan};
    thread_ranks ranks = {.size = size, .message = -1, .body = write_golden, .self = &j, .arithmetic = &arithmetic};
    assay_rank_cost costs[ASSAY_RANK_QUANTITIES];
    assay_ranks_loop expected = {0}, found = {0};
    int looks = 0;
    const assay_case *c = NULL;
    for (int i = 0; i < count; i++)
        if (strcmp(cases[i].name, r->name) == 0) c = &cases[i];
    assert_non_null(c);
    assert_ok(ctx, assay_plan_make(ctx, &plan, c));
    if (!r->null) {
        assay_plan_drop(&plan, ASSAY_ROLE_NULL);
        snprintf(plan.null_left_out, sizeof plan.null_left_out, "left out by the test");
    }
    if (!r->scales) assay_plan_drop(&plan, ASSAY_ROLE_ERROR_SCALE);
    if (!r->scales) plan.precision_count = 0;
    arithmetic.matmul = counting_matmul;
    snprintf(j.path, sizeof j.path, "/tmp/rank_costs.%d.h5", (int)getpid());
    operations = 0;
    drawn = 0;
    through = 0;
    thread_ranks_run(&ranks);
    unlink(j.path);
    if (ranks.status[0] != ASSAY_OK) print_error("%s\n", ranks.text[0]);
    assert_int_equal(ranks.status[0], ASSAY_OK);
    const assay_shared_work work = assay_shared_work_of(&plan, 0);
    assay_rank_costs(&work, size, costs);
    for (int i = 0; i < ASSAY_LOOPS; i++) {
        expected.pieces += work.loops[i].pieces;
        expected.put += work.loops[i].put;
        expected.broadcast += (size - 1) * work.loops[i].broadcast;
    }
    for (int i = 0; i < size; i++) {
        found.pieces += ranks.counted[i].pieces;
        found.put += (double)ranks.counted[i].put;
        found.broadcast += (double)ranks.counted[i].broadcast;
    }
    assert_between(r, "pieces", (double)found.pieces, (double)expected.pieces, (double)expected.pieces);
    assert_between(r, "bytes put", found.put, (r->bounds & PUT_AT_MOST) != 0 ? 0.9 * expected.put : expected.put,
                   expected.put);
    assert_between(r, "bytes broadcast", found.broadcast, expected.broadcast, expected.broadcast);
    /* a look ends at the first number that the profile's type has not */
    for (int p = 0; p < plan.precision_count; p++) looks += plan.precisions[p].given_beyond;
    const double drawn_most = costs[ASSAY_RANK_DRAWN].sum, look = work.drawn - without_looks(&plan);
    assert_true((looks > 0) == (look > 0));
    assert_between(r, "bytes drawn", (double)drawn,
                   (r->bounds & DRAWN_AT_MOST) != 0 ? 0.8 * drawn_most
                                                    : drawn_most - size * look - integer_bytes(&plan),
                   drawn_most);
    if ((r->bounds & UNCOUNTED) == 0)
        assert_between(r, "operations", (double)operations, costs[ASSAY_RANK_OPERATIONS].sum,
                       costs[ASSAY_RANK_OPERATIONS].sum);
    assay_plan_free(&plan);
}

TEST(paper_is_what_ranks_count)
{
    static const row rows[] = {
        {"moe/deepseek3-tiny-sparse", false, false, EXACT},
        {"moe/deepseek3-tiny-sparse", true, false, UNCOUNTED},
        {"moe/deepseek3-tiny-sparse", true, true, UNCOUNTED},
        {"moe/mixtral-capacity", true, false, PUT_AT_MOST | UNCOUNTED},
        {"moe/mixtral-dense", true, false, UNCOUNTED},
        {"mla/deepseek3-tiny", true, true, UNCOUNTED},
        {"deepseek_layer/moe", true, true, UNCOUNTED},
        {"deepseek_layer/dense-fused", false, false, UNCOUNTED},
        {"decoder_layer/gpt-oss", false, false, DRAWN_AT_MOST | UNCOUNTED},
        {"decoder_layer/qwen3", false, false, DRAWN_AT_MOST | UNCOUNTED},
        {"decoder_stack/mixtral-kept", false, false, DRAWN_AT_MOST | UNCOUNTED},
        {"deepseek_stack/tiny-4-layers-mixed", false, false, DRAWN_AT_MOST | UNCOUNTED},
        {"gqa/gpt-oss", false, false, UNCOUNTED},
        {"mlp/silu", false, false, EXACT},
        {"rms_norm/small-latents", true, true, UNCOUNTED},
    };
    assay_context ctx = assay_context_default(1);
    assay_case *cases = NULL;
    int count = 0;
    assert_ok(&ctx, assay_catalogue(&ctx, &cases, &count));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int size = 2; size <= 4; size += 2) compare(&ctx, &rows[i], cases, count, size);
    assay_cases_free(cases, count);
}
