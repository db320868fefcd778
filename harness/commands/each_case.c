#include "harness/commands/each_case.h"

#include <stdlib.h>
#include <string.h>

#include "harness/commands/workers.h"
#include "harness/plan/progress.h"
#include "harness/ranks/ranks.h"
#include "oracle/base/growing_text.h"
#include "oracle/base/memory.h"

#define MOST_APART 1e9     /* operations: above, the threads of one process are worth more than processes */
#define LEAST_TOGETHER 1e9 /* operations: below, ranks would wait for each other longer than they compute */

/* What a case printed, and its result. */
typedef struct outcome {
    char *text, *error, *result;
    size_t text_size, error_size, result_size;
    assay_status status;
    char *message; /* where it failed */
} outcome;

typedef struct sharing {
    const assay_each *each;
    bool *together;
    outcome *outcomes; /* of cases that were done together */
    int *numbers;      /* of each piece its case */
    int taken;         /* cases */
} sharing;

static void outcome_free(outcome *o)
{
    free(o->text);
    free(o->error);
    free(o->result);
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
    FILE *const out = stdout, *const err = stderr;
    FILE *text = assay_text_open(&o->text, &o->text_size), *error = assay_text_open(&o->error, &o->error_size),
         *result = assay_text_open(&o->result, &o->result_size);
    if (text == NULL || error == NULL || result == NULL) status = no_memory(ctx);
    if (status == ASSAY_OK) {
        stdout = text;
        stderr = error;
        status = each->work(ctx, each->self, i, result);
        stdout = out;
        stderr = err;
    }
    bool kept = text == NULL || assay_text_close(text, &o->text);
    kept = (error == NULL || assay_text_close(error, &o->error)) && kept;
    kept = (result == NULL || assay_text_close(result, &o->result)) && kept;
    if (o->text == NULL) o->text_size = 0;
    if (o->error == NULL) o->error_size = 0;
    if (o->result == NULL) o->result_size = 0;
    return status == ASSAY_OK && !kept ? no_memory(ctx) : status;
}

static assay_status take_outcome(assay_context *ctx, const assay_each *each, int i, const outcome *o)
{
    if (o->error != NULL) fwrite(o->error, 1, o->error_size, stderr);
    if (o->text != NULL) fwrite(o->text, 1, o->text_size, stdout);
    fflush(stdout);
    if (o->status != ASSAY_OK) return assay_fail(ctx, o->status, "%s", o->message);
    return each->take == NULL ? ASSAY_OK : each->take(ctx, each->self, i, o->result, o->result_size);
}

/* Cases that were done together, up to `end`. */
static assay_status take_before(assay_context *ctx, sharing *s, int end)
{
    assay_status status = ASSAY_OK;
    for (; status == ASSAY_OK && s->taken < end; s->taken++) {
        if (!s->together[s->taken])
            return assay_fail(ctx, ASSAY_INTERNAL, "a rank gave no result of case %d", s->taken + 1);
        status = take_outcome(ctx, s->each, s->taken, &s->outcomes[s->taken]);
    }
    return status;
}

enum { PUT_TEXT, PUT_ERROR, PUT_RESULT };

static assay_status put_outcome(assay_context *ctx, const assay_piece *piece, const outcome *o)
{
    assay_status status;
    TRY(assay_piece_put(ctx, piece, PUT_ERROR, o->error, (int64_t)o->error_size));
    TRY(assay_piece_put(ctx, piece, PUT_TEXT, o->text, (int64_t)o->text_size));
cleanup:
    return status;
}

static assay_status piece_work(assay_context *ctx, void *self, const assay_piece *piece)
{
    const sharing *s = self;
    outcome o = {0};
    char message[ASSAY_MESSAGE_SIZE];
    assay_status status = do_case(ctx, s->each, s->numbers[piece->number], &o);
    memcpy(message, ctx->message, sizeof message);
    const assay_status put = o.text == NULL || o.error == NULL ? status : put_outcome(ctx, piece, &o);
    if (status != ASSAY_OK) {
        memcpy(ctx->message, message, sizeof message);
    } else {
        status = put;
        if (status == ASSAY_OK) status = assay_piece_put(ctx, piece, PUT_RESULT, o.result, (int64_t)o.result_size);
    }
    outcome_free(&o);
    return status;
}

static assay_status piece_take(assay_context *ctx, void *self, int64_t piece, int what, const void *data, int64_t bytes)
{
    sharing *s = self;
    const int i = s->numbers[piece];
    const assay_status status = take_before(ctx, s, i);
    RETURN_IF(status != ASSAY_OK, status);
    if (what == PUT_RESULT) {
        if (s->taken > i) return assay_fail(ctx, ASSAY_INTERNAL, "a rank gave two results of case %d", i + 1);
        s->taken = i + 1;
        return s->each->take == NULL ? ASSAY_OK : s->each->take(ctx, s->each->self, i, data, (size_t)bytes);
    }
    fwrite(data, 1, (size_t)bytes, what == PUT_ERROR ? stderr : stdout);
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
        s->together[i] = cost > LEAST_TOGETHER && cost * ctx->ranks->size > total;
        if (forced != NULL) s->together[i] = strcmp(forced, "all") == 0;
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
        if (!s->together[i]) {
            s->numbers[count++] = i;
            continue;
        }
        do_together(ctx, s, i);
        status = first ? take_before(ctx, s, count == 0 ? i + 1 : 0) : ASSAY_OK; /* nothing stands before it */
        RETURN_IF(status != ASSAY_OK, status);
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

/* Cases that processes of this machine do. */
typedef struct apart {
    const assay_each *each;
    bool *there; /* outcomes */
    outcome *outcomes;
    int *numbers; /* of each piece its case */
    int taken;    /* cases */
    assay_progress progress;
} apart;

static assay_status take_ready(assay_context *ctx, apart *a)
{
    assay_status status = ASSAY_OK;
    for (; status == ASSAY_OK && a->taken < a->each->count && a->there[a->taken]; a->taken++) {
        assay_progress_end(&a->progress);
        status = take_outcome(ctx, a->each, a->taken, &a->outcomes[a->taken]);
    }
    return status;
}

static assay_status apart_work(assay_context *ctx, void *self, int piece, FILE *result)
{
    const apart *a = self;
    outcome o = {0};
    const assay_status status = do_case(ctx, a->each, a->numbers[piece], &o);
    const size_t sizes[] = {o.text_size, o.error_size, o.result_size};
    fwrite(sizes, sizeof sizes, 1, result);
    if (o.text != NULL) fwrite(o.text, 1, o.text_size, result);
    if (o.error != NULL) fwrite(o.error, 1, o.error_size, result);
    if (o.result != NULL) fwrite(o.result, 1, o.result_size, result);
    outcome_free(&o);
    return status;
}

static char *copy_of(const char **at, size_t size)
{
    char *text = malloc(size + 1);
    if (text != NULL) memcpy(text, *at, size);
    *at += size;
    return text;
}

static assay_status apart_take(assay_context *ctx, void *self, int piece, assay_status status, const char *message,
                               const char *result, size_t size)
{
    apart *a = self;
    const int i = a->numbers[piece];
    outcome *o = &a->outcomes[i];
    size_t sizes[3] = {0};
    o->status = status;
    if (size >= sizeof sizes) memcpy(sizes, result, sizeof sizes);
    const char *at = result + sizeof sizes;
    if (size > sizeof sizes && sizes[0] + sizes[1] + sizes[2] == size - sizeof sizes) {
        o->text_size = sizes[0], o->error_size = sizes[1], o->result_size = sizes[2];
        o->text = copy_of(&at, o->text_size);
        o->error = copy_of(&at, o->error_size);
        o->result = copy_of(&at, o->result_size);
        if (o->text == NULL || o->error == NULL || o->result == NULL) return no_memory(ctx);
    }
    if (status != ASSAY_OK) {
        char line[ASSAY_MESSAGE_SIZE];
        snprintf(line, sizeof line, "case %d of %d: %.256s", i + 1, a->each->count, message);
        o->message = strdup(result == NULL ? line : message); /* of a process that died */
        if (o->message == NULL) return no_memory(ctx);
    }
    a->there[i] = true;
    assay_progress_add(&a->progress, 1, "cases");
    return take_ready(ctx, a);
}

/* Small ones first, of which the processes begin before this one has threads; then, in order, what is left. */
static assay_status do_apart(assay_context *ctx, apart *a)
{
    assay_status status = ASSAY_OK;
    int count = 0;
    for (int i = 0; i < a->each->count; i++) {
        if (a->each->cost(a->each->self, i) < MOST_APART) a->numbers[count++] = i;
    }
    if (count < 2) count = 0;
    const assay_workers workers = {
        .self = a, .processes = ctx->threads, .count = count, .work = apart_work, .take = apart_take};
    assay_progress_start(&a->progress, a->each->quiet, "shared out", count);
    status = assay_workers_run(ctx, &workers);
    assay_progress_end(&a->progress);
    while (status == ASSAY_OK && a->taken < a->each->count) {
        if (!a->there[a->taken]) {
            status = do_here(ctx, a->each, a->taken++);
        } else {
            status = take_ready(ctx, a);
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

static assay_status share_apart(assay_context *ctx, const assay_each *each)
{
    assay_status status = ASSAY_OK;
    const size_t count = (size_t)each->count + 1;
    apart a = {.each = each,
               .there = calloc(count, sizeof *a.there),
               .outcomes = calloc(count, sizeof *a.outcomes),
               .numbers = calloc(count, sizeof *a.numbers)};
    if (a.there == NULL || a.outcomes == NULL || a.numbers == NULL) {
        status = assay_fail(ctx, ASSAY_NO_MEMORY, "no memory to share out %d cases", each->count);
        goto cleanup;
    }
    TRY(do_apart(ctx, &a));
cleanup:
    for (int i = 0; a.outcomes != NULL && i < each->count; i++) outcome_free(&a.outcomes[i]);
    free(a.there);
    free(a.outcomes);
    free(a.numbers);
    return status;
}

assay_status assay_each_case(assay_context *ctx, const assay_each *each)
{
    assay_status status = ASSAY_OK;
    if (ctx->ranks == NULL && each->apart && ctx->threads > 1 && each->count > 1) return share_apart(ctx, each);
    if (ctx->ranks == NULL) return one_after_the_other(ctx, each);
    const size_t count = (size_t)each->count + 1;
    sharing s = {.each = each,
                 .together = calloc(count, sizeof *s.together),
                 .outcomes = calloc(count, sizeof *s.outcomes),
                 .numbers = calloc(count, sizeof *s.numbers)};
    if (s.together == NULL || s.outcomes == NULL || s.numbers == NULL) {
        status = assay_fail(ctx, ASSAY_NO_MEMORY, "no memory to share out %d cases", each->count);
        goto cleanup;
    }
    TRY(share(ctx, &s));
cleanup:
    for (int i = 0; s.outcomes != NULL && i < each->count; i++) outcome_free(&s.outcomes[i]);
    free(s.together);
    free(s.outcomes);
    free(s.numbers);
    return status;
}
