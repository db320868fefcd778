/* --weights in memory: every failed allocation is told, and nothing is left. (hugging_face.sh has the layouts.) */
#include "harness/plan/model_weights.h"
#include "harness/tests/harness_test.h"

static const char mlp[] = "case: a\nop: mlp\nconfig: {base_emb_dim: 2, base_mlp_dim: 3}\nsequence: 2\n";

/* A safetensors file of three linear layers, [out, in] each: 1, 2, 3 ... */
static void write_checkpoint(const char *path)
{
    static const char header[] = "{\"model.layers.0.mlp.gate_proj.weight\":{\"dtype\":\"F32\",\"shape\":[3,2],"
                                 "\"data_offsets\":[0,24]},\"model.layers.0.mlp.up_proj.weight\":{\"dtype\":\"F32\","
                                 "\"shape\":[3,2],\"data_offsets\":[24,48]},\"model.layers.0.mlp.down_proj.weight\":"
                                 "{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[48,72]}}";
    const uint64_t length = sizeof header - 1;
    float numbers[18];
    for (int i = 0; i < 18; i++) numbers[i] = (float)(i + 1);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(&length, sizeof length, 1, file), 1);
    assert_int_equal(fwrite(header, length, 1, file), 1);
    assert_int_equal(fwrite(numbers, sizeof numbers, 1, file), 1);
    assert_int_equal(fclose(file), 0);
}

static void checkpoint_path(const test_folder *folder, char *path, size_t size)
{
    snprintf(path, size, "%s/model.safetensors", folder->path);
    write_checkpoint(path);
}

TEST_IN_FOLDER_WITH_CONTEXT(linear_layers_are_turned)
{
    static const double up[] = {7, 9, 11, 8, 10, 12}, down[] = {13, 16, 14, 17, 15, 18};
    char path[TEST_PATH_SIZE + 32];
    double found[6];
    assay_plan plan = {0};
    assay_model_weights *weights = NULL;
    assay_case *c = case_from(mlp);
    checkpoint_path(folder, path, sizeof path);
    assert_ok(&ctx, assay_plan_make(&ctx, &plan, c));
    assert_ok(&ctx, assay_model_weights_open(&ctx, path, c, &plan.list, &weights));
    assert_ok(&ctx, assay_model_weights_read(&ctx, weights, "weights/wi_1/kernel", 0, 6, found));
    assert_same_bits(found, up, 6);
    assert_ok(&ctx, assay_model_weights_read(&ctx, weights, "weights/wo/kernel", 2, 3, found));
    assert_same_bits(found, down + 2, 3);
    assert_true(assay_model_weights_has(weights, "weights/wi_0/kernel"));
    assert_false(assay_model_weights_has(weights, "inputs/x"));
    assay_model_weights_close(weights);
    assay_plan_free(&plan);
    assay_cases_free(c, 1);
    assert_int_equal(unlink(path), 0);
}

static const char nvfp4[] = "case: a\nop: mlp\nconfig: {base_emb_dim: 2, base_mlp_dim: 3}\nsequence: 2\n"
                            "quant_formats: {weights/wi_0/kernel: nvfp4}\n";

/* The same with codes of gate: two a byte, a scale for each output, one of the tensor. */
static void write_codes(const char *path)
{
    static const char header[] =
        "{\"mlp.gate_proj.weight\":{\"dtype\":\"U8\",\"shape\":[3,1],\"data_offsets\":[0,3]},"
        "\"mlp.gate_proj.weight_scale\":{\"dtype\":\"F8_E4M3\",\"shape\":[3,1],\"data_offsets\":[3,6]},"
        "\"mlp.gate_proj.weight_scale_2\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[6,10]},"
        "\"mlp.gate_proj.input_scale\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[10,14]},"
        "\"mlp.up_proj.weight\":{\"dtype\":\"F32\",\"shape\":[3,2],\"data_offsets\":[14,38]},"
        "\"mlp.down_proj.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[38,62]}}";
    static const uint8_t codes[] = {0x21, 0x43, 0xe5}, scales[] = {0x38, 0x40, 0x48}; /* 1, 2, 4 */
    const uint64_t length = sizeof header - 1;
    const float numbers[14] = {0.25F, 3};
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(&length, sizeof length, 1, file), 1);
    assert_int_equal(fwrite(header, length, 1, file), 1);
    assert_int_equal(fwrite(codes, sizeof codes, 1, file), 1);
    assert_int_equal(fwrite(scales, sizeof scales, 1, file), 1);
    assert_int_equal(fwrite(numbers, sizeof numbers, 1, file), 1);
    assert_int_equal(fclose(file), 0);
}

TEST_IN_FOLDER_WITH_CONTEXT(codes_and_scales_are_turned)
{
    static const double codes[] = {0.5, 1.5, 3, 1, 2, -4}, scales[] = {1, 2, 4}, of_tensor[] = {0.25};
    static const struct {
        const char *path;
        const double *expected;
        int64_t count;
    } parts[] = {{"weights/wi_0/kernel", codes, 6},
                 {"weights/wi_0/kernel_scale", scales, 3},
                 {"weights/wi_0/kernel_tensor_scale", of_tensor, 1}};
    char path[TEST_PATH_SIZE + 32];
    assay_plan plan = {0};
    assay_case *c = case_from(nvfp4);
    snprintf(path, sizeof path, "%s/model.safetensors", folder->path);
    write_codes(path);
    assert_ok(&ctx, assay_plan_make(&ctx, &plan, c));
    for (int64_t n = 0;; n++) {
        double found[3][6];
        assay_model_weights *weights = NULL;
        assay_fail_allocation(n);
        assay_status status = assay_model_weights_open(&ctx, path, c, &plan.list, &weights);
        for (int i = 0; i < 3 && status == ASSAY_OK; i++)
            status = assay_model_weights_read(&ctx, weights, parts[i].path, 0, parts[i].count, found[i]);
        const bool done = had_memory(&ctx, status);
        assay_model_weights_close(weights);
        if (!done) continue;
        for (int i = 0; i < 3; i++) assert_same_bits(found[i], parts[i].expected, parts[i].count);
        assert_true(n > 10);
        break;
    }
    assay_plan_free(&plan);
    assay_cases_free(c, 1);
    assert_int_equal(unlink(path), 0);
}
