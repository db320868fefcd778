/* A report on its way from one process of the same program to another. */
#pragma once

#include <stdio.h>

#include "compare/pictures.h"

/* An error stays with the stream. */
void assay_report_pack(const assay_report *report, FILE *out);
/* Reads it from *at, which is moved behind it; `end` is that of what came. `report` is freed by the caller. */
assay_status assay_report_unpack(assay_context *ctx, const char **at, const char *end, assay_report *report);
