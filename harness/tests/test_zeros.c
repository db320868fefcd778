/* Every 0 of the catalogue's goldens whose error scale is 0, so that a candidate must have 0 as well, has a reason. The second form says it:
 * each number on its tape is moved by a millionth by itself, inputs too, and then it runs back. A sum stays 0 where each of its terms has a
 * factor of 0: a mask, padding, an expert that nobody chose, a row behind the last group, an operand of 0. A difference that cancels does
 * not, and correct kernels have what rounding leaves of it. */
#include <quadmath.h>

#include "harness/certify/certificate.h"
#include "harness/tests/golden_trial.h"
#include "oracle/quad/quad_internal.h"
#include "oracle/quad/tape.h"

TEST_LABELS(catalogue);

static const double MOST_FLOPS = 3e6;
static const double MOVED = 1e-6;

/* Of recipes: a block of zeros that is quantised has no scale, and the emulated runs leave it so. */
enum { EXACT_CASE, ZERO_IN_EVERY_TERM, QUANTISED_ZEROS, REASONS };
static const char *const reasons[REASONS] = {"all of an exact case", "a 0 in every term", "behind a block of zeros"};

typedef struct moved_form {
    const assay_operation *operation;
    assay_operation_config config;
} moved_form;

static void move(uint64_t *seed, int64_t count, quad *values)
{
    for (int64_t i = 0; i < count; i++) {
        const double step = (double)(quad_next_random(seed) >> 11) * 0x1p-52 - 1;
        if (finiteq(values[i])) values[i] *= 1 + MOVED * step;
    }
}

static void run_moved(quad_tape *t, const void *with)
{
    const moved_form *form = with;
    uint64_t seed = 1;
    form->operation->second_form.form(t, &form->config);
    for (int i = 1; i < t->count && t->status == ASSAY_OK; i++) {
        const quad_record *r = &t->records[i];
        if (r->own && r->values != NULL) move(&seed, r->rows * r->columns, r->values);
    }
}

/* Of a 0 that must be equal; -1: there is none. */
static int reason_of(const assay_case *c, quad moved)
{
    if (has_tag(c, "exact")) return EXACT_CASE;
    if ((double)moved == 0) return ZERO_IN_EVERY_TERM;
    return c->config.quant_recipe.text[0] != '\0' ? QUANTISED_ZEROS : -1;
}

/* Adds to the counts; returns how many have no reason. */
static int64_t name_reasons(const assay_case *c, const quad_tensors *results, const quad_tensors *moved,
                            int64_t counts[REASONS])
{
    char path[ASSAY_PATH_SIZE + 16];
    int64_t nameless = 0;
    for (int i = 0; i < results->count; i++) {
        const quad_tensor *golden = &results->items[i];
        snprintf(path, sizeof path, "error_scale/f64/%s", golden->path);
        const quad_tensor *scale = quad_tensors_find(results, path), *m = quad_tensors_find(moved, golden->path);
        if (scale == NULL || golden->values == NULL) continue;
        for (int64_t k = 0; k < assay_shape_count(&golden->shape); k++) {
            if (golden->values[k] != 0 || scale->values[k] != 0) continue;
            const int reason = m == NULL ? -1 : reason_of(c, m->values[k]);
            if (reason >= 0) {
                counts[reason]++;
            } else if (nameless++ == 0) {
                printf("%s: %s[%d] is 0 and must be equal, but its terms cancel: %g\n", c->name, golden->path, (int)k,
                       m == NULL ? NAN : (double)(m->values[k] / MOVED));
            }
        }
    }
    return nameless;
}

static int64_t try_case(assay_case *c, int64_t counts[REASONS], int *judged)
{
    trial t;
    assay_certificate_inputs inputs = {0};
    moved_form form;
    quad_tensors moved = {0};
    uint64_t seed = 2;
    int64_t nameless = 0;
    assay_context ctx = assay_context_default(1);
    assert_ok(&ctx, assay_case_set(&ctx, c, "profiles=none"));
    trial_plan(&t, c);
    if (assay_operation_flops(t.plan.operation, c, true) > MOST_FLOPS) goto done;
    ++*judged;
    assert_ok(&t.ctx, assay_certificate_inputs_collect(&t.ctx, &inputs, &t.plan, &t.source, NULL));
    for (int i = 0; i < inputs.in.count; i++)
        if (inputs.in.items[i].values != NULL)
            move(&seed, assay_shape_count(&inputs.in.items[i].shape), inputs.in.items[i].values);
    form.operation = t.plan.operation;
    assert_ok(&t.ctx, assay_operation_configure(&t.ctx, form.operation, c, &form.config));
    const assay_status status = quad_differentiate(&t.ctx, run_moved, &form, &inputs.in, &inputs.results, &moved, NULL);
    if (status != ASSAY_OK) fail_msg("%s: %s", c->name, t.ctx.message);
    nameless = name_reasons(c, &inputs.results, &moved, counts);
    quad_tensors_free(&moved);
    assay_certificate_inputs_free(&inputs);
done:
    assay_inputs_close(&t.inputs);
    assay_plan_free(&t.plan);
    return nameless;
}

TEST(every_zero_that_must_be_equal_has_a_reason)
{
    int count = 0, judged = 0;
    int64_t nameless = 0, counts[REASONS] = {0};
    assay_case *cases = all_cases(&count);
    for (int i = 0; i < count; i++)
        if (!has_tag(&cases[i], "true-size")) nameless += try_case(&cases[i], counts, &judged);
    for (int i = 0; i < REASONS; i++) printf("%s: %lld\n", reasons[i], (long long)counts[i]);
    printf("%d cases\n", judged);
    assert_int_equal(nameless, 0);
    assert_true(judged >= 1000);
    for (int i = 0; i < REASONS; i++) assert_true(counts[i] > 0);
    assay_cases_free(cases, count);
}
