#include "oracle/base/nearest.h"
#include "tests/support/assay_test.h"

static const char *hint(const char *word, int most, char *text, size_t size)
{
    static const char *const NAMES[] = {"num_experts", "num_experts_per_tok", "shared_experts", "base_emb_dim", "batch",
                                        "batch"};
    assay_nearest nearest = {.word = word, .most = most};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) assay_nearest_offer(&nearest, NAMES[i]);
    assay_nearest_text(&nearest, text, size);
    return text;
}

TEST(names_what_is_near)
{
    char text[256];
    assert_string_equal(hint("num_expert", 1, text, sizeof text), ", did you mean num_experts?");
    assert_string_equal(hint("nmu_experts", 1, text, sizeof text), ", did you mean num_experts?");
    assert_string_equal(hint("btch", 3, text, sizeof text), ", did you mean batch?");
    assert_string_equal(hint("emb_dim", 3, text, sizeof text), ", did you mean base_emb_dim?");
    assert_string_equal(hint("experts", 3, text, sizeof text),
                        ", did you mean num_experts, num_experts_per_tok or shared_experts?");
    assert_string_equal(hint("num_experts", 2, text, sizeof text),
                        ", did you mean num_experts or num_experts_per_tok?");
}

TEST(is_silent_about_what_is_not)
{
    char text[256], longest[1000];
    memset(longest, 'b', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_string_equal(hint("capacity_factor", 3, text, sizeof text), "");
    assert_string_equal(hint("", 3, text, sizeof text), "");
    assert_string_equal(hint(longest, 3, text, sizeof text), "");
    assert_string_equal(hint("num_expert", 1, text, 10), ", did you"); /* cut, not overrun */
}
