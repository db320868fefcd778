#include "harness/commands/hostile.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "harness/fuzz/draw.h"
#include "harness/plan/backend_view.h"
#include "oracle/base/memory.h"

/* What floats of a trial are, beside new: structure as users have it, and what a kernel is not made for that knows its tests. */
static const struct {
    const char *name, *of, *fill;
} trials[] = {
    {"as it is", NULL, NULL},
    {"new numbers", NULL, NULL},
    {"large numbers", "inputs/", "{distribution: normal, scale: 24}"},
    {"a common direction, which skews experts", "inputs/", "{distribution: normal, scale: 1, mean: 2}"},
    {"small numbers", "inputs/", "{distribution: normal, scale: 0.002}"},
    {"near ties", "inputs/", "{distribution: near_ties, low: -3, high: 3}"},
    {"weights with zeros", "weights/", "{distribution: integers, low: -1, high: 1, scale: 0.5}"},
    {"a long tail", "inputs/", "{distribution: block_powers, low: -3, high: 6}"},
    {"rows of all sizes", "inputs/", "{distribution: row_powers, low: -6, high: 4}"},
};
enum { TRIALS = sizeof trials / sizeof *trials, SETS = 64, SET = ASSAY_PATH_SIZE + 96 };

typedef struct trial {
    assay_case *c;
    const assay_profile *profile;
    char sets[SETS][SET]; /* that make it of the case */
    int count;
} trial;

static uint64_t chance(void)
{
    uint64_t bits = 0;
    while (getrandom(&bits, sizeof bits, 0) != sizeof bits) continue;
    return bits >> 1;
}

/* Left out where there is no such case, or a larger one than draws are. */
static assay_status try_set(assay_context *ctx, trial *t, const char *set)
{
    OWNED_BY(assay_case_free) assay_case changed = {0};
    bool is_case = false;
    if (t->count == SETS) return ASSAY_OK;
    MUST(assay_case_copy(ctx, t->c, &changed));
    assay_status status = assay_case_set(ctx, &changed, set);
    if (status == ASSAY_OK) status = assay_draw_check(ctx, &changed, t->profile, &is_case);
    if (is_case)
        status = assay_draw_check_numbers(ctx, &changed, t->profile, &is_case); /* no backend must bear others */
    if (!is_case) return assay_draw_forgive(ctx, status);
    const assay_case before = *t->c;
    *t->c = changed;
    changed = before;
    snprintf(t->sets[t->count++], SET, "%s", set);
    return ASSAY_OK;
}

/* Few, or at or beside the edge of a tile. */
static assay_status change_sizes(assay_context *ctx, trial *t)
{
    static const char *const keys[] = {"sequence", "batch", "base_emb_dim", "base_mlp_dim", "base_moe_mlp_dim"};
    static const int sizes[] = {1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257};
    char set[SET];
    for (int i = 0; i < (t->c->program != NULL ? 26 : 2); i++) {
        char axis[] = "sizes.A"; /* of a program: any letter, most of which are no axis */
        axis[6] = (char)('A' + chance() % 26);
        const char *key = t->c->program != NULL ? axis : keys[i == 0 ? 0 : chance() % (sizeof keys / sizeof *keys)];
        snprintf(set, sizeof set, "%s=%d", key, sizes[chance() % (sizeof sizes / sizeof *sizes)]);
        MUST(try_set(ctx, t, set));
    }
    return ASSAY_OK;
}

static assay_status change_numbers(assay_context *ctx, trial *t, const char *of, const char *fill)
{
    const assay_operation *operation = NULL;
    OWNED_BY(assay_tensor_list_free) assay_tensor_list list = {0};
    MUST(try_set(ctx, t, "tags=[]")); /* an exact case may be none then */
    MUST(assay_operation_prepare(ctx, t->c, &operation, &list));
    for (int i = 0; i < list.count; i++) {
        const assay_tensor_spec *spec = &list.entries[i].spec;
        char set[SET];
        if (!assay_dtype_is_negated(spec->type) || strncmp(spec->path, of, strlen(of)) != 0) continue;
        snprintf(set, sizeof set, "inputs.%s=%s", spec->path, fill);
        MUST(try_set(ctx, t, set));
    }
    return ASSAY_OK;
}

static assay_status draw(assay_context *ctx, const assay_case *c, int number, trial *t)
{
    char set[SET];
    MUST(assay_case_copy(ctx, c, t->c));
    MUST(assay_case_set(ctx, t->c, "profiles=none")); /* it gets the one that it is judged by */
    if (number == 0) return ASSAY_OK;
    snprintf(set, sizeof set, "seed=%" PRIu64, chance() % 1000000000);
    MUST(assay_case_set(ctx, t->c, set));
    snprintf(t->sets[t->count++], SET, "%s", set);
    MUST(change_sizes(ctx, t));
    return trials[number].of == NULL ? ASSAY_OK : change_numbers(ctx, t, trials[number].of, trials[number].fill);
}

static assay_status run_trial(assay_context *ctx, const assay_options *options, const assay_case_run *r, int number,
                              assay_case_run *one)
{
    OWNED_BY(assay_case_free) assay_case c = {0};
    trial t = {.c = &c};
    OWNED const char **sets = NULL;
    assay_profile profile;
    assay_options own = *options;
    MUST(assay_alloc_list(ctx, "settings", own.set_count + SETS, sizeof *sets, &sets));
    MUST(assay_command_profile(ctx, options, NULL, assay_dtype_name(r->c->dtype), &profile));
    t.profile = &profile;
    MUST(draw(ctx, r->c, number, &t));
    own.sets = sets;
    for (int i = 0; i < own.set_count; i++) sets[i] = options->sets[i];
    for (int i = 0; i < t.count; i++) sets[own.set_count++] = t.sets[i];
    *one = (assay_case_run){.c = &c, .server = r->server, .trials = number};
    MUST(assay_run_case(ctx, &own, one));
    one->c = r->c;
    char message[sizeof one->report.message];
    snprintf(message, sizeof message, "trial %d, %s: %.400s", number, trials[number].name, one->report.message);
    if (number > 0 && one->report.verdict != ASSAY_PASS) memcpy(one->report.message, message, sizeof message);
    return ASSAY_OK;
}

assay_status assay_run_hostile(assay_context *ctx, const assay_options *options, assay_case_run *r)
{
    if (r->stored != NULL)
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: --hostile draws new numbers, expected a case", r->stored);
    for (int number = 0; number < TRIALS; number++) {
        assay_case_run one = {0};
        assay_status status = run_trial(ctx, options, r, number, &one);
        const assay_verdict verdict = one.report.verdict;
        if (number > 0) status = assay_draw_forgive(ctx, status);
        /* numbers that are no case, or show nothing, are no trial */
        const bool shows = verdict == ASSAY_FAIL || (verdict == ASSAY_PASS && one.report.case_name[0] != '\0');
        one.trials = r->trials + (shows ? 1 : 0);
        const bool nearer = assay_report_worst(&one.report) > assay_report_worst(&r->report);
        const bool kept = number == 0 || (shows && (verdict != ASSAY_PASS || nearer));
        assay_report_free(kept ? &r->report : &one.report);
        if (kept) *r = one;
        r->trials = one.trials;
        MUST(status);
        if (kept && verdict != ASSAY_PASS) break;
    }
    return ASSAY_OK;
}
