/* Which number a mutant has that may have any: the one whose results are nearest to the candidate's. */
#include <math.h>

#include "harness/explain/explain_internal.h"
#include "oracle/ops/activation.h"

/* What nobody takes for alpha is beyond; a few secants from 1.702 reach what is within. */
#define LEAST 0.05
#define MOST 20.0
enum { STEPS = 12 };

/* How far the candidate has come from the one results to the other, 0 to 1 or beyond, by least squares of error /
 * deviation; where there are none, 0. */
static double part_of_way(const assay_trial *t, const assay_candidate_results *of_candidate,
                          const assay_tensor_set *from, const assay_tensor_set *to)
{
    double product = 0.0, square = 0.0;
    for (int i = 0; i < of_candidate->written; i++) {
        const assay_memory_tensor *tensor = &of_candidate->tensors[i];
        const assay_tensor *a = assay_tensor_set_find(from, tensor->spec.path),
                           *b = assay_tensor_set_find(to, tensor->spec.path),
                           *scales = assay_results_scales(t->golden, t->profile, tensor->spec.path);
        const bool known = tensor->numbers != NULL && scales != NULL;
        for (int64_t k = 0; known && k < a->count && assay_shape_equal(&tensor->spec.shape, &a->spec.shape); k++) {
            const double step = (b->values[k] - a->values[k]) / scales->values[k];
            const double error = (tensor->numbers[k] - a->values[k]) / scales->values[k];
            if (!isfinite(step * error)) continue;
            product += step * error;
            square += step * step;
        }
    }
    return square > 0.0 ? product / square : 0.0;
}

assay_status assay_mutant_fit(assay_context *ctx, const assay_trial *t, const assay_candidate_results *of_candidate,
                              assay_mutant *mutant)
{
    assay_status status;
    assay_tensor_set results[2] = {0};
    double at = ASSAY_GPT_OSS_ALPHA, step = mutant->step.by - at;
    bool applies = true;
    TRY(assay_tensor_set_copy(ctx, t->golden, &results[0]));
    for (int i = 1; i <= STEPS && fabs(step) > 1e-9; i++) {
        assay_tensor_set *from = &results[(i - 1) % 2], *to = &results[i % 2];
        assay_tensor_set_free(to);
        mutant->step.by = at + step;
        TRY(assay_mutant_make(ctx, t, mutant, to, &applies));
        if (!applies) goto cleanup;
        const double next = at + part_of_way(t, of_candidate, from, to) * step;
        at = mutant->step.by;
        step = fmin(fmax(next, LEAST), MOST) - at;
    }
    mutant->step.by = at + step;
cleanup:
    for (int i = 0; i < 2; i++) assay_tensor_set_free(&results[i]);
    return status;
}
