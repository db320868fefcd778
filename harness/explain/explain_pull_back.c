/* The chain rule through a mutant's change of its inputs. Every such change is a selection: each number that the
 * operation reads is a factor times one number that was given, plus a constant. Three probes tell which: what becomes
 * of zeros, of ones, and of numbers that say where they come from. */
#include <math.h>
#include <stdlib.h>

#include "harness/explain/explain_internal.h"
#include "oracle/base/memory.h"

typedef enum probe { ZEROS, ONES, PLACES, PROBES } probe;

static bool is_probed(const assay_tensor *tensor)
{
    const assay_tensor_role role = tensor->spec.role;
    return (role == ASSAY_ROLE_INPUT || role == ASSAY_ROLE_WEIGHT) && tensor->values != NULL;
}

static assay_status fill_probe(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant, probe kind,
                               assay_tensor_set *probed)
{
    double place = 0.0;
    bool changes;
    const assay_mutation m = {.c = t->plan->c, .profile = t->profile, .tensors = probed};
    MUST(assay_tensor_set_copy(ctx, t->golden, probed));
    for (int i = 0; i < probed->count; i++) {
        const assay_tensor *tensor = &probed->items[i];
        for (int64_t k = 0; is_probed(tensor) && k < tensor->count; k++) {
            place += 1.0;
            tensor->values[k] = kind == ZEROS ? 0.0 : kind == ONES ? 1.0 : place;
        }
    }
    return assay_mutant_change_inputs(ctx, mutant, &m, &changes);
}

/* Its error scales where there is a profile. */
static assay_tensor *gradient_of(const assay_tensor_set *results, const assay_profile *profile,
                                 const assay_tensor *of_candidate)
{
    char path[ASSAY_PATH_SIZE];
    assay_gradient_path(of_candidate->spec.path, path);
    assay_tensor *found =
        profile == NULL ? assay_tensor_set_find(results, path) : assay_results_scales(results, profile, path);
    return found != NULL && assay_tensor_is_complete(found) && found->count == of_candidate->count ? found : NULL;
}

/* The gradients by all numbers that were given, one after the other, or those gradients' error scales. */
static void flatten(const assay_tensor_set *results, const assay_profile *profile, double **places)
{
    int64_t place = 0;
    for (int i = 0; i < results->count; i++) {
        const assay_tensor *of_candidate = &results->items[i];
        const assay_tensor *gradient = is_probed(of_candidate) ? gradient_of(results, profile, of_candidate) : NULL;
        for (int64_t k = 0; is_probed(of_candidate) && k < of_candidate->count; k++)
            places[place++] = gradient == NULL ? NULL : &gradient->values[k];
    }
}

/* Adds up into `sums` what flows back to each of `count` numbers, or its squares. False where a gradient that is wanted
 * needs one that is not there, and where a change is no selection: its factor is so large that places overflow. */
static bool flow_back(const assay_tensor_set probed[PROBES], double **places, int64_t count, bool squares, double *sums,
                      bool *changed)
{
    int64_t place = 0;
    for (int i = 0; i < probed[ZEROS].count; i++) {
        const assay_tensor *zeros = &probed[ZEROS].items[i];
        for (int64_t k = 0; is_probed(zeros) && k < zeros->count; k++, place++) {
            const double constant = zeros->values[k], factor = probed[ONES].items[i].values[k] - constant;
            const bool untouched = factor == 1.0 && probed[PLACES].items[i].values[k] == (double)(place + 1);
            *changed |= !untouched;
            if (factor == 0.0) continue;
            const double read = round((probed[PLACES].items[i].values[k] - constant) / factor) - 1;
            if (!(read >= 0 && read < (double)count)) return false;
            const int64_t from = (int64_t)read;
            if (places[from] == NULL) continue;
            if (places[place] == NULL) return false;
            const double part = factor * *places[place];
            sums[from] += squares ? part * part : part;
        }
    }
    return true;
}

static int64_t count_given(const assay_tensor_set *results)
{
    int64_t count = 0;
    for (int i = 0; i < results->count; i++)
        if (is_probed(&results->items[i])) count += results->items[i].count;
    return count;
}

/* Of gradients (profile NULL), or of their error scales. */
static void pull_back(const assay_tensor_set *results, const assay_profile *profile,
                      const assay_tensor_set probed[PROBES], double **places, double *sums, int64_t count,
                      bool *changed)
{
    const bool is_scale = profile != NULL;
    for (int64_t i = 0; i < count; i++) sums[i] = 0.0;
    flatten(results, profile, places);
    if (!flow_back(probed, places, count, is_scale, sums, changed)) *changed = false;
    for (int64_t i = 0; *changed && i < count; i++)
        if (places[i] != NULL) *places[i] = is_scale ? assay_dtype_round(ASSAY_FLOAT32, sqrt(sums[i]), false) : sums[i];
}

assay_status assay_mutant_pull_back(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant,
                                    assay_tensor_set *results, bool *changed)
{
    assay_status status = ASSAY_OK;
    assay_tensor_set probed[PROBES] = {0};
    const int64_t count = count_given(results);
    OWNED void *places = NULL;
    OWNED double *sums = NULL;
    *changed = false;
    if (!assay_mutant_changes_inputs(mutant)) return ASSAY_OK;
    for (int kind = 0; kind < PROBES; kind++) TRY(fill_probe(ctx, t, mutant, (probe)kind, &probed[kind]));
    TRY(assay_alloc(ctx, "places of gradients", count, sizeof(double *), &places));
    TRY(assay_alloc_f64(ctx, "gradients", count, &sums));
    pull_back(results, NULL, probed, places, sums, count, changed);
    if (*changed && t->scales) pull_back(results, t->profile, probed, places, sums, count, changed);
cleanup:
    for (int kind = 0; kind < PROBES; kind++) assay_tensor_set_free(&probed[kind]);
    return status;
}
