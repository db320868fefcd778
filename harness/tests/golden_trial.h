/* A golden on disk, and where a candidate of it goes. */
#ifndef ASSAY_HARNESS_TESTS_GOLDEN_TRIAL_H
#define ASSAY_HARNESS_TESTS_GOLDEN_TRIAL_H

#include "harness/tests/harness_test.h"

typedef struct trial {
    assay_context ctx;
    assay_case *c;
    assay_plan plan;
    assay_fixture_reader *golden;
    char candidate[TEST_PATH_SIZE + 32];
} trial;

static inline void open_trial(trial *t, const test_folder *folder, assay_case *c)
{
    *t = (trial){.ctx = assay_context_default(1), .c = c};
    snprintf(t->candidate, sizeof t->candidate, "%s/candidate.h5", folder->path);
    assert_ok(&t->ctx, assay_plan_make(&t->ctx, &t->plan, c));
    assert_ok(&t->ctx, assay_golden_write(&t->ctx, &t->plan, folder->file, NULL, true));
    assert_ok(&t->ctx, assay_fixture_open(&t->ctx, folder->file, &t->golden));
}

static inline void close_trial(trial *t)
{
    assay_fixture_close(t->golden);
    assay_plan_free(&t->plan);
    assay_cases_free(t->c, 1);
}

#endif
