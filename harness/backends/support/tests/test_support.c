/* The shells' conversions against the library's own, and what is refused or left alone. */

#include "../support.h"
#include "oracle/base/dtype.h"
#include "tests/support/assay_test.h"

static float of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

TEST(every_code_is_read_as_the_library_reads_it)
{
    int32_t wrong = 0;
    for (uint32_t code = 0; code < 65536; code++) {
        const uint16_t bits = (uint16_t)code;
        double bf16, f16;
        assay_dtype_decode(ASSAY_BFLOAT16, 1, &bits, &bf16);
        assay_dtype_decode(ASSAY_FLOAT16, 1, &bits, &f16);
        wrong += !(from_bf16(bits) == (float)bf16 || (isnan(bf16) && isnan(from_bf16(bits))));
        wrong += !(from_f16(bits) == (float)f16 || (isnan(f16) && isnan(from_f16(bits))));
        const assay_backend_tensor tensor = {.type = ASSAY_BACKEND_FLOAT8_E5M2, .data = &bits};
        float e5m2;
        double expected;
        load(&e5m2, &tensor, 0, 1);
        assay_dtype_decode(ASSAY_FLOAT8_E5M2, 1, &bits, &expected);
        wrong += !(e5m2 == (float)expected || (isnan(expected) && isnan(e5m2)));
    }
    assert_int_equal(wrong, 0);
}

/* Numbers around every boundary of rounding: each code's value, half a step on, and the floats beside that. */
TEST(numbers_are_rounded_as_the_library_rounds_them)
{
    int32_t wrong = 0;
    for (uint32_t high = 0; high < 65536; high++) {
        for (uint32_t low = 0; low < 8; low++) {
            static const uint32_t LOW[] = {0, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001};
            const float x = of_bits(high << 16 | LOW[low]);
            uint16_t bf16, f16;
            if (isnan(x)) continue;
            const double exact = x;
            assay_dtype_encode(ASSAY_BFLOAT16, 1, &exact, &bf16);
            assay_dtype_encode(ASSAY_FLOAT16, 1, &exact, &f16);
            wrong += to_bf16(x) != bf16;
            wrong += to_f16(x) != f16;
        }
    }
    assert_int_equal(wrong, 0);
    assert_true(isnan(from_bf16(to_bf16(NAN))) && isnan(from_f16(to_f16(NAN))));
}

TEST(a_result_of_another_size_stays_unwritten)
{
    const float values[2] = {1, 65536};
    const int64_t dims[] = {2};
    double room[2] = {-1, -1};
    assay_backend_result r = {.path = "outputs/y", .rank = 1, .dims = dims, .data = room, .written = 1};
    write_result(&r, ASSAY_BACKEND_FLOAT64, values, 3);
    assert_int_equal(r.written, 0);
    assert_true(room[0] == -1 && room[1] == -1);
    write_result(&r, ASSAY_BACKEND_FLOAT64, values, 2);
    assert_true(r.written == 1 && r.type == ASSAY_BACKEND_FLOAT64 && room[0] == 1 && room[1] == 65536);
    write_result(&r, ASSAY_BACKEND_FLOAT16, values, 2);
    uint16_t codes[2];
    memcpy(codes, room, sizeof codes);
    assert_true(codes[0] == 0x3c00 && codes[1] == 0x7c00); /* 65536 is more than float16 has */
    write_result(NULL, ASSAY_BACKEND_FLOAT32, values, 2);
}

TEST(what_only_a_quantising_kernel_takes_is_found)
{
    static const struct {
        const char *key, *value;
        bool found;
    } rows[] = {
        {"quant_formats.weights/wo", "mxfp4", true}, {"quant_recipe", "fp8_full", true}, {"quant_recipe", "", false},
        {"quant_hidden_format", "nvfp4", true},      {"quant_hidden_format", "", false}, {"quant_format", "", false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const assay_backend_setting settings[] = {{.key = rows[i].key, .value = rows[i].value}};
        const assay_backend_request request = {.settings = settings, .setting_count = 1};
        assert_int_equal(has_quantised_operands(&request), rows[i].found);
    }
}

TEST(memory_comes_zeroed_and_is_given_back)
{
    memory m = {0};
    if (setjmp(m.out_of_memory) != 0) fail();
    for (int i = 0; i < 200; i++) {
        float *x = take(&m, i);
        for (int j = 0; j < i; j++) assert_true(x[j] == 0);
        assert_int_equal((uintptr_t)x % 64, 0);
        memset(x, 1, (size_t)i * sizeof *x);
    }
    give_back(&m, 100);
    assert_int_equal(m.count, 100);
    give_back(&m, 0);
    assert_true(m.count == 0 && m.blocks == NULL);
}
