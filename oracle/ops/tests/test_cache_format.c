/* Where the bytes of a page lie, in each format, what is written there, and what is refused. */

#include "oracle/ops/cache_format.h"
#include "oracle/ops/tests/ops_test.h"

enum { MOST_BYTES = 4096, MOST_NUMBERS = 1024 };

/* As FlashMLA's writer does it: powers of two, 2^-13 at least. */
static assay_cache_config config_of(const char *format, int64_t columns, int64_t rope)
{
    const assay_cache_format *f = assay_cache_format_by_name(format);
    assay_cache_config c = {
        .format = f, .pages = 2, .tokens = 3, .stride = 3, .heads = 1, .columns = columns, .rope = rope};
    c.rules = assay_quantize_default(&f->block, 1, columns);
    c.rules.rounding = ASSAY_SCALE_UP;
    c.rules.smallest_amax = (float)0.0448;
    c.rules.divide = c.rules.any_number = true;
    return c;
}

TEST(pages_have_the_sizes_of_their_sources)
{
    assay_cache_config c = config_of("fp8_ds_mla", 512, 64);
    assert_int_equal(assay_cache_page_bytes(&c), 3 * 656);
    c.stride = 64;
    assert_int_equal(assay_cache_page_bytes(&c), 64 * 656);
    c = config_of("fp8_model1", 448, 64);
    c.tokens = c.stride = 64;
    assert_int_equal(assay_cache_page_bytes(&c), (64 * 584 + 575) / 576 * 576);
    c = config_of("fp8_indexer", 128, 0);
    c.tokens = c.stride = 64;
    assert_int_equal(assay_cache_page_bytes(&c), 64 * 132);
    c = config_of("fp4_indexer", 128, 0);
    assert_int_equal(assay_cache_page_bytes(&c), 3 * 68);
    c = config_of("nvfp4", 64, 0);
    c.heads = 2;
    assert_int_equal(assay_cache_page_bytes(&c), 3 * 2 * 32);
    assert_int_equal(assay_cache_page_scales(&c), 3 * 2 * 4);
}

/* No two bytes of a page are of two things, and all that is there lies in the page. */
TEST(every_byte_is_of_one_thing)
{
    for (int i = 0; assay_cache_format_names[i] != NULL; i++) {
        for (int heads_first = 0; heads_first < 2; heads_first++) {
            const assay_cache_format *f = assay_cache_format_by_name(assay_cache_format_names[i]);
            assay_cache_config c = config_of(assay_cache_format_names[i], 48, f->plain_rope ? 6 : 0);
            char taken[MOST_BYTES] = {0}, of_scales[MOST_BYTES] = {0};
            c.heads = f->scales == ASSAY_CACHE_BEHIND ? 1 : 2;
            c.heads_first = heads_first;
            assert_true(assay_cache_page_bytes(&c) <= MOST_BYTES && assay_cache_page_scales(&c) <= MOST_BYTES);
            for (int64_t row = 0; row < c.stride * c.heads; row++) {
                const assay_cache_row r = assay_cache_row_of(&c, row % c.stride, row / c.stride);
                const int64_t codes = f->block.element == ASSAY_BFLOAT16        ? 96
                                      : f->block.element == ASSAY_FLOAT4_E2M1FN ? 24
                                                                                : 48;
                for (int64_t j = 0; j < codes; j++) assert_int_equal(taken[r.codes + j]++, 0);
                for (int64_t j = 0; j < 2 * c.rope; j++) assert_int_equal(taken[r.rope + j]++, 0);
                char *scales = f->scales == ASSAY_CACHE_APART ? of_scales : taken;
                for (int64_t j = 0; j < r.scale_bytes + r.unused_bytes; j++)
                    assert_int_equal(scales[r.scales + j]++, 0);
            }
            for (int64_t j = assay_cache_page_bytes(&c); j < MOST_BYTES; j++) assert_int_equal(taken[j], 0);
            for (int64_t j = assay_cache_page_scales(&c); j < MOST_BYTES; j++) assert_int_equal(of_scales[j], 0);
        }
    }
}

static void append_one(const assay_cache_config *c, int32_t slot, const double *numbers, const double *rope,
                       int32_t *bytes)
{
    assay_context ctx = assay_context_default(1);
    const assay_cache_tokens t = {.count = 1, .slots = &slot, .numbers = numbers, .rope = rope};
    for (int64_t i = 0; i < c->pages * assay_cache_page_bytes(c); i++) bytes[i] = 77;
    assert_ok(&ctx, assay_cache_append(&ctx, bytes, NULL, &t, c));
}

static uint32_t word_at(const int32_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

TEST(a_row_of_656_bytes_by_hand)
{
    static int32_t bytes[6 * 656];
    const assay_cache_config c = config_of("fp8_ds_mla", 512, 64);
    double numbers[512] = {448, -1, 0.5}, rope[64] = {1, -2, 1.00390625};
    numbers[128] = 449;                               /* a scale of 2 */
    numbers[256] = 0x1p-100;                          /* the least scale */
    numbers[384] = -0.0, numbers[385] = 3.4028234e38; /* over 448: above 2^119 */
    append_one(&c, 4, numbers, rope, bytes);
    const int32_t *row = bytes + 4 * 656;
    assert_int_equal(row[0], 0x7e);
    assert_int_equal(row[1], 0xb8);
    assert_int_equal(row[2], 0x30);
    assert_int_equal(row[128], 0x76); /* 224.5 is 224 */
    assert_int_equal(row[256], 0);
    assert_int_equal(row[384], 0x80);
    assert_int_equal(word_at(row + 512), 0x3f800000);
    assert_int_equal(word_at(row + 516), 0x40000000);
    assert_int_equal(word_at(row + 520), 0x39000000); /* 2^-13 */
    assert_int_equal(word_at(row + 524), 0x7b800000); /* 2^120 */
    assert_int_equal(word_at(row + 528), 0xc0003f80);
    assert_int_equal(word_at(row + 532), 0x00003f80); /* a tie goes to even */
    for (int i = 0; i < 4 * 656; i++) assert_int_equal(bytes[i], 77);
    for (int i = 5 * 656; i < 6 * 656; i++) assert_int_equal(bytes[i], 77);
}

TEST(no_numbers_are_no_scales)
{
    static int32_t bytes[6 * 656];
    const assay_cache_config c = config_of("fp8_ds_mla", 512, 64);
    double numbers[512] = {1, (double)NAN, 3}, rope[64] = {0};
    numbers[128] = -INFINITY, numbers[129] = 5, numbers[130] = -5;
    append_one(&c, 0, numbers, rope, bytes);
    for (int i = 0; i < 128; i++) assert_int_equal(bytes[i] & 0x7f, 0x7f);
    assert_int_equal(word_at(bytes + 512) & 0x7fc00000, 0x7fc00000);
    assert_int_equal(bytes[128] & 0x7f, 0x7f);
    assert_int_equal(bytes[129], 0);
    assert_int_equal(bytes[130], 0x80);
    assert_int_equal(word_at(bytes + 516), 0x7f800000);
}

TEST(scales_behind_a_page_by_hand)
{
    static int32_t bytes[2 * 2304];
    const assay_cache_config c = config_of("fp8_model1", 448, 64);
    double numbers[448] = {0}, rope[64] = {1};
    assert_int_equal(assay_cache_page_bytes(&c), 2304); /* 3 * 584, to a multiple of 576 */
    numbers[64] = 448, numbers[447] = 0x1p100;
    append_one(&c, 5, numbers, rope, bytes); /* the last row of the second page */
    const int32_t *page = bytes + 2304, *scales = page + 3 * 576 + 2 * 8;
    assert_int_equal(page[2 * 576 + 64], 0x7e);
    assert_int_equal(page[2 * 576 + 447], 0x78); /* 2^100 / 2^92 */
    assert_int_equal(page[2 * 576 + 449], 0x3f);
    assert_int_equal(scales[0], 127 - 13);
    assert_int_equal(scales[1], 127);
    assert_int_equal(scales[6], 127 + 92);
    assert_int_equal(scales[7], 77); /* of nothing */
    for (int i = 0; i < 2304; i++) assert_int_equal(bytes[i], 77);
    for (int i = 3 * 584; i < 2304; i++) assert_int_equal(page[i], 77);
}

static void refused(const assay_cache_config *c, const char *words)
{
    assay_context ctx = assay_context_default(1);
    assert_bad_input(&ctx, assay_cache_check(&ctx, c), words);
}

TEST_WITH_CONTEXT(refuses_what_a_format_cannot_have)
{
    assay_cache_config c = config_of("fp8_model1", 448, 64);
    assert_ok(&ctx, assay_cache_check(&ctx, &c));
    c.stride = 4;
    refused(&c, "scales of fp8_model1 lie behind the rows");
    c.stride = 2;
    refused(&c, "expected 3 or more");
    c = config_of("fp4_indexer", 33, 0);
    refused(&c, "an even number");
    c = config_of("fp8_e4m3_per_token", 513, 0);
    refused(&c, "at most 512");
    c = config_of("fp8_ds_mla", 512, 64);
    c.pages = INT64_C(1) << 30;
    refused(&c, "more than 2^31 bytes");
    c = config_of("mxfp8", 64, 0);
    c.rules.rounding = ASSAY_SCALE_NEAREST;
    refused(&c, "quant_scale_rounding is nearest");
    assert_null(assay_cache_format_by_name("fp8"));
}

TEST_WITH_CONTEXT(refuses_slots_of_two_tokens_and_none)
{
    const assay_cache_config c = config_of("bfloat16", 4, 2);
    assert_ok(&ctx, assay_cache_check_slots(&ctx, &c, 4, (int32_t[]){5, -1, 0, -7}));
    assert_int_equal(assay_cache_check_slots(&ctx, &c, 2, (int32_t[]){0, 6}), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message, "inputs/slot_mapping[1] is 6, expected less than 6");
    assert_int_equal(assay_cache_check_slots(&ctx, &c, 3, (int32_t[]){3, -1, 3}), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message, "inputs/slot_mapping[2] is 3, which another token has, too");
}

/* A row of float32 scales that are no powers of two, byte for byte, and NaN behind it. */
TEST(a_row_of_656_bytes_is_read_by_hand)
{
    static int32_t bytes[6 * 656];
    static double numbers[6 * 576];
    const assay_cache_config c = config_of("fp8_ds_mla", 512, 64);
    const assay_context ctx = assay_context_default(1);
    int32_t *row = bytes + 4 * 656;
    for (int i = 0; i < 6 * 656; i++) bytes[i] = 255;
    memset(row, 0, 656 * sizeof *row);
    row[0] = 0x7e, row[129] = 0xb8, row[511] = 0x01;
    row[514] = 0x40, row[515] = 0x3f; /* 0.75 */
    row[518] = 0x60, row[519] = 0x40; /* 3.5 */
    row[527] = 0x3f;                  /* 0.5 */
    row[528] = 0x81, row[529] = 0x3f; /* 1.0078125 */
    row[654] = 0x00, row[655] = 0xc0; /* -2 */
    assay_cache_read(&ctx, numbers, 576, bytes, NULL, NULL, &c);
    const double *read = numbers + 4 * 576;
    assert_true(read[0] == 448 * 0.75);
    assert_true(read[129] == -3.5);
    assert_true(read[511] == 0x1p-10);
    assert_true(read[512] == 1.0078125);
    assert_true(read[575] == -2);
    assert_true(read[1] == 0);
    assert_true(isnan(numbers[0]) && isnan(numbers[5 * 576 + 575]));
}

/* What rows hold that need no rounding comes back, in each format and in either order of heads. */
TEST(what_is_written_is_read)
{
    static int32_t bytes[2 * MOST_BYTES], scales[2 * MOST_BYTES];
    static double numbers[MOST_NUMBERS], rope[MOST_NUMBERS], read[8 * MOST_NUMBERS];
    const double scale[] = {0.25, 0.25};
    for (int i = 0; assay_cache_format_names[i] != NULL; i++) {
        for (int heads_first = 0; heads_first < 2; heads_first++) {
            const assay_cache_format *f = assay_cache_format_by_name(assay_cache_format_names[i]);
            assay_cache_config c = config_of(assay_cache_format_names[i], 64, f->plain_rope ? 6 : 0);
            assay_context ctx = assay_context_default(1);
            const int64_t width = c.columns + c.rope;
            const bool given =
                f->block.tensor_scale || f->scales == ASSAY_CACHE_OF_TENSOR || f->scales == ASSAY_CACHE_OF_HEAD;
            const assay_cache_tokens t = {.count = 2,
                                          .slots = (int32_t[]){4, 1},
                                          .numbers = numbers,
                                          .rope = rope,
                                          .scale = given ? scale : NULL};
            c.heads = f->scales == ASSAY_CACHE_BEHIND ? 1 : 2;
            c.heads_first = heads_first;
            if (f->block.tensor_scale) c.rules = assay_quantize_default(&f->block, 1, 64);
            c.rules.smallest_amax = 0;
            for (int64_t j = 0; j < 2 * c.heads * c.columns; j++) numbers[j] = (double)(j % 4) * (j % 32 < 16 ? 2 : -1);
            for (int64_t j = 0; j < 2 * c.rope; j++) rope[j] = (double)j / 4;
            for (int j = 0; j < 2 * MOST_BYTES; j++) bytes[j] = scales[j] = 255;
            assert_ok(&ctx, assay_cache_append(&ctx, bytes, scales, &t, &c));
            assay_cache_read(&ctx, read, width, bytes, scales, t.scale, &c);
            for (int64_t row = 0; row < 2 * c.heads; row++) {
                const int64_t slot = t.slots[row / c.heads], head = row % c.heads, page = slot / 3, token = slot % 3;
                const double *found = read + width * (heads_first ? (page * c.heads + head) * 3 + token
                                                                  : (page * 3 + token) * c.heads + head);
                for (int64_t j = 0; j < c.columns; j++)
                    if (found[j] != numbers[row * c.columns + j])
                        fail_msg("%s: number %d is %g, expected %g", f->block.name, (int)j, found[j],
                                 numbers[row * c.columns + j]);
                for (int64_t j = 0; j < c.rope; j++)
                    assert_true(found[c.columns + j] == rope[row / c.heads * c.rope + j]);
            }
        }
    }
}
