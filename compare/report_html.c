/* The report as one page that needs nothing else: no scripts, no fonts, pictures inside. */
#include <inttypes.h>
#include <math.h>
#include <openssl/evp.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/compare_internal.h"
#include "compare/printable.h"
#include "compare/report.h"
#include "compare/steps.h"
#include "compare/style_sheets.h"
#include "oracle/base/memory.h"

/* Where there is something to say. */
static void write_shown(FILE *out, const char *before, const char *text, const char *behind)
{
    char shown[ASSAY_ESCAPED_SIZE];
    if (text[0] != '\0') fprintf(out, "%s%s%s", before, assay_escaped(text, shown), behind);
}

static void write_badge(FILE *out, assay_verdict verdict)
{
    const char *name = assay_verdict_name(verdict);
    fprintf(out, "<span class=\"badge %.*s\">%s</span>", (int)strcspn(name, " "), name, name);
}

static bool is_known(const assay_report *report)
{
    return report->expected_failure[0] != '\0';
}

static void write_verdict(FILE *out, const assay_report *report)
{
    if (is_known(report)) fprintf(out, "<span class=\"badge\">KNOWN</span>");
    if (!is_known(report)) write_badge(out, report->verdict);
}

/* Logarithmic, so that gross errors have a structure too. Black: not finite. */
static const struct {
    double deviations;
    png_byte rgb[3];
} stops[] = {{1, {250, 250, 250}},  {3, {190, 215, 235}}, {10, {250, 220, 110}},
             {100, {235, 110, 50}}, {1e4, {190, 20, 60}}, {1e6, {90, 0, 90}}};
enum { STOPS = sizeof stops / sizeof *stops };

static void color_of(float z, png_byte rgb[3])
{
    int i = 1;
    if (!isfinite(z)) {
        rgb[0] = rgb[1] = rgb[2] = 0;
        return;
    }
    while (i < STOPS - 1 && (double)z > stops[i].deviations) i++;
    const double least = log(stops[i - 1].deviations), most = log(stops[i].deviations);
    const double t = fmin(1, fmax(0, (log((double)z) - least) / (most - least)));
    for (int c = 0; c < 3; c++) {
        rgb[c] = (png_byte)(stops[i - 1].rgb[c] + t * (stops[i].rgb[c] - stops[i - 1].rgb[c]) + 0.5);
    }
}

static void write_scale(FILE *out)
{
    fprintf(out, "<div class=\"scale\">");
    for (int i = 0; i < STOPS; i++) {
        const png_byte *rgb = stops[i].rgb;
        fprintf(out, "<span style=\"background:rgb(%d,%d,%d)%s\">%g</span>", rgb[0], rgb[1], rgb[2],
                rgb[1] < 100 ? ";color:#fff" : "", stops[i].deviations);
    }
    fprintf(out, "</div>");
}

/* As a data: address. False, here and where it is called from, when memory ran out. */
static bool write_png(FILE *out, const assay_picture *p)
{
    png_byte pixels[ASSAY_PICTURE_ROWS * ASSAY_PICTURE_COLUMNS * 3];
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = (png_uint_32)p->columns,
                       .height = (png_uint_32)p->rows,
                       .format = PNG_FORMAT_RGB};
    png_alloc_size_t size = 0;
    for (int i = 0; i < p->rows * p->columns; i++) color_of(p->cells[i], pixels + (size_t)i * 3);
    if (!png_image_write_to_memory(&image, NULL, &size, 0, pixels, 0, NULL)) return false;
    unsigned char *png = malloc(size), *text = malloc(4 * ((size + 2) / 3) + 1);
    const bool made = png != NULL && text != NULL && png_image_write_to_memory(&image, png, &size, 0, pixels, 0, NULL);
    if (made) {
        EVP_EncodeBlock(text, png, (int)size);
        fprintf(out, "data:image/png;base64,%s", (const char *)text);
    }
    free(png);
    free(text);
    return made;
}

/* Errors in standard deviations, over the normal curve that independent ones of a correct implementation would follow.
 */
static void write_histogram(FILE *out, const assay_picture *p)
{
    enum { WIDTH = 480, HEIGHT = 160, BASE = 140 };
    const double width = (double)WIDTH / ASSAY_PICTURE_BINS, step = 2 * ASSAY_PICTURE_LIMIT / ASSAY_PICTURE_BINS;
    const double expected = (double)p->counted * step / sqrt(2 * 3.14159265358979323846);
    double most = expected;
    for (int i = 0; i < ASSAY_PICTURE_BINS; i++) most = fmax(most, (double)p->bins[i]);
    fprintf(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"histogram of errors\">", WIDTH, HEIGHT);
    for (int i = 0; i < ASSAY_PICTURE_BINS; i++) {
        const double height = most > 0 ? (BASE - 10) * sqrt((double)p->bins[i] / most) : 0;
        const bool end = i == 0 || i == ASSAY_PICTURE_BINS - 1;
        if (p->bins[i] == 0) continue;
        fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>", i * width,
                BASE - height, width - 1, height, end ? "#c62828" : "#4c8bc0");
    }
    fprintf(out, "<path fill=\"none\" stroke=\"currentColor\" d=\"");
    for (int i = 0; i <= 2 * ASSAY_PICTURE_BINS; i++) {
        const double z = -ASSAY_PICTURE_LIMIT + i * step / 2;
        const double share = most > 0 ? sqrt(expected * exp(-z * z / 2) / most) : 0;
        fprintf(out, "%c%.1f %.1f", i == 0 ? 'M' : 'L', i * width / 2, BASE - (BASE - 10) * share);
    }
    fprintf(out, "\"/><line x1=\"0\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"currentColor\"/>", BASE, WIDTH, BASE);
    for (int z = -6; z <= 6; z += 2) {
        fprintf(out, "<text x=\"%.0f\" y=\"%d\" text-anchor=\"middle\">%d</text>",
                (z + ASSAY_PICTURE_LIMIT) / (2 * ASSAY_PICTURE_LIMIT) * (WIDTH - 24) + 12, HEIGHT - 6, z);
    }
    fprintf(out, "</svg>");
}

/* In rem: cells as squares of one size while the picture stays within 30 by 20 and can still be seen. */
static void write_size(FILE *out, const assay_picture *p)
{
    const double cell = fmin(1.5, fmin(30.0 / p->columns, 20.0 / p->rows));
    fprintf(out, "style=\"width:%.3grem;height:%.3grem\"", fmax(3, cell * p->columns), fmax(1.5, cell * p->rows));
}

/* Lines where an index of the first axis begins, that of a group of rows: an expert, a sequence; with these indices, and the columns' ends. */
static void write_axes(FILE *out, const assay_shape *shape, int64_t columns)
{
    enum { LINES = 64, NUMBERS = 16 };
    const int64_t groups = shape->rank > 0 ? shape->dims[0] : 0, each = (groups + NUMBERS - 1) / NUMBERS;
    for (int64_t i = 0; i < groups; i++) {
        const double top = 100.0 * (double)i / (double)groups;
        if (i > 0 && shape->rank > 2 && groups <= LINES) fprintf(out, "<hr style=\"top:%.4g%%\">", top);
        if (i % each == 0) fprintf(out, "<b style=\"top:%.4g%%\">%" PRId64 "</b>", top, i);
    }
    fprintf(out, "<b class=\"first\">0</b><b class=\"last\">%" PRId64 "</b>", columns - 1);
}

static bool write_pictures(FILE *out, const assay_tensor_result *r, const assay_picture *p)
{
    const int64_t columns = assay_row_length(&r->spec.shape);
    fprintf(out, "<div class=\"pictures\"><figure><div class=\"map\" ");
    write_size(out, p);
    fprintf(out, "><img alt=\"heat map of errors\" src=\"");
    const bool drawn = write_png(out, p);
    fprintf(out, "\">");
    write_axes(out, &r->spec.shape, columns);
    fprintf(out, "</div>");
    write_scale(out);
    fprintf(out,
            "<figcaption>largest error in standard deviations: %" PRId64
            " rows down, with the index of the first axis, "
            "%" PRId64 " columns across; black: not finite</figcaption></figure><figure>",
            columns > 0 ? r->elements / columns : 0, columns);
    write_histogram(out, p);
    fprintf(out, "<figcaption>errors in standard deviations (heights as square roots), the ends with all that is "
                 "beyond; line: normal</figcaption></figure></div>");
    return drawn;
}

static void write_outliers(FILE *out, const assay_tensor_result *r, bool rows)
{
    const assay_outlier *worst = rows ? r->rows_worst : r->elements_worst;
    const int count = rows ? r->rows_worst_count : r->elements_worst_count;
    if (count == 0) return;
    fprintf(out,
            "<div class=\"wide\"><table><tr><th>worst %s</th><th class=\"n\">golden%s</th>"
            "<th class=\"n\">candidate%s</th><th class=\"n\">of its threshold</th></tr>",
            rows ? "rows" : "elements", rows ? " (RMS)" : "", rows ? " (RMS)" : "");
    for (int i = 0; i < count; i++) {
        char place[ASSAY_INDEX_TEXT];
        if (rows) {
            assay_row_text(&r->spec.shape, worst[i].index, place);
        } else {
            assay_element_text(&r->spec.shape, worst[i].index, place);
        }
        fprintf(out,
                "<tr><td><code>%s</code></td><td class=\"n\">%.9g</td><td class=\"n\">%.9g</td>"
                "<td class=\"n\">%.3g</td></tr>",
                place[0] == '\0' ? "[]" : place, worst[i].golden, worst[i].candidate, worst[i].excess);
    }
    fprintf(out, "</table></div>");
}

/* Those that a null distribution was stored for. */
static void write_statistics(FILE *out, const assay_tensor_result *r)
{
    char slice[ASSAY_SLICE_TEXT], text[ASSAY_SLICE_TEXT];
    if (r->worst_statistic < 0) return;
    fprintf(out, "<div class=\"wide\"><table><tr><th>statistic</th><th>where</th><th>found, and expected of correct "
                 "implementations</th><th class=\"n\">of what is allowed</th></tr>");
    for (int i = 0; i < r->statistics_count; i++) {
        if (r->statistics[i].expected[ASSAY_NULL_DEVIATION] == 0) continue;
        assay_slice_text(r, i, slice);
        assay_statistic_text(r, i, text);
        fprintf(out, "<tr><td>%s</td><td><code>%s</code></td><td class=\"why\">%s</td><td class=\"n\">%.3g</td></tr>",
                assay_statistic_name(i), slice, text, r->statistics[i].excess);
    }
    fprintf(out, "</table></div>");
}

static bool write_tensor(FILE *out, int number, int i, bool open, const assay_tensor_result *r, const assay_picture *p)
{
    char shape[160], shown[ASSAY_ESCAPED_SIZE];
    assay_shape_text(&r->spec.shape, shape, sizeof shape);
    fprintf(out, "<details id=\"r%dt%d\"%s><summary>", number, i, open ? " open" : "");
    if (r->compared || r->verdict != ASSAY_PASS) write_badge(out, r->verdict);
    fprintf(out, " <code>%s</code> <span class=\"soft\">%s", assay_escaped(r->spec.path, shown), shape);
    if (r->compared && r->spec.type != ASSAY_INT32 && !r->exact) {
        fprintf(out, ", RMS/scale %.3g, element %.3g and row %.3g of the threshold", r->rms_ratio, r->worst_element,
                r->worst_row);
    }
    fprintf(out, "</span></summary>");
    write_shown(out, "<p>", r->message, "</p>");
    const bool drawn = p == NULL || write_pictures(out, r, p);
    write_outliers(out, r, false);
    write_outliers(out, r, true);
    write_statistics(out, r);
    fprintf(out, "</details>");
    return drawn;
}

/* The steps with their verdicts, and behind them what these do not show; all of it, where there are no steps. */
static bool write_flow(FILE *out, int number, const assay_report *report, const assay_steps *steps)
{
    char shown[ASSAY_ESCAPED_SIZE];
    bool first = true, drawn = true;
    if (steps != NULL) {
        fprintf(
            out,
            "<p class=\"soft\">steps, with the verdicts on what they make, and on the gradients of what is given; no "
            "colour: nothing was compared</p><div class=\"wide\">");
        drawn = assay_steps_draw(out, steps, report, number);
        fprintf(out, "</div>");
    }
    fprintf(out, "<ul class=\"flow\">");
    for (int i = 0; i < report->count; i++) {
        const assay_tensor_result *r = &report->tensors[i];
        const bool failed = r->verdict == ASSAY_FAIL;
        if (!r->compared && r->verdict == ASSAY_PASS) continue;
        if (steps != NULL && assay_steps_show(steps, r->spec.path)) {
            first = first && !failed;
            continue;
        }
        fprintf(out, "<li><a href=\"#r%dt%d\" class=\"%s%s\">%s%s</a></li>", number, i,
                failed                     ? "f"
                : r->verdict == ASSAY_PASS ? "p"
                                           : "o",
                failed && first ? " first" : "", assay_escaped(r->spec.path, shown),
                failed && first ? " (first wrong)" : "");
        first = first && !failed;
    }
    fprintf(out, "</ul>");
    return drawn;
}

static bool write_report(FILE *out, int number, const assay_report *report, const assay_steps *steps)
{
    char routing[512], shown[ASSAY_ESCAPED_SIZE];
    bool drawn = true;
    fprintf(out, "<section id=\"r%d\"><h2>", number);
    write_verdict(out, report);
    fprintf(out, " %s</h2><p class=\"soft\">op ", assay_escaped(report->case_name, shown));
    fprintf(out, "%s", assay_escaped(report->op, shown));
    write_shown(out, ", profile ", report->profile, "");
    if (report->profile[0] != '\0') fprintf(out, ", false alarm %g", report->false_alarm);
    write_shown(out, ", golden made by ", report->generator, "");
    write_shown(out, ", judged by ", report->program, "");
    fprintf(out, "</p>");
    assay_routing_text(&report->routing, routing);
    write_shown(out, "<p>", report->message, "</p>");
    write_shown(out, "<p>", routing, "</p>");
    write_shown(out, "<p>order: ", report->order, "</p>");
    write_shown(out, "<p>codes: ", report->codes, "</p>");
    write_shown(out, "<p>form: ", report->inaccurate ? ASSAY_INACCURATE_TEXT : "", "</p>");
    write_shown(out, "<p>kinks: ", report->kinks, "</p>");
    write_shown(out, "<p>looks like this: ", report->diagnosis, "</p>");
    write_shown(out, "<p>known bugs: ", report->explanation,
                report->explained_count > 0 ? " (" ASSAY_LEFT_TEXT ")</p>" : "</p>");
    write_shown(out, "<p>known failure: ", report->expected_failure, "</p>");
    write_shown(out, "<p>reproduce: <code>", report->reproduce, "</code></p>");
    if (report->power.stated) {
        char line[ASSAY_POWER_LINE_SIZE];
        assay_power_line(&report->power, line);
        fprintf(out, "<p>power: %s</p>", line);
    }
    if (report->golden_path[0] != '\0') {
        fprintf(out, "<p class=\"soft\">golden <code>%s</code>, ", assay_escaped(report->golden_path, shown));
        fprintf(out, "candidate <code>%s</code></p>", assay_escaped(report->candidate_path, shown));
    }
    drawn &= write_flow(out, number, report, steps);
    bool first = true;
    for (int i = 0; i < report->count; i++) {
        const assay_tensor_result *r = &report->tensors[i];
        if (!r->compared && r->verdict == ASSAY_PASS) continue;
        const bool wrong = r->verdict != ASSAY_PASS;
        drawn &= write_tensor(out, number, i, wrong && first, r, report->pictures == NULL ? NULL : report->pictures[i]);
        first &= !wrong;
    }
    fprintf(out, "</section>\n");
    return drawn;
}

static void write_tally(FILE *out, int count, const assay_report *reports)
{
    int verdicts[ASSAY_VERDICTS] = {0}, known = 0;
    for (int i = 0; i < count; i++) {
        verdicts[reports[i].verdict] += !is_known(&reports[i]);
        known += is_known(&reports[i]);
    }
    fprintf(out, "%d cases: %d passed, %d failed, %d vacuous, %d not comparable, %d unsupported", count,
            verdicts[ASSAY_PASS], verdicts[ASSAY_FAIL], verdicts[ASSAY_VACUOUS], verdicts[ASSAY_NOT_COMPARABLE],
            verdicts[ASSAY_UNSUPPORTED]);
    if (known > 0) fprintf(out, ", %d known failures", known);
}

/* The bug first, which says most: by name where there is one. */
static void write_known(FILE *out, const assay_report *report)
{
    const char *text = report->explained_count > 0 ? report->explanation : report->diagnosis;
    write_shown(out, "<br><strong>", text, "</strong>");
    write_shown(out, "<br><code>", report->reproduce, "</code>");
}

/* Failures that nobody knows of. */
static bool comes_first(const assay_report *report)
{
    return report->verdict == ASSAY_FAIL && !is_known(report);
}

static void write_index_row(FILE *out, int number, const assay_report *report)
{
    char shown[ASSAY_ESCAPED_SIZE];
    fprintf(out, "<tr><td>");
    write_verdict(out, report);
    fprintf(out, "</td><td class=\"why\"><a href=\"#r%d\">%s</a></td><td class=\"why\">", number,
            assay_escaped(report->case_name, shown));
    fprintf(out, "%s", assay_escaped(report->message, shown));
    write_known(out, report);
    fprintf(out, "</td></tr>");
}

static void write_index(FILE *out, int count, const assay_report *reports)
{
    fprintf(out, "<p>");
    write_tally(out, count, reports);
    fprintf(out, "</p><div class=\"wide\"><table><tr><th>verdict</th><th>case</th><th>why</th></tr>");
    for (int i = 0; i < count; i++)
        if (comes_first(&reports[i])) write_index_row(out, i, &reports[i]);
    for (int i = 0; i < count; i++)
        if (!comes_first(&reports[i])) write_index_row(out, i, &reports[i]);
    fprintf(out, "</table></div>");
}

assay_status assay_report_html(assay_context *ctx, int count, const assay_report *reports, char **text)
{
    size_t size = 0;
    bool drawn = true;
    *text = NULL;
    FILE *out = assay_text_open(text, &size);
    if (out == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the HTML report");
    fprintf(out, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
                 "content=\"width=device-width,initial-scale=1\"><title>assay");
    if (count == 1) write_shown(out, ": ", reports[0].case_name, "");
    if (count != 1) fprintf(out, ": ");
    if (count != 1) write_tally(out, count, reports);
    fprintf(out, "</title><style>%s</style></head><body><h1>assay</h1>\n", assay_report_style_sheet);
    if (count != 1) write_index(out, count, reports);
    for (int i = 0; i < count; i++) {
        drawn &= write_report(out, i, &reports[i], reports[i].steps);
        if (reports[i].stages != NULL) drawn &= write_report(out, count + i, reports[i].stages, reports[i].steps);
    }
    fprintf(out, "</body></html>\n");
    if (assay_text_close(out, text) && drawn) return ASSAY_OK;
    free(*text);
    *text = NULL;
    return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the HTML report");
}
