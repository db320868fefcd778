/* What the tests of compare/ share: goldens and candidates made on the spot from a description of one tensor or more,
 * and changed before they are written. */
#pragma once

#include <unistd.h>

#include "compare/compare.h"
#include "compare/report.h"
#include "oracle/base/random.h"
#include "tests/support/assay_test.h"

enum { MOST_TENSORS = 12 };

/* A tensor as a golden or a candidate holds it; `scale` is its error scale in a golden (NULL: none is written). */
typedef struct test_tensor {
    assay_tensor_spec spec;
    double *values, *scale;
} test_tensor;

typedef struct test_fixture {
    const char *kind;    /* NULL: no such attribute */
    const char *profile; /* whose error scales these are */
    test_tensor tensors[MOST_TENSORS];
    int count;
} test_fixture;

static inline assay_tensor_spec spec_of(const char *path, assay_dtype type, int rank, const int64_t *dims)
{
    assay_tensor_spec spec = {.type = type, .shape = {.rank = rank}};
    assay_tensor_call(&spec, path);
    for (int axis = 0; axis < rank; axis++) {
        spec.shape.dims[axis] = dims[axis];
        spec.labels[axis] = "D";
    }
    return spec;
}

#define DIMS(...) ((const int64_t[]){__VA_ARGS__})

/* A number in [-1, 1), always the same for `index`. */
static inline double draw(uint64_t seed, const char *path, int64_t index)
{
    return ldexp((double)(assay_random_bits(seed, path, (uint64_t)index) >> 11), -52) - 1.0;
}

/* Normal: from the sum of 12 uniform ones would have no tails, so Box-Muller. */
static inline double draw_normal(uint64_t seed, const char *path, int64_t index)
{
    double radius = sqrt(-2.0 * log(0.5 * (draw(seed, path, 2 * index) + 1.0) + 0x1p-60));
    return radius * cos(3.14159265358979324 * draw(seed, path, 2 * index + 1));
}

/* Adds a tensor whose values lie in [-1, 1) (int32: 0..9) with error scale `sigma` times 1 plus something. */
static inline test_tensor *add_tensor(test_fixture *f, const char *path, assay_dtype type, int rank,
                                      const int64_t *dims, double sigma)
{
    test_tensor *t = &f->tensors[f->count++];
    t->spec = spec_of(path, type, rank, dims);
    int64_t count = assay_shape_count(&t->spec.shape);
    t->values = malloc((size_t)(count + 1) * sizeof *t->values);
    t->scale = type == ASSAY_INT32 ? NULL : malloc((size_t)(count + 1) * sizeof *t->scale);
    assert_non_null(t->values);
    for (int64_t i = 0; i < count; i++) {
        double value = draw(1, path, i);
        t->values[i] = type == ASSAY_INT32 ? floor(5.0 * (value + 1.0)) : value;
        if (t->scale != NULL) t->scale[i] = (double)(float)(sigma * (1.0 + 0.5 * draw(2, path, i)));
    }
    return t;
}

static inline void free_fixture(test_fixture *f)
{
    for (int i = 0; i < f->count; i++) {
        free(f->tensors[i].values);
        free(f->tensors[i].scale);
    }
    *f = (test_fixture){0};
}

/* The same tensors again, as a candidate without error scales. */
static inline test_fixture candidate_of(const test_fixture *golden)
{
    test_fixture c = {.kind = "candidate", .count = golden->count};
    for (int i = 0; i < golden->count; i++) {
        const test_tensor *g = &golden->tensors[i];
        size_t bytes = (size_t)(assay_shape_count(&g->spec.shape) + 1) * sizeof *g->values;
        c.tensors[i].spec = g->spec;
        c.tensors[i].values = malloc(bytes);
        assert_non_null(c.tensors[i].values);
        memcpy(c.tensors[i].values, g->values, bytes);
    }
    return c;
}

static inline test_tensor *tensor_at(test_fixture *f, const char *path)
{
    for (int i = 0; i < f->count; i++) {
        if (strcmp(f->tensors[i].spec.path, path) == 0) return &f->tensors[i];
    }
    fail_msg("no %s", path);
    return NULL;
}

static inline void drop_tensor(test_fixture *f, const char *path)
{
    test_tensor *t = tensor_at(f, path);
    free(t->values);
    free(t->scale);
    memmove(t, t + 1, (size_t)(&f->tensors[f->count - 1] - t) * sizeof *t);
    f->count--;
}

static inline assay_tensor_spec scale_spec(const test_fixture *f, const test_tensor *t)
{
    assay_tensor_spec spec = t->spec;
    spec.type = ASSAY_FLOAT32;
    snprintf(spec.path, sizeof spec.path, "error_scale/%s/%.80s", f->profile, t->spec.path);
    return spec;
}

static inline void write_fixture(assay_context *ctx, const test_fixture *f, const char *path)
{
    assay_fixture_writer *writer = NULL;
    assert_ok(ctx, assay_fixture_create(ctx, path, &writer));
    if (f->kind != NULL) assert_ok(ctx, assay_fixture_set_text(ctx, writer, "kind", f->kind));
    assert_ok(ctx, assay_fixture_set_text(ctx, writer, "case", "test/case"));
    assert_ok(ctx, assay_fixture_set_text(ctx, writer, "op", "test"));
    for (int i = 0; i < f->count; i++) {
        const test_tensor *t = &f->tensors[i];
        int64_t count = assay_shape_count(&t->spec.shape);
        assay_tensor_spec scale = scale_spec(f, t);
        assert_ok(ctx, assay_fixture_declare(ctx, writer, &t->spec));
        assert_ok(ctx, assay_fixture_append(ctx, writer, t->spec.path, count, t->values));
        if (t->scale == NULL) continue;
        assert_ok(ctx, assay_fixture_declare(ctx, writer, &scale));
        assert_ok(ctx, assay_fixture_append(ctx, writer, scale.path, count, t->scale));
    }
    assert_ok(ctx, assay_fixture_finish(ctx, writer));
}

/* Writes both and opens them; the files are gone at once. */
static inline void open_fixtures(assay_context *ctx, const test_fixture *golden, const test_fixture *candidate,
                                 assay_fixture_reader **golden_reader, assay_fixture_reader **candidate_reader)
{
    char folder[] = "compare-test-XXXXXX", golden_path[64], candidate_path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(golden_path, sizeof golden_path, "%s/golden.h5", folder);
    snprintf(candidate_path, sizeof candidate_path, "%s/candidate.h5", folder);
    write_fixture(ctx, golden, golden_path);
    write_fixture(ctx, candidate, candidate_path);
    assert_ok(ctx, assay_fixture_open(ctx, golden_path, golden_reader));
    assert_ok(ctx, assay_fixture_open(ctx, candidate_path, candidate_reader));
    remove(golden_path);
    remove(candidate_path);
    rmdir(folder);
}

static inline assay_status try_compare(assay_context *ctx, const test_fixture *golden, const test_fixture *candidate,
                                       const assay_profile *profile, assay_order order, assay_report *report)
{
    assay_fixture_reader *g = NULL, *c = NULL;
    open_fixtures(ctx, golden, candidate, &g, &c);
    const assay_status status = assay_compare(ctx, g, c, profile, 1e-6, order, report);
    assay_fixture_close(g);
    assay_fixture_close(c);
    return status;
}

static inline void compare_ranked(assay_context *ctx, const test_fixture *golden, const test_fixture *candidate,
                                  const char *profile, assay_order order, assay_report *report)
{
    assert_ok(ctx, try_compare(ctx, golden, candidate, assay_profile_by_name(profile), order, report));
}

static inline void compare_fixtures(assay_context *ctx, const test_fixture *golden, const test_fixture *candidate,
                                    const char *profile, assay_report *report)
{
    compare_ranked(ctx, golden, candidate, profile, (assay_order){0}, report);
}

static inline const assay_tensor_result *result_at(const assay_report *report, const char *path)
{
    for (int i = 0; i < report->count; i++) {
        if (strcmp(report->tensors[i].spec.path, path) == 0) return &report->tensors[i];
    }
    fail_msg("no result for %s", path);
    return NULL;
}

/* A golden like those of a MoE block: integers, floats, gradients, something optional. */
static inline test_fixture ordinary_golden(const char *profile, double sigma)
{
    test_fixture f = {.kind = "golden", .profile = profile};
    add_tensor(&f, "checkpoints/moe_mlpwo", ASSAY_FLOAT64, 2, DIMS(13, 17), sigma);
    add_tensor(&f, "gradients/inputs/x", ASSAY_FLOAT64, 3, DIMS(2, 7, 65), sigma);
    add_tensor(&f, "outputs/lb_loss", ASSAY_FLOAT64, 0, NULL, sigma);
    add_tensor(&f, "outputs/y", ASSAY_FLOAT64, 3, DIMS(2, 7, 65), sigma);
    add_tensor(&f, "routing/selected_experts", ASSAY_INT32, 3, DIMS(2, 7, 3), 0.0);
    test_tensor *margin = add_tensor(&f, "routing/margin", ASSAY_FLOAT64, 2, DIMS(2, 7), 0.0);
    free(margin->scale);
    margin->scale = NULL;
    add_tensor(&f, "weights/wo", ASSAY_FLOAT64, 2, DIMS(3, 5), 0.0);
    free(tensor_at(&f, "weights/wo")->scale);
    tensor_at(&f, "weights/wo")->scale = NULL;
    return f;
}

/* The type, or float32 for what 16-bit profiles keep so. */
static inline assay_dtype kept_in(assay_dtype type, const assay_tensor_spec *spec)
{
    const bool coarse = assay_dtype_unit_roundoff(type) > assay_dtype_unit_roundoff(ASSAY_FLOAT32);
    return coarse && assay_tensor_kept(spec) != ASSAY_KEPT_STORED ? ASSAY_FLOAT32 : type;
}

/* A golden, a candidate, and what is said of it. */
typedef struct trial {
    assay_context ctx;
    test_fixture golden, candidate;
    assay_report report;
} trial;

/* An ordinary golden and a candidate that is equal to it. */
static inline trial trial_of(const char *profile, double sigma)
{
    trial t = {.ctx = {.threads = 1}, .golden = ordinary_golden(profile, sigma)};
    t.candidate = candidate_of(&t.golden);
    return t;
}

static inline void trial_compare(trial *t, const char *profile)
{
    assay_report_free(&t->report);
    compare_fixtures(&t->ctx, &t->golden, &t->candidate, profile, &t->report);
}

static inline void trial_free(trial *t)
{
    assay_report_free(&t->report);
    free_fixture(&t->candidate);
    free_fixture(&t->golden);
}

static inline void assert_contains(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) fail_msg("\"%s\" expected in: %s", part, text);
}
