/* Sketches: what the sums are, and that a candidate is told by them. */

#include "harness/judge/judge.h"
#include "harness/sketch/sketch.h"
#include "harness/tests/golden_trial.h"
#include "oracle/base/memory.h"
#include "oracle/base/random.h"

enum { ABOVE = 500, SEED = 7 };

static assay_tensor_spec gradient_of(int rank, const int64_t *dims)
{
    assay_tensor_spec spec = {.type = ASSAY_FLOAT64, .shape = {.rank = rank}};
    for (int i = 0; i < rank; i++) {
        spec.shape.dims[i] = dims[i];
        spec.labels[i] = "D";
    }
    assay_tensor_call(&spec, "gradients/weights/wi_0");
    return spec;
}

/* docs/large.md: bit i mod 64 of assay_random_bits(seed, path of the sums, i / 64). */
static double sign(const char *component, int64_t index)
{
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "gradients/weights/wi_0/sketch/%s", component);
    return assay_random_bits(SEED, path, (uint64_t)index / 64) >> (index % 64) & 1 ? -1 : 1;
}

/* Every sum element by element, in long double. */
static void check_sums(const assay_sketch *s, int64_t above, const double *x)
{
    const int64_t E = s->blocks, R = s->rows, C = s->columns, RT = s->row_tiles, CT = s->column_tiles;
    const int64_t sizes[] = {E * R, E * C, E * RT * CT, E};
    long double *sums[4];
    double largest = 0;
    for (int component = 0; component < 4; component++) {
        const bool held = sizes[component] <= above || component == ASSAY_SKETCH_BLOCKS;
        assert_int_equal(s->sizes[component], held ? sizes[component] : 0);
        sums[component] = calloc((size_t)sizes[component], sizeof *sums[component]);
        assert_non_null(sums[component]);
    }
    for (int64_t i = 0; i < E * R * C; i++) {
        const int64_t column = i % C, row = i / C, block = row / R;
        const double of_column = sign("rows", block * C + column), of_row = sign("columns", row);
        largest = fmax(largest, fabs(x[i]));
        sums[ASSAY_SKETCH_ROWS][row] += of_column * x[i];
        sums[ASSAY_SKETCH_COLUMNS][block * C + column] += of_row * x[i];
        sums[ASSAY_SKETCH_TILES][(block * RT + row % R / 128) * CT + column / 128] += of_row * of_column * x[i];
        sums[ASSAY_SKETCH_BLOCKS][block] += of_row * of_column * x[i];
    }
    for (int component = 0; component < 4; component++) {
        for (int64_t i = 0; s->components[component] != NULL && i < sizes[component]; i++) {
            assert_true(fabsl(s->components[component][i] - sums[component][i]) <=
                        0x1p-48L * largest * sqrtl((long double)(R * C)));
        }
        free(sums[component]);
    }
}

static void check_slices(const assay_sketch *s, int64_t above, const double *x)
{
    const int64_t all = s->blocks * s->rows, most = above / s->columns;
    int64_t count = all < ASSAY_SKETCH_SLICES ? all : ASSAY_SKETCH_SLICES, last = -1;
    if (count > most) count = most;
    assert_int_equal(s->sizes[ASSAY_SKETCH_SLICE_ROWS], count * s->columns);
    for (int64_t i = 0; i < count; i++) {
        assert_true(s->slices[i] > last && s->slices[i] < all);
        last = s->slices[i];
        assert_memory_equal(s->components[ASSAY_SKETCH_SLICE_ROWS] + i * s->columns, x + last * s->columns,
                            (size_t)s->columns * sizeof *x);
    }
    if (s->components[ASSAY_SKETCH_SLICE_BLOCK] == NULL) return;
    const int64_t size = s->rows * s->columns;
    assert_true(s->blocks > 1 && s->slice_block >= 0 && s->slice_block < s->blocks);
    assert_memory_equal(s->components[ASSAY_SKETCH_SLICE_BLOCK], x + s->slice_block * size, (size_t)size * sizeof *x);
}

/* What assay_sketch_signs says of a sum gives that sum. */
static void check_signs(const assay_sketch *s, const double *x)
{
    signed char *signs = malloc((size_t)s->count);
    assert_non_null(signs);
    for (int component = 0; component < ASSAY_SKETCH_COMPONENTS; component++) {
        for (int64_t i = 0; i < s->sizes[component]; i += s->sizes[component] / 3 + 1) {
            double sum = 0;
            assay_sketch_signs(s, (assay_sketch_component)component, i, signs);
            for (int64_t k = 0; k < s->count; k++) sum += signs[k] * x[k];
            assert_true(fabs(sum - s->components[component][i]) <= 1e-9 * (double)s->count);
        }
    }
    free(signs);
}

/* Zeros that come as a number of them: from the middle of the first block to that of the last. */
static void check_zeros(const assay_tensor_spec *spec, int64_t above, const double *x)
{
    assay_context ctx = assay_context_default(1);
    OWNED_BY(assay_sketch_free) assay_sketch plain = {0}, skipped = {0};
    assert_ok(&ctx, assay_sketch_start(&ctx, spec, above, SEED, &plain));
    assert_ok(&ctx, assay_sketch_start(&ctx, spec, above, SEED, &skipped));
    const int64_t block = plain.rows * plain.columns, first = block / 3, end = plain.count - block / 2;
    OWNED double *zeros = calloc((size_t)plain.count, sizeof *zeros);
    assert_non_null(zeros);
    if (first < end) {
        assay_sketch_add(&plain, first, x, x);
        assay_sketch_add(&plain, end - first, zeros, zeros);
        assay_sketch_add(&plain, plain.count - end, x + end, x + end);
        assay_sketch_add(&skipped, first, x, x);
        assay_sketch_add_zeros(&skipped, end - first);
        assay_sketch_add(&skipped, plain.count - end, x + end, x + end);
        assert_int_equal(skipped.position, skipped.count);
        for (int component = 0; component < ASSAY_SKETCH_COMPONENTS; component++) {
            for (int64_t i = 0; i < plain.sizes[component]; i++)
                assert_true(plain.components[component][i] == skipped.components[component][i]);
        }
    }
}

TEST_WITH_CONTEXT(test_sums_and_slices)
{
    static const struct {
        int rank;
        int64_t dims[4];
    } shapes[] = {{2, {1, 1}}, {2, {257, 131}}, {3, {3, 5, 7}}, {3, {2, 130, 128}}, {4, {2, 3, 17, 129}}, {2, {40, 1}}};
    const assay_fill normal = {.distribution = ASSAY_NORMAL, .scale = 1};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const assay_tensor_spec spec = gradient_of(shapes[i].rank, shapes[i].dims);
        const int64_t count = assay_shape_count(&spec.shape), above = shapes[i].rank == 4 ? 800 : 1 << 20;
        OWNED_BY(assay_sketch_free) assay_sketch once = {0}, pieces = {0};
        OWNED double *x = NULL;
        assert_ok(&ctx, assay_alloc_f64(&ctx, "x", count, &x));
        assert_ok(&ctx, assay_random_fill(&ctx, &normal, 1, "x", &spec.shape, ASSAY_FLOAT64, 0, count, x));
        assert_ok(&ctx, assay_sketch_start(&ctx, &spec, above, SEED, &once));
        assert_ok(&ctx, assay_sketch_start(&ctx, &spec, above, SEED, &pieces));
        assay_sketch_add(&once, count, x, x);
        for (int64_t first = 0, n; first < count; first += n) {
            n = first % 11 + 1 < count - first ? first % 11 + 1 : count - first;
            assay_sketch_add(&pieces, n, x + first, x + first);
        }
        assert_true((once.components[ASSAY_SKETCH_SLICE_BLOCK] != NULL) == (shapes[i].rank == 3));
        assert_true((once.components[ASSAY_SKETCH_ROWS] != NULL) == (shapes[i].rank != 5));
        for (int component = 0; component < ASSAY_SKETCH_COMPONENTS; component++) {
            if (once.components[component] == NULL) continue;
            assert_memory_equal(once.components[component], pieces.components[component],
                                (size_t)once.sizes[component] * sizeof *x);
        }
        check_sums(&once, above, x);
        check_slices(&once, above, x);
        check_signs(&once, x);
        check_zeros(&spec, above, x);
    }
}

TEST_WITH_CONTEXT(test_what_has_a_sketch)
{
    char whole[ASSAY_PATH_SIZE];
    assay_sketch_component component;
    assay_tensor_spec spec = gradient_of(3, (int64_t[]){2, 16, 16});
    assert_true(assay_sketch_is_for(&spec, 511));
    assert_false(assay_sketch_is_for(&spec, 512));
    assert_false(assay_sketch_is_for(&spec, 0));
    spec = gradient_of(1, (int64_t[]){512});
    assert_false(assay_sketch_is_for(&spec, 10));
    spec = gradient_of(2, (int64_t[]){64, 64});
    assay_tensor_call(&spec, "outputs/y");
    assert_false(assay_sketch_is_for(&spec, 10));
    assay_sketch_tensor_path("gradients/weights/wo/sketch/tiles", whole, &component);
    assert_string_equal(whole, "gradients/weights/wo");
    assert_int_equal(component, ASSAY_SKETCH_TILES);
    assay_sketch_tensor_path("gradients/weights/wo/sketch/other", whole, NULL);
    assert_string_equal(whole, "");
    assay_sketch sketch = {0};
    memset(spec.path, 'x', sizeof spec.path - 1);
    assert_int_equal(assay_sketch_start(&ctx, &spec, 10, SEED, &sketch), ASSAY_BAD_INPUT);
    assay_sketch_free(&sketch);
}

/* The whole gradients of the same case, in the profile's type; `changed` [index] of one of them becomes `value`. */
static void write_whole(trial *sketched, trial *whole, const char *changed, int64_t index, double factor)
{
    const assay_profile *profile = assay_profile_by_name("f32");
    assay_tensor *tensor = changed == NULL ? NULL : assay_tensor_set_find(&whole->golden, changed);
    const double before = tensor == NULL ? 0 : tensor->values[index];
    if (tensor != NULL) tensor->values[index] = factor * (before == 0 ? 1 : before);
    memcpy(whole->candidate, sketched->candidate, sizeof whole->candidate);
    trial_write_candidate(whole, &whole->golden, profile, assay_has_error_scale);
    if (tensor != NULL) tensor->values[index] = before;
}

static assay_report judge_file(trial *t, const char *path)
{
    assay_report report;
    OWNED_BY(assay_golden_close) assay_golden golden = {0};
    OWNED_BY(assay_fixture_release) assay_fixture_reader *candidate = NULL;
    const assay_judging how = {.profile = assay_profile_by_name("f32"), .false_alarm = 1e-6, .quiet = true};
    assert_ok(&t->ctx, assay_golden_open(&t->ctx, t->file, &golden));
    assert_ok(&t->ctx, assay_fixture_open(&t->ctx, path, &candidate));
    assert_ok(&t->ctx, assay_judge(&t->ctx, &golden, candidate, &how, &report, NULL));
    return report;
}

static bool names(const assay_report *report, const char *path)
{
    for (int i = 0; i < report->count; i++) {
        const assay_tensor_result *r = &report->tensors[i];
        if (strstr(r->spec.path, path) != NULL && r->verdict == ASSAY_FAIL) return true;
    }
    return false;
}

/* One wrong element of thousands is in four sums; a candidate may give whole gradients or the sketch. */
TEST_IN_FOLDER(candidates_are_judged_by_sketches)
{
    static const char wi_0[] = "gradients/weights/wi_0";
    OWNED_BY(trial_close) trial sketched, whole;
    assay_report report;
    trial_evaluate(&whole, case_named("moe/small", "base_moe_mlp_dim=300"), NULL);
    assay_case *c = case_named("moe/small", "base_moe_mlp_dim=300");
    assert_ok(&whole.ctx, assay_case_set(&whole.ctx, c, "sketch_above=2000"));
    trial_write(&sketched, folder, c);
    assert_null(assay_fixture_find(sketched.reader, wi_0));
    assert_non_null(assay_fixture_find(sketched.reader, "gradients/weights/wi_0/sketch/tiles"));
    assert_int_equal(assay_tensor_set_find(&sketched.golden, "gradients/weights/wi_0/sketch/tiles")->count, 6 * 3);

    write_whole(&sketched, &whole, NULL, 0, 1);
    report = judge_file(&sketched, sketched.candidate);
    assert_int_equal(report.verdict, ASSAY_PASS);
    assert_int_equal(report.unknown_count, 0);
    assay_report_free(&report);

    trial_write_candidate(&sketched, &sketched.golden, assay_profile_by_name("f32"), assay_has_error_scale);
    report = judge_file(&sketched, sketched.candidate);
    assert_int_equal(report.verdict, ASSAY_PASS);
    assay_report_free(&report);

    const double wrong[] = {1.01, -1, NAN};
    const assay_tensor *gradient = assay_tensor_set_find(&whole.golden, wi_0);
    int64_t index = 0;
    for (int64_t i = 0; i < gradient->count; i++) {
        if (fabs(gradient->values[i]) > fabs(gradient->values[index])) index = i;
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_whole(&sketched, &whole, wi_0, index, wrong[i]);
        report = judge_file(&sketched, sketched.candidate);
        assert_int_equal(report.verdict, ASSAY_FAIL);
        assert_true(names(&report, "wi_0/sketch/rows") && names(&report, "wi_0/sketch/columns"));
        assert_false(names(&report, "weights/wo"));
        assay_report_free(&report);
    }
}

/* A golden's sketch is that of the whole gradient. Its sums err by what its elements do, each by itself, and by their storage, of
 * which this is the most. */
TEST(test_sketches_of_goldens)
{
    trial whole, sketched;
    OWNED_BY(assay_sketch_free) assay_sketch values = {0};
    char at[ASSAY_PATH_SIZE];
    double expected = 0;
    trial_evaluate(&whole, case_named("gmm/primes", "profiles=bf16"), NULL);
    assay_case *c = case_named("gmm/primes", "profiles=bf16");
    assert_ok(&whole.ctx, assay_case_set(&whole.ctx, c, "sketch_above=500"));
    trial_evaluate(&sketched, c, NULL);
    const assay_profile *profile = assay_profile_by_name("bf16");
    const assay_tensor *g = assay_tensor_set_find(&whole.golden, sketched.plan.list.sketched[0].path);
    assert_non_null(g);
    const assay_tensor *s = assay_results_scales(&whole.golden, profile, g->spec.path);
    assert_ok(&whole.ctx, assay_sketch_start(&whole.ctx, &g->spec, ABOVE, sketched.c->seed, &values));
    assay_sketch_add(&values, g->count, g->values, g->values);
    for (int component = 0; component < ASSAY_SKETCH_COMPONENTS; component++) {
        if (values.components[component] == NULL) continue;
        const assay_tensor_spec spec = assay_sketch_spec(&g->spec, ABOVE, (assay_sketch_component)component);
        const assay_tensor *same = assay_tensor_set_find(&sketched.golden, spec.path);
        assert_memory_equal(same->values, values.components[component], (size_t)same->count * sizeof(double));
    }
    for (int64_t i = 0; i < g->count; i++)
        expected += s->values[i] * s->values[i] + g->values[i] * g->values[i] * 0x1p-16 / 3;
    for (int component = 0; component < ASSAY_SKETCH_SLICE_ROWS; component++) {
        const assay_tensor_spec spec = assay_sketch_spec(&g->spec, ABOVE, (assay_sketch_component)component);
        if (values.components[component] == NULL) continue;
        double found = 0;
        assay_path_at(ASSAY_ROLE_ERROR_SCALE, "bf16", spec.path, at);
        const assay_tensor *scale = assay_tensor_set_find(&sketched.golden, at);
        for (int64_t i = 0; i < scale->count; i++) found += scale->values[i] * scale->values[i];
        if (!(found > 0.25 * expected && found < expected)) fail_msg("%s: %g times the variance", at, found / expected);
    }
    trial_close(&sketched);
    trial_close(&whole);
}
