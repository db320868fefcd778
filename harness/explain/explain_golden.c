/* The golden itself among the hypotheses: a mutant that next to nothing comes of would pass wherever the golden does but
 * for what the mutant's own comparison does not look at. So it must explain what failed better than "nothing is wrong". */
#include <math.h>
#include <string.h>

#include "harness/explain/explain_internal.h"

/* What a mutant may leave of what there is with the golden: of the squares of errors or the worst one; of both where that is
 * no more than a deviation on average, as a correct candidate leaves, and of how far out a statistic is. */
#define MUCH_LESS 0.5
#define CLEARLY_LESS 0.7

static bool fails_by_statistic(const assay_tensor_result *r)
{
    return r->verdict == ASSAY_FAIL && r->finding >= ASSAY_FINDING_SIZE && r->finding <= ASSAY_FINDING_TOWARD_ZERO;
}

bool assay_only_statistics_fail(const assay_report *plain)
{
    for (int i = 0; i < plain->count; i++)
        if (plain->tensors[i].verdict == ASSAY_FAIL && !fails_by_statistic(&plain->tensors[i])) return false;
    return true;
}

static bool is_result(const assay_tensor *tensor)
{
    const assay_tensor_role role = tensor->spec.role;
    return !assay_role_is_input(role) && role != ASSAY_ROLE_ERROR_SCALE && role != ASSAY_ROLE_NULL;
}

/* The numbers of `from` among the scales of `to`; of a mutant that is in some tensors alone those that are its. */
static void take_values(const assay_tensor_set *from, const assay_mutant *mutant, const assay_report *plain,
                        const assay_report *report, assay_tensor_set *to)
{
    for (int i = 0; i < to->count; i++) {
        assay_tensor *tensor = &to->items[i];
        const assay_tensor *of = &from->items[i];
        const assay_tensor_result *after = assay_result_of(report, tensor->spec.path);
        if (!is_result(tensor) || tensor->values == NULL || !assay_tensor_is_complete(of)) continue;
        if (mutant != NULL && after != NULL &&
            assay_tensor_stays(mutant, assay_result_of(plain, tensor->spec.path), after))
            continue;
        memcpy(tensor->values, of->values, (size_t)of->count * sizeof *of->values);
    }
}

/* Squares of error / deviation, and the largest excess over a threshold. */
typedef struct left_over {
    double squares, elements, worst;
} left_over;

/* Of the tensors that fail otherwise than by a statistic. */
static left_over left_of(const assay_report *plain, const assay_report *report)
{
    left_over left = {0};
    for (int i = 0; i < plain->count; i++) {
        const assay_tensor_result *before = &plain->tensors[i], *r = assay_result_of(report, before->spec.path);
        if (before->verdict != ASSAY_FAIL || fails_by_statistic(before) || r == NULL) continue;
        const bool by_values = r->finding == ASSAY_FINDING_ELEMENTS || r->finding == ASSAY_FINDING_ROWS;
        if (r->verdict == ASSAY_FAIL && !by_values && !fails_by_statistic(r)) left.squares = left.worst = INFINITY;
        if (!r->compared || r->spec.type == ASSAY_INT32) continue;
        left.squares += r->rms_ratio * r->rms_ratio * (double)r->elements;
        left.elements += (double)r->elements;
        left.worst = fmax(left.worst, fmax(r->worst_element, r->worst_row));
    }
    return left;
}

static bool is_less(const left_over *after, const left_over *before, double squares, double worst)
{
    return !(after->squares > squares * before->squares) && !(after->worst > worst * before->worst);
}

/* Whether all that fails are gradients that are not given and that the golden has as zeros: nothing is to be explained,
 * unless they are what the mutant does not give. */
static bool only_zeros_are_missing(const assay_report *plain, const assay_report *alone)
{
    for (int i = 0; i < plain->count; i++) {
        const assay_tensor_result *before = &plain->tensors[i], *r = assay_result_of(alone, before->spec.path);
        if (before->verdict != ASSAY_FAIL) continue;
        if (before->finding != ASSAY_FINDING_MISSING || r == NULL || r->verdict == ASSAY_FAIL) return false;
    }
    return true;
}

/* The golden with the mutant's deviations: larger ones alone would explain much. */
static assay_status is_nearer(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant,
                              const assay_candidate_results *of_candidate, const assay_report *plain,
                              const assay_tensor_set *expected, const assay_report *report, bool *nearer)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set golden = {0};
    OWNED_BY(assay_report_free) assay_report alone = {0};
    /* of what is rounded to a coarser type the golden is what is expected: that it lies on the grid tells */
    const bool coarser = mutant->results.edit == assay_edit_coarser;
    MUST(assay_tensor_set_copy(ctx, expected, &golden));
    take_values(t->golden, NULL, plain, report, &golden);
    if (!coarser) MUST(assay_expected_compare(ctx, t, &golden, of_candidate, &alone));
    const left_over after = left_of(plain, report), before = left_of(plain, coarser ? plain : &alone);
    *nearer = is_less(&after, &before, MUCH_LESS, INFINITY) || is_less(&after, &before, INFINITY, MUCH_LESS) ||
              (is_less(&after, &before, CLEARLY_LESS, CLEARLY_LESS) && after.squares <= after.elements);
    *nearer &= !only_zeros_are_missing(plain, &alone);
    return ASSAY_OK;
}

static double excess_of(const assay_tensor_result *r)
{
    double most = 0.0;
    for (int i = 0; i < r->statistics_count; i++) most = fmax(most, r->statistics[i].excess);
    return most;
}

/* Squares of error / deviation over the tensors that fail. */
static double squares_of(const assay_report *plain, const assay_report *report)
{
    double squares = 0.0;
    for (int i = 0; i < plain->count; i++) {
        const assay_tensor_result *r = assay_result_of(report, plain->tensors[i].spec.path);
        if (r == NULL || !r->compared || r->spec.type == ASSAY_INT32) continue;
        if (plain->tensors[i].verdict == ASSAY_FAIL) squares += r->rms_ratio * r->rms_ratio * (double)r->elements;
    }
    return squares;
}

static bool explains_each(const assay_report *plain, const assay_report *found)
{
    for (int i = 0; i < plain->count; i++) {
        const assay_tensor_result *before = &plain->tensors[i], *r = assay_result_of(found, before->spec.path);
        if (before->verdict != ASSAY_FAIL) continue;
        if (r == NULL || r->verdict == ASSAY_FAIL || excess_of(r) > CLEARLY_LESS * excess_of(before)) return false;
    }
    return true;
}

/* What fails by statistics alone is as near to the golden as the mutant is, so that the golden's deviations and null
 * distributions are the mutant's too: with these every such statistic must be right, and not just so, and errors smaller. */
static assay_status explains_statistics(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant,
                                        const assay_candidate_results *of_candidate, const assay_report *plain,
                                        const assay_tensor_set *expected, const assay_report *report, bool *explains)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set mutated = {0};
    OWNED_BY(assay_report_free) assay_report found = {0};
    MUST(assay_tensor_set_copy(ctx, t->golden, &mutated));
    take_values(expected, mutant, plain, report, &mutated);
    MUST(assay_expected_compare(ctx, t, &mutated, of_candidate, &found));
    *explains = explains_each(plain, &found) && squares_of(plain, &found) < squares_of(plain, plain);
    return ASSAY_OK;
}

assay_status assay_beats_golden(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant,
                                const assay_candidate_results *of_candidate, const assay_report *plain,
                                const assay_tensor_set *expected, const assay_report *report, bool *beats)
{
    *beats = true;
    return assay_only_statistics_fail(plain)
               ? explains_statistics(ctx, t, mutant, of_candidate, plain, expected, report, beats)
               : is_nearer(ctx, t, mutant, of_candidate, plain, expected, report, beats);
}
