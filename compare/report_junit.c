#include <stdio.h>
#include <string.h>

#include "compare/printable.h"
#include "compare/report.h"
#include "oracle/base/memory.h"

/* What a test case says, in JUnit's words. */
typedef enum outcome { PASSED, FAILED, ERROR, SKIPPED, OUTCOMES } outcome;

typedef struct test_case {
    const char *name;
    outcome o;
    double seconds;
    const char *message; /* of what is not passed; and the verdict, and whether the explanation stands here */
    assay_verdict verdict;
    bool first_wrong;
} test_case;

static outcome outcome_of(assay_verdict verdict)
{
    static const outcome outcomes[ASSAY_VERDICTS] = {[ASSAY_PASS] = PASSED,
                                                     [ASSAY_FAIL] = FAILED,
                                                     [ASSAY_VACUOUS] = FAILED,
                                                     [ASSAY_NOT_COMPARABLE] = ERROR,
                                                     [ASSAY_UNSUPPORTED] = SKIPPED};
    return outcomes[verdict];
}

static outcome tensor_outcome(const assay_tensor_result *r)
{
    if (r->verdict == ASSAY_VACUOUS || (r->verdict == ASSAY_PASS && !r->compared)) return SKIPPED;
    return outcome_of(r->verdict);
}

/* The backend's run, where it gave something to compare. */
static bool has_run(const assay_report *report)
{
    return report->seconds > 0 && report->count > 0;
}

/* A verdict that no tensor and no unknown path shows has a test case of its own. */
static bool needs_own_case(const assay_report *report)
{
    bool shown = report->verdict == ASSAY_PASS || report->unknown_count > 0;
    for (int i = 0; i < report->count; i++) {
        const outcome o = tensor_outcome(&report->tensors[i]);
        shown |= o == FAILED || o == ERROR;
    }
    return !shown;
}

typedef void case_visitor(void *self, const assay_report *report, const test_case *c);

/* A known failure is one that CI systems leave alone. */
static void visit_case(const assay_report *report, case_visitor *visit, void *self, test_case c)
{
    if (report->expected_failure[0] != '\0' && c.o != PASSED) c.o = SKIPPED;
    visit(self, report, &c);
}

/* Of tensors that say nothing there is no test case: optional ones that are not given, and the oracle's own measures. */
static void each_case(const assay_report *report, case_visitor *visit, void *self)
{
    bool wrong = false;
    if (has_run(report)) visit_case(report, visit, self, (test_case){"backend", PASSED, .seconds = report->seconds});
    for (int i = 0; i < report->count; i++) {
        const assay_tensor_result *r = &report->tensors[i];
        if (r->verdict == ASSAY_PASS && !r->compared) continue;
        const bool first = r->verdict == ASSAY_FAIL && !wrong;
        visit_case(report, visit, self,
                   (test_case){r->spec.path, tensor_outcome(r), r->seconds, r->message, r->verdict, first});
        wrong |= first;
    }
    for (int i = 0; i < report->unknown_count; i++) {
        visit_case(report, visit, self,
                   (test_case){report->unknown[i], FAILED, 0, "unknown path, the golden has no such dataset",
                               ASSAY_FAIL, false});
    }
    if (needs_own_case(report)) {
        visit_case(report, visit, self,
                   (test_case){"verdict", outcome_of(report->verdict), has_run(report) ? 0 : report->seconds,
                               report->message, report->verdict, true});
    }
}

/* What is said of the failure as a whole stands with the first that fails. */
static void write_explanation(FILE *out, const assay_report *report)
{
    const struct {
        const char *head, *text;
    } lines[] = {
        {"looks like this", report->diagnosis}, {"known bugs", report->explanation}, {"reproduce", report->reproduce}};
    for (int i = 0; i < 3; i++) {
        char shown[ASSAY_ESCAPED_SIZE];
        if (lines[i].text[0] != '\0') fprintf(out, "\n%s: %s", lines[i].head, assay_escaped(lines[i].text, shown));
    }
}

static void write_case(void *self, const assay_report *report, const test_case *c)
{
    static const char *const elements[] = {[FAILED] = "failure", [ERROR] = "error", [SKIPPED] = "skipped"};
    FILE *out = self;
    char class_name[ASSAY_ESCAPED_SIZE], shown[ASSAY_ESCAPED_SIZE];
    fprintf(out, "  <testcase classname=\"%s\" name=\"%s\" time=\"%.3f\"", assay_escaped(report->case_name, class_name),
            assay_escaped(c->name, shown), c->seconds);
    if (c->o == PASSED) {
        fprintf(out, "/>\n");
        return;
    }
    fprintf(out, ">\n   <%s message=\"%s\"", elements[c->o], assay_escaped(c->message, shown));
    if (c->o == SKIPPED) {
        fprintf(out, "/>\n");
    } else {
        fprintf(out, " type=\"%s\">%s", assay_verdict_name(c->verdict), shown);
        if (c->first_wrong) write_explanation(out, report);
        fprintf(out, "</%s>\n", elements[c->o]);
    }
    fprintf(out, "  </testcase>\n");
}

static void count_case(void *self, const assay_report *report, const test_case *c)
{
    int *counts = self;
    (void)report;
    counts[c->o]++;
}

static void write_counts(FILE *out, const int counts[OUTCOMES], double seconds)
{
    fprintf(out, " tests=\"%d\" failures=\"%d\" errors=\"%d\" skipped=\"%d\" time=\"%.3f\">\n",
            counts[PASSED] + counts[FAILED] + counts[ERROR] + counts[SKIPPED], counts[FAILED], counts[ERROR],
            counts[SKIPPED], seconds);
}

static void write_suite(FILE *out, const assay_report *report)
{
    int counts[OUTCOMES] = {0};
    char routing[512], shown[ASSAY_ESCAPED_SIZE];
    each_case(report, count_case, counts);
    fprintf(out, " <testsuite name=\"%s", assay_escaped(report->case_name, shown));
    if (report->profile[0] != '\0') fprintf(out, " (%s)", assay_escaped(report->profile, shown));
    fputc('"', out);
    write_counts(out, counts, report->seconds);
    assay_routing_text(&report->routing, routing);
    if (routing[0] != '\0') {
        fprintf(out, "  <properties>\n   <property name=\"routing\" value=\"%s\"/>\n  </properties>\n",
                assay_escaped(routing + strlen("routing: "), shown));
    }
    each_case(report, write_case, out);
    fprintf(out, " </testsuite>\n");
}

/* That say something; else NULL. */
static const assay_report *stages_of(const assay_report *report)
{
    const assay_report *stages = report->stages;
    return stages == NULL || (stages->count == 0 && stages->verdict == ASSAY_PASS) ? NULL : stages;
}

assay_status assay_report_junit(assay_context *ctx, int count, const assay_report *reports, char **text)
{
    int counts[OUTCOMES] = {0};
    double seconds = 0.0;
    size_t size = 0;
    FILE *out = assay_text_open(text, &size);
    if (out == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the JUnit report");
    for (int i = 0; i < count; i++) {
        each_case(&reports[i], count_case, counts);
        if (stages_of(&reports[i]) != NULL) each_case(stages_of(&reports[i]), count_case, counts);
        seconds += reports[i].seconds;
    }
    fprintf(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"assay\"");
    write_counts(out, counts, seconds);
    for (int i = 0; i < count; i++) {
        write_suite(out, &reports[i]);
        if (stages_of(&reports[i]) != NULL) write_suite(out, stages_of(&reports[i]));
    }
    fprintf(out, "</testsuites>\n");
    return assay_text_close(out, text) ? ASSAY_OK : assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the JUnit report");
}
