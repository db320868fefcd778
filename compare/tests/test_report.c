#include <cjson/cJSON.h>
#include <libxml/parser.h>
#include <libxml/xpath.h>

#include "compare/tests/compare_test.h"

/* One report with everything in it: right, wrong, not given, not compared, unknown and vacuous. */
static void make_report(assay_report *report)
{
    assay_context ctx = {.threads = 1};
    OWNED_BY(free_fixture) test_fixture golden = ordinary_golden("bf16", 1e-3);
    add_tensor(&golden, "gradients/weights/gate", ASSAY_FLOAT64, 1, DIMS(9), 10.0);
    OWNED_BY(free_fixture) test_fixture candidate = candidate_of(&golden);
    tensor_at(&candidate, "outputs/y")->values[455 + 66] = 3.5;
    tensor_at(&candidate, "gradients/inputs/x")->values[0] = NAN;
    drop_tensor(&candidate, "checkpoints/moe_mlpwo");
    add_tensor(&candidate, "outputs/a<b>&\"c", ASSAY_INT32, 1, DIMS(3), 0.0);
    compare_fixtures(&ctx, &golden, &candidate, "bf16", report);
    snprintf(report->golden_path, sizeof report->golden_path, "golden \x01<&>.h5");
    snprintf(report->candidate_path, sizeof report->candidate_path, "candidate \xff\xa0\xed\xa0\x80\xc3\xa9.h5");
}

TEST_WITH_CONTEXT(test_text)
{
    OWNED_BY(assay_report_free) assay_report report = {0};
    OWNED char *text = NULL;
    make_report(&report);
    assay_report_style style = {0};
    snprintf(report.reproduce, sizeof report.reproduce, "assay compare golden.h5 candidate.h5 --precision bf16");
    assert_ok(&ctx, assay_report_text(&ctx, &report, &style, &text));
    assert_contains(text, "test/case  op test, profile bf16, false alarm 1e-06\n");
    assert_contains(text, "outputs/y: 1 of 910 elements beyond their threshold, the worst [1,1,1]: golden ");
    assert_contains(text, "    element [1,1,1]        golden ");
    assert_contains(text, "    row     [1,1]          RMS golden ");
    assert_contains(text, "\n\nFAIL  outputs/y: 1 of 910 elements");
    assert_contains(text, "\nreproduce: assay compare golden.h5 candidate.h5 --precision bf16\n");
    assert_contains(text, "not given\n");
    assert_contains(text, "gradients/weights/gate: zeros would pass");
    assert_contains(text, "outputs/a<b>&\"c: unknown path");
    assert_null(strchr(text, '\033'));
    assert_null(strstr(text, "    element [0,0,0]"));
    free(text);
    report.reproduce[0] = '\0';
    style = (assay_report_style){.color = true, .verbosity = 1};
    assert_ok(&ctx, assay_report_text(&ctx, &report, &style, &text));
    assert_contains(text, "\033[31mFAIL\033[0m  outputs/y: ");
    assert_contains(text, "    element [0,0,0]        golden ");
    assert_null(strstr(text, "reproduce:"));
}

static const cJSON *member(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (item == NULL) fail_msg("no member %s", key);
    return item;
}

static void assert_member(const cJSON *object, const char *key, const char *text)
{
    const cJSON *item = member(object, key);
    assert_true(cJSON_IsString(item));
    assert_string_equal(item->valuestring, text);
}

TEST_WITH_CONTEXT(test_json)
{
    assay_report reports[2] = {0};
    OWNED char *text = NULL;
    make_report(&reports[0]);
    reports[1].verdict = ASSAY_UNSUPPORTED;
    assert_ok(&ctx, assay_report_json(&ctx, 2, reports, &text));
    cJSON *root = cJSON_Parse(text);
    assert_non_null(root);
    assert_member(root, "format", "assay-report");
    assert_int_equal(member(root, "format_version")->valueint, 1);
    assert_int_equal(cJSON_GetArraySize(member(root, "reports")), 2);
    const cJSON *first = cJSON_GetArrayItem(member(root, "reports"), 0);
    assert_member(first, "verdict", "FAIL");
    assert_member(first, "case", "test/case");
    assert_member(first, "golden", "golden ?<&>.h5");
    assert_member(first, "candidate", "candidate ?????\xc3\xa9.h5");
    assert_true(member(first, "false_alarm")->valuedouble == 1e-6);
    assert_string_equal(cJSON_GetArrayItem(member(first, "unknown"), 0)->valuestring, "outputs/a<b>&\"c");
    const cJSON *tensors = member(first, "tensors");
    assert_int_equal(cJSON_GetArraySize(tensors), reports[0].count);
    for (int i = 0; i < reports[0].count; i++) {
        const cJSON *tensor = cJSON_GetArrayItem(tensors, i);
        assert_member(tensor, "path", reports[0].tensors[i].spec.path);
        assert_member(tensor, "verdict", assay_verdict_name(reports[0].tensors[i].verdict));
        assert_member(tensor, "message", reports[0].tensors[i].message);
        assert_true(member(tensor, "worst_row")->valuedouble == reports[0].tensors[i].worst_row);
        if (strcmp(reports[0].tensors[i].spec.path, "outputs/y") == 0) {
            const cJSON *worst = cJSON_GetArrayItem(member(tensor, "elements_worst"), 0);
            assert_int_equal(cJSON_GetArraySize(member(worst, "index")), 3);
            assert_true(member(worst, "candidate")->valuedouble == 3.5);
        }
        if (strcmp(reports[0].tensors[i].spec.path, "gradients/inputs/x") == 0) {
            assert_member(tensor, "worst_element", "inf");
            assert_member(cJSON_GetArrayItem(member(tensor, "elements_worst"), 0), "candidate", "nan");
        }
        if (strcmp(reports[0].tensors[i].spec.path, "checkpoints/moe_mlpwo") == 0) {
            assert_true(cJSON_IsNull(member(tensor, "candidate_type")));
            assert_member(tensor, "finding", "missing");
        }
    }
    assert_member(cJSON_GetArrayItem(member(root, "reports"), 1), "verdict", "UNSUPPORTED");
    cJSON_Delete(root);
    assay_report_free(&reports[0]);
}

static int count_nodes(xmlXPathContext *context, const char *path)
{
    xmlXPathObject *found = xmlXPathEvalExpression(BAD_CAST path, context);
    assert_non_null(found);
    int count = found->nodesetval == NULL ? 0 : found->nodesetval->nodeNr;
    xmlXPathFreeObject(found);
    return count;
}

TEST_WITH_CONTEXT(test_junit)
{
    assay_report reports[4] = {0};
    OWNED char *text = NULL;
    make_report(&reports[0]);
    reports[0].seconds = 1.5;
    for (int i = 0; i < reports[0].count; i++) reports[0].tensors[i].seconds = 0.25;
    reports[3].seconds = 0.75;
    reports[1].verdict = ASSAY_UNSUPPORTED;
    reports[2].verdict = ASSAY_FAIL; /* the backend crashed: no tensors */
    snprintf(reports[2].message, sizeof reports[2].message, "ended by signal 11 \x1b[31m");
    reports[3].verdict = ASSAY_VACUOUS;
    assert_ok(&ctx, assay_report_junit(&ctx, 4, reports, &text));
    xmlDoc *document = xmlReadMemory(text, (int)strlen(text), "report.xml", NULL, XML_PARSE_NONET);
    assert_non_null(document);
    xmlXPathContext *context = xmlXPathNewContext(document);
    assert_non_null(context);
    assert_int_equal(count_nodes(context, "/testsuites/testsuite"), 4);
    assert_int_equal(
        count_nodes(context,
                    "/testsuites[@tests='10' and @failures='5' and @errors='0' and @skipped='2' and @time='2.250']"),
        1);
    assert_int_equal(count_nodes(context, "//testsuite[1][@time='1.500']/testcase"), reports[0].count);
    assert_int_equal(
        count_nodes(context, "//testcase[@name='outputs/y' and @classname='test/case']/failure[@type='FAIL']"), 1);
    assert_int_equal(count_nodes(context, "//testcase[@name='outputs/a<b>&\"c']/failure"), 1);
    assert_int_equal(count_nodes(context, "//testcase[@name='outputs/lb_loss']/*"), 0);
    assert_int_equal(count_nodes(context, "//testcase[@time]"), 10); /* each has its own */
    assert_int_equal(count_nodes(context, "//testsuite[1]/testcase[@name='backend' and @time='1.500']"), 1);
    assert_int_equal(count_nodes(context, "//testcase[@name='outputs/y' and @time='0.250']"), 1);
    assert_int_equal(count_nodes(context, "//testsuite[4]/testcase[@name='verdict' and @time='0.750']"), 1);
    assert_int_equal(count_nodes(context, "//testcase[@name='gradients/weights/gate']/skipped"), 1);
    assert_int_equal(count_nodes(context, "//testcase[@name='checkpoints/moe_mlpwo']"), 0); /* not given */
    assert_int_equal(count_nodes(context, "//testsuite[2]/testcase/skipped"), 1);
    assert_int_equal(count_nodes(context, "//testsuite[3]/testcase/failure[@message='ended by signal 11 ?[31m']"), 1);
    assert_int_equal(count_nodes(context, "//testsuite[4]/testcase/failure[@type='VACUOUS']"), 1);
    xmlXPathFreeContext(context);
    xmlFreeDoc(document);
    xmlCleanupParser();
    assay_report_free(&reports[0]);
}

/* Whichever allocation of ours fails, the status says so and nothing is given. */
TEST_WITH_CONTEXT(test_no_memory)
{
    OWNED_BY(assay_report_free) assay_report report = {0};
    make_report(&report);
    for (int64_t n = 0;; n++) {
        char *json = NULL, *junit = NULL;
        assay_fail_allocation(n);
        assay_status first = assay_report_json(&ctx, 1, &report, &json);
        assay_status second = assay_report_junit(&ctx, 1, &report, &junit);
        assay_fail_allocation(-1);
        bool failed = assay_allocation_failed();
        assert_int_equal((first == ASSAY_OK) + (second == ASSAY_OK), failed ? 1 : 2);
        assert_int_equal((json != NULL) + (junit != NULL), failed ? 1 : 2);
        free(json);
        free(junit);
        if (!failed) break;
    }
}
