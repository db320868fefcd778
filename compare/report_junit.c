#include <libxml/xmlwriter.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/printable.h"
#include "compare/report.h"

/* What a test case says, in JUnit's words. */
typedef enum outcome { PASSED, FAILED, ERROR, SKIPPED } outcome;

typedef struct tally {
    int tests, failures, errors, skipped;
} tally;

static void count_outcome(tally *t, outcome o)
{
    t->tests++;
    t->failures += o == FAILED;
    t->errors += o == ERROR;
    t->skipped += o == SKIPPED;
}

static outcome tensor_outcome(const assay_tensor_result *r)
{
    if (r->verdict == ASSAY_FAIL) return FAILED;
    if (r->verdict == ASSAY_NOT_COMPARABLE) return ERROR;
    if (r->verdict == ASSAY_VACUOUS || !r->compared) return SKIPPED;
    return PASSED;
}

static outcome report_outcome(const assay_report *report)
{
    if (report->verdict == ASSAY_PASS) return PASSED;
    if (report->verdict == ASSAY_UNSUPPORTED) return SKIPPED;
    if (report->verdict == ASSAY_NOT_COMPARABLE) return ERROR;
    return FAILED;
}

/* Of those that say nothing there is no test case: optional tensors that are not given, and the oracle's own measures. */
static bool says_nothing(const assay_tensor_result *r)
{
    return r->verdict == ASSAY_PASS && !r->compared;
}

/* The backend's run, where it gave something to compare. */
static bool has_run(const assay_report *report)
{
    return report->seconds > 0 && report->count > 0;
}

/* A verdict that no tensor and no unknown path shows has a test case of its own. */
static bool needs_own_case(const assay_report *report, const tally *t)
{
    return report->verdict != ASSAY_PASS && t->failures + t->errors == 0;
}

/* A known failure is one that CI systems leave alone. */
static outcome unless_known(const assay_report *report, outcome o)
{
    return report->expected_failure[0] != '\0' && o != PASSED ? SKIPPED : o;
}

/* Over the outcomes themselves: whether any of them says what is wrong. */
static tally count_raw(const assay_report *report)
{
    tally t = {0};
    for (int i = 0; i < report->count; i++) count_outcome(&t, tensor_outcome(&report->tensors[i]));
    for (int i = 0; i < report->unknown_count; i++) count_outcome(&t, FAILED);
    return t;
}

/* That say something. */
static const assay_report *stages_of(const assay_report *report)
{
    const assay_report *stages = report->stages;
    return stages == NULL || (stages->count == 0 && stages->verdict == ASSAY_PASS) ? NULL : stages;
}

static void add_tally(tally *all, const tally *t)
{
    all->tests += t->tests;
    all->failures += t->failures;
    all->errors += t->errors;
    all->skipped += t->skipped;
}

static tally count_report(const assay_report *report)
{
    tally t = {.tests = has_run(report) ? 1 : 0};
    const tally raw = count_raw(report);
    for (int i = 0; i < report->count; i++) {
        const assay_tensor_result *r = &report->tensors[i];
        if (!says_nothing(r)) count_outcome(&t, unless_known(report, tensor_outcome(r)));
    }
    for (int i = 0; i < report->unknown_count; i++) count_outcome(&t, unless_known(report, FAILED));
    if (needs_own_case(report, &raw)) count_outcome(&t, unless_known(report, report_outcome(report)));
    return t;
}

/* Every function below returns false when the writer failed, which only memory can cause. */
static bool write_attribute(xmlTextWriter *out, const char *name, const char *value)
{
    char shown[ASSAY_PRINTABLE_SIZE];
    return xmlTextWriterWriteAttribute(out, BAD_CAST name, BAD_CAST assay_printable(value, shown)) >= 0;
}

static bool write_number(xmlTextWriter *out, const char *name, int value)
{
    return xmlTextWriterWriteFormatAttribute(out, BAD_CAST name, "%d", value) >= 0;
}

static bool write_seconds(xmlTextWriter *out, double seconds)
{
    return xmlTextWriterWriteFormatAttribute(out, BAD_CAST "time", "%.3f", seconds) >= 0;
}

static bool begin(xmlTextWriter *out, const char *name)
{
    return xmlTextWriterStartElement(out, BAD_CAST name) >= 0;
}

static bool end(xmlTextWriter *out)
{
    return xmlTextWriterEndElement(out) >= 0;
}

static bool write_tally(xmlTextWriter *out, const tally *t)
{
    return write_number(out, "tests", t->tests) && write_number(out, "failures", t->failures) &&
           write_number(out, "errors", t->errors) && write_number(out, "skipped", t->skipped);
}

/* What is said of the failure as a whole stands with the first that fails. */
static bool write_explanation(xmlTextWriter *out, const assay_report *report)
{
    const struct {
        const char *head, *text;
    } lines[] = {{"\nlooks like this: ", report->diagnosis},
                 {"\nknown bugs: ", report->explanation},
                 {"\nreproduce: ", report->reproduce}};
    bool ok = true;
    for (int i = 0; ok && i < 3; i++) {
        char shown[ASSAY_PRINTABLE_SIZE];
        if (lines[i].text[0] == '\0') continue;
        ok = xmlTextWriterWriteString(out, BAD_CAST lines[i].head) >= 0 &&
             xmlTextWriterWriteString(out, BAD_CAST assay_printable(lines[i].text, shown)) >= 0;
    }
    return ok;
}

typedef struct test_case {
    const char *name;
    outcome o;
    double seconds;
    const char *message; /* of what is not passed; and the verdict, and whether the explanation stands here */
    assay_verdict verdict;
    bool first_wrong;
} test_case;

static bool write_case(xmlTextWriter *out, const assay_report *report, test_case c)
{
    static const char *const elements[] = {[FAILED] = "failure", [ERROR] = "error", [SKIPPED] = "skipped"};
    bool ok = begin(out, "testcase") && write_attribute(out, "classname", report->case_name) &&
              write_attribute(out, "name", c.name) && write_seconds(out, c.seconds);
    if (ok && c.o != PASSED) {
        ok = begin(out, elements[c.o]) && write_attribute(out, "message", c.message);
        if (c.o != SKIPPED) {
            char text[ASSAY_PRINTABLE_SIZE];
            ok = ok && write_attribute(out, "type", assay_verdict_name(c.verdict)) &&
                 xmlTextWriterWriteString(out, BAD_CAST assay_printable(c.message, text)) >= 0 &&
                 (!c.first_wrong || write_explanation(out, report));
        }
        ok = ok && end(out);
    }
    return ok && end(out);
}

static bool write_routing(xmlTextWriter *out, const assay_report *report)
{
    char text[512];
    assay_routing_text(&report->routing, text);
    if (text[0] == '\0') return true;
    return begin(out, "properties") && begin(out, "property") && write_attribute(out, "name", "routing") &&
           write_attribute(out, "value", text + strlen("routing: ")) && end(out) && end(out);
}

static bool write_suite(xmlTextWriter *out, const assay_report *report)
{
    char name[ASSAY_PATH_SIZE + 96];
    const tally t = count_report(report), raw = count_raw(report);
    snprintf(name, sizeof name, "%s (%s)", report->case_name, report->profile);
    bool ok = begin(out, "testsuite") &&
              write_attribute(out, "name", report->profile[0] == '\0' ? report->case_name : name) &&
              write_tally(out, &t) && write_seconds(out, report->seconds) && write_routing(out, report);
    bool wrong = false;
    if (ok && has_run(report)) ok = write_case(out, report, (test_case){"backend", PASSED, .seconds = report->seconds});
    for (int i = 0; ok && i < report->count; i++) {
        const assay_tensor_result *r = &report->tensors[i];
        if (says_nothing(r)) continue;
        const bool first = r->verdict == ASSAY_FAIL && !wrong;
        ok = write_case(out, report,
                        (test_case){r->spec.path, unless_known(report, tensor_outcome(r)), r->seconds, r->message,
                                    r->verdict, first});
        wrong |= first;
    }
    for (int i = 0; ok && i < report->unknown_count; i++) {
        ok = write_case(out, report,
                        (test_case){report->unknown[i], unless_known(report, FAILED), 0,
                                    "unknown path, the golden has no such dataset", ASSAY_FAIL, false});
    }
    if (ok && needs_own_case(report, &raw)) {
        ok = write_case(out, report,
                        (test_case){"verdict", unless_known(report, report_outcome(report)),
                                    has_run(report) ? 0 : report->seconds, report->message, report->verdict, true});
    }
    return ok && end(out);
}

static bool write_document(xmlTextWriter *out, int count, const assay_report *reports)
{
    tally all = {0};
    double seconds = 0.0;
    for (int i = 0; i < count; i++) {
        const assay_report *stages = stages_of(&reports[i]);
        const tally t = count_report(&reports[i]), of_stages = stages == NULL ? (tally){0} : count_report(stages);
        add_tally(&all, &t);
        add_tally(&all, &of_stages);
        seconds += reports[i].seconds;
    }
    bool ok = xmlTextWriterSetIndent(out, 1) >= 0 && xmlTextWriterStartDocument(out, NULL, "UTF-8", NULL) >= 0 &&
              begin(out, "testsuites") && write_attribute(out, "name", "assay") && write_tally(out, &all) &&
              write_seconds(out, seconds);
    for (int i = 0; ok && i < count; i++) {
        const assay_report *stages = stages_of(&reports[i]);
        ok = write_suite(out, &reports[i]) && (stages == NULL || write_suite(out, stages));
    }
    return ok && end(out) && xmlTextWriterEndDocument(out) >= 0;
}

/* What libxml2 would print: what it lacks is said by our own message. */
static void say_nothing(void *self, const char *format, ...)
{
    (void)self, (void)format;
}

assay_status assay_report_junit(assay_context *ctx, int count, const assay_report *reports, char **text)
{
    *text = NULL;
    xmlSetGenericErrorFunc(NULL, say_nothing);
    xmlBuffer *buffer = xmlBufferCreate();
    xmlTextWriter *out = buffer == NULL ? NULL : xmlNewTextWriterMemory(buffer, 0);
    bool ok = out != NULL && write_document(out, count, reports);
    xmlFreeTextWriter(out); /* flushes into the buffer */
    if (ok) *text = strdup((const char *)xmlBufferContent(buffer));
    xmlBufferFree(buffer);
    return *text != NULL ? ASSAY_OK : assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the JUnit report");
}
