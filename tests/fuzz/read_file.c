#include "tests/fuzz/read_file.h"

#include <stdlib.h>

#include "compare/profile_yaml.h"
#include "harness/plan/golden_open.h"
#include "tests/fuzz/fuzz.h"

enum { MOST = 512 }; /* elements of a dataset that are read at each end, and that a recipe may draw */

static void read_ends(assay_context *ctx, assay_fixture_reader *reader, const assay_tensor_spec *spec)
{
    double values[MOST];
    int32_t integers[MOST];
    const int64_t total = assay_shape_count(&spec->shape), count = total < MOST ? total : MOST;
    const int64_t places[] = {0, total - count};
    for (int i = 0; i < 2; i++) {
        assay_status status = assay_fixture_read(ctx, reader, spec->path, places[i], count, values);
        fuzz_check(ctx, status);
        if (spec->type != ASSAY_INT32) continue;
        status = assay_fixture_read_i32(ctx, reader, spec->path, places[i], count, integers);
        fuzz_check(ctx, status);
    }
}

static void read_profiles(assay_context *ctx, const assay_fixture_reader *reader)
{
    assay_profile *profiles = NULL;
    int count = 0;
    fuzz_check(ctx, assay_profiles_of_golden(ctx, reader, &profiles, &count));
    free(profiles);
}

void fuzz_read_file(const char *path)
{
    assay_fixture_reader *reader = NULL;
    assay_golden golden = {0};
    assay_context ctx = fuzz_context();
    const assay_status status = assay_fixture_open(&ctx, path, &reader);
    bool drawn = false;
    fuzz_check(&ctx, status);
    if (status != ASSAY_OK) return;
    for (int i = 0; i < assay_fixture_count(reader); i++) {
        const assay_tensor_spec *spec = assay_fixture_spec(reader, i);
        fuzz_require(assay_fixture_find(reader, spec->path) == spec, "a dataset is not found by its name");
        drawn |= assay_fixture_recipe(reader, spec->path) != NULL && assay_shape_count(&spec->shape) > MOST;
        read_ends(&ctx, reader, spec);
    }
    read_profiles(&ctx, reader);
    if (!drawn) fuzz_check(&ctx, assay_fixture_check_digests(&ctx, reader));
    fuzz_check(&ctx, assay_golden_read(&ctx, reader, path, &golden));
    golden.reader = reader;
    assay_golden_close(&golden);
}

static void declare(assay_context *ctx, assay_fixture_writer *writer, const char *path, assay_dtype type, int64_t count)
{
    assay_tensor_spec spec = {.type = type, .shape = assay_shape_of(2, count, (int64_t)2), .labels = {"N", "D"}};
    snprintf(spec.path, sizeof spec.path, "%s", path);
    spec.role = assay_role_of(path);
    fuzz_require(assay_fixture_declare(ctx, writer, &spec) == ASSAY_OK, ctx->message);
}

void fuzz_write_fixture(const char *path, bool small)
{
    static const char *const profiles[] = {"name: mine\nstorage: float32\n", "more"};
    static const double values[] = {0.5, -1, 2, 0, 1, 4};
    static const int32_t integers[] = {1, -2, 3, 0};
    assay_fixture_writer *writer = NULL;
    assay_context ctx = fuzz_context();
    assay_tensor_spec drawn = {.path = "weights/wo",
                               .role = ASSAY_ROLE_WEIGHT,
                               .type = ASSAY_BFLOAT16,
                               .shape = assay_shape_of(1, (int64_t)3),
                               .labels = {"E"}};
    const assay_random_recipe recipe = {.fill = {.distribution = ASSAY_NORMAL, .scale = 0.5}, .seed = 3};
    fuzz_require(assay_fixture_create(&ctx, path, &writer) == ASSAY_OK, ctx.message);
    fuzz_require(assay_fixture_set_text(&ctx, writer, "kind", "golden") == ASSAY_OK, ctx.message);
    fuzz_require(assay_fixture_set_text(&ctx, writer, "case", "mlp/silu") == ASSAY_OK, ctx.message);
    if (!small) {
        fuzz_require(assay_fixture_set_text(&ctx, writer, "case_yaml", "op: mlp\nbatch: 1\n") == ASSAY_OK, ctx.message);
        fuzz_require(assay_fixture_set_texts(&ctx, writer, "profiles", 2, profiles) == ASSAY_OK, ctx.message);
        declare(&ctx, writer, "inputs/x", ASSAY_BFLOAT16, 3);
        declare(&ctx, writer, "routing/selected_experts", ASSAY_INT32, 2);
        declare(&ctx, writer, "weights/scales", ASSAY_FLOAT8_E4M3FN, 3);
    }
    declare(&ctx, writer, "outputs/y", ASSAY_FLOAT32, 3);
    if (!small) fuzz_require(assay_fixture_declare_recipe(&ctx, writer, &drawn, &recipe) == ASSAY_OK, ctx.message);
    assay_fixture_append(&ctx, writer, "outputs/y", 6, values);
    if (!small) {
        assay_fixture_append(&ctx, writer, "inputs/x", 6, values);
        assay_fixture_append(&ctx, writer, "weights/scales", 6, values);
        assay_fixture_append_i32(&ctx, writer, "routing/selected_experts", 4, integers);
        assay_fixture_append(&ctx, writer, "weights/wo", 3, values);
    }
    fuzz_require(assay_fixture_finish(&ctx, writer) == ASSAY_OK, ctx.message);
}
