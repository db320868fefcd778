#include "harness/between/between.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/fixes/evaluate_again.h"
#include "harness/golden/golden_memory.h"
#include "harness/plan/golden_read.h"
#include "harness/plan/written_codes.h"
#include "oracle/base/memory.h"

#define LOGITS "outputs/logits"

void assay_between_free(assay_between *b)
{
    assay_report_free(&b->of[0]);
    assay_report_free(&b->of[1]);
    assay_report_free(&b->apart);
}

/* --- the golden of differences --- */

/* A golden's choices of experts alone. */
static bool has_choice(void *self, const char *path)
{
    return assay_path_is_choice(path) && assay_fixture_find(self, path) != NULL;
}

/* The case again, given the first one's choice of experts. */
static assay_status evaluate(assay_context *ctx, const assay_golden *golden, assay_fixture_reader *judged,
                             const assay_between_side sides[2], bool quiet, assay_golden *again)
{
    char set[128];
    const assay_arithmetic *own = ctx->arithmetic, *engine = assay_golden_engine(golden);
    if (engine == NULL) return assay_fail(ctx, ASSAY_BAD_INPUT, "the attribute engine is missing or unknown");
    assay_status status = assay_golden_read(ctx, golden->reader, "case_yaml", again);
    again->reader = NULL; /* which stays the golden's */
    MUST(status);
    snprintf(set, sizeof set, "profiles=%s", sides[1].profile->precision.name);
    MUST(assay_case_set(ctx, again->c, set));
    again->reader = golden->reader;
    status = assay_golden_plan(ctx, again, sides[1].profile);
    again->reader = NULL;
    MUST(status);
    again->plan.less = sides[0].profile;
    MUST(assay_plan_require_memory(ctx, &again->plan));
    assay_source chosen = assay_fixture_source(judged);
    chosen.has = has_choice;
    assay_overlay given = {chosen, assay_golden_inputs(golden->reader)};
    const assay_source in = assay_overlay_source(&given);
    ctx->arithmetic = engine;
    status = assay_evaluate_again(ctx, golden->reader, again, &in, ASSAY_MOST_IN_MEMORY, quiet);
    ctx->arithmetic = own;
    return status;
}

/* --- what is held against it --- */

/* Readers over what both have: the golden's values, and each one's with those that it is held against. */
typedef struct pair {
    assay_fixture_reader *golden, *candidate[2], *against[2];
} pair;

static bool both_have(const pair *p, const assay_tensor_spec *spec)
{
    for (int side = 0; side < 2; side++) {
        const assay_tensor_spec *found = assay_fixture_find(p->candidate[side], spec->path);
        const assay_tensor_spec *right = assay_fixture_find(p->against[side], spec->path);
        if (found == NULL || right == NULL || !assay_shape_equal(&found->shape, &spec->shape) ||
            !assay_shape_equal(&right->shape, &spec->shape) ||
            (found->type == ASSAY_INT32) != (spec->type == ASSAY_INT32))
            return false;
    }
    return true;
}

static bool same_number(double one, double other)
{
    return one == other || (isnan(one) && isnan(other));
}

/* The golden's numbers, and how much farther off the second is than the first. Integers that are required must be equal: others are a
 * choice, or follow from it. */
static assay_status take(assay_context *ctx, const pair *p, const assay_tensor_spec *spec, assay_tensor_set *set,
                         bool *same)
{
    const assay_source golden = assay_fixture_source(p->golden);
    OWNED double *values = NULL;
    double *of[4];
    MUST(assay_tensor_set_read(ctx, set, spec, &golden));
    assay_tensor *tensor = &set->items[set->count - 1];
    if (tensor->values != NULL) tensor->spec.type = ASSAY_FLOAT64;
    MUST(assay_alloc_f64(ctx, spec->path, 4 * tensor->count, &values));
    for (int i = 0; i < 4; i++) {
        of[i] = values + i * tensor->count;
        MUST(assay_fixture_read(ctx, i < 2 ? p->candidate[i] : p->against[i - 2], spec->path, 0, tensor->count, of[i]));
    }
    for (int64_t i = 0; i < tensor->count; i++) {
        const double one = of[0][i], other = of[1][i];
        const bool equal = same_number(one, other);
        *same &= equal;
        if (tensor->indices != NULL && !equal && assay_role_is_required(spec->role)) tensor->indices[i] ^= 1;
        if (tensor->indices != NULL || (equal && same_number(of[2][i], of[3][i]))) continue; /* infinities too */
        tensor->values[i] += (other - of[3][i]) - (one - of[2][i]);
    }
    return ASSAY_OK;
}

/* In any order of slots. */
static bool same_experts(int64_t count, const double *one, const double *other)
{
    for (int64_t k = 0; k < count; k++) {
        bool found = false;
        for (int64_t j = 0; j < count; j++) found |= one[k] == other[j];
        if (!found) return false;
    }
    return true;
}

static assay_status compare_choice(assay_context *ctx, const pair *p, const assay_tensor_spec *spec, assay_between *b)
{
    char margin[ASSAY_PATH_SIZE];
    OWNED double *ids = NULL;
    const int64_t count = assay_shape_count(&spec->shape), slots = spec->shape.dims[spec->shape.rank - 1];
    const int stem = (int)(strlen(spec->path) - strlen("selected_experts"));
    snprintf(margin, sizeof margin, "%.*smargin", stem, spec->path);
    if (count == 0 || !both_have(p, spec)) return ASSAY_OK;
    MUST(assay_alloc_zeros(ctx, spec->path, 3 * count, &ids)); /* of both; and margins */
    for (int s = 0; s < 2; s++) MUST(assay_fixture_read(ctx, p->candidate[s], spec->path, 0, count, ids + s * count));
    const assay_tensor_spec *known = assay_fixture_find(p->golden, margin);
    if (known != NULL && assay_shape_count(&known->shape) == count / slots)
        MUST(assay_fixture_read(ctx, p->golden, margin, 0, count / slots, ids + 2 * count));
    b->tokens += count / slots;
    for (int64_t t = 0; t < count / slots; t++) {
        if (same_experts(slots, ids + t * slots, ids + count + t * slots)) continue;
        b->differ++;
        b->margin = fmax(b->margin, ids[2 * count + t]);
    }
    return ASSAY_OK;
}

static int64_t best_of(int64_t count, const double *scores, int64_t but)
{
    int64_t best = but == 0 ? 1 : 0;
    for (int64_t i = 0; i < count; i++)
        if (i != but && scores[i] > scores[best]) best = i;
    return best;
}

static double log_sum_exp(int64_t count, const double *scores, double most)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += exp(scores[i] - most);
    return most + log(sum);
}

static assay_status compare_next_token(assay_context *ctx, const pair *p, const assay_between_side sides[2],
                                       double false_alarm, assay_order order, assay_next_token *next)
{
    OWNED double *values = NULL;
    const assay_tensor_spec *spec = assay_fixture_find(p->golden, LOGITS);
    if (spec == NULL || spec->type == ASSAY_INT32 || spec->shape.rank < 1 || !both_have(p, spec)) return ASSAY_OK;
    const int64_t count = assay_shape_count(&spec->shape), words = spec->shape.dims[spec->shape.rank - 1];
    if (count == 0 || words < 2) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, LOGITS, 4 * count, &values));
    double *one = values, *other = one + count, *golden = other + count, *allowed = golden + count;
    MUST(assay_fixture_read(ctx, p->candidate[0], LOGITS, 0, count, one));
    MUST(assay_fixture_read(ctx, p->candidate[1], LOGITS, 0, count, other));
    MUST(assay_fixture_read(ctx, p->golden, LOGITS, 0, count, golden));
    MUST(assay_compare_thresholds(ctx, p->golden, sides[1].profile, false_alarm, order, LOGITS, allowed));
    next->tokens = count / words;
    for (int64_t at = 0; at < count; at += words) {
        const int64_t best = best_of(words, one + at, -1), best_of_other = best_of(words, other + at, -1);
        const int64_t first = best_of(words, golden + at, -1), second = best_of(words, golden + at, first);
        const double sum = log_sum_exp(words, one + at, one[at + best]);
        const double sum_of_other = log_sum_exp(words, other + at, other[at + best_of_other]);
        double divergence = 0;
        for (int64_t i = at; i < at + words; i++)
            divergence += exp(one[i] - sum) * ((one[i] - sum) - (other[i] - sum_of_other));
        next->mean += divergence / (double)next->tokens;
        next->largest = divergence <= next->largest ? next->largest : divergence; /* NaN too */
        next->other += best != best_of_other;
        next->near_ties += golden[at + first] - golden[at + second] <= allowed[at + first] + allowed[at + second];
    }
    return ASSAY_OK;
}

static assay_status compare(assay_context *ctx, assay_golden *golden, assay_golden held[2], assay_golden *again,
                            const assay_between_side sides[2], double false_alarm, bool quiet, assay_between *b)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set set = {0};
    OWNED_BY(assay_fixture_release) assay_fixture_reader *difference = NULL;
    OWNED_BY(assay_written_codes_free) assay_written_codes first = {0}, second = {0};
    assay_written_codes *const codes[] = {&first, &second};
    pair p = {0};
    for (int s = 0; s < 2; s++) {
        const assay_judging how = {
            .profile = sides[s].profile, .false_alarm = false_alarm, .quiet = quiet, .unexplained = true};
        MUST(assay_judge(ctx, golden, sides[s].candidate, &how, &b->of[s], &held[s]));
        p.candidate[s] = sides[s].candidate;
        p.against[s] = assay_judged_by(golden, &held[s])->reader;
    }
    p.golden = golden->reader;
    for (int i = 0; i < assay_fixture_count(p.golden); i++) {
        const assay_tensor_spec *spec = assay_fixture_spec(p.golden, i);
        if (assay_path_is_choice(spec->path) && assay_path_ends(spec->path, "selected_experts"))
            MUST(compare_choice(ctx, &p, spec, b));
    }
    if (b->of[0].routing.wrong + b->of[1].routing.wrong > 0) return ASSAY_OK;
    MUST(evaluate(ctx, golden, p.against[0], sides, quiet, again));
    p.golden = again->reader;
    b->same = true;
    for (int s = 0; s < 2; s++) { /* codes that each may have by its own numbers are alike */
        MUST(assay_written_codes_adopt(ctx, &golden->plan, sides[s].profile, false_alarm, false, p.against[s],
                                       sides[s].candidate, codes[s]));
        b->same &= codes[s]->admissible == 0;
    }
    for (int i = 0; i < assay_fixture_count(p.golden); i++) {
        const assay_tensor_spec *spec = assay_fixture_spec(p.golden, i);
        /* in the order of other choices other rows stand beside each other */
        if (b->differ > 0 && spec->shape.rank > 0 && strcmp(spec->labels[0], "T*K") == 0) continue;
        if (assay_role_is_compared(spec->role) && both_have(&p, spec)) MUST(take(ctx, &p, spec, &set, &b->same));
    }
    for (int s = 0; s < 2; s++) MUST(assay_written_codes_put_back(ctx, sides[s].candidate, codes[s]));
    MUST(assay_fixture_of_tensors(ctx, "candidate", &set, &difference));
    MUST(assay_compare_undiagnosed(ctx, p.golden, difference, sides[1].profile, false_alarm,
                                   assay_plan_order(&again->plan), &b->apart));
    return compare_next_token(ctx, &p, sides, false_alarm, assay_plan_order(&again->plan), &b->next);
}

assay_status assay_between_compare(assay_context *ctx, assay_golden *golden, const assay_between_side sides[2],
                                   double false_alarm, bool quiet, assay_between *b)
{
    assay_golden held[2] = {0}, again = {0};
    const assay_status status = compare(ctx, golden, held, &again, sides, false_alarm, quiet, b);
    assay_golden_close(&held[0]);
    assay_golden_close(&held[1]);
    assay_golden_close(&again);
    if (status != ASSAY_OK) assay_between_free(b);
    return status;
}

assay_between_verdict assay_between_verdict_of(const assay_between *b)
{
    const bool judged = b->apart.count > 0;
    const bool beyond = b->apart.verdict == ASSAY_FAIL || b->apart.verdict == ASSAY_NOT_COMPARABLE;
    if (!judged || beyond) return ASSAY_BETWEEN_BEYOND;
    return b->same && b->differ == 0 ? ASSAY_BETWEEN_SAME : ASSAY_BETWEEN_ROUNDING;
}

const char *assay_between_name(assay_between_verdict verdict)
{
    static const char *const names[] = {"SAME BITS", "ROUNDING", "BEYOND ROUNDING"};
    return names[verdict];
}

void assay_between_message(const assay_between *b, char message[ASSAY_VERDICT_SIZE])
{
    int tensors = 0;
    for (int i = 0; i < b->apart.count; i++) tensors += b->apart.tensors[i].compared;
    if (b->apart.count == 0) {
        snprintf(message, ASSAY_VERDICT_SIZE, "%s", b->of[b->of[0].routing.wrong > 0 ? 0 : 1].message);
    } else if (assay_between_verdict_of(b) == ASSAY_BETWEEN_BEYOND) {
        snprintf(message, ASSAY_VERDICT_SIZE, "%s", b->apart.message);
    } else {
        snprintf(message, ASSAY_VERDICT_SIZE, "%d tensors are %s", tensors,
                 assay_between_verdict_of(b) == ASSAY_BETWEEN_SAME ? "the same"
                                                                   : "as far apart as those of two correct kernels");
    }
}
