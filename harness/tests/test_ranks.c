/* Cases that ranks share, with a list of letters in the place of MPI: one rank after the other has its turn. */

#include "harness/commands/each_case.h"
#include "tests/support/assay_test.h"

TEST_LABELS(units);

enum { RANKS = 3, CASES = 7, MOST_LETTERS = 64 };

typedef struct letter {
    int from, to;
    size_t bytes;
    char *text; /* NULL: it was taken */
} letter;

typedef struct endpoint {
    letter *post; /* [MOST_LETTERS], of all ranks */
    int rank;
} endpoint;

static letter *find(const endpoint *e, int from)
{
    for (int i = 0; i < MOST_LETTERS; i++) {
        letter *l = &e->post[i];
        if (l->text != NULL && l->from == from && l->to == e->rank) return l;
    }
    return NULL;
}

static void fake_send(void *self, int to, const void *head, size_t bytes, const void *data, size_t more)
{
    const endpoint *e = self;
    letter *l = e->post;
    while (l->bytes > 0) l++;
    *l = (letter){e->rank, to, bytes + more, malloc(bytes + more)};
    assert_non_null(l->text);
    memcpy(l->text, head, bytes);
    if (more > 0) memcpy(l->text + bytes, data, more);
}

static bool fake_has(void *self, int from)
{
    return find(self, from) != NULL;
}

static void *fake_receive(void *self, int from, size_t *bytes)
{
    letter *l = find(self, from);
    assert_non_null(l); /* nobody would send it any more */
    char *text = l->text;
    *bytes = l->bytes;
    l->text = NULL;
    return text;
}

typedef struct job {
    int fails, done[CASES], taken[CASES], count;
} job;

/* Equal cases go to the ranks in turn, and heavy ones first. */
static double cost(void *self, int i)
{
    (void)self;
    return i == CASES - 1 ? 1e9 : 1;
}

static assay_status work(assay_context *ctx, void *self, int i, FILE *result)
{
    job *j = self;
    j->done[i]++;
    if (i == j->fails) return assay_fail(ctx, ASSAY_BAD_INPUT, "case %d is wrong", i);
    printf("case %d\n", i);
    fputc('a' + i, result);
    return ASSAY_OK;
}

static assay_status take(assay_context *ctx, void *self, int i, const char *result, size_t size)
{
    job *j = self;
    (void)ctx;
    assert_true(size == 1 && result[0] == 'a' + i);
    j->taken[j->count++] = i;
    return ASSAY_OK;
}

/* Of all ranks, the first last; what that one says and prints. */
static assay_status run_all(assay_context *ctx, job *j, char **printed)
{
    letter post[MOST_LETTERS] = {{0}};
    assay_status status = ASSAY_OK;
    size_t size = 0;
    FILE *const out = stdout;
    stdout = open_memstream(printed, &size);
    for (int turn = 0; turn <= RANKS; turn++) {
        endpoint e = {post, turn % RANKS};
        OWNED assay_ranks *ranks = calloc(1, sizeof *ranks + RANKS * sizeof(bool));
        assert_non_null(ranks);
        ranks->transport = (assay_transport){&e, e.rank, RANKS, fake_send, fake_has, fake_receive, NULL};
        const assay_each each = {.self = j, .count = CASES, .ranks = ranks, .cost = cost, .work = work, .take = take};
        if (turn == 0) assert_true(assay_ranks_begin(ranks)); /* or the others would wait */
        if (turn > 0) status = assay_each_case(ctx, &each);
        if (turn > 0 && turn < RANKS) {
            assay_rank_report over = {.number = -1};
            assert_int_equal(status, ASSAY_OK); /* what failed is for the first to say */
            assay_ranks_report(ranks, &over, NULL, 0);
        }
    }
    fclose(stdout);
    stdout = out;
    for (int i = 0; i < MOST_LETTERS; i++) free(post[i].text);
    return status;
}

TEST_WITH_CONTEXT(test_each_case_is_done_once_and_said_in_order)
{
    job j = {.fails = -1};
    OWNED char *printed = NULL;
    assert_int_equal(run_all(&ctx, &j, &printed), ASSAY_OK);
    assert_int_equal(j.count, CASES);
    for (int i = 0; i < CASES; i++) {
        assert_int_equal(j.done[i], 1);
        assert_int_equal(j.taken[i], i);
    }
    assert_string_equal(printed, "case 0\ncase 1\ncase 2\ncase 3\ncase 4\ncase 5\ncase 6\n");
}

/* Whoever has it: the first case that fails ends the run, behind what those before it have said. */
TEST(test_a_case_that_fails_ends_the_run)
{
    for (int i = 0; i < CASES; i++) {
        char expected[64];
        assay_context ctx = assay_context_default(1);
        job j = {.fails = i};
        OWNED char *printed = NULL;
        assert_int_equal(run_all(&ctx, &j, &printed), ASSAY_BAD_INPUT);
        snprintf(expected, sizeof expected, "case %d is wrong", i);
        assert_string_equal(ctx.message, expected);
        assert_int_equal(j.count, i);
        assert_int_equal(strlen(printed), i * (int)strlen("case 0\n"));
    }
}

/* Each part has about the same work: a heavy case is alone with its rank. */
TEST_WITH_CONTEXT(test_parts_are_of_the_same_work)
{
    const double equal[CASES] = {1, 1, 1, 1, 1, 1, 1}, heavy[CASES] = {1, 1, 1, 9, 1, 1, 1};
    int places[CASES];
    assert_int_equal(assay_share_out(&ctx, equal, CASES, RANKS, places), ASSAY_OK);
    for (int i = 0; i < CASES; i++) assert_int_equal(places[i], i % RANKS);
    assert_int_equal(assay_share_out(&ctx, heavy, CASES, RANKS, places), ASSAY_OK);
    for (int i = 0; i < CASES; i++) assert_int_equal(places[i] == places[3], i == 3);
}

/* A rank that failed beside its cases, or left one out, is not waited for. */
TEST(test_a_rank_without_its_cases_is_named)
{
    for (int failed = 0; failed < 2; failed++) {
        letter post[MOST_LETTERS] = {{0}};
        endpoint first = {post, 0}, other = {post, 1};
        assay_context ctx = assay_context_default(1);
        job j = {.fails = -1};
        OWNED assay_ranks *ranks = calloc(1, sizeof *ranks + 2 * sizeof(bool));
        assert_non_null(ranks);
        const assay_rank_report over = {-1, failed ? ASSAY_NO_MEMORY : ASSAY_OK, "too large"};
        fake_send(&other, 0, &over, sizeof over, NULL, 0);
        ranks->transport = (assay_transport){&first, 0, 2, fake_send, fake_has, fake_receive, NULL};
        const assay_each each = {.self = &j, .count = 2, .ranks = ranks, .work = work, .take = take};
        assert_int_equal(assay_each_case(&ctx, &each), failed ? ASSAY_NO_MEMORY : ASSAY_INTERNAL);
        assert_string_equal(ctx.message, failed ? "rank 1: too large" : "rank 1 has left out a case");
        for (int i = 0; i < MOST_LETTERS; i++) free(post[i].text);
    }
}
