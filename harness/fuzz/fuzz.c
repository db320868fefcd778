#include "harness/fuzz/fuzz.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/fuzz/shrink.h"
#include "harness/plan/progress.h"
#include "oracle/base/clock.h"
#include "oracle/base/memory.h"

/* A tensor that was seen wrong in an operation, and the failure that it was counted to. */
typedef struct sighting {
    char op[ASSAY_TEXT_SIZE];
    assay_reason reason; /* without a bug */
    int found, times;
} sighting;

typedef struct sightings {
    sighting *items;
    int count;
} sightings;

static bool stopped(const assay_fuzzing *f)
{
    return (f->stop != NULL && *f->stop != 0) || (f->stop_after > 0 && f->found_count >= f->stop_after);
}

/* ---- a new failure ---- */

/* Two thirds of a failure's own time are for shrinking. */
static double deadline_of(const assay_fuzzing *f, double own)
{
    const double end = f->started + f->seconds, least = assay_clock() + own;
    return f->seconds <= 0 ? 0 : end > least ? end : least;
}

static assay_status shrink(assay_context *ctx, assay_fuzzing *f, const assay_case *c, assay_found *found)
{
    assay_shrinking s = {.tried = f->tried,
                         .sets = f->sets,
                         .stop = f->stop,
                         .deadline = deadline_of(f, ASSAY_FOUND_SECONDS * 2 / 3),
                         .reason = found->reason};
    MUST(assay_case_copy(ctx, c, &found->c));
    MUST(assay_shrink(ctx, &s, &found->c));
    found->tries = s.tries;
    found->steps = s.steps;
    found->ran_out = s.deadline > 0 && assay_clock() > s.deadline;
    if (f->seconds > 0) s.deadline = assay_clock() + ASSAY_FOUND_SECONDS / 3;
    return assay_edges_find(ctx, &s, &found->c, found->edges);
}

static assay_status tell(assay_context *ctx, assay_fuzzing *f, assay_found *found)
{
    OWNED_BY(assay_attempt_free) assay_attempt a = {0};
    MUST(assay_attempt_make(ctx, f->tried, &found->c, 0, &a));
    MUST(assay_attempt_explain(ctx, &a));
    found->is_unsteady = a.end != ASSAY_ATTEMPT_FAIL;
    if (!found->is_unsteady && found->reason.bug[0] == '\0') found->reason = a.reason; /* a smaller case may tell */
    if (f->tell != NULL) MUST(f->tell(ctx, f->self, found, &a));
    return ASSAY_OK;
}

static assay_status add_found(assay_context *ctx, assay_fuzzing *f, int64_t draw, const assay_case *c,
                              const assay_attempt *a)
{
    MUST(assay_grow(ctx, "what was found", f->found_count + 1, sizeof *f->found, &f->found));
    assay_found *found = &f->found[f->found_count];
    *found = (assay_found){.draw = draw, .alike = 1, .reason = a->reason};
    snprintf(found->message, sizeof found->message, "%s", a->message);
    snprintf(found->diagnosis, sizeof found->diagnosis, "%s", a->report.diagnosis);
    snprintf(found->explanation, sizeof found->explanation, "%s", a->report.explanation);
    snprintf(found->drawn, sizeof found->drawn, "%.150s", c->description);
    f->found_count++;
    MUST(shrink(ctx, f, c, found));
    return tell(ctx, f, found);
}

/* ---- a failure ---- */

static int find_by_bug(const assay_fuzzing *f, const char *bug)
{
    for (int i = 0; bug[0] != '\0' && i < f->found_count; i++) {
        if (strcmp(f->found[i].reason.bug, bug) == 0) return i;
    }
    return -1;
}

static sighting *find_sighting(const sightings *seen, const char *op, const assay_reason *reason)
{
    for (int i = 0; i < seen->count; i++) {
        if (strcmp(seen->items[i].op, op) == 0 && assay_reason_is_alike(&seen->items[i].reason, reason))
            return &seen->items[i];
    }
    return NULL;
}

/* To name the bug takes longer than to find it: of the same tensor wrong in the same operation the 1st, 2nd, 4th, 8th ...
 * failure is named, the others are counted to the last of these. */
static assay_status take_failure(assay_context *ctx, assay_fuzzing *f, sightings *seen, int64_t draw,
                                 const assay_case *c, assay_attempt *a)
{
    const assay_reason alike = a->reason;
    sighting *s = find_sighting(seen, c->op, &alike);
    if (s != NULL) s->times++;
    if (s != NULL && (s->times & (s->times - 1)) != 0) {
        f->found[s->found].alike++;
        return ASSAY_OK;
    }
    MUST(assay_attempt_explain(ctx, a));
    int place = find_by_bug(f, a->reason.bug);
    if (place < 0 && s != NULL && a->reason.bug[0] == '\0') place = s->found;
    if (s == NULL) {
        MUST(assay_grow(ctx, "what was found", seen->count + 1, sizeof *seen->items, &seen->items));
        s = &seen->items[seen->count++];
        *s = (sighting){.reason = alike, .times = 1};
        snprintf(s->op, sizeof s->op, "%s", c->op);
    }
    s->found = place >= 0 ? place : f->found_count;
    if (place >= 0) {
        f->found[place].alike++;
    } else {
        MUST(add_found(ctx, f, draw, c, a));
    }
    return ASSAY_OK;
}

/* ---- the loop ---- */

static assay_status try_draw(assay_context *ctx, assay_fuzzing *f, sightings *seen, int64_t draw)
{
    OWNED_BY(assay_case_free) assay_case c = {0};
    assay_drawn drawn;
    OWNED_BY(assay_attempt_free) assay_attempt a = {0};
    MUST(assay_draw(ctx, &f->draws, draw, &c, &drawn));
    MUST(assay_attempt_make(ctx, f->tried, &c, 0, &a));
    f->passed += a.end == ASSAY_ATTEMPT_PASS;
    f->failed += a.end == ASSAY_ATTEMPT_FAIL && a.known == NULL;
    f->unsupported += a.end == ASSAY_ATTEMPT_UNSUPPORTED;
    f->refused += a.end == ASSAY_ATTEMPT_REFUSED;
    if (a.end != ASSAY_ATTEMPT_REFUSED) assay_draws_learn(&f->draws, &drawn, &c, a.end != ASSAY_ATTEMPT_UNSUPPORTED);
    if (a.known != NULL) {
        a.known->seen++;
        f->known++;
    } else if (a.end == ASSAY_ATTEMPT_FAIL) {
        MUST(take_failure(ctx, f, seen, draw, &c, &a));
    }
    return ASSAY_OK;
}

/* In thousandths of what there is to do. */
static void show(const assay_fuzzing *f, assay_progress *progress, double share)
{
    char detail[128];
    snprintf(detail, sizeof detail, "%" PRId64 " cases, %" PRId64 " unsupported, %d failures", f->drawn, f->unsupported,
             f->found_count);
    assay_progress_add(progress, (int64_t)(1000 * share) - progress->done, detail);
}

assay_status assay_fuzz(assay_context *ctx, assay_fuzzing *f)
{
    assay_status status;
    assay_progress progress = {0};
    sightings seen = {0};
    f->started = assay_clock();
    TRY(assay_draws_start(ctx, &f->draws, f->seed, f->op, &f->sets));
    assay_progress_start(&progress, f->quiet, "fuzz", 1000);
    while (!stopped(f)) {
        const double past = assay_clock() - f->started;
        if ((f->cases > 0 && f->drawn >= f->cases) || (f->seconds > 0 && past > f->seconds)) break;
        show(f, &progress, f->cases > 0 ? (double)f->drawn / (double)f->cases : past / f->seconds);
        TRY(try_draw(ctx, f, &seen, f->drawn));
        f->drawn++;
    }
cleanup:
    assay_progress_end(&progress);
    f->taken = assay_clock() - f->started;
    free(seen.items);
    return status;
}

void assay_fuzz_free(assay_fuzzing *f)
{
    for (int i = 0; i < f->found_count; i++) assay_case_free(&f->found[i].c);
    free(f->found);
    assay_draws_free(&f->draws);
    f->found = NULL;
    f->found_count = 0;
}

void assay_fuzz_coverage(const assay_fuzzing *f, int *ran, int *all)
{
    const assay_draws *draws = &f->draws;
    *ran = *all = 0;
    for (int place = 0; place < draws->operations; place++) {
        if (draws->of_operations[place].ran == 0) continue;
        for (int key = 0; assay_draw_keys[key].key != NULL; key++) {
            if (assay_draw_keys[key].weight == 0 ||
                (assay_draw_keys[key].components & assay_operations[place]->components) == 0)
                continue;
            const int choices = assay_draw_choices(assay_draw_keys[key].values);
            for (int i = 0; i < choices; i++) *ran += draws->of_keys[place][key][i].ran > 0;
            *all += choices;
        }
    }
}
