/* Goldens: what they hold, that they come out again, whatever the threads, and that nothing is left behind when they cannot be
 * written. */

#include "harness/golden/golden_finite.h"
#include "harness/plan/golden_open.h"
#include "harness/tests/harness_test.h"

TEST_LABELS(slow);

static const char *const names[] = {
    "rms_norm/all-zero",  "gmm/padded-nan-tail",
    "permute/stable",     "unpermute/dropped",
    "routing/balance",    "routing/saturated",
    "routing/llama4",     "mlp/biases-fused",
    "mlp/gpt-oss-clamp",  "moe/small",
    "moe/balance",        "moe/gemma4-without-norm",
    "moe/deepseek4-hash", "moe/mixtral-capacity-tight",
    "moe/gpt-oss-dense",  "moe/llama4",
    "moe/empty-experts",
};
enum { NAMES = sizeof names / sizeof *names };

/* Every number of a dataset. */
static double *read_all(assay_context *ctx, assay_fixture_reader *reader, const char *path, int64_t *count)
{
    const assay_tensor_spec *spec = assay_fixture_find(reader, path);
    assert_non_null(spec);
    *count = assay_shape_count(&spec->shape);
    double *values = calloc((size_t)*count + 1, sizeof *values);
    assert_non_null(values);
    assert_ok(ctx, assay_fixture_read(ctx, reader, path, 0, *count, values));
    return values;
}

static void check_numbers(assay_context *ctx, assay_fixture_reader *reader, const char *path)
{
    int64_t count = 0;
    OWNED double *values = read_all(ctx, reader, path, &count);
    bool scale = assay_role_of(path) == ASSAY_ROLE_ERROR_SCALE, margin = strcmp(path, "routing/margin") == 0;
    for (int64_t i = 0; i < count; i++) {
        bool good = margin ? values[i] >= 0 : isfinite(values[i]) && (!scale || values[i] >= 0);
        if (!good) fail_msg("%s[%lld] is %g", path, (long long)i, values[i]);
    }
}

/* The plan's datasets and no others, all of them numbers, and the same ones when computed again. */
static void check_golden(assay_context *ctx, const assay_case *c, const char *path)
{
    OWNED_BY(assay_plan_free) assay_plan plan = {0};
    OWNED_BY(assay_fixture_release) assay_fixture_reader *reader = NULL;
    assert_ok(ctx, assay_plan_make(ctx, &plan, c));
    assert_ok(ctx, assay_fixture_open(ctx, path, &reader));
    assert_string_equal(assay_fixture_text(reader, "kind"), "golden");
    assert_string_equal(assay_fixture_text(reader, "case"), c->name);
    assert_int_equal(assay_fixture_count(reader), plan.spec_count);
    for (int i = 0; i < plan.spec_count; i++) {
        const assay_tensor_spec *found = assay_fixture_find(reader, plan.specs[i].path);
        assert_non_null(found);
        assert_true(assay_shape_equal(&found->shape, &plan.specs[i].shape));
        assert_int_equal(found->type, plan.specs[i].type);
        if (!assay_role_is_input(plan.specs[i].role)) check_numbers(ctx, reader, plan.specs[i].path);
    }
    assert_ok(ctx, assay_fixture_check_digests(ctx, reader));
    assert_ok(ctx, assay_golden_recompute(ctx, &plan, reader, true));
}

TEST_IN_FOLDER(goldens_hold_what_was_planned)
{
    assay_context ctx = assay_context_default(2);
    for (int i = 0; i < NAMES; i++) {
        OWNED_BY(free_case) assay_case *c = case_named(names[i], "checkpoints=all");
        assert_ok(&ctx, try_golden(&ctx, c, folder->file, NULL));
        check_golden(&ctx, c, folder->file);
    }
    assert_int_equal(folder_count(folder->path, false), 1);
}

static void assert_same_files(const char *a, const char *b, const char *name)
{
    size_t size_a = 0, size_b = 0;
    OWNED unsigned char *bytes_a = bytes_of(a, &size_a), *bytes_b = bytes_of(b, &size_b);
    if (size_a != size_b || memcmp(bytes_a, bytes_b, size_a) != 0) fail_msg("%s: other bytes", name);
}

/* Large enough for a team of threads. Of other cases, with each instruction set: ci/same-bits. */
TEST_IN_FOLDER(a_team_gives_the_same_bytes)
{
    static const char *const larger[][5] = {
        {"moe/small", "base_emb_dim=512", "base_moe_mlp_dim=256", "sequence=32",
         "gradients=[inputs/x, 'weights/gate/*']"},
        {"mlp/silu", "base_emb_dim=512", "base_mlp_dim=640", "sequence=24", "gradients=[inputs/x]"},
    };
    for (int i = 0; i < 2; i++) {
        assay_context ctx = assay_context_default(1);
        OWNED_BY(free_case) assay_case *c = case_named(larger[i][0], "profiles=[bf16]");
        for (int j = 1; j < 5; j++) assert_ok(&ctx, assay_case_set(&ctx, c, larger[i][j]));
        assert_true(assay_operation_flops(assay_operation_by_name(c->op), c, true) * 2 > 3e8);
        assert_ok(&ctx, try_golden(&ctx, c, folder->file, NULL));
        ctx.threads = 7;
        assert_ok(&ctx, try_golden(&ctx, c, folder->other, NULL));
        assert_int_equal(ctx.threads, 7);
        assert_same_files(folder->file, folder->other, larger[i][0]);
    }
}

TEST_IN_FOLDER(without_gradients_nothing_goes_back)
{
    assay_context ctx = assay_context_default(1);
    OWNED_BY(free_case) assay_case *c = case_named("deepseek_layer/batch-split-recipe", "gradients=none");
    assert_ok(&ctx, try_golden(&ctx, c, folder->file, NULL));
    check_golden(&ctx, c, folder->file);
    OWNED_BY(free_case)
    assay_case *named = case_named("deepseek_layer/batch-split-recipe", "gradients=none;checkpoints=[q_gradient]");
    assert_int_equal(try_golden(&ctx, named, folder->file, NULL), ASSAY_BAD_INPUT);
    assert_non_null(strstr(ctx.message, "\"q_gradient\", which matches no tensor"));
}

static int count_of(assay_fixture_reader *reader, assay_tensor_role role)
{
    int count = 0;
    for (int i = 0; i < assay_fixture_count(reader); i++) count += assay_fixture_spec(reader, i)->role == role;
    return count;
}

TEST_IN_FOLDER(gradients_and_checkpoints_are_chosen)
{
    static const struct {
        const char *set;
        int gradients, checkpoints;
    } table[] = {
        {"gradients=none", 0, 0},
        {"gradients=[inputs/x]", 1, 0},
        {"gradients=['weights/gate/*']", 2, 0},
        {"gradients=[inputs/x, 'weights/gate/*']", 3, 0},
        {"gradients=[weights/wi_0, weights/wi_0]", 1, 0},
        {"checkpoints=[moe_mlpwo]", 9, 1},
        {"checkpoints=['moe_*']", 9, 4},
        {"checkpoints=all", 9, 8},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = assay_context_default(1);
        OWNED_BY(assay_fixture_release) assay_fixture_reader *reader = NULL;
        OWNED_BY(free_case) assay_case *c = case_named("moe/small", table[i].set);
        assert_ok(&ctx, try_golden(&ctx, c, folder->file, NULL));
        check_golden(&ctx, c, folder->file);
        assert_ok(&ctx, assay_fixture_open(&ctx, folder->file, &reader));
        assert_int_equal(count_of(reader, ASSAY_ROLE_GRADIENT), table[i].gradients);
        assert_int_equal(count_of(reader, ASSAY_ROLE_CHECKPOINT), table[i].checkpoints);
    }
}

/* What is chosen changes which numbers are in the file, never the numbers. */
TEST_IN_FOLDER_WITH_CONTEXT(choosing_changes_no_number)
{
    OWNED_BY(assay_fixture_release) assay_fixture_reader *all = NULL, *some = NULL;
    OWNED_BY(free_case) assay_case *c = case_named("moe/balance", "checkpoints=all");
    assert_ok(&ctx, try_golden(&ctx, c, folder->file, NULL));
    assert_ok(&ctx, assay_case_set(&ctx, c, "gradients=[weights/gate/bias, weights/wo]"));
    assert_ok(&ctx, assay_case_set(&ctx, c, "checkpoints=[moe_mlpwi_1]"));
    assert_ok(&ctx, assay_case_set(&ctx, c, "profiles=[bf16]"));
    assert_ok(&ctx, try_golden(&ctx, c, folder->other, NULL));
    assert_ok(&ctx, assay_fixture_open(&ctx, folder->file, &all));
    assert_ok(&ctx, assay_fixture_open(&ctx, folder->other, &some));
    for (int i = 0; i < assay_fixture_count(some); i++) {
        const char *path = assay_fixture_spec(some, i)->path;
        if (strcmp(assay_fixture_dataset_digest(some, path), assay_fixture_dataset_digest(all, path)) != 0) {
            fail_msg("%s differs", path);
        }
    }
    assert_true(assay_fixture_count(some) < assay_fixture_count(all));
}

/* Scales of coarser profiles are larger: f64 < f32 < bf16 by the ratio of their roundings, roughly. */
TEST_IN_FOLDER_WITH_CONTEXT(scales_follow_the_profile)
{
    static const char *const profiles[] = {"f64", "f32", "f16", "bf16"};
    static const char *const paths[] = {"outputs/y", "gradients/inputs/x", "gradients/weights/wo"};
    OWNED_BY(assay_fixture_release) assay_fixture_reader *reader = NULL;
    OWNED_BY(free_case) assay_case *c = case_named("moe/small", "profiles=[f64, f32, f16, bf16]");
    assert_ok(&ctx, try_golden(&ctx, c, folder->file, NULL));
    assert_ok(&ctx, assay_fixture_open(&ctx, folder->file, &reader));
    for (int p = 0; p < 3; p++) {
        double before = 0;
        for (int i = 0; i < 4; i++) {
            char path[ASSAY_PATH_SIZE];
            int64_t count = 0;
            double sum = 0;
            snprintf(path, sizeof path, "error_scale/%s/%s", profiles[i], paths[p]);
            double *scale = read_all(&ctx, reader, path, &count);
            for (int64_t k = 0; k < count; k++) sum += scale[k];
            free(scale);
            assert_true(sum > 4 * before && sum / (double)count < 1);
            before = sum;
        }
    }
}

/* A copy of a golden in which one element of one dataset is another one. */
static void write_altered(assay_context *ctx, const char *from, const char *to, const char *altered)
{
    OWNED_BY(assay_fixture_release) assay_fixture_reader *reader = NULL;
    assay_fixture_writer *writer = NULL;
    assert_ok(ctx, assay_fixture_open(ctx, from, &reader));
    assert_ok(ctx, assay_fixture_create(ctx, to, &writer));
    assert_ok(ctx, assay_fixture_set_text(ctx, writer, "kind", "golden"));
    for (int i = 0; i < assay_fixture_count(reader); i++) {
        const assay_tensor_spec *spec = assay_fixture_spec(reader, i);
        int64_t count = 0;
        OWNED double *values = read_all(ctx, reader, spec->path, &count);
        OWNED int32_t *integers = calloc((size_t)count + 1, sizeof *integers);
        assert_non_null(integers);
        if (strcmp(spec->path, altered) == 0)
            values[count - 1] += spec->type == ASSAY_INT32 ? 1 : values[count - 1] + 1;
        for (int64_t k = 0; k < count; k++) integers[k] = spec->type == ASSAY_INT32 ? (int32_t)values[k] : 0;
        assert_ok(ctx, assay_fixture_declare(ctx, writer, spec));
        assert_ok(ctx, spec->type == ASSAY_INT32 ? assay_fixture_append_i32(ctx, writer, spec->path, count, integers)
                                                 : assay_fixture_append(ctx, writer, spec->path, count, values));
    }
    assert_ok(ctx, assay_fixture_finish(ctx, writer));
}

TEST_IN_FOLDER(altered_goldens_are_refused)
{
    static const struct {
        const char *altered, *named;
    } table[] = {
        {"outputs/y", "outputs/y[191]"},
        {"gradients/weights/gate/kernel", "gradients/weights/gate/kernel[143]"},
        {"error_scale/bf16/gradients/inputs/x", "error_scale/bf16/gradients/inputs/x[191]"},
        {"routing/margin", "routing/margin[7]"},
        {"routing/group_sizes", "routing/group_sizes[5]"},
        {"weights/shared_experts/wo/kernel", "]: the file has"},
        {"inputs/x", "]: the file has"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = assay_context_default(1);
        OWNED_BY(assay_fixture_release) assay_fixture_reader *reader = NULL;
        OWNED_BY(assay_plan_free) assay_plan plan = {0};
        OWNED_BY(free_case) assay_case *c = case_named("moe/small", NULL);
        assert_ok(&ctx, assay_plan_make(&ctx, &plan, c));
        assert_ok(&ctx, assay_golden_write(&ctx, &plan, folder->file, NULL, true));
        write_altered(&ctx, folder->file, folder->other, table[i].altered);
        assert_ok(&ctx, assay_fixture_open(&ctx, folder->other, &reader));
        assert_bad_input(&ctx, assay_golden_recompute(&ctx, &plan, reader, true), table[i].named);
    }
}

/* What may stand in a golden, number by number. */
TEST(what_is_lawful)
{
    static const struct {
        const char *path;
        assay_dtype type;
        double value;
        bool lawful;
    } table[] = {
        {"outputs/y", ASSAY_FLOAT64, 1e300, true},
        {"outputs/y", ASSAY_FLOAT64, INFINITY, false},
        {"outputs/y", ASSAY_FLOAT64, NAN, false},
        {"gradients/weights/wo", ASSAY_FLOAT64, -INFINITY, false},
        {"routing/weights", ASSAY_FLOAT64, INFINITY, false},
        {"error_scale/f64/outputs/y", ASSAY_FLOAT32, 3e38, true},
        {"error_scale/f64/outputs/y", ASSAY_FLOAT32, 1e39, false}, /* a float32 has no such number */
        {"error_scale/f64/outputs/y", ASSAY_FLOAT32, NAN, false},
        {"null/f64/outputs/y", ASSAY_FLOAT32, INFINITY, false},
        {"outputs/lse", ASSAY_FLOAT64, -INFINITY, true},
        {"checkpoints/layers/1/lse", ASSAY_FLOAT64, -INFINITY, true},
        {"outputs/lse", ASSAY_FLOAT64, INFINITY, false},
        {"outputs/lse", ASSAY_FLOAT64, NAN, false},
        {"outputs/pulse", ASSAY_FLOAT64, -INFINITY, false},
        {"error_scale/f64/outputs/lse", ASSAY_FLOAT32, -INFINITY, false},
        {"routing/margin", ASSAY_FLOAT64, INFINITY, true},
        {"routing/layers/0/margin", ASSAY_FLOAT64, INFINITY, true},
        {"routing/margin", ASSAY_FLOAT64, -INFINITY, false},
        {"routing/margin", ASSAY_FLOAT64, NAN, false},
        {"inputs/key", ASSAY_BFLOAT16, NAN, true}, /* padding */
        {"discrimination/bf16", ASSAY_FLOAT64, INFINITY, true},
        {"certificate/outputs/lse", ASSAY_FLOAT64, -INFINITY, true},
    };
    const assay_case c = {.name = "some/case"};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = {.threads = 1};
        const double values[3] = {1.0, table[i].value, -1.0};
        assay_tensor_spec spec = spec_of(table[i].path, table[i].type, 1, DIMS(100));
        const assay_status status = assay_golden_require_finite(&ctx, &c, &spec, 50, 3, values);
        if ((status == ASSAY_OK) != table[i].lawful) fail_msg("row %zu: %s", i, ctx.message);
        if (table[i].lawful) continue;
        char where[ASSAY_PATH_SIZE + 32];
        snprintf(where, sizeof where, "some/case: %s[51] is ", table[i].path);
        assert_bad_input(&ctx, status, where);
    }
}

/* Weights that are not in the file are drawn for whoever asks. */
TEST_IN_FOLDER_WITH_CONTEXT(weights_that_a_golden_leaves_out_are_drawn)
{
    OWNED_BY(assay_golden_close) assay_golden full = {0}, left = {0};
    int drawn = 0;
    OWNED_BY(free_case) assay_case *c = case_named("deepseek_stack/three-layers", "profiles=none");
    assert_ok(&ctx, try_golden(&ctx, c, folder->file, NULL));
    assert_ok(&ctx, assay_case_set(&ctx, c, "drawn_above=100"));
    assert_ok(&ctx, try_golden(&ctx, c, folder->other, NULL));
    assert_ok(&ctx, assay_golden_open(&ctx, folder->file, &full));
    assert_ok(&ctx, assay_golden_plan(&ctx, &full, NULL));
    assert_ok(&ctx, assay_golden_open(&ctx, folder->other, &left));
    assert_null(assay_fixture_find(left.reader, "weights/layers/2/moe/wi_0"));
    assert_ok(&ctx, assay_golden_plan(&ctx, &left, NULL));
    for (int i = 0; i < full.plan.spec_count; i++) {
        const assay_tensor_spec *spec = &full.plan.specs[i];
        const int64_t count = assay_shape_count(&spec->shape);
        if (spec->role != ASSAY_ROLE_WEIGHT) continue;
        OWNED double *a = calloc((size_t)count, sizeof *a), *b = calloc((size_t)count, sizeof *b);
        assert_ok(&ctx, assay_fixture_read(&ctx, full.reader, spec->path, 0, count, a));
        assert_ok(&ctx, assay_fixture_read(&ctx, left.reader, spec->path, 0, count, b));
        assert_same_bits(b, a, count);
        drawn += assay_fixture_recipe(left.reader, spec->path) != NULL;
    }
    assert_true(drawn > 20);
}

#define WIDE                                                                                                           \
    "case: a\nop: mlp\nconfig: {base_emb_dim: 8, base_mlp_dim: 4, mlp_activations: [linear, linear]}\nsequence: 3\n"   \
    "dtype: float64\n"

/* Results that overflow, and results that do not but whose error scales do. */
TEST_IN_FOLDER(a_case_that_overflows_gives_no_golden)
{
    static const char *const table[][3] = {
        {WIDE "inputs: {x: {scale: 1e300}, weights/wi_0/kernel: {scale: 1e20}}\n", "a: outputs/y[0] is ",
         "expected a finite number: the case overflows"},
        {WIDE "profiles: [f64]\ninputs: {x: {scale: 1e30}, weights/wi_0/kernel: {scale: 1e20}}\n",
         "a: profile f64: float32, in which error scales are, has no room for that of ", ""},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = assay_context_default(1);
        OWNED_BY(free_case) assay_case *c = case_from(table[i][0]);
        assert_bad_input(&ctx, try_golden(&ctx, c, folder->file, NULL), table[i][1]);
        assert_message(&ctx, table[i][2]);
        assert_int_equal(folder_count(folder->path, false), 0);
    }
}

/* Allocations fail one by one, in planning and in writing. */
TEST_IN_FOLDER(out_of_memory_leaves_nothing_behind)
{
    static const char *const tiny[] = {
        "case: a\nop: rms_norm\nconfig: {base_emb_dim: 3}\nprofiles: [f32]\n",
        "case: b\nop: moe\nmodel: deepseek3-tiny\nconfig: {base_emb_dim: 3, base_moe_mlp_dim: 2, num_experts: 2,"
        " num_experts_per_tok: 1}\nprofiles: [f32]\n",
        "case: c\nop: routing\nmodel: deepseek3-tiny\nconfig: {base_emb_dim: 3, num_experts: 2, num_experts_per_tok: 1}"
        "\nprofiles: [bf16]\n",
    };
    for (size_t i = 0; i < sizeof tiny / sizeof *tiny; i++) {
        assay_context ctx = assay_context_default(1);
        OWNED_BY(free_case) assay_case *c = case_from(tiny[i]);
        int64_t n = 0;
        /* after the golden and some members of its ensembles: the others allocate what these do */
        for (;; n += n < 400 ? 1 : 41) {
            assay_fail_allocation(n);
            assay_status status = try_golden(&ctx, c, folder->file, NULL);
            if (had_memory(&ctx, status)) break;
            assert_int_equal(folder_count(folder->path, false), 0);
        }
        assert_true(n > 20);
        assert_int_equal(folder_count(folder->path, true), 1);
    }
}
