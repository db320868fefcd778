/* The HTML page: well-formed, self-contained, with what is wrong in it; and the pictures by themselves. */
#include <libxml/HTMLparser.h>
#include <libxml/xpath.h>

#include "compare/pictures.h"
#include "compare/steps.h"
#include "compare/tests/compare_test.h"

typedef struct pair {
    assay_context ctx;
    assay_fixture_reader *golden, *candidate;
    const assay_profile *profile;
} pair;

static void close_pair(pair *p)
{
    assay_fixture_close(p->golden);
    assay_fixture_close(p->candidate);
}

/* outputs/y [300,200] with an error of 3 sigma at one place, 50 at another, NaN at a third. */
static void make_pair(pair *p)
{
    OWNED_BY(free_fixture) test_fixture golden = {.kind = "golden", .profile = "f64"};
    test_tensor *y = add_tensor(&golden, "outputs/y", ASSAY_FLOAT64, 2, DIMS(300, 200), 1e-6);
    add_tensor(&golden, "outputs/count", ASSAY_INT32, 1, DIMS(4), 0);
    add_tensor(&golden, "routing/a<b>&\"c", ASSAY_FLOAT64, 1, DIMS(4), 1e-3);
    OWNED_BY(free_fixture) test_fixture candidate = candidate_of(&golden);
    double *values = tensor_at(&candidate, "outputs/y")->values;
    values[0] += 3 * y->scale[0];
    values[299 * 200 + 199] -= 50 * y->scale[299 * 200 + 199];
    values[150 * 200] = NAN;
    *p = (pair){.ctx = {.threads = 1}, .profile = assay_profile_by_name("f64")};
    open_fixtures(&p->ctx, &golden, &candidate, &p->golden, &p->candidate);
}

TEST(pictures_show_where)
{
    pair p;
    OWNED_BY(assay_report_free) assay_report report = {0};
    make_pair(&p);
    assert_ok(&p.ctx, assay_compare(&p.ctx, p.golden, p.candidate, p.profile, 1e-6, (assay_order){0}, &report));
    assert_ok(&p.ctx, assay_pictures_draw(&p.ctx, p.golden, p.candidate, p.profile, &report));
    for (int i = 0; i < report.count; i++) {
        const assay_picture *picture = report.pictures[i];
        if (strcmp(report.tensors[i].spec.path, "outputs/count") == 0) assert_null(picture);
        if (strcmp(report.tensors[i].spec.path, "outputs/y") != 0) continue;
        assert_non_null(picture);
        assert_int_equal(picture->rows, ASSAY_PICTURE_ROWS);
        assert_int_equal(picture->columns, ASSAY_PICTURE_COLUMNS);
        assert_true(fabs(picture->cells[0] - 3) < 1e-3);
        assert_true(fabs(picture->cells[ASSAY_PICTURE_ROWS * ASSAY_PICTURE_COLUMNS - 1] - 50) < 1e-2);
        assert_true(isinf(picture->cells[150 * ASSAY_PICTURE_ROWS / 300 * ASSAY_PICTURE_COLUMNS]));
        assert_int_equal(picture->counted, 300 * 200 - 1);
        assert_int_equal(picture->bins[0], 1);
        assert_int_equal(picture->bins[36], 1); /* 3 sigma, a quarter each */
        assert_int_equal(picture->bins[24], 300 * 200 - 3);
    }
    close_pair(&p);
}

static int nodes(xmlDoc *page, const char *path)
{
    xmlXPathContext *context = xmlXPathNewContext(page);
    xmlXPathObject *found = xmlXPathEvalExpression((const xmlChar *)path, context);
    const int count = found->nodesetval == NULL ? 0 : found->nodesetval->nodeNr;
    xmlXPathFreeObject(found);
    xmlXPathFreeContext(context);
    return count;
}

/* details, section and svg are newer than libxml2's HTML: it says so, and reads them all the same. */
static xmlDoc *parse(const char *text)
{
    return htmlReadMemory(text, (int)strlen(text), NULL, "utf-8", HTML_PARSE_NOERROR | HTML_PARSE_NOWARNING);
}

TEST(the_page_shows_what_is_wrong)
{
    OWNED_BY(close_pair) pair p;
    OWNED_BY(assay_report_free) assay_report report = {0};
    OWNED char *text = NULL;
    make_pair(&p);
    assert_ok(&p.ctx, assay_compare(&p.ctx, p.golden, p.candidate, p.profile, 1e-6, (assay_order){0}, &report));
    assert_ok(&p.ctx, assay_pictures_draw(&p.ctx, p.golden, p.candidate, p.profile, &report));
    snprintf(report.golden_path, sizeof report.golden_path, "golden \x01<&>.h5");
    report.routing = (assay_routing_summary){.judged = true, .tokens = 7, .exact = 5, .admissible = 2};
    report.tensors[0].statistics_count = 1;
    report.tensors[0].worst_statistic = 0;
    report.tensors[0].statistics[0].expected[ASSAY_NULL_DEVIATION] = 0.25;
    report.tensors[0].statistics[0].excess = 1.625;
    report.power =
        (assay_power){.stated = true, .effective = 9, .detected = 8, .stated_by_stage = true, .detected_by_stage = 9};
    assert_ok(&p.ctx, assay_report_html(&p.ctx, 1, &report, &text));
    xmlDoc *page = parse(text);
    assert_non_null(page);
    assert_int_equal(nodes(page, "//details"), 3);
    assert_int_equal(nodes(page, "//details[@open]"), 1);
    assert_int_equal(nodes(page, "//a[contains(@class,'first')]"), 1);
    assert_int_equal(nodes(page, "//img[starts-with(@src,'data:image/png;base64,iVBOR')]"), 2);
    assert_int_equal(nodes(page, "//svg"), 2);
    assert_int_equal(nodes(page, "//div[@class='map']/b[@class='last'][text()='199']"), 1);
    assert_int_equal(nodes(page, "//script|//link|//@href[starts-with(.,'http')]"), 0);
    assert_contains(text, "routing/a&lt;b&gt;&amp;&quot;c");
    assert_contains(text, "golden ?&lt;&amp;&gt;.h5");
    assert_contains(text, "routing: 7 tokens: 5 exact, 2 admissible, 0 wrong");
    assert_int_equal(nodes(page, "//td[text()='1.62']"), 1); /* of what is allowed of its statistic */
    assert_contains(text, "power: 8 of 9 mutants that have an effect here are detected, 9 with checkpoints (--staged)");
    xmlFreeDoc(page);
}

/* Steps have the verdicts of their tensors; what they do not show is listed behind them. */
TEST(the_page_shows_the_steps)
{
    pair p;
    OWNED_BY(assay_report_free) assay_report report = {0};
    char *text = NULL;
    assay_step of[] = {{.kind = "linear", .in = {0}, .in_count = 1}, {.kind = "add", .in = {1, 2}, .in_count = 2}};
    assay_step_tensor tensors[] = {
        {.name = "x", .shape = "[4]", .path = "gradients/x", .step = -1},
        {.name = "count", .shape = "[4]", .path = "outputs/count", .step = 0, .checkpoint = true},
        {.name = "between", .shape = "[4]", .step = 0},
        {.name = "y", .shape = "[300,200]", .path = "outputs/y", .step = 1, .checkpoint = true},
    };
    assay_steps steps = {.step_count = 2, .tensor_count = 4, .steps = of, .tensors = tensors};
    make_pair(&p);
    assert_ok(&p.ctx, assay_compare(&p.ctx, p.golden, p.candidate, p.profile, 1e-6, (assay_order){0}, &report));
    report.steps = &steps;
    assert_ok(&p.ctx, assay_report_html(&p.ctx, 1, &report, &text));
    xmlDoc *page = parse(text);
    assert_int_equal(nodes(page, "//svg[@class='steps']"), 1);
    assert_int_equal(nodes(page, "//svg/rect[@class='box']"), 2);
    assert_int_equal(nodes(page, "//svg/path"), 2);
    assert_int_equal(nodes(page, "//a/g[@class='bold pass'][title='outputs/count']"), 1);
    assert_int_equal(nodes(page, "//a/g[@class='bold fail first'][title='outputs/y (first wrong)']"), 1);
    assert_int_equal(nodes(page, "//svg/g[@class='soft grey'][title='gradients/x']"), 1);
    assert_int_equal(nodes(page, "//svg/g[@class='plain grey'][not(title)]"), 1);
    assert_int_equal(nodes(page, "//ul[@class='flow']/li"), 1);
    for (int i = 0; i < report.count; i++) {
        char link[80];
        snprintf(link, sizeof link, "//a[@href='#r0t%d'] | //details[@id='r0t%d']", i, i);
        assert_int_equal(nodes(page, link), 2);
    }
    xmlFreeDoc(page);
    free(text);
    report.steps = NULL;
    close_pair(&p);
}

/* Several reports: an index, and no pictures where none were drawn; none at all is a page too. */
TEST(many_reports_have_an_index)
{
    OWNED_BY(close_pair) pair p;
    assay_report reports[2];
    char *text = NULL;
    make_pair(&p);
    for (int i = 0; i < 2; i++) {
        assert_ok(&p.ctx, assay_compare(&p.ctx, p.golden, p.candidate, p.profile, 1e-6, (assay_order){0}, &reports[i]));
    }
    snprintf(reports[0].explanation, sizeof reports[0].explanation, "equals mutant <one>");
    reports[0].explained_count = 1;
    snprintf(reports[1].explanation, sizeof reports[1].explanation, "no known bug");
    snprintf(reports[1].diagnosis, sizeof reports[1].diagnosis, "outputs/y is zero");
    snprintf(reports[1].reproduce, sizeof reports[1].reproduce, "assay run 'a<b'");
    snprintf(reports[1].generator, sizeof reports[1].generator, "assay 0.0");
    snprintf(reports[1].program, sizeof reports[1].program, "assay 1.0");
    assert_ok(&p.ctx, assay_report_html(&p.ctx, 2, reports, &text));
    assert_contains(text, "<strong>equals mutant &lt;one&gt;</strong>");
    assert_contains(text, "<strong>outputs/y is zero</strong><br><code>assay run 'a&lt;b'</code>");
    assert_contains(text, "golden made by assay 0.0, judged by assay 1.0");
    assert_contains(text, "<title>assay: 2 cases: 0 passed, 2 failed");
    xmlDoc *page = parse(text);
    assert_int_equal(nodes(page, "//a[@href='#r1']"), 1);
    assert_int_equal(nodes(page, "//section"), 2);
    assert_int_equal(nodes(page, "//img"), 0);
    assert_contains(text, "2 cases: 0 passed, 2 failed");
    xmlFreeDoc(page);
    free(text);
    /* a known failure is counted apart and comes behind the others */
    snprintf(reports[0].expected_failure, sizeof reports[0].expected_failure, "no such kernel yet");
    assert_ok(&p.ctx, assay_report_html(&p.ctx, 2, reports, &text));
    assert_contains(text, "2 cases: 0 passed, 1 failed, 0 vacuous, 0 not comparable, 0 unsupported, 1 known failures");
    assert_true(strstr(text, "href=\"#r1\"") < strstr(text, "href=\"#r0\""));
    assert_contains(text, "KNOWN</span>");
    free(text);
    assert_ok(&p.ctx, assay_report_html(&p.ctx, 0, reports, &text));
    assert_contains(text, "0 cases");
    free(text);
    for (int i = 0; i < 2; i++) assay_report_free(&reports[i]);
}

/* Streams that keep nothing: whether that is said by the writing, unbuffered, or by the closing. */
static bool streams_are_full, unbuffered;
FILE *__wrap_assay_text_open(char **text, size_t *size);
FILE *__real_assay_text_open(char **text, size_t *size);

FILE *__wrap_assay_text_open(char **text, size_t *size)
{
    if (!streams_are_full) return __real_assay_text_open(text, size);
    FILE *full = fopen("/dev/full", "w");
    if (full != NULL && unbuffered) setvbuf(full, NULL, _IONBF, 0);
    return full;
}

/* A page is whole, with every picture, or there is none. */
TEST(no_page_has_holes)
{
    pair p;
    OWNED_BY(assay_report_free) assay_report report = {0};
    const assay_report_style style = {0};
    char *page = NULL, *text = NULL;
    int64_t n = 0;
    make_pair(&p);
    assert_ok(&p.ctx, assay_compare(&p.ctx, p.golden, p.candidate, p.profile, 1e-6, (assay_order){0}, &report));
    assert_ok(&p.ctx, assay_pictures_draw(&p.ctx, p.golden, p.candidate, p.profile, &report));
    while (lacks_memory(&n, &p.ctx, assay_report_html(&p.ctx, 1, &report, &page))) assert_null(page);
    assert_true(n > 1);
    free(page);
    streams_are_full = true;
    for (int i = 0; i < 2; i++) {
        unbuffered = i == 1;
        assert_int_equal(assay_report_html(&p.ctx, 1, &report, &page), ASSAY_NO_MEMORY);
        assert_int_equal(assay_report_text(&p.ctx, &report, &style, &text), ASSAY_NO_MEMORY);
        assert_true(page == NULL && text == NULL);
    }
    streams_are_full = false;
    close_pair(&p);
}

/* Each element is in the cell that its row and column have, whatever the sizes. */
TEST(cells_of_all_sizes)
{
    static const int64_t sizes[][2] = {{1, 1}, {1, 70001}, {70001, 1}, {503, 131}, {3, 129}, {65, 128}, {70, 257}};
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        const int64_t rows = sizes[n][0], columns = sizes[n][1], count = rows * columns;
        assay_context ctx = {.threads = 1};
        OWNED_BY(assay_fixture_release) assay_fixture_reader *golden = NULL, *candidate = NULL;
        OWNED_BY(assay_report_free) assay_report report = {0};
        OWNED double *zeros = calloc((size_t)count, sizeof *zeros), *values = calloc((size_t)count, sizeof *values);
        OWNED double *scales = calloc((size_t)count, sizeof *scales);
        float expected[ASSAY_PICTURE_ROWS * ASSAY_PICTURE_COLUMNS] = {0};
        assert_true(zeros != NULL && values != NULL && scales != NULL);
        assay_memory_tensor tensors[2] = {
            {.spec = spec_of("outputs/y", ASSAY_FLOAT64, 2, sizes[n]), .numbers = values},
            {.spec = spec_of("error_scale/f64/outputs/y", ASSAY_FLOAT64, 2, sizes[n]), .numbers = scales}};
        const int64_t down = rows < ASSAY_PICTURE_ROWS ? rows : ASSAY_PICTURE_ROWS;
        const int64_t across = columns < ASSAY_PICTURE_COLUMNS ? columns : ASSAY_PICTURE_COLUMNS;
        for (int64_t i = 0; i < count; i++) {
            float *cell = &expected[i / columns * down / rows * across + i % columns * across / columns];
            scales[i] = 1;
            values[i] = (double)(i % 7919);
            if (values[i] > *cell) *cell = (float)values[i];
        }
        assert_ok(&ctx, assay_fixture_of_memory(&ctx, "candidate", 1, tensors, &candidate));
        tensors[0].numbers = zeros;
        assert_ok(&ctx, assay_fixture_of_memory(&ctx, "golden", 2, tensors, &golden));
        const assay_profile *profile = assay_profile_by_name("f64");
        assert_ok(&ctx, assay_compare(&ctx, golden, candidate, profile, 1e-6, (assay_order){0}, &report));
        assert_ok(&ctx, assay_pictures_draw(&ctx, golden, candidate, profile, &report));
        assert_int_equal(report.pictures[0]->counted, count);
        for (int64_t cell = 0; cell < down * across; cell++) {
            assert_true(fabsf(report.pictures[0]->cells[cell] - expected[cell]) <= 1e-3F);
        }
    }
}

/* More tensors than pictures: what is wrong has one all the same. */
TEST_WITH_CONTEXT(pictures_are_limited)
{
    enum { TENSORS = ASSAY_PICTURES_MOST + 3 };
    const double golden_value = 1, wrong = 2, scale = 1e-3;
    OWNED_BY(assay_fixture_release) assay_fixture_reader *golden = NULL, *candidate = NULL;
    OWNED_BY(assay_report_free) assay_report report = {0};
    int drawn = 0;
    OWNED assay_memory_tensor *tensors = calloc(2 * TENSORS, sizeof *tensors);
    assert_non_null(tensors);
    for (int i = 0; i < TENSORS; i++) {
        assay_tensor_spec spec = spec_of("", ASSAY_FLOAT64, 1, DIMS(1));
        snprintf(spec.path, sizeof spec.path, "outputs/%04d", i);
        tensors[i] = (assay_memory_tensor){.spec = spec, .numbers = i == TENSORS - 1 ? &wrong : &golden_value};
    }
    assert_ok(&ctx, assay_fixture_of_memory(&ctx, "candidate", TENSORS, tensors, &candidate));
    tensors[TENSORS - 1].numbers = &golden_value;
    for (int i = 0; i < TENSORS; i++) {
        tensors[TENSORS + i] = (assay_memory_tensor){.spec = tensors[i].spec, .numbers = &scale};
        snprintf(tensors[TENSORS + i].spec.path, ASSAY_PATH_SIZE, "error_scale/f64/outputs/%04d", i);
    }
    assert_ok(&ctx, assay_fixture_of_memory(&ctx, "golden", 2 * TENSORS, tensors, &golden));
    const assay_profile *profile = assay_profile_by_name("f64");
    assert_ok(&ctx, assay_compare(&ctx, golden, candidate, profile, 1e-6, (assay_order){0}, &report));
    assert_ok(&ctx, assay_pictures_draw(&ctx, golden, candidate, profile, &report));
    assert_int_equal(report.count, TENSORS);
    for (int i = 0; i < TENSORS; i++) drawn += report.pictures[i] != NULL;
    assert_int_equal(drawn, ASSAY_PICTURES_MOST);
    assert_int_equal(report.tensors[TENSORS - 1].verdict, ASSAY_FAIL);
    assert_non_null(report.pictures[TENSORS - 1]);
    assert_null(report.pictures[TENSORS - 2]);
}

TEST(out_of_memory_leaves_nothing_behind)
{
    pair p;
    int64_t n = 0;
    make_pair(&p);
    for (;; n++) {
        assay_report report = {0};
        assert_ok(&p.ctx, assay_compare(&p.ctx, p.golden, p.candidate, p.profile, 1e-6, (assay_order){0}, &report));
        assay_fail_allocation(n);
        const assay_status status = assay_pictures_draw(&p.ctx, p.golden, p.candidate, p.profile, &report);
        assay_report_free(&report);
        if (had_memory(&p.ctx, status)) break;
    }
    assert_true(n > 3);
    close_pair(&p);
}
