/* The protocol of ranks, with threads in place of processes: the bits of one process; allocations and messages that fail,
 * each of them once, end every rank, and the first one says why. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "harness/tests/thread_ranks.h"
#include "oracle/base/memory.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

enum { PIECES = 7, SESSIONS = 2, LONG = 700000, NO_PIECE_FAILS = -1 };

/* What the first rank has taken, in order. */
typedef struct record {
    int64_t count, longest;
    double values[SESSIONS * PIECES * 8];
} record;

typedef struct job {
    int64_t longest;   /* doubles in the longest put */
    int64_t bad_piece; /* which fails by itself */
    record taken;      /* of the first rank alone */
} job;

/* One rank's. */
typedef struct desk {
    job *job;
    double sum, given; /* of what was taken; of that on all ranks, before the pieces at hand */
    const assay_sink *out;
} desk;

static bool all_are_wanted(void *self, const char *path)
{
    (void)self, (void)path;
    return true;
}

static void note(record *r, double value)
{
    assert_true(r->count < (int64_t)(sizeof r->values / sizeof *r->values));
    r->values[r->count++] = value;
}

static assay_status note_write(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    (void)ctx;
    assert_string_equal(path, "out/values");
    for (int64_t i = 0; i < count; i++) note(self, values[i]);
    return ASSAY_OK;
}

static assay_status note_integers(assay_context *ctx, void *self, const char *path, int64_t count,
                                  const int32_t *values)
{
    (void)ctx;
    assert_string_equal(path, "out/integers");
    for (int64_t i = 0; i < count; i++) note(self, values[i]);
    return ASSAY_OK;
}

static assay_status work(assay_context *ctx, void *self, const assay_piece *piece)
{
    assay_status status;
    const desk *d = self;
    double *values = NULL;
    const struct timespec others_turn = {0, 200000};
    if (piece->ranks != NULL && piece->ranks->rank == 0) nanosleep(&others_turn, NULL);
    const int64_t count = piece->number % 3 == 1 ? d->job->longest : piece->number;
    const int32_t integers[] = {(int32_t)piece->number, -1};
    TRY(assay_alloc_f64(ctx, "values of a piece", count, &values));
    for (int64_t i = 0; i < count; i++) values[i] = d->given + (double)(piece->number * 1000 + i);
    TRY(assay_piece_put(ctx, piece, 5, values, count * (int64_t)sizeof *values));
    if (piece->number == d->job->bad_piece) {
        status = assay_fail(ctx, ASSAY_BAD_INPUT, "piece %d is bad", (int)piece->number);
        goto cleanup;
    }
    TRY(d->out->write(ctx, d->out->self, "out/values", count < 2 ? count : 2, values));
    TRY(d->out->write_i32(ctx, d->out->self, "out/integers", 2, integers));
cleanup:
    free(values);
    return status;
}

static assay_status take(assay_context *ctx, void *self, int64_t piece, int what, const void *data, int64_t bytes)
{
    (void)ctx;
    desk *d = self;
    const double *values = data;
    assert_int_equal(what, 5);
    const int64_t count = bytes / (int64_t)sizeof *values;
    if (count > d->job->taken.longest) d->job->taken.longest = count;
    for (int64_t i = 0; i < count; i++)
        d->sum = 0.75 * d->sum + values[i]; /* which is of another value in another order */
    note(&d->job->taken, (double)piece);
    note(&d->job->taken, d->sum);
    return ASSAY_OK;
}

/* A session: pieces, what follows of them on all ranks, and pieces that need it. */
static assay_status session(assay_context *ctx, job *j)
{
    assay_status status = ASSAY_OK;
    const assay_sink notes = {
        .self = &j->taken, .wants = all_are_wanted, .write = note_write, .write_i32 = note_integers};
    assay_ranks_writer writer;
    const assay_sink out = assay_ranks_sink_open(ctx, &writer, &notes);
    desk d = {.job = j, .out = &out};
    const assay_pieces pieces = {.self = &d, .count = PIECES / 2, .work = work, .take = take};
    const assay_pieces more = {.self = &d, .count = PIECES - PIECES / 2, .work = work, .take = take};
    TRY(assay_pieces_run(ctx, &pieces));
    d.given = d.sum;
    TRY(assay_ranks_broadcast(ctx, &d.given, sizeof d.given));
    TRY(assay_pieces_run(ctx, &more));
cleanup:
    assay_ranks_sink_close(&writer);
    return status;
}

static assay_status body(assay_context *ctx, void *self)
{
    assay_status status = ASSAY_OK;
    for (int i = 0; i < SESSIONS; i++) {
        status = session(ctx, self);
        assay_ranks_end_session(ctx->ranks, status, ctx->message);
        if (status != ASSAY_OK && assay_ranks_is_first(ctx)) return status;
    }
    return status;
}

static job alone(int64_t longest)
{
    job j = {.longest = longest, .bad_piece = NO_PIECE_FAILS};
    assay_context ctx = assay_context_default(1);
    assert_ok(&ctx, body(&ctx, &j));
    return j;
}

static void assert_same_record(const record *found, const record *expected)
{
    assert_int_equal(found->count, expected->count);
    assert_same_bits(found->values, expected->values, expected->count);
}

TEST(any_number_of_ranks_does_what_one_process_does)
{
    const int64_t lengths[] = {3, LONG}; /* the second in more than one message */
    for (int l = 0; l < 2; l++) {
        const job one = alone(lengths[l]);
        assert_int_equal(one.taken.longest, lengths[l]);
        for (int size = 1; size <= THREAD_RANKS_MOST; size++) {
            job j = {.longest = lengths[l], .bad_piece = NO_PIECE_FAILS};
            thread_ranks ranks = {.size = size, .message = -1, .body = body, .self = &j};
            int64_t pieces = 0;
            thread_ranks_run(&ranks);
            assert_int_equal(ranks.status[0], ASSAY_OK);
            if (size > 1) assert_true(ranks.counted[0].pieces < SESSIONS * PIECES);
            for (int i = 0; i < size; i++) pieces += ranks.counted[i].pieces;
            assert_int_equal(pieces, SESSIONS * PIECES);
            assert_same_record(&j.taken, &one.taken);
        }
    }
}

TEST(a_piece_that_fails_is_said_by_the_first_rank)
{
    for (int size = 1; size <= 4; size++) {
        job j = {.longest = 3, .bad_piece = 2};
        thread_ranks ranks = {.size = size, .message = -1, .body = body, .self = &j};
        thread_ranks_run(&ranks);
        assert_int_equal(ranks.status[0], ASSAY_BAD_INPUT);
        assert_string_equal(ranks.text[0], "piece 2 is bad");
    }
}

/* On whichever rank it is: all end, and what the first rank has taken is right or it says that memory is short. */
TEST(every_allocation_fails_once)
{
    const job one = alone(3);
    int failures = 0;
    for (int size = 1; size <= 4; size++) {
        bool failed = true;
        for (int n = 0; failed; n++) {
            job j = {.longest = 3, .bad_piece = NO_PIECE_FAILS};
            thread_ranks ranks = {.size = size, .message = -1, .body = body, .self = &j};
            assay_fail_allocation(n);
            thread_ranks_run(&ranks);
            failed = assay_allocation_failed();
            assay_fail_allocation(-1);
            if (ranks.status[0] == ASSAY_OK) {
                assert_same_record(&j.taken, &one.taken);
                continue;
            }
            failures++;
            assert_true(failed);
            const bool of_another = strstr(ranks.text[0], "another rank was lost or damaged") != NULL;
            if (of_another) { /* which could not begin */
                bool said = false;
                for (int i = 1; i < size; i++) said |= strstr(ranks.text[i], "no memory for the") != NULL;
                assert_true(said);
            } else {
                assert_int_equal(ranks.status[0], ASSAY_NO_MEMORY);
                assert_non_null(strstr(ranks.text[0], "memory"));
            }
        }
    }
    assert_true(failures > 40);
}

/* A rank that dies, and messages that are cut short: nobody waits, and nothing wrong is taken for right. */
TEST(every_message_is_lost_once)
{
    const job one = alone(3);
    static const thread_fault faults[] = {THREAD_FAULT_NOT_SENT, THREAD_FAULT_CUT_SHORT};
    for (int f = 0; f < 2; f++) {
        for (int size = 2; size <= 4; size++) {
            bool lost = true;
            int failures = 0;
            for (int64_t n = 0; lost; n++) {
                job j = {.longest = 3, .bad_piece = NO_PIECE_FAILS};
                thread_ranks ranks = {.size = size, .fault = faults[f], .message = n, .body = body, .self = &j};
                thread_ranks_run(&ranks);
                lost = ranks.messages > n;
                if (ranks.status[0] == ASSAY_OK) {
                    assert_same_record(&j.taken, &one.taken);
                    continue;
                }
                failures++;
                assert_true(lost);
                assert_int_equal(ranks.status[0], ASSAY_IO);
                assert_string_equal(ranks.text[0], "a message to or from another rank was lost or damaged");
            }
            assert_true(failures > 10);
        }
    }
}
