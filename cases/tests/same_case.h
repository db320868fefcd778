/* Whether two cases are the same in everything but where they were read. */
#pragma once

#include "cases/case.h"

/* NULL when they are, else what differs first: "config.num_experts", "inputs". */
const char *assay_case_difference(const assay_case *a, const assay_case *b);

/* A new file of this text, called as `path`, which ends in XXXXXX.yml. */
void write_case_file(char *path, const char *text);
