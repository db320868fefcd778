/* The verdict on a fixture from those on its tensors. Private to compare/. */
#pragma once

#include "compare/compare.h"

/* Whether anything was shown: required tensors that agree and whose zeros would not have. */
typedef struct assay_certificate_inputs {
    bool floats_required; /* the golden has required tensors of a float type */
    bool floats, integers;
} assay_certificate_inputs;

/* The power of the report must be there. FAIL over NOT COMPARABLE over VACUOUS over PASS; sets verdict and message of the report. */
void assay_conclude(assay_report *report, const assay_certificate_inputs *shown);
