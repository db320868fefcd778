/* Quantised operands: what a golden holds of them, that operations compute on their numbers, and what is refused. */

#include "harness/operations/operands.h"
#include "harness/plan/inputs.h"
#include "harness/plan/results.h"
#include "harness/tests/harness_test.h"
#include "oracle/ops/quantize.h"

#define GMM "case: a\nop: gmm\nconfig: {base_emb_dim: 37, base_moe_mlp_dim: 5, num_experts: 3}\nsequence: 9\n"
#define SIZES "inputs: {group_sizes: {values: [4, 0, 5]}}\n"

/* All that the case draws, as a golden would hold it. */
static void draw(assay_context *ctx, const assay_case *c, assay_plan *plan, assay_tensor_set *set)
{
    OWNED_BY(assay_inputs_close) assay_inputs inputs;
    assert_ok(ctx, assay_plan_make(ctx, plan, c));
    assert_ok(ctx, assay_inputs_open(ctx, &inputs, c, &plan->list, NULL));
    const assay_source source = assay_inputs_source(&inputs);
    assert_ok(ctx, assay_plan_tensors(ctx, set, plan, &source));
}

static double number_of(assay_dtype type, int32_t code)
{
    double number = 0;
    const uint8_t byte = (uint8_t)code;
    assay_dtype_decode(type, 1, type == ASSAY_FLOAT32 ? (const void *)&code : (const void *)&byte, &number);
    return number;
}

/* The codes of a matrix [rows,columns] whose columns are summed over, element by element against `at` of the golden's. */
static void check_matrix(assay_context *ctx, const assay_block_format *format, int64_t rows, int64_t columns,
                         const double *x, const assay_tensor_set *set, const char *path, int64_t matrix, bool turned)
{
    char scale_path[ASSAY_PATH_SIZE], tensor_path[ASSAY_PATH_SIZE];
    snprintf(scale_path, sizeof scale_path, "%s_scale", path);
    snprintf(tensor_path, sizeof tensor_path, "%s_tensor_scale", path);
    const assay_tensor *codes = assay_tensor_set_find(set, path), *scale = assay_tensor_set_find(set, scale_path);
    const assay_tensor *of_tensor = assay_tensor_set_find(set, tensor_path);
    const assay_quantize_config q = assay_quantize_default(format, rows, columns);
    const int64_t high = assay_block_count(rows, format->rows), wide = assay_block_count(columns, format->columns);
    OWNED int32_t *made = calloc((size_t)(rows * columns), sizeof *made),
                  *scales = calloc((size_t)(high * wide), sizeof *scales);
    int32_t tensor_scale = 0;
    assert_ok(ctx, assay_quantize(ctx, made, scales, &tensor_scale, x, &q));
    for (int64_t i = 0; i < rows * columns; i++) {
        const int64_t at = turned ? i % columns * rows + i / columns : i;
        assert_true(codes->values[matrix * rows * columns + at] == number_of(format->element, made[i]));
    }
    for (int64_t i = 0; i < high * wide; i++) {
        const int64_t at = turned ? i % wide * high + i / wide : i;
        assert_true(scale->values[matrix * high * wide + at] == number_of(format->scale, scales[i]));
    }
    assert_int_equal(of_tensor != NULL, format->tensor_scale);
    if (of_tensor != NULL) assert_true(of_tensor->values[matrix] == number_of(ASSAY_FLOAT32, tensor_scale));
}

/* Weights are drawn as ever, and are the codes of their columns; rows are those of rows; nothing else is another number. */
TEST(what_is_drawn_is_quantised)
{
    for (int f = 1; assay_block_format_names[f] != NULL; f++) {
        assay_context ctx = assay_context_default(1);
        const assay_block_format *format = assay_block_format_by_name(assay_block_format_names[f]);
        char set[128];
        OWNED_BY(assay_plan_free) assay_plan plan, dense_plan;
        OWNED_BY(assay_tensor_set_free) assay_tensor_set codes, dense;
        OWNED_BY(free_case) assay_case *c = case_from(GMM SIZES), *d = case_from(GMM SIZES);
        snprintf(set, sizeof set, "quant_formats.weights/rhs=%s", format->name);
        assert_ok(&ctx, assay_case_set(&ctx, c, set));
        snprintf(set, sizeof set, "quant_formats.inputs/lhs=%s", format->name);
        assert_ok(&ctx, assay_case_set(&ctx, c, set));
        draw(&ctx, c, &plan, &codes);
        draw(&ctx, d, &dense_plan, &dense);
        const double *rhs = assay_tensor_set_find(&dense, "weights/rhs")->values;
        const assay_tensor *y = assay_tensor_set_find(&dense, "cotangents/y");
        check_matrix(&ctx, format, 9, 37, assay_tensor_set_find(&dense, "inputs/lhs")->values, &codes, "inputs/lhs", 0,
                     false);
        for (int64_t g = 0; g < 3; g++) {
            double turned[5 * 37];
            for (int i = 0; i < 5 * 37; i++) turned[i] = rhs[g * 5 * 37 + i % 37 * 5 + i / 37];
            check_matrix(&ctx, format, 5, 37, turned, &codes, "weights/rhs", g, true);
        }
        assert_same_bits(assay_tensor_set_find(&codes, "cotangents/y")->values, y->values, (int)y->count);
    }
}

/* A golden of numbers in the place of codes, whose type is that of no rounding, has the same results and error scales. */
TEST_IN_FOLDER(results_are_those_of_the_numbers)
{
    static const struct {
        const char *name, *set, *dense;
    } table[] = {
        {"gmm/nvfp4", "quant_scale_rounding=nearest", "dtypes.inputs/lhs=float64;dtypes.weights/rhs=float64"},
        {"gmm/fp8-deepgemm", "quant_scale_rounding=up", "dtypes.inputs/lhs=float64;dtypes.weights/rhs=float64"},
        {"mlp/nvfp4-fused", "seed=7", "dtypes.weights/w*/kernel=float64"},
        {"moe/gpt-oss-mxfp4", "seed=8",
         "dtypes.weights/wi_0=float64;dtypes.weights/wi_1=float64;dtypes.weights/wo=float64"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = assay_context_default(1);
        assay_fixture_reader *golden = NULL, *other = NULL;
        assay_fixture_writer *writer = NULL;
        assay_plan plan;
        char inputs[TEST_PATH_SIZE + 16];
        int results = 0;
        snprintf(inputs, sizeof inputs, "%s/inputs.h5", folder->path);
        assay_case *c = case_named(table[i].name, table[i].set), *dense = case_named(table[i].name, table[i].dense);
        assert_ok(&ctx, assay_plan_make(&ctx, &plan, c));
        assert_ok(&ctx, try_golden(&ctx, c, folder->file, NULL));
        assert_ok(&ctx, assay_fixture_open(&ctx, folder->file, &golden));
        const assay_source codes = assay_fixture_source(golden);
        assay_dequantised dequantised = {{&codes, NULL}, &plan.list};
        const assay_source numbers = assay_dequantised_source(&dequantised);
        assert_ok(&ctx, assay_fixture_create(&ctx, inputs, &writer));
        for (int k = 0; k < plan.list.count; k++) {
            OWNED_BY(assay_tensor_set_free) assay_tensor_set one = {0};
            assay_tensor_spec spec = plan.list.entries[k].spec;
            if (plan.list.entries[k].format == NULL || plan.list.entries[k].part != ASSAY_OPERAND_CODES) continue;
            spec.type = ASSAY_FLOAT64;
            assert_ok(&ctx, assay_tensor_set_read(&ctx, &one, &spec, &numbers));
            assert_ok(&ctx, assay_fixture_declare(&ctx, writer, &spec));
            assert_ok(&ctx, assay_fixture_append(&ctx, writer, spec.path, one.items[0].count, one.items[0].values));
        }
        assert_ok(&ctx, assay_fixture_finish(&ctx, writer));
        dense->quant_format_count = 0;
        dense->seed = c->seed;
        assert_ok(&ctx, assay_case_set(&ctx, dense, "quant_scale_rounding=nearest"));
        assert_ok(&ctx, try_golden(&ctx, dense, folder->other, inputs));
        assert_ok(&ctx, assay_fixture_open(&ctx, folder->other, &other));
        for (int k = 0; k < plan.spec_count; k++) {
            const char *path = plan.specs[k].path;
            if (assay_role_is_input(plan.specs[k].role)) continue;
            if (strcmp(assay_fixture_dataset_digest(golden, path), assay_fixture_dataset_digest(other, path)) != 0)
                fail_msg("%s: %s is another one", c->name, path);
            results++;
        }
        assert_true(results > 10);
        assay_fixture_close(golden);
        assay_fixture_close(other);
        assay_plan_free(&plan);
        assay_cases_free(c, 1);
        assay_cases_free(dense, 1);
        remove(inputs);
        remove(folder->file);
        remove(folder->other);
    }
}

TEST(what_is_no_operand_is_refused)
{
    static const struct {
        const char *name, *set, *message;
    } table[] = {
        {"gmm/k-grouped-nan", "quant_recipe=deepseek_v3", "gmm_layout k_grouped is the weight gradient alone"},
        {"gmm/ragged", "quant_recipe=fp8_full;quant_formats.weights/rhs=mxfp4", "quant_recipe fp8_full quantises it"},
        {"mlp/silu", "quant_recipe=deepseek_v3;quant_formats.cotangents/y=mxfp8_e4m3", "deepseek_v3 quantises it"},
        {"mlp/silu", "dtype=bfloat16;quant_recipe=fp8_full;quant_hidden_format=fp8_e4m3_1x128", "fp8_full quantises h"},
        {"mlp/silu", "quant_recipe=fp8_full;act_quantization_calibration_method='fixed,2'", "would be cut off at"},
        {"moe/small", "quant_recipe=fp8_full;shared_experts=1;weight_quantization_calibration_method='fixed,2'",
         "the gradients of the shared expert would be cut off at"},
        {"moe/small", "quant_recipe=fp8_full;sparse_matmul=false", "with sparse_matmul=false"},
        {"moe/small", "quant_recipe=deepseek_v3;sparse_matmul=false", "with sparse_matmul=false"},
        {"mla/exact-one-hot", "quant_recipe=deepseek_v3", "the case has the tag exact"},
        {"mla/small", "quant_recipe=fp8_full;quant_formats.weights/out/kernel=mxfp4",
         "quant_recipe fp8_full quantises it"},
        {"mla/small", "quant_recipe=fp8_full;weight_quantization_calibration_method='fixed,2'", "would be cut off at"},
        {"mla/small", "quant_recipe=deepseek_v3;quant_hidden_format=fp8_e4m3_1x128", "quant_hidden_format is"},
        {"attention/grouped", "quant_recipe=deepseek_v3",
         "op attention has no recipe; gmm, mlp, mla, gqa, moe, batch_split and layers have"},
        {"gmm/ragged", "quant_recipe=deepseek_v3;quant_formats.cotangents/y=mxfp4", "cotangents/y, expected none"},
        {"gmm/ragged", "quant_recipe=fp8_full;dtype=float64",
         "dtype is float64, expected float32, bfloat16 or float16"},
        {"gmm/ragged", "quant_recipe=fp8_full;quant_scale_rounding=up", "quant_scale_rounding is up, expected nearest"},
        {"gmm/ragged", "quant_recipe=deepseek_v3;quant_scale_rounding=down", "expected nearest or up"},
        {"gmm/ragged", "quant_recipe=fp8_full;bwd_quantization_calibration_method=rms,7",
         "expected absmax, absmax,FACTOR"},
        {"gmm/ragged", "quant_recipe=deepseek_v3;act_quantization_calibration_method=fixed,2",
         "expected absmax: quant_recipe"},
        {"gmm/ragged", "quant_recipe=fp8_full;inputs.lhs={unused_nan: true}", "finds its scales over all rows"},
        {"batch_split/mla", "quant_recipe=fp8_full", "mla would quantise nothing, or what it computed itself"},
        {"batch_split/get-key-value-mesh2", "quant_recipe=fp8_full", "the mesh has 2 shards, expected one"},
        {"batch_split/get-key-value-recipe", "act_quantization_calibration_method=fixed,1", "cuts something off"},
        {"batch_split/shared-expert-recipe", "weight_quantization_calibration_method=fixed,1", "cuts something off"},
        {"batch_split/gmm", "quant_recipe=deepseek_v3", "expected fp8_full: gmm has no other"},
        {"batch_split/gmm-recipe", "dtype=float64", "dtype is float64, expected float32"},
        {"batch_split/gmm-recipe", "weight_quantization_calibration_method=fixed,0.9",
         "make the same scale in bfloat16"},
        {"batch_split/gmm-recipe", "weight_quantization_calibration_method=fixed,2;dtype=float16", "in float16"},
        {"batch_split/quantized-psum-scatter",
         "quant_recipe=", "expected fp8_full: quantized_psum_scatter has it always"},
        {"batch_split/quantized-psum-scatter", "bwd_quantization_calibration_method=fixed,1", "expected absmax"},
        {"gmm/ragged", "quant_formats.weights/lhs=mxfp4",
         "quant_formats has weights/lhs, which is no tensor of op gmm"},
        {"gmm/ragged", "quant_formats.rhs=mxfp4", "quant_formats has rhs, which is no tensor of op gmm"},
        {"gmm/ragged", "quant_formats.inputs/group_sizes=mxfp4", "which is no operand of a product by itself"},
        {"gmm/ragged", "quant_formats.outputs/y=mxfp4", "quant_formats has outputs/y, which is no tensor"},
        {"moe/small", "quant_formats.weights/gate/kernel=mxfp4",
         "weights/gate/kernel, which is no operand of a product"},
        {"mlp/biases", "quant_formats.weights/wo/bias=mxfp4", "weights/wo/bias, which is no operand of a product"},
        {"rms_norm/deepseek", "quant_formats.inputs/x=mxfp4", "op rms_norm takes its operands as they are"},
        {"program/lora", "quant_formats.inputs/ids=mxfp4", "quant_formats has inputs/ids, which is no tensor"},
        {"program/batched-product", "quant_formats.weights/g=mxfp4", "which is no operand of a product by itself"},
        {"program/batched-product", "quant_formats.inputs/k=mxfp4", "which is no operand of a product by itself"},
        {"program/norm-rope", "quant_formats.weights/w=mxfp4", "fused has n, expected what no product reads"},
        {"gmm/ragged", "quant_formats.inputs/lhs=nvfp4;quant_scale_rounding=up",
         "expected nearest: inputs/lhs is nvfp4"},
        {"gmm/ragged", "quant_formats.inputs/lhs=fp8_e4m3_1x128;quant_scale_rounding=down", "expected nearest or up"},
        {"gmm/ragged", "quant_formats.inputs/lhs=mxfp4;inputs.lhs={unused_nan: true}", "rows of NaN are not quantised"},
        {"gmm/ragged", "quant_formats.inputs/lhs=mxfp4;inputs.lhs_scale={scale: 2}", "inputs.lhs_scale is no tensor"},
        {"moe/mesh-weights-fsdp2", "quant_formats.weights/wo=mxfp4", "weights/wo, which is no operand of a product"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = assay_context_default(1);
        assay_plan plan = {0};
        OWNED_BY(free_case) assay_case *c = case_named(table[i].name, table[i].set);
        assert_bad_input(&ctx, assay_plan_make(&ctx, &plan, c), table[i].message);
    }
}

/* Codes and scales of a file: both or neither, in their shapes, and numbers. */
TEST_IN_FOLDER(bad_codes_and_scales_are_refused)
{
    static const struct {
        const char *format, *path; /* NULL: codes and the scale alike */
        int64_t blocks;
        double code, scale;
        const char *message;
    } table[] = {
        {"mxfp4", NULL, 2, 1.5, 0.25, NULL},
        {"mxfp4", "weights/rhs", 2, 1.5, 0.25, "has weights/rhs without weights/rhs_scale, expected both or neither"},
        {"mxfp4", "weights/rhs_scale", 2, 1.5, 0.25, "has weights/rhs_scale without weights/rhs"},
        {"mxfp4", NULL, 3, 1.5, 0.25, "weights/rhs_scale has shape [3,3,5], expected [3,2,5]"},
        {"mxfp4", NULL, 2, 1.25, 0.25, "weights/rhs[0] is 1.25, which is no float4_e2m1fn value"},
        {"mxfp4", NULL, 2, 1.5, 3, "weights/rhs_scale[0] is 3, which is no float8_e8m0fnu value"},
        {"mxfp4", NULL, 2, 1.5, NAN, "weights/rhs_scale[0] is nan, expected a finite number"},
        {"fp8_e4m3_1x128", NULL, 1, 448, 0.1F, NULL},
        {"fp8_e4m3_1x128", NULL, 1, NAN, 0.1F, "weights/rhs[0] is nan, expected a finite number"},
        {"fp8_e4m3_1x128", NULL, 1, 448, INFINITY, "weights/rhs_scale[0] is inf, expected a finite number"},
        {"nvfp4", NULL, 3, 1.5, 0.25, "has weights/rhs without weights/rhs_tensor_scale, expected both or neither"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = assay_context_default(1);
        assay_fixture_writer *writer = NULL;
        char set[128];
        OWNED_BY(free_case) assay_case *c = case_from(GMM SIZES);
        snprintf(set, sizeof set, "quant_formats.weights/rhs=%s", table[i].format);
        assert_ok(&ctx, assay_case_set(&ctx, c, set));
        assert_ok(&ctx, assay_fixture_create(&ctx, folder->other, &writer));
        for (int part = 0; part < 2; part++) {
            double values[3 * 37 * 5];
            const char *path = part == 0 ? "weights/rhs" : "weights/rhs_scale";
            const int64_t rows = part == 0 ? 37 : table[i].blocks;
            const assay_tensor_spec spec = spec_of(path, ASSAY_FLOAT32, 3, DIMS(3, rows, 5));
            if (table[i].path != NULL && strcmp(table[i].path, path) != 0) continue;
            for (int k = 0; k < 3 * 37 * 5; k++) values[k] = part == 0 ? table[i].code : table[i].scale;
            assert_ok(&ctx, assay_fixture_declare(&ctx, writer, &spec));
            assert_ok(&ctx, assay_fixture_append(&ctx, writer, path, 3 * rows * 5, values));
        }
        assert_ok(&ctx, assay_fixture_finish(&ctx, writer));
        const assay_status status = try_golden(&ctx, c, folder->file, folder->other);
        if (table[i].message == NULL) {
            assert_ok(&ctx, status);
            remove(folder->file);
        } else {
            assert_bad_input(&ctx, status, table[i].message);
        }
        assert_int_equal(folder_count(folder->path, true), 1);
    }
}

/* A golden is inputs of its own case: codes and scales as they are. */
TEST_IN_FOLDER_WITH_CONTEXT(a_golden_is_taken_as_inputs)
{
    OWNED_BY(assay_fixture_release) assay_fixture_reader *first = NULL, *second = NULL;
    OWNED_BY(free_case) assay_case *c = case_named("moe/nvfp4", NULL);
    assert_ok(&ctx, try_golden(&ctx, c, folder->file, NULL));
    assert_ok(&ctx, assay_case_set(&ctx, c, "seed=99"));
    assert_ok(&ctx, try_golden(&ctx, c, folder->other, folder->file));
    assert_ok(&ctx, assay_fixture_open(&ctx, folder->file, &first));
    assert_ok(&ctx, assay_fixture_open(&ctx, folder->other, &second));
    static const char *const paths[] = {"weights/wi_0",   "weights/wi_0_scale", "weights/wi_0_tensor_scale",
                                        "inputs/x_scale", "outputs/y",          "gradients/weights/wo"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        assert_string_equal(assay_fixture_dataset_digest(first, paths[i]),
                            assay_fixture_dataset_digest(second, paths[i]));
    }
}
