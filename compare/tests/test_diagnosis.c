/* What a wrong tensor looks like: each hypothesis where it is the truth, and silence where none is. */
#include "compare/compare_internal.h"
#include "compare/tests/compare_test.h"

enum { A = 4, B = 6, C = 6, COUNT = A * B * C };

typedef struct wrong {
    double golden[COUNT], candidate[COUNT], sigma[COUNT];
    assay_wrong_tensor t;
} wrong;

static const double noise = 1e-3;

/* candidate[i] = golden[i] with an error of about one sigma; then it is made wrong. */
static void make(wrong *w)
{
    for (int i = 0; i < COUNT; i++) {
        w->golden[i] = draw(1, "golden", i);
        w->sigma[i] = noise * (1 + 0.5 * draw(2, "sigma", i));
        w->candidate[i] = w->golden[i] + w->sigma[i] * draw_normal(3, "error", i);
    }
    w->t = (assay_wrong_tensor){w->golden, w->candidate, w->sigma, COUNT, {3, {A, B, C}}, {"E", "S", "D"}};
}

static void finish(wrong *w, char text[256])
{
    assay_context ctx = {.threads = 1};
    memset(text, 'x', 255);
    assert_ok(&ctx, assay_diagnose_tensor(&ctx, &w->t, text, 256));
}

static double correct(const wrong *w, int i)
{
    return w->golden[i] + w->sigma[i] * draw_normal(4, "other error", i);
}

static int at(int a, int b, int c)
{
    return (a * B + b) * C + c;
}

typedef void (*planting)(wrong *w);
static void nothing(wrong *w)
{
    (void)w;
}
static void doubled(wrong *w)
{
    for (int i = 0; i < COUNT; i++) w->candidate[i] = 2 * correct(w, i);
}
static void negated(wrong *w)
{
    for (int i = 0; i < COUNT; i++) w->candidate[i] = -correct(w, i);
}
static void zeroed(wrong *w)
{
    for (int i = 0; i < COUNT; i++) w->candidate[i] = 0;
}
static void transposed(wrong *w)
{
    for (int a = 0; a < A; a++)
        for (int b = 0; b < B; b++)
            for (int c = 0; c < C; c++) w->candidate[at(a, b, c)] = correct(w, at(a, c, b));
}
static void shifted(wrong *w)
{
    for (int i = 0; i < COUNT; i++) w->candidate[i] = i / C % B > 0 ? correct(w, i - C) : 0;
}
static void rolled(wrong *w)
{
    for (int i = 0; i < COUNT; i++) w->candidate[i] = correct(w, (i + B * C) % COUNT);
}
static void experts_exchanged(wrong *w)
{
    static const int order[A] = {0, 3, 2, 1};
    for (int i = 0; i < COUNT; i++) w->candidate[i] = correct(w, order[i / (B * C)] * B * C + i % (B * C));
}
static void last_columns_missing(wrong *w)
{
    for (int i = 0; i < COUNT; i++)
        if (i % C >= C - 2) w->candidate[i] = 0;
}
static void one_expert_off(wrong *w)
{
    for (int i = 2 * B * C; i < 3 * B * C; i++) w->candidate[i] += 0.5;
}
static void random_numbers(wrong *w)
{
    for (int i = 0; i < COUNT; i++) w->candidate[i] = draw(9, "random", i);
}
static void with_nan(wrong *w)
{
    doubled(w), w->candidate[5] = NAN;
}
static void cut_off(wrong *w)
{
    for (int i = 0; i < COUNT; i++) {
        w->sigma[i] = 0x1p-8;
        w->candidate[i] = trunc(w->golden[i] * 0x1p8) * 0x1p-8;
    }
}

/* Numbers as dense as these are the others in another order, nearly. */
static void one_number_of_a_vector(wrong *w)
{
    w->t.shape = (assay_shape){1, {COUNT}};
    w->t.labels[0] = "D";
    for (int i = 0; i < COUNT; i++) {
        w->sigma[i] = 0.02;
        w->candidate[i] = w->golden[i];
    }
    w->candidate[COUNT - 1] += w->golden[COUNT - 1] > 0 ? -0.9 : 0.9;
}

TEST(the_truth_is_named)
{
    static const struct {
        planting plant;
        const char *expected; /* "": no hypothesis may be named */
    } table[] = {
        {nothing, ""},
        {doubled, "the golden times 2.00"},
        {negated, "the golden negated"},
        {zeroed, "zero everywhere"},
        {transposed, "transposed in its last two axes"},
        {shifted, "shifted by +1 along axis 1 (S)"},
        {rolled, "shifted by -1 along axis 0 (E)"},
        {experts_exchanged, "in another order along axis 0 (E): at 1 is what belongs at 3"},
        {last_columns_missing, "wrong only at 4 to 5 of axis 2 (D), where it is zero; right elsewhere"},
        {one_expert_off, "wrong only at 2 of axis 0 (E); right elsewhere"},
        {random_numbers, ""},
        {with_nan, ""},
        {one_number_of_a_vector, "wrong only at 143 of axis 0 (D); right elsewhere"},
        {cut_off, "cut off instead of rounded"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        wrong w;
        char text[256];
        make(&w);
        table[i].plant(&w);
        finish(&w, text);
        const bool right = table[i].expected[0] == '\0' ? text[0] == '\0' : strstr(text, table[i].expected) != NULL;
        if (!right) fail_msg("%zu: \"%s\", expected \"%s\"", i, text, table[i].expected);
    }
}

/* In a comparison it is the first wrong tensor that is looked at, and its number is said in the report. */
TEST_WITH_CONTEXT(reports_have_it)
{
    OWNED_BY(assay_report_free) assay_report report = {0};
    char *text = NULL;
    OWNED_BY(free_fixture) test_fixture golden = ordinary_golden("bf16", 1e-3);
    add_tensor(&golden, "outputs/z", ASSAY_FLOAT64, 3, DIMS(2, 7, 65), 1e-3);
    OWNED_BY(free_fixture) test_fixture candidate = candidate_of(&golden);
    const double *z = tensor_at(&golden, "outputs/z")->values;
    for (int i = 0; i < 910; i++) tensor_at(&candidate, "outputs/y")->values[i] = z[i];
    for (int i = 0; i < 910; i++) tensor_at(&candidate, "gradients/inputs/x")->values[i] *= 3;
    compare_fixtures(&ctx, &golden, &candidate, "bf16", &report);
    assert_string_equal(report.diagnosis, "outputs/y is what belongs in outputs/z");
    const assay_report_style style = {0};
    assert_ok(&ctx, assay_report_text(&ctx, &report, &style, &text));
    assert_contains(text, "looks like this: outputs/y is what belongs in outputs/z\n");
    free(text);
    assert_ok(&ctx, assay_report_json(&ctx, 1, &report, &text));
    assert_contains(text, "what belongs in outputs/z");
    free(text);
    assay_report_free(&report);
    free_fixture(&candidate);
    candidate = candidate_of(&golden);
    compare_fixtures(&ctx, &golden, &candidate, "bf16", &report);
    assert_string_equal(report.diagnosis, "");
}

TEST(out_of_memory_leaves_nothing_behind)
{
    int64_t n = 0;
    for (;; n++) {
        assay_context ctx = {.threads = 1};
        wrong w;
        char text[256];
        make(&w);
        experts_exchanged(&w);
        assay_fail_allocation(n);
        const assay_status status = assay_diagnose_tensor(&ctx, &w.t, text, sizeof text);
        if (had_memory(&ctx, status)) break;
    }
    assert_true(n > 2);
}
