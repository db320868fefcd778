#include "harness/filters/filters.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"
#include "harness/plan/directions.h"
#include "harness/plan/results.h"
#include "oracle/base/memory.h"

#define FALSE_ALARM 1e-6 /* what `assay compare` takes when nothing is said */

/* What is farther out than this fails whatever errors are on top; a filter along another error must show one by so many
 * spreads more than it has to. */
#define CERTAIN 1.5
#define CERTAIN_SPREADS 2.5

/* Deviations in all below which no filter tells an error from correct implementations. */
#define LEAST_NORM 2.0

/* Filters of a golden may take so many bytes, and so much of what it has without. */
#define MOST_BYTES 0.5e6
#define MOST_SHARE 0.5

/* A mutant that may have a filter. */
typedef struct known_error {
    const assay_mutant *mutant;
    double *moved;
    bool *subtle; /* by precision: may have one */
} known_error;

typedef struct maker {
    assay_plan *plan;
    assay_tensor_set *golden;
    assay_tensor_set bare; /* what is given and results: what mutants are made from */
    assay_fixture_reader *reader;
    known_error *errors; /* [assay_mutant_count] */
    int count;
    int64_t elements;
    double bytes_left;
    bool chosen; /* the plan has filters already */
} maker;

bool assay_filter_moved(const assay_plan *plan, const assay_tensor_set *golden, const assay_tensor_set *mutant,
                        double *moved)
{
    bool finite = true, any = false;
    for (int i = 0; i < plan->list.count; i++) {
        const assay_tensor_spec *spec = &plan->list.entries[i].spec;
        const assay_tensor *right = assay_tensor_set_find(golden, spec->path);
        const assay_tensor *wrong = assay_tensor_set_find(mutant, spec->path);
        if (right == NULL || !assay_direction_covers(spec)) continue;
        if (wrong == NULL || !assay_tensor_is_complete(wrong)) return false;
        for (int64_t k = 0; k < right->count; k++) {
            const double a = right->values[k], b = wrong->values[k];
            const bool same = a == b || (isnan(a) && isnan(b));
            moved[k] = same ? 0 : b - a;
            finite &= isfinite(moved[k]);
            any |= !same;
        }
        moved += right->count;
    }
    return finite && any;
}

bool assay_filter_is_for(const assay_mutant *mutant)
{
    assay_tensor_edit *const edit = mutant->results.edit;
    return mutant->degrade == NULL && !mutant->other_seed && !assay_mutant_requantises(mutant) && !mutant->always &&
           edit != assay_edit_truncate && edit != assay_edit_coarser;
}

static double largest_excess(const assay_report *report)
{
    double largest = 0;
    for (int i = 0; i < report->count; i++) {
        const assay_tensor_result *r = &report->tensors[i];
        if (r->verdict == ASSAY_FAIL && r->wrong_elements + r->wrong_rows == 0 && r->worst_statistic < 0)
            return INFINITY;
        largest = fmax(largest, fmax(r->worst_element, r->worst_row));
        for (int s = 0; s < r->statistics_count; s++) largest = fmax(largest, r->statistics[s].excess);
    }
    return largest;
}

/* Whether an element shows the mutant for certain, or nothing shows it: norm of error / deviation. */
static bool is_settled(const maker *m, const assay_profile *profile, const double *moved, bool *shows)
{
    const double quantile = assay_thresholds_of(FALSE_ALARM, m->elements, 1, 1).element;
    const double unit = assay_dtype_unit_roundoff(profile->storage);
    double squares = 0;
    for (int i = 0; i < m->plan->list.count; i++) {
        const assay_tensor_spec *spec = &m->plan->list.entries[i].spec;
        const assay_tensor *right = assay_tensor_set_find(m->golden, spec->path);
        if (right == NULL || !assay_direction_covers(spec)) continue;
        const assay_tensor *scales = assay_results_scales(m->golden, profile, spec->path);
        for (int64_t k = 0; k < right->count; k++) {
            const double scale = scales->values[k], rounding = unit * fabs(right->values[k]);
            if (!(scale > 0)) continue;
            *shows |= fabs(moved[k]) > CERTAIN * (quantile * scale + rounding);
            squares += moved[k] * moved[k] / (scale * scale + rounding * rounding * (1.0 / 3.0));
        }
        moved += right->count;
    }
    return *shows || squares < LEAST_NORM * LEAST_NORM;
}

/* Whether elements, rows and statistics of the tensors show the mutant for certain. */
static assay_status look(assay_context *ctx, const maker *m, const assay_profile *profile, const assay_tensor_set *made,
                         bool *shows)
{
    assay_status status;
    assay_fixture_reader *candidate = NULL;
    assay_tensor_set results = {0};
    assay_report report = {0};
    TRY(assay_tensor_set_copy(ctx, made, &results));
    assay_candidate_round(&results, profile);
    TRY(assay_trial_reader(ctx, &results, "candidate", profile, &candidate));
    TRY(assay_compare_undiagnosed(ctx, m->reader, candidate, profile, FALSE_ALARM, assay_plan_order(m->plan), &report));
    *shows = report.verdict == ASSAY_NOT_COMPARABLE || largest_excess(&report) > CERTAIN;
cleanup:
    assay_fixture_close(candidate);
    assay_tensor_set_free(&results);
    assay_report_free(&report);
    return status;
}

static assay_status try_mutant(assay_context *ctx, maker *m, const assay_mutant *mutant)
{
    assay_status status;
    assay_tensor_set results = {0};
    known_error error = {.mutant = mutant};
    bool applies = true, any = false;
    const assay_trial t = {.plan = m->plan,
                           .golden = &m->bare,
                           .profile = assay_plan_profile(m->plan, m->plan->precisions[0].name),
                           .false_alarm = FALSE_ALARM};
    TRY(assay_mutant_make(ctx, &t, mutant, &results, &applies));
    if (!applies) goto cleanup;
    TRY(assay_alloc_f64(ctx, "a known error", m->elements, &error.moved));
    if (!assay_filter_moved(m->plan, &m->bare, &results, error.moved)) goto cleanup;
    error.subtle = calloc((size_t)m->plan->precision_count, sizeof *error.subtle);
    if (error.subtle == NULL) {
        status = assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for known errors");
        goto cleanup;
    }
    for (int p = 0; p < m->plan->precision_count; p++) {
        const assay_profile *profile = assay_plan_profile(m->plan, m->plan->precisions[p].name);
        bool shows = false;
        error.subtle[p] = m->chosen || !is_settled(m, profile, error.moved, &shows);
        if (!m->chosen && error.subtle[p]) TRY(look(ctx, m, profile, &results, &shows));
        error.subtle[p] &= !shows;
        any |= error.subtle[p];
    }
    if (!any) goto cleanup;
    m->errors[m->count++] = error;
    error = (known_error){0};
cleanup:
    free(error.moved);
    free(error.subtle);
    assay_tensor_set_free(&results);
    return status;
}

/* Whether the plan has a filter along it. */
static bool is_planned(const maker *m, const char *name, int p)
{
    char path[ASSAY_PATH_SIZE];
    assay_direction_null_path(name, m->plan->precisions[p].name, path);
    return assay_plan_find(m->plan, path) >= 0;
}

static bool is_planned_anywhere(const maker *m, const char *name)
{
    bool found = false;
    for (int p = 0; p < m->plan->precision_count; p++) found |= is_planned(m, name, p);
    return found;
}

static assay_status find_errors(assay_context *ctx, maker *m)
{
    m->errors = calloc((size_t)assay_mutant_count, sizeof *m->errors);
    if (m->errors == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for known errors");
    for (int i = 0; i < assay_mutant_count; i++) {
        const assay_mutant *mutant = &assay_mutants[i];
        if (!assay_mutant_is_for(mutant, m->plan) || !assay_filter_is_for(mutant)) continue;
        if (m->chosen && !is_planned_anywhere(m, mutant->name)) continue;
        MUST(try_mutant(ctx, m, mutant));
    }
    return ASSAY_OK;
}

/* A filter that tells its error from correct implementations. */
typedef struct filter {
    const known_error *error;
    double *values;
    double row[ASSAY_NULL_COLUMNS];
} filter;

static int by_spread(const void *a, const void *b)
{
    const filter *first = a, *second = b;
    const double x = first->row[ASSAY_NULL_SPREAD], y = second->row[ASSAY_NULL_SPREAD];
    if (x != y) return x > y ? -1 : 1;
    return first->error->mutant < second->error->mutant ? -1 : 1;
}

/* Whether another error lies so far along the filter that this shows it for certain. */
static bool shows(const maker *m, const filter *f, const double *moved, double quantile)
{
    double along = 0;
    for (int64_t i = 0; i < m->elements; i++) along += f->values[i] * moved[i];
    return assay_statistic_deviation(ASSAY_STATISTIC_SLOPE, along, f->row) > quantile + CERTAIN_SPREADS;
}

static double filter_bytes(const maker *m)
{
    return 2.0 * (double)m->elements;
}

static assay_status add_tensor(assay_context *ctx, const maker *m, const char *path, const double *values)
{
    assay_status status = ASSAY_OK;
    assay_tensor *to = assay_tensor_set_find(m->golden, path); /* a golden that is read has room for it */
    const assay_tensor_spec *spec = &m->plan->specs[assay_plan_find(m->plan, path)];
    if (to == NULL) status = assay_tensor_set_add(ctx, m->golden, spec, &to);
    if (status != ASSAY_OK) return status;
    assay_dtype_round_many(spec->type, to->count, values, to->values);
    to->written = to->count;
    return ASSAY_OK;
}

static assay_status keep(assay_context *ctx, maker *m, int p, const filter *f)
{
    char path[ASSAY_PATH_SIZE];
    const char *profile = m->plan->precisions[p].name, *name = f->error->mutant->name;
    const double *values = f->values;
    if (!m->chosen) MUST(assay_plan_add_direction(ctx, m->plan, profile, name));
    assay_direction_null_path(name, profile, path);
    MUST(add_tensor(ctx, m, path, f->row));
    for (int i = 0; i < m->plan->list.count; i++) {
        const assay_tensor_spec *spec = &m->plan->list.entries[i].spec;
        if (!assay_direction_covers(spec) || assay_tensor_set_find(m->golden, spec->path) == NULL) continue;
        assay_filter_path(profile, name, spec->path, path);
        MUST(add_tensor(ctx, m, path, values));
        values += assay_shape_count(&spec->shape);
    }
    m->bytes_left -= filter_bytes(m);
    return ASSAY_OK;
}

/* The least sharp ones first: what these show needs no filter of its own. */
static assay_status keep_needed(assay_context *ctx, maker *m, int p, filter *found, int count, double quantile)
{
    int kept = 0;
    qsort(found, (size_t)count, sizeof *found, by_spread);
    for (int i = 0; i < count; i++) {
        bool shown = false;
        for (int k = 0; k < kept && !shown; k++) shown = shows(m, &found[k], found[i].error->moved, quantile);
        if (!m->chosen && (shown || m->bytes_left < filter_bytes(m))) continue;
        MUST(keep(ctx, m, p, &found[i]));
        const filter swapped = found[kept];
        found[kept++] = found[i];
        found[i] = swapped;
    }
    return ASSAY_OK;
}

static assay_status make_filters(assay_context *ctx, const maker *m, int p, const assay_correct_runs *runs,
                                 const assay_thresholds *thresholds, filter *found, int *count)
{
    for (int i = 0; i < m->count; i++) {
        const known_error *error = &m->errors[i];
        filter f = {.error = error};
        if (m->chosen ? !is_planned(m, error->mutant->name, p) : !error->subtle[p]) continue;
        MUST(assay_alloc_f64(ctx, "a filter", m->elements, &f.values));
        found[(*count)++] = f;
        MUST(assay_correct_runs_filter(ctx, runs, error->moved, f.values, found[*count - 1].row));
        if (m->chosen || assay_direction_is_resolved(thresholds, found[*count - 1].row)) continue;
        free(f.values);
        --*count;
    }
    return ASSAY_OK;
}

/* As many statistics as the golden is judged by without filters, and about as many filters as one has. */
static assay_thresholds thresholds_of(const maker *m, int p)
{
    enum { FILTERS = 10 };
    int64_t statistics = FILTERS;
    char path[ASSAY_PATH_SIZE];
    for (int i = 0; i < m->golden->count; i++) {
        const assay_tensor *tensor = &m->golden->items[i];
        assay_path_at(ASSAY_ROLE_NULL, m->plan->precisions[p].name, tensor->spec.path, path);
        const assay_tensor *null = assay_tensor_set_find(m->golden, path);
        for (int64_t row = 0; null != NULL && row < null->count / ASSAY_NULL_COLUMNS; row++)
            statistics += null->values[row * ASSAY_NULL_COLUMNS + ASSAY_NULL_SPREAD] > 0;
    }
    return assay_thresholds_of(FALSE_ALARM, 1, 1, statistics);
}

static bool has_work(const maker *m, int p)
{
    bool any = false;
    for (int i = 0; i < m->count; i++)
        any |= m->chosen ? is_planned(m, m->errors[i].mutant->name, p) : m->errors[i].subtle[p];
    return any;
}

static assay_status add_of_precision(assay_context *ctx, maker *m, int p)
{
    assay_status status;
    assay_correct_runs runs = {0};
    int count = 0;
    filter *found = calloc((size_t)m->count + 1, sizeof *found);
    if (found == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for filters");
    const assay_thresholds thresholds = thresholds_of(m, p);
    TRY(assay_correct_runs_make(ctx, m->plan, m->golden, p, &runs));
    TRY(make_filters(ctx, m, p, &runs, &thresholds, found, &count));
    TRY(keep_needed(ctx, m, p, found, count, assay_statistic_quantile(&thresholds, runs.members)));
cleanup:
    for (int i = 0; i < count; i++) free(found[i].values);
    free(found);
    assay_correct_runs_free(&runs);
    return status;
}

/* A copy of what mutants are made from. */
static assay_status take_bare(assay_context *ctx, maker *m)
{
    const assay_source all = assay_tensor_set_source(m->golden);
    for (int i = 0; i < m->golden->count; i++) {
        const assay_tensor_spec *spec = &m->golden->items[i].spec;
        const bool wanted = assay_role_is_input(spec->role) || assay_role_is_result(spec->role);
        if (wanted && assay_tensor_is_complete(&m->golden->items[i]))
            MUST(assay_tensor_set_read(ctx, &m->bare, spec, &all));
    }
    return ASSAY_OK;
}

/* Equal rows have equal errors in a kernel, and other ones in every emulated run: what they add up to along a known error
 * is not in the members. */
static bool rows_repeat(const assay_tensor_set *given)
{
    bool found = false;
    for (int i = 0; i < given->count && !found; i++) {
        const assay_tensor *tensor = &given->items[i];
        const int64_t width = assay_tensor_width(tensor);
        if (tensor->spec.role != ASSAY_ROLE_INPUT || tensor->values == NULL || tensor->count < 2 * width) continue;
        found = true;
        for (int64_t k = width; k < tensor->count && found; k++) found = tensor->values[k] == tensor->values[k - width];
    }
    return found;
}

assay_status assay_filters_add(assay_context *ctx, assay_plan *plan, assay_tensor_set *golden)
{
    assay_status status;
    maker m = {.plan = plan, .golden = golden, .elements = assay_direction_elements(plan)};
    const int threads = ctx->threads;
    m.bytes_left = fmax(MOST_BYTES, MOST_SHARE * (double)plan->file_bytes);
    m.chosen = assay_plan_has_directions(plan);
    if (assay_direction_members(plan) == 0 || plan->precision_count == 0) return ASSAY_OK;
    ctx->threads = assay_plan_threads(ctx, plan);
    TRY(take_bare(ctx, &m));
    if (!m.chosen && rows_repeat(&m.bare)) goto cleanup;
    TRY(assay_trial_reader(ctx, golden, "golden", NULL, &m.reader));
    TRY(find_errors(ctx, &m));
    for (int p = 0; p < plan->precision_count; p++) {
        if (has_work(&m, p)) TRY(add_of_precision(ctx, &m, p));
    }
cleanup:
    ctx->threads = threads;
    for (int i = 0; i < m.count; i++) {
        free(m.errors[i].moved);
        free(m.errors[i].subtle);
    }
    free(m.errors);
    assay_fixture_close(m.reader);
    assay_tensor_set_free(&m.bare);
    return status;
}
