/* --inputs FILE: which numbers are taken, and what is refused. */

#include "harness/tests/harness_test.h"

static const char gmm_yaml[] = "case: a\nop: gmm\nconfig: {base_emb_dim: 3, base_moe_mlp_dim: 2, num_experts: 2}\n"
                               "sequence: 5\ninputs: {group_sizes: {values: [2, 1]}}\n";

/* Inputs of one dataset. */
static void write_inputs(assay_context *ctx, const char *file, const char *path, assay_dtype type, int rank,
                         const int64_t *dims, const double *values)
{
    const assay_tensor_spec spec = spec_of(path, type, rank, dims);
    assert_ok(ctx, write_datasets(ctx, file, NULL, 1, &(test_dataset){spec, values}));
}

static bool same_digest(assay_context *ctx, const char *a, const char *b, const char *path)
{
    OWNED_BY(assay_fixture_release) assay_fixture_reader *first = NULL, *second = NULL;
    assert_ok(ctx, assay_fixture_open(ctx, a, &first));
    assert_ok(ctx, assay_fixture_open(ctx, b, &second));
    bool same = strcmp(assay_fixture_dataset_digest(first, path), assay_fixture_dataset_digest(second, path)) == 0;
    return same;
}

/* The case with these inputs, or none, is written, or refused with the message. */
static void check_case(const test_folder *folder, assay_context *ctx, const assay_case *c, const char *inputs,
                       const char *message)
{
    const assay_status status = try_golden(ctx, c, folder->file, inputs);
    if (message == NULL) {
        assert_ok(ctx, status);
    } else {
        assert_bad_input(ctx, status, message);
    }
    assert_int_equal(folder_count(folder->path, true), (inputs != NULL) + (message == NULL));
}

/* A golden as the inputs of the same case with another seed: all of its numbers are taken. */
TEST_IN_FOLDER_WITH_CONTEXT(all_are_taken)
{
    OWNED_BY(free_case) assay_case *c = case_named("moe/small", NULL);
    assert_ok(&ctx, try_golden(&ctx, c, folder->file, NULL));
    assert_ok(&ctx, assay_case_set(&ctx, c, "seed=99"));
    assert_ok(&ctx, try_golden(&ctx, c, folder->other, NULL));
    assert_false(same_digest(&ctx, folder->file, folder->other, "inputs/x"));
    assert_ok(&ctx, try_golden(&ctx, c, folder->other, folder->file));
    static const char *const paths[] = {"inputs/x",
                                        "weights/wi_0",
                                        "cotangents/y",
                                        "outputs/y",
                                        "gradients/weights/gate/kernel",
                                        "routing/selected_experts"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        assert_true(same_digest(&ctx, folder->file, folder->other, paths[i]));
    }
}

/* One tensor is taken, in another float type too; the rest is generated. */
TEST_IN_FOLDER(some_are_taken)
{
    static const assay_dtype types[] = {ASSAY_BFLOAT16, ASSAY_FLOAT32, ASSAY_FLOAT64};
    const double scale[4] = {0.5, -1.25, 3, 0};
    char inputs[TEST_PATH_SIZE + 16];
    snprintf(inputs, sizeof inputs, "%s/inputs.h5", folder->path);
    for (int i = 0; i < 3; i++) {
        assay_context ctx = assay_context_default(1);
        OWNED_BY(assay_fixture_release) assay_fixture_reader *reader = NULL;
        double found[4];
        OWNED_BY(free_case) assay_case *c = case_from("case: a\nop: rms_norm\nconfig: {base_emb_dim: 4}\n");
        write_inputs(&ctx, inputs, "weights/scale", types[i], 1, DIMS(4), scale);
        assert_ok(&ctx, try_golden(&ctx, c, folder->file, inputs));
        assert_ok(&ctx, try_golden(&ctx, c, folder->other, NULL));
        assert_true(same_digest(&ctx, folder->file, folder->other, "inputs/x"));
        assert_false(same_digest(&ctx, folder->file, folder->other, "outputs/y"));
        assert_ok(&ctx, assay_fixture_open(&ctx, folder->file, &reader));
        assert_ok(&ctx, assay_fixture_read(&ctx, reader, "weights/scale", 0, 4, found));
        assert_int_equal(assay_fixture_find(reader, "weights/scale")->type, ASSAY_BFLOAT16);
        assert_same_bits(found, scale, 4);
    }
}

TEST_IN_FOLDER(bad_files_are_refused)
{
    static const struct {
        const char *path;
        int rank;
        int64_t dims[3];
        double value;
        assay_dtype type;
        const char *message;
    } table[] = {
        {"weights/scale", 1, {5}, 1, ASSAY_FLOAT32, "weights/scale has shape [5], expected [4]"},
        {"weights/scale", 2, {1, 4}, 1, ASSAY_FLOAT32, "weights/scale has shape [1,4], expected [4]"},
        {"weights/gain", 1, {4}, 1, ASSAY_FLOAT32, "weights/gain is no tensor of a; see assay show"},
        {"cotangents/z", 1, {4}, 1, ASSAY_FLOAT32, "cotangents/z is no tensor of a"},
        {"weights/scale", 1, {4}, 1.0000001, ASSAY_FLOAT64, "weights/scale[0] is 1.0000001"},
        {"weights/scale", 1, {4}, 1e39, ASSAY_FLOAT64, "weights/scale[0] is"},
        {"weights/scale", 1, {4}, NAN, ASSAY_FLOAT32, "weights/scale[0] is nan, expected a finite number"},
        {"inputs/x", 3, {1, 1, 4}, INFINITY, ASSAY_FLOAT32, "inputs/x[0] is inf, expected a finite number"},
        {"cotangents/y", 3, {1, 1, 4}, -INFINITY, ASSAY_FLOAT32, "cotangents/y[0] is -inf"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = assay_context_default(1);
        OWNED_BY(free_case) assay_case *c = case_from("case: a\nop: rms_norm\nconfig: {base_emb_dim: 4}\n");
        const double values[5] = {table[i].value, 1, 1, 1, 1};
        write_inputs(&ctx, folder->other, table[i].path, table[i].type, table[i].rank, table[i].dims, values);
        check_case(folder, &ctx, c, folder->other, table[i].message);
    }
}

/* NaN may stand in rows of no group, and only there. */
TEST_IN_FOLDER(nan_only_in_unused_rows)
{
    static const struct {
        int row;
        const char *message;
    } table[] = {{0, "inputs/lhs[0,1] is nan"}, {2, "inputs/lhs[2,1] is nan"}, {3, NULL}, {4, NULL}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = assay_context_default(1);
        OWNED_BY(free_case) assay_case *c = case_from(gmm_yaml);
        double values[15];
        for (int k = 0; k < 15; k++) values[k] = k;
        values[3 * table[i].row + 1] = NAN;
        write_inputs(&ctx, folder->other, "inputs/lhs", ASSAY_FLOAT32, 2, DIMS(5, 3), values);
        check_case(folder, &ctx, c, folder->other, table[i].message);
    }
}

/* tail_nan_rows: the case file's way to the same rows. */
TEST_IN_FOLDER(tail_nan_rows_must_be_unused)
{
    static const struct {
        const char *set, *message;
    } table[] = {
        {"inputs.lhs={tail_nan_rows: 2}", NULL},
        {"inputs.lhs={tail_nan_rows: 3}", "inputs/lhs[2,0] is nan"},
        {"inputs.cotangents/y={tail_nan_rows: 3}", "cotangents/y[2,0] is nan"},
        {"inputs.lhs={tail_nan_rows: 77}", "inputs/lhs[0,0] is nan"},
        {"inputs.weights/rhs={tail_nan_rows: 1}", "tail_nan_rows is for rows that may belong to no group"},
        {"inputs.lhs={unused_nan: true}", NULL},
        {"inputs.weights/rhs={unused_nan: true}", "unused_nan is for rows that may belong to no group"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = assay_context_default(1);
        OWNED_BY(free_case) assay_case *c = case_from(gmm_yaml);
        assert_ok(&ctx, assay_case_set(&ctx, c, table[i].set));
        check_case(folder, &ctx, c, NULL, table[i].message);
    }
}

/* Whole numbers of a file that mean nothing to the operation. */
TEST_IN_FOLDER(bad_indices_are_refused)
{
    static const double sizes[][2] = {{-1, 2}, {4, 2}, {5, 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assay_context ctx = assay_context_default(1);
        OWNED_BY(free_case) assay_case *c = case_from(gmm_yaml);
        write_inputs(&ctx, folder->other, "inputs/group_sizes", ASSAY_INT32, 1, DIMS(2), sizes[i]);
        check_case(folder, &ctx, c, folder->other, "group_sizes");
    }
}

/* Positions and segments of a file, which is named, and of the case. */
TEST_IN_FOLDER(tokens_out_of_range_are_refused)
{
    static const struct {
        const char *path;
        double value;
        const char *message;
    } table[] = {
        {"inputs/positions", 9, NULL},
        {"inputs/positions", 10, "other.h5: inputs/positions[2] is 10, expected 0 to 9"},
        {"inputs/positions", -1, "other.h5: inputs/positions[2] is -1, expected 0 to 9"},
        {"inputs/segment_ids", 7, NULL},
        {"inputs/segment_ids", -1, "other.h5: inputs/segment_ids[2] is -1, expected 0 to 2147483647"},
    };
    char set[64];
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = assay_context_default(1);
        OWNED_BY(free_case)
        assay_case *c =
            case_named("mla/one-head", "inputs.segment_ids={values: [1, 1, 1, 1, 1]};max_position_embeddings=10");
        const double values[10] = {1, 1, table[i].value, 1, 1, 1, 1, 1, 1, 1};
        write_inputs(&ctx, folder->other, table[i].path, ASSAY_INT32, 2, DIMS(2, 5), values);
        check_case(folder, &ctx, c, folder->other, table[i].message);
        if (table[i].message != NULL) { /* the same numbers from the case */
            snprintf(set, sizeof set, "inputs.%s={values: [1, 1, %g, 1, 1]}", strchr(table[i].path, '/') + 1,
                     table[i].value);
            assert_ok(&ctx, assay_case_set(&ctx, c, set));
            check_case(folder, &ctx, c, NULL, strchr(table[i].message, ' ') + 1);
        }
    }
}

/* NaN may stand in padding, and only where padding is masked. */
TEST_IN_FOLDER(nan_only_in_padding)
{
    static const struct {
        const char *first, *second, *message;
    } table[] = {
        {"inputs.query={tail_nan_rows: 3}", "inputs.key={tail_nan_rows: 2}", NULL},
        {"inputs.query={tail_nan_rows: 4}", "seed=5", "inputs/query[1,6,...] is nan, expected a finite number"},
        {"inputs.key={tail_nan_rows: 20}", "seed=5", "inputs/key[0,0,...] is nan"},
        {"inputs.value={tail_nan_rows: 5}", "seed=5", "inputs/value[1,5,...] is nan"},
        {"inputs.cotangents/attention_out={tail_nan_rows: 11}", "seed=5", "cotangents/attention_out[0,9,...] is nan"},
        {"inputs.query={tail_nan_rows: 3}", "mask_padding=false", "inputs.query: tail_nan_rows is for rows"},
        {"inputs.query={unused_nan: true}", "seed=5", "inputs.query: unused_nan is for rows of layouts"},
        {"inputs.cotangents/lse={tail_nan_rows: 1}", "seed=5", "inputs.cotangents/lse: tail_nan_rows is for rows"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = assay_context_default(1);
        OWNED_BY(free_case) assay_case *c = case_named("attention/padding-nan", table[i].first);
        assert_ok(&ctx, assay_case_set(&ctx, c, table[i].second));
        check_case(folder, &ctx, c, NULL, table[i].message);
    }
}

/* What padding holds reaches nothing: the same results with NaN in it. */
TEST_IN_FOLDER_WITH_CONTEXT(padding_reaches_nothing)
{
    static const char *const same[] = {"outputs/attention_out", "outputs/lse", "gradients/inputs/query",
                                       "gradients/inputs/key", "gradients/inputs/value"};
    OWNED_BY(free_case)
    assay_case *with = case_named("attention/padding-nan", NULL), *without = case_named(with->name, NULL);
    for (int i = 0; i < without->input_count; i++) without->inputs[i].tail_nan_rows = 0;
    assert_ok(&ctx, try_golden(&ctx, with, folder->file, NULL));
    assert_ok(&ctx, try_golden(&ctx, without, folder->other, NULL));
    assert_false(same_digest(&ctx, folder->file, folder->other, "inputs/key"));
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        assert_true(same_digest(&ctx, folder->file, folder->other, same[i]));
}
