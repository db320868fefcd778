#include "harness/fixes/choice.h"

#include <math.h>

#include "oracle/moe/permute.h"

static bool holds(const int32_t *ids, int64_t count, int64_t expert)
{
    for (int64_t k = 0; k < count; k++)
        if (ids[k] == expert) return true;
    return false;
}

static bool is_chosen(const assay_choice *c, int64_t expert)
{
    return holds(c->selected, c->per_token, expert);
}

bool assay_choice_is_valid(const assay_choice *c)
{
    for (int64_t k = 0; k < c->per_token; k++) {
        if ((c->free || c->padded) && c->selected[k] == ASSAY_NO_EXPERT) continue;
        if (c->selected[k] < 0 || c->selected[k] >= c->experts || holds(c->selected, k, c->selected[k])) return false;
    }
    return true;
}

static bool is_exact(const assay_choice *c)
{
    for (int64_t k = 0; k < c->per_token; k++)
        if (!is_chosen(c, c->golden[k]) || !holds(c->golden, c->per_token, c->selected[k])) return false;
    return true;
}

/* A question about a choice: with these multiples of tau, and equal scores held to the lower index or not. */
typedef struct question {
    const assay_choice *c;
    double factor;
    bool ties;
} question;

static double highest(const question *q, int64_t e)
{
    return q->c->scores[e] + q->factor * q->c->tau[e];
}

static double lowest(const question *q, int64_t e)
{
    return q->c->scores[e] - q->factor * q->c->tau[e];
}

/* Whether the chosen expert may stand before the other. */
static bool may_precede(const question *q, int64_t chosen, int64_t other)
{
    const double *scores = q->c->scores;
    if (chosen < 0) return lowest(q, other) <= q->c->above;
    if (q->ties && scores[chosen] == scores[other] && other < chosen) return false;
    return highest(q, chosen) >= lowest(q, other);
}

/* Whether the group may stay: no expert of it is too good to be left out. */
static bool may_stay(const question *q, int64_t group)
{
    const assay_choice *c = q->c;
    const int64_t size = c->experts / c->groups;
    for (int64_t e = group * size; e < (group + 1) * size; e++) {
        if (is_chosen(c, e)) continue;
        for (int64_t k = 0; k < c->per_token; k++)
            if (!may_precede(q, c->selected[k], e)) return false;
    }
    return true;
}

static bool is_touched(const assay_choice *c, int64_t group)
{
    const int64_t size = c->experts / c->groups;
    for (int64_t e = group * size; e < (group + 1) * size; e++)
        if (is_chosen(c, e)) return true;
    return false;
}

/* The group's score; `side` 1: at its highest, -1: at its lowest. NaN where a member is. */
static double group_score(const question *q, int64_t group, int side)
{
    const int64_t size = q->c->experts / q->c->groups;
    double first = -INFINITY, second = -INFINITY;
    for (int64_t e = group * size; e < (group + 1) * size; e++) {
        const double value = q->c->scores[e] + side * q->factor * q->c->tau[e];
        if (isnan(value)) return NAN;
        second = fmax(second, fmin(first, value));
        first = fmax(first, value);
    }
    return q->c->group_score == ASSAY_GROUP_MAX || size == 1 ? first : first + second;
}

/* Whether `a` ranks before `b` where both could be taken: the higher score, then the lower index. */
static bool ranks_before(const question *q, int64_t a, int64_t b)
{
    const double score_a = group_score(q, a, 0), score_b = group_score(q, b, 0);
    return score_a > score_b || (score_a == score_b && a < b);
}

/* Whether the group is one of those that stay when no group that is left out may reach beyond `bar`: it was chosen from,
 * or else is among the best of the `free` others that may stay. */
static bool stays(const question *q, int64_t group, double bar, int64_t room)
{
    int64_t before = 0;
    if (is_touched(q->c, group)) return true;
    if (!may_stay(q, group) || !(group_score(q, group, 1) >= bar)) return false;
    if (group_score(q, group, -1) > bar) return true;
    for (int64_t g = 0; g < q->c->groups; g++) {
        if (g == group || is_touched(q->c, g) || !may_stay(q, g) || !(group_score(q, g, 1) >= bar)) continue;
        before += group_score(q, g, -1) > bar || ranks_before(q, g, group);
    }
    return before < room;
}

/* The groups that stay with this bar, held against those that do not. */
static bool groups_agree(const question *q, double bar, int64_t room)
{
    const assay_choice *c = q->c;
    int64_t count = 0;
    for (int64_t g = 0; g < c->groups; g++) {
        const bool staying = stays(q, g, bar, room);
        count += staying;
        if (staying && !(group_score(q, g, 1) >= bar)) return false;
        if (!staying && !(group_score(q, g, -1) <= bar)) return false;
        for (int64_t lower = 0; staying && q->ties && lower < g; lower++)
            if (group_score(q, lower, 0) == group_score(q, g, 0) && !stays(q, lower, bar, room)) return false;
    }
    return count == c->groups_kept;
}

static bool groups_are_admissible(const question *q)
{
    const assay_choice *c = q->c;
    int64_t room = c->groups_kept;
    for (int64_t g = 0; g < c->groups; g++) {
        if (!is_touched(c, g)) continue;
        if (!may_stay(q, g)) return false;
        room--;
    }
    if (room < 0) return false;
    if (c->groups_kept == c->groups) {
        for (int64_t g = 0; g < c->groups; g++)
            if (!may_stay(q, g)) return false;
        return true;
    }
    /* the best of those that are left out reaches the bar */
    for (int64_t g = 0; g < c->groups; g++)
        if (groups_agree(q, group_score(q, g, -1), room)) return true;
    return false;
}

static bool is_admissible(const question *q)
{
    const assay_choice *c = q->c;
    for (int64_t k = 0; k < c->per_token && c->padded; k++)
        if (c->selected[k] >= 0 && !(highest(q, c->selected[k]) >= c->above)) return false;
    if (c->fixed) return false;
    return c->groups > 1 ? groups_are_admissible(q) : may_stay(q, 0);
}

assay_choice_verdict assay_choice_judge(const assay_choice *c)
{
    const question strict = {.c = c, .factor = 1.0, .ties = !c->any_of_tied}, loose = {.c = c, .factor = 1.0};
    if (!assay_choice_is_valid(c)) return ASSAY_CHOICE_INVALID;
    if (is_exact(c)) return ASSAY_CHOICE_EXACT;
    if (c->free) return ASSAY_CHOICE_ADMISSIBLE;
    if (is_admissible(&strict)) return ASSAY_CHOICE_ADMISSIBLE;
    return is_admissible(&loose) ? ASSAY_CHOICE_TIE : ASSAY_CHOICE_WRONG;
}

double assay_choice_excess(const assay_choice *c)
{
    question q = {.c = c, .factor = 1.0};
    double low = 0.0, high = 1.0;
    while (q.factor = high, !is_admissible(&q)) {
        low = high;
        high *= 2.0;
        if (high > 0x1p100) return INFINITY;
    }
    for (int i = 0; i < 40; i++) {
        q.factor = 0.5 * (low + high);
        if (is_admissible(&q)) {
            high = q.factor;
        } else {
            low = q.factor;
        }
    }
    return high;
}

static double score_of(const assay_choice *c, int32_t expert)
{
    return expert < 0 ? c->above : c->scores[expert];
}

void assay_choice_swap(const assay_choice *c, int32_t *chosen, int32_t *better)
{
    *chosen = *better = -1;
    for (int64_t k = 0; k < c->per_token; k++) {
        const int32_t mine = c->selected[k], theirs = c->golden[k];
        if (!holds(c->golden, c->per_token, mine) && (*chosen < 0 || score_of(c, mine) < c->scores[*chosen]))
            *chosen = mine;
        if (!is_chosen(c, theirs) && (*better < 0 || score_of(c, theirs) > c->scores[*better])) *better = theirs;
    }
}
