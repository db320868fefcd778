/* Users' own profiles: what is read, what is refused, and how a golden keeps them. */
#include <unistd.h>

#include "compare/profile_yaml.h"
#include "tests/support/assay_test.h"

#define ROOT_3RD 0.57735026918962576451

static assay_status parse(assay_context *ctx, const char *text, assay_profile *profile)
{
    return assay_profile_parse(ctx, "mine.yml", text, strlen(text), profile);
}

static assay_profile parsed(const char *text)
{
    assay_context ctx = {.threads = 1};
    assay_profile profile;
    assert_ok(&ctx, parse(&ctx, text, &profile));
    return profile;
}

TEST(test_a_name_alone_is_bf16)
{
    const assay_profile mine = parsed("name: mine\n"), *bf16 = assay_profile_by_name("bf16");
    assert_string_equal(mine.precision.name, "mine");
    assert_true(mine.storage == ASSAY_BFLOAT16 && mine.multiply == ASSAY_BFLOAT16);
    assert_true(mine.precision.storage == bf16->precision.storage && mine.precision.multiply == 0);
    assert_true(mine.precision.accumulate == bf16->precision.accumulate);
    assert_true(mine.precision.router == bf16->precision.router);
    assert_true(mine.precision.elementary == bf16->precision.elementary);
    assert_true(mine.precision.scaled.block == 0 && mine.precision.accumulator.block == 0);
}

TEST(test_every_key)
{
    const assay_profile mine = parsed("like: tpu_default\n"
                                      "accumulate: {bits: 10, rounding: truncate, block: 64}\n"
                                      "router: bfloat16\n"
                                      "statistics: float16\n"
                                      "elementary: {type: bfloat16, ulps: 1.5}\n"
                                      "storage: float16\n"
                                      "ties: any\n"
                                      "name: mine_2\n");
    const assay_precision *p = &mine.precision;
    assert_true(mine.any_of_tied && !parsed("name: e\nties: lower\n").any_of_tied);
    assert_true(mine.statistics == ASSAY_FLOAT16 && parsed("name: s\nlike: f64\n").statistics == ASSAY_FLOAT64);
    assert_true(mine.storage == ASSAY_FLOAT16 && p->storage == 0x1p-11 * ROOT_3RD);
    assert_true(mine.multiply == ASSAY_BFLOAT16 && p->multiply == 0x1p-8 * ROOT_3RD); /* tpu_default's */
    assert_true(p->accumulate == 0x1p-10 * ROOT_3RD && p->accumulator.truncate && p->accumulator.block == 64);
    assert_true(p->router == 0x1p-8 * ROOT_3RD && p->elementary == 1.5 * 0x1p-7);
    const assay_profile scaled = parsed("name: b\nmultiply: {block: 32, type: float8_e5m2}\naccumulate: tfloat32\n");
    assert_true(scaled.precision.scaled.block == 32 && scaled.precision.scaled.type == ASSAY_FLOAT8_E5M2);
    assert_true(scaled.multiply == ASSAY_BFLOAT16 && scaled.precision.accumulate == 0x1p-11 * ROOT_3RD);
    const assay_profile plain =
        parsed("name: c\nlike: fp8_e4m3_block128\nmultiply: tfloat32\naccumulate: {type: float64}");
    assert_true(plain.precision.scaled.block == 0 && plain.precision.accumulator.block == 0);
    assert_true(!plain.precision.accumulator.truncate && plain.accumulate_bits == 52);
    /* operands as they are stored stay so where the storage changes */
    const assay_profile wide = parsed("name: d\nstorage: float32\n");
    assert_true(wide.multiply == ASSAY_FLOAT32 && wide.precision.multiply == 0);
}

TEST(test_written_and_read_again)
{
    int count = 0;
    const assay_profile *profiles = assay_profiles(&count);
    for (int i = 0; i < count; i++) {
        char text[ASSAY_PROFILE_YAML_SIZE], again[ASSAY_PROFILE_YAML_SIZE];
        assay_profile mine = profiles[i];
        snprintf(mine.precision.name, sizeof mine.precision.name, "a_name_of_thirty_one_characters");
        mine.any_of_tied = i % 2 == 1;
        mine.elementary_ulps = 1.0 / 3 + 1;
        mine.precision = assay_profile_precision(&mine);
        assay_profile_to_yaml(&mine, text);
        const assay_profile back = parsed(text);
        assay_profile_to_yaml(&back, again);
        assert_string_equal(text, again);
        assert_true(back.any_of_tied == mine.any_of_tied);
        assert_true(back.precision.elementary == mine.precision.elementary);
        assert_true(back.precision.accumulate == mine.precision.accumulate);
        assert_true(back.precision.multiply == mine.precision.multiply);
    }
}

TEST_WITH_CONTEXT(test_refusals)
{
    static const struct {
        const char *text, *message;
    } table[] = {
        {"", "mine.yml: expected a profile, found nothing"},
        {"[1]", "mine.yml:1:1: expected a mapping (key: value), found a list"},
        {"like: bf16", "mine.yml:1:1: name: expected the profile's name, found nothing"},
        {"name: a\n---\nname: b", "mine.yml:3:1: expected one profile, found another document"},
        {"name: bf16", "mine.yml:1:7: name: expected a name that is not built in, found bf16"},
        {"name: bfloat16", "mine.yml:1:7: name: expected a name that is not built in, found bfloat16"},
        {"name: fp8_e4m3_block128", "expected a name that is not built in"},
        {"name: My", "name: expected small letters, digits and _, a letter first, and not all or none, found My"},
        {"name: 8bit", "found 8bit"},
        {"name: a/b", "found a/b"},
        {"name: none", "not all or none, found none"},
        {"name: a_name_of_thirty_two_characters_", "name: expected at most 31 bytes"},
        {"name: a\nnames: b", "mine.yml:2:1: unknown key names, expected name, like, storage"},
        {"name: a\nlike: bf17", "mine.yml:2:7: like: expected f64, f32"},
        {"name: a\nstorage: int32", "storage: expected float64, float32, bfloat16 or float16, found int32"},
        {"name: a\nstorage: float8_e4m3fn", "storage: expected float64, float32, bfloat16 or float16"},
        {"name: a\nmultiply: float8_e4m3fn", "multiply: expected float64, float32, tfloat32, bfloat16 or float16"},
        {"name: a\nmultiply: {type: bfloat16, block: 4}", "multiply type: expected float8_e4m3fn or float8_e5m2"},
        {"name: a\nmultiply: {type: float8_e5m2}", "multiply: expected type and block, found no block"},
        {"name: a\nmultiply: {type: float8_e5m2, block: 0}", "multiply block: expected a whole number from 1"},
        {"name: a\nmultiply: {scale: 1, block: 1}", "unknown key scale, expected type or block of multiply"},
        {"name: a\naccumulate: 13", "accumulate: expected float64, float32"},
        {"name: a\naccumulate: {bits: 1}", "accumulate bits: expected a whole number from 2 to 52, found 1"},
        {"name: a\naccumulate: {rounding: up}", "accumulate rounding: expected nearest or truncate, found up"},
        {"name: a\naccumulate: {rounding: [up]}", "accumulate rounding: expected nearest or truncate, found a list"},
        {"name: a\naccumulate: {block: -1}", "accumulate block: expected a whole number from 0"},
        {"name: a\naccumulate: {length: 2}", "unknown key length, expected type, bits, rounding or block of"},
        {"name: a\nrouter: fp8", "router: expected float64, float32, bfloat16 or float16, found fp8"},
        {"name: a\nelementary: 2", "elementary: expected a mapping (key: value), found 2"},
        {"name: a\nelementary: {ulps: 0}", "elementary ulps: expected a number from 0.5 to 1048576, found 0"},
        {"name: a\nelementary: {bits: 0}", "unknown key bits, expected type or ulps of elementary"},
        {"name: a\nties: upper", "ties: expected lower or any, found upper"},
        {"name: a\nname: b", "name is given twice"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_profile profile = {.accumulate_bits = 77};
        assert_bad_input(&ctx, parse(&ctx, table[i].text, &profile), table[i].message);
        assert_int_equal(profile.accumulate_bits, 77);
    }
    assay_profile profile;
    assert_int_equal(assay_profile_read_file(&ctx, "/nowhere/mine.yml", &profile), ASSAY_IO);
}

/* A golden without tensors, with these texts as its profiles. */
static assay_fixture_reader *golden_with(assay_context *ctx, const char *path, int count, const char *const *texts)
{
    assay_fixture_writer *writer = NULL;
    assay_fixture_reader *reader = NULL;
    assert_ok(ctx, assay_fixture_create(ctx, path, &writer));
    if (count > 0) assert_ok(ctx, assay_fixture_set_texts(ctx, writer, "profiles", count, texts));
    assert_ok(ctx, assay_fixture_finish(ctx, writer));
    assert_ok(ctx, assay_fixture_open(ctx, path, &reader));
    return reader;
}

TEST_WITH_CONTEXT(test_goldens_keep_profiles)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/assay-profiles-%d.h5", (int)getpid());
    const char *const texts[] = {"name: one\n", "name: two\nlike: f32\naccumulate: {bits: 9}\n"};
    const char *const damaged[] = {"name: one\n", "name: 1\n"};
    assay_profile *found = NULL;
    int count = 0;
    assay_fixture_reader *golden = golden_with(&ctx, path, 2, texts);
    assert_ok(&ctx, assay_profiles_of_golden(&ctx, golden, &found, &count));
    assert_int_equal(count, 2);
    assert_string_equal(found[1].precision.name, "two");
    assert_true(found[1].storage == ASSAY_FLOAT32 && found[1].accumulate_bits == 9);
    free(found);
    const assay_profile same = parsed("name: two\nlike: f32\naccumulate: {rounding: nearest, bits: 9}\n");
    const assay_profile other = parsed("name: two\nlike: f32\naccumulate: {bits: 9}\nrouter: bfloat16\n");
    const assay_profile unknown = parsed("name: three\n");
    assert_ok(&ctx, assay_profile_check_golden(&ctx, golden, &same));
    assert_ok(&ctx, assay_profile_check_golden(&ctx, golden, &unknown));
    assert_ok(&ctx, assay_profile_check_golden(&ctx, golden, assay_profile_by_name("bf16")));
    assert_int_equal(assay_profile_check_golden(&ctx, golden, &other), ASSAY_BAD_INPUT);
    assert_string_equal(ctx.message,
                        "the golden's error scales are of another profile two: it has \"router: float32\", "
                        "found \"router: bfloat16\"");
    int64_t failures = 0;
    while (lacks_memory(&failures, &ctx, assay_profile_check_golden(&ctx, golden, &same))) continue;
    assert_true(failures >= 1);
    assay_fixture_close(golden);
    golden = golden_with(&ctx, path, 2, damaged);
    assert_int_equal(assay_profiles_of_golden(&ctx, golden, &found, &count), ASSAY_BAD_INPUT);
    assert_true(found == NULL && count == 0);
    assay_fixture_close(golden);
    golden = golden_with(&ctx, path, 0, NULL);
    assert_ok(&ctx, assay_profiles_of_golden(&ctx, golden, &found, &count));
    assert_true(found == NULL && count == 0);
    assay_fixture_close(golden);
    unlink(path);
}
