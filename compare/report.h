/* A report as text for a terminal, as JSON, as JUnit XML and as an HTML page. The forms only arrange what compare.h found. */
#pragma once

#include "compare/pictures.h"

typedef struct assay_report_style {
    bool color;
    int verbosity; /* 0: the first wrong tensor in detail; 1: all tensors */
} assay_report_style;

/* *text is allocated. */
assay_status assay_report_text(assay_context *ctx, const assay_report *report, const assay_report_style *style,
                               char **text);
assay_status assay_report_json(assay_context *ctx, int count, const assay_report *reports, char **text);
assay_status assay_report_junit(assay_context *ctx, int count, const assay_report *reports, char **text);
assay_status assay_report_html(assay_context *ctx, int count, const assay_report *reports, char **text);
