/* assay-large-pair golden GIGABYTES FILE
 * assay-large-pair candidate GIGABYTES FILE [PATH PLACE VALUE]
 *
 * A golden of that size, and a candidate that passes against it at bf16: one very long row, very many short rows, large
 * matrices, very many tensors. VALUE is put at element PLACE (from the end where negative) of the candidate's PATH.
 * What ci/stream-memory compares. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/statistics.h"
#include "fixtures/fixture.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/base/random.h"

enum { SLICE = 1 << 18, TENSORS = 1003, MATRICES = 3 };
static const double BYTES_OF_ELEMENT = 12; /* of a golden: float64, and a float32 error scale */

/* What stands at one element instead of the right value. */
typedef struct change {
    const char *path;
    int64_t place;
    double value;
} change;

typedef struct pair {
    bool golden;
    int64_t elements;        /* all tensors together */
    double *values, *scales; /* [SLICE], repeated */
    change wrong;
} pair;

/* Tensor `index` and its type in the candidate. */
static assay_tensor_spec tensor(const pair *p, int index, assay_dtype *type)
{
    const int64_t columns = 7168;
    assay_tensor_spec spec = {.type = ASSAY_FLOAT64};
    if (index == 0) {
        snprintf(spec.path, sizeof spec.path, "outputs/long_row");
        spec.shape = assay_shape_of(1, p->elements * 60 / 100);
        *type = ASSAY_BFLOAT16;
    } else if (index == 1) {
        snprintf(spec.path, sizeof spec.path, "gradients/inputs/short_rows");
        spec.shape = assay_shape_of(2, p->elements * 24 / 100 / 4, (int64_t)4);
        *type = ASSAY_FLOAT32;
    } else if (index == 2) {
        snprintf(spec.path, sizeof spec.path, "gradients/weights/matrices");
        spec.shape = assay_shape_of(3, (int64_t)MATRICES, p->elements / 10 / MATRICES / columns + 1, columns);
        *type = ASSAY_FLOAT64;
    } else {
        snprintf(spec.path, sizeof spec.path, "gradients/weights/many/%04d", index - 3);
        spec.shape = assay_shape_of(2, p->elements * 6 / 100 / (TENSORS - 3) / 128 + 1, (int64_t)128);
        *type = ASSAY_BFLOAT16;
    }
    return spec;
}

static assay_status append(assay_context *ctx, assay_fixture_writer *writer, const assay_tensor_spec *spec,
                           const double *values, const change *wrong)
{
    const int64_t count = assay_shape_count(&spec->shape);
    int64_t place = -1;
    assay_status status = ASSAY_OK;
    TRY(assay_fixture_declare(ctx, writer, spec));
    if (wrong->path != NULL && strcmp(wrong->path, spec->path) == 0) {
        place = wrong->place < 0 ? count + wrong->place : wrong->place;
    }
    for (int64_t first = 0; first < count; first += SLICE) {
        const int64_t size = count - first < SLICE ? count - first : SLICE, before = place - first;
        const bool here = before >= 0 && before < size;
        TRY(assay_fixture_append(ctx, writer, spec->path, here ? before : size, values));
        if (!here) continue;
        TRY(assay_fixture_append(ctx, writer, spec->path, 1, &wrong->value));
        TRY(assay_fixture_append(ctx, writer, spec->path, size - before - 1, values + before + 1));
    }
cleanup:
    return status;
}

/* The tensor's null distributions, wide enough for anything. */
static assay_status append_null(assay_context *ctx, assay_fixture_writer *writer, const assay_tensor_spec *spec)
{
    static const double row[ASSAY_NULL_COLUMNS] = {
        [ASSAY_NULL_LOW] = -100, [ASSAY_NULL_HIGH] = 100, [ASSAY_NULL_SPREAD] = 1, [ASSAY_NULL_MEMBERS] = 16};
    const int count = assay_statistics_rows(&spec->shape);
    assay_status status;
    assay_tensor_spec null = {.type = ASSAY_FLOAT32,
                              .shape = assay_shape_of(2, (int64_t)count, (int64_t)ASSAY_NULL_COLUMNS)};
    snprintf(null.path, sizeof null.path, "null/bf16/%.100s", spec->path);
    TRY(assay_fixture_declare(ctx, writer, &null));
    for (int i = 0; i < count; i++) TRY(assay_fixture_append(ctx, writer, null.path, ASSAY_NULL_COLUMNS, row));
cleanup:
    return status;
}

static assay_status append_all(assay_context *ctx, assay_fixture_writer *writer, const pair *p)
{
    assay_status status = ASSAY_OK;
    const change none = {NULL, 0, 0};
    for (int i = 0; i < TENSORS; i++) {
        assay_dtype type;
        assay_tensor_spec spec = tensor(p, i, &type), scale = spec;
        spec.type = p->golden ? ASSAY_FLOAT64 : type;
        TRY(append(ctx, writer, &spec, p->values, &p->wrong));
        if (!p->golden) continue;
        scale.type = ASSAY_FLOAT32;
        snprintf(scale.path, sizeof scale.path, "error_scale/bf16/%.100s", spec.path);
        TRY(append(ctx, writer, &scale, p->scales, &none));
        TRY(append_null(ctx, writer, &spec));
    }
cleanup:
    return status;
}

static assay_status write_file(assay_context *ctx, const pair *p, const char *path)
{
    assay_fixture_writer *writer = NULL;
    assay_status status;
    TRY(assay_fixture_create(ctx, path, &writer));
    TRY(assay_fixture_set_text(ctx, writer, "kind", p->golden ? "golden" : "candidate"));
    TRY(assay_fixture_set_text(ctx, writer, "case", "large"));
    TRY(assay_fixture_set_text(ctx, writer, "case_yaml", "case: large\nop: rms_norm\ndtype: bfloat16\n"));
    TRY(append_all(ctx, writer, p));
    status = assay_fixture_finish(ctx, writer);
    writer = NULL;
cleanup:
    assay_fixture_abandon(writer);
    return status;
}

static assay_status make(assay_context *ctx, pair *p, const char *path)
{
    const assay_fill normal = {.distribution = ASSAY_NORMAL, .scale = 1};
    const assay_shape slice = assay_shape_of(1, (int64_t)SLICE);
    assay_status status;
    TRY(assay_alloc_f64(ctx, "values", SLICE, &p->values));
    TRY(assay_alloc_f64(ctx, "scales", SLICE, &p->scales));
    TRY(assay_random_fill(ctx, &normal, 1, "large", &slice, ASSAY_FLOAT64, 0, SLICE, p->values));
    for (int64_t i = 0; i < SLICE; i++) p->scales[i] = 0x1p-10;
    TRY(write_file(ctx, p, path));
cleanup:
    free(p->values);
    free(p->scales);
    return status;
}

int main(int argc, char **argv)
{
    assay_context ctx = assay_context_default(1);
    pair p = {0};
    if ((argc != 4 && argc != 7) || !(atof(argv[2]) > 0)) {
        fprintf(stderr, "assay-large-pair golden|candidate GIGABYTES FILE [PATH PLACE VALUE]\n");
        return 2;
    }
    p.golden = strcmp(argv[1], "golden") == 0;
    p.elements = (int64_t)(atof(argv[2]) * 1e9 / BYTES_OF_ELEMENT);
    if (argc == 7) p.wrong = (change){argv[4], strtoll(argv[5], NULL, 10), strtod(argv[6], NULL)};
    if (make(&ctx, &p, argv[3]) != ASSAY_OK) {
        fprintf(stderr, "assay-large-pair: %s\n", ctx.message);
        return 1;
    }
    return 0;
}
