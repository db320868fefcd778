#include "harness/commands/each_case.h"

#include <stdlib.h>
#include <string.h>

#include "harness/commands/workers.h"
#include "harness/plan/progress.h"
#include "oracle/base/memory.h"

#define MOST_APART 1e9 /* operations: above, the threads of one process are worth more than processes */

/* What a case printed, and its result. */
enum { TEXT, ERROR, RESULT, PARTS };

typedef struct outcome {
    struct {
        char *text;
        size_t size;
    } of[PARTS];
    assay_status status;
    char message[ASSAY_MESSAGE_SIZE]; /* where it failed */
} outcome;

/* Cases that ranks, or processes of this machine, do. */
typedef struct sharing {
    const assay_each *each;
    bool *there; /* outcomes that are known */
    outcome *outcomes;
    int *numbers; /* of each piece its case; of ranks, who has a case */
    int taken;    /* cases */
    assay_progress progress;
} sharing;

static void outcome_free(outcome *o)
{
    for (int i = 0; i < PARTS; i++) free(o->of[i].text);
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
    o->status = status == ASSAY_OK && !kept ? no_memory(ctx) : status;
    snprintf(o->message, sizeof o->message, "%s", ctx->message);
    return o->status;
}

static assay_status report_outcome(assay_context *ctx, const assay_each *each, int i, const outcome *o)
{
    if (o->of[ERROR].text != NULL) fwrite(o->of[ERROR].text, 1, o->of[ERROR].size, stderr);
    if (o->of[TEXT].text != NULL) fwrite(o->of[TEXT].text, 1, o->of[TEXT].size, stdout);
    fflush(stdout);
    if (o->status != ASSAY_OK) return assay_fail(ctx, o->status, "%s", o->message);
    return each->take == NULL ? ASSAY_OK : each->take(ctx, each->self, i, o->of[RESULT].text, o->of[RESULT].size);
}

/* In this process, which prints at once. */
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

static assay_status report_ready(assay_context *ctx, sharing *s)
{
    assay_status status = ASSAY_OK;
    for (; status == ASSAY_OK && s->taken < s->each->count && s->there[s->taken]; s->taken++) {
        assay_progress_end(&s->progress);
        status = report_outcome(ctx, s->each, s->taken, &s->outcomes[s->taken]);
    }
    return status;
}

/* On its way to the process that prints it. */
static void pack(const outcome *o, FILE *out)
{
    for (int k = 0; k < PARTS; k++) fwrite(&o->of[k].size, sizeof o->of[k].size, 1, out);
    for (int k = 0; k < PARTS; k++)
        if (o->of[k].text != NULL) fwrite(o->of[k].text, 1, o->of[k].size, out);
}

/* What came of a case. */
static assay_status unpack(assay_context *ctx, sharing *s, int i, assay_status status, const char *message,
                           const char *parcel, size_t size)
{
    outcome *o = &s->outcomes[i];
    size_t sizes[PARTS] = {0}, at = sizeof sizes;
    o->status = status;
    if (size > at) memcpy(sizes, parcel, sizeof sizes);
    for (int k = 0; size > sizeof sizes && k < PARTS && sizes[k] <= size - at; k++) {
        void *text = NULL;
        MUST(assay_alloc(ctx, "what a case prints", (int64_t)sizes[k] + 1, 1, &text));
        o->of[k].text = memcpy(text, parcel + at, sizes[k]);
        o->of[k].size = sizes[k];
        at += sizes[k];
    }
    snprintf(o->message, sizeof o->message, "%s", message);
    s->there[i] = true;
    return ASSAY_OK;
}

static assay_status apart_work(assay_context *ctx, void *self, int piece, FILE *result)
{
    const sharing *s = self;
    outcome o = {0};
    const assay_status status = do_case(ctx, s->each, s->numbers[piece], &o);
    pack(&o, result);
    outcome_free(&o);
    return status;
}

static assay_status apart_take(assay_context *ctx, void *self, int piece, assay_status status, const char *message,
                               const char *result, size_t size)
{
    sharing *s = self;
    const int i = s->numbers[piece];
    char line[ASSAY_MESSAGE_SIZE];
    snprintf(line, sizeof line, "case %d of %d: %.256s", i + 1, s->each->count, message);
    MUST(unpack(ctx, s, i, status, result == NULL ? line : message, result, size)); /* NULL: the process died */
    assay_progress_add(&s->progress, 1, "cases");
    return report_ready(ctx, s);
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
            status = report_ready(ctx, s);
        }
    }
    return status;
}

/* Which rank has which case. */
static assay_status share_out(assay_context *ctx, sharing *s)
{
    const assay_each *each = s->each;
    OWNED double *work = NULL;
    MUST(assay_alloc_f64(ctx, "work of cases", each->count, &work));
    for (int i = 0; i < each->count; i++) work[i] = 1 + (each->cost == NULL ? 0 : each->cost(each->self, i));
    return assay_share_out(ctx, work, each->count, each->ranks->transport.size, s->numbers);
}

/* Of a rank but the first: its cases, until one fails, or the first needs no more. */
static assay_status report_cases(assay_context *ctx, const sharing *s)
{
    bool goes_on = assay_ranks_begin(s->each->ranks);
    for (int i = 0; i < s->each->count && goes_on; i++) {
        outcome o = {0};
        char *text = NULL;
        size_t size = 0;
        if (s->numbers[i] != s->each->ranks->transport.rank) continue;
        FILE *parcel = assay_text_open(&text, &size);
        if (parcel == NULL) return no_memory(ctx);
        assay_rank_report report = {.number = i, .status = do_case(ctx, s->each, i, &o)};
        memcpy(report.message, o.message, sizeof report.message);
        pack(&o, parcel);
        const bool kept = assay_text_close(parcel, &text);
        if (kept) goes_on = assay_ranks_report(s->each->ranks, &report, text, size) && report.status == ASSAY_OK;
        outcome_free(&o);
        free(text);
        if (!kept) return no_memory(ctx);
    }
    return ASSAY_OK;
}

/* What a rank says of a case, or, without waiting, of those that it has said. */
static assay_status hear(assay_context *ctx, sharing *s, int rank, bool wait)
{
    size_t size = 0;
    for (bool more = true; more;) {
        OWNED assay_rank_report *report = NULL;
        MUST(assay_ranks_hear(ctx, s->each->ranks, rank, wait, &report, &size));
        more = report != NULL && !wait;
        if (report == NULL) continue;
        const int i = report->number;
        if (i >= s->each->count || s->numbers[i] != rank || s->there[i])
            return assay_fail(ctx, ASSAY_INTERNAL, "rank %d has other cases than the first one", rank);
        MUST(unpack(ctx, s, i, report->status, report->message, (const char *)(report + 1), size));
    }
    return ASSAY_OK;
}

/* Of the first rank: its own cases, and what the others say meanwhile; then what is left. */
static assay_status collect_cases(assay_context *ctx, sharing *s)
{
    const assay_each *each = s->each;
    bool well = assay_ranks_begin(each->ranks);
    for (int i = 0; i < each->count && well; i++) {
        if (s->numbers[i] != 0) continue;
        well = do_case(ctx, each, i, &s->outcomes[i]) == ASSAY_OK;
        s->there[i] = true;
        for (int rank = 1; rank < each->ranks->transport.size; rank++) MUST(hear(ctx, s, rank, false));
        MUST(report_ready(ctx, s));
    }
    while (s->taken < each->count) {
        MUST(hear(ctx, s, s->numbers[s->taken], true));
        MUST(report_ready(ctx, s));
    }
    return ASSAY_OK;
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
    const bool apart = each->ranks == NULL && each->apart && ctx->threads > 1 && each->count > 1;
    if (each->ranks == NULL && !apart) return one_after_the_other(ctx, each);
    const size_t count = (size_t)each->count + 1;
    sharing s = {.each = each,
                 .there = calloc(count, sizeof *s.there),
                 .outcomes = calloc(count, sizeof *s.outcomes),
                 .numbers = calloc(count, sizeof *s.numbers)};
    if (s.there == NULL || s.outcomes == NULL || s.numbers == NULL) {
        status = assay_fail(ctx, ASSAY_NO_MEMORY, "no memory to share out %d cases", each->count);
        goto cleanup;
    }
    if (apart) {
        TRY(do_apart(ctx, &s));
        goto cleanup;
    }
    TRY(share_out(ctx, &s));
    TRY(assay_ranks_is_first(each->ranks) ? collect_cases(ctx, &s) : report_cases(ctx, &s));
cleanup:
    for (int i = 0; s.outcomes != NULL && i < each->count; i++) outcome_free(&s.outcomes[i]);
    free(s.there);
    free(s.outcomes);
    free(s.numbers);
    return status;
}
