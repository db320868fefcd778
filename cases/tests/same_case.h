/* Cases in tests: from text, and whether two are the same in everything but where they were read. */
#pragma once

#include "cases/case.h"
#include "tests/support/assay_test.h"

/* For OWNED_BY: a case in memory of its own. */
static inline void free_case(assay_case **c)
{
    assay_cases_free(*c, 1);
}

/* A case from text, OWNED_BY(free_case). */
static inline assay_case *case_from(const char *yaml)
{
    assay_context ctx = {.threads = 1};
    assay_case *c = NULL;
    int count = 0;
    assert_ok(&ctx, assay_cases_parse(&ctx, "test.yml", yaml, strlen(yaml), &c, &count));
    assert_int_equal(count, 1);
    return c;
}

/* NULL when they are, else what differs first: "config.num_experts", "inputs". */
const char *assay_case_difference(const assay_case *a, const assay_case *b);

/* A new file of this text, called as `path`, which ends in XXXXXX.yml. */
void write_case_file(char *path, const char *text);
