#include "harness/commands/each_case.h"

#include <stdlib.h>
#include <string.h>

#include "harness/commands/workers.h"
#include "harness/plan/progress.h"
#include "harness/ranks/ranks.h"
#include "oracle/base/memory.h"

#define MOST_APART 1e9     /* operations: above, the threads of one process are worth more than processes */
#define LEAST_TOGETHER 1e9 /* operations: below, ranks would wait for each other longer than they compute */

/* What a case printed, and its result. */
enum { TEXT, ERROR, RESULT, PARTS };

typedef struct outcome {
    struct {
        char *text;
        size_t size;
    } of[PARTS];
    assay_status status;
    char *message; /* where it failed */
} outcome;

/* Cases that ranks, or processes of this machine, do. */
typedef struct sharing {
    const assay_each *each;
    bool *there; /* outcomes: of cases that all ranks did together, or that processes have done */
    outcome *outcomes;
    int *numbers; /* of each piece its case */
    int taken;    /* cases */
    assay_progress progress;
} sharing;

static void outcome_free(outcome *o)
{
    for (int i = 0; i < PARTS; i++) free(o->of[i].text);
    free(o->message);
    *o = (outcome){0};
}

static assay_status no_memory(assay_context *ctx)
{
    return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for what a case prints");
}

/* Does a case, and keeps all that it prints. */
static assay_status do_case(assay_context *ctx, const assay_each *each, int i, outcome *o)
{
    assay_status status = ASSAY_OK;
    bool kept = true;
    FILE *const out = stdout, *const err = stderr, *files[PARTS];
    for (int k = 0; k < PARTS; k++) {
        files[k] = assay_text_open(&o->of[k].text, &o->of[k].size);
        if (files[k] == NULL) status = no_memory(ctx);
    }
    if (status == ASSAY_OK) {
        stdout = files[TEXT];
        stderr = files[ERROR];
        status = each->work(ctx, each->self, i, files[RESULT]);
        stdout = out;
        stderr = err;
    }
    for (int k = 0; k < PARTS; k++) {
        kept = (files[k] == NULL || assay_text_close(files[k], &o->of[k].text)) && kept;
        if (o->of[k].text == NULL) o->of[k].size = 0;
    }
    return status == ASSAY_OK && !kept ? no_memory(ctx) : status;
}

static assay_status take_outcome(assay_context *ctx, const assay_each *each, int i, const outcome *o)
{
    if (o->of[ERROR].text != NULL) fwrite(o->of[ERROR].text, 1, o->of[ERROR].size, stderr);
    if (o->of[TEXT].text != NULL) fwrite(o->of[TEXT].text, 1, o->of[TEXT].size, stdout);
    fflush(stdout);
    if (o->status != ASSAY_OK) return assay_fail(ctx, o->status, "%s", o->message);
    return each->take == NULL ? ASSAY_OK : each->take(ctx, each->self, i, o->of[RESULT].text, o->of[RESULT].size);
}

/* Cases that were done together, up to `end`. */
static assay_status take_before(assay_context *ctx, sharing *s, int end)
{
    assay_status status = ASSAY_OK;
    for (; status == ASSAY_OK && s->taken < end; s->taken++) {
        if (!s->there[s->taken])
            return assay_fail(ctx, ASSAY_INTERNAL, "a rank gave no result of case %d", s->taken + 1);
        status = take_outcome(ctx, s->each, s->taken, &s->outcomes[s->taken]);
    }
    return status;
}

static assay_status put(assay_context *ctx, const assay_piece *piece, int what, const outcome *o)
{
    return assay_piece_put(ctx, piece, what, o->of[what].text, (int64_t)o->of[what].size);
}

static assay_status piece_work(assay_context *ctx, void *self, const assay_piece *piece)
{
    const sharing *s = self;
    outcome o = {0};
    char message[ASSAY_MESSAGE_SIZE];
    const assay_status status = do_case(ctx, s->each, s->numbers[piece->number], &o);
    assay_status given = status;
    memcpy(message, ctx->message, sizeof message);
    if (o.of[TEXT].text != NULL && o.of[ERROR].text != NULL) {
        given = put(ctx, piece, ERROR, &o);
        if (given == ASSAY_OK) given = put(ctx, piece, TEXT, &o);
    }
    if (status != ASSAY_OK) {
        memcpy(ctx->message, message, sizeof message);
    } else if (given == ASSAY_OK) {
        given = put(ctx, piece, RESULT, &o);
    }
    outcome_free(&o);
    return status != ASSAY_OK ? status : given;
}

static assay_status piece_take(assay_context *ctx, void *self, int64_t piece, int what, const void *data, int64_t bytes)
{
    sharing *s = self;
    const int i = s->numbers[piece];
    MUST(take_before(ctx, s, i));
    if (what == RESULT) {
        if (s->taken > i) return assay_fail(ctx, ASSAY_INTERNAL, "a rank gave two results of case %d", i + 1);
        s->taken = i + 1;
        return s->each->take == NULL ? ASSAY_OK : s->each->take(ctx, s->each->self, i, data, (size_t)bytes);
    }
    fwrite(data, 1, (size_t)bytes, what == ERROR ? stderr : stdout);
    fflush(stdout);
    return ASSAY_OK;
}

/* Which cases all ranks do together. */
static void choose_together(const assay_context *ctx, sharing *s)
{
    const assay_each *each = s->each;
    const char *forced = getenv("ASSAY_TOGETHER"); /* for tests: all, none */
    double total = 0;
    if (each->cost == NULL) return;
    for (int i = 0; i < each->count; i++) total += each->cost(each->self, i);
    for (int i = 0; i < each->count; i++) {
        const double cost = each->cost(each->self, i);
        s->there[i] = cost > LEAST_TOGETHER && cost * ctx->ranks->size > total;
        if (forced != NULL) s->there[i] = strcmp(forced, "all") == 0;
    }
    if (forced != NULL && strcmp(forced, "all") == 0) ctx->ranks->least = 0;
}

static void do_together(assay_context *ctx, sharing *s, int i)
{
    outcome *o = &s->outcomes[i];
    assay_ranks *const ranks = ctx->ranks;
    o->status = do_case(ctx, s->each, i, o);
    if (o->status != ASSAY_OK) o->message = strdup(ctx->message);
    if (o->status != ASSAY_OK && o->message == NULL) o->status = no_memory(ctx);
    assay_ranks_end_session(ranks, o->status, ctx->message);
    if (ranks->rank != 0) outcome_free(o);
}

static assay_status share(assay_context *ctx, sharing *s)
{
    assay_status status = ASSAY_OK;
    const bool first = assay_ranks_is_first(ctx);
    int count = 0;
    choose_together(ctx, s);
    for (int i = 0; i < s->each->count; i++) {
        if (!s->there[i]) {
            s->numbers[count++] = i;
            continue;
        }
        do_together(ctx, s, i);
        status = first ? take_before(ctx, s, count == 0 ? i + 1 : 0) : ASSAY_OK; /* nothing stands before it */
        if (status != ASSAY_OK) return status;
    }
    const assay_pieces pieces = {.self = s, .count = count, .work = piece_work, .take = piece_take};
    status = assay_pieces_run(ctx, &pieces);
    assay_ranks_end_session(ctx->ranks, status, ctx->message);
    if (!first) return ASSAY_OK; /* what failed was said where it counts */
    return status == ASSAY_OK ? take_before(ctx, s, s->each->count) : status;
}

/* In this process, as a command without ranks ever did. */
static assay_status do_here(assay_context *ctx, const assay_each *each, int i)
{
    char *text = NULL;
    size_t size = 0;
    FILE *result = assay_text_open(&text, &size);
    if (result == NULL) return no_memory(ctx);
    assay_status status = each->work(ctx, each->self, i, result);
    if (!assay_text_close(result, &text) && status == ASSAY_OK) status = no_memory(ctx);
    if (status == ASSAY_OK && each->take != NULL) status = each->take(ctx, each->self, i, text, size);
    free(text);
    return status;
}

static assay_status take_ready(assay_context *ctx, sharing *s)
{
    assay_status status = ASSAY_OK;
    for (; status == ASSAY_OK && s->taken < s->each->count && s->there[s->taken]; s->taken++) {
        assay_progress_end(&s->progress);
        status = take_outcome(ctx, s->each, s->taken, &s->outcomes[s->taken]);
    }
    return status;
}

static assay_status apart_work(assay_context *ctx, void *self, int piece, FILE *result)
{
    const sharing *s = self;
    outcome o = {0};
    const assay_status status = do_case(ctx, s->each, s->numbers[piece], &o);
    for (int k = 0; k < PARTS; k++) fwrite(&o.of[k].size, sizeof o.of[k].size, 1, result);
    for (int k = 0; k < PARTS; k++)
        if (o.of[k].text != NULL) fwrite(o.of[k].text, 1, o.of[k].size, result);
    outcome_free(&o);
    return status;
}

static assay_status apart_take(assay_context *ctx, void *self, int piece, assay_status status, const char *message,
                               const char *result, size_t size)
{
    sharing *s = self;
    const int i = s->numbers[piece];
    outcome *o = &s->outcomes[i];
    size_t sizes[PARTS] = {0}, left = size - sizeof sizes;
    o->status = status;
    if (size >= sizeof sizes) memcpy(sizes, result, sizeof sizes);
    const char *at = result + sizeof sizes;
    for (int k = 0; size > sizeof sizes && k < PARTS && sizes[k] <= left; k++) {
        void *text = NULL;
        MUST(assay_alloc(ctx, "what a case prints", (int64_t)sizes[k] + 1, 1, &text));
        o->of[k].text = memcpy(text, at, sizes[k]);
        o->of[k].size = sizes[k];
        at += sizes[k];
        left -= sizes[k];
    }
    if (status != ASSAY_OK) {
        char line[ASSAY_MESSAGE_SIZE];
        snprintf(line, sizeof line, "case %d of %d: %.256s", i + 1, s->each->count, message);
        o->message = strdup(result == NULL ? line : message); /* of a process that died */
        if (o->message == NULL) return no_memory(ctx);
    }
    s->there[i] = true;
    assay_progress_add(&s->progress, 1, "cases");
    return take_ready(ctx, s);
}

/* Small ones first, of which the processes begin before this one has threads; then, in order, what is left. */
static assay_status do_apart(assay_context *ctx, sharing *s)
{
    assay_status status = ASSAY_OK;
    int count = 0;
    for (int i = 0; i < s->each->count; i++) {
        if (s->each->cost(s->each->self, i) < MOST_APART) s->numbers[count++] = i;
    }
    if (count < 2) count = 0;
    const assay_workers workers = {
        .self = s, .processes = ctx->threads, .count = count, .work = apart_work, .take = apart_take};
    assay_progress_start(&s->progress, s->each->quiet, "shared out", count);
    status = assay_workers_run(ctx, &workers);
    assay_progress_end(&s->progress);
    while (status == ASSAY_OK && s->taken < s->each->count) {
        if (!s->there[s->taken]) {
            status = do_here(ctx, s->each, s->taken++);
        } else {
            status = take_ready(ctx, s);
        }
    }
    return status;
}

static assay_status one_after_the_other(assay_context *ctx, const assay_each *each)
{
    assay_status status = ASSAY_OK;
    for (int i = 0; i < each->count && status == ASSAY_OK; i++) status = do_here(ctx, each, i);
    return status;
}

assay_status assay_each_case(assay_context *ctx, const assay_each *each)
{
    assay_status status;
    const bool apart = ctx->ranks == NULL && each->apart && ctx->threads > 1 && each->count > 1;
    if (ctx->ranks == NULL && !apart) return one_after_the_other(ctx, each);
    const size_t count = (size_t)each->count + 1;
    sharing s = {.each = each,
                 .there = calloc(count, sizeof *s.there),
                 .outcomes = calloc(count, sizeof *s.outcomes),
                 .numbers = calloc(count, sizeof *s.numbers)};
    if (s.there == NULL || s.outcomes == NULL || s.numbers == NULL) {
        status = assay_fail(ctx, ASSAY_NO_MEMORY, "no memory to share out %d cases", each->count);
        goto cleanup;
    }
    TRY(apart ? do_apart(ctx, &s) : share(ctx, &s));
cleanup:
    for (int i = 0; s.outcomes != NULL && i < each->count; i++) outcome_free(&s.outcomes[i]);
    free(s.there);
    free(s.outcomes);
    free(s.numbers);
    return status;
}
