/* Work shared out among processes: every piece once, whatever its size; pieces that fail; processes that die. */
#include "harness/commands/workers.h"

#include <signal.h>
#include <unistd.h>

#include "tests/support/assay_test.h"

TEST_LABELS(threads);

enum { PIECES = 40, FAILING = 7, LARGE = 3 << 20 };

typedef enum misfortune { NONE, FAILS, KILLED, LEAVES, TAKE_FAILS } misfortune;

typedef struct job {
    misfortune what;
    int seen[PIECES];
    assay_status status; /* of piece FAILING */
    char message[ASSAY_MESSAGE_SIZE];
    int taken;
} job;

static assay_status work(assay_context *ctx, void *self, int piece, FILE *result)
{
    const job *j = self;
    if (piece == FAILING) {
        if (j->what == FAILS) return assay_fail(ctx, ASSAY_BAD_INPUT, "piece %d is bad", piece);
        if (j->what == KILLED) raise(SIGKILL);
        if (j->what == LEAVES) _exit(0);
    }
    if (ctx->threads != 1) return assay_fail(ctx, ASSAY_INTERNAL, "threads");
    /* the largest is more than a pipe holds */
    for (int i = 0; i < (piece % 9 == 0 ? LARGE : piece); i++) fputc('a' + piece % 26, result);
    return ASSAY_OK;
}

static assay_status take(assay_context *ctx, void *self, int piece, assay_status status, const char *message,
                         const char *result, size_t size)
{
    job *j = self;
    j->taken++;
    j->seen[piece]++;
    if (piece == FAILING) {
        j->status = status;
        snprintf(j->message, sizeof j->message, "%s", message);
        if (j->what == TAKE_FAILS) return assay_fail(ctx, ASSAY_IO, "nobody takes it");
    }
    if (status != ASSAY_OK) return ASSAY_OK;
    assert_int_equal(size, piece % 9 == 0 ? LARGE : piece);
    for (size_t i = 0; i < size; i++) assert_int_equal(result[i], 'a' + piece % 26);
    return ASSAY_OK;
}

static job run(assay_context *ctx, misfortune what, int processes, assay_status expected)
{
    job j = {.what = what};
    const assay_workers workers = {.self = &j, .processes = processes, .count = PIECES, .work = work, .take = take};
    assert_int_equal(assay_workers_run(ctx, &workers), expected);
    for (int i = 0; i < PIECES; i++) assert_true(j.seen[i] <= 1);
    return j;
}

TEST(test_every_piece_once)
{
    assay_context ctx = {.threads = 4};
    for (int processes = 1; processes <= 5; processes += 2) {
        const job j = run(&ctx, NONE, processes, ASSAY_OK);
        for (int i = 0; i < PIECES; i++) assert_int_equal(j.seen[i], 1);
    }
    const assay_workers none = {.processes = 3, .count = 0, .work = work, .take = take};
    assert_ok(&ctx, assay_workers_run(&ctx, &none));
}

/* What came before is taken, and little of what comes after is begun. */
TEST(test_misfortunes)
{
    static const struct {
        misfortune what;
        assay_status status, of_piece;
        const char *said;
    } rows[] = {
        {FAILS, ASSAY_OK, ASSAY_BAD_INPUT, "piece 7 is bad"},
        {KILLED, ASSAY_OK, ASSAY_INTERNAL, "ended by signal 9"},
        {LEAVES, ASSAY_OK, ASSAY_INTERNAL, "ended early"},
        {TAKE_FAILS, ASSAY_IO, ASSAY_OK, ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assay_context ctx = {.threads = 4};
        const job j = run(&ctx, rows[i].what, 3, rows[i].status);
        assert_int_equal(j.seen[FAILING], 1);
        assert_int_equal(j.status, rows[i].of_piece);
        assert_non_null(strstr(j.message, rows[i].said));
        for (int before = 0; rows[i].status == ASSAY_OK && before < FAILING; before++)
            assert_int_equal(j.seen[before], 1);
        if (rows[i].what == TAKE_FAILS) assert_string_equal(ctx.message, "nobody takes it");
    }
}
