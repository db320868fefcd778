#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compare/compare_internal.h"
#include "compare/printable.h"
#include "compare/report.h"
#include "compare/thresholds.h"
#include "oracle/base/memory.h"

enum { NAME_LIMIT = 48, SHAPE_LIMIT = 24 }; /* columns; longer texts push their line to the right */

typedef struct columns {
    int name, shape;
} columns;

static int wider(int width, size_t length, int limit)
{
    int wanted = length < (size_t)limit ? (int)length : limit;
    return wanted > width ? wanted : width;
}

static columns measure_columns(const assay_report *report)
{
    columns c = {.name = 6, .shape = 5};
    char shape[160];
    for (int i = 0; i < report->count; i++) {
        assay_shape_text(&report->tensors[i].spec.shape, shape, sizeof shape);
        c.name = wider(c.name, strlen(report->tensors[i].spec.path), NAME_LIMIT);
        c.shape = wider(c.shape, strlen(shape), SHAPE_LIMIT);
    }
    return c;
}

static const char *color_of(const assay_report_style *style, assay_verdict verdict)
{
    return style->color ? assay_verdict_color(verdict) : "";
}

static const char *color_end(const assay_report_style *style)
{
    return style->color ? "\033[0m" : "";
}

static void write_head(FILE *out, const assay_report *report)
{
    fprintf(out, "%s  op %s, profile %s, false alarm %g\n", report->case_name, report->op, report->profile,
            report->false_alarm);
    if (report->golden_path[0] != '\0') fprintf(out, "  golden     %s\n", report->golden_path);
    if (report->candidate_path[0] != '\0') fprintf(out, "  candidate  %s\n", report->candidate_path);
    char routing[512];
    assay_routing_text(&report->routing, routing);
    if (routing[0] != '\0') fprintf(out, "  %s\n", routing);
    if (report->order[0] != '\0') fprintf(out, "  order: %s\n", report->order);
    if (report->codes[0] != '\0') fprintf(out, "  codes: %s\n", report->codes);
    if (report->inaccurate) fprintf(out, "  form: %s\n", ASSAY_INACCURATE_TEXT);
    if (report->kinks[0] != '\0') fprintf(out, "  kinks: %s\n", report->kinks);
}

/* What stands in place of the numbers, or NULL. */
static const char *word_for(const assay_tensor_result *r)
{
    if (r->verdict == ASSAY_PASS && r->finding == ASSAY_FINDING_MISSING) return "not given";
    if (r->verdict == ASSAY_PASS && !r->compared) return "not compared";
    if (r->finding == ASSAY_FINDING_MISSING) return "missing";
    if (r->finding == ASSAY_FINDING_SHAPE) return "wrong shape";
    if (r->finding == ASSAY_FINDING_TYPE) return "wrong type";
    if (r->finding == ASSAY_FINDING_NO_SCALE) return "no error scale";
    if (r->finding == ASSAY_FINDING_NONFINITE) return "not finite";
    if (r->exact && r->wrong_elements == 0) return "equal";
    if (r->exact) return "differs";
    return NULL;
}

static void write_tensor(FILE *out, const assay_tensor_result *r, const assay_report_style *style, columns c)
{
    char shape[160];
    assay_shape_text(&r->spec.shape, shape, sizeof shape);
    const char *word = word_for(r);
    bool given = r->finding != ASSAY_FINDING_MISSING;
    const char *verdict = r->verdict == ASSAY_PASS && !r->compared ? "-" : assay_verdict_name(r->verdict);
    fprintf(out, "  %-*s  %-*s  %-13s  %s%-14s%s  ", c.name, r->spec.path, c.shape, shape,
            given ? assay_dtype_name(r->candidate_type) : "-", color_of(style, r->verdict), verdict, color_end(style));
    if (word != NULL) {
        fprintf(out, "%s\n", word);
    } else {
        fprintf(out, "%9.3g  %9.3g  %9.3g", r->rms_ratio, r->worst_beyond, r->worst_row);
        if (r->worst_statistic >= 0) {
            fprintf(out, "  %9.3g %s", r->statistics[r->worst_statistic].excess,
                    assay_statistic_name(r->worst_statistic));
        }
        fprintf(out, "\n");
    }
}

static void write_table(FILE *out, const assay_report *report, const assay_report_style *style)
{
    columns c = measure_columns(report);
    if (report->count == 0) return;
    fprintf(out, "\n  %-*s  %-*s  %-13s  %-14s  %9s  %9s  %9s  %9s\n", c.name, "tensor", c.shape, "shape", "type",
            "verdict", "RMS/scale", "element", "row", "statistic");
    for (int i = 0; i < report->count; i++) write_tensor(out, &report->tensors[i], style, c);
    fprintf(out,
            "  element: the worst error beyond the rounding of the result, as a multiple of what is allowed beyond it\n"
            "  row, statistic: the worst as a multiple of its threshold; in each column above 1 fails\n");
}

static void write_excess(FILE *out, double excess)
{
    if (isfinite(excess)) {
        fprintf(out, ", error %.3g times its threshold\n", excess);
    } else {
        fprintf(out, "\n"); /* not finite, or to be equal: any difference is too much */
    }
}

static void write_outliers(FILE *out, const assay_tensor_result *r)
{
    char place[ASSAY_INDEX_TEXT];
    int digits = r->exact ? 17 : 9;
    for (int i = 0; i < r->elements_worst_count; i++) {
        const assay_outlier *o = &r->elements_worst[i];
        assay_element_text(&r->spec.shape, o->index, place);
        fprintf(out, "    element %-14s golden %.*g, candidate %.*g", place, digits, o->golden, digits, o->candidate);
        write_excess(out, o->excess);
    }
    for (int i = 0; i < r->rows_worst_count && r->rows > 1; i++) {
        const assay_outlier *o = &r->rows_worst[i];
        assay_row_text(&r->spec.shape, o->index, place);
        fprintf(out, "    row     %-14s RMS golden %.6g, candidate %.6g", place, o->golden, o->candidate);
        write_excess(out, o->excess);
    }
}

/* The worst statistic alone, or all that were used. */
static void write_statistics(FILE *out, const assay_tensor_result *r, bool all)
{
    char slice[ASSAY_SLICE_TEXT], text[ASSAY_SLICE_TEXT];
    for (int i = 0; r->worst_statistic >= 0 && i < r->statistics_count; i++) {
        if (r->statistics[i].expected[ASSAY_NULL_DEVIATION] == 0 || (!all && i != r->worst_statistic)) continue;
        assay_slice_text(r, i, slice);
        assay_statistic_text(r, i, text);
        fprintf(out, "    %-7s %s%s%s, %.3g times what is allowed\n", assay_statistic_name(i), slice,
                slice[0] != '\0' ? ": " : "", text, r->statistics[i].excess);
    }
}

/* How far beyond its range a statistic may lie, and why. */
static void write_quantile(FILE *out, const assay_report *report, const assay_tensor_result *r)
{
    if (r->worst_statistic < 0) return;
    const double members = r->statistics[r->worst_statistic].expected[ASSAY_NULL_MEMBERS];
    const assay_thresholds thresholds = {.statistic_tail = report->statistic_tail};
    fprintf(out,
            "    allowed %.3g spreads beyond the range of emulated correct runs: Student's t with %.0f degrees of "
            "freedom, %.2g on each side\n",
            assay_statistic_quantile(&thresholds, members), members - 1, report->statistic_tail);
}

static void write_details(FILE *out, const assay_report *report, const assay_report_style *style)
{
    char shown[ASSAY_PRINTABLE_SIZE];
    bool first = true;
    for (int i = 0; i < report->count; i++) {
        const assay_tensor_result *r = &report->tensors[i];
        bool wrong = r->verdict == ASSAY_FAIL;
        bool detailed = style->verbosity > 0 ? r->compared : wrong && first;
        if (wrong) first = false;
        if (!detailed && r->verdict == ASSAY_PASS) continue;
        fprintf(out, "\n  %s\n", r->message[0] != '\0' ? r->message : r->spec.path);
        if (detailed) {
            write_outliers(out, r);
            write_statistics(out, r, style->verbosity > 0);
            if (style->verbosity > 0) write_quantile(out, report, r);
        }
    }
    for (int i = 0; i < report->unknown_count; i++) {
        fprintf(out, "%s  %s: unknown path, the golden has no such dataset\n", i == 0 ? "\n" : "",
                assay_printable(report->unknown[i], shown));
    }
}

/* Each stage by itself. */
static void write_stages(FILE *out, const assay_report *stages, const assay_report_style *style)
{
    char routing[512];
    if (stages == NULL) return;
    if (stages->count == 0) {
        fprintf(out, "\n  by stage: %s\n", stages->message[0] != '\0' ? stages->message : "no checkpoint is given");
        return;
    }
    fprintf(out, "\n  by stage, each evaluated from the candidate's own inputs to it\n");
    assay_routing_text(&stages->routing, routing);
    if (routing[0] != '\0') fprintf(out, "  %s\n", routing);
    write_table(out, stages, style);
    write_details(out, stages, style);
}

assay_status assay_report_text(assay_context *ctx, const assay_report *report, const assay_report_style *style,
                               char **text)
{
    size_t size = 0;
    *text = NULL;
    FILE *out = assay_text_open(text, &size);
    if (out == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the report");
    write_head(out, report);
    write_table(out, report, style);
    write_details(out, report, style);
    write_stages(out, report->stages, style);
    fprintf(out, "\n%s%s%s  %s\n", color_of(style, report->verdict), assay_verdict_name(report->verdict),
            color_end(style), report->message);
    if (report->diagnosis[0] != '\0') fprintf(out, "looks like this: %s\n", report->diagnosis);
    if (report->explanation[0] != '\0') fprintf(out, "known bugs: %s\n", report->explanation);
    if (report->explained_count > 0) fprintf(out, "  (" ASSAY_LEFT_TEXT ")\n");
    if (report->power.stated) {
        char line[ASSAY_POWER_LINE_SIZE];
        assay_power_line(&report->power, line);
        fprintf(out, "power: %s\n", line);
    }
    if (report->reproduce[0] != '\0') fprintf(out, "reproduce: %s\n", report->reproduce);
    return assay_text_close(out, text) ? ASSAY_OK : assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the report");
}
