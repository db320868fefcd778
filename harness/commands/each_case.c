#include "harness/commands/each_case.h"

#include <stdlib.h>
#include <string.h>

#include "harness/ranks/ranks.h"
#include "oracle/base/memory.h"

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
    FILE *text = open_memstream(&o->text, &o->text_size), *error = open_memstream(&o->error, &o->error_size),
         *result = open_memstream(&o->result, &o->result_size);
    if (text == NULL || error == NULL || result == NULL) status = no_memory(ctx);
    if (status == ASSAY_OK) {
        stdout = text;
        stderr = error;
        status = each->work(ctx, each->self, i, result);
        stdout = out;
        stderr = err;
    }
    bool kept = text == NULL || fclose(text) == 0;
    kept &= error == NULL || fclose(error) == 0;
    kept &= result == NULL || fclose(result) == 0;
    return status == ASSAY_OK && !kept ? no_memory(ctx) : status;
}

static assay_status take_outcome(assay_context *ctx, const assay_each *each, int i, const outcome *o)
{
    fwrite(o->error, 1, o->error_size, stderr);
    fwrite(o->text, 1, o->text_size, stdout);
    fflush(stdout);
    if (o->status != ASSAY_OK) return assay_fail(ctx, o->status, "%s", o->message);
    return each->take == NULL ? ASSAY_OK : each->take(ctx, each->self, i, o->result, o->result_size);
}

/* Cases that were done together, up to `end`. */
static assay_status take_before(assay_context *ctx, sharing *s, int end)
{
    assay_status status = ASSAY_OK;
    for (; status == ASSAY_OK && s->taken < end; s->taken++) {
        if (s->together[s->taken]) status = take_outcome(ctx, s->each, s->taken, &s->outcomes[s->taken]);
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

static assay_status one_after_the_other(assay_context *ctx, const assay_each *each)
{
    assay_status status = ASSAY_OK;
    for (int i = 0; i < each->count && status == ASSAY_OK; i++) {
        char *text = NULL;
        size_t size = 0;
        FILE *result = open_memstream(&text, &size);
        if (result == NULL) return no_memory(ctx);
        status = each->work(ctx, each->self, i, result);
        if (!assay_text_close(result, &text) && status == ASSAY_OK) status = no_memory(ctx);
        if (status == ASSAY_OK && each->take != NULL) status = each->take(ctx, each->self, i, text, size);
        free(text);
    }
    return status;
}

assay_status assay_each_case(assay_context *ctx, const assay_each *each)
{
    assay_status status = ASSAY_OK;
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
