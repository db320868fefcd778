#include "harness/plan/sections.h"

#include <math.h>
#include <string.h>

/* Members by the operations of one run and the elements that it leaves: the first row that holds both. */
static const struct {
    double work, elements;
    int coarse, fine; /* where something is rounded more coarsely than in float32; elsewhere */
} members[] = {
    {1e5, 3e5, ASSAY_MOST_MEMBERS, 16}, {1e7, 3e5, 48, 16}, {1e8, INFINITY, 16, 16}, {INFINITY, INFINITY, 8, 8}};

enum { ROWS = sizeof members / sizeof *members };

static double elements_left(const assay_plan *plan)
{
    double count = 0;
    for (int i = 0; i < plan->spec_count; i++) {
        const assay_tensor_spec *spec = &plan->specs[i];
        count += assay_has_error_scale(spec) ? (double)assay_shape_count(&spec->shape) : 0;
    }
    return count;
}

/* At float32 and float64 few members find nearly all that is wrong: it is far out. */
static bool is_coarse(const assay_precision *p)
{
    return fmax(fmax(p->storage, p->multiply), p->accumulate) > ASSAY_FLOAT32_RMS || p->scaled.block > 0;
}

int assay_ensemble_members(const assay_plan *plan, const assay_precision *precision)
{
    if (assay_plan_is_exact(plan)) return 0;
    const double work = assay_operation_flops(plan->operation, plan->c, true), elements = elements_left(plan);
    int row = 0;
    while (row < ROWS - 1 && (work >= members[row].work || elements > members[row].elements)) row++;
    return is_coarse(precision) ? members[row].coarse : members[row].fine;
}

bool assay_ensemble_keeps(const assay_plan *plan)
{
    return strcmp(plan->c->op, "program") == 0;
}

int assay_ensemble_most_members(const assay_plan *plan)
{
    int most = 0;
    for (int p = 0; p < plan->precision_count; p++) {
        const int count = assay_ensemble_members(plan, &plan->precisions[p]);
        most = count > most ? count : most;
    }
    return most;
}

static bool holds_null(const assay_plan *plan)
{
    bool null = false;
    for (int i = 0; !null && i < plan->spec_count; i++) null = plan->specs[i].role == ASSAY_ROLE_NULL;
    return null;
}

/* Bytes that members leave: of an element with an error scale the golden value, their errors, and the
 * error scale that null distributions need. */
static double bytes_left(const assay_plan *plan)
{
    double bytes = 0, largest = 0;
    const int floats = assay_ensemble_most_members(plan) + holds_null(plan) + assay_ensemble_keeps(plan);
    for (int i = 0; plan->precision_count > 0 && i < plan->spec_count; i++) {
        if (!assay_has_error_scale(&plan->specs[i])) continue;
        const double count = (double)assay_shape_count(&plan->specs[i].shape);
        bytes += (double)(sizeof(double) + (size_t)floats * sizeof(float)) * count;
        largest = fmax(largest, (double)sizeof(double) * count); /* squares, of one tensor at a time */
    }
    return bytes + largest;
}

/* Of what assay_ensemble_read_inputs takes. */
static double bytes_given(const assay_plan *plan)
{
    double bytes = 0;
    for (int i = 0; i < plan->spec_count; i++) {
        const double more = (double)sizeof(double) * (double)assay_shape_count(&plan->specs[i].shape);
        if (assay_role_is_input(plan->specs[i].role) && bytes + more <= ASSAY_ENSEMBLE_BYTES) bytes += more;
    }
    return bytes;
}

int64_t assay_ensemble_memory(const assay_plan *plan)
{
    if (plan->precision_count == 0) return 0;
    const double bytes = bytes_given(plan) + bytes_left(plan);
    return bytes < 0x1p61 ? (int64_t)bytes : INT64_C(1) << 61; /* whose sum with the operation's own has 64 bits */
}
